//! The one thread that deals with the guest: its memory and its QEMU. Orders come as the core wants them done, and
//! answer by events. A roll-back does not wait for a task in progress: it raises a flag that every wait looks at. How
//! a task is carried out is the driver's.

mod ending;
mod streams;
mod throttle;

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_core::source::Event;
use linerate_core::{Code, Extent, Fault, RegionId, Run, Side, Step, Time};
use linerate_guest::description::GuestDescription;
use linerate_guest::migrate::{MigrateError, SourceQemu};
use linerate_guest::registry::{GuestRecord, Registry};
use linerate_memory::{RamBlock, TrackError, Tracker};

use super::drain::{self, DrainingTracker, IoDrained, with_io_drained};
use super::driver::{self, Done, Driver};
use super::pinned;
use super::streams::Accepting;
use super::{Input, Outgoing, storage};
use crate::device_state;
use crate::disks;
use crate::faults::{chain, fault};
use crate::ram::Ram;

/// A QMP command that does not wait for anything.
const QMP_WAIT: Duration = Duration::from_secs(10);
/// QEMU sets up, stops the guest and holds.
pub(super) const HOLD_WAIT: Duration = Duration::from_secs(30);
/// Between two looks at whether the destination has taken what came of QEMU's stream while the guest runs.
const LIVE_PAUSE: Duration = Duration::from_millis(1);

/// What the worker is asked to do.
pub(super) struct Task {
    /// For the log.
    pub name: &'static str,
    rolls_back: bool,
    run: Call,
}

type Call = Box<dyn FnOnce(&mut dyn Driver) -> Done + Send>;

/// The guest as the worker holds it.
pub(super) struct Guest {
    pub description: GuestDescription,
    pub record: GuestRecord,
    pub registry: Registry,
    pub qemu: SourceQemu,
    pub blocks: Vec<RamBlock>,
    pub ram: Vec<Arc<Ram>>,
    /// Where QEMU's device state is taken from.
    pub state_socket: PathBuf,
    /// Where its connections to the destination's images are.
    pub disks_socket: PathBuf,
}

pub(super) struct Worker {
    tasks: Sender<Task>,
    abandon: Arc<AtomicBool>,
    /// QEMU's own word on the blackout, once it has one.
    pub qemu_downtime_ms: Arc<Mutex<Option<u64>>>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread.
    pub fn start(shared: Arc<Outgoing>, guest: Guest) -> std::io::Result<Worker> {
        let (tasks, inbox) = channel();
        let abandon = Arc::new(AtomicBool::new(false));
        let qemu_downtime_ms = Arc::new(Mutex::new(None));
        let state = State {
            shared,
            drained: pinned::reads_into_pinned_pages(&guest.description),
            may_discard: guest.description.traits.may_discard,
            guest,
            tracker: None,
            seen: Vec::new(),
            stream: None,
            accepting: Vec::new(),
            throttle_percent: 0,
            state_is_written: false,
            is_unchanged: false,
            abandon: abandon.clone(),
            qemu_downtime_ms: qemu_downtime_ms.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("guest".into())
            .spawn(move || work(driver::of(state), &inbox))?;
        Ok(Worker { tasks, abandon, qemu_downtime_ms, thread })
    }

    /// One that does nothing, and whoever looks at what it is asked.
    #[cfg(test)]
    pub fn for_test() -> (Worker, Receiver<Task>) {
        let (tasks, inbox) = channel();
        let thread = std::thread::spawn(|| {});
        (Worker { tasks, abandon: Arc::default(), qemu_downtime_ms: Arc::default(), thread }, inbox)
    }

    pub fn submit(&self, name: &'static str, run: impl FnOnce(&mut dyn Driver) -> Done + Send + 'static) {
        let _ = self.tasks.send(Task { name, rolls_back: false, run: Box::new(run) });
    }

    /// Queues the roll-back, which ends the waits of the task in progress. Nothing else is done any more.
    pub fn roll_back(&self) {
        self.abandon.store(true, Ordering::SeqCst);
        let run: Call = Box::new(|guest| guest.roll_back());
        let _ = self.tasks.send(Task { name: "roll back", rolls_back: true, run });
    }

    /// Waits for the thread's end, after the last task.
    pub fn finish(self) {
        drop(self.tasks);
        if self.thread.join().is_err() {
            tracing::error!("the guest's worker thread panicked");
        }
    }
}

/// The thread.
fn work(mut driver: Box<dyn Driver>, tasks: &Receiver<Task>) {
    while let Some(Task { name, rolls_back, run }) = driver.next(tasks) {
        if driver.state().abandon.load(Ordering::SeqCst) && !rolls_back {
            continue;
        }
        let began = Instant::now();
        let done = run(&mut *driver);
        tracing::debug!(task = name, took = ?began.elapsed(), ok = done.is_ok(), "guest task");
        if let Err(fault) = done {
            let state = driver.state();
            let fault = storage::unless_gone(fault, &state.guest.record);
            state.shared.tell(Event::Failed(fault));
        }
    }
}

pub(super) struct State {
    pub shared: Arc<Outgoing>,
    pub guest: Guest,
    tracker: Option<DrainingTracker>,
    /// Rule 6: some disk reads into pinned pages, so protection is applied only while block I/O is drained.
    drained: bool,
    /// Rule 7: the guest may give memory back, so holes are looked for in the end.
    may_discard: bool,
    /// All that was ever found populated, where holes have to be looked for.
    seen: Vec<Extent>,
    stream: Option<device_state::Reader>,
    /// Take the connections of QEMU's own streams, and of copied disks.
    pub accepting: Vec<Accepting>,
    /// Part of the time, in percent, that the guest is stopped to slow it down.
    pub throttle_percent: u8,
    /// QEMU has written its device state.
    state_is_written: bool,
    /// [`State::check_unchanged`] has passed.
    is_unchanged: bool,
    pub abandon: Arc<AtomicBool>,
    qemu_downtime_ms: Arc<Mutex<Option<u64>>>,
}

impl State {
    pub fn deadline() -> Instant {
        Instant::now() + QMP_WAIT
    }

