//! A roll-back that no control connection could carry, told on a connection of its own over any link that works; and
//! what a destination that does not know the session says to whoever connects.

use linerate_core::journal::SourcePhase;
use linerate_core::recovery::{DestinationEvent, Phase};
use linerate_core::withdrawal::{Next, Withdrawal};
use linerate_core::{ModeTag, Outcome, Side, destination, source};

use crate::check::{Mutation, Property};
use crate::source_body::SourceWork;
use crate::world::{SimEvent, World};

impl World {
    /// The first try comes at once.
    pub fn begin_withdrawal(&mut self, host: usize, session: u64, held: bool) {
        if self.options.mutation == Some(Mutation::NeverWithdrawn) {
            return self.set_untold(host, session, false);
        }
        self.set_untold(host, session, held);
        self.hosts[host].withdrawals.insert(session, Withdrawal::new(self.now, held));
        self.withdraw(host, self.hosts[host].life, session);
    }

    /// Whether a later agent is to tell it.
    pub fn set_untold(&mut self, host: usize, session: u64, untold: bool) {
        let now = self.now;
        let Some(mut record) = self.hosts[host].record(session).cloned() else { return };
        if record.untold != untold {
            record.untold = untold;
            if !self.hosts[host].put(now, session, record, true) {
                self.hosts[host].untold.insert(session, untold);
            }
        }
    }

    /// Before the record of the roll-back it goes to disk with it.
    pub fn untold(&mut self, untold: bool) {
        let (host, session) = (self.at(Side::Source), self.session);
        let rolled_back = Phase::Source(SourcePhase::RolledBack);
        match self.hosts[host].record(session).is_some_and(|record| record.phase == rolled_back) {
            true => self.set_untold(host, session, untold),
            false => {
                self.hosts[host].untold.insert(session, untold);
            }
        }
    }

    /// Tries once to have the other agent give the session up.
    pub fn withdraw(&mut self, host: usize, life: u64, session: u64) {
        if life != self.hosts[host].life {
            return;
        }
        match self.links.iter().position(|link| link.connects()) {
            Some(link) => {
                self.after(self.links[link].latency, SimEvent::Withdrawn { host, life, session, link });
            }
            None => self.withdrawal_answered(host, life, session, None),
        }
    }

    /// The word reaches the destination, which answers as it does to a question.
    pub fn withdrawn(&mut self, host: usize, life: u64, session: u64, link: usize) {
        let other = 1 - host;
        let hears = self.hosts[other].up && !self.destination.recovering && self.links[link].connects();
        let latency = self.links[link].latency;
        let outcome = hears.then(|| {
            if session == self.session && other == self.at(Side::Destination) {
                self.tell_destination(destination::Event::RolledBackAtSource);
            }
            self.tell_destination_case(other, session, DestinationEvent::Withdrawn);
            self.outcome_at(other, session)
        });
        // It may have crashed over it.
        let outcome = outcome.filter(|_| self.hosts[other].up);
        self.after(latency, SimEvent::WithdrawalAnswered { host, life, session, outcome });
    }

    /// The answer, or that there is none.
    pub fn withdrawal_answered(&mut self, host: usize, life: u64, session: u64, outcome: Option<Outcome>) {
        let now = self.now;
        if life != self.hosts[host].life {
            return;
        }
        let Some(withdrawal) = self.hosts[host].withdrawals.get_mut(&session) else { return };
        match withdrawal.answered(now, outcome) {
            Next::Again(at) => {
                self.at_time(at, SimEvent::Withdraws { host, life, session });
                return;
            }
            Next::GivenUp => {
                let pid = self.hosts[1 - host].record(session).and_then(|record| record.process);
                let left = pid.is_some_and(|pid| self.lives(pid)) && self.scenario.mode != ModeTag::Handover;
                self.check.that(!left, Property::Truthful, || {
                    String::from("a destination says that it gave up, and its guest is there")
                });
            }
            // It runs nowhere but here.
            Next::Committed if outcome == Some(Outcome::Gone) => {}
            // The copy here may have ended since, and an operator have decided for the other.
            Next::Committed => {
                let pid = self.hosts[host].record(session).and_then(|record| record.process);
                let ended = pid.is_some_and(|pid| !self.lives(pid));
                let let_run = self.check.run_there.contains(&session);
                self.check.that(ended && let_run, Property::OneRuns, || {
                    String::from("a source rolled back, and the destination has committed")
                });
            }
            Next::Unheard | Next::Heard => {}
        }
        self.note(|| String::from("the roll-back is told"));
        self.set_untold(host, session, false);
        self.hosts[host].withdrawals.remove(&session);
    }

    /// Somebody connects to a session that the destination's living agent does not know any more.
    pub fn forgotten(&mut self, link: usize) {
        let up = self.hosts[self.at(Side::Destination)].up;
        let body = &self.destination;
        let alive = self.links[link].connects() && up && !body.recovering;
        let known = body.brain.as_ref().is_some_and(|brain| !brain.is_ended());
        if alive && !known && self.source.greeted {
            self.note(|| format!("{} does not know the session", Side::Destination));
            let operations = self.source.operations;
            let work = SourceWork::Told(source::Event::Forgotten);
            self.after(self.links[link].latency, SimEvent::Source { operations, work });
        }
    }
}
