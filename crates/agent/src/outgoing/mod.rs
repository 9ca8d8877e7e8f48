//! Migrations that leave this host: the driver of `linerate-core`'s source.
//!
//! | module | what it has |
//! |---|---|
//! | here | what all threads of a migration share: the core behind a lock, its inbox, its watchers |
//! | `sessions` | all of them, and what they need of this host |
//! | `steps` | a migration from top to bottom: its ten steps, and where each is done |
//! | `start` | the parts of steps 1 and 2: the guest is read and judged, the destination's agent is reached |
//! | `session_loop` | the loop that gives events to the core and executes its actions |
//! | `mode` | what copies RAM: Linerate, or QEMU's own streams |
//! | `streams` | QEMU's connections become streams of the session |
//! | `worker` | the one thread that deals with the guest: it gives tasks to the driver |
//! | `driver` | what each mode does with the guest; `guest`: what every driver has |
//! | `domain` | may libvirt's domain leave |
//! | `drain` | rule 6: protection is applied only while block I/O is drained |
//! | `pinned` | rule 6: for which disks |
//! | `links` | what the links of [`crate::session`] are to a migration |
//! | `work` | what the channels ask the core |
//! | `rejoin` | the first control connection is opened again while links are not known yet |
//! | `link_table`, `progress` | what is seen of it |

mod domain;
mod drain;
mod driver;
mod guest;
mod link_table;
mod links;
mod mode;
mod pinned;
mod progress;
mod rejoin;
mod session_loop;
mod sessions;
mod start;
mod steps;
mod storage;
mod streams;
#[cfg(test)]
pub(crate) mod tests;
mod work;
mod worker;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use linerate_api::{MigrateRequest, MigrationDetail, MigrationId, MigrationState, MigrationSummary};
use linerate_core::drain::Sample;
use linerate_core::journal::Decided;
use linerate_core::source::{Ending, Event, Source};
use linerate_core::{ChannelId, LinkId, ModeTag, Outcome, PathId, SessionId, Time};
use linerate_guest::procfs::ProcessIdentity;
use linerate_guest::run_state::RunState;
use linerate_lock::{Condvar, Mutex};
use linerate_net::channel::ChannelError;
use linerate_net::control::ControlPath;
use linerate_net::pacer::Pacer;

use crate::clock::Clock;
use crate::decision::{NotDecided, check_decision, check_resumable};
use crate::event_log::EventLog;
use crate::journal::JournalTrouble;
use crate::ram::Ram;
use crate::ran_here::{RanHere, Sighting};
use crate::session::links::{Dialler, Losses};
use crate::session::paths::{Door, Held, PathEvent};
use crate::session::stream_transport::StreamTransport;
use link_table::LinkTable;
use streams::MigrationStreams;

pub use sessions::Sessions;
pub use steps::start;
pub(crate) use steps::start_observed;

/// What the loop of a migration receives.
pub(crate) enum Input {
    Event(Event),
    /// What a control connection received, and its room in the backlog.
    Control(PathEvent, Held),
    /// For the core, of a moment that has passed.
    EventAt(Time, Event),
    /// QEMU holds the guest: in which run state it was paused before, or none if it ran.
    PriorRunState(Option<RunState>),
    /// A control connection is up.
    Path(PathId, Option<LinkId>, ControlPath),
    /// A link is closed: its control connection goes with it.
    LinkLost(LinkId),
    /// Whether the source's paused guest is as it was when QEMU stopped it.
    SourceSeen(Sighting),
    /// The guest has left, and another program let it run here after commit was sent.
    RanHereToo,
    /// The source's guest has the disks and devices of the beginning.
    SourceUnchanged,
    /// The capability of a domain's QEMU is off: a later agent has nothing to put back.
    HypervisorRestored,
    /// The core may have something to do: a channel changed it.
    Wake,
    /// The streams have notes for the other side's.
    StreamsSpeak,
    /// A channel of the streams cannot be used any more.
    ChannelLost(ChannelId, ChannelError),
}

