//! The extent scheduler: which channel carries which extent next.
//!
//! Channels pull. A channel that is free asks for work and gets the next piece of what is pending. So a fast link
//! carries more and a slow one less, with no assignment made in advance. Pieces get smaller towards the end of a round.
//! A channel that could not finish with the others gets none, so that no channel is waited for. Its rate decides, and
//! how long its acknowledgements take. In a blackout, whose rounds are short, a link of 50 ms beside one of 0.1 ms
//! carries nothing.
//!
//! Invariants (tests and the simulator check them):
//! * an extent is pending or in flight on one channel or settled, never two of these (rule 3);
//! * what was in flight on a lost channel stays in flight until the destination has fenced that channel;
//! * a damaged extent (checksum) is not delivered: it is kept for the next round (rule 4).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::rate::Rate;
use crate::{ChannelId, Extent, LinkId, PAGE_BYTES, RegionId, Run, Time};

/// Knobs of the scheduler.
#[derive(Clone, Debug)]
pub struct Config {
    /// Most bytes in one placed write. Larger ones save headers and system calls; smaller ones stay in the CPU's cache
    /// between checksum and send, and are less to repeat when a link is lost. Measured in docs/links.md. At most 2 MiB:
    /// page by page zero and content in turn must still fit the protocol's 512 runs.
    pub write_bytes_max: u64,
    /// Fewest bytes in one placed write near the end of a round.
    pub write_bytes_min: u64,
    /// Most runs in one placed write; the protocol's cap is 512.
    pub write_runs_max: usize,
    /// How much time's worth of data a channel may have unacknowledged, on top of twice its round trip.
    pub window_time: Duration,
    /// A channel may always have this much unacknowledged, so that it can show its rate.
    pub window_bytes_min: u64,
    /// A channel never has more than this unacknowledged.
    pub window_bytes_max: u64,
    /// An idle channel is pinged this often, so that a dead link is known before it is needed.
    pub ping_interval: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            write_bytes_max: 256 << 10,
            write_bytes_min: 32 << 10,
            write_runs_max: 512,
            window_time: Duration::from_millis(20),
            window_bytes_min: 1 << 20,
            window_bytes_max: 32 << 20,
            ping_interval: Duration::from_millis(150),
        }
    }
}

/// Number of the first frame that the scheduler hands out on a channel. Number 1 is the probe's, by which a transport
/// shows that the link moves bytes before the channel is reported.
pub const FIRST_SEQUENCE: u64 = 2;

const RECENT: Duration = Duration::from_secs(3);
/// A channel is far if its acknowledgements take so many times as long as the nearest one's, and this longer. Less is
/// chance: queues, CPUs.
const FAR_TIMES: u32 = 3;
const FAR_BY: Duration = Duration::from_millis(1);
/// It has a part in what takes the others so many times as long as it is far. What it could save in shorter rounds is
/// less than a wrong estimate costs: rates are those of the last seconds, and a connection that was idle begins slowly.
const FAR_PAYS: f64 = 2.0;

/// What a channel is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Carry these runs of a region.
    Work(Work),
    /// Show that the link works.
    Ping {
        /// Number of the frame in its channel, from 1.
        sequence: u64,
    },
    /// Nothing for now; ask again when something was acknowledged or a round began.
    Wait,
    /// The channel is lost or the session over.
    Stop,
}

/// One placed write to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Frame number on its channel.
    pub sequence: u64,
    /// The region that the extents are in.
    pub region: RegionId,
    /// Runs in it, in order.
    pub runs: Vec<Run>,
}

#[derive(Debug)]
struct InFlight {
    sequence: u64,
    region: RegionId,
    runs: Vec<Run>,
    /// Bytes of memory that the write covers.
    bytes: u64,
    /// Bytes that it costs on the wire: as many as it covers until the channel says that some were zero.
    wire_bytes: u64,
    sent_at: Time,
}

