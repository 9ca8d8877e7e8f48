//! A firewall between two agents.

use crate::model::{Finding, FirewallChain, Place, Probe, Room, Severity};

use super::Check;

const WHY: &str = "The agents cannot hear each other on this link: migrations leave it out, or wait for connections that never come.";

pub(super) struct FirewallDrops;

impl Check for FirewallDrops {
    fn id(&self) -> &'static str {
        "firewall-drops"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings: Vec<Finding> = Vec::new();
        for probe in
            room.matrix.probes.iter().filter(|probe| probe.reachable == Some(false) && suspects(room, probe))
        {
            let finding = self.probe(room, probe);
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
        findings
    }
}

/// Chains of the receiver that may drop packets.
fn chains<'a>(room: &'a Room, probe: &Probe) -> Vec<&'a FirewallChain> {
    let firewall = room.host(&probe.to.host).and_then(|host| host.firewall.as_ref());
    let all = firewall.into_iter().flat_map(|firewall| &firewall.input);
    all.filter(|chain| chain.drops || chain.rules > 0).collect()
}

/// A firewall may be the reason that nothing arrives: the receiver has one, or TCP passes where datagrams do not.
pub(super) fn suspects(room: &Room, probe: &Probe) -> bool {
    probe.throughput_mbps.is_some_and(|rate| rate > 0) || !chains(room, probe).is_empty()
}

impl FirewallDrops {
    fn probe(&self, room: &Room, probe: &Probe) -> Finding {
        let tcp = probe.throughput_mbps.is_some_and(|rate| rate > 0);
        let to = Place::port(&probe.to.host, &probe.to.port);
        let (severity, title) = match tcp {
            true => (Severity::Warning, "TCP passes, datagrams of the doctor do not"),
            false => (Severity::Error, "nothing that other agents send arrives, and the firewall has rules"),
        };
        let mut finding = Finding::new(self.id(), severity, title).at(to.clone()).why(WHY);
        let sender = format!("{} {}", probe.from.host, probe.from.port);
        finding = finding.seen(to.clone(), "not heard", sender);
        for chain in chains(room, probe) {
            let policy =
                if chain.drops { "drops what no rule accepts" } else { "accepts what no rule drops" };
            let what = format!("chain {} {} ({})", chain.table, chain.name, chain.hook);
            finding =
                finding.seen(Place::host(&probe.to.host), &what, format!("{policy}, {} rules", chain.rules));
        }
        let chain = chains(room, probe)
            .first()
            .map_or("inet filter input".to_owned(), |chain| format!("{} {}", chain.table, chain.name));
        let agent = room.host(&probe.to.host).and_then(|host| host.agent.as_ref());
        let port =
            agent.and_then(|agent| agent.listen.first()?.rsplit_once(':')).map_or("7979", |(_, port)| port);
        let command = format!(
            "nft insert rule {chain} iifname {} meta l4proto '{{ tcp, udp }}' th dport {port} accept",
            probe.to.port
        );
        finding.command(to, "let the agent's port pass on the migration network, and keep the rule where your firewall keeps its rules", command)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::probe;
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

    #[test]
    fn datagrams_only() {
        let mut room = healthy_room();
        let mut lost = probe();
        (lost.reachable, lost.path_mtu) = (Some(false), None);
        room.matrix.probes = vec![lost];
        assert_eq!(only(&room, "firewall-drops").severity, Severity::Warning);
    }
}
