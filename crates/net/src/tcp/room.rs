//! Connections that are held for strangers: how many at most, and which one gives way to a new one.
//!
//! An address counts as an origin; of IPv6 the first 64 bits, because one host has all the rest. When there is no room,
//! the oldest connection of the origin that holds most gives way. So an origin with few connections loses none as long
//! as another holds more.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Where a connection comes from, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Origin(IpAddr);

impl Origin {
    pub fn of(peer: SocketAddr) -> Origin {
        match peer.ip() {
            IpAddr::V6(ip) => Origin(Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into()),
            ip => Origin(ip),
        }
    }
}

/// How many connections are held at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub total: usize,
    pub of_one: usize,
}

/// Connections that are held, in the order of their numbers, which is the order in which they came.
#[derive(Debug)]
pub(super) struct Room<T> {
    limits: Limits,
    held: BTreeMap<u64, (Origin, T)>,
    counts: HashMap<Origin, usize>,
}

impl<T> Room<T> {
    pub fn new(limits: Limits) -> Room<T> {
        Room { limits, held: BTreeMap::new(), counts: HashMap::new() }
    }

    /// Whether one more connection needs another to give way, wherever it comes from.
    pub fn is_full(&self) -> bool {
        self.held.len() >= self.limits.total
    }

    /// Whether one more connection from there needs no other to give way.
    pub fn has_room(&self, origin: Origin) -> bool {
        !self.is_full() && self.count(origin) < self.limits.of_one
    }

    /// The number of the connection that gives way to one more from there, among those that `may`.
    pub fn first_to_go(&self, origin: Origin, may: impl Fn(&T) -> bool) -> Option<u64> {
        let most = self.counts.values().copied().max()?;
        let is_full = self.count(origin) >= self.limits.of_one;
        let goes = |of: Origin| if is_full { of == origin } else { self.count(of) == most };
        self.held.iter().find(|(_, (of, item))| goes(*of) && may(item)).map(|(number, _)| *number)
    }

    pub fn insert(&mut self, number: u64, origin: Origin, item: T) {
        *self.counts.entry(origin).or_default() += 1;
        self.held.insert(number, (origin, item));
    }

    pub fn remove(&mut self, number: u64) -> Option<T> {
        let (origin, item) = self.held.remove(&number)?;
        if let Some(count) = self.counts.get_mut(&origin) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&origin);
            }
        }
        Some(item)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        self.held.get_mut(&number).map(|(_, item)| item)
    }

    /// All of them, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Origin, &T)> {
        self.held.iter().map(|(number, (origin, item))| (*number, *origin, item))
    }

    /// How many are held from there.
    pub fn count(&self, origin: Origin) -> usize {
        self.counts.get(&origin).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { total: 6, of_one: 4 };

    fn origin(host: u8) -> Origin {
        Origin::of(([10, 0, 0, host], 1).into())
    }

    /// A room to which these hosts came one after the other; those who gave way, by number.
    fn came(hosts: &[u8]) -> (Room<()>, Vec<u64>) {
        let (mut room, mut gone) = (Room::new(LIMITS), Vec::new());
        for (number, &host) in (0..).zip(hosts) {
            if !room.has_room(origin(host)) {
                let first = room.first_to_go(origin(host), |()| true).unwrap();
                room.remove(first).unwrap();
                gone.push(first);
            }
            room.insert(number, origin(host), ());
        }
        (room, gone)
    }

    #[test]
    fn an_address_has_its_share_and_its_oldest_gives_way() {
        let (room, gone) = came(&[1; 10]);
        assert_eq!(gone, [0, 1, 2, 3, 4, 5]);
        assert_eq!(room.iter().count(), LIMITS.of_one);
        assert!(!room.has_room(origin(1)) && room.has_room(origin(2)));
    }

    #[test]
    fn without_room_the_oldest_of_the_address_that_holds_most_gives_way() {
        // The only one of host 9 stays, although it is the oldest of all.
        let (_, gone) = came(&[9, 1, 1, 1, 2, 2, 3, 3, 4]);
        assert_eq!(gone, [1, 2, 4]);
        let (_, gone) = came(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(gone, [0, 1], "of as many as there are hosts, the oldest");
    }

    #[test]
    fn who_may_not_give_way_stays() {
        let mut room = Room::new(LIMITS);
        for number in 0..4 {
            room.insert(number, origin(1), number != 0);
        }
        assert_eq!(room.first_to_go(origin(1), |may| *may), Some(1));
        assert_eq!(room.first_to_go(origin(1), |_| false), None);
    }

    #[test]
    fn one_network_of_ipv6_is_one_origin() {
        let of = |text: &str| Origin::of(format!("[{text}]:1").parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_ne!(origin(1), origin(2));
    }
}
