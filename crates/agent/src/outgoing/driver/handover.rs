//! Linerate copies RAM, and libvirt owns the switch-over. QEMU's connection waits while RAM is copied, and is released
//! when all of it is sealed at the destination. Nothing is set in QEMU but one capability; the guest is neither run nor
//! ended here.

mod verdict;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use linerate_api::DomainMigration;
use linerate_core::source::Event;
use linerate_core::{Code, Extent, Fault, Side, Step};
use linerate_guest::domain;
use linerate_guest::run_state::RunState;

use super::tracked_ram::{GuestRam, TrackedRam};
use super::{Done, Driver, here};
use crate::outgoing::Input;
use crate::outgoing::guest::{Guest, HOLD_WAIT, qemu_fault};
use crate::outgoing::worker::Task;
use crate::session::identity::Identity;
use crate::session::pending_notice::PendingNotice;
use crate::stream_gate::{Ending, LibvirtJob, StreamGate, StreamGates};

/// From the session's begin to libvirt's own migration: it starts the QEMU at the destination meanwhile.
const STREAM_WAIT: Duration = Duration::from_secs(300);
/// The client that asked for the session makes the tunnel at once.
const TUNNEL_WAIT: Duration = Duration::from_secs(30);
/// Between two questions to QEMU where nothing is urgent.
const LOOK: Duration = Duration::from_millis(20);
/// Between two questions whether libvirt's migration was given up, while RAM is copied.
const WATCH: Duration = Duration::from_millis(200);
/// Between two questions while the guest stops, and while its stream is sent.
const POLL: Duration = Duration::from_millis(1);

/// An outgoing domain, and how far libvirt's migration of it is.
pub(in crate::outgoing) struct OutgoingDomain {
    asked: DomainMigration,
    gates: Arc<StreamGates>,
    /// libvirt's own connection, once it is there: while it is open no other program saves the domain.
    job: Option<Arc<LibvirtJob>>,
    /// The capability may have been set.
    was_set: bool,
    /// The capability is off again, or was never on.
    is_restored: bool,
    /// Until the stream is released: from this file the next start of this agent sends the roll-back notice.
    notice: Option<PendingNotice>,
    is_released: bool,
}

impl OutgoingDomain {
    /// libvirt has not begun.
    pub fn new(asked: &DomainMigration, gates: Arc<StreamGates>) -> OutgoingDomain {
        OutgoingDomain {
            asked: asked.clone(),
            gates,
            job: None,
            was_set: false,
            is_restored: false,
            notice: None,
            is_released: false,
        }
    }

    pub fn keep_notice(&mut self, notice: PendingNotice) {
        self.notice = Some(notice);
    }

    /// Has the next start of this agent send it to the host that the session's first connection reached.
    pub fn pin_notice(&self, identity: &Identity, peers: &[SocketAddr]) -> io::Result<()> {
        self.notice.as_ref().map_or(Ok(()), |notice| notice.pin(identity, peers))
    }

    /// The gate at which QEMU's connection waits, if it can still forward bytes.
    fn gate(&self, step: Step) -> Result<Arc<StreamGate>, Fault> {
        let failed = |why: String| Fault::new(Code::HypervisorFailed, step, Side::Source, why);
        let gate = self.gates.get(&self.asked.stream);
        let gate = gate.ok_or_else(|| failed("the tunnel of libvirt's migration has ended".to_owned()))?;
        match gate.close_reason() {
            Some(why) => Err(failed(why)),
            None => Ok(gate),
        }
    }

    /// Why libvirt's job ends, if it does.
    fn ending(&self) -> Option<Ending> {
        self.job.as_ref()?.ending()
    }

    /// Whether libvirt still drives.
    fn check_job(&self, step: Step) -> Done {
        let detail = match self.ending() {
            None => return Ok(()),
            Some(Ending::Finished) => {
                "libvirt has ended its own migration: see libvirt's own message".to_owned()
            }
            Some(Ending::LibvirtGone) => {
                "this host's libvirt has ended, and its own migration with it".to_owned()
            }
            Some(Ending::PeerLost(why)) => why,
        };
        Err(Fault::new(Code::HypervisorFailed, step, Side::Source, detail))
    }

