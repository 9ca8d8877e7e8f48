//! How the inventory of this host is read: netlink, files of the kernel, LLDP.
//!
//! Nothing here fails as a whole. What the kernel does not have is left out; what could not be read is a note in the
//! inventory. Everything reads the network namespace of the calling thread.

pub mod host;
pub mod kernel;
pub mod lldp;
mod names;
pub mod pci;
pub mod rdma;
pub mod root;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::model::{
    Agent, Counters, CountersChange, Gateway, Hypervisor, Inventory, Neighbour, Note, Port, PortKind, Qemu,
    Route,
};
use kernel::links::Link;
use kernel::{arp, dcb, ethtool, links, nftables, routes};
use pci::Interrupts;
use root::Root;

/// Options of the collector.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the host.
    pub host: String,
    /// Where files are read.
    pub root: Root,
    /// How long counters are watched; nothing if zero.
    pub watch: Duration,
    /// Names to resolve, the host's own beside.
    pub names: Vec<String>,
    /// QEMU binaries, found by the caller.
    pub qemu: Vec<Qemu>,
    /// The agent, if it collects.
    pub agent: Option<Agent>,
    /// What was received by LLDP, with the name of the port.
    pub neighbours: Vec<(String, Neighbour)>,
    /// Folders for the memory of guests, and whether they are for explicit huge pages.
    pub ram_folders: Vec<(PathBuf, bool)>,
    /// Whether to ask the networks, by ARP: who else has the own addresses, and whether gateways answer.
    pub ask_networks: bool,
}

impl Options {
    /// Quick: nothing is watched, no name but the host's own is resolved.
    pub fn new(host: impl Into<String>) -> Options {
        Options {
            host: host.into(),
            root: Root::default(),
            watch: Duration::ZERO,
            names: Vec::new(),
            qemu: Vec::new(),
            agent: None,
            neighbours: Vec::new(),
            ram_folders: Vec::new(),
            ask_networks: false,
        }
    }
}

/// Collects the whole inventory; what cannot be read is left out, with a note where it matters.
pub fn inventory(options: &Options) -> Inventory {
    let root = &options.root;
    let (mut inventory, began) = begin(options);
    inventory.cpu = host::cpu(root);
    inventory.memory = host::memory(root);
    inventory.memory.ram_folders =
        options.ram_folders.iter().map(|(at, huge)| host::ram_folder(at, *huge)).collect();
    inventory.time = host::time(root);
    inventory.agent.clone_from(&options.agent);
    inventory.hypervisor =
        Hypervisor { kvm: host::kvm(root), qemu: options.qemu.clone(), cpu_models: Vec::new() };
    inventory.gateways = gateways(&inventory);
    if options.ask_networks {
        let questions = arp::questions(&inventory);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| arp::ask(&questions));
            resolve(&mut inventory, &options.names);
            let answers = asking.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause));
            arp::record(&answers, &mut inventory);
        });
    } else {
        resolve(&mut inventory, &options.names);
    }
    watch(&mut inventory, options.watch, began);
    inventory
}

/// Reads ports with their settings, and RDMA devices. Nothing is resolved and nothing is watched, so that it can be
/// looked at often.
pub fn network(options: &Options) -> Inventory {
    begin(options).0
}

/// The beginning of every inventory, and when its counters were read.
fn begin(options: &Options) -> (Inventory, Instant) {
    let root = &options.root;
    let mut inventory = Inventory::new(&options.host);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    inventory.collected_unix_ms = u64::try_from(now.as_millis()).ok();
    inventory.collector = Some(concat!("linerate ", env!("CARGO_PKG_VERSION")).to_owned());
    inventory.system = host::system(root);
    inventory.rdma = rdma::read(root);
    let began = Instant::now();
    ports(&mut inventory, root);
    add_neighbours(&mut inventory.ports, options, root);
    (inventory, began)
}

fn ports(inventory: &mut Inventory, root: &Root) {
    let found = match links::read() {
        Ok(found) => found,
        Err(error) => return inventory.note(Note::PORTS, error),
    };
    let firmware = ethtool::firmware().unwrap_or_else(|error| {
        inventory.note(Note::FIRMWARE, error);
        Default::default()
    });
    let interrupts = Interrupts::read(root);
    for link in found {
        let port = with_files(link, root, &interrupts);
        let address = port.pcie.as_ref().map(|slot| slot.address.as_str());
        let firmware = address.and_then(|address| firmware.get(address)).cloned();
        let firmware = firmware.or_else(|| rdma_firmware(inventory, address));
        inventory.ports.push(Port { firmware, ..port });
    }
    let mut notes: Vec<Note> = Vec::new();
    for (about, result) in [
        ("ethtool", ethtool::read(&mut inventory.ports, &mut notes)),
        ("dcbnl", dcb::read(&mut inventory.ports, &mut notes)),
    ] {
        if let Err(error) = result {
            notes.push(Note { about: about.into(), what: error.to_string() });
        }
    }
    inventory.notes.append(&mut notes);
    match routes::read(&inventory.ports) {
        Ok(routes) => inventory.routes = routes,
        Err(error) => inventory.note("routes", error),
    }
    match nftables::read() {
        Ok(firewall) => inventory.firewall = firewall,
        Err(error) => inventory.note(Note::FIREWALL, error),
    }
}

