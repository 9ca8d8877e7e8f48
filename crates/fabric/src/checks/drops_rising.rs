//! Counters of dropped packets that rise.

use crate::model::{Counters, Finding, PortRef, Room, Severity};

use super::Check;

/// Linux counts packets of protocols that nobody listens for as dropped, LLDP among them. A few are always there.
const OTHERS_MAX: u64 = 10;

const WHY: &str = "The host does not fetch packets as fast as they come: rings too small, too few queues, or one processor for all of them. \
     What is dropped is sent again, later and slower.";

pub(super) struct DropsRising;

impl Check for DropsRising {
    fn id(&self) -> &'static str {
        "drops-rising"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.ports().filter_map(|at| self.port(at)).collect()
    }
}

fn drops(gained: &Counters) -> Vec<(&'static str, u64)> {
    let received = if gained.rx_dropped > OTHERS_MAX && gained.rx_dropped > gained.rx_packets / 1000 {
        gained.rx_dropped
    } else {
        0
    };
    // What is left of a connection that ended drops a packet or two.
    let sent = gained.tx_dropped;
    let sent = if sent > OTHERS_MAX && sent > gained.tx_packets / 1000 { sent } else { 0 };
    let missed = if gained.rx_missed > OTHERS_MAX { gained.rx_missed } else { 0 };
    let all =
        [("missed by the adapter", missed), ("dropped in receiving", received), ("dropped in sending", sent)];
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

impl DropsRising {
    fn port(&self, at: PortRef<'_>) -> Option<Finding> {
        let change = at.port.counters_change?;
        let rising = drops(&change.gained);
        let (what, count) = rising.first()?;
        let title = format!("{count} packets {what} in {} ms", change.over_ms);
        let mut finding = Finding::new(self.id(), Severity::Warning, title).at(at.place()).why(WHY);
        for (what, count) in &rising {
            finding = finding.seen(at.place(), what, count);
        }
        let port = &at.port.name;
        if let Some((size, max)) =
            at.port.rings.and_then(|rings| rings.rx.zip(rings.rx_max)).filter(|(size, max)| size < max)
        {
            finding = finding.seen(at.place(), "receive ring", format!("{size} of {max}")).command(
                at.place(),
                "larger receive ring",
                format!("ethtool -G {port} rx {max}"),
            );
        }
        Some(finding.step(None, "look at queues, interrupts and power saving of the host, and at pause frames or PFC of the switch"))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn a_ring_that_runs_over() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").counters_change.as_mut().unwrap().gained.rx_missed = 230;
        let finding = only(&room, "drops-rising");
        assert_eq!(finding.title, "230 packets missed by the adapter in 300 ms");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
        assert_eq!(finding.fixes[0].command.as_deref(), Some("ethtool -G ens1f1 rx 8192"));
    }

    #[test]
    fn packets_that_nobody_listens_for_are_no_finding() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f1").counters_change.as_mut().unwrap().gained.rx_dropped = 3;
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
