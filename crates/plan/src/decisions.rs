//! What operators are told: they decide as with `linerate resolve`, and the agent answers when it knows what became of
//! the decision. Who was told that it is done must find it so. Also two operators, one at each host, who see their own
//! host only.

use std::collections::BTreeSet;
use std::time::Duration;

use linerate_core::journal::{Decided, DestinationPhase, SourcePhase};
use linerate_core::recovery::{DestinationEvent, Phase, SourceEvent};
use linerate_core::{Side, destination, source};

use crate::cases::SessionMachine;
use crate::check::{Answer, Decision, Mutation, Property};
use crate::faults::{self, Fault};
use crate::hosts::Machine;
use crate::world::{SimEvent, World};

/// As the agent's API: by then an operator is told that the decision still waits.
const DECISION_WAIT: Duration = Duration::from_secs(25);
/// Where both hosts can talk and work for so long, a destination hears within it that its source has its guest. A
/// second less than the decision waits: that the hosts work is looked at now and then.
const HEARD_WITHIN: Duration = Duration::from_secs(19);
/// A held guest is given up for a copy that its source has reported so long ago at most; and a report takes a moment.
const REPORTED_WITHIN: Duration = Duration::from_secs(6);

impl World {
    // ---- deciding ----

    /// An operator decides, and waits for the answer. Whether the agent has taken the decision.
    pub fn decide(&mut self, host: usize, session: u64, here: bool) -> bool {
        let decision = Decision {
            host,
            session,
            here,
            is_live: !self.hosts[host].cases.contains_key(&session),
            since: self.now,
            pid: self.process_of(host, session),
        };
        if !self.takes(&decision) {
            // It never ran, and cannot run any more: its source gets it back.
            let waits =
                matches!(self.case(host, session), Some(Machine::Destination(one)) if one.is_waiting());
            if waits && here && decision.pid.is_none() {
                self.handle_destination_case(host, session, DestinationEvent::ProcessEnded);
            }
            self.tell(decision, Answer::Refused);
            return false;
        }
        self.accept(decision);
        self.deliver(host, session, here);
        self.answer_operators();
        true
    }

    /// The operator of a host waits for the agent's answer.
    pub fn awaits_answer(&self, host: usize, session: u64) -> bool {
        self.hosts[host].decisions.iter().any(|decision| decision.session == session)
    }

    /// The checks of the agent's `resolve`, in the session in progress and in recovery.
    fn takes(&self, decision: &Decision) -> bool {
        let Decision { host, session, here, pid, .. } = *decision;
        let known = &self.hosts[host];
        let can_resume = !here || pid.is_some();
        if !known.up {
            return false;
        }
        match self.machine_of(host, session) {
            Some(SessionMachine::Source(one)) => one.is_in_doubt() && one.takes(here) && can_resume,
            Some(SessionMachine::Destination(one)) => {
                one.takes(here) && !(here && one.source_resumes(self.now))
            }
            Some(SessionMachine::Recovery(case)) => match case {
                Machine::Source(one) => one.takes(here) && can_resume,
                Machine::Destination(one) if one.is_held() && here => {
                    !one.is_rolled_back_at_source()
                        && !one.source_resumes(self.now)
                        && !one.has_just_started(self.now)
                }
                Machine::Destination(one) if one.is_held() => one.may_be_given_up(self.now),
                Machine::Destination(one) if one.hears_source() => false,
                Machine::Destination(one) if one.is_waiting() && here => {
                    pid.is_some() && !one.source_resumes(self.now) && !one.has_just_started(self.now)
                }
                Machine::Destination(one) => one.takes(here),
                Machine::Setting(_) | Machine::Domain(_) => false,
            },
            None => false,
        }
    }

