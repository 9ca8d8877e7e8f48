//! The source of a migration in streams, whose hypervisor or destination does what it should not.

pub(super) mod domain;
mod own;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};

use linerate_api::Transport;
use linerate_core::source::{Action, Config};
use linerate_core::stream::StreamId;
use linerate_core::{Code, Fault, Message, Mode, Side, StreamNote, Token};
use linerate_net::stream::endpoint::Socket;

use super::streams::{Accepting, MigrationStreams, Service};
use super::worker::Worker;
use super::*;
use crate::journal::{IncomingRecord, Record};
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
        losses: Losses::default(),
        pacer: None,
        event_log: EventLog::default(),
        mode,
        mode_reason: None,
        channel_source: Mutex::default(),
        link_table: LinkTable::default(),
        cancelling: AtomicBool::new(false),
        was_ready: AtomicBool::new(false),
        observer: None,
        not_asked: Mutex::default(),
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

/// A question would be a commit, and what the destination has is older than the guest's disks.
#[test]
fn a_guest_that_ran_here_behind_commit_is_not_asked_about_when_its_qemu_has_ended() {
    use linerate_guest::registry::{GuestRecord, Origin};

    let dir = tempfile::tempdir().unwrap();
    let (outgoing, inputs) = outgoing_of(ModeTag::Direct);
    let (worker, _jobs) = Worker::for_test();
    let agent = crate::testing::agent(&dir, &[]);
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu = GuestRecord::new("g", Origin::Started, own, dir.path().join("q"), vec![]).unwrap();
    let role = crate::recovery::tests::leaves(&qemu, linerate_core::journal::SourcePhase::CommitSent);
    let record = Record::new("g", 1, role);
    agent.journal.put(outgoing.session, &record).unwrap();
    let mut session_loop =
        session_loop::SessionLoop::new(outgoing.clone(), worker, agent.outgoing.clone(), record);
    session_loop.ask_destination(false);
    session_loop.take(Input::SourceIntact(false));
    assert!(agent.journal.get(outgoing.session).unwrap().unwrap().ran_here());
    session_loop.ask_destination(false);
    session_loop.take(Input::SourceIntact(true));
    assert!(inputs.recv_timeout(Duration::from_secs(1)).is_err(), "it is asked");
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
