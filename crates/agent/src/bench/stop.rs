//! Ending a measurement from outside: connections are closed, and a thread that waits on one gets the reason.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use linerate_lock::Mutex;
use linerate_net::channel::Closer;

use crate::security::SessionPart;

/// Why a measurement was ended from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The client that asked for it has cancelled it.
    Cancelled,
    /// A migration began on this host.
    Migration,
    /// The other host was revoked.
    Revoked,
    /// It is over anyway.
    Over,
}

/// Ends one measurement: closes its connections and keeps the reason.
#[derive(Debug, Default)]
pub struct Stop(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reason: Option<Reason>,
    closers: BTreeMap<Ticket, Closer>,
    next: Ticket,
}

/// Number of a connection that is not to be closed any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket(u64);

impl SessionPart for Stop {
    fn peer_revoked(&self) {
        self.stop(Reason::Revoked);
    }
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock()
    }

    /// Cuts everything off, now and what is added later. The first reason stays.
    pub fn stop(&self, reason: Reason) {
        let mut inner = self.lock();
        inner.reason.get_or_insert(reason);
        std::mem::take(&mut inner.closers).into_values().for_each(|closer| closer.close());
    }

    /// Adds a connection to be closed. `None` if it was closed at once.
    pub(super) fn add(&self, closer: Closer) -> Option<Ticket> {
        let mut inner = self.lock();
        if inner.reason.is_some() {
            closer.close();
            return None;
        }
        let ticket = inner.next;
        inner.next = Ticket(ticket.0.wrapping_add(1));
        inner.closers.insert(ticket, closer);
        Some(ticket)
    }

    /// It ended by itself.
    pub(super) fn forget(&self, ticket: Ticket) {
        let closer = self.lock().closers.remove(&ticket);
        // Its connection may end here, which is not waited for under the lock.
        drop(closer);
    }

    /// Why it was stopped, if it was.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.lock().reason
    }
}
