//! What an arriving guest may open here because of the host that it comes from, besides the agent's `file_roots`.
//!
//! Grants narrow the folders: all later checks, which follow links and chains of images, get the folders that both
//! allow. A device is granted apart from files, so that no folder of files grants one by a link.

use std::fmt;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use linerate_guest::argv::split_loose;
use linerate_guest::incoming_qemu::{IncomingQemu, NeededNetwork};
use linerate_guest::options::Options;
use linerate_guest::own_folders::{OwnFile, OwnFolders};
use linerate_trust::grants::{Grants, Root};
use linerate_trust::name::HostName;

use crate::security::{HostGrants, PeerName, Security};

/// What QEMU opens for a `vhost-vsock` device.
const VSOCK: &str = "/dev/vhost-vsock";
/// What QEMU reads for a guest that is to have random numbers of this host's hardware.
const HARDWARE_RANDOM: &str = "/dev/hwrng";

/// All that a guest needs and that is not granted to its host.
#[derive(Debug, thiserror::Error)]
#[error("{}", together(.0))]
pub(super) struct NotGranted(Vec<Refused>);

fn together(refused: &[Refused]) -> String {
    refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// One thing of it, and where an operator grants it.
#[derive(Debug, thiserror::Error)]
#[error(
    "{needed} is not granted to guests of host {host}: add {} to `{}` in {table} of agent.toml here",
    needed.entry(), needed.list()
)]
struct Refused {
    needed: Needed,
    host: HostName,
    /// Where the grants of that host are.
    table: String,
}

/// What a guest opens here.
#[derive(Debug)]
enum Needed {
    File(PathBuf),
    Device(PathBuf),
    Tap(String),
    Bridge(String),
}

impl Needed {
    /// The list of grants that it can be in.
    fn list(&self) -> &'static str {
        match self {
            Needed::File(_) => "folders",
            Needed::Device(_) => "devices",
            Needed::Tap(_) => "taps",
            Needed::Bridge(_) => "bridges",
        }
    }

    /// What an operator adds to that list.
    fn entry(&self) -> &'static str {
        match self {
            Needed::File(_) => "its folder",
            Needed::Device(_) | Needed::Tap(_) | Needed::Bridge(_) => "it",
        }
    }
}

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Needed::File(path) => write!(f, "{}", path.display()),
            Needed::Device(path) => write!(f, "device {}", path.display()),
            Needed::Tap(name) => write!(f, "tap {name:?}"),
            Needed::Bridge(name) => write!(f, "bridge {name:?}"),
        }
    }
}

/// Refuses a guest that needs what is not granted to its host, with all the reasons. Otherwise the folders whose files
/// and devices it may open.
pub(super) fn check(
    security: &Security,
    peer: &PeerName,
    roots: &[PathBuf],
    made: &IncomingQemu,
) -> Result<Vec<PathBuf>, NotGranted> {
    let Some(granted) = security.grants(peer) else { return Ok(roots.to_vec()) };
    let files = made.files.iter().filter_map(|file| of_file(&granted, &file.path));
    let networks = made.networks.iter().filter_map(|network| of_network(&granted, network));
    let needed = files.chain(networks).chain(of_host_devices(&granted, made));
    let refused = |needed| Refused { needed, host: granted.host.clone(), table: granted.table.clone() };
    let all: Vec<Refused> = needed.map(refused).collect();
    if all.is_empty() { Ok(both(roots, granted.grants)) } else { Err(NotGranted(all)) }
}

/// Refuses what is the agent's own, and can be granted to nobody. The source names files, and their images name others.
pub(super) fn check_own(own: &OwnFolders, made: &IncomingQemu) -> Result<(), OwnFile> {
    // KVM's device is not among the files in question.
    let opened = linerate_guest::access::needs::of_incoming(made, false);
    own.check(opened.iter().map(|wanted| wanted.path.as_path()))
}

