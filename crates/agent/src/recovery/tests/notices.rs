//! Which destinations are notified of a roll-back, and when.

use linerate_core::GuestState;
use linerate_core::recovery::{NoticeStep, Phase};

use super::*;
use crate::recovery::{continue_session, notice_steps};

/// The destination may hold the guest complete, and keeps it until it is notified.
#[test]
fn a_destination_is_notified_of_every_roll_back_until_it_knows() {
    use SourcePhase::{ResumingHere, RolledBack, Started};
    for (phase, notice_due) in [(RolledBack, true), (Started, false), (ResumingHere, true)] {
        let dir = tempfile::tempdir().unwrap();
        let (agent, peer) = (agent(&dir, &[]), Peer::new());
        let (_hand, qemu) = runs(&dir);
        let session = peer.session(&agent, &qemu, phase, notice_due);
        recover(&agent.recovery).unwrap();
        peer.is_notified();
        wait_written(&agent, session, (RolledBack, true));
    }
}

#[test]
fn a_roll_back_that_only_a_later_session_shows_is_notified_too() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, [first, second]) = (agent(&dir, &[]), [Peer::new(), Peer::new()]);
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu = arrived(&agent, own);
    let earlier = first.session(&agent, &qemu, SourcePhase::Started, false);
    second.session(&agent, &qemu, SourcePhase::RolledBack, false);
    recover(&agent.recovery).unwrap();
    first.is_notified();
    assert_eq!(written(&agent, earlier), (SourcePhase::RolledBack, true));
}

/// What the destination has may be the only copy: its operator decides about it.
#[test]
fn a_destination_is_not_notified_if_the_guest_is_not_resumed_here() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::new());
    let mut ending = Ending::start(&dir);
    let session = peer.session(&agent, &arrived(&agent, ending.pid()), SourcePhase::Started, false);
    recover(&agent.recovery).unwrap();
    assert_eq!(written(&agent, session), (SourcePhase::Started, false), "its QEMU has not ended");
    ending.end();
    wait_written(&agent, session, (SourcePhase::RolledBack, false));
    assert!(peer.is_left_alone());
}

/// Its QEMU ends while no agent runs, after a recovery that meant to notify the destination.
#[test]
fn a_destination_is_not_notified_if_the_guest_ended_before_the_next_start() {
    let (_dir, agent, peer, qemu) = ended_at_its_source();
    let session = peer.session(&agent, &qemu, SourcePhase::ResumingHere, true);
    for _ in 0..2 {
        recover(&agent.recovery).unwrap();
        wait_written(&agent, session, (SourcePhase::RolledBack, false));
        assert!(peer.is_left_alone(), "the only copy is given up");
    }
}

/// It was paused before it was to leave, and ended with its host after it was rolled back: nothing ran since.
#[test]
fn a_destination_is_not_notified_of_a_roll_back_if_a_paused_guest_has_ended_since() {
    let (_dir, agent, peer, qemu) = ended_at_its_source();
    let (session, _) = peer.rolled_back(&agent, &qemu, false);
    recover(&agent.recovery).unwrap();
    wait_written(&agent, session, (SourcePhase::RolledBack, false));
    assert!(peer.is_left_alone(), "the only copy is given up");
}

/// The guest left by a newer session, whose end is not known yet.
#[test]
fn a_notice_about_a_paused_guest_waits_until_a_newer_session_has_ended() {
    let (_dir, agent, peer, qemu) = ended_at_its_source();
    let third = Peer::new();
    let (session, _) = peer.rolled_back(&agent, &qemu, false);
    let newer = third.session(&agent, &qemu, SourcePhase::CommitSent, false);
    recover(&agent.recovery).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(peer.is_left_alone(), "it may be the only copy");
    assert_eq!(written(&agent, session), (SourcePhase::RolledBack, true), "it is still due");
    let mut left = agent.journal.get(newer).unwrap().unwrap();
    left.set_phase(Phase::Source(SourcePhase::Finished));
    agent.journal.put(newer, &left).unwrap();
    peer.is_notified();
}

/// Its operator resumed it at the source since: what the destination has is old.
#[test]
fn a_destination_is_notified_about_a_guest_that_was_paused_and_runs_now() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::new());
    let (hand, qemu) = runs(&dir);
    let (session, record) = peer.rolled_back(&agent, &qemu, false);
    let mut step = notice_steps(&agent.journal, session, &record);
    assert_eq!(step(), NoticeStep::Send);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut qmp = linerate_guest::process::connect(&qemu, deadline).unwrap();
    qmp.execute("cont", serde_json::json!({}), deadline).unwrap();
    drop(qmp);
    assert_eq!(step(), NoticeStep::Send);
    drop(hand);
    assert_eq!(step(), NoticeStep::Send, "it has run since");
    crate::testing::wait("it is not written", || agent.journal.has_noted());
    let later = agent.journal.get(session).unwrap().unwrap();
    assert_eq!(notice_steps(&agent.journal, session, &later)(), NoticeStep::Send);
}

