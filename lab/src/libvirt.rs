//! A libvirt daemon in a host: Debian's own, with its own folders, users' file and process namespace, so that two of
//! them live on one machine as they do on two.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::io_error;
use crate::guest::kvm_is_missing;
use crate::{Cache, DiskMode, GuestProgram, GuestSpec, Host, LabError, Process, tool, wait};

const START_LIMIT: Duration = Duration::from_secs(60);

/// What is different between two hosts, each a folder of the host: here, and what it covers.
const FOLDERS: [(&str, &str); 9] = [
    ("etc", "/etc/libvirt"),
    ("run", "/run/libvirt"),
    ("lib", "/var/lib/libvirt"),
    ("cache", "/var/cache/libvirt"),
    ("log", "/var/log/libvirt"),
    ("images", IMAGES),
    ("../../shared", SHARED),
    (SOCKETS, "/run/linerate-libvirt"),
    (MONITORS, DOMAINS),
];

/// Where hypervisors of any user make sockets.
const SOCKETS: &str = "sockets";
/// Where the hypervisor's user alone makes sockets.
const MONITORS: &str = "domains";

/// Where domains that direct mode can move have their second monitors.
const DOMAINS: &str = "/run/linerate-domains";

/// Where a host's disks and consoles are: the same name on every host, and nothing that they share.
pub const IMAGES: &str = "/mnt";

/// A folder that all hosts of a lab share, as libvirt 11 has it in its configuration; older ones know shared file
/// systems by their kind only.
pub const SHARED: &str = "/srv";

/// Kernels and programs that guests boot. They become the hypervisor's user's, so each host has its own.
const BOOT: &str = "boot";

/// The hypervisor's name on every host, whichever it is.
const EMULATOR: &str = "/usr/bin/qemu-system-x86_64";

/// Which libvirt, and the QEMU that goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LibvirtVersion {
    /// Debian 12's own, 9.0, with its QEMU 7.2.
    System,
    /// 11.3 of backports with QEMU 10.0.
    Eleven,
}

impl LibvirtVersion {
    /// Folders that are laid over `/usr`, and the one with QEMU's modules, which covers that of the other QEMU: to load
    /// modules of another QEMU ends it.
    fn layers(self) -> Result<[String; 2], LabError> {
        if self == LibvirtVersion::System {
            return Ok([String::new(), String::new()]);
        }
        let cache = Cache::locate();
        let (libvirt, qemu) = (cache.libvirt11()?, cache.qemu10()?);
        let usr = |folder: &Path| folder.join("usr").display().to_string();
        let modules = qemu.join("usr/lib/x86_64-linux-gnu/qemu").display().to_string();
        Ok([format!("{}:{}", usr(&libvirt), usr(&qemu)), modules])
    }
}

/// Covers the folders, and starts the daemon where `/proc` is that of its processes. The shell is their process 1: it
/// takes the exit status of every QEMU that becomes a daemon, for which libvirt waits.
const SCRIPT: &str = r#"
set -eu
here=$1; shift
hostname "$1"; shift
if [ -n "$1" ]; then
    mount -t overlay -o "lowerdir=$1:/usr" linerate-lab /usr
    mount --bind "$2" /usr/lib/x86_64-linux-gnu/qemu
