//! Names of guests that one thread has for a moment: to start a guest, to stop one, to take one over or in, to begin to
//! move one. Two starts of one name would end each other's QEMU.

use std::collections::BTreeMap;
use std::sync::Arc;

use linerate_lock::Mutex;

#[derive(Clone, Default)]
pub(crate) struct NameClaims(Arc<Mutex<BTreeMap<String, Holders>>>);

/// Who has a name.
#[derive(Clone, Copy)]
struct Holders {
    count: usize,
    /// They stop the guest: one that cuts its power may join.
    stop_it: bool,
}

/// A name that nobody else gets as long as this is held.
pub(crate) struct NameClaim {
    claims: NameClaims,
    name: String,
}

impl NameClaims {
    /// None if another thread has it.
    pub fn claim(&self, name: &str) -> Option<NameClaim> {
        self.take(name, false, false)
    }

    /// To stop the guest. With `force` also beside another thread that stops it, which may wait for it for long.
    pub fn claim_to_stop(&self, name: &str, force: bool) -> Option<NameClaim> {
        self.take(name, true, force)
    }

    fn take(&self, name: &str, stop_it: bool, joins: bool) -> Option<NameClaim> {
        let mut all = self.0.lock();
        let holders = all.entry(name.to_owned()).or_insert(Holders { count: 0, stop_it });
        let is_free = holders.count == 0 || (joins && holders.stop_it);
        holders.count += usize::from(is_free);
        is_free.then(|| NameClaim { claims: self.clone(), name: name.to_owned() })
    }
}

impl Drop for NameClaim {
    fn drop(&mut self) {
        let mut all = self.claims.0.lock();
        if let Some(holders) = all.get_mut(&self.name) {
            holders.count -= 1;
            if holders.count == 0 {
                all.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_claimed_once_until_it_is_released() {
        let claims = NameClaims::default();
        let first = claims.claim("a");
        assert!(first.is_some() && claims.claim("a").is_none() && claims.claim_to_stop("a", true).is_none());
        assert!(claims.claim("b").is_some());
        drop(first);
        assert!(claims.claim("a").is_some());
    }

    #[test]
    fn a_forced_stop_joins_another_stop_and_nothing_else_does() {
        let claims = NameClaims::default();
        let (waits, forced) = (claims.claim_to_stop("a", false), claims.claim_to_stop("a", true));
        assert!(waits.is_some() && forced.is_some());
        drop(forced);
        assert!(
            claims.claim("a").is_none() && claims.claim_to_stop("a", false).is_none(),
            "the first has it"
        );
        drop(waits);
        assert!(claims.claim("a").is_some());
    }
}
