//! What everybody saw: the agent, the guest, the network, the cable. And whether that is what was claimed.

use std::time::Duration;

use anyhow::Result;

use super::journey::Seen;
use super::screen::Screen;
use super::stage::Stage;

/// The judgement over all journeys.
#[derive(Default)]
pub struct Findings {
    problems: Vec<String>,
    /// Total time and blackout of each, µs.
    journeys: Vec<(u64, u64)>,
    cable_was_pulled: bool,
}

impl Findings {
    pub fn good(&self) -> bool {
        self.problems.is_empty() && !self.journeys.is_empty()
    }

    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Looks at one journey and says what there is to see.
    pub fn judge(&mut self, stage: &Stage<'_>, screen: &Screen, seen: Seen) -> Result<()> {
        self.agent(screen, &seen);
        self.guest(stage, screen, &seen);
        self.network(stage, screen, &seen);
        self.links(screen, &seen);
        Ok(())
    }

    /// One line for the end.
    pub fn summary(&self) -> String {
        match self.problems.len() {
            0 if self.journeys.is_empty() => return "no guest was moved.".to_owned(),
            0 => {}
            1 => return "one thing is not as it should be:".to_owned(),
            count => return format!("{count} things are not as they should be:"),
        }
        let cable = if self.cable_was_pulled { ", one cable pulled" } else { "" };
        let moves = if self.journeys.len() == 1 { "moved once" } else { "moved there and back" };
        let still: Vec<String> = self.journeys.iter().map(|(_, blackout)| ms(*blackout)).collect();
        format!("{moves}{cable}; downtime {} ms; no harm found", still.join(" and "))
    }

    fn fact(&mut self, screen: &Screen, good: bool, who: &str, text: &str) {
        screen.fact(good, who, text);
        if !good {
            self.problems.push(format!("{who}: {text}"));
        }
    }

    fn agent(&mut self, screen: &Screen, seen: &Seen) {
        let report = seen.report.as_ref().filter(|_| seen.status.success());
        let Some((report, blackout)) = report.and_then(|report| Some((report, report.blackout.as_ref()?)))
        else {
            return self.fact(screen, false, "linerate", &format!("the migration failed ({})", seen.status));
        };
        self.journeys.push((report.total_us, blackout.total_us));
        let text = format!(
            "moved {} of memory in {} s; downtime {} ms",
            bytes(report.ram.sent_bytes),
            seconds(report.total_us),
            ms(blackout.total_us)
        );
        self.fact(screen, true, "linerate", &text);
    }

    fn guest(&mut self, stage: &Stage<'_>, screen: &Screen, seen: &Seen) {
        let (bad, after) =
            (stage.console.bad_lines(), stage.console.last_pass().saturating_sub(seen.passes_before));
        let last = |start: &str, key: &str| stage.console.values(start, key).last().copied();
        let pages = last("OK ", "bad");
        let gap = first_gap(&stage.console.passes());
        let good = bad.is_empty() && after > 0 && pages == Some(0) && gap.is_none();
        let text = format!(
            "memory: {after} more passes over it since, {}, {} bad pages",
            gap.map_or("none missing".to_owned(), |(pass, next)| format!(
                "pass {next} came after pass {pass}"
            )),
            pages.map_or("?".to_owned(), |pages| pages.to_string())
        );
        self.fact(screen, good, "guest", &text);
        let (operations, slots) = (last("DISK ", "ops"), last("DISK ", "bad"));
        let text = format!(
            "disk: {} blocks of 64 KiB read and written, {} bad",
            operations.map_or("?".to_owned(), |operations| operations.to_string()),
            slots.map_or("?".to_owned(), |slots| slots.to_string())
        );
        self.fact(screen, slots == Some(0), "guest", &text);
        for line in bad.iter().take(3) {
            screen.note(&format!("console: {line}"));
        }
    }

    fn network(&mut self, stage: &Stage<'_>, screen: &Screen, seen: &Seen) {
        let beats = stage.observer.blackout(stage.guest_address(), seen.since);
        let older = match beats.out_of_order {
            0 => String::new(),
            count => format!(", {count} of an older copy of the guest"),
        };
        let text = format!(
            "{} packets came, {} lost{older}; longest silence {} ms (before: {} ms)",
            beats.received,
            beats.lost,
            ms(beats.longest_gap_us),
            ms(stage.usual_gap_us)
        );
        self.fact(screen, beats.is_unharmed(), "network", &text);
    }

    fn links(&mut self, screen: &Screen, seen: &Seen) {
        let links = seen.report.iter().flat_map(|report| &report.links);
        let carried: Vec<String> =
            links.clone().map(|link| format!("{} {}", link.name, bytes(link.sent_bytes))).collect();
        let good = carried.len() == 2 && links.clone().all(|link| link.sent_bytes > 0);
        self.fact(screen, good, "links", &format!("carried: {}", carried.join(", ")));
        let Some(cable) = &seen.cable else { return };
        self.cable_was_pulled |= cable.was_pulled();
        if !cable.was_pulled() {
            let text = "the copy was over before it could be pulled: use --memory-mb or --rate-mbps";
            return self.fact(screen, false, "cable l1", text);
        }
        let word = |time: Option<Duration>| {
            time.map_or("never".to_owned(), |time| format!("{} ms", time.as_millis()))
        };
        let text = format!(
            "out for {}; noticed after {}: {}",
            word(cable.out_for()),
            word(cable.noticed_after()),
            cable.reason
        );
        self.fact(screen, cable.was_missed(), "cable l1", &text);
        // Not every copy lasts long enough for that.
        if let Some(after) = cable.used_again_after() {
            let text =
                format!("the link was in use again {} ms after the cable was put back", after.as_millis());
            self.fact(screen, true, "cable l1", &text);
        }
    }
}

/// Where a pass is not followed by the next one: a pass was lost, or an older guest came back.
fn first_gap(passes: &[u64]) -> Option<(u64, u64)> {
    let before = std::iter::once(&0).chain(passes);
    before.zip(passes).map(|(pass, next)| (*pass, *next)).find(|(pass, next)| pass + 1 != *next)
}

pub fn ms(us: u64) -> String {
    format!("{:.1}", us as f64 / 1e3)
}

fn seconds(us: u64) -> String {
    format!("{:.1}", us as f64 / 1e6)
}

fn bytes(count: u64) -> String {
    let mib = count as f64 / f64::from(1 << 20);
    if mib < 1024.0 { format!("{mib:.0} MiB") } else { format!("{:.2} GiB", mib / 1024.0) }
}

/// A rate as links are named by.
pub fn rate(bytes_per_s: u64) -> String {
    let mbps = bytes_per_s * 8 / 1_000_000;
    if mbps < 1000 { format!("{mbps} Mb/s") } else { format!("{} Gb/s", mbps as f64 / 1e3) }
}
