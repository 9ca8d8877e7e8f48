//! The one thread that deals with the incoming QEMU.

mod ending;
mod prepare;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_core::destination::Event;
use linerate_core::extent::join_nearest;
use linerate_core::{Code, Extent, Fault, Mode, RegionInfo, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::migrate::{DestinationQemu, MigrateError};
use linerate_guest::registry::GuestRecord;
use linerate_memory::RamBlock;
use linerate_wire::message::TOUCHED_MAX;

use super::admit::Admitted;
use super::domain::Domain;
use super::{Incoming, Sessions, storage};
use crate::device_state::Writer;
use crate::disks;
use crate::faults::fault;
use crate::journal::Waiting;
use crate::ram::Ram;
use crate::session::identity::token_text;

/// A QMP command that does not wait for anything.
const QMP_WAIT: Duration = Duration::from_secs(10);
const START_WAIT: Duration = Duration::from_secs(60);
/// A QEMU loads its state.
const LOAD_WAIT: Duration = Duration::from_secs(60);
/// An orphaned session ends its guest and gives its place up.
const ROOM_WAIT: Duration = Duration::from_secs(30);

/// What the worker is asked to do; the core's actions that deal with the guest.
pub(super) enum Job {
    Admit {
        guest: String,
        description: String,
        mode: Mode,
    },
    Prepare,
    Seal {
        digest: bool,
    },
    LoadDeviceState(Vec<u8>),
    FinishDeviceState,
    CheckDisks(String),
    Run {
        /// The guest ran at the source until it was stopped.
        ran: bool,
        cpu_before: Duration,
    },
    /// Of a domain: libvirt runs it.
    Release,
    TearDown,
}

impl Job {
    /// For the log. Not by `Debug`: a piece of device state in digits costs more than loading it, in the blackout.
    fn name(&self) -> &'static str {
        match self {
            Job::Admit { .. } => "admit",
            Job::Prepare => "prepare",
            Job::Seal { .. } => "seal",
            Job::LoadDeviceState(_) => "load device state",
            Job::FinishDeviceState => "finish device state",
            Job::CheckDisks(_) => "check disks",
            Job::Run { .. } => "run",
            Job::Release => "release",
            Job::TearDown => "tear down",
        }
    }
}

pub(super) struct Worker {
    jobs: Sender<Job>,
    abandon: Arc<AtomicBool>,
    waiting: Arc<Mutex<Waiting>>,
    thread: JoinHandle<()>,
}

impl Worker {
    pub fn start(sessions: Arc<Sessions>, shared: Arc<Incoming>) -> std::io::Result<Worker> {
        let (jobs, inbox) = channel();
        let abandon = Arc::new(AtomicBool::new(false));
        let token = token_text(&shared.identity.token);
        let waiting = Arc::new(Mutex::new(Waiting { token, ..Waiting::default() }));
        let state = State {
            sessions,
            shared,
            mode: None,
            admitted: None,
            domain: None,
            ram: Vec::new(),
            guest: None,
            writer: None,
            abandon: abandon.clone(),
            waiting: waiting.clone(),
        };
        let thread = std::thread::Builder::new().name("guest".into()).spawn(move || state.run(&inbox))?;
        Ok(Worker { jobs, abandon, waiting, thread })
    }

    /// Queues a job. [`Job::TearDown`] ends the waits of the job in progress.
    pub fn submit(&self, job: Job) {
        if matches!(job, Job::TearDown) {
            self.abandon.store(true, Ordering::SeqCst);
        }
        let _ = self.jobs.send(job);
    }

    /// The incoming QEMU, for the journal.
    pub fn waiting(&self) -> Waiting {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For how long the guest's virtual CPUs have run when it is committed.
    pub fn note_run_time(&self, cpu_run_ns: Option<u64>) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).cpu_run_ns = cpu_run_ns;
    }

    #[cfg(test)]
    pub fn set_waiting(&self, waiting: Waiting) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = waiting;
    }

    /// Waits for the thread's end, after the last job.
    pub fn finish(self) {
        drop(self.jobs);
        if self.thread.join().is_err() {
            tracing::error!("the guest's worker thread panicked");
        }
    }
}

/// A QEMU that was started and waits.
struct Started {
    pid: i32,
    found: GuestDescription,
    /// Where it is to listen.
    socket: PathBuf,
}

pub(super) struct State {
    pub sessions: Arc<Sessions>,
    pub shared: Arc<Incoming>,
    /// How the guest moves, once it was admitted.
    mode: Option<Mode>,
    admitted: Option<Admitted>,
    /// A guest that is libvirt's; then nothing was admitted that is ours.
    pub domain: Option<Domain>,
    pub ram: Vec<Arc<Ram>>,
    guest: Option<(GuestRecord, DestinationQemu)>,
    writer: Option<Writer>,
    abandon: Arc<AtomicBool>,
    pub waiting: Arc<Mutex<Waiting>>,
}

impl State {
    fn run(mut self, inbox: &Receiver<Job>) {
        while let Some(job) = self.next_job(inbox) {
            if self.abandon.load(Ordering::SeqCst) && !matches!(job, Job::TearDown) {
                continue;
            }
            let began = Instant::now();
            let name = job.name();
            let done = self.work(job);
            tracing::debug!(job = name, took = ?began.elapsed(), ok = done.is_ok(), "guest job");
            if let Err(fault) = done {
                self.shared.tell(Event::Failed(self.shared.ram_folder.explain(fault)));
            }
        }
    }

