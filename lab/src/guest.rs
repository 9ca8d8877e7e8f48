//! What a self-checking guest is made of.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::io_error;
use crate::{Cache, Host, Lab, LabError, QemuVersion};

/// How the guest uses its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskMode {
    /// O_DIRECT in the guest, cache=none in QEMU.
    Direct,
    /// Page cache and fdatasync in the guest, QEMU's default cache.
    Buffered,
}

/// What program the guest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestProgram {
    /// A Debian kernel and lab/guest, under emulation.
    Linux,
    /// No kernel (lab/guest/bare/bare.c), under emulation: memory, and a disk. It starts quickly and sleeps most of its
    /// time.
    Bare,
    /// No kernel, in user mode (lab/guest/bare/user.c), under KVM, also where KVM runs inside of a virtual machine:
    /// memory, and a disk.
    UserMode,
}

impl GuestProgram {
    /// What runs its instructions, as QEMU's `-accel` has it.
    pub fn accelerator(self) -> &'static str {
        if self == GuestProgram::UserMode { "kvm" } else { "tcg" }
    }

    /// The processor's model, where the default of `linerate vm start` is not good enough: under KVM that is the host's
    /// own. A KVM inside of a virtual machine may report registers that it then does not let QEMU set.
    pub(crate) fn cpu(self) -> Option<&'static str> {
        (self == GuestProgram::UserMode).then_some("qemu64")
    }

    /// The file that QEMU boots, and its initramfs.
    pub(crate) fn files(self) -> Result<(PathBuf, Option<PathBuf>), LabError> {
        let cache = Cache::locate();
        match self {
            GuestProgram::Linux => Ok((cache.kernel()?, Some(cache.initramfs()?))),
            GuestProgram::Bare => Ok((cache.bare_guest()?, None)),
            GuestProgram::UserMode => Ok((cache.user_mode_guest()?, None)),
        }
    }
}

/// What the guest does; the kernel command line's parameters. docs/lab.md describes each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestParameters {
    /// Memory that is filled and checked, MiB.
    pub mem_mb: u64,
    /// Writing rate in MiB/s; 0: idle, negative: as fast as it goes.
    pub dirty_mbps: i64,
    /// Part of the memory that is written, MiB; all when None.
    pub dirty_ws_mb: Option<u64>,
    /// Rate of checking what is not written, MiB/s; 0 for a guest that does nothing at all.
    pub verify_mbps: u64,
    /// Bytes through the disk, MiB/s, all threads together; 0: no limit.
    pub disk_mbps: u64,
    /// Threads on the disk.
    pub disk_threads: u32,
    /// Generation of all slots of a disk that the guest has not yet touched: 1 for a fresh [`crate::make_disk`] image.
    /// None: the guest takes what it finds.
    pub disk_generation: Option<u64>,
    /// `net=` of the heartbeat (see [`heartbeat`]); None without network.
    pub net: Option<String>,
    /// TCP port of the echo service; needs `net`.
    pub tcp: Option<u16>,
    /// With a display adapter of 16 MiB whose memory is filled and written at so many MiB/s; 0: no limit.
    pub screen_mbps: Option<u64>,
    /// So much of the memory, MiB, is plugged in by a `virtio-mem` device while the guest boots.
    pub plugged_mb: Option<u64>,
    /// A thread that counts what it gets done.
    pub work: bool,
}

impl Default for GuestParameters {
    fn default() -> Self {
        GuestParameters {
            mem_mb: 64,
            dirty_mbps: 0,
            dirty_ws_mb: None,
            verify_mbps: 64,
            disk_mbps: 16,
            disk_threads: 2,
            disk_generation: None,
            net: None,
            tcp: None,
            screen_mbps: None,
            plugged_mb: None,
            work: false,
        }
    }
}

/// `net=` for guest number `guest`: it sends a packet every 1/`hz` seconds to the lab's observer at `port`.
pub fn heartbeat(lab: &Lab, guest: usize, port: u16, hz: u32) -> String {
    format!("{}/24,{},{port},{hz}", lab.guest_address(guest), lab.observer_address())
}

/// Why no guest can run under KVM here, if so.
pub fn kvm_is_missing() -> Option<std::io::Error> {
    std::fs::File::options().read(true).write(true).open("/dev/kvm").err()
}

/// Says of the test that calls this why it does nothing here. The test harness hides what `eprintln!` prints in a test
/// that passes, but not what is written to standard error itself. `xtask test` shows these lines once more at its end.
pub fn not_run(why: &str) {
    use std::io::Write as _;
    let thread = std::thread::current();
    // If the reader has ended, the text is not needed.
    let _ = writeln!(std::io::stderr().lock(), "not run: {}: {why}", thread.name().unwrap_or("a test"));
}

