//! What recovery does to real processes.

mod answers;
mod audited;
mod hearing;
mod left_behind;
mod notices;
mod ran_here;
mod slow_disk;
mod taken_back;

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use linerate_api::{GuestRunState, MigrationState, StartGuest, StopGuest};
use linerate_core::journal::{Decided, DestinationPhase, SourcePhase};
use linerate_core::recovery::DestinationRecovery;
use linerate_core::{ModeTag, Outcome, SessionId};
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_guest::vcpu_time::VcpuTime;
use linerate_lock::Mutex;
use linerate_net::tcp::listen::Listener;
use linerate_wire::frame::Role as Purpose;
use tempfile::TempDir;

use super::{Machine, Unfinished, recover};
use crate::agent::Agent;
use crate::decision::NotDecided;
use crate::guests;
use crate::journal::{IncomingRecord, Record, Role};
use crate::ran_here::RanHere;
use crate::security::Security;
use crate::testing::{Ending, TestQemu, agent, arrived, closed_port, listen};

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
        ran_here: RanHere::No,
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
        let error = guests::start(&agent, &StartGuest { spec_toml, ..StartGuest::default() }).unwrap_err();
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
struct Peer {
    listener: Listener,
    /// What it was asked or notified of. A question whether the guest runs here changes nothing, and is left out.
    received: Receiver<Purpose>,
}

impl Peer {
    fn new() -> Peer {
        Peer::that_hears(|purpose| purpose != Purpose::Resumes)
    }

    fn that_hears(heeds: impl Fn(Purpose) -> bool + Send + Sync + 'static) -> Peer {
        let (sender, received) = channel();
        let sender = Mutex::new(sender);
        let listener = listen(&Security::insecure(), move |accepted| {
            if heeds(accepted.hello.role) {
                let _ = sender.lock().send(accepted.hello.role);
            }
        });
        Peer { listener, received }
    }

    /// What came since it was asked the last time.
    fn has_received(&self) -> Option<Purpose> {
        self.received.try_recv().ok()
    }

    /// Nothing came, and nothing is on its way.
    fn is_left_alone(&self) -> bool {
        self.received.recv_timeout(Duration::from_millis(200)).is_err()
    }

    fn is_notified(&self) {
        assert_eq!(self.hears(), Purpose::RolledBack, "it is not notified");
    }

    fn is_asked(&self) {
        assert_eq!(self.hears(), Purpose::Query, "it is not asked");
    }

    fn hears(&self) -> Purpose {
        self.received.recv_timeout(Duration::from_secs(60)).expect("nothing came")
    }

    /// A session of the source that has this destination.
    fn session(&self, agent: &Agent, qemu: &GuestRecord, phase: SourcePhase, is_due: bool) -> SessionId {
        let mut role = leaves(qemu, phase);
        let Role::Source { peers, notice_due, .. } = &mut role else { panic!("{role:?}") };
        (*peers, *notice_due) = (self.listener.addresses().to_vec(), is_due);
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

/// Nothing can be resumed, and exit code 0 would say that the guest runs here.
#[test]
fn a_guest_whose_qemu_has_ended_is_not_to_be_resumed_at_its_source() {
    let (_dir, agent, peer, qemu) = ended_at_its_source();
    let session = peer.session(&agent, &qemu, SourcePhase::CommitSent, false);
    recover(&agent.recovery).unwrap();
    let refused = agent.unfinished()[0].resolve(true).unwrap_err().to_string();
    assert!(refused.contains("has ended") && refused.contains("--give-up"), "{refused}");
    assert!(agent.unfinished()[0].is_in_doubt());
    let note = agent.unfinished()[0].summary().note.unwrap();
    assert!(note.contains("has ended") && !note.contains("paused"), "{note}");
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
        assert!(peer.is_left_alone(), "the destination gets a commit");
    }
    assert!(agent.unfinished()[0].is_in_doubt());
    crate::testing::wait("a later agent would ask", || ran_here(&agent, session) == RanHere::Yes);
}

/// What a later agent knows.
fn ran_here(agent: &Agent, session: SessionId) -> RanHere {
    agent.journal.get(session).unwrap().unwrap().ran_here()
}

/// Notes it, and waits until it is on disk.
fn note_ran_here(agent: &Agent, session: SessionId, now: RanHere) {
    let mut record = agent.journal.get(session).unwrap().unwrap();
    agent.journal.note_ran_here(session, &mut record, now);
    crate::testing::wait("it is not written", || agent.journal.has_noted());
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
    let note = agent.unfinished()[0].summary().note.unwrap();
    assert!(note.contains("has ended") && !note.contains("paused"), "{note}");
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

/// An operator of a destination whose agent has just started waits, as its source may be about to resume the guest.
fn run_here(one: &Unfinished) {
    let end = Instant::now() + Duration::from_secs(60);
    while let Err(why) = one.resolve(true) {
        assert!(why == NotDecided::JustStarted && Instant::now() < end, "{why}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Its source gets it back. Committed, it would run nowhere before an operator decides.
#[test]
fn a_guest_whose_qemu_ends_while_its_source_is_heard_is_not_committed() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let mut ending = Ending::start(&dir);
    let session = comes(&agent, arrived(&agent, ending.pid()), DestinationPhase::Loaded);
    let record = agent.journal.get(session).unwrap().unwrap();
    super::start(&agent.recovery, session, record, Machine::Destination(DestinationRecovery::wait()));
    let (one, wait) = the_one(&agent);
    one.resolve(true).unwrap();
    ending.end();
    assert!(one.summary().note.unwrap().contains("has ended"));
    while agent.incoming.outcome(session) != Outcome::Aborted {
        wait("it is not given up");
    }
    assert_eq!(one.decided(true), Decided::Overruled);
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
    assert_eq!(one.resolve(true), Err(NotDecided::JustStarted));
    run_here(&one);
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
