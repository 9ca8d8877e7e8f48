//! What recovery does to real processes.

mod left_behind;
mod slow_disk;
mod taken_back;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use linerate_api::{GuestRunState, MigrationState, StartGuest, StopGuest};
use linerate_core::journal::{Decided, DestinationPhase, SourcePhase};
use linerate_core::recovery::{NoticeStep, Phase};
use linerate_core::{GuestState, ModeTag, Outcome, SessionId};
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_guest::stale;
use linerate_guest::vcpu_time::VcpuTime;
use linerate_net::tcp::listen::{Accepted, Listener};
use tempfile::TempDir;

use super::{Unfinished, continue_session, recover};
use crate::agent::Agent;
use crate::decision::NotDecided;
use crate::guests;
use crate::journal::{IncomingRecord, Record, Role};
use crate::security::Security;
use crate::security::tests::member;
use crate::testing::{Ending, TestQemu, agent, arrived, authority, closed_port, listen, secured};

/// An address at which no host answers, as long as these tests run.
fn nobody() -> SocketAddr {
    static CLOSED: OnceLock<(socket2::Socket, SocketAddr)> = OnceLock::new();
    CLOSED.get_or_init(closed_port).1
}

/// Of a guest that leaves for a host that does not answer.
pub(crate) fn leaves(qemu: &GuestRecord, phase: SourcePhase) -> Role {
    Role::Source {
        mode: ModeTag::Direct,
        phase,
        qemu: qemu.clone(),
        peers: vec![nobody()],
        ran: true,
        run_state_before: None,
        token: "00".repeat(32),
        peer: None,
        settings: None,
        vcpu_time: VcpuTime::default(),
        ran_here: false,
        copied: vec![],
        notice_due: false,
    }
}

/// A guest whose process is this test, and whose commit was sent.
pub(crate) fn commit_sent(agent: &Agent) -> GuestRecord {
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu =
        GuestRecord::new("g", Origin::Started, own, agent.registry.folder("g").unwrap().join("q"), vec![])
            .unwrap();
    agent.registry.put(&qemu).unwrap();
    let record = Record::new("g", agent.journal.next_order(), leaves(&qemu, SourcePhase::CommitSent));
    agent.journal.put(SessionId([7; 16]), &record).unwrap();
    qemu
}

#[test]
fn a_guest_in_doubt_is_shown_as_such_and_neither_stopped_nor_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let qemu = commit_sent(&agent);
    recover(&agent.recovery).unwrap();
    let listed = guests::list(&agent).unwrap();
    assert_eq!(listed[0].state, GuestRunState::InDoubt, "{listed:?}");
    assert!(listed[0].direct.reasons[0].contains("linerate migration list"), "{listed:?}");
    assert_eq!(guests::show(&agent, "g").unwrap().summary.state, GuestRunState::InDoubt);
    let error = guests::stop(&agent, "g", StopGuest { force: true }).unwrap_err();
    assert_eq!(error.code, "guest_busy");
    // Also when nothing of it is left here: it may run at the other host, with the same disks.
    for _ in 0..2 {
        let spec_toml = Some("name = 'g'\nmemory = '64M'\n".to_owned());
        let error = guests::start(&agent, &StartGuest { spec_toml, spec_path: None }).unwrap_err();
        assert_eq!(error.code, "guest_busy", "{error:?}");
        assert!(
            error.message.contains("is in doubt") && error.hint.contains("linerate resolve"),
            "{error:?}"
        );
        let _ = agent.registry.remove(&qemu);
    }
}

/// The source gives its copy up for *Committed*, and lets it run or keeps it for the other answers: neither may be sent
/// too early.
#[test]
fn a_source_that_asks_while_the_destinations_qemu_is_ending_is_answered_to_ask_again() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let mut ending = Ending::start(&dir);
    let qemu = arrived(&agent, ending.pid());
    let phases = [DestinationPhase::Running, DestinationPhase::Committed];
    for (id, phase) in (1..).zip(phases) {
        let incoming = IncomingRecord { qemu: Some(qemu.clone()), ..IncomingRecord::default() };
        let record = Record::new("g", agent.journal.next_order(), incoming.role(phase));
        agent.journal.put(SessionId([id; 16]), &record).unwrap();
    }
    let asked = || [1, 2].map(|id| agent.incoming.outcome(SessionId([id; 16])));
    assert_eq!(asked(), [Outcome::Pending; 2], "it has its files, and their locks");
    ending.end();
    assert_eq!(asked(), [Outcome::Gone; 2]);
    let left = leaves(&qemu, SourcePhase::Finished);
    agent.journal.put(SessionId([9; 16]), &Record::new("g", agent.journal.next_order(), left)).unwrap();
    assert_eq!(asked(), [Outcome::Committed; 2], "it ran here, and moved on");
}

