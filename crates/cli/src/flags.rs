//! The command line. Parsing only: nothing here looks at the environment, files or the agent.

use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args, Parser, Subcommand};
use clap_complete::Shell;
use linerate_api::{
    CordonRequest, LibvirtRequest, LinkConfirm, LinkRequest, MigrateRequest, MigrationId, ModeChoice,
    Transport, TunnelPair, TunnelRequest,
};

use crate::units;

mod audit;
mod bench;
mod cluster;
mod doctor;
mod domain;
mod drain;
mod qos;

pub use audit::AuditFlags;
pub use bench::{BenchCommand, BenchFlags};
pub use cluster::{
    CertificateCommand, ClusterCommand, ConfigFlag, HostCommand, InitFlags, JoinFlags, RotateFlags,
    TokenCommand, TokenFlags,
};
pub use doctor::DoctorFlags;
pub use domain::Domain;
pub use drain::{DrainCommand, DrainFlags, DrainIdFlags, FleetCommand, PlaceFlags, UndrainFlags};
pub use qos::{QosApplyFlags, QosCommand, QosHostsFlags, QosSwitchFlags};

/// Moves running virtual machines between KVM hosts over every link they share.
#[derive(Debug, Parser)]
#[command(name = "linerate", version, arg_required_else_help = true, after_help = crate::exit::help())]
pub struct Flags {
    /// Socket of the agent. Without --connect the variable LINERATE_SOCKET can name another
    /// [default: /run/linerate/agent.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Ask the agent of another host, through ssh. The user there needs a role that allows the command
    #[arg(long, short, global = true, value_name = "[USER@]HOST", value_parser = units::ssh_target)]
    pub connect: Option<String>,
    /// Write JSON to standard output: one document, or one event a line where something is watched
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent of this host, in the foreground
    Agent(AgentFlags),
    /// Move a guest to another host and show the progress
    Migrate(MigrateFlags),
    /// List, show, watch or cancel migrations
    #[command(subcommand)]
    Migration(MigrationCommand),
    /// List, show, start, stop or take over guests
    #[command(subcommand)]
    Vm(VmCommand),
    /// Connect sockets of this host with sockets of another host, over every link, for as long as the command runs
    Tunnel(TunnelFlags),
    /// Measure the wires to another host
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Find what makes migrations slow or fail: on this host, on others, on the links between them
    Doctor(DoctorFlags),
    /// Show and set ports: MTU, speed, FEC, pause, queues. Settings are put back unless confirmed
    #[command(subcommand)]
    Link(LinkCommand),
    /// Set priorities, shares and lossless traffic of hosts and switches from one file
    #[command(subcommand)]
    Qos(QosCommand),
    /// Make a cluster of hosts that trust each other
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Make, list or revoke tokens, with which other hosts join the cluster of this host's authority
    #[command(subcommand)]
    Token(TokenCommand),
    /// Join a cluster with a token of its authority. Needs no running agent
    Join(JoinFlags),
    /// List or revoke the hosts of the cluster of this host's authority
    #[command(subcommand)]
    Host(HostCommand),
    /// Show or renew this host's certificate
    #[command(subcommand)]
    Certificate(CertificateCommand),
    /// Show the state of the agent: its security, guests, migrations, kernel features
    Status,
    /// Take no guests from other hosts. Guests that are arriving go on, and guests may leave
    Cordon(CordonFlags),
    /// Take guests from other hosts again
    Uncordon(CordonFlags),
    /// Move all guests of this host to other hosts, as fast as the links carry
    Drain(DrainFlags),
    /// Take guests again, and bring back those that the last drain has moved
    Undrain(UndrainFlags),
    /// Show where a guest can go, and what keeps it from other hosts
    Place(PlaceFlags),
    /// Show the hosts and drains that this host's store knows, or have it forget a host
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// Show who did what on this host, or tried to
    Audit(AuditFlags),
    /// Decide a session in doubt by hand, when the other host will never answer
    Resolve(ResolveFlags),
    /// Print a completion script for a shell
    Completions {
        /// Shell that the script is for
        shell: Shell,
    },
    /// Print the man page, or write one for every command
    Man {
        /// Write a page for every command into this folder
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// `linerate cordon | uncordon`
#[derive(Debug, Args)]
pub struct CordonFlags {
    /// Name of the host, which must be this one: guards against the wrong terminal
    #[arg(value_name = "HOST")]
    pub host: Option<String>,
}

impl CordonFlags {
    /// What to ask of the agent.
    pub fn request(&self) -> CordonRequest {
        CordonRequest { host: self.host.clone() }
    }
}

#[derive(Debug, Args)]
pub struct AgentFlags {
    /// Configuration file of the agent
    #[arg(long, value_name = "FILE", default_value = "/etc/linerate/agent.toml")]
    pub config: PathBuf,
    /// Check the configuration and end
    #[arg(long)]
    pub check: bool,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("copies").multiple(true).args(["copy_storage", "copy_disks"]))]
pub struct MigrateFlags {
    /// Name of the guest, as in `linerate vm list`, or a domain of libvirt: qemu:///system/NAME
    #[arg(required_unless_present = "domain")]
    pub guest: Option<String>,
    /// A domain of libvirt on this host, the same as qemu:///system/NAME
    #[arg(long, value_name = "NAME", conflicts_with = "guest")]
    pub domain: Option<String>,
    /// The destination's agent, HOST or HOST:PORT
    #[arg(long, value_name = "HOST[:PORT]", value_parser = units::host)]
    pub to: String,
    /// Longest downtime of the guest, such as 300ms; a bare number is milliseconds [default: 300ms]
    #[arg(long, value_name = "TIME", value_parser = units::blackout_ms)]
    pub max_blackout: Option<u32>,
    /// Cap over all links together: 10G, 500M, 2.5Gbit are bits per second, 300MiB/s bytes [default: none]
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    pub bandwidth: Option<u64>,
    /// Use only links in these networks, such as 10.0.1.0/24,10.0.2.0/24 [default: all]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = units::network)]
    pub links: Vec<String>,
    /// How long all links may be gone before the migration is given up; a bare number is seconds
    #[arg(long, value_name = "TIME", value_parser = units::timeout_s, default_value = "30s")]
    pub link_timeout: u32,
    /// Give up a guest that writes too fast after this many rounds, or passes over disks [default: 40]
    #[arg(long, value_name = "COUNT")]
    pub max_rounds: Option<u32>,
    /// Compare all guest RAM on both sides while the guest is paused; makes the blackout longer
    #[arg(long)]
    pub verify: bool,
    /// Slow the guest's CPUs if it writes faster than the links carry. Its writes to copied disks wait for the copy
    #[arg(long)]
    pub throttle: bool,
    /// How guest RAM is moved: auto (direct where the guest allows it), direct, stream (QEMU's own streams)
    #[arg(long, value_name = "MODE", value_parser = units::mode, default_value = "auto")]
    pub mode: ModeChoice,
    /// Also copy disks that the hosts do not share: all of each disk, or only what is above its backing file (inc,
    /// domains of libvirt only)
    #[arg(long, value_name = "all|inc", value_parser = ["all", "inc"])]
    pub copy_storage: Option<String>,
    /// Copy these disks, named as in `linerate vm show`; the hosts must share the others (virsh's --migrate-disks).
    /// With --copy-storage inc: what is above the backing files of these
    #[arg(long, value_name = "DISK,…", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub copy_disks: Vec<String>,
    /// Treat this disk as shared although that cannot be proved. Be certain that both hosts use one storage for it. May
    /// be repeated
    #[arg(long, value_name = "DISK", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub shared_storage: Vec<String>,
    /// Share of the links for copied disks while memory is copied too, in percent. What one does not use the other gets
    /// [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=99), requires = "copies")]
    pub storage_share: Option<u8>,
    /// Carry guest RAM over RDMA where both ends have it and it works (auto), or over one of the two only: auto, tcp,
    /// rdma
    #[arg(long, value_name = "WAY", value_parser = units::transport, default_value = "tcp")]
    pub transport: Transport,
    /// RDMA: leave out the checksum of every payload; the adapter's own check covers the wire, not the hosts
    #[arg(long)]
    pub no_rdma_checksums: bool,
    /// Skip the check before the migration (the short form of `linerate doctor`, one second at most)
    #[arg(long)]
    pub no_check: bool,
    /// Connections of QEMU side by side (multifd) [default: one, and no multifd]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64), help_heading = DOMAINS)]
    pub connections: Option<u32>,
    /// File with the domain as it shall run at the destination, where a path or a bridge has another name there
    /// (virsh's --xml)
    #[arg(long, value_name = "FILE", help_heading = DOMAINS)]
    pub xml: Option<PathBuf>,
    /// File with the domain as it shall be defined at the destination (virsh's --persistent-xml)
    #[arg(long, value_name = "FILE", help_heading = DOMAINS)]
    pub persistent_xml: Option<PathBuf>,
    /// Socket of the destination's libvirt [default: /run/libvirt/libvirt-sock]
    #[arg(long, value_name = "PATH", value_parser = units::socket_path, help_heading = DOMAINS)]
    pub libvirt_socket: Option<String>,
    /// Only find out whether the guest can move: start the incoming QEMU and open the links, then give both up. The
    /// guest is not touched
    #[arg(long, conflicts_with_all = ["copy_storage", "copy_disks", "detach"])]
    pub dry_run: bool,
    /// Start the migration, print its name and end
    #[arg(long, conflicts_with = "quiet")]
    pub detach: bool,
    /// Print nothing but errors
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// Heading of the flags that are for domains alone.
const DOMAINS: &str = "Domains of libvirt";

impl MigrateFlags {
    /// The guest as a domain of libvirt, if it is named as one.
    pub fn libvirt_domain(&self) -> Option<Domain> {
        let name = self.domain.as_ref().map(|name| format!("{}{name}", Domain::SYSTEM));
        Domain::parse(name.as_ref().or(self.guest.as_ref())?)
    }

