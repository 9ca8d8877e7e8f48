//! RDMA on some hosts of a network and not on others.

use crate::model::{Finding, PortRef, Room, Segment, Severity};

use super::Check;
use super::common::{carriers, has_infiniband, migration_segments, rdma_of};

const WHY: &str = "RDMA needs both ends: migrations between these hosts fall back to TCP without a word, slower and with more processor time. In a \
     published comparison on busy Windows hosts with 25 Gb/s, migrations took 60 % less time with RDMA.";

pub(super) struct RdmaOneSided;

impl Check for RdmaOneSided {
    fn id(&self) -> &'static str {
        "rdma-one-sided"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_segments(room).iter().filter_map(|segment| self.segment(room, segment)).collect()
    }
}

impl RdmaOneSided {
    fn segment(&self, room: &Room, segment: &Segment<'_>) -> Option<Finding> {
        // An adapter in InfiniBand mode has a finding of its own.
        let known = |at: &PortRef<'_>| at.host.rdma.is_some() && !has_infiniband(at.host);
        let ports: Vec<PortRef<'_>> = carriers(room, segment).into_iter().filter(known).collect();
        let (with, without): (Vec<&PortRef<'_>>, Vec<&PortRef<'_>>) =
            ports.iter().partition(|at| rdma_of(**at).is_some());
        if with.is_empty() || without.is_empty() {
            return None;
        }
        let title = format!("no RDMA here, but on {} other ports of {}", with.len(), segment.network);
        let mut finding = Finding::new(self.id(), Severity::Warning, title).why(WHY);
        for at in &without {
            finding = finding.at(at.place()).seen(at.place(), "RDMA device", "none");
        }
        for at in &with {
            let device = rdma_of(**at).map_or("", |(device, _)| device.name.as_str());
            finding = finding.seen(at.place(), "RDMA device", device);
        }
        for at in &without {
            finding = finding.command(
                at.place(),
                "see which RDMA devices there are (package iproute2)",
                "rdma link show",
            );
        }
        Some(finding.step(None, "load the adapter's RDMA module (mlx5_ib, bnxt_re, irdma), and look whether its firmware allows RoCE"))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn the_side_without_is_named() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").rdma.as_mut().unwrap().remove(1);
        let finding = only(&room, "rdma-one-sided");
        assert_eq!(finding.title, "no RDMA here, but on 2 other ports of 10.1.1.0/24");
        assert_eq!(finding.places.len(), 1);
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }

    #[test]
    fn a_host_of_which_it_is_not_known_says_nothing() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").rdma = None;
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