fi
shift 2
while [ $# -gt 0 ]; do mkdir -p "$2"; mount --bind "$here/$1" "$2"; shift 2; done
[ ! -e "$here/kvm" ] || mount --bind "$here/kvm" /dev/kvm
mount --bind "$here/passwd" /etc/passwd
mount --bind "$here/group" /etc/group
touch "$here/mounted"
export LIBVIRT_DRIVER_DIR="$here/drivers" LC_ALL=C
set +e
while :; do
    unshare --mount --propagation private bash -c 'mount -t proc proc /proc && exec /usr/sbin/libvirtd --pid-file /run/libvirt/libvirtd.pid'
    sleep 1
done
"#;

const DAEMON: &str = r#"auth_unix_rw = "none"
auth_unix_ro = "none"
log_outputs = "2:stderr"
"#;

/// QEMU is a user of its own, as Debian has it, in libvirt's sandbox. No other security driver, no control groups
/// (there is no systemd to make them), output of QEMU into files.
const QEMU: &str = r#"security_driver = "none"
user = "libvirt-qemu"
group = "libvirt-qemu"
remember_owner = 0
cgroup_controllers = [ ]
namespaces = [ ]
stdio_handler = "file"
"#;

/// A daemon that runs; it ends with all of its guests when dropped.
#[derive(Debug)]
pub struct Libvirt {
    host: Host,
    process: Process,
}

impl Libvirt {
    /// Starts the daemon and waits until it answers.
    pub fn start(host: &Host, version: LibvirtVersion) -> Result<Libvirt, LabError> {
        let folder = host.directory().join("libvirt");
        write_folders(&folder, host)?;
        let mut command = host.command("unshare");
        command.args(["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]);
        command
            .args(["--propagation", "private", "bash", "-c", SCRIPT, "libvirt"])
            .arg(&folder)
            .arg(host.name());
        command.args(version.layers()?).args(FOLDERS.iter().flat_map(|(here, there)| [*here, *there]));
        let process =
            Process::start(&format!("libvirt {}", host.name()), command, &folder.join("daemon.log"))?;
        let mounts = PathBuf::from(format!("/proc/{}/ns/mnt", process.pid()));
        let mut libvirt = Libvirt { host: host.clone().with_mounts(mounts), process };
        libvirt.wait_ready(&folder)?;
        Ok(libvirt)
    }

    /// The host as programs see it that run beside the daemon.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Output of `virsh`; an error if it fails.
    pub fn virsh(&self, arguments: &[&str]) -> Result<String, LabError> {
        let mut command = self.host.command("virsh");
        command.arg("--quiet").args(arguments);
        tool::output(command)
    }

    /// The folder that guests see as [`IMAGES`].
    pub fn images(&self) -> PathBuf {
        self.host.directory().join("libvirt/images")
    }

    /// The folder that all guests see as [`SHARED`].
    pub fn shared(&self) -> PathBuf {
        self.host.directory().join("libvirt/../../shared")
    }

    /// Defines a guest as a domain and starts it. Its disk, if it has one, and its console are under [`IMAGES`].
    pub fn start_domain(&self, guest: &GuestSpec) -> Result<(), LabError> {
        self.start_xml(guest, &domain(guest, "", "")?)
    }

    /// The same with RAM in a shared file and a second monitor, so that direct mode can move it.
    pub fn start_shared_domain(&self, guest: &GuestSpec) -> Result<(), LabError> {
        let memory = "<memoryBacking><source type='file'/><access mode='shared'/></memoryBacking>";
        let monitor = format!(
            "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><qemu:arg value='-qmp'/>\
             <qemu:arg value='unix:{DOMAINS}/{}.sock,server=on,wait=off'/></qemu:commandline>",
            guest.name
        );
        self.start_xml(guest, &domain(guest, memory, &monitor)?)
    }

    fn start_xml(&self, guest: &GuestSpec, xml: &str) -> Result<(), LabError> {
        let file = self.host.directory().join(format!("libvirt/{}.xml", guest.name));
        std::fs::write(&file, xml).map_err(io_error("write", &file))?;
        self.virsh(&["define", &file.to_string_lossy()])?;
        self.virsh(&["start", &guest.name]).map(drop)
    }

    /// Where the console of a guest goes on this host.
    pub fn console(&self, guest: &str) -> PathBuf {
        self.images().join(format!("{guest}.serial"))
    }

    pub fn log(&self) -> &Path {
        self.process.log()
    }

    fn wait_ready(&mut self, folder: &Path) -> Result<(), LabError> {
        let (mounted, log) = (folder.join("mounted"), self.process.log().to_owned());
        let host = self.host.clone();
        wait::until(
            &format!("libvirt in host {}", host.name()),
            START_LIMIT,
            move || crate::process::tail(&log),
            || {
                self.process.must_run()?;
                if !mounted.exists() {
                    return Ok(None);
                }
                let mut virsh = host.command("virsh");
                virsh.args(["--quiet", "hostname"]);
                Ok(tool::output(virsh).ok().map(drop))
            },
        )
    }
}

/// The guest as libvirt wants it.
fn domain(guest: &GuestSpec, memory_backing: &str, monitor: &str) -> Result<String, LabError> {
    let (kernel, initrd) = guest.program.files()?;
    let booted = |path: PathBuf| Path::new(IMAGES).join(BOOT).join(path.file_name().unwrap_or_default());
    let initrd = initrd.map(|path| format!("<initrd>{}</initrd>", booted(path).display()));
    let (kind, cpu) = match guest.program.cpu() {
        Some(model) => ("kvm", format!("<cpu mode='custom' check='none'><model>{model}</model></cpu>")),
        None => ("qemu", String::new()),
    };
    let disk = guest.disk.as_ref().map(|(image, mode)| {
        let cache = if *mode == DiskMode::Direct { "none" } else { "writeback" };
        format!(
            "<disk type='file' device='disk'><driver name='qemu' type='raw' cache='{cache}'/><source file='{}'/>\
             <target dev='vda' bus='virtio'/></disk>",
            image.display()
        )
    });
    Ok(format!(
        "<domain type='{kind}'><name>{name}</name><memory unit='MiB'>{memory}</memory>{memory_backing}<vcpu>{vcpus}</vcpu>\
         <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{kernel}</kernel>{initrd}\
         <cmdline>{line}</cmdline></os>{cpu}<features><acpi/></features><on_crash>destroy</on_crash><devices>\
         <emulator>{emulator}</emulator>{disk}<controller type='usb' model='none'/><memballoon model='none'/>\
         <serial type='file'><source path='{IMAGES}/{name}.serial' append='on'/></serial></devices>{monitor}</domain>",
        name = guest.name,
        memory = guest.memory_mb,
        vcpus = guest.vcpus,
        kernel = booted(kernel).display(),
        initrd = initrd.unwrap_or_default(),
        line = guest.command_line(),
        emulator = EMULATOR,
        disk = disk.unwrap_or_default(),
    ))
}

/// Debian's user id of the hypervisor, on a machine that has none of its own.
const HYPERVISOR_USER: u32 = 64055;

/// User id of the hypervisor: the machine's own, or that of the line which is added to the users' file.
fn hypervisor_user() -> Result<u32, LabError> {
    let path = Path::new("/etc/passwd");
    let users = std::fs::read_to_string(path).map_err(io_error("read", path))?;
    let own = users.lines().find(|line| line.starts_with("libvirt-qemu:"));
    Ok(own.and_then(|line| line.split(':').nth(2)?.parse().ok()).unwrap_or(HYPERVISOR_USER))
}

fn write_folders(folder: &Path, host: &Host) -> Result<(), LabError> {
    let index = host.index();
    let make = |path: &Path| std::fs::create_dir_all(path).map_err(io_error("create", path));
    FOLDERS.iter().try_for_each(|(here, _)| make(&folder.join(here)))?;
    make(&folder.join("drivers"))?;
    for (name, mode) in [(SOCKETS, 0o1733), (MONITORS, 0o700)] {
        let path = folder.join(name);
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(io_error("open", &path))?;
    }
    let monitors = folder.join(MONITORS);
    std::os::unix::fs::chown(&monitors, Some(hypervisor_user()?), None)
        .map_err(io_error("give away", &monitors))?;
    let boot = folder.join("images").join(BOOT);
    make(&boot)?;
    for program in [GuestProgram::Linux, GuestProgram::Bare, GuestProgram::UserMode] {
        let (kernel, initrd) = program.files()?;
        for from in std::iter::once(kernel).chain(initrd) {
            let to = boot.join(from.file_name().unwrap_or_default());
            std::fs::copy(&from, &to).map_err(io_error("make", &to))?;
        }
    }
    if kvm_is_missing().is_none() {
        let node = folder.join("kvm");
        tool::run("mknod", &["--mode=666", &node.to_string_lossy(), "c", "10", "232"])?;
    }
    let driver = folder.join("drivers/libvirt_driver_qemu.so");
    let of_debian = "/usr/lib/x86_64-linux-gnu/libvirt/connection-driver/libvirt_driver_qemu.so";
    std::os::unix::fs::symlink(of_debian, &driver).map_err(io_error("create", &driver))?;
    let uuid = format!("{0}{0}{0}{0}{0}{0}{0}{0}-1111-4111-8111-111111111111", index + 1);
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(io_error("write", &path))
    };
    write("etc/libvirtd.conf", format!("host_uuid = \"{uuid}\"\n{DAEMON}"))?;
    let ram = host.ram_directory();
    write(
        "etc/qemu.conf",
        format!("{QEMU}memory_backing_dir = \"{}\"\nshared_filesystems = [ \"{SHARED}\" ]\n", ram.display()),
    )?;
    // The user that Debian's libvirt was built for must exist, also when another is configured.
    let id = HYPERVISOR_USER;
    for (name, line) in [
        ("passwd", format!("libvirt-qemu:x:{id}:{id}::/var/lib/libvirt:/usr/sbin/nologin\n")),
        ("group", format!("libvirt-qemu:x:{id}:\n")),
    ] {
        let path = Path::new("/etc").join(name);
        let known = std::fs::read_to_string(&path).map_err(io_error("read", &path))?;
        let missing = if known.contains("libvirt-qemu:") { "" } else { line.as_str() };
        write(name, format!("{known}{missing}"))?;
    }
    Ok(())
}
