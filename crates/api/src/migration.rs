//! Migrations: asking for one, and seeing which there are.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{ErrorBody, LibvirtRequest, Report, Step};

/// Names a migration: its session number in hexadecimal, the same on both hosts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MigrationId(pub String);

impl fmt::Display for MigrationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Moves a guest to another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrateRequest {
    /// Name of the guest; of a domain of libvirt its name, ID or UUID.
    pub guest: String,
    /// The destination's agent: `HOST` or `HOST:PORT`.
    pub to: String,
    /// Largest predicted downtime at which the guest may be stopped.
    /// [`MigrateRequest::DEFAULT_MAX_BLACKOUT_MS`] if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_blackout_ms: Option<u32>,
    /// Cap over all links together; no cap if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Networks (`ADDRESS/PREFIX`) whose links may be used; all if empty.
    #[serde(default)]
    pub links: Vec<String>,
    /// Compare all guest RAM on both sides while the guest is paused.
    #[serde(default)]
    pub verify: bool,
    /// How long all links may be gone before the migration is given up.
    #[serde(default = "default_link_timeout_s")]
    pub link_timeout_s: u32,
    /// Slow the guest's CPUs down if it writes faster than the links carry, and let its writes to copied disks
    /// wait for the copy. Otherwise such a migration is given up.
    #[serde(default)]
    pub throttle: bool,
    /// Rounds after the first pass before a migration that does not converge is given up; the agent's own limit if
    /// absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rounds: Option<u32>,
    /// How guest RAM is moved.
    #[serde(default)]
    pub mode: ModeChoice,
    /// What links carry guest RAM over.
    #[serde(default)]
    pub transport: Transport,
    /// Sum every payload at the source and compare at the destination over RDMA too. Over TCP that is always done.
    #[serde(default = "yes")]
    pub rdma_checksums: bool,
    /// Copy the disks that the guest may write too: the hosts do not share them. In stream mode only.
    #[serde(default)]
    pub copy_storage: bool,
    /// The same for these disks alone, by their names in [`crate::GuestDetail`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub copy_disks: Vec<String>,
    /// Disks that both hosts share although that cannot be proved: the operator says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_storage: Vec<String>,
    /// What those disks have of the links while memory wants the rest, in percent, 1 to 99; half if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_share_percent: Option<u8>,
    /// Find out whether the guest can move, up to an incoming QEMU and links that carry, and leave it where it is.
    /// Nothing of the guest is touched.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// The guest is a domain of libvirt, which the agent has libvirt move.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libvirt: Option<LibvirtRequest>,
    /// Added by the agent where it copies a domain's RAM while libvirt's own migration waits.
    #[serde(skip)]
    pub domain: Option<DomainMigration>,
    /// Added by the agent where another host wants its guest back: the name of that host, and no other gets the guest.
    #[serde(skip)]
    pub only_host: Option<String>,
}

/// What belongs to the move of a domain whose RAM Linerate copies while libvirt's own migration waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainMigration {
    /// The socket here that libvirt's migration goes to: of a pair of a tunnel that waits.
    pub stream: PathBuf,
    /// The socket here by which libvirt drives it: of a pair of that tunnel that drives.
    pub job: PathBuf,
    /// The domain's UUID. Its QEMU must have the same.
    pub uuid: String,
}

/// How guest RAM shall be moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModeChoice {
    /// Direct where the guest allows it, by the hypervisor's own streams elsewhere.
    #[default]
    Auto,
    /// From RAM to RAM, or not at all.
    Direct,
    /// By the hypervisor's own streams.
    Stream,
}

fn yes() -> bool {
    true
}

/// What links carry guest RAM over. Control connections are always TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// RDMA where both ends of a link have it and it works, TCP elsewhere.
    Auto,
    /// TCP only, even where both ports have RDMA.
    #[default]
    Tcp,
    /// RDMA only: links without it are not used for guest RAM.
    Rdma,
}

fn default_link_timeout_s() -> u32 {
    MigrateRequest::DEFAULT_LINK_TIMEOUT_S
}

