//! RAM of the guest that Linerate copies: what is populated, what was written since, and what has become a hole again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_core::extent::normalise;
use linerate_core::source::{Event, SWITCH_COST};
use linerate_core::{Code, Extent, Fault, RegionId, RegionInfo, Run, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_memory::{Mapping, RamBlock, TrackError, Tracker};

use super::{Done, here};
use crate::outgoing::ChannelSource;
use crate::outgoing::drain::{self, DrainingTracker, IoDrained, with_io_drained};
use crate::outgoing::guest::{Guest, qemu_fault};
use crate::outgoing::pinned;
use crate::ram::Ram;

/// The guest's RAM blocks, mapped here, by the number of their region.
#[derive(Default)]
pub(in crate::outgoing) struct GuestRam {
    blocks: Vec<RamBlock>,
    mapped: Vec<Arc<Ram>>,
}

impl GuestRam {
    /// Finds and maps it. Nothing is tracked yet.
    pub fn find(guest: &GuestDescription) -> Result<GuestRam, Fault> {
        let mut ram = GuestRam::default();
        for region in guest.regions() {
            let path = PathBuf::from(region.path.clone().unwrap_or_default());
            let block = RamBlock::find(guest.process.pid, &region.id, &path)
                .map_err(|error| here(Code::TrackingFailed, Step::Resolve, &error))?;
            let mapping =
                Mapping::new(&block).map_err(|error| here(Code::MemoryFailed, Step::Resolve, &error))?;
            ram.mapped.push(Arc::new(Ram::new(mapping)));
            ram.blocks.push(block);
        }
        Ok(ram)
    }

    pub fn bytes(&self) -> u64 {
        self.mapped.iter().map(|ram| ram.mapping().size()).sum()
    }

    /// What the destination is offered.
    pub fn regions(&self) -> Result<Vec<RegionInfo>, Fault> {
        let region = |(index, block): (usize, &RamBlock)| {
            let id =
                u16::try_from(index).map_err(|error| here(Code::NotMigratable, Step::Resolve, &error))?;
            Ok(RegionInfo { id, name: block.name().to_owned(), size: block.size() })
        };
        self.blocks.iter().enumerate().map(region).collect()
    }
}

pub(super) struct TrackedRam {
    ram: GuestRam,
    /// From attach to detach.
    tracker: Option<DrainingTracker>,
    /// Rule 6: some disk reads into pinned pages, so protection is applied only while block I/O is drained.
    must_pause: bool,
    /// Rule 7: the guest may free memory, so holes are searched for in the end.
    may_discard: bool,
    /// All that was ever found populated, where holes have to be searched for; normalised.
    seen: Vec<Extent>,
    /// How long that search takes, which is part of the blackout: measured behind the first pass.
    search: Option<Duration>,
    /// How long the last scan took.
    scan_took: Duration,
}

impl TrackedRam {
    /// The channels send it from now on, as the core decides.
    pub fn new(guest: &Guest, ram: GuestRam) -> TrackedRam {
        guest.shared.set_channel_source(ChannelSource::Ram(ram.mapped.clone()));
        TrackedRam {
            ram,
            tracker: None,
            must_pause: pinned::reads_into_pinned_pages(&guest.description),
            may_discard: guest.description.traits.may_discard,
            seen: Vec::new(),
            search: None,
            scan_took: Duration::ZERO,
        }
    }

    pub fn attach(&mut self, guest: &Guest) -> Done {
        let process = &guest.description.process;
        let (tracker, report) = Tracker::attach(process.pid, &self.ram.blocks, &process.vcpu_threads)
            .map_err(|error| here(Code::TrackingFailed, Step::Track, &error))?;
        tracing::debug!(pid = process.pid, thread = report.thread, stopped = ?report.stopped, "attached");
        self.tracker = Some(DrainingTracker::new(tracker));
        Ok(())
    }

    pub fn is_attached(&self) -> bool {
        self.tracker.is_some()
    }

    /// Takes the protection off.
    pub fn detach(&mut self) {
        if let Some(tracker) = self.tracker.take()
            && let Err(error) = tracker.detach()
        {
            // Closing the descriptor has taken the protection off all the same.
            tracing::warn!(error = crate::faults::chain(&error), "write protection was taken off by closing");
        }
    }

    fn tracker(&self) -> Result<&DrainingTracker, Fault> {
        self.tracker
            .as_ref()
            .ok_or_else(|| Fault::new(Code::Internal, Step::Track, Side::Source, "memory is not attached to"))
    }

    fn drained(
        &self,
        guest: &mut Guest,
        mut work: impl FnMut(&IoDrained) -> Done,
    ) -> Result<Duration, Fault> {
        let mut guest = Pausable { guest, must_pause: self.must_pause };
        with_io_drained(&mut guest, |_, drained| work(drained))
    }

    pub fn protect(&mut self, guest: &mut Guest) -> Done {
        let tracker = self.tracker()?;
        let paused = self.drained(guest, |drained| {
            let took = tracker.protect(drained).map_err(|error| track_fault(Step::Track, &error))?;
            tracing::debug!(?took, "protected");
            Ok(())
        })?;
        let populated = self.populated(Step::Track)?;
        self.note_seen(&populated);
        guest.send(Event::Protected { populated, paused });
        Ok(())
    }

    fn populated(&self, step: Step) -> Result<Vec<Extent>, Fault> {
        let began = Instant::now();
        let mut populated = Vec::new();
        for (region, (ram, block)) in self.ram.mapped.iter().zip(&self.ram.blocks).enumerate() {
            let runs = block.populated(ram.mapping());
            let runs = runs.map_err(|error| here(Code::MemoryFailed, step, &error))?;
            populated.extend(extents(region, runs));
        }
        tracing::debug!(took = ?began.elapsed(), runs = populated.len(), "found what is populated");
        Ok(populated)
    }

    /// What was written since the last scan. `last`: QEMU has stopped the guest. `also`: what is sent besides.
    pub fn scan(&mut self, guest: &mut Guest, last: bool, also: &[Extent]) -> Done {
        let step = if last { Step::Blackout } else { Step::Copy };
        // What is written from here on is found by this scan or the next.
        self.note_sent(also)?;
        if !last {
            // Before the scan: what the guest writes during the search is found by it, and not in the blackout.
            let max_blackout = guest.shared.machine().limits().max_blackout;
            self.measure_search(max_blackout)?;
        }
        let began = Instant::now();
        let tracker = self.tracker()?;
        let mut found = Vec::new();
        let mut scan = |drained: &IoDrained| {
            found.extend(tracker.scan(drained).map_err(|error| track_fault(step, &error))?);
            if last { tracker.check_mapped().map_err(|error| track_fault(step, &error)) } else { Ok(()) }
        };
        let paused = if last {
            scan(&drain::held())?;
            Duration::ZERO
        } else {
            self.drained(guest, scan)?
        };
        let mut dirty: Vec<Extent> =
            found.into_iter().flat_map(|(block, run)| extents(block, vec![run])).collect();
        self.note_seen(&dirty);
        let took = began.elapsed();
        self.scan_took = took;
        if last {
            dirty.extend(self.new_holes()?);
        }
        let last_adds = self.search.unwrap_or_default();
        guest.send(Event::Scanned { dirty, took, paused, last_adds });
        Ok(())
    }

    /// The guest runs, and what is found is searched for again when it is stopped. A search that leaves no room in the
    /// blackout is measured again: a host that was busy for a moment must not keep the guest for good.
    fn measure_search(&mut self, max_blackout: Duration) -> Done {
        let fits = self.search.is_some_and(|search| search + self.scan_took + SWITCH_COST < max_blackout);
        if self.may_discard && !fits {
            let began = Instant::now();
            let holes = self.new_holes()?;
            self.search = Some(began.elapsed());
            tracing::debug!(took = ?self.search, holes = holes.len(), "searched for holes");
        }
        Ok(())
    }

    /// How much was written since the last scan; it stays marked. A count that fails is not needed.
    pub fn count(&mut self, guest: &mut Guest) -> Done {
        match self.tracker()?.count() {
            Ok((bytes, took)) => guest.send(Event::Counted { bytes, took }),
            Err(error) => {
                tracing::debug!(error = crate::faults::chain(&error), "what was written is not counted")
            }
        }
        Ok(())
    }

    fn note_seen(&mut self, extents: &[Extent]) {
        if self.may_discard {
            self.seen.extend_from_slice(extents);
            // What a guest writes again and again is kept once.
            self.seen = normalise(std::mem::take(&mut self.seen));
        }
    }

    /// What of this holds memory. Its holes are holes at the destination when it is sent, and need not be sent again in
    /// the blackout: it may be whole blocks.
    fn note_sent(&mut self, also: &[Extent]) -> Done {
        if self.may_discard && !also.is_empty() {
            let populated = self.populated(Step::Copy)?;
            self.note_seen(&populated);
        }
        Ok(())
    }

    /// What was sent once and freed since: it is sent again, as zero runs.
    fn new_holes(&self) -> Result<Vec<Extent>, Fault> {
        let mut holes = Vec::new();
        for seen in self.seen.chunk_by(|one, next| one.region == next.region) {
            let region = seen.first().map_or(0, |extent| usize::from(extent.region));
            let (Some(ram), Some(block)) = (self.ram.mapped.get(region), self.ram.blocks.get(region)) else {
                continue;
            };
            let runs: Vec<Run> = seen.iter().map(|extent| extent.run).collect();
            let found = block.holes_among(ram.mapping(), &runs);
            let found = found.map_err(|error| here(Code::MemoryFailed, Step::Blackout, &error))?;
            holes.extend(extents(region, found));
        }
        Ok(holes)
    }

    pub fn digest(&self, guest: &Guest) -> Done {
        let digest = crate::digest::of(&self.ram.mapped)
            .map_err(|error| here(Code::MemoryFailed, Step::Blackout, &error))?;
        guest.send(Event::Digested(digest));
        Ok(())
    }
}

/// The guest, as rule 6 pauses it.
struct Pausable<'a> {
    guest: &'a mut Guest,
    must_pause: bool,
}