    fn accept(&mut self, decision: Decision) {
        let Decision { host, session, here, .. } = decision;
        let leaves = matches!(
            self.machine_of(host, session),
            Some(SessionMachine::Source(_) | SessionMachine::Recovery(Machine::Source(_)))
        );
        if leaves {
            self.check.resolved.insert(session);
        } else if here {
            self.check.run_there.insert(session);
        }
        if matches!(self.case(host, session), Some(Machine::Destination(one)) if one.is_held()) {
            self.accept_over_held(&decision);
        }
        self.check.decisions.push(decision);
        self.hosts[host].decisions.push(decision);
    }

    /// The guest may have run and stopped again, also after an earlier decision to run it: this is a decision of its
    /// own.
    fn accept_over_held(&mut self, decision: &Decision) {
        let Decision { host, session, here, pid, .. } = *decision;
        self.check.told.retain(|told| (told.host, told.session) != (host, session));
        if here {
            if !self.is_paused_elsewhere(pid) {
                (self.wanted, self.paused_since) = (true, true);
            }
            return;
        }
        self.check.given_up_there.insert(session);
        let is_revoked = matches!(
            self.case(host, session),
            Some(Machine::Destination(one)) if one.is_rolled_back_at_source()
        );
        let is_current = pid.and_then(|pid| self.find(pid)).is_some_and(|guest| guest.current);
        let is_left = self.all().any(|guest| Some(guest.pid) != pid && guest.current)
            || self.check.died.values().any(|at| self.now - *at < REPORTED_WITHIN);
        self.check.that(is_left || is_revoked || !is_current, Property::NothingLost, || {
            format!("host {host} takes the decision to give up the only copy of session {session}")
        });
    }

    fn deliver(&mut self, host: usize, session: u64, here: bool) {
        match self.machine_of(host, session) {
            Some(SessionMachine::Source(_)) => self.handle_source(source::Event::Resolve(here)),
            Some(SessionMachine::Destination(_)) => {
                self.handle_destination(destination::Event::Resolve(here));
            }
            Some(SessionMachine::Recovery(Machine::Source(_))) => {
                self.handle_source_case(host, session, SourceEvent::Resolve(here));
            }
            Some(SessionMachine::Recovery(Machine::Destination(_))) => {
                self.handle_destination_case(host, session, DestinationEvent::Resolve(here));
            }
            Some(SessionMachine::Recovery(Machine::Setting(_) | Machine::Domain(_))) | None => {}
        }
    }

    // ---- answering ----

    /// Answers every operator who has waited long enough, or whose decision counts or is void by now. Called as soon as
    /// that can be, and before a state machine goes.
    pub fn answer_operators(&mut self) {
        for host in 0..2 {
            for decision in self.hosts[host].decisions.clone() {
                if let Some(answer) = self.answer_to(&decision) {
                    self.hosts[host].decisions.retain(|one| *one != decision);
                    self.tell(decision, answer);
                }
            }
        }
    }

    /// As `wait` and `judge` of the agent's `server/resolve.rs`; none while the operator has to wait.
    fn answer_to(&self, decision: &Decision) -> Option<Answer> {
        let early = self.options.mutation == Some(Mutation::DecisionReportedEarly);
        let is_late = self.now - decision.since >= DECISION_WAIT;
        match self.fate_of(decision) {
            Some(Decided::Waiting) if early => Some(Answer::Done),
            Some(Decided::Waiting) if !is_late => None,
            Some(Decided::Waiting) | None => Some(Answer::Waits),
            Some(Decided::Taken) if self.has_no_guest(decision) => Some(Answer::GuestGone),
            Some(Decided::Taken) => Some(Answer::Done),
            Some(Decided::Void | Decided::Overruled | Decided::AlsoAtSource) => Some(Answer::Refused),
        }
    }

