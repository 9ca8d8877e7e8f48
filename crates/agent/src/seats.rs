//! How much is done at a time for other hosts: for each of them, and for all together.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linerate_lock::{Condvar, Mutex};

use crate::security::{PeerName, counted_as};

/// The refusal of a question for which there is no seat.
pub(crate) const NO_SEAT: &str =
    "this host has reached its limit of questions at a time; ask again in some seconds";

/// Seats for what other hosts ask. Each has a share, so that none takes those of the others.
#[derive(Debug)]
pub(crate) struct Seats {
    of_one: usize,
    of_all: usize,
    /// A host that has so many takes none of the last quarter.
    few: usize,
    occupied: Arc<Occupied>,
}

#[derive(Debug, Default)]
struct Occupied {
    /// How many each host has now.
    taken: Mutex<BTreeMap<String, usize>>,
    free: Condvar,
}

/// Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    occupied: Arc<Occupied>,
    host: String,
}

impl Seats {
    pub fn new(of_one: usize, of_all: usize) -> Seats {
        Seats { of_one, of_all, few: of_one, occupied: Arc::default() }
    }

    /// The last quarter is for hosts that have fewer than `few`: hosts that take all that they may leave room for
    /// others.
    pub fn last_quarter_for(self, few: usize) -> Seats {
        Seats { few, ..self }
    }

    /// A seat for this host; by its address where it proves no name. None if there is none now.
    pub fn take(&self, name: &PeerName, peer: SocketAddr) -> Option<Seat> {
        self.wait(name, peer, Duration::ZERO)
    }

    /// The same, and waits for one.
    pub fn wait(&self, name: &PeerName, peer: SocketAddr, wait: Duration) -> Option<Seat> {
        let host = counted_as(name, peer);
        let is_full = |taken: &mut BTreeMap<String, usize>| {
            let own = taken.get(&host).copied().unwrap_or_default();
            let left = self.of_all.saturating_sub(taken.values().sum());
            own >= self.of_one || left == 0 || own >= self.few && left <= self.of_all / 4
        };
        let Occupied { taken, free } = &*self.occupied;
        let (mut taken, _) = free.wait_timeout_while(taken.lock(), wait, is_full);
        if is_full(&mut taken) {
            return None;
        }
        *taken.entry(host.clone()).or_default() += 1;
        Some(Seat { occupied: self.occupied.clone(), host })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.occupied.taken.lock();
        let left = taken.get(&self.host).map_or(0, |own| own.saturating_sub(1));
        if left == 0 {
            taken.remove(&self.host);
        } else {
            taken.insert(self.host.clone(), left);
        }
        drop(taken);
        self.occupied.free.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_host_takes_the_seats_of_others_and_there_are_no_more_than_all() {
        let seats = Seats::new(2, 3);
        let peer = |host: u8| SocketAddr::from(([192, 0, 2, host], 4711));
        let named = |name: &str| Some(name.parse().unwrap());
        let first = seats.take(&named("b"), peer(1)).unwrap();
        let _second = seats.take(&named("b"), peer(2)).unwrap();
        assert!(seats.take(&named("b"), peer(3)).is_none(), "by its name");
        let _third = seats.take(&None, peer(1)).unwrap();
        assert!(seats.take(&None, peer(1)).is_none(), "of all");
        drop(first);
        assert!(seats.take(&None, peer(1)).is_some());
        assert_eq!(seats.occupied.taken.lock().len(), 2);
    }

    #[test]
    fn hosts_that_take_all_that_they_may_leave_room_for_others() {
        let seats = Seats::new(4, 8).last_quarter_for(1);
        let take = |host: &str| {
            let peer = SocketAddr::from(([192, 0, 2, 1], 4711));
            seats.take(&Some(host.parse().unwrap()), peer)
        };
        let many: Vec<Seat> = ["b"; 9].iter().chain(&["c"; 9]).filter_map(|host| take(host)).collect();
        assert_eq!(many.len(), 6, "two hosts have all but a quarter");
        let one = take("d").unwrap();
        assert!(take("d").is_none());
        let _other = take("e").unwrap();
        assert!(take("f").is_none(), "of all");
        drop(one);
        assert!(take("c").is_none() && take("f").is_some());
    }

    #[test]
    fn a_host_waits_until_it_has_a_seat_again() {
        let (seats, peer) = (Seats::new(1, 8), SocketAddr::from(([192, 0, 2, 1], 4711)));
        let first = seats.take(&None, peer).unwrap();
        assert!(seats.wait(&None, peer, Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| seats.wait(&None, peer, Duration::from_secs(60)).is_some());
            // Long enough for the other thread to find no seat.
            std::thread::sleep(Duration::from_millis(50));
            drop(first);
            assert!(waiting.join().unwrap());
        });
    }
}
