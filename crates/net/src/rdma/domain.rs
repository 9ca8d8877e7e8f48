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
use crate::region::Mapped;
use crate::table::Registrations;
use linerate_lock::Mutex;

/// A window's registration, made by the first thread that needs it.
#[derive(Default)]
enum Slot {
    #[default]
    Free,
    Registered(Arc<Registration>),
    /// A thread that needs it now comes too late.
    Released,
}

/// By address, length and access.
type WindowKey = (usize, usize, Access);

/// The windows of a domain. A session's regions may know them for longer than the domain is there; then none is
/// registered.
#[derive(Default)]
struct Windows(Mutex<HashMap<WindowKey, Arc<Mutex<Slot>>>>);

impl Windows {
    fn slot(&self, place: WindowKey) -> Arc<Mutex<Slot>> {
        let mut windows = self.0.lock();
        Arc::clone(windows.entry(place).or_default())
    }

    /// One after the other, each under its lock: who releases one of them meanwhile waits for that one only.
    fn release_all(&self) {
        let slots: Vec<_> = self.0.lock().values().map(Arc::clone).collect();
        slots.iter().for_each(|slot| release(slot));
    }
}

fn release(slot: &Mutex<Slot>) {
    *slot.lock() = Slot::Released;
}

impl Registrations for Windows {
    fn release(&self, mapped: Mapped, window: Run) {
        if let Ok((start, length)) = place_of(mapped, window) {
            release(&self.slot((start.as_ptr() as usize, length, Access::RemoteWrite)));
        }
    }
}

/// Start and length of a part of a mapping.
fn place_of(mapped: Mapped, run: Run) -> Result<(NonNull<u8>, usize), RdmaError> {
    let inside = run.offset.checked_add(run.length).is_some_and(|end| end <= mapped.length);
    let place = (usize::try_from(run.offset), usize::try_from(run.length));
    let (true, (Ok(offset), Ok(length))) = (inside, place) else {
        return Err(RdmaError::Rules("a window is not inside its region"));
    };
    // SAFETY: the offset lies inside the mapping, as was checked, and `Mapped` guarantees a mapping of that length.
    Ok((unsafe { mapped.base.add(offset) }, length))
}

pub(super) struct Domain {
    windows: Arc<Windows>,
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
        let (start, length) = place_of(mapped, run)?;
        let slot = self.windows.slot((start.as_ptr() as usize, length, access));
        // Locking pages takes long: other channels register other windows meanwhile.
        let mut slot = slot.lock();
        match &*slot {
            Slot::Registered(known) => return Ok(Arc::clone(known)),
            Slot::Released => return Err(RdmaError::ClosedHere),
            Slot::Free => {}
        }
        // SAFETY: `Mapped` guarantees shared memory that no code sees as a slice.
        let made = Arc::new(unsafe { Registration::new(&self.protection, start, length, access) }?);
        *slot = Slot::Registered(Arc::clone(&made));
        Ok(made)
    }

    /// What is registered in it, for callers that have to release some of it.
    pub(super) fn registrations(&self) -> Arc<dyn Registrations> {
        Arc::clone(&self.windows) as _
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // While the device is open; the domain itself goes after its windows.
        self.windows.release_all();
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
        let domain = Arc::new(Domain { windows: Arc::default(), protection, context: here });
        known.push(Arc::downgrade(&domain));
        Ok(domain)
    }
}

impl std::fmt::Debug for Domains {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Domains")
    }
}
