//! The source of a migration in streams, whose hypervisor or destination does what it should not.

pub(super) mod domain;
mod own;

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use linerate_api::Transport;
use linerate_core::journal::SourcePhase;
use linerate_core::source::{Action, Config};
use linerate_core::stream::StreamId;
use linerate_core::{
    Code, Endpoint, Fault, GuestState, Message, Mode, Side, Step, StreamNote, StreamSettings, Token,
};
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_net::channel_thread::WorkSource;
use linerate_net::stream::endpoint::Socket;
use linerate_net::tcp::listen::Accepted;

use super::streams::{Accepting, MigrationStreams, Service};
use super::worker::Worker;
use super::*;
use crate::journal::{IncomingRecord, Record, Role};
use crate::session::identity::Identity;

/// Only a hang meets it.
const LONG: Duration = Duration::from_secs(60);

/// A migration by streams whose loop is the test.
fn outgoing() -> (Arc<Outgoing>, Receiver<Input>) {
    let (outgoing, inputs) = outgoing_of(ModeTag::Streams);
    let streams = MigrationStreams::new(outgoing.inbox.clone(), 50, 0);
    outgoing.set_channel_source(ChannelSource::Streams(streams));
    (outgoing, inputs)
}

/// One that has no driver yet.
pub(crate) fn outgoing_of(mode: ModeTag) -> (Arc<Outgoing>, Receiver<Input>) {
    let (inbox, inputs) = channel();
    let request = serde_json::from_value(serde_json::json!({ "guest": "g", "to": "beta" })).unwrap();
    let config = Config::new("g", String::new(), Mode::Streams { channels: 2 });
    let outgoing = Outgoing {
        session: SessionId([1; 16]),
        dialler: dialler(),
        request,
        from: "alpha".into(),
        started_unix_ms: 0,
        before_machine: Duration::ZERO,
        ram_bytes: 0,
        clock: Clock::start(),
        machine: Mutex::new(Source::new(config)),
        work: Condvar::new(),
        inbox,
        door: Door::closed(),
        peers: Vec::new(),
        losses: Losses::default(),
        pacer: None,
        event_log: EventLog::default(),
        qemu: None,
        mode,
        mode_reason: None,
        channel_source: Mutex::default(),
        link_table: LinkTable::default(),
        cancelling: AtomicBool::new(false),
        was_ready: AtomicBool::new(false),
        observer: None,
        not_asked: Mutex::default(),
        answer: Mutex::default(),
        trouble: Mutex::default(),
        ran_here: Mutex::default(),
        says_it: AtomicBool::new(false),
        journal_trouble: Default::default(),
    };
    (Arc::new(outgoing), inputs)
}

#[test]
fn an_operator_reads_that_the_journal_takes_no_decision() {
    use crate::journal::JournalError;

    let (outgoing, _inputs) = outgoing_of(ModeTag::Direct);
    let note = |put| outgoing.journal_trouble.note(outgoing.session, &put);
    note(Err(JournalError::Folder(std::io::Error::other("no space left"))));
    assert!(progress::in_doubt(&outgoing).ends_with("no space left"));
    note(Ok(()));
    assert!(!progress::in_doubt(&outgoing).contains("journal"));
}

/// An operator who decides in that moment is not told that there is nothing to decide.
#[test]
fn migration_at_its_end_is_not_over_before_all_of_it_is_carried_out() {
    let (outgoing, _inputs) = outgoing_of(ModeTag::Streams);
    assert!(!outgoing.is_at_its_end());
    let rolled_back = Event::RolledBack { guest: GuestState::RunsAtSource, complete: true };
    for event in [Event::Cancel, rolled_back] {
        outgoing.machine().handle(Time::ZERO, event);
    }
    assert!(outgoing.is_at_its_end() && outgoing.resolve(true) == Err(NotDecided::NotInDoubt));
    let outcome = linerate_api::MigrationOutcome::Cancelled;
    outgoing.event_log.publish(linerate_api::EventKind::Finished { outcome, error: None, report: None });
    assert!(!outgoing.is_at_its_end());
}

