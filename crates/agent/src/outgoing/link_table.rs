//! What is seen of a migration's links: state, counters, losses.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use linerate_api::{LinkProgress, LinkState, LinkTotals, RdmaPortTotals};
use linerate_core::LinkId;
use linerate_lock::Mutex;
use linerate_net::links::Link;
use linerate_net::rdma::counters::{self, PortCounters};
use linerate_net::stats::Counters;

use crate::session::links::{ChannelStatus, RdmaPort};

/// Of a link that has neither carried nor failed.
const STILL_OPENING: &str = "it was still being opened when the migration ended";

struct LinkEntry {
    link: Link,
    state: LinkState,
    active: Vec<ChannelStatus>,
    /// Of channels that are gone.
    past: Counters,
    past_retransmits: u64,
    lost_count: u32,
    up_since: Option<Instant>,
    up_for: Duration,
    /// The RDMA side of its port here, and what it had counted before.
    rdma: Option<(RdmaPort, PortCounters)>,
    /// Whether it carries over RDMA now, and whether it ever did.
    carries_rdma: bool,
    carried_rdma: bool,
    fallback: Option<String>,
    /// Why it does not carry, if it does not.
    failure: Option<String>,
}

impl LinkEntry {
    /// What its channels counted stays when they go.
    fn retire(&mut self) {
        let (counters, retransmits) = sums(&mut self.active);
        self.past = self.past + counters;
        self.past_retransmits += retransmits;
        self.active.clear();
        self.up_for += self.up_since.take().map(|since| since.elapsed()).unwrap_or_default();
    }

    /// A link that carries nothing has a reason.
    fn failure(&self) -> Option<String> {
        let opening = || (self.state == LinkState::Probing).then(|| STILL_OPENING.to_owned());
        self.failure.clone().or_else(opening)
    }

    /// What the RDMA port counted since the migration began, if the link ever used it.
    fn rdma_port(&self) -> Option<RdmaPortTotals> {
        let (port, before) = self.rdma.as_ref().filter(|_| self.carried_rdma)?;
        let grown = counters::read(&port.folder).since(before);
        Some(RdmaPortTotals {
            port: port.name.clone(),
            sent_bytes: grown.sent_bytes,
            sent_packets: grown.sent_packets,
            retransmits: grown.retransmits,
            congestion_marks: grown.congestion_marks,
            pauses: grown.pauses,
        })
    }
}

#[derive(Default)]
struct Inner {
    links: Vec<LinkEntry>,
}

#[derive(Default)]
pub(super) struct LinkTable(Mutex<Inner>);

impl LinkTable {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// A link is going to be used.
    pub fn add(&self, link: Link, rdma: Option<RdmaPort>) {
        let rdma = rdma.map(|port| (counters::read(&port.folder), port)).map(|(before, port)| (port, before));
        self.lock().links.push(LinkEntry {
            link,
            state: LinkState::Probing,
            active: Vec::new(),
            past: Counters::default(),
            past_retransmits: 0,
            lost_count: 0,
            up_since: None,
            up_for: Duration::ZERO,
            rdma,
            carries_rdma: false,
            carried_rdma: false,
            fallback: None,
            failure: None,
        });
    }

    /// Its channels carry from now on. `true` if it had been lost before.
    pub fn up(&self, link: LinkId, channels: Vec<ChannelStatus>, rdma: bool) -> bool {
        let mut inner = self.lock();
        let Some(entry) = inner.links.iter_mut().find(|entry| entry.link.id == link) else { return false };
        entry.retire();
        entry.active = channels;
        entry.carries_rdma = rdma;
        entry.carried_rdma |= rdma;
        entry.fallback = entry.fallback.take().filter(|_| !rdma);
        entry.failure = None;
        entry.state = LinkState::Up;
        entry.up_since = Some(Instant::now());
        entry.lost_count > 0
    }

    /// It carries over TCP although both ends have RDMA.
    pub fn fell_back(&self, link: LinkId, reason: &str) {
        if let Some(entry) = self.lock().links.iter_mut().find(|entry| entry.link.id == link) {
            entry.fallback = Some(reason.to_owned());
        }
    }

    /// Its channels are about to close: what the kernel counted of them is read while it still knows.
    pub fn closes(&self, link: LinkId) {
        if let Some(entry) = self.lock().links.iter_mut().find(|entry| entry.link.id == link) {
            sums(&mut entry.active);
        }
    }

    /// It could not be opened; it is tried again.
    pub fn not_opened(&self, link: LinkId, reason: &str) {
        if let Some(entry) = self.lock().links.iter_mut().find(|entry| entry.link.id == link) {
            entry.failure = Some(reason.to_owned());
        }
    }

    /// Everything on it is lost.
    pub fn down(&self, link: LinkId, reason: &str) {
        let mut inner = self.lock();
        let Some(entry) = inner.links.iter_mut().find(|entry| entry.link.id == link) else { return };
        entry.retire();
        entry.state = LinkState::Lost;
        entry.failure = Some(reason.to_owned());
        entry.lost_count += 1;
    }

