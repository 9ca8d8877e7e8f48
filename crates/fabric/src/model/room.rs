//! All that checks look at.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Inventory, Matrix, Network, Place, Port, PortKind, Segment, Switch};

/// Hosts that migrate to each other, what was measured between them, and switches that were exported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Room {
    /// The hosts.
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
    /// The host.
    pub host: &'a Inventory,
    /// The port.
    pub port: &'a Port,
}

impl PortRef<'_> {
    /// As a place of a finding.
    pub fn place(&self) -> Place {
        Place::port(&self.host.host, &self.port.name)
    }
}

impl Room {
    /// A room of hosts without probes.
    pub fn of(hosts: Vec<Inventory>) -> Room {
        Room { hosts, ..Room::default() }
    }

    /// Gives every host a name of its own: of several with one name the second is `NAME (2)`. It keeps its own name beside.
    pub fn tell_apart(&mut self) {
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
    pub fn is_told_apart(&self) -> bool {
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

    /// The physical ports (or whatever is lowest) that carry a port: members of a bond, team or bridge, the port below a VLAN,
    /// the port itself.
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

    /// Ports that a port stands on, one step down.
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
