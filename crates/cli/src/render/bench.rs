//! What `linerate bench` found, in tables.

use linerate_api::{
    Bandwidth, BenchCpu, BenchDirection, BenchLink, BenchReport, PingPong, PingPongRow, Rates,
};

use super::format::{bytes, clean, port_speed, three};
use super::paint::Paint;
use super::table::{Align, Table, wrap};

/// The whole report, for a terminal of this width.
pub fn report(report: &BenchReport, width: usize, paint: Paint) -> String {
    let mut lines = vec![headline(report, paint)];
    for table in &report.pingpong {
        lines.extend(pingpong(report, table, paint));
    }
    if !report.bandwidth.is_empty() {
        lines.extend(ports(&report.links, paint));
    }
    for one in &report.bandwidth {
        lines.extend(bandwidth(report, one, paint));
    }
    lines.extend(notes(&report.notes, width, paint));
    lines.join("\n") + "\n"
}

fn headline(report: &BenchReport, paint: Paint) -> String {
    let (test, arrow) = if report.pingpong.is_empty() { ("Bandwidth", "↔") } else { ("Ping-pong", "→") };
    let cpu = match report.cpu {
        BenchCpu::Any => String::new(),
        BenchCpu::Near => ", threads near the port".into(),
        BenchCpu::Far => ", threads far from the port".into(),
        BenchCpu::Number(cpu) => format!(", threads on CPU {cpu}"),
    };
    let (from, to) = (paint.bold(&clean(&report.from)), paint.bold(&clean(&report.to)));
    format!("{test} {from} {arrow} {to}, {}{cpu}", report.transport.text())
}

/// Both ports of a link in a line.
fn ends(link: &BenchLink) -> String {
    let side =
        |port: &linerate_api::BenchPort| format!("{} {}", clean(&port.interface), clean(&port.address));
    format!("{} → {}", side(&link.source), side(&link.destination))
}

/// `25G, MTU 9000`, or both MTUs where they differ.
fn facts(link: &BenchLink) -> String {
    let (here, there) = (link.source.mtu, link.destination.mtu);
    let mtu =
        if here == there { format!("MTU {here} both") } else { format!("MTU {here} here, {there} there") };
    let channels =
        if link.channels == 1 { "1 channel".to_owned() } else { format!("{} channels", link.channels) };
    let speed = port_speed(link.speed_mbps);
    let speed = if speed.is_empty() { "speed not known".to_owned() } else { speed };
    format!("{speed}, {mtu}, {channels}")
}

fn pingpong(report: &BenchReport, table: &PingPong, paint: Paint) -> Vec<String> {
    let Some(link) = report.links.get(usize::from(table.link)) else { return Vec::new() };
    let mut lines =
        vec![String::new(), format!("  {}  {}", paint.bold(&ends(link)), paint.dim(&facts(link)))];
    let mut rows = Table::new(&[Align::Right; 6]);
    rows.row(heads(["bytes", "repetitions", "latency µs", "MB/s", "Gb/s", "of the link"], paint));
    for row in &table.rows {
        rows.row(cells(row));
    }
    lines.extend(rows.lines(4));
    lines.extend(summary(table, paint).map(|text| format!("    {text}")));
    lines
}

fn cells(row: &PingPongRow) -> [String; 6] {
    let rate = |figure: f64| if row.bytes == 0 { "–".to_owned() } else { three(figure) };
    [
        row.bytes.to_string(),
        row.repetitions.to_string(),
        three(row.latency_us),
        rate(row.mbps / 8.0),
        rate(row.mbps / 1e3),
        if row.bytes == 0 { "–".to_owned() } else { percent(row.link_percent) },
    ]
}

fn percent(figure: Option<f64>) -> String {
    figure.map_or_else(|| "–".to_owned(), |figure| format!("{figure:.1} %"))
}

/// The two figures by which links are compared.
fn summary(table: &PingPong, paint: Paint) -> Option<String> {
    let (short, long) = (short(table)?, long(table)?);
    let whole = long.link_percent.map(|percent| format!(", {percent:.1} % of the link")).unwrap_or_default();
    Some(format!(
        "{}: {} µs   {}: {} MB/s, {} Gb/s{whole}",
        paint.bold(&bytes(short.bytes.into())),
        three(short.latency_us),
        paint.bold(&bytes(long.bytes.into())),
        three(long.mbps / 8.0),
        three(long.mbps / 1e3)
    ))
}

/// The row by which latency is compared: 4 bytes, or the shortest that carries something.
pub fn short(table: &PingPong) -> Option<&PingPongRow> {
    let carrying = || table.rows.iter().filter(|row| row.bytes > 0);
    carrying().find(|row| row.bytes == 4).or_else(|| carrying().min_by_key(|row| row.bytes))
}

/// The row by which bandwidth is compared: 4 MiB, or the longest.
pub fn long(table: &PingPong) -> Option<&PingPongRow> {
    table.rows.iter().filter(|row| row.bytes > 0).max_by_key(|row| row.bytes)
}

fn ports(links: &[BenchLink], paint: Paint) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.extend(
        links.iter().map(|link| format!("  {}  {}", paint.bold(&ends(link)), paint.dim(&facts(link)))),
    );
    lines
}

fn bandwidth(report: &BenchReport, one: &Bandwidth, paint: Paint) -> Vec<String> {
    let title = match one.direction {
        BenchDirection::Out => "From here",
        BenchDirection::In => "To here",
        BenchDirection::Both => "Both directions at once",
    };
    let mut rows = Table::new(&[Align::Left, Align::Right, Align::Right, Align::Right]);
    rows.row(heads(["", "from here", "to here", "of the link"], paint));
    for link in &one.links {
        let facts = report.links.get(usize::from(link.link));
        let name = facts.map_or_else(|| link.link.to_string(), |facts| clean(&facts.source.interface));
        rows.row(rates(name, &link.rates));
    }
    rows.row(rates(paint.bold("all links"), &one.sum));
    let mut lines = vec![String::new(), format!("  {}", paint.bold(title))];
    lines.extend(rows.lines(4));
    lines.push(format!(
        "    CPU s per s: here {:.2}, there {:.2}; both together {:.3} for each Gb/s",
        one.source_cpu, one.destination_cpu, one.cpu_s_per_gbit
    ));
    lines
}

fn rates(name: String, rates: &Rates) -> [String; 4] {
    let rate = |figure: f64| if figure > 0.0 { format!("{} Gb/s", three(figure)) } else { "–".to_owned() };
    [name, rate(rates.out_mbps / 1e3), rate(rates.in_mbps / 1e3), percent(rates.link_percent)]
}

fn notes(notes: &[String], width: usize, paint: Paint) -> Vec<String> {
    let mut lines = Vec::new();
    for note in notes {
        let wrapped = wrap(&clean(note), width.saturating_sub(8).max(20));
        for (number, line) in wrapped.into_iter().enumerate() {
            let head = if number == 0 { paint.yellow("note:") } else { "     ".into() };
            lines.push(format!("  {head} {line}"));
        }
    }
    if !lines.is_empty() {
        lines.insert(0, String::new());
    }
    lines
}

fn heads<const N: usize>(names: [&str; N], paint: Paint) -> [String; N] {
    names.map(|name| paint.dim(name))
}
