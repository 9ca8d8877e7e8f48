//! How many lines of one kind are written in a second. What is left out is counted, and the next line says how many.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Hosts that have a limit of their own at a time.
const HOSTS_MAX: usize = 256;
const SECOND: Duration = Duration::from_secs(1);

/// Lets `most` lines a second through, and counts the rest.
#[derive(Debug)]
pub(super) struct Limit {
    most: u32,
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Limit {
    pub fn of(most: u32) -> Limit {
        Limit { most, since: None, written: 0, left_out: 0 }
    }

    /// How many were left out before this one; `None` if this one is too.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        if self.is_over(now) {
            (self.since, self.written) = (Some(now), 0);
        }
        if self.written >= self.most {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }

    /// The second in which lines are counted is over.
    fn is_over(&self, now: Instant) -> bool {
        self.since.is_none_or(|since| now.duration_since(since) >= SECOND)
    }
}

/// One limit for each host with a proved name, and one for all others together.
#[derive(Debug)]
pub(super) struct Limits {
    most: u32,
    others: Limit,
    hosts: BTreeMap<String, Limit>,
}

impl Limits {
    pub fn of(most: u32) -> Limits {
        Limits { most, others: Limit::of(most), hosts: BTreeMap::new() }
    }

    /// As [`Limit::take`], of the host of this name.
    pub fn take(&mut self, name: Option<&str>, now: Instant) -> Option<u64> {
        let Some(name) = name else { return self.others.take(now) };
        if !self.hosts.contains_key(name) {
            self.make_room(now);
            if self.hosts.len() >= HOSTS_MAX {
                return self.others.take(now);
            }
        }
        self.hosts.entry(name.to_owned()).or_insert_with(|| Limit::of(self.most)).take(now)
    }

    /// Hosts whose second is over go. What was left out of them is added to the count of the others.
    fn make_room(&mut self, now: Instant) {
        if self.hosts.len() >= HOSTS_MAX {
            let all = |hosts: &BTreeMap<String, Limit>| hosts.values().map(|one| one.left_out).sum::<u64>();
            let before = all(&self.hosts);
            self.hosts.retain(|_, limit| !limit.is_over(now));
            self.others.left_out += before - all(&self.hosts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_out_is_in_the_next_line() {
        let (mut limit, start) = (Limit::of(10), Instant::now());
        let taken: Vec<_> = (0..13).map(|_| limit.take(start)).collect();
        assert_eq!(taken.iter().filter(|one| one.is_some()).count(), 10);
        assert_eq!(limit.take(start + SECOND), Some(3));
        assert_eq!(limit.take(start + SECOND), Some(0));
    }

    #[test]
    fn each_host_has_a_limit_of_its_own_and_their_number_is_bounded() {
        let (mut limits, start) = (Limits::of(2), Instant::now());
        let mut taken = |name: Option<&str>| (0..3).filter(|_| limits.take(name, start).is_some()).count();
        assert_eq!([taken(None), taken(Some("b")), taken(Some("c"))], [2, 2, 2]);
        for number in 0..2 * HOSTS_MAX {
            taken(Some(&format!("host{number}")));
        }
        assert_eq!(limits.hosts.len(), HOSTS_MAX);
        // Those of before make room, and what was left out of them is not forgotten.
        let later = start + SECOND;
        assert_eq!(limits.take(Some("new"), later), Some(0));
        assert_eq!(limits.hosts.len(), 1);
        assert!(limits.take(None, later).unwrap() > HOSTS_MAX as u64);
    }
}