/// Poisoned pages, or a file that was made shorter. Its links are sound, and would be opened again until the time of a
/// lost link is over.
#[test]
fn memory_that_cannot_be_read_ends_the_migration_and_is_no_lost_link() {
    let (outgoing, inputs) = outgoing_of(ModeTag::Direct);
    outgoing.lost(1, ChannelError::Closed);
    assert!(matches!(inputs.try_recv(), Ok(Input::Wake)) && inputs.try_recv().is_err());
    let source = std::io::ErrorKind::UnexpectedEof.into();
    outgoing.lost(2, ChannelError::Memory { region: 7, source });
    let Ok(Input::Event(Event::Failed(fault))) = inputs.try_recv() else { panic!("it goes on") };
    assert_eq!((fault.code, fault.side), (Code::MemoryFailed, Side::Source));
    assert!(fault.detail.contains("memory of region 7 failed"), "{fault}");
}

/// The destination may run it by then: its operator has decided.
#[test]
fn a_guest_that_was_not_resumed_is_not_to_be_moved_again() {
    let (outgoing, _inputs) = outgoing_of(ModeTag::Streams);
    for unfinished in [true, false] {
        let fault = Some(Fault::new(Code::HypervisorFailed, Step::Blackout, Side::Source, "no answer"));
        let ending = Ending { fault, guest: GuestState::PausedAtSource, unfinished };
        let cpu = linerate_api::CpuTime { source_agent_us: 0, destination_agent_us: 0 };
        let finished = progress::finished(&outgoing, &ending, cpu, None);
        let linerate_api::EventKind::Finished { error: Some(body), .. } = finished else {
            panic!("{finished:?}")
        };
        assert_eq!(body.retry_can_help, !unfinished, "{body:?}");
        assert_eq!(body.hint.contains("linerate migration list"), unfinished, "{body:?}");
    }
}

/// Of which four channels have been opened.
fn dialler() -> Dialler {
    let identity = Identity::new(SessionId([1; 16]), Token([2; 32]), &crate::security::Security::insecure());
    let dialler = Dialler::new(identity, Transport::Auto, Default::default());
    dialler.skip(4);
    dialler
}

fn violation(inputs: &Receiver<Input>) -> Option<Fault> {
    inputs.try_iter().find_map(|input| match input {
        Input::Event(Event::StreamsFailed(fault)) => Some(fault),
        _ => None,
    })
}

#[test]
fn a_false_claim_of_the_destination_ends_the_migration() {
    let stop = |stream: StreamId| Message::Stream { stream, note: StreamNote::Stop };
    let open = StreamNote::Open { service: "x".into(), window: 1 };
    let lies = [stop(40), Message::Stream { stream: 1, note: open }, Message::Fence { channel: 4 }];
    for lie in lies {
        let (outgoing, inputs) = outgoing();
        outgoing.deliver_stream_message(lie.clone());
        let fault = violation(&inputs).unwrap_or_else(|| panic!("{lie:?} is taken"));
        assert_eq!((fault.code, fault.side), (Code::ProtocolViolation, Side::Destination), "{lie:?}");
    }
    let (outgoing, inputs) = outgoing();
    outgoing.deliver_stream_message(Message::Fence { channel: 3 });
    assert_eq!(violation(&inputs), None, "that one may have been opened");
}

#[test]
fn no_more_connections_of_the_hypervisor_are_taken_than_it_was_set_to_make() {
    let dir = tempfile::tempdir().unwrap();
    let (outgoing, _inputs) = outgoing();
    let migration = outgoing.migration_streams().unwrap();
    let streams = migration.transport.streams.clone();
    let socket = dir.path().join("state.sock");
    let accepting =
        Accepting::start(&socket, std::process::id() as i32, migration, Service::Migration, 2).unwrap();
    let mut connections: Vec<UnixStream> = (0..3).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    // They are accepted in order, so with the last the others were, too.
    connections[2].set_read_timeout(Some(LONG)).unwrap();
    assert_eq!(connections[2].read(&mut [0]).unwrap(), 0, "it is closed");
    assert_eq!(streams.count(), 2);
    drop(accepting);
}

#[test]
fn streams_are_reset_before_the_hypervisor_is_asked_to_roll_back() {
    let dir = tempfile::tempdir().unwrap();
    let (outgoing, _inputs) = outgoing();
    let (worker, jobs) = Worker::for_test();
    let agent = crate::testing::agent(&dir, &[]);
    let role = IncomingRecord::default().role(linerate_core::journal::DestinationPhase::Started);
    let record = Record::new("g", 1, role);
    let mut session_loop =
        session_loop::SessionLoop::new(outgoing.clone(), worker, agent.outgoing.clone(), record);
    let open = || {
        let (here, _there) = UnixStream::pair().unwrap();
        outgoing.stream_transport().unwrap().streams.open("x", Socket::new(here).unwrap())
    };
    assert!(open().is_ok());
    session_loop.execute(Action::RollBack);
    assert!(open().is_err(), "they are not reset");
    assert_eq!(jobs.recv().unwrap().name, "roll back");
}

