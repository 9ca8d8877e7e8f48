//! The report, once a migration is over: where the time went, what was carried over which link, what it cost.

use linerate_api::{BlackoutSplit, LinkTotals, MigrationOutcome, Mode, RdmaPortTotals, Report, RoundTotals};

use super::bar::mark;
use super::format::{bit_rate, bytes, clean, percent, port_speed, time_us};
use super::frame::host_of;
use super::paint::Paint;
use super::table::{Align, Table};

/// The whole report, for a terminal of this width.
pub fn report(report: &Report, width: usize, paint: Paint) -> String {
    let room = width.saturating_sub(44).clamp(8, 40);
    let mut lines = headline(report, paint);
    lines.extend(steps(report, room, paint));
    if report.outcome == MigrationOutcome::Checked {
        lines.extend(checked(report, paint));
        return lines.join("\n") + "\n";
    }
    lines.extend(rounds(&report.rounds, paint));
    lines.extend(links(&report.links, paint));
    if let Some(split) = &report.blackout {
        lines.extend(blackout(split, report.mode, room, paint));
    }
    lines.extend(totals(report, paint));
    lines.join("\n") + "\n"
}

fn headline(report: &Report, paint: Paint) -> Vec<String> {
    let (guest, from, to) =
        (paint.bold(&clean(&report.guest)), clean(&report.from), paint.bold(&clean(&report.to)));
    let total = time_us(report.total_us);
    let mark = if matches!(report.outcome, MigrationOutcome::Completed | MigrationOutcome::Checked) {
        paint.green("✓")
    } else {
        paint.red("✗")
    };
    let words = match (report.outcome, &report.blackout) {
        (MigrationOutcome::Completed, _) if report.arrived_paused => {
            format!(
                "{guest} moved from {from} to {to} in {total}; it does not run there, as it did not run here"
            )
        }
        (MigrationOutcome::Completed, Some(split)) => {
            let still = paint.bold(&time_us(split.total_us));
            format!("{guest} moved from {from} to {to} in {total}; downtime {still}")
        }
        (MigrationOutcome::Completed, None) => format!("{guest} moved from {from} to {to} in {total}"),
        (MigrationOutcome::Cancelled, _) => format!("{guest} was not moved to {to}: cancelled after {total}"),
        (MigrationOutcome::Checked, _) => {
            format!(
                "{guest} can move from {from} to {to}; that took {total} to find out, and nothing was moved"
            )
        }
        (MigrationOutcome::Failed, _) => format!("the migration of {guest} to {to} failed after {total}"),
        (MigrationOutcome::InDoubt, _) => {
            format!("the migration of {guest} to {to} is in doubt after {total}; it is paused at {from}")
        }
    };
    vec![String::new(), format!("{mark} {words}")]
}

fn section(title: &str, paint: Paint) -> [String; 2] {
    [String::new(), format!("  {}", paint.bold(title))]
}

fn steps(report: &Report, room: usize, paint: Paint) -> Vec<String> {
    let whole: u64 = report.steps.iter().map(|step| step.duration_us).sum();
    let mut table = Table::new(&[Align::Right, Align::Left, Align::Right, Align::Right, Align::Left]);
    for step in &report.steps {
        let share = percent(step.duration_us, whole);
        table.row([
            step.step.number().to_string(),
            step.step.to_string(),
            time_us(step.duration_us),
            format!("{share:.1} %"),
            mark(share / 100.0, room, paint),
        ]);
    }
    with_title("Where the time went", table.lines(4), paint)
}

fn rounds(rounds: &[RoundTotals], paint: Paint) -> Vec<String> {
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right, Align::Right, Align::Right]);
    table.row(heads(["", "to carry", "time", "rate", "written meanwhile"], paint));
    for round in rounds {
        let name =
            if round.number == 0 { "first pass".to_owned() } else { format!("round {}", round.number) };
        table.row([
            name,
            bytes(round.bytes),
            round.duration_us.map_or_else(|| "incomplete".to_owned(), time_us),
            round.duration_us.map_or_else(String::new, |time| bit_rate(per_second(round.bytes, time))),
            round.dirty_bytes_after.map_or_else(String::new, bytes),
        ]);
    }
    if rounds.is_empty() { Vec::new() } else { with_title("Rounds", table.lines(4), paint) }
}

