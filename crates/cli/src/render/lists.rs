//! Guests, migrations and the agent, in tables.

use linerate_api::{
    AgentStatus, Direction, GuestDetail, GuestRunState, GuestSummary, MigrationState, MigrationSummary,
    SecurityState, Verdict,
};

use super::format::{bytes, clean, clock_us};
use super::paint::Paint;
use super::table::{Align, Table};

pub fn guests(guests: &[GuestSummary], paint: Paint) -> String {
    if guests.is_empty() {
        return "no guests; start one with `linerate vm start SPEC` or take one over with `linerate vm adopt`\n".into();
    }
    let mut table = Table::new(&[
        Align::Left,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Left,
        Align::Right,
        Align::Left,
        Align::Left,
    ]);
    let heads = ["NAME", "STATE", "MEMORY", "VCPUS", "QEMU", "PID", "STREAM MODE", "DIRECT MODE"];
    table.row(heads.map(|head| paint.dim(head)));
    for guest in guests {
        table.row([
            paint.bold(&clean(&guest.name)),
            run_state(guest.state, paint),
            bytes(guest.memory_bytes),
            guest.vcpus.to_string(),
            clean(&guest.qemu_version),
            guest.pid.map_or_else(|| "–".to_owned(), |pid| pid.to_string()),
            yes_or_no(&guest.stream, paint),
            verdict(&guest.direct, paint),
        ]);
    }
    text(table.lines(0))
}

fn run_state(state: GuestRunState, paint: Paint) -> String {
    match state {
        GuestRunState::Running => paint.green("running"),
        GuestRunState::Paused => paint.yellow("paused"),
        GuestRunState::Incoming => paint.cyan("incoming"),
        GuestRunState::Stopped => paint.dim("stopped"),
        GuestRunState::Migrating => paint.cyan("migrating"),
        GuestRunState::Recovering => paint.yellow("recovering"),
        GuestRunState::InDoubt => paint.red("in doubt"),
        GuestRunState::Unknown => paint.red("unknown"),
    }
}

fn yes_or_no(verdict: &Verdict, paint: Paint) -> String {
    if verdict.possible { paint.green("yes") } else { paint.yellow("no") }
}

fn verdict(verdict: &Verdict, paint: Paint) -> String {
    match (verdict.possible, verdict.reasons.as_slice()) {
        (true, _) => paint.green("yes"),
        (false, []) => paint.yellow("no"),
        (false, [reason]) => format!("{}: {}", paint.yellow("no"), clean(reason)),
        (false, [first, rest @ ..]) => {
            format!("{}: {} (and {} more)", paint.yellow("no"), clean(first), rest.len())
        }
    }
}

pub fn guest(guest: &GuestDetail, paint: Paint) -> String {
    let mut lines = facts(&guest.summary, paint);
    let mut disks = Table::new(&[Align::Left, Align::Left, Align::Left, Align::Left]);
    for disk in &guest.disks {
        let cache = if disk.direct_io { "O_DIRECT" } else { "buffered" };
        let access = if disk.read_only { format!("{cache}, read-only") } else { cache.to_owned() };
        disks.row([clean(&disk.device), clean(&disk.path), clean(&disk.format), access]);
    }
    lines.extend(section("Disks", disks.lines(2), paint));
    let mut nics = Table::new(&[Align::Left, Align::Left, Align::Left]);
    for nic in &guest.nics {
        nics.row([clean(&nic.device), clean(&nic.mac), clean(&nic.backend)]);
    }
    lines.extend(section("Network cards", nics.lines(2), paint));
    let mut blocks = Table::new(&[Align::Left, Align::Right, Align::Left, Align::Left]);
    for block in &guest.ram_blocks {
        let used = block.populated_bytes.map(|used| format!("{} in use", bytes(used))).unwrap_or_default();
        let backing = match (&block.path, block.shared) {
            (Some(path), true) => format!("shared file {}", clean(path)),
            (Some(path), false) => format!("private file {}", clean(path)),
            (None, true) => "shared, without a name".to_owned(),
            (None, false) => "private".to_owned(),
        };
        blocks.row([clean(&block.name), bytes(block.size_bytes), used, backing]);
    }
    lines.extend(section("RAM", blocks.lines(2), paint));
    let needs = guest.needs.iter().map(|need| format!("  {}", clean(need))).collect();
    lines.extend(section("The destination must have", needs, paint));
    text(lines)
}

fn facts(summary: &GuestSummary, paint: Paint) -> Vec<String> {
    let mut table = Table::new(&[Align::Left, Align::Left]);
    let mut row = |name: &str, value: String| table.row([paint.dim(name), value]);
    row("Name", paint.bold(&clean(&summary.name)));
    row("UUID", summary.uuid.as_deref().map_or_else(|| "–".to_owned(), clean));
    row("State", run_state(summary.state, paint));
    row("Memory", bytes(summary.memory_bytes));
    row("CPUs", summary.vcpus.to_string());
    row("QEMU", clean(&summary.qemu_version));
    row("Process", summary.pid.map_or_else(|| "–".to_owned(), |pid| pid.to_string()));
    for (mode, verdict) in [("Direct mode", &summary.direct), ("Stream mode", &summary.stream)] {
        row(mode, yes_or_no(verdict, paint));
        for reason in &verdict.reasons {
            row("", clean(reason));
        }
    }
    table.lines(0)
}

fn section(title: &str, lines: Vec<String>, paint: Paint) -> Vec<String> {
    if lines.is_empty() {
        return Vec::new();
    }
    [String::new(), paint.bold(title)].into_iter().chain(lines).collect()
}

