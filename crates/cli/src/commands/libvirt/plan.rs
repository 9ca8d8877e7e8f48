//! What is asked of libvirt and of the tunnel.

use std::path::PathBuf;

use linerate_api::{ModeChoice, Transport, TunnelAddress, TunnelPair, TunnelRequest, domain_socket};

use super::target::Target;
use super::xml::Changes;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::MigrateFlags;

/// Sockets of migrations, at the same path on both hosts, because libvirt has one name for both ends.
const FOLDER: &str = "/run/linerate-libvirt";

/// Refuses what there is no place for, whichever way the domain goes, instead of leaving it out in silence.
pub fn check(flags: &MigrateFlags) -> Result<(), Failure> {
    let direct = flags.mode == ModeChoice::Direct;
    refuse(
        &[
            (flags.throttle, "--throttle"),
            (flags.detach, "--detach"),
            (flags.storage_share.is_some(), "--storage-share"),
            (direct && flags.copy_storage.is_some(), "--copy-storage with --mode direct"),
            (direct && !flags.copy_disks.is_empty(), "--copy-disks with --mode direct"),
            (!flags.shared_storage.is_empty(), "--shared-storage"),
            (direct && flags.connections.is_some(), "--connections with --mode direct"),
        ],
        "for domains of libvirt",
        "leave the flag out",
    )
}

/// Refuses what libvirt's own migration has no place for.
pub fn check_own(flags: &MigrateFlags, reason: Option<&str>) -> Result<(), Failure> {
    let why = reason.map(|reason| format!("; this one is moved so because: {reason}")).unwrap_or_default();
    refuse(
        &[
            (flags.verify, "--verify"),
            (flags.max_rounds.is_some(), "--max-rounds"),
            (flags.transport == Transport::Rdma, "--transport rdma"),
        ],
        &format!("for domains of libvirt that go by its own migration{why}"),
        "libvirt itself copies their memory; leave the flag out",
    )
}

fn refuse(given: &[(bool, &str)], what: &str, hint: &str) -> Result<(), Failure> {
    match given.iter().find(|(is, _)| *is) {
        None => Ok(()),
        Some((_, flag)) => Err(Failure::new(Exit::Usage, format!("{flag} is not {what}"), hint)),
    }
}

/// Everything that is decided before it begins.
#[derive(Clone, Debug)]
pub struct Plan {
    domain: Target,
    /// Makes the names of this migration's sockets its own.
    id: String,
    to: String,
    remote: String,
    persistent: bool,
    storage: Option<&'static str>,
    /// Only these disks are copied; all if there are none.
    disks: Vec<String>,
    mib_per_s: Option<u64>,
    connections: Option<u32>,
    changes: Changes,
    /// Its stream waits while the agents copy its memory.
    waits: bool,
}

impl Plan {
    /// Decides how the domain moves, from what virsh and the agents say.
    pub fn new(
        domain: &Target,
        flags: &MigrateFlags,
        changes: Changes,
        persistent: bool,
    ) -> Result<Plan, Failure> {
        if changes.persistent() && !persistent {
            let text = format!(
                "the domain {} is transient, so that no definition of it stays anywhere: --persistent-xml changes nothing",
                domain.name
            );
            return Err(Failure::new(Exit::Refused, text, "leave it out; --xml changes the running domain"));
        }
        let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
            .map_err(|error| Failure::new(Exit::Failed, format!("no random number: {error}"), ""))?;
        Ok(Plan {
            domain: domain.clone(),
            id: random.trim().replace('-', ""),
            to: flags.to.clone(),
            remote: flags.libvirt_socket.clone(),
            persistent,
            storage: match flags.copy_storage.as_deref() {
                Some("inc") => Some("--copy-storage-inc"),
                None if flags.copy_disks.is_empty() => None,
                _ => Some("--copy-storage-all"),
            },
            disks: flags.copy_disks.clone(),
            mib_per_s: flags.bandwidth.map(|bytes| bytes.div_ceil(1 << 20).max(1)),
            connections: flags.connections,
            changes,
            waits: false,
        })
    }

    /// The agents copy the domain's memory meanwhile: QEMU makes the connection and not libvirt, which would hold the domain's
    /// monitor; and what bounds the bandwidth is not libvirt's.
    #[must_use]
    pub fn waiting(self) -> Plan {
        Plan { waits: true, connections: Some(1), mib_per_s: None, ..self }
    }

