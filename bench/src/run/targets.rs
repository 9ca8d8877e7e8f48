//! What Linerate promises, and whether it holds in these runs. Comparisons are pair by pair; the median of the pairs
//! counts.

use serde::Serialize;

use super::cases::Method;
use super::figures::Figures;
use crate::statistics::{Spread, spread};

/// A promise for one case and QEMU.
#[derive(Debug, Clone, Serialize)]
pub struct Target {
    /// Name of the case.
    pub case: String,
    pub qemu: &'static str,
    /// In words, with the figure.
    pub promise: String,
    pub found: Option<Spread>,
    /// The median keeps the promise; None if it is not known.
    pub met: Option<bool>,
}

type Figure = fn(&Figures) -> Option<f64>;

/// Runs of one case and QEMU.
pub struct Group<'a> {
    /// Name of the case.
    pub case: &'a str,
    pub qemu: &'static str,
    runs: Vec<&'a Figures>,
}

/// All groups, in the order in which they ran.
pub fn groups(runs: &[Figures]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for run in runs {
        match groups.iter_mut().find(|group| group.case == run.case && group.qemu == run.qemu) {
            Some(group) => group.runs.push(run),
            None => groups.push(Group { case: &run.case, qemu: run.qemu, runs: vec![run] }),
        }
    }
    groups
}

impl<'a> Group<'a> {
    /// Its runs with a method.
    pub fn of(&self, method: Method) -> impl Iterator<Item = &'a Figures> + '_ {
        self.runs.iter().copied().filter(move |run| run.method == method)
    }

    /// A figure of a method over all pairs.
    pub fn spread(&self, method: Method, figure: Figure) -> Option<Spread> {
        spread(self.of(method).filter_map(figure))
    }

    /// For each pair, `join` of Linerate's figure and the best that one of the other methods had in that pair.
    pub fn against(
        &self,
        others: &[Method],
        figure: Figure,
        best: Best,
        join: fn(f64, f64) -> f64,
    ) -> Option<Spread> {
        self.compare(Method::Linerate, others, figure, best, join)
    }

    /// The same of any method against others.
    pub fn compare(
        &self,
        method: Method,
        others: &[Method],
        figure: Figure,
        best: Best,
        join: fn(f64, f64) -> f64,
    ) -> Option<Spread> {
        let pairs = self.of(method).filter_map(|ours| {
            let rivals = self.runs.iter().filter(|run| run.pair == ours.pair && others.contains(&run.method));
            let rivals = rivals.filter_map(|run| figure(run));
            let rival = match best {
                Best::Smallest => rivals.min_by(f64::total_cmp),
                Best::Largest => rivals.max_by(f64::total_cmp),
            };
            Some(join(figure(ours)?, rival?))
        });
        spread(pairs)
    }
}

/// Which of several others counts.
#[derive(Debug, Clone, Copy)]
pub enum Best {
    /// Of times and costs.
    Smallest,
    Largest,
}

/// Times of runs that did not reach the destination do not count.
pub fn total(run: &Figures) -> Option<f64> {
    run.total_s.filter(|_| run.completed)
}

/// As the mover reports it, of runs that reached the destination.
pub fn blackout(run: &Figures) -> Option<f64> {
    run.blackout_ms().filter(|_| run.completed)
}

/// How many times as fast: the other's time over ours.
pub fn times_faster(ours: f64, theirs: f64) -> f64 {
    theirs / ours
}

const QEMU: [Method; 3] = [Method::OneStream, Method::Multifd, Method::Mptcp];
const ONE_LINK: [Method; 2] = [Method::OneStream, Method::Multifd];

/// All promises that the runs test.
pub fn judge(runs: &[Figures]) -> Vec<Target> {
    groups(runs).iter().flat_map(judge_group).collect()
}

fn judge_group(group: &Group<'_>) -> Vec<Target> {
    let mut list = List { group, targets: Vec::new() };
    list.judge_rates();
    list.judge_times();
    list.judge_kind();
    list.judge_tls();
    list.targets
}

/// The targets of a case, judged one by one.
struct List<'a> {
    group: &'a Group<'a>,
    targets: Vec<Target>,
}