impl Pausable<'_> {
    fn step(&self) -> Step {
        self.guest.shared.machine().step()
    }
}

impl drain::Pausable for Pausable<'_> {
    type Error = Fault;

    fn must_pause(&self) -> bool {
        self.must_pause
    }

    fn pause(&mut self) -> Result<bool, Fault> {
        let step = self.step();
        self.guest.qemu.pause(Guest::deadline()).map_err(|error| qemu_fault(step, &error))
    }

    fn resume(&mut self) -> Done {
        let step = self.step();
        self.guest.qemu.resume(Guest::deadline()).map_err(|error| qemu_fault(step, &error))
    }

    fn stayed_paused(&mut self) -> Result<bool, Fault> {
        let step = self.step();
        self.guest.qemu.has_stayed_paused(Guest::deadline()).map_err(|error| qemu_fault(step, &error))
    }
}

/// Runs of the region with this index, as extents.
fn extents(region: usize, runs: Vec<Run>) -> impl Iterator<Item = Extent> {
    // There are at most 64 regions (the protocol's cap).
    let region = RegionId::try_from(region).unwrap_or(RegionId::MAX);
    runs.into_iter().map(move |run| Extent { region, run })
}

fn track_fault(step: Step, error: &TrackError) -> Fault {
    let code = match error {
        TrackError::TargetEnded { .. } => Code::GuestGone,
        _ => Code::TrackingFailed,
    };
    here(code, step, error)
}