    /// The socket here that libvirt's migration goes to.
    pub fn stream(&self) -> PathBuf {
        self.socket("mig").into()
    }

    fn socket(&self, kind: &str) -> String {
        format!("{FOLDER}/{}", domain_socket(&self.id, kind))
    }

    /// The destination's libvirt, through the tunnel.
    pub fn destination(&self) -> String {
        format!("qemu+unix:///system?socket={}", self.socket("rpc"))
    }

    /// The same for libvirt itself, which drives. Where its migration waits, it waits too, as nobody else does.
    fn driving(&self) -> String {
        format!(
            "qemu+unix:///system?socket={}",
            if self.waits { self.socket("job") } else { self.socket("rpc") }
        )
    }

    /// The socket here by which libvirt drives a migration that waits.
    pub fn job(&self) -> PathBuf {
        self.socket("job").into()
    }

    /// What virsh is to do. libvirt itself drives (`--p2p`): if this command dies, the tunnel goes with it, and libvirt
    /// goes on at the source.
    pub fn arguments(&self) -> Vec<String> {
        let stream = format!("unix://{}", self.socket("mig"));
        let mut words: Vec<String> =
            ["migrate", "--live", "--p2p", &self.domain.uuid].map(str::to_owned).into();
        words.extend(["--desturi".to_owned(), self.driving(), "--migrateuri".to_owned(), stream]);
        if self.persistent {
            words.extend(["--persistent", "--undefinesource"].map(str::to_owned));
        }
        if let Some(storage) = self.storage {
            let disks = format!("unix://{}", self.socket("nbd"));
            words.extend([storage.to_owned(), "--disks-uri".to_owned(), disks]);
            if !self.disks.is_empty() {
                words.extend(["--migrate-disks".to_owned(), self.disks.join(",")]);
            }
        }
        if let Some(rate) = self.mib_per_s {
            words.extend(["--bandwidth".to_owned(), rate.to_string()]);
        }
        if let Some(connections) = self.connections {
            words.extend(["--parallel", "--parallel-connections"].map(str::to_owned));
            words.push(connections.to_string());
        }
        words.extend(self.changes.arguments());
        words
    }

