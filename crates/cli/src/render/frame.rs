//! The live display: one picture of a running migration, as lines.

use console::{measure_text_width, truncate_str};
use linerate_api::{DiskProgress, LinkProgress, LinkState, Progress, Step};

use super::bar::bar;
use super::format::{bit_rate, bytes, clean, clock_us, percent, port_speed, time_us};
use super::paint::Paint;
use super::report::rdma_port;
use super::table::{Align, Table};
use crate::display::view::{Note, StepView, View};

/// Marks of a step in progress, one after the other.
const SPINNER: [&str; 4] = ["◐", "◓", "◑", "◒"];
const SPIN_US: u64 = 150_000;

/// The picture at this point in time, none of its lines wider than `width`.
pub fn frame(view: &View, now_us: u64, width: usize, paint: Paint) -> Vec<String> {
    let mut lines = vec![title(view, now_us, width, paint), String::new()];
    lines.extend(steps(view, now_us, width, paint));
    if let Some(progress) = &view.progress {
        lines.push(String::new());
        lines.push(total(progress, width, paint));
        lines.extend(progress.disks.map(|disks| disks_line(disks, width, paint)));
        lines.extend(links(progress, width, paint));
        lines.extend(rdma_ports(&progress.links, paint));
        lines.push(String::new());
        lines.extend(figures(view, progress, paint));
        lines.extend(progress.disks.map(|disks| disk_figures(disks, paint)));
    }
    lines.extend(view.notes.iter().map(|note| note_line(note, paint)));
    if view.cancelling {
        lines.push(format!("  {}", paint.yellow("cancelling; Ctrl-C again stops watching")));
    }
    lines.into_iter().map(|line| truncate_str(&line, width, "…").into_owned()).collect()
}

fn title(view: &View, now_us: u64, width: usize, paint: Paint) -> String {
    let clock = clock_us(now_us);
    let left = format!("  {} {} {}", paint.bold(&view.guest), paint.dim("→"), paint.bold(&view.to));
    let space = width.saturating_sub(measure_text_width(&left) + clock.len() + 2).max(1);
    format!("{left}{}{}", " ".repeat(space), paint.dim(&clock))
}

/// Two columns of five.
fn steps(view: &View, now_us: u64, width: usize, paint: Paint) -> Vec<String> {
    let cells: Vec<String> = Step::ALL
        .iter()
        .zip(&view.steps)
        .map(|(step, state)| step_cell(*step, *state, now_us, paint))
        .collect();
    let column = (width.saturating_sub(2) / 2).min(40);
    let (left, right) = cells.split_at(cells.len() / 2);
    left.iter().zip(right).map(|(left, right)| format!("  {}{right}", pad(left, column))).collect()
}

fn step_cell(step: Step, state: StepView, now_us: u64, paint: Paint) -> String {
    let name = format!("{:>2} {:<10}", step.number(), step.text());
    match state {
        StepView::Pending => format!("{} {}", paint.dim("·"), paint.dim(name.trim_end())),
        StepView::Running(since) => {
            let turn = usize::try_from(now_us / SPIN_US).unwrap_or(0) % SPINNER.len();
            let mark = SPINNER.get(turn).copied().unwrap_or("◐");
            let time = format!("{:>10}", clock_us(now_us.saturating_sub(since)));
            format!("{} {}{}", paint.cyan(mark), paint.bold(&name), paint.cyan(&time))
        }
        StepView::Done(us) => format!("{} {name}{:>10}", paint.green("✓"), time_us(us)),
        StepView::Failed => format!("{} {}", paint.red("✗"), paint.red(name.trim_end())),
    }
}

/// All bytes that are known to have to move: done, and left.
fn total(progress: &Progress, width: usize, paint: Paint) -> String {
    let done = progress.sent_bytes.saturating_add(progress.zero_bytes);
    let whole = done.saturating_add(progress.remaining_bytes);
    let share = percent(done, whole);
    let text = format!(
        "{:>4.0} %  {:>10} of {:<10}  {}",
        share.floor(),
        bytes(done),
        bytes(whole),
        paint.bold(&format!("{:>9}", bit_rate(progress.rate_bytes_per_s)))
    );
    let room = width.saturating_sub(measure_text_width(&text) + 6 + TOTAL_LABEL).clamp(8, 44);
    let label = pad("total", TOTAL_LABEL);
    format!("  {} {}  {text}", paint.bold(&label), bar(share / 100.0, room, paint))
}

/// Copied disks: how far they are, apart from the memory.
fn disks_line(disks: DiskProgress, width: usize, paint: Paint) -> String {
    let share = percent(disks.done_bytes, disks.total_bytes);
    let text = format!(
        "{:>4.0} %  {:>10} of {:<10}",
        share.floor(),
        bytes(disks.done_bytes),
        bytes(disks.total_bytes)
    );
    let room = width.saturating_sub(measure_text_width(&text) + RATE_WIDTH + 6 + TOTAL_LABEL).clamp(8, 44);
    let label = pad("disks", TOTAL_LABEL);
    format!("  {} {}  {}", paint.bold(&label), bar(share / 100.0, room, paint), text.trim_end())
}

const TOTAL_LABEL: usize = 6;
/// The rate at the end of the line above, so that both bars are equally long.
const RATE_WIDTH: usize = 11;

fn links(progress: &Progress, width: usize, paint: Paint) -> Vec<String> {
    let without_bars = link_table(progress, 0, true, paint);
    let text = without_bars.iter().map(|line| measure_text_width(line)).max().unwrap_or(0) + 2;
    if text + BAR_MIN <= width {
        return link_table(progress, (width - text).min(BAR_MAX), true, paint);
    }
    // Long addresses on a narrow terminal: rather the figures than the addresses.
    link_table(progress, BAR_MIN, false, paint)
}

