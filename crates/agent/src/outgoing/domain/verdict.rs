//! The domain's stream goes to libvirt, whose verdict decides where the domain runs; or the move is undone before.

use std::sync::atomic::Ordering;
use std::time::Instant;

use linerate_api::EventKind;
use linerate_core::source::Event;
use linerate_core::{Code, Fault, GuestState, Side, Step};
use linerate_guest::domain;
use linerate_guest::migrate::SourceQemu;
use linerate_guest::process;
use linerate_guest::run_state::RunState;

use super::{ADVICE_WAIT, LET_GO_WAIT, LOOK, OutgoingDomain, POLL, VERDICT_WAIT, ended};
use crate::faults::chain;
use crate::gate::Ending;
use crate::outgoing::worker::{State, qemu_fault};

impl State {
    /// RAM is sealed: the stream goes. libvirt runs the guest there and ends it here, or lets it run here again.
    pub(in crate::outgoing) fn let_through(&mut self) -> Result<(), Fault> {
        let step = Step::Commit;
        let gate = self.gate(step)?;
        // QEMU may have completed long ago, as all that it writes is taken: libvirt may have given up since, and let
        // the guest run.
        let status = self.guest.qemu.status(Self::deadline()).map_err(|error| qemu_fault(step, &error))?;
        if status == RunState::Running || !self.has_stopped_for_good()? {
            let detail = "libvirt has given up its migration, and the guest does not stand any more";
            return Err(Fault::new(Code::HypervisorFailed, step, Side::Source, detail));
        }
        if let Some(domain) = &self.shared.domain {
            domain.let_through.store(true, Ordering::SeqCst);
            domain.forget();
        }
        gate.release();
        self.await_verdict()
    }

    /// libvirt's: what becomes of the source's QEMU.
    fn await_verdict(&mut self) -> Result<(), Fault> {
        let step = Step::Commit;
        let (mut completed, mut ended) = (false, None);
        while !self.is_abandoned() {
            let status = self.guest.qemu.migration_status(Self::deadline());
            completed |= status.as_ref().is_ok_and(|status| status == "completed");
            if completed
                && !self.shared.domain.as_ref().is_some_and(OutgoingDomain::is_put_back)
                && let Err(error) = self.put_back_domain()
            {
                tracing::debug!(error, "the capability is not off yet");
            }
            let runs = self.guest.qemu.status(Self::deadline());
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
                    if !self.guest.record.process.wait_end(Self::deadline()) {
                        return Err(qemu_fault(step, &error));
                    }
                    if !completed {
                        let detail = "its QEMU has ended, and had not sent everything when it was last asked";
                        return Err(Fault::new(Code::GuestGone, step, Side::Source, detail));
                    }
                    if let Some(domain) = &self.shared.domain {
                        domain.is_off();
                    }
                    self.shared.tell(Event::GuestLeft);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// The guest stands. Says what to do as soon as libvirt cannot, or does not, say what becomes of it.
    fn check_verdict(&self, ended: &mut Option<(Instant, bool)>) -> Result<(), Fault> {
        let Some(ending) = self.shared.domain.as_ref().and_then(OutgoingDomain::ending) else {
            return Ok(());
        };
        let what = match ending {
            Ending::Said => "libvirt has ended its migration".to_owned(),
            Ending::LibvirtGone => "this host's libvirt is gone".to_owned(),
            Ending::Cut(why) => why,
        };
        let text = format!(
            "{what}, and the domain stands here: look at both hosts with `virsh domstate` (start this host's libvirt again if it is \
             gone). Where the destination's runs it, end the one here (`virsh destroy`) and never resume it; where the destination's \
             does not know it, `virsh resume` it here"
        );
        let (since, told) = ended.get_or_insert_with(|| (Instant::now(), false));
        if since.elapsed() > VERDICT_WAIT {
            return Err(Fault::new(Code::HypervisorFailed, Step::Commit, Side::Source, text));
        }
        if since.elapsed() > ADVICE_WAIT && !std::mem::replace(told, true) {
            self.shared.hub.publish(EventKind::Warning { text });
        }
        Ok(())
    }

    /// QEMU's migration fails when its connections are shut, and libvirt sees to the guest. Each part is tried whatever
    /// became of the others.
    pub(in crate::outgoing) fn roll_back_domain(&mut self) -> Result<(), Fault> {
        self.throttle_percent = 0;
        self.detach();
        let let_through =
            self.shared.domain.as_ref().is_some_and(|domain| domain.let_through.load(Ordering::SeqCst));
        if let Some(domain) = &self.shared.domain {
            domain.shut("the migration was given up");
        }
        let deadline = Instant::now() + LET_GO_WAIT;
        let mut done = self.put_back_domain();
        while done.is_err() && self.guest.record.is_alive() && Instant::now() < deadline {
            std::thread::sleep(LOOK);
            done = self.put_back_domain();
        }
        if let Some(domain) = &self.shared.domain {
            domain.let_end();
        }
        let guest = match (done, self.guest.record.is_alive()) {
            (_, false) => ended(let_through),
            (Ok(()), true) => self.guest_again(deadline, let_through),
            (Err(error), true) => {
                tracing::error!(
                    error,
                    "x-ignore-shared may still be on: do not save this domain; the next start of the agent tries again"
                );
                self.guest_again(deadline, let_through)
            }
        };
        if let Some(domain) = &self.shared.domain {
            domain.forget();
        }
        self.shared.tell(Event::RolledBack { guest, complete: true });
        Ok(())
    }

    /// Switches the capability off, if it was switched on here; refused as long as QEMU migrates.
    fn put_back_domain(&mut self) -> Result<(), String> {
        if let Some(domain) = self.shared.domain.as_ref().filter(|domain| !domain.set.load(Ordering::SeqCst))
        {
            domain.is_off();
            return Ok(());
        }
        let off = domain::ignore_shared(self.guest.qemu.qmp(), false, Self::deadline());
        if let Err(error) = &off
            && !matches!(error, linerate_guest::qmp::QmpError::Refused { .. })
            && let Ok(qmp) = process::connect(&self.guest.record, Self::deadline())
        {
            self.guest.qemu = SourceQemu::recovered(qmp, true, None, false);
        }
        off.map_err(|error| chain(&error))?;
        if let Some(domain) = &self.shared.domain {
            domain.is_off();
        }
        Ok(())
    }

    /// What the guest does, once libvirt has had its time to let it run. One that is paused here after its stream was
    /// released may run at the destination.
    fn guest_again(&mut self, deadline: Instant, let_through: bool) -> GuestState {
        loop {
            match self.guest.qemu.status(Self::deadline()) {
                Ok(RunState::Running) => return GuestState::RunsAtSource,
                _ if !self.guest.record.is_alive() => return ended(let_through),
                _ if Instant::now() >= deadline && let_through => return GuestState::Unknown,
                _ if Instant::now() >= deadline => return GuestState::PausedAtSource,
                _ => std::thread::sleep(LOOK),
            }
        }
    }

    /// It has left: its process here has ended, and with it what was set in it.
    pub(in crate::outgoing) fn forget_domain(&mut self) -> Result<(), Fault> {
        self.detach();
        if let Some(domain) = &self.shared.domain {
            domain.is_off();
        }
        self.shared.tell(Event::CleanedUp);
        Ok(())
    }
}
