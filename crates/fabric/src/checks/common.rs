//! What several subjects need: findings of values that differ, which ports migrations use, what a switch says, links
//! as probes saw them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use crate::model::{
    Address, End, Ets, Finding, Inventory, Location, Neighbour, Pfc, PortKind, PortRef, Probe, Segment,
    Severity, Survey, SwitchPort,
};

/// A finding of the check that is running: [`super::Check::findings`] gives it the check's id.
pub(super) fn finding(severity: Severity, title: impl Into<String>) -> Finding {
    Finding::new("", severity, title)
}

/// A location with what was seen there, as an operator writes it.
pub(super) type Value = (Location, String);

/// Ports with what is known of them.
pub(super) fn values_of(ports: &[PortRef<'_>], text: impl Fn(PortRef<'_>) -> Option<String>) -> Vec<Value> {
    ports.iter().filter_map(|at| Some((at.location(), text(*at)?))).collect()
}

/// The locations that are not like most. `None` if all are alike; all of them if no value is the most frequent.
pub(super) fn odd(values: &[Value]) -> Option<Vec<&Value>> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for (_, value) in values {
        match counts.iter_mut().find(|(known, _)| known == value) {
            Some((_, count)) => *count += 1,
            None => counts.push((value, 1)),
        }
    }
    if counts.len() < 2 {
        return None;
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let usual = match counts.as_slice() {
        [(usual, most), (_, next), ..] if most > next => Some(*usual),
        _ => None,
    };
    Some(values.iter().filter(|(_, value)| Some(value.as_str()) != usual).collect())
}

/// A finding with all values side by side, if they are not all alike: `WHAT A and B WHERE`.
pub(super) fn differ(severity: Severity, what: &str, whereabouts: &str, values: &[Value]) -> Option<Finding> {
    let odd = odd(values)?;
    let mut distinct: Vec<&str> = odd.iter().map(|(_, value)| value.as_str()).collect();
    distinct.extend(values.iter().map(|(_, value)| value.as_str()));
    let title = format!("{what} {} {whereabouts}", join(distinct, " and "));
    let mut finding = finding(severity, title);
    for (location, _) in odd {
        finding = finding.at(location.clone());
    }
    for (location, value) in values {
        finding = finding.seen(location.clone(), what, value);
    }
    Some(finding)
}

/// Findings of which several are one fault, each once with all that was seen of it.
pub(super) fn merged(
    findings: impl IntoIterator<Item = Finding>,
    same: impl Fn(&Finding, &Finding) -> bool,
) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        match merged.iter_mut().find(|one| same(one, &finding)) {
            Some(one) => {
                one.seen.extend(finding.seen);
                for fix in finding.fixes {
                    if !one.fixes.contains(&fix) {
                        one.fixes.push(fix);
                    }
                }
            }
            None => merged.push(finding),
        }
    }
    merged
}

/// Each word once, in the order in which it came first; at most six of them.
pub(super) fn join<'a>(words: impl IntoIterator<Item = &'a str>, between: &str) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for word in words {
        if !unique.contains(&word) {
            unique.push(word);
        }
    }
    let more = unique.len().saturating_sub(6);
    unique.truncate(6);
    let text = unique.join(between);
    if more > 0 { format!("{text} and {more} more") } else { text }
}

/// `3, 4`, or `none`.
pub(super) fn numbers<T: ToString>(all: &[T]) -> String {
    let words: Vec<String> = all.iter().map(ToString::to_string).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// Networks that at least two hosts are on and that leave the hosts. Bridges for guests only, which have the same
/// address on every host, are none.
pub(super) fn segments(survey: &Survey) -> Vec<Segment<'_>> {
    narrowed(survey, |at, _| outward(survey, at))
}

/// Those of them that migrations use: the agents listen there. A host without an agent uses all.
pub(super) fn migration_segments(survey: &Survey) -> Vec<Segment<'_>> {
    narrowed(survey, |at, ip| used(at.host, ip) && outward(survey, at))
}

fn narrowed<'a>(survey: &'a Survey, wanted: impl Fn(PortRef<'a>, IpAddr) -> bool) -> Vec<Segment<'a>> {
    let mut segments = survey.segments();
    for segment in &mut segments {
        segment.members.retain(|(at, ip)| wanted(*at, *ip));
    }
    segments.retain(|segment| segment.hosts() > 1);
    segments
}

/// The lowest ports that carry migrations, each once, also in a survey of one host.
pub(super) fn migration_ports(survey: &Survey) -> Vec<PortRef<'_>> {
    let carries = |address: &Address, host| address.shared() && used(host, address.ip);
    let upper = survey.carrying_ports().filter(|at| {
        at.port.addresses.iter().any(|address| carries(address, at.host)) && outward(survey, *at)
    });
    unique(upper.flat_map(|at| survey.below(at)))
}

