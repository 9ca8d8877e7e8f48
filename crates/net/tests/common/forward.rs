//! Regions of tests and examples that differ from another one in a method or two.

/// The methods of `Region` that are named, as the region in the field `.0` has them.
macro_rules! forward {
    ($($method:ident)*) => { $(forward!(@ $method);)* };
    (@ size) => {
        fn size(&self) -> u64 {
            self.0.size()
        }
    };
    (@ checksum_after) => {
        fn checksum_after(&self, before: u32, runs: &[Run]) -> io::Result<u32> {
            self.0.checksum_after(before, runs)
        }
    };
    (@ split_zero) => {
        fn split_zero(&self, runs: &[Run], data: &mut Vec<Run>, zero: &mut Vec<Run>) -> io::Result<()> {
            self.0.split_zero(runs, data, zero)
        }
    };
    (@ send) => {
        fn send(&self, socket: BorrowedFd<'_>, head: &[u8], runs: &[Run], done: usize) -> io::Result<usize> {
            self.0.send(socket, head, runs, done)
        }
    };
    (@ receive) => {
        fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize> {
            self.0.receive(socket, runs, done)
        }
    };
    (@ read) => {
        fn read(&self, run: Run, to: &mut [u8]) -> io::Result<()> {
            self.0.read(run, to)
        }
    };
    (@ write) => {
        fn write(&self, run: Run, from: &[u8]) -> io::Result<()> {
            self.0.write(run, from)
        }
    };
    (@ clear) => {
        fn clear(&self, run: Run) -> io::Result<()> {
            self.0.clear(run)
        }
    };
    (@ populate) => {
        fn populate(&self, runs: &[Run]) -> io::Result<()> {
            self.0.populate(runs)
        }
    };
}

pub(crate) use forward;