    pub fn attach(&mut self) -> Result<(), Fault> {
        let pid = self.guest.description.process.pid;
        let avoid = &self.guest.description.process.vcpu_threads;
        let (tracker, report) = Tracker::attach(pid, &self.guest.blocks, avoid)
            .map_err(|error| fault(Code::TrackingFailed, Step::Track, Side::Source, &error))?;
        tracing::debug!(pid, thread = report.thread, stopped = ?report.stopped, "attached");
        self.tracker = Some(DrainingTracker::new(tracker));
        Ok(())
    }

    /// Sets QEMU for a stream without RAM.
    pub fn prepare_qemu(&mut self) -> Result<(), Fault> {
        self.guest.qemu.prepare(Self::deadline()).map_err(|error| qemu_fault(Step::Track, &error))
    }

    pub fn is_attached(&self) -> bool {
        self.tracker.is_some()
    }

    fn tracker(&self) -> Result<&DrainingTracker, Fault> {
        self.tracker
            .as_ref()
            .ok_or_else(|| Fault::new(Code::Internal, Step::Track, Side::Source, "memory is not attached to"))
    }

    pub fn protect(&mut self) -> Result<(), Fault> {
        let paused = with_io_drained(self, |state, still| {
            let took = state.tracker()?.protect(still).map_err(|error| track_fault(Step::Track, &error))?;
            tracing::debug!(?took, "protected");
            Ok(())
        })?;
        let began = Instant::now();
        let mut populated = Vec::new();
        for (region, (ram, block)) in self.guest.ram.iter().zip(&self.guest.blocks).enumerate() {
            let runs = block.populated(ram.mapping());
            let runs = runs.map_err(|error| fault(Code::MemoryFailed, Step::Track, Side::Source, &error))?;
            populated.extend(extents(region, runs));
        }
        tracing::debug!(took = ?began.elapsed(), runs = populated.len(), "found what is populated");
        self.note_seen(&populated);
        self.shared.tell(Event::Protected { populated, paused });
        Ok(())
    }

