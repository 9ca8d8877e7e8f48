//! Guests: what is known of them, and how they come and go.

use serde::{Deserialize, Serialize};

/// A guest, in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSummary {
    /// Its name; unique on its host.
    pub name: String,
    /// Its UUID, if its hypervisor has one for it.
    pub uuid: Option<String>,
    /// What its hypervisor does with it now.
    pub state: GuestRunState,
    /// Size of guest RAM, bytes.
    pub memory_bytes: u64,
    /// Number of virtual CPUs.
    pub vcpus: u32,
    /// Version of its QEMU, such as `10.0.2`.
    pub qemu_version: String,
    /// Process of its QEMU; none if it is stopped.
    pub pid: Option<u32>,
    /// Name of the migration in which it came; none if it was started or adopted here.
    #[serde(default)]
    pub session: Option<String>,
    /// Whether direct mode can move it.
    pub direct: Verdict,
    /// Whether stream mode can.
    #[serde(default)]
    pub stream: Verdict,
}

/// What a guest does on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestRunState {
    /// Its virtual CPUs run.
    Running,
    /// Its virtual CPUs are stopped; RAM and devices are kept.
    Paused,
    /// It waits for a migration to fill it.
    Incoming,
    /// Its QEMU process has ended.
    Stopped,
    /// It runs and is being moved away.
    Migrating,
    /// An earlier migration of it is being brought to its end.
    Recovering,
    /// It is not known yet on which host it is to run: it is paused, and its migration waits for the other host or an
    /// operator.
    InDoubt,
    /// Its record on this host cannot be read: nobody knows whether it runs.
    Unknown,
}

/// Whether something can be done, and if not, every reason against it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// There is no reason against it.
    pub possible: bool,
    /// One sentence for each reason; empty if it can.
    pub reasons: Vec<String>,
}

/// All that is known of a guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GuestDetail {
    /// The line of it.
    pub summary: GuestSummary,
    /// Disks that its QEMU has, CD images too.
    pub disks: Vec<Disk>,
    /// Network cards that its QEMU has.
    pub nics: Vec<Nic>,
    /// Its RAM, as its hypervisor divides it.
    pub ram_blocks: Vec<RamBlock>,
    /// What a destination must have and allow: only that host knows whether it does.
    #[serde(default)]
    pub needs: Vec<String>,
    /// The description that is sent to a destination, for programs.
    pub description: serde_json::Value,
}

/// A disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// QEMU's name of the device or block node.
    pub device: String,
    /// Image file or block device on the host.
    pub path: String,
    /// Format, such as `raw` or `qcow2`.
    pub format: String,
    /// Opened with O_DIRECT (`cache=none`): it is drained for a moment whenever write protection is applied.
    pub direct_io: bool,
    /// The guest cannot write it.
    pub read_only: bool,
}

/// A network card of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// QEMU's name of the device.
    pub device: String,
    /// MAC address, such as `52:54:00:12:34:56`.
    pub mac: String,
    /// What it is plugged into on the host, such as a tap interface.
    pub backend: String,
}

/// A block of guest RAM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RamBlock {
    /// QEMU's name of it.
    pub name: String,
    /// Size of the block, bytes.
    pub size_bytes: u64,
    /// How much of it is in use; unknown if it is not backed by a file.
    pub populated_bytes: Option<u64>,
    /// The file behind it, if there is a named one.
    pub path: Option<String>,
    /// A shared mapping of that file.
    pub shared: bool,
}

/// Starts a guest. At least one of the first two is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartGuest {
    /// The guest specification itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_toml: Option<String>,
    /// A file on the agent's host that holds it. With `spec_toml` it is not read: only its folder counts, from which
    /// relative paths of the specification count. Absent: they count from `/`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_path: Option<String>,
    /// A guest that has left this host is started although the host to which it went does not say that it is gone
    /// there. The operator has made sure that it runs nowhere else.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub runs_nowhere_else: bool,
}

/// Takes over a QEMU that something else started. At least one of `pid` and `qmp` is given; both must
/// mean the same process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdoptGuest {
    /// Process id of QEMU; absent: found by the QMP socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Path of its QMP socket; absent: found from the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qmp: Option<String>,
    /// What to call it, whatever QEMU calls it; QEMU's own name of it if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// How a guest is to be stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopGuest {
    /// At once, as if its power were cut; otherwise the guest is asked to shut down.
    #[serde(default)]
    pub force: bool,
}
