//! Ends of sessions that the disk has not taken yet: each is written again until it has.

use std::collections::BTreeMap;

use super::RETRY_AFTER;
use crate::{SessionId, Time};

/// Records `R` that end a session and are not on disk.
///
/// The agent holds one lock from [`UnwrittenEnds::due`] to [`UnwrittenEnds::tried`], so that no record of the session
/// comes between them.
#[derive(Clone, Debug)]
pub struct UnwrittenEnds<R> {
    /// With the time of the next try.
    waiting: BTreeMap<SessionId, (Time, R)>,
}

impl<R> Default for UnwrittenEnds<R> {
    fn default() -> UnwrittenEnds<R> {
        UnwrittenEnds { waiting: BTreeMap::new() }
    }
}

impl<R> UnwrittenEnds<R> {
    /// The disk has refused this end. It replaces an earlier one of the session.
    pub fn refused(&mut self, now: Time, session: SessionId, record: R) {
        self.waiting.insert(session, (now + RETRY_AFTER, record));
    }

    /// A newer record of the session is on disk: there is nothing to write any more.
    pub fn superseded(&mut self, session: SessionId) {
        self.waiting.remove(&session);
    }

    /// The record to write now; none before [`UnwrittenEnds::timeout`].
    pub fn due(&self, now: Time) -> Option<(SessionId, &R)> {
        let (session, (_, record)) = self.waiting.iter().find(|(_, (at, _))| *at <= now)?;
        Some((*session, record))
    }

    /// A try came to its end. Gives the record if it is on disk now; otherwise the next try comes later.
    pub fn tried(&mut self, now: Time, session: SessionId, written: bool) -> Option<R> {
        if written {
            return self.waiting.remove(&session).map(|(_, record)| record);
        }
        if let Some((at, _)) = self.waiting.get_mut(&session) {
            *at = now + RETRY_AFTER;
        }
        None
    }

    /// When the next try is due; none if nothing waits.
    pub fn timeout(&self) -> Option<Time> {
        self.waiting.values().map(|(at, _)| *at).min()
    }

    /// The end of a session that waits.
    pub fn get(&self, session: SessionId) -> Option<&R> {
        self.waiting.get(&session).map(|(_, record)| record)
    }

    /// All ends that are not on disk, by session.
    pub fn iter(&self) -> impl Iterator<Item = (SessionId, &R)> {
        self.waiting.iter().map(|(session, (_, record))| (*session, record))
    }

    /// Number of ends that are not on disk.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether every end is on disk.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SessionId = SessionId([1; 16]);
    const B: SessionId = SessionId([2; 16]);

    #[test]
    fn an_end_is_written_until_the_disk_has_it() {
        let mut ends = UnwrittenEnds::default();
        assert_eq!((ends.timeout(), ends.due(Time::ZERO)), (None, None));
        let mut now = Time::ZERO;
        ends.refused(now, A, "finished");
        for _ in 0..100 {
            assert_eq!(ends.due(now), None, "not at once again");
            assert_eq!(ends.timeout(), Some(now + RETRY_AFTER));
            now = now + RETRY_AFTER;
            assert_eq!(ends.due(now), Some((A, &"finished")));
            assert_eq!(ends.tried(now, A, false), None);
            assert_eq!(ends.get(A), Some(&"finished"), "it is the answer to later questions");
        }
        now = now + RETRY_AFTER;
        assert_eq!(ends.tried(now, A, true), Some("finished"));
        assert!(ends.is_empty());
        assert_eq!((ends.timeout(), ends.due(now + RETRY_AFTER)), (None, None));
    }

    #[test]
    fn a_record_that_the_disk_refuses_does_not_keep_others_from_it() {
        let mut ends = UnwrittenEnds::default();
        ends.refused(Time::ZERO, A, 1);
        ends.refused(Time::ZERO, B, 2);
        let now = Time::ZERO + RETRY_AFTER;
        assert_eq!(ends.due(now), Some((A, &1)));
        ends.tried(now, A, false);
        assert_eq!(ends.due(now), Some((B, &2)));
        ends.tried(now, B, true);
        assert_eq!(ends.due(now), None);
        assert_eq!((ends.len(), ends.iter().next()), (1, Some((A, &1))));
    }

    #[test]
    fn what_is_newer_is_never_overwritten() {
        let mut ends = UnwrittenEnds::default();
        ends.refused(Time::ZERO, A, 1);
        ends.refused(Time::ZERO, A, 2);
        let now = Time::ZERO + RETRY_AFTER;
        assert_eq!(ends.due(now), Some((A, &2)));
        ends.superseded(A);
        assert_eq!((ends.due(now), ends.timeout(), ends.get(A)), (None, None, None));
    }
}
