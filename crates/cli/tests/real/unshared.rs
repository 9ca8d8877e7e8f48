//! Hosts that do not share disks.

use std::path::{Path, PathBuf};

use linerate_lab::{Cache, DiskMode, GuestSpec, Lab, QemuOptions, QemuVersion, Ram};

use super::{Stage, hosts_of, plain_disk_mbps};

impl Stage {
    /// With a guest that no agent started, on hosts that do not share disks: what is in `here` on the one is in `there`
    /// on the other. `prepare` makes what else the guest has in the first folder, and says what arguments that takes.
    pub fn unshared(
        links_mbps: &[u64],
        guest: GuestSpec,
        disk: Option<DiskMode>,
        prepare: impl FnOnce(&Path) -> Vec<String>,
    ) -> Stage {
        let mbps = plain_disk_mbps(guest.program);
        Stage::unshared_busy(links_mbps, guest, disk.map(|mode| (mode, mbps)), prepare)
    }

    /// With a guest that writes its disk so fast, in MiB/s; 0: as fast as it goes.
    pub fn unshared_busy(
        links_mbps: &[u64],
        mut guest: GuestSpec,
        disk: Option<(DiskMode, u64)>,
        prepare: impl FnOnce(&Path) -> Vec<String>,
    ) -> Stage {
        if let Some((_, mbps)) = disk {
            guest.parameters.disk_generation = Some(1);
            guest.parameters.disk_mbps = mbps;
        }
        let hosts = hosts_of(Lab::builder(), links_mbps, |lab| {
            let [here, there] = disk_folders(lab);
            for folder in [&here, &there] {
                std::fs::create_dir_all(folder).unwrap();
            }
            paths_between(&here, &there)
        });
        let folder = disk_folders(&hosts.1).into_iter().next().unwrap();
        let arguments = prepare(&folder);
        let options = QemuOptions { ram: Ram::Plain, locks: true, arguments, ..QemuOptions::default() };
        Stage::foreign_on(hosts, &folder, guest, disk.map(|(mode, _)| mode), options)
    }

    /// The same on hosts that share all disks, with RAM that direct mode can move.
    pub fn shared(links_mbps: &[u64], guest: GuestSpec, prepare: impl FnOnce(&Path) -> Vec<String>) -> Stage {
        let hosts = hosts_of(Lab::builder(), links_mbps, |_| String::new());
        let folder = hosts.1.directory().to_owned();
        let arguments = prepare(&folder);
        let options = QemuOptions { locks: true, arguments, ..QemuOptions::default() };
        Stage::foreign_on(hosts, &folder, guest, None, options)
    }

    /// Where the disks of hosts that do not share them are: of the host that has the guest, and of the other.
    pub fn disks(&self) -> [PathBuf; 2] {
        let mut folders = disk_folders(&self.lab);
        folders.rotate_left(self.source);
        folders
    }

    /// A QEMU that says what the others say of themselves and never starts is the first choice of the destination's
    /// agent. It leaves in a file what was in the folder of disks when it was to start.
    pub fn restart_destination_with_broken_qemu(&mut self) -> PathBuf {
        let [here, there] = self.disks();
        let (program, found) = (self.lab.directory().join("broken-qemu"), self.lab.directory().join("found"));
        let real = Cache::locate().qemu(QemuVersion::Ten).unwrap();
        // It runs as a user that may not make files there.
        std::fs::write(&found, "").unwrap();
        std::fs::set_permissions(&found, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        let (real, folder, list) = (real.display(), there.display(), found.display());
        let script = format!(
            "#!/bin/sh\ncase $1 in -version|-machine) exec {real} \"$@\";; esac\nls {folder} > {list}\necho it does not start >&2\nexit 1\n"
        );
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let paths = paths_between(&here, &there);
        let broken =
            format!("[[qemu]]\nname = \"broken\"\nbinary = \"{}\"\ndata_dirs = []\n", program.display());
        self.restart_destination_with(&format!("{paths}{broken}"));
        found
    }

    /// As it was at first.
    pub fn restart_destination_whole(&mut self) {
        self.restart_destination_with_paths(&[]);
    }

    /// With files of the source that have another name at the destination.
    pub fn restart_destination_with_paths(&mut self, files: &[(&Path, &Path)]) {
        let [here, there] = self.disks();
        self.restart_destination_with(&paths(&[(&here, &there)], files));
    }
}

fn disk_folders(lab: &Lab) -> [PathBuf; 2] {
    ["here", "there"].map(|name| lab.directory().join("disks").join(name))
}

fn paths_between(here: &Path, there: &Path) -> String {
    paths(&[(here, there), (there, here)], &[])
}

/// `paths` of the configuration.
fn paths(folders: &[(&Path, &Path)], files: &[(&Path, &Path)]) -> String {
    let folders = folders.iter().map(|(from, to)| format!("\"{}/\" = \"{}/\"", from.display(), to.display()));
    let files = files.iter().map(|(from, to)| format!("\"{}\" = \"{}\"", from.display(), to.display()));
    format!("paths = {{ {} }}\n", folders.chain(files).collect::<Vec<_>>().join(", "))
}
