//! What probes found of reachability: nothing was measured, nothing arrives, a firewall, loads and packets that are
//! lost.

use std::collections::BTreeMap;

use crate::model::{Finding, FirewallChain, Inventory, Location, Probe, Severity, Survey};

use super::common::{Direction, Pair, by_shared_port, finding, location, pairs};

const NOT_MEASURED_WHY: &str = "These links were not measured, so the doctor cannot judge them.";
const NOT_COMMON_WHY: &str = "Only links between ports of one network are measured. Migrations between these hosts go \
    over routers, which the doctor does not judge.";

/// Links that were to be measured and were not.
pub(super) fn not_measured(survey: &Survey) -> Vec<Finding> {
    let mut failed: BTreeMap<(&str, &str), Vec<&Probe>> = BTreeMap::new();
    for probe in survey.matrix.probes.iter().filter(|probe| probe.reachable.is_none()) {
        // A probe of load alone measures something else.
        if let (Some(why), None) = (&probe.failure, probe.throughput_mbps) {
            failed.entry((probe.from.host.as_str(), why.as_str())).or_default().push(probe);
        }
    }
    let failed = failed.into_iter().map(|((_, why), probes)| not_measured_finding(&probes, why));
    failed.chain(without_a_probe(survey)).collect()
}

/// Probes of one host that have one reason.
fn not_measured_finding(probes: &[&Probe], why: &str) -> Finding {
    let title = match probes {
        [one] => format!("the way to {} was not measured: {why}", location(&one.to)),
        _ => format!("{} ways to other ports were not measured: {why}", probes.len()),
    };
    let mut finding = finding(Severity::Error, title).why(NOT_MEASURED_WHY);
    for probe in probes {
        let from = location(&probe.from);
        if !finding.locations.contains(&from) {
            finding = finding.at(from.clone());
        }
        finding = finding.seen(from, "not measured to", location(&probe.to));
    }
    finding.step(None, "run the doctor again; if it stays, see the logs of both agents")
}

/// Hosts whose agents listen on no common network. Where nothing was to be measured, nothing is missing.
fn without_a_probe(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    let hosts: &[Inventory] = if survey.matrix.probed { &survey.hosts } else { &[] };
    for (at, one) in hosts.iter().enumerate() {
        for other in hosts.iter().skip(at + 1) {
            let names = [&one.host, &other.host];
            let between =
                |probe: &Probe| names.contains(&&probe.from.host) && names.contains(&&probe.to.host);
            if !survey.matrix.probes.iter().any(between) {
                let title = "nothing was measured between them: their agents listen on no common network";
                let finding = finding(Severity::Hint, title).why(NOT_COMMON_WHY);
                let finding = finding.at(Location::host(&one.host)).at(Location::host(&other.host));
                findings.push(finding.step(None, "let both listen on one network, if they have one"));
            }
        }
    }
    findings
}

const UNREACHABLE_WHY: &str = "Both hosts say that they are on one network, and packets do not arrive. \
    Migrations lose time with trying, and go over what is left.";

/// A link over which nothing arrives.
pub(super) fn unreachable(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for pair in pairs(survey) {
        let dead: Vec<Direction<'_>> = pair.directions().into_iter().filter(is_dead).collect();
        // A firewall of one end explains the link.
        if dead.iter().any(|direction| suspects(survey, direction)) {
            continue;
        }
        if let Some(first) = dead.first() {
            findings.push(unreachable_finding(first, dead.len() > 1));
        }
    }
    by_shared_port(findings)
}

fn unreachable_finding(direction: &Direction<'_>, both: bool) -> Finding {
    let (from, to) = (location(direction.from), location(direction.to));
    let received =
        direction.reverse.is_some_and(|probe| probe.reachable == Some(true) || probe.received == Some(true));
    let title = match (both, received) {
        (true, _) => format!("no packet arrives at {to} ({}), nor the other way", direction.to.ip),
        (false, true) => format!("no packet arrives at {to} ({}); the other way they do", direction.to.ip),
        (false, false) => format!("no packet arrives at {to} ({})", direction.to.ip),
    };
    let mut finding = finding(Severity::Error, title)
        .at(from.clone())
        .at(to.clone())
        .seen(from.clone(), "sent from", direction.from.ip)
        .seen(to, "did not arrive at", direction.to.ip)
        .why(UNREACHABLE_WHY);
    if let Some(failure) = direction.probe.and_then(|probe| probe.failure.as_ref()) {
        finding = finding.seen(from.clone(), "what happened", failure);
    }
    let ping = format!("ping -c 3 -I {} {}", direction.from.port, direction.to.ip);
    finding
        .step(
            None,
            "look at the switch: VLANs of both ports, port isolation, and whether both cables go \
             where you think",
        )
        .command(from, "try it by hand", ping)
}

