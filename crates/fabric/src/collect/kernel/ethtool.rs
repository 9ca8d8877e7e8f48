//! Ethtool netlink: speed, negotiation, FEC, pause, rings, queues, offloads. One dump each for all ports. And
//! devlink: versions of the firmware that runs on adapters.
//!
//! Numbers are those of `linux/ethtool_netlink.h` and `linux/devlink.h`.

use std::collections::BTreeMap;

use linerate_net::netlink::NetlinkError;
use netlink_packet_core::NLM_F_DUMP;

use super::netlink::{Attributes, Family, Writer, is_absent, named_bits, set_bits};
use crate::model::{Duplex, Fec, Note, Pause, Port, Queues, Rings};

/// First attribute of every message: which port.
const HEADER: u16 = 1;
const HEADER_NAME: u16 = 2;

/// EOPNOTSUPP: the kernel does not know the question.
const UNSUPPORTED: i32 = 95;

/// A question, and how its answer goes into a port.
struct Question {
    command: u8,
    about: &'static str,
    apply: fn(Attributes<'_>, &mut Port),
}

const QUESTIONS: &[Question] = &[
    Question { command: 2, about: "link info", apply: link_info },
    Question { command: 4, about: "link modes", apply: link_modes },
    Question { command: 6, about: "link state", apply: link_state },
    Question { command: 11, about: "features", apply: features },
    Question { command: 15, about: "rings", apply: rings },
    Question { command: 17, about: "channels", apply: channels },
    Question { command: 21, about: "pause", apply: pause },
    Question { command: 29, about: "FEC", apply: fec },
];

/// Fills in what ethtool knows of the ports.
pub fn read(ports: &mut [Port], notes: &mut Vec<Note>) -> Result<(), NetlinkError> {
    let Some(mut family) = Family::find("ethtool")? else {
        notes.push(Note {
            about: "ethtool netlink".into(),
            what: "this kernel has none (Linux 5.6 and later do)".into(),
        });
        return Ok(());
    };
    for question in QUESTIONS {
        let (answers, error) = answers(ports, |port| match port {
            None => family.ask(question.command, NLM_F_DUMP, Writer::new().nest(HEADER, Writer::new())),
            Some(name) => {
                let header = Writer::new().text(HEADER_NAME, name);
                family.ask(question.command, 0, Writer::new().nest(HEADER, header))
            }
        });
        answers.iter().for_each(|answer| answer_of(question, answer, ports));
        if let Some(error) = error {
            notes.push(Note { about: format!("ethtool: {}", question.about), what: error.to_string() });
        }
    }
    Ok(())
}

/// All ports' answers, and an error if a part of them is missing. One adapter that fails, or is just being reset, ends
/// the kernel's answer for all: then each port is asked by itself.
fn answers(
    ports: &[Port],
    mut ask: impl FnMut(Option<&str>) -> Result<Vec<Vec<u8>>, NetlinkError>,
) -> (Vec<Vec<u8>>, Option<NetlinkError>) {
    match ask(None) {
        Ok(answers) => return (answers, None),
        Err(NetlinkError::Refused(error)) if error.raw_os_error() != Some(UNSUPPORTED) => {}
        Err(error) if is_absent(&error) => return (Vec::new(), None),
        Err(error) => return (Vec::new(), Some(error)),
    }
    let (mut answers, mut failed) = (Vec::new(), None);
    for port in ports {
        match ask(Some(&port.name)) {
            Ok(one) => answers.extend(one),
            Err(error) if is_absent(&error) => {}
            // Some drivers answer nothing of a port that is switched off (tg3: EAGAIN), and it carries no migration.
            Err(NetlinkError::Refused(_)) if port.up == Some(false) => {}
            Err(error) => failed = Some(error),
        }
    }
    (answers, failed)
}

fn answer_of(question: &Question, answer: &[u8], ports: &mut [Port]) {
    let attributes = Attributes::new(answer);
    let name = attributes.nested(HEADER).and_then(|header| header.text(HEADER_NAME));
    if let Some(port) = ports.iter_mut().find(|port| Some(&port.name) == name.as_ref()) {
        (question.apply)(attributes, port);
    }
}

fn link_info(answer: Attributes<'_>, port: &mut Port) {
    let connector = match answer.u8(2) {
        Some(0) => "twisted_pair",
        Some(1) => "aui",
        Some(2) => "mii",
        Some(3) => "fibre",
        Some(4) => "bnc",
        Some(5) => "direct_attach",
        Some(0xef) => "none",
        _ => return,
    };
    port.link.connector = Some(connector.to_owned());
}

fn link_modes(answer: Attributes<'_>, port: &mut Port) {
    const UNKNOWN_SPEED: u32 = u32::MAX;
    let link = &mut port.link;
    link.autonegotiation = answer.u8(2).map(|on| on == 1);
    if let Some(ours) = answer.nested(3) {
        let modes: Vec<(String, bool)> =
            named_bits(ours).into_iter().filter(|(name, _)| name.contains("base")).collect();
        link.supported = modes.iter().map(|(name, _)| name.clone()).collect();
        link.advertised = modes.into_iter().filter(|(_, offered)| *offered).map(|(name, _)| name).collect();
    }
    if let Some(peer) = answer.nested(4) {
        link.peer = set_bits(peer).into_iter().filter(|name| name.contains("base")).collect();
    }
    link.speed_mbps = answer.u32(5).filter(|speed| *speed != UNKNOWN_SPEED && *speed != 0);
    link.duplex = match answer.u8(6) {
        Some(0) => Some(Duplex::Half),
        Some(1) => Some(Duplex::Full),
        _ => None,
    };
}

fn link_state(answer: Attributes<'_>, port: &mut Port) {
    if answer.u8(2) == Some(1) {
        return;
    }
    let reason = match answer.u8(5) {
        Some(0) => "autonegotiation failed",
        Some(1) => "link training failed",
        Some(2) => "the two sides do not agree (coding, FEC, alignment)",
        Some(3) => "bad signal",
        Some(4) => "no cable",
        Some(5) => "the cable is faulty or not supported",
        Some(6) => "the transceiver cannot be read",
        Some(7) => "calibration failed",
        Some(8) => "the transceiver needs more power than the port gives",
        Some(9) => "too hot",
        Some(10) => "the transceiver is not ready",
        _ => return,
    };
    port.link.down_reason = Some(reason.to_owned());
}

/// Features that the adapter can switch, and those that are on for good.
fn features(answer: Attributes<'_>, port: &mut Port) {
    const SWITCHABLE: u16 = 2;
    const ACTIVE: u16 = 4;
    for name in answer.nested(SWITCHABLE).map(set_bits).unwrap_or_default() {
        port.offloads.insert(name, false);
    }
    for name in answer.nested(ACTIVE).map(set_bits).unwrap_or_default() {
        port.offloads.insert(name, true);
    }
}

fn rings(answer: Attributes<'_>, port: &mut Port) {
    let rings = Rings { rx_max: answer.u32(2), tx_max: answer.u32(5), rx: answer.u32(6), tx: answer.u32(9) };
    port.rings = (rings != Rings::default()).then_some(rings);
}

fn channels(answer: Attributes<'_>, port: &mut Port) {
    let queues = Queues {
        rx_max: answer.u32(2),
        tx_max: answer.u32(3),
        combined_max: answer.u32(5),
        rx: answer.u32(6),
        tx: answer.u32(7),
        combined: answer.u32(9),
    };
    port.queues = (queues != Queues::default()).then_some(queues);
}

fn pause(answer: Attributes<'_>, port: &mut Port) {
    let flag = |kind| answer.u8(kind).map(|on| on == 1);
    let pause = Pause { autonegotiation: flag(2), rx: flag(3), tx: flag(4) };
    port.pause = (pause != Pause::default()).then_some(pause);
}

fn fec(answer: Attributes<'_>, port: &mut Port) {
    // The running one is said as the number of its link mode.
    let active = match answer.u32(4) {
        Some(49) => Some("none"),
        Some(50) => Some("rs"),
        Some(51) => Some("baser"),
        Some(74) => Some("llrs"),
        _ => None,
    };
    let configured = answer.nested(2).map(set_bits).unwrap_or_default();
    let fec = Fec {
        active: active.map(str::to_owned),
        configured: configured.into_iter().map(|name| name.to_ascii_lowercase()).collect(),
        auto: answer.u8(3).map(|on| on == 1),
    };
    port.fec = (fec.active.is_some() || !fec.configured.is_empty()).then_some(fec);
}

const DEVLINK_INFO_GET: u8 = 51;
/// What the field calls *the* firmware version, best first.
const FIRMWARE_NAMES: [&str; 3] = ["fw", "fw.version", "fw.mgmt"];

/// Firmware version by the device's address, such as `0000:3b:00.0`. Empty where the kernel has no devlink.
pub fn firmware() -> Result<BTreeMap<String, String>, NetlinkError> {
    let Some(mut family) = Family::find("devlink")? else { return Ok(BTreeMap::new()) };
    let answers = family.ask(DEVLINK_INFO_GET, NLM_F_DUMP, Writer::new())?;
    Ok(answers.iter().filter_map(|answer| firmware_version(Attributes::new(answer))).collect())
}

fn firmware_version(answer: Attributes<'_>) -> Option<(String, String)> {
    const DEVICE: u16 = 2;
    const RUNNING: u16 = 101;
    const NAME: u16 = 103;
    const VALUE: u16 = 104;
    let running = answer.iter().filter(|(kind, _)| *kind == RUNNING).map(|(_, one)| Attributes::new(one));
    let versions: BTreeMap<String, String> =
        running.filter_map(|one| Some((one.text(NAME)?, one.text(VALUE)?))).collect();
    let version = FIRMWARE_NAMES.iter().find_map(|name| versions.get(*name))?;
    Some((answer.text(DEVICE)?, version.clone()))
}

#[cfg(test)]
mod tests {
    mod ethtool {
        use super::super::*;

