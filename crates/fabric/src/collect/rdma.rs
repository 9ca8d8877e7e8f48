//! RDMA devices and their GIDs.

use crate::collect::root::Root;
use crate::model::{Gid, GidKind, LinkLayer, RdmaDevice, RdmaPort};

const CLASS: &str = "sys/class/infiniband";
/// Drivers have tables of 256 entries and fewer.
const GIDS_MAX: usize = 1024;

/// Reads them. `None` if sysfs is not there; no device if the kernel has no RDMA.
pub fn read(root: &Root) -> Option<Vec<RdmaDevice>> {
    root.exists("sys/class").then(|| root.names(CLASS).into_iter().map(|name| device(root, name)).collect())
}

fn device(root: &Root, name: String) -> RdmaDevice {
    let folder = format!("{CLASS}/{name}");
    let port = |number: String| number.parse().ok().map(|number| port(root, &name, number));
    RdmaDevice {
        node_type: root.text(format!("{folder}/node_type")).map(|text| behind_colon(&text)),
        firmware: root.text(format!("{folder}/fw_ver")),
        pcie_address: root.link_name(format!("{folder}/device")),
        ports: root.names(format!("{folder}/ports")).into_iter().filter_map(port).collect(),
        name,
    }
}

fn port(root: &Root, device: &str, number: u32) -> RdmaPort {
    let folder = format!("{CLASS}/{device}/ports/{number}");
    // Mounted on few hosts; what is not there is not known.
    let defaults = format!("sys/kernel/config/rdma_cm/{device}/ports/{number}");
    let gids = gids(root, &folder);
    RdmaPort {
        number,
        state: root.text(format!("{folder}/state")).map(|text| behind_colon(&text)),
        link_layer: root.text(format!("{folder}/link_layer")).map(|text| match text.as_str() {
            "Ethernet" => LinkLayer::Ethernet,
            "InfiniBand" => LinkLayer::Infiniband,
            _ => LinkLayer::Other,
        }),
        speed_mbps: root.text(format!("{folder}/rate")).and_then(|text| rate_mbps(&text)),
        port: root
            .text(format!("{folder}/gid_attrs/ndevs/0"))
            .or_else(|| gids.iter().find_map(|gid| gid.port.clone())),
        gids,
        default_roce: root.text(format!("{defaults}/default_roce_mode")),
        default_traffic_class: root.number(format!("{defaults}/default_roce_tos")),
    }
}

fn gids(root: &Root, folder: &str) -> Vec<Gid> {
    let gid = |index: String| {
        let gid = root.text(format!("{folder}/gids/{index}"))?;
        // Reading the type of an empty entry is an error.
        let kind = match root.text(format!("{folder}/gid_attrs/types/{index}"))?.as_str() {
            "IB/RoCE v1" => GidKind::RoceV1,
            "RoCE v2" => GidKind::RoceV2,
            _ => GidKind::Other,
        };
        let empty = gid.chars().all(|digit| matches!(digit, '0' | ':'));
        let port = root.text(format!("{folder}/gid_attrs/ndevs/{index}"));
        (!empty).then_some(Gid { index: index.parse().ok()?, gid, kind, port })
    };
    root.names(format!("{folder}/gids")).into_iter().take(GIDS_MAX).filter_map(gid).collect()
}

/// Takes `ACTIVE` from `4: ACTIVE`, as sysfs writes it.
fn behind_colon(text: &str) -> String {
    text.split_once(':').map_or(text, |(_, rest)| rest).trim().to_owned()
}

/// `25 Gb/sec (1X EDR)`, `2.5 Gb/sec (1X SDR)`
fn rate_mbps(text: &str) -> Option<u32> {
    let number = text.strip_suffix(')').and_then(|text| text.split(" Gb/sec").next())?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    Some(whole.parse::<u32>().ok()? * 1000 + tenths.parse::<u32>().ok()? * 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::root::fixture::files;

    /// Recorded form: Documentation/ABI/stable/sysfs-class-infiniband of Linux.
    #[test]
    fn a_roce_port_of_a_fixture() {
        let base = format!("{CLASS}/mlx5_0");
        let port = format!("{base}/ports/1");
        let (_folder, root) = files(&[
            (format!("{base}/node_type"), "1: CA"),
            (format!("{base}/fw_ver"), "14.32.1900"),
            (format!("{port}/state"), "4: ACTIVE"),
            (format!("{port}/link_layer"), "Ethernet"),
            (format!("{port}/rate"), "25 Gb/sec (1X EDR)"),
            (format!("{port}/gids/0"), "fe80:0000:0000:0000:0000:00ff:fe00:0001"),
            (format!("{port}/gids/1"), "0000:0000:0000:0000:0000:ffff:0a01:0001"),
            (format!("{port}/gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000"),
            (format!("{port}/gid_attrs/types/0"), "IB/RoCE v1"),
            (format!("{port}/gid_attrs/types/1"), "RoCE v2"),
            (format!("{port}/gid_attrs/ndevs/0"), "ens1f0"),
            (format!("{port}/gid_attrs/ndevs/1"), "ens1f0"),
        ]);
        let devices = read(&root).unwrap();
        let port = &devices[0].ports[0];
        assert_eq!(devices[0].firmware.as_deref(), Some("14.32.1900"));
        assert_eq!(devices[0].node_type.as_deref(), Some("CA"));
        assert_eq!((port.state.as_deref(), port.link_layer), (Some("ACTIVE"), Some(LinkLayer::Ethernet)));
        assert_eq!((port.speed_mbps, port.port.as_deref()), (Some(25_000), Some("ens1f0")));
        let kinds: Vec<GidKind> = port.gids.iter().map(|gid| gid.kind).collect();
        assert_eq!(kinds, [GidKind::RoceV1, GidKind::RoceV2]);
    }

    #[test]
    fn none_there_and_not_known_are_two_things() {
        let (_folder, root) = files(&[("sys/class/net/lo/mtu", "65536")]);
        assert_eq!(read(&root), Some(Vec::new()));
        let (_folder, root) = files::<&str, &str>(&[]);
        assert_eq!(read(&root), None);
    }
}
