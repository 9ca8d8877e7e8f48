//! Sessions that were not brought to their end: what `linerate_core::recovery` decides is done here, as the agent does
//! it.

use std::time::Duration;

use linerate_core::destination::Destination;
use linerate_core::journal::{DestinationPhase, SourcePhase, outcome};
use linerate_core::recovery::{
    DestinationAction, DestinationEvent, DestinationRecovery, DomainAction, DomainEnd, Entry, Inspection,
    Look, Phase, Plan, RESUME_MAX, RunResult, SettingAction, SourceAction, SourceEvent, SourceRecovery, plan,
    process_fate,
};
use linerate_core::source::Source;
use linerate_core::{GuestState, Outcome, Side, Time};

use crate::check::Mutation;
use crate::hosts::{Known, Machine, Record, RecoveryCase, session};
use crate::recovery::Question;
use crate::world::{SimEvent, World};

/// Something that is done for a session that is brought to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseWork {
    /// For one of the source's.
    Source(SourceAction),
    /// For one of the destination's.
    Destination(DestinationAction),
    /// For a hypervisor of libvirt that was set.
    Setting(SettingAction),
    /// For a guest that libvirt was moving.
    Domain(DomainAction),
}

/// What follows when a session is at its end.
#[derive(Clone, Copy, Debug)]
enum CaseEnd {
    Source(GuestState),
    Destination,
    Domain(DomainEnd),
}