/// A guest: the same on each host that it visits, apart from the paths under the host's directories.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    /// Name; also of its RAM file and serial file.
    pub name: String,
    /// RAM size, MiB: `mem_mb` of the parameters, an eighth of it and 100 more, for the kernel.
    pub memory_mb: u64,
    pub vcpus: u32,
    pub parameters: GuestParameters,
    /// A raw image and how it is used.
    pub disk: Option<(PathBuf, DiskMode)>,
    /// A tap device (see [`Host::add_tap`]) that exists on each host under the same name.
    pub tap: Option<String>,
    /// With a network card on a bridge that exists on each host, by QEMU's bridge helper.
    pub bridge: Option<String>,
    /// RAM in explicit huge pages (see [`crate::LabBuilder::huge_mb`]).
    pub huge_pages: bool,
    pub qemu: QemuVersion,
    pub program: GuestProgram,
}

// Quick to boot under emulation: no calibration, no mitigations, no address randomisation.
const BASE: &str = "console=ttyS0 quiet panic=1 nokaslr mitigations=off tsc=reliable no_timer_check";

/// What the guest without a kernel needs beside `mem_mb`: itself at 1 MiB, its memory from 4 MiB, firmware tables at
/// the end.
const BARE_MB: u64 = 8;

impl GuestSpec {
    /// A guest with 1 vCPU and RAM for its parameters.
    pub fn new(name: &str, parameters: GuestParameters) -> GuestSpec {
        GuestSpec {
            name: name.to_owned(),
            memory_mb: parameters.mem_mb + 128 + parameters.mem_mb / 8,
            vcpus: 1,
            parameters,
            disk: None,
            tap: None,
            bridge: None,
            huge_pages: false,
            qemu: QemuVersion::System,
            program: GuestProgram::Linux,
        }
    }

    /// The guest without a kernel: `mem_mb`, `dirty_ws_mb`, a positive `dirty_mbps` and those of a disk are its
    /// parameters.
    pub fn bare(name: &str, parameters: GuestParameters) -> GuestSpec {
        GuestSpec::without_kernel(name, parameters, GuestProgram::Bare)
    }

    /// The same under KVM, which must be there ([`kvm_is_missing`]).
    pub fn user_mode(name: &str, parameters: GuestParameters) -> GuestSpec {
        GuestSpec::without_kernel(name, parameters, GuestProgram::UserMode)
    }

    fn without_kernel(name: &str, parameters: GuestParameters, program: GuestProgram) -> GuestSpec {
        let memory_mb = parameters.mem_mb + BARE_MB;
        GuestSpec { program, memory_mb, ..GuestSpec::new(name, parameters) }
    }

    pub fn disk(mut self, image: &Path, mode: DiskMode) -> GuestSpec {
        self.disk = Some((image.to_owned(), mode));
        self
    }

    /// With a network card on this tap device.
    pub fn tap(mut self, tap: &str) -> GuestSpec {
        self.tap = Some(tap.to_owned());
        self
    }

    /// With a network card that QEMU's helper plugs into this bridge.
    pub fn bridge(mut self, bridge: &str) -> GuestSpec {
        self.bridge = Some(bridge.to_owned());
        self
    }

    /// With RAM in explicit huge pages, of whose 2 MiB it has a whole number.
    pub fn huge_pages(mut self) -> GuestSpec {
        self.huge_pages = true;
        self.memory_mb = self.memory_mb.next_multiple_of(2);
        self
    }

    pub fn qemu(mut self, version: QemuVersion) -> GuestSpec {
        self.qemu = version;
        self
    }

    pub fn command_line(&self) -> String {
        let p = &self.parameters;
        let mut words = vec![
            BASE.to_owned() + &Cache::locate().tsc_parameter(),
            format!("mem_mb={} dirty_mbps={} verify_mbps={}", p.mem_mb, p.dirty_mbps, p.verify_mbps),
        ];
        words.extend(p.dirty_ws_mb.map(|mb| format!("dirty_ws_mb={mb}")));
        if let Some((_, mode)) = &self.disk {
            let mode = if *mode == DiskMode::Direct { "direct" } else { "buffered" };
            words.push(format!("disk={mode} disk_mbps={} disk_threads={}", p.disk_mbps, p.disk_threads));
            words.extend(p.disk_generation.map(|generation| format!("disk_gen={generation}")));
        }
        words.extend(p.net.as_ref().map(|net| format!("net={net}")));
        words.extend(p.tcp.map(|port| format!("tcp={port}")));
        words.extend(p.plugged_mb.map(|mb| format!("plugged_mb={mb} memhp_default_state=online")));
        words.extend(p.screen_mbps.map(|mbps| format!("screen_mbps={mbps}")));
        words.extend(p.work.then(|| "work=1".to_owned()));
        words.join(" ")
    }

    /// Where its console goes on a host.
    pub fn serial(&self, host: &Host) -> PathBuf {
        host.run_directory().join(format!("{}.serial", self.name))
    }

    /// Where its console goes on a host that Linerate moved it to: the destination's agent chooses that file itself.
    pub fn arrived_serial(&self, host: &Host) -> PathBuf {
        host.run_directory().join("guests").join(&self.name).join("qemu").join("serial0.log")
    }

    /// Its RAM file on a host when the lab started it ([`crate::Qemu`]) with a shared file.
    pub fn ram_file(&self, host: &Host) -> PathBuf {
        host.ram_directory().join(&self.name)
    }