impl List<'_> {
    fn add(&mut self, promise: &str, found: Option<Spread>, keeps: fn(f64) -> bool) {
        let met = found.map(|found| keeps(found.median));
        let (case, qemu) = (self.group.case.to_owned(), self.group.qemu);
        self.targets.push(Target { case, qemu, promise: promise.to_owned(), found, met });
    }

    /// Against what the links carry, and against QEMU over one of them.
    fn judge_rates(&mut self) {
        let group = self.group;
        if matches!(group.case, "idle-2x1000" | "idle-2x2500" | "idle-4x1000") {
            self.add("at least 97 % of what iperf3 gets over all links", percent(group), |found| {
                found >= 97.0
            });
            let times =
                group.against(&ONE_LINK, |run| run.goodput_gbps, Best::Largest, |ours, theirs| ours / theirs);
            self.add("at least 1.9 times the goodput of QEMU's best over one link", times, |found| {
                found >= 1.9
            });
        }
        if group.case == "idle-2500+1000" {
            self.add("at least 95 % of what iperf3 gets over both links", percent(group), |found| {
                found >= 95.0
            });
        }
    }

    /// Whole migrations against QEMU's.
    fn judge_times(&mut self) {
        let (group, case) = (self.group, self.group.case);
        let one_link = matches!(case, "idle-1000" | "idle-2500");
        let shaped = !case.contains("unshaped");
        if one_link {
            let times = group.against(&ONE_LINK, total, Best::Smallest, times_faster);
            let promise =
                "over one link at most 2 % slower than QEMU's best (times as fast, whole migration)";
            self.add(promise, times, |found| found >= 0.98);
        }
        if shaped && !one_link && !case.starts_with("cut") {
            let times = group.against(&[Method::Mptcp], total, Best::Smallest, times_faster);
            self.add("faster than QEMU multifd over MPTCP (times, whole migration)", times, |found| {
                found > 1.0
            });
        }
        if !shaped {
            let times = group.against(&QEMU, total, Best::Smallest, times_faster);
            self.add("at least as fast as QEMU's best (times, whole migration)", times, |found| found >= 1.0);
        }
    }

    /// What is promised of idle, empty and busy guests, and of those that lose a link.
    fn judge_kind(&mut self) {
        let (group, case) = (self.group, self.group.case);
        let ratio = |ours: f64, theirs: f64| ours / theirs;
        if case.starts_with("idle") {
            let cost = group.against(&[Method::Multifd], |run| run.cpu_s_per_gb, Best::Smallest, ratio);
            self.add("CPU seconds per GB at most QEMU multifd's (ratio)", cost, |found| found <= 1.0);
            let more = group.against(&QEMU, blackout, Best::Smallest, |ours, theirs| ours - theirs);
            self.add("blackout at most 10 ms over QEMU's shortest (ms more)", more, |found| found <= 10.0);
            let other = group.spread(Method::Linerate, |run| run.other_steps_ms);
            self.add("steps that are not copying under 250 ms in total (ms)", other, |found| found < 250.0);
        }
        if case.starts_with("empty") {
            let copy = group.spread(Method::Linerate, |run| run.copy_s.filter(|_| run.completed));
            self.add("copying takes under 1 s", copy, |found| found < 1.0);
        }
        if case.starts_with("hot") {
            let part = group.against(&[Method::Mptcp], blackout, Best::Smallest, ratio);
            self.add("blackout at most half of QEMU's over both links (ratio)", part, |found| found <= 0.5);
        }
        if case.starts_with("cut") {
            self.judge_survival(Method::Linerate, "every migration survives the cut (share)");
        }
    }

    /// TLS against plain text of the same pair.
    fn judge_tls(&mut self) {
        let (group, case) = (self.group, self.group.case);
        if group.of(Method::LinerateTls).next().is_none() {
            return;
        }
        let plain = |figure: Figure, best, join| {
            group.compare(Method::LinerateTls, &[Method::Linerate], figure, best, join)
        };
        if case.starts_with("idle") {
            let part = plain(|run| run.goodput_gbps, Best::Largest, |ours, theirs| ours / theirs);
            match case.contains("unshaped") {
                false => self
                    .add("TLS: at least 99 % of plain text's goodput (ratio)", part, |found| found >= 0.99),
                true => self
                    .add("TLS: at least 75 % of plain text's goodput (ratio)", part, |found| found >= 0.75),
            }
            let more = plain(blackout, Best::Smallest, |ours, theirs| ours - theirs);
            self.add("TLS: blackout at most 3 ms longer than with plain text (ms more)", more, |found| {
                found <= 3.0
            });
        }
        if case.starts_with("cut") {
            self.judge_survival(Method::LinerateTls, "TLS: every migration survives the cut (share)");
        }
    }

    fn judge_survival(&mut self, method: Method, promise: &str) {
        let share = |run: &Figures| Some(if run.completed { 1.0 } else { 0.0 });
        let found = self.group.spread(method, share);
        self.add(promise, found, |found| found >= 1.0);
        // The median hides single failures, and not one is allowed.
        let lost = self.group.of(method).any(|run| !run.completed);
        if let Some(last) = self.targets.last_mut().filter(|_| lost) {
            last.met = Some(false);
        }
    }
}

