//! A source that lies, at the destination.

mod offers;
mod queue_pairs;

use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use linerate_core::journal::DestinationPhase;
use linerate_core::{Code, Message, Mode, RegionInfo, Side, StreamNote, Time};
use linerate_guest::description::{CopiedDisk, GuestDescription, ImageFormat};
use linerate_guest::registry::GuestRecord;
use linerate_trust::authority::Authority;
use linerate_wire::frame::{Hello, Role};

use super::streams::Services;
use super::*;
use crate::security::tests::{certificates, member, revoke};
use crate::security::{Caller, Security};
use crate::session::stream_transport::DISKS_SERVICE;
use crate::testing::{TestQemu, authority};

/// Only a hang meets it.
const LONG: Duration = Duration::from_secs(60);

/// A session whose loop is the test.
pub(super) fn session() -> (Arc<Incoming>, Receiver<Input>) {
    let (inbox, inputs) = channel();
    let peer = ([127, 0, 0, 1], 1).into();
    let identity = Identity::new(SessionId([1; 16]), Token([2; 32]), &crate::security::Security::insecure());
    (Arc::new(Incoming::new(identity, 1, peer, inbox, Door::closed())), inputs)
}

/// What makes the guest complete: what has to be done on the way is not done.
pub(super) fn until_loaded() -> [Event; 11] {
    let received = |sequence, message| Event::Received { path: 0, sequence, message };
    let mode = Ok(Mode::Direct { regions: Vec::new() });
    [
        received(1, Message::Offer { guest: "g".into(), description: "{}".into(), mode }),
        Event::Admitted(Vec::new()),
        received(2, Message::Prepare),
        Event::Prepared { regions: Vec::new(), touched: Vec::new() },
        received(3, Message::Stopped { was_running: true, disks: "[]".into() }),
        Event::DisksChecked,
        received(4, Message::RamComplete { digest: None }),
        Event::Sealed(None),
        received(5, Message::DeviceStateEnd { total: 0 }),
        Event::DeviceStateLoaded,
        Event::Journaled(DestinationPhase::Loaded),
    ]
}

/// A session whose source is silent, and whose operator has let the guest run here.
pub(crate) fn run_by_its_operator() -> Arc<Incoming> {
    let (session, _inputs) = session();
    let mut machine = session.machine();
    let mut handle = |seconds, event| {
        let now = Time::ZERO + Duration::from_secs(seconds);
        machine.handle(now, event);
        while machine.poll_action(now).is_some() {}
    };
    until_loaded().into_iter().for_each(|event| handle(0, event));
    handle(0, Event::Resolve(true));
    // The source was heard for long enough.
    handle(60, Event::Tick);
    handle(60, Event::Journaled(DestinationPhase::Committed));
    handle(60, Event::GuestRuns { took: Duration::ZERO, cpu: Duration::ZERO });
    drop(machine);
    session
}

#[test]
fn an_operator_reads_that_the_journal_takes_no_commit() {
    use crate::journal::JournalError;

    let (session, _inputs) = session();
    let note = |put| session.journal_trouble.note(session.session, &put);
    assert_eq!(session.summary().note, None);
    note(Err(JournalError::Folder(std::io::Error::other("no space left"))));
    assert!(session.summary().note.is_some_and(|note| note.ends_with("no space left")));
    note(Ok(()));
    assert_eq!(session.summary().note, None);
}

/// A session whose guest arrives in streams, of which the source has opened the first.
fn with_streams() -> (Arc<Incoming>, Receiver<Input>) {
    let (session, inputs) = session();
    session.target.set(ChannelTarget::Streams(streams::stream_transport(&session))).ok().unwrap();
    let note = StreamNote::Open { service: "qemu".into(), window: 1 << 20 };
    session.deliver(Message::Stream { stream: 0, note });
    (session, inputs)
}