/// A file or a device that is not granted.
fn of_file(granted: &HostGrants<'_>, path: &Path) -> Option<Needed> {
    let about = fs::metadata(path).map(|about| about.file_type());
    if about.is_ok_and(|kind| kind.is_block_device() || kind.is_char_device()) {
        let refused = granted.grants.device(path).is_err();
        return refused.then(|| Needed::Device(path.to_owned()));
    }
    let folders = &granted.grants.folders;
    let refused = !target(path).is_some_and(|to| is_inside(&to, folders));
    refused.then(|| Needed::File(path.to_owned()))
}

fn of_network(granted: &HostGrants<'_>, network: &NeededNetwork) -> Option<Needed> {
    match network {
        NeededNetwork::Tap { name, .. } => {
            let refused = granted.grants.tap(name).is_err();
            refused.then(|| Needed::Tap(name.clone()))
        }
        NeededNetwork::Bridge { name } => {
            let refused = granted.grants.bridge(name).is_err();
            refused.then(|| Needed::Bridge(name.clone()))
        }
    }
}

/// Devices that options open without naming a file of the guest's. Each is one for the whole host: a guest could take
/// the address of another's vsock, or read all random numbers of the hardware.
fn of_host_devices(granted: &HostGrants<'_>, made: &IncomingQemu) -> Vec<Needed> {
    let arguments = split_loose(&made.arguments);
    let has = |name: &str, implied: &str, opens: fn(&Options) -> bool| {
        let values = arguments.iter().filter(|argument| argument.name == name);
        values.filter_map(|argument| argument.value.as_deref()).any(|value| {
            let options = Options::parse(value, Some(implied)).unwrap_or_default();
            opens(&options)
        })
    };
    let vsock = has("device", "driver", |device| {
        device.get("driver").is_some_and(|driver| driver.starts_with("vhost-vsock"))
    });
    let random = has("object", "qom-type", |object| object.get("filename") == Some(HARDWARE_RANDOM));
    [(VSOCK, vsock), (HARDWARE_RANDOM, random)]
        .into_iter()
        .filter(|(path, is_opened)| *is_opened && granted.grants.device(Path::new(path)).is_err())
        .map(|(path, _)| Needed::Device(path.into()))
        .collect()
}

/// Where a path leads. The file itself may still have to be made.
fn target(path: &Path) -> Option<PathBuf> {
    let made = || Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
    fs::canonicalize(path).ok().or_else(made)
}

fn is_inside(target: &Path, folders: &[Root]) -> bool {
    folders.iter().map(Root::path).any(|folder| {
        target.starts_with(folder) || fs::canonicalize(folder).is_ok_and(|folder| target.starts_with(folder))
    })
}

