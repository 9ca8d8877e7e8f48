//! Domains of libvirt that leave this host: libvirt drives, QEMU's connection waits while RAM is copied, and is
//! released when all of it is sealed at the destination. Nothing is set in QEMU but one capability; the guest is
//! neither run nor ended here.

mod verdict;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use linerate_api::{DomainMove, MigrateRequest, ModeChoice};
use linerate_core::source::Event;
use linerate_core::{Code, Fault, GuestState, SessionId, Side, Step, Time};
use linerate_guest::description::GuestDescription;
use linerate_guest::domain::{self, DomainError};
use linerate_guest::qmp::Qmp;
use linerate_guest::registry::GuestRecord;
use linerate_guest::run_state::RunState;

use super::worker::{HOLD_WAIT, State, Task, qemu_fault};
use super::{Input, Sessions};
use crate::faults::fault;
use crate::gate::{Ending, LibvirtJob, StreamGate, StreamGates};
use crate::journal::Record;
use crate::session::identity::Identity;
use crate::session::kept::PendingNotice;

/// From the session's begin to libvirt's own migration: it starts the QEMU at the destination meanwhile.
const STREAM_WAIT: Duration = Duration::from_secs(300);
/// Whoever asked for the session makes the tunnel at once.
const TUNNEL_WAIT: Duration = Duration::from_secs(30);
/// QEMU ends a migration whose connections are shut, and libvirt lets the guest run again.
const LET_GO_WAIT: Duration = Duration::from_secs(30);
/// libvirt, whose job is over, lets the guest run or ends it within moments, if it can.
const ADVICE_WAIT: Duration = Duration::from_secs(1);
const VERDICT_WAIT: Duration = Duration::from_secs(5);
/// Between two looks at QEMU where nothing is in a hurry.
const LOOK: Duration = Duration::from_millis(20);
/// Between two looks at whether libvirt's migration was given up while RAM is copied.
const WATCH: Duration = Duration::from_millis(200);
/// Between two looks while the guest stops, and while its stream goes through.
const POLL: Duration = Duration::from_millis(1);

/// What is known of a domain that leaves.
pub(super) struct OutgoingDomain {
    asked: DomainMove,
    gates: Arc<StreamGates>,
    /// libvirt's own connection, once it has come: as long as it stands nobody else saves the domain.
    job: OnceLock<Arc<LibvirtJob>>,
    /// The capability may be on.
    set: AtomicBool,
    put_back: AtomicBool,
    /// Until the stream is released: from this file the next start of this agent sends the roll-back notice.
    kept: Mutex<Option<PendingNotice>>,
    let_through: AtomicBool,
}

impl OutgoingDomain {
    pub fn new(domain: &DomainMove, gates: Arc<StreamGates>, kept: Option<PendingNotice>) -> OutgoingDomain {
        OutgoingDomain {
            asked: domain.clone(),
            gates,
            job: OnceLock::new(),
            set: AtomicBool::new(false),
            kept: Mutex::new(kept),
            put_back: AtomicBool::new(false),
            let_through: AtomicBool::new(false),
        }
    }

    /// Whether the capability is off again.
    pub fn is_put_back(&self) -> bool {
        self.put_back.load(Ordering::SeqCst)
    }

    fn gate(&self) -> Option<Arc<StreamGate>> {
        self.gates.get(&self.asked.stream)
    }

    /// Why libvirt's job ends, if it does.
    fn ending(&self) -> Option<Ending> {
        self.job.get()?.ending()
    }

    /// The capability is off, or was never on: libvirt's job may end.
    fn is_off(&self) {
        self.put_back.store(true, Ordering::SeqCst);
        self.let_end();
    }

