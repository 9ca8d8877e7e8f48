//! Journals, crashes, and what restarted agents do by `linerate_core::journal`.

use std::time::Duration;

use linerate_core::journal::{
    DestinationPhase, DestinationRecovery, SourcePhase, SourceRecovery, Verdict, outcome,
    recover_destination, recover_source, verdict,
};
use linerate_core::{Code, Fault, GuestState, Outcome, Side, Step, destination, source};

use crate::check::{Mutation, Way};
use crate::destination_body::DestinationWork;
use crate::guest::Sending;
use crate::source_body::SourceWork;
use crate::wire::index;
use crate::world::{Happening, World};

/// A restarted source asks this often.
const ASKS_EVERY: Duration = Duration::from_secs(1);

impl World {
    // ---- journals ----

    fn source_writes(&mut self, phase: SourcePhase) -> bool {
        if self.source.journal_fails > 0 {
            self.source.journal_fails -= 1;
            return false;
        }
        self.source.journal = Some(phase);
        self.source.commit_journaled |= phase == SourcePhase::CommitSent;
        true
    }

    fn destination_writes(&mut self, phase: DestinationPhase) -> bool {
        if self.destination.journal_fails > 0 {
            self.destination.journal_fails -= 1;
            return false;
        }
        self.destination.journal = Some(phase);
        true
    }

    /// Done before the next action is looked at.
    pub fn source_journal(&mut self, phase: SourcePhase) {
        let event = if self.source_writes(phase) {
            source::Event::Journaled(phase)
        } else {
            source::Event::Failed(Fault::new(Code::JournalFailed, Step::Commit, Side::Source, "injected"))
        };
        if phase == SourcePhase::CommitSent {
            self.commit_faults();
        }
        let now = self.now;
        if let Some(brain) = self.source.brain.as_mut() {
            brain.handle(now, event);
        }
    }

    /// Done before the next action is looked at.
    pub fn destination_journal(&mut self, phase: DestinationPhase) {
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
        let now = self.now;
        if let Some(brain) = self.destination.brain.as_mut() {
            brain.handle(now, event);
        }
    }

    // ---- asking ----

    /// The source asks for the outcome, on any link that works.
    pub fn ask(&mut self) {
        if self.options.mutation == Some(Mutation::ResumeAfterCommit) {
            self.resume_source_guest();
        }
        let life = self.source.life;
        let Some(link) = self.links.iter().position(|link| link.connects()) else { return };
        let latency = self.links[link].latency;
        self.after(latency, Happening::Asked { life, link });
    }

    /// The question arrives: a live session answers, or the journal.
    pub fn asked(&mut self, life: u64, link: usize) {
        if !self.destination.up || !self.links[link].connects() {
            return;
        }
        let live = self.destination.brain.as_ref().map(|brain| brain.outcome());
        let outcome = live.unwrap_or_else(|| outcome(self.destination.journal));
        let latency = self.links[link].latency;
        self.after(latency, Happening::Answered { life, outcome });
    }

    /// The answer arrives, at a live session or a restarted agent.
    pub fn answered(&mut self, life: u64, outcome: Outcome) {
        if life != self.source.life || !self.source.up {
            return;
        }
        let rash = self.options.mutation == Some(Mutation::ResumeOnPending) && outcome == Outcome::Pending;
        let outcome = if rash { Outcome::Aborted } else { outcome };
        if !self.source.asking {
            return self.tell_source(source::Event::Answered(outcome));
        }
        self.note(|| format!("the restarted source is told: {outcome:?}"));
        match verdict(outcome) {
            Verdict::GiveUpGuest => self.source_settles(false),
            Verdict::Resume => self.source_settles(true),
            Verdict::AskAgain => {}
        }
    }

    fn source_settles(&mut self, resumes: bool) {
        self.source.asking = false;
        self.source_will(100, 5_000, SourceWork::Recovers(resumes));
    }

    /// A restarted source asks until it knows.
    pub fn ask_again(&mut self) {
        if self.source.asking {
            self.ask();
            let operations = self.source.operations;
            self.after(ASKS_EVERY, Happening::Source { operations, work: SourceWork::Asks });
        }
    }

    // ---- crashes ----

    /// The process of a side is gone, or its whole host.
    pub fn crash(&mut self, side: Side, host: bool, back_after: Duration) {
        let up = match side {
            Side::Source => &mut self.source.up,
            Side::Destination => &mut self.destination.up,
        };
        if !std::mem::replace(up, false) {
            return;
        }
        self.host_crashed[index(side)] |= host;
        self.hang_up(side, host);
        match side {
            Side::Source => self.source_crashes(host),
            Side::Destination => self.destination_crashes(host),
        }
        self.after(back_after, Happening::Restart(side));
    }

