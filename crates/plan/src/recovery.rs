//! Journals of sessions in progress, questions about the outcome, crashes, and agents that start again.

use std::time::Duration;

use linerate_core::journal::{DestinationPhase, SourcePhase};
use linerate_core::recovery::{
    DestinationEvent, DestinationRecovery, Look, Phase, SourceEvent, SourceRecovery,
};
use linerate_core::{Code, Fault, GuestState, ModeTag, Outcome, Side, Step, destination, source};

use crate::cases::SessionMachine;
use crate::check::{Mutation, Property};
use crate::destination_driver::DestinationWork;
use crate::guest::Sending;
use crate::hosts::{Known, Machine};
use crate::source_driver::SourceWork;
use crate::wire::index;
use crate::world::{SimEvent, World};

/// What a source asks on a connection of its own.
#[derive(Clone, Copy, Debug)]
pub enum Question {
    /// How the session ended, which repeats the commit.
    Commits {
        /// The operator ends the source's copy.
        gives_up: bool,
    },
    /// Whether the guest runs at the destination, before it is resumed at the source.
    Resumes {
        /// It stays paused without an answer.
        waits: bool,
    },
}

/// A host out of reach is taken for silent after this long.
const UNANSWERED_AFTER: Duration = Duration::from_millis(500);

impl World {
    // ---- journals ----

    /// Done before the next action is looked at.
    pub fn source_journal(&mut self, phase: SourcePhase) {
        let (now, host, session) = (self.now, self.at(Side::Source), self.session);
        let domain = self.setting_record(Side::Source);
        self.source.ran.get_or_insert(self.guest.running);
        let known = Known { process: Some(self.guest.pid), ran: self.source.ran, domain, recovers: false };
        let in_memory = self.keeps_in_memory(host, session, Phase::Source(phase));
        let written = in_memory || self.hosts[host].write(now, session, Phase::Source(phase), known);
        self.source.commit_journaled |= written && phase == SourcePhase::CommitSent;
        let event = match phase {
            _ if !written => {
                let fault = Fault::new(Code::JournalFailed, Step::Commit, Side::Source, "injected");
                source::Event::Failed(fault)
            }
            SourcePhase::CommitSent => source::Event::CommitWritten,
            phase => source::Event::Journaled(phase),
        };
        if let Some(machine) = self.source.machine.as_mut() {
            machine.handle(now, event);
        }
        if phase == SourcePhase::CommitSent {
            // It may be given up while the hypervisor is asked, whose monitor may be busy.
            if written {
                let most = if self.random.percent(10) { 3_000_000 } else { 20_000 };
                self.source_will(50, most, SourceWork::ChecksIntact);
            }
            self.commit_faults();
        }
    }

    /// Commit may be sent for a guest that nobody has let run here since it was stopped.
    pub fn source_checks_intact(&mut self) {
        let event = if self.ran_since_stopped(self.guest.pid) {
            let detail = "resumed before it was committed";
            source::Event::Failed(Fault::new(Code::GuestDiffers, Step::Commit, Side::Source, detail))
        } else {
            source::Event::Journaled(SourcePhase::CommitSent)
        };
        self.handle_source(event);
    }

    /// What the hypervisor of a guest tells that was to leave. One that has ended tells nothing.
    fn ran_since_stopped(&self, pid: u64) -> bool {
        self.find(pid).is_some_and(|guest| guest.ran.is_none())
    }

    /// As the agent before each question: a guest that was once seen to have run here is not asked about any more.
    fn is_not_to_be_asked(&mut self, host: usize, session: u64) -> bool {
        let Some(record) = self.hosts[host].record(session).cloned() else { return false };
        if record.ran_here || self.hosts[host].ran_here.contains(&session) {
            return true;
        }
        let ran = record.process.is_some_and(|pid| self.ran_since_stopped(pid));
        if ran {
            self.note(|| format!("host {host}, session {session}: the guest ran here, nothing is asked"));
            self.hosts[host].note_ran_here(self.now, session);
        }
        ran
    }

