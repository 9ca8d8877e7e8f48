//! Steps 6 and 7: protection, first pass, rounds.

use std::time::Duration;

use super::{Action, Preparation, Source, State};
use crate::extent::{normalise, total_bytes};
use crate::policy::{Decision, RoundEnd};
use crate::statistics::Round;
use crate::{Code, Extent, Fault, Message, Side, Step, Time};

/// What was written is counted for the first time when the first pass has lasted so long, and again after so long.
const COUNT_AFTER: Duration = Duration::from_millis(250);
const COUNT_EVERY: Duration = Duration::from_secs(1);
/// Counting takes at most one part of so many of the time.
const COUNT_SHARE: u32 = 50;
/// What stopping, holding, sealing and loading cost apart from scan and copy: the median of the prototype's blackouts.
pub const SWITCH_COST: Duration = Duration::from_millis(5);

impl Source {
    pub(super) fn protected(&mut self, now: Time, populated: Vec<Extent>, paused: Duration) {
        let populated = normalise(populated);
        self.statistics.end(now, Step::Track);
        self.statistics.populated_bytes = total_bytes(&populated);
        self.statistics.pauses += paused;
        self.enter_step(now, Step::Copy, self.config.step_timeout);
        self.step_deadline = None; // Copying has its own: no progress, no link, too many rounds.
        self.last_scan_at = now;
        self.count_at = Some(now + COUNT_AFTER);
        self.begin_round(now, populated);
    }

    /// In the first pass no scan has shown yet how fast the guest writes.
    pub(super) fn may_count(&self) -> bool {
        matches!(self.state, State::Copying { .. }) && self.round == 0 && !self.scheduler.is_drained()
    }

    /// An answer that comes when the pass is over says less than its scan.
    pub(super) fn counted(&mut self, now: Time, bytes: u64, took: Duration) {
        if !self.may_count() {
            return;
        }
        let span = (now - self.last_scan_at).as_secs_f64();
        if span > 0.0 {
            self.statistics.dirty_bytes_per_s = bytes as f64 / span;
        }
        self.statistics.counted_bytes = Some(bytes);
        self.counted_at = now;
        self.count_at = Some(now + COUNT_EVERY.max(took * COUNT_SHARE));
    }

    fn begin_round(&mut self, now: Time, extents: Vec<Extent>) {
        let bytes = total_bytes(&extents);
        self.statistics.rounds.push(Round { number: self.round, bytes, ..Round::default() });
        self.control.send(now, Message::RoundMark { round: self.round, bytes });
        self.scheduler.add_work(extents);
        self.last_progress = now;
        self.state = State::Copying { began: now };
        self.progress(now);
    }

    /// Called whenever something was settled: is the round over?
    pub(super) fn progress(&mut self, now: Time) {
        if !self.scheduler.is_drained() {
            return;
        }
        match &mut self.state {
            State::Copying { began } => {
                let (began, at) = (*began, self.last_scan_at + self.config.round_interval_min);
                if let Some(round) = self.statistics.rounds.last_mut() {
                    round.took.get_or_insert(now - began);
                }
                // Copying went on beside the start of the incoming QEMU; rounds, and what follows, do not.
                if matches!(self.preparation, Preparation::Done { .. }) {
                    self.scan_at = Some(at);
                    self.scan_when_due(now);
                }
            }
            State::Switching { .. } | State::LastScan { .. } => self.last_copy_when_ready(now),
            State::LastCopy { .. } => self.last_copy_drained(now),
            _ => {}
        }
    }

    pub(super) fn may_scan(&self) -> bool {
        matches!(self.state, State::Copying { .. }) && self.scheduler.is_drained()
    }

    pub(super) fn scan_when_due(&mut self, now: Time) {
        if self.may_scan() && self.scan_at.is_some_and(|at| at <= now) {
            self.scan_at = None;
            self.state = State::Scanning;
            let also = match &self.preparation {
                Preparation::Done { touched } => touched.clone(),
                _ => Vec::new(),
            };
            self.actions.push_back(Action::Scan { last: false, also });
        }
    }

    pub(super) fn scanned(&mut self, now: Time, dirty: Vec<Extent>, took: Duration, last_adds: Duration) {
        let mut extents = dirty;
        let found = total_bytes(&extents);
        extents.extend(self.scheduler.take_damaged());
        if let Preparation::Done { touched } = &mut self.preparation {
            extents.append(touched);
        }
        let extents = normalise(extents);
        let end = self.note_scan(now, found, total_bytes(&extents), took, last_adds);
        match self.policy.decide(end) {
            Decision::Round => self.next_round(now, extents),
            Decision::Throttle(percent) => {
                self.actions.push_back(Action::Throttle(percent));
                self.next_round(now, extents);
            }
            Decision::SwitchOver => self.switch_over(now, extents),
            Decision::GiveUp => self.give_up(now, end),
        }
    }

    /// Bytes that the guest has written since the last scan: as counted, and by its rate since then. 0 if nothing is
    /// known.
    pub fn written_bytes(&self, now: Time) -> u64 {
        if !matches!(self.state, State::Copying { .. } | State::Scanning) {
            return 0;
        }
        let (counted, since) = match self.statistics.counted_bytes {
            Some(bytes) => (bytes, self.counted_at),
            None if self.round == 0 => return 0,
            None => (0, self.last_scan_at),
        };
        counted + (self.statistics.dirty_bytes_per_s * now.since(since).as_secs_f64()) as u64
    }

    fn note_scan(
        &mut self,
        now: Time,
        found: u64,
        bytes: u64,
        took: Duration,
        last_adds: Duration,
    ) -> RoundEnd {
        let span = (now - self.last_scan_at).as_secs_f64();
        self.statistics.counted_bytes = None;
        self.last_scan_at = now;
        self.last_scan_took = took;
        if span > 0.0 {
            self.statistics.dirty_bytes_per_s = found as f64 / span;
        }
        if let Some(round) = self.statistics.rounds.last_mut() {
            (round.dirty_bytes_after, round.scan) = (Some(bytes), took);
        }
        let end = RoundEnd {
            round: self.round,
            dirty_bytes: bytes,
            bytes_per_s: self.scheduler.bytes_per_s(),
            fixed: SWITCH_COST + took + last_adds,
            unavoidable: SWITCH_COST + last_adds,
        };
        self.statistics.predicted_blackout = end.predicted_blackout();
        end
    }

    fn next_round(&mut self, now: Time, extents: Vec<Extent>) {
        self.round += 1;
        self.begin_round(now, extents);
    }

    pub(super) fn give_up(&mut self, now: Time, end: RoundEnd) {
        let budget = self.policy.limits().max_blackout;
        let rounds = end.round + 1;
        let detail = if end.fixed > budget {
            format!(
                "after {rounds} rounds: to find what the guest has written of its memory takes {} ms while it is \
                 stopped, and the blackout may be {} ms. Allow a longer one (--max-blackout)",
                end.fixed.as_millis(),
                budget.as_millis(),
            )
        } else {
            format!(
                "after {rounds} rounds {} MiB are written while {:.0} MiB/s are carried: the blackout would be \
                 {} ms and may be {} ms. Allow a longer one (--max-blackout), let the guest be slowed down \
                 (--throttle), or add a link",
                end.dirty_bytes >> 20,
                end.bytes_per_s / f64::from(1 << 20),
                end.predicted_blackout().unwrap_or_default().as_millis(),
                budget.as_millis(),
            )
        };
        self.fail(now, Fault::new(Code::NotConverging, Step::Copy, Side::Source, detail));
    }
}
