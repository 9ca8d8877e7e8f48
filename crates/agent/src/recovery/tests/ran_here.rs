//! A guest in doubt whose QEMU does not answer, answers again, or has ended.

use linerate_guest::process::connect;
use linerate_guest::run_state::RunState;
use linerate_guest::stale;
use rustix::process::Signal;
use serde_json::json;

use super::*;
use crate::both_hosts;
use crate::testing::SlowDisk;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A guest whose QEMU has written its state, and whose commit was sent to this destination.
fn left(agent: &Agent, dir: &TempDir, peer: &Peer) -> (TestQemu, GuestRecord, SessionId) {
    let (hand, qemu) = runs(dir);
    let (mut qmp, end) = (connect(&qemu, soon()).unwrap(), soon());
    let cpus = qmp.execute("query-cpus-fast", json!({}), end).unwrap();
    let thread = i32::try_from(cpus[0]["thread-id"].as_i64().unwrap()).unwrap();
    qmp.execute("migrate", json!({ "uri": "exec:cat > /dev/null" }), end).unwrap();
    while RunState::ask(&mut qmp, end).unwrap() != RunState::PostMigrate {
        assert!(Instant::now() < end, "its state is not written");
        std::thread::sleep(Duration::from_millis(5));
    }
    let session = peer.session(agent, &qemu, SourcePhase::CommitSent, false);
    let mut record = agent.journal.get(session).unwrap().unwrap();
    let Role::Source { vcpu_time, .. } = &mut record.role else { panic!("{record:?}") };
    *vcpu_time = VcpuTime::of(&[thread]);
    vcpu_time.count(qemu.process.pid);
    agent.journal.put(session, &record).unwrap();
    (hand, qemu, session)
}

fn is_written(agent: &Agent, session: SessionId, wanted: RanHere) {
    crate::testing::wait(&format!("never {wanted:?}"), || ran_here(agent, session) == wanted);
}

/// The signal wakes the threads of its virtual CPUs, which takes CPU time as if the guest had run.
#[test]
fn a_guest_whose_qemu_was_stopped_by_a_signal_is_asked_about_when_qemu_says_that_it_has_not_run() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::new());
    let (_hand, qemu, session) = left(&agent, &dir, &peer);
    qemu.process.signal(Signal::STOP).unwrap();
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    let note = || one.summary().note.unwrap();
    while !note().contains("may have run on this host") {
        wait("its CPU time is not looked at");
    }
    assert!(!note().contains("another program"), "{}", note());
    is_written(&agent, session, RanHere::Maybe);
    assert!(peer.is_left_alone(), "a question is a commit");
    qemu.process.signal(Signal::CONT).unwrap();
    peer.is_asked();
    is_written(&agent, session, RanHere::No);
    assert!(!note().contains("on this host after commit"), "{}", note());
}

/// Its operator would run the copy there. It is not asked.
#[test]
fn a_destination_is_told_of_a_guest_that_may_have_run_and_is_here() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::that_hears(|_| true));
    let (_hand, qemu, session) = left(&agent, &dir, &peer);
    qemu.process.signal(Signal::STOP).unwrap();
    recover(&agent.recovery).unwrap();
    assert_eq!((peer.hears(), peer.hears()), (Purpose::Resumes, Purpose::Resumes));
    is_written(&agent, session, RanHere::Maybe);
}

/// The second time would wait for the first note, and the operator is heard after 20 s of silence.
#[test]
fn a_destination_is_told_of_a_guest_that_may_have_run_while_the_disk_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::that_hears(|_| true));
    let (_hand, qemu, session) = left(&agent, &dir, &peer);
    qemu.process.signal(Signal::STOP).unwrap();
    let disk = SlowDisk::start(&agent.journal);
    recover(&agent.recovery).unwrap();
    assert_eq!((peer.hears(), peer.hears()), (Purpose::Resumes, Purpose::Resumes));
    disk.end();
    is_written(&agent, session, RanHere::Maybe);
}

/// That client has the QMP connection, so first only the CPU time shows it. The guest is paused when QEMU answers.
#[test]
fn that_another_client_resumed_a_guest_is_known_for_good_when_qemu_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::new());
    let (hand, qemu, session) = left(&agent, &dir, &peer);
    let mut other = connect(&qemu, soon()).unwrap();
    other.execute("cont", json!({}), soon()).unwrap();
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    let note = || one.summary().note.unwrap();
    while !note().contains("may have run on this host") {
        wait("its CPU time is not looked at");
    }
    other.execute("stop", json!({}), soon()).unwrap();
    drop(other);
    while !note().contains("another program resumed it") {
        wait("its run state is not looked at");
    }
    is_written(&agent, session, RanHere::Yes);
    drop(hand);
    assert_eq!(one.resolve(true), Err(NotDecided::QemuEndedNotAsked));
    assert!(one.is_in_doubt());
    assert!(peer.is_left_alone(), "a question is a commit");
}

/// The answer to what is said each second decides nothing. But both copies run, and an operator looks at the list.
#[test]
fn a_guest_that_runs_here_and_at_the_destination_is_noted_and_its_images_are_stale() {
    let dir = tempfile::tempdir().unwrap();
    let listener = listen(&Security::insecure(), |accepted| {
        let _ = accepted.outcome(Outcome::Committed);
    });
    let (agent, peer) = (agent(&dir, &[]), Peer { listener, received: channel().1 });
    let (_hand, qemu, session) = left(&agent, &dir, &peer);
    let image = dir.path().join("copied-image");
    std::fs::write(&image, "x").unwrap();
    let mut record = agent.journal.get(session).unwrap().unwrap();
    let Role::Source { copied, .. } = &mut record.role else { panic!("{record:?}") };
    *copied = vec![image.clone()];
    agent.journal.put(session, &record).unwrap();
    connect(&qemu, soon()).unwrap().execute("cont", json!({}), soon()).unwrap();
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    while !both_hosts::has(&agent.journal, &session.to_string()) {
        wait("it is not noted");
    }
    assert!(one.is_in_doubt() && qemu.is_alive(), "the answer decides");
    one.resolve(false).unwrap();
    wait_written(&agent, session, (SourcePhase::Finished, false));
    assert!(stale::of(&image).is_some(), "it runs on from their copies");
}

/// Whatever it did here, the destination has the only copy that is left.
#[test]
fn a_guest_whose_qemu_has_ended_is_not_resumed_if_it_ran_or_may_have_run_here() {
    for ran in [RanHere::Maybe, RanHere::Yes] {
        let (_dir, agent, peer, qemu) = ended_at_its_source();
        let session = peer.session(&agent, &qemu, SourcePhase::CommitSent, false);
        note_ran_here(&agent, session, ran);
        recover(&agent.recovery).unwrap();
        let one = agent.unfinished()[0].clone();
        let refused = one.resolve(true).unwrap_err();
        assert_eq!(refused, NotDecided::QemuEndedNotAsked, "{ran:?}");
        let text = refused.to_string();
        assert!(text.contains("decide there") && text.contains("`--give-up` here"), "{text}");
        assert!(one.is_in_doubt());
        one.resolve(false).unwrap();
        wait_written(&agent, session, (SourcePhase::Finished, false));
        assert!(peer.is_left_alone(), "{ran:?}: a question is a commit");
    }
}
