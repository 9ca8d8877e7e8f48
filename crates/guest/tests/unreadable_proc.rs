//! A process of which `/proc` does not tell whose it is.

use std::path::PathBuf;
use std::process::{Child, Command};

use linerate_guest::procfs::ProcessError;
use linerate_guest::registry::{GuestRecord, Origin};
use rustix::process::Signal;

/// Names the guest's record where the test runs again, with a `/proc` of its own.
const INSIDE: &str = "LINERATE_TEST_UNREADABLE_PROC";

/// A process that ends with its test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It may be another guest's by now: it gets no signal, and is not said to have ended. As root: `/proc` is covered in a
/// mount namespace.
#[test]
fn a_process_that_cannot_be_looked_at_is_neither_killed_nor_taken_for_ended() {
    if let Some(path) = std::env::var_os(INSIDE) {
        let record: GuestRecord = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let signalled = record.process.signal(Signal::KILL);
        assert!(matches!(signalled, Err(ProcessError::Read { .. })), "{signalled:?}");
        let killed = record.kill();
        assert!(matches!(killed, Err(ProcessError::Read { .. })), "{killed:?}");
        assert!(record.is_alive() && !record.can_run() && !record.cannot_run());
        return;
    }
    let mut guest = Ends(Command::new("sleep").arg("600").spawn().unwrap());
    let pid = i32::try_from(guest.0.id()).unwrap();
    let record = GuestRecord::new("g", Origin::Adopted, pid, PathBuf::from("/q"), vec![]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (file, proc) = (dir.path().join("record"), dir.path().join("proc"));
    std::fs::write(&file, serde_json::to_vec(&record).unwrap()).unwrap();
    // A folder is no file that can be read.
    std::fs::create_dir_all(proc.join(format!("{pid}/stat"))).unwrap();
    let boot = "sys/kernel/random/boot_id";
    std::fs::create_dir_all(proc.join("sys/kernel/random")).unwrap();
    std::fs::write(proc.join(boot), std::fs::read(format!("/proc/{boot}")).unwrap()).unwrap();
    let mut again = Command::new("unshare");
    again.args(["--mount", "sh", "-c", "mount --bind \"$0\" /proc && exec \"$@\""]).arg(&proc);
    again.arg(std::env::current_exe().unwrap()).args([
        "--exact",
        "a_process_that_cannot_be_looked_at_is_neither_killed_nor_taken_for_ended",
        "--nocapture",
    ]);
    let ended = again.env(INSIDE, &file).output().unwrap();
    assert!(ended.status.success(), "{ended:?}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("1 passed"), "{ended:?}");
    assert!(guest.0.try_wait().unwrap().is_none(), "it was killed");
}
