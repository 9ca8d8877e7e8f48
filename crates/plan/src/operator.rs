//! The operator: decides where no agent does, by what both hosts show; pauses guests and lets them run again.

use std::time::Duration;

use linerate_core::journal::{DestinationPhase, SourcePhase};
use linerate_core::recovery::Phase;
use linerate_core::{ModeTag, Outcome, Time, destination};

use crate::cases::SessionMachine;
use crate::check::{Mutation, Property};
use crate::guest::Sending;
use crate::hosts::Machine;
use crate::world::World;

/// By then all that was in the way has been overcome.
const SETTLES: Duration = Duration::from_secs(15);

/// What `migration list` shows of a session at a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OperatorView {
    /// It is not in the list.
    Nothing,
    /// It is in progress, or being brought to its end.
    Busy,
    /// It waits for the other side's answer, or for an operator's decision.
    InDoubt,
}

/// Sessions in doubt for longer are looked into.
const PATIENCE: Duration = Duration::from_secs(40);

impl World {
    /// Looks at everything that is in doubt for too long.
    pub fn operator_looks(&mut self) {
        if self.scenario.mode == ModeTag::Handover {
            return;
        }
        self.two_operators_look();
        self.looks_at_live_sessions();
        for host in 0..2 {
            let late = |since: Time| self.now - since >= PATIENCE;
            let cases: Vec<u64> =
                self.hosts[host].cases.iter().filter(|(_, case)| late(case.since)).map(|(s, _)| *s).collect();
            for session in cases {
                self.looks_at_case(host, session);
            }
        }
    }

    /// A loaded guest is given up after a while if its source does not answer.
    fn gives_up_loaded(&mut self) {
        if self.options.mutation == Some(Mutation::LoadedGivenUp)
            && self.destination.machine.as_ref().is_some_and(|machine| machine.is_held())
            && self.in_doubt_since.is_some_and(|since| self.now - since >= PATIENCE / 4)
        {
            self.handle_destination(destination::Event::RolledBackAtSource);
        }
    }

    fn looks_at_live_sessions(&mut self) {
        self.gives_up_loaded();
        let now = self.now;
        let [from, to] = self.roles;
        let in_doubt = self.source.machine.as_ref().is_some_and(|machine| machine.is_in_doubt());
        let held = self.destination.machine.as_ref().is_some_and(|machine| machine.is_held());
        if !in_doubt && !held {
            self.in_doubt_since = None;
            return;
        }
        if now - *self.in_doubt_since.get_or_insert(now) < PATIENCE {
            return;
        }
        let session = self.session;
        let asked = [from, to]
            .map(|host| self.awaits_answer(host, session) || self.is_let_run_elsewhere(host, session));
        if in_doubt
            && !asked[0]
            && let Some(resume) = self.decision_at_source(from, session)
        {
            self.note(|| format!("the operator decides at the source: {resume}"));
            self.decide(from, session, resume);
            return;
        }
        if held
            && !asked[1]
            && let Some(run) = self.decision_at_destination(to, session)
        {
            self.note(|| format!("the operator decides at the destination: {run}"));
            self.decide(to, session, run);
        }
    }

    /// The operator has just let the guest run on the other host, and waits for the answer.
    fn is_let_run_elsewhere(&self, host: usize, session: u64) -> bool {
        let decisions = &self.hosts[1 - host].decisions;
        decisions.iter().any(|decision| decision.session == session && decision.here)
    }

    fn looks_at_case(&mut self, host: usize, session: u64) {
        if self.awaits_answer(host, session) || self.is_let_run_elsewhere(host, session) {
            return;
        }
        let Some(case) = self.case(host, session) else { return };
        match case {
            Machine::Source(machine)
                if machine.is_in_doubt() && machine.answer() != Some(Outcome::Committed) =>
            {
                let Some(resume) = self.decision_at_source(host, session) else { return };
                self.note(|| format!("host {host}, session {session}: the operator decides: {resume}"));
                self.decide(host, session, resume);
            }
            Machine::Destination(machine) if machine.is_waiting() => {
                let Some(run) = self.decision_at_destination(host, session) else { return };
                self.note(|| format!("host {host}, session {session}: the operator decides: {run}"));
                self.decide(host, session, run);
            }
            Machine::Destination(machine) if machine.is_held() => self.decides_over_held(host, session),
            _ => {}
        }
    }