    /// None if the state machine that took it is gone.
    fn fate_of(&self, decision: &Decision) -> Option<Decided> {
        let Decision { host, session, here, is_live, .. } = *decision;
        let machine = match is_live {
            true => self.machine_in_progress(host, session),
            false => self.case(host, session).map(SessionMachine::Recovery),
        };
        match machine? {
            SessionMachine::Source(one) => Some(one.decided_for(here)),
            SessionMachine::Destination(one) => Some(one.decided_for(here)),
            SessionMachine::Recovery(Machine::Source(one)) => Some(one.decided_for(here)),
            SessionMachine::Recovery(Machine::Destination(one)) => Some(one.decided_for(here)),
            SessionMachine::Recovery(Machine::Setting(_) | Machine::Domain(_)) => None,
        }
    }

    fn has_no_guest(&self, decision: &Decision) -> bool {
        decision.here && self.process_of(decision.host, decision.session).is_none()
    }

    fn tell(&mut self, decision: Decision, answer: Answer) {
        let Decision { host, session, here, pid, .. } = decision;
        self.note(|| format!("host {host}, session {session}: the decision {here} is answered: {answer:?}"));
        self.answers[answer as usize] += 1;
        if answer == Answer::Refused {
            self.check.decisions.retain(|one| *one != decision);
        }
        if answer != Answer::Done {
            return;
        }
        let is_left = pid.and_then(|pid| self.find(pid)).is_some();
        self.check.that(here || !is_left, Property::DecisionKept, || {
            format!("an operator is told that process {pid:?} is given up, and it has not ended")
        });
        let has_guest = self.has_guest_if_decided(&decision);
        self.check.that(has_guest, Property::DecisionKept, || {
            format!("an operator is told that process {pid:?} runs the guest, and it was never let run")
        });
        self.check.told.push(decision);
        if !self.retrying && self.random.percent(30) {
            let side = if host == self.at(Side::Source) { Side::Source } else { Side::Destination };
            let span = self.micros(0, 30_000);
            let crash = faults::agent_crashes(&mut self.random, side);
            self.will_fail(span, crash);
        }
    }

    /// A host says that the guest is there when its hypervisor has confirmed that, not when something is on disk. A
    /// guest that was paused when it was moved only has its disks there. One that has ended since did so by itself.
    fn has_guest_if_decided(&self, decision: &Decision) -> bool {
        let record = self.hosts[decision.host].record(decision.session);
        let (Some(record), true, false) = (record, decision.here, self.check.is_split) else { return true };
        let guest = decision.pid.and_then(|pid| self.find(pid));
        guest.is_none_or(|guest| match record.phase {
            Phase::Destination(_) => guest.owned && (guest.executed || !record.ran),
            _ => guest.running || !self.wanted,
        })
    }

    // ---- what was told, and what became of it ----

    /// An incoming QEMU is ended.
    pub fn check_told_of_discard(&mut self, pid: u64) {
        let Some(guest) = self.find(pid) else { return };
        let (host, session, current, ran) = (guest.host, guest.made_for, guest.current, guest.executed);
        let own = self.check.decisions.iter().any(|one| !one.here && one.pid == Some(pid));
        let broken = self.check.told.iter().find(|told| match told.here {
            true => told.pid == Some(pid),
            false => (told.session, told.host) == (session, 1 - host) && current && !own,
        });
        let broken = broken.copied();
        // It was moved while it was paused, and two operators want both copies.
        if !ran && broken.is_some_and(|told| told.here) && self.check.unanswered.contains(&pid) {
            self.check.is_split = true;
            return;
        }
        self.check.that(broken.is_none(), Property::DecisionKept, || {
            format!("process {pid} is ended on host {host}, and an operator was told: {broken:?}")
        });
    }

