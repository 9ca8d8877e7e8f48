//! Several sessions of one guest between the same two hosts, there and back. Both hosts keep their journals and what is
//! left of earlier sessions: a session may begin while recovery is still busy with one before it.

use std::time::Duration;

use linerate_core::Side;

use crate::check::{Options, Property, Violation};
use crate::faults::{self, FaultKind};
use crate::guest::Sending;
use crate::world::{SimEvent, World};

/// A host comes back within this, and a full disk is looked after.
const LATE: Duration = Duration::from_secs(1800);

impl World {
    /// Sessions until there is no guest to move, or enough; then one without faults, which must succeed.
    pub fn live_through(&mut self) -> Result<(), Box<Violation>> {
        self.harden();
        self.run()?;
        for _ in 0..self.random.between(1, 4) {
            if self.check.is_split || !self.next_session() {
                return Ok(());
            }
            self.scenario.faults = faults::draw(&mut self.random, self.links.len(), self.options.focus);
            self.scenario.stale = self.random.percent(4);
            self.harden();
            self.fired = vec![false; self.scenario.faults.len()];
            self.case_actions = 0;
            self.note(|| String::from("---- next session"));
            self.run()?;
        }
        self.patient = true;
        self.settle()?;
        if !self.check.is_split && self.next_session() {
            self.without_faults();
            self.note(|| String::from("---- last session, without faults"));
            self.run()?;
        }
        Ok(())
    }

    /// Some faults last for hours, and some sessions are not waited for.
    fn harden(&mut self) {
        for nth in 0..self.scenario.faults.len() {
            if !self.random.percent(5) {
                continue;
            }
            let late = self.random.micros(30_000_000, LATE.as_micros() as u64);
            let fault = &mut self.scenario.faults[nth];
            fault.back_after = late;
            if let FaultKind::JournalFull(_, span)
            | FaultKind::DisksAway(_, span)
            | FaultKind::HypervisorsAway(_, span) = &mut fault.kind
            {
                *span = late;
            }
        }
        self.patient = self.random.percent(50);
    }

    /// Nothing goes wrong any more.
    pub fn without_faults(&mut self) {
        self.links = self.scenario.links.clone();
        self.scenario.faults.clear();
        self.scenario.stale = false;
        self.fired.clear();
        (self.retrying, self.patient) = (true, true);
        self.repair_all();
    }

    /// Whether a session may begin although an earlier one is not at its end on both hosts: neither has hold of the
    /// guest.
    pub fn goes_on(&self) -> bool {
        let over =
            self.source.machine.is_none() && self.source.decided.is_some() && self.destination.is_idle();
        !self.patient
            && over
            && self.owner().is_some_and(|(pid, host)| self.hosts[host].up && !self.hosts[host].claims(pid))
    }

    /// The process that has the guest, if it is certain which one does.
    fn owner(&self) -> Option<(u64, usize)> {
        let mut owners = self.all().filter(|guest| guest.owned && guest.current);
        let owner = owners.next().filter(|guest| guest.disks && guest.sending == Sending::No)?;
        owners.next().is_none().then_some((owner.pid, owner.host))
    }

    /// The guest is to leave again from where it is. False if it is nowhere.
    fn next_session(&mut self) -> bool {
        let Some((pid, host)) = self.owner() else { return false };
        let version = self.guest.version();
        if !self.guest.gone {
            self.parked.push(self.guest.clone());
        }
        self.parked.extend(self.destination.guest.take());
        let Some(at) = self.parked.iter().position(|guest| guest.pid == pid) else { return false };
        self.guest = self.parked.swap_remove(at);
        self.guest.settles(version);
        self.roles = [host, 1 - host];
        self.leave_queue();
        self.connections.clear();
        self.renew();
        self.operator_between();
        true
    }

    /// What is in progress for sessions that are brought to their end goes on.
    fn leave_queue(&mut self) {
        self.queue.retain(|_, happening| {
            matches!(
                happening,
                SimEvent::Asked { .. }
                    | SimEvent::Answered { .. }
                    | SimEvent::Recovers { .. }
                    | SimEvent::SendRollBackNotice { .. }
                    | SimEvent::RollBackNoticeArrives { .. }
                    | SimEvent::RollBackNoticeAnswered { .. }
                    | SimEvent::Restart(_)
                    | SimEvent::LinkRestored(_)
                    | SimEvent::OperatorDecides { .. }
            )
        });
    }

    fn operator_between(&mut self) {
        if !self.wanted && self.random.percent(50) {
            self.operator_resumes();
        } else if self.wanted && self.random.percent(10) {
            self.operator_pauses();
        }
        let side = if self.random.percent(50) { Side::Source } else { Side::Destination };
        let at = self.at(side);
        self.hosts[at].clock_off += self.random.below(7200) as i64 - 3600;
    }

    /// Everything that is left of any session comes to its end.
    fn settle(&mut self) -> Result<(), Box<Violation>> {
        self.continue_run()
    }

    /// Whether this run goes through a history.
    pub fn is_history(&self) -> bool {
        let Options { histories, .. } = self.options;
        histories
    }

    /// A run that does not come to its end.
    pub fn does_not_end(&mut self, bound: Duration) {
        let state = self.describe();
        self.check.that(false, Property::Ends, || format!("not over after {bound:?}: {state}"));
    }
}
