//! This host's RDMA devices, their ports and the names (GIDs) that they have on their links, as sysfs says.
//!
//! Pure over a root folder, so that adapters that are not here can be tested. What sysfs does not say is left out, and
//! what cannot be read is no device.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// What runs below RDMA on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabric {
    InfiniBand,
    /// RDMA over converged Ethernet: UDP (v2) or plain Ethernet frames (v1), which each GID says for itself.
    Roce,
    /// iWARP, RDMA over TCP.
    Iwarp,
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fabric::InfiniBand => "InfiniBand",
            Fabric::Roce => "RoCE",
            Fabric::Iwarp => "iWARP",
        })
    }
}

/// What packets from a GID look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand, or RoCE v1: the same packets on Ethernet, which no router passes on.
    IbOrRoceV1,
    /// RoCE v2: in UDP, and routed.
    RoceV2,
    /// A kernel that does not say.
    Unknown,
}

/// A name that a port has on its link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gid {
    /// Place in the port's table.
    pub index: u32,
    /// As an IPv6 address.
    pub gid: Ipv6Addr,
    /// What packets from it look like.
    pub kind: GidKind,
    /// The network interface that it belongs to; `None` on InfiniBand without IPoIB.
    pub interface: Option<String>,
}

impl Gid {
    /// The IP address that it encodes.
    pub fn address(&self) -> IpAddr {
        self.gid.to_ipv4_mapped().map_or(IpAddr::V6(self.gid), IpAddr::V4)
    }
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name of the device, such as `mlx5_0`.
    pub device: String,
    /// Number of the port on its device, counted from 1.
    pub number: u32,
    pub fabric: Fabric,
    /// Ready to carry data.
    pub active: bool,
    /// The kernel's word for the state, such as `ACTIVE` or `DOWN`.
    pub state: String,
    /// Megabits per second; 0 if the port does not say.
    pub speed_mbps: u32,
    /// NUMA node of the device; -1 if none is known.
    pub numa: i32,
    /// Its names, without empty places of the table.
    pub gids: Vec<Gid>,
    pub folder: PathBuf,
}

impl Port {
    /// Whether it is the RDMA side of this network interface.
    pub fn serves(&self, interface: &str) -> bool {
        self.gids.iter().any(|gid| gid.interface.as_deref() == Some(interface))
    }

    /// The name for this address on this interface that routers pass on, or else any.
    pub fn gid_of(&self, ip: IpAddr) -> Option<&Gid> {
        let all = || self.gids.iter().filter(|gid| gid.address() == ip);
        all().find(|gid| gid.kind == GidKind::RoceV2).or_else(|| all().next())
    }
}

/// All ports of this host, by device and number; none where there is no RDMA.
pub fn list() -> Vec<Port> {
    list_in(Path::new("/sys/class/infiniband"))
}

/// All ports below a folder that looks like `/sys/class/infiniband`.
pub fn list_in(root: &Path) -> Vec<Port> {
    let mut ports: Vec<Port> = names(root)
        .into_iter()
        .flat_map(|device| {
            let folder = root.join(&device);
            let numbers = names(&folder.join("ports"));
            numbers.into_iter().filter_map(move |number| port(&folder, &device, number.parse().ok()?))
        })
        .collect();
    ports.sort_by(|one, other| (&one.device, one.number).cmp(&(&other.device, other.number)));
    ports
}

/// The port behind a network interface: an active one, if one is.
pub fn port_of<'a>(ports: &'a [Port], interface: &str) -> Option<&'a Port> {
    let mut serving = ports.iter().filter(|port| port.serves(interface));
    let first = serving.next()?;
    Some(if first.active { first } else { serving.find(|port| port.active).unwrap_or(first) })
}

fn port(device_folder: &Path, device: &str, number: u32) -> Option<Port> {
    let folder = device_folder.join("ports").join(number.to_string());
    // "4: ACTIVE"
    let state = text(&folder.join("state"))?;
    let state = state.split_once(": ").map_or(state.as_str(), |(_, word)| word).to_owned();
    let iwarp = text(&device_folder.join("node_type")).is_some_and(|kind| kind.contains("RNIC"));
    let ethernet = text(&folder.join("link_layer")).is_some_and(|layer| layer == "Ethernet");
    let fabric = match (iwarp, ethernet) {
        (true, _) => Fabric::Iwarp,
        (false, true) => Fabric::Roce,
        (false, false) => Fabric::InfiniBand,
    };
    let numa = text(&device_folder.join("device/numa_node")).and_then(|node| node.parse().ok());
    Some(Port {
        device: device.to_owned(),
        number,
        fabric,
        active: state == "ACTIVE",
        state,
        speed_mbps: text(&folder.join("rate")).map_or(0, |rate| speed_mbps(&rate)),
        numa: numa.unwrap_or(-1).max(-1),
        gids: gids(&folder, device_folder),
        folder,
    })
}

/// `100 Gb/sec (4X EDR)` or `2.5 Gb/sec (1X SDR)`, in megabits.
fn speed_mbps(rate: &str) -> u32 {
    let gigabits: f64 = rate.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0);
    // Saturates; what is no number of ours is 0.
    (gigabits * 1000.0) as u32
}

