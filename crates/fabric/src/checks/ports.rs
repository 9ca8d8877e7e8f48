//! Ports and their cables: link, speed, negotiation, error correction, counters.

use crate::link::{RequestedSettings, Speed};
use crate::model::{Counters, Duplex, Finding, Location, PortKind, PortRef, Segment, Severity, Survey};

use super::common::{
    Value, differ, finding, migration_ports, migration_segments, outward, speed, switch_side,
};

const LINK_DOWN_WHY: &str = "Migrations do without this link. If it is the only one that two hosts share, \
    they cannot migrate to each other at all.";

/// A port that has something to carry, and no link.
pub(super) fn link_down(survey: &Survey) -> Vec<Finding> {
    survey.ports().filter_map(|at| link_down_finding(survey, at)).collect()
}

fn link_down_finding(survey: &Survey, at: PortRef<'_>) -> Option<Finding> {
    if !is_down(survey, at) {
        return None;
    }
    let carrying = !at.port.addresses.is_empty();
    let severity = if carrying { Severity::Error } else { Severity::Warning };
    let port = &at.port.name;
    if at.port.up == Some(false) {
        let finding = finding(severity, "switched off, though it is set up to carry something")
            .at(at.location())
            .seen(at.location(), "state", "down")
            .why(LINK_DOWN_WHY)
            .command(at.location(), "switch it on", format!("ip link set dev {port} up"));
        return Some(finding);
    }
    let reason = at.port.link.down_reason.as_deref();
    let title = format!("no link{}", reason.map(|reason| format!(": {reason}")).unwrap_or_default());
    let mut finding = finding(severity, title)
        .at(at.location())
        .seen(at.location(), "carrier", "none")
        .why(LINK_DOWN_WHY)
        .step(None, "look at cable, transceiver and switch port");
    if at.port.link.speed_max_mbps().is_some_and(|able| able >= 25_000) {
        let command = format!("ethtool -s {port} speed 10000 duplex full autoneg off");
        finding =
            finding.command(at.location(), "if the switch port is 10G: force both sides to it", command);
    }
    Some(finding)
}

/// Switched off or without a carrier, though it has an address or a team that counts on it.
pub(super) fn is_down(survey: &Survey, at: PortRef<'_>) -> bool {
    let off = at.port.up == Some(false) || (at.port.up == Some(true) && at.port.carrier == Some(false));
    let carrying = at.port.addresses.iter().any(|address| address.shared()) && outward(survey, at);
    let teams = || survey.teams().into_iter().flat_map(|(_, members)| members);
    off && (carrying || (at.port.master.is_some() && teams().any(|one| std::ptr::eq(one.port, at.port))))
}

const LINK_FLAPPING_WHY: &str = "Each time, the channels of a running migration on this link are lost, and \
    what was in flight is sent again on other links.";

/// A port sees two changes with each restart of its switch. More than this since a port was made are a fault, not
/// maintenance.
const CHANGES_MIN: u32 = 40;

/// A carrier that came and went often.
pub(super) fn link_flapping(survey: &Survey) -> Vec<Finding> {
    let mut findings = Vec::new();
    for at in survey.ports().filter(|at| matches!(at.port.kind, PortKind::Physical | PortKind::Veth)) {
        let Some(changes) = at.port.carrier_changes.filter(|changes| *changes >= CHANGES_MIN) else {
            continue;
        };
        let title = format!("the link came or went {changes} times");
        let finding = finding(Severity::Warning, title)
            .at(at.location())
            .seen(at.location(), "carrier changes", changes)
            .why(LINK_FLAPPING_WHY)
            .step(
                None,
                "change cable and transceiver, then the switch port; set speed, negotiation and FEC \
                 alike on both sides",
            )
            .command(at.location(), "see when", format!("journalctl -k | grep {}", at.port.name));
        findings.push(finding);
    }
    findings
}

const HALF_DUPLEX_WHY: &str = "One direction at a time, and collisions with the other side if that runs full \
    duplex: a migration's data and its acknowledgements delay each other. It is what is left of a \
    failed negotiation.";

