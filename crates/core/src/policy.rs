//! After each round: another one, switch over, throttle the guest, or give up.
//!
//! Pre-copy converges while the bytes written during a round are fewer than those written during the one before (Clark
//! et al., NSDI 2005). The prediction used here is simple and errs on the safe side. What the scan just found has to be
//! copied at the measured rate, plus what the switch itself costs.

use std::time::Duration;

/// What may be asked of a migration.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The guest may be stopped this long.
    pub max_blackout: Duration,
    /// Rounds after which a guest that does not converge is given up.
    pub rounds_max: u32,
    /// Whether the guest may be slowed down to make it converge.
    pub throttle: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        // 300 ms is QEMU's own default for downtime-limit. The API's default is the same; a test of the agent compares
        // them.
        Limits { max_blackout: Duration::from_millis(300), rounds_max: 40, throttle: false }
    }
}

/// What is known when a round's scan has ended.
#[derive(Clone, Copy, Debug)]
pub struct RoundEnd {
    /// 0 is the first pass.
    pub round: u32,
    /// Bytes that were written meanwhile and must be copied again.
    pub dirty_bytes: u64,
    /// Bytes per second that the links carried; 0 if nothing has been measured.
    pub bytes_per_s: f64,
    /// What stopping, scanning and starting cost apart from the copy.
    pub fixed: Duration,
    /// What of `fixed` stays as it is if the guest writes less.
    pub unavoidable: Duration,
}

impl RoundEnd {
    /// How long the guest would be stopped if it were stopped now. `None` without a rate.
    pub fn predicted_blackout(&self) -> Option<Duration> {
        predict(self.dirty_bytes, self.bytes_per_s, self.fixed)
    }
}

/// Time to copy `bytes` and do the rest.
pub fn predict(bytes: u64, bytes_per_s: f64, fixed: Duration) -> Option<Duration> {
    if bytes == 0 {
        return Some(fixed);
    }
    (bytes_per_s > 0.0).then(|| fixed + Duration::from_secs_f64((bytes as f64 / bytes_per_s).min(1e6)))
}

/// RAM is nearly through when the rest of it takes no longer than the blackout may and this.
const NEARLY: Duration = Duration::from_secs(1);

/// How long the rest of RAM may take in the blackout where disks are copied in the hypervisor's own streams: what those
/// leave of it. `None`: the hypervisor must not stop the guest, because the disks would take more than half of the
/// blackout, and RAM is nearly through.
pub(crate) fn left_for_ram(
    max_blackout: Duration,
    disks_left: u64,
    ram_left: u64,
    bytes_per_s: f64,
) -> Option<Duration> {
    let time = |bytes| predict(bytes, bytes_per_s, Duration::ZERO);
    match time(disks_left) {
        Some(disks) if disks <= max_blackout / 2 => Some(max_blackout - disks),
        _ if time(ram_left).is_some_and(|ram| ram > max_blackout + NEARLY) => Some(Duration::ZERO),
        _ => None,
    }
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Copy what was written and look again.
    Round,
    /// Stop the guest and finish.
    SwitchOver,
    /// Slow the guest down by this many percent, then another round.
    Throttle(u8),
    /// It will not fit.
    GiveUp,
}

/// A copy this short is not worth another round.
const GOOD_ENOUGH: Duration = Duration::from_millis(2);
/// A round improves if it leaves less than this part of what the one before left.
const IMPROVES: f64 = 0.75;
/// Rounds without improvement before a guest over budget is throttled or the wait for a lucky round begins.
const PATIENCE: u32 = 3;
/// First throttle and each step of it, percent.
const THROTTLE_STEP: u8 = 20;
/// Strongest throttle, percent; QEMU's own auto-converge goes to 99 as well.
const THROTTLE_MAX: u8 = 99;

/// The memory of past rounds.
#[derive(Clone, Debug)]
pub struct Policy {
    limits: Limits,
    best_bytes: Option<u64>,
    stalled_rounds: u32,
    throttle_percent: u8,
}

impl Policy {
    /// A policy that knows no round yet.
    pub fn new(limits: Limits) -> Policy {
        Policy { limits, best_bytes: None, stalled_rounds: 0, throttle_percent: 0 }
    }

    /// Percent by which the guest is slowed down now.
    pub fn throttle_percent(&self) -> u8 {
        self.throttle_percent
    }

    /// The limits in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Decides after a round.
    pub fn decide(&mut self, end: RoundEnd) -> Decision {
        let improves = self.note(end.dirty_bytes);
        let Some(predicted) = end.predicted_blackout() else {
            let over = end.round >= self.limits.rounds_max;
            return if over { Decision::GiveUp } else { Decision::Round };
        };
        let copy = predicted.saturating_sub(end.fixed);
        let fits = predicted <= self.limits.max_blackout;
        if fits && (copy <= GOOD_ENOUGH || !improves) {
            return Decision::SwitchOver;
        }
        if end.round >= self.limits.rounds_max {
            return if fits { Decision::SwitchOver } else { Decision::GiveUp };
        }
        let less_helps = end.unavoidable <= self.limits.max_blackout;
        if !fits && less_helps && self.stalled_rounds >= PATIENCE {
            return self.slow_down();
        }
        Decision::Round
    }