#[derive(Debug)]
struct Channel {
    link: LinkId,
    lost: bool,
    next_sequence: u64,
    in_flight: VecDeque<InFlight>,
    in_flight_wire_bytes: u64,
    rate: Rate,
    /// Shortest time from hand-out to acknowledgement: the round trip with the least queueing in it.
    latency_min: Option<Duration>,
    /// The same of the last seconds.
    latency: Recent,
    last_assigned_at: Time,
    acknowledged_bytes: u64,
}

/// The least time of the last [`RECENT`] to twice that. Each round begins with an empty queue, and an idle channel with
/// a ping, so that some time in it is the link's own.
#[derive(Debug, Default)]
struct Recent {
    since: Time,
    least: Option<Duration>,
    before: Option<Duration>,
}

impl Recent {
    fn add(&mut self, now: Time, one: Duration) {
        if now - self.since > RECENT {
            (self.since, self.before, self.least) = (now, self.least, None);
        }
        self.least = Some(self.least.map_or(one, |least| least.min(one)));
    }

    fn least(&self) -> Option<Duration> {
        self.least.into_iter().chain(self.before).min()
    }
}

impl Channel {
    fn new(link: LinkId, now: Time) -> Channel {
        Channel {
            link,
            lost: false,
            next_sequence: FIRST_SEQUENCE,
            in_flight: VecDeque::new(),
            in_flight_wire_bytes: 0,
            rate: Rate::default(),
            latency_min: None,
            latency: Recent::default(),
            last_assigned_at: now,
            acknowledged_bytes: 0,
        }
    }

    fn window_bytes(&self, config: &Config) -> u64 {
        let span = config.window_time + 2 * self.latency_min.unwrap_or_default();
        let bytes = (self.rate.bytes_per_s() * span.as_secs_f64()) as u64;
        bytes.clamp(config.window_bytes_min, config.window_bytes_max)
    }

    fn take_sequence(&mut self, now: Time) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        self.last_assigned_at = now;
        sequence
    }

    /// Removes and returns everything up to `through`.
    fn settle(&mut self, now: Time, through: u64) -> Vec<InFlight> {
        let mut delivered = Vec::new();
        while self.in_flight.front().is_some_and(|write| write.sequence <= through) {
            let Some(write) = self.in_flight.pop_front() else { break };
            self.in_flight_wire_bytes = self.in_flight_wire_bytes.saturating_sub(write.wire_bytes);
            delivered.push(write);
        }
        let wire_bytes = delivered.iter().map(|write| write.wire_bytes).sum();
        if let Some(latency) = delivered.iter().map(|write| now - write.sent_at).min() {
            self.latency_min = Some(self.latency_min.map_or(latency, |least| least.min(latency)));
            self.latency.add(now, latency);
        }
        self.acknowledged_bytes += wire_bytes;
        self.rate.acknowledged(now, wire_bytes, self.in_flight.is_empty());
        delivered
    }
}

/// How much later than over the nearest channel bytes arrive over this one, seconds, with a margin; 0 if they are about
/// as near.
fn farther_s(channel: &Channel, nearest: Duration) -> f64 {
    let latency = channel.latency.least().unwrap_or_default();
    if latency <= nearest * FAR_TIMES + FAR_BY { 0.0 } else { (latency - nearest).as_secs_f64() * FAR_PAYS }
}

/// When channels, each with its distance (seconds) and rate, have together carried `bytes`. A channel that is
/// farther than that has no part in it.
fn all_done_s(mut ways: Vec<(f64, f64)>, bytes: f64) -> f64 {
    ways.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (mut rate, mut done, mut ahead) = (0.0, f64::INFINITY, 0.0);
    for (far, own) in ways {
        if far >= done {
            break;
        }
        rate += own;
        ahead += own * far;
        if rate > 0.0 {
            done = (bytes + ahead) / rate;
        }
    }
    done
}