/// A port that sends or receives, not both at once.
pub(super) fn half_duplex(survey: &Survey) -> Vec<Finding> {
    let half = survey
        .ports()
        .filter(|at| at.port.link.duplex == Some(Duplex::Half) && at.port.carrier != Some(false));
    let finding = |at: PortRef<'_>| {
        let speed = at.port.link.speed_mbps.map(|speed| format!(" at {speed} Mb/s")).unwrap_or_default();
        finding(Severity::Warning, format!("half duplex{speed}"))
            .at(at.location())
            .seen(at.location(), "duplex", "half")
            .why(HALF_DUPLEX_WHY)
            .step(None, "set the switch port to negotiate, or both sides to the same speed and full duplex")
    };
    let finding = |at: PortRef<'_>| {
        let (location, command) = (at.location(), format!("ethtool -s {} autoneg on", at.port.name));
        let requested = RequestedSettings { speed: Some(Speed::Auto), ..RequestedSettings::default() };
        match at.port.link.autonegotiation {
            Some(false) => finding(at).fix(location, "negotiate", command, requested),
            _ => finding(at).command(location, "negotiate", command),
        }
    };
    half.map(finding).collect()
}

const AUTONEGOTIATION_MISMATCH_WHY: &str = "A side that negotiates with one that does not falls back to a \
    slow or half-duplex mode, or finds no link: a 25G adapter came up at 1 Gb/s at a 10G switch port, and \
    not at all, until both sides were forced (field report on ConnectX-4 Lx).";

/// Speed forced on one side of a cable and negotiated on the other.
pub(super) fn autonegotiation_mismatch(survey: &Survey) -> Vec<Finding> {
    survey.ports().filter_map(|at| autonegotiation_mismatch_finding(survey, at)).collect()
}

fn autonegotiation_mismatch_finding(survey: &Survey, at: PortRef<'_>) -> Option<Finding> {
    let (ours, theirs) = negotiation_mismatch(survey, at)?;
    let switch = switch_side(survey, at);
    let word = |auto| if auto { "negotiated" } else { "forced" };
    let name = switch.name();
    let speed = at.port.link.speed_mbps.filter(|speed| *speed > 0);
    let title = format!("speed {} here and {} on {name}", word(ours), word(theirs));
    let mut finding = finding(Severity::Warning, title)
        .at(at.location())
        .seen(at.location(), "speed is", word(ours))
        .seen(Location::host(&name), "speed is", word(theirs))
        .why(AUTONEGOTIATION_MISMATCH_WHY);
    if let Some(speed) = speed {
        finding = finding.seen(at.location(), "speed", format!("{speed} Mb/s"));
    }
    let port = &at.port.name;
    let fastest =
        at.port.link.speed_max_mbps().or(speed).map_or("SPEED".to_owned(), |speed| speed.to_string());
    let (location, what) = (at.location(), "do as the switch port does (its speed, if it is forced)");
    let negotiate = RequestedSettings { speed: Some(Speed::Auto), ..RequestedSettings::default() };
    Some(match ours {
        // The speed that the switch is set to is not known.
        true => finding.command(
            location,
            what,
            format!("ethtool -s {port} speed {fastest} duplex full autoneg off"),
        ),
        false => finding.fix(location, what, format!("ethtool -s {port} autoneg on"), negotiate),
    })
}

/// Whether the port and the switch negotiate, if only one of them does.
fn negotiation_mismatch(survey: &Survey, at: PortRef<'_>) -> Option<(bool, bool)> {
    let both = at.port.link.autonegotiation.zip(switch_side(survey, at).autonegotiation());
    both.filter(|(ours, theirs)| ours != theirs)
}

const FEC_AGAINST_SWITCH_WHY: &str = "Both sides must correct errors in the same way. Otherwise there is no \
    link, or one whose packets are damaged now and then.";

/// Forward error correction that is not the switch port's.
pub(super) fn fec_against_switch(survey: &Survey) -> Vec<Finding> {
    survey.ports().filter_map(|at| fec_against_switch_finding(survey, at)).collect()
}

