//! What measurements look like, to the letter. `UPDATE_GOLDEN=1 cargo test -p linerate` draws them anew.

use std::path::Path;

use console::measure_text_width;
use linerate_api::{
    Bandwidth, BenchCpu, BenchDirection, BenchLink, BenchPort, BenchReport, BenchTransport, LinkBandwidth,
    PingPong, PingPongRow, Rates,
};

use super::bench::report;
use super::bench_charts::all;
use super::paint::Paint;

fn port(link: u16, host: u16, mtu: u32) -> BenchPort {
    BenchPort {
        interface: format!("eth{}", link + 1),
        address: format!("10.0.{}.{host}", link + 1),
        mtu,
        speed_mbps: 10_000,
        numa: 0,
    }
}

fn data() -> BenchReport {
    let link = |number, mtu| BenchLink {
        source: port(number, 1, 9000),
        destination: port(number, 2, mtu),
        speed_mbps: 10_000,
        channels: 1 + number,
    };
    BenchReport {
        from: "alpha".into(),
        to: "beta".into(),
        transport: BenchTransport::Tcp,
        cpu: BenchCpu::Any,
        started_unix_ms: 0,
        notes: vec!["eth2 → 10.0.2.2: MTU 9000 here and 1500 there; large packets may be lost".into()],
        links: vec![link(0, 9000), link(1, 1500)],
        pingpong: Vec::new(),
        bandwidth: Vec::new(),
    }
}

fn row(bytes: u32, repetitions: u32, latency_us: f64) -> PingPongRow {
    let mb_per_s = f64::from(bytes) / latency_us;
    PingPongRow {
        bytes,
        repetitions,
        latency_us,
        mbps: mb_per_s * 8.0,
        link_percent: Some(mb_per_s * 0.08),
        moved_bytes: u64::from(bytes) * u64::from(repetitions),
    }
}

fn pingpong() -> BenchReport {
    let rows = [(0, 1000, 24.5), (1, 1000, 24.5), (4, 1000, 24.6), (1024, 1000, 27.1), (65_536, 640, 96.4)];
    let mut rows: Vec<PingPongRow> =
        rows.map(|(bytes, repetitions, us)| row(bytes, repetitions, us)).to_vec();
    rows.push(row(4 << 20, 10, 3_725.0));
    let slow = rows.iter().map(|one| row(one.bytes, one.repetitions, one.latency_us * 1.7)).collect();
    let tables = vec![PingPong { link: 0, rows }, PingPong { link: 1, rows: slow }];
    BenchReport { pingpong: tables, ..data() }
}

fn rates(out: f64, back: f64, speed: f64) -> Rates {
    Rates { out_mbps: out * 1e3, in_mbps: back * 1e3, link_percent: Some(out.max(back) * 100.0 / speed) }
}

fn bandwidth() -> BenchReport {
    let phase = |direction, out: f64, back: f64| Bandwidth {
        direction,
        links: [0, 1]
            .map(|link| LinkBandwidth { link, rates: rates(out, back, 10.0), out_bytes: 1, in_bytes: 1 })
            .to_vec(),
        sum: rates(out * 2.0, back * 2.0, 20.0),
        source_cpu: 0.41 * (out + back) / 9.0,
        destination_cpu: 0.62 * (out + back) / 9.0,
        cpu_s_per_gbit: 0.057,
    };
    let phases = vec![
        phase(BenchDirection::Out, 9.41, 0.0),
        phase(BenchDirection::In, 0.0, 9.39),
        phase(BenchDirection::Both, 9.27, 9.31),
    ];
    BenchReport { bandwidth: phases, ..data() }
}

fn check(name: &str, drawn: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/render/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, drawn).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap();
    assert_eq!(drawn, kept, "{name} is drawn otherwise now:\n{drawn}");
}

#[test]
fn tables() {
    check("bench-pingpong.txt", &report(&pingpong(), 80, Paint::PLAIN));
    check("bench-bandwidth.txt", &report(&bandwidth(), 80, Paint::PLAIN));
}

#[test]
fn nothing_is_wider_than_the_terminal_and_colours_change_nothing_else() {
    for data in [pingpong(), bandwidth()] {
        let plain = report(&data, 80, Paint::PLAIN);
        assert!(plain.lines().all(|line| measure_text_width(line) <= 80), "{plain}");
        assert_eq!(console::strip_ansi_codes(&report(&data, 80, Paint { colours: true })), plain);
    }
}

#[test]
fn every_chart_has_the_mtu_of_both_sides_and_its_figures() {
    let charts = [all(&pingpong()), all(&bandwidth())].concat();
    assert_eq!(charts.len(), 5);
    for (name, svg) in &charts {
        assert!(svg.starts_with("<svg") && !svg.contains("NaN"), "{name}");
        for words in ["MTU 9000 at alpha, 1500 at beta", "10G", "eth1 → 10.0.1.2", "large packets"] {
            assert!(svg.contains(words), "{words} is not in {name}");
        }
    }
    let svg = |wanted: &str| charts.iter().find(|(name, _)| *name == wanted).unwrap().1.clone();
    assert!(
        svg("pingpong-latency.svg").contains("Latency at 4 B")
            && svg("pingpong-latency.svg").contains(">25 µs<")
    );
    assert!(
        svg("pingpong-bandwidth.svg").contains("at 4.00 MiB")
            && svg("pingpong-bandwidth.svg").contains(">1126 MB/s<")
    );
    assert!(svg("pingpong-curve.svg").contains("stroke-dasharray"), "what the link carries is a line");
    assert!(svg("bandwidth.svg").contains(">sum<") && svg("bandwidth.svg").contains(">18.8 Gb/s<"));
}

#[test]
fn the_user_guide_shows_what_is_drawn() {
    let guide = include_str!("../../../../docs/user-guide.md");
    for drawn in [report(&pingpong(), 80, Paint::PLAIN), report(&bandwidth(), 80, Paint::PLAIN)] {
        assert!(guide.contains(drawn.trim()), "the user guide shows another table than:\n{drawn}");
    }
}