/// Why the first stream was refused.
fn refusal(session: &Incoming) -> String {
    let end = Instant::now() + LONG;
    loop {
        let note = session.stream_transport().unwrap().streams.take_notes().into_iter().next();
        if let Some((stream, note)) = note {
            let StreamNote::Refused { reason } = note else { panic!("stream {stream}: {note:?}") };
            return reason;
        }
        assert!(Instant::now() < end, "it is not refused");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_session_without_streams_takes_no_reverse_channel() {
    let (here, _there) = UnixStream::pair().unwrap();
    let error = session().0.attach_back(0, 0, &Stream::new(here).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "this session has no streams");
}

#[test]
fn a_stream_that_is_asked_for_before_a_hypervisor_waits_is_refused() {
    let (session, inputs) = with_streams();
    let Input::Asked(stream, service) = inputs.recv().unwrap() else { panic!("something else comes first") };
    session.asked(stream, service);
    assert_eq!(refusal(&session), "no hypervisor waits for it");
}

#[test]
fn a_migration_has_no_service_but_the_hypervisor_and_its_images() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("qemu");
    let _qemu = UnixListener::bind(&socket).unwrap();
    for service in ["/run/other", DISKS_SERVICE] {
        let (session, _inputs) = with_streams();
        let streams = session.stream_transport().unwrap().streams.clone();
        // No disk of this guest is copied.
        let services = Services { qemu: std::process::id() as i32, state: socket.clone(), disks: None };
        let connector = streams::connector(streams, services).unwrap();
        connector.send((0, service.to_owned())).unwrap();
        assert!(refusal(&session).contains(&format!("no service {service}")));
    }
}

fn regions(guest: &GuestDescription) -> Vec<RegionInfo> {
    let block = &guest.ram[0];
    vec![RegionInfo { id: 0, name: block.id.clone(), size: block.size }]
}

#[test]
fn mode_of_an_offer_agrees_with_the_guest_in_it() {
    let domain = domain::tests::waits();
    let guest = GuestDescription { domain: false, ..domain.clone() };
    let regions = regions(&guest);
    let refused = |guest: &GuestDescription, mode: Mode| {
        admit::check_offer(&guest.to_json().unwrap(), &guest.name, &mode).err().map(|fault| fault.code)
    };
    let direct = |regions: &[RegionInfo]| Mode::Direct { regions: regions.to_vec() };
    let handover = |regions: &[RegionInfo]| Mode::Handover { regions: regions.to_vec() };
    assert_eq!(refused(&guest, direct(&regions)), None);
    assert_eq!(refused(&guest, Mode::Streams { channels: 1 }), None);
    assert_eq!(refused(&domain, handover(&regions)), None);
    let violation = Some(Code::ProtocolViolation);
    assert_eq!(refused(&guest, handover(&regions)), violation, "libvirt has not started it");
    assert_eq!(refused(&domain, direct(&regions)), violation, "libvirt's guest is not run by this agent");
    assert_eq!(refused(&domain, Mode::Streams { channels: 1 }), violation);
    // No list of RAM blocks selects another mode.
    assert_eq!(refused(&guest, direct(&[])), violation);
    assert_eq!(refused(&domain, handover(&[])), violation);
    let none = GuestDescription { ram: Vec::new(), ..guest };
    assert_eq!(refused(&none, direct(&[])), violation);
}

#[test]
fn a_guest_with_the_uuid_of_another_guest_here_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let uuid = "0f0e8c9a-0000-4000-8000-000000000001";
    let hand = TestQemu::start(&dir.path().join("a.qmp"), &["-name", "first", "-uuid", uuid]);
    let asked = linerate_api::AdoptGuest { pid: Some(hand.pid()), ..Default::default() };
    crate::guests::adopt(&agent, &asked).unwrap();
    assert_eq!(agent.names_here(), [("first".to_owned(), Some(uuid.to_owned()))]);
    let record = agent.registry.get("first").unwrap();
    let mut qmp = linerate_guest::process::connect(&record, Instant::now() + LONG).unwrap();
    let described = linerate_guest::read::read(&mut qmp, record.process.pid, Instant::now() + LONG).unwrap();
    let second = GuestDescription { name: "second".into(), ..described };
    let fault = admit::admit(&agent.incoming, &None, second.clone(), &[]).map(drop).unwrap_err();
    assert!(fault.code == Code::GuestExists && fault.detail.contains(uuid), "{fault}");
    assert!(!agent.registry.folder("second").unwrap().exists());
    // Nor while a guest of its name is just being started.
    let _claim = agent.names.claim("second").unwrap();
    let fault = admit::admit(&agent.incoming, &None, second, &[]).map(drop).unwrap_err();
    assert_eq!(fault.code, Code::GuestBusy, "{fault}");
}

#[test]
fn an_offer_of_ram_with_copied_disks_is_refused() {
    let offer = |copied: Vec<CopiedDisk>| {
        let guest = GuestDescription { copied, domain: false, ..domain::tests::waits() };
        let mode = Mode::Direct { regions: regions(&guest) };
        admit::check_offer(&guest.to_json().unwrap(), &guest.name, &mode)
    };
    offer(Vec::new()).unwrap();
    let (id, path, format) = ("d".into(), "/srv/d".into(), ImageFormat::Raw);
    // It would not be copied, and the guest would run on an empty one.
    let refused = offer(vec![CopiedDisk { id, path, format, size: 512, identity: None }]);
    assert_eq!(refused.map_err(|fault| fault.code).unwrap_err(), Code::ProtocolViolation);
}

