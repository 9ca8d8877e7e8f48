//! A stand-in for a guest: maps a file in memory and writes pages that check themselves, and does on command what a
//! hypervisor may do to its memory.
//!
//! `linerate-test-guest --path FILE|memfd:NAME|memfd:hugetlb-NAME --size BYTES [--threads N] [--pages-per-second R]`
//!
//! Says `READY`, then `OK <writes>` ten times a second, or `BAD <page>` and ends with 1. Ends when standard input does.
//! Takes commands on standard input and answers each with `DONE`:
//!
//! - `write FIRST COUNT`, `load FIRST COUNT`, `pipe PAGE` (read(2) into it), `verify`;
//! - `uffd` (watches its own memory), `sandbox` (dies if it calls userfaultfd);
//! - `signals COUNT` (waits until so many SIGRTMIN came), `quit`.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;
const WORDS: usize = PAGE / 8;

/// SIGRTMIN caught so far. Such signals queue: each one sent must be counted once.
static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// Held for reading by threads that write a page, and for writing by `verify`, which must not meet a half-written page.
static WRITING: RwLock<()> = RwLock::new(());

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let options = Options::parse(std::env::args().skip(1))?;
    let memory = Memory::map(&open(&options)?, options.size)?;
    count_signals();
    print_line("READY")?;
    let writes = Arc::new(AtomicU64::new(0));
    for thread in 0..options.threads {
        let (writes, options) = (writes.clone(), options.clone());
        std::thread::spawn(move || work(memory, thread, &options, &writes));
    }
    // A thread that only waits for work, as every hypervisor has some: the one to be stopped by preference.
    let (_keep, parked) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || parked.recv());
    if options.threads > 0 {
        std::thread::spawn(move || report(&writes));
    }
    for line in std::io::stdin().lock().lines() {
        if !obey(memory, &line?)? {
            break;
        }
        print_line("DONE")?;
    }
    Ok(())
}

/// What the command line says.
#[derive(Clone)]
struct Options {
    path: String,
    size: usize,
    threads: usize,
    pages_per_second: u64,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Outcome<Options> {
        let mut options = Options { path: String::new(), size: 0, threads: 0, pages_per_second: 1000 };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--path" => options.path = value,
                "--size" => options.size = value.parse()?,
                "--threads" => options.threads = value.parse()?,
                "--pages-per-second" => options.pages_per_second = value.parse()?,
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        if options.path.is_empty() || options.size == 0 || !options.size.is_multiple_of(PAGE) {
            return Err("--path and --size (whole pages) are needed".into());
        }
        Ok(options)
    }
}

fn open(options: &Options) -> Outcome<File> {
    let file = match options.path.strip_prefix("memfd:") {
        Some(name) => {
            use rustix::fs::{MemfdFlags, memfd_create};
            // Explicit huge pages of the kernel's usual size.
            let huge = if name.starts_with("hugetlb-") { MemfdFlags::HUGETLB } else { MemfdFlags::empty() };
            File::from(memfd_create(name, MemfdFlags::CLOEXEC | huge)?)
        }
        None => OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&options.path)?,
    };
    file.set_len(options.size as u64)?;
    Ok(file)
}

/// The mapped file; it stays mapped until the process ends.
#[derive(Clone, Copy)]
struct Memory {
    base: *mut u64,
    pages: usize,
}

// SAFETY: the mapping lives as long as the process; pages are divided among threads, and the agent only reads them.
unsafe impl Send for Memory {}

