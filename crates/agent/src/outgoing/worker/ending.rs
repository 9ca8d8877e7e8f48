//! What the worker does with the guest at the end: lets it run as before, or ends its process.

use std::path::PathBuf;
use std::sync::PoisonError;
use std::time::Duration;

use linerate_core::source::Event;
use linerate_core::{Code, Fault, GuestState, Side, Step};
use linerate_guest::leftover_ram::LeftoverRam;
use linerate_guest::process;

use super::State;
use crate::disks;
use crate::faults::{chain, fault};
use crate::outgoing::Input;

/// Further tries to take a guest back whose QEMU did not do it at once.
const TAKE_BACK_TRIES: u32 = 5;

impl State {
    /// Rule 2. Each part is tried whatever became of the others.
    pub(in crate::outgoing) fn roll_back(&mut self) -> Result<(), Fault> {
        self.throttle_percent = 0;
        self.detach();
        let mut done = self.guest.qemu.cancel_and_resume(Self::deadline());
        for number in 0..TAKE_BACK_TRIES {
            let Err(error) = &done else { break };
            let is_answer = error.is_answer();
            tracing::warn!(error = chain(error), "the guest could not be taken back; trying again");
            if number > 0 || is_answer {
                std::thread::sleep(Duration::from_secs(1));
            }
            if is_answer || self.connect_again() {
                done = self.guest.qemu.cancel_and_resume(Self::deadline());
            }
        }
        let runs = done.and_then(|()| self.guest.qemu.runs(Self::deadline()));
        let alive = self.guest.record.is_alive();
        let (guest, complete) = match runs {
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
        self.drop_stream();
        self.shared.tell(Event::RolledBack { guest, complete });
        Ok(())
    }

    /// A connection that broke in the middle of a command is of no use: a fresh one may be.
    fn connect_again(&mut self) -> bool {
        self.guest.qemu.qmp().hang_up();
        match process::connect(&self.guest.record, Self::deadline()) {
            Ok(qmp) => self.guest.qemu.reconnect(qmp),
            Err(error) => {
                tracing::warn!(error = chain(&error), "its QEMU does not answer");
                return false;
            }
        }
        true
    }

    /// Commit may be said of a guest that is still what the destination was prepared for. Nobody may have let
    /// it run here: what it did then is not at the destination. A QEMU that has ended, or does not answer, lets nothing
    /// run.
    pub(in crate::outgoing) fn check_stands(&mut self) -> Result<(), Fault> {
        if let Err(fault) = self.check_unchanged() {
            if self.guest.record.can_run() {
                return Err(fault);
            }
            return Err(self.ended_unchecked(&fault));
        }
        let stands = self.guest.qemu.still_stands(Self::deadline());
        if let Err(error) = &stands {
            tracing::debug!(error = chain(error), "the source's QEMU does not say what its guest does");
        }
        let _ = self.shared.inbox.send(Input::Stands(stands.unwrap_or(true)));
        Ok(())
    }

    /// The destination's copy is the only one, so it is not told to give it up. Nobody knows whether it has the right
    /// disks, so an operator decides. The core takes the first answer as the loss of this copy, and the second as the
    /// end.
    fn ended_unchecked(&self, fault: &Fault) -> Fault {
        let record = &self.guest.record;
        let gone = format!(
            "the QEMU of {} (process {}) has ended: {}",
            record.name, record.process.pid, fault.detail
        );
        self.shared.tell(Event::Failed(Fault::new(Code::GuestGone, Step::Commit, Side::Source, gone)));
        let detail = format!(
            "the source's QEMU ended before its disks and devices were compared with those of the beginning; {} keeps the guest \
             complete and paused: see there that its disks are the right ones, then `linerate resolve --resume-here`, or --give-up",
            self.shared.request.to
        );
        Fault::new(Code::GuestDiffers, Step::Commit, Side::Source, detail)
    }

    pub(in crate::outgoing) fn clean_up(&mut self) -> Result<(), Fault> {
        self.detach();
        self.drop_stream();
        let copied: Vec<PathBuf> =
            self.guest.description.copied.iter().map(|disk| disk.path.clone().into()).collect();
        disks::leave_stale(&copied, &self.guest.record.name, &self.shared.request.to);
        let downtime = self.guest.qemu.downtime_ms(Self::deadline()).ok().flatten();
        *self.qemu_downtime_ms.lock().unwrap_or_else(PoisonError::into_inner) = downtime;
        let (registry, record) = (&self.guest.registry, &self.guest.record);
        let how = process::StopMethod::Quit;
        let left = LeftoverRam::of(record);
        let qmp = Some(self.guest.qemu.qmp());
        process::stop(registry, record, qmp, how, Self::deadline())
            .map_err(|error| fault(Code::HypervisorFailed, Step::CleanUp, Side::Source, &error))?;
        tracing::info!(guest = record.name, bytes = left.free(), "memory given back that the guest has left");
        self.shared.tell(Event::CleanedUp);
        Ok(())
    }
}
