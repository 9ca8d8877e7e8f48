//! Measures what the choices in docs/memory.md rest on. Run as root, in release mode, on a quiet machine: `cargo run
//! --release -p linerate-memory --example measure [checksums|first-touch|zero|scans|rounds|holes]`. Every figure is the
//! median of interleaved repetitions.

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linerate_core::Run;
use linerate_memory::{Mapping, RamBlock, Tracker};
use linux_raw_sys::general::{cachestat, cachestat_range};

type Outcome<T> = Result<T, Box<dyn Error>>;
type Case<'a> = (&'a str, Box<dyn FnMut() -> Outcome<f64> + 'a>);

const MIB: u64 = 1 << 20;
const CHUNK: usize = 256 << 10;
const REPETITIONS: usize = 7;
/// The command for the guest: write every page.
const ALL: &str = "write 0 131072";

fn main() -> Outcome<()> {
    match std::env::args().nth(1).as_deref() {
        Some("inside") => {
            let huge = std::env::args().nth(2).ok_or("which directory?")?;
            let only = std::env::args().nth(3).unwrap_or_default();
            let parts: [(&str, &dyn Fn() -> Outcome<()>); 6] = [
                ("checksums", &checksums),
                ("first-touch", &|| first_touch(&huge)),
                ("zero", &zero_test),
                ("scans", &|| scans(&huge)),
                ("rounds", &|| rounds(&huge)),
                ("holes", &holes),
            ];
            parts.iter().filter(|(name, _)| name.contains(&only)).try_for_each(|(_, part)| part())
        }
        part => in_own_mounts(part.unwrap_or_default()),
    }
}

/// Starts itself again where a tmpfs with huge pages can be mounted without anybody else seeing it.
fn in_own_mounts(part: &str) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let status = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs -o huge=advise linerate \"$1\" && exec \"$0\" inside \"$1\" \"$2\"",
        ])
        .arg(std::env::current_exe()?)
        .arg(directory.path())
        .arg(part)
        .status()?;
    if status.success() { Ok(()) } else { Err("the measurement failed: is this root?".into()) }
}

/// Runs all cases in turn, several times, and prints medians with the spread.
fn compare(title: &str, unit: &str, mut cases: Vec<Case<'_>>) -> Outcome<()> {
    let mut results = vec![Vec::new(); cases.len()];
    for _ in 0..REPETITIONS {
        for (values, (_, case)) in results.iter_mut().zip(&mut cases) {
            values.push(case()?);
        }
    }
    println!("\n{title}\n| case | median {unit} | least | most |\n|---|---|---|---|");
    for (mut values, (name, _)) in results.into_iter().zip(cases) {
        values.sort_by(f64::total_cmp);
        println!(
            "| {name} | {:.3} | {:.3} | {:.3} |",
            values[REPETITIONS / 2],
            values[0],
            values[REPETITIONS - 1]
        );
    }
    Ok(())
}

fn gigabytes_per_second(bytes: u64, elapsed: Duration) -> f64 {
    bytes as f64 / elapsed.as_secs_f64() / 1e9
}

fn filled(directory: &str, bytes: u64) -> Outcome<File> {
    let file = tempfile::tempfile_in(directory)?;
    file.set_len(bytes)?;
    let pattern: Vec<u8> = (0..MIB as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 | 1).collect();
    (0..bytes / MIB).try_for_each(|chunk| file.write_all_at(&pattern, chunk * MIB))?;
    Ok(file)
}

fn checksums() -> Outcome<()> {
    for (heat, bytes) in [("hot", CHUNK as u64), ("cold", 512 * MIB)] {
        let mapping = Mapping::of_file(filled("/dev/shm", bytes)?)?;
        let file = filled("/dev/shm", bytes)?;
        let slice = vec![3u8; bytes as usize];
        let rounds = if heat == "hot" { 2000 } else { 1 };
        let each = |work: &mut dyn FnMut(u64) -> Outcome<()>| -> Outcome<f64> {
            let begun = Instant::now();
            for _ in 0..rounds {
                (0..bytes).step_by(CHUNK).try_for_each(&mut *work)?;
            }
            Ok(gigabytes_per_second(bytes * rounds, begun.elapsed()))
        };
        let part = |at: u64| &slice[at as usize..at as usize + CHUNK];
        let mut buffer = vec![0; CHUNK];
        compare(
            &format!("checksum, {heat}, chunks of 256 KiB"),
            "GB/s",
            vec![
                (
                    "crc32c of a slice",
                    Box::new(|| {
                        each(&mut |at| {
                            black_box(linerate_wire::payload_checksum(part(at)));
                            Ok(())
                        })
                    }),
                ),
                (
                    "xxh3 of a slice",
                    Box::new(|| {
                        each(&mut |at| {
                            black_box(twox_hash::XxHash3_64::oneshot(part(at)));
                            Ok(())
                        })
                    }),
                ),
                (
                    "crc32c in place, three lanes (Mapping::checksum)",
                    Box::new(|| {
                        each(&mut |at| {
                            black_box(mapping.checksum(&[Run { offset: at, length: CHUNK as u64 }])?);
                            Ok(())
                        })
                    }),
                ),
                (
                    "crc32c after pread of 256 KiB",
                    Box::new(|| {
                        each(&mut |at| {
                            file.read_exact_at(&mut buffer, at)?;
                            black_box(linerate_wire::payload_checksum(&buffer));
                            Ok(())
                        })
                    }),
                ),
            ],
        )?;
    }
    Ok(())
}