const FIREWALL_DROPS_WHY: &str = "The agents cannot reach each other on this link: migrations leave it out, \
    or wait for connections that never come.";

/// A firewall between two agents.
pub(super) fn firewall_drops(survey: &Survey) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for pair in pairs(survey) {
        let suspected: Vec<Direction<'_>> = pair
            .directions()
            .into_iter()
            .filter(|direction| is_dead(direction) && suspects(survey, direction))
            .collect();
        // Where one end has a firewall and the other has none, it is that.
        let walled = suspected.iter().filter(|direction| !chains(survey, &direction.to.host).is_empty());
        let walled: Vec<Direction<'_>> = walled.copied().collect();
        let culprits = if walled.len() == 1 { walled } else { suspected };
        for direction in culprits {
            let finding = firewall_drops_finding(survey, &direction);
            // One firewall, many senders.
            match findings.iter_mut().find(|one| one.locations == finding.locations) {
                Some(one) => {
                    let new = finding.seen.into_iter().filter(|seen| seen.what == "nothing received from");
                    one.seen.extend(new);
                    one.severity = one.severity.max(finding.severity);
                }
                None => findings.push(finding),
            }
        }
    }
    findings
}

fn firewall_drops_finding(survey: &Survey, direction: &Direction<'_>) -> Finding {
    let to = location(direction.to);
    let (severity, title) = match tcp_passes(direction) {
        true => (Severity::Warning, "TCP passes, datagrams of the doctor do not"),
        false => (Severity::Error, "nothing that other agents send arrives, and the firewall has rules"),
    };
    let mut finding = finding(severity, title).at(to.clone()).why(FIREWALL_DROPS_WHY);
    finding = finding.seen(to.clone(), "nothing received from", location(direction.from));
    let chains = chains(survey, &direction.to.host);
    for chain in &chains {
        let policy = if chain.drops { "drops what no rule accepts" } else { "accepts what no rule drops" };
        let what = format!("chain {} {} ({})", chain.table, chain.name, chain.hook);
        finding = finding.seen(
            Location::host(&direction.to.host),
            &what,
            format!("{policy}, {} rules", chain.rules),
        );
    }
    let chain = match chains.first() {
        Some(chain) => format!("{} {}", chain.table, chain.name),
        None => "inet filter input".to_owned(),
    };
    let port = agent_port(survey, &direction.to.host);
    let command = format!(
        "nft insert rule {chain} iifname {} meta l4proto '{{ tcp, udp }}' th dport {port} accept",
        direction.to.port
    );
    finding.command(
        to,
        "let the agent's port pass on the migration network, and keep the rule where your \
         firewall keeps its rules",
        command,
    )
}

/// No datagram passes in this direction: requests did not arrive, or those of the other direction did and their
/// replies did not.
fn is_dead(direction: &Direction<'_>) -> bool {
    witness(direction).is_some()
}

/// The probe that shows it.
fn witness<'a>(direction: &Direction<'a>) -> Option<&'a Probe> {
    let unanswered = |probe: &&Probe| probe.reachable == Some(false) && probe.received != Some(true);
    let without_reply = |probe: &&Probe| probe.reachable == Some(false) && probe.received == Some(true);
    direction.probe.filter(unanswered).or(direction.reverse.filter(without_reply))
}

/// Chains of a host that may drop packets.
fn chains<'a>(survey: &'a Survey, host: &str) -> Vec<&'a FirewallChain> {
    let firewall = survey.host(host).and_then(|host| host.firewall.as_ref());
    let all = firewall.into_iter().flat_map(|firewall| &firewall.input);
    all.filter(|chain| chain.drops || chain.rules > 0).collect()
}

