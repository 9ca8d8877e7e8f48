//! What `linerate bench` found, as charts: latency of a short message, bandwidth of a long one, and the curves; the MTU
//! of both sides is below each.

use linerate_api::{BenchDirection, BenchLink, BenchReport, PingPong, PingPongRow, Rates};
use linerate_chart::{Bar, Bars, Curve, Curves, Row, Series};

use super::bench::{long, short};
use super::format::{bytes, clean, port_speed};

/// File names and contents.
pub fn all(report: &BenchReport) -> Vec<(&'static str, String)> {
    if report.pingpong.is_empty() {
        return vec![("bandwidth.svg", main_chart(report))];
    }
    vec![
        ("pingpong-latency.svg", latency(report)),
        ("pingpong-bandwidth.svg", bandwidth_of_long(report)),
        ("pingpong-latency-curve.svg", latency_curve(report)),
        ("pingpong-curve.svg", main_chart(report)),
    ]
}

/// The one chart that says most.
pub fn main_chart(report: &BenchReport) -> String {
    if report.pingpong.is_empty() { streams(report) } else { bandwidth_curve(report) }
}

fn title(what: &str, report: &BenchReport) -> String {
    format!("{what}: {} to {}, {}", clean(&report.from), clean(&report.to), report.transport.text())
}

fn label(link: &BenchLink) -> String {
    format!("{} → {}", clean(&link.source.interface), clean(&link.destination.address))
}

/// What a reader must know of each link, and what was noted.
fn foot(report: &BenchReport) -> Vec<String> {
    let fact = |link: &BenchLink| {
        let speed = Some(port_speed(link.speed_mbps)).filter(|speed| !speed.is_empty());
        format!(
            "{}: {}MTU {} at {}, {} at {}; channels: {}",
            label(link),
            speed.map(|speed| speed + ", ").unwrap_or_default(),
            link.source.mtu,
            clean(&report.from),
            link.destination.mtu,
            clean(&report.to),
            link.channels
        )
    };
    report.links.iter().map(fact).chain(report.notes.iter().map(|note| clean(note))).collect()
}

fn link_of<'a>(report: &'a BenchReport, table: &PingPong) -> Option<&'a BenchLink> {
    report.links.get(usize::from(table.link))
}

/// One bar for each link, of the row that is chosen.
fn bars(
    report: &BenchReport,
    what: &str,
    unit: &'static str,
    choose: fn(&PingPong) -> Option<&PingPongRow>,
    figure: fn(&PingPongRow) -> f64,
) -> String {
    let size = report.pingpong.first().and_then(choose).map_or(0, |row| row.bytes);
    let row = |table: &PingPong| {
        Some(Row {
            label: label(link_of(report, table)?),
            bars: vec![choose(table).map(|row| Bar::one(figure(row)))],
        })
    };
    let chart = Bars {
        title: title(&format!("{what} at {}", bytes(size.into())), report),
        unit,
        series: &[Series::numbered(0, "half a round trip")],
        rows: report.pingpong.iter().filter_map(row).collect(),
        mark: None,
        notes: foot(report),
    };
    chart.draw()
}

fn latency(report: &BenchReport) -> String {
    bars(report, "Latency", "µs", short, |row| row.latency_us)
}

fn bandwidth_of_long(report: &BenchReport) -> String {
    bars(report, "Bandwidth", "MB/s", long, |row| row.mbps / 8.0)
}

fn curves(report: &BenchReport, figure: fn(&PingPongRow) -> Option<f64>) -> Vec<Curve> {
    let points = |table: &PingPong| {
        table.rows.iter().filter_map(|row| Some((row.bytes, figure(row)?))).collect::<Vec<_>>()
    };
    let curve = |(number, table): (usize, &PingPong)| {
        let title = label(link_of(report, table)?);
        Some(Curve { series: Series::numbered(number, title), points: points(table) })
    };
    report.pingpong.iter().enumerate().filter_map(curve).collect()
}

fn latency_curve(report: &BenchReport) -> String {
    let chart = Curves {
        title: title("Latency", report),
        upwards: "µs, half a round trip",
        logarithmic: true,
        curves: curves(report, |row| Some(row.latency_us)),
        mark: None,
        notes: foot(report),
    };
    chart.draw()
}

fn bandwidth_curve(report: &BenchReport) -> String {
    let speeds: Vec<u32> = report.links.iter().map(|link| link.speed_mbps).collect();
    // A line for what the link carries, if that is one line.
    let mark = speeds.first().filter(|first| **first > 0 && speeds.iter().all(|speed| speed == *first));
    let chart = Curves {
        title: title("Bandwidth", report),
        upwards: "Gb/s",
        logarithmic: false,
        curves: curves(report, |row| (row.bytes > 0).then_some(row.mbps / 1e3)),
        mark: mark.map(|mbps| f64::from(*mbps) / 1000.0),
        notes: foot(report),
    };
    chart.draw()
}

fn streams(report: &BenchReport) -> String {
    let series = ["from here", "to here", "both: from here", "both: to here"];
    let series: Vec<Series> =
        series.into_iter().enumerate().map(|(number, title)| Series::numbered(number, title)).collect();
    let of = |direction, rates: fn(&Rates) -> f64, link: Option<usize>| {
        let one = report.bandwidth.iter().find(|one| one.direction == direction)?;
        let figures = match link {
            Some(link) => &one.links.get(link)?.rates,
            None => &one.sum,
        };
        Some(Bar::one(rates(figures)))
    };
    let row = |label: String, link: Option<usize>| Row {
        label,
        bars: vec![
            of(BenchDirection::Out, |rates| rates.out_mbps / 1e3, link),
            of(BenchDirection::In, |rates| rates.in_mbps / 1e3, link),
            of(BenchDirection::Both, |rates| rates.out_mbps / 1e3, link),
            of(BenchDirection::Both, |rates| rates.in_mbps / 1e3, link),
        ],
    };
    let links = report.links.iter().enumerate().map(|(number, link)| row(label(link), Some(number)));
    let chart = Bars {
        title: title("All links at once", report),
        unit: "Gb/s",
        series: &series,
        rows: links.chain([row("sum".into(), None)]).collect(),
        mark: None,
        notes: foot(report),
    };
    chart.draw()
}
