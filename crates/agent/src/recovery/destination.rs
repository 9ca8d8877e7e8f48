//! Executes the destination's recovery.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate_core::journal::DestinationPhase;
use linerate_core::recovery::{
    DestinationAction, DestinationEvent, DestinationRecovery, Entry, Inspection, Phase, RunResult,
};
use linerate_core::{Outcome, SessionId};
use linerate_guest::migrate::{DestinationQemu, TakeOverResult};
use linerate_guest::process::{self, StopMethod};
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_guest::{images, stale};

use super::{Machine, QMP_WAIT, Sessions, Unfinished, is_registered, remove_sockets};
use crate::decision::{COMMITTED, HEARS, HELD_ENDED, describe_decision};
use crate::faults::chain;
use crate::journal::{IncomingRecord, Record, Role};

/// A monitor that another client holds is not waited for. A QEMU of a test has few CPUs.
const LOOK_WAIT: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 1 });

/// What is unfinished, and what follows. `is_alive`: the guest's QEMU here.
pub(super) fn describe(machine: &DestinationRecovery, is_committed: bool, is_alive: bool) -> &'static str {
    if machine.is_waiting() && !is_alive {
        HELD_ENDED
    } else if let Some(run) = machine.waiting_decision() {
        describe_decision(run)
    } else if machine.is_held() && !is_alive {
        "the guest's QEMU on this host has ended, and the guest may have run here before: its source is answered so, and its operator decides there about the copy that the source has"
    } else if machine.is_waiting() {
        "the guest is complete here and paused; its source may have committed it: it waits for the source's decision, or for yours (`linerate resolve`)"
    } else if machine.is_held() && machine.is_rolled_back_at_source() {
        "the guest was committed to this host, is paused, and may have run here already; meanwhile the source has rolled back and lets its own copy run: give this one up (`linerate resolve --give-up`)"
    } else if machine.is_held() {
        "the guest was committed to this host, is paused, and may have run here already: it stays paused until you decide (`linerate resolve`, or let it run yourself). It can be given up while its source reports that it still has its own copy, which stays paused there"
    } else if machine.hears_source() {
        HEARS
    } else if is_looked_at(machine, is_committed) {
        COMMITTED
    } else {
        "what is left to do here is tried until it is done"
    }
}

pub(super) fn is_committed(record: &Record) -> bool {
    matches!(&record.role, Role::Destination { phase: DestinationPhase::Committed, .. })
}

/// The guest was committed to this host, and it is not known yet whether it runs here: it is looked at, or let run.
fn is_looked_at(machine: &DestinationRecovery, is_committed: bool) -> bool {
    is_committed && !machine.is_in_doubt() && machine.outcome() == Some(Outcome::Pending)
}

impl Unfinished {
    /// Carries the next action out; false if none is due.
    pub(super) fn act_destination(&self, sessions: &Arc<Sessions>) -> bool {
        let (now, is_alive) = (self.clock.now(), self.process_is_alive());
        let action = match &mut *self.machine.lock() {
            Machine::Destination(machine) => {
                if sessions.is_deaf.load(Ordering::Relaxed) {
                    machine.was_deaf(now);
                }
                if machine.is_about_to_run() && !is_alive {
                    machine.handle(now, DestinationEvent::ProcessEnded);
                }
                machine.poll_action(now)
            }
            Machine::Source(_) => None,
        };
        let Some(action) = action else { return false };
        let event = match action {
            DestinationAction::Discard => DestinationEvent::Discarded(self.discard(sessions)),
            DestinationAction::Inspect if self.is_waiting() => {
                DestinationEvent::Inspected(self.seen_while_it_waits())
            }
            DestinationAction::Inspect => DestinationEvent::Inspected(self.inspect()),
            DestinationAction::Run => DestinationEvent::Ran(self.run_guest(sessions)),
            DestinationAction::Write(phase) => {
                // Another program may have let it run, or an agent that ended then.
                let incoming = self.incoming();
                if let (DestinationPhase::Running, Some(qemu)) = (phase, &incoming.qemu)
                    && own_files(sessions, qemu)
                {
                    clear_marks(&incoming.copied);
                }
                DestinationEvent::Written(self.write(sessions, Phase::Destination(phase)))
            }
        };
        let now = self.clock.now();
        if let Machine::Destination(machine) = &mut *self.machine.lock() {
            machine.handle(now, event);
        }
        true
    }

