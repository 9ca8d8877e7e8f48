//! Kernel, distribution, firmware, clock.

use crate::collect::root::Root;
use crate::model::{Feature, System, Time};

/// Whether /dev/kvm can be opened: in a virtual machine it may be there without a hypervisor below. Unknown without the right to try.
pub fn kvm(root: &Root) -> Option<bool> {
    match std::fs::File::options().read(true).write(true).open(root.path("dev/kvm")) {
        Ok(_) => Some(true),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
        Err(_) => Some(false),
    }
}

/// Reads them.
pub fn read(root: &Root) -> System {
    let kernel = root.text("proc/sys/kernel/osrelease");
    System {
        os: Some("linux".to_owned()),
        distribution: distribution(root),
        features: features(root, kernel.as_deref()),
        kernel,
        architecture: Some(std::env::consts::ARCH.to_owned()),
        secure_boot: secure_boot(root),
    }
}

/// Whether the clock is steered: only systemd-timesyncd leaves a file; whether chrony does is not known.
pub fn time(root: &Root) -> Time {
    Time {
        synchronised: root.exists("run/systemd/timesync/synchronized").then_some(true),
        error_max_us: None,
    }
}

fn distribution(root: &Root) -> Option<String> {
    let text = root.text("etc/os-release")?;
    let value = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"').to_owned())
}

/// A host without EFI has no Secure Boot. The variable is four bytes of attributes and one that says on or off.
fn secure_boot(root: &Root) -> Option<bool> {
    if !root.exists("sys/firmware") {
        return None;
    }
    if !root.exists("sys/firmware/efi") {
        return Some(false);
    }
    let bytes = root.bytes("sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")?;
    bytes.get(4).map(|on| *on == 1)
}

fn features(root: &Root, kernel: Option<&str>) -> Vec<Feature> {
    let feature = |name: &str, present: bool, needed_for: &str| Feature {
        name: name.to_owned(),
        present,
        needed_for: needed_for.to_owned(),
    };
    let mut features = Vec::new();
    if let Some(release) = kernel.and_then(release) {
        features.push(feature("pagemap_scan", release >= (6, 7), "direct mode, at the source"));
    }
    if let Some(protocols) = root.text("proc/sys/net/ipv4/tcp_available_ulp") {
        let present = protocols.split_whitespace().any(|one| one == "tls");
        features.push(feature("kernel_tls", present, "encryption in the kernel"));
    }
    features
}

fn release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::fixture::files;

    #[test]
    fn a_system_of_a_fixture() {
        let variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
        let (_folder, root) = files(&[
            ("proc/sys/kernel/osrelease", "6.1.0-30-amd64\n"),
            ("etc/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"),
            (variable, "\x06\0\0\0\x01"),
            ("proc/sys/net/ipv4/tcp_available_ulp", "espintcp mptcp tls"),
        ]);
        let system = read(&root);
        assert_eq!(system.kernel.as_deref(), Some("6.1.0-30-amd64"));
        assert_eq!(system.distribution.as_deref(), Some("Debian GNU/Linux 12 (bookworm)"));
        assert_eq!(system.secure_boot, Some(true));
        let present: Vec<bool> = system.features.iter().map(|feature| feature.present).collect();
        assert_eq!(present, [false, true]);
    }

    #[test]
    fn direct_mode_needs_a_kernel_of_6_7() {
        for (text, expected) in [("6.7.0", (6, 7)), ("6.12.9-amd64", (6, 12)), ("10.0-rc1", (10, 0))] {
            assert_eq!(release(text), Some(expected));
        }
        assert_eq!(release("six"), None);
        assert!((6, 12) >= (6, 7) && (10, 0) >= (6, 7) && (6, 1) < (6, 7));
    }

    #[test]
    fn secure_boot_is_not_known_without_sysfs_and_off_without_efi() {
        let (_folder, root) = files::<&str, &str>(&[]);
        assert_eq!(secure_boot(&root), None);
        let (_folder, root) = files(&[("sys/firmware/acpi/x", "")]);
        assert_eq!(secure_boot(&root), Some(false));
    }
}
