//! When attaching is refused, and what a guest survives. Needs root.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a test program: its helpers fail by panic, and its unsafe calls are system calls on live locals"
)]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::Guest;
use linerate_memory::{AttachError, FindError, RamBlock, Tracker};

const SIZE: u64 = 16 << 20;

#[test]
fn another_userfaultfd_is_named_and_left_alone() {
    let mut guest = Guest::start(SIZE, &[]);
    guest.command("uffd");
    assert!(guest.is_watched());
    let refused = Tracker::attach(guest.pid(), &[guest.block()], &[]);
    assert!(matches!(refused, Err(AttachError::OtherUserfaultfd { .. })), "{refused:?}");
    assert!(guest.is_watched(), "the other's registration must stay");
    guest.command("load 0 10");
}

#[test]
fn a_second_tracker_is_refused_and_the_first_goes_on() {
    let mut guest = Guest::start(SIZE, &[]);
    let (first, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    let second = Tracker::attach(guest.pid(), &[guest.block()], &[]);
    assert!(matches!(second, Err(AttachError::OtherUserfaultfd { .. })), "{second:?}");
    first.protect().unwrap();
    guest.command("write 3 1");
    assert_eq!(first.scan(true, &mut Vec::new()).unwrap().pages, 1);
}

#[test]
fn a_sandbox_that_kills_on_userfaultfd_is_survived() {
    let mut guest = Guest::start(SIZE, &["--threads", "1"]);
    guest.command("sandbox");
    let (tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    tracker.detach().unwrap();
    assert!(guest.is_alive());
    guest.command("verify");
}

#[test]
fn threads_to_avoid_are_avoided() {
    let mut guest = Guest::start(SIZE, &["--threads", "2"]);
    // The reporter is the last thread to start.
    guest.wait_writes(0);
    let threads: Vec<i32> = std::fs::read_dir(format!("/proc/{}/task", guest.pid()))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let refused = Tracker::attach(guest.pid(), &[guest.block()], &threads);
    assert!(matches!(refused, Err(AttachError::NoThread { .. })), "{refused:?}");
    for left in &threads {
        let avoid: Vec<i32> = threads.iter().copied().filter(|thread| thread != left).collect();
        let (_, report) = Tracker::attach(guest.pid(), &[guest.block()], &avoid).unwrap();
        assert_eq!(report.thread, *left);
    }
}

#[test]
fn a_traced_thread_is_refused_with_its_tracer() {
    let mut guest = Guest::start(SIZE, &["--threads", "1"]);
    // The reporter is the last thread to start: one that comes after the debugger would not be traced.
    guest.wait_writes(0);
    let pid = guest.pid();
    // ptrace binds to the thread that seizes; when that thread ends, the guest is free again.
    let (ready, tracer) = std::sync::mpsc::channel();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let debugger = std::thread::spawn(move || {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let thread: i32 = thread.unwrap().file_name().to_str().unwrap().parse().unwrap();
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, 0, 0) }, 0);
        }
        ready.send(unsafe { libc::gettid() }).unwrap();
        let _ = released.recv();
    });
    let debugging = tracer.recv().unwrap();
    let refused = Tracker::attach(pid, &[guest.block()], &[]);
    drop(release);
    debugger.join().unwrap();
    assert!(
        matches!(refused, Err(AttachError::AlreadyTraced { tracer, .. }) if tracer == debugging),
        "{refused:?}"
    );
}

/// Calls `send` again and again from another thread while a guest is attached to 200 times; gives how often.
fn attach_under_fire(guest: &Guest, avoid: &[i32], send: impl Fn() + Sync) -> u64 {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut count = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                send();
                count += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
            count
        });
        for _ in 0..200 {
            let (tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], avoid).unwrap();
            tracker.protect().unwrap();
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        sender.join().unwrap()
    })
}

#[test]
fn no_signal_is_lost_or_doubled() {
    let mut guest = Guest::start(SIZE, &["--threads", "1"]);
    let (_, report) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    let (pid, thread) = (guest.pid(), report.thread);
    let sent = attach_under_fire(&guest, &[], || {
        // To the very thread that is stopped.
        let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, thread, libc::SIGRTMIN()) };
        assert_eq!(sent, 0);
    });
    guest.command(&format!("signals {sent}"));
    guest.command("verify");
}

#[test]
fn stopping_and_continuing_meanwhile_does_no_harm() {
    let mut guest = Guest::start(SIZE, &["--threads", "2", "--pages-per-second", "20000"]);
    let pid = guest.pid();
    attach_under_fire(&guest, &[], || {
        for signal in [libc::SIGSTOP, libc::SIGCONT] {
            assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        }
    });
    guest.resume();
    let before = guest.wait_writes(0);
    guest.wait_writes(before);
    guest.command("verify");
}

#[test]
fn what_is_not_guest_ram_is_not_found() {
    let guest = Guest::start(SIZE, &[]);
    let find = |path: &str| RamBlock::find(guest.pid(), "ram", Path::new(path)).unwrap_err();
    assert!(matches!(find("/dev/shm/no-such-file"), FindError::NotMapped { .. }));
    let program = env!("CARGO_BIN_EXE_linerate-test-guest");
    assert!(matches!(find(program), FindError::NotShared { .. }));
    assert!(matches!(RamBlock::find(i32::MAX, "ram", &guest.path), Err(FindError::NoProcess { .. })));
}

#[test]
fn a_deleted_file_is_found_by_its_old_name() {
    let mut guest = Guest::start(SIZE, &[]);
    std::fs::remove_file(&guest.path).unwrap();
    std::fs::write(&guest.path, [0; 4096]).unwrap();
    // The new file of that name is not what the guest maps; nothing must be mistaken for it.
    let block = guest.block();
    assert_eq!(block.size(), SIZE);
    guest.command("write 4 1");
    let mapping = linerate_memory::Mapping::new(&block).unwrap();
    assert_eq!(mapping.populated().unwrap(), [common::run(4, 1)]);
}

const WORKER_PID: &str = "LINERATE_TEST_WORKER_PID";
const WORKER_PATH: &str = "LINERATE_TEST_WORKER_PATH";

/// Not a test by itself: the agent that `a_killed_agent_harms_no_guest` kills. Without its variables it does nothing.
#[test]
fn worker_attaches_in_a_loop() {
    let (Ok(pid), Ok(path)) = (std::env::var(WORKER_PID), std::env::var(WORKER_PATH)) else { return };
    let pid = pid.parse().unwrap();
    loop {
        let block = RamBlock::find(pid, "ram", Path::new(&path)).unwrap();
        // The agent killed before may still be going: its registration is in the way for a moment.
        if let Ok((tracker, _)) = Tracker::attach(pid, &[block], &[]) {
            tracker.protect().unwrap();
            tracker.scan(true, &mut Vec::new()).unwrap();
        }
    }
}

#[test]
fn a_killed_agent_harms_no_guest() {
    let mut guest = Guest::start(SIZE, &["--threads", "2", "--pages-per-second", "20000"]);
    for iteration in 0..50u64 {
        let mut agent = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker_attaches_in_a_loop"])
            .env(WORKER_PID, guest.pid().to_string())
            .env(WORKER_PATH, &guest.path)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(20_000 + iteration * 1373));
        agent.kill().unwrap();
        agent.wait().unwrap();
        assert!(guest.is_alive(), "iteration {iteration}");
    }
    // A helper that outlived its agent ends by itself; then nothing is left.
    let settled = (0..1200).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        !guest.is_watched()
    });
    assert!(settled, "write protection was left behind");
    let before = guest.wait_writes(0);
    guest.wait_writes(before);
    guest.command("verify");
}