    /// Whether it runs here is not known yet, so that nothing can be decided.
    pub fn is_looked_at(&self) -> bool {
        let is_committed = is_committed(&self.record.lock());
        matches!(&*self.machine.lock(), Machine::Destination(machine) if is_looked_at(machine, is_committed))
    }

    fn incoming(&self) -> IncomingRecord {
        match &self.record.lock().role {
            Role::Destination { incoming, .. } => incoming.clone(),
            _ => IncomingRecord::default(),
        }
    }

    /// Ends an incoming QEMU that will never run: the very process of this session, and what was made for it.
    fn discard(&self, sessions: &Sessions) -> bool {
        let Some(qemu) = self.incoming().qemu.filter(|qemu| qemu.origin == Origin::Arrived) else {
            return true;
        };
        let ours = is_registered(sessions, &qemu);
        let folder = sessions.registry.folder(&qemu.name).ok().filter(|_| ours);
        // One that was committed may have written to its images: they are its own.
        if let Some(folder) = folder.as_ref().filter(|_| is_committed(&self.record.lock())) {
            images::keep(folder);
        }
        let made = folder.map(|folder| images::made(&folder)).unwrap_or_default();
        match process::stop(&sessions.registry, &qemu, None, StopMethod::Quit, Instant::now() + QMP_WAIT) {
            Ok(()) => {
                images::discard(&made);
                self.worked();
                true
            }
            Err(error) => {
                self.failed(format!("the incoming QEMU could not be ended: {}", chain(&error)));
                false
            }
        }
    }

    fn is_waiting(&self) -> bool {
        matches!(&*self.machine.lock(), Machine::Destination(machine) if machine.is_waiting())
    }

    /// A guest that waits is looked at before its source is heard: one that runs here is the source's no more.
    /// True if it may run here: its monitor does not answer, and its virtual CPUs have worked since the agent started.
    pub(super) fn look_while_it_waits(&self) -> bool {
        let seen = if self.is_waiting() { self.seen_while_it_waits() } else { Inspection::Unknown };
        if seen == Inspection::Runs {
            let now = self.clock.now();
            if let Machine::Destination(machine) = &mut *self.machine.lock() {
                machine.handle(now, DestinationEvent::Inspected(Inspection::Runs));
            }
        }
        seen == Inspection::MayHaveRun
    }

    /// Another client may have its monitor for long, and what its source sends is not to wait for that. It may be the
    /// one that has let the guest run.
    fn seen_while_it_waits(&self) -> Inspection {
        let incoming = self.incoming();
        let Some(qemu) = incoming.qemu.filter(|qemu| qemu.is_alive()) else { return Inspection::Ended };
        let deadline = Instant::now() + LOOK_WAIT;
        let Ok(qmp) = process::connect(&qemu, deadline) else {
            let works = incoming.vcpu_time.has_run(qemu.process.pid) == Some(true);
            return if works { Inspection::MayHaveRun } else { Inspection::Unknown };
        };
        let mut destination = DestinationQemu::recovered(qmp, incoming.settings);
        match destination.status(deadline) {
            Ok(status) if status.is_live() => {
                destination.settle(deadline);
                Inspection::Runs
            }
            _ => Inspection::Unknown,
        }
    }