impl Memory {
    fn map(file: &File, size: usize) -> Outcome<Memory> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};
        // SAFETY: the kernel chooses a free range.
        let free = unsafe {
            mmap_anonymous(std::ptr::null_mut(), size + HUGE, ProtFlags::empty(), MapFlags::PRIVATE)
        }?;
        // Huge pages need an address that is a multiple of theirs.
        let base = free.map_addr(|address| address.next_multiple_of(HUGE));
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: a part of what was just reserved is replaced.
        let base = unsafe { mmap(base, size, access, flags, file, 0) }?;
        // SAFETY: only a wish about huge pages, on the range just mapped.
        let _ = unsafe { madvise(base, size, Advice::LinuxHugepage) };
        Ok(Memory { base: base.cast(), pages: size / PAGE })
    }

    /// Advice to the kernel that changes no content, as the memory is shared with its file.
    fn advise(self, first: usize, count: usize, advice: i32) -> Outcome<()> {
        let at = self.word(first, 0);
        // SAFETY: the pages lie in the mapping, and there is no reference into it.
        match unsafe { libc::madvise(at.cast(), count.min(self.pages - first % self.pages) * PAGE, advice) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error().into()),
        }
    }

    /// Word of a page, with both taken modulo what there is.
    fn word(self, page: usize, index: usize) -> *mut u64 {
        // SAFETY: the product stays below `pages * WORDS`, the length of the mapping in words.
        unsafe { self.base.add((page % self.pages) * WORDS + index % WORDS) }
    }

    fn read(self, page: usize, index: usize) -> u64 {
        // SAFETY: `word` gives an aligned address inside the mapping.
        unsafe { self.word(page, index).read_volatile() }
    }

    fn write(self, page: usize, version: u64) {
        for index in 0..WORDS {
            // SAFETY: as in `read`.
            unsafe { self.word(page, index).write_volatile(expected(page % self.pages, version, index)) };
        }
    }

    /// A page of version 0 was never written and is zero.
    fn is_sound(self, page: usize) -> bool {
        let version = self.read(page, 0);
        (0..WORDS).all(|index| self.read(page, index) == expected(page % self.pages, version, index))
    }
}

