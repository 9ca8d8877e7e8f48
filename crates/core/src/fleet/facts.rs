//! What a host offers, what a guest needs, and the obstacles between the two.

use std::collections::BTreeSet;
use std::fmt;

use super::{GuestId, HostId};

/// A port of a host that migrations may use.
#[derive(Clone, Debug, PartialEq)]
pub struct Port {
    /// The network that it is on. Two hosts have a link where both have a port on the same network.
    pub network: String,
    /// Bytes per second that it carries.
    pub bytes_per_s: f64,
}

/// What a host offers to every guest. Many hosts share one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Offer {
    /// CPU models that it can give to a guest.
    pub cpu_models: BTreeSet<String>,
    /// CPU features that it can give to a guest.
    pub cpu_features: BTreeSet<String>,
    /// Version of its newest QEMU, major and minor.
    pub qemu: (u16, u16),
    /// Machine types of its QEMUs.
    pub machines: BTreeSet<String>,
    /// Storage that it reaches.
    pub storage: BTreeSet<String>,
    /// Networks and bridges for guests.
    pub networks: BTreeSet<String>,
    /// Ports for migrations, at most 64.
    pub ports: Vec<Port>,
}

/// What a guest needs of its host. Many guests share one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// Its CPU model, if it has one that not every host gives.
    pub cpu_model: Option<String>,
    /// CPU features that it sees.
    pub cpu_features: BTreeSet<String>,
    /// Its QEMU must not be older than this.
    pub qemu: (u16, u16),
    /// Its machine type.
    pub machine: String,
    /// Storage that its disks are on. A copied disk is not in it.
    pub storage: BTreeSet<String>,
    /// Networks and bridges that it is connected to.
    pub networks: BTreeSet<String>,
}

/// Why a guest cannot go to a host.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the variant says what its fields are")]
pub enum Obstacle {
    /// The guest is there.
    IsThere,
    /// The host takes no arrivals until it is released.
    Cordoned,
    /// The host does not answer.
    Lost,
    /// The drain or the guest allows only other hosts.
    NotAllowed,
    /// The guest's rules forbid this host, or an attempt there failed.
    Forbidden,
    /// Memory in bytes: what the guest needs and what is free for guests.
    Memory { needs: u64, free: u64 },
    /// No such CPU model.
    CpuModel(String),
    /// CPU features that are missing.
    CpuFeatures(Vec<String>),
    /// Its QEMU is older than the guest's: the guest's version, the host's version.
    QemuOlder { needs: (u16, u16), has: (u16, u16) },
    /// No QEMU there has this machine type.
    Machine(String),
    /// Storage that it does not reach.
    Storage(Vec<String>),
    /// Networks or bridges that it does not have.
    Networks(Vec<String>),
    /// No port of the two hosts is on the same network.
    NoLink,
    /// A guest that must not share a host with this one is there or has a reservation.
    ApartFrom(GuestId),
    /// The guests that it must share a host with are on this other host.
    TogetherOn(HostId),
    /// Memory in bytes: what it needs with the guests that go with it, and what is free for guests.
    MemoryTogether { needs: u64, free: u64 },
    /// Why a guest that must go with it cannot go there.
    OfOther(GuestId, Box<Obstacle>),
}

