//! A path that passes less than the ports at both its ends.

use crate::model::{Finding, Place, PortRef, Probe, Room, Segment, Severity};

use super::common::{set_mtu, switch_side};
use super::{Check, Mending};

const WHY: &str = "Something on the way has a smaller MTU than both ends. If it says so, connections slow down until they have learnt it; if it \
     is silent, they hang with their first full packet.";

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
        if !is_narrow(room, probe) {
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
        let ours = |segment: &Segment<'_>| sends(segment, probe);
        for segment in room.segments().iter().filter(|segment| ours(segment)) {
            // One MTU for all of them, whichever path is the narrowest.
            let passed = passes(room, segment).unwrap_or(path.passed);
            let larger = |at: &PortRef<'_>| at.port.mtu.is_some_and(|mtu| mtu > passed);
            for at in segment.members.iter().map(|(at, _)| *at).filter(larger) {
                finding = set_mtu(finding, at, "or lower it on all hosts of the network", passed);
            }
        }
        Some(finding)
    }
}

/// The largest packet that passes everywhere between the hosts of a network, where it is smaller than what the ends of a path say themselves.
pub(super) fn passes(room: &Room, segment: &Segment<'_>) -> Option<u32> {
    let ours = room.matrix.probes.iter().filter(|probe| sends(segment, probe));
    ours.filter(|probe| is_narrow(room, probe)).filter_map(|probe| Some(probe.path_mtu?.passed)).min()
}

fn sends(segment: &Segment<'_>, probe: &Probe) -> bool {
    segment.members.iter().any(|(_, ip)| *ip == probe.from.ip)
}

/// Less passes than is promised, and neither end is the reason: ports and switches that say a smaller MTU have a finding of their own.
fn is_narrow(room: &Room, probe: &Probe) -> bool {
    let Some(path) = probe.path_mtu else { return false };
    let ends = [&probe.from, &probe.to].map(|end| room.port(&end.host, &end.port));
    let says = |at: PortRef<'_>| smallest(room, at).is_some_and(|mtu| mtu <= path.passed);
    path.passed < path.promised && !ends.into_iter().flatten().any(says)
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

    /// IPv6 addresses that go with a small MTU do not come back.
    #[test]
    fn too_small_for_ipv6_is_for_hands() {
        for (passed, by_fix) in [(1280, true), (1279, false)] {
            let mut room = healthy_room();
            let mut small = probe();
            small.path_mtu = Some(PathMtu { promised: 9000, passed, black_hole: true });
            room.matrix.probes = vec![small];
            let finding = only(&room, "mtu-path");
            let commands: Vec<_> = finding.fixes.iter().filter(|fix| fix.command.is_some()).collect();
            assert_eq!(commands.len(), 3);
            assert!(commands.iter().all(|fix| fix.mend.is_some() == by_fix), "{commands:#?}");
            assert_eq!(commands[0].what.contains("IPv6"), !by_fix);
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