/// The RDMA side of an adapter knows its firmware where devlink does not.
fn rdma_firmware(inventory: &Inventory, address: Option<&str>) -> Option<String> {
    let mut devices = inventory.rdma.iter().flatten();
    let device =
        devices.find(|device| device.pcie_address.is_some() && device.pcie_address.as_deref() == address)?;
    device.firmware.clone()
}

fn with_files(link: Link, root: &Root, interrupts: &Interrupts) -> Port {
    let Link { mut port, device, .. } = link;
    if port.kind == PortKind::Physical
        && let Some((bus, name)) = &device
    {
        port.driver = root.link_name(format!("sys/bus/{bus}/devices/{name}/driver"));
        port.pcie = pci::read(root, bus, name);
        port.physical_port = root.text(format!("sys/class/net/{}/phys_port_id", port.name));
        if let Some(slot) = &port.pcie {
            port.numa_node = pci::numa_node(root, &slot.address);
            port.irqs = interrupts.of(root, &slot.address);
        }
        // Drivers of the kernel have no version of their own.
        port.driver_version = port.driver.as_ref().and_then(|driver| {
            root.text(format!("sys/module/{driver}/version"))
                .or_else(|| root.text("proc/sys/kernel/osrelease"))
        });
    }
    let filter = |name: &str| root.number::<u8>(format!("proc/sys/net/ipv4/conf/{name}/rp_filter"));
    // The kernel takes the larger of the two.
    port.reverse_path_filter = filter(&port.name).zip(filter("all")).map(|(own, all)| own.max(all));
    port
}

fn add_neighbours(ports: &mut [Port], options: &Options, root: &Root) {
    let by_networkd = lldp::networkd(root, ports);
    for port in ports {
        let received = options.neighbours.iter().chain(&by_networkd).filter(|(name, _)| *name == port.name);
        for (_, neighbour) in received {
            let same = |one: &Neighbour| (&one.chassis, &one.port) == (&neighbour.chassis, &neighbour.port);
            if !port.neighbours.iter().any(same) {
                port.neighbours.push(neighbour.clone());
            }
        }
    }
}

/// Routers of default routes; whether they answer is asked later.
fn gateways(inventory: &Inventory) -> Vec<Gateway> {
    let default = inventory.routes.iter().filter(|route| route.destination.is_none());
    let gateway =
        |route: &Route| Some(Gateway { ip: route.gateway?, port: route.port.clone(), answers: None });
    let mut gateways: Vec<Gateway> = default.filter_map(gateway).collect();
    gateways.dedup();
    gateways
}

fn resolve(inventory: &mut Inventory, names: &[String]) {
    let all: Vec<String> = std::iter::once(inventory.host.clone()).chain(names.iter().cloned()).collect();
    for (name, answer) in names::resolve(&all) {
        match answer {
            Some(resolved) => inventory.names.push(resolved),
            None => inventory.note(format!("{} {name}", Note::NAME), "no answer within 2 s"),
        }
    }
}

/// Counters once more, `watch` after the beginning.
fn watch(inventory: &mut Inventory, watch: Duration, began: Instant) {
    if watch.is_zero() {
        return;
    }
    std::thread::sleep(watch.saturating_sub(began.elapsed()));
    let later = match links::counters() {
        Ok(later) => later,
        Err(error) => return inventory.note(Note::COUNTERS, error),
    };
    let over_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    for port in &mut inventory.ports {
        let now: Option<&Counters> = port.index.and_then(|index| later.get(&index));
        port.counters_change = port
            .counters
            .zip(now)
            .map(|(earlier, now)| CountersChange { over_ms, gained: now.since(&earlier) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_the_mark_of_its_cable() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        std::fs::create_dir_all(root.path("sys/class/net/l0")).unwrap();
        std::fs::write(root.path("sys/class/net/l0/phys_port_id"), "0c42a1000000\n").unwrap();
        let port = |name: &str| {
            let mut link = Link::default();
            (link.port.name, link.port.kind) = (name.into(), PortKind::Physical);
            link.device = Some(("pci".into(), "0000:3b:00.0".into()));
            with_files(link, &root, &Interrupts::read(&root))
        };
        assert_eq!(port("l0").physical_port.as_deref(), Some("0c42a1000000"));
        assert_eq!(port("l1").physical_port, None);
    }

    #[test]
    fn this_host_has_an_inventory_that_reads_back() {
        let mut options = Options::new("here");
        options.watch = Duration::from_millis(1);
        // What other programs remove between two looks is noted as unread.
        let end = Instant::now() + Duration::from_secs(60);
        let mut inventory = inventory(&options);
        while !inventory.notes.is_empty() && Instant::now() < end {
            inventory = super::inventory(&options);
        }
        let loopback = inventory.port("lo").expect("a loopback port");
        assert!(loopback.counters_change.is_some());
        assert!(inventory.memory.total_bytes.is_some_and(|bytes| bytes > 0), "{:?}", inventory.memory);
        assert!(inventory.cpu.online.is_some_and(|cpus| cpus > 0));
        assert!(inventory.system.kernel.is_some());
        assert_eq!(inventory.notes, Vec::new(), "something could not be read");
        let quick = network(&Options::new("here"));
        assert!(quick.port("lo").is_some() && quick.rdma.is_some());
        assert_eq!(quick.names, [], "nothing is resolved");
        let text = inventory.to_json().unwrap();
        assert_eq!(Inventory::from_json(text.as_bytes()).unwrap(), inventory);
    }
}
