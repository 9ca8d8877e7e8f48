//! Listens to guests' heartbeats on the guest LAN: the blackout as the network sees it, and lost packets.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_lock::Mutex;
use serde::Serialize;

use crate::error::io_error;
use crate::{Lab, LabError, netns, wait};

const MAGIC: u64 = 0x3054_4145_4254_4c4c;
const WORDS: usize = 7;
// How long the listener sleeps at most before it looks whether it is to stop.
const NAP: Duration = Duration::from_millis(100);

/// One heartbeat of a guest, as it arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Beat {
    /// Since the observer began.
    pub arrived: Duration,
    pub from: Ipv4Addr,
    /// Counted by the guest from 1.
    pub sequence: u64,
    /// The guest's own monotonic clock, which stops while the guest is stopped.
    pub guest_ns: u64,
    /// Finished passes over memory.
    pub passes: u64,
    /// Bad memory pages so far.
    pub mem_bad: u64,
    /// Disk slots read or written so far.
    pub disk_ops: u64,
    /// Bad disk slots so far.
    pub disk_bad: u64,
}

/// What the network saw of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Blackout {
    pub received: u64,
    /// Sequence numbers between the first and the last that never came.
    pub lost: u64,
    /// Packets that came twice or after a later one.
    pub out_of_order: u64,
    /// Longest time without a packet, µs.
    pub longest_gap_us: u64,
    /// When that gap began, µs since the observer began.
    pub gap_began_us: u64,
    /// Bad memory pages by the last packet.
    pub mem_bad: u64,
    /// Bad disk slots by the last packet.
    pub disk_bad: u64,
}

impl Blackout {
    /// The guest was heard, is one, and has found nothing that is not as it wrote it.
    pub fn is_unharmed(&self) -> bool {
        self.received > 0 && self.out_of_order + self.mem_bad + self.disk_bad == 0
    }
}

/// A listener in the observer's namespace; it stops when dropped.
#[derive(Debug)]
pub struct Observer {
    began: Instant,
    beats: Arc<Mutex<Vec<Beat>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Observer {
    /// Listens at the lab's observer address.
    pub fn start(lab: &Lab, port: u16) -> Result<Observer, LabError> {
        let address = (lab.observer_address(), port);
        // A socket belongs to the namespace that it was made in, so only its making needs to be there.
        let socket = netns::inside(&lab.observer_namespace(), || {
            UdpSocket::bind(address).map_err(io_error("listen on", format!("{}:{port}", address.0)))
        })?;
        socket.set_read_timeout(Some(NAP)).map_err(io_error("set up", "the observer's socket"))?;
        let began = Instant::now();
        let beats = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (beats, stop) = (beats.clone(), stop.clone());
            std::thread::spawn(move || listen(&socket, began, &beats, &stop))
        };
        Ok(Observer { began, beats, stop, thread: Some(thread) })
    }

    /// Time on the clock of [`Beat::arrived`].
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// All packets of a guest so far, in the order of their arrival.
    pub fn beats(&self, from: Ipv4Addr) -> Vec<Beat> {
        self.beats.lock().iter().filter(|beat| beat.from == from).copied().collect()
    }

    /// Waits until a guest has sent `count` more packets.
    pub fn wait_beats(&self, from: Ipv4Addr, count: usize, limit: Duration) -> Result<(), LabError> {
        let target = self.beats(from).len() + count;
        wait::until(&format!("{count} heartbeats from {from}"), limit, String::new, || {
            Ok((self.beats(from).len() >= target).then_some(()))
        })
    }

    /// What was seen of a guest from `since` on.
    pub fn blackout(&self, from: Ipv4Addr, since: Duration) -> Blackout {
        let beats = self.beats(from);
        // The packet before `since` counts, so that a gap that began there is seen in full.
        let first = beats.partition_point(|beat| beat.arrived < since).saturating_sub(1);
        summarise(beats.get(first..).unwrap_or_default())
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the listener has been printed by it.
            let _ = thread.join();
        }
    }
}

