//! What a host is beside its ports.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Operating system and firmware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct System {
    /// Operating system: `linux` or `windows`.
    pub os: Option<String>,
    /// Such as `Debian GNU/Linux 12 (bookworm)`.
    pub distribution: Option<String>,
    /// Release of the kernel, such as `6.12.9-amd64`.
    pub kernel: Option<String>,
    /// Processor architecture, such as `x86_64`.
    pub architecture: Option<String>,
    /// Secure Boot is on: firmware tools cannot see adapters then.
    pub secure_boot: Option<bool>,
    /// What Linerate can use of the kernel.
    pub features: Vec<Feature>,
}

/// Something that Linerate can use of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Feature {
    /// Its name, such as `pagemap_scan`.
    pub name: String,
    /// This kernel has it.
    pub present: bool,
    /// What cannot be done without it.
    pub needed_for: String,
}

/// Processors and their power saving.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Model, as the processor says.
    pub model: Option<String>,
    /// Processors that the kernel runs on (hyper-threads count).
    pub online: Option<u32>,
    /// Number of physical cores on all sockets.
    pub cores: Option<u32>,
    /// Instruction set extensions, as in /proc/cpuinfo.
    pub flags: Vec<String>,
    /// NUMA nodes, each with its CPUs.
    pub nodes: Vec<NumaNode>,
    /// Frequency governors in use, and by how many CPUs.
    pub governors: Vec<Governor>,
    /// Frequency driver, such as `intel_pstate`.
    pub frequency_driver: Option<String>,
    /// Idle states of the first CPU.
    pub idle_states: Vec<IdleState>,
}

/// A NUMA node and its CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NumaNode {
    /// The kernel's number of the node.
    pub number: u32,
    /// Numbers of the CPUs on this node.
    pub cpus: Vec<u32>,
}

/// A frequency governor and how many CPUs it governs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Governor {
    /// Such as `performance` or `powersave`; on Windows the name of the power plan.
    pub name: String,
    /// How many CPUs have it.
    pub cpus: u32,
}

/// An idle state of a CPU, and how long waking takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IdleState {
    /// The kernel's name, such as `C6`.
    pub name: String,
    /// How long waking takes, microseconds.
    pub latency_us: u32,
    /// The kernel may choose it.
    pub enabled: bool,
}

/// Memory and its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Size of the host's RAM, bytes, as the kernel counts it.
    pub total_bytes: Option<u64>,
    /// What a new program could have.
    pub available_bytes: Option<u64>,
    /// Pools of huge pages.
    pub huge_pages: Vec<HugePages>,
    /// Transparent huge pages: `always`, `madvise`, `never`.
    pub transparent_huge_pages: Option<String>,
    /// The same for shared memory (tmpfs, memfd).
    pub transparent_huge_pages_shared: Option<String>,
    /// How much the collecting process (the agent) may lock.
    pub memlock: Option<Limit>,
    /// Folders in which the agent makes the memory of guests.
    pub ram_folders: Vec<RamFolder>,
}

/// A folder for the memory of guests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RamFolder {
    /// Path of the folder on the host.
    pub path: String,
    /// `tmpfs`, `hugetlbfs`, or another; `None` if it is not there or cannot be read.
    pub filesystem: Option<String>,
    /// What it can hold.
    pub size_bytes: Option<u64>,
    /// What it can hold beside what is in it.
    pub available_bytes: Option<u64>,
    /// For guests whose memory is in explicit huge pages.
    pub huge_pages: bool,
}

/// A limit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The kernel sets no limit.
    Unlimited,
    /// The limit, in bytes.
    Bytes(u64),
}

/// Huge pages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HugePages {
    /// Size of a page.
    pub size_bytes: u64,
    /// How many are reserved.
    pub total: u64,
    /// How many of them are not used.
    pub free: u64,
}

/// KVM and the QEMU binaries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Hypervisor {
    /// /dev/kvm can be opened.
    pub kvm: Option<bool>,
    /// QEMU binaries that were found, each asked for its version.
    pub qemu: Vec<Qemu>,
    /// Models of guest processors that run here in full, as QEMU says; empty if not asked.
    pub cpu_models: Vec<String>,
}

/// A QEMU binary of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Qemu {
    /// Path of the binary on the host.
    pub path: String,
    /// Its version, such as `10.0.2`.
    pub version: Option<String>,
    /// Versioned machine types, such as `pc-q35-10.0`.
    pub machines: Vec<String>,
}

/// Whether the host's clock is right.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Time {
    /// The kernel's clock is steered by something that knows the time.
    pub synchronised: Option<bool>,
    /// How wrong the kernel believes that it can be, microseconds.
    pub error_max_us: Option<u64>,
}

/// What a name resolves to on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resolved {
    /// The name: the host's own, and those of hosts that the doctor was asked about.
    pub name: String,
    /// Its addresses; empty if it does not resolve.
    pub addresses: Vec<IpAddr>,
}

/// A route of the main table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Network; `None` is the default route.
    #[serde(default)]
    pub destination: Option<super::Network>,
    /// Next router; `None` if the network is on the port.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// Name of the port that packets leave by.
    pub port: String,
    /// The address that packets leave with.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// Priority of the route: the lowest wins.
    #[serde(default)]
    pub metric: u32,
    /// Largest packet of this route, bytes, if it is set.
    #[serde(default)]
    pub mtu: Option<u32>,
}

/// The router of a default route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gateway {
    /// IP address of the router.
    pub ip: IpAddr,
    /// The port it is reached by.
    pub port: String,
    /// It answered ARP requests. `None` if it was not asked.
    #[serde(default)]
    pub answers: Option<bool>,
}

/// What filters incoming packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Firewall {
    /// Chains of nftables that see incoming packets.
    pub input: Vec<FirewallChain>,
}

/// A chain of nftables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FirewallChain {
    /// Family and table, such as `inet filter`.
    pub table: String,
    /// Name of the chain in its table.
    pub name: String,
    /// Hook, such as `input` or `ingress`.
    pub hook: String,
    /// What is not accepted by a rule is dropped.
    pub drops: bool,
    /// How many rules it has.
    pub rules: u32,
}

/// The Linerate agent of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Agent {
    /// Version of Linerate that the agent runs.
    pub version: String,
    /// Addresses, with ports, at which it takes migrations; those of the migration network.
    pub listen: Vec<String>,
    /// Networks that an operator narrowed links to; empty is all.
    pub links: Vec<super::Network>,
    /// Type of service (DSCP and ECN bits) that it gives its RDMA connections; 0 is none of its own.
    pub rdma_type_of_service: Option<u8>,
    /// A number that no other agent has: hosts may have one name.
    pub instance: Option<String>,
    /// Other hosts' agents may set its ports.
    pub settings_from_agents: Option<bool>,
}
