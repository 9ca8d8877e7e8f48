//! Linerate copies RAM, and libvirt owns the switch-over. libvirt has started the incoming QEMU, which waits for a
//! stream that the source holds back. It is never run and never ended here.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use linerate_core::destination::Event;
use linerate_core::{Code, Fault, RegionInfo, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::domain;
use linerate_guest::qmp::Qmp;
use linerate_guest::registry::GuestRecord;

use super::own_qemu::check_processor;
use super::placed_ram::PlacedRam;
use super::{Done, Driver, QMP_WAIT, here, internal};
use crate::faults::chain;
use crate::incoming::context::Context;
use crate::incoming::domain::{Found, find};
use crate::incoming::worker::Task;
use crate::stream_gate::DomainArrival;

/// Between two checks whether QEMU has taken its stream.
const WATCH: Duration = Duration::from_millis(2);
/// QEMU loads its state, or libvirt ends it.
const PUT_BACK_WAIT: Duration = Duration::from_secs(30);

pub(super) struct Handover {
    context: Context,
    record: GuestRecord,
    found: GuestDescription,
    ram: PlacedRam,
    monitor: Monitor,
}

/// The domain's second monitor. QEMU serves one client at a time.
enum Monitor {
    /// QEMU waits for its stream.
    Waiting(Qmp),
    /// RAM is complete, and the source releases the stream. libvirt waits until the capability is off.
    Arriving(Qmp, DomainArrival),
    Closed,
}

impl Handover {
    /// Finds the incoming QEMU and maps its RAM. Nothing is set yet.
    pub fn admit(
        context: Context,
        offered: &GuestDescription,
        regions: &[RegionInfo],
    ) -> Result<Handover, Fault> {
        may_move_domains(&context)?;
        let found =
            find(&context.sessions.config.domain_sockets, offered, regions, Instant::now() + QMP_WAIT)?;
        let Found { record, qmp, description, mappings } = found;
        check_processor(offered, &description)?;
        let ram = PlacedRam::new(&context.shared, regions, mappings);
        Ok(Handover { context, record, found: description, ram, monitor: Monitor::Waiting(qmp) })
    }

    /// Turns the capability off as soon as QEMU has taken its stream.
    fn watch(&mut self) {
        let Monitor::Arriving(qmp, _) = &mut self.monitor else { return };
        let deadline = Instant::now() + QMP_WAIT;
        let done = match domain::has_arrived(qmp, deadline) {
            Ok(false) => return,
            Ok(true) => domain::ignore_shared(qmp, false, deadline).map_err(|error| chain(&error)),
            Err(error) => Err(chain(&error)),
        };
        // If it failed, it is tried again when the session ends.
        if let Err(error) = done.and_then(|()| self.write_journal(true).map_err(|fault| chain(&fault))) {
            tracing::debug!(error, "the capability is not off yet");
        }
        self.monitor = Monitor::Closed;
    }

    /// Whether the capability was set, and not put back.
    fn is_set(&self) -> bool {
        matches!(self.context.record().domain, Some((_, false)))
    }

    /// What the next start of this agent must know, to put the capability back. `over`: it is off again.
    fn write_journal(&self, over: bool) -> Done {
        self.context.record().domain = Some((self.record.clone(), over));
        self.context.write_journal()
    }

    /// Puts the capability back, if it was set. On `Err` the journal still has it as set.
    fn put_back(&mut self) -> Done {
        let arriving = match std::mem::replace(&mut self.monitor, Monitor::Closed) {
            Monitor::Arriving(_, arriving) => Some(arriving),
            Monitor::Waiting(_) | Monitor::Closed => None,
        };
        if !self.is_set() {
            return Ok(());
        }
        domain::put_back(&self.record, Instant::now() + PUT_BACK_WAIT)
            .map_err(|error| here(Code::HypervisorFailed, Step::CleanUp, &error))?;
        drop(arriving);
        self.write_journal(true)
    }
}

/// Only the host whose libvirt talks to the one here may write a domain's RAM. In plain text that host is unknown.
fn may_move_domains(context: &Context) -> Done {
    let peer = &context.shared.opener;
    match peer {
        Some(host) if !context.sessions.arrivals.has_connection_of(peer) => {
            let detail = format!(
                "host {host} has no tunnel to libvirt on this host, so it may not write RAM of a domain here; nothing was \
                 changed. Start the migration at the host whose libvirt sends the domain"
            );
            Err(Fault::new(Code::NotAuthorised, Step::Admit, Side::Destination, detail))
        }
        _ => Ok(()),
    }
}

impl Driver for Handover {
    fn context(&self) -> &Context {
        &self.context
    }

    /// While there is no task, the capability goes off as soon as QEMU has taken its stream, whatever becomes of the
    /// source: libvirt runs the guest by then, and saves it without its RAM as long as it is on. Not before RAM is
    /// sealed: a QEMU that reads a stream which is held may answer nothing (7.2 does not).
    fn next(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        while matches!(self.monitor, Monitor::Arriving(..)) {
            match tasks.recv_timeout(WATCH) {
                Err(RecvTimeoutError::Timeout) => self.watch(),
                other => return other.ok(),
            }
        }
        tasks.recv().ok()
    }

    /// Makes the incoming QEMU expect a stream without RAM; the journal is written first.
    fn prepare(&mut self) -> Done {
        self.write_journal(false)?;
        let Monitor::Waiting(qmp) = &mut self.monitor else {
            return Err(internal("the domain's monitor is closed"));
        };
        domain::ignore_shared(qmp, true, Instant::now() + QMP_WAIT)
            .map_err(|error| here(Code::HypervisorFailed, Step::Prepare, &error))?;
        let (regions, touched) = self.ram.check_blocks(self.record.process.pid, &self.found)?;
        self.context.shared.send(Event::Prepared { regions, touched });
        Ok(())
    }

    fn seal(&mut self, digest: bool) -> Done {
        let digest = self.ram.seal(digest)?;
        self.monitor = match std::mem::replace(&mut self.monitor, Monitor::Closed) {
            Monitor::Waiting(qmp) => Monitor::Arriving(qmp, self.context.sessions.arrivals.begin()),
            other => other,
        };
        self.context.shared.send(Event::Sealed(digest));
        Ok(())
    }

    fn restore_hypervisor(&mut self) -> Done {
        self.put_back()?;
        self.context.shared.send(Event::HypervisorRestored);
        Ok(())
    }

    /// libvirt decides what becomes of the QEMU.
    fn discard(mut self: Box<Self>) {
        if let Err(fault) = self.put_back() {
            tracing::error!(
                error = chain(&fault),
                "x-ignore-shared may still be on: do not save this domain; the next start of the agent tries again"
            );
        }
    }
}