fn listen(socket: &UdpSocket, began: Instant, beats: &Mutex<Vec<Beat>>, stop: &AtomicBool) {
    // Ahead of QEMU on a busy machine, so that a gap is the guest's and not this thread's; on Linux the priority
    // is this thread's alone. Without the right to do so, gaps are only measured less well.
    let _ = rustix::process::setpriority_process(None, -15);
    let mut packet = [0u8; 512];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut packet) else { continue };
        let arrived = began.elapsed();
        let std::net::IpAddr::V4(from) = from.ip() else { continue };
        if let Some(beat) = packet.get(..length).and_then(|bytes| parse(bytes, arrived, from)) {
            beats.lock().push(beat);
        }
    }
}

fn parse(packet: &[u8], arrived: Duration, from: Ipv4Addr) -> Option<Beat> {
    let (words, rest) = packet.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let [magic, sequence, guest_ns, passes, mem_bad, disk_ops, disk_bad]: [u64; WORDS] =
        words.try_into().ok()?;
    let valid = magic == MAGIC && rest.is_empty();
    valid.then_some(Beat { arrived, from, sequence, guest_ns, passes, mem_bad, disk_ops, disk_bad })
}

/// Gaps and losses in packets that are in the order of their arrival.
pub fn summarise(beats: &[Beat]) -> Blackout {
    let (Some(first), Some(last)) = (beats.first(), beats.last()) else { return Blackout::default() };
    let mut seen: Vec<u64> = beats.iter().map(|beat| beat.sequence).collect();
    seen.sort_unstable();
    seen.dedup();
    let span = seen.last().zip(seen.first()).map_or(0, |(last, first)| last - first + 1);
    let (gap, began) = longest_gap(beats).unwrap_or((Duration::ZERO, first.arrived));
    Blackout {
        received: beats.len() as u64,
        lost: span - seen.len() as u64,
        out_of_order: count_out_of_order(beats),
        longest_gap_us: micros(gap),
        gap_began_us: micros(began),
        mem_bad: last.mem_bad,
        disk_bad: last.disk_bad,
    }
}

fn longest_gap(beats: &[Beat]) -> Option<(Duration, Duration)> {
    let pairs = beats.iter().zip(beats.iter().skip(1));
    pairs
        .map(|(one, next)| (next.arrived.saturating_sub(one.arrived), one.arrived))
        .max_by_key(|(gap, _)| *gap)
}

fn count_out_of_order(beats: &[Beat]) -> u64 {
    let (mut newest, mut count) = (0, 0);
    for beat in beats {
        count += u64::from(beat.sequence <= newest);
        newest = newest.max(beat.sequence);
    }
    count
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(ms: u64, sequence: u64) -> Beat {
        Beat {
            arrived: Duration::from_millis(ms),
            from: Ipv4Addr::LOCALHOST,
            sequence,
            guest_ns: 0,
            passes: 0,
            mem_bad: 0,
            disk_ops: 0,
            disk_bad: 0,
        }
    }

    #[test]
    fn gaps_losses_and_order() {
        let beats = [beat(0, 1), beat(2, 2), beat(4, 4), beat(30, 6), beat(31, 5), beat(32, 6), beat(33, 9)];
        let seen = summarise(&beats);
        assert_eq!((seen.received, seen.lost, seen.out_of_order), (7, 3, 2));
        assert_eq!((seen.longest_gap_us, seen.gap_began_us), (26_000, 4_000));
        assert_eq!(summarise(&[]), Blackout::default());
        let heard = Blackout { received: 1, lost: 3, ..Blackout::default() };
        assert!(heard.is_unharmed() && !Blackout::default().is_unharmed());
        for harm in [
            Blackout { mem_bad: 1, ..heard },
            Blackout { disk_bad: 1, ..heard },
            Blackout { out_of_order: 1, ..heard },
        ] {
            assert!(!harm.is_unharmed(), "{harm:?}");
        }
    }

    #[test]
    fn other_packets_are_not_heartbeats() {
        let packet: Vec<u8> = [MAGIC, 1, 2, 3, 4, 5, 6].iter().flat_map(|word| word.to_le_bytes()).collect();
        let parse = |bytes: &[u8]| parse(bytes, Duration::ZERO, Ipv4Addr::LOCALHOST);
        assert_eq!(parse(&packet).map(|beat| (beat.sequence, beat.disk_bad)), Some((1, 6)));
        assert_eq!(parse(&packet[1..]), None);
        assert_eq!(parse(&packet[..packet.len() - 8]), None);
        assert_eq!(parse(&[&packet[..], &[0]].concat()), None);
        assert_eq!(parse(&[0; 56]), None);
    }
}