    /// It may have run: the operator paused it, and lets it go on. Or it is given up, in the belief that the source has
    /// its copy. What it did here is not given up for an older copy.
    fn decides_over_held(&mut self, host: usize, session: u64) {
        let here = self.process_of(host, session);
        let older = self.all().any(|guest| Some(guest.pid) != here && !guest.current);
        let is_free = !older && !self.check.resolved.contains(&session);
        // One of two operators has had it resumed at the source.
        let runs_there = self.all().any(|guest| Some(guest.pid) != here && guest.running);
        let is_revoked = matches!(
            self.case(host, session),
            Some(Machine::Destination(machine)) if machine.is_rolled_back_at_source()
        );
        let run = !(runs_there
            || self.is_paused_elsewhere(here)
            || is_revoked
            || is_free && self.random.percent(50));
        self.note(|| format!("host {host}, session {session}: the operator lets it run: {run}"));
        if run {
            (self.wanted, self.paused_since) = (true, true);
            // The operator asserts that the source's copy does not run.
            self.check.run_there.insert(session);
        }
        self.decide(host, session, run);
    }

    /// An operator has paused the guest in another process than `here`, which has it.
    pub fn is_paused_elsewhere(&self, here: Option<u64>) -> bool {
        let has_guest = |pid: u64| self.find(pid).is_some_and(|guest| guest.owned && guest.current);
        self.check.paused.iter().any(|pid| Some(*pid) != here && has_guest(*pid))
    }

    /// The process that the record of a session names, if it is alive.
    pub fn process_of(&self, host: usize, session: u64) -> Option<u64> {
        let pid = self.hosts[host].record(session).and_then(|record| record.process);
        pid.filter(|pid| self.is_alive(*pid))
    }

    /// What the operator sees of a session at a host whose agent answers.
    fn sees(&self, host: usize, session: u64) -> Option<OperatorView> {
        if !self.hosts[host].up {
            return None;
        }
        let in_doubt = |is: bool| Some(if is { OperatorView::InDoubt } else { OperatorView::Busy });
        match self.machine_of(host, session) {
            Some(SessionMachine::Source(machine)) => in_doubt(machine.is_in_doubt()),
            Some(SessionMachine::Destination(machine)) if !machine.is_ended() => in_doubt(machine.is_held()),
            Some(SessionMachine::Recovery(case)) => in_doubt(match case {
                Machine::Source(machine) => machine.is_in_doubt(),
                Machine::Destination(machine) => machine.is_waiting(),
                Machine::Setting(_) | Machine::Domain(_) => false,
            }),
            _ => Some(OperatorView::Nothing),
        }
    }

    /// Commit was sent. If the other copy has ended, this one is all that is left; if it runs, this one is of no use.
    /// If it only waits for a decision, the operator may take either. While it is busy, an impatient one gives this
    /// copy up; to let this one run would be to run both.
    fn decision_at_source(&mut self, host: usize, session: u64) -> Option<bool> {
        // Another program ran the guest here: nothing is asked any more, so somebody has to decide.
        let ran_here = self.hosts[host].record(session).is_some_and(|record| record.ran_here)
            || self.hosts[host].ran_here.contains(&session);
        if let Some(there) = self.process_of(1 - host, session) {
            if self.find(there).is_some_and(|guest| guest.running) {
                return Some(false);
            }
            let view = self.sees(1 - host, session);
            let waits = view == Some(OperatorView::InDoubt);
            self.check_needed(waits && !ran_here);
            if self.check.given_up_there.contains(&session) {
                return None;
            }
            return match view {
                Some(OperatorView::InDoubt) => self.random.percent(50).then_some(true),
                Some(OperatorView::Busy) if self.random.percent(20) => Some(false),
                _ => None,
            };
        }
        self.check_needed(!ran_here && !self.check.given_up_there.contains(&session));
        let here = self.process_of(host, session).and_then(|pid| self.find(pid));
        Some(here.is_some_and(|guest| guest.current))
    }

    /// Where both hosts can talk and work, and no copy was lost, no session waits for an operator.
    fn check_needed(&mut self, asks_him: bool) {
        let works = self.now - self.troubled_at >= SETTLES;
        self.check.that(!asks_him || !works || self.check.lost, Property::Ends, || {
            format!("an operator has to decide, and nothing has prevented it for {SETTLES:?}")
        });
    }