    /// The first flag given that means something for domains of libvirt only.
    pub fn only_for_domains(&self) -> Option<&'static str> {
        let given = [
            (self.copy_storage.as_deref() == Some("inc"), "--copy-storage inc"),
            (self.connections.is_some(), "--connections"),
            (self.xml.is_some(), "--xml"),
            (self.persistent_xml.is_some(), "--persistent-xml"),
            (self.libvirt_socket.is_some(), "--libvirt-socket"),
        ];
        given.iter().find(|(is, _)| *is).map(|(_, flag)| *flag)
    }

    /// What to ask of the agent.
    pub fn request(&self) -> MigrateRequest {
        MigrateRequest {
            guest: self.guest.clone().unwrap_or_default(),
            to: self.to.clone(),
            max_blackout_ms: self.max_blackout,
            bandwidth_bytes_per_s: self.bandwidth,
            links: self.links.clone(),
            verify: self.verify,
            link_timeout_s: self.link_timeout,
            throttle: self.throttle,
            max_rounds: self.max_rounds,
            mode: self.mode,
            transport: self.transport,
            rdma_checksums: !self.no_rdma_checksums,
            copy_storage: self.copy_storage.is_some() && self.copy_disks.is_empty(),
            copy_disks: self.copy_disks.clone(),
            shared_storage: self.shared_storage.clone(),
            storage_share_percent: self.storage_share,
            dry_run: self.dry_run,
            libvirt: None,
            domain: None,
            only_host: None,
        }
    }

