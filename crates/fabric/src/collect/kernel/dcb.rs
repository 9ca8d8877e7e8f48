//! dcbnl: shares, lossless priorities, application priorities, DCBX. Structures of `linux/dcbnl.h`.

use linerate_net::netlink::NetlinkError;
use netlink_sys::protocols::NETLINK_ROUTE;

use super::ask::{Asker, is_absent};
use super::attributes::{Attributes, Writer};
use crate::model::{Application, Dcb, Dcbx, Ets, Note, Pfc, Port, Selector};

const GET_DCB: u16 = 78;
pub(super) const IEEE_GET: u8 = 21;
const DCBX_GET: u8 = 22;
/// Family, command, two reserved bytes.
pub(super) const HEADER_BYTES: usize = 4;
pub(super) const NAME: u16 = 1;
pub(super) const IEEE: u16 = 13;
pub(super) const DCBX: u16 = 14;

/// Fills in what dcbnl knows of physical ports.
pub fn read(ports: &mut [Port], notes: &mut Vec<Note>) -> Result<(), NetlinkError> {
    let mut asker = Asker::open(NETLINK_ROUTE)?;
    for port in ports.iter_mut().filter(|port| port.kind == crate::model::PortKind::Physical) {
        let mut dcb = Dcb::default();
        for command in [IEEE_GET, DCBX_GET] {
            match ask(&mut asker, &port.name, command) {
                Ok(Some(answer)) => apply(&answer, &mut dcb),
                Ok(None) => {}
                Err(error) if is_absent(&error) => {}
                Err(error) => {
                    notes.push(Note { about: format!("dcbnl {}", port.name), what: error.to_string() })
                }
            }
        }
        port.dcb = (dcb != Dcb::default()).then_some(dcb);
    }
    Ok(())
}

/// All of one port, or why it cannot be read.
pub(super) fn of(asker: &mut Asker, port: &str) -> Result<Dcb, NetlinkError> {
    let mut dcb = Dcb::default();
    for command in [IEEE_GET, DCBX_GET] {
        if let Some(answer) = ask(asker, port, command)? {
            apply(&answer, &mut dcb);
        }
    }
    Ok(dcb)
}

pub(super) fn ask(asker: &mut Asker, port: &str, command: u8) -> Result<Option<Vec<u8>>, NetlinkError> {
    let attributes = Writer::new().text(NAME, port).finish();
    let answers = asker.ask(GET_DCB, 0, &[vec![0, command, 0, 0], attributes].concat())?;
    Ok(answers.into_iter().next().map(|answer| answer.payload))
}

fn apply(answer: &[u8], dcb: &mut Dcb) {
    let attributes = Attributes::new(answer.get(HEADER_BYTES..).unwrap_or_default());
    if let Some(ieee) = attributes.nested(IEEE) {
        dcb.ets = ieee.get(1).and_then(ets);
        dcb.pfc = ieee.get(2).and_then(pfc);
        let table = ieee.nested(3).into_iter().flat_map(Attributes::iter);
        dcb.applications = table.filter_map(|(_, entry)| application(entry)).collect();
    }
    if let Some(mode) = attributes.u8(DCBX) {
        let has = |bit: u8| mode & bit != 0;
        dcb.dcbx = Some(Dcbx { host: has(1), firmware: has(2), cee: has(4), ieee: has(8), fixed: has(16) });
    }
}

/// `struct ieee_ets`: willing, classes, credit shaper, then eight bytes each: send shares, receive shares, selection,
/// class of each priority, and three recommendations.
fn ets(bytes: &[u8]) -> Option<Ets> {
    let eight = |at: usize| bytes.get(at..at + 8);
    let selection = |code: &u8| match code {
        0 => "strict",
        1 => "credit_shaper",
        2 => "ets",
        _ => "vendor",
    };
    Some(Ets {
        willing: Some(*bytes.first()? != 0),
        classes_max: bytes.get(1).copied(),
        share_percent: eight(3)?.to_vec(),
        selection: eight(19)?.iter().map(|code| selection(code).to_owned()).collect(),
        priority_class: eight(27)?.to_vec(),
    })
}

/// `struct ieee_pfc`: how many, which (a bit for each priority). Who is willing is not said.
fn pfc(bytes: &[u8]) -> Option<Pfc> {
    let on = *bytes.get(1)?;
    let lossless = (0..8).filter(|priority| on & (1 << priority) != 0).collect();
    Some(Pfc { willing: None, lossless_max: bytes.first().copied(), lossless })
}

/// `struct dcb_app`: selector, priority, protocol.
fn application(bytes: &[u8]) -> Option<Application> {
    let [selector, priority, low, high] = *bytes.first_chunk()?;
    let selector = match selector {
        1 => Selector::EtherType,
        2 => Selector::Stream,
        3 => Selector::Datagram,
        4 => Selector::AnyPort,
        5 => Selector::Dscp,
        _ => Selector::Other,
    };
    Some(Application { selector, protocol: u16::from_ne_bytes([low, high]), priority })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No machine of the tests has such an adapter: bytes by `struct ieee_ets`, `ieee_pfc`, `dcb_app` of linux/dcbnl.h.
    #[test]
    fn one_lossless_priority_with_half_of_the_wire() {
        let mut shares = vec![1, 8, 0];
        shares.extend([50, 50, 0, 0, 0, 0, 0, 0]);
        shares.extend([0; 8]);
        shares.extend([2, 2, 0, 0, 0, 0, 0, 255]);
        shares.extend([0, 0, 0, 1, 0, 0, 0, 0]);
        shares.extend([0; 24]);
        let mut lossless = vec![8, 0b0000_1000];
        lossless.resize(136, 0);
        let table = Writer::new().bytes(1, &[3, 3, 0xb7, 0x12]).bytes(1, &[5, 3, 26, 0]);
        let ieee = Writer::new().bytes(1, &shares).bytes(2, &lossless).nest(3, table);
        let answer =
            [vec![0, IEEE_GET, 0, 0], Writer::new().text(NAME, "ens1f0").nest(IEEE, ieee).finish()].concat();
        let mut dcb = Dcb::default();
        apply(&answer, &mut dcb);
        let ets = dcb.ets.unwrap();
        assert_eq!(ets.willing, Some(true));
        assert_eq!(ets.share_percent, [50, 50, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ets.priority_class, [0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!((ets.selection[0].as_str(), ets.selection[7].as_str()), ("ets", "vendor"));
        assert_eq!(dcb.pfc.unwrap().lossless, [3]);
        let roce = Application { selector: Selector::Datagram, protocol: 4791, priority: 3 };
        let dscp = Application { selector: Selector::Dscp, protocol: 26, priority: 3 };
        assert_eq!(dcb.applications, [roce, dscp]);
    }

    #[test]
    fn dcbx_mode_and_short_answers() {
        let mut dcb = Dcb::default();
        apply(&[vec![0, DCBX_GET, 0, 0], Writer::new().u8(DCBX, 0x09).finish()].concat(), &mut dcb);
        assert_eq!(dcb.dcbx, Some(Dcbx { host: true, ieee: true, ..Dcbx::default() }));
        assert_eq!(ets(&[1, 8, 0, 1]), None);
        assert_eq!(pfc(&[8]), None);
        assert_eq!(application(&[1, 2]), None);
        apply(&[], &mut dcb);
    }
}
