//! RAM of the guest that the source's placed writes fill.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use linerate_core::extent::join_nearest;
use linerate_core::{Code, Extent, Fault, RegionInfo, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_memory::{Mapping, RamBlock};
use linerate_net::region::Region;
use linerate_net::table::RegionTable;
use linerate_wire::message::TOUCHED_MAX;

use super::here;
use crate::incoming::{ChannelTarget, Incoming};
use crate::ram::Ram;

pub(super) struct PlacedRam {
    blocks: Vec<Arc<Ram>>,
    regions: Arc<RegionTable>,
}

impl PlacedRam {
    /// Writes of the session's channels are applied from now on. `mappings`: one of each region.
    pub fn new(shared: &Incoming, regions: &[RegionInfo], mappings: Vec<Mapping>) -> PlacedRam {
        let blocks: Vec<Arc<Ram>> = mappings.into_iter().map(|mapping| Arc::new(Ram::new(mapping))).collect();
        let numbered = regions.iter().zip(&blocks);
        let numbered = numbered.map(|(info, ram)| (info.id, ram.clone() as Arc<dyn Region>));
        let regions = Arc::new(RegionTable::new(numbered));
        let _ = shared.target.set(ChannelTarget::Ram(regions.clone()));
        PlacedRam { blocks, regions }
    }

    /// The RAM that the incoming QEMU itself reports it will leave out of its stream, which must be the RAM that is
    /// being filled; and what it touched of it while it started.
    pub fn check_blocks(
        &self,
        pid: i32,
        found: &GuestDescription,
    ) -> Result<(Vec<RegionInfo>, Vec<Extent>), Fault> {
        let (mut regions, mut touched) = (Vec::new(), Vec::new());
        for (id, block) in (0..).zip(found.regions()) {
            let path = PathBuf::from(block.path.clone().unwrap_or_default());
            let block = RamBlock::find(pid, &block.id, &path).map_err(|error| failed(&error))?;
            let made = self.blocks.get(usize::from(id)).map(|ram| ram.mapping().shows(&block));
            if !made.transpose().map_err(|error| failed(&error))?.unwrap_or(false) {
                let detail = format!("RAM block {} is not in the file made for it", block.name());
                return Err(Fault::new(Code::GuestDiffers, Step::Prepare, Side::Destination, detail));
            }
            let runs = block.touched().map_err(|error| failed(&error))?;
            touched.extend(runs.into_iter().map(|run| Extent { region: id, run }));
            regions.push(RegionInfo { id, name: block.name().to_owned(), size: block.size() });
        }
        Ok((regions, join_nearest(touched, TOUCHED_MAX)))
    }

    /// Rule 5: when this has returned, no write is applied any more.
    pub fn seal(&self, digest: bool) -> Result<Option<u64>, Fault> {
        self.regions.seal();
        if !digest {
            return Ok(None);
        }
        let digest = crate::digest::of(&self.blocks);
        digest.map(Some).map_err(|error| here(Code::MemoryFailed, Step::Blackout, &error))
    }
}

fn failed(error: &(dyn Error + 'static)) -> Fault {
    here(Code::MemoryFailed, Step::Prepare, error)
}