/// Port of a host's agent.
fn agent_port<'a>(survey: &'a Survey, host: &str) -> &'a str {
    let agent = survey.host(host).and_then(|host| host.agent.as_ref());
    agent.and_then(|agent| agent.listen.first()?.rsplit_once(':')).map_or("7979", |(_, port)| port)
}

/// TCP passes where the datagrams of the same probe do not.
fn tcp_passes(direction: &Direction<'_>) -> bool {
    let moved = |probe: &Probe| probe.throughput_mbps.is_some_and(|rate| rate > 0);
    witness(direction).is_some_and(|probe| moved(probe) || probe.tcp == Some(true))
}

/// A firewall may be the reason that nothing arrives: the receiver has one, or TCP passes where datagrams do not.
fn suspects(survey: &Survey, direction: &Direction<'_>) -> bool {
    tcp_passes(direction) || !chains(survey, &direction.to.host).is_empty()
}

const TCP_BLOCKED_WHY: &str = "A migration moves its bytes over TCP to the agent's port: over this link it \
    cannot, though everything else looks well. It goes over what is left, or fails.";

/// Datagrams pass, and TCP does not.
pub(super) fn tcp_blocked(survey: &Survey) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for pair in pairs(survey) {
        let directions = pair.directions();
        let blocked: Vec<&Direction<'_>> =
            directions.iter().filter(|direction| is_blocked(direction)).collect();
        // One firewall makes both directions fail: where only one host has one, it is that.
        let walled: Vec<&&Direction<'_>> =
            blocked.iter().filter(|direction| !chains(survey, &direction.to.host).is_empty()).collect();
        let culprits: Vec<&Direction<'_>> =
            if walled.len() == 1 { walled.into_iter().copied().collect() } else { blocked };
        if let Some(finding) = tcp_blocked_finding(survey, &culprits) {
            match findings.iter_mut().find(|one| one.locations == finding.locations) {
                Some(one) => one.seen.extend(finding.seen),
                None => findings.push(finding),
            }
        }
    }
    findings
}