/// A guest whose process has ended.
pub(crate) fn ended(agent: &Agent, dir: &TempDir) -> GuestRecord {
    let mut ending = Ending::start(dir);
    let qemu = arrived(agent, ending.pid());
    ending.end();
    qemu
}

/// A guest with a QEMU of its own, which ends with the first of the two.
fn runs(dir: &TempDir) -> (TestQemu, GuestRecord) {
    let socket = dir.path().join("g.qmp");
    let hand = TestQemu::start(&socket, &[]);
    let pid = i32::try_from(hand.pid()).unwrap();
    let qemu = GuestRecord::new("g", Origin::Started, pid, socket, vec![]).unwrap();
    (hand, qemu)
}

/// A destination that receives and does not answer.
struct Peer(TcpListener);

impl Peer {
    fn new() -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Peer(listener)
    }

    fn is_notified(&self) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.0.accept().is_err() {
            assert!(Instant::now() < end, "it is not notified");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A session of the source that has this destination.
    fn session(&self, agent: &Agent, qemu: &GuestRecord, phase: SourcePhase, is_due: bool) -> SessionId {
        let mut role = leaves(qemu, phase);
        let Role::Source { peers, notice_due, .. } = &mut role else { panic!("{role:?}") };
        (*peers, *notice_due) = (vec![self.0.local_addr().unwrap()], is_due);
        let order = agent.journal.next_order();
        let session = SessionId([u8::try_from(order).unwrap(); 16]);
        agent.journal.put(session, &Record::new("g", order, role)).unwrap();
        session
    }

    /// One that was rolled back and whose notice is due. `ran`: the guest was not paused when it was to leave.
    fn rolled_back(&self, agent: &Agent, qemu: &GuestRecord, ran: bool) -> (SessionId, Record) {
        let session = self.session(agent, qemu, SourcePhase::RolledBack, true);
        let mut record = agent.journal.get(session).unwrap().unwrap();
        let Role::Source { ran: ran_before, .. } = &mut record.role else { panic!("{record:?}") };
        *ran_before = ran;
        agent.journal.put(session, &record).unwrap();
        (session, record)
    }
}

/// A guest that was to leave for this destination, and whose process has ended here.
fn ended_at_its_source() -> (TempDir, Arc<Agent>, Peer, GuestRecord) {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let qemu = ended(&agent, &dir);
    (dir, agent, Peer::new(), qemu)
}

/// Phase of a source, and whether a later agent notifies the destination too.
fn written(agent: &Agent, session: SessionId) -> (SourcePhase, bool) {
    match agent.journal.get(session).unwrap().map(|record| record.role) {
        Some(Role::Source { phase, notice_due, .. }) => (phase, notice_due),
        other => panic!("{other:?}"),
    }
}

fn wait_written(agent: &Agent, session: SessionId, wanted: (SourcePhase, bool)) {
    let end = Instant::now() + Duration::from_secs(60);
    while written(agent, session) != wanted {
        assert!(Instant::now() < end, "{:?} and never {wanted:?}", written(agent, session));
        std::thread::sleep(Duration::from_millis(5));
    }
}

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
    assert!(peer.0.accept().is_err());
}

/// Its QEMU ends while no agent runs, after a recovery that meant to notify the destination.
#[test]
fn a_destination_is_not_notified_if_the_guest_ended_before_the_next_start() {
    let (_dir, agent, peer, qemu) = ended_at_its_source();
    let session = peer.session(&agent, &qemu, SourcePhase::ResumingHere, true);
    for _ in 0..2 {
        recover(&agent.recovery).unwrap();
        wait_written(&agent, session, (SourcePhase::RolledBack, false));
        assert!(peer.0.accept().is_err(), "the only copy is given up");
    }
}

