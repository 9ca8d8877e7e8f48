//! Guest RAM as transports see it: `linerate-memory`'s mapping behind `linerate-net`'s trait.

use std::io;
use std::os::fd::BorrowedFd;

use linerate_core::Run;
use linerate_memory::Mapping;
use linerate_net::region::{Mapped, Region};

#[derive(Debug)]
pub struct Ram(Mapping);

impl Ram {
    /// The block behind this mapping.
    pub fn new(mapping: Mapping) -> Ram {
        Ram(mapping)
    }

    pub fn mapping(&self) -> &Mapping {
        &self.0
    }
}

impl Region for Ram {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
        self.0.checksum_after(before, runs)
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

    fn mapped(&self) -> Option<Mapped> {
        Some(Mapped { base: self.0.base(), length: self.0.size() })
    }

    fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
        self.0.read(run, to)
    }

    fn write(&self, run: Run, from: &[u8]) -> io::Result<()> {
        self.0.write(run, from)
    }

    fn wipe(&self, run: Run) -> io::Result<()> {
        self.0.wipe(run)
    }

    fn holes(&self, run: Run, holes: &mut Vec<Run>) -> io::Result<()> {
        holes.extend(self.0.holes_among(&[run])?);
        Ok(())
    }

    fn is_whole(&self, run: Run) -> io::Result<bool> {
        self.0.is_whole(run)
    }
}