        fn bit(name: &str, set: bool) -> Writer {
            let bit = Writer::new().u32(1, 0).text(2, name);
            Writer::new().nest(1, if set { bit.bytes(3, &[]) } else { bit })
        }

        fn bits(all: &[(&str, bool)]) -> Writer {
            let bytes = all.iter().flat_map(|(name, set)| bit(name, *set).finish()).collect::<Vec<u8>>();
            Writer::new().bytes(3, &bytes)
        }

        /// Form: Documentation/networking/ethtool-netlink.rst of Linux.
        fn ask(command: u8, attributes: Writer) -> Port {
            let mut ports = vec![Port { name: "ens1f0".into(), ..Port::default() }];
            let question = QUESTIONS.iter().find(|question| question.command == command).unwrap();
            let header = Writer::new().nest(HEADER, Writer::new().u32(1, 3).text(2, "ens1f0"));
            answer_of(question, &[header.finish(), attributes.finish()].concat(), &mut ports);
            ports.remove(0)
        }

        /// The kernel breaks its answer off at the first port that is not there just now.
        #[test]
        fn one_adapter_that_fails_does_not_hide_the_others() {
            const NO_DEVICE: i32 = 19;
            const IO: i32 = 5;
            let ports = ["l0", "l1", "l2"].map(|name| Port { name: name.into(), ..Port::default() });
            let refused = |number| Err(NetlinkError::Refused(std::io::Error::from_raw_os_error(number)));
            let ask = |all: i32, second: i32| {
                let mut asked = 0;
                let (found, error) = answers(&ports, |port| {
                    asked += 1;
                    match port {
                        None => refused(all),
                        Some("l1") => refused(second),
                        Some(name) => Ok(vec![name.as_bytes().to_vec()]),
                    }
                });
                (found, error.map(|error| error.to_string()), asked)
            };
            let others = || vec![b"l0".to_vec(), b"l2".to_vec()];
            assert_eq!(ask(NO_DEVICE, NO_DEVICE), (others(), None, 4));
            let (found, error, _) = ask(IO, IO);
            assert_eq!(found, others());
            assert!(error.unwrap().contains("refused"));
            assert_eq!(ask(UNSUPPORTED, 0), (vec![], None, 1));
        }

