//! What sessions have besides TLS connections, so that it ends with them when the other host is revoked.

use std::fmt;
use std::sync::{Arc, Weak};

use linerate_lock::Mutex;
use linerate_net::rdma;
use rustls_pki_types::CertificateDer;

/// Why a part of a session was ended.
pub(crate) const REVOKED: &str = "the other host was revoked";

/// A part of a session that must not outlive the revocation of the other host.
pub(crate) trait SessionPart: Send + Sync {
    /// The other host was revoked. May be called again.
    fn peer_revoked(&self);
}

impl SessionPart for rdma::Connection {
    fn peer_revoked(&self) {
        self.end_revoked();
    }
}

/// Parts in use, with the certificates of the other host. It keeps none of them.
#[derive(Default)]
pub(super) struct Parts(Mutex<Vec<Entry>>);

struct Entry {
    chain: Vec<CertificateDer<'static>>,
    part: Weak<dyn SessionPart>,
}

impl Parts {
    pub fn add(&self, chain: &[CertificateDer<'static>], part: &Arc<dyn SessionPart>) {
        let mut all = self.0.lock();
        all.retain(|entry| entry.part.strong_count() > 0);
        all.push(Entry { chain: chain.to_vec(), part: Arc::downgrade(part) });
    }

    /// Ends the parts of revoked hosts, in the order in which they were added. Returns how many there were.
    pub fn end(&self, is_revoked: impl Fn(&[CertificateDer<'static>]) -> bool) -> usize {
        let revoked: Vec<Entry> = self.0.lock().extract_if(.., |entry| is_revoked(&entry.chain)).collect();
        // Without the lock: ending a queue pair takes time.
        let parts = revoked.iter().filter_map(|entry| entry.part.upgrade());
        parts.map(|part| part.peer_revoked()).count()
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Parts")
    }
}
