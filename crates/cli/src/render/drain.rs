//! Drains, placement and the hosts of a fleet, as text.

use console::truncate_str;
use linerate_api::{
    DrainDetail, DrainGuest, DrainGuestState, DrainState, FleetHost, FleetStatus, GuestForgotten,
    HostForgotten, PlaceAnswer, UndrainDetail, UndrainGuest, UndrainGuestState,
};

use super::bar::bar;
use super::format::{bit_rate, bytes, clean, clock_us, percent, time_us};
use super::paint::Paint;
use super::table::{Align, Table, wrap};

/// Width of a guest's bar.
const BAR: usize = 16;

/// The picture of a drain that goes on, none of its lines wider than `width`.
pub fn frame(detail: &DrainDetail, width: usize, paint: Paint) -> Vec<String> {
    let mut lines = vec![title(detail, paint), String::new()];
    lines.extend(table(detail, paint));
    lines.push(String::new());
    lines.push(figures(detail, paint));
    lines.extend(detail.warnings.iter().map(|text| format!("  {}", paint.yellow(&clean(text)))));
    lines.into_iter().map(|line| truncate_str(&line, width, "…").into_owned()).collect()
}

/// All that is known of a drain.
pub fn detail(detail: &DrainDetail, width: usize, paint: Paint) -> String {
    let mut lines = vec![title(detail, paint), String::new()];
    lines.extend(table(detail, paint));
    lines.extend(reasons(detail, width, paint));
    lines.push(String::new());
    lines.push(figures(detail, paint));
    lines.extend(warnings(detail, width, paint));
    lines.join("\n") + "\n"
}

/// What a drain would do.
pub fn plan(detail: &DrainDetail, width: usize, paint: Paint) -> String {
    let host = clean(&detail.host);
    let mut lines = vec![format!("  {} {}", paint.bold("plan for"), paint.bold(&host)), String::new()];
    if detail.guests.is_empty() {
        lines.push("  no guest is here".into());
    }
    let mut rows = Table::new(&[Align::Left, Align::Left, Align::Left, Align::Right, Align::Right]);
    rows.row(["", "GUEST", "TO", "IN USE", "TIME"].map(|head| paint.dim(head)));
    for guest in &detail.guests {
        let (mark, to) = match guest.state {
            DrainGuestState::Kept => (paint.dim("·"), paint.dim("stays, as asked")),
            DrainGuestState::Failed => (paint.red("✗"), paint.red("cannot move")),
            DrainGuestState::InDoubt => (paint.red("✗"), paint.red("in doubt")),
            _ => (paint.green("✓"), clean(guest.to.as_deref().unwrap_or("?"))),
        };
        let moves = guest.state == DrainGuestState::Waiting;
        let time = guest.predicted_ms.filter(|_| moves).map(|ms| time_us(ms * 1000)).unwrap_or_default();
        rows.row([mark, paint.bold(&name(guest)), to, bytes(guest.copy_bytes), time]);
    }
    lines.extend(rows.lines(2));
    lines.extend(reasons(detail, width, paint));
    lines.push(String::new());
    lines.push(format!(
        "  at least {} over links of {}; nothing was moved",
        time_us(detail.bound.longest_ms() * 1000),
        bit_rate(detail.links_bytes_per_s)
    ));
    if detail.guests.iter().any(|guest| guest.domain) {
        lines.push("  domains of libvirt were not tried: libvirt checks them when they are moved".into());
    }
    lines.extend(warnings(detail, width, paint));
    lines.join("\n") + "\n"
}

/// Guests that come back, none of the lines wider than `width`.
pub fn undrain_frame(detail: &UndrainDetail, width: usize, paint: Paint) -> Vec<String> {
    let head = format!("  {} {}", paint.bold("guests come back to"), paint.bold(&clean(&detail.host)));
    let mut lines = vec![head, String::new()];
    let mut rows = Table::new(&[Align::Left; 4]);
    for guest in &detail.guests {
        let mark = match guest.state {
            UndrainGuestState::Waiting => paint.dim("·"),
            UndrainGuestState::Moving => paint.dim("→"),
            UndrainGuestState::Back if guest.reason.is_some() => paint.yellow("▲"),
            UndrainGuestState::Back => paint.green("✓"),
            UndrainGuestState::Failed => paint.red("✗"),
        };
        let from = format!("from {}", clean(&guest.from));
        let state = guest.state.name() + if guest.paused { ", paused" } else { "" };
        rows.row([mark, paint.bold(&clean(&guest.guest)), state, paint.dim(&from)]);
    }
    lines.extend(rows.lines(2));
    lines.push(String::new());
    let back = detail.count(UndrainGuestState::Back);
    lines.push(match detail.guests.len() {
        0 => "  no guest is to come back".to_owned(),
        all => format!("  {back} of {all} are back"),
    });
    lines.into_iter().map(|line| truncate_str(&line, width, "…").into_owned()).collect()
}