/// The content of a page: its version, then words that depend on page, version and place.
fn expected(page: usize, version: u64, index: usize) -> u64 {
    if index == 0 || version == 0 {
        return version;
    }
    (version ^ ((page as u64) << 20) ^ ((index as u64) << 50)).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

fn work(memory: Memory, thread: usize, options: &Options, writes: &AtomicU64) {
    let mut seed = 0x2545_F491_4F6C_DD1D_u64.wrapping_mul(thread as u64 + 1);
    let share = (memory.pages / options.threads).max(1);
    let per_second = (options.pages_per_second / options.threads as u64).max(1);
    let begun = Instant::now();
    for count in 1.. {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let page = (seed as usize % share) * options.threads + thread;
        let writing = WRITING.read().unwrap_or_else(PoisonError::into_inner);
        if !memory.is_sound(page) {
            let _ = print_line(&format!("BAD {page}"));
            std::process::exit(1);
        }
        memory.write(page, memory.read(page, 0).wrapping_add(1).max(1));
        drop(writing);
        writes.fetch_add(1, Ordering::Relaxed);
        let due = Duration::from_micros(count * 1_000_000 / per_second);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
    }
}

fn report(writes: &AtomicU64) {
    while print_line(&format!("OK {}", writes.load(Ordering::Relaxed))).is_ok() {
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn print_line(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}

/// Carries out one command; `false` for the last one.
fn obey(memory: Memory, line: &str) -> Outcome<bool> {
    let words: Vec<_> = line.split_whitespace().collect();
    match words.as_slice() {
        ["write", first, count] => {
            for page in pages(first, count)? {
                memory.write(page, memory.read(page, 0).wrapping_add(1).max(1));
            }
        }
        ["load", first, count] => {
            std::hint::black_box(pages(first, count)?.map(|page| memory.read(page, 1)).fold(0, |a, b| a ^ b));
        }
        ["open", file] => {
            let direct = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(file)?;
            drop(OPENED.set(direct));
        }
        ["read", page] => read_file(memory, page.parse()?)?,
        ["pipe", page] => read_into(memory, page.parse()?)?,
        ["collapse"] => memory.advise(0, memory.pages, libc::MADV_COLLAPSE)?,
        // The kernel makes the huge page and refuses to map it where memory is protected, which it calls an error.
        ["collapse", "protected"] => drop(memory.advise(0, memory.pages, libc::MADV_COLLAPSE)),
        ["reclaim"] => memory.advise(0, memory.pages, libc::MADV_PAGEOUT)?,
        ["forget", first, count] => {
            let pages = pages(first, count)?;
            memory.advise(pages.start, pages.len(), libc::MADV_DONTNEED)?;
        }
        ["verify"] => {
            let _still = WRITING.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(page) = (0..memory.pages).find(|page| !memory.is_sound(*page)) {
                print_line(&format!("BAD {page} when verified"))?;
                return Ok(false);
            }
        }
        ["signals", count] => await_signals(count.parse()?)?,
        ["uffd"] => watch_itself(memory)?,
        ["sandbox"] => sandbox()?,
        ["quit"] => return Ok(false),
        _ => return Err(format!("unknown command {line}").into()),
    }
    Ok(true)
}

fn pages(first: &str, count: &str) -> Outcome<std::ops::Range<usize>> {
    let first: usize = first.parse()?;
    Ok(first..first + count.parse::<usize>()?)
}

/// The file that was opened.
static OPENED: std::sync::OnceLock<File> = std::sync::OnceLock::new();

/// Reads the start of the opened file into the page.
fn read_file(memory: Memory, page: usize) -> Outcome<()> {
    let file = OPENED.get().ok_or("no file was opened")?;
    // SAFETY: the page lies in the mapping, is writable, and there is no reference into it.
    let read = unsafe { libc::pread(file.as_raw_fd(), memory.word(page, 0).cast(), PAGE, 0) };
    if read == PAGE as isize { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// The kernel writes into the page, as it does for a hypervisor's disk reads.
fn read_into(memory: Memory, page: usize) -> Outcome<()> {
    let (reader, writer) = std::io::pipe()?;
    let mut writer = File::from(std::os::fd::OwnedFd::from(writer));
    writer.write_all(&[0x55; 8])?;
    // SAFETY: eight bytes of a page of the mapping.
    let got = unsafe { libc::read(reader.as_raw_fd(), memory.word(page, 0).cast(), 8) };
    if got == 8 { Ok(()) } else { Err("short read".into()) }
}

extern "C" fn on_signal(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

fn count_signals() {
    let handler: extern "C" fn(libc::c_int) = on_signal;
    // SAFETY: the handler only adds to an atomic number.
    unsafe { libc::signal(libc::SIGRTMIN(), handler as libc::sighandler_t) };
}

/// Waits for the count, then a little more, so that one too many is noticed too.
fn await_signals(count: u64) -> Outcome<()> {
    let begun = Instant::now();
    while SIGNALS.load(Ordering::Relaxed) < count && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(100));
    let caught = SIGNALS.load(Ordering::Relaxed);
    if caught == count { Ok(()) } else { Err(format!("{caught} signals instead of {count}").into()) }
}

/// Registers a userfaultfd of its own and keeps it.
fn watch_itself(memory: Memory) -> Outcome<()> {
    use linux_raw_sys::general::{uffdio_api, uffdio_range, uffdio_register};
    use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER};
    let mut api = uffdio_api { api: 0xAA, features: 1 << 12, ioctls: 0 };
    let range = uffdio_range { start: memory.base as u64, len: (memory.pages * PAGE) as u64 };
    let mut register = uffdio_register { range, mode: 1 << 1, ioctls: 0 };
    // SAFETY: the calls take the structures that belong to their numbers, live and exclusive.
    let failed = unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | 1) as i32;
        let failed = fd < 0
            || libc::ioctl(fd, u64::from(UFFDIO_API), &mut api) != 0
            || libc::ioctl(fd, u64::from(UFFDIO_REGISTER), &mut register) != 0;
        if fd >= 0 {
            std::mem::forget(File::from_raw_fd(fd));
        }
        failed
    };
    if failed { Err(std::io::Error::last_os_error().into()) } else { Ok(()) }
}

/// A system call filter for all threads that kills the process on userfaultfd.
fn sandbox() -> Outcome<()> {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_userfaultfd as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its length belong together and outlive the call, which copies them.
    let result = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &program,
        )
    };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}