/// Gives extents to channels; a lost channel's extents are pending again.
#[derive(Debug)]
pub struct Scheduler {
    config: Config,
    channels: BTreeMap<ChannelId, Channel>,
    pending: VecDeque<Extent>,
    pending_bytes: u64,
    in_flight_bytes: u64,
    damaged: Vec<Extent>,
    /// What was settled since it was last taken; not kept unless it is used.
    delivered: Option<Vec<Extent>>,
    damaged_count: u64,
    acknowledged_bytes: u64,
    stopped: bool,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(config: Config) -> Scheduler {
        Scheduler {
            config,
            channels: BTreeMap::new(),
            pending: VecDeque::new(),
            pending_bytes: 0,
            in_flight_bytes: 0,
            damaged: Vec::new(),
            delivered: None,
            damaged_count: 0,
            acknowledged_bytes: 0,
            stopped: false,
        }
    }

    /// A channel can carry work from now on. A number is never used twice; a second use is ignored.
    pub fn add_channel(&mut self, now: Time, channel: ChannelId, link: LinkId) {
        self.channels.entry(channel).or_insert_with(|| Channel::new(link, now));
    }

    /// No more work for anybody.
    pub fn stop(&mut self) {
        self.stopped = true;
    }

    /// Puts extents into the round. They must not be in flight: the caller begins a round only when the last is
    /// drained.
    pub fn add_work(&mut self, extents: Vec<Extent>) {
        for extent in extents {
            self.pending_bytes += extent.run.length;
            self.pending.push_back(extent);
        }
    }

    /// What the channel is to do next.
    pub fn next(&mut self, now: Time, channel_id: ChannelId) -> Next {
        let share = self.rate_share(channel_id);
        let behind = self.would_finish_late(channel_id);
        let Some(channel) = self.channels.get_mut(&channel_id) else { return Next::Stop };
        if self.stopped || channel.lost {
            return Next::Stop;
        }
        if self.pending.is_empty() {
            let idle =
                channel.in_flight.is_empty() && now - channel.last_assigned_at >= self.config.ping_interval;
            return if idle { self.ping(now, channel_id) } else { Next::Wait };
        }
        if behind || channel.in_flight_wire_bytes >= channel.window_bytes(&self.config) {
            return Next::Wait;
        }
        // Half of the channel's share of what is left: pieces shrink as the end comes near.
        let share_bytes = (self.pending_bytes as f64 * share / 2.0) as u64;
        let bytes = share_bytes.clamp(self.config.write_bytes_min, self.config.write_bytes_max);
        let (region, runs) = self.take(bytes);
        self.hand_out(now, channel_id, region, runs)
    }

    fn ping(&mut self, now: Time, channel_id: ChannelId) -> Next {
        match self.hand_out(now, channel_id, 0, Vec::new()) {
            Next::Work(work) => Next::Ping { sequence: work.sequence },
            other => other,
        }
    }

    fn hand_out(&mut self, now: Time, channel_id: ChannelId, region: RegionId, runs: Vec<Run>) -> Next {
        let Some(channel) = self.channels.get_mut(&channel_id) else { return Next::Stop };
        let sequence = channel.take_sequence(now);
        let bytes: u64 = runs.iter().map(|run| run.length).sum();
        if bytes > 0 {
            // A ping's round trip says nothing about the rate.
            channel.rate.busy(now);
        }
        channel.in_flight_wire_bytes += bytes;
        channel.in_flight.push_back(InFlight {
            sequence,
            region,
            runs: runs.clone(),
            bytes,
            wire_bytes: bytes,
            sent_at: now,
        });
        self.in_flight_bytes += bytes;
        Next::Work(Work { sequence, region, runs })
    }

    /// Takes up to `bytes` of one region from the front of what is pending, cut at page boundaries.
    fn take(&mut self, bytes: u64) -> (RegionId, Vec<Run>) {
        let bytes = (bytes / PAGE_BYTES).max(1) * PAGE_BYTES;
        let mut runs = Vec::new();
        let mut left = bytes;
        let region = self.pending.front().map_or(0, |extent| extent.region);
        while left > 0 && runs.len() < self.config.write_runs_max {
            let Some(extent) = self.pending.front_mut().filter(|extent| extent.region == region) else {
                break;
            };
            let length = extent.run.length.min(left);
            runs.push(Run { offset: extent.run.offset, length });
            left -= length;
            self.pending_bytes -= length;
            extent.run.offset += length;
            extent.run.length -= length;
            if extent.run.length == 0 {
                self.pending.pop_front();
            }
        }
        (region, runs)
    }

