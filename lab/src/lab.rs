//! A whole lab: built, found again by name, harmed on purpose, and cleaned up.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::io_error;
use crate::host::{Host, address};
use crate::link::{self, LinkSpec};
use crate::{LabError, netns, sweep, tool};

/// Third octet of the guest LAN; links are numbered from 0 and stay below.
const GUEST_LAN: usize = 200;
const OCTETS: std::ops::RangeInclusive<u8> = 64..=250;

/// Directory that holds one directory per lab: `$LINERATE_LAB_DIR`, or /var/tmp/linerate-lab.
pub fn root() -> PathBuf {
    std::env::var_os("LINERATE_LAB_DIR").map_or_else(|| "/var/tmp/linerate-lab".into(), PathBuf::from)
}

/// What a lab is made of; written to `lab.json` in its directory, so that other processes can work with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// `lr<pid>-<n>`, with the maker's process id.
    pub name: String,
    /// The maker.
    pub pid: u32,
    /// Second octet of all its addresses.
    pub octet: u8,
    /// Number of hosts.
    pub hosts: usize,
    /// The links, `l0` first.
    pub links: Vec<LinkSpec>,
}

/// Hosts joined by links. See the crate's documentation.
#[derive(Debug)]
pub struct Lab {
    topology: Topology,
    directory: PathBuf,
    hosts: Vec<Host>,
    owned: bool,
}

/// How a lab is to be.
#[derive(Debug, Clone)]
pub struct LabBuilder {
    hosts: usize,
    links: Vec<LinkSpec>,
    ram_mb: u64,
}

impl LabBuilder {
    /// Number of hosts, 2 unless told.
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

    /// Adds several links.
    pub fn links(mut self, links: impl IntoIterator<Item = LinkSpec>) -> Self {
        self.links.extend(links);
        self
    }

    /// Upper bound of guest RAM per host in MiB (a tmpfs: only what is used is taken). 8192 unless told.
    pub fn ram_mb(mut self, ram_mb: u64) -> Self {
        self.ram_mb = ram_mb;
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
            Topology { octet: claim_octet(&name)?, name, pid, hosts: self.hosts, links: self.links };
        let lab = Lab::from_topology(topology, true);
        lab.create(self.ram_mb)?;
        Ok(lab)
    }
}

impl Lab {
    /// Two hosts and no link yet.
    pub fn builder() -> LabBuilder {
        LabBuilder { hosts: 2, links: Vec::new(), ram_mb: 8192 }
    }

    /// A lab that another process made and owns: nothing is removed when this handle is dropped.
    pub fn attach(name: &str) -> Result<Lab, LabError> {
        let path = root().join(name).join("lab.json");
        let unknown = || LabError::Unknown { kind: "lab", name: name.to_owned() };
        let text = std::fs::read(&path).map_err(|_| unknown())?;
        let topology = serde_json::from_slice(&text)
            .map_err(|source| LabError::Json { what: path.display().to_string(), source })?;
        Ok(Lab::from_topology(topology, false))
    }

    fn from_topology(topology: Topology, owned: bool) -> Lab {
        let directory = root().join(&topology.name);
        let hosts = (0..topology.hosts).map(|index| host(&topology, &directory, index)).collect();
        Lab { topology, directory, hosts, owned }
    }

    /// What it is made of.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// `lr<pid>-<n>`.
    pub fn name(&self) -> &str {
        &self.topology.name
    }

    /// Scratch space that goes away with the lab; on a real file system, so that disks can be opened with O_DIRECT.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// All hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// A host by position.
    pub fn host(&self, index: usize) -> Result<&Host, LabError> {
        self.hosts.get(index).ok_or_else(|| LabError::Unknown { kind: "host", name: index.to_string() })
    }

    /// Namespace on the guest LAN where the observer listens.
    pub fn observer_namespace(&self) -> String {
        format!("{}-obs", self.name())
    }

    /// Address of the observer on the guest LAN.
    pub fn observer_address(&self) -> Ipv4Addr {
        address(self.topology.octet, GUEST_LAN, 0)
    }

    /// Address for guest number `guest` (from 0) on the guest LAN, a /24.
    pub fn guest_address(&self, guest: usize) -> Ipv4Addr {
        address(self.topology.octet, GUEST_LAN, 9 + guest)
    }

    /// Takes a link down on all hosts, as a pulled cable does: both sides lose the carrier.
    pub fn cut(&self, link: usize) -> Result<(), LabError> {
        self.each_device(link, |namespace, device| tool::ip(namespace, &["link", "set", device, "down"]).map(drop))
    }

