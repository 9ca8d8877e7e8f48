//! Memory of `virtio-mem` devices. A starting QEMU before 8.1 empties it, also one that waits for a guest: the device
//! punches out all of its memory when it is made, and once more at the first reset.

use crate::argv::split_loose;
use crate::description::{GuestDescription, RamBlock};
use crate::options::Options;
use crate::qmp::QemuVersion;
use crate::read::parsed;

/// From this version on, a QEMU that waits for a guest leaves the memory as it is.
const LEFT_ALONE_FROM: QemuVersion = QemuVersion { major: 8, minor: 1, micro: 0 };

/// Whether this QEMU has emptied the block while it started. No page table shows that.
pub fn is_emptied_at_start(qemu: &GuestDescription, block: &RamBlock) -> bool {
    let object = last_part(&block.id);
    let options = split_loose(&qemu.arguments);
    qemu.qemu < LEFT_ALONE_FROM
        && parsed(&options, "device", Some("driver"))
            .any(|device| is_virtio_mem(&device) && device.get("memdev").map(last_part) == Some(object))
}

fn is_virtio_mem(device: &Options) -> bool {
    device.get("driver").is_some_and(|driver| driver.starts_with("virtio-mem"))
}

/// The name of an object that is named by its path, as a RAM block may be.
fn last_part(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}
