//! All that checks look at: hosts, and which of their ports are on the same network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{Address, Inventory, Location, Matrix, Note, Port, PortKind, Switch};

/// Hosts that migrate to each other, what was measured between them, and switches that were exported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Survey {
    /// Inventories of the hosts, one each.
    pub hosts: Vec<Inventory>,
    /// The host whose agent asked the others; `None` for saved inventories.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub here: Option<String>,
    /// What probes measured; empty if none were made.
    pub matrix: Matrix,
    /// Switches, from exported files. What LLDP says is at each port.
    pub switches: Vec<Switch>,
}

/// A port with its host.
#[derive(Clone, Copy, Debug)]
pub struct PortRef<'a> {
    /// The host that the port belongs to.
    pub host: &'a Inventory,
    /// The port, in the host's inventory.
    pub port: &'a Port,
}

impl PortRef<'_> {
    /// As a location of a finding.
    pub fn location(&self) -> Location {
        Location::port(&self.host.host, &self.port.name)
    }
}

impl Survey {
    /// A survey of hosts without probes.
    pub fn of(hosts: Vec<Inventory>) -> Survey {
        Survey { hosts, ..Survey::default() }
    }

    /// The same without what takes load or time to find out: no bytes were moved, and no counters were watched.
    pub fn at_a_glance(&self) -> Survey {
        let mut survey = self.clone();
        survey.matrix.incasts.clear();
        for probe in &mut survey.matrix.probes {
            probe.latency_loaded = None;
            (probe.throughput_mbps, probe.loss_permille, probe.retransmits) = (None, None, None);
            (probe.rdma_mbps, probe.rdma_failure, probe.rdma_not_measured) = (None, None, None);
            // On a link that is reached, only the load can fail.
            probe.failure = probe.failure.take().filter(|_| probe.reachable != Some(true));
        }
        for host in &mut survey.hosts {
            host.ports.iter_mut().for_each(|port| port.counters_change = None);
            host.notes.retain(|note| note.about != Note::COUNTERS);
        }
        survey
    }

    /// Gives every host a name of its own: of several with one name the second is `NAME (2)`. It keeps its own name
    /// beside.
    pub fn make_names_unique(&mut self) {
        let mut names: BTreeSet<String> = BTreeSet::new();
        for host in &mut self.hosts {
            if names.insert(host.host.clone()) {
                continue;
            }
            let own = host.calls_itself().to_owned();
            let free = (2..).map(|number| format!("{own} ({number})")).find(|name| !names.contains(name));
            host.host = free.unwrap_or_else(|| own.clone());
            host.own_name = Some(own);
            names.insert(host.host.clone());
        }
    }

    /// Every host has a name that no other has.
    pub fn has_unique_names(&self) -> bool {
        let names: BTreeSet<&str> = self.hosts.iter().map(|host| host.host.as_str()).collect();
        names.len() == self.hosts.len()
    }

    /// Settings of its ports can be asked for only at the host itself.
    pub fn refuses_settings(&self, host: &str) -> bool {
        let agent = self.host(host).and_then(|host| host.agent.as_ref());
        let no = agent.is_some_and(|agent| agent.settings_from_agents == Some(false));
        no && self.here.as_deref().is_some_and(|here| here != host)
    }

    /// The host of that name.
    pub fn host(&self, name: &str) -> Option<&Inventory> {
        self.hosts.iter().find(|host| host.host == name)
    }

