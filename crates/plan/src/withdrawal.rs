//! A roll-back that no control connection could carry, told beside the session over any link that works; and what a
//! destination that does not know the session says to whoever connects.

use linerate_core::withdrawal::{Next, Withdrawal};
use linerate_core::{Outcome, Side, destination, journal, source};

use crate::check::{Property, Way};
use crate::source_body::SourceWork;
use crate::world::{Happening, World};

impl World {
    /// The first try comes at once.
    pub fn begin_withdrawal(&mut self) {
        self.source.withdrawal = Some(Withdrawal::new(self.now));
        self.withdraw();
    }

    /// A try.
    pub fn withdraw(&mut self) {
        let life = self.source.life;
        match self.links.iter().position(|link| link.connects()) {
            Some(link) => self.after(self.links[link].latency, Happening::Withdrawn { life, link }),
            None => self.withdrawal_answered(life, None),
        }
    }

    /// The word reaches the destination, which answers as it does to a question.
    pub fn withdrawn(&mut self, life: u64, link: usize) {
        let hears = self.destination.up && !self.destination.recovering && self.links[link].connects();
        let latency = self.links[link].latency;
        let outcome = hears.then(|| {
            self.tell_destination(destination::Event::Withdrawn);
            let live = self.destination.brain.as_ref().map(|brain| brain.outcome());
            live.unwrap_or_else(|| journal::outcome(self.destination.journal))
        });
        self.after(latency, Happening::WithdrawalAnswered { life, outcome });
    }

    /// The answer, or that there is none.
    pub fn withdrawal_answered(&mut self, life: u64, outcome: Option<Outcome>) {
        let now = self.now;
        if life != self.source.life {
            return;
        }
        let Some(withdrawal) = self.source.withdrawal.as_mut() else { return };
        match withdrawal.answered(now, outcome) {
            Next::Again(at) => {
                let operations = self.source.operations;
                self.at(at, Happening::Source { operations, work: SourceWork::Withdraws });
                return;
            }
            Next::GivenUp => {
                let left = self.destination.guest.is_some() && self.scenario.way != Way::HandedOver;
                self.check.that(!left, Property::Truthful, || {
                    String::from("a destination says that it gave up, and its guest is there")
                });
            }
            Next::Committed => self.check.that(false, Property::OneRuns, || {
                String::from("a source rolled back, and the destination has committed")
            }),
            Next::Unheard => {}
        }
        self.note(|| String::from("the roll-back is told"));
        self.source.withdrawal = None;
    }

    /// Somebody connects to a session that the destination's living agent does not know any more.
    pub fn forgotten(&mut self, link: usize) {
        let body = &self.destination;
        let alive = self.links[link].connects() && body.up && !body.recovering;
        let known = body.brain.as_ref().is_some_and(|brain| !brain.is_ended());
        if alive && !known && self.source.greeted {
            self.note(|| format!("{} does not know the session", Side::Destination));
            let operations = self.source.operations;
            let work = SourceWork::Told(source::Event::Forgotten);
            self.after(self.links[link].latency, Happening::Source { operations, work });
        }
    }
}