    /// It is decided, or no longer this agent's to decide: the next start sends no notice.
    fn forget(&self) {
        drop(self.kept.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn let_end(&self) {
        if let Some(job) = self.job.get() {
            job.let_end();
        }
    }

    /// Nothing goes through any more.
    fn shut(&self, why: &str) {
        if let Some(gate) = self.gate() {
            gate.shut(why);
        }
    }
}

fn here(code: Code, detail: impl Into<String>) -> Fault {
    Fault::new(code, Step::Resolve, Side::Source, detail)
}

/// The domain's second monitor.
pub(super) fn open(sessions: &Sessions, name: &str, deadline: Instant) -> Result<(GuestRecord, Qmp), Fault> {
    domain::open(&sessions.config.domain_sockets, name, deadline).map_err(|error| {
        let code = match &error {
            DomainError::Silent { .. } | DomainError::Process(_) => Code::HypervisorFailed,
            DomainError::Name(_) | DomainError::NoSocket { .. } => Code::NotMigratable,
        };
        fault(code, Step::Resolve, Side::Source, &error)
    })
}

/// Whether it can go this way, apart from its memory and devices.
pub(super) fn check(request: &MigrateRequest, description: &mut GuestDescription) -> Result<(), Fault> {
    description.domain = true;
    let name = &request.guest;
    if description.name != *name {
        let detail = format!("the QEMU behind the socket of {name} calls itself {}", description.name);
        return Err(here(Code::NotMigratable, detail));
    }
    let uuid = request.domain.as_ref().map(|domain| domain.uuid.as_str());
    if uuid.is_some_and(|uuid| description.uuid.as_deref() != Some(uuid)) {
        let detail = format!("the QEMU behind the socket of {name} is not that of this domain");
        return Err(here(Code::NotMigratable, detail));
    }
    if !description.is_running() {
        return Err(here(Code::NotMigratable, format!("{name} is {}, and must run", description.run_state)));
    }
    if request.mode != ModeChoice::Direct || request.throttle {
        let detail =
            "a domain is asked for in direct mode, and is not slowed down: libvirt would see it stop";
        return Err(here(Code::NotMigratable, detail));
    }
    Ok(())
}

/// The file from which the next start of this agent sends the roll-back notice.
pub(super) fn keep(
    sessions: &Sessions,
    identity: &Identity,
    peers: &[SocketAddr],
) -> Result<PendingNotice, Fault> {
    let kept = PendingNotice::new(&sessions.config.state_dir, identity, peers);
    kept.map_err(|error| fault(Code::JournalFailed, Step::Resolve, Side::Source, &error))
}

/// In the journal, before the capability is set.
pub(super) fn note(sessions: &Sessions, session: SessionId, record: &Record) -> Result<(), Fault> {
    let put = sessions.journal.put(session, record);
    put.map_err(|error| fault(Code::JournalFailed, Step::Resolve, Side::Source, &error))
}

/// The guest's process has ended here, and not because we knew why.
fn ended(let_through: bool) -> GuestState {
    if let_through { GuestState::Unknown } else { GuestState::Gone }
}

impl State {
    fn gate(&self, step: Step) -> Result<Arc<StreamGate>, Fault> {
        let gone = || {
            Fault::new(
                Code::HypervisorFailed,
                step,
                Side::Source,
                "the tunnel of libvirt's migration is gone",
            )
        };
        let gate = self.shared.domain.as_ref().and_then(OutgoingDomain::gate).ok_or_else(gone)?;
        match gate.why_shut() {
            Some(why) => Err(Fault::new(Code::HypervisorFailed, step, Side::Source, why)),
            None => Ok(gate),
        }
    }

    fn is_abandoned(&self) -> bool {
        self.abandon.load(Ordering::SeqCst)
    }

    /// Waits until libvirt has connected to the other: then its job for the domain has begun, which keeps the domain
    /// from being saved. Only then QEMU is told to leave RAM out. Then waits until QEMU was told to migrate: the one at
    /// the destination waits, and nothing is sent yet.
    pub(super) fn await_stream(&mut self) -> Result<(), Fault> {
        let began = Instant::now();
        while !self.is_abandoned() {
            if !self.has_job()? {
                if began.elapsed() > TUNNEL_WAIT {
                    self.gate(Step::Resolve)?;
                }
            } else if self.stream_has_come()? {
                self.shared.tell(Event::Start);
                return Ok(());
            }
            if began.elapsed() > STREAM_WAIT {
                let detail =
                    format!("libvirt's own migration did not come within {} s", STREAM_WAIT.as_secs());
                return Err(here(Code::TimedOut, detail));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Whether libvirt's job for this migration has begun. QEMU is set when it has, before libvirt goes on.
    fn has_job(&mut self) -> Result<bool, Fault> {
        let Some(leaving) = &self.shared.domain else { return Ok(false) };
        if leaving.job.get().is_some() {
            return Ok(true);
        }
        let Some(job) = leaving.gates.job(&leaving.asked.job) else { return Ok(false) };
        self.gate(Step::Resolve)?;
        if !job.hold() {
            return Ok(false);
        }
        let job = leaving.job.get_or_init(|| job);
        leaving.set.store(true, Ordering::SeqCst);
        domain::ignore_shared(self.guest.qemu.qmp(), true, Self::deadline())
            .map_err(|error| fault(Code::HypervisorFailed, Step::Resolve, Side::Source, &error))?;
        job.open();
        Ok(true)
    }

    /// Whether QEMU's connection waits. It is that of libvirt's job, which is the only one.
    fn stream_has_come(&mut self) -> Result<bool, Fault> {
        self.gate(Step::Resolve)?;
        self.check_job(Step::Resolve)?;
        let status = self.guest.qemu.migration_status(Self::deadline());
        // One that has ended is of before.
        Ok(status.map_err(|error| qemu_fault(Step::Resolve, &error))? == "setup")
    }

    /// Whether libvirt still drives.
    fn check_job(&self, step: Step) -> Result<(), Fault> {
        let detail = match self.shared.domain.as_ref().and_then(OutgoingDomain::ending) {
            None => return Ok(()),
            Some(Ending::Said) => "libvirt has ended its own migration: see what libvirt says".to_owned(),
            Some(Ending::LibvirtGone) => {
                "this host's libvirt is gone, and its own migration with it".to_owned()
            }
            Some(Ending::Cut(why)) => why,
        };
        Err(Fault::new(Code::HypervisorFailed, step, Side::Source, detail))
    }

    /// The next task, while libvirt's migration waits and can be given up by others; none if it is, or does not wait.
    pub(super) fn next_of_domain(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        while self.is_attached() {
            match tasks.recv_timeout(WATCH) {
                Ok(task) => return Some(task),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let step = self.shared.machine().step();
            if let Err(fault) = self.check_domain(step) {
                self.shared.tell(Event::Failed(fault));
                return None;
            }
        }
        None
    }

    /// Whether libvirt's migration still waits.
    pub(super) fn check_domain(&mut self, step: Step) -> Result<(), Fault> {
        self.gate(step)?;
        let status = self.guest.qemu.migration_status(Self::deadline());
        let status = status.map_err(|error| qemu_fault(step, &error))?;
        if matches!(status.as_str(), "failed" | "cancelling" | "cancelled" | "none") {
            let detail = format!("libvirt's own migration is {status}: see what libvirt says");
            return Err(Fault::new(Code::HypervisorFailed, step, Side::Source, detail));
        }
        self.check_job(step)
    }

    /// Lets QEMU's connections in. It stops the guest within milliseconds, as it has no RAM to send. What it wrote
    /// while the guest ran goes through, because newer ones wait for an answer to it before they stop; all else is
    /// held.
    pub(super) fn stop_domain(&mut self) -> Result<(), Fault> {
        self.throttle_percent = 0;
        let step = Step::Blackout;
        let gate = self.gate(step)?;
        gate.admit().map_err(|error| fault(Code::HypervisorFailed, step, Side::Source, &error))?;
        let deadline = Instant::now() + HOLD_WAIT;
        let mut ran_at = Instant::now();
        while !self.is_abandoned() {
            // Before the question: what came until now was written by a guest that runs, if the answer says so.
            let mark = gate.mark();
            let asked_at = Instant::now();
            let status =
                self.guest.qemu.status(Self::deadline()).map_err(|error| qemu_fault(step, &error))?;
            let runs = status == RunState::Running;
            // A guest that somebody has suspended stands too, and not for good.
            if !runs && self.has_stopped_for_good()? {
                // Not later than it stopped.
                let stopped_at: Time = self.shared.clock.at(ran_at);
                let _ = self.shared.inbox.send(Input::EventAt(stopped_at, Event::GuestStopped));
                self.check_domain(step)?;
                self.shared.tell(Event::PreSwitchover { was_running: true, disks: String::new() });
                return Ok(());
            }
            if runs {
                ran_at = asked_at;
                gate.pass(&mark);
            }
            self.check_domain(step)?;
            if Instant::now() > deadline {
                let detail = format!("QEMU did not stop the guest within {} s", HOLD_WAIT.as_secs());
                return Err(Fault::new(Code::TimedOut, step, Side::Source, detail));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Whether QEMU itself has stopped the guest to hand it over. libvirt has it pause before that
    /// (`pause-before-switchover`), which is a status of its own.
    fn has_stopped_for_good(&mut self) -> Result<bool, Fault> {
        let status = self.guest.qemu.migration_status(Self::deadline());
        let status = status.map_err(|error| qemu_fault(Step::Blackout, &error))?;
        Ok(matches!(status.as_str(), "pre-switchover" | "device" | "completed"))
    }
}