    /// The same of a domain of libvirt.
    pub fn domain_request(&self, domain: &Domain) -> MigrateRequest {
        let default_socket = || LibvirtRequest::DEFAULT_REMOTE_SOCKET.to_owned();
        let libvirt = LibvirtRequest {
            remote_socket: self.libvirt_socket.clone().unwrap_or_else(default_socket),
            above_backing_files: self.copy_storage.as_deref() == Some("inc"),
            connections: self.connections,
            ..LibvirtRequest::default()
        };
        MigrateRequest { guest: domain.name.clone(), libvirt: Some(libvirt), ..self.request() }
    }
}

#[derive(Debug, Subcommand)]
pub enum LinkCommand {
    /// List ports with their settings
    Show {
        /// Only the port of this name
        port: Option<String>,
    },
    /// Set a port; all is put back unless it is confirmed in time
    Set(LinkSetFlags),
    /// Keep what was set
    Confirm(LinkPortFlags),
    /// Put back what was set, before its time
    PutBack(LinkPortFlags),
}

/// `linerate link confirm | put-back`
#[derive(Debug, Args)]
pub struct LinkPortFlags {
    /// Name of the port, such as ens1f0
    pub port: String,
    /// The host, if it is not this one; its agent must allow it
    #[arg(long, value_name = "HOST[:PORT]", value_parser = units::host)]
    pub host: Option<String>,
}

impl LinkPortFlags {
    /// What to ask of the agent.
    pub fn request(&self) -> LinkConfirm {
        LinkConfirm { port: self.port.clone(), host: self.host.clone() }
    }
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("setting").required(true).multiple(true).args(["mtu", "speed", "fec", "pause", "queues"]))]
pub struct LinkSetFlags {
    /// Name of the port, such as ens1f0
    pub port: String,
    /// Largest packet (MTU), bytes
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u32>,
    /// auto, or a speed to force: 10G, 25G, 1000M. The other side must be set too
    #[arg(long, value_name = "auto|SPEED", value_parser = units::port_speed_mbps)]
    pub speed: Option<u32>,
    /// Forward error correction; must be the same on both ends
    #[arg(long, value_parser = ["auto", "off", "rs", "baser", "llrs"])]
    pub fec: Option<String>,
    /// Pause frames, both directions
    #[arg(long, value_name = "on|off", value_parser = units::on_off)]
    pub pause: Option<bool>,
    /// Number of queues for both directions
    #[arg(long, value_name = "COUNT")]
    pub queues: Option<u32>,
    /// The host, if it is not this one; its agent must allow it
    #[arg(long, value_name = "HOST[:PORT]", value_parser = units::host)]
    pub host: Option<String>,
    /// Show what would change, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Put all back unless confirmed within this time, at most 1h; a bare number is seconds
    #[arg(long, value_name = "TIME", value_parser = units::timeout_s, default_value = "60s")]
    pub within: u32,
}

