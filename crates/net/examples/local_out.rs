//! How bytes of a ring get into a local socket at the least cost; docs/streams.md says why it is asked. Not a test.
//!
//! * `write`: from memory, which copies each byte.
//! * `sendfile`, `splice`: the socket refers to the ring's own pages. The ring may then not be written before the
//!   reader of the socket has read them, and no call reports that.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

type Error = Box<dyn std::error::Error>;

const RING_BYTES: usize = 8 << 20;
const ROUNDS: usize = 7;
const WAYS: [&str; 3] = ["write", "sendfile", "splice"];

fn main() -> Result<(), Error> {
    let total = std::env::args().nth(1).map_or(Ok(2 << 30), |text| text.parse())?;
    for piece in [64 << 10, 256 << 10] {
        let mut figures = vec![Vec::new(); WAYS.len()];
        for _ in 0..ROUNDS {
            for (way, figures) in WAYS.iter().zip(&mut figures) {
                figures.push(measure(way, piece, total)?);
            }
        }
        for (way, mut figures) in WAYS.iter().zip(figures) {
            figures.sort_by(|one, other| one.0.total_cmp(&other.0));
            let middle = figures.get(ROUNDS / 2).copied().unwrap_or_default();
            let (least, most) =
                (figures.first().copied().unwrap_or_default(), figures.last().copied().unwrap_or_default());
            println!(
                "| {way} | {} KiB | {:.1} ({:.1} to {:.1}) | {:.2} |",
                piece >> 10,
                middle.0,
                least.0,
                most.0,
                middle.1
            );
        }
    }
    Ok(())
}

/// Gb/s, and CPU seconds per GB of both ends together.
fn measure(way: &str, piece: usize, total: usize) -> Result<(f64, f64), Error> {
    let file = File::from(memfd_create("ring", MemfdFlags::CLOEXEC)?);
    let memory = vec![0x5a; RING_BYTES];
    (&file).write_all(&memory)?;
    let (mut near, mut far) = UnixStream::pair()?;
    let (out, into) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setpipe_size(&into, 1 << 20)?;
    let cpu = cpu_time();
    let began = Instant::now();
    std::thread::scope(|scope| -> Result<(), Error> {
        let reading = scope.spawn(move || -> std::io::Result<usize> {
            let (mut place, mut seen) = (vec![0; 256 << 10], 0);
            loop {
                match far.read(&mut place)? {
                    0 => return Ok(seen),
                    length => seen += length,
                }
            }
        });
        let mut done = 0;
        while done < total {
            let at = done % RING_BYTES;
            let length = piece.min(total - done).min(RING_BYTES - at);
            done += match way {
                "write" => near.write(memory.get(at..at + length).unwrap_or_default())?,
                "sendfile" => rustix::fs::sendfile(&near, &file, Some(&mut (at as u64)), length)?,
                _ => {
                    let taken =
                        splice(&file, Some(&mut (at as u64)), &into, None, length, SpliceFlags::empty())?;
                    let mut left = taken;
                    while left > 0 {
                        left -= splice(&out, None, near.as_fd(), None, left, SpliceFlags::empty())?;
                    }
                    taken
                }
            };
        }
        drop(near);
        let seen = reading.join().map_err(|_| "the reader panicked")??;
        if seen == total { Ok(()) } else { Err(format!("{seen} of {total} bytes came").into()) }
    })?;
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), (cpu_time() - cpu).as_secs_f64());
    Ok((total as f64 * 8.0 / seconds / 1e9, cpu / (total as f64 / 1e9)))
}

fn cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec.unsigned_abs(), u32::try_from(spent.tv_nsec).unwrap_or(0))
}