        #[test]
        fn a_port_that_is_switched_off_and_answers_nothing_is_not_missed() {
            const TRY_AGAIN: i32 = 11;
            let refused = || Err(NetlinkError::Refused(std::io::Error::from_raw_os_error(TRY_AGAIN)));
            for (up, is_missed) in [(false, false), (true, true)] {
                let ports = [Port { name: "l0".into(), up: Some(up), ..Port::default() }];
                let (found, error) = answers(&ports, |_| refused());
                assert_eq!((found.len(), error.is_some()), (0, is_missed), "up: {up}");
            }
        }

        #[test]
        fn a_25g_port_that_negotiates_with_a_10g_switch() {
            let ours = bits(&[
                ("Autoneg", true),
                ("10000baseCR/Full", true),
                ("25000baseCR/Full", false),
                ("FIBRE", true),
            ]);
            let peer = bits(&[("10000baseCR/Full", true)]);
            let peer = Writer::new().bytes(1, &[]).bytes(3, Attributes::new(&peer.finish()).get(3).unwrap());
            let answer = Writer::new().u8(2, 1).nest(3, ours).nest(4, peer).u32(5, 10_000).u8(6, 1);
            let link = ask(4, answer).link;
            assert_eq!(link.autonegotiation, Some(true));
            assert_eq!(link.supported, ["10000baseCR/Full", "25000baseCR/Full"]);
            assert_eq!(link.advertised, ["10000baseCR/Full"]);
            assert_eq!(link.peer, ["10000baseCR/Full"]);
            assert_eq!((link.speed_mbps, link.duplex), (Some(10_000), Some(Duplex::Full)));
            assert_eq!((link.speed_max_mbps(), link.peer_speed_max_mbps()), (Some(25_000), Some(10_000)));
        }