    /// An operator may have paused the guest since the session began: as the agent does, this is written at once. What
    /// the disk refuses goes with the next record.
    pub fn note_ran(&mut self, ran: bool) {
        let (now, host, session) = (self.now, self.at(Side::Source), self.session);
        if self.source.ran.replace(ran) != Some(ran)
            && let Some(phase) = self.hosts[host].record(session).map(|record| record.phase)
        {
            self.hosts[host].write(now, session, phase, Known { ran: Some(ran), ..Known::default() });
        }
    }

    /// Done before the next action is looked at.
    pub fn destination_journal(&mut self, phase: DestinationPhase) {
        let now = self.now;
        if self.options.mutation == Some(Mutation::RunBeforeJournaled) && phase == DestinationPhase::Committed
        {
            self.run_guest();
        }
        let event = if self.destination_writes(phase) {
            destination::Event::Journaled(phase)
        } else {
            let fault = Fault::new(Code::JournalFailed, Step::Commit, Side::Destination, "injected");
            destination::Event::Failed(fault)
        };
        if phase == DestinationPhase::Committed {
            self.committed_faults();
        }
        if let Some(machine) = self.destination.machine.as_mut() {
            machine.handle(now, event);
        }
    }

    fn destination_writes(&mut self, phase: DestinationPhase) -> bool {
        let (now, host, session) = (self.now, self.at(Side::Destination), self.session);
        let known = Known {
            process: self
                .destination
                .guest
                .as_ref()
                .filter(|_| self.destination.started)
                .map(|guest| guest.pid),
            ran: self.destination.machine.as_ref().and_then(|machine| machine.was_running()),
            domain: self.setting_record(Side::Destination).filter(|_| self.destination.started),
            recovers: false,
        };
        let in_memory = self.keeps_in_memory(host, session, Phase::Destination(phase));
        let written = in_memory || self.hosts[host].write(now, session, Phase::Destination(phase), known);
        // Its hypervisor may have ended at this very moment.
        if written && phase == DestinationPhase::Loaded && self.destination.guest.is_some() {
            // The source's may have gone on meanwhile, by itself or by a roll-back.
            let stopped = self.guest.ran.is_some();
            let difference = if stopped { self.ram_differs() } else { None };
            self.check.that(difference.is_none(), Property::SameRam, || difference.unwrap_or_default());
            if let Some(guest) = self.destination.guest.as_mut() {
                guest.current = stopped;
            }
        }
        written
    }

    /// The process of the incoming QEMU is known: it belongs into the journal, unless the session was given up
    /// meanwhile.
    pub fn note_waiting(&mut self) -> bool {
        self.destination.started = true;
        let host = self.at(Side::Destination);
        let known = self.hosts[host].record(self.session).map(|record| record.phase);
        let begun = Phase::Destination(DestinationPhase::Started);
        known.is_none_or(|phase| phase == begun) && self.destination_writes(DestinationPhase::Started)
    }

    // ---- asking ----

    /// A source asks for the outcome and says commit once more, or asks before it resumes the guest; on any link that
    /// works.
    pub fn ask(&mut self, host: usize, session: u64, question: Question) {
        let commits = matches!(question, Question::Commits { .. });
        if commits && self.options.mutation == Some(Mutation::ResumeAfterCommit) {
            self.resume_source_guest();
        }
        let incarnation = self.hosts[host].incarnation;
        if commits && self.is_not_to_be_asked(host, session) {
            if !matches!(question, Question::Commits { gives_up: true }) {
                self.says_that_it_is_here(host, session);
            }
            let none = SimEvent::Answered { host, incarnation, session, outcome: None };
            return self.after(Duration::from_millis(1), none);
        }
        let Some(link) = self.links.iter().position(|link| link.connects()) else {
            return self
                .after(UNANSWERED_AFTER, SimEvent::Answered { host, incarnation, session, outcome: None });
        };
        let latency = self.links[link].latency;
        self.after(latency, SimEvent::Asked { host, incarnation, session, link, question });
    }