    fn work(&mut self, job: Job) -> Result<(), Fault> {
        match job {
            Job::Admit { guest, description, mode } => self.admit(&guest, &description, mode),
            Job::Prepare => self.prepare(),
            Job::Seal { digest } => self.seal(digest),
            Job::LoadDeviceState(bytes) => self.load(&bytes),
            Job::FinishDeviceState => self.finish_device_state(),
            Job::CheckDisks(disks) => self.check_disks(&disks),
            Job::Run { ran, cpu_before } => {
                self.run_guest(ran, cpu_before);
                Ok(())
            }
            Job::Release => self.release(),
            Job::TearDown if self.domain.is_some() => self.leave_domain(),
            Job::TearDown => self.tear_down(),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// QEMU must have opened the disks that the guest uses at the source.
    fn check_graph(&mut self, deadline: Instant) -> Result<(), Fault> {
        let (Some(admitted), Some((_, qemu))) = (&self.admitted, &mut self.guest) else {
            return Err(internal("no hypervisor waits"));
        };
        let Some(source) = &admitted.description.graph else { return Ok(()) };
        let paths = &self.sessions.config.paths;
        disks::check_same(qemu.qmp(), &admitted.description, source, paths, Step::Prepare, deadline)
    }

    fn qemu(&mut self) -> Result<&mut DestinationQemu, Fault> {
        let guest = self.guest.as_mut().ok_or_else(|| internal("no hypervisor waits"))?;
        Ok(&mut guest.1)
    }

    /// What the waiting QEMU itself says that it will leave out of its stream, which must be the RAM that was made for it and is
    /// being filled; and what it touched of it while it started.
    pub fn look_at_ram(
        &self,
        pid: i32,
        found: &GuestDescription,
    ) -> Result<(Vec<RegionInfo>, Vec<Extent>), Fault> {
        let failed =
            |error: &(dyn std::error::Error + 'static)| here(Code::MemoryFailed, Step::Prepare, error);
        let (mut regions, mut touched) = (Vec::new(), Vec::new());
        for (id, block) in (0..).zip(found.regions()) {
            let path = std::path::PathBuf::from(block.path.clone().unwrap_or_default());
            let block = RamBlock::find(pid, &block.id, &path).map_err(|error| failed(&error))?;
            let made = self.ram.get(usize::from(id)).map(|ram| ram.mapping().shows(&block));
            if !made.transpose().map_err(|error| failed(&error))?.unwrap_or(false) {
                let detail = format!("RAM block {} is not in the file made for it", block.name());
                return Err(Fault::new(Code::GuestDiffers, Step::Prepare, Side::Destination, detail));
            }
            let runs = block.touched().map_err(|error| failed(&error))?;
            touched.extend(runs.into_iter().map(|run| Extent { region: id, run }));
            regions.push(RegionInfo { id, name: block.name().to_owned(), size: block.size() });
        }
        Ok((regions, join_nearest(touched, TOUCHED_MAX)))
    }

    /// Rule 5: when this has returned, no write is applied any more.
    fn seal(&mut self, digest: bool) -> Result<(), Fault> {
        if let Some(regions) = self.shared.regions.get() {
            regions.seal();
        }
        let digest = match digest {
            true => Some(
                crate::digest::of(&self.ram)
                    .map_err(|error| here(Code::MemoryFailed, Step::Blackout, &error))?,
            ),
            false => None,
        };
        if let Some(domain) = &mut self.domain {
            domain.sealed = true;
            domain.arriving = Some(self.sessions.arrivals.begin());
        }
        self.shared.tell(Event::Sealed(digest));
        Ok(())
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        let Some(writer) = &mut self.writer else {
            return Err(internal("no hypervisor waits for its state"));
        };
        writer.write(bytes).map_err(|error| here(Code::HypervisorFailed, Step::Blackout, &error))
    }

    fn finish_device_state(&mut self) -> Result<(), Fault> {
        let (Some(writer), Some((_, qemu))) = (&self.writer, &mut self.guest) else {
            return Err(internal("no hypervisor waits for its state"));
        };
        writer.finish().map_err(|error| here(Code::HypervisorFailed, Step::Blackout, &error))?;
        let abandon = self.abandon.clone();
        qemu.wait_loaded(Instant::now() + LOAD_WAIT, &|| abandon.load(Ordering::SeqCst))
            .map_err(|error| here(Code::HypervisorFailed, Step::Blackout, &error))?;
        self.shared.tell(Event::DeviceStateLoaded);
        // While the word goes to the source and back.
        qemu.save_ram_again(Instant::now() + QMP_WAIT);
        Ok(())
    }

    /// The disks that the source's guest uses against those that the waiting QEMU has opened.
    fn check_disks(&mut self, told: &str) -> Result<(), Fault> {
        let (Some(admitted), Some((_, qemu))) = (&self.admitted, &mut self.guest) else {
            return Err(internal("no hypervisor waits"));
        };
        let paths = &self.sessions.config.paths;
        disks::check_told(qemu.qmp(), &admitted.description, told, paths, Instant::now() + QMP_WAIT)?;
        let pid = self.guest.as_ref().map(|(record, _)| record.process.pid);
        if let Some(pid) = pid {
            storage::recheck(&admitted.proved, pid, Step::Blackout)?;
        }
        self.shared.tell(Event::DisksChecked);
        Ok(())
    }
}

pub(super) fn here(code: Code, step: Step, error: &(dyn std::error::Error + 'static)) -> Fault {
    fault(code, step, Side::Destination, error)
}

/// An image that is another's is a matter of this host and not of its QEMU.
fn code_of(error: &MigrateError) -> Code {
    match error {
        MigrateError::ImageInUse { .. } | MigrateError::Image { .. } => Code::ResourceMissing,
        _ => Code::HypervisorFailed,
    }
}

fn internal(detail: &str) -> Fault {
    Fault::new(Code::Internal, Step::Prepare, Side::Destination, detail)
}