    /// The channel's part of all active channels' rate; equal parts until every one of them has shown a rate.
    fn rate_share(&self, channel_id: ChannelId) -> f64 {
        let active: Vec<_> = self.channels.iter().filter(|(_, channel)| !channel.lost).collect();
        let own = self.channels.get(&channel_id).map_or(0.0, |channel| channel.rate.bytes_per_s());
        let known = active.iter().all(|(_, channel)| channel.rate.bytes_per_s() > 0.0);
        let total: f64 = active.iter().map(|(_, channel)| channel.rate.bytes_per_s()).sum();
        if known && total > 0.0 { own / total } else { 1.0 / active.len().max(1) as f64 }
    }

    /// Whether the channel, with what it already has in flight, would be done later than all channels together would be
    /// with everything that is left. Never true of the channel that is furthest ahead, so work is always taken.
    fn would_finish_late(&self, channel_id: ChannelId) -> bool {
        let Some(channel) = self.channels.get(&channel_id) else { return false };
        let own_rate = channel.rate.bytes_per_s();
        let nearest = self.nearest();
        let far_s = farther_s(channel, nearest);
        if own_rate <= 0.0 || (channel.in_flight.is_empty() && far_s <= 0.0) {
            return false;
        }
        let active = || self.channels.values().filter(|channel| !channel.lost);
        // Who has shown no rate gets a first piece before another gets a second: else a slow channel that asks first
        // could take every small round, and the others' rates would never be measured.
        let unknown = |other: &Channel| other.rate.bytes_per_s() <= 0.0 && other.in_flight.is_empty();
        if active().any(unknown) {
            return !channel.in_flight.is_empty();
        }
        let left: u64 =
            self.pending_bytes + active().map(|channel| channel.in_flight_wire_bytes).sum::<u64>();
        let ways: Vec<(f64, f64)> =
            active().map(|channel| (farther_s(channel, nearest), channel.rate.bytes_per_s())).collect();
        far_s + channel.in_flight_wire_bytes as f64 / own_rate > all_done_s(ways, left as f64)
    }

    /// How long the acknowledgements of the nearest active channel take.
    fn nearest(&self) -> Duration {
        let active = self.channels.values().filter(|channel| !channel.lost);
        active.filter_map(|channel| channel.latency.least()).min().unwrap_or_default()
    }

    /// The channel handed the write to its transport: this is what it costs on the wire (zero pages cost nothing).
    pub fn sent(&mut self, channel_id: ChannelId, sequence: u64, wire_bytes: u64) {
        let Some(channel) = self.channels.get_mut(&channel_id) else { return };
        let Some(write) = channel.in_flight.iter_mut().rev().find(|write| write.sequence == sequence) else {
            return;
        };
        channel.in_flight_wire_bytes = channel.in_flight_wire_bytes - write.wire_bytes + wire_bytes;
        write.wire_bytes = wire_bytes;
    }

    /// The destination applied everything up to `through` on the channel, except `damaged`.
    pub fn acknowledged(&mut self, now: Time, channel_id: ChannelId, through: u64, damaged: &[u64]) {
        let Some(channel) = self.channels.get_mut(&channel_id) else { return };
        for write in channel.settle(now, through) {
            self.in_flight_bytes -= write.bytes;
            if damaged.contains(&write.sequence) {
                self.damaged_count += 1;
                self.damaged.extend(write.runs.iter().map(|&run| Extent { region: write.region, run }));
            } else {
                self.acknowledged_bytes += write.bytes;
                if let Some(delivered) = &mut self.delivered {
                    delivered.extend(write.runs.iter().map(|&run| Extent { region: write.region, run }));
                }
            }
        }
    }

