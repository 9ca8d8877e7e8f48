//! From requested settings and a port: what changes, what undoes it, and what speaks against it. Pure.

use thiserror::Error;

use super::{Plan, PortStep, RequestedSettings, Settings, Speed};
use crate::model::{Pause, Port};

/// The least that IPv6 takes. Where a port gets less, the kernel takes its IPv6 addresses away and does not give them
/// back.
pub const IPV6_MTU_MIN: u32 = 1280;

/// The least that IPv4 takes.
const MTU_MIN: u32 = 68;

/// What the port cannot do.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum Impossible {
    /// The MTU is out of the driver's range.
    #[error("{port} takes an MTU of {MTU_MIN} to {most}, not {wanted}")]
    Mtu {
        port: String,
        /// The driver's limit, bytes.
        most: u32,
        /// The MTU that was requested, bytes.
        wanted: u32,
    },
    /// No mode of this speed.
    #[error("{port} has no link mode of {wanted} Mb/s; it can do {able}")]
    Speed {
        port: String,
        /// The speed that was requested, megabits per second.
        wanted: u32,
        able: String,
    },
    /// The port's speed cannot be set at all.
    #[error(
        "{port} ({driver}) does not let its speed be set; adapters that are configured by firmware need their own tool"
    )]
    NoSpeed { port: String, driver: String },
    /// Too many or no queues.
    #[error("{port} has 1 to {most} queues, not {wanted}")]
    Queues {
        port: String,
        most: u32,
        /// The number of queues that was requested.
        wanted: u32,
    },
    #[error("{wanted:?} is no FEC; there are auto, off, rs, baser, llrs")]
    Fec {
        /// The name that was requested.
        wanted: String,
    },
    /// The port does not have such a setting.
    #[error("{port} has no setting for {what}")]
    Missing { port: String, what: &'static str },
}

/// What the request changes on this port.
pub fn plan(port: &Port, requested: &RequestedSettings) -> Result<Plan, Impossible> {
    let mut plan = Plan::default();
    if let Some(mtu) = requested.mtu {
        self::mtu(port, mtu, &mut plan)?;
    }
    if let Some(speed) = requested.speed {
        self::speed(port, speed, &mut plan)?;
    }
    if let Some(name) = &requested.fec {
        fec(port, name, &mut plan)?;
    }
    if let Some(on) = requested.pause {
        pause(port, on, &mut plan)?;
    }
    if let Some(count) = requested.queues {
        queues(port, count, &mut plan)?;
    }
    Ok(plan)
}

pub(crate) fn step(plan: &mut Plan, what: &str, from: Option<String>, to: impl ToString) -> bool {
    let (from, to) = (from.unwrap_or_else(|| "unknown".to_owned()), to.to_string());
    let changes = from != to;
    if changes {
        plan.steps.push(PortStep { what: what.to_owned(), from, to });
    }
    changes
}

fn mtu(port: &Port, wanted: u32, plan: &mut Plan) -> Result<(), Impossible> {
    let most = port.mtu_max.unwrap_or(65_535);
    if !(MTU_MIN..=most).contains(&wanted) {
        return Err(Impossible::Mtu { port: port.name.clone(), most, wanted });
    }
    if step(plan, "MTU", port.mtu.map(|mtu| mtu.to_string()), wanted) {
        plan.settings.mtu = Some(wanted);
        plan.undo.mtu = port.mtu;
        if wanted < IPV6_MTU_MIN && port.mtu.is_none_or(|now| now >= IPV6_MTU_MIN) {
            plan.warnings.push(format!(
                "IPv6 needs {IPV6_MTU_MIN}: {} loses its IPv6 addresses, and the old MTU does not bring them back",
                port.name
            ));
        }
        let small =
            port.neighbours.iter().filter_map(|one| Some((one, one.mtu().filter(|mtu| *mtu < wanted)?)));
        for (neighbour, passes) in small {
            let name = neighbour.system.as_deref().unwrap_or("the switch");
            plan.warnings
                .push(format!("{name} passes packets of {passes} bytes only: larger ones will vanish"));
        }
    }
    Ok(())
}

