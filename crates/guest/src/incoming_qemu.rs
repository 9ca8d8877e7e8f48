//! The command line of the incoming QEMU at the destination, made from the source's description.
//!
//! A description comes from another host and is not trusted. The program comes from the local configuration. Every
//! option must be in the table of [`crate::argv`], every key and driver in the lists beside the rules here. Every file
//! that a guest may open must lie under one of the folders that the operator names. What listens, logs or is opened for
//! the source's own use is put into the guest's own run-time folder. Or it is left out, with a note.

mod characters;
mod devices;
mod error;
mod files;
mod formats;
mod memory;
mod network;
mod plain;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use crate::argv::{Argument, ArgvError, Rule, known, split};
use crate::description::{GuestDescription, ImageFormat, check_name};
use crate::options::Options;

pub use error::IncomingError;
pub(crate) use files::mapped;

/// A QEMU of this host, from the local configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuBinary {
    pub path: PathBuf,
    /// Folders with firmware, for `-L`; empty if it finds its own.
    pub data_dirs: Vec<PathBuf>,
}

impl QemuBinary {
    /// A program that finds its firmware by itself.
    pub fn new(path: impl Into<PathBuf>) -> QemuBinary {
        QemuBinary { path: path.into(), data_dirs: Vec::new() }
    }

    /// `-L` options.
    pub fn data_arguments(&self) -> impl Iterator<Item = String> {
        self.data_dirs.iter().flat_map(|dir| ["-L".to_owned(), dir.display().to_string()])
    }
}

/// What the destination's own configuration sets for the incoming QEMU.
#[derive(Clone, Debug)]
pub struct IncomingOptions {
    /// The guest's own run-time folder; sockets, pid file and logs go there.
    pub runtime_dir: PathBuf,
    /// Folder on a tmpfs for RAM files.
    pub ram_dir: PathBuf,
    /// Folder on a hugetlbfs, for guests whose RAM is in huge pages.
    pub huge_ram_dir: Option<PathBuf>,
    /// The program and its firmware.
    pub qemu: QemuBinary,
    /// Folders whose files and devices a guest may open as disk, kernel, initrd or flash.
    pub file_roots: Vec<PathBuf>,
    /// Source path to local path, where they differ: of a file, or of a folder if both end with a slash. Local paths
    /// must lie under a root as well.
    pub paths: BTreeMap<String, String>,
    /// Source interface name to local interface name, where they differ.
    pub taps: BTreeMap<String, String>,
    /// Whether QEMU's user-mode network is allowed: with it the guest reaches services on the host's loopback.
    pub allow_user_network: bool,
    /// Leave the page cache alone when the guest arrives: saves some 35 ms of blackout, right only where the disk is
    /// not cached here from before (or storage is coherent).
    pub keep_page_cache: bool,
}

/// The incoming QEMU's command line and what it needs of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IncomingQemu {
    pub name: String,
    /// Arguments, without the program's name.
    pub arguments: Vec<String>,
    pub qmp: PathBuf,
    /// File that QEMU writes its pid to.
    pub pid_file: PathBuf,
    /// RAM files that QEMU will make.
    pub ram_files: Vec<RamFile>,
    /// Files and devices that must be there.
    pub files: Vec<NeededFile>,
    /// Interfaces and bridges that must be there.
    pub networks: Vec<NeededNetwork>,
    /// Firmware files that must be found in the data folders.
    pub firmware: Vec<String>,
    /// It has a port in QEMU's user-mode network.
    pub user_network: bool,
    /// What was left out or replaced, for the operator.
    pub notes: Vec<String>,
}

/// A RAM file of the incoming QEMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RamFile {
    /// Name of QEMU's memory object; the block's name, or its last part.
    pub object: String,
    pub path: PathBuf,
}

/// A file that the incoming QEMU opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeededFile {
    /// Name at the source.
    pub source: String,
    pub path: PathBuf,
    pub writable: bool,
    /// Format in which it is opened; none if several, or if it is not known.
    pub format: Option<ImageFormat>,
    /// It must be a block device, or must not be one; none where QEMU takes either.
    pub as_device: Option<bool>,
}

/// What a network port of the incoming QEMU is connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeededNetwork {
    /// A tap interface, and the bridge that its counterpart was in.
    Tap {
        name: String,
        /// Bridge at the source.
        bridge: Option<String>,
    },
    /// A bridge that QEMU's bridge helper makes a tap in.
    Bridge { name: String },
}