    /// The channel is lost. What it had in flight stays in flight until [`Scheduler::fenced`]. Returns whether this was
    /// news.
    pub fn lost(&mut self, channel_id: ChannelId) -> bool {
        match self.channels.get_mut(&channel_id) {
            Some(channel) if !channel.lost => {
                channel.lost = true;
                true
            }
            _ => false,
        }
    }

    /// The destination will apply nothing more from a lost channel: what it had not applied is pending again.
    pub fn fenced(&mut self, now: Time, channel_id: ChannelId, applied: u64, damaged: &[u64]) {
        if self.channels.get(&channel_id).is_none_or(|channel| !channel.lost) {
            return;
        }
        self.acknowledged(now, channel_id, applied, damaged);
        let Some(channel) = self.channels.remove(&channel_id) else { return };
        for write in channel.in_flight.iter().rev() {
            self.in_flight_bytes -= write.bytes;
            self.pending_bytes += write.bytes;
            for &run in write.runs.iter().rev() {
                self.pending.push_front(Extent { region: write.region, run });
            }
        }
    }

    /// Nothing pending and no memory in flight. Unanswered pings do not count: they carry nothing.
    pub fn is_drained(&self) -> bool {
        self.pending.is_empty() && self.in_flight_bytes == 0
    }

    /// From now on keeps what is settled for [`Scheduler::take_delivered`].
    pub fn record_delivered(&mut self) {
        self.delivered.get_or_insert_default();
    }

    /// Extents that were applied since the last call.
    pub fn take_delivered(&mut self) -> Vec<Extent> {
        self.delivered.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Removes what is pending and begins in this range of a region; returns its bytes. What is in flight stays so.
    pub fn discard(&mut self, region: RegionId, range: std::ops::Range<u64>) -> u64 {
        let before = self.pending_bytes;
        self.pending.retain(|extent| extent.region != region || !range.contains(&extent.run.offset));
        self.pending_bytes = self.pending.iter().map(|extent| extent.run.length).sum();
        before - self.pending_bytes
    }

    /// Extents that arrived damaged since the last call; they must go into the next round.
    pub fn take_damaged(&mut self) -> Vec<Extent> {
        std::mem::take(&mut self.damaged)
    }

    /// Whether damaged extents wait to be taken.
    pub fn has_damaged(&self) -> bool {
        !self.damaged.is_empty()
    }

    /// Writes that arrived damaged so far.
    pub fn damaged_count(&self) -> u64 {
        self.damaged_count
    }

    /// Bytes not handed out yet.
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Bytes handed out and not settled.
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Bytes of memory settled since the start.
    pub fn acknowledged_bytes(&self) -> u64 {
        self.acknowledged_bytes
    }

    /// Active channels of a link.
    pub fn channels_of(&self, link: LinkId) -> Vec<ChannelId> {
        let active = self.channels.iter().filter(|(_, channel)| !channel.lost && channel.link == link);
        active.map(|(&id, _)| id).collect()
    }

    /// Rate of all active channels together, bytes per second on the wire.
    pub fn bytes_per_s(&self) -> f64 {
        self.channels.values().filter(|channel| !channel.lost).map(|channel| channel.rate.bytes_per_s()).sum()
    }

    /// Rate of the active channels of one link, bytes per second on the wire.
    pub fn link_bytes_per_s(&self, link: LinkId) -> f64 {
        let of_link = |channel: &&Channel| !channel.lost && channel.link == link;
        self.channels.values().filter(of_link).map(|channel| channel.rate.bytes_per_s()).sum()
    }

    /// Channels that can carry work.
    pub fn active_channels(&self) -> usize {
        self.channels.values().filter(|channel| !channel.lost).count()
    }

    /// Every extent in flight, for the check of rule 3 by tests and the simulator.
    pub fn in_flight(&self) -> impl Iterator<Item = (ChannelId, u64, Extent)> {
        self.channels.iter().flat_map(|(&id, channel)| {
            channel.in_flight.iter().flat_map(move |write| {
                write.runs.iter().map(move |&run| (id, write.sequence, Extent { region: write.region, run }))
            })
        })
    }
}

#[cfg(test)]
mod tests;
