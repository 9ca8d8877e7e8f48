//! `-device`: drivers that live within QEMU; none that reaches into the host by itself.

use super::{Builder, IncomingError, no_file_name, refused};

/// Drivers taken over, by name.
const DRIVERS: &[&str] = &[
    "VGA",
    "cirrus-vga",
    "qxl",
    "qxl-vga",
    "vmware-svga",
    "bochs-display",
    "secondary-vga",
    "ramfb",
    "isa-vga",
    "e1000",
    "e1000e",
    "igb",
    "rtl8139",
    "vmxnet3",
    "ne2k_pci",
    "pcnet",
    "i82550",
    "i82551",
    "i82557a",
    "i82557b",
    "i82557c",
    "i82558a",
    "i82558b",
    "i82559a",
    "i82559b",
    "i82559c",
    "i82559er",
    "i82562",
    "i82801",
    "e1000-82544gc",
    "e1000-82545em",
    "tulip",
    "ne2k_isa",
    "ide-hd",
    "ide-cd",
    "ide-drive",
    "ahci",
    "ich9-ahci",
    "piix3-ide",
    "scsi-hd",
    "scsi-cd",
    "lsi",
    "lsi53c895a",
    "am53c974",
    "dc390",
    "lsi53c810",
    "megasas",
    "megasas-gen2",
    "mptsas1068",
    "pvscsi",
    "nvme",
    "nvme-ns",
    "floppy",
    "isa-fdc",
    "usb-tablet",
    "usb-mouse",
    "usb-kbd",
    "usb-wacom-tablet",
    "usb-storage",
    "usb-bot",
    "usb-uas",
    "usb-hub",
    "usb-audio",
    "usb-net",
    "usb-serial",
    "usb-ehci",
    "qemu-xhci",
    "nec-usb-xhci",
    "pci-ohci",
    "piix3-usb-uhci",
    "piix4-usb-uhci",
    "ich9-usb-ehci1",
    "ich9-usb-ehci2",
    "ich9-usb-uhci1",
    "ich9-usb-uhci2",
    "ich9-usb-uhci3",
    "ich9-usb-uhci4",
    "ich9-usb-uhci5",
    "ich9-usb-uhci6",
    "pcie-root-port",
    "pcie-pci-bridge",
    "pci-bridge",
    "i82801b11-bridge",
    "ioh3420",
    "x3130-upstream",
    "xio3130-downstream",
    "pxb",
    "pxb-pcie",
    "intel-hda",
    "ich9-intel-hda",
    "hda-duplex",
    "hda-micro",
    "hda-output",
    "AC97",
    "ES1370",
    "sb16",
    "adlib",
    "cs4231a",
    "gus",
    "isa-serial",
    "pci-serial",
    "isa-parallel",
    "isa-debugcon",
    "isa-debug-exit",
    "virtserialport",
    "virtconsole",
    "pvpanic",
    "pvpanic-pci",
    "vmcoreinfo",
    "vmgenid",
    "i6300esb",
    "ib700",
    "intel-iommu",
    "amd-iommu",
    "pc-dimm",
    "isa-pcspk",
    "sga",
    "isa-applesmc",
    "isa-ide",
    "sdhci-pci",
    "sd-card",
];

/// Beginnings of drivers that are refused, and why.
const REFUSED: &[(&str, &str)] = &[
    ("vfio-", "it is a device of the source's host: unplug it before the migration"),
    ("vhost-vdpa", "it is a device of the source's host: unplug it before the migration"),
    ("vhost-scsi", "its disks are the kernel's, of the source's host: use virtio-scsi"),
    ("vhost-user-", "its process at the source is not moved: use a device within QEMU"),
    (
        "virtio-9p",
        "it shares a folder of the source's host, and QEMU does not migrate a guest that has it mounted: start the guest without it",
    ),
    ("tpm-", "the TPM's state is kept by another process (swtpm): start the guest without its TPM"),
    ("usb-host", "it is a device of the source's host: unplug it before the migration"),
    (
        "usb-redir",
        "it is a device of a viewer's host, and no viewer is connected at the destination: start the guest without it",
    ),
    ("usb-mtp", "it shares a folder of the source's host: start the guest without it"),
    ("ivshmem-", "it is memory shared with others: start the guest without it"),
    ("nvdimm", "its memory is kept on a medium: start the guest without it"),
    ("virtio-pmem", "its memory is kept on a medium: start the guest without it"),
    ("virtio-vga-gl", "QEMU does not migrate what a GPU has drawn: use virtio-vga"),
    ("virtio-gpu-gl", "QEMU does not migrate what a GPU has drawn: use virtio-gpu"),
    ("virtio-input-host", "it is a device of the source's host: start the guest without it"),
    ("scsi-generic", "it is a device of the source's host: use scsi-hd"),
    ("scsi-block", "it passes commands on to a device of the source's host: use scsi-hd"),
    ("loader", "it reads a file of the host into the guest's memory: start the guest without it"),
    ("guest-loader", "it reads a file of the host into the guest's memory: start the guest without it"),
];

/// virtio devices that QEMU serves itself, without their transport's ending.
const VIRTIO: &[&str] = &[
    "virtio-net",
    "virtio-blk",
    "virtio-scsi",
    "virtio-serial",
    "virtio-balloon",
    "virtio-rng",
    "virtio-vga",
    "virtio-gpu",
    "virtio-keyboard",
    "virtio-mouse",
    "virtio-tablet",
    "virtio-mem",
    "virtio-iommu",
    "virtio-crypto",
    "vhost-vsock",
];

impl Builder<'_> {
    pub(super) fn device(&mut self, value: &str) -> Result<(), IncomingError> {
        let mut options = self.parse("device", value, Some("driver"))?;
        // An open file of the source's process: QEMU opens its own.
        if options.get("driver").is_some_and(|driver| driver.starts_with("vhost-vsock")) {
            options.remove("vhostfd");
        }
        let driver = options.get("driver").unwrap_or_default();
        if !is_known(driver) {
            return Err(refused("device", driver, why_not(driver)));
        }
        for (key, value) in options.pairs() {
            no_file_name("device", key, value)?;
            if key.contains('.') {
                return Err(refused("device", key, "nested properties are not understood"));
            }
            if key == "romfile" && !(value.is_empty() || value.ends_with(".rom") || value.ends_with(".bin")) {
                return Err(refused("device", value, "it is not the name of a firmware file"));
            }
        }
        self.emit("device", &options.to_string())
    }
}

fn why_not(driver: &str) -> &'static str {
    let found = REFUSED.iter().find(|(beginning, _)| driver.starts_with(beginning));
    found.map_or("this device is not among the known ones: start the guest without it", |(_, why)| why)
}

fn is_known(driver: &str) -> bool {
    let endings = ["-pci", "-pci-transitional", "-pci-non-transitional", "-device"];
    let bare = endings.iter().find_map(|ending| driver.strip_suffix(ending)).unwrap_or(driver);
    DRIVERS.contains(&driver) || VIRTIO.contains(&bare) || driver.ends_with("-x86_64-cpu")
}