/// What decides about a session at a host.
pub enum SessionMachine<'a> {
    /// Recovery brings it to its end.
    Recovery(&'a Machine),
    /// It is in progress, and the guest leaves this host.
    Source(&'a Source),
    /// It is in progress, and the guest comes.
    Destination(&'a Destination),
}

impl Machine {
    fn poll(&mut self, now: Time) -> (Option<CaseWork>, Option<CaseEnd>) {
        match self {
            Machine::Source(machine) => {
                (machine.poll_action(now).map(CaseWork::Source), machine.is_over().map(CaseEnd::Source))
            }
            Machine::Destination(machine) => (
                machine.poll_action(now).map(CaseWork::Destination),
                machine.is_over().map(|_| CaseEnd::Destination),
            ),
            Machine::Setting(machine) => (machine.poll_action(now).map(CaseWork::Setting), None),
            Machine::Domain(machine) => {
                (machine.poll_action(now).map(CaseWork::Domain), machine.end().map(CaseEnd::Domain))
            }
        }
    }
}

impl World {
    /// Whether a process of a host is alive.
    pub fn is_alive(&self, pid: u64) -> bool {
        self.find(pid).is_some()
    }

    /// The process that a record decides about.
    fn named(&self, host: usize, session: u64) -> Option<u64> {
        if self.options.mutation == Some(Mutation::RecoverByName) {
            return self.all().filter(|guest| guest.host == host).map(|guest| guest.pid).max();
        }
        let named = self.hosts[host].record(session).and_then(|record| record.process);
        // What was made for a session before its process was in the journal bears the session's number.
        let made = self.all().find(|guest| guest.host == host && guest.made_for == session);
        // A live session passes on what it knows, also if the disk never took a record of it.
        let leaves = (session == self.session && host == self.at(Side::Source)).then_some(self.guest.pid);
        named.or(made.map(|guest| guest.pid)).or(leaves)
    }

    /// An agent has started and reads its journal.
    pub fn read_journal(&mut self, host: usize) {
        let mutation = self.options.mutation;
        let mut entries = self.hosts[host].entries(mutation);
        if mutation == Some(Mutation::RunOnEveryStart) {
            entries.iter_mut().for_each(runs_again);
        }
        let by_name = mutation == Some(Mutation::RecoverByName);
        let any_here = self.all().any(|guest| guest.host == host);
        for entry in &entries {
            let is_alive = |process: &linerate_core::recovery::Process| {
                if by_name { any_here } else { self.is_alive(process.start_ticks) }
            };
            let all = if by_name { std::slice::from_ref(entry) } else { &entries };
            let plan = plan(entry, all, is_alive);
            self.begin_plan(host, session(entry.session), entry.phase, plan);
        }
        self.poll_cases(host);
    }

    fn begin_plan(&mut self, host: usize, session: u64, phase: Phase, plan: Plan) {
        let now = self.now;
        if plan != Plan::Nothing {
            self.note(|| format!("host {host}, session {session}: {phase:?} -> {plan:?}"));
        }
        let Some(record) = self.hosts[host].record(session).cloned() else { return };
        match plan {
            Plan::RollBack => {
                // Notified when the guest is back: until then the destination's copy may be the only one.
                self.set_notice_due(host, session, true);
                self.add_case(host, session, Machine::Source(SourceRecovery::resume_here(now)));
            }
            Plan::Query => self.add_case(host, session, Machine::Source(SourceRecovery::query(now))),
            Plan::Discard => {
                let Phase::Destination(phase) = phase else { return };
                // What was removed and written before needs no second time.
                let done = matches!(phase, DestinationPhase::Aborted | DestinationPhase::Returned)
                    && self.named(host, session).is_none_or(|pid| !self.is_alive(pid));
                if !done {
                    let machine = DestinationRecovery::discard(now, phase);
                    self.add_case(host, session, Machine::Destination(machine));
                }
            }
            Plan::Wait => {
                let machine = DestinationRecovery::wait_after_start(now);
                self.add_case(host, session, Machine::Destination(machine));
            }
            Plan::Inspect => {
                let machine = self.inspection(record.ran);
                self.add_case(host, session, Machine::Destination(machine));
            }
            Plan::RecordLoss => {
                self.set_notice_due(host, session, false);
                let phase = Phase::Source(SourcePhase::RolledBack);
                self.hosts[host].write(now, session, phase, Known::default());
                self.source_settled(host, session, Some(GuestState::Gone));
                return;
            }
            Plan::RecordEnd(phase) => {
                let is_rolled_back = phase == Phase::Source(SourcePhase::RolledBack);
                if is_rolled_back {
                    self.set_notice_due(host, session, true);
                }
                self.hosts[host].write(now, session, phase, Known::default());
                self.source_settled(host, session, None);
                if is_rolled_back {
                    self.begin_roll_back_notice(host, session, true);
                }
            }
            Plan::Nothing => self.source_settled(host, session, None),
        }
        if record.notice_due && matches!(phase, Phase::Source(SourcePhase::RolledBack)) {
            self.begin_roll_back_notice(host, session, true);
        }
    }

    /// As the agent: a guest that is to stay paused runs beside no other.
    fn inspection(&self, ran: bool) -> DestinationRecovery {
        if ran && self.options.mutation != Some(Mutation::RunOnEveryStart) {
            DestinationRecovery::inspect_after_start(self.now)
        } else {
            DestinationRecovery::inspect(self.now)
        }
    }

    /// A session is to be brought to its end.
    pub fn add_case(&mut self, host: usize, session: u64, machine: Machine) {
        let case = RecoveryCase { machine, since: self.now, resolved: false };
        self.hosts[host].cases.insert(session, case);
    }

    /// The state machine of a session at a host: recovery's, or that of the session in progress.
    pub fn machine_of(&self, host: usize, session: u64) -> Option<SessionMachine<'_>> {
        let case = self.case(host, session).map(SessionMachine::Recovery);
        case.or_else(|| self.machine_in_progress(host, session))
    }

    pub fn machine_in_progress(&self, host: usize, session: u64) -> Option<SessionMachine<'_>> {
        if session != self.session {
            None
        } else if host == self.at(Side::Source) {
            self.source.machine.as_ref().map(SessionMachine::Source)
        } else {
            self.destination.machine.as_ref().map(SessionMachine::Destination)
        }
    }

    /// The state machine of recovery that brings a session at a host to its end.
    pub fn case(&self, host: usize, session: u64) -> Option<&Machine> {
        self.hosts[host].cases.get(&session).map(|case| &case.machine)
    }

    /// It is known where the guest is.
    pub fn source_settled(&mut self, host: usize, session: u64, state: Option<GuestState>) {
        if session == self.session && host == self.at(Side::Source) && self.source.machine.is_none() {
            let gone = self.hosts[host].record(session).map(|record: &Record| record.phase)
                == Some(Phase::Source(SourcePhase::Finished));
            let state =
                state.unwrap_or(if gone { GuestState::RunsAtDestination } else { self.state_at_source() });
            self.source.decided = Some(state);
        }
    }

    /// Does what the sessions of a host that are brought to their end want done.
    pub fn poll_cases(&mut self, host: usize) {
        if !self.hosts[host].up {
            return;
        }
        let now = self.now;
        let sessions: Vec<u64> = self.hosts[host].cases.keys().copied().collect();
        for session in sessions {
            let is_alive = self.named(host, session).is_some_and(|pid| self.is_alive(pid));
            let Some(case) = self.hosts[host].cases.get_mut(&session) else { continue };
            if let Machine::Destination(machine) = &mut case.machine
                && machine.is_about_to_run()
                && !is_alive
            {
                machine.handle(now, DestinationEvent::ProcessEnded);
            }
            let (work, over) = case.machine.poll(now);
            if let Some(work) = work {
                self.note(|| format!("host {host}, session {session}: {work:?}"));
                self.begin_case_work(host, session, work);
            }
            let Some(over) = over else { continue };
            self.note(|| format!("host {host}, session {session}: recovered, {over:?}"));
            self.answer_operators();
            self.hosts[host].cases.remove(&session);
            match over {
                CaseEnd::Source(state) => {
                    self.source_settled(host, session, Some(state));
                    if self.hosts[host].record(session).is_some_and(|record| record.notice_due) {
                        self.begin_roll_back_notice(host, session, true);
                    }
                }
                CaseEnd::Destination => {}
                CaseEnd::Domain(end) => self.domain_found(host, session, end),
            }
        }
    }

    fn begin_case_work(&mut self, host: usize, session: u64, work: CaseWork) {
        let incarnation = self.hosts[host].incarnation;
        // A look that finds nothing new is no action: faults come at those that matter.
        if self.only_waits(host, session, work) {
            let look = SimEvent::Recovers { host, incarnation, session, work };
            return self.after(Duration::from_millis(1), look);
        }
        self.case_faults();
        if let CaseWork::Source(SourceAction::Query { gives_up }) = work {
            return self.ask(host, session, Question::Commits { gives_up });
        }
        // A hypervisor that does not answer is waited for, and does what it was told when it answers again.
        let waits = work == CaseWork::Source(SourceAction::ResumeHere) && self.hypervisors_are_away(host);
        let most = if waits { RESUME_MAX.as_micros() as u64 } else { 30_000 };
        let span = self.micros(100, most);
        self.after(span, SimEvent::Recovers { host, incarnation, session, work });
    }

    /// It is looked at whether another program has let the guest run. None does here.
    fn only_waits(&self, host: usize, session: u64, work: CaseWork) -> bool {
        let waits = matches!(self.case(host, session), Some(Machine::Destination(one)) if one.is_waiting());
        waits && work == CaseWork::Destination(DestinationAction::Inspect)
    }

    /// Something was done for a session that is brought to its end.
    pub fn recovers(&mut self, host: usize, incarnation: u64, session: u64, work: CaseWork) {
        if self.hosts[host].incarnation != incarnation || !self.hosts[host].up {
            return;
        }
        match work {
            CaseWork::Source(action) => {
                if let Some(event) = self.source_recovers(host, session, action) {
                    self.handle_source_case(host, session, event);
                }
            }
            CaseWork::Destination(action) => {
                let event = self.destination_recovers(host, session, action);
                self.handle_destination_case(host, session, event);
            }
            CaseWork::Setting(action) => self.setting_recovers(host, session, action),
            CaseWork::Domain(action) => self.domain_recovers(host, session, action),
        }
    }

    fn source_recovers(&mut self, host: usize, session: u64, action: SourceAction) -> Option<SourceEvent> {
        let pid = self.named(host, session);
        Some(match action {
            SourceAction::Query { .. } => return None,
            SourceAction::Look => match self.look(host, pid) {
                Some(look) => SourceEvent::Looked(look),
                None => {
                    self.hosts[host].looks.insert(session);
                    let waits =
                        matches!(self.case(host, session), Some(Machine::Source(one)) if one.only_asks());
                    self.ask(host, session, Question::Resumes { waits });
                    return None;
                }
            },
            SourceAction::ResumeHere => {
                let state = pid.map_or(Some(GuestState::Gone), |pid| self.resume_here(pid));
                if state.is_none() && pid.is_some_and(|pid| self.disks_are_held(pid)) {
                    return Some(SourceEvent::DisksAreHeld);
                }
                if state == Some(GuestState::Gone) {
                    // What the destination has may be the only copy: it keeps that for its operator.
                    self.set_notice_due(host, session, false);
                }
                SourceEvent::ResumedHere(state)
            }
            SourceAction::ReleaseDisks => {
                self.have_disks_released(host, session);
                SourceEvent::DisksReleased
            }
            SourceAction::EndSource if self.hypervisors_are_away(host) => SourceEvent::SourceEnded(false),
            SourceAction::EndSource => {
                if let Some(pid) = pid {
                    self.give_up(pid, session);
                }
                SourceEvent::SourceEnded(true)
            }
            SourceAction::Write(phase) => {
                SourceEvent::Written(self.case_writes(host, session, Phase::Source(phase)))
            }
        })
    }

    /// What the agent finds before it resumes a guest; none if the destination has to be asked.
    fn look(&self, host: usize, pid: Option<u64>) -> Option<Look> {
        let unasked = self.options.mutation == Some(Mutation::ResumedUnasked);
        let guest = pid.and_then(|pid| self.find(pid));
        let runs = guest.is_some_and(|guest| guest.running) && !self.hypervisors_are_away(host);
        (guest.is_none() || runs || unasked).then_some(Look::NotPaused)
    }

    fn destination_recovers(
        &mut self,
        host: usize,
        session: u64,
        action: DestinationAction,
    ) -> DestinationEvent {
        let pid = self.named(host, session);
        match action {
            DestinationAction::Discard if self.hypervisors_are_away(host) && self.random.percent(30) => {
                DestinationEvent::Discarded(false)
            }
            DestinationAction::Discard => {
                if let Some(pid) = pid {
                    self.discard(pid);
                }
                DestinationEvent::Discarded(true)
            }
            DestinationAction::Inspect if self.only_waits(host, session, CaseWork::Destination(action)) => {
                DestinationEvent::Inspected(Inspection::Unknown)
            }
            DestinationAction::Inspect => {
                let ran = self.hosts[host].record(session).is_none_or(|record| record.ran);
                DestinationEvent::Inspected(self.inspect(host, pid, ran))
            }
            DestinationAction::Run => {
                let ran = self.hosts[host].record(session).is_none_or(|record| record.ran);
                DestinationEvent::Ran(pid.map_or(RunResult::Ended, |pid| self.try_to_run(pid, ran)))
            }
            DestinationAction::Write(phase) => {
                DestinationEvent::Written(self.case_writes(host, session, Phase::Destination(phase)))
            }
        }
    }

    fn case_writes(&mut self, host: usize, session: u64, phase: Phase) -> bool {
        let now = self.now;
        let known = Known { recovers: true, ..Known::default() };
        self.keeps_in_memory(host, session, phase) || self.hosts[host].write(now, session, phase, known)
    }

    /// As the agent finds it: by the hypervisor's answer, and by the run time of its virtual CPUs. That may be unknown,
    /// or used by something else than the guest.
    fn inspect(&mut self, host: usize, pid: Option<u64>, ran: bool) -> Inspection {
        let always = self.options.mutation == Some(Mutation::RunOnEveryStart);
        let unsure = self.random.percent(10);
        match pid.and_then(|pid| self.find(pid)) {
            None => Inspection::Ended,
            Some(_) if self.hypervisors_are_away(host) => Inspection::Unknown,
            Some(guest) if guest.running => Inspection::Runs,
            Some(_) if !ran || always => Inspection::NeverRan,
            Some(guest) if guest.executed || unsure => Inspection::MayHaveRun,
            Some(_) => Inspection::NeverRan,
        }
    }

    /// An event for a session that is brought to its end.
    pub fn handle_source_case(&mut self, host: usize, session: u64, event: SourceEvent) {
        let now = self.now;
        let Some(case) = self.hosts[host].cases.get_mut(&session) else { return };
        if let Machine::Source(machine) = &mut case.machine {
            machine.handle(now, event);
            self.answer_operators();
            self.poll_cases(host);
        }
    }

    /// An event for a session that is brought to its end.
    pub fn handle_destination_case(&mut self, host: usize, session: u64, event: DestinationEvent) {
        let now = self.now;
        let is_alive = self.named(host, session).is_some_and(|pid| self.is_alive(pid));
        let Some(case) = self.hosts[host].cases.get_mut(&session) else { return };
        if let Machine::Destination(machine) = &mut case.machine {
            if matches!(event, DestinationEvent::CommitAgain { .. }) && !is_alive {
                machine.handle(now, DestinationEvent::ProcessEnded);
            }
            machine.handle(now, event);
            self.answer_operators();
            self.poll_cases(host);
        }
    }

    /// What a host answers about a session: the live session knows best, then recovery, then the journal.
    pub fn outcome_at(&self, host: usize, session: u64) -> Outcome {
        let here = session == self.session && host == self.at(Side::Destination);
        let live = self.destination.machine.as_ref().filter(|_| here).map(|machine| machine.outcome());
        if let Some(outcome) = live.filter(|outcome| *outcome != Outcome::Committed) {
            return outcome;
        }
        if let Some(Machine::Destination(machine)) = self.case(host, session)
            && let Some(outcome) = machine.outcome()
        {
            return outcome;
        }
        let entries = self.hosts[host].entries(None);
        let Some(entry) = entries.iter().find(|entry| entry.session == crate::hosts::id(session)) else {
            return live.unwrap_or(Outcome::Unknown);
        };
        let Phase::Destination(phase) = entry.phase else { return Outcome::Unknown };
        let fate = process_fate(entry, &entries, |process| self.is_alive(process.start_ticks));
        match live {
            Some(_) if fate == linerate_core::journal::ProcessFate::Ended => Outcome::Gone,
            Some(outcome) => outcome,
            None => outcome(Some(phase), fate),
        }
    }

    /// No hypervisor of the host answers.
    pub fn hypervisors_are_away(&self, host: usize) -> bool {
        self.hosts[host].hypervisors_away_until > self.now
    }

    /// When a case of a host has to be looked at.
    pub fn case_is_due(&self, host: usize) -> bool {
        let due = |at: Option<Time>| at.is_some_and(|at| at <= self.now);
        self.hosts[host].cases.values().any(|case| match &case.machine {
            Machine::Source(machine) => due(machine.timeout()),
            Machine::Destination(machine) => due(machine.timeout()),
            Machine::Setting(machine) => due(machine.timeout()),
            Machine::Domain(machine) => due(machine.timeout()),
        })
    }
}

