//! Addresses of hosts that are no strangers: a connection of theirs was taken and is open, or they proved who they are
//! not long ago. Their connections have room of their own.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::room::Origin;

/// For this long an address is known after it was seen.
const RECENT: Duration = Duration::from_secs(24 * 3600);
/// Addresses without an open connection; the one that was seen first is forgotten for another.
const RECENT_MAX: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Known(HashMap<Origin, Seen>);

#[derive(Debug)]
struct Seen {
    last: Instant,
    /// Connections that were taken and may be open.
    taken: Vec<Weak<OwnedFd>>,
}

impl Seen {
    fn is_open(&self) -> bool {
        self.taken.iter().any(|one| one.strong_count() > 0)
    }
}

impl Known {
    pub fn contains(&self, origin: Origin) -> bool {
        self.contains_after(origin, RECENT)
    }

    fn contains_after(&self, origin: Origin, recent: Duration) -> bool {
        self.0.get(&origin).is_some_and(|seen| seen.is_open() || seen.last.elapsed() < recent)
    }

    /// A host proved who it is from there.
    pub fn note(&mut self, origin: Origin) {
        self.seen(origin);
        self.forget();
    }

    /// A connection from there was taken.
    pub fn hold(&mut self, origin: Origin, connection: &Arc<OwnedFd>) {
        let seen = self.seen(origin);
        seen.taken.retain(|one| one.strong_count() > 0);
        seen.taken.push(Arc::downgrade(connection));
        self.forget();
    }

    fn seen(&mut self, origin: Origin) -> &mut Seen {
        let now = Instant::now();
        let seen = self.0.entry(origin).or_insert_with(|| Seen { last: now, taken: Vec::new() });
        seen.last = now;
        seen
    }

    fn forget(&mut self) {
        while self.0.len() > RECENT_MAX {
            let closed = self.0.iter().filter(|(_, seen)| !seen.is_open());
            let Some(first) = closed.min_by_key(|(_, seen)| seen.last).map(|(origin, _)| *origin) else {
                return;
            };
            self.0.remove(&first);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(number: u32) -> Origin {
        Origin::of((std::net::Ipv4Addr::from_bits(number), 1).into())
    }

    #[test]
    fn the_list_is_bounded_and_keeps_those_with_an_open_connection() {
        let mut known = Known::default();
        let open: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        known.hold(origin(1), &open);
        (2..2 + RECENT_MAX as u32).for_each(|number| known.note(origin(number)));
        assert_eq!(known.0.len(), RECENT_MAX);
        assert!(known.contains(origin(1)), "its connection is open");
        assert!(!known.contains(origin(2)) && known.contains(origin(3)));
        assert!(!known.contains(origin(u32::MAX)));
        drop(open);
        known.note(origin(u32::MAX));
        assert!(!known.contains(origin(1)), "it was seen first, and its connection is closed");
    }

    #[test]
    fn an_address_is_known_as_long_as_its_connection_is_open_and_for_a_time_after() {
        let mut known = Known::default();
        let open: Arc<OwnedFd> = Arc::new(std::fs::File::open("/dev/null").unwrap().into());
        known.hold(origin(1), &open);
        assert!(known.contains_after(origin(1), Duration::ZERO), "its session may last for long");
        drop(open);
        assert!(!known.contains_after(origin(1), Duration::ZERO));
        assert!(known.contains(origin(1)));
    }

    #[test]
    fn closed_connections_are_not_remembered_one_by_one() {
        let mut known = Known::default();
        for _ in 0..100 {
            known.hold(origin(1), &Arc::new(std::fs::File::open("/dev/null").unwrap().into()));
        }
        assert!(known.0[&origin(1)].taken.len() < 2);
    }
}