    /// A port of a host.
    pub fn port(&self, host: &str, port: &str) -> Option<PortRef<'_>> {
        let host = self.host(host)?;
        Some(PortRef { host, port: host.port(port)? })
    }

    /// Every port of every host.
    pub fn ports(&self) -> impl Iterator<Item = PortRef<'_>> {
        self.hosts.iter().flat_map(|host| host.ports.iter().map(move |port| PortRef { host, port }))
    }

    /// Ports that hold a shared address: those that a migration can use.
    pub fn carrying_ports(&self) -> impl Iterator<Item = PortRef<'_>> {
        self.ports().filter(|at| {
            at.port.kind != PortKind::Loopback && at.port.addresses.iter().any(|address| address.shared())
        })
    }

    /// The physical ports (or whatever is lowest) that carry a port: members of a bond, team or bridge, the port
    /// below a VLAN, the port itself.
    pub fn below<'a>(&'a self, at: PortRef<'a>) -> Vec<PortRef<'a>> {
        let mut found = Vec::new();
        let mut wait = vec![at];
        let mut seen: Vec<&str> = Vec::new();
        while let Some(at) = wait.pop() {
            // A file from outside may claim a port below itself.
            if seen.contains(&at.port.name.as_str()) {
                continue;
            }
            seen.push(&at.port.name);
            let before = wait.len();
            wait.extend(self.directly_below(at));
            if wait.len() == before {
                found.push(at);
            }
        }
        found.sort_by(|a, b| a.port.name.cmp(&b.port.name));
        found
    }

    /// Ports below a port, one step down.
    pub fn directly_below<'a>(&self, at: PortRef<'a>) -> impl Iterator<Item = PortRef<'a>> {
        at.host
            .ports
            .iter()
            .filter(move |port| carries(port, at.port))
            .map(move |port| PortRef { host: at.host, port })
    }

    /// Bonds and teams (not bridges) with their members.
    pub fn teams(&self) -> Vec<(PortRef<'_>, Vec<PortRef<'_>>)> {
        let team = |at: &PortRef<'_>| matches!(at.port.kind, PortKind::Bond | PortKind::Team);
        self.ports().filter(team).map(|at| (at, members(at))).collect()
    }

    /// Networks that at least two hosts are on: the links that a migration finds.
    pub fn segments(&self) -> Vec<Segment<'_>> {
        let mut networks: BTreeMap<Network, Vec<(PortRef<'_>, IpAddr)>> = BTreeMap::new();
        for at in self.carrying_ports() {
            for address in at.port.addresses.iter().filter(|address| address.shared()) {
                networks.entry(address.network()).or_default().push((at, address.ip));
            }
        }
        let segments = networks.into_iter().map(|(network, members)| Segment { network, members });
        segments.filter(|segment| segment.hosts() > 1).collect()
    }
}

fn carries(port: &Port, upper: &Port) -> bool {
    port.master.as_ref() == Some(&upper.name) || upper.parent.as_ref() == Some(&port.name)
}

fn members(at: PortRef<'_>) -> Vec<PortRef<'_>> {
    let of = |port: &&Port| port.master.as_ref() == Some(&at.port.name);
    at.host.ports.iter().filter(of).map(|port| PortRef { host: at.host, port }).collect()
}

/// A network: address with all host bits zero, and the length of its prefix. In JSON `10.1.0.0/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// The network that an address is in. A prefix that is too long is taken as a single address.
    pub fn of(address: IpAddr, prefix: u8) -> Network {
        match address {
            IpAddr::V4(ip) => {
                let prefix = prefix.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                Network { address: IpAddr::V4((ip.to_bits() & mask).into()), prefix }
            }
            IpAddr::V6(ip) => {
                let prefix = prefix.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                Network { address: IpAddr::V6((ip.to_bits() & mask).into()), prefix }
            }
        }
    }

    /// Length of the prefix, bits.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether the address is in it.
    pub fn contains(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.address.is_ipv4() && Network::of(ip, self.prefix).address == self.address
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl From<Network> for String {
    fn from(network: Network) -> String {
        network.to_string()
    }
}

/// A text that is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no network; write networks like 10.1.0.0/16")]
pub struct NotANetwork(String);

impl FromStr for Network {
    type Err = NotANetwork;

    fn from_str(text: &str) -> Result<Network, NotANetwork> {
        let parts =
            text.split_once('/').and_then(|(ip, prefix)| Some((ip.parse().ok()?, prefix.parse().ok()?)));
        let (ip, prefix) = parts.ok_or_else(|| NotANetwork(text.to_owned()))?;
        Ok(Network::of(ip, prefix))
    }
}

impl TryFrom<String> for Network {
    type Error = NotANetwork;

    fn try_from(text: String) -> Result<Network, NotANetwork> {
        text.parse()
    }
}

impl Address {
    /// The network that it is in.
    pub fn network(&self) -> Network {
        Network::of(self.ip, self.prefix)
    }

    /// Other hosts can use it: not of the host itself, not only of one cable, not a network of one address.
    pub fn shared(&self) -> bool {
        let whole = if self.ip.is_ipv4() { 32 } else { 128 };
        let link_local = match self.ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        !self.ip.is_loopback() && !link_local && self.prefix < whole
    }
}

/// The ports of a survey that are on one network: a migration between two of its hosts can use it as a link.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// The IP network that the ports share.
    pub network: Network,
    /// Its ports, at most one entry for each address, in the survey's order of hosts.
    pub members: Vec<(PortRef<'a>, IpAddr)>,
}

impl Segment<'_> {
    /// How many hosts are on it.
    pub fn hosts(&self) -> usize {
        let mut names: Vec<&str> = self.members.iter().map(|(at, _)| at.host.host.as_str()).collect();
        names.dedup();
        names.len()
    }
}