/// The lowest ports that carry a network.
pub(super) fn carriers<'a>(survey: &'a Survey, segment: &Segment<'a>) -> Vec<PortRef<'a>> {
    unique(segment.members.iter().flat_map(|(at, _)| survey.below(*at)))
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
pub(super) fn teams(survey: &Survey) -> Vec<(PortRef<'_>, Vec<PortRef<'_>>)> {
    survey.teams().into_iter().filter(|(_, members)| members.len() > 1).collect()
}

/// The agent takes migrations at this address.
fn used(host: &Inventory, ip: IpAddr) -> bool {
    let Some(agent) = host.agent.as_ref().filter(|agent| !agent.listen.is_empty()) else { return true };
    let narrowed = agent.links.is_empty() || agent.links.iter().any(|network| network.contains(ip));
    let at = |text: &String| text.parse().map(|address: SocketAddr| address.ip());
    let listens = |received: IpAddr| received == ip || received.is_unspecified();
    narrowed && agent.listen.iter().filter_map(|text| at(text).ok()).any(listens)
}

/// It leads out of the host: anything but a bridge that only guests and containers hang on.
pub(super) fn outward(survey: &Survey, at: PortRef<'_>) -> bool {
    let inner = |below: &PortRef<'_>| {
        matches!(below.port.kind, PortKind::Bridge | PortKind::Tun | PortKind::Veth | PortKind::Loopback)
    };
    at.port.kind != PortKind::Tun && (at.port.kind != PortKind::Bridge || !survey.below(at).iter().all(inner))
}

/// What it runs at, megabits per second: what it says itself, or all that is below it.
pub(super) fn speed(survey: &Survey, at: PortRef<'_>) -> Option<u32> {
    let own = |at: &PortRef<'_>| at.port.link.speed_mbps.filter(|speed| *speed > 0);
    own(&at).or_else(|| survey.below(at).iter().map(own).try_fold(0, |sum, one| Some(sum + one?)))
}

/// What is known of the other end of a port's cable.
pub(super) struct SwitchSide<'a> {
    received: &'a [Neighbour],
    exported: Option<(&'a str, &'a SwitchPort)>,
}

/// The other end of a port's cable.
pub(super) fn switch_side<'a>(survey: &'a Survey, at: PortRef<'a>) -> SwitchSide<'a> {
    let received = at.port.neighbours.as_slice();
    let ours = |name: &str, port: &SwitchPort| {
        let named =
            port.host.as_ref() == Some(&at.host.host) && port.host_port.as_ref() == Some(&at.port.name);
        let same =
            |one: &Neighbour| one.system.as_deref() == Some(name) && one.port.as_ref() == Some(&port.name);
        named || received.iter().any(same)
    };
    let mut all =
        survey.switches.iter().flat_map(|one| one.ports.iter().map(|port| (one.switch.as_str(), port)));
    SwitchSide { received, exported: all.find(|(name, port)| ours(name, port)) }
}

impl<'a> SwitchSide<'a> {
    fn received<T>(&self, of: impl Fn(&'a Neighbour) -> Option<T>) -> Option<T> {
        self.received.iter().find_map(of)
    }

    fn exported<T>(&self, of: impl Fn(&'a SwitchPort) -> Option<T>) -> Option<T> {
        self.exported.and_then(|(_, port)| of(port))
    }

    /// Such as `leaf0 Ethernet1/2`: for messages.
    pub(super) fn name(&self) -> String {
        let received = self
            .received(|one| Some((one.system.as_deref().or(one.chassis.as_deref())?, one.port.as_deref())));
        let exported = self.exported.map(|(name, port)| (name, Some(port.name.as_str())));
        match exported.or(received) {
            Some((name, Some(port))) => format!("{name} {port}"),
            Some((name, None)) => name.to_owned(),
            None => "the switch".to_owned(),
        }
    }

    pub(super) fn mtu(&self) -> Option<u32> {
        self.received(Neighbour::mtu).or_else(|| self.exported(|port| port.mtu))
    }

    /// It negotiates the speed.
    pub(super) fn autonegotiation(&self) -> Option<bool> {
        self.received(|one| one.autonegotiation).or_else(|| self.exported(|port| port.autonegotiation))
    }

    pub(super) fn fec(&self) -> Option<&'a str> {
        self.exported(|port| port.fec.as_deref())
    }

    /// VLAN of untagged frames.
    pub(super) fn vlan_untagged(&self) -> Option<u16> {
        let vlan =
            self.received(|one| one.vlan_untagged).or_else(|| self.exported(|port| port.vlan_untagged));
        vlan.filter(|vlan| *vlan != 0)
    }

    /// VLANs that pass; `None` if it says none.
    pub(super) fn vlans(&self) -> Option<&'a [u16]> {
        let some = |vlans: &'a Vec<u16>| (!vlans.is_empty()).then_some(vlans.as_slice());
        self.exported(|port| some(&port.vlans)).or_else(|| self.received(|one| some(&one.vlans)))
    }

    /// Link aggregation is on.
    pub(super) fn aggregated(&self) -> Option<bool> {
        self.received(|one| one.aggregation.map(|aggregation| aggregation.on))
    }

