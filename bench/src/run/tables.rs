//! Results as Markdown.

use super::Results;
use super::cases::{Channels, Method};
use super::figures::Figures;
use super::targets::{Best, Group, Target, blackout, groups, times_faster, total};
use crate::statistics::Spread;

type Column = (&'static str, fn(&Figures) -> Option<f64>, usize);

const COLUMNS: [Column; 12] = [
    ("whole, s", total, 2),
    ("copy, s", |run| run.copy_s.filter(|_| run.completed), 2),
    ("goodput, Gb/s", |run| run.goodput_gbps, 2),
    ("of the wire, %", |run| run.wire_percent, 1),
    ("reported blackout, ms", blackout, 1),
    ("of it by QEMU, ms", |run| run.blackout_qemu_ms, 0),
    ("blackout seen by clients, ms", |run| run.blackout_seen_ms, 1),
    ("CPU s/GB", |run| run.cpu_s_per_gb, 2),
    ("other steps, ms", |run| run.other_steps_ms, 0),
    ("sent, MB", |run| Some(run.sent_bytes? as f64 / 1e6), 0),
    ("on the first link, %", first_link, 0),
    ("guest's pace, %", |run| Some(run.guest_pace? * 100.0), 0),
];

/// Share of the first link: half of two equal links if both are used in full, all if only one is.
fn first_link(run: &Figures) -> Option<f64> {
    let all: u64 = run.link_bytes.iter().sum();
    let first = run.link_bytes.first().filter(|_| all > 0 && run.completed)?;
    Some(*first as f64 / all as f64 * 100.0)
}

pub fn render(results: &Results) -> String {
    let mut page = format!("Measured on: {}. Linerate in {} mode.\n", results.machine.text(), results.mode);
    if results.quick {
        page.push_str("\n**A quick run with small guests: it shows that the harness works; its figures mean little.**\n");
    }
    if !results.complete {
        page.push_str("\n**The run is not complete.**\n");
    }
    page.push_str("\nEach cell: median (min – max).\n");
    page.push_str(&targets(&results.targets));
    for group in groups(&results.runs) {
        page.push_str(&table(&group));
        page.push_str(&ratios(&group));
    }
    page.push_str(&channels(results));
    if !results.errors.is_empty() {
        page.push_str("\n### Not measured\n");
        results.errors.iter().for_each(|error| page.push_str(&format!("- {}\n", error.replace('\n', " "))));
    }
    page
}

fn cell(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or("–".to_owned(), |spread| {
        let Spread { min, median, max, .. } = spread;
        format!("{median:.digits$} ({min:.digits$} – {max:.digits$})")
    })
}

fn targets(list: &[Target]) -> String {
    let mut text =
        "\n### Targets\n\n| case | QEMU | target | found | met |\n|---|---|---|---|---|\n".to_owned();
    for one in list {
        let met = match one.met {
            Some(true) => "yes",
            Some(false) => "**no**",
            None => "not measured",
        };
        let (case, qemu, promise) = (&one.case, one.qemu, &one.promise);
        text.push_str(&format!("| {case} | {qemu} | {promise} | {} | {met} |\n", cell(one.found, 2)));
    }
    text
}

fn table(group: &Group<'_>) -> String {
    let mut text = format!("\n### {}, QEMU {}\n\n| | completed |", group.case, group.qemu);
    let shown: Vec<&Column> = COLUMNS
        .iter()
        .filter(|(_, figure, _)| Method::ALL.iter().any(|method| group.spread(*method, *figure).is_some()))
        .collect();
    shown.iter().for_each(|(title, _, _)| text.push_str(&format!(" {title} |")));
    text.push_str(&format!("\n|{}\n", "---|".repeat(shown.len() + 2)));
    for method in Method::ALL {
        let (all, done) = (group.of(method).count(), group.of(method).filter(|run| run.completed).count());
        if all == 0 {
            continue;
        }
        let channels = group.of(method).find_map(|run| run.channels);
        let channels = channels.map_or(String::new(), |channels| format!(" ({channels} channels)"));
        text.push_str(&format!("| {}{channels} | {done} of {all} |", method.title()));
        for (_, figure, digits) in &shown {
            text.push_str(&format!(" {} |", cell(group.spread(method, *figure), *digits)));
        }
        text.push('\n');
    }
    text.push_str(&format!("\nWire limit (iperf3, all links at once): {} Gb/s.\n", cell(wire(group), 2)));
    text.push_str(&notes(group));
    text
}

fn wire(group: &Group<'_>) -> Option<Spread> {
    // Of the pair, whatever the method.
    Method::ALL.into_iter().find_map(|method| group.spread(method, |run| run.wire_gbps))
}

fn notes(group: &Group<'_>) -> String {
    let runs = Method::ALL.iter().flat_map(|method| group.of(*method)).filter(|run| !run.note.is_empty());
    let mut lines: Vec<String> = runs
        .map(|run| format!("- {}, pair {}: {}\n", run.method.title(), run.pair, run.note.replace('\n', " ")))
        .collect();
    if !lines.is_empty() {
        lines.insert(0, "\n".to_owned());
    }
    lines.concat()
}

fn ratios(group: &Group<'_>) -> String {
    let mut text = String::new();
    for method in [Method::OneStream, Method::Multifd, Method::Mptcp] {
        let whole = group.against(&[method], total, Best::Smallest, times_faster);
        let goodput =
            group.against(&[method], |run| run.goodput_gbps, Best::Largest, |ours, theirs| ours / theirs);
        if whole.is_some() {
            text.push_str(&format!(
                "- against {}, pair by pair: {} times as fast as a whole, {} times the goodput\n",
                method.title(),
                cell(whole, 2),
                cell(goodput, 2)
            ));
        }
    }
    for (ours, theirs) in [
        (Method::LinerateTls, Method::Linerate),
        (Method::LinerateTls, Method::MultifdTls),
        (Method::MultifdTls, Method::Multifd),
    ] {
        let ratio = |figure: fn(&Figures) -> Option<f64>, best| {
            group.compare(ours, &[theirs], figure, best, |ours, theirs| ours / theirs)
        };
        let goodput = ratio(|run| run.goodput_gbps, Best::Largest);
        if goodput.is_some() {
            text.push_str(&format!(
                "- {} against {}, pair by pair: {} times the goodput, {} times the CPU seconds per GB\n",
                ours.title(),
                theirs.title(),
                cell(goodput, 3),
                cell(ratio(|run| run.cpu_s_per_gb, Best::Smallest), 2)
            ));
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn channels(results: &Results) -> String {
    let mut text = "\n### Channels of multifd\n\n| case | QEMU | one link | one link, TLS | MPTCP | tried: seconds |\n|---|---|---|---|---|---|\n".to_owned();
    for one in &results.calibrations {
        let tried: Vec<String> = one
            .tried
            .iter()
            .map(|(method, channels, seconds)| {
                let on = match method {
                    Method::Mptcp => "MPTCP",
                    Method::MultifdTls => "one link, TLS",
                    _ => "one link",
                };
                format!("{on} {channels}: {seconds:.2}")
            })
            .collect();
        let tried = if tried.is_empty() { "none, 4 taken".to_owned() } else { tried.join(", ") };
        let (case, qemu, chosen) = (&one.case, one.qemu, one.channels);
        let Channels { multifd, multifd_tls, mptcp } = chosen;
        text.push_str(&format!("| {case} | {qemu} | {multifd} | {multifd_tls} | {mptcp} | {tried} |\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::targets::{judge, tests::run};

    #[test]
    fn a_page_has_targets_tables_and_ratios() {
        let runs =
            vec![run("idle-2x2500", Method::Linerate, 1, 1.7), run("idle-2x2500", Method::OneStream, 1, 3.4)];
        let results = Results {
            machine: crate::run::Machine::here(),
            mode: "direct".into(),
            quick: false,
            complete: true,
            calibrations: Vec::new(),
            targets: judge(&runs),
            runs,
            errors: Vec::new(),
        };
        let page = render(&results);
        assert!(page.contains("**no**") && page.contains("2.00 (2.00 – 2.00) times the goodput"), "{page}");
        let widths: Vec<usize> = page
            .lines()
            .filter(|line| line.starts_with("| linerate ") || line.starts_with("| | completed"))
            .map(|line| line.matches('|').count())
            .collect();
        assert_eq!(widths.len(), 2);
        assert_eq!(widths.first(), widths.last());
    }
}