fn fec_against_switch_finding(survey: &Survey, at: PortRef<'_>) -> Option<Finding> {
    let switch = switch_side(survey, at);
    let (ours, theirs) = (at.port.fec.as_ref()?.active.as_deref()?, switch.fec()?);
    if ours == theirs || theirs == "auto" {
        return None;
    }
    let name = switch.name();
    let title = format!("FEC {ours} here and {theirs} on {name}");
    let command = format!("ethtool --set-fec {} encoding {theirs}", at.port.name);
    let finding = finding(Severity::Warning, title)
        .at(at.location())
        .seen(at.location(), "FEC", ours)
        .seen(Location::host(&name), "FEC", theirs)
        .why(FEC_AGAINST_SWITCH_WHY);
    let what = "do as the switch port does";
    Some(match fec_wish(theirs) {
        Some(requested) => finding.fix(at.location(), what, command, requested),
        None => finding.command(at.location(), what, command),
    })
}

/// The switch's word, if it is one that a port can be set to.
fn fec_wish(theirs: &str) -> Option<RequestedSettings> {
    let fec = match theirs {
        "none" | "off" => "off",
        "rs" | "baser" | "llrs" => theirs,
        _ => return None,
    };
    Some(RequestedSettings { fec: Some(fec.to_owned()), ..RequestedSettings::default() })
}

const SPEED_BELOW_ABILITY_WHY: &str = "The link works and moves a part of what was paid for; a migration \
    takes as much longer. Ports that negotiate 1 Gb/s instead of 10 are known of 25G adapters at 10G \
    switch ports: there, both sides must be forced to 10 Gb/s.";

/// A port that runs slower than it could.
pub(super) fn speed_below_ability(survey: &Survey) -> Vec<Finding> {
    migration_ports(survey).into_iter().filter_map(|at| speed_below_ability_finding(survey, at)).collect()
}

fn speed_below_ability_finding(survey: &Survey, at: PortRef<'_>) -> Option<Finding> {
    let (speed, able) = below_ability(survey, at)?;
    let forced = at.port.link.autonegotiation == Some(false);
    let how = if forced { "forced to" } else { "runs at" };
    let title = format!("{how} {speed} Mb/s, could run at {able} Mb/s");
    let name = &at.port.name;
    let mut finding = finding(Severity::Warning, title)
        .at(at.location())
        .seen(at.location(), "speed", format!("{speed} Mb/s"))
        .seen(at.location(), "fastest mode of the adapter", format!("{able} Mb/s"))
        .why(SPEED_BELOW_ABILITY_WHY);
    if let Some(peer) = at.port.link.peer_speed_max_mbps() {
        finding = finding.seen(at.location(), "fastest mode of the other side", format!("{peer} Mb/s"));
    }
    if forced {
        let requested = RequestedSettings { speed: Some(Speed::Auto), ..RequestedSettings::default() };
        finding = finding.fix(at.location(), "negotiate", format!("ethtool -s {name} autoneg on"), requested);
    }
    let command = format!("ethtool -s {name} speed {able} duplex full autoneg off");
    Some(finding.step(None, "look at cable and transceiver: they bound the speed as well").command(
        at.location(),
        "or force both sides, the switch port too, to one speed",
        command,
    ))
}

/// Speed as running and as able, if a port is slower than it could be and nothing else explains it.
fn below_ability(survey: &Survey, at: PortRef<'_>) -> Option<(u32, u32)> {
    let link = &at.port.link;
    let (speed, able) = (link.speed_mbps.filter(|speed| *speed > 0)?, link.speed_max_mbps()?);
    let slower = speed < able && at.port.carrier != Some(false);
    // Both have findings of their own: `switch-port-slower`, `autonegotiation-mismatch`.
    let peer_slower = link.peer_speed_max_mbps().is_some_and(|peer| peer <= speed);
    (slower && !peer_slower && negotiation_mismatch(survey, at).is_none()).then_some((speed, able))
}

const SPEED_BETWEEN_HOSTS_WHY: &str = "A link is as fast as its slower end. The faster end sends bursts that \
    the switch must hold back or throw away, and migrations to and from the slower host take longer.";

/// Ports of one network with different speeds.
pub(super) fn speed_between_hosts(survey: &Survey) -> Vec<Finding> {
    migration_segments(survey)
        .iter()
        .filter_map(|segment| speed_between_hosts_finding(survey, segment))
        .collect()
}