/// It was paused before it was to leave, and ended with its host after it was rolled back: nothing ran since.
#[test]
fn a_destination_is_not_notified_of_a_roll_back_if_a_paused_guest_has_ended_since() {
    let (_dir, agent, peer, qemu) = ended_at_its_source();
    let (session, _) = peer.rolled_back(&agent, &qemu, false);
    recover(&agent.recovery).unwrap();
    wait_written(&agent, session, (SourcePhase::RolledBack, false));
    assert!(peer.0.accept().is_err(), "the only copy is given up");
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
    assert!(peer.0.accept().is_err(), "it may be the only copy");
    assert_eq!(written(&agent, session), (SourcePhase::RolledBack, true), "it is still due");
    let mut left = agent.journal.get(newer).unwrap().unwrap();
    left.set_phase(Phase::Source(SourcePhase::Finished));
    agent.journal.put(newer, &left).unwrap();
    peer.is_notified();
}

/// Nothing can be resumed, and exit code 0 would say that the guest runs here.
#[test]
fn a_guest_whose_qemu_has_ended_is_not_to_be_resumed_at_its_source() {
    let (_dir, agent, peer, qemu) = ended_at_its_source();
    let session = peer.session(&agent, &qemu, SourcePhase::CommitSent, false);
    recover(&agent.recovery).unwrap();
    let refused = agent.unfinished()[0].resolve(true).unwrap_err().to_string();
    assert!(refused.contains("has ended") && refused.contains("--give-up"), "{refused}");
    assert!(agent.unfinished()[0].is_in_doubt());
    assert_eq!(written(&agent, session).0, SourcePhase::CommitSent);
}

/// Both need the state machine and the record.
#[test]
fn sessions_are_listed_while_operators_decide() {
    const TIMES: usize = 20_000;
    let (_dir, agent, peer, qemu) = ended_at_its_source();
    peer.session(&agent, &qemu, SourcePhase::CommitSent, false);
    recover(&agent.recovery).unwrap();
    let one = agent.unfinished()[0].clone();
    let (done, ends) = std::sync::mpsc::channel();
    for lists in [true, false] {
        let (one, done) = (one.clone(), done.clone());
        std::thread::spawn(move || {
            for _ in 0..TIMES {
                match lists {
                    true => drop(one.summary()),
                    false => drop(one.resolve(true).unwrap_err()),
                }
            }
            let _ = done.send(());
        });
    }
    for _ in 0..2 {
        ends.recv_timeout(Duration::from_secs(120)).expect("each waits for the other's lock");
    }
}