fn gids(port: &Path, device: &Path) -> Vec<Gid> {
    let interfaces = names(&device.join("device/net"));
    let gid = |name: &String| {
        let index: u32 = name.parse().ok()?;
        let gid: Ipv6Addr = text(&port.join("gids").join(name))?.parse().ok()?;
        if gid.is_unspecified() || gid == Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0) {
            return None;
        }
        let kind = match text(&port.join("gid_attrs/types").join(name)).as_deref() {
            Some("RoCE v2") => GidKind::RoceV2,
            Some("IB/RoCE v1") => GidKind::IbOrRoceV1,
            _ => GidKind::Unknown,
        };
        // iWARP and InfiniBand have no such table; a device with one interface leaves no doubt.
        let interface =
            text(&port.join("gid_attrs/ndevs").join(name)).or_else(|| match interfaces.as_slice() {
                [only] => Some(only.clone()),
                _ => None,
            });
        Some(Gid { index, gid, kind, interface })
    };
    let mut gids: Vec<Gid> = names(&port.join("gids")).iter().filter_map(gid).collect();
    gids.sort_by_key(|gid| gid.index);
    gids
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// A file's line, if there is one: reading an empty place of a table is an error.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{content}\n")).unwrap();
        }
    }

    const EMPTY: &str = "0000:0000:0000:0000:0000:0000:0000:0000";

    fn host() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        write(
            root.path(),
            &[
                ("mlx5_0/node_type", "1: CA"),
                ("mlx5_0/device/numa_node", "1"),
                ("mlx5_0/ports/1/state", "4: ACTIVE"),
                ("mlx5_0/ports/1/link_layer", "Ethernet"),
                ("mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)"),
                ("mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0e42:a1ff:fe00:0001"),
                ("mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a09:0001"),
                ("mlx5_0/ports/1/gids/2", "0000:0000:0000:0000:0000:ffff:0a09:0001"),
                ("mlx5_0/ports/1/gids/3", EMPTY),
                ("mlx5_0/ports/1/gid_attrs/types/0", "RoCE v2"),
                ("mlx5_0/ports/1/gid_attrs/types/1", "IB/RoCE v1"),
                ("mlx5_0/ports/1/gid_attrs/types/2", "RoCE v2"),
                ("mlx5_0/ports/1/gid_attrs/ndevs/0", "ens1f0"),
                ("mlx5_0/ports/1/gid_attrs/ndevs/1", "ens1f0"),
                ("mlx5_0/ports/1/gid_attrs/ndevs/2", "ens1f0"),
                ("mlx4_0/ports/2/state", "1: DOWN"),
                ("mlx4_0/ports/2/link_layer", "InfiniBand"),
                ("mlx4_0/ports/2/rate", "2.5 Gb/sec (1X SDR)"),
                ("mlx4_0/ports/2/gids/0", "fe80:0000:0000:0000:0002:c903:0000:0001"),
                ("iwp1/node_type", "4: RNIC"),
                ("iwp1/device/net/eth7/x", ""),
                ("iwp1/ports/1/state", "4: ACTIVE"),
                ("iwp1/ports/1/link_layer", "Ethernet"),
                ("iwp1/ports/1/gids/0", "0200:0000:0000:0000:0000:0000:0000:0001"),
                ("broken/ports/1/link_layer", "Ethernet"),
            ],
        );
        root
    }

    #[test]
    fn ports_of_every_fabric_are_distinguished() {
        let root = host();
        let ports = list_in(root.path());
        let found: Vec<_> =
            ports.iter().map(|port| (port.device.as_str(), port.number, port.fabric, port.active)).collect();
        assert_eq!(
            found,
            [
                ("iwp1", 1, Fabric::Iwarp, true),
                ("mlx4_0", 2, Fabric::InfiniBand, false),
                ("mlx5_0", 1, Fabric::Roce, true)
            ]
        );
        assert_eq!((ports[2].speed_mbps, ports[2].numa), (100_000, 1));
        assert_eq!((ports[1].speed_mbps, ports[1].numa, ports[1].state.as_str()), (2500, -1, "DOWN"));
    }

    #[test]
    fn a_gid_is_known_by_interface_address_and_kind() {
        let root = host();
        let ports = list_in(root.path());
        let port = port_of(&ports, "ens1f0").unwrap();
        assert_eq!(port.device, "mlx5_0");
        assert_eq!(port.gids.len(), 3, "empty places are no names");
        let gid = port.gid_of("10.9.0.1".parse().unwrap()).unwrap();
        assert_eq!((gid.index, gid.kind), (2, GidKind::RoceV2));
        assert_eq!(port_of(&ports, "eth7").unwrap().device, "iwp1");
        assert!(port_of(&ports, "eth9").is_none());
        assert!(port.gid_of("10.9.0.2".parse().unwrap()).is_none());
    }

    #[test]
    fn a_host_without_rdma_has_no_ports() {
        assert_eq!(list_in(Path::new("/nonexistent")), []);
    }
}
