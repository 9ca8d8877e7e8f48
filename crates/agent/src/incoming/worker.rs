//! The one thread that deals with the waiting guest.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_core::destination::Event;
use linerate_core::extent::join_nearest;
use linerate_core::recovery::{RUN_AGAIN_AFTER, RUN_FOR};
use linerate_core::{Code, Extent, Fault, RegionInfo, Side, Step, StreamSettings};
use linerate_guest::description::GuestDescription;
use linerate_guest::images;
use linerate_guest::migrate::{DestinationQemu, MigrateError, TakeOver};
use linerate_guest::process::{self, Launch, StopHow};
use linerate_guest::read;
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_guest::remains;
use linerate_memory::RamBlock;
use linerate_net::region::Region;
use linerate_net::table::RegionTable;
use linerate_wire::message::TOUCHED_MAX;

use super::Incoming;
use super::admit::{Admitted, admit, check_offer, endpoints};
use super::domain::Domain;
use super::storage;
use super::streams::{self, Services};
use crate::agent::Agent;
use crate::clock::cpu_time;
use crate::device_state::Writer;
use crate::disks;
use crate::faults::{chain, fault};
use crate::journal::Waiting;
use crate::outgoing::start::hex;
use crate::ram::Ram;

/// A QMP command that does not wait for anything.
const QMP_WAIT: Duration = Duration::from_secs(10);
/// A QEMU starts.
const START_WAIT: Duration = Duration::from_secs(60);
/// A QEMU loads its state.
const LOAD_WAIT: Duration = Duration::from_secs(60);
/// An orphaned session ends its guest and gives its place up.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// A session whose source is gone knows it by now: control connections are lost after 900 ms of silence.
const ORPHANED_WITHIN: Duration = Duration::from_secs(2);