/// What the one that had a migration begun is told at once, from the migration's own thread.
pub(crate) enum News {
    /// All is prepared, and the copy waits for [`Outgoing::go`].
    Ready,
    /// How far the copy is.
    Sample(Sample),
    /// The guest has left, and its migration uses no link any more.
    Left,
    /// The migration has ended, and how.
    Ended(Ending),
}

/// Takes the news of a migration. Must not wait.
pub(crate) type Observer = Box<dyn Fn(News) + Send + Sync>;

/// What the channels of a migration send.
#[derive(Clone)]
enum ChannelSource {
    /// RAM of the guest, by the number of its region: the core decides what of it.
    Ram(Vec<Arc<Ram>>),
    /// The streams of its QEMU.
    Streams(MigrationStreams),
}

/// A migration that leaves this host.
pub struct Outgoing {
    /// Names it on both hosts.
    pub session: SessionId,
    dialler: Dialler,
    /// What was asked for.
    pub request: MigrateRequest,
    from: String,
    started_unix_ms: u64,
    /// Time from the request to the core's start: steps 1 and 2.
    before_machine: Duration,
    ram_bytes: u64,
    clock: Clock,
    machine: Mutex<Source>,
    /// Notified when there may be work for a channel that found none.
    work: Condvar,
    inbox: Sender<Input>,
    door: Door,
    /// Addresses of the destination that `to` names. The one that answered comes first.
    peers: Vec<SocketAddr>,
    losses: Losses,
    pacer: Option<Arc<Pacer>>,
    pub event_log: EventLog,
    /// The guest's QEMU; none if libvirt decides about it.
    qemu: Option<ProcessIdentity>,
    mode: ModeTag,
    /// Where the mode was not the operator's choice.
    mode_reason: Option<String>,
    /// Set by the driver, and freed when the migration is over.
    channel_source: Mutex<Option<ChannelSource>>,
    link_table: LinkTable,
    cancelling: AtomicBool,
    /// All was prepared, and the copy could have begun.
    was_ready: AtomicBool,
    /// Who is told what happens; the copy waits for it then.
    observer: Option<Observer>,
    /// Why the destination could not be asked whether the guest runs there, where that is known.
    not_asked: Mutex<Option<String>>,
    /// The destination's answer to the last question; none if it was silent.
    answer: Mutex<Option<Outcome>>,
    /// Why the guest could not be resumed here yet, or what is left of it could not be removed.
    trouble: Mutex<Option<String>>,
    /// Whether another program ran the guest here after commit: then the destination is not asked.
    ran_here: Mutex<RanHere>,
    /// The destination is being told that the guest is here.
    says_it: AtomicBool,
    journal_trouble: JournalTrouble,
}

