//! A firewall between two agents.

use crate::model::{Finding, FirewallChain, Place, Probe, Room, Severity};

use super::Check;
use super::common::{Way, pairs, place};

const WHY: &str = "The agents cannot hear each other on this link: migrations leave it out, or wait for connections that never come.";

pub(super) struct FirewallDrops;

impl Check for FirewallDrops {
    fn id(&self) -> &'static str {
        "firewall-drops"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings: Vec<Finding> = Vec::new();
        for pair in pairs(room) {
            let suspected: Vec<Way<'_>> =
                pair.ways().into_iter().filter(|way| is_dead(way) && suspects(room, way)).collect();
            // Where one end has a firewall and the other has none, it is that.
            let walled = suspected.iter().filter(|way| !chains(room, &way.to.host).is_empty());
            let walled: Vec<Way<'_>> = walled.copied().collect();
            let culprits = if walled.len() == 1 { walled } else { suspected };
            for way in culprits {
                let finding = self.way(room, &way);
                // One firewall, many senders.
                match findings.iter_mut().find(|one| one.places == finding.places) {
                    Some(one) => {
                        let new = finding.seen.into_iter().filter(|seen| seen.what == "not heard");
                        one.seen.extend(new);
                        one.severity = one.severity.max(finding.severity);
                    }
                    None => findings.push(finding),
                }
            }
        }
        findings
    }
}

/// No datagram passes in this direction: requests did not arrive, or those of the other direction did and their replies did not.
pub(super) fn is_dead(way: &Way<'_>) -> bool {
    witness(way).is_some()
}

/// The probe that shows it.
fn witness<'a>(way: &Way<'a>) -> Option<&'a Probe> {
    let unheard = |probe: &&Probe| probe.reachable == Some(false) && probe.heard != Some(true);
    let without_reply = |probe: &&Probe| probe.reachable == Some(false) && probe.heard == Some(true);
    way.probe.filter(unheard).or(way.reverse.filter(without_reply))
}

/// Chains of a host that may drop packets.
pub(super) fn chains<'a>(room: &'a Room, host: &str) -> Vec<&'a FirewallChain> {
    let firewall = room.host(host).and_then(|host| host.firewall.as_ref());
    let all = firewall.into_iter().flat_map(|firewall| &firewall.input);
    all.filter(|chain| chain.drops || chain.rules > 0).collect()
}

/// Port of a host's agent.
pub(super) fn port<'a>(room: &'a Room, host: &str) -> &'a str {
    let agent = room.host(host).and_then(|host| host.agent.as_ref());
    agent.and_then(|agent| agent.listen.first()?.rsplit_once(':')).map_or("7979", |(_, port)| port)
}

/// TCP passes where the datagrams of the same probe do not.
fn tcp_passes(way: &Way<'_>) -> bool {
    let moved = |probe: &Probe| probe.throughput_mbps.is_some_and(|rate| rate > 0);
    witness(way).is_some_and(|probe| moved(probe) || probe.tcp == Some(true))
}

/// A firewall may be the reason that nothing arrives: the receiver has one, or TCP passes where datagrams do not.
pub(super) fn suspects(room: &Room, way: &Way<'_>) -> bool {
    tcp_passes(way) || !chains(room, &way.to.host).is_empty()
}

impl FirewallDrops {
    fn way(&self, room: &Room, way: &Way<'_>) -> Finding {
        let to = place(way.to);
        let (severity, title) = match tcp_passes(way) {
            true => (Severity::Warning, "TCP passes, datagrams of the doctor do not"),
            false => (Severity::Error, "nothing that other agents send arrives, and the firewall has rules"),
        };
        let mut finding = Finding::new(self.id(), severity, title).at(to.clone()).why(WHY);
        finding = finding.seen(to.clone(), "not heard", place(way.from));
        let chains = chains(room, &way.to.host);
        for chain in &chains {
            let policy =
                if chain.drops { "drops what no rule accepts" } else { "accepts what no rule drops" };
            let what = format!("chain {} {} ({})", chain.table, chain.name, chain.hook);
            finding =
                finding.seen(Place::host(&way.to.host), &what, format!("{policy}, {} rules", chain.rules));
        }
        let chain = match chains.first() {
            Some(chain) => format!("{} {}", chain.table, chain.name),
            None => "inet filter input".to_owned(),
        };
        let port = port(room, &way.to.host);
        let command = format!(
            "nft insert rule {chain} iifname {} meta l4proto '{{ tcp, udp }}' th dport {port} accept",
            way.to.port
        );
        finding.command(to, "let the agent's port pass on the migration network, and keep the rule where your firewall keeps its rules", command)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::{probe, reversed};
    use crate::model::{Firewall, FirewallChain, Severity};
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn host_port_and_chain_are_named() {
        let mut room = healthy_room();
        let chain = FirewallChain {
            table: "inet filter".into(),
            name: "input".into(),
            hook: "input".into(),
            drops: true,
            rules: 4,
        };
        host_mut(&mut room, "beta").firewall = Some(Firewall { input: vec![chain] });
        assert_eq!(crate::checks::run_all(&room), Vec::new(), "a firewall alone is no fault");
        let mut lost = probe();
        (lost.reachable, lost.path_mtu, lost.throughput_mbps) = (Some(false), None, None);
        room.matrix.probes = vec![lost.clone(), lost];
        let finding = only(&room, "firewall-drops");
        assert_eq!(
            (finding.places[0].to_string().as_str(), finding.severity),
            ("beta ens1f0", Severity::Error)
        );
        assert!(
            finding.seen.iter().any(|seen| seen.what == "chain inet filter input (input)"),
            "{finding:?}"
        );
    }

    /// Requests from the host with the firewall arrive; it drops the replies, as it drops requests of others.
    #[test]
    fn the_host_with_the_firewall_is_named_and_not_the_other() {
        let mut room = healthy_room();
        let mut unheard = probe();
        (unheard.reachable, unheard.heard, unheard.tcp, unheard.path_mtu) =
            (Some(false), Some(false), Some(true), None);
        let mut without_reply = reversed(&unheard);
        without_reply.heard = Some(true);
        for probes in [vec![unheard.clone(), without_reply.clone()], vec![without_reply, unheard]] {
            room.matrix.probes = probes;
            let finding = only(&room, "firewall-drops");
            assert_eq!(finding.places.iter().map(ToString::to_string).collect::<Vec<_>>(), ["beta ens1f0"]);
        }
    }

    #[test]
    fn datagrams_only() {
        let mut room = healthy_room();
        let mut lost = probe();
        (lost.reachable, lost.path_mtu) = (Some(false), None);
        room.matrix.probes = vec![lost];
        assert_eq!(only(&room, "firewall-drops").severity, Severity::Warning);
    }
}
