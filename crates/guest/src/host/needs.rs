//! What a destination must have for a guest, in words: what only that host knows.

use crate::bytes::bytes;
use crate::description::GuestDescription;
use crate::incoming_qemu::{IncomingQemu, NeededFile, NeededNetwork};

/// Bytes of a page that is not huge.
const SMALL_PAGE: u64 = 4096;

/// Everything that is checked there before anything is started.
pub fn needs(guest: &GuestDescription, incoming: &IncomingQemu) -> Vec<String> {
    let mut needs = vec![format!(
        "QEMU {}.{} or later, with the machine type {}",
        guest.qemu.major, guest.qemu.minor, guest.machine
    )];
    if guest.accelerator == "kvm" {
        needs.push("KVM, and a processor with all features that the guest has at the source".to_owned());
    }
    let huge: u64 =
        guest.ram.iter().filter(|block| block.page_bytes > SMALL_PAGE).map(|block| block.size).sum();
    let memory = guest.memory_bytes.saturating_sub(huge);
    needs.extend((memory > 0).then(|| format!("{} of free memory", bytes(memory))));
    needs.extend((huge > 0).then(|| format!("{} of free huge pages (huge_ram_dir)", bytes(huge))));
    needs.extend(incoming.files.iter().map(|file| of_file(guest, file)));
    needs.extend(incoming.networks.iter().map(|network| match network {
        NeededNetwork::Tap { name, .. } => format!("the interface {name}"),
        NeededNetwork::Bridge { name } => format!("the bridge {name}"),
    }));
    needs.extend(incoming.firmware.iter().map(|name| format!("the firmware {name}")));
    needs.extend(
        incoming
            .user_network
            .then(|| "leave to use QEMU's user-mode network (allow_user_network)".to_owned()),
    );
    needs
}

fn of_file(guest: &GuestDescription, file: &NeededFile) -> String {
    let copied = guest.copied.iter().any(|disk| disk.path == file.source);
    let disk = guest.disks.iter().any(|disk| disk.path == file.source);
    let how = match (copied, disk, file.writable) {
        (true, ..) => "copied along",
        (false, true, true) => "shared, or copied along (--copy-storage all)",
        _ => "the same there",
    };
    format!("{} in one of its file_roots: {how}", file.path.display())
}
