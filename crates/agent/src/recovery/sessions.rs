//! All sessions that recovery is ending, and what that needs of this host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use linerate_core::SessionId;
use linerate_guest::registry::Registry;
use linerate_lock::Mutex;

use super::{Unfinished, hand_files_of_ended_over};
use crate::audit::Audit;
use crate::journal::{Journal, JournalError};
use crate::security::Security;

pub struct Sessions {
    pub(super) journal: Arc<Journal>,
    pub(super) registry: Registry,
    pub(super) security: Arc<Security>,
    pub(super) audit: Arc<Audit>,
    /// The agent takes no connections yet: no source can be heard.
    pub is_deaf: AtomicBool,
    live: Mutex<BTreeMap<SessionId, Arc<Unfinished>>>,
}

impl Sessions {
    pub fn new(
        journal: Arc<Journal>,
        registry: Registry,
        security: Arc<Security>,
        audit: Arc<Audit>,
    ) -> Sessions {
        let (is_deaf, live) = (AtomicBool::new(false), Mutex::default());
        Sessions { journal, registry, security, audit, is_deaf, live }
    }

    pub fn all(&self) -> Vec<Arc<Unfinished>> {
        self.live.lock().values().cloned().collect()
    }

    pub fn get(&self, session: SessionId) -> Option<Arc<Unfinished>> {
        self.live.lock().get(&session).cloned()
    }

    pub(super) fn add(&self, unfinished: Arc<Unfinished>) {
        self.live.lock().insert(unfinished.session, unfinished);
    }

    /// Removes a session that has ended.
    pub(super) fn forget(&self, session: SessionId) {
        self.live.lock().remove(&session);
    }

    /// Before leftovers of this guest are removed: if it left, and its QEMU has ended here, it may run at the other
    /// host. The files that both hosts use stay open to it.
    pub fn hand_files_over(&self, guest: &str) -> Result<(), JournalError> {
        let all = self.journal.all()?;
        let its = all.iter().filter(|(_, record)| record.guest == guest);
        its.for_each(|(_, record)| hand_files_of_ended_over(self, record));
        Ok(())
    }

    /// An earlier session is removing what it left of this guest.
    pub fn is_going(&self, guest: &str) -> bool {
        self.all().iter().any(|one| one.guest == guest && one.is_going())
    }
}