/// `linerate migration list`; `now_unix_ms` is what ages are counted from.
pub fn migrations(migrations: &[MigrationSummary], now_unix_ms: u64, paint: Paint) -> String {
    if migrations.is_empty() {
        return "no migrations; begin one with `linerate migrate GUEST --to HOST`\n".into();
    }
    let mut table = Table::new(&[
        Align::Left,
        Align::Left,
        Align::Left,
        Align::Left,
        Align::Left,
        Align::Right,
        Align::Right,
    ]);
    table.row(["ID", "GUEST", "PEER", "STATE", "STEP", "SENT", "BEGAN"].map(|head| paint.dim(head)));
    for one in migrations {
        let arrow = match one.direction {
            Direction::Outgoing => "→",
            Direction::Incoming => "←",
        };
        let age_us = now_unix_ms.saturating_sub(one.started_unix_ms) / 1000 * 1_000_000;
        table.row([
            paint.bold(&clean(&one.id.0)),
            clean(&one.guest),
            format!("{arrow} {}", clean(&one.peer)),
            migration_state(one.state, paint),
            format!("{} {}", one.step.number(), one.step),
            bytes(one.sent_bytes),
            format!("{} ago", clock_us(age_us)),
        ]);
    }
    let mut lines = table.lines(0);
    if migrations.iter().any(|one| one.note.is_some()) {
        lines.push(String::new());
    }
    for (one, note) in migrations.iter().filter_map(|one| Some((one, one.note.as_ref()?))) {
        lines.push(paint.yellow(&format!("{} {}: {}", clean(&one.id.0), clean(&one.guest), clean(note))));
    }
    text(lines)
}

fn migration_state(state: MigrationState, paint: Paint) -> String {
    match state {
        MigrationState::Running => paint.cyan("running"),
        MigrationState::Cancelling => paint.yellow("cancelling"),
        MigrationState::Completed => paint.green("completed"),
        MigrationState::Cancelled => paint.yellow("cancelled"),
        MigrationState::Checked => paint.green("checked"),
        MigrationState::Failed => paint.red("failed"),
        MigrationState::InDoubt => paint.red("in doubt"),
        MigrationState::Recovering => paint.yellow("recovering"),
    }
}

pub fn status(status: &AgentStatus, paint: Paint) -> String {
    let versions: Vec<String> = status.protocol_versions.iter().map(u16::to_string).collect();
    let mut table = Table::new(&[Align::Left, Align::Left]);
    let mut row = |name: &str, value: String| table.row([paint.dim(name), value]);
    row("Host", paint.bold(&clean(&status.name)));
    row(
        "Linerate",
        format!("{}, up for {}", clean(&status.version), clock_us(status.uptime_s.saturating_mul(1_000_000))),
    );
    row("Security", security(status, paint));
    if let Some(why) = &status.identity_not_taken_up {
        row("", paint.red(&format!("does not use the new files of its identity: {}", clean(why))));
    }
    if let Some(advice) = &status.security_advice {
        row("", paint.yellow(&clean(advice)));
    }
    let listen = if status.listen.is_empty() { "no address".to_owned() } else { status.listen.join(", ") };
    row("Listens at", clean(&listen));
    if !status.join_listen.is_empty() {
        row("Hosts join at", clean(&status.join_listen.join(", ")));
    }
    row("Protocol", versions.join(", "));
    if let Some(error) = &status.cordon_error {
        row(
            "Arrivals",
            paint.red(&format!("none: whether this host is cordoned is not known: {}", clean(error))),
        );
    }
    if let Some(cordon) = &status.cordon {
        let since = linerate_agent::cluster::utc_of_ms(cordon.since_unix_ms);
        let what = format!(
            "none: cordoned by {} at {since}; release it with `linerate uncordon`",
            clean(&cordon.by)
        );
        row("Arrivals", paint.yellow(&what));
    }
    row("Guests", status.guests.to_string());
    row("Migrations", format!("{} in progress", status.migrations));
    if status.in_doubt > 0 {
        row("In doubt", paint.red(&format!("{}; see `linerate migration list`", status.in_doubt)));
    }
    if status.unfinished > status.in_doubt {
        let others = status.unfinished - status.in_doubt;
        row("Recovering", paint.yellow(&format!("{others}; see `linerate migration list`")));
    }
    if status.unwritten > 0 {
        let what = format!(
            "the ends of {} migrations could not be written to the journal: is its disk full?",
            status.unwritten
        );
        row("Journal", paint.red(&what));
    }
    if let Some(error) = &status.journal_error {
        row("Journal", paint.red(&clean(error)));
    }
    let mut lines = table.lines(0);
    let mut kernel = Table::new(&[Align::Left, Align::Left, Align::Left]);
    for feature in &status.kernel_features {
        let (mark, what) = match feature.present {
            true => (paint.green("✓"), String::new()),
            false => (paint.red("✗"), format!("missing: {}", clean(&feature.needed_for))),
        };
        kernel.row([mark, clean(&feature.name), what]);
    }
    lines.extend(section("Kernel", kernel.lines(2), paint));
    text(lines)
}

fn security(status: &AgentStatus, paint: Paint) -> String {
    match (status.security, &status.identity) {
        (SecurityState::Tls, Some(own)) => {
            let until = linerate_agent::cluster::utc_of_ms(own.ends_unix_ms);
            format!("TLS, as {} of cluster {} until {until}", clean(&own.host), clean(&own.cluster))
        }
        (SecurityState::Tls, None) => "TLS".into(),
        (SecurityState::NoIdentity, _) => paint.red("no identity"),
        (SecurityState::Insecure, _) => paint.red("insecure"),
    }
}

fn text(lines: Vec<String>) -> String {
    lines.join("\n") + "\n"
}