    fn allow_end(&self) {
        if let Some(job) = &self.job {
            job.allow_end();
        }
    }

    /// No byte of QEMU's is forwarded any more.
    fn close(&self, why: &str) {
        if let Some(gate) = self.gates.get(&self.asked.stream) {
            gate.close(why);
        }
    }
}

pub(super) struct Handover {
    guest: Guest,
    ram: TrackedRam,
    domain: OutgoingDomain,
}

impl Handover {
    pub fn new(guest: Guest, ram: GuestRam, domain: OutgoingDomain) -> Handover {
        let ram = TrackedRam::new(&guest, ram);
        Handover { guest, ram, domain }
    }

    fn run_state(&mut self, step: Step) -> Result<RunState, Fault> {
        self.guest.qemu.status(Guest::deadline()).map_err(|error| qemu_fault(step, &error))
    }

    fn migration_status(&mut self, step: Step) -> Result<String, Fault> {
        self.guest.qemu.migration_status(Guest::deadline()).map_err(|error| qemu_fault(step, &error))
    }

    /// Waits until libvirt has connected to the other: then its job for the domain has begun, which keeps the domain
    /// from being saved. Only then QEMU is set to leave RAM out. Then waits until QEMU migrates: the one at the
    /// destination waits, and nothing is sent yet. False if the migration is rolled back.
    fn await_libvirt(&mut self) -> Result<bool, Fault> {
        let began = Instant::now();
        while !self.guest.is_abandoned() {
            if !self.has_job()? {
                if began.elapsed() > TUNNEL_WAIT {
                    self.domain.gate(Step::Resolve)?;
                }
            } else if self.stream_waits()? {
                return Ok(true);
            }
            if began.elapsed() > STREAM_WAIT {
                let detail =
                    format!("libvirt's own migration did not begin within {} s", STREAM_WAIT.as_secs());
                return Err(Fault::new(Code::TimedOut, Step::Resolve, Side::Source, detail));
            }
            std::thread::sleep(LOOK);
        }
        Ok(false)
    }

    /// Whether libvirt's job for this migration has begun. QEMU is set when it has, before libvirt continues.
    fn has_job(&mut self) -> Result<bool, Fault> {
        if self.domain.job.is_some() {
            return Ok(true);
        }
        let Some(job) = self.domain.gates.job(&self.domain.asked.job) else { return Ok(false) };
        self.domain.gate(Step::Resolve)?;
        if !job.hold() {
            return Ok(false);
        }
        self.domain.job = Some(job.clone());
        self.domain.was_set = true;
        domain::ignore_shared(self.guest.qemu.qmp(), true, Guest::deadline())
            .map_err(|error| here(Code::HypervisorFailed, Step::Resolve, &error))?;
        job.open();
        Ok(true)
    }

    /// Whether QEMU's connection waits. It is that of libvirt's job, which is the only one.
    fn stream_waits(&mut self) -> Result<bool, Fault> {
        self.domain.gate(Step::Resolve)?;
        self.domain.check_job(Step::Resolve)?;
        // One that has ended is of before.
        Ok(self.migration_status(Step::Resolve)? == "setup")
    }