    /// libvirt's own protocol, the migration and the disks, each at the same path on both hosts but the first.
    pub fn tunnel(&self, flags: &MigrateFlags) -> TunnelRequest {
        let pair = |kind: &str, there: &str| TunnelPair {
            listen: TunnelAddress::Unix(self.socket(kind).into()),
            connect: TunnelAddress::Unix(there.into()),
            waits: self.waits && kind == "mig",
            drives: kind == "job",
        };
        let same = |kind: &str| pair(kind, &self.socket(kind));
        let mut pairs = vec![pair("rpc", &self.remote), same("mig")];
        pairs.extend(self.storage.map(|_| same("nbd")));
        pairs.extend(self.waits.then(|| pair("job", &self.remote)));
        TunnelRequest {
            to: self.to.clone(),
            pairs,
            links: flags.links.clone(),
            link_timeout_s: flags.link_timeout,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::libvirt::testing::{flags, target};

    #[test]
    fn all_sockets_of_a_migration_go_through_the_tunnel() {
        let flags = flags(&["--copy-storage", "all", "--bandwidth", "80M", "--connections", "4"]);
        let domain = target();
        let plan = Plan::new(&domain, &flags, Changes::default(), true).unwrap();
        let request = plan.tunnel(&flags);
        let words = plan.arguments().join(" ");
        assert_eq!(request.pairs.len(), 3);
        for pair in &request.pairs {
            let TunnelAddress::Unix(path) = &pair.listen else { panic!("{pair:?}") };
            assert!(words.contains(path.to_str().unwrap()), "{words} lacks {path:?}");
        }
        assert_eq!(request.pairs[0].connect.to_string(), "unix:/run/libvirt/libvirt-sock");
        assert_eq!(request.pairs[1].connect, request.pairs[1].listen);
        for wanted in [
            "--persistent --undefinesource",
            "--copy-storage-all",
            "--bandwidth 10",
            "--parallel-connections 4",
        ] {
            assert!(words.contains(wanted), "{words} lacks {wanted}");
        }
        let transient = Plan::new(&domain, &flags, Changes::default(), false).unwrap().arguments().join(" ");
        assert!(!transient.contains("--persistent"), "{transient}");
    }

    #[test]
    fn disks_by_name_are_virshs_migrate_disks() {
        let words = |given: &[&str]| {
            let flags = flags(given);
            Plan::new(&target(), &flags, Changes::default(), true).unwrap().arguments().join(" ")
        };
        let named = words(&["--copy-disks", "vda,vdb"]);
        assert!(named.contains("--copy-storage-all --disks-uri"), "{named}");
        assert!(named.contains("--migrate-disks vda,vdb"), "{named}");
        let above = words(&["--copy-storage", "inc", "--copy-disks", "vda"]);
        assert!(above.contains("--copy-storage-inc") && above.contains("--migrate-disks vda"), "{above}");
        assert!(!words(&["--copy-storage", "all"]).contains("--migrate-disks"));
    }

    #[test]
    fn a_transient_domain_has_no_definition_to_change() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let flags = flags(&["--persistent-xml", file.path().to_str().unwrap()]);
        let domain = target();
        let changes = Changes::named(&flags).unwrap();
        let refused = Plan::new(&domain, &flags, changes.clone(), false).unwrap_err();
        assert_eq!(refused.exit, Exit::Refused);
        let words = Plan::new(&domain, &flags, changes, true).unwrap().arguments().join(" ");
        assert!(words.contains("--persistent-xml /"), "{words}");
    }

    #[test]
    fn what_there_is_no_place_for_is_refused() {
        let direct = ["--mode", "direct"];
        let usage = |refused: Result<(), Failure>, what: &[&str]| {
            assert_eq!(refused.unwrap_err().exit, Exit::Usage, "{what:?}");
        };
        for flag in [
            &["--throttle"][..],
            &["--detach"],
            &["--copy-storage", "all", "--storage-share", "20"],
            &["--shared-storage", "vda"],
        ] {
            usage(check(&flags(flag)), flag);
        }
        for flag in [&["--copy-storage", "all"][..], &["--copy-disks", "vda"], &["--connections", "2"]] {
            check(&flags(flag)).unwrap();
            usage(check(&flags(&[&direct, flag].concat())), flag);
        }
        for flag in [&["--verify"][..], &["--max-rounds", "3"], &["--transport", "rdma"]] {
            check(&flags(&[&direct, flag].concat())).unwrap();
            usage(check_own(&flags(flag), None), flag);
            let said = check_own(&flags(flag), Some("it has none")).unwrap_err();
            assert!(said.message().contains("it has none"), "{}", said.message());
        }
        check_own(&flags(&["--bandwidth", "1G", "--links", "10.0.0.0/24"]), None).unwrap();
    }

    #[test]
    fn only_the_migration_of_a_domain_whose_memory_the_agents_copy_waits() {
        let flags = flags(&["--bandwidth", "80M"]);
        let domain = target();
        let plan = Plan::new(&domain, &flags, Changes::default(), true).unwrap();
        assert!(plan.tunnel(&flags).pairs.iter().all(|pair| !pair.waits));
        let plan = plan.waiting();
        let pairs = plan.tunnel(&flags).pairs;
        let name = plan.stream();
        assert!(linerate_api::is_domain_socket(name.file_name().unwrap().to_str().unwrap()), "{name:?}");
        assert_eq!(pairs.iter().map(|pair| pair.waits).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(pairs.iter().map(|pair| pair.drives).collect::<Vec<_>>(), [false, false, true]);
        // libvirt drives by the one that nobody else uses, and reaches the same at the other host.
        assert_eq!(pairs[2].listen, TunnelAddress::Unix(plan.job()));
        assert_eq!(pairs[2].connect, pairs[0].connect);
        assert_eq!(pairs[1].listen, TunnelAddress::Unix(plan.stream()));
        let words = plan.arguments().join(" ");
        assert!(
            words.contains(&format!("--desturi qemu+unix:///system?socket={}", plan.job().display())),
            "{words}"
        );
        assert!(words.contains("--parallel-connections 1") && !words.contains("--bandwidth"), "{words}");
    }
}
