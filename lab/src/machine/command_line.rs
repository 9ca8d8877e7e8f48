//! How QEMU is started.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::wires::comma;
use super::{Machine, System};
use crate::{Cache, LabError, QemuVersion};

impl Machine {
    /// QEMU's whole command line. It dies with the thread that starts it, however that ends.
    pub(super) fn command(&self, directory: &Path) -> Result<Command, LabError> {
        let cache = Cache::locate();
        // An emulated machine that gets little CPU misses the limits of real hosts. Without the privilege `nice` warns.
        let mut command = Command::new("nice");
        command.args(["-n", "-5", "setpriv", "--pdeathsig", "KILL"]).arg(cache.qemu(QemuVersion::System)?);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        // The plainest model with SSE4.2: features of newer ones cost boot time in the emulator.
        command.args(["-accel", "tcg,thread=multi", "-cpu", "Nehalem"]);
        command.args(["-smp", &self.cpus.to_string(), "-m", &format!("{}M", self.memory_mb)]);
        command.arg("-kernel").arg(cache.machine_kernel(self.kernel)?);
        command.arg("-initrd").arg(directory.join("initrd"));
        let (tsc, own) = (cache.tsc_parameter(), &self.parameters);
        let parameters = format!("console=ttyS0 panic=-1 quiet mitigations=off{tsc}{own}");
        command.args(["-append", &parameters]);
        let console = format!("file,id=console,path={}", directory.join("console.log").display());
        command.args(["-chardev", &console, "-serial", "chardev:console", "-device", "virtio-serial-pci"]);
        for (number, output) in [(1, "/dev/stdout"), (2, "/dev/stderr")] {
            command.args(["-chardev", &format!("file,id=port{number},path={output}")]);
            command.args(["-device", &format!("virtserialport,nr={number},chardev=port{number}")]);
        }
        match self.system {
            System::Rdma => folder(&mut command, "usr", Path::new("/usr"), true),
            System::Debian => folder(&mut command, "root", &cache.system_root()?, true),
        }
        folder(&mut command, "run", directory, false);
        if !self.slots.is_empty() {
            // The default machine has no PCIe.
            command.args(["-machine", "q35"]);
        }
        self.slots.iter().enumerate().for_each(|(number, slot)| slot.add(&mut command, number));
        for link in 0..self.links {
            self.wires.iter().for_each(|wires| wires.add(&mut command, link, self.mtu));
        }
        for shared in self.folders() {
            folder(&mut command, &shared.tag, &shared.path, shared.read_only);
        }
        Ok(command)
    }

    pub(super) fn folders(&self) -> impl Iterator<Item = Shared> + '_ {
        let read = self.shares.iter().map(|path| (path, true));
        let write = self.results.iter().map(|path| (path, false));
        let numbered = read.chain(write).enumerate();
        numbered.map(|(number, (path, read_only))| Shared {
            tag: format!("share{number}"),
            path: path.clone(),
            read_only,
        })
    }
}

/// A folder of the host inside of the machine.
pub(super) struct Shared {
    pub(super) tag: String,
    pub(super) path: PathBuf,
    pub(super) read_only: bool,
}

fn folder(command: &mut Command, tag: &str, path: &Path, read_only: bool) {
    let read_only = if read_only { ",readonly=on" } else { "" };
    let path = comma(path);
    let fsdev = format!("local,id={tag},path={path},security_model=none,multidevs=remap{read_only}");
    command.args(["-fsdev", &fsdev, "-device", &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}")]);
}
