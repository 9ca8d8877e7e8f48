//! All migrations that leave, and what they need of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};

use linerate_core::SessionId;
use linerate_guest::registry::Registry;
use linerate_lock::Mutex;

use super::Outgoing;
use crate::audit::Audit;
use crate::config::Config;
use crate::journal::Journal;
use crate::recovery;
use crate::security::Security;
use crate::stream_gate::StreamGates;

/// Ended migrations that are shown.
const ENDED_SHOWN: usize = 100;

pub struct Sessions {
    pub(super) config: Arc<Config>,
    pub(super) journal: Arc<Journal>,
    pub(super) registry: Registry,
    pub(super) gates: Arc<StreamGates>,
    /// Takes sessions that cannot end themselves.
    pub(super) recovery: Arc<recovery::Sessions>,
    pub(super) security: Arc<Security>,
    pub(super) audit: Arc<Audit>,
    live: Mutex<BTreeMap<SessionId, Arc<Outgoing>>>,
    /// Sessions whose first connection is being opened.
    opening: Mutex<BTreeSet<SessionId>>,
}

/// A session is being opened until this is dropped.
pub(crate) struct Opening<'a> {
    sessions: &'a Sessions,
    session: SessionId,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.sessions.opening.lock().remove(&self.session);
    }
}

impl Sessions {
    pub fn new(
        config: Arc<Config>,
        journal: Arc<Journal>,
        registry: Registry,
        gates: Arc<StreamGates>,
        recovery: Arc<recovery::Sessions>,
        security: Arc<Security>,
        audit: Arc<Audit>,
    ) -> Sessions {
        let (live, opening) = (Mutex::default(), Mutex::default());
        Sessions { config, journal, registry, gates, recovery, security, audit, live, opening }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Outgoing>>> {
        self.live.lock()
    }

    /// Called before the session's first connection is opened.
    pub(crate) fn open(&self, session: SessionId) -> Opening<'_> {
        self.opening.lock().insert(session);
        Opening { sessions: self, session }
    }

    /// Whether this agent is opening that session: a connection that arrives for it comes from this agent itself.
    pub(crate) fn opens(&self, session: SessionId) -> bool {
        self.opening.lock().contains(&session)
    }

    /// All migrations that leave, ended ones too.
    pub fn all(&self) -> Vec<Arc<Outgoing>> {
        self.lock().values().cloned().collect()
    }

    /// One more. The oldest of those that have ended is forgotten when there are many.
    pub fn add(&self, begun: Arc<Outgoing>) {
        let mut live = self.lock();
        let mut ended: Vec<_> = live.values().filter(|one| one.is_over()).cloned().collect();
        ended.sort_by_key(|one| one.started_unix_ms());
        for old in ended.iter().take(ended.len().saturating_sub(ENDED_SHOWN)) {
            live.remove(&old.session);
        }
        live.insert(begun.session, begun);
    }
}