/// The next agent may have no other address by which the destination is reached.
#[test]
fn the_addresses_of_the_links_are_on_disk_when_the_links_are_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (outgoing, _inputs) = outgoing_of(ModeTag::Direct);
    let (worker, _jobs) = Worker::for_test();
    let agent = crate::testing::agent(&dir, &[]);
    let qemu = crate::recovery::tests::ended(&agent, &dir);
    let record = Record::new("g", 1, crate::recovery::tests::leaves(&qemu, SourcePhase::Started));
    agent.journal.put(outgoing.session, &record).unwrap();
    let written = || match agent.journal.get(outgoing.session).unwrap().unwrap().role {
        Role::Source { phase, peers, .. } => (phase, peers),
        other => panic!("{other:?}"),
    };
    let (_, of_to) = written();
    let mut session_loop =
        session_loop::SessionLoop::new(outgoing.clone(), worker, agent.outgoing.clone(), record);
    let (_held, address) = crate::testing::closed_port();
    let interface = "lo".into();
    let endpoint = Endpoint {
        interface,
        address,
        prefix: 8,
        speed_mbps: 0,
        mtu: 1500,
        numa: -1,
        up: true,
        rdma_port: 0,
    };
    session_loop.execute(Action::OpenLinks(vec![endpoint]));
    assert_eq!(written(), (SourcePhase::Started, [of_to, vec![address]].concat()));
}

/// A question would be a commit, and what the destination has is older than the guest's disks.
#[test]
fn a_guest_that_ran_here_behind_commit_is_not_asked_about_when_its_qemu_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let (outgoing, inputs) = outgoing_of(ModeTag::Direct);
    let (worker, _jobs) = Worker::for_test();
    let agent = crate::testing::agent(&dir, &[]);
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu = GuestRecord::new("g", Origin::Started, own, dir.path().join("q"), vec![]).unwrap();
    let mut role = crate::recovery::tests::leaves(&qemu, linerate_core::journal::SourcePhase::CommitSent);
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    peer.set_nonblocking(true).unwrap();
    let Role::Source { peers, .. } = &mut role else { panic!("{role:?}") };
    *peers = vec![peer.local_addr().unwrap()];
    let record = Record::new("g", 1, role);
    agent.journal.put(outgoing.session, &record).unwrap();
    let mut session_loop =
        session_loop::SessionLoop::new(outgoing.clone(), worker, agent.outgoing.clone(), record);
    session_loop.ask_destination(false);
    session_loop.take(Input::SourceSeen(Sighting::Resumed));
    crate::testing::wait("the destination is not told that the guest is here", || peer.accept().is_ok());
    let known = || agent.journal.get(outgoing.session).unwrap().unwrap().ran_here();
    crate::testing::wait("it is not written", || known() == RanHere::Yes);
    for seen in [Sighting::Nothing, Sighting::Stopped] {
        session_loop.ask_destination(false);
        session_loop.take(Input::SourceSeen(seen));
        assert!(inputs.recv_timeout(Duration::from_secs(1)).is_err(), "it is asked");
    }
}

/// Its operator is heard after 20 s of silence, and would run the older copy.
#[test]
fn a_destination_is_told_that_the_guest_of_a_live_session_is_here_while_the_disk_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let (outgoing, _inputs) = outgoing_of(ModeTag::Direct);
    let (worker, _jobs) = Worker::for_test();
    let agent = crate::testing::agent(&dir, &[]);
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu = crate::testing::arrived(&agent, own);
    let mut role = crate::recovery::tests::leaves(&qemu, SourcePhase::CommitSent);
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    peer.set_nonblocking(true).unwrap();
    let Role::Source { peers, .. } = &mut role else { panic!("{role:?}") };
    *peers = vec![peer.local_addr().unwrap()];
    let record = Record::new("g", 1, role);
    agent.journal.put(outgoing.session, &record).unwrap();
    let mut session_loop =
        session_loop::SessionLoop::new(outgoing.clone(), worker, agent.outgoing.clone(), record);
    let disk = crate::testing::SlowDisk::start(&agent.journal);
    session_loop.ask_destination(false);
    session_loop.take(Input::SourceSeen(Sighting::Resumed));
    crate::testing::wait("it is not told", || peer.accept().is_ok());
    disk.end();
    let known = || agent.journal.get(outgoing.session).unwrap().unwrap().ran_here();
    crate::testing::wait("it is not written", || known() == RanHere::Yes);
}