#[cfg(test)]
mod tests {
    use linerate_core::{ModeTag, PAGE_BYTES};
    use linerate_guest::description::{Backend, RamBlock};

    use super::*;
    use crate::outgoing::tests::domain::{Fake, guest_of};
    use crate::outgoing::tests::outgoing_of;

    fn page(number: u64) -> Extent {
        Extent { region: 0, run: Run { offset: number * PAGE_BYTES, length: PAGE_BYTES } }
    }

    /// Far longer than a search of some pages takes on any host.
    const MAX_BLACKOUT: Duration = Duration::from_secs(3000);

    fn four_pages(ram: &mut TrackedRam) {
        ram.note_seen(&[page(0), page(1)]);
        ram.note_seen(&[page(2), page(3)]);
    }

    /// What is sent again of a block with four pages and four holes that was `sent`, when the guest frees the second
    /// and third page.
    fn sent_again(may_discard: bool, sent: impl FnOnce(&mut TrackedRam)) -> Vec<Extent> {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = dir.path().join("ram");
        // Mapped by this process, which takes the place of the guest's QEMU.
        let memory = Mapping::make(&file, 8 * PAGE_BYTES).unwrap();
        std::fs::write(&file, [7; 4 * PAGE_BYTES as usize]).unwrap();
        std::fs::File::options().write(true).open(&file).unwrap().set_len(8 * PAGE_BYTES).unwrap();
        let mut guest = guest_of(&Fake::default(), dir.path(), &outgoing_of(ModeTag::Direct).0, false);
        guest.description.traits.may_discard = may_discard;
        guest.description.ram = vec![RamBlock {
            id: "ram".into(),
            size: 8 * PAGE_BYTES,
            page_bytes: PAGE_BYTES,
            backend: Backend::File,
            share: true,
            path: Some(file.to_str().unwrap().into()),
            descriptor: None,
            ignored_when_shared: true,
        }];
        let mut ram = TrackedRam::new(&guest, GuestRam::find(&guest.description).unwrap());
        sent(&mut ram);
        memory.clear(Run { offset: PAGE_BYTES, length: 2 * PAGE_BYTES }).unwrap();
        ram.new_holes().unwrap()
    }

