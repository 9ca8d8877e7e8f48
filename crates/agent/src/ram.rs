//! Guest RAM as carriers see it: `linerate-memory`'s mapping behind `linerate-net`'s trait.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use linerate_core::Run;
use linerate_memory::Mapping;
use linerate_net::region::Region;

/// A RAM block that is mapped now or, at a destination whose guest is still being started, later. Before that it has
/// size 0, so that every write to it is refused as outside.
#[derive(Debug, Default)]
pub struct Ram(OnceLock<Mapping>);

impl Ram {
    /// A block that is mapped already.
    pub fn new(mapping: Mapping) -> Ram {
        Ram(OnceLock::from(mapping))
    }

    /// The mapping is there now. Only the first counts.
    pub fn set(&self, mapping: Mapping) {
        let _ = self.0.set(mapping);
    }

    /// The mapping.
    pub fn mapping(&self) -> io::Result<&Mapping> {
        self.0
            .get()
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotConnected, "this RAM block is not mapped yet"))
    }
}

impl Region for Ram {
    fn size(&self) -> u64 {
        self.0.get().map_or(0, Mapping::size)
    }

    fn checksum(&self, runs: &[Run]) -> io::Result<u32> {
        self.mapping()?.checksum(runs)
    }

    fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()> {
        self.mapping()?.split_zero(runs, data, zero)
    }

    fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize> {
        self.mapping()?.send(socket, head, runs, done)
    }

    fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize> {
        self.mapping()?.receive(socket, runs, done)
    }

    fn clear(&self, run: Run) -> io::Result<()> {
        self.mapping()?.clear(run)
    }

    fn populate(&self, runs: &[Run]) -> io::Result<()> {
        self.mapping()?.populate(runs)
    }
}