/// The same at the end, with reasons.
pub fn undrained(detail: &UndrainDetail, width: usize, paint: Paint) -> String {
    let mut lines = undrain_frame(detail, width, paint);
    for guest in &detail.guests {
        let Some(reason) = &guest.reason else { continue };
        let text = format!("{}: {}", clean(&guest.guest), clean(reason));
        lines
            .extend(wrap(&text, width.saturating_sub(2).max(20)).into_iter().map(|line| format!("  {line}")));
        if !guest.hint.is_empty() {
            lines.push(paint.dim(&format!("      do: {}", clean(&guest.hint))));
        }
    }
    lines.join("\n") + "\n"
}

/// A guest whose state has changed, in a line.
pub fn undrain_line(guest: &UndrainGuest) -> String {
    let (name, from) = (clean(&guest.guest), clean(&guest.from));
    match (guest.state, &guest.reason) {
        (UndrainGuestState::Back, Some(reason)) => format!("{name}: is back from {from}: {}", clean(reason)),
        (UndrainGuestState::Back, None) if guest.paused => format!("{name}: is back from {from}, and paused"),
        (UndrainGuestState::Back, None) => format!("{name}: is back from {from}"),
        (UndrainGuestState::Failed, Some(reason)) => format!("{name}: does not come back: {}", clean(reason)),
        (state, _) => format!("{name}: {} from {from}", state.name()),
    }
}

fn warnings(detail: &DrainDetail, width: usize, paint: Paint) -> Vec<String> {
    let split = detail.split_texts();
    let all = split.iter().chain(&detail.unseen).chain(&detail.warnings);
    let texts = all.flat_map(|text| wrap(&clean(text), width.saturating_sub(2).max(20)));
    texts.map(|line| format!("  {}", paint.yellow(&line))).collect()
}

/// Why guests stay, or tries failed, each with what would help.
fn reasons(detail: &DrainDetail, width: usize, paint: Paint) -> Vec<String> {
    let mut lines = Vec::new();
    for guest in &detail.guests {
        let Some(reason) = guest.reason.as_ref().filter(|_| guest.state != DrainGuestState::Kept) else {
            continue;
        };
        lines.push(String::new());
        let room = width.saturating_sub(6).max(20);
        let mut text = wrap(&clean(reason), room).into_iter();
        lines.push(format!("  {}: {}", paint.bold(&name(guest)), text.next().unwrap_or_default()));
        lines.extend(text.map(|line| format!("      {line}")));
        if !guest.hint.is_empty() {
            lines.extend(
                wrap(&format!("do: {}", clean(&guest.hint)), room)
                    .into_iter()
                    .map(|line| format!("      {line}")),
            );
        }
    }
    lines
}

fn title(detail: &DrainDetail, paint: Paint) -> String {
    let state = match detail.state {
        DrainState::Planned => "",
        DrainState::Running => "running",
        DrainState::Paused => "paused",
        DrainState::Aborting => "aborting",
        DrainState::Ended => "ended",
    };
    let took = detail.ended_unix_ms.map(|ended| {
        format!(" in {}", time_us(ended.saturating_sub(detail.begun_unix_ms).saturating_mul(1000)))
    });
    format!(
        "  {} {}  {}  {}{}",
        paint.bold("drain of"),
        paint.bold(&clean(&detail.host)),
        paint.dim(&clean(&detail.id)),
        paint.cyan(state),
        took.unwrap_or_default()
    )
}

fn name(guest: &DrainGuest) -> String {
    let kind = if guest.domain { " (domain)" } else { "" };
    format!("{}{kind}", clean(&guest.guest))
}

fn table(detail: &DrainDetail, paint: Paint) -> Vec<String> {
    let mut rows =
        Table::new(&[Align::Left, Align::Left, Align::Left, Align::Right, Align::Left, Align::Left]);
    rows.row(["GUEST", "STATE", "TO", "IN USE", "", ""].map(|head| paint.dim(head)));
    for guest in &detail.guests {
        let (picture, text) = match guest.state {
            DrainGuestState::Copying => {
                let share = percent(guest.copied_bytes.min(guest.copy_bytes), guest.copy_bytes);
                (bar(share / 100.0, BAR, paint), bit_rate(guest.rate_bytes_per_s))
            }
            DrainGuestState::Moved => (String::new(), moved(guest)),
            _ => (String::new(), String::new()),
        };
        rows.row([
            paint.bold(&name(guest)),
            state(guest.state, paint),
            guest.to.as_deref().map(clean).unwrap_or_default(),
            bytes(guest.copy_bytes),
            picture,
            text,
        ]);
    }
    rows.lines(2)
}