fn first_touch(huge: &str) -> Outcome<()> {
    const BYTES: u64 = 512 * MIB;
    let receive = |directory: &'static str, prepare: fn(&Mapping) -> Outcome<()>| -> Outcome<f64> {
        let mapping = empty(directory, BYTES)?;
        let (socket, sender) = flood(BYTES)?;
        let begun = Instant::now();
        prepare(&mapping)?;
        for offset in (0..BYTES).step_by(CHUNK) {
            let run = [Run { offset, length: CHUNK as u64 }];
            let mut done = 0;
            while done < CHUNK {
                done += mapping.receive(socket.as_fd(), &run, done)?;
            }
        }
        let speed = gigabytes_per_second(BYTES, begun.elapsed());
        sender.join().map_err(|_| "the sender failed")?;
        Ok(speed)
    };
    let huge: &'static str = Box::leak(huge.to_owned().into_boxed_str());
    let all = |mapping: &Mapping| -> Outcome<()> {
        // Frame by frame of 2 MiB, as the agent would.
        for offset in (0..mapping.size()).step_by(2 << 20) {
            mapping.populate(&[Run { offset, length: 2 << 20 }])?;
        }
        Ok(())
    };
    let bounce = || -> Outcome<f64> {
        let file = tempfile::tempfile_in("/dev/shm")?;
        file.set_len(BYTES)?;
        let (mut socket, sender) = flood(BYTES)?;
        let mut buffer = vec![0; CHUNK];
        let begun = Instant::now();
        for offset in (0..BYTES).step_by(CHUNK) {
            std::io::Read::read_exact(&mut socket, &mut buffer)?;
            file.write_all_at(&buffer, offset)?;
        }
        let speed = gigabytes_per_second(BYTES, begun.elapsed());
        sender.join().map_err(|_| "the sender failed")?;
        Ok(speed)
    };
    compare(
        "first receive over loopback TCP, 512 MiB, populating included",
        "GB/s",
        vec![
            ("(a) into untouched 4 KiB pages", Box::new(|| receive("/dev/shm", |_| Ok(())))),
            ("(b) 4 KiB pages after MADV_POPULATE_WRITE", Box::new(move || receive("/dev/shm", all))),
            ("(c) huge=advise, untouched", Box::new(move || receive(huge, |_| Ok(())))),
            ("(c) huge=advise after MADV_POPULATE_WRITE", Box::new(move || receive(huge, all))),
            ("(d) bounce, then pwrite, 4 KiB pages", Box::new(bounce)),
        ],
    )
}

fn empty(directory: &str, bytes: u64) -> Outcome<Mapping> {
    let file = tempfile::tempfile_in(directory)?;
    file.set_len(bytes)?;
    Ok(Mapping::of_file(file)?)
}

/// A socket to read from and the thread that writes `bytes` to it.
fn flood(bytes: u64) -> Outcome<(TcpStream, std::thread::JoinHandle<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut sender = TcpStream::connect(listener.local_addr()?)?;
    let (socket, _) = listener.accept()?;
    let thread = std::thread::spawn(move || {
        let chunk = vec![7u8; CHUNK];
        (0..bytes / CHUNK as u64).for_each(|_| drop(sender.write_all(&chunk)));
    });
    Ok((socket, thread))
}

