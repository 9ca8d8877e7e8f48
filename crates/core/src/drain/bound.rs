//! The time that no drain can beat.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::fleet::HostId;

/// A guest for the bound.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Bytes to copy at first.
    pub copy_bytes: u64,
    /// Bytes per second that it writes.
    pub write_bytes_per_s: f64,
    /// Bytes per second that it can be copied at, alone: links to its destination, threads.
    pub bytes_per_s: f64,
    /// Its destination.
    pub host: HostId,
}

/// The three terms of the lower bound. A drain takes at least the largest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// The source sends every guest once, in seconds.
    pub source_s: f64,
    /// The destination that receives longest, in seconds.
    pub destination_s: f64,
    /// The guest that takes longest alone, with what it writes meanwhile, in seconds. A guest that writes as fast as it
    /// is copied counts without its writes: its working set is not known.
    pub guest_s: f64,
}

impl Bound {
    /// The bound of these guests. `source` and `destination` are what the links there carry, in bytes per second.
    pub fn of(work: &[Work], source: f64, destination: impl Fn(HostId) -> f64) -> Bound {
        let mut at: BTreeMap<HostId, u64> = BTreeMap::new();
        work.iter().for_each(|guest| *at.entry(guest.host).or_default() += guest.copy_bytes);
        let bytes: u64 = at.values().sum();
        let largest = |seconds: &mut dyn Iterator<Item = f64>| seconds.fold(0.0, f64::max);
        Bound {
            source_s: bytes as f64 / source.max(1.0),
            destination_s: largest(
                &mut at.iter().map(|(host, bytes)| *bytes as f64 / destination(*host).max(1.0)),
            ),
            guest_s: largest(&mut work.iter().map(|guest| {
                let rate = guest.bytes_per_s - guest.write_bytes_per_s;
                guest.copy_bytes as f64 / if rate > 0.0 { rate } else { guest.bytes_per_s }.max(1.0)
            })),
        }
    }

    /// The largest of the three.
    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.source_s.max(self.destination_s).max(self.guest_s).min(1e9))
    }
}
