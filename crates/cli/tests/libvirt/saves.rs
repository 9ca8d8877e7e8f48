//! Whatever saves a domain while it is moved from RAM to RAM saves all of it, or is refused.

use std::io::Read;
use std::process::{Child, Stdio};
use std::time::Duration;

use linerate_lab::LibvirtVersion;
use linerate_lab::libvirt::IMAGES;
use rustix::process::Signal;
use serde_json::Value;

use super::stage::Stage;
use super::{SLOW, copies, ignores_shared, stayed};

/// Longer than libvirt takes to put a job behind another.
const QUEUED: Duration = Duration::from_millis(700);
/// No file with the guest's memory is smaller.
const MEMORY_MIN: u64 = 4 << 20;

/// A running command of libvirt's, which waits where libvirt has another job.
struct Job(Child);

impl Job {
    fn start(stage: &Stage, host: usize, arguments: &[&str]) -> Job {
        let mut command = stage.libvirts[host].host().command("virsh");
        command.arg("--quiet").args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
        Job(command.spawn().unwrap())
    }

    fn save(stage: &Stage, host: usize) -> Job {
        let _ = std::fs::remove_file(stage.libvirts[host].images().join("g.saved"));
        Job::start(stage, host, &["save", "g", &format!("{IMAGES}/g.saved")])
    }

    fn waits(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn succeeds(self) -> bool {
        self.end().is_ok()
    }

    /// What it says if it fails.
    fn end(mut self) -> Result<(), String> {
        let mut message = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut message).unwrap();
        if self.0.wait().unwrap().success() { Ok(()) } else { Err(message) }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What was saved there is the guest as it was.
fn comes_back(stage: &Stage, host: usize) {
    stage.libvirts[host].virsh(&["restore", &format!("{IMAGES}/g.saved")]).unwrap();
    stage.is_whole_at(host);
}

/// Another domain has its name at the destination: libvirt refuses, soon after it has begun.
fn is_refused(stage: &Stage, saved_after: &[u64]) {
    let xml = stage.libvirts[0].virsh(&["dumpxml", "g", "--inactive"]).unwrap();
    let uuid = stage.libvirts[0].virsh(&["domuuid", "g"]).unwrap();
    let other = "0f0e8c9a-0000-4000-8000-000000000001";
    let file = stage.write(1, "other.xml", &xml.replace(uuid.trim(), other));
    for after in saved_after {
        stage.libvirts[1].virsh(&["define", &file]).unwrap();
        let moving = stage.start_bare(0, &["--mode", "direct"]);
        std::thread::sleep(Duration::from_millis(*after));
        let save = Job::save(stage, 0);
        let ended = moving.end();
        assert!(ended.code.is_some_and(|code| code != 0), "{after}: {ended:#?}");
        stage.libvirts[1].virsh(&["undefine", other]).unwrap();
        if save.succeeds() {
            comes_back(stage, 0);
        }
        assert!(!ignores_shared(stage, 0), "{after}: the command says that it is over");
        stage.is_whole_at(0);
    }
}

/// Each job that writes memory waits behind the migration, which is then given up.
fn is_saved_when_it_is_given_up(stage: &Stage) {
    let save = format!("{IMAGES}/g.saved");
    let memory = format!("file={IMAGES}/g.memory,snapshot=external");
    let jobs: [&[&str]; 3] = [
        &["save", "g", &save],
        &["managedsave", "g"],
        &["snapshot-create-as", "g", "--no-metadata", "--memspec", &memory],
    ];
    for (index, job) in jobs.into_iter().enumerate() {
        let moving = stage.start_bare(0, &SLOW);
        copies(&moving);
        assert!(ignores_shared(stage, 0), "it is looked for in the wrong place");
        let mut waiting = Job::start(stage, 0, job);
        std::thread::sleep(QUEUED);
        assert!(waiting.waits(), "{job:?}");
        if index % 2 == 0 {
            moving.signal(Signal::INT);
        } else {
            stage.libvirts[0].virsh(&["domjobabort", "g"]).unwrap();
        }
        let ended = moving.end();
        assert!(ended.code.is_some_and(|code| code != 0), "{job:?}: {ended:#?}");
        if let Err(message) = waiting.end() {
            // Refused, and nothing saved: libvirt lets a job wait for 30 s (QEMU_JOB_WAIT_TIME), which a busy machine
            // may need.
            println!("{job:?} was refused: {message}");
            Job::start(stage, 0, job).end().unwrap();
        }
        match job[0] {
            "save" => comes_back(stage, 0),
            "managedsave" => {
                stage.libvirts[0].virsh(&["start", "g"]).unwrap();
            }
            _ => {
                let size = stage.libvirts[0].images().join("g.memory").metadata().unwrap().len();
                assert!(size > MEMORY_MIN, "{size} bytes");
            }
        }
        stayed(stage);
    }
}

/// At both hosts while the stream goes through. Behind the migration it is saved at the destination.
fn is_saved_when_it_arrives(stage: &mut Stage) {
    let moving = stage.start_bare(0, &["--mode", "direct"]);
    let handed_over = |line: &Value| line["name"] == "commit" && line["state"] == "started";
    moving.wait("the hand-over", handed_over);
    let (here, there) = (Job::save(stage, 0), Job::save(stage, 1));
    let ended = moving.end();
    // It may be saved by the time that the command looks at it.
    assert!(matches!(ended.code, Some(0 | 10)), "{ended:#?}");
    assert!(!here.succeeds(), "there is nothing to save any more");
    let saved = there.succeeds();
    stage.arrived(1);
    if saved {
        comes_back(stage, 1);
    }
    assert!(!ignores_shared(stage, 1));
    stage.is_whole_at(1);
}

#[test]
fn a_domain_that_is_saved_at_any_moment_of_its_move_is_saved_whole() {
    let mut stage = Stage::shared(LibvirtVersion::Eleven, None);
    is_refused(&stage, &[0, 400, 800]);
    is_saved_when_it_is_given_up(&stage);
    is_saved_when_it_arrives(&mut stage);
}
