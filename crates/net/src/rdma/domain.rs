//! What the channels of a session share on one device: a protection domain, and windows that were registered once.
//!
//! A domain lives as long as one of its connections. So a session's keys are good for no other session, and its memory
//! is unlocked when its last channel ends.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use linerate_core::Run;

use super::abi::Context;
use super::error::RdmaError;
use super::library::Library;
use super::verbs::{Access, ProtectionDomain, Registration};
use crate::lock::Mutex;
use crate::region::Mapped;

/// A registration that is made by whoever needs it first.
type Slot = Arc<Mutex<Option<Arc<Registration>>>>;

pub(super) struct Domain {
    /// By address, length and access. Before the domain, which must outlive them.
    windows: Mutex<HashMap<(usize, usize, Access), Slot>>,
    pub(super) protection: Arc<ProtectionDomain>,
    context: usize,
}

impl Domain {
    /// The registration of this part of a region; made now if it is not there yet.
    pub(super) fn register(
        &self,
        mapped: Mapped,
        run: Run,
        access: Access,
    ) -> Result<Arc<Registration>, RdmaError> {
        let inside = run.offset.checked_add(run.length).is_some_and(|end| end <= mapped.length);
        let place = (usize::try_from(run.offset), usize::try_from(run.length));
        let (true, (Ok(offset), Ok(length))) = (inside, place) else {
            return Err(RdmaError::Rules("a window is not inside its region"));
        };
        let address = (mapped.base.as_ptr() as usize).wrapping_add(offset);
        let slot = self.slot((address, length, access));
        // Locking pages takes long: other channels register other windows meanwhile.
        let mut slot = slot.lock();
        if let Some(known) = &*slot {
            return Ok(Arc::clone(known));
        }
        // SAFETY: the offset lies inside the mapping, as was checked, and `Mapped` vouches for a mapping of that length.
        let start = unsafe { mapped.base.add(offset) };
        // SAFETY: `Mapped` vouches for shared memory that nobody sees as a slice.
        let made = unsafe { Registration::new(&self.protection, start, length, access) }?;
        let made = Arc::new(made);
        *slot = Some(Arc::clone(&made));
        Ok(made)
    }

    fn slot(&self, place: (usize, usize, Access)) -> Slot {
        let mut windows = self.windows.lock();
        Arc::clone(windows.entry(place).or_default())
    }
}

/// The domains of a session: one for each device.
#[derive(Default)]
pub struct Domains(Mutex<Vec<Weak<Domain>>>);

impl Domains {
    /// # Safety
    /// As for [`ProtectionDomain::new`].
    pub(super) unsafe fn on(
        &self,
        library: &'static Library,
        context: NonNull<Context>,
    ) -> Result<Arc<Domain>, RdmaError> {
        let mut known = self.0.lock();
        known.retain(|domain| domain.strong_count() > 0);
        let here = context.as_ptr() as usize;
        if let Some(domain) = known.iter().filter_map(Weak::upgrade).find(|domain| domain.context == here) {
            return Ok(domain);
        }
        // SAFETY: the caller's promise.
        let protection = Arc::new(unsafe { ProtectionDomain::new(library, context) }?);
        let domain = Arc::new(Domain { windows: Mutex::default(), protection, context: here });
        known.push(Arc::downgrade(&domain));
        Ok(domain)
    }
}

impl std::fmt::Debug for Domains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Domains")
    }
}