fn tcp_blocked_finding(survey: &Survey, directions: &[&Direction<'_>]) -> Option<Finding> {
    let first = directions.first()?;
    let port = agent_port(survey, &first.to.host);
    let title = format!("datagrams to the agent at {} pass, TCP to its port {port} does not", first.to.ip);
    let mut finding = finding(Severity::Error, title).why(TCP_BLOCKED_WHY);
    for direction in directions {
        let (from, to) = (location(direction.from), location(direction.to));
        let why = direction
            .probe
            .and_then(|probe| probe.tcp_failure.clone())
            .unwrap_or_else(|| "no connection".into());
        finding = finding.at(to.clone()).seen(to.clone(), &format!("TCP from {from}"), why);
        for chain in chains(survey, &direction.to.host) {
            let what = format!("chain {} {} ({})", chain.table, chain.name, chain.hook);
            finding = finding.seen(to.clone(), &what, format!("{} rules", chain.rules));
            let command = format!(
                "nft insert rule {} {} iifname {} tcp dport {port} accept",
                chain.table, chain.name, direction.to.port
            );
            finding = finding.command(
                to.clone(),
                "let the agent's port pass, and keep the rule where your firewall keeps its rules",
                command,
            );
        }
    }
    Some(finding.step(
        None,
        format!(
            "let TCP to port {port} pass on hosts, and on firewalls and access lists of switches between them"
        ),
    ))
}

/// The port is reached by datagrams, and takes no connection.
fn is_blocked(direction: &Direction<'_>) -> bool {
    direction.probe.is_some_and(|probe| probe.tcp == Some(false) && probe.reachable == Some(true))
}

const LOAD_FAILS_WHY: &str = "Small packets pass and TCP connects, and the bytes do not arrive: a migration over this \
    link stalls, and goes over what is left, or fails.";

/// A link that takes TCP connections, and over which a load does not come to its end.
pub(super) fn load_fails(survey: &Survey) -> Vec<Finding> {
    by_shared_port(pairs(survey).iter().filter_map(load_fails_finding).collect())
}

fn load_fails_finding(pair: &Pair<'_>) -> Option<Finding> {
    let failed: Vec<(&Probe, &str)> =
        pair.probes().filter_map(|probe| Some((probe, load_failure(probe)?))).collect();
    let (first, _) = failed.first()?;
    let (from, to) = (location(&first.from), location(&first.to));
    let ways = if failed.len() > 1 { ", nor the other way" } else { "" };
    let title = format!("TCP connects to {to}, and a load does not pass{ways}");
    let mut finding = finding(Severity::Error, title).at(from.clone()).at(to).why(LOAD_FAILS_WHY);
    for (probe, why) in &failed {
        finding = finding.seen(location(&probe.from), &format!("load to {}", location(&probe.to)), why);
    }
    let command = format!("ss -tin dst {}", first.to.ip);
    Some(
        finding
            .step(
                None,
                "run the doctor again while no other one runs; if it stays, look for a firewall that cuts \
                 connections, and for packets of full size that are lost",
            )
            .command(from, "what becomes of the connections meanwhile", command),
    )
}

/// Why the load failed on a link that is reached. Of others this is why they are not.
fn load_failure(probe: &Probe) -> Option<&str> {
    probe.failure.as_deref().filter(|_| probe.reachable == Some(true) && probe.throughput_mbps.is_none())
}

const PACKET_LOSS_WHY: &str = "TCP takes each lost packet for a link that is full, slows down and waits: a \
    migration over this link moves a fraction of what the link could, and stops for moments. \
    Packets were counted twice, without load, late ones not among the lost.";

/// Packets of a thousand. TCP on a local network loses none; from one in a thousand on its rate sinks with the root
/// of the loss.
const PERMILLE_MIN: u32 = 2;

/// From here on connections stall for seconds, and break.
const PERMILLE_GRAVE: u32 = 50;

/// A link that loses packets, in one direction or both.
pub(super) fn packet_loss(survey: &Survey) -> Vec<Finding> {
    by_shared_port(pairs(survey).iter().filter_map(packet_loss_of_pair).collect())
}

fn packet_loss_of_pair(pair: &Pair<'_>) -> Option<Finding> {
    let directions = pair.directions();
    let known = directions.map(|direction| lost(&direction));
    let bad: Vec<(Direction<'_>, u32)> = directions
        .into_iter()
        .zip(known)
        .filter_map(|(direction, lost)| Some((direction, lost.filter(|lost| *lost >= PERMILLE_MIN)?)))
        .collect();
    match bad.as_slice() {
        [] if known == [None, None] => packet_loss_somewhere(pair),
        [] => None,
        [(direction, lost)] => {
            let title = format!(
                "{} of packets to {} are lost, the other way none",
                percent(*lost),
                location(direction.to)
            );
            let other = known.iter().flatten().min().copied().unwrap_or(0);
            let title = if other == 0 {
                title
            } else {
                format!("{} of packets to {} are lost", percent(*lost), location(direction.to))
            };
            Some(packet_loss_finding(title, direction, &[(*direction, *lost)]))
        }
        [(direction, lost), (_, back), ..] => {
            let (lost_there, lost_back) = (percent(*lost), percent(*back));
            let title = format!(
                "{lost_there} of packets to {} are lost, {lost_back} of those back",
                location(direction.to)
            );
            Some(packet_loss_finding(title, direction, &bad))
        }
    }
}

/// The receiver does not count.
fn packet_loss_somewhere(pair: &Pair<'_>) -> Option<Finding> {
    let permille = |probe: &Probe| {
        let loss = probe.loss?;
        loss.lost.saturating_mul(1000).checked_div(loss.sent)
    };
    let lost = pair.probes().filter_map(permille).max().filter(|lost| *lost >= PERMILLE_MIN)?;
    let direction = pair.directions()[0];
    let title =
        format!("{} of packets to {} or of their replies are lost", percent(lost), location(direction.to));
    Some(packet_loss_finding(title, &direction, &[(direction, lost)]))
}

fn packet_loss_finding(title: String, direction: &Direction<'_>, bad: &[(Direction<'_>, u32)]) -> Finding {
    let worst = bad.iter().map(|(_, lost)| *lost).max().unwrap_or(0);
    let severity = if worst >= PERMILLE_GRAVE { Severity::Error } else { Severity::Warning };
    let mut finding =
        finding(severity, title).at(location(direction.from)).at(location(direction.to)).why(PACKET_LOSS_WHY);
    for (direction, lost) in bad {
        finding = finding.seen(
            location(direction.from),
            &format!("lost on the way to {}", location(direction.to)),
            percent(*lost),
        );
    }
    let port = &direction.from.port;
    finding
        .step(
            None,
            "look at cable, transceivers and both switch ports: errors and drops that rise, a full \
             buffer, a rate limit",
        )
        .command(location(direction.from), "counters of the port", format!("ip -s -s link show dev {port}"))
}

