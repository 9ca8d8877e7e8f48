//! The device tree that `info qtree` prints: which devices there are, hot-plugged ones included.

use crate::description::Traits;

/// What a device tree says of direct mode.
pub fn traits_of_devices(tree: &str) -> Traits {
    let mut traits = Traits::default();
    for line in tree.lines() {
        let line = line.trim_start();
        if let Some(rest) = line.strip_prefix("dev: ") {
            let (driver, id) = rest.split_once(", id ").unwrap_or((rest, ""));
            sort_in(&mut traits, driver.trim(), id.trim_matches('"'));
        }
    }
    traits
}

/// Beginnings of devices that write RAM past the process's page tables. The kernel's vhost-scsi pins pages for the
/// target's own disk, which QEMU cannot drain; the kernel's other vhost devices copy through the page tables.
const DMA: &[&str] = &["vfio-", "vhost-vdpa", "x-vfio-user-pci", "vhost-scsi"];

fn sort_in(traits: &mut Traits, driver: &str, id: &str) {
    let label = if id.is_empty() { driver.to_owned() } else { format!("{driver} ({id})") };
    if driver.starts_with("vhost-user-") {
        traits.vhost_user.push(label);
    } else if DMA.iter().any(|name| driver.starts_with(name)) {
        traits.vfio.push(label);
    } else if driver.starts_with("ivshmem-") || driver == "nvdimm" || driver.starts_with("virtio-pmem") {
        traits.foreign_memory.push(label);
    } else if driver.starts_with("virtio-balloon") || driver.starts_with("virtio-mem") {
        traits.may_discard = true;
    } else if driver.starts_with("tpm-") {
        traits.tpm = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_sorted() {
        let tree = "bus: x\n  dev: vfio-pci, id \"gpu\"\n    bus: y\n      dev: vhost-user-blk-pci, id \"\"\n dev: virtio-balloon-pci, id \"b\"\n dev: vhost-scsi-pci, id \"s\"\n dev: vhost-vsock-pci, id \"v\"\n";
        let traits = traits_of_devices(tree);
        assert_eq!(traits.vfio, ["vfio-pci (gpu)", "vhost-scsi-pci (s)"]);
        assert_eq!(traits.vhost_user, ["vhost-user-blk-pci"]);
        assert!(traits.may_discard && !traits.tpm);
    }
}