    pub fn scan(&mut self, last: bool, also: &[Extent]) -> Result<(), Fault> {
        let step = if last { Step::Blackout } else { Step::Copy };
        let began = Instant::now();
        let mut found = Vec::new();
        let mut look = |state: &mut Self, still: &IoDrained| {
            let tracker = state.tracker()?;
            found.extend(tracker.scan(still).map_err(|error| track_fault(step, &error))?);
            if last { tracker.check_mapped().map_err(|error| track_fault(step, &error)) } else { Ok(()) }
        };
        let paused = if last {
            look(self, &drain::held())?;
            Duration::ZERO
        } else {
            with_io_drained(self, look)?
        };
        let mut dirty: Vec<Extent> =
            found.into_iter().flat_map(|(block, run)| extents(block, vec![run])).collect();
        self.note_seen(&dirty);
        self.note_seen(also);
        if last {
            dirty.extend(self.new_holes()?);
        }
        self.shared.tell(Event::Scanned { dirty, took: began.elapsed(), paused });
        // While the last bytes go over, and the destination loads.
        if self.state_is_written { self.check_unchanged() } else { Ok(()) }
    }

    fn note_seen(&mut self, extents: &[Extent]) {
        if self.may_discard {
            self.seen.extend_from_slice(extents);
        }
    }

    /// What was sent once and has been given back since: it goes again, as zero runs.
    fn new_holes(&mut self) -> Result<Vec<Extent>, Fault> {
        let seen = linerate_core::extent::normalise(std::mem::take(&mut self.seen));
        let mut holes = Vec::new();
        for (region, ram) in self.guest.ram.iter().enumerate() {
            let runs: Vec<Run> = seen
                .iter()
                .filter(|extent| usize::from(extent.region) == region)
                .map(|extent| extent.run)
                .collect();
            let found = ram.mapping().holes_among(&runs);
            let found =
                found.map_err(|error| fault(Code::MemoryFailed, Step::Blackout, Side::Source, &error))?;
            holes.extend(extents(region, found));
        }
        Ok(holes)
    }

    /// QEMU's set-up happens while the guest runs; the listener must be there before.
    pub fn switch_over(&mut self) -> Result<(), Fault> {
        self.throttle_percent = 0;
        let failed =
            |error: std::io::Error| fault(Code::HypervisorFailed, Step::Blackout, Side::Source, &error);
        let _ = std::fs::remove_file(&self.guest.state_socket);
        let listener = UnixListener::bind(&self.guest.state_socket).map_err(failed)?;
        let (shared, abandon) = (self.shared.clone(), self.abandon.clone());
        let stream = device_state::Reader::start(listener, move |bytes| {
            shared.tell(Event::DeviceState(bytes));
            while shared.machine().pauses_stream() && !abandon.load(Ordering::SeqCst) {
                std::thread::sleep(LIVE_PAUSE);
            }
        });
        self.stream = Some(stream.map_err(failed)?);
        let qemu = &mut self.guest.qemu;
        qemu.begin(&self.guest.state_socket, Self::deadline())
            .map_err(|error| qemu_fault(Step::Blackout, &error))?;
        let abandon = self.abandon.clone();
        let held = qemu
            .wait_pre_switchover(Instant::now() + HOLD_WAIT, &|| abandon.load(Ordering::SeqCst))
            .map_err(|error| qemu_fault(Step::Blackout, &error))?;
        let stopped_at: Time = self.shared.clock.at(held.stopped_at);
        let _ = self.shared.inbox.send(Input::EventAt(stopped_at, Event::GuestStopped));
        self.holds(held.ran)
    }

    /// QEMU holds. The disks of the beginning go to the destination, which compares them with what it has opened. That
    /// the guest has no others now is found when nothing waits for it ([`Self::check_unchanged`]).
    pub fn holds(&mut self, ran: bool) -> Result<(), Fault> {
        let stood = self.guest.qemu.stands().cloned();
        let _ = self.shared.inbox.send(Input::Stood(stood));
        self.shared.tell(Event::PreSwitchover {
            was_running: ran,
            disks: disks::at_first(&self.guest.description)?,
        });
        Ok(())
    }

    /// The guest's disks, devices and files on shared storage are those of the beginning, for which the destination was
    /// prepared. Looked at when QEMU has written its state: until then another monitor can change them.
    fn check_unchanged(&mut self) -> Result<(), Fault> {
        if self.is_unchanged {
            return Ok(());
        }
        disks::check_unchanged(self.guest.qemu.qmp(), &self.guest.description, Self::deadline())?;
        self.guest.qemu.check_devices(Self::deadline()).map_err(|error| differs(&error))?;
        if self.shared.domain.is_none() {
            self.shared.recheck_marks(self.guest.record.process.pid)?;
        }
        self.is_unchanged = true;
        Ok(())
    }

