//! An adapter that is faster than the switch port it hangs on.

use crate::model::{Finding, PortRef, Room, Severity};

use super::Check;
use super::common::migration_ports;

const WHY: &str = "The adapter could move more than its switch port: a 25G adapter in a 10G port works, at 10 Gb/s. Such pairs are also the ones that \
     fall back to 1 Gb/s or stay down when one side negotiates and the other is forced.";

pub(super) struct SwitchPortSlower;

impl Check for SwitchPortSlower {
    fn id(&self) -> &'static str {
        "switch-port-slower"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        migration_ports(room).into_iter().filter_map(|at| self.port(at)).collect()
    }
}

/// Fastest mode of the switch port and of the adapter, if the switch port is the slower.
pub(super) fn slower(at: PortRef<'_>) -> Option<(u32, u32)> {
    let link = &at.port.link;
    let (able, peer) = (link.speed_max_mbps()?, link.peer_speed_max_mbps()?);
    let speed = link.speed_mbps.filter(|speed| *speed > 0)?;
    (peer < able && peer <= speed && at.port.carrier != Some(false)).then_some((peer, able))
}

impl SwitchPortSlower {
    fn port(&self, at: PortRef<'_>) -> Option<Finding> {
        let (peer, able) = slower(at)?;
        let title = format!("could run at {able} Mb/s, but the switch port offers {peer} Mb/s at most");
        let finding = Finding::new(self.id(), Severity::Hint, title)
            .at(at.place())
            .seen(at.place(), "fastest mode of the adapter", format!("{able} Mb/s"))
            .seen(at.place(), "fastest mode of the other side", format!("{peer} Mb/s"))
            .why(WHY)
            .step(None, format!("use a switch port of {able} Mb/s; until then set speed and negotiation alike on both sides"));
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn a_25g_adapter_in_a_10g_port() {
        let mut room = healthy_room();
        let link = &mut port(&mut room, "beta", "ens1f1").link;
        link.speed_mbps = Some(10_000);
        link.peer = vec!["10000baseCR/Full".into()];
        let finding = only(&room, "switch-port-slower");
        assert_eq!(finding.title, "could run at 25000 Mb/s, but the switch port offers 10000 Mb/s at most");
        assert_eq!(finding.places[0].to_string(), "beta ens1f1");
    }
}