impl IncomingOptions {
    /// Of a host that has and allows everything: what is refused there is refused everywhere.
    pub fn anywhere() -> IncomingOptions {
        IncomingOptions {
            runtime_dir: "/run".into(),
            ram_dir: "/dev/shm".into(),
            huge_ram_dir: Some("/dev/hugepages".into()),
            qemu: QemuBinary::new("qemu-system-x86_64"),
            file_roots: vec!["/".into()],
            paths: BTreeMap::new(),
            taps: BTreeMap::new(),
            allow_user_network: true,
            keep_page_cache: false,
        }
    }
}

impl IncomingQemu {
    /// The RAM file of a block that Linerate moves itself.
    pub fn ram_file(&self, block: &str) -> Result<&RamFile, IncomingError> {
        let object = block.rsplit('/').next().unwrap_or_default();
        let found = self.ram_files.iter().find(|file| file.object == object);
        found.ok_or_else(|| IncomingError::NoRamFile { block: block.to_owned() })
    }
}

/// Makes the incoming QEMU of a guest.
pub fn build_incoming(
    guest: &GuestDescription,
    options: &IncomingOptions,
) -> Result<IncomingQemu, IncomingError> {
    let (incoming, refused) = attempt(guest, options);
    refused.into_iter().next().map_or(Ok(incoming), Err)
}

/// The incoming QEMU as far as it can be made, and every reason against it.
pub fn attempt(guest: &GuestDescription, options: &IncomingOptions) -> (IncomingQemu, Vec<IncomingError>) {
    let (arguments, unknown) = split(&guest.arguments);
    let mut builder = Builder::new(guest, options, &arguments);
    let mut refused: Vec<IncomingError> =
        check_name(&guest.name).err().map(IncomingError::from).into_iter().collect();
    if !guest.traits.hot_plugged.is_empty() {
        refused.push(IncomingError::HotPlugged(guest.traits.hot_plugged.join(", ")));
    }
    refused.extend(builder.socket("qmp.sock").err());
    refused.extend(builder.machine_type().err());
    refused.extend(unknown.into_iter().map(IncomingError::from));
    builder.out.extend(options.qemu.data_arguments());
    for argument in &arguments {
        refused.extend(builder.take(argument).err());
    }
    refused.extend(builder.check_default_network().err());
    // The same sentence once, of however many disks or ports it is true.
    let mut messages = HashSet::new();
    refused.retain(|error| messages.insert(error.to_string()));
    (builder.finish(), refused)
}

struct Builder<'a> {
    guest: &'a GuestDescription,
    options: &'a IncomingOptions,
    arguments: &'a [Argument],
    out: Vec<String>,
    incoming: IncomingQemu,
    machine_given: bool,
    name_given: bool,
    vnc: bool,
    serials: u32,
    uses: formats::Uses,
}