/// What a migration would use.
fn checked(report: &Report, paint: Paint) -> Vec<String> {
    let mut table = Table::new(&[Align::Left, Align::Left, Align::Right]);
    table.row(heads(["", "", "port"], paint));
    for link in &report.links {
        let name = paint.bold(&(clean(&link.name) + if link.rdma { " (RDMA)" } else { "" }));
        let addresses = format!("{} → {}", host_of(&link.local), host_of(&link.remote));
        table.row([name, addresses, port_speed(link.speed_mbps)]);
    }
    let mut lines = with_title("Links that carry", table.lines(4), paint);
    let mut table = Table::new(&[Align::Left, Align::Left]);
    table.row([paint.bold("Memory"), bytes(report.ram.total_bytes)]);
    let reason = report.mode_reason.as_ref().map(|reason| format!(": {}", clean(reason))).unwrap_or_default();
    table.row([paint.bold("Mode"), format!("{}{reason}", mode_words(report))]);
    lines.push(String::new());
    lines.extend(table.lines(2));
    lines
}

fn mode_words(report: &Report) -> String {
    match (report.mode, report.stream_channels) {
        (Mode::Direct, _) => "direct mode".to_owned(),
        (Mode::Stream, None | Some(0)) => "stream mode".to_owned(),
        (Mode::Stream, Some(channels)) => format!("stream mode with {channels} parallel channels"),
    }
}

fn links(links: &[LinkTotals], paint: Paint) -> Vec<String> {
    let whole: u64 = links.iter().map(|link| link.sent_bytes).sum();
    let mut table = Table::new(&[
        Align::Left,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
    ]);
    table.row(heads(["", "", "port", "carried", "share", "average", "lost", "resent"], paint));
    for link in links {
        table.row([
            paint.bold(&(clean(&link.name) + if link.rdma { " (RDMA)" } else { "" })),
            format!("{} → {}", host_of(&link.local), host_of(&link.remote)),
            port_speed(link.speed_mbps),
            bytes(link.sent_bytes),
            format!("{:.0} %", percent(link.sent_bytes, whole)),
            bit_rate(link.rate_bytes_per_s),
            lost(link.lost_count, paint),
            link.retransmits.to_string(),
        ]);
    }
    let mut lines = if links.is_empty() { Vec::new() } else { with_title("Links", table.lines(4), paint) };
    for link in links {
        let name = clean(&link.name);
        if let Some(reason) = &link.fallback {
            lines.push(format!("    {name} fell back to TCP: {}", clean(reason)));
        }
        if let Some(reason) = &link.failure {
            lines.push(format!("    {name} did not carry at the end: {}", clean(reason)));
        }
        lines.extend(link.rdma_port.as_ref().map(|port| format!("    {name}: {}", rdma_port(port))));
    }
    lines
}

/// What an RDMA port counted; what it does not count is not said.
pub(super) fn rdma_port(port: &RdmaPortTotals) -> String {
    let counted = [
        ("bytes", port.sent_bytes),
        ("packets", port.sent_packets),
        ("resent", port.retransmits),
        ("congestion marks", port.congestion_marks),
        ("pauses", port.pauses),
    ];
    let words = counted.into_iter().filter_map(|(name, count)| Some(format!("{} {name}", count?)));
    format!("RDMA port {} counted {}", clean(&port.port), words.collect::<Vec<_>>().join(", "))
}

fn lost(count: u32, paint: Paint) -> String {
    if count == 0 { "–".to_owned() } else { paint.red(&format!("{count}×")) }
}

