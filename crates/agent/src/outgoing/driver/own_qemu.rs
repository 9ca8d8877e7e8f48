//! A guest of this host's registry: it is compared with what the destination was prepared for, and in the end it runs
//! here as before, or its process is ended.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use linerate_core::source::Event;
use linerate_core::{Code, Fault, GuestState, Outcome, Side, Step};
use linerate_guest::leftover_ram::LeftoverRam;
use linerate_guest::migrate::{MigrateError, PreSwitchover};
use linerate_guest::process;
use linerate_guest::registry::Registry;
use linerate_guest::shared::Marks;
use linerate_guest::vcpu_time::VcpuTime;

use super::{Done, here};
use crate::disks;
use crate::faults::chain;
use crate::outgoing::guest::{Guest, qemu_fault};
use crate::outgoing::{Decided, Input, Sessions, links};
use crate::ran_here::Sighting;
use crate::session::contact::ask_before_resuming;

/// A monitor that another client holds, or a QEMU that is stopped, is not waited for before a question.
const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// Further tries to let a guest run again if QEMU did not do it at once.
const RESUME_TRIES: u32 = 5;

pub(super) struct OwnQemu {
    pub guest: Guest,
    registry: Registry,
    /// Where QEMU's migration connects to.
    pub state_socket: PathBuf,
    /// In the images that are not copied, by which the destination knows them. They stay until this is dropped.
    marks: Marks,
    /// CPU time of the virtual CPUs when QEMU had written its state.
    stopped: VcpuTime,
    /// Set once [`OwnQemu::check_unchanged`] has passed.
    is_unchanged: bool,
    downtime_ms: Option<u64>,
}

impl OwnQemu {
    pub fn new(sessions: &Sessions, guest: Guest, marks: Marks) -> Result<OwnQemu, Fault> {
        let registry = sessions.registry.clone();
        let folder = registry.folder(&guest.record.name);
        let folder = folder.map_err(|error| here(Code::Internal, Step::Resolve, &error))?;
        let state_socket = folder.join("state.sock");
        let stopped = VcpuTime::of(&guest.description.process.vcpu_threads);
        Ok(OwnQemu { guest, registry, state_socket, marks, stopped, is_unchanged: false, downtime_ms: None })
    }

    /// The downtime that QEMU itself counted, once it is known.
    pub fn downtime_ms(&self) -> Option<u64> {
        self.downtime_ms
    }

    /// QEMU has stopped the guest and holds. The disks of the beginning go to the destination, which compares them with
    /// what it has opened. [`Self::check_unchanged`] finds later whether the guest has others now, when nothing waits
    /// for it.
    pub fn held(&self, held: &PreSwitchover) -> Done {
        self.guest.send_stopped(held.stopped_at);
        let prior = self.guest.qemu.run_state_before().cloned();
        let _ = self.guest.shared.inbox.send(Input::PriorRunState(prior));
        // The destination was prepared for a guest that does not run. Its QEMU, before 10.0, reads the disks when it
        // loads the state.
        if !self.guest.description.is_running() {
            self.flush()?;
        }
        self.guest.send(Event::PreSwitchover {
            was_running: held.ran,
            disks: disks::initial_disks(&self.guest.description)?,
        });
        Ok(())
    }

    /// The guest's disks, devices and files on shared storage are those of the beginning, for which the destination was
    /// prepared. RAM that is tracked was tracked in full. Compared when QEMU has written its state: until then another
    /// monitor can change them. What QEMU never flushes of its shared disks is flushed then.
    pub fn check_unchanged(&mut self) -> Done {
        if self.is_unchanged {
            return Ok(());
        }
        self.compare()?;
        self.flush()?;
        self.is_unchanged = true;
        Ok(())
    }

    fn flush(&self) -> Done {
        self.marks.flush().map_err(|error| here(Code::HypervisorFailed, Step::Blackout, &error))
    }

    fn compare(&mut self) -> Done {
        if !self.guest.shared.mode.carries_streams() {
            self.guest.check_not_nested(Step::Blackout)?;
        }
        let Guest { qemu, description, record, .. } = &mut self.guest;
        disks::check_unchanged(qemu.qmp(), description, Guest::deadline())?;
        qemu.check_devices(Guest::deadline()).map_err(|error| differs(&error))?;
        let same = self.marks.recheck(record.process.pid);
        same.map_err(|error| here(Code::GuestDiffers, Step::Blackout, &error))
    }

