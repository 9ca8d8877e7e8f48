//! The regions of a session, and the seal that ends all writing to them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, RwLockReadGuard, Weak};

use linerate_core::{RegionId, Run};

use crate::channel::ChannelError;
use crate::region::pinned::PinnedRegion;
use crate::region::{Mapped, Region};
use linerate_lock::{Mutex, RwLock};

/// Something that writes to regions without this process doing anything: an adapter with keys to them.
pub trait RemoteWriter: Send + Sync {
    /// When it returns, nothing is written any more. May be called again.
    fn stop(&self);
}

/// Memory that is registered with an adapter. The kernel keeps its pages where they are, and splits no huge page of
/// them.
pub trait Registrations: Send + Sync {
    /// When it returns, this window of a mapping is not registered, and never will be again.
    fn release(&self, mapped: Mapped, window: Run);
}

/// The regions that a session's channels read from or write to, by number.
pub struct RegionTable {
    regions: BTreeMap<RegionId, Arc<dyn Region>>,
    /// Held for reading during every single system call that writes, and never while waiting for the peer: so the seal,
    /// which takes it for writing, waits for calls in progress but not for a payload that may never come.
    sealed: RwLock<bool>,
    writers: Mutex<Vec<Weak<dyn RemoteWriter>>>,
    registrations: Mutex<Vec<Arc<dyn Registrations>>>,
}

/// Leave to write until it is dropped. Not to be held across a wait.
#[derive(Debug)]
pub struct WritePermit<'a> {
    _guard: RwLockReadGuard<'a, bool>,
}

impl RegionTable {
    /// A table of these regions. Of two with the same number the later counts.
    pub fn new(regions: impl IntoIterator<Item = (RegionId, Arc<dyn Region>)>) -> RegionTable {
        let held = |(id, region)| (id, Arc::new(PinnedRegion::new(region)) as Arc<dyn Region>);
        RegionTable {
            regions: regions.into_iter().map(held).collect(),
            sealed: RwLock::new(false),
            writers: Mutex::default(),
            registrations: Mutex::default(),
        }
    }

    /// The region of that number.
    pub fn get(&self, region: RegionId) -> Result<&dyn Region, ChannelError> {
        self.regions.get(&region).map(Arc::as_ref).ok_or(ChannelError::RegionUnknown { region })
    }

    /// The region of that number, if all the runs are inside it.
    pub fn checked<'a>(
        &self,
        region: RegionId,
        runs: impl IntoIterator<Item = &'a Run>,
    ) -> Result<&dyn Region, ChannelError> {
        let found = self.get(region)?;
        let size = found.size();
        let inside = |run: &Run| run.offset.checked_add(run.length).is_some_and(|end| end <= size);
        match runs.into_iter().find(|run| !inside(run)) {
            Some(run) => Err(ChannelError::RunOutside { region, run: *run, size }),
            None => Ok(found),
        }
    }

    /// Leave for one system call that writes.
    pub fn permit(&self) -> Result<WritePermit<'_>, ChannelError> {
        let sealed = self.sealed.read();
        if *sealed { Err(ChannelError::Sealed) } else { Ok(WritePermit { _guard: sealed }) }
    }

    /// The seal will stop the writer, and release windows that it writes to. Refused if it was sealed already.
    pub fn attach(
        &self,
        writer: &Arc<dyn RemoteWriter>,
        registered: Arc<dyn Registrations>,
    ) -> Result<(), ChannelError> {
        // Under the permit: either the seal comes later and finds the writer, or this finds the seal.
        let _permit = self.permit()?;
        let mut writers = self.writers.lock();
        writers.retain(|known| known.strong_count() > 0);
        writers.push(Arc::downgrade(writer));
        let mut registrations = self.registrations.lock();
        if !registrations.iter().any(|known| Arc::ptr_eq(known, &registered)) {
            registrations.push(registered);
        }
        Ok(())
    }

    /// Refuses every write from here on. When it returns, none is in progress, no adapter can write, and what was
    /// filled only for adapters are holes again.
    pub fn seal(&self) {
        *self.sealed.write() = true;
        let writers = std::mem::take(&mut *self.writers.lock());
        writers.iter().filter_map(Weak::upgrade).for_each(|writer| writer.stop());
        let registrations = std::mem::take(&mut *self.registrations.lock());
        for (id, region) in &self.regions {
            let release = |window| {
                if let Some((mapped, at)) = region.mapped_at(window) {
                    registrations.iter().for_each(|registered| registered.release(mapped, at));
                }
            };
            if let Err(error) = region.settle(&release) {
                // Memory is right and there is too much of it.
                tracing::warn!(region = id, %error, "holes were not made holes again");
            }
        }
    }

    /// Whether an adapter may have memory of it registered: the pages that were there then.
    pub fn has_adapters(&self) -> bool {
        !self.registrations.lock().is_empty()
    }

    /// Whether it was sealed.
    pub fn is_sealed(&self) -> bool {
        *self.sealed.read()
    }
}

impl fmt::Debug for RegionTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionTable").field("regions", &self.regions.keys()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::region::heap::HeapRegion;

    #[test]
    fn runs_must_lie_inside_their_region() {
        let table = RegionTable::new([(3, Arc::new(HeapRegion::new(8192)) as Arc<dyn Region>)]);
        let run = |offset, length| Run { offset, length };
        assert!(table.checked(3, &[run(0, 8192), run(8191, 1)]).is_ok());
        for bad in [run(0, 8193), run(8192, 1), run(u64::MAX, 2)] {
            assert!(matches!(table.checked(3, &[bad]), Err(ChannelError::RunOutside { .. })), "{bad:?}");
        }
        assert!(matches!(table.checked(4, &[]), Err(ChannelError::RegionUnknown { region: 4 })));
    }

    #[test]
    fn the_seal_waits_for_a_write_in_progress_and_then_refuses() {
        let table = RegionTable::new([]);
        let permit = table.permit().unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sealing = scope.spawn(|| {
                table.seal();
                done.load(Ordering::SeqCst)
            });
            std::thread::sleep(Duration::from_millis(50));
            done.store(true, Ordering::SeqCst);
            drop(permit);
            assert!(sealing.join().unwrap(), "the seal came back while a write was in progress");
        });
        assert!(table.is_sealed());
        assert!(matches!(table.permit(), Err(ChannelError::Sealed)));
    }
}