    /// The source of a session ends its process.
    pub fn check_told_of_end(&mut self, pid: u64, session: u64) {
        let Some(guest) = self.find(pid) else { return };
        let (host, current, ran) = (guest.host, guest.current, guest.executed);
        let own = self.check.decisions.iter().any(|one| !one.here && one.pid == Some(pid));
        let broken = self.check.told.iter().find(|told| match told.here {
            true => (told.session, told.pid) == (session, Some(pid)),
            false => (told.session, told.host) == (session, 1 - host) && current && !own,
        });
        let broken = broken.copied();
        // It was paused, and two operators who could not know of each other want both copies.
        if !ran && broken.is_some_and(|told| told.here) && self.check.unanswered.contains(&pid) {
            self.check.is_split = true;
            return;
        }
        self.check.that(broken.is_none(), Property::DecisionKept, || {
            format!("process {pid} is given up on host {host}, and an operator was told: {broken:?}")
        });
    }

    /// All sessions are over. A process that has ended since did so by itself, or it was checked when it was ended.
    pub fn check_told_at_end(&mut self) {
        self.answer_operators();
        let wanted = self.wanted;
        for told in self.check.told.clone() {
            let Some(guest) = told.pid.and_then(|pid| self.find(pid)) else { continue };
            let found = (guest.running, guest.owned, guest.current);
            self.check.that(told.here && found == (wanted, true, true), Property::DecisionKept, || {
                format!("an operator was told {told:?}; running, owned, current: {found:?}")
            });
        }
    }

    /// With [`Mutation::DecisionNotWritten`]: the driver says that this record is on disk, and it is not.
    pub fn keeps_in_memory(&self, host: usize, session: u64, phase: Phase) -> bool {
        self.options.mutation == Some(Mutation::DecisionNotWritten)
            && self.awaits_answer(host, session)
            && matches!(
                phase,
                Phase::Source(SourcePhase::ResumingHere) | Phase::Destination(DestinationPhase::Committed)
            )
    }

    // ---- two operators ----

    /// Something at this host waits for an operator.
    fn asks_for_decision(&self, host: usize, session: u64) -> bool {
        if !self.hosts[host].up {
            return false;
        }
        match self.machine_of(host, session) {
            Some(SessionMachine::Source(one)) => one.is_in_doubt(),
            Some(SessionMachine::Destination(one)) => one.is_held(),
            Some(SessionMachine::Recovery(Machine::Source(one))) => one.is_in_doubt(),
            Some(SessionMachine::Recovery(Machine::Destination(one))) => one.is_waiting() || one.is_held(),
            Some(SessionMachine::Recovery(Machine::Setting(_) | Machine::Domain(_))) | None => false,
        }
    }

    /// Both hosts show a session in doubt: now and then two operators decide at about the same time, each by what their
    /// own host shows. Links come back or are cut meanwhile, and agents and hosts crash.
    pub fn two_operators_look(&mut self) {
        let cases = self.hosts.iter().flat_map(|host| host.cases.keys().copied());
        let sessions: BTreeSet<u64> = cases.chain([self.session]).collect();
        for session in sessions {
            let both = (0..2).all(|host| self.asks_for_decision(host, session));
            if !both {
                self.hasty_operator_looks(session);
            }
            if !both || self.retrying || self.check.pairs.contains(&session) || !self.random.percent(10) {
                continue;
            }
            self.check.pairs.insert(session);
            for host in 0..2 {
                let most = [1, 50_000, 3_000_000][self.random.below(3) as usize];
                let (span, here) = (self.micros(0, most), self.random.percent(50));
                self.after(span, SimEvent::OperatorDecides { host, session, here });
            }
            self.disturb_decisions();
        }
    }