    /// As the agent, but at once: nothing is committed by it, and the answer decides nothing.
    fn says_that_it_is_here(&mut self, host: usize, session: u64) {
        let is_here = self.process_of(host, session).is_some();
        if is_here && self.hosts[1 - host].up && self.links.iter().any(|link| link.connects()) {
            self.outcome_for_resuming(1 - host, session, false);
        }
    }

    /// The question arrives at the other host.
    pub fn asked(&mut self, host: usize, incarnation: u64, session: u64, link: usize, question: Question) {
        let other = 1 - host;
        let receives = self.hosts[other].up && self.links[link].connects();
        let outcome = receives.then(|| {
            let outcome = match question {
                Question::Commits { .. } if self.options.mutation == Some(Mutation::CommitNotRepeated) => {
                    self.outcome_at(other, session)
                }
                Question::Commits { gives_up } => {
                    self.repeat_commit(host, other, session, gives_up);
                    self.outcome_at(other, session)
                }
                Question::Resumes { waits } => self.outcome_for_resuming(other, session, waits),
            };
            let before = self.options.mutation == Some(Mutation::CommittedBeforeItRuns);
            let outcome =
                if before && self.is_committed_at(other, session) { Outcome::Committed } else { outcome };
            if outcome == Outcome::Committed && self.hosts[other].up {
                self.reports_committed(other, session);
            }
            outcome
        });
        // It may have crashed over it.
        let outcome = outcome.filter(|_| self.hosts[other].up);
        let latency = if outcome.is_some() { self.links[link].latency } else { UNANSWERED_AFTER };
        self.after(latency, SimEvent::Answered { host, incarnation, session, outcome });
    }

    fn repeat_commit(&mut self, from: usize, host: usize, session: u64, gives_up: bool) {
        let pid = self.hosts[from].record(session).and_then(|record| record.process);
        let copy = !gives_up && pid.is_some_and(|pid| self.is_alive(pid));
        if session == self.session && host == self.at(Side::Destination) {
            self.handle_destination(destination::Event::CommitAgain { copy });
        }
        self.handle_destination_case(host, session, DestinationEvent::CommitAgain { copy });
    }

    /// As the agent's `may_run_there`, but at once: a live session asks before it resumes a guest that the destination
    /// may have complete.
    pub fn may_run_there(&mut self) -> bool {
        let (from, to, session) = (self.at(Side::Source), self.at(Side::Destination), self.session);
        let asks = self.source.machine.as_ref().is_some_and(|machine| machine.may_be_loaded());
        if !asks || self.guest.gone || self.guest.running {
            return false;
        }
        let reaches = self.hosts[to].up && self.links.iter().any(|link| link.connects());
        if !reaches || self.options.mutation == Some(Mutation::ResumedUnasked) {
            self.note_unanswered(from, session);
            return false;
        }
        let outcome = self.outcome_for_resuming(to, session, false);
        if outcome == Outcome::Committed && self.hosts[to].up {
            self.reports_committed(to, session);
        }
        matches!(outcome, Outcome::Committed | Outcome::Pending | Outcome::Gone)
    }

    /// Both state machines of the destination keep that the source is about to resume, or that it waits.
    fn outcome_for_resuming(&mut self, host: usize, session: u64, waits: bool) -> Outcome {
        if session == self.session && host == self.at(Side::Destination) {
            self.handle_destination(destination::Event::SourceResumes);
        }
        let event = if waits { DestinationEvent::SourceWaits } else { DestinationEvent::SourceResumes };
        self.handle_destination_case(host, session, event);
        let outcome = self.outcome_at(host, session);
        let answer = match self.machine_of(host, session) {
            Some(SessionMachine::Recovery(Machine::Destination(one))) => one.outcome_for_resuming(),
            Some(SessionMachine::Destination(one)) => Some(one.outcome_for_resuming()),
            _ => None,
        };
        answer.filter(|answer| *answer == Outcome::NotCommitted).unwrap_or(outcome)
    }

    fn is_committed_at(&self, host: usize, session: u64) -> bool {
        let record = self.hosts[host].record(session);
        record.is_some_and(|record| record.phase == Phase::Destination(DestinationPhase::Committed))
    }

