//! A migration in lines, for logs and pipes: each step, each round, and the figures about once a second.

use linerate_api::{Event, EventKind, MigrationOutcome, Progress, Step, StepState};

use super::view::View;
use crate::render::format::{bit_rate, bytes, clean, clock_us, percent, time_us};

/// How far apart lines of figures stand.
const EVERY_US: u64 = 1_000_000;

/// What has been said so far.
pub struct Plain {
    view: View,
    round: Option<u32>,
    printed_us: u64,
}

impl Plain {
    /// Nothing has been said yet.
    pub fn new(view: View) -> Plain {
        Plain { view, round: None, printed_us: 0 }
    }

    /// The lines for this event; most have none or one.
    pub fn event(&mut self, event: &Event) -> Option<String> {
        let text = self.text(event);
        self.view.apply(event);
        text.map(|text| format!("{:>8}  {text}", clock_us(event.at_us)))
    }

    fn text(&mut self, event: &Event) -> Option<String> {
        match &event.kind {
            EventKind::Step { number, name, state: StepState::Started, .. } => {
                Some(format!("step {number} {name}"))
            }
            EventKind::Step { number, name, state: StepState::Done, duration_us } => {
                Some(format!("step {number} {name} done in {}", time_us(duration_us.unwrap_or(0))))
            }
            EventKind::Progress(progress) => self.progress(event.at_us, progress),
            EventKind::LinkLost { link, reason } => Some(format!(
                "link {} LOST: {}; the others carry on",
                self.view.link_name(*link),
                clean(reason)
            )),
            EventKind::LinkRestored { link } => Some(format!("link {} is back", self.view.link_name(*link))),
            EventKind::Warning { text } => Some(format!("warning: {}", clean(text))),
            EventKind::Finished { report: Some(report), .. } if report.arrived_paused => Some(
                "completed: the guest is at the destination and does not run, as it did not run here"
                    .to_owned(),
            ),
            EventKind::Finished { outcome, .. } => Some(ending(*outcome).to_owned()),
            EventKind::Domain(_) | EventKind::Tunnel(_) | EventKind::Unknown => None,
        }
    }

    fn progress(&mut self, at_us: u64, progress: &Progress) -> Option<String> {
        // Nothing is carried any more. What a migration in doubt waits for is printed instead.
        if is_carried(progress.step) {
            return None;
        }
        let new_round = self.round != Some(progress.round);
        if !new_round && at_us < self.printed_us.saturating_add(EVERY_US) {
            return None;
        }
        self.round = Some(progress.round);
        self.printed_us = at_us;
        Some(figures(progress))
    }
}

/// Whether all of the guest is at the destination: it is committed, or in doubt.
pub(super) fn is_carried(step: Step) -> bool {
    step.number() >= Step::Commit.number()
}

fn figures(progress: &Progress) -> String {
    let round =
        if progress.round == 0 { "first pass".to_owned() } else { format!("round {}", progress.round) };
    let share = percent(progress.round_bytes_done, progress.round_bytes_total).floor();
    let disks = progress.disks.map(|disks| {
        let share = percent(disks.done_bytes, disks.total_bytes).floor();
        let pass = if disks.pass > 0 { format!(", pass {}", disks.pass) } else { String::new() };
        let written = disks.write_rate_bytes_per_s.filter(|rate| *rate > 0);
        let written = written.map(|rate| format!(", written at {}", bit_rate(rate))).unwrap_or_default();
        format!("disks {share:.0} % of {}{pass}{written}", bytes(disks.total_bytes))
    });
    // Disks are copied before the memory is begun.
    let memory = progress.disks.is_none() || progress.populated_bytes > 0;
    let mut parts: Vec<String> = disks.into_iter().collect();
    parts.extend(memory.then(|| format!("{round} {share:.0} %")));
    parts.push(bit_rate(progress.rate_bytes_per_s));
    parts.extend(memory.then(|| format!("remaining {}", bytes(progress.remaining_bytes))));
    parts.extend(progress.dirty_rate_bytes_per_s.map(|rate| format!("guest writes {}", bit_rate(rate))));
    parts
        .extend(progress.predicted_blackout_us.map(|us| format!("blackout if stopped now {} ms", us / 1000)));
    parts.join(", ")
}

fn ending(outcome: MigrationOutcome) -> &'static str {
    match outcome {
        MigrationOutcome::Completed => "completed: the guest runs at the destination",
        MigrationOutcome::Cancelled => "cancelled: the guest runs at the source as before",
        MigrationOutcome::Checked => "checked: the guest can move, and runs at the source as before",
        MigrationOutcome::Failed => "failed",
        MigrationOutcome::InDoubt => "in doubt: the guest is paused at the source",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::golden_data::progress;

    fn at(at_us: u64, kind: EventKind) -> Event {
        Event { at_us, kind }
    }

    #[test]
    fn disks_have_their_own_figures_and_the_memory_none_before_it_is_begun() {
        let mut progress = progress();
        progress.disks = Some(linerate_api::DiskProgress {
            total_bytes: 8 << 30,
            done_bytes: 2 << 30,
            pass: 3,
            write_rate_bytes_per_s: Some(250_000_000),
        });
        assert!(
            figures(&progress)
                .starts_with("disks 25 % of 8.00 GiB, pass 3, written at 2.00 Gb/s, first pass 62 %, "),
            "{}",
            figures(&progress)
        );
        progress.populated_bytes = 0;
        let text = figures(&progress);
        assert!(
            text.starts_with("disks 25 % of 8.00 GiB, pass 3, written at 2.00 Gb/s, 2.46 Gb/s, guest writes"),
            "{text}"
        );
    }

    #[test]
    fn figures_come_with_each_round_and_each_second_and_not_oftener() {
        let mut plain = Plain::new(View::new("web", "beta", None));
        let mut figures = progress();
        let mut lines = Vec::new();
        for (at_us, round) in [(100_000, 0), (600_000, 0), (1_200_000, 0), (1_300_000, 1), (1_400_000, 1)] {
            figures.round = round;
            lines.extend(plain.event(&at(at_us, EventKind::Progress(Box::new(figures.clone())))));
        }
        assert_eq!(lines.len(), 3, "{lines:#?}");
        let carried = Progress { step: Step::Commit, round: 2, ..figures.clone() };
        assert_eq!(plain.event(&at(9_000_000, EventKind::Progress(Box::new(carried)))), None);
        assert_eq!(
            lines[0],
            "   0.1 s  first pass 62 %, 2.46 Gb/s, remaining 1.50 GiB, guest writes 1.01 Gb/s, blackout if stopped now 14 ms"
        );
        let lost =
            plain.event(&at(2_000_000, EventKind::LinkLost { link: 1, reason: "no\x1bcarrier".into() }));
        assert_eq!(lost.unwrap(), "   2.0 s  link eth2 LOST: no carrier; the others carry on");
    }
}