impl Obstacle {
    /// What it is, in a few words without values: for counts.
    pub fn name(&self) -> &'static str {
        match self {
            Obstacle::IsThere => "the guest is there",
            Obstacle::Cordoned => "cordoned",
            Obstacle::Lost => "not answering",
            Obstacle::NotAllowed => "not allowed",
            Obstacle::Forbidden => "forbidden, or an attempt there failed",
            Obstacle::Memory { .. } => "too little free memory",
            Obstacle::CpuModel(_) => "other CPU model",
            Obstacle::CpuFeatures(_) => "CPU features missing",
            Obstacle::QemuOlder { .. } => "older QEMU",
            Obstacle::Machine(_) => "no such machine type",
            Obstacle::Storage(_) => "storage not reachable",
            Obstacle::Networks(_) => "networks missing",
            Obstacle::NoLink => "no link",
            Obstacle::ApartFrom(_) => "a guest is there that must be apart",
            Obstacle::TogetherOn(_) => "guests that must be together are elsewhere",
            Obstacle::MemoryTogether { .. } => "too little free memory for guests that must be together",
            Obstacle::OfOther(..) => "a guest that must be together cannot go there",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: &u64| bytes.div_ceil(1 << 20);
        match self {
            Obstacle::IsThere => write!(f, "the guest is there"),
            Obstacle::Cordoned => write!(f, "cordoned: release it with `linerate uncordon`"),
            Obstacle::Lost => write!(f, "its agent does not answer"),
            Obstacle::NotAllowed => write!(f, "not among the allowed hosts"),
            Obstacle::Forbidden => write!(f, "forbidden for this guest, or an attempt there failed"),
            Obstacle::Memory { needs, free } => {
                write!(f, "the guest needs {} MiB and {} MiB are free", mib(needs), free >> 20)
            }
            Obstacle::CpuModel(model) => write!(f, "it cannot give the CPU model {model}"),
            Obstacle::CpuFeatures(names) => write!(f, "its CPU lacks {}", names.join(", ")),
            Obstacle::QemuOlder { needs, has } => {
                write!(f, "its QEMU {}.{} is older than the guest's {}.{}", has.0, has.1, needs.0, needs.1)
            }
            Obstacle::Machine(name) => write!(f, "its QEMU has no machine type {name}"),
            Obstacle::Storage(names) => write!(f, "it does not reach the storage {}", names.join(", ")),
            Obstacle::Networks(names) => write!(f, "it has no network {}", names.join(", ")),
            Obstacle::NoLink => write!(f, "no port of the two hosts is on the same network"),
            Obstacle::ApartFrom(guest) => write!(f, "guest {} is there, which must be apart", guest.0),
            Obstacle::TogetherOn(host) => {
                write!(f, "the guests that it must stay with are on host {}", host.0)
            }
            Obstacle::MemoryTogether { needs, free } => {
                let (needs, free) = (mib(needs), free >> 20);
                write!(f, "the guests that must be together need {needs} MiB and {free} MiB are free")
            }
            Obstacle::OfOther(guest, why) => write!(f, "guest {}, which must go with it: {why}", guest.0),
        }
    }
}

fn missing(needed: &BTreeSet<String>, there: &BTreeSet<String>) -> Option<Vec<String>> {
    let missing: Vec<String> = needed.difference(there).cloned().collect();
    (!missing.is_empty()).then_some(missing)
}

impl Needs {
    /// Everything that `offer` lacks. Empty: a guest with these needs can run there.
    pub fn obstacles(&self, offer: &Offer) -> Vec<Obstacle> {
        let model = self.cpu_model.as_ref().filter(|model| !offer.cpu_models.contains(*model));
        let machine = Some(&self.machine).filter(|name| !name.is_empty() && !offer.machines.contains(*name));
        let older =
            (offer.qemu < self.qemu).then_some(Obstacle::QemuOlder { needs: self.qemu, has: offer.qemu });
        [
            model.cloned().map(Obstacle::CpuModel),
            missing(&self.cpu_features, &offer.cpu_features).map(Obstacle::CpuFeatures),
            older,
            machine.cloned().map(Obstacle::Machine),
            missing(&self.storage, &offer.storage).map(Obstacle::Storage),
            missing(&self.networks, &offer.networks).map(Obstacle::Networks),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl Offer {
    /// Bytes per second of all ports.
    pub fn bytes_per_s(&self) -> f64 {
        self.ports.iter().map(|port| port.bytes_per_s).sum()
    }

    /// The links to another host: bit `n` is set where port `n` has one, and what they carry together in bytes per
    /// second. A link carries what its slower port does.
    pub fn links_to(&self, other: &Offer) -> (u64, f64) {
        let rate_there = |network: &str| -> f64 {
            other.ports.iter().filter(|port| port.network == network).map(|port| port.bytes_per_s).sum()
        };
        self.ports.iter().take(64).enumerate().fold((0, 0.0), |(mask, sum), (number, port)| match rate_there(
            &port.network,
        ) {
            rate if rate > 0.0 => (mask | 1 << number, sum + rate.min(port.bytes_per_s)),
            _ => (mask, sum),
        })
    }
}
