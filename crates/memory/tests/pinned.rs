//! Why some disks are drained: what they read goes into pinned pages, which no scan sees. Needs root and
//! qemu-storage-daemon. FUSE reads with direct I/O as this does, whether the file was opened with O_DIRECT or not.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::undocumented_unsafe_blocks,
    reason = "a test program: its helpers fail by panic, and its unsafe calls are system calls on live locals"
)]

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Guest, PAGE, scan};
use linerate_memory::Tracker;

const SIZE: u64 = 16 << 20;
const DEADLINE: Duration = Duration::from_secs(20);

/// A file that a FUSE server shows; the server is killed at the end, and the mount goes with it.
struct Fuse {
    server: Child,
    folder: tempfile::TempDir,
}

impl Fuse {
    fn start() -> Fuse {
        let folder = tempfile::tempdir().unwrap();
        let (image, shown) = (folder.path().join("image"), folder.path().join("shown"));
        std::fs::write(&image, vec![7u8; 1 << 20]).unwrap();
        std::fs::write(&shown, "").unwrap();
        let server = Command::new("qemu-storage-daemon")
            .args(["--blockdev", &format!("file,node-name=image,filename={}", image.display())])
            .args(["--export", &format!("fuse,id=fuse,node-name=image,mountpoint={}", shown.display())])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let fuse = Fuse { server, folder };
        wait("the FUSE server", || fuse.shown().metadata().is_ok_and(|about| about.len() == 1 << 20));
        fuse
    }

    fn shown(&self) -> std::path::PathBuf {
        self.folder.path().join("shown")
    }

    fn signal(&self, signal: i32) {
        assert_eq!(unsafe { libc::kill(self.server.id() as i32, signal) }, 0);
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let shown = std::ffi::CString::new(self.shown().into_os_string().into_encoded_bytes()).unwrap();
        unsafe { libc::umount2(shown.as_ptr(), libc::MNT_DETACH) };
    }
}

fn wait(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the process waits inside of `pread`.
fn reads(pid: i32) -> bool {
    let text = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("syscall"));
    text.is_ok_and(|text| text.starts_with(&format!("{} ", libc::SYS_pread64)))
}

#[test]
fn a_read_into_pinned_pages_in_progress_is_seen_by_no_scan() {
    let mut guest = Guest::start(SIZE, &[]);
    guest.command("write 0 64");
    let fuse = Fuse::start();
    let (tracker, _) = Tracker::attach(guest.pid(), &[guest.block()], &[]).unwrap();
    tracker.protect().unwrap();
    let scan = || scan(&tracker, true);
    guest.command(&format!("open {}", fuse.shown().display()));
    fuse.signal(libc::SIGSTOP);
    guest.begin("read 5");
    wait("the read", || reads(guest.pid()));
    // Pinning is a write, and this scan sees that. The data come later.
    wait("the page to be pinned", || {
        let found = scan();
        assert!(found.is_empty() || found == [(5, 1)], "{found:?}");
        !found.is_empty()
    });
    fuse.signal(libc::SIGCONT);
    guest.finish("read 5");
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(guest.block().file(), &mut byte, 5 * PAGE).unwrap();
    assert_eq!(byte, [7], "the page was written");
    assert_eq!(scan(), [], "and no scan says so: such disks must be drained");
}
