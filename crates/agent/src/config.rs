//! The agent's configuration file.
//!
//! TOML; unknown keys are refused. `linerate agent --check` reads it and reports what is wrong. Every path has a
//! default that suits a systemd service; `listen` has none, because it decides who can reach this host.

mod checks;
mod fleet;
mod placement;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use linerate_api::TunnelAddress;
use linerate_guest::incoming_qemu::QemuBinary;
use linerate_guest::own_folders::OwnFolders;
use linerate_guest::qemu_user::{QemuUser, QemuUserError};
use linerate_net::netlink::NetlinkError;
use linerate_trust::pem::PemSettings;
use linerate_trust::roles::Policy;
use serde::Deserialize;

pub use crate::local_users::LocalUsers;
use crate::own_addresses;
pub use fleet::FleetSettings;
pub use placement::Placement;

/// Port that agents listen on unless the operator configures another.
pub const DEFAULT_PORT: u16 = 7979;

/// Port that hosts join at unless the operator configures another.
pub const JOIN_PORT: u16 = 7980;

/// Everything that the operator configures of an agent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Name of this host in displays and reports. Default: the kernel's host name.
    #[serde(default = "host_name")]
    pub name: String,
    /// Addresses at which other agents are answered, `IP:PORT`. Each is one end of a link: name every address that a
    /// migration may use, and no other.
    #[serde(default)]
    pub listen: Vec<SocketAddr>,
    /// Answer also at the addresses of all of this host's ports, and of bonds, VLANs and bridges over them. They are
    /// read when the agent starts. Needs TLS. Default no.
    #[serde(default)]
    pub listen_auto: bool,
    /// How connections between agents are protected: `tls`, where both ends prove who they are, or `insecure`: plain
    /// text, and every host that reaches `listen` may send guests. Both hosts must have the same. Default `tls`.
    #[serde(default)]
    pub security: Option<Protection>,
    /// The operator's own certificate of this host and the authorities that are trusted, in place of the identity that
    /// `linerate cluster init` or `linerate join` makes. None by default.
    #[serde(default)]
    pub certificate: Option<PemSettings>,
    /// Folder of this host's identity: its private key and certificate, and whom it trusts. Default: `identity` in
    /// `state_dir`.
    #[serde(default)]
    pub identity_dir: Option<PathBuf>,
    /// Folder of the cluster's authority, on the host that has it. Default: `authority` in `state_dir`.
    #[serde(default)]
    pub authority_dir: Option<PathBuf>,
    /// Addresses at which hosts join, on the authority's host, while a token can be used. Default: those of `listen`,
    /// with port 7980.
    #[serde(default)]
    pub join_listen: Vec<SocketAddr>,
    /// What the hosts of the cluster may do here, with `security = "tls"`. By default they send guests, receive guests
    /// and look.
    #[serde(default)]
    pub peers: Policy,
    /// Whether RDMA may be used beside TLS. The agents cannot encrypt RDMA, so it is used only on a network that no
    /// stranger can reach or that encrypts by itself. Default `untrusted`: TCP alone.
    #[serde(default)]
    pub rdma_network: RdmaNetwork,
    /// UNIX socket of the local API. A program that can open it can start and move guests.
    #[serde(default = "default_socket")]
    pub socket: PathBuf,
    /// What other users of this host than root may do with it. Default: nothing, and only root can open `socket`.
    #[serde(default)]
    pub local: LocalUsers,
    /// Journal and audit log. Must survive a reboot.
    #[serde(default = "default_state_dir")]
    pub state_dir: PathBuf,
    /// Sockets, pid files and records of running guests. Must not survive a reboot.
    #[serde(default = "default_run_dir")]
    pub run_dir: PathBuf,
    /// RAM files of guests: a tmpfs, best with huge pages (`mount -t tmpfs -o huge=advise`).
    #[serde(default = "default_ram_dir")]
    pub ram_dir: PathBuf,
    /// RAM files of guests whose RAM is in explicit huge pages: a hugetlbfs. None by default.
    #[serde(default)]
    pub huge_ram_dir: Option<PathBuf>,
    /// Folders whose files and devices an arriving guest may open as disk, kernel or firmware. A guest's description
    /// comes from another host: what is not under one of these is refused. No folder of devices is among the defaults:
    /// `/dev/mapper` would give every device of this host to any host that may send guests. The agent's own folders are
    /// refused in any case ([`Config::own_folders`]).
    #[serde(default = "default_file_roots")]
    pub file_roots: Vec<PathBuf>,
    /// Path of a disk, kernel or flash file at the source to its path here, where they differ: `"/srv/a.img" =
    /// "/srv/b.img"`, or of folders, both with a slash at the end. None by default.
    #[serde(default)]
    pub paths: BTreeMap<String, String>,
    /// Whether an arriving guest may have QEMU's user-mode network, through which it reaches this host's loopback.
    #[serde(default)]
    pub allow_user_network: bool,
    /// Leave the page cache of buffered disks alone when a guest arrives. Saves some 35 ms of blackout; right only
    /// where storage is coherent or was never read on this host.
    #[serde(default)]
    pub keep_page_cache: bool,
    /// User that QEMU runs as, of guests that this agent starts. `root` or empty: QEMU has all rights of this host.
    /// Default `linerate-qemu`, which must exist.
    #[serde(default = "default_qemu_user")]
    pub qemu_user: String,
    /// Slice of systemd's, such as `machine.slice`, in which each guest that this agent starts gets a scope of its own.
    /// Without it guests are part of the agent's unit. It has no effect on a QEMU that is root. None by default.
    #[serde(default)]
    pub qemu_slice: Option<String>,
    /// QEMU binaries that this host may run; the first that is not older than the source's is taken.
    #[serde(default = "default_qemu")]
    pub qemu: Vec<Qemu>,
    /// What a tunnel from another host may connect to here: `tcp:127.0.0.1:PORT`, `unix:/PATH`, or `unix:/FOLDER/` for
    /// all sockets in a folder. Default none: any program that can reach `listen` could open what is named here.
    #[serde(default)]
    pub tunnel_targets: Vec<TunnelAddress>,
    /// Folder in which libvirt's domains have a QMP socket for the agent, `NAME.sock`; made at start. It belongs to the
    /// user that libvirt's QEMUs run as, and no other user may write it. Tunnels must not lead there: a program that
    /// reaches such a socket owns its guest. Default `/run/linerate-domains`.
    #[serde(default = "default_domain_sockets")]
    pub domain_sockets: PathBuf,
    /// Streams of one tunnel at a time, here and there. Default 64.
    #[serde(default = "default_tunnel_streams_max")]
    pub tunnel_streams_max: usize,
    /// Memory of one stream in each direction, MiB; taken while bytes are in flight. A stream moves at most this much
    /// in a round trip. Default 8.
    #[serde(default = "default_tunnel_window_mib")]
    pub tunnel_window_mib: u64,
    /// Whether other hosts' agents may set ports of this one (`linerate doctor --fix`, `linerate link set --host`), on
    /// trial. In plain text any program that reaches `listen` could; with TLS the host's role decides
    /// instead. Default no.
    #[serde(default)]
    pub settings_from_agents: bool,
    /// Memory that incoming guests must leave free, MiB. Default 512.
    #[serde(default = "default_reserve_mib")]
    pub memory_reserve_mib: u64,
    /// Memory for what other hosts send of arriving guests before it can be used, MiB: device state above all. A
    /// session that needs more ends, and its guest runs on at the source. One guest needs 528 at most. Default 1024.
    #[serde(default = "default_held_state_mib")]
    pub held_state_mib: u64,
    /// Most of `held_state_mib` for the guests of one host, MiB. Default 640.
    #[serde(default = "default_held_state_of_host_mib")]
    pub held_state_of_host_mib: u64,
    /// The etcd cluster that this host shares with others: hosts know each other, drains find destinations by
    /// themselves. None by default: each host has a store of its own.
    #[serde(default)]
    pub fleet: Option<FleetSettings>,
    /// Which guests must be on different hosts, and which on one. None by default.
    #[serde(default)]
    pub placement: Placement,
    /// Type of service (DSCP and ECN bits) of RDMA connections, from which switches choose a lossless priority. The
    /// system's own by default.
    #[serde(default)]
    pub rdma_type_of_service: Option<u8>,
    /// Time limit in seconds of each step in which a link opens an RDMA connection; after it the link uses TCP.
    #[serde(default = "default_rdma_connect_s")]
    pub rdma_connect_s: u64,
}

