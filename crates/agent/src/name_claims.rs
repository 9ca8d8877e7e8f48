//! Names of guests that one thread has for a moment: to start a guest, to stop one, to take one over or in, to begin to
//! move one. Two starts of one name would end each other's QEMU.

use std::collections::BTreeSet;
use std::sync::Arc;

use linerate_lock::Mutex;

#[derive(Clone, Default)]
pub(crate) struct NameClaims(Arc<Mutex<BTreeSet<String>>>);

/// A name that nobody else gets as long as this is held.
pub(crate) struct NameClaim {
    claims: NameClaims,
    name: String,
}

impl NameClaims {
    /// None if another thread has it.
    pub fn claim(&self, name: &str) -> Option<NameClaim> {
        let is_free = self.0.lock().insert(name.to_owned());
        is_free.then(|| NameClaim { claims: self.clone(), name: name.to_owned() })
    }
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        self.claims.0.lock().remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_claimed_once_until_it_is_released() {
        let claims = NameClaims::default();
        let first = claims.claim("a");
        assert!(first.is_some() && claims.claim("a").is_none());
        assert!(claims.claim("b").is_some());
        drop(first);
        assert!(claims.claim("a").is_some());
    }
}