/// CPU time is used by a QEMU that a signal stops, too.
#[test]
fn a_guest_that_may_have_run_here_is_asked_about_again_when_qemu_says_that_it_has_not() {
    let dir = tempfile::tempdir().unwrap();
    let (outgoing, inputs) = outgoing_of(ModeTag::Direct);
    let (worker, _jobs) = Worker::for_test();
    let agent = crate::testing::agent(&dir, &[]);
    let qemu = crate::recovery::tests::ended(&agent, &dir);
    let record = Record::new("g", 1, crate::recovery::tests::leaves(&qemu, SourcePhase::CommitSent));
    agent.journal.put(outgoing.session, &record).unwrap();
    let mut session_loop =
        session_loop::SessionLoop::new(outgoing.clone(), worker, agent.outgoing.clone(), record);
    let known = || agent.journal.get(outgoing.session).unwrap().unwrap().ran_here();
    for seen in [Sighting::Unclear, Sighting::Nothing] {
        session_loop.ask_destination(false);
        session_loop.take(Input::SourceSeen(seen));
        crate::testing::wait("it is not written", || known() == RanHere::Maybe);
        let note = progress::in_doubt(&outgoing);
        assert!(note.contains("may have run") && !note.contains("another program"), "{note}");
        assert!(inputs.recv_timeout(Duration::from_secs(1)).is_err(), "{seen:?}: it is asked");
    }
    session_loop.ask_destination(false);
    session_loop.take(Input::SourceSeen(Sighting::Stopped));
    crate::testing::wait("it is not written", || known() == RanHere::No);
    assert!(!progress::in_doubt(&outgoing).contains("may have run"));
    let answered = inputs.recv_timeout(LONG).unwrap();
    assert!(matches!(answered, Input::Event(Event::Unanswered)), "it is not asked");
}

#[test]
fn no_fence_of_a_lost_link_can_be_asked_for_before_the_streams_know_of_the_loss() {
    let mut source = Source::new(Config::new("g", String::new(), Mode::Streams { channels: 0 }));
    for (channel, link) in [(0, 7), (1, 8), (2, 7)] {
        source.handle(Time::ZERO, Event::ChannelUp { channel, link });
    }
    let machine = Mutex::new(source);
    let mut gone = Vec::new();
    lose_link(&machine, Time::ZERO, 7, |channel| {
        assert!(machine.try_lock().is_none(), "the loop can send the fence now, and receive its answer");
        gone.push(channel);
    });
    assert_eq!(gone, [0, 2]);
    assert_eq!(machine.lock().scheduler().active_channels(), 1);
}

/// A migration by streams sends commit.
fn sends_commit(outgoing: &Outgoing) {
    let received = |sequence, message| Event::Received { path: 0, sequence, message };
    let settings = StreamSettings { channels: 2, return_path: true, zero_pages_in_channels: false };
    let events = [
        Event::PathUp(0),
        Event::Start,
        received(1, Message::Admitted { endpoints: vec![] }),
        received(2, Message::StreamsPrepared(settings)),
        Event::ChannelUp { channel: 0, link: 0 },
        Event::GuestStopped,
        Event::PreSwitchover { was_running: true, disks: "[]".into() },
        Event::DeviceStateDone,
        received(3, Message::Loaded),
        Event::Journaled(SourcePhase::CommitSent),
    ];
    let mut machine = outgoing.machine();
    events.into_iter().for_each(|event| machine.handle(Time::ZERO, event));
}