/// What the worker is asked to do; the brain's actions that deal with the guest.
pub(super) enum Job {
    Admit {
        guest: String,
        description: String,
        regions: Vec<RegionInfo>,
    },
    Prepare,
    PrepareStreams {
        channels: u16,
    },
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
            Job::PrepareStreams { .. } => "prepare for streams and take them",
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

/// The worker's handle.
pub(super) struct Worker {
    jobs: Sender<Job>,
    abandon: Arc<AtomicBool>,
    waiting: Arc<Mutex<Waiting>>,
    thread: JoinHandle<()>,
}

impl Worker {
    pub fn start(agent: Arc<Agent>, shared: Arc<Incoming>) -> std::io::Result<Worker> {
        let (jobs, inbox) = channel();
        let abandon = Arc::new(AtomicBool::new(false));
        let token = hex(&shared.token.0);
        let waiting = Arc::new(Mutex::new(Waiting { token, ..Waiting::default() }));
        let state = State {
            agent,
            shared,
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

    /// Queues a job. A tear-down ends the waits of the job under way.
    pub fn ask(&self, job: Job) {
        if matches!(job, Job::TearDown) {
            self.abandon.store(true, Ordering::SeqCst);
        }
        let _ = self.jobs.send(job);
    }

    /// The waiting guest, for the journal.
    pub fn waiting(&self) -> Waiting {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
    pub agent: Arc<Agent>,
    pub shared: Arc<Incoming>,
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
            Job::Admit { guest, description, regions } => self.admit(&guest, &description, regions),
            Job::Prepare if self.domain.is_some() => self.prepare_domain(),
            Job::Prepare => self.prepare(),
            Job::PrepareStreams { channels } => self.prepare_streams(channels),
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

    fn admit(&mut self, guest: &str, description: &str, regions: Vec<RegionInfo>) -> Result<(), Fault> {
        self.make_room(guest)?;
        let described = check_offer(description, guest, &regions)?;
        if described.domain {
            self.admit_domain(&described, &regions)?;
            self.shared.tell(Event::Admitted(endpoints(&self.agent)?));
            return Ok(());
        }
        let mut admitted = admit(&self.agent, guest, described, regions)?;
        self.ram = admitted.ram.drain(..).map(|mapping| Arc::new(Ram::new(mapping))).collect();
        let regions = admitted.regions.iter().zip(&self.ram);
        let regions = regions.map(|(info, ram)| (info.id, ram.clone() as Arc<dyn Region>));
        let _ = match self.ram.is_empty() {
            false => self.shared.regions.set(Arc::new(RegionTable::new(regions))).map_err(drop),
            true => self.shared.carriage.set(streams::carriage(&self.shared)).map_err(drop),
        };
        self.shared.ram_folder.set(admitted.twin.ram_files.first().map(|file| file.path.as_path()));
        self.admitted = Some(admitted);
        self.shared.tell(Event::Admitted(endpoints(&self.agent)?));
        Ok(())
    }

    /// An earlier session may hold this guest's place: one whose source is gone gives way (it was not committed, and the
    /// guest is being offered again), one that lives does not.
    fn make_room(&self, guest: &str) -> Result<(), Fault> {
        let end = Instant::now() + ROOM_WAIT;
        while self.agent.is_going(guest) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        while let Some(other) = self.agent.comes_already(guest, self.shared.session) {
            let orphaned = other.is_orphaned();
            if orphaned {
                tracing::info!(session = %other.session, guest, "its source is gone and the guest is offered again: giving it up");
                other.cancel();
            }
            // One that is complete waits for its source's word, which may be on its way.
            let patience = if orphaned || other.is_held() { end } else { end - ROOM_WAIT + ORPHANED_WITHIN };
            if Instant::now() >= patience {
                let detail = format!("migration {} brings {guest} here already", other.session);
                return Err(Fault::new(Code::GuestBusy, Step::Admit, Side::Destination, detail));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Starts the waiting QEMU.
    fn start_guest(&mut self, ram_is_made: bool, deadline: Instant) -> Result<Started, Fault> {
        let Some(admitted) = &self.admitted else { return Err(internal("nothing was admitted")) };
        let launch = Launch {
            name: &admitted.twin.name,
            qemu: &admitted.qemu,
            arguments: &admitted.twin.arguments,
            folder: &admitted.folder,
            qmp: &admitted.twin.qmp,
            pid_file: &admitted.twin.pid_file,
            ram_files: admitted.twin.ram_files.iter().map(|file| file.path.clone()).collect(),
            ram_is_made,
            origin: Origin::Arrived,
            session: Some(self.shared.session.to_string()),
        };
        let (record, mut qmp) = process::start(&self.agent.registry, &launch, deadline)
            .map_err(|error| here(Code::HypervisorFailed, Step::Prepare, &error))?;
        self.waiting().qemu = Some(record.clone());
        let pid = record.process.pid;
        let socket = admitted.folder.join("state.sock");
        let found = read::read(&mut qmp, pid, deadline);
        self.guest = Some((record, DestinationQemu::new(qmp)));
        let found = found.map_err(|error| here(Code::HypervisorFailed, Step::Prepare, &error))?;
        self.waiting().cpu_threads.clone_from(&found.process.vcpu_threads);
        if let Some(admitted) = &self.admitted {
            self.waiting().copied = admitted.images.exports.iter().map(|one| one.path.clone()).collect();
        }
        self.check_graph(deadline)?;
        if let Some(admitted) = &self.admitted {
            storage::recheck(&admitted.proved, pid, Step::Prepare)?;
        }
        Ok(Started { pid, found, socket })
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
        let paths = &self.agent.config.paths;
        disks::check_same(qemu.qmp(), &admitted.description, source, paths, Step::Prepare, deadline)
    }

    fn qemu(&mut self) -> Result<&mut DestinationQemu, Fault> {
        let guest = self.guest.as_mut().ok_or_else(|| internal("no hypervisor waits"))?;
        Ok(&mut guest.1)
    }

    fn prepare(&mut self) -> Result<(), Fault> {
        let deadline = Instant::now() + START_WAIT;
        let Started { pid, found, socket } = self.start_guest(true, deadline)?;
        let failed = |error: MigrateError| here(Code::HypervisorFailed, Step::Prepare, &error);
        let runs = self.admitted.as_ref().is_none_or(|admitted| admitted.description.is_running());
        let qemu = self.qemu()?;
        qemu.prepare(runs, deadline).map_err(failed)?;
        qemu.incoming(&socket, deadline).map_err(failed)?;
        let writer =
            Writer::connect(&socket).map_err(|error| here(Code::HypervisorFailed, Step::Prepare, &error))?;
        self.writer = Some(writer);
        let (regions, touched) = self.look_at_ram(pid, &found)?;
        self.note_waiting()?;
        self.shared.tell(Event::Prepared { regions, touched });
        Ok(())
    }

    /// The waiting QEMU takes its own streams, for as long as they come: whoever tears down ends that wait.
    fn prepare_streams(&mut self, channels: u16) -> Result<(), Fault> {
        let deadline = Instant::now() + START_WAIT;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let channels = channels.min(u16::try_from(cpus).unwrap_or(u16::MAX));
        let Started { socket, .. } = self.start_guest(false, deadline)?;
        let failed = |error: MigrateError| here(code_of(&error), Step::Prepare, &error);
        let (Some(admitted), Some((_, qemu))) = (&self.admitted, &mut self.guest) else {
            return Err(internal("no hypervisor waits"));
        };
        let options = qemu.prepare_streams(channels, &admitted.description, deadline).map_err(failed)?;
        let disks = admitted.folder.join("disks.sock");
        let disks = (!admitted.images.exports.is_empty()).then_some(disks);
        if let Some(disks) = &disks {
            qemu.export_disks(&admitted.images.exports, disks, deadline).map_err(failed)?;
            admitted.images.are_overwritten(&admitted.twin.name, "this host, and not all of it came");
        }
        qemu.incoming(&socket, deadline).map_err(failed)?;
        self.connect_streams(Services { state: socket, disks })?;
        self.note_waiting()?;
        self.shared.tell(Event::StreamsPrepared(StreamSettings {
            channels: options.channels,
            return_path: options.return_path,
            zero_pages_in_channels: options.zero_pages_in_channels,
        }));
        let abandon = self.abandon.clone();
        let taken = self.qemu()?.wait_streams_taken(&|| abandon.load(Ordering::SeqCst));
        taken.map_err(|error| here(Code::HypervisorFailed, Step::Copy, &error))?;
        self.shared.tell(Event::DeviceStateLoaded);
        self.qemu()?.put_back(Instant::now() + QMP_WAIT);
        Ok(())
    }

    /// What the next life of this agent must know to end the waiting guest, or to put its settings back.
    pub fn note_waiting(&self) -> Result<(), Fault> {
        let settings = self.guest.as_ref().and_then(|(_, qemu)| qemu.found().cloned());
        self.waiting().settings = settings;
        self.agent.note_waiting(self.shared.session, &self.shared.guest(), self.shared.order, &self.waiting)
    }

    fn connect_streams(&self, services: Services) -> Result<(), Fault> {
        let carriage = self.shared.carriage.get().ok_or_else(|| internal("the offer named regions"))?;
        let connector = streams::connector(carriage.streams.clone(), services)
            .map_err(|error| here(Code::Internal, Step::Prepare, &error))?;
        let _ = self.shared.connector.set(connector);
        Ok(())
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
            domain.arriving = Some(self.agent.arrivals.begin());
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
        qemu.put_back(Instant::now() + QMP_WAIT);
        Ok(())
    }

    /// The disks that the source's guest uses against those that the waiting QEMU has opened.
    fn check_disks(&mut self, told: &str) -> Result<(), Fault> {
        let (Some(admitted), Some((_, qemu))) = (&self.admitted, &mut self.guest) else {
            return Err(internal("no hypervisor waits"));
        };
        let paths = &self.agent.config.paths;
        disks::check_told(qemu.qmp(), &admitted.description, told, paths, Instant::now() + QMP_WAIT)?;
        let pid = self.guest.as_ref().map(|(record, _)| record.process.pid);
        if let Some(pid) = pid {
            storage::recheck(&admitted.proved, pid, Step::Blackout)?;
        }
        self.shared.tell(Event::DisksChecked);
        Ok(())
    }

    /// The journal says that the guest is ours. What becomes of that is told in one of three events.
    fn run_guest(&mut self, ran: bool, cpu_before: Duration) {
        // Its images are its own before it can write to them: whatever becomes of it, nobody removes them any more.
        if let Some(admitted) = &self.admitted {
            images::keep(&admitted.folder);
        }
        let began = Instant::now();
        match self.take_over(ran) {
            Ok(()) => {
                let took = began.elapsed();
                self.shared.tell(Event::GuestRuns { took, cpu: cpu_time().saturating_sub(cpu_before) });
                self.leave_running();
            }
            Err(event) => self.shared.tell(event),
        }
    }

    /// Tries until the guest runs, or it is certain that it cannot and never did, or its QEMU has ended.
    fn take_over(&mut self, ran: bool) -> Result<(), Event> {
        let end = Instant::now() + RUN_FOR;
        // A command whose answer is lost may have been carried out: a later refusal does not say that the guest never ran.
        let mut may_have_run = false;
        loop {
            let Some((record, qemu)) = &mut self.guest else {
                return Err(Event::CannotRun(internal("no hypervisor holds the guest")));
            };
            let error = match qemu.take_over(ran, Instant::now() + QMP_WAIT) {
                TakeOver::Done => return Ok(()),
                TakeOver::Refused(error) if Instant::now() >= end && !may_have_run => {
                    return Err(Event::CannotRun(here(Code::HypervisorFailed, Step::Commit, &error)));
                }
                TakeOver::Unknown(error) if !record.is_alive() => {
                    return Err(Event::GuestEnded(here(Code::GuestGone, Step::Commit, &error)));
                }
                TakeOver::Unknown(error) => {
                    may_have_run = true;
                    // Its connection is of no use after a command without an answer.
                    qemu.qmp().hang_up();
                    if let Ok(qmp) = process::connect(record, Instant::now() + QMP_WAIT) {
                        qemu.reconnect(qmp);
                    }
                    error
                }
                TakeOver::Refused(error) => error,
            };
            tracing::error!(error = chain(&error), "the guest is ours and cannot be run yet");
            std::thread::sleep(RUN_AGAIN_AFTER);
        }
    }

    /// QEMU serves one QMP client at a time, and a session whose source died waits a minute for its last word: whoever wants to see
    /// or move the guest must not wait for that.
    fn leave_running(&mut self) {
        if let Some((_, mut qemu)) = self.guest.take() {
            qemu.settle(Instant::now() + QMP_WAIT);
        }
        self.writer = None;
        if let Some(admitted) = &self.admitted {
            admitted.images.are_the_guests();
            let _ = std::fs::remove_file(admitted.folder.join("state.sock"));
        }
    }

    /// Ends the waiting guest and removes everything of it. Nothing but this session's own is touched.
    fn tear_down(&mut self) -> Result<(), Fault> {
        self.writer = None;
        self.shared.channels.close_all();
        let admitted = self.admitted.take();
        match (self.guest.take(), &admitted) {
            (Some((record, mut qemu)), _) => {
                if self.shared.carriage.get().is_some()
                    && let Err(error) = record.kill()
                {
                    // One whose streams broke off may not answer for long. It has never run; the rest is tried all the same.
                    tracing::warn!(
                        error = chain(&error),
                        guest = record.name,
                        "the waiting guest was not killed"
                    );
                }
                let end = |qmp| {
                    let deadline = Instant::now() + QMP_WAIT;
                    process::stop(&self.agent.registry, &record, qmp, StopHow::Quit, deadline)
                };
                let mut ended = end(Some(qemu.qmp()));
                // It must not be said that it is gone while it may be there, so this does not end before it is.
                while let Err(error) = ended {
                    tracing::error!(
                        error = chain(&error),
                        guest = record.name,
                        "the waiting guest could not be ended yet"
                    );
                    std::thread::sleep(Duration::from_secs(1));
                    ended = end(None);
                }
            }
            (None, Some(admitted)) => {
                if let Err(error) = remains::give_up(&self.agent.registry, &admitted.twin.name) {
                    tracing::error!(
                        error = chain(&error),
                        "what was made for the guest could not be removed"
                    );
                }
            }
            (None, None) => {}
        }
        // By what was admitted, as the list in the guest's folder goes with a QEMU that did not come up; the claim goes behind it.
        if let Some(admitted) = admitted {
            admitted.images.discard();
        }
        self.shared.tell(Event::TornDown);
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
