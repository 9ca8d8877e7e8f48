//! All sessions that are being brought to their end, and what that needs of this host.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use linerate_core::SessionId;
use linerate_guest::registry::Registry;

use super::{Unfinished, lock};
use crate::journal::Journal;

/// See the module.
pub struct Sessions {
    pub(super) journal: Arc<Journal>,
    pub(super) registry: Registry,
    live: Mutex<BTreeMap<SessionId, Arc<Unfinished>>>,
}

impl Sessions {
    /// None yet.
    pub fn new(journal: Arc<Journal>, registry: Registry) -> Sessions {
        Sessions { journal, registry, live: Mutex::default() }
    }

    pub fn all(&self) -> Vec<Arc<Unfinished>> {
        lock(&self.live).values().cloned().collect()
    }

    pub fn get(&self, session: SessionId) -> Option<Arc<Unfinished>> {
        lock(&self.live).get(&session).cloned()
    }

    pub(super) fn add(&self, unfinished: Arc<Unfinished>) {
        lock(&self.live).insert(unfinished.session, unfinished);
    }

    /// It has come to its end.
    pub(super) fn forget(&self, session: SessionId) {
        lock(&self.live).remove(&session);
    }

    /// An earlier session is removing what it left of this guest.
    pub fn is_going(&self, guest: &str) -> bool {
        self.all().iter().any(|one| one.guest == guest && one.is_going())
    }
}
