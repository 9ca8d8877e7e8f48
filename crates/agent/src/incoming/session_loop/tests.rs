//! What the loop of a session does with its guest's QEMU.

use std::time::Instant;

use linerate_core::destination::Action;
use linerate_core::{Mode, ModeTag};
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_net::stream::endpoint::Socket;

use super::super::tests::{session, until_loaded};
use super::super::{ChannelTarget, streams};
use super::*;
use crate::agent::Agent;
use crate::journal::Role;
use crate::testing::{Ending, TestQemu, agent, arrived};

/// The loop of a session of this agent, and what it receives.
fn session_loop(agent: &Agent) -> (SessionLoop, Receiver<Input>) {
    let (incoming, inbox) = session();
    (SessionLoop::new(agent.incoming.clone(), incoming).unwrap(), inbox)
}

/// A source must not wait for a QEMU that takes long to end: the message that the guest runs is held back at once.
#[test]
fn a_guest_whose_qemu_is_ending_is_not_reported_as_running() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let mut ending = Ending::start(&dir);
    let (session_loop, _inbox) = session_loop(&agent);
    let session = session_loop.shared.session;
    let own = i32::try_from(std::process::id()).unwrap();
    let is_gone = |pid: i32| {
        let incoming_record =
            IncomingRecord { qemu: Some(arrived(&agent, pid)), ..IncomingRecord::default() };
        session_loop.worker.set_record(incoming_record.clone());
        let record = Record::new("g", 1, incoming_record.role(DestinationPhase::Running));
        agent.journal.put(session, &record).unwrap();
        session_loop.is_gone()
    };
    assert!(!is_gone(own));
    assert!(is_gone(ending.pid()), "it runs no code any more, and the source would give its copy up");
    ending.end();
    assert!(session_loop.is_gone());
}

/// Nobody could decide about it as long as the live session tries it.
#[test]
fn a_guest_that_may_have_run_is_recoverys_and_held_for_an_operator() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let socket = dir.path().join("g.qmp");
    let hand = TestQemu::start(&socket, &[]);
    let pid = i32::try_from(hand.pid()).unwrap();
    let qemu = GuestRecord::new("g", Origin::Arrived, pid, socket, vec![]).unwrap();
    let (mut session_loop, _inbox) = session_loop(&agent);
    let session = session_loop.shared.session;
    *session_loop.shared.guest.lock() = "g".into();
    session_loop.worker.set_record(IncomingRecord { qemu: Some(qemu), ..IncomingRecord::default() });
    let fault = Fault::new(Code::HypervisorFailed, Step::Commit, Side::Destination, "no lock");
    session_loop.execute(Action::LeaveToRecovery { fault, rolled_back: false });
    assert!(session_loop.over);
    session_loop.worker.finish();
    let [one] = <[_; 1]>::try_from(agent.unfinished()).unwrap_or_else(|all| panic!("{}", all.len()));
    assert_eq!((one.session, one.guest.as_str()), (session, "g"));
    let end = Instant::now() + Duration::from_secs(60);
    while !one.is_in_doubt() {
        assert!(Instant::now() < end, "it is not held: {:?}", one.summary());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(agent.incoming.outcome(session), Outcome::Pending, "its source keeps its copy");
    one.resolve(true).unwrap();
    while !agent.unfinished().is_empty() {
        assert!(Instant::now() < end, "it does not run: {:?}", one.summary());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(agent.incoming.outcome(session), Outcome::Committed);
}

fn received(sequence: u64, message: Message) -> Event {
    Event::Received { path: 0, sequence, message }
}

/// The guest is complete.
fn load(session_loop: &mut SessionLoop) {
    for event in until_loaded() {
        session_loop.handle(event);
        let now = session_loop.shared.clock.now();
        while session_loop.shared.machine().poll_action(now).is_some() {}
    }
}

/// The source has its guest back: the one here must not run beside it.
#[test]
fn a_guest_is_not_run_if_a_roll_back_notice_arrives_while_commit_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (mut session_loop, inbox) = session_loop(&agent);
    load(&mut session_loop);
    session_loop.handle(received(6, Message::Commit));
    session_loop.shared.send(Event::RolledBackAtSource);
    session_loop.act(&inbox);
    let role = agent.journal.get(session_loop.shared.session).unwrap().unwrap().role;
    assert!(matches!(role, Role::Destination { phase: DestinationPhase::Returned, .. }), "{role:?}");
    session_loop.worker.finish();
}