    /// A destination says that it has the guest: it must have taken it over, and it must be there or have moved on.
    pub fn reports_committed(&mut self, host: usize, session: u64) {
        let pid = self.hosts[host].record(session).and_then(|record| record.process);
        let has = pid.is_some_and(|pid| {
            let just_died = |at: &linerate_core::Time| self.now - *at < Duration::from_secs(1);
            self.find(pid).is_some_and(|guest| guest.owned)
                || self.check.moved_on.contains(&pid)
                || self.check.died.get(&pid).is_some_and(just_died)
        });
        self.check.that(has, Property::GivenUpForRunning, || {
            format!(
                "host {host} reports that it has the guest of session {session}, and process {pid:?} has not"
            )
        });
        self.check.taken_over.insert(session);
    }

    /// The answer arrives, at a live session or at recovery; none without an answer.
    pub fn answered(&mut self, host: usize, incarnation: u64, session: u64, outcome: Option<Outcome>) {
        if incarnation != self.hosts[host].incarnation || !self.hosts[host].up {
            return;
        }
        let rash =
            self.options.mutation == Some(Mutation::ResumeOnPending) && outcome == Some(Outcome::Pending);
        let outcome = if rash { Some(Outcome::Aborted) } else { outcome };
        if outcome.is_none() {
            self.note_unanswered(host, session);
        }
        if self.hosts[host].cases.contains_key(&session) {
            self.note(|| format!("host {host}, session {session}: gets the answer {outcome:?}"));
            return self.case_answered(host, session, outcome);
        }
        let live = session == self.session && host == self.at(Side::Source);
        if live {
            self.handle_source(outcome.map_or(source::Event::Unanswered, source::Event::Answered));
        }
    }

    /// The answer to the question that the case has asked.
    fn case_answered(&mut self, host: usize, session: u64, outcome: Option<Outcome>) {
        let looks = self.hosts[host].looks.remove(&session);
        let event = match looks {
            true => SourceEvent::Looked(Look::Paused(outcome)),
            false => SourceEvent::Answered(outcome),
        };
        self.handle_source_case(host, session, event);
    }

    // ---- crashes ----

    /// The process of a side has ended, or its whole host has failed.
    pub fn crash(&mut self, side: Side, host: bool, back_after: Duration) {
        let at = self.at(side);
        if !self.hosts[at].up {
            return;
        }
        self.hosts[at].forget();
        self.hang_up(side, host);
        match side {
            Side::Source => self.source_crashes(host),
            Side::Destination => self.destination_crashes(host),
        }
        if host {
            self.dies_with(at);
        }
        self.after(back_after, SimEvent::Restart(at));
    }

    /// Every process of the host has ended.
    fn dies_with(&mut self, host: usize) {
        let gone: Vec<u64> = self.all().filter(|guest| guest.host == host).map(|guest| guest.pid).collect();
        self.hosts[host].crashed |= !gone.is_empty();
        self.check.lost |= !gone.is_empty();
        gone.into_iter().for_each(|pid| self.remove(pid));
    }

    /// The hypervisor of a side ends by itself.
    pub fn hypervisor_dies(&mut self, side: Side) {
        let pid = match side {
            Side::Source if !self.guest.gone => self.guest.pid,
            Side::Source => return,
            Side::Destination => match &self.destination.guest {
                Some(guest) => guest.pid,
                None => return,
            },
        };
        if self.scenario.mode == ModeTag::Handover {
            return;
        }
        let at = self.at(side);
        self.hosts[at].crashed = true;
        self.check.lost = true;
        self.remove(pid);
        let fault = Fault::new(Code::GuestGone, Step::Copy, side, "injected");
        match side {
            Side::Source => self.source_will(10, 5_000, SourceWork::Deliver(source::Event::Failed(fault))),
            Side::Destination => {
                let work = DestinationWork::Deliver(destination::Event::Failed(fault));
                self.destination_will(10, 5_000, work);
            }
        }
    }