    /// Has QEMU write its device state, and waits until it has.
    pub fn write_state(&mut self) -> Result<(), MigrateError> {
        let (is_abandoned, deadline) = (self.guest.abandon_check(), self.guest.state_deadline());
        let qemu = &mut self.guest.qemu;
        qemu.cont_switchover(Guest::deadline())?;
        qemu.wait_completed(deadline, &is_abandoned)?;
        self.stopped.count(self.guest.record.process.pid);
        Ok(())
    }

    /// QEMU does not migrate a disk that a job of another monitor uses, and gives no reason.
    pub fn explain(&mut self, error: &MigrateError) -> Fault {
        match self.compare() {
            Err(changed) if changed.code == Code::GuestDiffers => {
                Fault { detail: format!("{}; QEMU's message: {}", changed.detail, chain(error)), ..changed }
            }
            _ => qemu_fault(Step::Blackout, error),
        }
    }

    /// Commit may be written for a guest that is still what the destination was prepared for.
    pub fn check_source_unchanged(&mut self) -> Done {
        if let Err(fault) = self.check_unchanged() {
            if self.guest.record.cannot_run() {
                return Err(self.ended_unchecked(&fault));
            }
            return Err(fault);
        }
        let _ = self.guest.shared.inbox.send(Input::SourceUnchanged);
        Ok(())
    }

    /// Commit may be sent for a guest that no program has let run here: what it did then is not at the destination. A
    /// QEMU that has ended lets nothing run; of one that does not answer, the CPU time may show something.
    pub fn check_source_intact(&mut self) -> Done {
        let is_stopped = self.ask_whether_still_stopped();
        let seen = Sighting::of(is_stopped, &self.guest.record, &self.stopped);
        let _ = self.guest.shared.inbox.send(Input::SourceSeen(seen));
        Ok(())
    }

    /// None if QEMU does not answer. A connection on which it did not answer in time is of no use any more, so a fresh
    /// one is tried.
    fn ask_whether_still_stopped(&mut self) -> Option<bool> {
        let Guest { qemu, record, .. } = &mut self.guest;
        match qemu.is_still_stopped(Guest::deadline()) {
            Ok(is_stopped) => return Some(is_stopped),
            Err(_) if record.cannot_run() => return None,
            Err(error) => {
                tracing::debug!(
                    error = chain(&error),
                    "the source's QEMU does not answer what its guest does"
                )
            }
        }
        qemu.qmp().hang_up();
        let deadline = Instant::now() + RECONNECT_WAIT;
        qemu.reconnect(process::connect(record, deadline).ok()?);
        qemu.is_still_stopped(deadline).ok()
    }

    /// The destination's copy is the only one, so it gets no roll-back notice. It is not known whether it has the right
    /// disks, so an operator decides. The core takes the first answer as the loss of this copy, and the second as the
    /// end.
    fn ended_unchecked(&self, fault: &Fault) -> Fault {
        let record = &self.guest.record;
        let gone = format!(
            "the QEMU of {} (process {}) has ended: {}",
            record.name, record.process.pid, fault.detail
        );
        self.guest.send(Event::Failed(Fault::new(Code::GuestGone, Step::Commit, Side::Source, gone)));
        let detail = format!(
            "the source's QEMU ended before its disks and devices were compared with those of the beginning; {} keeps the guest \
             complete and paused: see there that its disks are the right ones, then `linerate resolve --resume-here`, or --give-up",
            self.guest.shared.request.to
        );
        Fault::new(Code::GuestDiffers, Step::Commit, Side::Source, detail)
    }

    /// The destination was left with the complete guest, and answers that it has committed it, or had.
    fn may_run_there(&self) -> bool {
        let shared = &self.guest.shared;
        if !shared.machine().may_be_loaded() {
            return false;
        }
        let peers = links::and_of_links(shared, &shared.peers);
        let answer = ask_before_resuming(&peers, &shared.dialler.identity);
        matches!(answer, Ok(Outcome::Committed | Outcome::Pending | Outcome::Gone))
    }