    /// The next task, while libvirt's migration waits and can be given up by others; none if it is, or does not wait.
    fn watch(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        while self.ram.is_attached() {
            match tasks.recv_timeout(WATCH) {
                Ok(task) => return Some(task),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let step = self.guest.shared.machine().step();
            if let Err(fault) = self.check_waits(step) {
                self.guest.send(Event::Failed(fault));
                return None;
            }
        }
        None
    }

    /// Whether libvirt's migration still waits.
    fn check_waits(&mut self, step: Step) -> Done {
        self.domain.gate(step)?;
        let status = self.migration_status(step)?;
        if matches!(status.as_str(), "failed" | "cancelling" | "cancelled" | "none") {
            let detail = format!("libvirt's own migration is {status}: see libvirt's own message");
            return Err(Fault::new(Code::HypervisorFailed, step, Side::Source, detail));
        }
        self.domain.check_job(step)
    }

    /// Whether QEMU has stopped the guest for the switch-over, and has written its device state. Until libvirt lets it
    /// go on (`pre-switchover`), its main loop may write input of a console to guest RAM. From `device` on it answers
    /// only when the state is written.
    fn has_stopped_for_good(&mut self) -> Result<bool, Fault> {
        let status = self.migration_status(Step::Blackout)?;
        Ok(matches!(status.as_str(), "device" | "completed"))
    }

    /// The capability is off, or was never on: libvirt's job may end.
    fn set_restored(&mut self) {
        self.domain.is_restored = true;
        let _ = self.guest.shared.inbox.send(Input::HypervisorRestored);
        self.domain.allow_end();
    }
}

impl Driver for Handover {
    fn guest(&self) -> &Guest {
        &self.guest
    }

    fn next(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        self.watch(tasks).or_else(|| tasks.recv().ok())
    }

    fn begin(&mut self) -> Done {
        if self.await_libvirt()? {
            self.guest.send(Event::Start);
        }
        Ok(())
    }

    fn attach(&mut self) -> Done {
        self.ram.attach(&self.guest)?;
        self.guest.send(Event::Attached);
        Ok(())
    }

    fn protect(&mut self) -> Done {
        self.ram.protect(&mut self.guest)
    }

    fn count(&mut self) -> Done {
        self.ram.count(&mut self.guest)
    }

    fn scan(&mut self, last: bool, also: &[Extent]) -> Done {
        self.check_waits(if last { Step::Blackout } else { Step::Copy })?;
        self.ram.scan(&mut self.guest, last, also)
    }

    /// Admits QEMU's connections. It stops the guest within milliseconds, as it has no RAM to send. What it wrote while
    /// the guest ran is released, because newer QEMUs wait for an answer to it before they stop; all else is held.
    fn switch_over(&mut self) -> Done {
        let step = Step::Blackout;
        let gate = self.domain.gate(step)?;
        gate.admit().map_err(|error| here(Code::HypervisorFailed, step, &error))?;
        let deadline = Instant::now() + HOLD_WAIT;
        let mut ran_at = Instant::now();
        while !self.guest.is_abandoned() {
            // Before the question: what was read until now is of a guest that runs, if that is the answer.
            let mark = gate.mark();
            let asked_at = Instant::now();
            let runs = self.run_state(step)? == RunState::Running;
            // A guest that an operator has suspended is stopped too, and not for good.
            if !runs && self.has_stopped_for_good()? {
                // Not later than it stopped.
                self.guest.send_stopped(ran_at);
                self.check_waits(step)?;
                self.guest.check_not_nested(step)?;
                self.guest.send(Event::PreSwitchover { was_running: true, disks: String::new() });
                return Ok(());
            }
            if runs {
                ran_at = asked_at;
                gate.release_up_to(&mark);
            }
            self.check_waits(step)?;
            if Instant::now() > deadline {
                let detail = format!("QEMU did not stop the guest within {} s", HOLD_WAIT.as_secs());
                return Err(Fault::new(Code::TimedOut, step, Side::Source, detail));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn digest(&mut self) -> Done {
        self.ram.digest(&self.guest)
    }

    fn release_stream(&mut self) -> Done {
        self.release()
    }

    fn roll_back(&mut self) -> Done {
        self.give_up();
        Ok(())
    }

    /// Its process here has ended, and with it what was set in it.
    fn clean_up(&mut self) -> Done {
        self.ram.detach();
        self.set_restored();
        self.guest.send(Event::CleanedUp);
        Ok(())
    }
}