    /// The kernel of a dead process says so to the peer; a dead host says nothing.
    pub fn hang_up(&mut self, side: Side, host: bool) {
        let mut connections = Vec::new();
        for connection in self.connections.values_mut().filter(|connection| connection.open[index(side)]) {
            connection.open[index(side)] = false;
            let link = &self.links[connection.link];
            if !host && link.alive[index(side)] && !connection.pipes[index(side)].cut {
                connections.push((connection.id, link.latency));
            }
        }
        for (id, latency) in connections {
            self.after(latency, SimEvent::Lost(id, crate::wire::other(side)));
        }
    }

    fn source_crashes(&mut self, host: bool) {
        self.source.machine = None;
        self.shut_gate();
        self.source.incarnation += 1;
        self.source.operations += 1;
        self.guest.unprotect();
        // Its stream broken, the hypervisor may give up by itself, and then resumes the guest.
        let sends = matches!(self.guest.sending, Sending::SettingUp | Sending::Holding);
        if self.scenario.mode == ModeTag::Handover {
            return;
        }
        if !host && sends && self.random.percent(50) {
            self.resume_source_guest();
        }
    }

    fn destination_crashes(&mut self, _host: bool) {
        self.destination.machine = None;
        self.destination.operations += 1;
        // libvirt's stream came by this agent.
        self.shut_gate();
    }

    /// An agent starts and reads its journal.
    pub fn restart(&mut self, host: usize) {
        self.note(|| format!("the agent of host {host} starts"));
        self.hosts[host].up = true;
        self.read_journal(host);
        if self.scenario.mode == ModeTag::Handover {
            return self.read_domains(host);
        }
        if host == self.at(Side::Source) && self.hosts[host].record(self.session).is_none() {
            self.source.decided = Some(self.state_at_source());
        }
    }

    /// The destination's session ended, and whether its guest has run is not known: its connections are closed, and
    /// recovery goes on.
    pub fn leave_arrival_to_recovery(&mut self, rolled_back: bool) {
        let (now, host, session) = (self.now, self.at(Side::Destination), self.session);
        self.hang_up(Side::Destination, false);
        self.answer_operators();
        self.destination.machine = None;
        self.destination.operations += 1;
        let mut machine = DestinationRecovery::inspect(now);
        if rolled_back {
            machine.handle(now, DestinationEvent::RolledBackAtSource);
        }
        self.add_case(host, session, Machine::Destination(machine));
        self.poll_cases(host);
    }

    /// A session ended and left something to do.
    pub fn leave_to_recovery(&mut self, guest: GuestState) {
        let (now, host, session) = (self.now, self.at(Side::Source), self.session);
        let machine = match self.hosts[host].record(session).map(|record| record.phase) {
            Some(Phase::Source(SourcePhase::Finished | SourcePhase::RolledBack)) => {
                return self.source.decided = Some(guest);
            }
            _ if matches!(guest, GuestState::PausedAtSource | GuestState::RunsAtSource) => {
                self.set_notice_due(host, session, true);
                SourceRecovery::resume_here(now)
            }
            _ if guest == GuestState::Unknown => SourceRecovery::give_up(now),
            _ => SourceRecovery::query(now),
        };
        self.add_case(host, session, Machine::Source(machine));
        self.poll_cases(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Options;

    #[test]
    fn a_guest_that_ran_here_behind_commit_is_not_asked_about_by_any_agent() {
        let mut world = World::new(1, Options::default());
        let (now, pid) = (world.now, world.guest.pid);
        let known = Known { process: Some(pid), ..Known::default() };
        assert!(world.hosts[0].write(now, 1, Phase::Source(SourcePhase::CommitSent), known));
        world.guest.ran = Some(true);
        assert!(!world.is_not_to_be_asked(0, 1), "it is as it was stopped");
        world.guest.ran = None;
        assert!(world.is_not_to_be_asked(0, 1));
        world.remove(pid);
        assert!(world.is_not_to_be_asked(0, 1), "it was seen to run");
        world.hosts[0].forget();
        assert!(world.is_not_to_be_asked(0, 1), "it is on disk");
    }
}
