//! What the QEMU of a guest opens: the files of its command line, those that its images name, and devices of this host.

use std::path::{Path, PathBuf};

use super::Wanted;
use crate::description::{GuestDescription, ImageFormat};
use crate::incoming_qemu::{IncomingQemu, NeededNetwork};
use crate::qcow2;
use crate::qemu_user::QemuUser;
use crate::spec::{Accelerator, DiskFormat, GuestSpec};

const KVM: &str = "/dev/kvm";
const TUN: &str = "/dev/net/tun";
const VHOST: &str = "/dev/vhost-net";

const BRIDGE: &str = "QEMU's bridge helper makes a tap as root, which a QEMU that is not root cannot run: give the guest a tap \
     (`ip tuntap add NAME mode tap`, `ip link set NAME master BRIDGE up`), or set qemu_user = \"root\" in agent.toml here";

/// Of a guest that arrives.
pub fn of_incoming(guest: &GuestDescription, incoming: &IncomingQemu) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for file in &incoming.files {
        image(&mut wanted, &file.path, file.writable, file.format != Some(ImageFormat::Raw));
    }
    let taps = incoming.networks.iter().any(|network| matches!(network, NeededNetwork::Tap { .. }));
    devices(&mut wanted, guest.accelerator == "kvm", taps, &incoming.arguments);
    wanted
}

/// Of a guest that is started by a specification, with its serial port's file, if it has one of its own.
pub fn of_spec(spec: &GuestSpec, arguments: &[String]) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for disk in &spec.disk {
        image(&mut wanted, &disk.path, !disk.readonly, disk.format != DiskFormat::Raw);
    }
    wanted.extend(spec.kernel.iter().chain(&spec.initrd).map(|path| Wanted::new(path, false)));
    wanted.extend(spec.serial.iter().map(|path| Wanted::new(path, true)));
    let taps = spec.nic.iter().any(|nic| nic.tap.is_some());
    devices(&mut wanted, spec.accel == Accelerator::Kvm, taps, arguments);
    wanted
}

/// Why this user's QEMU cannot have the networks of an arriving guest.
pub fn network_problem(user: &QemuUser, networks: &[NeededNetwork]) -> Option<String> {
    networks.iter().find_map(|network| match network {
        NeededNetwork::Bridge { .. } => Some(BRIDGE.to_owned()),
        NeededNetwork::Tap { name, .. } => tap_problem(user, name),
    })
}

/// The same for a guest that is started here.
pub fn spec_problem(user: &QemuUser, spec: &GuestSpec) -> Option<String> {
    spec.nic.iter().find_map(|nic| match &nic.tap {
        Some(tap) => tap_problem(user, tap),
        None => Some(BRIDGE.to_owned()),
    })
}

/// The kernel lets a user take a tap that is that user's, or nobody's.
fn tap_problem(user: &QemuUser, name: &str) -> Option<String> {
    let folder = Path::new("/sys/class/net").join(name.replace('/', "_"));
    let owner: i64 = std::fs::read_to_string(folder.join("owner")).ok()?.trim().parse().ok()?;
    let is_others = owner >= 0 && owner != i64::from(user.uid);
    is_others.then(|| {
        format!(
            "the tap {name} belongs to user {owner}, and QEMU runs here as {} (qemu_user): make it again with `ip tuntap add \
             {name} mode tap user {}`, or without a user",
            user.name, user.name
        )
    })
}

fn image(wanted: &mut Vec<Wanted>, path: &Path, writable: bool, names_others: bool) {
    wanted.push(Wanted::new(path, writable));
    // What cannot be read is refused elsewhere, with the reason.
    let others =
        if names_others { qcow2::opened_with(path, writable).unwrap_or_default() } else { Vec::new() };
    wanted.extend(others.into_iter().map(|(path, writable)| Wanted { path, writable }));
}

fn devices(wanted: &mut Vec<Wanted>, kvm: bool, taps: bool, arguments: &[String]) {
    let vhost = taps && arguments.iter().any(|argument| argument.contains("vhost=on"));
    for (device, needed) in [(KVM, kvm), (TUN, taps), (VHOST, vhost)] {
        if needed && Path::new(device).exists() {
            wanted.push(Wanted { path: PathBuf::from(device), writable: true });
        }
    }
}
