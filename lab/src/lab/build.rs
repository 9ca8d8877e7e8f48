//! Making a lab: hosts, links, the guest LAN.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Lab, Topology, root, switch_port};
use crate::error::io_error;
use crate::{LabError, LinkSpec, huge, netns, tool};

/// Where guests' network cards are plugged in, on every host.
pub(super) const BRIDGE: &str = "br0";
const OCTETS: std::ops::RangeInclusive<u8> = 64..=250;

/// How a lab is to be.
#[derive(Debug, Clone)]
pub struct LabBuilder {
    hosts: usize,
    links: Vec<LinkSpec>,
    ram_mb: u64,
    huge_mb: u64,
    bridge_helper: bool,
}

impl LabBuilder {
    pub(super) fn new() -> Self {
        LabBuilder { hosts: 2, links: Vec::new(), ram_mb: 8192, huge_mb: 0, bridge_helper: false }
    }

    /// Number of hosts, 2 by default.
    pub fn hosts(mut self, hosts: usize) -> Self {
        self.hosts = hosts;
        self
    }

    /// Adds a link that joins all hosts. Two hosts are joined by a veth pair; more by a switch namespace,
    /// where each port is shaped as the hosts are.
    pub fn link(mut self, link: LinkSpec) -> Self {
        self.links.push(link);
        self
    }

    pub fn links(mut self, links: impl IntoIterator<Item = LinkSpec>) -> Self {
        self.links.extend(links);
        self
    }

    /// Upper bound of guest RAM per host in MiB (a tmpfs: only what is used is taken). 8192 by default.
    pub fn ram_mb(mut self, ram_mb: u64) -> Self {
        self.ram_mb = ram_mb;
        self
    }

    /// Lets guests of all hosts together have so many MiB of RAM in explicit huge pages of 2 MiB, in
    /// [`crate::Host::huge_directory`].
    pub fn huge_mb(mut self, huge_mb: u64) -> Self {
        self.huge_mb = huge_mb;
        self
    }

    /// Allows QEMU's bridge helper to plug guests into `br0` of every host.
    pub fn bridge_helper(mut self) -> Self {
        self.bridge_helper = true;
        self
    }

