//! `-device`: drivers that live within QEMU; none that reaches into the host by itself.

use super::{Builder, TwinError, no_file_name, refused};

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
    "i82559er",
    "ide-hd",
    "ide-cd",
    "ide-drive",
    "ahci",
    "ich9-ahci",
    "piix3-ide",
    "scsi-hd",
    "scsi-cd",
    "lsi53c895a",
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
];

impl Builder<'_> {
    pub(super) fn device(&mut self, value: &str) -> Result<(), TwinError> {
        let options = self.parse("device", value, Some("driver"))?;
        let driver = options.get("driver").unwrap_or_default();
        if !is_known(driver) {
            return Err(refused("device", driver, "this device is not among the known ones"));
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

fn is_known(driver: &str) -> bool {
    let endings = ["-pci", "-pci-transitional", "-pci-non-transitional", "-device"];
    let bare = endings.iter().find_map(|ending| driver.strip_suffix(ending)).unwrap_or(driver);
    DRIVERS.contains(&driver) || VIRTIO.contains(&bare) || driver.ends_with("-x86_64-cpu")
}
