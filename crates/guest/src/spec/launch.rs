//! The command line of a guest that an operator describes.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use super::{Accelerator, DiskCache, DiskSpec, GuestSpec, NicSpec};
use crate::incoming_qemu::{QemuBinary, own_arguments};
use crate::options::Options;
use crate::registry::ram_file_name;

/// Where the things of a guest are put.
#[derive(Clone, Debug)]
pub struct SpecFolders {
    /// The guest's run-time folder.
    pub folder: PathBuf,
    /// Folder for RAM files, on a tmpfs or hugetlbfs.
    pub ram_dir: PathBuf,
}

/// A guest ready to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecGuest {
    /// Arguments, without the program's name.
    pub arguments: Vec<String>,
    pub qmp: PathBuf,
    /// File that QEMU writes its pid to.
    pub pid_file: PathBuf,
    pub ram_file: PathBuf,
}

impl GuestSpec {
    /// The command line. RAM is a named file that is not filled beforehand: pages come into being as the guest touches
    /// them, and holes are moved for nothing.
    pub fn launch(&self, qemu: &QemuBinary, places: &SpecFolders) -> SpecGuest {
        let qmp = places.folder.join("qmp.sock");
        let pid_file = places.folder.join("pid");
        let ram_file = places.ram_dir.join(ram_file_name(&self.name, "ram"));
        let mut arguments: Vec<String> = qemu.data_arguments().collect();
        let mut option = |name: &str, value: String| arguments.extend([format!("-{name}"), value]);
        option("name", format!("guest={},debug-threads=on", self.name));
        if let Some(uuid) = &self.uuid {
            option("uuid", uuid.clone());
        }
        let bytes = self.memory.0.to_string();
        option("object", memory(&bytes, &ram_file.display().to_string()).to_string());
        option("machine", format!("{},memory-backend=ram", self.machine));
        option("m", format!("{}M", self.memory.0 >> 20));
        option("smp", self.vcpus.to_string());
        option("accel", self.accel.to_string());
        option("cpu", self.cpu.clone().unwrap_or_else(|| default_cpu(self.accel).to_owned()));
        for (name, path) in [("kernel", &self.kernel), ("initrd", &self.initrd)] {
            if let Some(path) = path {
                option(name, path.display().to_string());
            }
        }
        if let Some(text) = &self.cmdline {
            option("append", text.clone());
        }
        let serial = self.serial.clone().unwrap_or_else(|| places.folder.join("serial0.log"));
        option("chardev", serial_chardev(&serial.display().to_string()).to_string());
        option("serial", "chardev:serial0".into());
        for (index, disk) in self.disk.iter().enumerate() {
            disk.options(index, self.transport()).into_iter().for_each(|(name, value)| option(name, value));
        }
        for (index, nic) in self.nic.iter().enumerate() {
            nic.options(index, &self.name, self.transport())
                .into_iter()
                .for_each(|(name, value)| option(name, value));
        }
        option("display", "none".into());
        arguments.push("-nodefaults".into());
        arguments.extend(own_arguments(&qmp, &pid_file));
        arguments.extend(self.extra_args.iter().cloned());
        SpecGuest { arguments, qmp, pid_file, ram_file }
    }

    // microvm has no PCI bus unless asked for one.
    fn transport(&self) -> &'static str {
        if self.machine.starts_with("microvm") { "device" } else { "pci" }
    }
}

fn memory(bytes: &str, path: &str) -> Options {
    Options::from_pairs(&[
        ("qom-type", "memory-backend-file"),
        ("id", "ram"),
        ("size", bytes),
        ("mem-path", path),
        ("share", "on"),
        ("prealloc", "off"),
        ("discard-data", "off"),
    ])
}

fn serial_chardev(path: &str) -> Options {
    Options::from_pairs(&[("backend", "file"), ("id", "serial0"), ("path", path), ("append", "on")])
}

fn default_cpu(accel: Accelerator) -> &'static str {
    match accel {
        Accelerator::Kvm => "host",
        Accelerator::Tcg => "qemu64",
    }
}

impl DiskSpec {
    fn options(&self, index: usize, transport: &str) -> [(&'static str, String); 3] {
        let switch = |on: bool| if on { "on" } else { "off" };
        let path = self.path.display().to_string();
        let is_device =
            std::fs::metadata(&self.path).is_ok_and(|metadata| metadata.file_type().is_block_device());
        let driver = if is_device { "host_device" } else { "file" };
        let (top, bottom) = (format!("disk{index}"), format!("disk{index}-file"));
        let file = Options::from_pairs(&[
            ("driver", driver),
            ("node-name", &bottom),
            ("filename", &path),
            ("cache.direct", switch(self.cache == DiskCache::None)),
            ("aio", &self.aio.to_string()),
            ("drop-cache", switch(self.drop_cache)),
            ("read-only", switch(self.readonly)),
        ]);
        let format = Options::from_pairs(&[
            ("driver", &self.format.to_string()),
            ("node-name", &top),
            ("file", &bottom),
            ("read-only", switch(self.readonly)),
        ]);
        let device = Options::from_pairs(&[
            ("driver", &format!("virtio-blk-{transport}")),
            ("id", &format!("virtio-{top}")),
            ("drive", &top),
        ]);
        [("blockdev", file.to_string()), ("blockdev", format.to_string()), ("device", device.to_string())]
    }
}

impl NicSpec {
    fn options(&self, index: usize, guest: &str, transport: &str) -> [(&'static str, String); 2] {
        let id = format!("net{index}");
        let netdev = match (&self.tap, &self.bridge) {
            (Some(tap), _) => Options::from_pairs(&[
                ("type", "tap"),
                ("id", &id),
                ("ifname", tap),
                ("script", "no"),
                ("downscript", "no"),
            ]),
            (None, bridge) => Options::from_pairs(&[
                ("type", "bridge"),
                ("id", &id),
                ("br", bridge.as_deref().unwrap_or("br0")),
            ]),
        };
        let mac = self.mac.clone().unwrap_or_else(|| made_mac(guest, index));
        let device = Options::from_pairs(&[
            ("driver", &format!("virtio-net-{transport}")),
            ("id", &format!("nic{index}")),
            ("netdev", &id),
            ("mac", &mac),
        ]);
        [("netdev", netdev.to_string()), ("device", device.to_string())]
    }
}

// QEMU gives every guest's first port one and the same address: two guests on a bridge would collide. FNV-1a of the
// name and the port's number, in QEMU's prefix.
fn made_mac(guest: &str, index: usize) -> String {
    let text = format!("{guest}/{index}");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("52:54:00:{:02x}:{:02x}:{:02x}", hash >> 40 & 0xff, hash >> 24 & 0xff, hash >> 8 & 0xff)
}