    /// Lets the guest do what it did before, and returns how that went. Before each try the destination is asked, if it
    /// may have the guest complete. If it may run it, recovery goes on.
    pub fn resume_at_source(&mut self) -> Event {
        if self.may_run_there() {
            tracing::error!("not resumed here yet: the destination answers that it has committed the guest");
            return Event::RolledBack { guest: GuestState::PausedAtSource, complete: false };
        }
        let mut done = self.try_to_resume();
        for number in 0..RESUME_TRIES {
            let Err(error) = &done else { break };
            let is_answer = error.is_answer();
            tracing::warn!(
                error = chain(error),
                "the guest could not be resumed at the source; trying again"
            );
            if number > 0 || is_answer {
                std::thread::sleep(Duration::from_secs(1));
            }
            // A command without an answer may still be carried out, and a new connection takes its time.
            if !is_answer {
                if self.may_run_there() {
                    break;
                }
                if !self.connect_again() {
                    continue;
                }
            }
            // Right before the try: the destination keeps its copy from running for a limited time.
            if self.may_run_there() {
                break;
            }
            done = self.try_to_resume();
        }
        if done.is_ok() {
            self.guest.shared.note_trouble(None);
        }
        let alive = self.guest.record.is_alive();
        let (guest, complete) = match done {
            Ok(true) => (GuestState::RunsAtSource, true),
            Ok(false) => (GuestState::PausedAtSource, true),
            Err(_) if !alive => (GuestState::Gone, true),
            Err(error) => {
                tracing::error!(
                    error = chain(&error),
                    "the guest could not be rolled back; it is tried until it can"
                );
                (GuestState::PausedAtSource, false)
            }
        };
        Event::RolledBack { guest, complete }
    }

    /// Whether it runs then.
    fn try_to_resume(&mut self) -> Result<bool, MigrateError> {
        let deadline = Guest::deadline();
        let qemu = &mut self.guest.qemu;
        let done = qemu.cancel_and_resume(deadline).and_then(|()| qemu.runs(deadline));
        if let Err(error) = &done {
            self.guest.shared.note_trouble(Some(chain(error)));
        }
        done
    }

    /// A connection that broke in the middle of a command is of no use: a fresh one may be.
    fn connect_again(&mut self) -> bool {
        self.guest.qemu.qmp().hang_up();
        match process::connect(&self.guest.record, Guest::deadline()) {
            Ok(qmp) => self.guest.qemu.reconnect(qmp),
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "its QEMU does not answer");
                self.guest.shared.note_trouble(Some(error));
                return false;
            }
        }
        true
    }

    /// The destination runs the guest. Another program may have let it run here while commit was on its way: nobody
    /// would learn of that from a QEMU that has ended.
    fn look_before_it_ends(&mut self) {
        let is_given_up = self.guest.shared.decided_for(false) == Decided::Waiting;
        if !is_given_up && self.ask_whether_still_stopped() == Some(false) {
            let _ = self.guest.shared.inbox.send(Input::RanHereToo);
        }
    }

    /// Ends the process of a guest that has left. What it leaves behind is marked and handed over when it has ended. A
    /// copy that an operator gives up, and that does not end, may be resumed.
    pub fn clean_up(&mut self) -> Done {
        self.look_before_it_ends();
        let Guest { qemu, record, description, shared, .. } = &mut self.guest;
        self.downtime_ms = qemu.downtime_ms(Guest::deadline()).ok().flatten();
        let left = LeftoverRam::of(record);
        process::end(record, Some(qemu.qmp()), process::StopMethod::Quit, Guest::deadline())
            .map_err(|error| here(Code::HypervisorFailed, Step::CleanUp, &error))?;
        let copied: Vec<PathBuf> = description.copied.iter().map(|disk| PathBuf::from(&disk.path)).collect();
        if !shared.images_are_newer() {
            disks::mark_stale(&copied, &record.name, &shared.request.to);
        }
        self.registry.hand_files_over(&record.name, &copied);
        self.registry.remove(record).map_err(|error| here(Code::HypervisorFailed, Step::CleanUp, &error))?;
        tracing::info!(guest = record.name, bytes = left.free(), "memory freed that the guest has left");
        shared.note_trouble(None);
        self.guest.send(Event::CleanedUp);
        Ok(())
    }
}

/// What the source's QEMU has is not what the destination was started with.
fn differs(error: &MigrateError) -> Fault {
    let code = match error {
        MigrateError::Devices { .. } => Code::GuestDiffers,
        _ => Code::HypervisorFailed,
    };
    here(code, Step::Blackout, error)
}