    /// Makes the lab. On failure nothing of it stays.
    pub fn build(self) -> Result<Lab, LabError> {
        if !(2..=20).contains(&self.hosts) || !(1..=100).contains(&self.links.len()) {
            return Err(LabError::Size { hosts: self.hosts, links: self.links.len() });
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let pid = std::process::id();
        let name = format!("lr{pid}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let topology =
            Topology { octet: claim_octet(&name)?, name, pid, hosts: self.hosts, links: self.links.clone() };
        let lab = Lab::from_topology(topology, true);
        lab.create(&self)?;
        Ok(lab)
    }
}

impl Lab {
    fn create(&self, wanted: &LabBuilder) -> Result<(), LabError> {
        std::fs::create_dir_all(&self.directory).map_err(io_error("create", &self.directory))?;
        self.save()?;
        self.hosts.iter().try_for_each(|host| host.create(wanted.ram_mb))?;
        if wanted.huge_mb > 0 {
            huge::claim_pages(&self.directory, wanted.huge_mb)?;
            self.hosts.iter().try_for_each(|host| huge::mount(&host.huge_directory()))?;
        }
        if wanted.bridge_helper {
            self.hosts.iter().try_for_each(|host| netns::allow_bridge(host.namespace(), BRIDGE))?;
        }
        self.create_guest_lan()?;
        if self.switched() {
            netns::create(&self.switch_namespace())?;
        }
        self.topology.links.iter().enumerate().try_for_each(|(number, spec)| self.create_link(number, spec))
    }

    fn save(&self) -> Result<(), LabError> {
        let path = self.directory.join("lab.json");
        let text = serde_json::to_vec_pretty(&self.topology)
            .map_err(|source| LabError::Json { what: path.display().to_string(), source })?;
        std::fs::write(&path, text).map_err(io_error("write", &path))
    }

    fn create_link(&self, number: usize, spec: &LinkSpec) -> Result<(), LabError> {
        if let [first, second] = self.hosts.as_slice() {
            let device = first.device(number);
            veth(first.namespace(), &device, second.namespace(), &device, spec.mtu)?;
        } else {
            self.create_switch(number, spec)?;
        }
        for host in &self.hosts {
            let at = format!("{}/24", host.address(number));
            tool::ip(host.namespace(), &["addr", "add", &at, "dev", &host.device(number)])?;
            tool::ip(host.namespace(), &["link", "set", &host.device(number), "up"])?;
        }
        self.shape(number, spec)
    }

    fn create_switch(&self, number: usize, spec: &LinkSpec) -> Result<(), LabError> {
        let (namespace, bridge) = (self.switch_namespace(), format!("sw{number}"));
        create_bridge(&namespace, &bridge, spec.mtu)?;
        for host in &self.hosts {
            let port = switch_port(number, host);
            veth(host.namespace(), &host.device(number), &namespace, &port, spec.mtu)?;
            tool::ip(&namespace, &["link", "set", &port, "master", &bridge, "up"])?;
        }
        Ok(())
    }

    /// Guests' network: a bridge in every host, all joined to the observer's.
    fn create_guest_lan(&self) -> Result<(), LabError> {
        let observer = self.observer_namespace();
        netns::create(&observer)?;
        create_bridge(&observer, "lan", 1500)?;
        let at = format!("{}/24", self.observer_address());
        tool::ip(&observer, &["addr", "add", &at, "dev", "lan"])?;
        for host in &self.hosts {
            let port = format!("h{}", host.index());
            create_bridge(host.namespace(), BRIDGE, 1500)?;
            veth(host.namespace(), "lan0", &observer, &port, 1500)?;
            no_ipv6(host.namespace(), "lan0")?;
            tool::ip(host.namespace(), &["link", "set", "lan0", "master", BRIDGE, "up"])?;
            tool::ip(&observer, &["link", "set", &port, "master", "lan", "up"])?;
        }
        Ok(())
    }
}

fn veth(here: &str, device: &str, there: &str, peer: &str, mtu: u32) -> Result<(), LabError> {
    let mtu = mtu.to_string();
    let arguments = [
        "link", "add", device, "mtu", &mtu, "type", "veth", "peer", "name", peer, "mtu", &mtu, "netns", there,
    ];
    tool::ip(here, &arguments).map(drop)
}

/// No link-local address by itself: a device that only forwards must not look like a link between hosts.
pub(crate) fn no_ipv6(namespace: &str, device: &str) -> Result<(), LabError> {
    tool::ip(namespace, &["link", "set", device, "addrgenmode", "none"]).map(drop)
}

fn create_bridge(namespace: &str, name: &str, mtu: u32) -> Result<(), LabError> {
    let mtu = mtu.to_string();
    let arguments =
        ["link", "add", name, "mtu", &mtu, "type", "bridge", "stp_state", "0", "forward_delay", "0"];
    tool::ip(namespace, &arguments)?;
    no_ipv6(namespace, name)?;
    tool::ip(namespace, &["link", "set", name, "up"]).map(drop)
}

/// Takes an address range that no other lab has: the claim is a file that says whose it is.
fn claim_octet(name: &str) -> Result<u8, LabError> {
    let directory = root().join("octets");
    std::fs::create_dir_all(&directory).map_err(io_error("create", &directory))?;
    for octet in OCTETS {
        let path = directory.join(octet.to_string());
        match OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => {
                file.write_all(name.as_bytes()).map_err(io_error("write", &path))?;
                return Ok(octet);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io_error("create", &path)(error)),
        }
    }
    Err(LabError::NoAddressRange)
}