/// Its source may have its guest back. What it has sent meanwhile is about to arrive.
#[test]
fn an_operators_decision_is_not_carried_out_right_after_the_agent_was_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (mut session_loop, _inbox) = session_loop(&agent);
    load(&mut session_loop);
    session_loop.shared.resolve(true).unwrap();
    let due = |session_loop: &SessionLoop| session_loop.shared.machine().timeout().unwrap();
    let before = due(&session_loop);
    let (now, wait) = session_loop.wait();
    assert!(now + wait < before, "it is not seen whether the agent was stopped");
    session_loop.note_if_stopped(now + wait, now + wait + STOPPED_FOR);
    assert_eq!(due(&session_loop), before, "a busy host");
    let goes_on = before + STOPPED_FOR;
    session_loop.note_if_stopped(now + wait, goes_on);
    assert!(due(&session_loop) > goes_on);
    session_loop.worker.finish();
}

/// Its source waits for it, and shows its own guest as in doubt: the cause is on this host.
#[test]
fn a_committed_guest_that_its_qemu_does_not_run_is_listed_with_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (mut session_loop, inbox) = session_loop(&agent);
    load(&mut session_loop);
    session_loop.handle(received(6, Message::Commit));
    session_loop.act(&inbox);
    let shared = session_loop.shared.clone();
    assert!(shared.is_looked_at());
    let note = shared.summary().note.unwrap();
    assert!(note.contains("Look at that QEMU, on this host"), "{note}");
    shared.note_trouble("the disk is locked");
    let shown = shared.summary();
    assert_eq!(shown.state, linerate_api::MigrationState::Recovering, "{shown:?}");
    assert!(shown.note.unwrap().ends_with("Last try: the disk is locked"));
    session_loop.worker.finish();
}

#[test]
fn streams_are_reset_before_the_incoming_qemu_is_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let (shared, _inbox) = session();
    shared.target.set(ChannelTarget::Streams(streams::stream_transport(&shared))).ok().unwrap();
    let mut session_loop = SessionLoop::new(agent(&dir, &[]).incoming.clone(), shared.clone()).unwrap();
    let open = || {
        let (here, _there) = std::os::unix::net::UnixStream::pair().unwrap();
        shared.stream_transport().unwrap().streams.open("x", Socket::new(here).unwrap())
    };
    assert!(open().is_ok());
    session_loop.execute(Action::Discard);
    assert!(open().is_err(), "they are not reset");
    session_loop.worker.finish();
}

#[test]
fn first_record_names_the_mode_that_was_offered() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (mut session_loop, inbox) = session_loop(&agent);
    let mode = Ok(Mode::Handover { regions: Vec::new() });
    let message = Message::Offer { guest: "g".into(), description: "{}".into(), mode };
    session_loop.handle(Event::Received { path: 0, sequence: 1, message });
    session_loop.act(&inbox);
    let record = agent.journal.get(session_loop.shared.session).unwrap().unwrap();
    assert_eq!((record.guest.as_str(), record.mode()), ("g", Some(ModeTag::Handover)));
    session_loop.worker.finish();
}

#[test]
fn source_that_never_pauses_does_not_keep_actions_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let (mut session_loop, inbox) = session_loop(&agent(&dir, &[]));
    for _ in 0..=INPUTS_MAX {
        session_loop.shared.send(Event::Tick);
    }
    session_loop.take_waiting(&inbox);
    assert!(inbox.try_recv().is_ok(), "actions wait until nothing more comes");
    assert!(inbox.try_recv().is_err());
    session_loop.worker.finish();
}
