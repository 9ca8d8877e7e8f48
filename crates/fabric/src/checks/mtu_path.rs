//! A path that passes less than the ports at both its ends.

use crate::link::Wish;
use crate::model::{End, Finding, Place, PortRef, Probe, Room, Segment, Severity};

use super::common::switch_side;
use super::{Check, Mending};

const WHY: &str = "Something on the way has a smaller MTU than both ends. If it says so, connections slow down until they have learnt it; if it \
     is silent, they hang with their first full packet.";

/// `mtu-path`
pub(super) struct MtuPath;

impl Check for MtuPath {
    fn id(&self) -> &'static str {
        "mtu-path"
    }

    fn mending(&self) -> Mending {
        Mending::Port
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.matrix.probes.iter().filter_map(|probe| self.probe(room, probe)).collect()
    }
}

impl MtuPath {
    fn probe(&self, room: &Room, probe: &Probe) -> Option<Finding> {
        let path = probe.path_mtu?;
        let ends = [end(room, &probe.from), end(room, &probe.to)];
        // Ports and switches that say a smaller MTU have a finding of their own.
        let explained =
            ends.iter().flatten().any(|at| smallest(room, *at).is_some_and(|mtu| mtu <= path.passed));
        if path.passed >= path.promised || explained {
            return None;
        }
        let (severity, how) = match path.black_hole {
            true => (Severity::Error, "silently"),
            false => (Severity::Warning, "and something on the way says so"),
        };
        let (from, to) =
            (Place::port(&probe.from.host, &probe.from.port), Place::port(&probe.to.host, &probe.to.port));
        let title = format!("of packets of {} bytes to {to} only {} pass, {how}", path.promised, path.passed);
        let mut finding = Finding::new(self.id(), severity, title)
            .at(from.clone())
            .at(to.clone())
            .seen(from, "MTU", path.promised)
            .seen(to, "largest packet that arrived", path.passed)
            .why(WHY)
            .step(
                None,
                format!("raise the MTU of every switch, bridge and tunnel on the way to {}", path.promised),
            );
        for at in larger(room, probe, path.passed) {
            let command = format!("ip link set dev {} mtu {}", at.port.name, path.passed);
            let wish = Wish { mtu: Some(path.passed), ..Wish::default() };
            finding = finding.mend(at.place(), "or lower it on all hosts of the network", command, wish);
        }
        Some(finding)
    }
}

/// Ports of the probe's network that send larger packets than pass.
fn larger<'a>(room: &'a Room, probe: &Probe, passed: u32) -> Vec<PortRef<'a>> {
    let ours = |segment: &Segment<'_>| segment.members.iter().any(|(_, ip)| *ip == probe.from.ip);
    let members = room.segments().into_iter().filter(ours).flat_map(|segment| segment.members);
    members.map(|(at, _)| at).filter(|at| at.port.mtu.is_some_and(|mtu| mtu > passed)).collect()
}

fn end<'a>(room: &'a Room, end: &End) -> Option<PortRef<'a>> {
    let host = room.host(&end.host)?;
    Some(PortRef { host, port: host.port(&end.port)? })
}

/// The smallest MTU that is known at this end.
fn smallest(room: &Room, at: PortRef<'_>) -> Option<u32> {
    let below = room.below(at);
    let ports = below.iter().flat_map(|below| [below.port.mtu, switch_side(room, *below).mtu()]);
    ports.chain([at.port.mtu]).flatten().min()
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::probe;
    use crate::checks::run_all;
    use crate::model::{PathMtu, Severity};
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn a_black_hole_is_worse_than_a_router_that_speaks() {
        for (black_hole, severity) in [(true, Severity::Error), (false, Severity::Warning)] {
            let mut room = healthy_room();
            let mut small = probe();
            small.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole });
            room.matrix.probes = vec![probe(), small];
            let finding = only(&room, "mtu-path");
            assert_eq!(finding.severity, severity);
            assert_eq!(finding.places[0].to_string(), "alpha ens1f0");
            assert!(finding.title.starts_with("of packets of 9000 bytes to beta ens1f0 only 1500 pass"));
        }
    }

    #[test]
    fn what_a_port_says_itself_is_not_said_twice() {
        let mut room = healthy_room();
        port(&mut room, "beta", "ens1f0").mtu = Some(1500);
        let mut small = probe();
        small.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true });
        room.matrix.probes = vec![small];
        let ids: Vec<String> = run_all(&room).into_iter().map(|finding| finding.id).collect();
        assert_eq!(ids, ["mtu-between-hosts"]);
    }
}
