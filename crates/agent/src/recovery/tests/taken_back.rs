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

/// A guest that has written its state, and a QEMU that has its disk. `ran`: the guest runs since its migration began.
fn is_kept_from_its_disk(dir: &TempDir, ran: bool) -> (TestQemu, TestQemu, Role) {
    let image = dir.path().join("disk");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let drive = format!("file={},format=raw,if=virtio", image.display());
    let disk = ["-drive", drive.as_str()];
    let (hand, qemu) = has_written_its_state(dir, &disk);
    let socket = dir.path().join("there.qmp");
    let there = TestQemu::start(&socket, &disk);
    // It answers when its devices have their disks, with all locks.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut monitor = linerate_guest::qmp::Qmp::connect(&socket, deadline).unwrap();
    monitor.execute("query-status", json!({}), deadline).unwrap();
    let mut role = leaves(&qemu, SourcePhase::Started);
    if !ran {
        let Role::Source { ran, run_state_before, .. } = &mut role else { panic!("{role:?}") };
        (*ran, *run_state_before) = (false, Some(RunState::Paused));
    }
    (hand, there, role)
}

/// Goes on with a session that leaves for this destination.
fn recovers(agent: &Agent, mut role: Role, destination: &Listener) -> SessionId {
    let Role::Source { peers, .. } = &mut role else { panic!("{role:?}") };
    *peers = destination.addresses().to_vec();
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    agent.journal.put(session, &Record::new("g", order, role)).unwrap();
    recover(&agent.recovery).unwrap();
    session
}

/// QEMU before 10.0 has the disks of a guest that did not run as soon as it has loaded it. It would keep them from the
/// source for as long as it waits for the notice that the guest is back there. An operator of the source may have let
/// that guest run since the destination was prepared for it.
#[test]
fn a_destination_that_has_the_disks_of_a_paused_guest_is_notified_before_the_guest_is_back() {
    for (ran, wanted) in [(false, "paused"), (true, "running")] {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let (_hand, there, role) = is_kept_from_its_disk(&dir, ran);
        let (sender, heard) = channel();
        let sender = Mutex::new(sender);
        let destination =
            listen(&Security::insecure(), move |accepted: Accepted| match accepted.hello.role {
                Purpose::Resumes => {
                    let _ = accepted.outcome(Outcome::NotCommitted);
                }
                role => {
                    let _ = sender.lock().send(role);
                }
            });
        let session = recovers(&agent, role, &destination);
        let notified = heard.recv_timeout(Duration::from_secs(60)).expect("it keeps the disks for ever");
        assert_eq!(notified, Purpose::RolledBack, "{wanted}");
        assert_eq!(written(&agent, session).0, SourcePhase::Started, "it cannot be back yet");
        drop(there);
        wait_written(&agent, session, (SourcePhase::RolledBack, true));
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut qmp = linerate_guest::qmp::Qmp::connect(&dir.path().join("g.qmp"), deadline).unwrap();
        let status = qmp.execute("query-status", json!({}), deadline).unwrap();
        assert_eq!(status["status"], wanted);
    }
}

/// The notice is lost, and an operator of the destination decides. A later notice would have the guest given up there,
/// while the operator here may be giving the other copy up. Or each host would say that the guest runs on both.
#[test]
fn a_destination_that_may_have_committed_since_is_not_notified_before_the_guest_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (_hand, _there, role) = is_kept_from_its_disk(&dir, false);
    let (sender, heard) = channel();
    let sender = Mutex::new((sender, false));
    let destination = listen(&Security::insecure(), move |accepted: Accepted| {
        let (sender, has_committed) = &mut *sender.lock();
        match accepted.hello.role {
            Purpose::RolledBack => {
                *has_committed = true;
                let _ = sender.send(());
            }
            _ if *has_committed => {
                let _ = accepted.outcome(Outcome::Pending);
            }
            _ => {
                let _ = accepted.outcome(Outcome::NotCommitted);
            }
        }
    });
    let session = recovers(&agent, role, &destination);
    heard.recv_timeout(Duration::from_secs(60)).expect("it keeps the disks for ever");
    crate::testing::wait("it does not learn that it is committed there", || {
        agent.unfinished().iter().any(|one| one.is_in_doubt())
    });
    // A notice would be repeated by now.
    assert!(heard.recv_timeout(Duration::from_secs(2)).is_err(), "it is notified, and the guest is not back");
    assert_eq!(written(&agent, session).0, SourcePhase::Started);
}