fn moved(guest: &DrainGuest) -> String {
    let took = guest.took_ms.map(|ms| format!("copied in {}", time_us(ms * 1000)));
    let predicted = guest.predicted_ms.map(|ms| format!("predicted {}", time_us(ms * 1000)));
    let blackout = guest.blackout_us.map(|us| format!("blackout {}", time_us(us)));
    [took, predicted, blackout].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn state(state: DrainGuestState, paint: Paint) -> String {
    let text = state.name().replace('_', " ");
    match state {
        DrainGuestState::Moved => paint.green(&text),
        DrainGuestState::Copying | DrainGuestState::Prepared | DrainGuestState::Preparing => {
            paint.cyan(&text)
        }
        DrainGuestState::Failed | DrainGuestState::InDoubt => paint.red(&text),
        DrainGuestState::Waiting | DrainGuestState::Kept => paint.dim(&text),
        DrainGuestState::Cancelling
        | DrainGuestState::Recovering
        | DrainGuestState::Aborted
        | DrainGuestState::Gone => paint.yellow(&text),
    }
}

fn figures(detail: &DrainDetail, paint: Paint) -> String {
    let moved = detail.count(DrainGuestState::Moved);
    let mut parts = vec![paint.bold(&format!("{moved} of {} moved", detail.guests.len()))];
    if !detail.is_over() {
        parts.push(format!(
            "{} of {}",
            bit_rate(detail.rate_bytes_per_s),
            bit_rate(detail.links_bytes_per_s)
        ));
        parts.extend(detail.left_ms.map(|ms| format!("{} left", clock_us(ms.saturating_mul(1000)))));
    }
    if detail.bound.longest_ms() > 0 {
        let bound = time_us(detail.bound.longest_ms() * 1000);
        parts.push(paint.dim(&format!("lower bound {bound}")));
    }
    format!("  {}", parts.join(", "))
}

/// What has just become of a guest; nothing while it waits.
pub fn sentence(guest: &DrainGuest) -> Option<String> {
    let (name, to) = (clean(&guest.guest), clean(guest.to.as_deref().unwrap_or_default()));
    let reason = guest.reason.as_deref().map(clean).unwrap_or_default();
    Some(match guest.state {
        DrainGuestState::Waiting | DrainGuestState::Prepared => return None,
        DrainGuestState::Preparing => format!("{name} to {to}: preparing"),
        DrainGuestState::Copying => format!("{name} to {to}: copying"),
        DrainGuestState::Cancelling => format!("{name} to {to}: its migration is being cancelled"),
        DrainGuestState::Recovering => format!("{name}: recovery finds out where it is"),
        DrainGuestState::Moved if guest.reason.is_some() => {
            format!("{name} to {to}: moved, WITH A FAULT: {reason}")
        }
        DrainGuestState::Moved => format!("{name} to {to}: moved; {}", moved(guest)),
        DrainGuestState::Kept => format!("{name}: stays, as asked"),
        DrainGuestState::Aborted => format!("{name}: is here as before"),
        DrainGuestState::Gone if guest.reason.is_some() => {
            format!("{name} to {to}: ENDED WHILE IT WAS MOVED: {reason}")
        }
        DrainGuestState::Gone => format!("{name}: was stopped, has ended, or left in another way"),
        DrainGuestState::Failed => format!("{name}: is here as before, and cannot be moved: {reason}"),
        DrainGuestState::InDoubt => format!("{name}: IN DOUBT: {reason}"),
    })
}

/// Drains of a host.
pub fn list(drains: &[DrainDetail], paint: Paint) -> String {
    if drains.is_empty() {
        return "no drain is known; begin one with `linerate drain --to HOST`\n".into();
    }
    let mut rows = Table::new(&[Align::Left, Align::Left, Align::Left, Align::Right, Align::Left]);
    rows.row(["ID", "HOST", "STATE", "MOVED", "BY"].map(|head| paint.dim(head)));
    for one in drains {
        let moved = format!("{} of {}", one.count(DrainGuestState::Moved), one.guests.len());
        let state = match one.state {
            DrainState::Planned => "planned",
            DrainState::Running => "running",
            DrainState::Paused => "paused",
            DrainState::Aborting => "aborting",
            DrainState::Ended => "ended",
        };
        rows.row([paint.bold(&clean(&one.id)), clean(&one.host), state.to_owned(), moved, clean(&one.by)]);
    }
    rows.lines(0).join("\n") + "\n"
}

/// Where a guest can go.
pub fn place(answer: &PlaceAnswer, explain: bool, paint: Paint) -> String {
    let guest = clean(&answer.guest);
    let mut lines = vec![match &answer.best {
        Some(best) => format!("{guest} would go to {}", paint.bold(&clean(best))),
        None => format!("{guest} has no destination"),
    }];
    if !answer.together.is_empty() {
        let others: Vec<String> = answer.together.iter().map(|other| clean(other)).collect();
        lines.push(format!("together with {}", others.join(", ")));
    }
    if explain || answer.best.is_none() {
        let mut rows = Table::new(&[Align::Left, Align::Left, Align::Right, Align::Right, Align::Left]);
        rows.row(["", "HOST", "FREE", "LINKS", ""].map(|head| paint.dim(head)));
        for host in &answer.hosts {
            let mark = if host.obstacles.is_empty() { paint.green("✓") } else { paint.red("✗") };
            let obstacles = host.obstacles.iter().map(|text| clean(text)).collect::<Vec<_>>().join("; ");
            rows.row([
                mark,
                clean(&host.host),
                bytes(host.free_bytes),
                bit_rate(host.links_bytes_per_s),
                obstacles,
            ]);
        }
        lines.extend(rows.lines(2));
    }
    lines.join("\n") + "\n"
}

/// Hosts that a store knows.
pub fn hosts(hosts: &[FleetHost], paint: Paint) -> String {
    let mut rows = Table::new(&[
        Align::Left,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Right,
        Align::Left,
    ]);
    rows.row(
        ["HOST", "STATE", "GUESTS", "FREE", "RESERVED", "PORTS", "ARRIVALS"].map(|head| paint.dim(head)),
    );
    for host in hosts {
        let state = if host.alive { paint.green("answers") } else { paint.red("lost") };
        let arrivals = match (&host.cordon, &host.drain) {
            (_, Some(drain)) => paint.yellow(&format!("none: drain {}", clean(drain))),
            (Some(cordon), None) => paint.yellow(&format!("none: cordoned by {}", clean(&cordon.by))),
            (None, None) => String::new(),
        };
        rows.row([
            paint.bold(&clean(&host.host)),
            state,
            host.guests.to_string(),
            bytes(host.free_bytes),
            bytes(host.reserved_bytes),
            bit_rate(host.ports_bytes_per_s),
            arrivals,
        ]);
    }
    rows.lines(0).join("\n") + "\n"
}

/// The fleet, and this host's part in it.
pub fn fleet(status: &FleetStatus, paint: Paint) -> String {
    let mark = if status.error.is_none() { paint.green("✓") } else { paint.red("✗") };
    let shared = if status.shared { "shared" } else { "of this host alone" };
    let mut lines = vec![format!("{mark} store    {} ({shared})", clean(&status.store))];
    if let Some(error) = &status.error {
        lines.push(format!("           {}", paint.red(&clean(error))));
    }
    if let Some(hosts) = &status.hosts {
        lines.push(format!(
            "  hosts    {} known, {} answer, {} take no guests",
            hosts.known, hosts.answer, hosts.cordoned
        ));
        lines.push(format!("  guests   {}", hosts.guests));
        lines.push(format!(
            "  memory   {} free of {}, {} reserved",
            bytes(hosts.free_bytes),
            bytes(hosts.memory_bytes),
            bytes(hosts.reserved_bytes)
        ));
    }
    for one in &status.drains {
        let owner = match &one.owner {
            Some(owner) => format!("host {}", clean(owner)),
            None => paint.yellow("nobody"),
        };
        lines.push(format!(
            "  drain    {} empties {}: {} of {} moved, carried on by {owner}",
            paint.bold(&clean(&one.id)),
            clean(&one.host),
            one.moved,
            one.guests
        ));
    }
    lines.extend(status.warnings.iter().map(|text| format!("{} {}", paint.yellow("!"), clean(text))));
    lines.join("\n") + "\n"
}

/// A guest that no undrain brings back any more.
pub fn guest_forgotten(answer: &GuestForgotten) -> String {
    let guest = clean(&answer.guest);
    let from = if answer.from.is_empty() { "its host".to_owned() } else { clean(&answer.from) };
    if answer.dry_run {
        return format!("{guest} would be forgotten: {from}, to which it was moved, does not answer\n");
    }
    format!("{guest} is forgotten: no undrain brings it back from {from}\n")
}

/// A host that the store does not know any more.
pub fn host_forgotten(answer: &HostForgotten) -> String {
    let will_be = if answer.dry_run { "would be" } else { "is" };
    let mut lines = vec![format!("host {} {will_be} forgotten", clean(&answer.host))];
    let cordon: Vec<String> = answer.cordon.iter().map(|cordon| cordon.by.clone()).collect();
    for (what, names) in [
        ("guests that it had", &answer.guests),
        ("memory that was reserved there for", &answer.reserved),
        ("its drains", &answer.drains),
        ("its cordon by", &cordon),
    ] {
        if !names.is_empty() {
            let names: Vec<String> = names.iter().map(|name| clean(name)).collect();
            lines.push(format!("  {what}: {}", names.join(", ")));
        }
    }
    lines.join("\n") + "\n"
}
