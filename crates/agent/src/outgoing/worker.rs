//! The one thread that deals with the guest: its memory and its QEMU. Jobs come in the order in which the brain wants them
//! and answer by events. A roll-back does not wait for a job under way: it raises a flag that every wait looks at.

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
use linerate_core::{Code, Extent, Fault, RegionId, Run, Side, Step, StreamSettings, Time};
use linerate_guest::description::GuestDescription;
use linerate_guest::migrate::{MigrateError, SourceQemu};
use linerate_guest::registry::{GuestRecord, Registry};
use linerate_memory::{RamBlock, TrackError, Tracker};

use super::drain::{self, Guarded, Still, while_still};
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

/// What the worker is asked to do; the brain's actions that deal with the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Attach,
    Protect,
    Scan {
        last: bool,
        also: Vec<Extent>,
    },
    SwitchOver,
    BeginStreams(StreamSettings),
    Digest,
    WriteDeviceState,
    /// Of a domain: libvirt's migration has come.
    AwaitStream,
    /// Of a domain: its stream may go.
    LetThrough,
    Throttle(u8),
    /// Whether the guest that has left stands here as it was left.
    CheckStands,
    RollBack,
    CleanUp,
}

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
    jobs: Sender<Job>,
    abandon: Arc<AtomicBool>,
    /// QEMU's own word on the blackout, once it has one.
    pub qemu_downtime_ms: Arc<Mutex<Option<u64>>>,
    thread: JoinHandle<()>,
}

impl Worker {
    /// Starts the thread.
    pub fn start(shared: Arc<Outgoing>, guest: Guest) -> std::io::Result<Worker> {
        let (jobs, inbox) = channel();
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
        let thread = std::thread::Builder::new().name("guest".into()).spawn(move || state.run(&inbox))?;
        Ok(Worker { jobs, abandon, qemu_downtime_ms, thread })
    }

    /// One that does nothing, and whoever looks at what it is asked.
    #[cfg(test)]
    pub fn for_test() -> (Worker, Receiver<Job>) {
        let (jobs, inbox) = channel();
        let thread = std::thread::spawn(|| {});
        (Worker { jobs, abandon: Arc::default(), qemu_downtime_ms: Arc::default(), thread }, inbox)
    }

    /// Queues a job. A roll-back ends the waits of the job under way.
    pub fn ask(&self, job: Job) {
        if job == Job::RollBack {
            self.abandon.store(true, Ordering::SeqCst);
        }
        let _ = self.jobs.send(job);
    }

    /// Waits for the thread's end, after the last job.
    pub fn finish(self) {
        drop(self.jobs);
        if self.thread.join().is_err() {
            tracing::error!("the guest's worker thread panicked");
        }
    }
}

pub(super) struct State {
    pub shared: Arc<Outgoing>,
    pub guest: Guest,
    tracker: Option<Guarded>,
    /// Rule 6: some disk reads into pinned pages, so protection is applied only while block I/O is drained.
    drained: bool,
    /// Rule 7: the guest may give memory back, so holes are looked for in the end.
    may_discard: bool,
    /// All that was ever found populated, where holes have to be looked for.
    seen: Vec<Extent>,
    stream: Option<device_state::Reader>,
    /// Take the connections of QEMU's own streams, and of disks that go along.
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
    fn run(mut self, inbox: &Receiver<Job>) {
        while let Some(job) = self.next_job(inbox) {
            if self.abandon.load(Ordering::SeqCst) && job != Job::RollBack {
                continue;
            }
            let began = Instant::now();
            let done = match &job {
                Job::Attach => self.attach(),
                Job::Protect => self.protect(),
                Job::Scan { last, also } => self.scan(*last, also),
                Job::SwitchOver if self.shared.domain.is_some() => self.stop_domain(),
                Job::SwitchOver => self.switch_over(),
                Job::BeginStreams(settings) => self.begin_streams(*settings),
                Job::Digest => self.digest(),
                Job::WriteDeviceState => self.write_device_state(),
                Job::CheckStands => self.check_stands(),
                Job::AwaitStream => self.await_stream(),
                Job::LetThrough => self.let_through(),
                Job::Throttle(percent) => {
                    self.throttle_percent = *percent;
                    Ok(())
                }
                Job::RollBack if self.shared.domain.is_some() => self.roll_back_domain(),
                Job::RollBack => self.roll_back(),
                Job::CleanUp if self.shared.domain.is_some() => self.forget_domain(),
                Job::CleanUp => self.clean_up(),
            };
            tracing::debug!(?job, took = ?began.elapsed(), ok = done.is_ok(), "guest job");
            if let Err(fault) = done {
                let fault = storage::unless_gone(fault, &self.guest.record);
                self.shared.tell(Event::Failed(fault));
            }
        }
    }