/// What the destination has is older than the guest's disks, or the guest is at a third host.
#[test]
fn a_destination_is_notified_of_a_roll_back_if_a_guest_that_ended_since_had_run_or_moved_on() {
    for ran_on in [true, false] {
        let (_dir, agent, peer, qemu) = ended_at_its_source();
        let third = Peer::new();
        peer.rolled_back(&agent, &qemu, ran_on);
        if !ran_on {
            third.session(&agent, &qemu, SourcePhase::Finished, false);
        }
        recover(&agent.recovery).unwrap();
        peer.is_notified();
    }
}

/// The operator lets the guest run here, and it turns out that it cannot: then the destination's copy is the only one.
#[test]
fn a_destination_is_not_notified_that_an_operator_keeps_a_guest_before_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::new());
    let mut ending = Ending::start(&dir);
    let session = peer.session(&agent, &arrived(&agent, ending.pid()), SourcePhase::CommitSent, false);
    recover(&agent.recovery).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    // Questions arrive until the operator's decision is on disk, and are not answered.
    let mut resolved = false;
    loop {
        let before = written(&agent, session).0;
        let received = peer.has_received();
        assert_ne!(received, Some(Purpose::RolledBack), "it is notified, and the guest is not resumed");
        match before {
            SourcePhase::CommitSent => {
                resolved |= !resolved && received.is_some() && agent.unfinished()[0].resolve(true).is_ok()
            }
            SourcePhase::ResumingHere => ending.end(),
            _ => break,
        }
        assert!(Instant::now() < end, "{before:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    wait_written(&agent, session, (SourcePhase::RolledBack, false));
    assert!(peer.is_left_alone());
}

#[test]
fn a_destination_is_notified_that_an_operator_keeps_a_guest_when_it_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::new());
    let (_hand, qemu) = runs(&dir);
    let session = peer.session(&agent, &qemu, SourcePhase::CommitSent, false);
    recover(&agent.recovery).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    // It runs here already: the destination is not asked.
    while written(&agent, session).0 == SourcePhase::CommitSent {
        for one in agent.unfinished() {
            let _ = one.resolve(true);
        }
        assert!(Instant::now() < end, "it is not resumed");
        std::thread::sleep(Duration::from_millis(5));
    }
    peer.is_notified();
    wait_written(&agent, session, (SourcePhase::RolledBack, true));
}

/// The guest ran here after commit, and has ended: the copy over there is older than its disks. If it only may have
/// run, that copy may be the only one.
#[test]
fn a_destination_gives_its_copy_up_if_the_guest_ran_here_and_an_operator_keeps_it() {
    for ran_here in [RanHere::Yes, RanHere::Maybe] {
        let (_dir, agent, peer, qemu) = ended_at_its_source();
        let session = peer.session(&agent, &qemu, SourcePhase::ResumingHere, true);
        note_ran_here(&agent, session, ran_here);
        recover(&agent.recovery).unwrap();
        wait_written(&agent, session, (SourcePhase::RolledBack, ran_here == RanHere::Yes));
        match ran_here {
            RanHere::Yes => peer.is_notified(),
            _ => assert!(peer.is_left_alone(), "the only copy may be given up"),
        }
    }
}

/// The same if its QEMU ends after an operator has decided.
#[test]
fn a_destination_keeps_its_copy_if_the_guest_may_have_run_here_and_ends_before_it_is_resumed() {
    for ran_here in [RanHere::Yes, RanHere::Maybe] {
        let dir = tempfile::tempdir().unwrap();
        let (agent, peer) = (agent(&dir, &[]), Peer::new());
        let mut ending = Ending::start(&dir);
        let qemu = arrived(&agent, ending.pid());
        let session = peer.session(&agent, &qemu, SourcePhase::CommitSent, false);
        note_ran_here(&agent, session, ran_here);
        recover(&agent.recovery).unwrap();
        agent.unfinished()[0].resolve(true).unwrap();
        wait_written(&agent, session, (SourcePhase::ResumingHere, true));
        ending.end();
        wait_written(&agent, session, (SourcePhase::RolledBack, ran_here == RanHere::Yes));
        match ran_here {
            RanHere::Yes => peer.is_notified(),
            _ => assert!(peer.is_left_alone(), "the only copy may be given up"),
        }
    }
}

/// Nothing shows that it ran since it was rolled back.
#[test]
fn a_notice_about_a_paused_guest_that_has_ended_is_sent_only_if_it_is_known_to_have_run() {
    for (ran_here, step) in [(RanHere::Maybe, NoticeStep::Withdraw), (RanHere::Yes, NoticeStep::Send)] {
        let (_dir, agent, peer, qemu) = ended_at_its_source();
        let (session, mut record) = peer.rolled_back(&agent, &qemu, false);
        agent.journal.note_ran_here(session, &mut record, ran_here);
        assert_eq!(notice_steps(&agent.journal, session, &record)(), step, "{ran_here:?}");
    }
}

/// A live session could not resume its guest here.
#[test]
fn a_destination_is_notified_of_a_roll_back_that_a_live_session_left_to_recovery() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::new());
    let (_hand, qemu) = runs(&dir);
    let session = peer.session(&agent, &qemu, SourcePhase::Started, false);
    let record = agent.journal.get(session).unwrap().unwrap();
    continue_session(&agent.recovery, session, record, GuestState::PausedAtSource);
    peer.is_notified();
    wait_written(&agent, session, (SourcePhase::RolledBack, true));
}