    fn note(&mut self, dirty_bytes: u64) -> bool {
        let improves = self.best_bytes.is_none_or(|best| (dirty_bytes as f64) < best as f64 * IMPROVES);
        self.stalled_rounds = if improves { 0 } else { self.stalled_rounds + 1 };
        self.best_bytes = Some(self.best_bytes.map_or(dirty_bytes, |best| best.min(dirty_bytes)));
        improves
    }

    fn slow_down(&mut self) -> Decision {
        if !self.limits.throttle || self.throttle_percent >= THROTTLE_MAX {
            return Decision::Round;
        }
        self.throttle_percent = (self.throttle_percent + THROTTLE_STEP).min(THROTTLE_MAX);
        self.stalled_rounds = 0;
        Decision::Throttle(self.throttle_percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn end(round: u32, dirty_bytes: u64) -> RoundEnd {
        let fixed = Duration::from_millis(5);
        RoundEnd { round, dirty_bytes, bytes_per_s: 100.0 * MIB as f64, fixed, unavoidable: fixed }
    }

    #[test]
    fn an_idle_guest_switches_after_the_first_pass() {
        assert_eq!(Policy::new(Limits::default()).decide(end(0, 0)), Decision::SwitchOver);
        assert_eq!(Policy::new(Limits::default()).decide(end(0, 8192)), Decision::SwitchOver);
    }

    #[test]
    fn goes_on_while_rounds_shrink_even_if_it_would_fit() {
        let mut policy = Policy::new(Limits::default());
        assert_eq!(policy.decide(end(0, 20 * MIB)), Decision::Round);
        assert_eq!(policy.decide(end(1, 8 * MIB)), Decision::Round);
        assert_eq!(policy.decide(end(2, 7 * MIB)), Decision::SwitchOver, "no longer shrinking, and it fits");
    }

    #[test]
    fn a_guest_over_budget_is_given_up_in_the_end() {
        let mut policy = Policy::new(Limits { rounds_max: 10, ..Limits::default() });
        let decisions: Vec<_> = (0..=10).map(|round| policy.decide(end(round, 200 * MIB))).collect();
        assert!(decisions[..10].iter().all(|d| *d == Decision::Round), "{decisions:?}");
        assert_eq!(decisions[10], Decision::GiveUp);
    }

    #[test]
    fn throttles_in_steps_where_it_may() {
        let mut policy = Policy::new(Limits { throttle: true, ..Limits::default() });
        let steps: Vec<u8> = (0..30)
            .filter_map(|round| match policy.decide(end(round, 200 * MIB)) {
                Decision::Throttle(percent) => Some(percent),
                _ => None,
            })
            .collect();
        assert_eq!(steps, [20, 40, 60, 80, 99]);
    }

    #[test]
    fn a_guest_is_not_slowed_down_where_that_cannot_help() {
        let mut policy = Policy::new(Limits { throttle: true, ..Limits::default() });
        let searched = Duration::from_millis(301);
        for round in 0..20 {
            let end = RoundEnd { fixed: searched, unavoidable: searched, ..end(round, 200 * MIB) };
            assert_eq!(policy.decide(end), Decision::Round);
        }
        // A long scan may be one of many written pages.
        let end = RoundEnd { fixed: searched, ..end(20, 200 * MIB) };
        assert_eq!(policy.decide(end), Decision::Throttle(20));
    }

    #[test]
    fn without_a_rate_it_never_switches_blind() {
        let mut policy = Policy::new(Limits::default());
        assert_eq!(policy.decide(RoundEnd { bytes_per_s: 0.0, ..end(0, MIB) }), Decision::Round);
    }

    #[test]
    fn without_a_rate_it_does_not_go_on_for_ever() {
        let mut policy = Policy::new(Limits { rounds_max: 3, ..Limits::default() });
        assert_eq!(policy.decide(RoundEnd { bytes_per_s: 0.0, ..end(3, MIB) }), Decision::GiveUp);
    }

    #[test]
    fn disks_take_up_to_half_of_the_blackout_and_ram_what_they_leave() {
        let ms = Duration::from_millis;
        let left = |disks, ram| left_for_ram(ms(300), disks * MIB, ram * MIB, 100.0 * MIB as f64);
        assert_eq!(left(0, 0), Some(ms(300)));
        assert_eq!(left(10, 1000), Some(ms(200)));
        assert_eq!(left(15, 0), Some(ms(150)));
        assert_eq!(left(16, 0), None);
        assert_eq!(left(16, 130), None, "RAM is through within 1.3 s");
        assert_eq!(left(16, 131), Some(Duration::ZERO), "until then RAM is copied beside the disks");
        assert_eq!(left_for_ram(ms(300), 1, 0, 0.0), None, "at an unknown rate");
        assert_eq!(left_for_ram(ms(300), 0, 1, 0.0), Some(ms(300)));
    }

    #[test]
    fn a_larger_budget_lets_it_through() {
        let mut policy = Policy::new(Limits { max_blackout: Duration::from_secs(3), ..Limits::default() });
        assert_eq!(policy.decide(end(0, 200 * MIB)), Decision::Round);
        assert_eq!(policy.decide(end(1, 200 * MIB)), Decision::SwitchOver);
    }
}