        #[test]
        fn a_port_without_link_has_no_speed_and_a_reason() {
            let link = ask(4, Writer::new().u32(5, u32::MAX).u8(6, 0xff)).link;
            assert_eq!((link.speed_mbps, link.duplex), (None, None));
            let link = ask(6, Writer::new().u8(2, 0).u8(5, 4)).link;
            assert_eq!(link.down_reason.as_deref(), Some("no cable"));
            assert_eq!(ask(6, Writer::new().u8(2, 1).u8(5, 4)).link.down_reason, None);
        }

        #[test]
        fn fec_rings_queues_pause() {
            let modes = bits(&[("RS", true), ("BASER", false)]);
            let fec = ask(29, Writer::new().nest(2, modes).u8(3, 0).u32(4, 50)).fec.unwrap();
            assert_eq!(
                fec,
                Fec { active: Some("rs".into()), configured: vec!["rs".into()], auto: Some(false) }
            );
            let rings =
                ask(15, Writer::new().u32(2, 8192).u32(5, 4096).u32(6, 1024).u32(9, 512)).rings.unwrap();
            assert_eq!(
                (rings.rx, rings.rx_max, rings.tx, rings.tx_max),
                (Some(1024), Some(8192), Some(512), Some(4096))
            );
            let queues = ask(17, Writer::new().u32(5, 63).u32(9, 8)).queues.unwrap();
            assert_eq!((queues.receiving(), queues.receiving_max()), (8, 63));
            let pause = ask(21, Writer::new().u8(2, 0).u8(3, 1).u8(4, 0)).pause.unwrap();
            assert_eq!(pause, Pause { autonegotiation: Some(false), rx: Some(true), tx: Some(false) });
            assert_eq!(ask(21, Writer::new()).pause, None);
        }

        #[test]
        fn offloads_that_are_off_are_listed() {
            let hardware = bits(&[("tx-tcp-segmentation", true), ("rx-gro", true)]);
            let active = Writer::new().bytes(1, &[]).bytes(3, &bit("rx-gro", false).finish());
            let port = ask(11, Writer::new().nest(2, hardware).nest(4, active));
            assert_eq!(port.offloads.get("rx-gro"), Some(&true));
            assert_eq!(port.offloads.get("tx-tcp-segmentation"), Some(&false));
        }
    }

    mod devlink {
        use super::super::*;

        /// Form: Documentation/networking/devlink/devlink-info.rst of Linux.
        #[test]
        fn the_running_firmware_of_an_adapter() {
            let one = |name: &str, value: &str| Writer::new().text(103, name).text(104, value);
            let answer = Writer::new()
                .text(1, "pci")
                .text(2, "0000:3b:00.0")
                .nest(101, one("fw.psid", "MT_0000000011"))
                .nest(101, one("fw.version", "14.32.1900"))
                .nest(102, one("fw.version", "14.33.0001"))
                .finish();
            let expected = ("0000:3b:00.0".to_owned(), "14.32.1900".to_owned());
            assert_eq!(firmware_version(Attributes::new(&answer)), Some(expected));
            assert_eq!(firmware_version(Attributes::new(b"")), None);
        }

        #[test]
        fn a_kernel_without_devlink_is_no_failure() {
            firmware().unwrap();
        }
    }
}
