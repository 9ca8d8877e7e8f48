//! Options whose values are plain settings: machine, boot order, firmware tables, audio.

use super::{Builder, IncomingError, no_file_name, only_keys, refused};
use crate::description::ImageFormat;
use crate::options::Options;

/// Keys of -machine that set properties of the machine and name no file.
const MACHINE_KEYS: &[&str] = &[
    "type",
    "accel",
    "kernel_irqchip",
    "kernel-irqchip",
    "kvm-shadow-mem",
    "vmport",
    "dump-guest-core",
    "mem-merge",
    "usb",
    "graphics",
    "hpet",
    "smm",
    "pic",
    "pit",
    "rtc",
    "sata",
    "smbus",
    "i8042",
    "nvdimm",
    "acpi",
    "hmat",
    "memory-backend",
    "pflash0",
    "pflash1",
    "suppress-vmdesc",
    "max-ram-below-4g",
    "max-fw-size",
    "smbios-entry-point-type",
    "aux-ram-share",
    "default-bus-bypass-iommu",
    "default_bus_bypass_iommu",
    "x-oem-id",
    "x-oem-table-id",
    "isa-serial",
    "x-option-roms",
    "x-kernel-cmdline",
    "auto-kernel-cmdline",
    "pcie",
    "ioapic2",
    "fd-bootchk",
    "pcspk-audiodev",
];

impl Builder<'_> {
    /// The machine type must be one word: it is put into a command line.
    pub(super) fn machine_type(&self) -> Result<(), IncomingError> {
        let machine = &self.guest.machine;
        let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if machine.is_empty() || !machine.chars().all(legal) {
            return Err(refused("machine", machine, "it is not the name of a machine type"));
        }
        Ok(())
    }

    /// `-machine`: an alias (`pc`, `q35`) means another machine in another version, so the versioned type replaces it.
    pub(super) fn machine(&mut self, value: &str) -> Result<(), IncomingError> {
        let mut options = self.parse("machine", value, Some("type"))?;
        only_keys("machine", &options, MACHINE_KEYS)?;
        options.remove("type");
        let rest = if options.pairs().next().is_some() { format!(",{options}") } else { String::new() };
        self.machine_given = true;
        self.emit("machine", &format!("{}{rest}", self.guest.machine))
    }

    pub(super) fn plain(&mut self, name: &str, value: &str) -> Result<(), IncomingError> {
        match name {
            "name" => self.name(value),
            "run-with" => self.run_with(value),
            "audio" => self.audio(value),
            "boot" => self.boot(value),
            "icount" => self.checked(name, value, Some("shift"), &["shift", "align", "sleep"]),
            "fw_cfg" => self.fw_cfg(value),
            "smbios" => self.smbios(value),
            "global" => self.global(value),
            "usbdevice" => match value {
                "tablet" | "mouse" | "keyboard" | "wacom-tablet" => self.emit(name, value),
                _ => Err(refused(name, value, "only tablet, mouse and keyboard are")),
            },
            _ => self.audiodev(value),
        }
    }

    fn checked(
        &mut self,
        name: &str,
        value: &str,
        implied: Option<&str>,
        keys: &[&str],
    ) -> Result<(), IncomingError> {
        let options = self.parse(name, value, implied)?;
        only_keys(name, &options, keys)?;
        self.emit(name, &options.to_string())
    }

    /// QEMU at the destination has the name by which the guest is known to Linerate.
    fn name(&mut self, value: &str) -> Result<(), IncomingError> {
        let mut options = self.parse("name", value, Some("guest"))?;
        options.set("guest", &self.guest.name);
        only_keys("name", &options, &["guest", "debug-threads", "process"])?;
        // Several are one to QEMU, and the last one counts.
        self.name_given = true;
        self.emit("name", &options.to_string())
    }

    /// How the source's process ends is of no concern here; as whom it runs is for this host to say.
    fn run_with(&self, value: &str) -> Result<(), IncomingError> {
        let options = self.parse("run-with", value, None)?;
        only_keys("run-with", &options, &["async-teardown"])
    }

    fn audio(&mut self, value: &str) -> Result<(), IncomingError> {
        let options = self.parse("audio", value, Some("driver"))?;
        let mut made = Options::from_pairs(&[("driver", "none")]);
        for key in ["id", "model"] {
            if let Some(value) = options.get(key) {
                super::check_id("audio", value)?;
                made.set(key, value);
            }
        }
        self.note("the guest's sound is not played on this host".into());
        self.emit("audio", &made.to_string())
    }

    fn boot(&mut self, value: &str) -> Result<(), IncomingError> {
        let mut options = self.parse("boot", value, Some("order"))?;
        if options.get("splash").is_some() {
            options.remove("splash");
            self.note("the boot splash picture is left out".into());
        }
        let keys = ["order", "once", "menu", "strict", "reboot-timeout", "splash-time"];
        only_keys("boot", &options, &keys)?;
        if options.pairs().next().is_some() { self.emit("boot", &options.to_string()) } else { Ok(()) }
    }

    /// Text, or a file of the folders for guests, that the guest reads.
    fn fw_cfg(&mut self, value: &str) -> Result<(), IncomingError> {
        let mut options = self.parse("fw_cfg", value, Some("name"))?;
        if let Some((key, _)) = options.pairs().find(|(key, _)| !matches!(*key, "name" | "string" | "file")) {
            return Err(refused("fw_cfg", key, "only name, string and file are"));
        }
        if let Some(file) = options.get("file").map(str::to_owned) {
            let path = self.host_file("fw_cfg", &file, false, Some(ImageFormat::Raw))?;
            options.set("file", &path);
        }
        self.emit("fw_cfg", &options.to_string())
    }

    fn smbios(&mut self, value: &str) -> Result<(), IncomingError> {
        let options = self.parse("smbios", value, None)?;
        match options.pairs().find(|(key, _)| matches!(*key, "file" | "path")) {
            Some((key, _)) => Err(refused("smbios", key, "it reads a file of this host")),
            None => self.emit("smbios", &options.to_string()),
        }
    }

    fn global(&mut self, value: &str) -> Result<(), IncomingError> {
        no_file_name("global", value, value)?;
        let key = value.to_ascii_lowercase();
        if ["file", "path", "dir", "script", "helper", "memory-backend", "tls", "chardev"]
            .iter()
            .any(|part| key.contains(part))
        {
            return Err(refused("global", value, "it may name a file or program"));
        }
        self.emit("global", value)
    }

    fn audiodev(&mut self, value: &str) -> Result<(), IncomingError> {
        let options = self.parse("audiodev", value, Some("driver"))?;
        let id = options.get("id").unwrap_or_default().to_owned();
        super::check_id("audiodev", &id)?;
        if options.get("driver") != Some("none") {
            self.note(format!("the sound of {id} is not played on this host"));
        }
        self.emit("audiodev", &Options::from_pairs(&[("driver", "none"), ("id", &id)]).to_string())
    }
}