    /// A source that has its guest back goes on notifying the destination until it answers.
    fn check_notified(&mut self, host: usize, session: u64) {
        let source = &self.hosts[host];
        let notice_due = source.record(session).is_some_and(|record| record.notice_due);
        let notifies = notice_due
            || source.notice_due.get(&session) == Some(&true)
            || source.roll_back_notices.contains_key(&session);
        self.check.that(notifies, Property::Ends, || {
            String::from(
                "a source rolled back, and the destination is not notified, and keeps a complete guest",
            )
        });
    }

    /// The guest is complete here. Whether it is run depends on whether the source's copy is left, and on what is
    /// reported of it.
    fn decision_at_destination(&mut self, host: usize, session: u64) -> Option<bool> {
        let resumed_here = self.check.resolved.contains(&session);
        let source = self.sees(1 - host, session);
        let runs_there = self
            .process_of(1 - host, session)
            .and_then(|pid| self.find(pid))
            .is_some_and(|guest| guest.running);
        let phase = self.hosts[1 - host].record(session).map(|record| record.phase);
        let current =
            self.process_of(host, session).and_then(|pid| self.find(pid)).is_some_and(|guest| guest.current);
        match (self.process_of(1 - host, session), phase) {
            // What another guest's copy has become since, only that one's host knows.
            (None, _) => Some(current && !self.all().any(|guest| guest.running)),
            (Some(_), Some(Phase::Source(SourcePhase::RolledBack))) => {
                self.check_notified(1 - host, session);
                Some(false)
            }
            (Some(_), _) if runs_there && source == Some(OperatorView::Nothing) => Some(false),
            // The source waits, and receives the answer.
            (Some(_), _) if source == Some(OperatorView::InDoubt) && !resumed_here => {
                self.random.percent(50).then_some(true)
            }
            (Some(_), _) => None,
        }
    }

    /// Stops the guest where it runs.
    pub fn operator_pauses(&mut self) {
        let Some(pid) = self.all().find(|guest| guest.running).map(|guest| guest.pid) else { return };
        if self.scenario.mode == ModeTag::Handover || self.destination.unsure {
            return;
        }
        self.wanted = false;
        self.note(|| format!("the operator pauses process {pid}"));
        self.check.paused.insert(pid);
        if let Some(guest) = self.find_mut(pid) {
            guest.running = false;
        }
    }

    /// Lets the guest run where it was paused, if no session has hold of it.
    pub fn operator_resumes(&mut self) {
        self.wanted = true;
        let paused =
            |guest: &&crate::guest::Guest| guest.owned && guest.disks && guest.current && guest.ran.is_none();
        let pid =
            self.all().find(|guest| paused(guest) && guest.sending == Sending::No).map(|guest| guest.pid);
        let Some(pid) = pid.filter(|_| !self.all().any(|guest| guest.running)) else { return };
        self.check.paused.remove(&pid);
        if let Some(guest) = self.find_mut(pid) {
            (guest.running, guest.executed) = (true, true);
        }
    }

    /// A phase for the report of a run that does not end.
    pub fn phases(&self) -> Vec<(usize, u64, Phase, Option<u64>)> {
        let of = |host: usize| {
            let records = self.hosts[host].journal.iter();
            records.map(move |(session, record)| (host, *session, record.phase, record.process))
        };
        let over = |phase: &Phase| {
            matches!(
                phase,
                Phase::Source(SourcePhase::Finished | SourcePhase::RolledBack)
                    | Phase::Destination(DestinationPhase::Finished | DestinationPhase::Aborted)
            )
        };
        of(0).chain(of(1)).filter(|(_, _, phase, _)| !over(phase)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Options;
    use crate::hosts::Known;
    use linerate_core::recovery::{DestinationEvent, Inspection};

    /// Its source has ended its copy, and the destination could not write that it runs.
    #[test]
    fn the_only_copy_is_not_given_up_whatever_its_operator_believes() {
        for seed in 0..20 {
            let mut world = World::new(seed, Options::default());
            let (now, pid) = (world.now, world.guest.pid);
            let known = Known { process: Some(pid), ..Known::default() };
            assert!(world.hosts[1].write(now, 1, Phase::Destination(DestinationPhase::Committed), known));
            world.hosts[1].forget();
            world.restart(1);
            world.handle_destination_case(1, 1, DestinationEvent::Inspected(Inspection::MayHaveRun));
            let case = world.hosts[1].cases.get(&1).map(|case| &case.machine);
            assert!(matches!(case, Some(Machine::Destination(machine)) if machine.is_held()), "{case:?}");
            world.looks_at_case(1, 1);
            assert!(world.check.given_up_there.is_empty(), "seed {seed}: no other copy is left");
        }
    }
}
