//! What is asked of libvirt and of the tunnel.

use std::path::PathBuf;

use linerate_api::{
    ErrorBody, LibvirtRequest, MigrateRequest, ModeChoice, Transport, TunnelAddress, TunnelPair,
    TunnelRequest, code, domain_socket,
};

use super::target::Target;
use super::xml::Changes;

/// Sockets of migrations, at the same path on both hosts, because libvirt has one name for both ends.
pub const FOLDER: &str = "/run/linerate-libvirt";

/// Refuses options that neither way to move the domain can use, instead of ignoring them.
pub fn check(request: &MigrateRequest, libvirt: &LibvirtRequest) -> Result<(), ErrorBody> {
    let direct = request.mode == ModeChoice::Direct;
    refuse(
        &[
            (request.dry_run, "--dry-run"),
            (request.throttle, "--throttle"),
            (request.storage_share_percent.is_some(), "--storage-share"),
            (direct && request.copy_storage, "--copy-storage with --mode direct"),
            (direct && !request.copy_disks.is_empty(), "--copy-disks with --mode direct"),
            (!request.shared_storage.is_empty(), "--shared-storage"),
            (direct && libvirt.connections.is_some(), "--connections with --mode direct"),
        ],
        "for domains of libvirt",
        "leave the flag out",
    )?;
    let remote: Result<TunnelAddress, _> = format!("unix:{}", libvirt.remote_socket).parse();
    remote.map(drop).map_err(|error| ErrorBody::new(code::USAGE, format!("--libvirt-socket: {error}")))
}

/// Refuses what libvirt's own migration has no place for.
pub fn check_own(request: &MigrateRequest, reason: Option<&str>) -> Result<(), ErrorBody> {
    let why = reason.map(|reason| format!("; this one is moved so because: {reason}")).unwrap_or_default();
    refuse(
        &[
            (request.verify, "--verify"),
            (request.max_rounds.is_some(), "--max-rounds"),
            (request.transport == Transport::Rdma, "--transport rdma"),
        ],
        &format!("for domains of libvirt that go by its own migration{why}"),
        "libvirt itself copies their memory; leave the flag out",
    )
}

fn refuse(given: &[(bool, &str)], what: &str, hint: &str) -> Result<(), ErrorBody> {
    match given.iter().find(|(is, _)| *is) {
        None => Ok(()),
        Some((_, flag)) => Err(ErrorBody::new(code::USAGE, format!("{flag} is not {what}")).with_hint(hint)),
    }
}

/// A libvirt behind a socket of this host.
pub fn uri(socket: &str) -> String {
    format!("qemu+unix:///system?socket={socket}")
}

/// Everything that is decided before it begins.
#[derive(Clone, Debug)]
pub struct Plan {
    uuid: String,
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
    changes: Vec<String>,
    links: Vec<String>,
    link_timeout_s: u32,
    /// Its stream waits while the agents copy its memory.
    waits: bool,
}

impl Plan {
    /// Decides. `id` is of this migration alone: 32 random hexadecimal digits.
    pub fn new(
        domain: &Target,
        (request, libvirt): (&MigrateRequest, &LibvirtRequest),
        changes: &Changes,
        persistent: bool,
        id: &str,
    ) -> Result<Plan, ErrorBody> {
        if changes.persistent() && !persistent {
            let text = format!(
                "the domain {} is transient, so that no definition of it stays anywhere: --persistent-xml changes nothing",
                domain.name
            );
            let hint = "leave it out; --xml changes the running domain";
            return Err(ErrorBody::new(code::REFUSED, text).with_hint(hint));
        }
        Ok(Plan {
            uuid: domain.uuid.clone(),
            id: id.to_owned(),
            to: request.to.clone(),
            remote: libvirt.remote_socket.clone(),
            persistent,
            storage: match (libvirt.above_backing_files, request.copies_disks()) {
                (true, _) => Some("--copy-storage-inc"),
                (false, true) => Some("--copy-storage-all"),
                (false, false) => None,
            },
            disks: request.copy_disks.clone(),
            mib_per_s: request.bandwidth_bytes_per_s.map(|bytes| bytes.div_ceil(1 << 20).max(1)),
            connections: libvirt.connections,
            changes: changes.arguments().collect(),
            links: request.links.clone(),
            link_timeout_s: request.link_timeout_s,
            waits: false,
        })
    }