    /// Hardware address of its network card, derived from its name so that both hosts give the same.
    pub fn hardware_address(&self) -> String {
        let sum =
            self.name.bytes().fold(0u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let [_, b, c, d] = sum.to_be_bytes();
        format!("52:54:00:{b:02x}:{c:02x}:{d:02x}")
    }

    /// Writes the file that `linerate vm start` takes and returns its path.
    pub fn write_toml(&self, host: &Host) -> Result<PathBuf, LabError> {
        let text = self.to_toml(host)?;
        if self.parameters.plugged_mb.is_some() {
            // QEMU runs as a user who makes no file there.
            let file = self.plugged_file(host);
            let made =
                File::create(&file).and_then(|made| made.set_permissions(Permissions::from_mode(0o666)));
            made.map_err(io_error("make", &file))?;
        }
        let path = host.run_directory().join(format!("{}.toml", self.name));
        std::fs::write(&path, text).map_err(io_error("write", &path))?;
        Ok(path)
    }

    fn plugged_file(&self, host: &Host) -> PathBuf {
        host.ram_directory().join(format!("{}-plugged", self.name))
    }

    fn more_devices(&self, host: &Host) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        if self.parameters.screen_mbps.is_some() {
            option("-device", "VGA".to_owned());
        }
        if let Some(mb) = self.parameters.plugged_mb {
            let file = self.plugged_file(host);
            option("-m", format!("slots=1,maxmem={}M", self.memory_mb));
            let object = "memory-backend-file,id=plugged,share=on,discard-data=off,prealloc=off";
            option("-object", format!("{object},size={mb}M,mem-path={}", file.display()));
            option("-device", format!("virtio-mem-pci,memdev=plugged,requested-size={mb}M"));
        }
        arguments
    }

    fn to_toml(&self, host: &Host) -> Result<String, LabError> {
        let (kernel, initrd) = self.program.files()?;
        let disks = self.disk.iter().map(|(path, mode)| DiskToml {
            path,
            format: "raw",
            cache: if *mode == DiskMode::Direct { "none" } else { "writeback" },
        });
        let (tap, bridge) = (self.tap.as_deref(), self.bridge.as_deref());
        let plugged_mb = self.parameters.plugged_mb.unwrap_or_default();
        let nic = tap.or(bridge).map(|_| NicToml { tap, bridge, mac: self.hardware_address() });
        let spec = SpecToml {
            name: &self.name,
            qemu: self.qemu.name(),
            memory: format!("{}M", self.memory_mb - plugged_mb),
            huge_pages: self.huge_pages,
            vcpus: self.vcpus,
            accel: self.program.accelerator(),
            cpu: self.program.cpu(),
            kernel,
            initrd,
            cmdline: self.command_line(),
            serial: self.serial(host),
            extra_args: self.more_devices(host),
            disk: disks.collect(),
            nic: nic.into_iter().collect(),
        };
        toml::to_string(&spec).map_err(|source| LabError::Toml { what: "the guest's specification", source })
    }
}

#[derive(Serialize)]
struct SpecToml<'a> {
    name: &'a str,
    qemu: &'a str,
    memory: String,
    huge_pages: bool,
    vcpus: u32,
    accel: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<&'a str>,
    kernel: PathBuf,
    initrd: Option<PathBuf>,
    cmdline: String,
    serial: PathBuf,
    extra_args: Vec<String>,
    disk: Vec<DiskToml<'a>>,
    nic: Vec<NicToml<'a>>,
}

#[derive(Serialize)]
struct DiskToml<'a> {
    path: &'a Path,
    format: &'a str,
    cache: &'a str,
}

#[derive(Serialize)]
struct NicToml<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tap: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bridge: Option<&'a str>,
    mac: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_sets_what_the_guest_does() {
        let net = Some("10.64.200.10/24,10.64.200.1,7000,500".to_owned());
        let parameters = GuestParameters {
            dirty_mbps: 50,
            dirty_ws_mb: Some(16),
            net,
            work: true,
            ..GuestParameters::default()
        };
        let plain = GuestSpec::new("g", parameters);
        let line = plain.command_line();
        assert!(
            line.contains(" mem_mb=64 dirty_mbps=50 verify_mbps=64 dirty_ws_mb=16 net=10.64.200.10/24,"),
            "{line}"
        );
        assert!(line.ends_with(" work=1") && !line.contains("disk"), "{line}");
        // Without it some guests of a busy host have a wrong clock.
        let khz =
            line.split_once("tsc_early_khz=").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        assert!(khz.is_some_and(|khz: u64| (100_000..20_000_000).contains(&khz)), "{line}");
        let disk = plain.disk(Path::new("/d.img"), DiskMode::Buffered).command_line();
        assert!(disk.contains(" disk=buffered disk_mbps=16 disk_threads=2 "), "{disk}");
    }

    #[test]
    fn guests_have_different_hardware_addresses() {
        let address = |name| GuestSpec::new(name, GuestParameters::default()).hardware_address();
        assert_ne!(address("a"), address("b"));
        assert_eq!(address("a").len(), 17);
    }
}