fn zero_test() -> Outcome<()> {
    const BYTES: u64 = 512 * MIB;
    let random = Mapping::of_file(filled("/dev/shm", BYTES)?)?;
    let zeros_file = tempfile::tempfile_in("/dev/shm")?;
    let zeros_chunk = vec![0; MIB as usize];
    (0..BYTES / MIB).try_for_each(|chunk| zeros_file.write_all_at(&zeros_chunk, chunk * MIB))?;
    let zeros = Mapping::of_file(zeros_file)?;
    let split = |mapping: &Mapping| -> Outcome<f64> {
        let (mut data, mut zero) = (Vec::new(), Vec::new());
        let begun = Instant::now();
        for offset in (0..BYTES).step_by(CHUNK) {
            mapping.split_zero(&[Run { offset, length: CHUNK as u64 }], &mut data, &mut zero)?;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    };
    compare(
        "split_zero over 512 MiB, runs of 256 KiB",
        "ms",
        vec![
            ("no page is zero", Box::new(|| split(&random))),
            ("every page is zero", Box::new(|| split(&zeros))),
        ],
    )
}

/// A process that maps a file of 512 MiB and waits; ended when dropped.
struct Waiting(Child);

impl Waiting {
    fn start(path: &str) -> Outcome<Waiting> {
        let name = std::env::current_exe()?.with_file_name("../linerate-test-guest");
        let child = Command::new(name)
            .args(["--path", path, "--size", &(512 * MIB).to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut waiting = Waiting(child);
        waiting.answer("READY")?;
        Ok(waiting)
    }

    fn command(&mut self, command: &str) -> Outcome<()> {
        writeln!(self.0.stdin.as_mut().ok_or("no input")?, "{command}")?;
        self.answer("DONE")
    }

    fn answer(&mut self, wanted: &str) -> Outcome<()> {
        let mut got = vec![0; wanted.len() + 1];
        std::io::Read::read_exact(self.0.stdout.as_mut().ok_or("no output")?, &mut got)?;
        if got.starts_with(wanted.as_bytes()) { Ok(()) } else { Err("unexpected answer".into()) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn scans(huge: &str) -> Outcome<()> {
    for (kind, directory) in [("4 KiB pages", "/dev/shm"), ("huge pages", huge)] {
        let path = format!("{directory}/linerate-measure-{}", std::process::id());
        let outcome = scan_file(kind, &path);
        let _ = std::fs::remove_file(&path);
        outcome?;
    }
    Ok(())
}

/// A guest of 512 MiB, all of it written, and a tracker for it. Both are new for every figure, since whatever protects
/// single pages of a huge one leaves page tables of single pages behind.
fn attached(path: &str) -> Outcome<(Waiting, Tracker, f64)> {
    let _ = std::fs::remove_file(path);
    let mut guest = Waiting::start(path)?;
    guest.command(ALL)?;
    let pid = guest.0.id() as i32;
    let block = RamBlock::find(pid, "ram", path.as_ref())?;
    let (tracker, report) = Tracker::attach(pid, &[block], &[])?;
    Ok((guest, tracker, report.stopped.as_secs_f64() * 1e3))
}

fn scan_file(kind: &str, path: &str) -> Outcome<()> {
    let scan = |tracker: &Tracker| -> Outcome<f64> {
        Ok(tracker.scan(true, &mut Vec::new())?.duration.as_secs_f64() * 1e3)
    };
    let timed = |guest: &mut Waiting| -> Outcome<f64> {
        let begun = Instant::now();
        guest.command(ALL)?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    };
    let found_after_one_write = |guest: &mut Waiting, tracker: &Tracker| -> Outcome<f64> {
        guest.command("write 5000 1")?;
        Ok(tracker.scan(true, &mut Vec::new())?.pages as f64)
    };
    let protected = || -> Outcome<(Waiting, Tracker, f64)> {
        let (guest, tracker, _) = attached(path)?;
        let took = tracker.protect()?.as_secs_f64() * 1e3;
        Ok((guest, tracker, took))
    };
    let scanned = || -> Outcome<(Waiting, Tracker, f64)> {
        let (guest, tracker, _) = attached(path)?;
        let took = scan(&tracker)?;
        Ok((guest, tracker, took))
    };
    compare(
        &format!("tracking 512 MiB, {kind}"),
        "ms (or pages)",
        vec![
            ("one thread stopped in attach", Box::new(|| Ok(attached(path)?.2))),
            ("protect: UFFDIO_WRITEPROTECT", Box::new(|| Ok(protected()?.2))),
            ("protect: PAGEMAP_SCAN of all", Box::new(|| Ok(scanned()?.2))),
            (
                "pages found after one write, UFFDIO_WRITEPROTECT",
                Box::new(|| {
                    protected()
                        .and_then(|(mut guest, tracker, _)| found_after_one_write(&mut guest, &tracker))
                }),
            ),
            (
                "pages found after one write, PAGEMAP_SCAN of all",
                Box::new(|| {
                    scanned().and_then(|(mut guest, tracker, _)| found_after_one_write(&mut guest, &tracker))
                }),
            ),
            ("scan, nothing written", Box::new(|| scan(&protected()?.1))),
            (
                "scan, everything written",
                Box::new(|| {
                    let (mut guest, tracker, _) = protected()?;
                    guest.command(ALL)?;
                    scan(&tracker)
                }),
            ),
            (
                "detach",
                Box::new(|| {
                    let (_guest, tracker, _) = protected()?;
                    let begun = Instant::now();
                    tracker.detach()?;
                    Ok(begun.elapsed().as_secs_f64() * 1e3)
                }),
            ),
            ("guest writes every page, untracked", Box::new(|| timed(&mut attached(path)?.0))),
            (
                "guest writes every page, protected by UFFDIO_WRITEPROTECT",
                Box::new(|| timed(&mut protected()?.0)),
            ),
            ("guest writes every page, protected by PAGEMAP_SCAN", Box::new(|| timed(&mut scanned()?.0))),
        ],
    )
}

/// Scans of one guest, round by round: nothing written, every 64th page written.
fn rounds(huge: &str) -> Outcome<()> {
    for (kind, directory) in [("4 KiB pages", "/dev/shm"), ("huge pages", huge)] {
        let path = format!("{directory}/linerate-measure-{}", std::process::id());
        let outcome = rounds_of(kind, &path);
        let _ = std::fs::remove_file(&path);
        outcome?;
    }
    Ok(())
}

fn rounds_of(kind: &str, path: &str) -> Outcome<()> {
    let (mut guest, tracker, _) = attached(path)?;
    tracker.protect()?;
    let scan = || -> Outcome<f64> { Ok(tracker.scan(true, &mut Vec::new())?.duration.as_secs_f64() * 1e3) };
    scan()?;
    let guest = std::cell::RefCell::new(&mut guest);
    compare(
        &format!("rounds of 512 MiB, {kind}"),
        "ms",
        vec![
            ("scan, nothing written", Box::new(&scan)),
            (
                "scan, every 64th page written",
                Box::new(|| {
                    for page in (0..512 << 8).step_by(64) {
                        guest.borrow_mut().command(&format!("write {page} 1"))?;
                    }
                    scan()
                }),
            ),
        ],
    )
}

fn holes() -> Outcome<()> {
    let file = filled("/dev/shm", 1 << 30)?;
    let mapping = Mapping::of_file(file.try_clone()?)?;
    let sparse = tempfile::tempfile_in("/dev/shm")?;
    sparse.set_len(1 << 30)?;
    (0..1 << 18).step_by(2).try_for_each(|page: u64| sparse.write_all_at(&[1], page * 4096))?;
    let sparse = Mapping::of_file(sparse)?;
    let seek = || {
        black_box(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(0))?);
        Ok(())
    };
    let stat_all = || {
        stat(&file, 1 << 30);
        Ok(())
    };
    let stat_runs = || {
        (0..4096).for_each(|_| stat(&file, CHUNK as u64));
        Ok(())
    };
    let populated = |of: &Mapping| {
        black_box(of.populated()?);
        Ok(())
    };
    let digest = |threads| {
        black_box(mapping.digest(threads)?);
        Ok(())
    };
    compare(
        "asking for holes, 1 GiB",
        "ms",
        vec![
            ("SEEK_HOLE, all populated", Box::new(|| timed(&seek))),
            ("cachestat, all populated", Box::new(|| timed(&stat_all))),
            ("cachestat, 4096 runs of 256 KiB", Box::new(|| timed(&stat_runs))),
            ("populated(), all populated", Box::new(|| timed(&|| populated(&mapping)))),
            ("populated(), every second page a hole", Box::new(|| timed(&|| populated(&sparse)))),
            ("digest(1), all populated", Box::new(|| timed(&|| digest(1)))),
            ("digest(2), all populated", Box::new(|| timed(&|| digest(2)))),
        ],
    )
}

fn timed(work: &dyn Fn() -> Outcome<()>) -> Outcome<f64> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}

/// Asks how much of the first `length` bytes is in the page cache.
fn stat(file: &std::fs::File, length: u64) {
    let mut range = cachestat_range { off: 0, len: length };
    let mut found =
        cachestat { nr_cache: 0, nr_dirty: 0, nr_writeback: 0, nr_evicted: 0, nr_recently_evicted: 0 };
    let fd = std::os::fd::AsRawFd::as_raw_fd(file);
    // SAFETY: both structures are live and those that the call wants.
    black_box(unsafe { libc::syscall(451, fd, &mut range, &mut found, 0) });
}