/// What protects the connections between agents; the values of [`Config::security`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protection {
    /// TLS 1.3 on every connection.
    Tls,
    /// Plain text, without certificates: for networks that only these hosts reach.
    Insecure,
}

/// Whether RDMA is used beside TLS; the values of [`Config::rdma_network`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RdmaNetwork {
    /// Others may read or write what goes through it.
    #[default]
    Untrusted,
    /// Only these hosts reach it, or it encrypts by itself.
    Trusted,
}

/// A QEMU binary that the agent may start.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Qemu {
    /// What specifications call it.
    pub name: String,
    /// Path of the program.
    pub binary: PathBuf,
    /// Folders with its firmware (`-L`), if it is not installed in its usual place.
    #[serde(default)]
    pub data_dirs: Vec<PathBuf>,
}

impl Qemu {
    /// As `linerate-guest` wants it.
    pub fn program(&self) -> QemuBinary {
        QemuBinary { path: self.binary.clone(), data_dirs: self.data_dirs.clone() }
    }
}

pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn default_socket() -> PathBuf {
    "/run/linerate/agent.sock".into()
}

fn default_state_dir() -> PathBuf {
    "/var/lib/linerate".into()
}

fn default_run_dir() -> PathBuf {
    "/run/linerate".into()
}

fn default_ram_dir() -> PathBuf {
    "/dev/shm/linerate".into()
}

