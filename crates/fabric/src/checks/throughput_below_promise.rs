//! A link that moves far less than its ports promise.

use crate::model::{Finding, Place, Probe, Room, Severity};

use super::Check;
use super::common::promise;

/// Percent of the promise. One connection or a busy host may miss some; less than half is a fault.
const PERCENT_MIN: u64 = 50;

const WHY: &str = "Ports and switches say that all is well, and the bytes do not move: a migration over this link takes as many times longer. What moves is \
     the measure, not what is negotiated.";

pub(super) struct ThroughputBelowPromise;

impl Check for ThroughputBelowPromise {
    fn id(&self) -> &'static str {
        "throughput-below-promise"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.matrix.probes.iter().filter_map(|probe| self.probe(room, probe)).collect()
    }
}

impl ThroughputBelowPromise {
    fn probe(&self, room: &Room, probe: &Probe) -> Option<Finding> {
        let moved = probe.throughput_mbps?;
        let promised = promise(room, &probe.from)?.min(promise(room, &probe.to)?);
        // A path that loses full packets has a finding of its own.
        let hole = probe.path_mtu.is_some_and(|path| path.passed < path.promised);
        if hole || moved.saturating_mul(100) >= promised.saturating_mul(PERCENT_MIN) {
            return None;
        }
        let (from, to) =
            (Place::port(&probe.from.host, &probe.from.port), Place::port(&probe.to.host, &probe.to.port));
        let mut finding =
            Finding::new(self.id(), Severity::Warning, format!("moves {moved} of {promised} Mb/s to {to}"))
                .at(from.clone())
                .at(to.clone())
                .seen(from.clone(), "promised", format!("{promised} Mb/s"))
                .seen(to, "arrived", format!("{moved} Mb/s"))
                .why(WHY);
        if let Some(again) = probe.retransmits {
            finding = finding.seen(from.clone(), "segments sent again", again);
        }
        Some(
            finding
                .step(None, "segments sent again: look for loss at cables, transceivers and switch ports (errors, drops)")
                .command(from, "none sent again: a core is busy, look which", "mpstat -P ALL 1"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::probe;
    use crate::testing::{healthy_room, only};

    #[test]
    fn a_wire_that_moves_a_tenth() {
        let mut room = healthy_room();
        room.matrix.probes = vec![probe()];
        assert_eq!(crate::checks::run_all(&room), Vec::new());
        room.matrix.probes[0].throughput_mbps = Some(2400);
        let finding = only(&room, "throughput-below-promise");
        assert_eq!(finding.title, "moves 2400 of 25000 Mb/s to beta ens1f0");
        assert_eq!(finding.places[0].to_string(), "alpha ens1f0");
    }
}
