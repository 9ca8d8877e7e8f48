//! Incoming migrations: the driver of `linerate-core`'s destination.
//!
//! | module | what it has |
//! |---|---|
//! | here | what all threads of a session share |
//! | `sessions` | all of them, which connections may join one, and what they need of this host |
//! | `steps` | actions of the core, in the order of the ten steps, and where each is done |
//! | `session_loop` | the loop that gives events to the core and executes its actions |
//! | `worker` | the one thread that deals with the incoming QEMU: it gives tasks to the driver |
//! | `driver` | what each mode does with the incoming QEMU; `context`: what every driver needs |
//! | `budget` | memory that all sources together may occupy here |
//! | `admit` | admission: memory, names, QEMU, disks, networks |
//! | `granted` | what the guest may open because of the host that it comes from |
//! | `domain` | finds the QEMU that libvirt has started |
//! | `streams` | streams of the session are connected to the incoming QEMU |
//! | `channels` | channels of the source |

mod admit;
mod budget;
mod channels;
mod context;
pub(crate) mod domain;
mod driver;
mod granted;
mod ram_folder;
mod session_loop;
mod sessions;
mod steps;
mod storage;
mod streams;
#[cfg(test)]
pub(crate) mod tests;
mod worker;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::Duration;

use linerate_api::{Direction, MigrationId, MigrationState, MigrationSummary};
use linerate_core::destination::{Config, Destination, Event};
use linerate_core::journal::Decided;
use linerate_core::stream::StreamId;
use linerate_core::{ChannelId, LinkId, Outcome, PathId, SessionId, Token};
use linerate_guest::procfs::ProcessIdentity;
use linerate_lock::Mutex;
use linerate_net::channel::ChannelError;
use linerate_net::control::{ControlOptions, ControlPath};
use linerate_net::rdma::{self, error::RdmaError, listen::Accepted};
use linerate_net::round_trip::RoundTrip;
use linerate_net::table::RegionTable;
use linerate_net::tcp::Stream;
use linerate_wire::frame::Welcome;

use crate::clock::{Clock, unix_ms};
use crate::convert;
use crate::decision::{COMMITTED, HELD_ENDED, NotDecided, check_decision, describe_decision};
use crate::journal::JournalTrouble;
use crate::security::PeerName;
use crate::session::contact::keep;
use crate::session::fences::Fences;
use crate::session::identity::Identity;
use crate::session::paths::{Door, Held, PathEvent};
use crate::session::probe::OpenError;
use crate::session::stream_transport::StreamTransport;

pub use sessions::{Needs, Sessions};

/// What an operator reads of a guest that is held.
const HELD: &str = "the guest is complete here and paused; its source may have committed it and does not answer: it waits for the source's decision, or for yours (`linerate resolve`)";

/// After the last control connection was silent for too long, the session takes its source for lost.
const ORPHANED_AFTER: Duration = Duration::from_millis(1100);

/// What the loop of a session receives.
pub(crate) enum Input {
    Event(Event),
    /// What a control connection received, and its room in the backlog.
    Control(PathEvent, Held),
    /// A control connection is up.
    Path(PathId, ControlPath),
    /// The streams have notes for the other side's.
    StreamsSpeak,
    /// A channel that this side writes to cannot be used any more.
    ChannelLost(ChannelId, ChannelError),
    /// The source wants a stream to this service.
    Asked(StreamId, String),
    /// The source refuses a stream, although it alone opens them.
    Refused(StreamId),
}

