//! Which ports migrations use.

use std::net::{IpAddr, SocketAddr};

use crate::model::{Address, Inventory, PortKind, PortRef, Room, Segment};

/// Networks that at least two hosts are on and that leave the hosts. Bridges for guests only, which have the same address on every
/// host, are none.
pub(in crate::checks) fn segments(room: &Room) -> Vec<Segment<'_>> {
    narrowed(room, |at, _| outward(room, at))
}

/// Those of them that migrations use: the agents listen there. A host without an agent uses all.
pub(in crate::checks) fn migration_segments(room: &Room) -> Vec<Segment<'_>> {
    narrowed(room, |at, ip| used(at.host, ip) && outward(room, at))
}

fn narrowed<'a>(room: &'a Room, wanted: impl Fn(PortRef<'a>, IpAddr) -> bool) -> Vec<Segment<'a>> {
    let mut segments = room.segments();
    for segment in &mut segments {
        segment.members.retain(|(at, ip)| wanted(*at, *ip));
    }
    segments.retain(|segment| segment.hosts() > 1);
    segments
}

/// The lowest ports that carry migrations, each once, also in a room of one host.
pub(in crate::checks) fn migration_ports(room: &Room) -> Vec<PortRef<'_>> {
    let carries = |address: &Address, host| address.shared() && used(host, address.ip);
    let upper = room
        .carrying_ports()
        .filter(|at| at.port.addresses.iter().any(|address| carries(address, at.host)) && outward(room, *at));
    unique(upper.flat_map(|at| room.below(at)))
}

/// The lowest ports that carry a network.
pub(in crate::checks) fn carriers<'a>(room: &'a Room, segment: &Segment<'a>) -> Vec<PortRef<'a>> {
    unique(segment.members.iter().flat_map(|(at, _)| room.below(*at)))
}

fn unique<'a>(ports: impl Iterator<Item = PortRef<'a>>) -> Vec<PortRef<'a>> {
    let mut found: Vec<PortRef<'a>> = Vec::new();
    for at in ports.filter(|at| at.port.kind != PortKind::Tun) {
        if !found.iter().any(|one| std::ptr::eq(one.port, at.port)) {
            found.push(at);
        }
    }
    found
}

/// Bonds and teams with more than one member.
pub(in crate::checks) fn teams(room: &Room) -> Vec<(PortRef<'_>, Vec<PortRef<'_>>)> {
    room.teams().into_iter().filter(|(_, members)| members.len() > 1).collect()
}

/// The agent takes migrations at this address.
fn used(host: &Inventory, ip: IpAddr) -> bool {
    let Some(agent) = host.agent.as_ref().filter(|agent| !agent.listen.is_empty()) else { return true };
    let narrowed = agent.links.is_empty() || agent.links.iter().any(|network| network.contains(ip));
    let at = |text: &String| text.parse().map(|address: SocketAddr| address.ip());
    let listens = |heard: IpAddr| heard == ip || heard.is_unspecified();
    narrowed && agent.listen.iter().filter_map(|text| at(text).ok()).any(listens)
}

/// It leads out of the host: anything but a bridge that only guests and containers hang on.
pub(in crate::checks) fn outward(room: &Room, at: PortRef<'_>) -> bool {
    let inner = |below: &PortRef<'_>| {
        matches!(below.port.kind, PortKind::Bridge | PortKind::Tun | PortKind::Veth | PortKind::Loopback)
    };
    at.port.kind != PortKind::Tun && (at.port.kind != PortKind::Bridge || !room.below(at).iter().all(inner))
}

/// What it runs at, megabits per second: what it says itself, or all that is below it.
pub(in crate::checks) fn speed(room: &Room, at: PortRef<'_>) -> Option<u32> {
    let own = |at: &PortRef<'_>| at.port.link.speed_mbps.filter(|speed| *speed > 0);
    own(&at).or_else(|| room.below(at).iter().map(own).try_fold(0, |sum, one| Some(sum + one?)))
}