    pub fn digest(&mut self) -> Result<(), Fault> {
        let digest = crate::digest::of(&self.guest.ram)
            .map_err(|error| fault(Code::MemoryFailed, Step::Blackout, Side::Source, &error))?;
        self.shared.tell(Event::Digested(digest));
        Ok(())
    }

    pub fn write_device_state(&mut self) -> Result<(), Fault> {
        self.have_qemu_write().map_err(|error| self.explained(&error))?;
        if let Some(stream) = self.stream.take() {
            stream
                .finish()
                .map_err(|error| fault(Code::HypervisorFailed, Step::Blackout, Side::Source, &error))?;
        }
        self.shared.tell(Event::DeviceStateDone);
        self.state_is_written = true;
        // While the destination loads. In direct mode the last scan comes first.
        if self.is_attached() { Ok(()) } else { self.check_unchanged() }
    }

    fn have_qemu_write(&mut self) -> Result<(), MigrateError> {
        let abandon = self.abandon.clone();
        let qemu = &mut self.guest.qemu;
        let completed =
            qemu.complete_mirrors(Instant::now() + HOLD_WAIT, &|| abandon.load(Ordering::SeqCst))?;
        completed.into_iter().for_each(|disks| self.shared.tell(Event::Disks(self.shared.mirrored(disks))));
        qemu.cont_switchover(Self::deadline())?;
        qemu.wait_completed(Instant::now() + HOLD_WAIT, &|| abandon.load(Ordering::SeqCst))
    }

    /// QEMU does not hand over a disk that a job of another monitor uses, and does not say why.
    fn explained(&mut self, error: &MigrateError) -> Fault {
        match self.check_unchanged() {
            Err(changed) if changed.code == Code::GuestDiffers => {
                Fault { detail: format!("{}; QEMU said: {}", changed.detail, chain(error)), ..changed }
            }
            _ => qemu_fault(Step::Blackout, error),
        }
    }

    pub fn detach(&mut self) {
        if let Some(tracker) = self.tracker.take()
            && let Err(error) = tracker.detach()
        {
            // Closing the descriptor has taken the protection off all the same.
            tracing::warn!(error = chain(&error), "write protection was taken off by closing");
        }
    }

    fn drop_stream(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.abandon();
        }
        self.accepting.clear();
        for socket in [&self.guest.state_socket, &self.guest.disks_socket] {
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl drain::Guest for State {
    type Error = Fault;

    fn must_stand(&self) -> bool {
        self.drained
    }

    fn stop(&mut self) -> Result<bool, Fault> {
        let step = self.shared.machine().step();
        self.guest.qemu.pause(Self::deadline()).map_err(|error| qemu_fault(step, &error))
    }

    fn go_on(&mut self) -> Result<(), Fault> {
        let step = self.shared.machine().step();
        self.guest.qemu.resume(Self::deadline()).map_err(|error| qemu_fault(step, &error))
    }

    fn has_stood(&mut self) -> Result<bool, Fault> {
        let step = self.shared.machine().step();
        self.guest.qemu.has_stood(Self::deadline()).map_err(|error| qemu_fault(step, &error))
    }
}

/// Runs of the region with this index, as extents.
fn extents(region: usize, runs: Vec<Run>) -> impl Iterator<Item = Extent> {
    // There are at most 64 regions (the protocol's cap).
    let region = RegionId::try_from(region).unwrap_or(RegionId::MAX);
    runs.into_iter().map(move |run| Extent { region, run })
}

/// What the source's QEMU has is not what the destination was started with.
fn differs(error: &MigrateError) -> Fault {
    let code = match error {
        MigrateError::Devices { .. } => Code::GuestDiffers,
        _ => Code::HypervisorFailed,
    };
    fault(code, Step::Blackout, Side::Source, error)
}

pub(super) fn qemu_fault(step: Step, error: &MigrateError) -> Fault {
    fault(Code::HypervisorFailed, step, Side::Source, error)
}

fn track_fault(step: Step, error: &TrackError) -> Fault {
    let code = match error {
        TrackError::TargetEnded { .. } => Code::GuestGone,
        _ => Code::TrackingFailed,
    };
    fault(code, step, Side::Source, error)
}
