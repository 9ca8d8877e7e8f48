//! What `lab/install.sh` put into the cache folder.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{LabError, MachineKernel, tool};

/// The cache folder: QEMU 10, the guest's kernel and initramfs.
#[derive(Debug, Clone)]
pub struct Cache {
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QemuVersion {
    /// Debian 12's own, 7.2.
    System,
    /// 10.0 of bookworm-backports, from the cache folder.
    Ten,
}

impl QemuVersion {
    /// Both, for tests that go over all.
    pub const ALL: [QemuVersion; 2] = [QemuVersion::System, QemuVersion::Ten];

    /// Short name, as in agent configurations.
    pub fn name(self) -> &'static str {
        match self {
            QemuVersion::System => "system",
            QemuVersion::Ten => "ten",
        }
    }
}

impl Cache {
    /// `$LINERATE_CACHE`, or `.cache` in the workspace.
    pub fn locate() -> Cache {
        let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../.cache");
        let directory = std::env::var_os("LINERATE_CACHE").map_or_else(default, PathBuf::from);
        Cache { directory: directory.canonicalize().unwrap_or(directory) }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Runs `lab/install.sh` with the given steps, all when none.
    pub fn install(&self, steps: &[&str]) -> Result<String, LabError> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
        let folder = format!("LINERATE_CACHE={}", self.directory.display());
        tool::run("env", &[&[folder.as_str(), &script.to_string_lossy()], steps].concat())
    }

    pub fn kernel(&self) -> Result<PathBuf, LabError> {
        self.file("kernel/vmlinuz")
    }

    /// The guest's initramfs, made from lab/guest.
    pub fn initramfs(&self) -> Result<PathBuf, LabError> {
        self.file("guest/initramfs.cpio")
    }

    /// How fast this host's time stamp counter is, in kHz; none where that cannot be found out.
    ///
    /// QEMU gives it to emulated guests as theirs. A guest measures its rate at boot, and on a busy host it may be
    /// wrong. 42 guests booted beside each other on two processors with five busy loops. One had a clock that was 4.6
    /// times too fast, and two had one that was 36 times too fast.
    pub fn tsc_khz(&self) -> Option<u64> {
        static KHZ: OnceLock<Option<u64>> = OnceLock::new();
        let program = || self.file("guest/tsc").ok().map(|file| file.to_string_lossy().into_owned());
        *KHZ.get_or_init(|| tool::run(&program()?, &[]).ok()?.trim().parse().ok())
    }

    /// Tells a kernel the same, with a blank before it.
    pub fn tsc_parameter(&self) -> String {
        self.tsc_khz().map(|khz| format!(" tsc_early_khz={khz}")).unwrap_or_default()
    }

    /// The guest that needs no kernel, as a multiboot program.
    pub fn bare_guest(&self) -> Result<PathBuf, LabError> {
        self.file("guest/bare")
    }

    /// The same as a program for user mode under KVM.
    pub fn user_mode_guest(&self) -> Result<PathBuf, LabError> {
        self.file("guest/user")
    }

    /// A kernel of the RDMA lab's machine.
    pub fn machine_kernel(&self, kernel: MachineKernel) -> Result<PathBuf, LabError> {
        self.file(&format!("rdma-kernel-{}/vmlinuz", kernel.series()))
    }

    /// Modules of that kernel, as a part of an initramfs.
    pub fn machine_modules(&self, kernel: MachineKernel) -> Result<PathBuf, LabError> {
        self.file(&format!("rdma-kernel-{}/modules.cpio", kernel.series()))
    }

    /// The machine's root, the other part of its initramfs.
    pub fn machine_root(&self) -> Result<PathBuf, LabError> {
        self.file("rdma-image/root.cpio")
    }

    /// A Debian system with systemd, as a folder tree.
    pub fn system_root(&self) -> Result<PathBuf, LabError> {
        self.file("system-root")
    }

    /// The start of a machine with that system, a part of its initramfs.
    pub fn system_image(&self) -> Result<PathBuf, LabError> {
        self.file("system-image/root.cpio")
    }

    pub fn qemu(&self, version: QemuVersion) -> Result<PathBuf, LabError> {
        match version {
            QemuVersion::System => existing("/usr/bin/qemu-system-x86_64".into()),
            QemuVersion::Ten => self.file("qemu10/usr/bin/qemu-system-x86_64"),
        }
    }

    /// Folders for QEMU's `-L`, in search order; none for the system's, which knows its own.
    pub fn qemu_data(&self, version: QemuVersion) -> Result<Vec<PathBuf>, LabError> {
        match version {
            QemuVersion::System => Ok(Vec::new()),
            QemuVersion::Ten => Ok(vec![
                self.file("qemu10/usr/share/seabios")?,
                self.file("qemu10/usr/share/qemu")?,
                existing("/usr/share/qemu".into())?,
            ]),
        }
    }

    /// What QEMU 10's packages were unpacked to.
    pub fn qemu10(&self) -> Result<PathBuf, LabError> {
        self.file("qemu10")
    }

    /// What libvirt 11's packages were unpacked to.
    pub fn libvirt11(&self) -> Result<PathBuf, LabError> {
        self.file("libvirt11")
    }

    /// A program of lldpd's: `lldpd`, `lldpcli`.
    pub fn lldpd(&self, program: &str) -> Result<PathBuf, LabError> {
        self.file(&format!("lldpd/usr/sbin/{program}"))
    }

    /// Libraries that belong to them.
    pub fn lldpd_libraries(&self) -> Result<PathBuf, LabError> {
        self.file("lldpd/usr/lib/x86_64-linux-gnu")
    }

    /// The etcd server of Debian, unpacked.
    pub fn etcd(&self) -> Result<PathBuf, LabError> {
        self.file("etcd/usr/bin/etcd")
    }

    /// The ssh server of Debian, unpacked.
    pub fn sshd(&self) -> Result<PathBuf, LabError> {
        self.file("sshd/usr/sbin/sshd")
    }

    fn file(&self, name: &str) -> Result<PathBuf, LabError> {
        existing(self.directory.join(name))
    }
}

fn existing(path: PathBuf) -> Result<PathBuf, LabError> {
    if path.exists() { Ok(path) } else { Err(LabError::Missing { path }) }
}