/// Why a connection of the source does not become a channel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    #[error("this session has no streams")]
    NoStreams,
    /// It is for this side to write to, and cannot be.
    #[error(transparent)]
    Back(#[from] OpenError),
    /// The queue pair could not be taken.
    #[error(transparent)]
    Rdma(#[from] RdmaError),
    /// No guest is admitted yet, or there is no thread for the channel.
    #[error(transparent)]
    Serve(#[from] std::io::Error),
}

/// What the source's channels fill.
enum ChannelTarget {
    /// RAM of the guest.
    Ram(Arc<RegionTable>),
    /// Rings of the hypervisor's own streams.
    Streams(StreamTransport),
}

pub struct Incoming {
    /// Names it on both hosts.
    pub session: SessionId,
    identity: Identity,
    peer: SocketAddr,
    /// The host that opened it, where hosts prove who they are.
    opener: PeerName,
    guest: Mutex<String>,
    /// Memory of the guest, once it is known.
    memory_bytes: AtomicU64,
    /// Its place in the order in which sessions began on this host.
    order: u64,
    started_unix_ms: u64,
    clock: Clock,
    machine: Mutex<Destination>,
    inbox: Sender<Input>,
    door: Door,
    /// Set by the driver when the guest is admitted.
    target: OnceLock<ChannelTarget>,
    fences: Arc<Fences>,
    /// The thread that connects them to the incoming QEMU, once that waits.
    connector: OnceLock<Sender<(StreamId, String)>>,
    /// Keys and registered memory of this session on every RDMA device.
    domains: rdma::Domains,
    ram_folder: ram_folder::RamFolder,
    received_bytes: AtomicU64,
    /// Of each link, as its control connection showed it.
    round_trips: Mutex<BTreeMap<LinkId, RoundTrip>>,
    journal_trouble: JournalTrouble,
    /// Why the committed guest could not be run yet.
    trouble: Mutex<Option<String>>,
    /// The incoming QEMU, once it has started.
    qemu: OnceLock<ProcessIdentity>,
}

impl Incoming {
    /// A new session; its loop runs from now on.
    pub fn start(
        sessions: &Arc<Sessions>,
        identity: Identity,
        peer: SocketAddr,
        opener: PeerName,
    ) -> std::io::Result<Arc<Incoming>> {
        let (inbox, receiver) = channel();
        let order = sessions.journal.next_order();
        let events = inbox.clone();
        let door = Door::open(move |event, held| drop(events.send(Input::Control(event, held))))?;
        let name = format!("in-{}", identity.session);
        let shared = Arc::new(Incoming { opener, ..Incoming::new(identity, order, peer, inbox, door) });
        let session_loop = session_loop::SessionLoop::new(sessions.clone(), shared.clone())?;
        std::thread::Builder::new().name(name).spawn(move || session_loop.run(&receiver))?;
        Ok(shared)
    }

    /// A session whose loop does not run yet.
    fn new(identity: Identity, order: u64, peer: SocketAddr, inbox: Sender<Input>, door: Door) -> Incoming {
        let clock = Clock::start();
        Incoming {
            session: identity.session,
            identity,
            peer,
            opener: None,
            guest: Mutex::default(),
            memory_bytes: AtomicU64::new(0),
            order,
            started_unix_ms: unix_ms(),
            clock,
            machine: Mutex::new(Destination::new(clock.now(), Config::default())),
            inbox,
            door,
            target: OnceLock::new(),
            fences: Arc::default(),
            connector: OnceLock::new(),
            domains: rdma::Domains::default(),
            ram_folder: ram_folder::RamFolder::default(),
            received_bytes: AtomicU64::new(0),
            round_trips: Mutex::default(),
            journal_trouble: JournalTrouble::default(),
            trouble: Mutex::default(),
            qemu: OnceLock::new(),
        }
    }

    fn machine(&self) -> MutexGuard<'_, Destination> {
        self.machine.lock()
    }

    /// The hypervisor's streams, if they carry RAM.
    fn stream_transport(&self) -> Option<&StreamTransport> {
        match self.target.get()? {
            ChannelTarget::Streams(stream_transport) => Some(stream_transport),
            ChannelTarget::Ram(_) => None,
        }
    }

    fn send(&self, event: Event) {
        let _ = self.inbox.send(Input::Event(event));
    }

    /// Whether a connection that shows this token belongs here.
    pub fn knows(&self, token: &Token) -> bool {
        self.identity.knows(token)
    }

    /// The host that opened it, where hosts prove who they are.
    pub fn opener(&self) -> &PeerName {
        &self.opener
    }

    /// Whether this host opened the session, and may ask and decide about it.
    pub fn is_of(&self, caller: &PeerName) -> bool {
        self.opener == *caller
    }

    /// Whether it comes from there: from that host, where hosts prove who they are, otherwise from that address.
    fn comes_from(&self, opener: &PeerName, peer: SocketAddr) -> bool {
        match opener {
            Some(_) => self.is_of(opener),
            None => self.peer.ip() == peer.ip(),
        }
    }

    /// Whether the host that opened it was revoked since.
    fn opener_is_revoked(&self) -> bool {
        self.identity.peer_is_revoked()
    }

    /// Name of the guest, once it is known.
    pub fn guest(&self) -> String {
        self.guest.lock().clone()
    }

    /// Bytes of the guest's memory; 0 before they are known.
    pub fn memory_bytes(&self) -> u64 {
        self.memory_bytes.load(Ordering::Relaxed)
    }

    /// The answer to a source that asks.
    pub fn outcome(&self) -> Outcome {
        self.machine().outcome()
    }

    /// Its source is about to resume the guest and asks whether it runs here.
    pub fn source_resumes(&self) -> Outcome {
        let mut machine = self.machine();
        machine.handle(self.clock.now(), Event::SourceResumes);
        machine.outcome_for_resuming()
    }

    /// Highest control message received; it goes into a WELCOME.
    pub fn received_through(&self) -> u64 {
        self.machine().received_through()
    }

    /// Its source does not answer, and cannot have committed.
    pub fn is_orphaned(&self) -> bool {
        let machine = self.machine();
        machine.paths() == 0 && !machine.is_committed() && !machine.is_held()
    }

    /// The guest is complete, and its source, which may have committed, does not answer.
    pub fn is_held(&self) -> bool {
        self.machine().is_held()
    }

    /// The guest was taken over.
    pub fn is_arrived(&self) -> bool {
        self.machine().outcome() == Outcome::Committed
    }

    /// An operator may decide, or has decided and that does not count yet.
    pub fn is_in_doubt(&self) -> bool {
        self.machine().is_in_doubt()
    }

    /// It was committed, and it is not known yet whether it runs here; or it has ended, and recovery may have it next.
    pub fn is_looked_at(&self) -> bool {
        let machine = self.machine();
        machine.is_ended() || is_being_run(&machine)
    }

    /// The operator of this host decides over a guest that is held: `true` runs it here. Of two who decide at once the
    /// second is refused.
    ///
    /// # Errors
    /// Why it is not decided so.
    pub fn resolve(&self, run: bool) -> Result<(), NotDecided> {
        let mut machine = self.machine();
        let now = self.clock.now();
        check_decision(machine.is_in_doubt(), machine.takes(run))?;
        if run && machine.source_resumes(now) {
            return Err(NotDecided::SourceResumes);
        }
        machine.handle(now, Event::Resolve(run));
        drop(machine);
        // What follows is done by the session's loop.
        self.send(Event::Tick);
        Ok(())
    }

    /// Whether the guest's QEMU is here, as far as it is known.
    pub fn qemu_is_alive(&self) -> bool {
        self.qemu.get().is_none_or(|qemu| qemu.is_alive())
    }

    /// Its source has rolled back after commit: the guest is not to be let run here any more.
    fn is_rolled_back_at_source(&self) -> bool {
        self.machine().is_rolled_back_at_source()
    }

    /// What became of the operator's decision for `run`.
    pub fn decided_for(&self, run: bool) -> Decided {
        self.machine().decided_for(run)
    }

    /// Its source sends commit on a connection of its own. `copy`: it still has its own.
    pub fn commit_again(&self, copy: bool) {
        self.send(Event::CommitAgain { copy });
    }

    /// The operator of this host wants it to end. `true` if it is not too late.
    pub fn cancel(&self) -> bool {
        self.send(Event::Cancel);
        !self.machine().is_complete()
    }

    /// Its source has rolled back.
    pub fn rolled_back_at_source(&self) {
        self.send(Event::RolledBackAtSource);
    }

    /// A try to run the committed guest has failed.
    fn note_trouble(&self, trouble: &str) {
        *self.trouble.lock() = Some(trouble.to_owned());
    }

    /// What is unfinished of a guest that is complete here, and what an operator can do.
    fn doubt(&self, machine: &Destination) -> Option<&'static str> {
        if let Some(run) = machine.waiting_decision() {
            return Some(describe_decision(run));
        }
        match machine.is_held() {
            true if self.qemu_is_alive() => Some(HELD),
            true => Some(HELD_ENDED),
            false => is_being_run(machine).then_some(COMMITTED),
        }
    }

    /// A line about it.
    pub fn summary(&self) -> MigrationSummary {
        let trouble = self.trouble.lock().clone();
        let machine = self.machine();
        let state = match (machine.is_ended(), machine.outcome()) {
            (_, Outcome::Committed) => MigrationState::Completed,
            (true, _) => MigrationState::Failed,
            (false, _) if machine.is_in_doubt() => MigrationState::InDoubt,
            (false, _) if trouble.is_some() => MigrationState::Recovering,
            (false, _) => MigrationState::Running,
        };
        let is_open =
            matches!(state, MigrationState::InDoubt | MigrationState::Recovering | MigrationState::Running);
        let last = trouble.filter(|_| is_open).map(|trouble| format!("Last try: {trouble}"));
        // A commit that the disk does not take leaves the guest paused, on both hosts.
        let journal = self.journal_trouble.sentence().filter(|_| !machine.is_ended());
        // Before it is on disk QEMU is not asked.
        let doubt = self.doubt(&machine).filter(|what| *what != COMMITTED || journal.is_none());
        let doubt = doubt.filter(|_| is_open).map(str::to_owned);
        let notes: Vec<String> = doubt.into_iter().chain(last).chain(journal).collect();
        let note = (!notes.is_empty()).then(|| notes.join(". "));
        MigrationSummary {
            id: MigrationId(self.session.to_string()),
            guest: self.guest(),
            direction: Direction::Incoming,
            peer: self.peer.to_string(),
            state,
            step: convert::step(machine.step()),
            started_unix_ms: self.started_unix_ms,
            sent_bytes: self.received_bytes.load(Ordering::Relaxed),
            note,
        }
    }

    /// A data connection was welcomed: its writes are applied from now on.
    pub fn attach_channel(self: &Arc<Incoming>, channel: u32, stream: Stream) -> std::io::Result<()> {
        channels::attach(self, channel, stream)
    }

    /// A data connection for this side to write to was welcomed.
    pub fn attach_back(&self, channel: ChannelId, link: LinkId, stream: &Stream) -> Result<(), AttachError> {
        let stream_transport = self.stream_transport().ok_or(AttachError::NoStreams)?;
        Ok(stream_transport.attach_back(channel, link, stream)?)
    }

    /// A request for a queue pair is taken: its writes are applied from now on.
    pub fn attach_rdma(
        self: &Arc<Incoming>,
        accepted: Accepted,
        welcome: Welcome,
    ) -> Result<(), AttachError> {
        let (channel, link) = (accepted.hello.channel, accepted.hello.link);
        let round_trip = self.round_trips().get(&link).copied().unwrap_or_default();
        let connection = accepted.welcome(welcome, &self.domains, round_trip)?;
        self.identity.end_with_peer(connection.clone());
        Ok(channels::attach_rdma(self, channel, connection)?)
    }

    /// A control connection was welcomed. The loop owns it from then on.
    pub fn attach_path(&self, link: LinkId, stream: Stream) -> std::io::Result<()> {
        self.round_trips().insert(link, RoundTrip::of(&stream));
        self.identity.note_peer(stream.peer_certificates());
        let mut connection = keep(stream)?;
        let path = self.door.listen(&mut connection)?;
        let _ = self.inbox.send(Input::Path(path, connection));
        Ok(())
    }

    fn round_trips(&self) -> MutexGuard<'_, BTreeMap<LinkId, RoundTrip>> {
        self.round_trips.lock()
    }

    /// If its source is lost, [`Incoming::is_orphaned`] is true after this long.
    pub fn orphaned_within(&self) -> Duration {
        let near = ControlOptions::default().silence_max;
        let silences = self.round_trips().values().map(|one| one.silence(near)).max();
        silences.unwrap_or(near) + ORPHANED_AFTER
    }
}

/// The guest was committed to this host, and its QEMU has not confirmed that it runs.
fn is_being_run(machine: &Destination) -> bool {
    machine.is_committed() && !machine.is_ended() && machine.outcome() == Outcome::Pending
}