impl<'a> Builder<'a> {
    fn new(
        guest: &'a GuestDescription,
        options: &'a IncomingOptions,
        arguments: &'a [Argument],
    ) -> Builder<'a> {
        let incoming = IncomingQemu {
            name: guest.name.clone(),
            arguments: Vec::new(),
            qmp: options.runtime_dir.join("qmp.sock"),
            pid_file: options.runtime_dir.join("pid"),
            ram_files: Vec::new(),
            files: Vec::new(),
            networks: Vec::new(),
            firmware: Vec::new(),
            user_network: false,
            notes: Vec::new(),
        };
        Builder {
            guest,
            options,
            arguments,
            out: Vec::new(),
            incoming,
            machine_given: false,
            name_given: false,
            vnc: false,
            serials: 0,
            uses: formats::Uses::default(),
        }
    }

    fn take(&mut self, argument: &Argument) -> Result<(), IncomingError> {
        let name = argument.name.as_str();
        let value = argument.value.as_deref().unwrap_or_default();
        let rule = known(name).map(|(_, rule)| rule).ok_or_else(|| ArgvError::Unknown(name.to_owned()))?;
        match rule {
            Rule::Drop => Ok(()),
            Rule::Text => self.emit(name, value),
            Rule::Keep if argument.value.is_none() => {
                self.out.push(format!("-{name}"));
                Ok(())
            }
            Rule::Keep => {
                no_file_name(name, value, value)?;
                self.emit(name, value)
            }
            Rule::Special => self.special(name, value),
            Rule::Refuse(why) => Err(IncomingError::Option { option: name.to_owned(), why }),
        }
    }

    fn special(&mut self, name: &str, value: &str) -> Result<(), IncomingError> {
        match name {
            "machine" | "M" => self.machine(value),
            "name" | "boot" | "icount" | "global" | "smbios" | "fw_cfg" | "usbdevice" | "audiodev"
            | "audio" | "run-with" => self.plain(name, value),
            "device" => self.device(value),
            "object" => self.object(value),
            "mem-path" => self.legacy_memory(),
            "drive" => self.drive(value),
            "blockdev" => self.blockdev(value),
            "cdrom" | "hda" | "hdb" | "hdc" | "hdd" | "fda" | "fdb" | "pflash" => {
                self.bare_drive(name, value)
            }
            "kernel" | "initrd" => self.bare_file(name, value),
            "bios" => self.bios(value),
            "netdev" | "nic" | "net" => self.network(name, value),
            "chardev" => self.chardev(value),
            "mon" => self.monitor_of_chardev(value),
            "serial" | "parallel" | "debugcon" => self.serial(name, value),
            "monitor" => self.emit("monitor", "none"),
            "display" | "nographic" => {
                self.vnc |= value.starts_with("vnc");
                Ok(())
            }
            "vnc" => {
                self.vnc |= value != "none";
                Ok(())
            }
            "spice" => {
                self.vnc = true;
                self.note("SPICE is not offered here, VNC is".into());
                Ok(())
            }
            other => Err(refused(other, "", "there is no rule for it")),
        }
    }

    fn finish(mut self) -> IncomingQemu {
        self.settle_formats();
        if !self.name_given {
            self.out.extend(["-name".into(), format!("guest={}", self.guest.name)]);
        }
        if !self.machine_given {
            self.out.extend(["-machine".into(), self.guest.machine.clone()]);
        }
        self.out.extend(["-display".into(), "none".into()]);
        if self.vnc {
            let socket = self.options.runtime_dir.join("vnc.sock");
            self.note(format!("the display is offered on {}", socket.display()));
            let value = format!("unix:{}", crate::options::escape(&socket.display().to_string()));
            self.out.extend(["-vnc".into(), value]);
        }
        self.out.extend(own_arguments(&self.incoming.qmp, &self.incoming.pid_file));
        self.out.extend(["-S", "-incoming", "defer"].map(str::to_owned));
        self.incoming.arguments = self.out;
        self.incoming
    }

    fn parse(&self, option: &str, value: &str, implied: Option<&str>) -> Result<Options, IncomingError> {
        let option = option.to_owned();
        Options::parse(value, implied).map_err(|source| IncomingError::Value { option, source })
    }

    fn emit(&mut self, option: &str, value: &str) -> Result<(), IncomingError> {
        self.out.extend([format!("-{option}"), value.to_owned()]);
        Ok(())
    }

    fn note(&mut self, note: String) {
        self.incoming.notes.push(note);
    }

    fn socket(&self, name: &str) -> Result<PathBuf, IncomingError> {
        let path = self.options.runtime_dir.join(name);
        if path.as_os_str().len() > 107 { Err(IncomingError::SocketPath(path)) } else { Ok(path) }
    }
}

/// The options that every guest started by Linerate gets.
pub(crate) fn own_arguments(qmp: &std::path::Path, pid_file: &std::path::Path) -> [String; 5] {
    let qmp = crate::options::escape(&qmp.display().to_string());
    [
        "-qmp".into(),
        format!("unix:{qmp},server=on,wait=off"),
        "-pidfile".into(),
        pid_file.display().to_string(),
        "-daemonize".into(),
    ]
}

fn refused(option: &str, what: &str, why: &'static str) -> IncomingError {
    IncomingError::Refused { option: option.to_owned(), what: what.chars().take(120).collect(), why }
}

fn no_file_name(option: &str, what: &str, value: &str) -> Result<(), IncomingError> {
    if value.contains('/') { Err(refused(option, what, "it looks like a file name")) } else { Ok(()) }
}

fn only_keys(option: &str, options: &Options, allowed: &[&str]) -> Result<(), IncomingError> {
    for (key, value) in options.pairs() {
        if !allowed.contains(&key) {
            return Err(refused(option, key, "this key is not among the known ones"));
        }
        no_file_name(option, key, value)?;
    }
    Ok(())
}

fn check_id(option: &str, id: &str) -> Result<(), IncomingError> {
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if !id.is_empty() && id.len() <= 64 && id.chars().all(legal) && !id.starts_with('.') {
        Ok(())
    } else {
        Err(refused(option, id, "the id is not a QEMU id"))
    }
}