    pub(super) fn pfc(&self) -> Option<&'a Pfc> {
        self.received(|one| one.pfc.as_ref()).or_else(|| self.exported(|port| port.pfc.as_ref()))
    }

    pub(super) fn ets(&self) -> Option<&'a Ets> {
        self.received(|one| one.ets.as_ref())
    }
}

/// A link between two ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    /// The ends; the first one sends in `there`.
    pub ends: [&'a End; 2],
    /// From the first end to the second.
    pub there: Option<&'a Probe>,
    /// The probe in the other direction, if there was one.
    pub back: Option<&'a Probe>,
}

impl<'a> Pair<'a> {
    /// Both directions: who sends, who receives, the probe of it, the probe the other way.
    pub fn directions(&self) -> [Direction<'a>; 2] {
        let [one, other] = self.ends;
        [
            Direction { from: one, to: other, probe: self.there, reverse: self.back },
            Direction { from: other, to: one, probe: self.back, reverse: self.there },
        ]
    }

    /// The probes there are.
    pub fn probes(&self) -> impl Iterator<Item = &'a Probe> {
        self.there.into_iter().chain(self.back)
    }

    /// Names of both hosts, the lesser first.
    pub fn hosts(&self) -> (&'a str, &'a str) {
        let [one, other] = self.ends.map(|end| end.host.as_str());
        if one <= other { (one, other) } else { (other, one) }
    }
}

/// One direction of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Direction<'a> {
    pub from: &'a End,
    pub to: &'a End,
    pub probe: Option<&'a Probe>,
    pub reverse: Option<&'a Probe>,
}

/// All links that were probed, in the order of their first probes.
pub(super) fn pairs(survey: &Survey) -> Vec<Pair<'_>> {
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    let mut known: BTreeMap<(&End, &End), usize> = BTreeMap::new();
    for probe in &survey.matrix.probes {
        let back = known.get(&(&probe.to, &probe.from)).and_then(|at| pairs.get_mut(*at));
        if let Some(pair) = back.filter(|pair| pair.back.is_none()) {
            pair.back = Some(probe);
            continue;
        }
        known.insert((&probe.from, &probe.to), pairs.len());
        pairs.push(Pair { ends: [&probe.from, &probe.to], there: Some(probe), back: None });
    }
    pairs
}

/// An end as a location.
pub(super) fn location(end: &End) -> Location {
    Location::port(&end.host, &end.port)
}

/// One fault makes several links bad: where they share one port, that port is the location. Findings without a shared
/// port stay as they are.
pub(super) fn by_shared_port(findings: Vec<Finding>) -> Vec<Finding> {
    let mut count: BTreeMap<Location, usize> = BTreeMap::new();
    findings.iter().flat_map(|finding| &finding.locations).for_each(|location| {
        *count.entry(location.clone()).or_default() += 1;
    });
    let most = |finding: &Finding| -> Option<Location> {
        let mut locations: Vec<(&Location, usize)> =
            finding.locations.iter().filter_map(|location| Some((location, *count.get(location)?))).collect();
        locations.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        match locations.as_slice() {
            [(location, most), (_, next), ..] if most > next => Some((*location).clone()),
            _ => None,
        }
    };
    let shared: Vec<Option<Location>> = findings.iter().map(most).collect();
    let mut merged: Vec<(Option<Location>, Finding)> = Vec::new();
    for (finding, shared) in findings.into_iter().zip(shared) {
        match merged.iter_mut().find(|(known, _)| shared.is_some() && *known == shared) {
            Some((_, one)) => {
                one.severity = one.severity.max(finding.severity);
                one.seen.extend(finding.seen);
            }
            None => merged.push((shared, finding)),
        }
    }
    let named = |(shared, finding): (Option<Location>, Finding)| match shared {
        Some(location) => Finding { locations: vec![location], ..finding },
        None => finding,
    };
    merged.into_iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(all: &[&str]) -> Vec<Value> {
        let location = |number| Location::host(&format!("h{number}"));
        all.iter().enumerate().map(|(number, value)| (location(number), value.to_string())).collect()
    }

    #[test]
    fn the_one_that_is_not_like_the_others_is_named() {
        let all = values(&["9000", "1500", "9000"]);
        let finding = differ(Severity::Error, "MTU", "on the network", &all).unwrap();
        assert_eq!(finding.title, "MTU 1500 and 9000 on the network");
        assert_eq!(finding.locations, [Location::host("h1")]);
        assert_eq!(finding.seen.len(), 3);
    }

    #[test]
    fn of_two_both_are_named_and_equal_ones_are_no_finding() {
        assert_eq!(odd(&values(&["a", "b"])).unwrap().len(), 2);
        assert_eq!(odd(&values(&["a", "a"])), None);
        assert_eq!(odd(&values(&[])), None);
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(join(["a", "b", "a"], ", "), "a, b");
        assert_eq!(join(["1", "2", "3", "4", "5", "6", "7", "8"], ", "), "1, 2, 3, 4, 5, 6 and 2 more");
    }
}
