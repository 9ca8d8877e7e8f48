//! Small packets in bursts on a link without load: how many are lost, there and back. A packet that is late is not
//! lost.

use std::time::Duration;

use super::datagram::Reply;
use super::sender::{ProbeResult, Sender};
use crate::model::Loss;

/// Fewer than any queue on the way holds.
const BURST: u32 = 200;
/// Replies that come are fetched after so many packets.
const FETCH: u32 = 16;
/// A packet waits so long for its reply, and two round trips.
const QUIET: Duration = Duration::from_millis(20);
/// A burst waits no longer for its last replies: those of a far link come while the next bursts are sent.
const BURST_GAP_MAX: Duration = Duration::from_millis(50);

/// Sends so many packets, in bursts. What comes within `late` of the last one, and two round trips, is not lost: a busy
/// machine may not run the other side for as long. `round_trip` is what the path takes.
pub fn count(sender: &mut Sender, packets: u32, round_trip: Duration, late: Duration) -> Option<Loss> {
    let quiet = QUIET + round_trip * 2;
    let first = answered(sender, quiet)?;
    let mut received = ReceivedProbes { first: first.sequence, seen: vec![false; packets as usize] };
    let mut left = packets;
    while left > 0 {
        burst(sender, &mut received, left.min(BURST), quiet.min(BURST_GAP_MAX))?;
        left -= left.min(BURST);
    }
    if received.missing() > 0 {
        wait(sender, &mut received, late + round_trip * 2)?;
    }
    let last = answered(sender, quiet);
    let lost = received.missing();
    // The packets from the first answered one to the last: what of them arrived was counted there.
    let lost_there = last.filter(|last| first.arrived > 0 && last.arrived > 0).map(|last| {
        let (sent, arrived) =
            (last.sequence.wrapping_sub(first.sequence), last.arrived.wrapping_sub(first.arrived));
        sent.saturating_sub(arrived).min(lost)
    });
    Some(Loss { sent: packets, lost_there, lost_back: lost_there.map(|there| lost - there), lost })
}

/// Which of the packets behind `first` had a reply.
struct ReceivedProbes {
    first: u32,
    seen: Vec<bool>,
}

impl ReceivedProbes {
    fn note(&mut self, reply: &Reply) {
        let at = reply.sequence.wrapping_sub(self.first).wrapping_sub(1) as usize;
        if let Some(seen) = self.seen.get_mut(at) {
            *seen = true;
        }
    }

    fn missing(&self) -> u32 {
        self.seen.iter().filter(|seen| !**seen).count() as u32
    }
}

/// A packet that has a reply, so that both sides know where they are. Some may be lost.
fn answered(sender: &mut Sender, wait: Duration) -> Option<Reply> {
    const TRIES: usize = 24;
    (0..TRIES).find_map(|_| match sender.try_small(wait) {
        ProbeResult::Received { reply, .. } => Some(reply),
        _ => None,
    })
}

fn burst(sender: &mut Sender, received: &mut ReceivedProbes, packets: u32, quiet: Duration) -> Option<()> {
    let before = received.missing();
    for number in 0..packets {
        // What cannot be sent for once counts as lost; a port that went away ends the measurement elsewhere.
        let _ = sender.send(sender.small());
        if number % FETCH == FETCH - 1 {
            while let Some(reply) = sender.reply_there() {
                received.note(&reply);
            }
        }
    }
    while before - received.missing() < packets {
        match sender.next_reply(quiet) {
            Ok(Some(reply)) => received.note(&reply),
            Ok(None) => break,
            Err(ProbeResult::Unsendable(_)) => return None,
            Err(_) => {}
        }
    }
    Some(())
}

fn wait(sender: &mut Sender, received: &mut ReceivedProbes, long: Duration) -> Option<()> {
    let until = std::time::Instant::now() + long;
    while received.missing() > 0 {
        match sender.next_reply(until.saturating_duration_since(std::time::Instant::now())) {
            Ok(Some(reply)) => received.note(&reply),
            Ok(None) => break,
            Err(_) => return None,
        }
    }
    Some(())
}