fn speed_between_hosts_finding(survey: &Survey, segment: &Segment<'_>) -> Option<Finding> {
    let mut values: Vec<Value> = Vec::new();
    for (at, _) in &segment.members {
        let ports = survey.below(*at);
        // A port that runs below its ability has a finding of its own, and so has one whose link is down.
        let has_finding = ports.iter().any(|one| {
            let down = one.port.carrier == Some(false);
            down || below_ability(survey, *one).is_some()
                || switch_is_slower(*one).is_some()
                || negotiation_mismatch(survey, *one).is_some()
        });
        if let Some(speed) = speed(survey, *at).filter(|_| !has_finding) {
            values.push((at.location(), format!("{speed} Mb/s")));
        }
    }
    let whereabouts = format!("on the same network {}", segment.network);
    let finding = differ(Severity::Warning, "speed", &whereabouts, &values)?;
    Some(
        finding.why(SPEED_BETWEEN_HOSTS_WHY).step(
            None,
            "use equal ports on all hosts, or put the slower host's link into a network of its own",
        ),
    )
}

const SWITCH_PORT_SLOWER_WHY: &str = "The adapter could move more than its switch port: a 25G adapter in a \
    10G port works, at 10 Gb/s. Such pairs are also the ones that fall back to 1 Gb/s or stay down when \
    one side negotiates and the other is forced.";

/// An adapter that is faster than the switch port it hangs on.
pub(super) fn switch_port_slower(survey: &Survey) -> Vec<Finding> {
    migration_ports(survey).into_iter().filter_map(switch_port_slower_finding).collect()
}

fn switch_port_slower_finding(at: PortRef<'_>) -> Option<Finding> {
    let (peer, able) = switch_is_slower(at)?;
    let title = format!("could run at {able} Mb/s, but the switch port offers {peer} Mb/s at most");
    let finding = finding(Severity::Hint, title)
        .at(at.location())
        .seen(at.location(), "fastest mode of the adapter", format!("{able} Mb/s"))
        .seen(at.location(), "fastest mode of the other side", format!("{peer} Mb/s"))
        .why(SWITCH_PORT_SLOWER_WHY)
        .step(
            None,
            format!(
                "use a switch port of {able} Mb/s; until then set speed and negotiation alike on both sides"
            ),
        );
    Some(finding)
}

/// Fastest mode of the switch port and of the adapter, if the switch port is the slower.
fn switch_is_slower(at: PortRef<'_>) -> Option<(u32, u32)> {
    let link = &at.port.link;
    let (able, peer) = (link.speed_max_mbps()?, link.peer_speed_max_mbps()?);
    let speed = link.speed_mbps.filter(|speed| *speed > 0)?;
    (peer < able && peer <= speed && at.port.carrier != Some(false)).then_some((peer, able))
}

const DROPS_RISING_WHY: &str = "The host does not fetch packets as fast as they come: rings too small, too \
    few queues, or one processor for all of them. What is dropped is sent again, later and slower.";

/// Linux counts packets of protocols without a listener as dropped, LLDP among them. A few are always there.
const OTHERS_MAX: u64 = 10;

/// Counters of dropped packets that rise.
pub(super) fn drops_rising(survey: &Survey) -> Vec<Finding> {
    survey.ports().filter_map(drops_rising_finding).collect()
}

fn drops_rising_finding(at: PortRef<'_>) -> Option<Finding> {
    let change = at.port.counters_change?;
    let rising = rising_drops(&change.gained);
    let (what, count) = rising.first()?;
    let title = format!("{count} packets {what} in {} ms", change.over_ms);
    let mut finding = finding(Severity::Warning, title).at(at.location()).why(DROPS_RISING_WHY);
    for (what, count) in &rising {
        finding = finding.seen(at.location(), what, count);
    }
    let port = &at.port.name;
    if let Some((size, max)) =
        at.port.rings.and_then(|rings| rings.rx.zip(rings.rx_max)).filter(|(size, max)| size < max)
    {
        finding = finding.seen(at.location(), "receive ring", format!("{size} of {max}")).command(
            at.location(),
            "larger receive ring",
            format!("ethtool -G {port} rx {max}"),
        );
    }
    Some(finding.step(
        None,
        "look at queues, interrupts and power saving of the host, and at pause frames or PFC of the switch",
    ))
}