    /// A complete guest waits at its destination, whose operator sees that host only and lets it run. The source's
    /// agent is down, or is resuming the guest there, or has it back and has not been heard.
    fn hasty_operator_looks(&mut self, session: u64) {
        let waits = |host: usize| match self.machine_of(host, session) {
            Some(SessionMachine::Recovery(Machine::Destination(one))) => one.is_waiting(),
            Some(SessionMachine::Destination(one)) => one.is_held(),
            _ => false,
        };
        let Some(host) = (0..2).find(|host| self.hosts[*host].up && waits(*host)) else { return };
        let resumes = match self.machine_of(1 - host, session) {
            Some(SessionMachine::Recovery(Machine::Source(one))) => one.resumes_here(),
            Some(SessionMachine::Source(one)) => one.may_be_loaded() && !one.is_in_doubt(),
            _ => !self.hosts[1 - host].up,
        };
        let at_source = self.process_of(1 - host, session).and_then(|pid| self.find(pid));
        let is_paused = at_source.is_some_and(|guest| !guest.running && guest.ran.is_some());
        let source = &self.hosts[1 - host];
        let unheard = source.roll_back_notices.contains_key(&session) || source.ran_here.contains(&session);
        let is_back = unheard && at_source.is_some_and(|guest| guest.running);
        let free = !self.retrying && !self.check.pairs.contains(&session);
        if !((resumes && is_paused || is_back) && free && self.random.percent(10)) {
            return;
        }
        self.check.pairs.insert(session);
        let most = [1, 50_000, 3_000_000][self.random.below(3) as usize];
        let span = self.micros(0, most);
        self.after(span, SimEvent::OperatorDecides { host, session, here: true });
        if is_back && self.random.percent(50) {
            // The hosts can reach each other again.
            let link = self.random.below(self.links.len() as u64) as usize;
            let span = self.micros(0, 1_000_000);
            self.after(span, SimEvent::LinkRestored(link));
        } else {
            self.disturb_decisions();
        }
    }

    fn disturb_decisions(&mut self) {
        if self.random.percent(40) {
            let link = self.random.below(self.links.len() as u64) as usize;
            let span = self.micros(0, 5_000_000);
            self.after(span, SimEvent::LinkRestored(link));
        }
        for _ in 0..self.random.below(4) {
            let fault = faults::between_decisions(&mut self.random, self.links.len(), self.options.focus);
            let span = self.micros(0, 4_000_000);
            self.will_fail(span, fault);
        }
    }

    /// A fault that is not in the script.
    fn will_fail(&mut self, span: Duration, fault: Fault) {
        self.after(span, SimEvent::Fault(self.scenario.faults.len()));
        self.scenario.faults.push(fault);
        self.fired.push(true);
    }

    /// One of the two decides, if there is still something to decide. Nobody gives up a guest that they see running, or
    /// that they have paused after it ran here.
    pub fn operator_decides(&mut self, host: usize, session: u64, here: bool) {
        if !self.asks_for_decision(host, session) || self.awaits_answer(host, session) {
            return;
        }
        let runs = self.process_of(host, session).and_then(|pid| self.find(pid));
        let here = here || runs.is_some_and(|guest| guest.running || guest.executed && guest.current);
        self.note(|| format!("host {host}, session {session}: one of two operators decides: {here}"));
        self.decide(host, session, here);
    }

    /// The question before a decision counts had no answer: the operator answers for what the other host does.
    pub fn note_unanswered(&mut self, host: usize, session: u64) {
        let decided = match self.machine_of(host, session) {
            Some(SessionMachine::Source(one)) => Some(one.decided_for(true)),
            Some(SessionMachine::Recovery(Machine::Source(one))) => Some(one.decided_for(true)),
            _ => None,
        };
        let resumes = match self.machine_of(host, session) {
            Some(SessionMachine::Recovery(Machine::Source(one))) => one.resumes_here(),
            Some(SessionMachine::Source(one)) => one.may_be_loaded(),
            _ => false,
        };
        if (decided != Some(Decided::Waiting) && !resumes) || !self.check.pairs.contains(&session) {
            return;
        }
        let named = |at: usize| self.hosts[at].record(session).and_then(|record| record.process);
        let both = [named(host), named(1 - host)];
        self.check.unanswered.extend(both.into_iter().flatten());
    }