impl LinkSetFlags {
    /// What to ask of the agent.
    pub fn request(&self) -> LinkRequest {
        LinkRequest {
            port: self.port.clone(),
            host: self.host.clone(),
            mtu: self.mtu,
            speed_mbps: self.speed,
            fec: self.fec.clone(),
            pause: self.pause,
            queues: self.queues,
            dry_run: self.dry_run,
            confirm_within_s: self.within,
        }
    }
}

#[derive(Debug, Args)]
pub struct TunnelFlags {
    /// A socket here and one there, such as unix:/run/a.sock=unix:/run/b.sock or tcp:127.0.0.1:4444=tcp:127.0.0.1:4444:
    /// for each connection to the first, the other host's agent connects to the second, which its `tunnel_targets` must
    /// allow
    #[arg(required = true, value_name = "LISTEN=CONNECT", value_parser = units::tunnel_pair)]
    pub pairs: Vec<TunnelPair>,
    /// The other host's agent
    #[arg(long, value_name = "HOST[:PORT]", value_parser = units::host)]
    pub to: String,
    /// Use only links in these networks, such as 10.0.1.0/24,10.0.2.0/24 [default: all]
    #[arg(long, value_name = "CIDR,…", value_delimiter = ',', value_parser = units::network)]
    pub links: Vec<String>,
    /// How long all links may be gone before every connection is reset, at most 2min; a bare number is seconds
    #[arg(long, value_name = "TIME", value_parser = units::timeout_s, default_value = "30s")]
    pub link_timeout: u32,
}

impl TunnelFlags {
    /// What to ask of the agent.
    pub fn request(&self) -> TunnelRequest {
        TunnelRequest {
            to: self.to.clone(),
            pairs: self.pairs.clone(),
            links: self.links.clone(),
            link_timeout_s: self.link_timeout,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum MigrationCommand {
    /// List migrations, newest first, with sessions that wait for a decision
    List,
    /// Show a migration, with its report once it is over
    Show(MigrationFlags),
    /// Watch a migration to its end, from its first event on
    Attach(MigrationFlags),
    /// Cancel a migration and wait until the guest runs at the source
    Cancel(MigrationFlags),
}

#[derive(Debug, Args)]
pub struct MigrationFlags {
    /// Name of the migration, or its first characters
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub id: String,
}

#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Start a guest from a specification
    Start {
        /// The specification, a TOML file; - is standard input
        spec: PathBuf,
        /// Start a guest that has left this host, although the host to which it went does not say that it is gone
        /// there. Make sure first that it runs nowhere else: two that run destroy its disks
        #[arg(long)]
        runs_nowhere_else: bool,
    },
    /// List the guests of this host
    List,
    /// Show a guest: disks, network cards, RAM, whether it can be moved, and what the destination must have
    Show {
        /// Name of the guest
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
    },
    /// Ask a guest to shut down, or end it at once
    Stop {
        /// Name of the guest
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        name: String,
        /// At once, as if its power were cut
        #[arg(long)]
        force: bool,
    },
    /// Take over a QEMU that something else started
    Adopt(AdoptFlags),
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["pid", "qmp"]))]
pub struct AdoptFlags {
    /// Process id of its QEMU
    #[arg(long)]
    pub pid: Option<u32>,
    /// Path of its QMP socket
    #[arg(long, value_name = "PATH")]
    pub qmp: Option<PathBuf>,
    /// What to call it: a name that no other guest of this host has [default: QEMU's own name of it (-name), its UUID,
    /// or qemu-PID]
    #[arg(long)]
    pub name: Option<String>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("decision").required(true).args(["resume_here", "give_up"]))]
pub struct ResolveFlags {
    /// Name of the session, as in `linerate migration list`
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub session: String,
    /// Run the guest here. Make sure first that it does not run on the other host: two that run destroy its disks
    #[arg(long)]
    pub resume_here: bool,
    /// End the guest here, since it runs on the other host or shall not run
    #[arg(long)]
    pub give_up: bool,
}

impl ResolveFlags {
    /// The session as the API names it.
    pub fn id(&self) -> MigrationId {
        MigrationId(self.session.clone())
    }
}

#[cfg(test)]
mod tests;
