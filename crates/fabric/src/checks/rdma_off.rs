//! Adapters that could do RDMA on a network where nobody does.

use crate::model::{Finding, PortRef, Room, Segment, Severity};

use super::Check;
use super::common::{carriers, has_infiniband, migration_segments, rdma_of};

/// Drivers whose adapters all speak RDMA, with the module that does it.
const ABLE: [(&str, &str); 6] = [
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_en", "mlx4_ib"),
    ("bnxt_en", "bnxt_re"),
    ("ice", "irdma"),
    ("qede", "qedr"),
    ("cxgb4", "iw_cxgb4"),
];

const WHY: &str = "RDMA moves memory without the processors of both hosts; it is there and not used. TCP works meanwhile, and costs processor time.";

pub(super) struct RdmaOff;

/// The RDMA module of the adapter's driver.
fn module(at: &PortRef<'_>) -> Option<&'static str> {
    let driver = at.port.driver.as_deref()?;
    ABLE.iter().find(|(name, _)| *name == driver).map(|(_, module)| *module)
}

impl Check for RdmaOff {
    fn id(&self) -> &'static str {
        "rdma-off"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

impl RdmaOff {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        let ports = carriers(room, segment);
        let off =
            |at: &PortRef<'_>| at.host.rdma.is_some() && rdma_of(*at).is_none() && !has_infiniband(at.host);
        // On one side only is `rdma-one-sided`.
        if ports.is_empty() || !ports.iter().all(|at| off(at) && module(at).is_some()) {
            return None;
        }
        let title = format!("no RDMA on {}, though all adapters can", segment.network);
        let mut finding = Finding::new(self.id(), Severity::Hint, title).why(WHY);
        for at in &ports {
            finding = finding.at(at.place()).seen(at.place(), "RDMA device", "none");
        }
        for at in &ports {
            let command = format!("modprobe {}", module(at).unwrap_or("MODULE"));
            finding =
                finding.command(at.place(), "load the adapter's RDMA module (package rdma-core)", command);
        }
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn all_can_and_none_does() {
        let mut room = healthy_room();
        for host in &mut room.hosts {
            host.rdma.as_mut().unwrap().remove(1);
        }
        let finding = only(&room, "rdma-off");
        assert_eq!(finding.title, "no RDMA on 10.1.1.0/24, though all adapters can");
        assert_eq!(finding.fixes[0].command.as_deref(), Some("modprobe mlx5_ib"));
        for host in ["alpha", "beta", "gamma"] {
            let other = port(&mut room, host, "ens1f1");
            (other.driver, other.pcie) = (Some("e1000e".into()), None);
        }
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
