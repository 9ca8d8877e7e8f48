//! The ping-pong: each link by itself, size after size, all channels of the link at once.

use std::time::Duration;

use linerate_api::{BenchEvent, PingPong, PingPongRow};
use linerate_net::bench::MESSAGE_BYTES_MAX;
use linerate_net::bench::role::TestRole;
use linerate_net::bench::rules::{by_time, by_volume, sizes as all_sizes, warm_up};

use super::BenchError;
use super::ask::{BothResults, Channel, OpenLink, Peer, ReportProgress, same};
use super::documents::{PeerPart, check_team};

/// Allowed beyond what a measurement should take.
const MARGIN: Duration = Duration::from_secs(30);

/// What is asked for.
struct PingPongLimits {
    repetitions: u32,
    time: Duration,
}

/// A table for each link.
pub fn measure(
    peer: &mut Peer<'_>,
    links: Vec<OpenLink>,
    sizes: &[u32],
    repetitions: u32,
    time: Duration,
    report: ReportProgress<'_>,
) -> Result<Vec<PingPong>, BenchError> {
    let limits = PingPongLimits { repetitions, time };
    let all = all_sizes(MESSAGE_BYTES_MAX).into_iter().filter_map(|size| u32::try_from(size).ok()).collect();
    let sizes: Vec<u32> = if sizes.is_empty() { all } else { sizes.to_vec() };
    let largest = sizes.iter().copied().max().unwrap_or(0);
    for link in &links {
        check_team(&vec![PeerPart::Answer { bytes: largest, repetitions }; link.forward.len()])?;
    }
    let steps = (links.len() * sizes.len()) as f64;
    let mut tables = Vec::new();
    for (number, mut link) in links.into_iter().enumerate() {
        let mut rows = Vec::new();
        let mut before = repetitions;
        for (index, &bytes) in sizes.iter().enumerate() {
            let fraction = (number * sizes.len() + index) as f64 / steps;
            let doing = format!("{}, {bytes} bytes", link.name());
            report(BenchEvent::Progress { fraction, until: fraction, expected_ms: 0, doing });
            let row = size(peer, &mut link, bytes, before, &limits)?;
            // Longer messages are never repeated more often than shorter ones.
            before = if sizes.is_sorted() { row.repetitions } else { repetitions };
            rows.push(row);
        }
        tables.push(PingPong { link: number as u16, rows });
    }
    Ok(tables)
}

/// One by itself to know about how long it takes, the warm-up to know better, then the measurement.
fn size(
    peer: &mut Peer<'_>,
    link: &mut OpenLink,
    bytes: u32,
    most: u32,
    limits: &PingPongLimits,
) -> Result<PingPongRow, BenchError> {
    let wanted = by_volume(bytes as usize, most.min(limits.repetitions));
    let first = play(peer, link, bytes, 1, MARGIN * 4)?;
    let trial = by_time(warm_up(wanted), slowest(&first), limits.time);
    let warm = play(peer, link, bytes, trial, slowest(&first) * trial * 4 + MARGIN)?;
    let each = slowest(&warm) / trial;
    let repetitions = by_time(wanted, each, limits.time);
    let turn = play(peer, link, bytes, repetitions, each * repetitions * 4 + MARGIN)?;
    Ok(row(link, bytes, repetitions, &turn))
}

fn play(
    peer: &mut Peer<'_>,
    link: &mut OpenLink,
    bytes: u32,
    repetitions: u32,
    limit: Duration,
) -> Result<TestResult, BenchError> {
    let what = link.name();
    let ours = TestRole::Ask { bytes: bytes as usize, repetitions };
    let theirs = PeerPart::Answer { bytes, repetitions };
    let jobs = std::mem::take(&mut link.forward).into_iter().map(|channel: Channel| (channel, ours, theirs));
    let BothResults { channels, ours, theirs, .. } = peer.play(&what, jobs.collect(), limit)?;
    link.forward = channels;
    for (here, there) in ours.iter().zip(&theirs) {
        same(&what, here, there)?;
        same(&what, there, here)?;
    }
    Ok(TestResult {
        slowest: ours.iter().map(|one| one.elapsed).max().unwrap_or_default(),
        moved_bytes: ours.iter().map(|one| one.sent_bytes).sum(),
    })
}

struct TestResult {
    slowest: Duration,
    moved_bytes: u64,
}

fn slowest(played: &TestResult) -> Duration {
    played.slowest.max(Duration::from_nanos(1))
}

fn row(link: &OpenLink, bytes: u32, repetitions: u32, played: &TestResult) -> PingPongRow {
    let half_s = slowest(played).as_secs_f64() / f64::from(repetitions) / 2.0;
    let bytes_per_s = f64::from(bytes) * f64::from(link.facts.channels) / half_s;
    let speed = f64::from(link.facts.speed_mbps) * 1e6;
    PingPongRow {
        bytes,
        repetitions,
        latency_us: half_s * 1e6,
        mbps: bytes_per_s * 8.0 / 1e6,
        link_percent: (speed > 0.0).then(|| bytes_per_s * 800.0 / speed),
        moved_bytes: played.moved_bytes,
    }
}