fn default_domain_sockets() -> PathBuf {
    "/run/linerate-domains".into()
}

fn default_file_roots() -> Vec<PathBuf> {
    ["/var/lib/linerate/images", "/var/lib/libvirt/images", "/srv", "/mnt"].map(PathBuf::from).to_vec()
}

fn default_reserve_mib() -> u64 {
    512
}

fn default_held_state_mib() -> u64 {
    1024
}

fn default_held_state_of_host_mib() -> u64 {
    640
}

fn default_rdma_connect_s() -> u64 {
    2
}

fn default_tunnel_streams_max() -> usize {
    64
}

fn default_tunnel_window_mib() -> u64 {
    8
}

/// Whether systemd is process 1 here, as sd_booted(3) tells it.
pub(crate) fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

fn default_qemu_user() -> String {
    "linerate-qemu".into()
}

fn default_qemu() -> Vec<Qemu> {
    vec![Qemu { name: "default".into(), binary: "/usr/bin/qemu-system-x86_64".into(), data_dirs: Vec::new() }]
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error(
        "cannot read the configuration {path}; create it (docs/operations.md has an example) or name another with --config"
    )]
    Read {
        /// Path of the configuration file.
        path: PathBuf,
        /// Cause of the failure to read it.
        #[source]
        source: std::io::Error,
    },
    /// It is not TOML of this shape.
    #[error("the configuration {path} is wrong")]
    Parse {
        /// Path of the configuration file.
        path: PathBuf,
        /// Position and kind of the mistake.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A value cannot be used.
    #[error("the configuration {path} is wrong: {what}")]
    Value {
        /// Path of the configuration file.
        path: PathBuf,
        /// What, and what to do.
        what: String,
    },
    /// The addresses of `listen_auto` are not known.
    #[error("the configuration {path} is wrong: {error}")]
    Addresses {
        /// Path of the configuration file.
        path: PathBuf,
        /// Why; its text has the cause.
        error: AddressesError,
    },
}