    /// Two operators have let two copies run: the agent of neither host could know of the other. Nothing more is
    /// promised, and the run ends.
    pub fn is_split_by_operators(&mut self, pid: u64) -> bool {
        let Some(guest) = self.find(pid) else { return false };
        let is_current = guest.current;
        let in_use = self.all().any(|other| other.pid != pid && (other.running || other.disks));
        let unanswered = self.check.unanswered.contains(&pid);
        let resumed =
            |one: &Decision| one.here && one.pid == Some(pid) && self.check.pairs.contains(&one.session);
        let is_unheard = self.now - self.troubled_at < HEARD_WITHIN;
        let by_operator = unanswered || is_unheard && self.check.decisions.iter().any(resumed);
        let is_split = unanswered && in_use || by_operator && !is_current;
        if is_split {
            self.note(|| {
                format!("process {pid} would run beside or after another, as two operators decided")
            });
            self.check.is_split = true;
        }
        is_split
    }

    /// A copy that operators have taken back, and another that has the guest too, though it does not run.
    pub fn is_owned_twice_by_operators(&self) -> bool {
        let owners: Vec<u64> = self.all().filter(|guest| guest.owned).map(|guest| guest.pid).collect();
        owners.len() > 1 && owners.iter().any(|pid| self.check.unanswered.contains(pid))
    }

    /// Both operators have given their copy up in a session.
    pub fn is_given_up_twice(&self) -> bool {
        let gives_up = |host: usize, session: u64| {
            self.check.decisions.iter().any(|one| (one.host, one.session, one.here) == (host, session, false))
        };
        self.check.pairs.iter().any(|session| gives_up(0, *session) && gives_up(1, *session))
    }