    /// Takes back [`Lab::cut`], [`Lab::cut_one_way`], [`Lab::drop_silently`] and [`Lab::slow`].
    pub fn restore(&self, link: usize) -> Result<(), LabError> {
        let spec = *self.spec(link)?;
        self.each_device(link, |namespace, device| tool::ip(namespace, &["link", "set", device, "up"]).map(drop))?;
        for from in 0..self.hosts.len() {
            let (namespace, device) = self.receiver(link, from)?;
            link::pass_ingress(&namespace, &device)?;
        }
        self.shape(link, &spec)
    }

    /// Loses everything that a host sends on a link, silently: no side sees its port go down.
    pub fn cut_one_way(&self, link: usize, from: usize) -> Result<(), LabError> {
        let (namespace, device) = self.receiver(link, from)?;
        link::drop_ingress(&namespace, &device)
    }

    /// Loses everything on a link, silently.
    pub fn drop_silently(&self, link: usize) -> Result<(), LabError> {
        (0..self.hosts.len()).try_for_each(|from| self.cut_one_way(link, from))
    }

    /// Gives a link another rate in both directions, until [`Lab::restore`].
    pub fn slow(&self, link: usize, rate_mbps: u64) -> Result<(), LabError> {
        let mtu = self.spec(link)?.mtu;
        self.shape(link, &LinkSpec::shaped(rate_mbps).mtu(mtu))
    }

    fn spec(&self, link: usize) -> Result<&LinkSpec, LabError> {
        let unknown = || LabError::Unknown { kind: "link", name: format!("l{link}") };
        self.topology.links.get(link).ok_or_else(unknown)
    }

    fn each_device(
        &self,
        link: usize,
        act: impl Fn(&str, &str) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        self.spec(link)?;
        self.hosts.iter().try_for_each(|host| act(host.namespace(), &host.device(link)))
    }

    /// Where what a host sends on a link arrives first.
    fn receiver(&self, link: usize, from: usize) -> Result<(String, String), LabError> {
        self.spec(link)?;
        let host = self.host(from)?;
        if let [first, second] = self.hosts.as_slice() {
            let other = if from == 0 { second } else { first };
            return Ok((other.namespace().to_owned(), other.device(link)));
        }
        Ok((self.switch_namespace(), switch_port(link, host)))
    }

    fn shape(&self, link: usize, spec: &LinkSpec) -> Result<(), LabError> {
        for host in &self.hosts {
            link::shape(host.namespace(), &host.device(link), spec.rate_from(host.index()))?;
            if self.switched() {
                let towards = spec.rate_from(usize::from(host.index() == 0));
                link::shape(&self.switch_namespace(), &switch_port(link, host), towards)?;
            }
        }
        Ok(())
    }

    fn switched(&self) -> bool {
        self.hosts.len() > 2
    }

    fn switch_namespace(&self) -> String {
        format!("{}-sw", self.name())
    }

    fn create(&self, ram_mb: u64) -> Result<(), LabError> {
        std::fs::create_dir_all(&self.directory).map_err(io_error("create", &self.directory))?;
        self.save()?;
        self.hosts.iter().try_for_each(|host| host.create(ram_mb))?;
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
            create_bridge(host.namespace(), "br0", 1500)?;
            veth(host.namespace(), "lan0", &observer, &port, 1500)?;
            tool::ip(host.namespace(), &["link", "set", "lan0", "master", "br0", "up"])?;
            tool::ip(&observer, &["link", "set", &port, "master", "lan", "up"])?;
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.owned
            && let Err(error) = sweep::remove(self.name())
        {
            eprintln!("lab {}: {error}; `linerate-lab sweep` removes what is left", self.name());
        }
    }
}

fn host(topology: &Topology, directory: &Path, index: usize) -> Host {
    let letter = u8::try_from(index).map_or('z', |index| char::from(b'a' + index));
    Host {
        name: letter.to_string(),
        index,
        namespace: format!("{}-{letter}", topology.name),
        directory: directory.join(letter.to_string()),
        octet: topology.octet,
        links: topology.links.len(),
    }
}

fn switch_port(link: usize, host: &Host) -> String {
    format!("l{link}-{}", host.name())
}

fn veth(here: &str, device: &str, there: &str, peer: &str, mtu: u32) -> Result<(), LabError> {
    let mtu = mtu.to_string();
    let arguments = [
        "link", "add", device, "mtu", &mtu, "type", "veth", "peer", "name", peer, "mtu", &mtu, "netns", there,
    ];
    tool::ip(here, &arguments).map(drop)
}

fn create_bridge(namespace: &str, name: &str, mtu: u32) -> Result<(), LabError> {
    let mtu = mtu.to_string();
    let arguments =
        ["link", "add", name, "mtu", &mtu, "type", "bridge", "stp_state", "0", "forward_delay", "0"];
    tool::ip(namespace, &arguments)?;
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