fn speed(port: &Port, wanted: Speed, plan: &mut Plan) -> Result<(), Impossible> {
    let link = &port.link;
    if link.supported.is_empty() {
        let driver = port.driver.clone().unwrap_or_else(|| "no driver known".into());
        return Err(Impossible::NoSpeed { port: port.name.clone(), driver });
    }
    let now = match (link.autonegotiation, link.speed_mbps) {
        (Some(true), _) => Some("negotiated".to_owned()),
        (_, speed) => speed.map(|speed| format!("{speed} Mb/s, forced")),
    };
    let to = match wanted {
        Speed::Auto => "negotiated".to_owned(),
        Speed::Forced(mbps) => format!("{mbps} Mb/s, forced"),
    };
    if !step(plan, "speed", now, to) {
        return Ok(());
    }
    plan.undo.autonegotiation = link.autonegotiation;
    match link.autonegotiation {
        Some(true) => {
            let offered = |mode: &String| (mode.clone(), link.advertised.contains(mode));
            plan.undo.modes = link.supported.iter().map(offered).collect();
        }
        _ => plan.undo.speed_mbps = link.speed_mbps,
    }
    match wanted {
        Speed::Auto => {
            plan.settings.autonegotiation = Some(true);
            plan.settings.modes = link.supported.iter().map(|mode| (mode.clone(), true)).collect();
        }
        Speed::Forced(mbps) => forced(port, mbps, plan)?,
    }
    Ok(())
}

fn forced(port: &Port, mbps: u32, plan: &mut Plan) -> Result<(), Impossible> {
    let link = &port.link;
    let has = |modes: &[String]| modes.iter().any(|mode| mode.starts_with(&format!("{mbps}base")));
    if !has(&link.supported) {
        let able = link.supported.join(", ");
        return Err(Impossible::Speed { port: port.name.clone(), wanted: mbps, able });
    }
    plan.settings.autonegotiation = Some(false);
    plan.settings.speed_mbps = Some(mbps);
    if !link.peer.is_empty() && !has(&link.peer) {
        plan.warnings.push(format!("the other side offers {} only", link.peer.join(", ")));
    }
    let negotiates = port.neighbours.iter().any(|one| one.autonegotiation == Some(true));
    if negotiates || !link.peer.is_empty() {
        plan.warnings.push(
            "the other side negotiates: force it to the same speed, or the link stays down or slow".into(),
        );
    }
    Ok(())
}

fn fec(port: &Port, wanted: &str, plan: &mut Plan) -> Result<(), Impossible> {
    let name = match wanted {
        "auto" => None,
        "off" => Some("None"),
        "rs" => Some("RS"),
        "baser" => Some("BASER"),
        "llrs" => Some("LLRS"),
        _ => return Err(Impossible::Fec { wanted: wanted.to_owned() }),
    };
    let Some(now) = &port.fec else {
        return Err(Impossible::Missing { port: port.name.clone(), what: "FEC" });
    };
    let auto = now.auto == Some(true);
    let from = if auto { "auto".to_owned() } else { now.configured.join("+").replace("none", "off") };
    if step(plan, "FEC", Some(from), wanted) {
        plan.settings.fec_auto = Some(name.is_none());
        plan.settings.fec = name.map(|name| vec![name.to_owned()]);
        plan.undo.fec_auto = now.auto;
        plan.undo.fec = (!auto).then(|| now.configured.iter().map(|name| kernel_name(name)).collect());
        plan.warnings.push("FEC must be the same on both ends, or there is no link".into());
    }
    Ok(())
}

fn kernel_name(name: &str) -> String {
    if name == "none" { "None".to_owned() } else { name.to_ascii_uppercase() }
}

pub(crate) fn pause(port: &Port, on: bool, plan: &mut Plan) -> Result<(), Impossible> {
    let Some(now) = port.pause else {
        return Err(Impossible::Missing { port: port.name.clone(), what: "pause frames" });
    };
    let word = |flag: Option<bool>| if flag == Some(true) { "on" } else { "off" };
    let from = format!("receive {}, send {}", word(now.rx), word(now.tx));
    let to = format!("receive {0}, send {0}", word(Some(on)));
    if step(plan, "pause", Some(from), to) {
        plan.settings.pause = Some(Pause { autonegotiation: None, rx: Some(on), tx: Some(on) });
        plan.undo.pause = Some(now);
    }
    Ok(())
}

