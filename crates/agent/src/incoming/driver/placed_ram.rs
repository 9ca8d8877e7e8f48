//! RAM of the guest that the source's placed writes fill.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use linerate_core::extent::join_nearest;
use linerate_core::{Code, Extent, Fault, RegionInfo, Run, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::virtio_mem::is_emptied_at_start;
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
    /// being filled; and what it touched of it while it started. A block that it emptied then counts as touched.
    pub fn check_blocks(
        &self,
        pid: i32,
        found: &GuestDescription,
    ) -> Result<(Vec<RegionInfo>, Vec<Extent>), Fault> {
        let (mut regions, mut touched) = (Vec::new(), Vec::new());
        for (id, described) in (0..).zip(found.regions()) {
            let path = PathBuf::from(described.path.clone().unwrap_or_default());
            let block = RamBlock::find(pid, &described.id, &path).map_err(|error| failed(&error))?;
            let made = self.blocks.get(usize::from(id)).map(|ram| ram.mapping().shows(&block));
            if !made.transpose().map_err(|error| failed(&error))?.unwrap_or(false) {
                let detail = format!("RAM block {} is not in the file made for it", block.name());
                return Err(Fault::new(Code::GuestDiffers, Step::Prepare, Side::Destination, detail));
            }
            let runs = match is_emptied_at_start(found, described) {
                true if self.regions.has_adapters() => return Err(lost_to_adapters(&block)),
                true => vec![Run { offset: 0, length: block.size() }],
                false => block.touched().map_err(|error| failed(&error))?,
            };
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

/// An adapter goes on writing to the pages that were registered, which are not the block's any more.
fn lost_to_adapters(block: &RamBlock) -> Fault {
    let detail = format!(
        "QEMU here, before version 8.1, has emptied the memory of the virtio-mem device ({}) while it started, and \
         RDMA writes to the pages that are gone: use --transport tcp, or a newer QEMU here",
        block.name()
    );
    Fault::new(Code::NotMigratable, Step::Prepare, Side::Destination, detail)
}

#[cfg(test)]
mod tests {
    use linerate_core::PAGE_BYTES;
    use linerate_guest::description::RamBlock;
    use linerate_guest::qmp::QemuVersion;
    use linerate_net::region::Mapped;
    use linerate_net::table::{Registrations, RemoteWriter};

    use super::*;
    use crate::incoming::domain::tests::waits;

    const BYTES: u64 = 8 * PAGE_BYTES;

    struct Adapter;

    impl RemoteWriter for Adapter {
        fn stop(&self) {}
    }

    impl Registrations for Adapter {
        fn release(&self, _: Mapped, _: Run) {}
    }

    /// What counts as touched of a block that its QEMU has not in its page tables.
    fn checked(major: u32, device: &str, regions: RegionTable) -> Result<Vec<Extent>, Fault> {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = dir.path().join("ram");
        // Mapped by this process, which takes the place of the incoming QEMU.
        let blocks = vec![Arc::new(Ram::new(Mapping::make(&file, BYTES).unwrap()))];
        let mut found = waits();
        found.qemu = QemuVersion { major, minor: 2, micro: 0 };
        found.arguments = vec!["-device".into(), device.into()];
        found.ram = vec![RamBlock {
            id: "/objects/more".into(),
            size: BYTES,
            path: Some(file.to_str().unwrap().into()),
            ..found.ram.remove(0)
        }];
        let ram = PlacedRam { blocks, regions: Arc::new(regions) };
        ram.check_blocks(std::process::id() as i32, &found).map(|(_, touched)| touched)
    }

    fn touched(major: u32, device: &str) -> Vec<Extent> {
        checked(major, device, RegionTable::new([])).unwrap()
    }

    #[test]
    fn memory_that_a_starting_qemu_empties_is_not_left_to_adapters() {
        for (major, refused) in [(7, true), (10, false)] {
            let (regions, adapter) = (RegionTable::new([]), Arc::new(Adapter));
            let writer: Arc<dyn RemoteWriter> = adapter.clone();
            regions.attach(&writer, adapter).unwrap();
            let checked = checked(major, "virtio-mem-pci,memdev=more", regions);
            assert_eq!(checked.is_err(), refused, "{checked:?}");
        }
    }

    #[test]
    fn memory_that_a_starting_qemu_empties_is_copied_again() {
        let whole = [Extent { region: 0, run: Run { offset: 0, length: BYTES } }];
        for device in
            ["virtio-mem-pci,memdev=more", r#"{"driver":"virtio-mem-pci","memdev":"/objects/more"}"#]
        {
            assert_eq!(touched(7, device), whole, "{device}");
            assert_eq!(touched(10, device), [], "{device}");
        }
        assert_eq!(touched(7, "virtio-mem-pci,memdev=other"), []);
        assert_eq!(touched(7, "pc-dimm,memdev=more"), []);
    }
}
