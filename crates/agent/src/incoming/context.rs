//! What every driver of a guest needs: its session, this host, and what goes into the journal.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use linerate_core::Fault;
use linerate_lock::Mutex;

use super::{Incoming, Sessions};
use crate::clock::cpu_time;
use crate::journal::{IncomingRecord, token_text};

/// See the module. Clones share everything.
#[derive(Clone)]
pub(super) struct Context {
    pub sessions: Arc<Sessions>,
    pub shared: Arc<Incoming>,
    cpu_before: Duration,
    abandon: Arc<AtomicBool>,
    record: Arc<Mutex<IncomingRecord>>,
}

impl Context {
    pub fn new(sessions: Arc<Sessions>, shared: Arc<Incoming>) -> Context {
        let token = token_text(&shared.identity.token);
        let peer = shared.opener.clone();
        let record = Arc::new(Mutex::new(IncomingRecord { token, peer, ..IncomingRecord::default() }));
        Context { sessions, shared, cpu_before: cpu_time(), abandon: Arc::default(), record }
    }

    /// The incoming QEMU, for the journal.
    pub fn record(&self) -> MutexGuard<'_, IncomingRecord> {
        self.record.lock()
    }

    /// Writes what the next start of this agent must know, to end the incoming QEMU or to put its settings back.
    pub fn write_journal(&self) -> Result<(), Fault> {
        let shared = &self.shared;
        self.sessions.note_incoming(shared.session, &shared.guest(), shared.order, &self.record)
    }

    /// The session is given up: every wait of its driver ends.
    pub fn abandon(&self) {
        self.abandon.store(true, Ordering::SeqCst);
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandon.load(Ordering::SeqCst)
    }

    /// CPU time that this agent used since the session began.
    pub fn cpu_used(&self) -> Duration {
        cpu_time().saturating_sub(self.cpu_before)
    }
}
