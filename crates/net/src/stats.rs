//! Counters of channels and links, for progress, reports and metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What a channel moved since it began. Written by the channel's threads, read by anybody.
#[derive(Debug, Default)]
pub struct ChannelStats {
    frames: AtomicU64,
    data_bytes: AtomicU64,
    zero_bytes: AtomicU64,
    wire_bytes: AtomicU64,
    damaged: AtomicU64,
    stalls: AtomicU64,
}

/// The counters at one moment. Those of a link are the sum of its channels'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames of both kinds, writes and probes.
    pub frames: u64,
    /// Bytes of content, without runs of zeros.
    pub data_bytes: u64,
    /// Bytes that were only said to be zero.
    pub zero_bytes: u64,
    /// Bytes on the wire above TCP: headers, run lists and payloads.
    pub wire_bytes: u64,
    /// Frames that arrived damaged.
    pub damaged: u64,
    /// Waits of more than a slice in which nothing moved although something was in flight.
    pub stalls: u64,
}

impl ChannelStats {
    pub fn frame(&self, data_bytes: u64, zero_bytes: u64, wire_bytes: u64) {
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.data_bytes.fetch_add(data_bytes, Ordering::Relaxed);
        self.zero_bytes.fetch_add(zero_bytes, Ordering::Relaxed);
        self.wire_bytes.fetch_add(wire_bytes, Ordering::Relaxed);
    }

    /// Counts frames that arrived damaged.
    pub fn count_damaged(&self, frames: u64) {
        self.damaged.fetch_add(frames, Ordering::Relaxed);
    }

    pub fn stall(&self) {
        self.stalls.fetch_add(1, Ordering::Relaxed);
    }

    /// The counters now; each is exact, all together are not of one instant.
    pub fn counters(&self) -> Counters {
        Counters {
            frames: self.frames.load(Ordering::Relaxed),
            data_bytes: self.data_bytes.load(Ordering::Relaxed),
            zero_bytes: self.zero_bytes.load(Ordering::Relaxed),
            wire_bytes: self.wire_bytes.load(Ordering::Relaxed),
            damaged: self.damaged.load(Ordering::Relaxed),
            stalls: self.stalls.load(Ordering::Relaxed),
        }
    }
}

impl std::ops::Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        Counters {
            frames: self.frames + other.frames,
            data_bytes: self.data_bytes + other.data_bytes,
            zero_bytes: self.zero_bytes + other.zero_bytes,
            wire_bytes: self.wire_bytes + other.wire_bytes,
            damaged: self.damaged + other.damaged,
            stalls: self.stalls + other.stalls,
        }
    }
}

impl std::iter::Sum for Counters {
    fn sum<I: Iterator<Item = Counters>>(all: I) -> Counters {
        all.fold(Counters::default(), std::ops::Add::add)
    }
}

/// What the kernel knows of a TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time, as the kernel estimates it.
    pub rtt: Duration,
    /// The least round-trip time of the last minutes; `None` before the first.
    pub rtt_min: Option<Duration>,
    /// Segments sent again since the beginning.
    pub retransmits: u32,
    /// Congestion window, in segments of `segment_bytes`.
    pub congestion_window: u32,
    /// Largest segment that is sent, in bytes.
    pub segment_bytes: u32,
    /// Bytes that the peer's kernel has acknowledged.
    pub bytes_acknowledged: u64,
}
