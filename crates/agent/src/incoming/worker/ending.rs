//! How it ends: the guest runs here, or nothing of it stays.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use linerate_core::destination::Event;
use linerate_core::recovery::{RUN_AGAIN_AFTER, RUN_FOR};
use linerate_core::{Code, Fault, Step};
use linerate_guest::migrate::TakeOverResult;
use linerate_guest::process::{self, StopMethod};
use linerate_guest::{images, leftovers};

use super::{QMP_WAIT, State, here, internal};
use crate::clock::cpu_time;
use crate::faults::chain;

impl State {
    /// The journal says that the guest is ours. What becomes of that is told in one of three events.
    pub(super) fn run_guest(&mut self, ran: bool, cpu_before: Duration) {
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
        // A command whose answer is lost may have been carried out: a later refusal does not say that the guest never
        // ran.
        let mut may_have_run = false;
        loop {
            let Some((record, qemu)) = &mut self.guest else {
                return Err(Event::CannotRun(internal("no hypervisor holds the guest")));
            };
            let error = match qemu.take_over(ran, Instant::now() + QMP_WAIT) {
                TakeOverResult::Done => return Ok(()),
                TakeOverResult::Refused(error) if Instant::now() >= end && !may_have_run => {
                    return Err(Event::CannotRun(here(Code::HypervisorFailed, Step::Commit, &error)));
                }
                TakeOverResult::Unknown(error) if !record.is_alive() => {
                    return Err(Event::GuestEnded(here(Code::GuestGone, Step::Commit, &error)));
                }
                TakeOverResult::Unknown(error) => {
                    may_have_run = true;
                    if !error.is_late() {
                        qemu.qmp().hang_up();
                        if let Ok(qmp) = process::connect(record, Instant::now() + QMP_WAIT) {
                            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
                            let ran = waiting.ran_since_commit(record.process.pid) == Some(true);
                            qemu.reconnect(qmp, ran);
                        }
                    }
                    error
                }
                TakeOverResult::Refused(error) => error,
            };
            tracing::error!(error = chain(&error), "the guest is ours and cannot be run yet");
            std::thread::sleep(RUN_AGAIN_AFTER);
        }
    }

    /// QEMU serves one QMP client at a time, and a session whose source died waits a minute for its last word: whoever
    /// wants to see or move the guest must not wait for that.
    pub(super) fn leave_running(&mut self) {
        if let Some((_, mut qemu)) = self.guest.take() {
            qemu.settle(Instant::now() + QMP_WAIT);
        }
        self.writer = None;
        if let Some(admitted) = &self.admitted {
            admitted.images.are_the_guests();
            let _ = std::fs::remove_file(admitted.folder.join("state.sock"));
        }
    }

    /// Ends the incoming QEMU and removes everything of it. Nothing but this session's own is touched.
    pub(super) fn tear_down(&mut self) -> Result<(), Fault> {
        self.writer = None;
        self.shared.fences.close_all();
        let admitted = self.admitted.take();
        match (self.guest.take(), &admitted) {
            (Some((record, mut qemu)), _) => {
                if self.shared.carriage.get().is_some()
                    && let Err(error) = record.kill()
                {
                    // A QEMU whose streams were reset may not answer for long. It has never run; the rest is tried all
                    // the same.
                    tracing::warn!(
                        error = chain(&error),
                        guest = record.name,
                        "the waiting guest was not killed"
                    );
                }
                let end = |qmp| {
                    let deadline = Instant::now() + QMP_WAIT;
                    process::stop(&self.sessions.registry, &record, qmp, StopMethod::Quit, deadline)
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
                if let Err(error) = leftovers::remove_reserved(&self.sessions.registry, &admitted.twin.name) {
                    tracing::error!(
                        error = chain(&error),
                        "what was made for the guest could not be removed"
                    );
                }
            }
            (None, None) => {}
        }
        // By what was admitted, as the list in the guest's folder goes with a QEMU that did not come up; the claim goes
        // behind it.
        if let Some(admitted) = admitted {
            admitted.images.discard();
        }
        self.shared.tell(Event::Discarded);
        Ok(())
    }
}