/// Why `listen_auto` finds no addresses.
#[derive(Debug, thiserror::Error)]
pub enum AddressesError {
    /// Whoever reaches one of them would be answered.
    #[error(
        "listen_auto = true needs security = \"tls\": in plain text anybody who reaches an address may send guests; name the addresses in `listen`"
    )]
    Insecure,
    /// The kernel did not list them.
    #[error("listen_auto: this host's addresses cannot be read from the kernel: {0}")]
    Kernel(#[from] NetlinkError),
}

impl Config {
    /// Reads and checks a file.
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        let mut config: Config = toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
        config.find_addresses().map_err(|error| ConfigError::Addresses { path: path.to_owned(), error })?;
        match config.problem() {
            Some(what) => Err(ConfigError::Value { path: path.to_owned(), what }),
            None => Ok(config),
        }
    }

    /// With `listen_auto`: adds the addresses of this host's ports to `listen`.
    fn find_addresses(&mut self) -> Result<(), AddressesError> {
        if !self.listen_auto {
            return Ok(());
        }
        if self.security == Some(Protection::Insecure) {
            return Err(AddressesError::Insecure);
        }
        let found = own_addresses::find(DEFAULT_PORT)?;
        let new = found.into_iter().filter(|address| !self.listen.contains(address));
        self.listen.extend(new.collect::<Vec<_>>());
        Ok(())
    }

    /// The file's, or the defaults if there is none.
    pub fn read_or_default(path: &Path) -> Result<Config, ConfigError> {
        match Config::read(path) {
            Err(ConfigError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                toml::from_str("")
                    .map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })
            }
            read => read,
        }
    }

    /// Folder of this host's identity.
    pub fn identity_folder(&self) -> PathBuf {
        self.identity_dir.clone().unwrap_or_else(|| self.state_dir.join("identity"))
    }

    /// The user that QEMU runs as; none if it is root. An agent that is not root starts QEMU as its own user.
    pub fn qemu_user(&self) -> Result<Option<QemuUser>, QemuUserError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let slice = self.qemu_slice.as_deref().filter(|_| has_systemd());
        Ok(QemuUser::find(&self.qemu_user)?.map(|user| user.in_slice(slice)))
    }

    /// Whether QEMU is to run as another user than root.
    pub fn has_qemu_user(&self) -> bool {
        !matches!(self.qemu_user.as_str(), "" | "root") && rustix::process::geteuid().is_root()
    }

    /// Folder of the cluster's authority.
    pub fn authority_folder(&self) -> PathBuf {
        self.authority_dir.clone().unwrap_or_else(|| self.state_dir.join("authority"))
    }

    /// What no guest opens: keys and passwords, the journal, sockets and RAM of guests. Only `images` in `state_dir`
    /// may have disks.
    pub fn own_folders(&self) -> OwnFolders {
        let authority = self.authority_folder();
        // Beside it is the next one while the authority changes.
        let mut next = authority.clone().into_os_string();
        next.push("-next");
        let mut others = vec![self.identity_folder(), authority, next.into(), self.run_dir.clone()];
        others.extend([self.ram_dir.clone(), self.domain_sockets.clone()]);
        others.extend(self.huge_ram_dir.clone());
        others.extend(self.certificate.as_ref().map(|pem| pem.key.clone()));
        let fleet = self.fleet.as_ref();
        others.extend(
            fleet.into_iter().flat_map(|fleet| fleet.key.iter().chain(&fleet.password_file)).cloned(),
        );
        OwnFolders::new(self.state_dir.clone(), others)
    }

    /// `join_listen`, or each address of `listen` with the usual port for joining.
    pub fn join_addresses(&self) -> Vec<SocketAddr> {
        if !self.join_listen.is_empty() {
            return self.join_listen.clone();
        }
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for address in self.listen.iter().map(|address| SocketAddr::new(address.ip(), JOIN_PORT)) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }

    /// Why an identity of `linerate cluster init` or `linerate join` has no effect here.
    pub fn ignores_identity(&self) -> Option<&'static str> {
        match (self.security, &self.certificate) {
            (Some(Protection::Insecure), _) => Some("security = \"insecure\""),
            (_, Some(_)) => Some("the table [certificate]"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