impl Outgoing {
    fn machine(&self) -> MutexGuard<'_, Source> {
        self.machine.lock()
    }

    /// Puts an event into the inbox. After the session's end the inbox has no reader, and none is needed.
    fn send(&self, event: Event) {
        let _ = self.inbox.send(Input::Event(event));
    }

    /// Gives the core an event now, from a thread that must know that it has it.
    fn handle_now(&self, event: Event) {
        self.machine().handle(self.clock.now(), event);
        self.wake();
    }

    /// There may be something to do.
    fn wake(&self) {
        let _ = self.inbox.send(Input::Wake);
        self.work.notify_all();
    }

    fn set_channel_source(&self, source: ChannelSource) {
        *self.channel_source.lock() = Some(source);
    }

    fn channel_source(&self) -> Option<ChannelSource> {
        self.channel_source.lock().clone()
    }

    /// QEMU's streams, if they carry RAM.
    fn migration_streams(&self) -> Option<MigrationStreams> {
        match self.channel_source()? {
            ChannelSource::Streams(streams) => Some(streams),
            ChannelSource::Ram(_) => None,
        }
    }

    fn stream_transport(&self) -> Option<Arc<StreamTransport>> {
        self.migration_streams().map(|streams| streams.transport)
    }

    /// Frees what a migration that is over need not hold.
    fn release(&self) {
        let began = std::time::Instant::now();
        *self.channel_source.lock() = None;
        self.link_table.close();
        self.door.close();
        tracing::debug!(took = ?began.elapsed(), "memory freed");
    }

    /// Size of the guest's RAM, in bytes.
    pub(crate) fn ram_bytes(&self) -> u64 {
        self.ram_bytes
    }

    /// When it was asked for, milliseconds since 1970.
    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    /// Asks for its end; before commit the guest stays here.
    pub fn cancel(&self) {
        self.cancelling.store(true, Ordering::Relaxed);
        self.send(Event::Cancel);
    }

    /// The copy that waits begins.
    pub(crate) fn go(&self) {
        self.send(Event::Go);
    }

    fn notify(&self, news: News) {
        if let Some(observer) = &self.observer {
            observer(news);
        }
    }

    /// The operator decides a session in doubt.
    ///
    /// # Errors
    /// Why it is not decided so.
    pub fn resolve(&self, resume_here: bool) -> Result<(), NotDecided> {
        let is_over = self.is_over();
        let mut machine = self.machine();
        // Two operators may decide at once.
        check_decision(!is_over && machine.is_in_doubt(), machine.takes(resume_here))?;
        check_resumable(resume_here, self.qemu_is_alive(), *self.ran_here.lock())?;
        machine.handle(self.clock.now(), Event::Resolve(resume_here));
        drop(machine);
        self.wake();
        Ok(())
    }

    /// Whether the guest's QEMU is here, as far as it is known: of a domain libvirt knows.
    pub fn qemu_is_alive(&self) -> bool {
        self.qemu.is_none_or(ProcessIdentity::is_alive)
    }

    /// The guest ran until it was stopped for the migration.
    pub fn ran(&self) -> bool {
        self.machine().was_running()
    }

    /// What became of the operator's last decision; none before there is one.
    pub fn decided(&self) -> Option<Decided> {
        self.machine().decided()
    }

    /// What became of the operator's decision for `resume_here`.
    pub fn decided_for(&self, resume_here: bool) -> Decided {
        self.machine().decided_for(resume_here)
    }

    /// The guest ran here after commit, and an operator gives this copy up: nobody has said that it runs at the
    /// destination. Its images here are newer than their copies.
    fn images_are_newer(&self) -> bool {
        let runs_there = *self.answer.lock() == Some(Outcome::Committed);
        *self.ran_here.lock() == RanHere::Yes && !runs_there && self.decided_for(false) == Decided::Waiting
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.event_log.finished().is_some()
    }

    /// Its end is being carried out, and recovery may have it next.
    pub fn is_at_its_end(&self) -> bool {
        self.machine().is_ended() && !self.is_over()
    }

    /// Whether it waits for the destination's answer or the operator's decision.
    pub fn is_in_doubt(&self) -> bool {
        !self.is_over() && self.machine().is_in_doubt()
    }

    /// Its name in the API.
    pub fn id(&self) -> MigrationId {
        MigrationId(self.session.to_string())
    }

    /// All that is known of it.
    pub fn detail(&self) -> MigrationDetail {
        progress::detail(self)
    }

    /// How far the copy of RAM is; none before its first byte has arrived.
    pub fn sample(&self) -> Option<Sample> {
        progress::sample(self)
    }

    /// A line about it.
    pub fn summary(&self) -> MigrationSummary {
        self.detail().summary
    }

    /// Why the last try failed of what is tried until it is done; none if it was done.
    fn note_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock() = trouble;
    }

    fn state(&self) -> MigrationState {
        if self.is_in_doubt() {
            MigrationState::InDoubt
        } else if progress::unfinished(self).is_some() {
            MigrationState::Recovering
        } else if self.cancelling.load(Ordering::Relaxed) {
            MigrationState::Cancelling
        } else {
            MigrationState::Running
        }
    }
}

/// Has the core ask for the fences of a link's channels. The streams know by `gone` that each is lost before the core's
/// lock is released. The answer to a fence may arrive at once, and is of no use to streams that take the channel for
/// active.
fn lose_link(machine: &Mutex<Source>, now: Time, link: LinkId, mut gone: impl FnMut(ChannelId)) {
    let mut machine = machine.lock();
    machine.scheduler().channels_of(link).into_iter().for_each(&mut gone);
    machine.link_lost(now, link);
}
