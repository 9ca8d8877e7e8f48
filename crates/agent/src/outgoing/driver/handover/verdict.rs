//! The domain's stream goes to libvirt, whose verdict decides where the domain runs; or the migration is undone before.

use std::time::{Duration, Instant};

use linerate_api::EventKind;
use linerate_core::source::Event;
use linerate_core::{Code, Fault, GuestState, Side, Step};
use linerate_guest::domain;
use linerate_guest::migrate::SourceQemu;
use linerate_guest::process;
use linerate_guest::qmp::QmpError;
use linerate_guest::run_state::RunState;

use super::{Handover, LOOK, POLL};
use crate::faults::chain;
use crate::outgoing::driver::Done;
use crate::outgoing::guest::{Guest, qemu_fault};
use crate::stream_gate::Ending;

/// QEMU ends a migration whose connections are closed, and libvirt resumes the guest.
const RESTORE_WAIT: Duration = Duration::from_secs(30);
/// libvirt, whose job is over, lets the guest run or ends it within moments, if it can.
const ADVICE_WAIT: Duration = Duration::from_secs(1);
const VERDICT_WAIT: Duration = Duration::from_secs(5);

impl Handover {
    /// RAM is sealed: the stream goes. libvirt runs the guest there and ends it here, or resumes it here.
    pub(super) fn release(&mut self) -> Done {
        let step = Step::Commit;
        let gate = self.domain.gate(step)?;
        // QEMU may have completed long ago, as all that it writes is taken: libvirt may have given up since, and
        // resumed the guest.
        if self.run_state(step)? == RunState::Running || !self.has_stopped_for_good()? {
            let detail = "libvirt has given up its migration, and does not hold the guest any more";
            return Err(Fault::new(Code::HypervisorFailed, step, Side::Source, detail));
        }
        self.domain.is_released = true;
        self.domain.notice = None;
        gate.release();
        self.await_verdict()
    }

    /// libvirt's: what becomes of the source's QEMU.
    fn await_verdict(&mut self) -> Done {
        let step = Step::Commit;
        let (mut completed, mut ended) = (false, None);
        while !self.guest.is_abandoned() {
            let status = self.guest.qemu.migration_status(Guest::deadline());
            completed |= status.as_ref().is_ok_and(|status| status == "completed");
            if completed
                && !self.domain.is_restored
                && let Err(error) = self.restore()
            {
                tracing::debug!(error = chain(&error), "the capability is not off yet");
            }
            let runs = self.guest.qemu.status(Guest::deadline());
            match (status, runs) {
                (Ok(status), Ok(RunState::Running)) => {
                    let detail = format!(
                        "libvirt runs the guest here again (its migration is {status}): see that the destination's does not run it \
                         too (`virsh domstate`) before you try again"
                    );
                    return Err(Fault::new(Code::HypervisorFailed, step, Side::Source, detail));
                }
                (Ok(_), Ok(_)) => {
                    self.check_verdict(&mut ended)?;
                    std::thread::sleep(POLL);
                }
                (Err(error), _) | (_, Err(error)) => {
                    if !self.guest.record.process.wait_end(Guest::deadline()) {
                        return Err(qemu_fault(step, &error));
                    }
                    if !completed {
                        let detail = "its QEMU has ended, and had not sent everything when it was last asked";
                        return Err(Fault::new(Code::GuestGone, step, Side::Source, detail));
                    }
                    self.set_restored();
                    self.guest.send(Event::GuestLeft);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The guest is paused. Warns the operator what to do as soon as libvirt cannot decide about it, or does not.
    fn check_verdict(&self, ended: &mut Option<(Instant, bool)>) -> Done {
        let Some(ending) = self.domain.ending() else { return Ok(()) };
        let what = match ending {
            Ending::Finished => "libvirt has ended its migration".to_owned(),
            Ending::LibvirtGone => "this host's libvirt has ended".to_owned(),
            Ending::PeerLost(why) => why,
        };
        let text = format!(
            "{what}, and the domain is paused here: check both hosts with `virsh domstate` (start this host's libvirt again if it has \
             ended). Where the destination's runs it, end the one here (`virsh destroy`, then `virsh undefine` if it \
             is still defined) and never resume it; where the destination's does not know it, `virsh resume` it here"
        );
        let (since, warned) = ended.get_or_insert_with(|| (Instant::now(), false));
        if since.elapsed() > VERDICT_WAIT {
            return Err(Fault::new(Code::HypervisorFailed, Step::Commit, Side::Source, text));
        }
        if since.elapsed() > ADVICE_WAIT && !std::mem::replace(warned, true) {
            self.guest.shared.event_log.publish(EventKind::Warning { text });
        }
        Ok(())
    }

    /// QEMU's migration fails when its connections are closed, and libvirt resumes or ends the guest.
    pub(super) fn give_up(&mut self) {
        self.ram.detach();
        self.domain.close("the migration was given up");
        let deadline = Instant::now() + RESTORE_WAIT;
        let mut done = self.restore();
        while done.is_err() && self.guest.record.is_alive() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
            done = self.restore();
        }
        self.domain.allow_end();
        let guest = match (done, self.guest.record.is_alive()) {
            (_, false) => self.gone(),
            (Ok(()), true) => self.guest_again(deadline),
            (Err(error), true) => {
                tracing::error!(
                    error = chain(&error),
                    "x-ignore-shared may still be on: do not save this domain; the next start of the agent tries again"
                );
                self.guest_again(deadline)
            }
        };
        self.domain.notice = None;
        self.guest.send(Event::RolledBack { guest, complete: true });
    }

    /// Switches the capability off, if it was switched on here; refused as long as QEMU migrates.
    fn restore(&mut self) -> Result<(), QmpError> {
        if self.domain.was_set {
            let off = domain::ignore_shared(self.guest.qemu.qmp(), false, Guest::deadline());
            if let Err(error) = &off
                && !matches!(error, QmpError::Refused { .. })
                && let Ok(qmp) = process::connect(&self.guest.record, Guest::deadline())
            {
                self.guest.qemu = SourceQemu::recovered(qmp, true, None, false);
            }
            off?;
        }
        self.set_restored();
        Ok(())
    }

    /// The guest's state, once libvirt has had time to resume it. One that is paused here after its stream was released
    /// may run at the destination.
    fn guest_again(&mut self, deadline: Instant) -> GuestState {
        loop {
            match self.guest.qemu.status(Guest::deadline()) {
                Ok(RunState::Running) => return GuestState::RunsAtSource,
                _ if !self.guest.record.is_alive() => return self.gone(),
                _ if Instant::now() < deadline => std::thread::sleep(LOOK),
                _ if self.domain.is_released => return GuestState::Unknown,
                _ => return GuestState::PausedAtSource,
            }
        }
    }

    /// The guest's process has ended here, and the reason is not known.
    fn gone(&self) -> GuestState {
        if self.domain.is_released { GuestState::Unknown } else { GuestState::Gone }
    }
}