fn rising_drops(gained: &Counters) -> Vec<(&'static str, u64)> {
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

const ERRORS_RISING_WHY: &str = "Damaged packets are thrown away and sent again after a pause; TCP takes \
    them for congestion and slows down far more than what was lost.";

/// Counters of errors that rise.
pub(super) fn errors_rising(survey: &Survey) -> Vec<Finding> {
    survey.ports().filter_map(errors_rising_finding).collect()
}

fn errors_rising_finding(at: PortRef<'_>) -> Option<Finding> {
    let change = at.port.counters_change?;
    let rising = rising_errors(&change.gained);
    let (what, count) = rising.first()?;
    let title = format!("{count} {what} in {} ms", change.over_ms);
    let mut finding = finding(Severity::Warning, title).at(at.location()).why(ERRORS_RISING_WHY);
    for (what, count) in &rising {
        finding = finding.seen(at.location(), what, count);
    }
    let port = &at.port.name;
    Some(
        finding
            .step(None, "change cable and transceiver; compare FEC and speed on both sides")
            .command(at.location(), "see FEC and what it corrects", format!("ethtool -I --show-fec {port}"))
            .command(at.location(), "see all counters", format!("ethtool -S {port}")),
    )
}

fn rising_errors(gained: &Counters) -> Vec<(&'static str, u64)> {
    let all = [
        ("check sum errors", gained.rx_crc_errors),
        ("errors in receiving", gained.rx_errors),
        ("errors in sending", gained.tx_errors),
        ("collisions", gained.collisions),
    ];
    all.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    mod link_down {
        use crate::model::Severity;
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn no_carrier() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").carrier = Some(false);
            port(&mut survey, "beta", "ens1f1").link.down_reason = Some("no cable".into());
            let finding = only(&survey, "link-down");
            assert_eq!((finding.title.as_str(), finding.severity), ("no link: no cable", Severity::Error));
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }

        #[test]
        fn switched_off() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").up = Some(false);
            let finding = only(&survey, "link-down");
            assert_eq!(finding.fixes[0].command.as_deref(), Some("ip link set dev ens1f1 up"));
        }

        #[test]
        fn a_member_of_a_team_and_a_port_without_use() {
            let mut survey = crate::testing::team_survey();
            port(&mut survey, "beta", "ens1f1").carrier = Some(false);
            assert_eq!(only(&survey, "link-down").severity, Severity::Warning);
            let mut survey = healthy_survey();
            let unused = port(&mut survey, "beta", "eno1");
            unused.addresses.clear();
            unused.carrier = Some(false);
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod link_flapping {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn often_is_more_than_a_restart_of_the_switch() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").carrier_changes = Some(12);
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
            port(&mut survey, "beta", "ens1f1").carrier_changes = Some(412);
            let finding = only(&survey, "link-flapping");
            assert_eq!(finding.title, "the link came or went 412 times");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }
    }

    mod half_duplex {
        use crate::model::Duplex;
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn named_with_host_and_port() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "eno1").link.duplex = Some(Duplex::Half);
            let finding = only(&survey, "half-duplex");
            assert_eq!(finding.title, "half duplex at 1000 Mb/s");
            assert_eq!(finding.locations[0].to_string(), "beta eno1");
        }
    }

    mod autonegotiation_mismatch {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn negotiated_against_forced_and_only_a_tenth_of_the_speed() {
            let mut survey = healthy_survey();
            let faulty = port(&mut survey, "beta", "ens1f1");
            faulty.neighbours[0].autonegotiation = Some(false);
            faulty.link.speed_mbps = Some(1000);
            let finding = only(&survey, "autonegotiation-mismatch");
            assert_eq!(finding.title, "speed negotiated here and forced on leaf1 Ethernet1/2");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }

        #[test]
        fn speed_forced_on_this_host() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").link.autonegotiation = Some(false);
            let finding = only(&survey, "autonegotiation-mismatch");
            assert_eq!(finding.fixes[0].command.as_deref(), Some("ethtool -s ens1f1 autoneg on"));
        }
    }

    mod fec_against_switch {
        use crate::model::{Switch, SwitchPort};
        use crate::testing::{healthy_survey, only};

        #[test]
        fn both_sides_are_shown() {
            let mut survey = healthy_survey();
            let mut exported =
                SwitchPort { name: "Ethernet1/2".into(), fec: Some("rs".into()), ..SwitchPort::default() };
            survey.switches = vec![Switch { switch: "leaf1".into(), ports: vec![exported.clone()] }];
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
            exported.fec = Some("none".into());
            survey.switches[0].ports = vec![exported];
            let finding = only(&survey, "fec-against-switch");
            assert_eq!(finding.title, "FEC rs here and none on leaf1 Ethernet1/2");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }
    }

    mod speed_below_ability {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn one_gigabit_instead_of_25_is_named_once() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").link.speed_mbps = Some(1000);
            let finding = only(&survey, "speed-below-ability");
            assert_eq!(finding.title, "runs at 1000 Mb/s, could run at 25000 Mb/s");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }

        #[test]
        fn a_forced_port_can_be_set_to_negotiate() {
            let mut survey = healthy_survey();
            let link = &mut port(&mut survey, "beta", "ens1f1").link;
            (link.autonegotiation, link.speed_mbps) = (Some(false), Some(10_000));
            port(&mut survey, "beta", "ens1f1").neighbours[0].autonegotiation = None;
            let fixes = only(&survey, "speed-below-ability").fixes;
            let requested = crate::link::RequestedSettings {
                speed: Some(crate::link::Speed::Auto),
                ..Default::default()
            };
            assert_eq!(fixes[0].auto_fix, Some(crate::model::AutoFix::Port(requested)));
        }

        #[test]
        fn ports_that_migrations_do_not_use_are_left_alone() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "eno1").link.speed_mbps = Some(100);
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod speed_between_hosts {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn a_10g_card_among_25g_cards() {
            let mut survey = healthy_survey();
            let slow = port(&mut survey, "beta", "ens1f1");
            slow.link.speed_mbps = Some(10_000);
            slow.link.supported = vec!["10000baseCR/Full".into()];
            let finding = only(&survey, "speed-between-hosts");
            assert_eq!(finding.title, "speed 10000 Mb/s and 25000 Mb/s on the same network 10.1.1.0/24");
            assert_eq!(finding.locations.len(), 1);
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }
    }

    mod switch_port_slower {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn a_25g_adapter_in_a_10g_port() {
            let mut survey = healthy_survey();
            let link = &mut port(&mut survey, "beta", "ens1f1").link;
            link.speed_mbps = Some(10_000);
            link.peer = vec!["10000baseCR/Full".into()];
            let finding = only(&survey, "switch-port-slower");
            assert_eq!(
                finding.title,
                "could run at 25000 Mb/s, but the switch port offers 10000 Mb/s at most"
            );
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
        }
    }

    mod drops_rising {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn growth_of_rx_missed_is_reported() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").counters_change.as_mut().unwrap().gained.rx_missed = 230;
            let finding = only(&survey, "drops-rising");
            assert_eq!(finding.title, "230 packets missed by the adapter in 300 ms");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
            assert_eq!(finding.fixes[0].command.as_deref(), Some("ethtool -G ens1f1 rx 8192"));
        }

        #[test]
        fn packets_without_a_listener_are_no_finding() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").counters_change.as_mut().unwrap().gained.rx_dropped = 3;
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }

    mod errors_rising {
        use crate::testing::{healthy_survey, only, port};

        #[test]
        fn a_bad_cable() {
            let mut survey = healthy_survey();
            let gained = &mut port(&mut survey, "beta", "ens1f1").counters_change.as_mut().unwrap().gained;
            gained.rx_crc_errors = 17;
            gained.rx_errors = 17;
            let finding = only(&survey, "errors-rising");
            assert_eq!(finding.title, "17 check sum errors in 300 ms");
            assert_eq!(finding.locations[0].to_string(), "beta ens1f1");
            assert_eq!(finding.seen.len(), 2);
        }

        #[test]
        fn old_errors_are_no_finding() {
            let mut survey = healthy_survey();
            port(&mut survey, "beta", "ens1f1").counters.as_mut().unwrap().rx_errors = 4000;
            assert_eq!(crate::checks::run_all(&survey), Vec::new());
        }
    }
}
