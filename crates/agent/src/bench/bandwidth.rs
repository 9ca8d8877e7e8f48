//! Streams over all links at once: from here, to here, both. What a migration over these links is held against.

use std::time::Duration;

use linerate_api::{Bandwidth, BenchDirection, BenchEvent, BenchLink, LinkBandwidth, Rates};
use linerate_net::bench::role::{TestResult, TestRole};

use super::BenchError;
use super::ask::{Channel, OpenLink, Peer, ReportProgress, name, same};
use super::documents::{PeerPart, check_team};

/// Allowed beyond what a measurement should take: what is in flight when its time is over has to arrive.
const MARGIN: Duration = Duration::from_secs(60);

/// A connection, its link and its direction.
struct Direction {
    link: usize,
    out: bool,
    channel: Channel,
}

/// One after the other.
pub fn measure(
    peer: &mut Peer<'_>,
    links: Vec<OpenLink>,
    directions: &[BenchDirection],
    time_ms: u32,
    report: ReportProgress<'_>,
) -> Result<Vec<Bandwidth>, BenchError> {
    let facts: Vec<BenchLink> = links.iter().map(|link| link.facts.clone()).collect();
    let mut lanes: Vec<Direction> =
        links.into_iter().enumerate().flat_map(|(number, link)| of(number, link)).collect();
    check_team(&vec![PeerPart::Receive {}; lanes.len()])?;
    let mut found = Vec::new();
    for (number, direction) in directions.iter().copied().enumerate() {
        let step = directions.len() as f64;
        let (fraction, until) = (number as f64 / step, (number + 1) as f64 / step);
        report(BenchEvent::Progress {
            fraction,
            until,
            expected_ms: time_ms,
            doing: doing(direction).into(),
        });
        let wanted = |lane: &Direction| match direction {
            BenchDirection::Out => lane.out,
            BenchDirection::In => !lane.out,
            BenchDirection::Both => true,
        };
        let (used, idle): (Vec<Direction>, Vec<Direction>) = lanes.into_iter().partition(wanted);
        let (used, bandwidth) = stream(peer, &facts, used, direction, time_ms)?;
        found.push(bandwidth);
        lanes = idle;
        lanes.extend(used);
    }
    Ok(found)
}

fn of(link: usize, open: OpenLink) -> impl Iterator<Item = Direction> {
    let out = open.forward.into_iter().map(move |channel| Direction { link, out: true, channel });
    out.chain(open.backward.into_iter().map(move |channel| Direction { link, out: false, channel }))
}

fn doing(direction: BenchDirection) -> &'static str {
    match direction {
        BenchDirection::Out => "all links, from here",
        BenchDirection::In => "all links, to here",
        BenchDirection::Both => "all links, both directions",
    }
}

fn stream(
    peer: &mut Peer<'_>,
    facts: &[BenchLink],
    lanes: Vec<Direction>,
    direction: BenchDirection,
    ms: u32,
) -> Result<(Vec<Direction>, Bandwidth), BenchError> {
    let time = Duration::from_millis(ms.into());
    let places: Vec<(usize, bool)> = lanes.iter().map(|lane| (lane.link, lane.out)).collect();
    let job = |lane: Direction| match lane.out {
        true => (lane.channel, TestRole::Send { time }, PeerPart::Receive {}),
        false => (lane.channel, TestRole::Receive, PeerPart::Send { ms }),
    };
    let jobs = lanes.into_iter().map(job).collect();
    let turn = peer.play(doing(direction), jobs, time + MARGIN)?;
    let mut sum = Sums::new(facts.len());
    let mut took = Duration::ZERO;
    for ((&(link, out), ours), theirs) in places.iter().zip(&turn.ours).zip(&turn.theirs) {
        let (sent, received) = if out { (ours, theirs) } else { (theirs, ours) };
        same(&facts.get(link).map(name).unwrap_or_default(), sent, received)?;
        sum.add(link, out, received);
        took = took.max(received.elapsed);
    }
    let took = took.max(Duration::from_nanos(1)).as_secs_f64();
    let cpu = |spent: Duration| spent.as_secs_f64() / took;
    let (source_cpu, destination_cpu) = (cpu(turn.our_cpu), cpu(turn.their_cpu));
    let all = sum.all(facts);
    let carried = all.out_mbps + all.in_mbps;
    let bandwidth = Bandwidth {
        direction,
        links: sum.links(facts),
        sum: all,
        source_cpu,
        destination_cpu,
        cpu_s_per_gbit: if carried > 0.0 { (source_cpu + destination_cpu) * 1000.0 / carried } else { 0.0 },
    };
    let lane = |((link, out), channel)| Direction { link, out, channel };
    Ok((places.into_iter().zip(turn.channels).map(lane).collect(), bandwidth))
}