    /// All links, for displays; their rates are the scheduler's.
    pub fn progress(&self) -> Vec<LinkProgress> {
        let mut inner = self.lock();
        let entry = |entry: &mut LinkEntry| {
            let (counters, retransmits) = sums(&mut entry.active);
            let (local, remote) = ends(&entry.link);
            let rdma_port = entry.rdma_port();
            LinkProgress {
                id: entry.link.id,
                name: name(&entry.link),
                local,
                remote,
                state: entry.state,
                rate_bytes_per_s: 0,
                sent_bytes: (entry.past + counters).wire_bytes,
                speed_mbps: entry.link.speed_mbps,
                channels: u32::try_from(entry.active.len()).unwrap_or(u32::MAX),
                retransmits: entry.past_retransmits + retransmits + resent(rdma_port.as_ref()),
                rdma: entry.carries_rdma,
                rdma_port,
            }
        };
        inner.links.iter_mut().map(entry).collect()
    }

    /// All links, for the report.
    pub fn totals(&self) -> Vec<LinkTotals> {
        let mut inner = self.lock();
        let entry = |entry: &mut LinkEntry| {
            let (counters, retransmits) = sums(&mut entry.active);
            let (local, remote) = ends(&entry.link);
            let sent_bytes = (entry.past + counters).wire_bytes;
            let up = entry.up_for + entry.up_since.map(|since| since.elapsed()).unwrap_or_default();
            let rdma_port = entry.rdma_port();
            LinkTotals {
                name: name(&entry.link),
                local,
                remote,
                speed_mbps: entry.link.speed_mbps,
                sent_bytes,
                rate_bytes_per_s: (sent_bytes as f64 / up.as_secs_f64().max(1e-6)) as u64,
                lost_count: entry.lost_count,
                retransmits: entry.past_retransmits + retransmits + resent(rdma_port.as_ref()),
                rdma: entry.carried_rdma,
                fallback: entry.fallback.clone(),
                failure: entry.failure(),
                rdma_port,
            }
        };
        inner.links.iter_mut().map(entry).collect()
    }

    /// It is over: what was counted stays, the rest is freed.
    pub fn close(&self) {
        self.lock().links.iter_mut().for_each(LinkEntry::retire);
    }

    /// Sum over all links.
    pub fn counters(&self) -> Counters {
        let mut inner = self.lock();
        inner.links.iter_mut().map(|entry| entry.past + sums(&mut entry.active).0).sum()
    }
}

fn sums(channels: &mut [ChannelStatus]) -> (Counters, u64) {
    let figures: Vec<(Counters, u64)> = channels.iter_mut().map(ChannelStatus::read).collect();
    (figures.iter().map(|(counters, _)| *counters).sum(), figures.iter().map(|(_, resent)| resent).sum())
}

/// Packets that the RDMA port sent again.
fn resent(port: Option<&RdmaPortTotals>) -> u64 {
    port.and_then(|port| port.retransmits).unwrap_or(0)
}

fn name(link: &Link) -> String {
    link.device.clone().unwrap_or_else(|| link.remote_interface.clone())
}

fn ends(link: &Link) -> (String, String) {
    (link.local.map_or_else(|| "(routed)".to_owned(), |ip| ip.to_string()), link.remote.ip().to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use linerate_core::ChannelId;
    use linerate_net::stats::ChannelStats;

    use super::*;

    fn carried(id: ChannelId, bytes: u64) -> ChannelStatus {
        let stats = Arc::<ChannelStats>::default();
        stats.frame(bytes, 0, bytes + 64);
        ChannelStatus::new(id, stats, None)
    }

    fn table_of_a_link() -> LinkTable {
        let table = LinkTable::default();
        let link = Link {
            id: 1,
            local: None,
            device: None,
            remote_interface: "eth0".into(),
            remote: "192.0.2.1:7979".parse().unwrap(),
            speed_mbps: 0,
            mtu: 1500,
            numa: -1,
            rdma: None,
            mtu_differs: false,
        };
        table.add(link, None);
        table
    }

    #[test]
    fn a_link_that_does_not_carry_reports_why() {
        let table = table_of_a_link();
        let failure = || table.totals().first().and_then(|link| link.failure.clone());
        assert_eq!(failure().as_deref(), Some(STILL_OPENING));
        table.not_opened(1, "no RDMA");
        assert_eq!(failure().as_deref(), Some("no RDMA"));
        table.up(1, vec![carried(0, 1000)], false);
        assert_eq!(failure(), None);
        table.down(1, "cut");
        assert_eq!(failure().as_deref(), Some("cut"));
        table.not_opened(1, "unreachable");
        assert_eq!(failure().as_deref(), Some("unreachable"));
        table.up(1, vec![carried(1, 20)], true);
        table.close();
        assert_eq!(failure(), None);
    }

    #[test]
    fn what_lost_channels_carried_stays_counted_whether_their_loss_was_signalled_or_not() {
        let table = table_of_a_link();
        assert!(!table.up(1, vec![carried(0, 1000)], false));
        // The destination closes first when all is done: the link is opened once more without having been lost.
        assert!(!table.up(1, vec![carried(1, 20)], false));
        table.down(1, "cut");
        assert!(table.up(1, vec![carried(2, 3)], false), "it had been lost");
        assert_eq!(table.counters().data_bytes, 1023);
        table.close();
        assert_eq!(table.counters().data_bytes, 1023);
        assert!(table.lock().links.iter().all(|link| link.active.is_empty()), "each holds a socket");
        assert_eq!(
            table.totals().first().map(|link| (link.sent_bytes, link.lost_count)),
            Some((1023 + 192, 1))
        );
    }
}
