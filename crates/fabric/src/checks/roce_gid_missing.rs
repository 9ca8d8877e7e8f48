//! An RDMA port without a GID of RoCE v2 for its address.

use crate::model::{Finding, Gid, GidKind, Place, RdmaPort, Room, Severity};

use super::Check;
use super::common::{has_roce_v2, migration_segments, roce_of};

use std::net::{IpAddr, Ipv6Addr};

const WHY: &str = "RoCE finds the other side by the GID that belongs to its address. Without one, RDMA connections to this address fail, and migrations \
     fall back to TCP.";

pub(super) struct RoceGidMissing;

impl Check for RoceGidMissing {
    fn id(&self) -> &'static str {
        "roce-gid-missing"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        for segment in migration_segments(room) {
            for (at, ip) in &segment.members {
                for below in room.below(*at) {
                    let Some((device, port)) = roce_of(below) else { continue };
                    if has(port, *ip) == Some(false) {
                        findings.push(self.finding(at.place(), &device.name, port, *ip));
                    }
                }
            }
        }
        findings
    }
}

/// Whether the table has the address for RoCE v2; `None` if the table is not known.
fn has(port: &RdmaPort, ip: IpAddr) -> Option<bool> {
    let wanted = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let is =
        |gid: &Gid| gid.kind == GidKind::RoceV2 && gid.gid.parse::<Ipv6Addr>().is_ok_and(|gid| gid == wanted);
    has_roce_v2(port).map(|any| any && port.gids.iter().any(is))
}

impl RoceGidMissing {
    fn finding(&self, place: Place, device: &str, port: &RdmaPort, ip: IpAddr) -> Finding {
        let title = format!("RDMA device {device} has no GID of RoCE v2 for {ip}");
        let mut finding = Finding::new(self.id(), Severity::Warning, title).at(place.clone()).seen(
            place.clone(),
            "address",
            ip,
        );
        for gid in &port.gids {
            let kind = if gid.kind == GidKind::RoceV2 { "RoCE v2" } else { "RoCE v1" };
            finding =
                finding.seen(place.clone(), &format!("GID {}", gid.index), format!("{kind} {}", gid.gid));
        }
        finding
            .why(WHY)
            .step(Some(place.clone()), "allow RoCE v2 in the adapter's firmware (mstconfig: ROCE_CONTROL), or use an adapter that speaks it")
            .command(place, "see the table", format!("grep . /sys/class/infiniband/{device}/ports/{}/gid_attrs/types/*", port.number))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::GidKind;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn only_version_1() {
        let mut room = healthy_room();
        let port = &mut host_mut(&mut room, "beta").rdma.as_mut().unwrap()[1].ports[0];
        port.gids.retain(|gid| gid.kind == GidKind::RoceV1);
        let finding = only(&room, "roce-gid-missing");
        assert_eq!(finding.title, "RDMA device mlx5_1 has no GID of RoCE v2 for 10.1.1.2");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }

    #[test]
    fn a_gid_of_another_address() {
        let mut room = healthy_room();
        let port = &mut host_mut(&mut room, "beta").rdma.as_mut().unwrap()[1].ports[0];
        port.gids[1].gid = "0000:0000:0000:0000:0000:ffff:0a01:0163".into();
        only(&room, "roce-gid-missing");
    }
}