/// Rates and bytes of each link.
struct Sums(Vec<[Sum; 2]>);

#[derive(Clone, Copy, Default)]
struct Sum {
    mbps: f64,
    bytes: u64,
}

impl Sums {
    fn new(links: usize) -> Sums {
        Sums(vec![Default::default(); links])
    }

    fn add(&mut self, link: usize, out: bool, received: &TestResult) {
        let Some([outgoing, incoming]) = self.0.get_mut(link) else { return };
        let sum = if out { outgoing } else { incoming };
        sum.mbps += received.rate_mbps();
        sum.bytes += received.received_bytes;
    }

    fn links(&self, facts: &[BenchLink]) -> Vec<LinkBandwidth> {
        let link = |(number, ([out, incoming], fact)): (usize, (&[Sum; 2], &BenchLink))| LinkBandwidth {
            link: number as u16,
            rates: rates(out.mbps, incoming.mbps, fact.speed_mbps.into()),
            out_bytes: out.bytes,
            in_bytes: incoming.bytes,
        };
        self.0.iter().zip(facts).enumerate().map(link).collect()
    }

    fn all(&self, facts: &[BenchLink]) -> Rates {
        let known = facts.iter().all(|fact| fact.speed_mbps > 0);
        let speed: u64 = facts.iter().map(|fact| u64::from(fact.speed_mbps)).sum();
        let total = |side: usize| self.0.iter().filter_map(|link| link.get(side)).map(|sum| sum.mbps).sum();
        rates(total(0), total(1), if known { speed } else { 0 })
    }
}

fn rates(out: f64, incoming: f64, speed_mbps: u64) -> Rates {
    let percent = out.max(incoming) * 1e2 / speed_mbps as f64;
    Rates { out_mbps: out, in_mbps: incoming, link_percent: (speed_mbps > 0).then_some(percent) }
}

#[cfg(test)]
mod tests {
    use linerate_api::BenchPort;

    use super::*;

    fn link(speed_mbps: u32) -> BenchLink {
        let port =
            BenchPort { interface: "e".into(), address: "10.0.0.1".into(), mtu: 1500, speed_mbps, numa: -1 };
        BenchLink { source: port.clone(), destination: port, speed_mbps, channels: 1 }
    }

    fn received(bytes: u64) -> TestResult {
        TestResult {
            received_bytes: bytes + 100,
            timed_bytes: bytes,
            elapsed: Duration::from_secs(2),
            sent_bytes: 0,
        }
    }

    #[test]
    fn channels_add_up_to_links_and_links_to_the_sum() {
        let facts = [link(1000), link(3000)];
        let mut sums = Sums::new(2);
        for (link, out) in [(0, true), (0, true), (1, true), (1, false)] {
            sums.add(link, out, &received(125_000_000));
        }
        let links = sums.links(&facts);
        assert_eq!(links[0].rates, Rates { out_mbps: 1000.0, in_mbps: 0.0, link_percent: Some(100.0) });
        assert_eq!((links[0].out_bytes, links[1].in_bytes), (250_000_200, 125_000_100));
        let all = sums.all(&facts);
        assert_eq!((all.out_mbps, all.in_mbps, all.link_percent), (1500.0, 500.0, Some(37.5)));
        assert_eq!(sums.all(&[link(1000), link(0)]).link_percent, None);
    }
}