/// Packets of a thousand that are lost in a direction, by either side's count. `None` if the direction is not known.
fn lost(direction: &Direction<'_>) -> Option<u32> {
    let there =
        direction.probe.and_then(|probe| probe.loss).and_then(|loss| Some((loss.lost_there?, loss.sent)));
    let back =
        direction.reverse.and_then(|probe| probe.loss).and_then(|loss| Some((loss.lost_back?, loss.sent)));
    let permille = |(lost, sent): (u32, u32)| lost.saturating_mul(1000).checked_div(sent);
    there.and_then(permille).max(back.and_then(permille))
}

/// `1.2 %`, `30 %`.
fn percent(permille: u32) -> String {
    if permille.is_multiple_of(10) {
        format!("{} %", permille / 10)
    } else {
        format!("{}.{} %", permille / 10, permille % 10)
    }
}

#[cfg(test)]
mod tests {
    mod not_measured {
        use crate::checks::run_all;
        use crate::model::{Probe, Severity};
        use crate::testing::{healthy_survey, only, probe, reversed};

        #[test]
        fn a_probe_that_failed_is_no_good_link() {
            let mut survey = healthy_survey();
            let failed = |whole: &Probe| {
                let mut failed = Probe::new(whole.from.clone(), whole.to.clone());
                failed.failure = Some("beta does not answer".into());
                failed
            };
            survey.matrix.probes = vec![failed(&probe()), reversed(&probe())];
            let finding = only(&survey, "not-measured");
            assert_eq!(finding.severity, Severity::Error);
            let found = [finding.clone()];
            let verdict = crate::fix::verdict(&[], &[], &found).unwrap_or_default();
            assert!(verdict.contains("the effect is not known"), "a fix is not judged by it: {verdict}");
            assert_eq!(
                crate::fix::verdict(&found, &[], &found),
                None,
                "it could not be measured before either"
            );
            assert_eq!(finding.title, "the way to beta ens1f0 was not measured: beta does not answer");
            let mut other = failed(&probe());
            (other.from.port, other.to.port) = ("ens1f1".into(), "ens1f1".into());
            survey.matrix.probes.push(other);
            let finding = only(&survey, "not-measured");
            assert_eq!((finding.locations.len(), finding.seen.len()), (2, 2), "one reason is one finding");
        }

        #[test]
        fn hosts_without_a_probe_are_named_if_all_were_to_be_measured() {
            let mut survey = healthy_survey();
            survey.matrix.probes = vec![probe()];
            assert_eq!(run_all(&survey), []);
            survey.matrix.probed = true;
            let found = run_all(&survey);
            assert_eq!(found.len(), 2, "alpha and gamma, beta and gamma: {found:#?}");
            assert!(found.iter().all(|one| one.id == "not-measured" && one.severity == Severity::Hint));
        }
    }

    mod unreachable {
        use crate::checks::run_all;
        use crate::testing::{healthy_survey, only, port};
        use crate::testing::{probe, reversed};

        #[test]
        fn both_ends_are_named() {
            let mut survey = healthy_survey();
            let mut lost = probe();
            (lost.reachable, lost.path_mtu, lost.throughput_mbps) = (Some(false), None, None);
            survey.matrix.probes = vec![lost];
            let finding = only(&survey, "unreachable");
            assert_eq!(finding.title, "no packet arrives at beta ens1f0 (10.1.0.2)");
            assert_eq!(finding.locations[0].to_string(), "alpha ens1f0");
            let there = survey.matrix.probes[0].clone();
            survey.matrix.probes.push(reversed(&there));
            let finding = only(&survey, "unreachable");
            assert!(finding.title.ends_with("nor the other way"), "{}", finding.title);
            port(&mut survey, "beta", "ens1f0").carrier = Some(false);
            let ids: Vec<String> = run_all(&survey).into_iter().map(|finding| finding.id).collect();
            assert_eq!(ids, ["link-down"], "the cause is reported, not what follows");
        }
    }