    /// An operator who saw this host only has given this copy up.
    pub fn is_given_up_by_one_of_two(&self, pid: u64) -> bool {
        let decisions = &self.check.decisions;
        decisions
            .iter()
            .any(|one| !one.here && one.pid == Some(pid) && self.check.pairs.contains(&one.session))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Options;
    use crate::hosts::Known;
    use linerate_core::recovery::{DestinationRecovery, Look, RUN_FOR, RunResult, SourceRecovery};
    use linerate_core::{GuestState, Outcome};

    /// A source in doubt, whose question is on its way.
    fn in_doubt() -> World {
        let mut world = World::new(1, Options::default());
        let (now, pid) = (world.now, world.guest.pid);
        let known = Known { process: Some(pid), ..Known::default() };
        assert!(world.hosts[0].write(now, 1, Phase::Source(SourcePhase::CommitSent), known));
        world.guest.ran = Some(true);
        world.guest.running = false;
        world.source.machine = None;
        world.add_case(0, 1, Machine::Source(SourceRecovery::query(now)));
        world.poll_cases(0);
        world
    }

    #[test]
    fn an_operator_is_answered_when_the_decision_counts_or_is_void_or_after_a_while() {
        let answers = |answer: Option<Outcome>, then: Duration| {
            let mut world = in_doubt();
            assert!(world.decide(0, 1, true));
            assert!(world.awaits_answer(0, 1), "the question is in flight");
            if let Some(outcome) = answer {
                world.handle_source_case(0, 1, SourceEvent::Answered(Some(outcome)));
            }
            world.now = world.now + then;
            world.answer_operators();
            world.answers
        };
        assert_eq!(answers(None, DECISION_WAIT - Duration::from_secs(1)), [0, 0, 0, 0]);
        assert_eq!(answers(None, DECISION_WAIT), [0, 1, 0, 0]);
        assert_eq!(answers(Some(Outcome::Pending), Duration::ZERO), [0, 0, 1, 0]);
    }

    #[test]
    fn who_was_told_that_the_guest_runs_here_finds_it_so() {
        let mut world = in_doubt();
        assert!(world.decide(0, 1, true));
        world.handle_source_case(0, 1, SourceEvent::Answered(None));
        world.handle_source_case(0, 1, SourceEvent::Written(true));
        world.answer_operators();
        assert_eq!(world.answers, [0, 0, 0, 0], "it is not back yet");
        world.guest.running = true;
        world.handle_source_case(0, 1, SourceEvent::Looked(Look::NotPaused));
        world.handle_source_case(0, 1, SourceEvent::ResumedHere(Some(GuestState::RunsAtSource)));
        world.answer_operators();
        assert_eq!(world.answers, [1, 0, 0, 0]);
        let pid = world.guest.pid;
        world.check_told_of_end(pid, 2);
        assert!(world.check.broken.is_none(), "a later session may move it");
        world.check_told_of_end(pid, 1);
        assert!(matches!(world.check.broken, Some((Property::DecisionKept, _))));
    }

    #[test]
    fn nobody_is_told_that_a_copy_is_given_up_before_its_process_has_ended() {
        let mut world = in_doubt();
        let pid = world.guest.pid;
        let decision =
            Decision { host: 0, session: 1, here: false, is_live: false, since: world.now, pid: Some(pid) };
        world.tell(decision, Answer::Done);
        assert!(matches!(world.check.broken, Some((Property::DecisionKept, _))));
    }

    /// A destination whose guest is complete and waits, and the guest's process.
    fn waits() -> (World, u64) {
        let mut world = World::new(1, Options::default());
        let (now, pid) = (world.now, 700);
        world.wanted = true;
        (world.guest.running, world.guest.disks, world.guest.ran) = (false, false, Some(true));
        let mut guest = world.guest.clone();
        (guest.pid, guest.host, guest.made_for, guest.ran) = (pid, 1, 1, None);
        (guest.owned, guest.executed, guest.current) = (false, false, true);
        world.parked.push(guest);
        let known = Known { process: Some(pid), ..Known::default() };
        assert!(world.hosts[1].write(now, 1, Phase::Destination(DestinationPhase::Loaded), known));
        world.add_case(1, 1, Machine::Destination(DestinationRecovery::wait()));
        (world, pid)
    }

    /// An operator does, and its source is not heard meanwhile.
    fn lets_run(world: &mut World) {
        assert!(world.decide(1, 1, true));
        world.now = world.now + Duration::from_secs(20);
        world.poll_cases(1);
    }

    #[test]
    fn who_lets_a_guest_run_at_its_destination_is_told_when_it_runs_there() {
        let (mut world, pid) = waits();
        lets_run(&mut world);
        world.handle_destination_case(1, 1, DestinationEvent::Written(true));
        assert_eq!(world.answers, [0, 0, 0, 0], "it is on disk only, and may go back");
        let result = world.try_to_run(pid, true);
        world.handle_destination_case(1, 1, DestinationEvent::Ran(result));
        assert_eq!(world.answers, [1, 0, 0, 0]);
        assert!(world.check.broken.is_none(), "{:?}", world.check.broken);
        world.check_told_of_discard(pid);
        assert!(matches!(world.check.broken, Some((Property::DecisionKept, _))));
    }

    #[test]
    fn who_lets_a_guest_run_that_goes_back_to_its_source_is_refused() {
        let (mut world, _) = waits();
        lets_run(&mut world);
        world.handle_destination_case(1, 1, DestinationEvent::Written(true));
        world.now = world.now + RUN_FOR;
        world.handle_destination_case(1, 1, DestinationEvent::CommitAgain { copy: true });
        world.handle_destination_case(1, 1, DestinationEvent::Ran(RunResult::Refused));
        assert_eq!(world.answers, [0, 0, 1, 0]);
    }

    #[test]
    fn nobody_is_told_that_a_guest_runs_at_its_destination_before_it_does() {
        let (mut world, pid) = waits();
        let decision =
            Decision { host: 1, session: 1, here: true, is_live: false, since: world.now, pid: Some(pid) };
        world.tell(decision, Answer::Done);
        assert!(matches!(world.check.broken, Some((Property::DecisionKept, _))));
    }
}
