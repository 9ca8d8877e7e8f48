//! Ending a measurement from outside: connections are cut, and whoever waits on one learns why.

use std::sync::{Mutex, MutexGuard, PoisonError};

use linerate_net::channel::Closer;

/// Why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Who asked for it does not want it any more.
    Cancelled,
    /// A migration began on this host.
    Migration,
    /// It is over anyway.
    Over,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Stop(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reason: Option<Reason>,
    closers: Vec<Closer>,
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts everything off, now and what is added later. The first reason stays.
    pub fn stop(&self, reason: Reason) {
        let mut inner = self.lock();
        inner.reason.get_or_insert(reason);
        inner.closers.drain(..).for_each(|closer| closer.close());
    }

    /// To be cut off too.
    pub(super) fn add(&self, closer: Closer) {
        let mut inner = self.lock();
        if inner.reason.is_some() {
            closer.close();
        } else {
            inner.closers.push(closer);
        }
    }

    /// Why it was stopped, if it was.
    pub(super) fn reason(&self) -> Option<Reason> {
        self.lock().reason
    }
}