    mod firewall_drops {
        use crate::model::{Firewall, FirewallChain, Severity};
        use crate::testing::{healthy_survey, host_mut, only};
        use crate::testing::{probe, reversed};

        #[test]
        fn host_port_and_chain_are_named() {
            let mut survey = healthy_survey();
            let chain = FirewallChain {
                table: "inet filter".into(),
                name: "input".into(),
                hook: "input".into(),
                drops: true,
                rules: 4,
            };
            host_mut(&mut survey, "beta").firewall = Some(Firewall { input: vec![chain] });
            assert_eq!(crate::checks::run_all(&survey), Vec::new(), "a firewall alone is no fault");
            let mut lost = probe();
            (lost.reachable, lost.path_mtu, lost.throughput_mbps) = (Some(false), None, None);
            survey.matrix.probes = vec![lost.clone(), lost];
            let finding = only(&survey, "firewall-drops");
            assert_eq!(
                (finding.locations[0].to_string().as_str(), finding.severity),
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
            let mut survey = healthy_survey();
            let mut unanswered = probe();
            (unanswered.reachable, unanswered.received, unanswered.tcp, unanswered.path_mtu) =
                (Some(false), Some(false), Some(true), None);
            let mut without_reply = reversed(&unanswered);
            without_reply.received = Some(true);
            for probes in [vec![unanswered.clone(), without_reply.clone()], vec![without_reply, unanswered]] {
                survey.matrix.probes = probes;
                let finding = only(&survey, "firewall-drops");
                assert_eq!(
                    finding.locations.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    ["beta ens1f0"]
                );
            }
        }

        #[test]
        fn datagrams_only() {
            let mut survey = healthy_survey();
            let mut lost = probe();
            (lost.reachable, lost.path_mtu) = (Some(false), None);
            survey.matrix.probes = vec![lost];
            assert_eq!(only(&survey, "firewall-drops").severity, Severity::Warning);
        }
    }

    mod tcp_blocked {
        use crate::model::{Firewall, FirewallChain};
        use crate::testing::{healthy_survey, host_mut, only};
        use crate::testing::{probe, reversed};

        #[test]
        fn the_host_whose_port_takes_no_connection_is_named() {
            let mut survey = healthy_survey();
            let mut blocked = probe();
            (blocked.tcp, blocked.tcp_failure) = (Some(false), Some("timed out".into()));
            blocked.throughput_mbps = None;
            let mut back = reversed(&probe());
            back.tcp = Some(true);
            survey.matrix.probes = vec![blocked.clone(), back];
            let finding = only(&survey, "tcp-blocked");
            assert_eq!(
                finding.title,
                "datagrams to the agent at 10.1.0.2 pass, TCP to its port 7979 does not"
            );
            assert_eq!(
                finding.locations.iter().map(ToString::to_string).collect::<Vec<_>>(),
                ["beta ens1f0"]
            );
            // Both ways: the host with a firewall, or both.
            survey.matrix.probes[1] = reversed(&blocked);
            assert_eq!(only(&survey, "tcp-blocked").locations.len(), 2);
            let chain =
                FirewallChain { table: "inet t".into(), name: "in".into(), rules: 1, ..Default::default() };
            host_mut(&mut survey, "alpha").firewall = Some(Firewall { input: vec![chain] });
            let finding = only(&survey, "tcp-blocked");
            assert_eq!(
                finding.locations.iter().map(ToString::to_string).collect::<Vec<_>>(),
                ["alpha ens1f0"]
            );
        }
    }

    mod load_fails {
        use crate::checks::run_all;
        use crate::model::{PathMtu, Severity};
        use crate::testing::{healthy_survey, only, probe, reversed};

