//! Events of one migration, for every watcher: what happened so far first, then what happens now.

use std::sync::MutexGuard;
use std::time::Instant;

use linerate_api::{DomainEvent, Event, EventKind};
use linerate_lock::Mutex;
use tokio::sync::watch;

#[derive(Debug, Default)]
struct Log {
    /// Everything but progress, from the beginning.
    history: Vec<Event>,
    /// The latest progress, with its number.
    progress: Option<(u64, Event)>,
    finished: bool,
}

#[derive(Debug)]
pub struct EventLog {
    began: Instant,
    log: Mutex<Log>,
    changed: watch::Sender<u64>,
}

/// How far a watcher has read.
#[derive(Debug)]
pub struct EventCursor {
    history: usize,
    progress: u64,
    changed: watch::Receiver<u64>,
}

impl Default for EventLog {
    fn default() -> EventLog {
        EventLog { began: Instant::now(), log: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

impl EventLog {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }

    /// Adds an event. After [`EventKind::Finished`] it does nothing.
    pub fn publish(&self, kind: EventKind) {
        let at_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut log = self.lock();
        if log.finished {
            return;
        }
        log.finished = matches!(kind, EventKind::Finished { .. });
        let event = Event { at_us, kind };
        if matches!(event.kind, EventKind::Progress(_) | EventKind::Domain(DomainEvent::Progress { .. })) {
            let number = log.progress.as_ref().map_or(1, |(number, _)| number + 1);
            log.progress = Some((number, event));
        } else {
            log.history.push(event);
        }
        drop(log);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Begins to watch, from the beginning.
    pub fn watch(&self) -> EventCursor {
        EventCursor { history: 0, progress: 0, changed: self.changed.subscribe() }
    }

    /// The events since the last call, in order; and whether the log has ended with them.
    pub fn next_events(&self, cursor: &mut EventCursor) -> (Vec<Event>, bool) {
        cursor.changed.mark_unchanged();
        let log = self.lock();
        let mut events: Vec<Event> = log.history.iter().skip(cursor.history).cloned().collect();
        cursor.history = log.history.len();
        if let Some((number, event)) = &log.progress
            && *number > cursor.progress
        {
            cursor.progress = *number;
            let place = events.partition_point(|other| other.at_us <= event.at_us);
            // Progress that was overtaken by the end is of no use.
            if !log.finished || place < events.len() {
                events.insert(place, event.clone());
            }
        }
        (events, log.finished)
    }

    /// The final event, once it is there.
    pub fn finished(&self) -> Option<EventKind> {
        self.lock()
            .history
            .last()
            .map(|event| event.kind.clone())
            .filter(|kind| matches!(kind, EventKind::Finished { .. }))
    }
}

impl EventCursor {
    /// Waits for further events.
    pub async fn changed(&mut self) {
        // An error means that the log was dropped: then the next read shows it.
        let _ = self.changed.changed().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning(text: &str) -> EventKind {
        EventKind::Warning { text: text.into() }
    }

    fn finished() -> EventKind {
        EventKind::Finished { outcome: linerate_api::MigrationOutcome::Completed, error: None, report: None }
    }

    #[test]
    fn a_late_watcher_gets_everything_and_each_thing_once() {
        let event_log = EventLog::default();
        event_log.publish(warning("one"));
        let mut cursor = event_log.watch();
        event_log.publish(warning("two"));
        let (events, over) = event_log.next_events(&mut cursor);
        assert_eq!(events.len(), 2);
        assert!(!over);
        assert!(event_log.next_events(&mut cursor).0.is_empty());
        event_log.publish(finished());
        event_log.publish(warning("after the end"));
        let (events, over) = event_log.next_events(&mut cursor);
        assert_eq!(events.len(), 1);
        assert!(over && event_log.finished().is_some());
    }
}