/// The commit was on its way. With exit code 0 nobody would look at the disks.
#[test]
fn a_guest_that_another_program_ran_here_beside_the_destination_does_not_end_well() {
    let dir = tempfile::tempdir().unwrap();
    let (mut outgoing, _inputs) = outgoing_of(ModeTag::Streams);
    let (sender, news) = channel();
    let observer = move |news: News| drop(sender.send(news));
    Arc::get_mut(&mut outgoing).unwrap().observer = Some(Box::new(observer));
    let (worker, _jobs) = Worker::for_test();
    let agent = crate::testing::agent(&dir, &[]);
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu = GuestRecord::new("g", Origin::Started, own, dir.path().join("q"), vec![]).unwrap();
    let record = Record::new("g", 1, crate::recovery::tests::leaves(&qemu, SourcePhase::CommitSent));
    agent.journal.put(outgoing.session, &record).unwrap();
    let mut session_loop =
        session_loop::SessionLoop::new(outgoing.clone(), worker, agent.outgoing.clone(), record);
    let actions = || -> Vec<Action> {
        let mut machine = outgoing.machine();
        std::iter::from_fn(|| machine.poll_action(outgoing.clock.now())).collect()
    };
    sends_commit(&outgoing);
    actions();
    session_loop.ask_destination(false);
    session_loop.take(Input::SourceSeen(Sighting::Resumed));
    let received = |sequence, message| Input::Event(Event::Received { path: 0, sequence, message });
    session_loop.take(received(4, Message::TakenOver { resume_us: 0, cpu_us: 0 }));
    assert!(actions().contains(&Action::CleanUp));
    session_loop.take(Input::Event(Event::CleanedUp));
    outgoing.machine().handle(outgoing.clock.now(), Event::PathLost(0));
    let end = actions().into_iter().find(|action| matches!(action, Action::End(_)));
    session_loop.execute(end.unwrap());
    session_loop.run(&channel().1);
    let finished = outgoing.event_log.finished();
    let Some(linerate_api::EventKind::Finished { error: Some(error), .. }) = finished else {
        panic!("it ends with exit code 0: {finished:?}")
    };
    assert_eq!(error.guest_state, Some(linerate_api::GuestState::RunsAtDestination), "{error:?}");
    assert!(error.message.contains("ran at the destination too"), "{error:?}");
    let ended = news.try_iter().find_map(|news| match news {
        News::Ended(ending) => Some(ending),
        _ => None,
    });
    assert!(ended.unwrap().fault.is_some(), "a drain counts it as moved");
}

/// One whose commit was not answered for so long that an operator may decide.
pub(crate) fn in_doubt(qemu: &GuestRecord) -> Arc<Outgoing> {
    let (outgoing, _inputs) = outgoing_of(ModeTag::Streams);
    let mut outgoing = Arc::into_inner(outgoing).unwrap();
    outgoing.qemu = Some(qemu.process);
    sends_commit(&outgoing);
    let mut machine = outgoing.machine();
    // The question is asked each second.
    for second in 1..=10 {
        machine.handle(Time(second * 1_000_000_000), Event::Tick);
        while machine.poll_action(Time(second * 1_000_000_000)).is_some() {}
        machine.handle(Time(second * 1_000_000_000), Event::Unanswered);
    }
    drop(machine);
    assert!(outgoing.is_in_doubt());
    Arc::new(outgoing)
}

/// Nothing can be resumed, and exit code 0 would say that the guest runs here.
#[test]
fn a_guest_whose_qemu_has_ended_is_not_to_be_resumed_by_a_live_session() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let qemu = crate::recovery::tests::ended(&agent, &dir);
    let outgoing = in_doubt(&qemu);
    let refused = outgoing.resolve(true).unwrap_err().to_string();
    assert!(refused.contains("has ended") && refused.contains("--give-up"), "{refused}");
    assert!(outgoing.is_in_doubt());
    // What it did here changes nothing of that, but nothing is asked then.
    for ran_here in [RanHere::Maybe, RanHere::Yes] {
        *outgoing.ran_here.lock() = ran_here;
        assert_eq!(outgoing.resolve(true), Err(NotDecided::QemuEndedNotAsked), "{ran_here:?}");
        assert!(outgoing.is_in_doubt());
    }
    let own = GuestRecord {
        process: crate::testing::arrived(&agent, i32::try_from(std::process::id()).unwrap()).process,
        ..qemu
    };
    in_doubt(&own).resolve(true).unwrap();
}

/// If the destination has said that it runs the guest, they are not.
#[test]
fn images_of_a_guest_that_ran_here_are_newer_if_an_operator_gives_its_copy_up() {
    let dir = tempfile::tempdir().unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let outgoing =
        in_doubt(&GuestRecord::new("g", Origin::Started, own, dir.path().join("q"), vec![]).unwrap());
    *outgoing.ran_here.lock() = RanHere::Yes;
    assert!(!outgoing.images_are_newer());
    outgoing.resolve(false).unwrap();
    assert!(outgoing.images_are_newer());
    *outgoing.ran_here.lock() = RanHere::Maybe;
    assert!(!outgoing.images_are_newer());
}