    pub fn deadline() -> Instant {
        Instant::now() + QMP_WAIT
    }

    fn attach(&mut self) -> Result<(), Fault> {
        let pid = self.guest.description.process.pid;
        let avoid = &self.guest.description.process.vcpu_threads;
        let (tracker, report) = Tracker::attach(pid, &self.guest.blocks, avoid)
            .map_err(|error| fault(Code::TrackingFailed, Step::Track, Side::Source, &error))?;
        tracing::debug!(pid, thread = report.thread, stopped = ?report.stopped, "attached");
        self.tracker = Some(Guarded::new(tracker));
        if self.shared.domain.is_none() {
            self.guest.qemu.prepare(Self::deadline()).map_err(|error| qemu_fault(Step::Track, &error))?;
        }
        self.shared.tell(Event::Attached);
        Ok(())
    }

    pub fn is_attached(&self) -> bool {
        self.tracker.is_some()
    }

    fn tracker(&self) -> Result<&Guarded, Fault> {
        self.tracker
            .as_ref()
            .ok_or_else(|| Fault::new(Code::Internal, Step::Track, Side::Source, "memory is not attached to"))
    }

    fn protect(&mut self) -> Result<(), Fault> {
        let paused = while_still(self, |state, still| {
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

    fn scan(&mut self, last: bool, also: &[Extent]) -> Result<(), Fault> {
        let step = if last { Step::Blackout } else { Step::Copy };
        self.check_domain(step)?;
        let began = Instant::now();
        let mut found = Vec::new();
        let mut look = |state: &mut Self, still: &Still| {
            let tracker = state.tracker()?;
            found.extend(tracker.scan(still).map_err(|error| track_fault(step, &error))?);
            if last { tracker.check_mapped().map_err(|error| track_fault(step, &error)) } else { Ok(()) }
        };
        let paused = if last {
            look(self, &drain::held())?;
            Duration::ZERO
        } else {
            while_still(self, look)?
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
    fn switch_over(&mut self) -> Result<(), Fault> {
        self.throttle_percent = 0;
        let failed =
            |error: std::io::Error| fault(Code::HypervisorFailed, Step::Blackout, Side::Source, &error);
        let _ = std::fs::remove_file(&self.guest.state_socket);
        let listener = UnixListener::bind(&self.guest.state_socket).map_err(failed)?;
        let (shared, abandon) = (self.shared.clone(), self.abandon.clone());
        let stream = device_state::Reader::start(listener, move |bytes| {
            shared.tell(Event::DeviceState(bytes));
            while shared.brain().holds_stream_back() && !abandon.load(Ordering::SeqCst) {
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
        self.shared.tell(Event::Holding { ran, disks: disks::at_first(&self.guest.description)? });
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

    fn digest(&mut self) -> Result<(), Fault> {
        let digest = crate::digest::of(&self.guest.ram)
            .map_err(|error| fault(Code::MemoryFailed, Step::Blackout, Side::Source, &error))?;
        self.shared.tell(Event::Digested(digest));
        Ok(())
    }

    fn write_device_state(&mut self) -> Result<(), Fault> {
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
        let step = self.shared.brain().step();
        self.guest.qemu.pause(Self::deadline()).map_err(|error| qemu_fault(step, &error))
    }

    fn go_on(&mut self) -> Result<(), Fault> {
        let step = self.shared.brain().step();
        self.guest.qemu.resume(Self::deadline()).map_err(|error| qemu_fault(step, &error))
    }

    fn has_stood(&mut self) -> Result<bool, Fault> {
        let step = self.shared.brain().step();
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