/// Its operator resumed it at the source since: what the destination has is old.
#[test]
fn a_destination_is_notified_about_a_guest_that_was_paused_and_runs_now() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::new());
    let (hand, qemu) = runs(&dir);
    let (session, record) = peer.rolled_back(&agent, &qemu, false);
    let mut step = super::notice_steps(&agent.journal, session, &record);
    assert_eq!(step(), NoticeStep::Send);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut qmp = linerate_guest::process::connect(&qemu, deadline).unwrap();
    qmp.execute("cont", serde_json::json!({}), deadline).unwrap();
    drop(qmp);
    assert_eq!(step(), NoticeStep::Send);
    drop(hand);
    assert_eq!(step(), NoticeStep::Send, "it has run since");
    let later = agent.journal.get(session).unwrap().unwrap();
    assert_eq!(super::notice_steps(&agent.journal, session, &later)(), NoticeStep::Send);
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
        let asks = peer.0.accept().is_ok();
        assert!(!asks || before == SourcePhase::CommitSent, "it is notified, and the guest is not resumed");
        match before {
            SourcePhase::CommitSent => {
                resolved |= !resolved && asks && agent.unfinished()[0].resolve(true).is_ok()
            }
            SourcePhase::ResumingHere => ending.end(),
            _ => break,
        }
        assert!(Instant::now() < end, "{before:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    wait_written(&agent, session, (SourcePhase::RolledBack, false));
    assert!(peer.0.accept().is_err());
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

/// The guest ran here after commit, and has ended: the copy over there is older than its disks.
#[test]
fn a_destination_gives_its_copy_up_if_the_guest_ran_here_and_an_operator_keeps_it() {
    let (_dir, agent, peer, qemu) = ended_at_its_source();
    let session = peer.session(&agent, &qemu, SourcePhase::ResumingHere, true);
    let mut record = agent.journal.get(session).unwrap().unwrap();
    agent.journal.note_ran_here(session, &mut record);
    recover(&agent.recovery).unwrap();
    peer.is_notified();
    wait_written(&agent, session, (SourcePhase::RolledBack, true));
}

/// A question would be a commit, and what the destination has is older than the guest's disks.
#[test]
fn a_destination_is_not_asked_about_a_guest_that_ran_here_when_its_qemu_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, peer) = (agent(&dir, &[]), Peer::new());
    let (hand, qemu) = runs(&dir);
    let session = peer.session(&agent, &qemu, SourcePhase::CommitSent, false);
    recover(&agent.recovery).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !agent.unfinished()[0].summary().note.unwrap().contains("another program") {
        assert!(Instant::now() < end, "it is not seen to run");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(hand);
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert!(peer.0.accept().is_err(), "the destination gets a commit");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(agent.unfinished()[0].is_in_doubt());
    assert!(agent.journal.get(session).unwrap().unwrap().ran_here(), "a later agent would ask");
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

/// A session of the destination, whose guest has this process.
fn comes(agent: &Agent, qemu: GuestRecord, phase: DestinationPhase) -> SessionId {
    let incoming = IncomingRecord { qemu: Some(qemu), ..IncomingRecord::default() };
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    agent.journal.put(session, &Record::new("g", order, incoming.role(phase))).unwrap();
    session
}

/// It never ran here: a source that has the guest paused gets it back, and is not left to its operator.
#[test]
fn a_guest_whose_qemu_has_ended_while_it_waited_is_not_let_run_by_an_operator() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let mut ending = Ending::start(&dir);
    let session = comes(&agent, arrived(&agent, ending.pid()), DestinationPhase::Loaded);
    recover(&agent.recovery).unwrap();
    assert!(agent.unfinished()[0].is_in_doubt());
    ending.end();
    let refused = agent.unfinished()[0].resolve(true).unwrap_err().to_string();
    assert!(refused.contains("has ended"), "{refused}");
    let end = Instant::now() + Duration::from_secs(60);
    while agent.incoming.outcome(session) != Outcome::Aborted {
        assert!(Instant::now() < end, "{:?}", agent.incoming.outcome(session));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The only one that recovery has, and what waits for it.
fn the_one(agent: &Agent) -> (Arc<Unfinished>, impl Fn(&str)) {
    let [one] = <[_; 1]>::try_from(agent.unfinished()).unwrap_or_else(|all| panic!("{}", all.len()));
    let (shown, end) = (one.clone(), Instant::now() + Duration::from_secs(60));
    let wait = move |what: &str| {
        assert!(Instant::now() < end, "{what}: {:?}", shown.summary());
        std::thread::sleep(Duration::from_millis(5));
    };
    (one, wait)
}

/// An agent that is restarted before finds the guest as it was, and knows of no decision.
#[test]
fn a_decision_to_run_a_guest_that_waits_counts_when_it_is_carried_out() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (_hand, qemu) = runs(&dir);
    let session = comes(&agent, qemu, DestinationPhase::Loaded);
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    agent.journal.is_full.store(true, Ordering::SeqCst);
    one.resolve(true).unwrap();
    while !one.summary().note.unwrap().contains("last try") {
        wait("it is not tried");
    }
    assert_eq!(one.decided(true), Decided::Waiting);
    let summary = one.summary();
    assert_eq!(summary.state, MigrationState::InDoubt, "{summary:?}");
    assert!(summary.note.unwrap().contains("decide again"));
    one.resolve(true).unwrap();
    assert!(one.resolve(false) == Err(NotDecided::OppositeWaits));
    agent.journal.is_full.store(false, Ordering::SeqCst);
    while one.decided(true) == Decided::Waiting {
        wait("it does not count");
    }
    assert_eq!(one.decided(true), Decided::Taken);
    let role = agent.journal.get(session).unwrap().unwrap().role;
    assert!(!matches!(role, Role::Destination { phase: DestinationPhase::Loaded, .. }), "{role:?}");
}

/// The same of one that is to be ended here.
#[test]
fn a_decision_to_give_a_guest_up_counts_when_its_qemu_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (_hand, qemu) = runs(&dir);
    let qemu = GuestRecord { origin: Origin::Arrived, ..qemu };
    comes(&agent, qemu.clone(), DestinationPhase::Loaded);
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    // QEMU serves one client at a time: it does not get the command to end.
    let other = std::os::unix::net::UnixStream::connect(&qemu.qmp).unwrap();
    one.resolve(false).unwrap();
    let summary = one.summary();
    assert_eq!((one.decided(false), summary.state), (Decided::Waiting, MigrationState::InDoubt));
    assert!(summary.note.unwrap().contains("given up here"));
    assert!(qemu.is_alive());
    drop(other);
    while one.decided(false) == Decided::Waiting {
        wait("it is not given up");
    }
    assert!(one.decided(false) == Decided::Taken && !qemu.is_alive());
}