        #[test]
        fn a_load_that_was_cut_is_no_good_link() {
            let mut survey = healthy_survey();
            let mut cut = probe();
            (cut.tcp, cut.throughput_mbps) = (Some(true), None);
            cut.failure = Some("no load over ens1f0: the load was cut".into());
            survey.matrix.probes = vec![cut.clone(), reversed(&probe())];
            let finding = only(&survey, "load-fails");
            assert_eq!(finding.severity, Severity::Error);
            assert_eq!(finding.title, "TCP connects to beta ens1f0, and a load does not pass");
            assert_eq!(finding.seen[0].value, "no load over ens1f0: the load was cut");
            survey.matrix.probes[1] = reversed(&cut);
            let finding = only(&survey, "load-fails");
            assert!(finding.title.ends_with(", nor the other way") && finding.seen.len() == 2, "{finding:?}");
            // Looks without load do not see it.
            assert_eq!(run_all(&survey.at_a_glance()), Vec::new());
        }

        #[test]
        fn packets_of_full_size_that_are_lost_are_the_cause() {
            let mut survey = healthy_survey();
            let mut cut = probe();
            (cut.tcp, cut.throughput_mbps) = (Some(true), None);
            cut.path_mtu = Some(PathMtu { promised: 9000, passed: 1500, black_hole: true });
            cut.failure = Some("no load over ens1f0: no answer".into());
            survey.matrix.probes = vec![cut];
            assert_eq!(only(&survey, "mtu-path").effects[0].id, "load-fails");
        }
    }

    mod packet_loss {
        use crate::model::{Loss, Probe, Severity};
        use crate::testing::{healthy_survey, only};
        use crate::testing::{probe, reversed};

        fn losing(there: u32, back: u32) -> Option<Loss> {
            let lost = there + back;
            Some(Loss { sent: 2000, lost_there: Some(there), lost_back: Some(back), lost })
        }

        fn survey(there: u32, back: u32) -> crate::model::Survey {
            let mut survey = healthy_survey();
            let (one, other) = (probe(), reversed(&probe()));
            survey.matrix.probes = vec![
                Probe { loss: losing(there, back), ..one },
                Probe { loss: losing(back, there), ..other },
            ];
            survey
        }

        #[test]
        fn the_direction_and_both_ends_are_named() {
            let finding = only(&survey(600, 0), "packet-loss");
            assert_eq!(finding.title, "30 % of packets to beta ens1f0 are lost, the other way none");
            assert_eq!(
                (finding.locations[0].to_string().as_str(), finding.severity),
                ("alpha ens1f0", Severity::Error)
            );
            let finding = only(&survey(0, 22), "packet-loss");
            assert_eq!(finding.title, "1.1 % of packets to alpha ens1f0 are lost, the other way none");
            assert_eq!(
                (finding.locations[0].to_string().as_str(), finding.severity),
                ("beta ens1f0", Severity::Warning)
            );
            let finding = only(&survey(100, 90), "packet-loss");
            assert_eq!(finding.title, "5 % of packets to beta ens1f0 are lost, 4.5 % of those back");
        }

        #[test]
        fn a_packet_or_two_are_no_finding() {
            assert_eq!(crate::checks::run_all(&survey(2, 1)), Vec::new());
        }

        #[test]
        fn of_three_hosts_the_port_that_all_bad_links_share_is_named() {
            let mut survey = survey(100, 0);
            let mut third = survey.matrix.probes[0].clone();
            (third.from.host, third.from.ip) = ("gamma".into(), [10, 1, 0, 3].into());
            survey.matrix.probes.push(third);
            let finding = only(&survey, "packet-loss");
            assert_eq!(
                finding.locations.iter().map(ToString::to_string).collect::<Vec<_>>(),
                ["beta ens1f0"]
            );
        }

        #[test]
        fn a_receiver_that_does_not_count_leaves_the_direction_open() {
            let mut survey = survey(0, 0);
            survey.matrix.probes.truncate(1);
            survey.matrix.probes[0].loss = Some(Loss { sent: 1000, lost: 50, ..Loss::default() });
            let finding = only(&survey, "packet-loss");
            assert_eq!(finding.title, "5 % of packets to beta ens1f0 or of their replies are lost");
        }
    }
}