fn percent(group: &Group<'_>) -> Option<Spread> {
    group.spread(Method::Linerate, |run| run.wire_percent)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A run with round figures.
    pub fn run(case: &str, method: Method, pair: usize, total: f64) -> Figures {
        let mut run = Figures {
            case: case.into(),
            qemu: "7.2",
            pair,
            method,
            channels: None,
            completed: true,
            damaged: false,
            note: String::new(),
            total_s: Some(total),
            destination_start_s: None,
            copy_s: Some(total),
            other_steps_ms: Some(100.0),
            populated_bytes: 1_000_000_000,
            sent_bytes: None,
            goodput_gbps: None,
            wire_gbps: None,
            wire_percent: None,
            blackout_qemu_ms: None,
            blackout_report_ms: Some(total),
            blackout_split: None,
            blackout_seen_ms: None,
            cpu_s: Some(1.0),
            cpu_s_per_gb: None,
            guest_cpu: 0.0,
            guest_pace: None,
            link_bytes: Vec::new(),
            cpu_by_process: std::collections::HashMap::new(),
        };
        run.derive(Some(5.0));
        run
    }

    #[test]
    fn the_wire_limit_is_judged() {
        let met = |seconds| judge(&[run("idle-2x2500", Method::Linerate, 1, seconds)])[0].met;
        assert_eq!(met(1.6), Some(true));
        assert_eq!(met(1.7), Some(false));
    }

    #[test]
    fn pairs_are_compared_with_their_own() {
        let runs = [
            run("idle-2x2500", Method::Linerate, 1, 1.0),
            run("idle-2x2500", Method::Mptcp, 1, 2.0),
            run("idle-2x2500", Method::Linerate, 2, 4.0),
            run("idle-2x2500", Method::Mptcp, 2, 4.0),
        ];
        let all = groups(&runs);
        let found = all[0].against(&[Method::Mptcp], total, Best::Smallest, times_faster).unwrap();
        assert_eq!((found.min, found.max), (1.0, 2.0));
    }

    #[test]
    fn tls_is_judged_against_plain_text_of_the_same_pair() {
        let judged = |case: &str, tls: f64| {
            let runs = [run(case, Method::Linerate, 1, 1.0), run(case, Method::LinerateTls, 1, tls)];
            let all = judge(&runs);
            let of_tls = all.iter().filter(|target| target.promise.starts_with("TLS"));
            of_tls.map(|target| target.met).collect::<Vec<_>>()
        };
        assert_eq!(judged("idle-2x2500", 1.005), [Some(true); 2]);
        // Goodput, and 10 ms more.
        assert_eq!(judged("idle-2x2500", 11.0), [Some(false); 2]);
        assert_eq!(judged("idle-2xunshaped", 1.3), [Some(true); 2]);
        assert_eq!(judged("idle-2xunshaped", 1.4), [Some(false), Some(true)]);
        assert_eq!(judged("cut-2x2500", 1.0), [Some(true)]);
    }

    #[test]
    fn one_lost_migration_breaks_the_promise() {
        let mut runs: Vec<Figures> =
            (1..=5).map(|pair| run("cut-2x2500", Method::Linerate, pair, 1.0)).collect();
        assert_eq!(judge(&runs)[0].met, Some(true));
        runs[3].completed = false;
        assert_eq!(judge(&runs)[0].met, Some(false));
    }
}
