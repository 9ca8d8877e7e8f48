//! What is kept with a disk and is not in it: dirty bitmaps of backup programs, and snapshots within an image. QEMU's
//! migration carries neither, a shared image does.

use super::{DiskGraph, Node};
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

    /// Snapshots within the images of copied disks, as `disk: snapshot`: a copy holds what the guest sees now.
    pub fn lost_snapshots(&self, copied: &[CopiedDisk]) -> Vec<String> {
        let is_copied =
            |disk: &str, top: &Node| copied.iter().any(|one| one.id == disk || one.id == top.name);
        let mut lost: Vec<String> = Vec::new();
        for (disk, top) in self.tops().filter(|(disk, top)| is_copied(disk, top)) {
            let below = self.all_below(top).into_iter().flat_map(|node| &node.snapshots);
            for name in below.map(|name| format!("{disk}: {name}")) {
                // QEMU reports an image's bitmaps for a node above it too.
                if !lost.contains(&name) {
                    lost.push(name);
                }
            }
        }
        lost
    }
}