    /// Whether the committed guest runs, or ever ran.
    fn inspect(&self) -> Inspection {
        let incoming = self.incoming();
        let Some(qemu) = &incoming.qemu else { return Inspection::Ended };
        if !qemu.is_alive() {
            return Inspection::Ended;
        }
        let deadline = Instant::now() + QMP_WAIT;
        let status = process::connect(qemu, deadline).map_err(|error| chain(&error)).and_then(|qmp| {
            DestinationQemu::recovered(qmp, None).status(deadline).map_err(|error| chain(&error))
        });
        match status {
            Ok(status) if status.is_live() => Inspection::Runs,
            // It is not to be run, so that nothing is undone by taking it over once more.
            Ok(_) if incoming.ran == Some(false) => Inspection::NeverRan,
            Ok(_) if incoming.vcpu_time.has_run(qemu.process.pid) == Some(false) => Inspection::NeverRan,
            Ok(_) => Inspection::MayHaveRun,
            Err(_) if !qemu.is_alive() => Inspection::Ended,
            Err(trouble) => {
                self.failed(trouble);
                Inspection::Unknown
            }
        }
    }

    fn run_guest(&self, sessions: &Sessions) -> RunResult {
        let incoming = self.incoming();
        let Some(qemu) = &incoming.qemu else { return RunResult::Ended };
        // Whatever becomes of it: its images are its own.
        let ours = own_files(sessions, qemu);
        let deadline = Instant::now() + QMP_WAIT;
        let mut destination = match process::connect(qemu, deadline) {
            Ok(qmp) => DestinationQemu::recovered(qmp, incoming.settings.clone()),
            Err(_) if !qemu.is_alive() => return RunResult::Ended,
            Err(error) => {
                self.failed(chain(&error));
                return RunResult::Unknown;
            }
        };
        match destination.take_over(incoming.ran.unwrap_or(true), deadline) {
            TakeOverResult::Done => {
                destination.settle(deadline);
                clear_marks(&incoming.copied);
                if ours {
                    remove_sockets(sessions, &qemu.name);
                }
                self.worked();
                RunResult::Runs
            }
            TakeOverResult::Refused(error) => {
                self.failed(chain(&error));
                RunResult::Refused
            }
            TakeOverResult::Unknown(_) if !qemu.is_alive() => RunResult::Ended,
            TakeOverResult::Unknown(error) => {
                self.failed(chain(&error));
                RunResult::Unknown
            }
        }
    }
}

/// The guest runs here, or is about to: its images and files are its own from now on. False for one whose name another
/// process has by now.
fn own_files(sessions: &Sessions, qemu: &GuestRecord) -> bool {
    let ours = is_registered(sessions, qemu);
    if let Some(folder) = sessions.registry.folder(&qemu.name).ok().filter(|_| ours) {
        images::keep(&folder);
        sessions.registry.own_files(&qemu.name);
    }
    ours
}

/// The guest runs with these images that were copied into: they are not stale any more.
fn clear_marks(copied: &[PathBuf]) {
    for path in copied {
        if let Err(error) = stale::clear(path) {
            tracing::warn!(path = %path.display(), %error, "an image's mark as stale could not be removed");
        }
    }
}

/// The same when the agent starts: the last one may have ended when a guest had just begun to run. A guest that is
/// leaving is left to its newer session, which may be about to mark what stays here. A guest may have given an image
/// up while it ran: then another guest may have left it behind since. Storage that hangs is not waited for.
pub(super) fn clear_marks_of_running(sessions: &Sessions, found: &[(SessionId, Record)], entries: &[Entry]) {
    let is_newest =
        |own: &Entry| !entries.iter().any(|one| one.order > own.order && one.process == own.process);
    let mut running = Vec::new();
    for (session, record) in found {
        let Role::Destination { phase: DestinationPhase::Running | DestinationPhase::Finished, incoming } =
            &record.role
        else {
            continue;
        };
        let Some(qemu) = &incoming.qemu else { continue };
        let is_here = is_registered(sessions, qemu) && record.entry(*session).as_ref().is_some_and(is_newest);
        if is_here && !incoming.copied.is_empty() {
            running.push((qemu.clone(), incoming.copied.clone()));
        }
    }
    if running.is_empty() {
        return;
    }
    let clear = move || {
        for (qemu, mut copied) in running.into_iter().filter(|(qemu, _)| qemu.is_alive()) {
            copied.retain(|path| stale::of(path).is_some_and(|left| left.guest == qemu.name));
            clear_marks(&copied);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("marks".into()).spawn(clear) {
        tracing::warn!(%error, "images of guests that run here may still be marked as stale");
    }
}
