//! A guest that its source resumes, as the destination has given it up, or has to.

use linerate_guest::process::connect;
use linerate_guest::run_state::RunState;
use linerate_net::tcp::listen::Accepted;
use serde_json::json;

use super::*;
use crate::security::Security;
use crate::testing::listen;

/// The agent may end when QEMU has the command and the guest runs. The next one would take that for another program's
/// doing, and leave the session to an operator.
#[test]
fn a_guest_that_the_destination_gave_up_is_taken_back_on_disk_before_its_qemu_answers() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let destination = listen(&Security::insecure(), |accepted: Accepted| {
        let _ = accepted.outcome(Outcome::Aborted);
    });
    // It has no monitor that answers.
    let ending = Ending::start(&dir);
    let mut role = leaves(&arrived(&agent, ending.pid()), SourcePhase::CommitSent);
    let Role::Source { peers, .. } = &mut role else { panic!("{role:?}") };
    *peers = destination.addresses().to_vec();
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    agent.journal.put(session, &Record::new("g", order, role)).unwrap();
    recover(&agent.recovery).unwrap();
    wait_written(&agent, session, (SourcePhase::ResumingHere, true));
    assert!(!agent.unfinished()[0].is_in_doubt());
}

/// A QEMU with this disk that has written its state for a migration of ours, and has given its disk away.
fn has_written_its_state(dir: &TempDir, disk: &[&str]) -> (TestQemu, GuestRecord) {
    let socket = dir.path().join("g.qmp");
    let hand = TestQemu::start(&socket, disk);
    let pid = i32::try_from(hand.pid()).unwrap();
    let qemu = GuestRecord::new("g", Origin::Started, pid, socket, vec![]).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut qmp = connect(&qemu, deadline).unwrap();
    let mut ask = |command: &str, arguments| qmp.execute(command, arguments, deadline).unwrap();
    let holds = json!([{ "capability": "pause-before-switchover", "state": true }]);
    ask("migrate-set-capabilities", json!({ "capabilities": holds }));
    ask("migrate-set-parameters", json!({ "max-bandwidth": 1_u64 << 40 }));
    ask("migrate", json!({ "uri": "exec:cat >/dev/null" }));
    for wanted in ["pre-switchover", "completed"] {
        while ask("query-migrate", json!({}))["status"] != wanted {
            assert!(Instant::now() < deadline, "its migration does not become {wanted}");
            std::thread::sleep(Duration::from_millis(5));
        }
        if wanted == "pre-switchover" {
            ask("migrate-continue", json!({ "state": wanted }));
        }
    }
    (hand, qemu)
}

/// QEMU before 10.0 has the disks of a guest that did not run as soon as it has loaded it. It would keep them from the
/// source for as long as it waits for the notice that the guest is back there.
#[test]
fn a_destination_that_has_the_disks_of_a_paused_guest_is_notified_before_the_guest_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let image = dir.path().join("disk");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let drive = format!("file={},format=raw,if=virtio", image.display());
    let disk = ["-drive", drive.as_str()];
    let (_hand, qemu) = has_written_its_state(&dir, &disk);
    let socket = dir.path().join("there.qmp");
    let there = TestQemu::start(&socket, &disk);
    // It answers when its devices have their disks, with all locks.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut monitor = linerate_guest::qmp::Qmp::connect(&socket, deadline).unwrap();
    monitor.execute("query-status", json!({}), deadline).unwrap();
    let (sender, heard) = channel();
    let sender = Mutex::new(sender);
    let destination = listen(&Security::insecure(), move |accepted: Accepted| match accepted.hello.role {
        Purpose::Resumes => {
            let _ = accepted.outcome(Outcome::NotCommitted);
        }
        role => {
            let _ = sender.lock().send(role);
        }
    });
    let mut role = leaves(&qemu, SourcePhase::Started);
    let Role::Source { peers, ran, run_state_before, .. } = &mut role else { panic!("{role:?}") };
    *peers = destination.addresses().to_vec();
    (*ran, *run_state_before) = (false, Some(RunState::Paused));
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    agent.journal.put(session, &Record::new("g", order, role)).unwrap();
    recover(&agent.recovery).unwrap();
    let notified = heard.recv_timeout(Duration::from_secs(60)).expect("it keeps the disks for ever");
    assert_eq!(notified, Purpose::RolledBack);
    assert_eq!(written(&agent, session).0, SourcePhase::Started, "it cannot be back yet");
    drop((monitor, there));
    wait_written(&agent, session, (SourcePhase::RolledBack, true));
    let mut qmp = connect(&qemu, Instant::now() + Duration::from_secs(60)).unwrap();
    let status = qmp.execute("query-status", json!({}), Instant::now() + Duration::from_secs(60)).unwrap();
    assert_eq!(status["status"], "paused");
}