#[test]
fn a_source_that_breaks_the_rules_of_streams_is_no_failed_action() {
    let (session, inputs) = with_streams();
    session.deliver(Message::Stream { stream: 40, note: StreamNote::Stop });
    let failure = inputs.try_iter().find_map(|input| match input {
        Input::Event(Event::ReceivingFailed(fault)) => Some((fault.code, fault.side)),
        _ => None,
    });
    assert_eq!(failure, Some((Code::ProtocolViolation, Side::Source)));
}

fn hello(session: u8, role: Role) -> Hello {
    Hello {
        version_min: 1,
        version_max: linerate_wire::VERSION_MAX,
        session: SessionId([session; 16]),
        role,
        link: 0,
        channel: 0,
        token: Token([2; 32]),
    }
}

fn named(name: &str) -> Caller {
    Caller::Tcp(Some(name.parse().unwrap()))
}

/// The token alone is not enough where hosts prove who they are.
#[test]
fn a_session_is_joined_by_the_host_that_opened_it_and_begins_over_tcp() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let asked = |role, caller| {
        let found = agent.incoming.session_for(&hello(7, role), ([127, 0, 0, 1], 7979).into(), caller);
        found.map(drop).map_err(|fault| fault.code)
    };
    assert_eq!(asked(Role::ControlNew, Caller::Rdma), Err(Code::ProtocolViolation));
    assert_eq!(asked(Role::ControlNew, named("a")), Ok(()));
    for role in [Role::ControlJoin, Role::Data, Role::ReverseData] {
        assert_eq!(asked(role, named("b")), Err(Code::NotAuthorised), "{role:?}");
        assert_eq!(asked(role, named("a")), Ok(()), "{role:?}");
    }
    assert_eq!(asked(Role::Data, Caller::Rdma), Ok(()));
    // Nor may another host ask about it or decide.
    let may = |name: &str| agent.may_decide(&hello(7, Role::Query), &Some(name.parse().unwrap()));
    may("a").unwrap();
    assert_eq!(may("b").unwrap_err().code, Code::NotAuthorised);
    let wrong = Hello { token: Token([3; 32]), ..hello(7, Role::Query) };
    assert_eq!(agent.may_decide(&wrong, &Some("a".parse().unwrap())).unwrap_err().detail, "wrong token");
}

/// A session that host a has opened here, and what revokes that host.
struct Revocable {
    agent: Arc<crate::agent::Agent>,
    session: Arc<Incoming>,
    authority: Authority,
    security: Arc<Security>,
    _dir: tempfile::TempDir,
}

impl Revocable {
    fn new() -> Revocable {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut authority = authority(&path("authority"));
        member(&mut authority, &path("source"), "a", "");
        let security = member(&mut authority, &path("here"), "b", "");
        let agent = crate::testing::secured(&dir, &[], security.clone());
        let asked = agent.incoming.session_for(
            &hello(7, Role::ControlNew),
            ([127, 0, 0, 1], 7979).into(),
            named("a"),
        );
        let session = asked.map_err(|fault| fault.detail).unwrap();
        session.identity.note_peer(&certificates(&path("source")));
        Revocable { agent, session, authority, security, _dir: dir }
    }

    fn revoke(&mut self) {
        revoke(&mut self.authority, "a", &self.security);
    }
}

/// RDMA shows the token alone: TLS refuses only the other connections.
#[test]
fn a_revoked_host_opens_no_more_queue_pairs_of_its_session() {
    let mut host = Revocable::new();
    let asked = |host: &Revocable| {
        let peer = ([127, 0, 0, 1], 7979).into();
        let found = host.agent.incoming.session_for(&hello(7, Role::Data), peer, Caller::Rdma);
        found.map(drop).map_err(|fault| (fault.code, fault.detail))
    };
    assert_eq!(asked(&host), Ok(()));
    host.revoke();
    let reason = "the host that opened this session was revoked".to_owned();
    assert_eq!(asked(&host), Err((Code::NotAuthorised, reason)));
}

#[test]
fn guests_that_arrive_at_a_time_are_bounded_for_a_host_and_in_total() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let mut number = 0;
    let mut begins = |host: [u8; 4], caller: Caller| {
        number += 1;
        let found = agent.incoming.session_for(&hello(number, Role::ControlNew), (host, 7979).into(), caller);
        found.map(drop).map_err(|fault| (fault.code, fault.detail))
    };
    let address = [10, 0, 0, 1];
    (0..16).for_each(|_| begins(address, named("a")).unwrap());
    let refused = begins([10, 0, 0, 9], named("a")).unwrap_err();
    assert_eq!(refused.0, Code::GuestBusy);
    assert!(refused.1.contains("16 guests arrive from that host"), "{}", refused.1);
    begins(address, named("b")).expect("another host has its own");
    // In plain text the address counts.
    (0..16).for_each(|_| begins([10, 0, 0, 2], Caller::Tcp(None)).unwrap());
    assert!(begins([10, 0, 0, 2], Caller::Tcp(None)).is_err());
    (33..64).for_each(|host| begins([10, 0, 1, host], Caller::Tcp(None)).unwrap());
    let refused = begins([10, 0, 2, 1], Caller::Tcp(None)).unwrap_err();
    assert!(refused.1.contains("64 guests arrive already"), "{}", refused.1);
}

