//! What the QEMU of a guest opens: the files of its command line, those that its images name, and devices of this host.

use std::path::Path;

use super::Wanted;
use crate::description::ImageFormat;
use crate::incoming_qemu::{IncomingQemu, NeededNetwork};
use crate::qcow2;
use crate::qemu_user::QemuUser;
use crate::spec::{Accelerator, DiskFormat, GuestSpec};

const KVM: &str = "/dev/kvm";
const TUN: &str = "/dev/net/tun";
const VHOST: &str = "/dev/vhost-net";

const BRIDGE: &str = "QEMU's bridge helper makes a tap as root, which a QEMU that is not root cannot run: give the guest a tap \
     (`ip tuntap add NAME mode tap`, `ip link set NAME master BRIDGE up`), or set qemu_user = \"root\" in agent.toml here";

/// Of a guest that arrives, and runs under KVM or not.
pub fn of_incoming(incoming: &IncomingQemu, kvm: bool) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for file in &incoming.files {
        wanted.push(Wanted::inside(&file.path, file.writable));
        if file.format != Some(ImageFormat::Raw) {
            named_by(&mut wanted, &file.path, file.writable);
        }
    }
    let taps = incoming.networks.iter().any(|network| matches!(network, NeededNetwork::Tap { .. }));
    devices(&mut wanted, kvm, taps, &incoming.arguments);
    wanted
}

/// Of a guest that is started by a specification, with its serial port's file, if it has one of its own.
pub fn of_spec(spec: &GuestSpec, arguments: &[String]) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    for disk in &spec.disk {
        wanted.push(Wanted::new(&disk.path, !disk.readonly));
        if disk.format != DiskFormat::Raw {
            named_by(&mut wanted, &disk.path, !disk.readonly);
        }
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

/// A QEMU that was taken over may have written what an image names.
fn named_by(wanted: &mut Vec<Wanted>, image: &Path, writable: bool) {
    let others = qcow2::opened_with(image, writable);
    wanted.extend(others.into_iter().map(|(path, writable)| Wanted::inside(path, writable)));
}

fn devices(wanted: &mut Vec<Wanted>, kvm: bool, taps: bool, arguments: &[String]) {
    let vhost = taps && arguments.iter().any(|argument| argument.contains("vhost=on"));
    for (device, needed) in [(KVM, kvm), (TUN, taps), (VHOST, vhost)] {
        if needed && Path::new(device).exists() {
            wanted.push(Wanted::new(device, true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incoming_qemu::NeededFile;

    /// A qcow2 header of version 2 that names a backing file.
    fn image_on(backing: &str) -> Vec<u8> {
        let mut head = b"QFI\xfb".to_vec();
        head.extend(2_u32.to_be_bytes());
        head.extend(72_u64.to_be_bytes());
        head.extend(u32::try_from(backing.len()).unwrap().to_be_bytes());
        head.extend(16_u32.to_be_bytes());
        head.resize(72, 0);
        head.extend(backing.as_bytes());
        head
    }

    #[test]
    fn what_another_host_names_is_not_what_the_operator_names() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        std::fs::write(&disk, image_on("/etc/shadow")).unwrap();
        let needs = |format| {
            let (source, path) = ("/source".into(), disk.clone());
            let file = NeededFile { source, path, writable: true, format: Some(format), as_device: None };
            let incoming = IncomingQemu {
                name: "g".into(),
                arguments: vec![],
                qmp: "/q".into(),
                pid_file: "/p".into(),
                ram_files: vec![],
                files: vec![file],
                networks: vec![],
                firmware: vec![],
                user_network: false,
                notes: vec![],
            };
            of_incoming(&incoming, false)
        };
        // What a guest writes to the beginning of its raw disk is data.
        assert_eq!(needs(ImageFormat::Raw), [Wanted::inside(&disk, true)]);
        let both = [Wanted::inside(&disk, true), Wanted::inside("/etc/shadow", false)];
        assert_eq!(needs(ImageFormat::Qcow2), both);
    }

    #[test]
    fn what_an_image_names_is_not_what_the_operator_names() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().join("disk");
        let text = format!("name = \"g\"\nmemory = \"64M\"\n[[disk]]\npath = {disk:?}\nformat = \"qcow2\"\n");
        let wanted = || {
            let spec = GuestSpec::parse(&text, dir.path()).unwrap();
            let files = of_spec(&spec, &[]);
            files.into_iter().filter(|one| one.path != Path::new(KVM)).collect::<Vec<Wanted>>()
        };
        std::fs::write(&disk, image_on("/etc/shadow")).unwrap();
        assert_eq!(wanted(), [Wanted::new(&disk, true), Wanted::inside("/etc/shadow", false)]);
        // QEMU opens it, with its own rights.
        std::fs::write(&disk, image_on("nbd:localhost:10809")).unwrap();
        assert_eq!(wanted(), [Wanted::new(&disk, true)]);
    }
}