/// What no interface's counters show, because it goes past the kernel.
fn rdma_ports(links: &[LinkProgress], paint: Paint) -> Vec<String> {
    let line = |link: &LinkProgress| {
        Some(format!("  {}: {}", clean(&link.name), rdma_port(link.rdma_port.as_ref()?)))
    };
    links.iter().filter_map(line).map(|line| paint.dim(&line)).collect()
}

/// Long enough for the word in its place while a link is tried.
const BAR_MIN: usize = 7;
const BAR_MAX: usize = 24;

fn link_table(progress: &Progress, room: usize, addresses: bool, paint: Paint) -> Vec<String> {
    let fastest = progress.links.iter().map(|link| link.rate_bytes_per_s).max().unwrap_or(0);
    let carried: u64 = progress.links.iter().map(|link| link.sent_bytes).sum();
    let mut table = Table::new(&[
        Align::Left,
        Align::Left,
        Align::Right,
        Align::Left,
        Align::Right,
        Align::Right,
        Align::Right,
    ]);
    for link in &progress.links {
        let (local, remote) = (host_of(&link.local), host_of(&link.remote));
        table.row([
            paint.bold(&clean(&link.name)),
            if addresses { format!("{local} {} {remote}", paint.dim("→")) } else { String::new() },
            paint.dim(&port_speed(link.speed_mbps)),
            if room > 0 { link_bar(link, fastest, room, paint) } else { String::new() },
            link_rate(link, paint),
            bytes(link.sent_bytes),
            format!("{:.0} %", percent(link.sent_bytes, carried)),
        ]);
    }
    table.lines(2)
}

fn link_bar(link: &LinkProgress, fastest: u64, room: usize, paint: Paint) -> String {
    match link.state {
        LinkState::Up => bar(load(link, fastest), room, paint),
        LinkState::Lost => pad(&paint.red("LOST"), room),
        LinkState::Probing => pad(&paint.yellow("probing"), room),
    }
}

/// As wide as the widest rate, so that the columns do not move.
fn link_rate(link: &LinkProgress, paint: Paint) -> String {
    match link.state {
        LinkState::Up => paint.bold(&format!("{:>9}", bit_rate(link.rate_bytes_per_s))),
        LinkState::Lost | LinkState::Probing => paint.dim(&format!("{:>9}", "–")),
    }
}

/// How much of the port's speed is used; of the fastest link's rate, where the port does not say its speed.
fn load(link: &LinkProgress, fastest: u64) -> f64 {
    let full = match link.speed_mbps {
        0 => fastest as f64,
        mbps => f64::from(mbps) * 125_000.0,
    };
    link.rate_bytes_per_s as f64 / full
}

/// An address without its port.
pub(super) fn host_of(address: &str) -> String {
    let host = match address.parse::<std::net::SocketAddr>() {
        Ok(address) => address.ip().to_string(),
        Err(_) => address.to_owned(),
    };
    clean(&host)
}

fn figures(view: &View, progress: &Progress, paint: Paint) -> [String; 2] {
    let round = match progress.round {
        0 => "first pass".to_owned(),
        round => format!("round {round}"),
    };
    let first = [
        format!(
            "{} {} of {}",
            paint.bold(&round),
            bytes(progress.round_bytes_done),
            bytes(progress.round_bytes_total)
        ),
        format!("remaining {}", paint.bold(&bytes(progress.remaining_bytes))),
        match progress.dirty_rate_bytes_per_s {
            Some(rate) => format!("guest writes {}", paint.bold(&bit_rate(rate))),
            None => "guest writes –".to_owned(),
        },
    ];
    let budget = view.budget_ms.map(|ms| format!(" (budget {ms} ms)")).unwrap_or_default();
    let second = [
        match progress.predicted_blackout_us.map(whole_ms) {
            Some(ms) => format!("blackout if stopped now {}{budget}", blackout(ms, view.budget_ms, paint)),
            None => format!("blackout if stopped now –{budget}"),
        },
        match progress.predicted_left_us {
            Some(us) => format!("time left {}", paint.bold(&clock_us(us))),
            None => "time left –".to_owned(),
        },
    ];
    let dot = paint.dim(" · ");
    [format!("  {}", first.join(&dot)), format!("  {}", second.join(&dot))]
}

fn whole_ms(us: u64) -> u32 {
    u32::try_from(us / 1000).unwrap_or(u32::MAX)
}

/// Whether the copy of disks comes to an end.
fn disk_figures(disks: DiskProgress, paint: Paint) -> String {
    let pass = match disks.pass {
        0 => "disks: first pass".to_owned(),
        pass => format!("disks: pass {pass}"),
    };
    let written = disks.write_rate_bytes_per_s.map_or("–".to_owned(), bit_rate);
    let parts = [
        paint.bold(&pass),
        format!("remaining {}", paint.bold(&bytes(disks.total_bytes.saturating_sub(disks.done_bytes)))),
        format!("guest writes to them {}", paint.bold(&written)),
    ];
    format!("  {}", parts.join(&paint.dim(" · ")))
}

fn blackout(ms: u32, budget_ms: Option<u32>, paint: Paint) -> String {
    let text = if ms < 1000 { format!("{ms} ms") } else { time_us(u64::from(ms) * 1000) };
    match budget_ms {
        Some(budget) if ms <= budget => paint.green(&text),
        Some(_) => paint.yellow(&text),
        None => paint.bold(&text),
    }
}

fn note_line(note: &Note, paint: Paint) -> String {
    let mark = if note.good { paint.green("●") } else { paint.yellow("▲") };
    format!("  {mark} {} {}", paint.dim(&clock_us(note.at_us)), note.text)
}

fn pad(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(measure_text_width(text))))
}