/// The answer to what is said each second decides nothing. But both copies run, and an operator looks at the list.
#[test]
fn a_live_session_notes_that_a_guest_that_ran_here_runs_at_the_destination_too() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu = crate::testing::arrived(&agent, own);
    let outgoing = in_doubt(&qemu);
    let destination = crate::testing::listen(&crate::security::Security::insecure(), |accepted: Accepted| {
        let _ = accepted.outcome(Outcome::Committed);
    });
    let mut role = crate::recovery::tests::leaves(&qemu, SourcePhase::CommitSent);
    let Role::Source { peers, .. } = &mut role else { panic!("{role:?}") };
    *peers = destination.addresses().to_vec();
    let record = Record::new("g", 1, role);
    agent.journal.put(outgoing.session, &record).unwrap();
    let (worker, _jobs) = Worker::for_test();
    let mut session_loop =
        session_loop::SessionLoop::new(outgoing.clone(), worker, agent.outgoing.clone(), record);
    session_loop.ask_destination(false);
    session_loop.take(Input::SourceSeen(Sighting::Resumed));
    let id = outgoing.session.to_string();
    crate::testing::wait("it is not noted", || crate::both_hosts::has(&agent.journal, &id));
    outgoing.resolve(false).unwrap();
    assert!(!outgoing.images_are_newer(), "it runs on from their copies");
}

/// Between the decision and QEMU's answer an operator must not read that all goes well.
#[test]
fn a_decision_that_qemu_has_not_confirmed_is_listed_with_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let outgoing =
        in_doubt(&GuestRecord::new("g", Origin::Started, own, dir.path().join("q"), vec![]).unwrap());
    outgoing.resolve(true).unwrap();
    let handle = |event| {
        let mut machine = outgoing.machine();
        machine.handle(Time(11_000_000_000), event);
        while machine.poll_action(Time(11_000_000_000)).is_some() {}
    };
    handle(Event::Unanswered);
    handle(Event::Journaled(SourcePhase::ResumingHere));
    let shown = outgoing.summary();
    assert_eq!(shown.state, MigrationState::Recovering, "{shown:?}");
    assert!(shown.note.unwrap().contains("has not confirmed"));
    outgoing.note_trouble(Some("QEMU did not answer".into()));
    let note = outgoing.summary().note.unwrap();
    assert!(note.ends_with("(last try: QEMU did not answer)"), "{note}");
    outgoing.note_trouble(None);
    handle(Event::RolledBack { guest: GuestState::RunsAtSource, complete: true });
    assert_eq!(outgoing.summary().note, None);
}

/// It ran here after commit, and has ended: what the destination has is older than its disks. If it only may have run,
/// that may be the only copy.
#[test]
fn a_destination_gives_its_copy_up_if_the_guest_of_a_live_session_ran_here_and_has_ended() {
    for (known, ran_here) in [(RanHere::Yes, true), (RanHere::Maybe, false), (RanHere::No, false)] {
        let dir = tempfile::tempdir().unwrap();
        let (outgoing, _inputs) = outgoing_of(ModeTag::Direct);
        let (worker, _jobs) = Worker::for_test();
        let agent = crate::testing::agent(&dir, &[]);
        let qemu = crate::recovery::tests::ended(&agent, &dir);
        let peer = TcpListener::bind("127.0.0.1:0").unwrap();
        peer.set_nonblocking(true).unwrap();
        let mut role = crate::recovery::tests::leaves(&qemu, SourcePhase::RolledBack);
        let Role::Source { peers, ran_here: ran, .. } = &mut role else { panic!("{role:?}") };
        (*peers, *ran) = (vec![peer.local_addr().unwrap()], known);
        let record = Record::new("g", 1, role);
        agent.journal.put(outgoing.session, &record).unwrap();
        let mut session_loop =
            session_loop::SessionLoop::new(outgoing.clone(), worker, agent.outgoing.clone(), record);
        session_loop.take(Input::Event(Event::RolledBack { guest: GuestState::Gone, complete: true }));
        session_loop.write_journal(SourcePhase::RolledBack);
        let is_due = match agent.journal.get(outgoing.session).unwrap().unwrap().role {
            Role::Source { notice_due, .. } => notice_due,
            other => panic!("{other:?}"),
        };
        assert_eq!(is_due, ran_here, "{known:?}: a later agent");
        let ending = Ending { fault: None, guest: GuestState::Gone, unfinished: false };
        session_loop.execute(Action::End(ending));
        session_loop.run(&channel().1);
        let end = Instant::now() + if ran_here { LONG } else { Duration::from_secs(1) };
        let is_notified = loop {
            match peer.accept() {
                Ok(_) => break true,
                Err(_) if Instant::now() >= end => break false,
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        assert_eq!(is_notified, ran_here, "{known:?}");
    }
}