fn blackout(split: &BlackoutSplit, mode: Mode, room: usize, paint: Paint) -> Vec<String> {
    let named: u64 = split.parts().iter().map(|(_, us)| us).sum();
    let rest = split.total_us.saturating_sub(named);
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right, Align::Left]);
    for (name, us) in split.parts().into_iter().chain([("messages and the rest", rest)]) {
        if us == 0 {
            continue;
        }
        let name = match (mode, name) {
            // They come in one stream there, and the end of the one is not visible.
            (Mode::Stream, "device state") => "rest of RAM, device state",
            _ => name,
        };
        let share = percent(us, split.total_us.max(named));
        table.row([name.to_owned(), time_us(us), format!("{share:.1} %"), mark(share / 100.0, room, paint)]);
    }
    let mut lines = with_title(&format!("Blackout {}", time_us(split.total_us)), table.lines(4), paint);
    if let Some(us) = split.qemu_downtime_us {
        lines.push(format!(
            "    {}",
            paint.dim(&format!("QEMU reports a down-time of {} ms for its own part", us / 1000))
        ));
    }
    lines
}

fn totals(report: &Report, paint: Paint) -> Vec<String> {
    let ram = &report.ram;
    let mut table = Table::new(&[Align::Left, Align::Left]);
    let mut row = |name: &str, text: String| table.row([paint.bold(name), text]);
    row(
        "Memory",
        format!(
            "{}: {} sent, {} zero, {} holes",
            bytes(ram.total_bytes),
            bytes(ram.sent_bytes),
            bytes(ram.zero_bytes),
            bytes(ram.hole_bytes)
        ),
    );
    if let Some(disks) = &report.disks {
        row(
            "Disks",
            format!(
                "{}: {} copied, {} sent; {} before the memory, then beside it",
                disks.count,
                bytes(disks.copied_bytes),
                bytes(disks.sent_bytes),
                time_us(disks.alone_us)
            ),
        );
    }
    if !report.shared_by_assertion.is_empty() {
        let named = clean(&report.shared_by_assertion.join(", "));
        row("Shared", format!("{named}: not proved, asserted by the operator (--shared-storage)"));
    }
    let mode = mode_words(report);
    match report.goodput_bytes_per_s {
        // Ended before the copy had carried anything that counts.
        0 => row("Mode", mode),
        rate => row("Goodput", format!("{} during the copy, {mode}", bit_rate(rate))),
    }
    if let Some(reason) = &report.mode_reason {
        row("Why", clean(reason));
    }
    row("CPU", cpu(report));
    if report.device_state_bytes > 0 {
        row("Devices", format!("{} of device state", bytes(report.device_state_bytes)));
    }
    if report.pauses_us > 0 {
        row(
            "Pauses",
            format!("{} before the blackout, to drain disks opened with O_DIRECT", time_us(report.pauses_us)),
        );
    }
    if report.damaged_writes > 0 {
        row(
            "Torn",
            format!("{} extents changed while they were sent, and went again", report.damaged_writes),
        );
    }
    match report.verified {
        Some(true) => row("Verified", paint.green("all guest RAM was the same on both sides")),
        Some(false) => row("Verified", paint.red("guest RAM DIFFERED between the two sides")),
        None => {}
    }
    let mut lines = vec![String::new()];
    lines.extend(table.lines(2));
    lines
}

fn cpu(report: &Report) -> String {
    let seconds = |us: u64| us as f64 / 1e6;
    let (source, destination) =
        (seconds(report.cpu.source_agent_us), seconds(report.cpu.destination_agent_us));
    let gib = report.ram.sent_bytes as f64 / (1u64 << 30) as f64;
    let each = if gib >= 0.01 {
        format!("; {:.2} s for each GiB sent", (source + destination) / gib)
    } else {
        String::new()
    };
    format!("agents: source {source:.2} s, destination {destination:.2} s{each}")
}

fn heads<const N: usize>(names: [&str; N], paint: Paint) -> [String; N] {
    names.map(|name| paint.dim(name))
}

fn with_title(title: &str, lines: Vec<String>, paint: Paint) -> Vec<String> {
    section(title, paint).into_iter().chain(lines).collect()
}

fn per_second(bytes: u64, us: u64) -> u64 {
    if us == 0 { 0 } else { (bytes as f64 * 1e6 / us as f64) as u64 }
}
