//! A roll-back that no control connection could carry, sent on a connection of its own over any link that works; and
//! what a destination that does not know the session answers.

use std::time::Duration;

use linerate_core::recovery::{DestinationEvent, NoticeStep, Process, notice_step};
use linerate_core::roll_back_notice::{Next, RollBackNotice};
use linerate_core::{ModeTag, Outcome, Side, destination, source};

use crate::check::{Mutation, Property};
use crate::source_driver::SourceWork;
use crate::world::{SimEvent, World};

impl World {
    /// The first try comes at once.
    pub fn begin_roll_back_notice(&mut self, host: usize, session: u64, may_be_loaded: bool) {
        let now = self.now;
        if self.options.mutation == Some(Mutation::NeverNotified) {
            return self.hosts[host].record_notified(now, session);
        }
        self.hosts[host].roll_back_notices.insert(session, RollBackNotice::new(now, may_be_loaded));
        self.send_roll_back_notice(host, self.hosts[host].incarnation, session);
    }

    /// Whether a later agent has to send the notice: with the session's next record it goes to disk.
    pub fn set_notice_due(&mut self, host: usize, session: u64, notice_due: bool) {
        self.hosts[host].notice_due.insert(session, notice_due);
    }

    /// The state machine of the session in progress says so.
    pub fn notice_due(&mut self, notice_due: bool) {
        let (now, host, session) = (self.now, self.at(Side::Source), self.session);
        self.set_notice_due(host, session, notice_due);
        if !notice_due {
            self.hosts[host].record_notified(now, session);
        }
    }

    /// Tries once to have the other agent give the session up.
    pub fn send_roll_back_notice(&mut self, host: usize, incarnation: u64, session: u64) {
        if incarnation != self.hosts[host].incarnation {
            return;
        }
        match self.notice_step(host, session) {
            NoticeStep::Send => {}
            NoticeStep::Wait => return self.roll_back_notice_answered(host, incarnation, session, None),
            NoticeStep::Withdraw => {
                self.note(|| {
                    String::from("the paused guest has ended here: the roll-back notice is not sent")
                });
                self.hosts[host].record_notified(self.now, session);
                self.hosts[host].roll_back_notices.remove(&session);
                return;
            }
        }
        match self.links.iter().position(|link| link.connects()) {
            Some(link) => {
                self.after(
                    self.links[link].latency,
                    SimEvent::RollBackNoticeArrives { host, incarnation, session, link },
                );
            }
            None => self.roll_back_notice_answered(host, incarnation, session, None),
        }
    }

    fn notice_step(&self, host: usize, session: u64) -> NoticeStep {
        let entries = self.hosts[host].entries(None);
        let entry = entries.iter().find(|entry| entry.session == crate::hosts::id(session));
        let ran = self.hosts[host].record(session).is_none_or(|record| record.ran);
        let is_alive = |process: &Process| self.is_alive(process.start_ticks);
        entry.map_or(NoticeStep::Send, |entry| notice_step(ran, entry, &entries, is_alive))
    }

    /// As the agent, but at once, and without the answer: one notice before the guest is back.
    pub fn have_disks_released(&mut self, host: usize, session: u64) {
        let reaches = self.hosts[1 - host].up && self.links.iter().any(|link| link.connects());
        if reaches && self.options.mutation != Some(Mutation::DisksNotReleased) {
            self.note(|| format!("host {host}, session {session}: notifies before its guest is back"));
            self.is_notified(1 - host, session);
        }
    }

    /// Both state machines of a host are told that its session is rolled back at the source.
    fn is_notified(&mut self, host: usize, session: u64) {
        if session == self.session && host == self.at(Side::Destination) {
            self.handle_destination(destination::Event::RolledBackAtSource);
        }
        self.handle_destination_case(host, session, DestinationEvent::RolledBackAtSource);
    }

    /// The notice reaches the destination, which answers as it does to a question.
    pub fn roll_back_notice_arrives(&mut self, host: usize, incarnation: u64, session: u64, link: usize) {
        let other = 1 - host;
        let receives = self.hosts[other].up && self.links[link].connects();
        let latency = self.links[link].latency;
        let outcome = receives.then(|| {
            self.is_notified(other, session);
            self.outcome_at(other, session)
        });
        // It may have crashed over it.
        let outcome = outcome.filter(|_| self.hosts[other].up);
        self.after(latency, SimEvent::RollBackNoticeAnswered { host, incarnation, session, outcome });
    }

    /// The answer, or that there is none.
    pub fn roll_back_notice_answered(
        &mut self,
        host: usize,
        incarnation: u64,
        session: u64,
        outcome: Option<Outcome>,
    ) {
        let now = self.now;
        if incarnation != self.hosts[host].incarnation {
            return;
        }
        let Some(notice) = self.hosts[host].roll_back_notices.get_mut(&session) else { return };
        match notice.answered(now, outcome) {
            Next::RetryAt(at) => {
                let seldom = self.options.mutation == Some(Mutation::NoticeSeldom);
                let at = if seldom { now + Duration::from_secs(60) } else { at };
                self.at_time(at, SimEvent::SendRollBackNotice { host, incarnation, session });
                return;
            }
            Next::GivenUp => {
                let pid = self.hosts[1 - host].record(session).and_then(|record| record.process);
                let left =
                    pid.is_some_and(|pid| self.is_alive(pid)) && self.scenario.mode != ModeTag::Handover;
                self.check.that(!left, Property::Truthful, || {
                    String::from("a destination reports that it gave up, and its guest is there")
                });
            }
            // It runs nowhere but here.
            Next::Committed if outcome == Some(Outcome::Gone) => {}
            // The copy here may have ended since, and an operator have decided for the other.
            Next::Committed => {
                let pid = self.hosts[host].record(session).and_then(|record| record.process);
                let ended = pid.is_some_and(|pid| !self.is_alive(pid));
                let let_run = self.check.run_there.contains(&session);
                // An operator has resumed the guest here without knowing that.
                if pid.is_some_and(|pid| self.check.unanswered.contains(&pid)) {
                    self.check.is_split = true;
                    return;
                }
                self.check.that(ended && let_run, Property::OneRuns, || {
                    String::from("a source rolled back, and the destination has committed")
                });
            }
            Next::NoAnswer | Next::Acknowledged => {}
        }
        self.note(|| String::from("the roll-back notice is sent"));
        self.hosts[host].record_notified(now, session);
        self.hosts[host].pending_notices.remove(&session);
        self.hosts[host].roll_back_notices.remove(&session);
    }

    /// A source connects to a session that the destination's running agent does not know any more.
    pub fn forgotten(&mut self, link: usize) {
        let up = self.hosts[self.at(Side::Destination)].up;
        let body = &self.destination;
        let alive = self.links[link].connects() && up;
        let known = body.machine.as_ref().is_some_and(|machine| !machine.is_ended());
        if alive && !known && self.source.greeted {
            self.note(|| format!("{} does not know the session", Side::Destination));
            let operations = self.source.operations;
            let work = SourceWork::Deliver(source::Event::Forgotten);
            self.after(self.links[link].latency, SimEvent::Source { operations, work });
        }
    }
}
