//! Migrations that leave this host: the driver of `linerate-core`'s source.
//!
//! | module | what it has |
//! |---|---|
//! | here | what all threads of a migration share: the core behind a lock, its inbox, its watchers |
//! | `sessions` | all of them, and what they need of this host |
//! | `steps` | a migration from top to bottom: its ten steps, and where each is done |
//! | `start` | the parts of steps 1 and 2: the guest is read and judged, the destination's agent is reached |
//! | `session_loop` | the loop that gives events to the core and executes its actions |
//! | `mode` | direct, or by QEMU's own streams |
//! | `streams` | QEMU's connections become streams of the session |
//! | `driver` | what a migration asks of the guest, for each mode: direct, streams, handover |
//! | `worker` | the one thread that deals with the guest: its memory and its QEMU |
//! | `domain` | its part for libvirt's domains |
//! | `drain` | rule 6: protection is applied only while block I/O is drained |
//! | `pinned` | rule 6: for which disks |
//! | `links` | what the links of [`crate::session`] are to a migration |
//! | `work` | what the channels ask the core |
//! | `rejoin` | the first control connection is opened again while links are not known yet |
//! | `board`, `progress` | what is seen of it |

mod domain;
mod drain;
mod driver;
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
mod tests;
mod work;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linerate_api::{MigrateRequest, MigrationDetail, MigrationId, MigrationState, MigrationSummary};
use linerate_core::source::{Event, Source};
use linerate_core::{ChannelId, Code, Fault, LinkId, PathId, SessionId, Side, Step, Time};
use linerate_guest::run_state::RunState;
use linerate_guest::shared::Marks;
use linerate_net::channel::ChannelError;
use linerate_net::control::ControlPath;
use linerate_net::pacer::Pacer;

use crate::clock::Clock;
use crate::event_log::EventLog;
use crate::faults::fault;
use crate::ram::Ram;
use crate::session::links::{Dialler, Losses};
use crate::session::paths::Door;
use crate::session::stream_transport::StreamTransport;
use link_table::LinkTable;

pub use sessions::Sessions;
pub use steps::start;

/// What the loop of a migration receives.
pub(crate) enum Input {
    Event(Event),
    /// For the core, of a moment that has passed.
    EventAt(Time, Event),
    /// QEMU holds the guest: in which run state it stood before, or none if it ran.
    Stood(Option<RunState>),
    /// A control connection is up.
    Path(PathId, Option<LinkId>, ControlPath),
    /// A link is closed: its control connection goes with it.
    LinkLost(LinkId),
    /// Whether the guest that has left stands here as it was left.
    Stands(bool),
    /// The core may have something to do: a channel changed it.
    Wake,
    /// The streams have notes for the other side's.
    StreamsSpeak,
    /// A channel of the streams is of no more use.
    ChannelLost(ChannelId, ChannelError),
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
    /// Told when there may be work for a channel that found none.
    work: Condvar,
    inbox: Sender<Input>,
    door: Door,
    losses: Losses,
    pacer: Option<Arc<Pacer>>,
    /// Who watches.
    pub hub: EventLog,
    /// How the guest's RAM goes, and why.
    choice: mode::Choice,
    /// The hypervisor's streams, if it goes in them; given back when it is over.
    carriage: Mutex<Option<Arc<StreamTransport>>>,
    /// The source's RAM; given back when it is over.
    ram: Mutex<Vec<Arc<Ram>>>,
    board: LinkTable,
    cancelling: AtomicBool,
    /// Copied disks.
    disks: u32,
    /// What their connections have carried.
    disk_bytes: Arc<AtomicU64>,
    /// Marks in the images that are not copied, by which the destination knows them; given back when it is over.
    marks: Mutex<Marks>,
    /// The guest is libvirt's.
    domain: Option<domain::OutgoingDomain>,
}

impl Outgoing {
    fn machine(&self) -> MutexGuard<'_, Source> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an event into the inbox. After the end nobody reads it, which is as well.
    fn tell(&self, event: Event) {
        let _ = self.inbox.send(Input::Event(event));
    }

    /// Gives the core an event now, from a thread that must know that it has it.
    fn tell_machine(&self, event: Event) {
        self.machine().handle(self.clock.now(), event);
        let _ = self.inbox.send(Input::Wake);
        self.work.notify_all();
    }

    /// Whether the files that were proved to be on shared storage are still those that the guest's QEMU has open.
    fn recheck_marks(&self, pid: i32) -> Result<(), Fault> {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        marks.recheck(pid).map_err(|error| fault(Code::GuestDiffers, Step::Blackout, Side::Source, &error))
    }

    fn carriage(&self) -> Option<Arc<StreamTransport>> {
        self.carriage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ram(&self) -> Vec<Arc<Ram>> {
        self.ram.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives back what a migration that is over need not hold.
    fn release(&self) {
        let began = std::time::Instant::now();
        self.ram.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.carriage.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.marks.lock().unwrap_or_else(PoisonError::into_inner) = Marks::default();
        self.board.close();
        self.door.close();
        tracing::debug!(took = ?began.elapsed(), "memory given back");
    }

    /// When it was asked for, milliseconds since 1970.
    pub fn started_unix_ms(&self) -> u64 {
        self.started_unix_ms
    }

    /// Asks for its end; before commit the guest stays here.
    pub fn cancel(&self) {
        self.cancelling.store(true, Ordering::Relaxed);
        self.tell(Event::Cancel);
    }

    /// The operator decides a session in doubt.
    pub fn resolve(&self, resume_here: bool) {
        self.tell(Event::Resolve(resume_here));
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.hub.finished().is_some()
    }

    /// Whether it waits for the destination's word or the operator's.
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

    /// A line about it.
    pub fn summary(&self) -> MigrationSummary {
        self.detail().summary
    }

    fn state(&self) -> MigrationState {
        if self.is_in_doubt() {
            MigrationState::InDoubt
        } else if self.cancelling.load(Ordering::Relaxed) {
            MigrationState::Cancelling
        } else {
            MigrationState::Running
        }
    }
}

/// Has the core ask for the fences of a link's channels. The streams know each of them for `gone` before the core's
/// lock is let go. The answer to a fence may come at once, and is of no use to streams that hold the channel for
/// living.
fn lose_link(machine: &Mutex<Source>, now: Time, link: LinkId, mut gone: impl FnMut(ChannelId)) {
    let mut machine = machine.lock().unwrap_or_else(PoisonError::into_inner);
    machine.scheduler().channels_of(link).into_iter().for_each(&mut gone);
    machine.link_lost(now, link);
}