/// Its source has ended its copy, if the message that the guest runs has arrived.
#[test]
fn a_held_guest_is_given_up_only_while_its_source_reports_a_copy() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (_hand, qemu) = runs(&dir);
    comes(&agent, qemu, DestinationPhase::Committed);
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    while !one.is_in_doubt() {
        wait("it is not held");
    }
    let refused = one.resolve(false).unwrap_err().to_string();
    assert!(refused.contains("may be the only one") && refused.contains("--resume-here"), "{refused}");
    assert!(one.is_in_doubt(), "{:?}", one.summary());
    one.commit_again(true);
    while one.resolve(false).is_err() {
        wait("it is not given up");
    }
    while !agent.unfinished().is_empty() {
        wait("it is not ended");
    }
}

/// Hosts of one cluster: this one, and two that answer that every session was committed.
struct Cluster {
    dir: TempDir,
    security: Arc<Security>,
    one: Listener,
    other: Listener,
}

impl Cluster {
    fn new() -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, "");
        let (security, one, other) = (made("own"), made("one"), made("other"));
        let answers = |security: &Security| {
            listen(security, |accepted: Accepted| {
                let _ = accepted.outcome(Outcome::Committed);
            })
        };
        let (one, other) = (answers(&one), answers(&other));
        Cluster { dir, security, one, other }
    }

    /// An agent that finds a session whose commit was sent, with a host of this name, at this address.
    fn recovers(&self, ending: &Ending, name: Option<&str>, at: &Listener) -> (Arc<Agent>, SessionId) {
        let agent = secured(&self.dir, &[], self.security.clone());
        let mut role = leaves(&arrived(&agent, ending.pid()), SourcePhase::CommitSent);
        let Role::Source { peers, peer, .. } = &mut role else { panic!("{role:?}") };
        *peers = at.addresses().to_vec();
        *peer = name.map(|name| name.parse().unwrap());
        let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
        agent.journal.put(session, &Record::new("g", order, role)).unwrap();
        recover(&agent.recovery).unwrap();
        (agent, session)
    }
}