    #[test]
    fn what_is_written_again_and_again_is_noted_once_and_the_search_is_measured_once() {
        let mut noted = (0, None, None);
        sent_again(true, |ram| {
            (0..40).for_each(|_| four_pages(ram));
            ram.measure_search(MAX_BLACKOUT).unwrap();
            let first = ram.search;
            ram.measure_search(MAX_BLACKOUT).unwrap();
            noted = (ram.seen.len(), first, ram.search);
        });
        let (count, first, second) = noted;
        assert_eq!(count, 1);
        assert!(first.is_some() && first == second);
    }

    /// The host was busy when it was measured first. No later round would fit the blackout.
    #[test]
    fn a_search_that_leaves_no_room_in_the_blackout_is_measured_again() {
        sent_again(true, |ram| {
            four_pages(ram);
            ram.search = Some(MAX_BLACKOUT);
            ram.measure_search(MAX_BLACKOUT).unwrap();
            assert!(ram.search < Some(MAX_BLACKOUT));

            let half = MAX_BLACKOUT / 2;
            ram.search = Some(half);
            ram.measure_search(MAX_BLACKOUT).unwrap();
            assert_eq!(ram.search, Some(half), "there is room for it");
            ram.scan_took = half;
            ram.measure_search(MAX_BLACKOUT).unwrap();
            assert!(ram.search < Some(half), "the scan takes the other half");
            ram.search = Some(half - SWITCH_COST);
            ram.measure_search(MAX_BLACKOUT).unwrap();
            assert!(ram.search < Some(half - SWITCH_COST), "the switch-over takes the rest");
        });
    }

    #[test]
    fn pages_that_the_guest_freed_after_they_were_sent_are_sent_again_as_holes() {
        let run = Run { offset: PAGE_BYTES, length: 2 * PAGE_BYTES };
        assert_eq!(sent_again(true, four_pages), [Extent { region: 0, run }]);
        assert_eq!(sent_again(false, four_pages), [], "nothing is noted of a guest that cannot free memory");
    }

    #[test]
    fn holes_of_a_block_that_was_sent_as_a_whole_are_not_sent_again() {
        let run = Run { offset: PAGE_BYTES, length: 2 * PAGE_BYTES };
        let whole = Extent { region: 0, run: Run { offset: 0, length: 8 * PAGE_BYTES } };
        assert_eq!(sent_again(true, |ram| ram.note_sent(&[whole]).unwrap()), [Extent { region: 0, run }]);
    }
}
