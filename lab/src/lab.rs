//! A whole lab: built, found again by name, harmed on purpose, and cleaned up.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::io_error;
use crate::etcd::Cluster;
use crate::forwarder::{Forwarder, Way};
use crate::host::{Host, address};
use crate::link::{self, LinkSpec};
use crate::{LabError, sweep, tool};

mod build;

pub use build::LabBuilder;
pub(crate) use build::no_ipv6;

/// Third octet of the guest LAN; links are numbered from 0 and stay below.
const GUEST_LAN: usize = 200;
/// Where the addresses of hosts and of etcd's members begin there; those of guests are below.
const HOSTS_ON_LAN: usize = 219;
const ETCD_ON_LAN: usize = 239;

/// Directory that holds one directory per lab: `$LINERATE_LAB_DIR`, or /var/tmp/linerate-lab.
pub fn root() -> PathBuf {
    std::env::var_os("LINERATE_LAB_DIR").map_or_else(|| "/var/tmp/linerate-lab".into(), PathBuf::from)
}

/// What a lab is made of; written to `lab.json` in its directory, so that other processes can work with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// `lr<pid>-<n>`, with the maker's process id.
    pub name: String,
    /// The process that made the lab: without it the lab is swept.
    pub pid: u32,
    /// Second octet of all its addresses.
    pub octet: u8,
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

impl Lab {
    /// Two hosts and no link yet.
    pub fn builder() -> LabBuilder {
        LabBuilder::new()
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

    /// An etcd cluster that all hosts reach by the guest LAN, where no migration goes. Its files are in the lab's
    /// folder.
    pub fn start_etcd(&self, members: u8) -> Result<Cluster, LabError> {
        let octet = self.topology.octet;
        for host in &self.hosts {
            let at = format!("{}/24", address(octet, GUEST_LAN, HOSTS_ON_LAN + host.index()));
            tool::ip(host.namespace(), &["addr", "replace", &at, "dev", build::BRIDGE])?;
        }
        let namespace = self.observer_namespace();
        let members = 0..usize::from(members);
        let addresses: Vec<Ipv4Addr> =
            members.map(|member| address(octet, GUEST_LAN, ETCD_ON_LAN + member)).collect();
        for one in &addresses {
            tool::ip(&namespace, &["addr", "replace", &format!("{one}/24"), "dev", "lan"])?;
        }
        let folder = self.directory().join("etcd");
        std::fs::create_dir_all(&folder).map_err(io_error("make", &folder))?;
        Cluster::start_at(&folder, Some(namespace), addresses)
    }

    /// Takes a host off the guest LAN, and so from its etcd cluster, or puts it back.
    pub fn join_lan(&self, host: usize, joined: bool) -> Result<(), LabError> {
        let port = format!("h{host}");
        let state = if joined { "up" } else { "down" };
        tool::ip(&self.observer_namespace(), &["link", "set", &port, state]).map(drop)
    }

    /// Takes a link down on all hosts, as a pulled cable does: both sides lose the carrier.
    pub fn cut(&self, link: usize) -> Result<(), LabError> {
        self.each_device(link, |namespace, device| {
            tool::ip(namespace, &["link", "set", device, "down"]).map(drop)
        })
    }

    /// Takes back [`Lab::cut`], [`Lab::cut_one_way`], [`Lab::drop_silently`] and [`Lab::slow`].
    pub fn restore(&self, link: usize) -> Result<(), LabError> {
        let spec = *self.spec(link)?;
        self.each_device(link, |namespace, device| {
            tool::ip(namespace, &["link", "set", device, "up"]).map(drop)
        })?;
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

    /// Puts a program in place of the switch between two hosts of a link: it delays packets, and may lose some. Needs a
    /// lab of three hosts or more, whose links have switches; the other hosts are left alone on theirs.
    pub fn forward(&self, link: usize, hosts: [usize; 2], ways: [Way; 2]) -> Result<Forwarder, LabError> {
        self.spec(link)?;
        let namespace = self.switch_namespace();
        let ports = [switch_port(link, self.host(hosts[0])?), switch_port(link, self.host(hosts[1])?)];
        for (port, host) in ports.iter().zip(hosts) {
            let host = self.host(host)?;
            // Whole packets: a port that cuts large ones itself does it behind the program.
            tool::ip(host.namespace(), &["link", "set", &host.device(link), "gso_max_segs", "1"])?;
            tool::ip(&namespace, &["link", "set", port, "nomaster"])?;
        }
        Forwarder::start(&namespace, &ports, ways)
    }

    /// Loses so many of a hundred packets that a host sends on a link; 0 takes it back.
    pub fn lose(&self, link: usize, from: usize, percent: u32) -> Result<(), LabError> {
        let (namespace, device) = self.receiver(link, from)?;
        link::pass_ingress(&namespace, &device)?;
        if percent == 0 { Ok(()) } else { link::lose_ingress(&namespace, &device, percent) }
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
        mounts: None,
    }
}

fn switch_port(link: usize, host: &Host) -> String {
    format!("l{link}-{}", host.name())
}