/// With [`Mutation::RunOnEveryStart`]: that the guest ran makes no difference.
fn runs_again(entry: &mut Entry) {
    use DestinationPhase as To;
    if let Phase::Destination(phase @ (To::Running | To::Finished)) = &mut entry.phase {
        *phase = To::Committed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Options;

    #[test]
    fn a_source_whose_guest_has_died_does_not_have_the_other_copy_given_up() {
        let mut world = World::new(1, Options::default());
        let (now, pid) = (world.now, world.guest.pid);
        let known = Known { process: Some(pid), ..Known::default() };
        assert!(world.hosts[0].write(now, 1, Phase::Source(SourcePhase::Started), known));
        world.hosts[0].forget();
        world.restart(0);
        assert_eq!(world.hosts[0].notice_due.get(&1), Some(&true), "it is rolled back");
        world.remove(pid);
        let incarnation = world.hosts[0].incarnation;
        world.recovers(0, incarnation, 1, CaseWork::Source(SourceAction::ResumeHere));
        assert_eq!(world.hosts[0].notice_due.get(&1), Some(&false));
    }

    /// Its source may have its guest back since.
    #[test]
    fn a_committed_guest_is_not_run_at_the_start_of_an_agent_before_its_source_is_heard() {
        let mut world = World::new(1, Options::default());
        let (now, pid) = (world.now, 700);
        let mut guest = world.guest.clone();
        (guest.pid, guest.host, guest.made_for, guest.ran) = (pid, 1, 1, None);
        (guest.running, guest.owned, guest.executed, guest.disks) = (false, false, false, false);
        world.parked.push(guest);
        let known = Known { process: Some(pid), ..Known::default() };
        assert!(world.hosts[1].write(now, 1, Phase::Destination(DestinationPhase::Committed), known));
        world.hosts[1].forget();
        world.restart(1);
        world.handle_destination_case(1, 1, DestinationEvent::Inspected(Inspection::NeverRan));
        assert!(matches!(world.case(1, 1), Some(Machine::Destination(one)) if one.hears_source()));
    }

    #[test]
    fn a_guest_that_died_before_the_next_start_has_the_other_copy_kept() {
        let mut world = World::new(1, Options::default());
        let (now, pid) = (world.now, world.guest.pid);
        let known = Known { process: Some(pid), recovers: true, ..Known::default() };
        assert!(world.hosts[0].write(now, 1, Phase::Source(SourcePhase::ResumingHere), known));
        assert!(world.hosts[0].record(1).unwrap().notice_due, "it was to be notified");
        world.remove(pid);
        world.hosts[0].forget();
        world.restart(0);
        let record = world.hosts[0].record(1).unwrap();
        assert_eq!((record.phase, record.notice_due), (Phase::Source(SourcePhase::RolledBack), false));
    }

    #[test]
    fn a_guest_that_died_after_its_roll_back_has_the_other_copy_kept_if_it_was_paused() {
        for ran in [false, true] {
            let mut world = World::new(1, Options::default());
            let (now, pid) = (world.now, world.guest.pid);
            world.hosts[0].notice_due.insert(1, true);
            let known = Known { process: Some(pid), ran: Some(ran), ..Known::default() };
            assert!(world.hosts[0].write(now, 1, Phase::Source(SourcePhase::RolledBack), known));
            world.remove(pid);
            world.hosts[0].forget();
            world.restart(0);
            let notifies = world.hosts[0].roll_back_notices.contains_key(&1);
            assert_eq!((notifies, world.hosts[0].record(1).unwrap().notice_due), (ran, ran));
        }
    }
}