fn queues(port: &Port, wanted: u32, plan: &mut Plan) -> Result<(), Impossible> {
    let Some(now) = port.queues else {
        return Err(Impossible::Missing { port: port.name.clone(), what: "queues" });
    };
    let combined = now.combined_max.unwrap_or(0) > 0;
    let most = if combined { now.combined_max } else { now.rx_max.min(now.tx_max) }.unwrap_or(0);
    if !(1..=most).contains(&wanted) {
        return Err(Impossible::Queues { port: port.name.clone(), most, wanted });
    }
    let from = if combined { now.combined } else { now.rx };
    if step(plan, "queues", from.map(|count| count.to_string()), wanted) {
        let some = |count: u32| Settings {
            queues_combined: combined.then_some(count),
            queues_rx: (!combined).then_some(count),
            queues_tx: (!combined).then_some(count),
            ..Settings::default()
        };
        let new = some(wanted);
        plan.settings.queues_combined = new.queues_combined;
        (plan.settings.queues_rx, plan.settings.queues_tx) = (new.queues_rx, new.queues_tx);
        if combined {
            plan.undo.queues_combined = now.combined;
        } else {
            (plan.undo.queues_rx, plan.undo.queues_tx) = (now.rx, now.tx);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Neighbour, Queues};
    use crate::testing::{healthy_survey, port};

    fn requested() -> RequestedSettings {
        RequestedSettings::default()
    }

    fn fast_port() -> Port {
        port(&mut healthy_survey(), "alpha", "ens1f0").clone()
    }

    #[test]
    fn what_is_as_wished_changes_nothing() {
        let all = RequestedSettings {
            mtu: Some(9000),
            speed: Some(Speed::Auto),
            fec: Some("auto".into()),
            pause: Some(false),
            queues: Some(8),
        };
        assert_eq!(plan(&fast_port(), &all).unwrap(), Plan::default());
    }

    #[test]
    fn a_25g_port_is_forced_to_10g_and_back() {
        let plan =
            plan(&fast_port(), &RequestedSettings { speed: Some(Speed::Forced(10_000)), ..requested() })
                .unwrap();
        assert_eq!(
            plan.steps[0],
            PortStep { what: "speed".into(), from: "negotiated".into(), to: "10000 Mb/s, forced".into() }
        );
        assert_eq!((plan.settings.autonegotiation, plan.settings.speed_mbps), (Some(false), Some(10_000)));
        assert_eq!(plan.undo.autonegotiation, Some(true));
        assert_eq!(plan.undo.modes.get("25000baseCR/Full"), Some(&true));
        assert!(plan.warnings.iter().any(|line| line.contains("negotiates")), "{:?}", plan.warnings);
    }

    #[test]
    fn a_switch_that_passes_less_is_a_warning() {
        let mut port = fast_port();
        port.mtu = Some(1500);
        port.neighbours = vec![Neighbour {
            system: Some("leaf0".into()),
            frame_bytes_max: Some(1518),
            ..Neighbour::default()
        }];
        let plan = plan(&port, &RequestedSettings { mtu: Some(9000), ..requested() }).unwrap();
        assert_eq!((plan.settings.mtu, plan.undo.mtu), (Some(9000), Some(1500)));
        assert!(plan.warnings[0].contains("leaf0 passes packets of 1500 bytes only"), "{:?}", plan.warnings);
    }

    #[test]
    fn too_small_for_ipv6_is_a_warning() {
        let warnings = |now: u32, wanted: u32| {
            let port = Port { mtu: Some(now), ..fast_port() };
            plan(&port, &RequestedSettings { mtu: Some(wanted), ..requested() }).unwrap().warnings
        };
        assert!(warnings(1500, 1279)[0].starts_with("IPv6 needs 1280: ens1f0 loses its IPv6 addresses"));
        assert_eq!(warnings(1500, 1280), [""; 0]);
        assert_eq!(warnings(1000, 1200), [""; 0], "it has none");
    }

    #[test]
    fn what_the_port_cannot_do_is_refused() {
        let cases = [
            RequestedSettings { mtu: Some(20_000), ..requested() },
            RequestedSettings { speed: Some(Speed::Forced(100_000)), ..requested() },
            RequestedSettings { fec: Some("magic".into()), ..requested() },
            RequestedSettings { queues: Some(0), ..requested() },
            RequestedSettings { queues: Some(17), ..requested() },
        ];
        for case in cases {
            assert!(plan(&fast_port(), &case).is_err(), "{case:?}");
        }
        let small = plan(&fast_port(), &RequestedSettings { mtu: Some(20), ..requested() }).unwrap_err();
        assert!(small.to_string().contains("an MTU of 68 to "), "{small}");
        let bare = Port { name: "veth0".into(), ..Port::default() };
        for case in [
            RequestedSettings { speed: Some(Speed::Auto), ..requested() },
            RequestedSettings { pause: Some(true), ..requested() },
        ] {
            assert!(plan(&bare, &case).is_err(), "{case:?}");
        }
    }

    #[test]
    fn a_port_with_separate_queues_gets_both() {
        let mut port = fast_port();
        port.queues =
            Some(Queues { rx: Some(1), tx: Some(1), rx_max: Some(4), tx_max: Some(4), ..Queues::default() });
        let plan = plan(&port, &RequestedSettings { queues: Some(4), ..requested() }).unwrap();
        assert_eq!(
            (plan.settings.queues_rx, plan.settings.queues_tx, plan.settings.queues_combined),
            (Some(4), Some(4), None)
        );
        assert_eq!((plan.undo.queues_rx, plan.undo.queues_tx), (Some(1), Some(1)));
    }
}
