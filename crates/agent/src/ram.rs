//! Guest RAM as carriers see it: `linerate-memory`'s mapping behind `linerate-net`'s trait.

use std::io;
use std::os::fd::BorrowedFd;

use linerate_core::Run;
use linerate_memory::Mapping;
use linerate_net::region::Region;

/// A RAM block.
#[derive(Debug)]
pub struct Ram(Mapping);

impl Ram {
    /// The block behind this mapping.
    pub fn new(mapping: Mapping) -> Ram {
        Ram(mapping)
    }

    /// The mapping.
    pub fn mapping(&self) -> &Mapping {
        &self.0
    }
}

impl Region for Ram {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn checksum(&self, runs: &[Run]) -> io::Result<u32> {
        self.0.checksum(runs)
    }

    fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()> {
        self.0.split_zero(runs, data, zero)
    }

    fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize> {
        self.0.send(socket, head, runs, done)
    }

    fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize> {
        self.0.receive(socket, runs, done)
    }

    fn clear(&self, run: Run) -> io::Result<()> {
        self.0.clear(run)
    }

    fn populate(&self, runs: &[Run]) -> io::Result<()> {
        self.0.populate(runs)
    }
}