    /// The kernel of a dead process says so to the peer; a dead host says nothing.
    pub fn hang_up(&mut self, side: Side, host: bool) {
        let mut told = Vec::new();
        for connection in self.connections.values_mut().filter(|connection| connection.open[index(side)]) {
            connection.open[index(side)] = false;
            let link = &self.links[connection.link];
            if !host && link.alive[index(side)] && !connection.pipes[index(side)].cut {
                told.push((connection.id, link.latency));
            }
        }
        for (id, latency) in told {
            self.after(latency, Happening::Lost(id, crate::wire::other(side)));
        }
    }

    fn source_crashes(&mut self, host: bool) {
        self.source.brain = None;
        self.shut_gate();
        self.source.asking = false;
        self.source.withdrawal = None;
        self.source.life += 1;
        self.source.operations += 1;
        self.guest.unprotect();
        if host {
            self.guest.gone = true;
            self.guest.running = false;
        }
        // Its stream broken, the hypervisor may give up by itself, and then resumes the guest.
        let sends = matches!(self.guest.sending, Sending::SettingUp | Sending::Holding);
        if self.scenario.way == Way::HandedOver {
            return;
        }
        if !host && sends && self.random.percent(50) {
            self.resume_source_guest();
        }
    }

    fn destination_crashes(&mut self, host: bool) {
        self.destination.brain = None;
        self.destination.operations += 1;
        // His stream came by this agent.
        self.shut_gate();
        if host {
            self.destination.guest = None;
        }
    }

    /// An agent starts and reads its journal.
    pub fn restart(&mut self, side: Side) {
        self.note(|| format!("the {side}'s agent starts"));
        match side {
            Side::Source => {
                self.source.up = true;
                self.source_restarts();
            }
            Side::Destination => {
                self.destination.up = true;
                self.destination.recovering = true;
                self.destination_will(100, 5_000, DestinationWork::Recovers);
            }
        }
    }

    fn source_restarts(&mut self) {
        if self.scenario.way == Way::HandedOver {
            return self.source_will(100, 50_000, SourceWork::Recovers(true));
        }
        let Some(phase) = self.source.journal else {
            self.source.decided = Some(self.state_at_source());
            return;
        };
        match recover_source(phase) {
            SourceRecovery::RollBack => {
                self.source_will(100, 50_000, SourceWork::Recovers(true));
                self.begin_withdrawal();
            }
            SourceRecovery::Ask => {
                self.source.asking = true;
                self.ask_again();
            }
            SourceRecovery::Nothing if phase == SourcePhase::Finished => {
                self.source.decided = Some(GuestState::RunsAtDestination);
            }
            SourceRecovery::Nothing => self.source.decided = Some(self.state_at_source()),
        }
    }

    /// The guest stays, or goes; the journal is written until it takes it.
    pub fn source_recovers(&mut self, stays: bool) {
        if self.scenario.way == Way::HandedOver {
            return self.owner_outlived(stays);
        }
        let (phase, state) = if stays {
            (SourcePhase::RolledBack, self.undo())
        } else {
            self.end_source_guest();
            (SourcePhase::Finished, GuestState::RunsAtDestination)
        };
        if self.source_writes(phase) {
            self.note(|| format!("the restarted source has recovered: {state:?}"));
            self.source.decided = Some(state);
        } else {
            self.source_will(500_000, 1_000_000, SourceWork::Recovers(stays));
        }
    }

    /// A restarted destination does what its journal says; an abort is written until the journal takes it.
    pub fn destination_recovers(&mut self) {
        if !self.owner_is_settled() {
            return self.destination_will(1_000, 5_000, DestinationWork::Recovers);
        }
        let action = self.destination.journal.map(recover_destination);
        let written = match action {
            Some(DestinationRecovery::Discard) => {
                self.tear_down();
                self.destination_writes(DestinationPhase::Aborted)
            }
            Some(DestinationRecovery::Keep) if self.scenario.way == Way::HandedOver => true,
            Some(DestinationRecovery::Keep) => {
                let loaded =
                    self.destination.guest.as_ref().is_some_and(|guest| guest.loaded && !guest.owned);
                if loaded {
                    self.run_guest();
                }
                true
            }
            Some(DestinationRecovery::Nothing) | None => true,
        };
        if written {
            self.destination.recovering = false;
            self.note(|| format!("the restarted destination has recovered: {action:?}"));
        } else {
            self.destination_will(500_000, 1_000_000, DestinationWork::Recovers);
        }
    }
}