#[test]
fn the_answer_of_another_host_of_the_cluster_decides_nothing() {
    let cluster = Cluster::new();
    let ending = Ending::start(&cluster.dir);
    let (agent, session) = cluster.recovers(&ending, Some("one"), &cluster.other);
    let end = Instant::now() + Duration::from_secs(60);
    let why = loop {
        let note = agent.unfinished()[0].summary().note.unwrap();
        assert_eq!(written(&agent, session), (SourcePhase::CommitSent, false), "{note}");
        // On a busy machine a try may get no answer in time.
        if note.contains("other answered instead of one") {
            break note;
        }
        assert!(Instant::now() < end, "{note}");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(why.contains("the guest is paused here until the destination answers"), "{why}");
    assert!(why.contains("last try"), "{why}");
    assert_eq!(written(&agent, session), (SourcePhase::CommitSent, false));
    assert!(agent.unfinished()[0].is_in_doubt());
}

#[test]
fn the_answer_of_the_sessions_host_decides_and_of_an_old_record_that_of_any_host() {
    for name in [Some("one"), None] {
        let cluster = Cluster::new();
        let mut ending = Ending::start(&cluster.dir);
        let at = if name.is_some() { &cluster.one } else { &cluster.other };
        let (agent, session) = cluster.recovers(&ending, name, at);
        ending.end();
        wait_written(&agent, session, (SourcePhase::Finished, false));
    }
}

/// A guest that left with a copied image for host `one`, which answers that it runs there.
fn left_with_an_image(cluster: &Cluster, agent: &Agent) -> (SessionId, std::path::PathBuf) {
    let image = cluster.dir.path().join("g.img");
    std::fs::write(&image, "x").unwrap();
    let mut role = leaves(&ended(agent, &cluster.dir), SourcePhase::CommitSent);
    let Role::Source { peers, peer, copied, .. } = &mut role else { panic!("{role:?}") };
    *peers = cluster.one.addresses().to_vec();
    *peer = Some("one".parse().unwrap());
    *copied = vec![image.clone()];
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    agent.journal.put(session, &Record::new("g", order, role)).unwrap();
    (session, image)
}

/// The session of a guest that comes with this image.
fn comes_with(agent: &Agent, image: &std::path::Path, phase: DestinationPhase) {
    let incoming = IncomingRecord { copied: vec![image.into()], ..IncomingRecord::default() };
    let record = Record::new("g", agent.journal.next_order(), incoming.role(phase));
    agent.journal.put(SessionId([8; 16]), &record).unwrap();
}

/// The answer arrives late: the guest has come back, and runs with the image or has ended.
#[test]
fn an_answer_about_a_guest_that_came_back_leaves_its_image_alone() {
    for came_back in [None, Some("runs"), Some("has ended")] {
        let cluster = Cluster::new();
        let agent = secured(&cluster.dir, &[], cluster.security.clone());
        let (session, image) = left_with_an_image(&cluster, &agent);
        let own = i32::try_from(std::process::id()).unwrap();
        match came_back {
            None => {}
            Some("runs") => agent.registry.put(&arrived(&agent, own)).unwrap(),
            Some(_) => comes_with(&agent, &image, DestinationPhase::Running),
        }
        recover(&agent.recovery).unwrap();
        wait_written(&agent, session, (SourcePhase::Finished, false));
        assert_eq!(stale::of(&image).is_some(), came_back.is_none(), "{came_back:?}");
        assert_eq!(agent.registry.has("g"), came_back == Some("runs"));
    }
}

/// Whether the image belongs to the guest that arrives is known when it has arrived, or has not.
#[test]
fn an_answer_about_a_guest_that_is_on_its_way_back_waits_for_its_arrival() {
    for phase in [DestinationPhase::Started, DestinationPhase::Loaded] {
        let cluster = Cluster::new();
        let agent = secured(&cluster.dir, &[], cluster.security.clone());
        let (session, image) = left_with_an_image(&cluster, &agent);
        comes_with(&agent, &image, phase);
        let record = agent.journal.get(session).unwrap().unwrap();
        continue_session(&agent.recovery, session, record, GuestState::InDoubt);
        let (one, wait) = the_one(&agent);
        while !one.summary().note.unwrap().contains("is arriving here") {
            wait("it does not wait");
        }
        assert_eq!(written(&agent, session), (SourcePhase::CommitSent, false));
        assert_eq!(stale::of(&image), None, "the guest that arrives writes to it");
        comes_with(&agent, &image, DestinationPhase::Aborted);
        wait_written(&agent, session, (SourcePhase::Finished, false));
        assert!(stale::of(&image).is_some());
    }
}

#[test]
fn an_agent_without_tls_does_not_ask_about_a_session_with_a_host_that_proved_its_name() {
    let cluster = Cluster::new();
    let ending = Ending::start(&cluster.dir);
    let plain = Cluster { security: Security::insecure(), ..cluster };
    let (agent, session) = plain.recovers(&ending, Some("one"), &plain.one);
    let end = Instant::now() + Duration::from_secs(60);
    while !agent.unfinished()[0].summary().note.unwrap().contains("security = \"insecure\"") {
        assert!(Instant::now() < end, "it says nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(written(&agent, session), (SourcePhase::CommitSent, false));
}