    /// The agents copy the domain's memory meanwhile: QEMU makes the connection and not libvirt, which would hold the
    /// domain's monitor; and what bounds the bandwidth is not libvirt's.
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
        uri(&self.socket("rpc"))
    }

    /// The same for libvirt itself, which drives. Where its migration waits, it waits on a socket of its own.
    fn driving(&self) -> String {
        uri(&self.socket(if self.waits { "job" } else { "rpc" }))
    }

    /// The socket here by which libvirt drives a migration that waits.
    pub fn job(&self) -> PathBuf {
        self.socket("job").into()
    }

    /// What virsh is to do. libvirt itself drives (`--p2p`): if the agent dies, the tunnel goes with it, and libvirt
    /// continues at the source.
    pub fn arguments(&self) -> Vec<String> {
        let stream = format!("unix://{}", self.socket("mig"));
        let mut line: Vec<String> = ["migrate", "--live", "--p2p", &self.uuid].map(str::to_owned).into();
        line.extend(["--desturi".to_owned(), self.driving(), "--migrateuri".to_owned(), stream]);
        if self.persistent {
            line.extend(["--persistent", "--undefinesource"].map(str::to_owned));
        }
        if let Some(storage) = self.storage {
            let disks = format!("unix://{}", self.socket("nbd"));
            line.extend([storage.to_owned(), "--disks-uri".to_owned(), disks]);
            if !self.disks.is_empty() {
                line.extend(["--migrate-disks".to_owned(), self.disks.join(",")]);
            }
        }
        if let Some(rate) = self.mib_per_s {
            line.extend(["--bandwidth".to_owned(), rate.to_string()]);
        }
        if let Some(connections) = self.connections {
            line.extend(["--parallel", "--parallel-connections"].map(str::to_owned));
            line.push(connections.to_string());
        }
        line.extend(self.changes.iter().cloned());
        line
    }

    /// libvirt's own protocol, the migration and the disks, each at the same path on both hosts but the first.
    pub fn tunnel(&self) -> TunnelRequest {
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
            links: self.links.clone(),
            link_timeout_s: self.link_timeout_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libvirt::testing::{request, target};

    type Change<'a> = &'a dyn Fn(&mut MigrateRequest, &mut LibvirtRequest);

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn plan((request, libvirt): &(MigrateRequest, LibvirtRequest), persistent: bool) -> Plan {
        Plan::new(&target(), (request, libvirt), &Changes::default(), persistent, ID).unwrap()
    }

    #[test]
    fn all_sockets_of_a_migration_go_through_the_tunnel() {
        let mut asked = request();
        asked.0.copy_storage = true;
        asked.0.bandwidth_bytes_per_s = Some(10 << 20);
        asked.1.connections = Some(4);
        let planned = plan(&asked, true);
        let tunnel = planned.tunnel();
        let line = planned.arguments().join(" ");
        assert_eq!(tunnel.pairs.len(), 3);
        for pair in &tunnel.pairs {
            let TunnelAddress::Unix(path) = &pair.listen else { panic!("{pair:?}") };
            assert!(line.contains(path.to_str().unwrap()), "{line} lacks {path:?}");
        }
        assert_eq!(tunnel.pairs[0].connect.to_string(), "unix:/run/libvirt/libvirt-sock");
        assert_eq!(tunnel.pairs[1].connect, tunnel.pairs[1].listen);
        for wanted in [
            "--persistent --undefinesource",
            "--copy-storage-all",
            "--bandwidth 10",
            "--parallel-connections 4",
            // Never by its name, which may become another domain's.
            &format!("--p2p {}", target().uuid),
        ] {
            assert!(line.contains(wanted), "{line} lacks {wanted}");
        }
        let transient = plan(&asked, false).arguments().join(" ");
        assert!(!transient.contains("--persistent"), "{transient}");
    }

    #[test]
    fn disks_by_name_are_virshs_migrate_disks() {
        let line = |all: bool, disks: &[&str], above: bool| {
            let mut asked = request();
            asked.0.copy_storage = all;
            asked.0.copy_disks = disks.iter().map(|disk| (*disk).to_owned()).collect();
            asked.1.above_backing_files = above;
            plan(&asked, true).arguments().join(" ")
        };
        let named = line(false, &["vda", "vdb"], false);
        assert!(named.contains("--copy-storage-all --disks-uri"), "{named}");
        assert!(named.contains("--migrate-disks vda,vdb"), "{named}");
        let above = line(false, &["vda"], true);
        assert!(above.contains("--copy-storage-inc") && above.contains("--migrate-disks vda"), "{above}");
        assert!(!line(true, &[], false).contains("--migrate-disks"));
    }

    #[test]
    fn a_transient_domain_has_no_definition_to_change() {
        let state = tempfile::tempdir().unwrap();
        let (asked, libvirt) = request();
        let libvirt = LibvirtRequest { persistent_xml: Some("<domain/>".into()), ..libvirt };
        let changes = Changes::write(&libvirt, state.path(), ID).unwrap();
        let plan = |persistent| Plan::new(&target(), (&asked, &libvirt), &changes, persistent, ID);
        assert_eq!(plan(false).unwrap_err().code, code::REFUSED);
        let line = plan(true).unwrap().arguments().join(" ");
        assert!(line.contains("--persistent-xml /"), "{line}");
    }

    #[test]
    fn options_that_cannot_be_used_are_refused() {
        let usage = |refused: Result<(), ErrorBody>| assert_eq!(refused.unwrap_err().code, code::USAGE);
        let with = |change: Change<'_>| {
            let (mut asked, mut libvirt) = request();
            change(&mut asked, &mut libvirt);
            (asked, libvirt)
        };
        let refused = |(asked, libvirt): (MigrateRequest, LibvirtRequest)| usage(check(&asked, &libvirt));
        refused(with(&|asked, _| asked.throttle = true));
        refused(with(&|asked, _| asked.storage_share_percent = Some(20)));
        refused(with(&|asked, _| asked.shared_storage.push("vda".into())));
        refused(with(&|_, libvirt| libvirt.remote_socket = "libvirt.sock".into()));
        let not_direct: [Change<'_>; 3] = [
            &|asked, _| asked.copy_storage = true,
            &|asked, _| asked.copy_disks.push("vda".into()),
            &|_, libvirt| libvirt.connections = Some(2),
        ];
        for change in not_direct {
            let (mut asked, libvirt) = with(change);
            check(&asked, &libvirt).unwrap();
            asked.mode = ModeChoice::Direct;
            refused((asked, libvirt));
        }
        let only_direct: [Change<'_>; 3] =
            [&|asked, _| asked.verify = true, &|asked, _| asked.max_rounds = Some(3), &|asked, _| {
                asked.transport = Transport::Rdma
            }];
        for change in only_direct {
            let (asked, libvirt) = with(change);
            check(&asked, &libvirt).unwrap();
            usage(check_own(&asked, None));
            let refused = check_own(&asked, Some("it has none")).unwrap_err();
            assert!(refused.message.contains("it has none"), "{}", refused.message);
        }
        check_own(&request().0, None).unwrap();
    }

    #[test]
    fn only_the_migration_of_a_domain_whose_memory_the_agents_copy_waits() {
        let mut asked = request();
        asked.0.bandwidth_bytes_per_s = Some(10 << 20);
        let planned = plan(&asked, true);
        assert!(planned.tunnel().pairs.iter().all(|pair| !pair.waits));
        let planned = planned.waiting();
        let pairs = planned.tunnel().pairs;
        let name = planned.stream();
        assert!(linerate_api::is_domain_socket(name.file_name().unwrap().to_str().unwrap()), "{name:?}");
        assert_eq!(pairs.iter().map(|pair| pair.waits).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!(pairs.iter().map(|pair| pair.drives).collect::<Vec<_>>(), [false, false, true]);
        // libvirt drives by a socket of its own, and reaches the same one at the other host.
        assert_eq!(pairs[2].listen, TunnelAddress::Unix(planned.job()));
        assert_eq!(pairs[2].connect, pairs[0].connect);
        assert_eq!(pairs[1].listen, TunnelAddress::Unix(planned.stream()));
        let line = planned.arguments().join(" ");
        assert!(
            line.contains(&format!("--desturi qemu+unix:///system?socket={}", planned.job().display())),
            "{line}"
        );
        assert!(line.contains("--parallel-connections 1") && !line.contains("--bandwidth"), "{line}");
    }
}
