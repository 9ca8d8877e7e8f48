//! Datagrams pass, and TCP does not.

use crate::model::{Finding, Room, Severity};

use super::Check;
use super::common::{Way, pairs, place};
use super::firewall_drops::chains;

const WHY: &str = "A migration moves its bytes over TCP to the agent's port: over this link it cannot, though everything else looks well. It goes over \
     what is left, or fails.";

pub(super) struct TcpBlocked;

impl Check for TcpBlocked {
    fn id(&self) -> &'static str {
        "tcp-blocked"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings: Vec<Finding> = Vec::new();
        for pair in pairs(room) {
            let ways = pair.ways();
            let blocked: Vec<&Way<'_>> = ways.iter().filter(|way| is_blocked(way)).collect();
            // One firewall makes both directions fail: where only one host has one, it is that.
            let walled: Vec<&&Way<'_>> =
                blocked.iter().filter(|way| !chains(room, &way.to.host).is_empty()).collect();
            let culprits: Vec<&Way<'_>> =
                if walled.len() == 1 { walled.into_iter().copied().collect() } else { blocked };
            if let Some(finding) = self.finding(room, &culprits) {
                match findings.iter_mut().find(|one| one.places == finding.places) {
                    Some(one) => one.seen.extend(finding.seen),
                    None => findings.push(finding),
                }
            }
        }
        findings
    }
}

/// The port is reached by datagrams, and takes no connection.
fn is_blocked(way: &Way<'_>) -> bool {
    way.probe.is_some_and(|probe| probe.tcp == Some(false) && probe.reachable == Some(true))
}

impl TcpBlocked {
    fn finding(&self, room: &Room, ways: &[&Way<'_>]) -> Option<Finding> {
        let first = ways.first()?;
        let port = super::firewall_drops::port(room, &first.to.host);
        let title =
            format!("datagrams to the agent at {} pass, TCP to its port {port} does not", first.to.ip);
        let mut finding = Finding::new(self.id(), Severity::Error, title).why(WHY);
        for way in ways {
            let (from, to) = (place(way.from), place(way.to));
            let why = way
                .probe
                .and_then(|probe| probe.tcp_failure.clone())
                .unwrap_or_else(|| "no connection".into());
            finding = finding.at(to.clone()).seen(to.clone(), &format!("TCP from {from}"), why);
            for chain in chains(room, &way.to.host) {
                let what = format!("chain {} {} ({})", chain.table, chain.name, chain.hook);
                finding = finding.seen(to.clone(), &what, format!("{} rules", chain.rules));
                let command = format!(
                    "nft insert rule {} {} iifname {} tcp dport {port} accept",
                    chain.table, chain.name, way.to.port
                );
                finding = finding.command(
                    to.clone(),
                    "let the agent's port pass, and keep the rule where your firewall keeps its rules",
                    command,
                );
            }
        }
        Some(finding.step(None, format!("let TCP to port {port} pass on hosts, and on firewalls and access lists of switches between them")))
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::{probe, reversed};
    use crate::model::{Firewall, FirewallChain};
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn the_host_whose_port_takes_no_connection_is_named() {
        let mut room = healthy_room();
        let mut blocked = probe();
        (blocked.tcp, blocked.tcp_failure) = (Some(false), Some("timed out".into()));
        blocked.throughput_mbps = None;
        let mut back = reversed(&probe());
        back.tcp = Some(true);
        room.matrix.probes = vec![blocked.clone(), back];
        let finding = only(&room, "tcp-blocked");
        assert_eq!(finding.title, "datagrams to the agent at 10.1.0.2 pass, TCP to its port 7979 does not");
        assert_eq!(finding.places.iter().map(ToString::to_string).collect::<Vec<_>>(), ["beta ens1f0"]);
        // Both ways: the host with a firewall, or both.
        room.matrix.probes[1] = reversed(&blocked);
        assert_eq!(only(&room, "tcp-blocked").places.len(), 2);
        let chain =
            FirewallChain { table: "inet t".into(), name: "in".into(), rules: 1, ..Default::default() };
        host_mut(&mut room, "alpha").firewall = Some(Firewall { input: vec![chain] });
        let finding = only(&room, "tcp-blocked");
        assert_eq!(finding.places.iter().map(ToString::to_string).collect::<Vec<_>>(), ["alpha ens1f0"]);
    }
}
