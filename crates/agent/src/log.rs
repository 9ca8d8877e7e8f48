//! The agent's log goes to standard error, and nothing waits for who reads that. journald reads it from a socket, and
//! stops for as long as its disk hangs. Other hosts get their answers meanwhile, and sessions go on. Lines that find no
//! room in the socket are left out and counted.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use linerate_lock::Mutex;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// Takes whole lines. Clones write to the same place.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    output: Arc<File>,
    lost: Arc<Mutex<Lost>>,
}

/// What the reader will miss.
#[derive(Debug, Default)]
struct Lost {
    lines: u64,
    /// The last of them is there in part.
    is_cut: bool,
}

impl Log {
    pub fn to(output: OwnedFd) -> Log {
        Log { output: Arc::new(output.into()), lost: Arc::default() }
    }

    /// How many of the bytes were taken. What is no socket is written to as usual: a file, a pipe, a terminal.
    fn put(&self, bytes: &[u8]) -> io::Result<usize> {
        match send(&*self.output, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Err(Errno::NOTSOCK) => (&*self.output).write_all(bytes).map(|()| bytes.len()),
            sent => Ok(sent?),
        }
    }
}

impl Write for Log {
    /// A line that cannot be written is lost: there is no other place to say so.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut lost = self.lost.lock();
        let mut text = Vec::new();
        if lost.is_cut {
            text.push(b'\n');
        }
        if lost.lines > 0 {
            writeln!(text, "{} lines of the agent's log were left out, as nobody read it", lost.lines)?;
        }
        text.extend_from_slice(line);
        match self.put(&text) {
            Ok(bytes) if bytes == text.len() => *lost = Lost::default(),
            Ok(_) => *lost = Lost { lines: lost.lines + 1, is_cut: true },
            Err(_) => lost.lines += 1,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn nobody_waits_for_the_reader_of_the_log_and_what_is_left_out_is_counted() {
        let (output, mut reader) = UnixStream::pair().unwrap();
        let mut log = Log::to(output.into());
        let line = format!("{}\n", "x".repeat(999));
        // More than a socket takes while nobody reads.
        let all = 20_000;
        for _ in 0..all {
            log.write_all(line.as_bytes()).unwrap();
        }
        reader.set_nonblocking(true).unwrap();
        let mut text = Vec::new();
        // All that there is: then it would have to wait.
        let _ = reader.read_to_end(&mut text);
        let taken = text.len() / line.len();
        assert!(taken > 0 && taken < all, "{taken}");
        log.write_all(b"read again\n").unwrap();
        let mut rest = Vec::new();
        let _ = reader.read_to_end(&mut rest);
        let rest = String::from_utf8(rest).unwrap();
        let left_out = format!("{} lines of the agent's log were left out", all - taken);
        assert!(rest.contains(&left_out) && rest.ends_with("\nread again\n"), "{rest}");
    }

    #[test]
    fn a_file_has_every_line() {
        let mut file = tempfile::tempfile().unwrap();
        let mut log = Log::to(file.try_clone().unwrap().into());
        for line in ["one\n", "two\n"] {
            log.clone().write_all(line.as_bytes()).unwrap();
        }
        log.flush().unwrap();
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\ntwo\n");
    }
}
