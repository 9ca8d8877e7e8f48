//! Dirty bitmaps, which backup programs keep with a disk: QEMU's migration does not carry them, an image may.

use super::DiskGraph;
use crate::description::CopiedDisk;

impl DiskGraph {
    /// Dirty bitmaps that do not arrive, as `disk: bitmap`: those of copied disks, and those that are kept in no
    /// image. Persistent ones of images that both hosts see are in the image.
    pub fn lost_bitmaps(&self, copied: &[CopiedDisk]) -> Vec<String> {
        let mut lost = Vec::new();
        for (disk, top) in self.tops() {
            let is_copied = copied.iter().any(|one| one.id == disk || one.id == top.name);
            for node in self.all_below(top) {
                let gone = node.bitmaps.iter().filter(|bitmap| is_copied || !bitmap.persistent);
                lost.extend(gone.map(|bitmap| format!("{disk}: {}", bitmap.name)));
            }
        }
        lost
    }
}