#[test]
fn only_the_host_that_opened_a_session_gets_its_outcome() {
    use crate::journal::{IncomingRecord, Record};
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let (token, peer) = ("02".repeat(32), Some("a".parse().unwrap()));
    let incoming = IncomingRecord { token, peer, ..IncomingRecord::default() };
    let record = Record::new("g", agent.journal.next_order(), incoming.role(DestinationPhase::Aborted));
    agent.journal.put(SessionId([1; 16]), &record).unwrap();
    let may = |asked: &Hello, name: &str| {
        agent.may_decide(asked, &Some(name.parse().unwrap())).map_err(|fault| fault.detail)
    };
    for role in [Role::Query, Role::CommitAgain, Role::RolledBack, Role::Resumes, Role::Waits] {
        let wrong = Hello { token: Token([3; 32]), ..hello(1, role) };
        assert_eq!(may(&wrong, "a").unwrap_err(), "wrong token");
        assert_eq!(may(&hello(1, role), "b").unwrap_err(), "another host opened this session");
        assert_eq!((may(&hello(1, role), "a"), may(&hello(9, role), "b")), (Ok(()), Ok(())));
    }
    assert_ne!(agent.incoming.outcome(SessionId([1; 16])), Outcome::Unknown);
    assert_eq!(agent.incoming.outcome(SessionId([9; 16])), Outcome::Unknown);
    // Its source's operator may let the guest run there if the session is unknown here.
    agent.journal.write_for_test(&[5; 16], b"{");
    assert_eq!(agent.incoming.outcome(SessionId([5; 16])), Outcome::Pending);
}

/// The journal was lost, or has forgotten the session. The source would resume its copy beside this one.
#[test]
fn a_source_that_is_about_to_resume_is_not_answered_unknown_while_its_guest_is_here() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let (ours, other) = (SessionId([7; 16]), SessionId([8; 16]));
    assert_eq!(agent.incoming.source_resumes(ours, false), Outcome::Unknown);
    let qemu = crate::testing::arrived(&agent, i32::try_from(std::process::id()).unwrap());
    agent.registry.put(&GuestRecord { session: Some(ours.to_string()), ..qemu }).unwrap();
    let answers = [ours, other].map(|session| agent.incoming.source_resumes(session, false));
    assert_eq!(answers, [Outcome::Pending, Outcome::Unknown]);
}

#[test]
fn after_a_restart_only_the_host_that_opened_a_session_decides_about_it() {
    use crate::journal::{IncomingRecord, Record};
    for peer in [Some("a".parse().unwrap()), None] {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let qemu = crate::testing::arrived(&agent, i32::try_from(std::process::id()).unwrap());
        let (qemu, token, is_named) = (Some(qemu), "02".repeat(32), peer.is_some());
        let incoming = IncomingRecord { qemu, token, peer, ..IncomingRecord::default() };
        let record = Record::new("g", agent.journal.next_order(), incoming.role(DestinationPhase::Loaded));
        agent.journal.put(SessionId([1; 16]), &record).unwrap();
        crate::recovery::recover(&agent.recovery).unwrap();
        assert_eq!(agent.unfinished().len(), 1);
        let may =
            |name: &str| agent.may_decide(&hello(1, Role::RolledBack), &Some(name.parse().unwrap())).is_ok();
        assert!(may("a"));
        assert_eq!(may("b"), !is_named, "an old record has no name");
    }
}

/// Its own host has lost all links for a moment, and may join again.
#[test]
fn no_host_ends_the_session_of_another_by_offering_a_guest_of_the_same_name() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let begins = |number: u8, host: &str| {
        let (asked, peer) = (hello(number, Role::ControlNew), ([127, 0, 0, 1], 7979).into());
        agent.incoming.session_for(&asked, peer, named(host)).map_err(|fault| fault.detail).unwrap()
    };
    let arriving = begins(7, "a");
    *arriving.guest.lock() = "g".to_owned();
    assert!(arriving.is_orphaned());
    let makes_room = |number: u8, host: &str| {
        let context = context::Context::new(agent.incoming.clone(), begins(number, host));
        admit::make_room(&context, "g").map_err(|fault| fault.code)
    };
    assert_eq!(makes_room(8, "b"), Err(Code::GuestBusy));
    assert!(agent.incoming.get(arriving.session).is_some(), "it was given up for another host");
    assert_eq!(makes_room(9, "a"), Ok(()));
    assert!(agent.incoming.get(arriving.session).is_none());
}