impl MigrateRequest {
    /// The blackout budget if none is given, in milliseconds.
    pub const DEFAULT_MAX_BLACKOUT_MS: u32 = 300;
    /// How long all links may be gone if nothing is said, in seconds.
    pub const DEFAULT_LINK_TIMEOUT_S: u32 = 30;

    /// What disks have of the links beside memory if nothing is said, in percent.
    pub const DEFAULT_STORAGE_SHARE_PERCENT: u8 = 50;

    /// A request with everything at its default.
    pub fn new(guest: impl Into<String>, to: impl Into<String>) -> MigrateRequest {
        MigrateRequest {
            guest: guest.into(),
            to: to.into(),
            max_blackout_ms: None,
            bandwidth_bytes_per_s: None,
            links: Vec::new(),
            verify: false,
            link_timeout_s: Self::DEFAULT_LINK_TIMEOUT_S,
            throttle: false,
            max_rounds: None,
            mode: ModeChoice::Auto,
            transport: Transport::Tcp,
            rdma_checksums: true,
            copy_storage: false,
            copy_disks: Vec::new(),
            shared_storage: Vec::new(),
            storage_share_percent: None,
            dry_run: false,
            libvirt: None,
            domain: None,
            only_host: None,
        }
    }

    /// Whether any disk is to be copied.
    pub fn copies_disks(&self) -> bool {
        self.copy_storage || !self.copy_disks.is_empty()
    }

    /// The blackout budget in force, in milliseconds.
    pub fn blackout_budget_ms(&self) -> u32 {
        self.max_blackout_ms.unwrap_or(Self::DEFAULT_MAX_BLACKOUT_MS)
    }
}

/// Answer to a [`MigrateRequest`]: it has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationStarted {
    /// Its name from now on.
    pub id: MigrationId,
}

/// Which way a guest goes, seen from the agent that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Away from this host.
    Outgoing,
    /// From another host to this one.
    Incoming,
}

/// How a migration ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationOutcome {
    /// The guest runs at the destination.
    Completed,
    /// It was stopped on request; the guest runs at the source.
    Cancelled,
    /// A dry run: the guest can move, and runs at the source.
    Checked,
    /// It did not work. The error says what the guest does now.
    Failed,
    /// Whether the destination took over is not known yet. The source is paused and goes on asking.
    InDoubt,
}

/// The state of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigrationState {
    /// In progress: not at its end, and it was not asked to stop.
    Running,
    /// Asked to stop and not stopped yet.
    Cancelling,
    /// The guest runs at the destination.
    Completed,
    /// Stopped on request; the guest runs at the source.
    Cancelled,
    /// A dry run: the guest can move, and runs at the source.
    Checked,
    /// It did not work.
    Failed,
    /// The guest is paused and it is not known where it is to run: the source asks the destination, the destination
    /// waits for the source's word; an operator may decide. Or the guest may run on both hosts.
    InDoubt,
    /// Decided, and being brought to its end: what does not succeed is tried again.
    Recovering,
}

/// A migration, in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationSummary {
    /// Random id of the migration; the same on both hosts.
    pub id: MigrationId,
    /// Name of the guest that moves.
    pub guest: String,
    /// Whether the guest leaves this host or comes to it.
    pub direction: Direction,
    /// The other host, as it was named or as it calls itself.
    pub peer: String,
    /// Its progress, or how it ended.
    pub state: MigrationState,
    /// The step it is in, or ended in.
    pub step: Step,
    /// When it began, milliseconds since 1970.
    pub started_unix_ms: u64,
    /// How much of the first pass and of the rounds so far is done.
    pub sent_bytes: u64,
    /// What is unfinished, why the last try failed, what happens next, and what an operator can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// All that is known of a migration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MigrationDetail {
    /// The line of it.
    pub summary: MigrationSummary,
    /// The report, once it is over.
    pub report: Option<Report>,
    /// What went wrong, if something did.
    pub error: Option<ErrorBody>,
}

/// An operator's decision over a session in doubt, when the other host will never answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResolveRequest {
    /// Whether the guest may run on this host.
    pub decision: Decision,
}

/// An operator's decision about a guest in doubt, see [`ResolveRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The operator has made sure that the guest does not run on the other host: run it here.
    ResumeHere,
    /// The guest runs on the other host, or shall not run here: end it here.
    GiveUp,
}