/// The folders that the agent's list and the grants allow.
fn both(roots: &[PathBuf], grants: &Grants) -> Vec<PathBuf> {
    let whole = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let within =
        |inner: &Path, outer: &Path| inner.starts_with(outer) || whole(inner).starts_with(whole(outer));
    let mut both = Vec::new();
    for granted in grants.folders.iter().chain(&grants.devices).map(Root::path) {
        for root in roots {
            if within(granted, root) {
                both.push(granted.to_owned());
            } else if within(root, granted) {
                both.push(root.clone());
            }
        }
    }
    both
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::Arc;

    use linerate_guest::incoming_qemu::NeededFile;

    use super::*;
    use crate::security::tests::member;
    use crate::testing::authority;

    struct Host {
        dir: tempfile::TempDir,
        security: Arc<Security>,
        roots: Vec<PathBuf>,
    }

    /// A host that grants host b the folder, and more.
    fn secured(dir: &tempfile::TempDir, name: &str, more: &str) -> Arc<Security> {
        let own = |what: &str| dir.path().join(format!("{name}-{what}"));
        let mut authority = authority(&own("authority"));
        let granted = dir.path().join("granted");
        let policy = format!("[grants]\nfolders = []\n[hosts.b.grants]\nfolders = [{granted:?}]\n{more}\n");
        member(&mut authority, &own("a"), "a", &policy)
    }

    /// With a folder that is granted to host b, and one that is not; the agent allows both.
    fn host() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let folder = |name: &str| {
            fs::create_dir(dir.path().join(name)).unwrap();
            dir.path().join(name)
        };
        let (granted, other) = (folder("granted"), folder("other"));
        for path in [granted.join("disk"), other.join("disk")] {
            fs::write(path, "x").unwrap();
        }
        let more = "devices = [\"/dev/null\"]\nbridges = [\"br0\"]\ntaps = [\"b-*\"]\n";
        let security = secured(&dir, "first", more);
        let roots = vec![dir.path().to_owned(), "/dev".into()];
        Host { dir, security, roots }
    }

    fn needs(files: &[PathBuf], networks: Vec<NeededNetwork>) -> IncomingQemu {
        let file = |path: &PathBuf| NeededFile {
            source: "/source".into(),
            path: path.clone(),
            writable: true,
            format: None,
            as_device: None,
        };
        IncomingQemu {
            name: "g".into(),
            arguments: vec![],
            qmp: "/q".into(),
            pid_file: "/p".into(),
            ram_files: vec![],
            files: files.iter().map(file).collect(),
            networks,
            firmware: vec![],
            user_network: false,
            notes: vec![],
        }
    }

    impl Host {
        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().join(name)
        }

        fn check(&self, peer: &str, path: PathBuf) -> Result<Vec<PathBuf>, NotGranted> {
            check(&self.security, &Some(peer.parse().unwrap()), &self.roots, &needs(&[path], vec![]))
        }
    }

    #[test]
    fn a_file_is_refused_unless_it_is_granted_to_the_host_that_the_guest_comes_from() {
        let host = host();
        let (granted, other) = (host.path("granted/disk"), host.path("other/disk"));
        // A file that will be made counts by its folder.
        for path in [&granted, &host.path("granted/new")] {
            assert_eq!(host.check("b", path.clone()).unwrap(), [host.path("granted"), "/dev/null".into()]);
        }
        let refused = host.check("b", other.clone()).unwrap_err().to_string();
        let expected = format!(
            "{} is not granted to guests of host b: add its folder to `folders` in [peers.hosts.b.grants] of agent.toml here",
            other.display()
        );
        assert_eq!(refused, expected);
        // Another host has the grants for all, which are none.
        let refused = host.check("c", granted.clone()).unwrap_err().to_string();
        assert!(refused.contains("host c: add its folder to `folders` in [peers.grants]"), "{refused}");
        // Without TLS nobody has proved to be anybody.
        let all = check(&Security::insecure(), &None, &host.roots, &needs(&[other], vec![])).unwrap();
        assert_eq!(all, host.roots);
    }

    #[test]
    fn a_link_leads_to_nothing_that_is_not_granted() {
        let host = host();
        for (link, to) in [("file", host.path("other/disk")), ("device", "/dev/zero".into())] {
            let link = host.path("granted").join(link);
            symlink(to, &link).unwrap();
            let refused = host.check("b", link).unwrap_err().to_string();
            assert!(refused.contains("is not granted to guests of host b"), "{refused}");
        }
    }

    #[test]
    fn a_device_needs_a_grant_of_devices() {
        let host = host();
        host.check("b", "/dev/null".into()).unwrap();
        let refused = host.check("b", "/dev/zero".into()).unwrap_err().to_string();
        assert!(refused.contains("device /dev/zero is not granted"), "{refused}");
        assert!(refused.contains("add it to `devices` in [peers.hosts.b.grants]"), "{refused}");
    }

    #[test]
    fn a_vsock_needs_a_grant_of_its_device() {
        let mut host = host();
        let asks = |host: &Host, device: &str| {
            let made = IncomingQemu {
                arguments: vec!["-device".into(), device.into()],
                ..needs(&[host.path("granted/disk")], vec![])
            };
            check(&host.security, &Some("b".parse().unwrap()), &host.roots, &made)
        };
        for device in ["driver=vhost-vsock-pci,guest-cid=3", "vhost-vsock-device,guest-cid=3"] {
            let refused = asks(&host, device).unwrap_err().to_string();
            assert!(refused.contains("device /dev/vhost-vsock is not granted"), "{refused}");
        }
        asks(&host, "driver=virtio-rng-pci,id=vhost-vsock").unwrap();
        host.security = secured(&host.dir, "again", "devices = [\"/dev/vhost-vsock\"]");
        asks(&host, "driver=vhost-vsock-pci,guest-cid=3").unwrap();
    }

    #[test]
    fn random_numbers_of_the_hardware_need_a_grant_of_its_device() {
        let mut host = host();
        let asks = |host: &Host, source: &str| {
            let object = format!("qom-type=rng-random,id=r{source}");
            let made = IncomingQemu { arguments: vec!["-object".into(), object], ..needs(&[], vec![]) };
            check(&host.security, &Some("b".parse().unwrap()), &host.roots, &made)
        };
        let refused = asks(&host, ",filename=/dev/hwrng").unwrap_err().to_string();
        assert!(refused.contains("device /dev/hwrng is not granted"), "{refused}");
        for of_the_kernel in ["", ",filename=/dev/urandom", ",filename=/dev/random"] {
            asks(&host, of_the_kernel).unwrap();
        }
        host.security = secured(&host.dir, "again", "devices = [\"/dev/hwrng\"]");
        asks(&host, ",filename=/dev/hwrng").unwrap();
    }

    #[test]
    fn bridges_and_taps_are_granted_by_name_and_all_reasons_are_given() {
        let host = host();
        let peer = Some("b".parse().unwrap());
        let tap = |name: &str| NeededNetwork::Tap { name: name.into(), bridge: None };
        let bridge = |name: &str| NeededNetwork::Bridge { name: name.into() };
        let asks = |networks| check(&host.security, &peer, &host.roots, &needs(&[], networks));
        asks(vec![tap("b-1"), bridge("br0")]).unwrap();
        let refused = asks(vec![tap("c-1"), bridge("br1")]).unwrap_err().to_string();
        assert!(refused.contains("tap \"c-1\"") && refused.contains("`taps`"), "{refused}");
        assert!(refused.contains("bridge \"br1\"") && refused.contains("`bridges`"), "{refused}");
    }

    #[test]
    fn nobody_is_granted_what_is_the_agents_own() {
        let host = host();
        let own = OwnFolders::new(host.path("granted"), vec![]);
        // Everything of the other folder is allowed, and an image there names a file of the agent's.
        let image = host.path("other/image");
        let mut head = b"QFI\xfb\0\0\0\x02".to_vec();
        head.extend(72_u64.to_be_bytes());
        head.extend([0, 0, 0, 15, 0, 0, 0, 16]);
        head.resize(72, 0);
        head.extend(b"../granted/disk");
        fs::write(&image, head).unwrap();
        for path in [host.path("granted/disk"), host.path("granted/new"), image] {
            let refused = check_own(&own, &needs(&[path], vec![])).unwrap_err();
            assert!(refused.target.starts_with(host.path("granted")), "{refused}");
        }
        check_own(&own, &needs(&[host.path("other/disk")], vec![])).unwrap();
    }

    #[test]
    fn grants_do_not_widen_the_folders_of_the_agent() {
        let host = host();
        let security = &host.security;
        let peer = Some("b".parse().unwrap());
        let made = needs(&[host.path("granted/disk")], vec![]);
        let roots = |of: &[PathBuf]| check(security, &peer, of, &made).unwrap();
        assert!(roots(&["/srv".into()]).is_empty());
        assert_eq!(roots(&[host.path("granted/inner")]), [host.path("granted/inner")]);
    }
}
