//! An LLDP frame as bytes (IEEE 802.1AB), with the parts that 802.1Q, 802.3 and DCBX add.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::model::{Aggregation, Application, Ets, Neighbour, Pfc, Selector};

/// Length of destination, source and type.
const ETHERNET_BYTES: usize = 14;
const LLDP: [u8; 2] = [0x88, 0xcc];
/// Organisations whose parts are understood.
const IEEE_802_1: [u8; 3] = [0x00, 0x80, 0xc2];
const IEEE_802_3: [u8; 3] = [0x00, 0x12, 0x0f];
/// A frame can hold no more.
const LIST_MAX: usize = 512;

/// What a frame says, and for how many seconds it holds (0: the neighbour leaves).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advertisement {
    /// The sender, as it describes itself.
    pub neighbour: Neighbour,
    /// Seconds for which the advertisement is valid; 0: the sender goes away.
    pub holds_s: u16,
}

/// Reads an Ethernet frame. `None` if it is no LLDP frame or ends before it names the sender.
pub fn read(frame: &[u8]) -> Option<Advertisement> {
    let (header, mut rest) = frame.split_at_checked(ETHERNET_BYTES)?;
    if header.get(12..)? != LLDP {
        return None;
    }
    let mut advertisement = Advertisement::default();
    while let Some((kind, value, behind)) = part(rest) {
        if kind == 0 {
            break;
        }
        apply(kind, value, &mut advertisement);
        rest = behind;
    }
    let named = advertisement.neighbour.chassis.is_some() && advertisement.neighbour.port.is_some();
    named.then_some(advertisement)
}

/// The first part: its type (7 bits), its value (length 9 bits), what follows.
fn part(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let head = u16::from_be_bytes(*bytes.first_chunk()?);
    let length = usize::from(head & 0x1ff);
    let value = bytes.get(2..2 + length)?;
    Some(((head >> 9) as u8, value, bytes.get(2 + length..)?))
}

fn apply(kind: u8, value: &[u8], advertisement: &mut Advertisement) {
    let neighbour = &mut advertisement.neighbour;
    match kind {
        1 => neighbour.chassis = id(value, 4),
        2 => neighbour.port = id(value, 3),
        3 => advertisement.holds_s = value.first_chunk().map_or(0, |two| u16::from_be_bytes(*two)),
        4 => neighbour.port_description = text(value),
        5 => neighbour.system = text(value),
        6 => neighbour.system_description = text(value),
        8 if neighbour.management.len() < LIST_MAX => neighbour.management.extend(management(value)),
        127 => {
            let Some((organisation, rest)) = value.split_first_chunk::<3>() else { return };
            let Some((subtype, value)) = rest.split_first() else { return };
            match *organisation {
                IEEE_802_1 => bridge_part(*subtype, value, neighbour),
                IEEE_802_3 => ethernet_part(*subtype, value, neighbour),
                _ => {}
            }
        }
        _ => {}
    }
}

/// An identifier: its subtype, then a hardware address (whose subtype differs between chassis and port) or a text.
fn id(value: &[u8], hardware: u8) -> Option<String> {
    let (subtype, rest) = value.split_first()?;
    if *subtype == hardware && rest.len() == 6 {
        let parts: Vec<String> = rest.iter().map(|byte| format!("{byte:02x}")).collect();
        return Some(parts.join(":"));
    }
    text(rest)
}

/// Texts of switches are written to a terminal: no control characters.
fn text(value: &[u8]) -> Option<String> {
    let text: String = String::from_utf8_lossy(value).chars().filter(|c| !c.is_control()).collect();
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// Length of family and address, family (1: IPv4, 2: IPv6), address.
fn management(value: &[u8]) -> Option<String> {
    let length = usize::from(*value.first()?);
    let (family, address) = value.get(1..1 + length)?.split_first()?;
    match family {
        1 => <[u8; 4]>::try_from(address).ok().map(|four| Ipv4Addr::from(four).to_string()),
        2 => <[u8; 16]>::try_from(address).ok().map(|all| Ipv6Addr::from(all).to_string()),
        _ => None,
    }
}

fn number(value: &[u8]) -> Option<u16> {
    value.first_chunk().map(|two| u16::from_be_bytes(*two))
}

/// Parts of IEEE 802.1: VLANs, aggregation, DCBX.
fn bridge_part(subtype: u8, value: &[u8], neighbour: &mut Neighbour) {
    match subtype {
        // 0 says that there is none.
        1 => neighbour.vlan_untagged = number(value).filter(|vlan| *vlan != 0),
        3 if neighbour.vlans.len() < LIST_MAX => neighbour.vlans.extend(number(value)),
        7 => neighbour.aggregation = aggregation(value),
        9 => neighbour.ets = ets(value),
        11 => neighbour.pfc = pfc(value),
        12 => neighbour.applications = applications(value),
        _ => {}
    }
}

/// Parts of IEEE 802.3: negotiation, aggregation (its older place), largest frame.
fn ethernet_part(subtype: u8, value: &[u8], neighbour: &mut Neighbour) {
    match subtype {
        1 => neighbour.autonegotiation = value.first().map(|bits| bits & 2 != 0),
        3 if neighbour.aggregation.is_none() => neighbour.aggregation = aggregation(value),
        4 => neighbour.frame_bytes_max = number(value).map(u32::from),
        _ => {}
    }
}

fn aggregation(value: &[u8]) -> Option<Aggregation> {
    let (status, rest) = value.split_first()?;
    let number = rest.first_chunk().map(|four| u32::from_be_bytes(*four)).filter(|number| *number != 0);
    Some(Aggregation { able: status & 1 != 0, on: status & 2 != 0, number })
}

/// Willing and number of classes (0 means 8), four bits for each priority's class, shares, selections.
fn ets(value: &[u8]) -> Option<Ets> {
    let first = *value.first()?;
    let classes = match first & 7 {
        0 => 8,
        some => some,
    };
    let nibbles = value.get(1..5)?.iter().flat_map(|byte| [byte >> 4, byte & 0x0f]);
    let selection = |code: &u8| match code {
        0 => "strict",
        1 => "credit_shaper",
        2 => "ets",
        _ => "vendor",
    };
    Some(Ets {
        willing: Some(first & 0x80 != 0),
        classes_max: Some(classes),
        priority_class: nibbles.collect(),
        share_percent: value.get(5..13)?.to_vec(),
        selection: value.get(13..21)?.iter().map(|code| selection(code).to_owned()).collect(),
    })
}

fn pfc(value: &[u8]) -> Option<Pfc> {
    let [first, on] = *value.first_chunk()?;
    let lossless = (0..8).filter(|priority| on & (1 << priority) != 0).collect();
    Some(Pfc { willing: Some(first & 0x80 != 0), lossless_max: Some(first & 0x0f), lossless })
}

/// A reserved byte, then three bytes each: priority and selector, protocol.
fn applications(value: &[u8]) -> Vec<Application> {
    let entries = value.get(1..).unwrap_or_default().chunks_exact(3);
    let application = |entry: &[u8]| {
        let [head, high, low] = *entry.first_chunk()?;
        let selector = match head & 7 {
            1 => Selector::EtherType,
            2 => Selector::Stream,
            3 => Selector::Datagram,
            4 => Selector::AnyPort,
            5 => Selector::Dscp,
            _ => Selector::Other,
        };
        Some(Application { selector, protocol: u16::from_be_bytes([high, low]), priority: head >> 5 })
    };
    entries.filter_map(application).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn tlv(kind: u16, value: &[u8]) -> Vec<u8> {
        let head = (kind << 9) | u16::try_from(value.len()).unwrap();
        [&head.to_be_bytes()[..], value].concat()
    }

    fn organisation(which: [u8; 3], subtype: u8, value: &[u8]) -> Vec<u8> {
        tlv(127, &[&which[..], &[subtype], value].concat())
    }

    /// A frame of a switch port, by the layouts of IEEE 802.1AB, 802.1Q annex D and 802.3 clause 79.
    pub(crate) fn switch_frame(system: &str, frame_bytes: u16, holds_s: u16) -> Vec<u8> {
        let mut shares = vec![0x80, 0x00, 0x01, 0x00, 0x00];
        shares.extend([50, 50, 0, 0, 0, 0, 0, 0]);
        shares.extend([2, 2, 0, 0, 0, 0, 0, 0]);
        [
            vec![0x01, 0x80, 0xc2, 0, 0, 0x0e, 2, 0, 0, 0, 0, 1, 0x88, 0xcc],
            tlv(1, &[4, 2, 0xff, 0, 0, 0, 7]),
            tlv(2, b"\x05Ethernet1/7"),
            tlv(3, &holds_s.to_be_bytes()),
            tlv(4, b"to beta\x1b[31m"),
            tlv(5, system.as_bytes()),
            tlv(8, &[5, 1, 192, 0, 2, 1, 2, 0, 0, 0, 1, 0]),
            organisation(IEEE_802_1, 1, &100u16.to_be_bytes()),
            organisation(IEEE_802_1, 3, b"\x00\xc8\x04blue"),
            organisation(IEEE_802_1, 7, &[3, 0, 0, 0, 5]),
            organisation(IEEE_802_1, 9, &shares),
            organisation(IEEE_802_1, 11, &[0x08, 0b0000_1000]),
            organisation(IEEE_802_1, 12, &[0, (3 << 5) | 3, 0x12, 0xb7]),
            organisation(IEEE_802_3, 1, &[3, 0, 0, 0, 0]),
            organisation(IEEE_802_3, 4, &frame_bytes.to_be_bytes()),
            organisation([9, 9, 9], 1, b"private"),
            tlv(0, b""),
        ]
        .concat()
    }

    #[test]
    fn every_field_of_a_switch_is_read() {
        let advertisement = read(&switch_frame("leaf1", 1518, 120)).unwrap();
        let neighbour = advertisement.neighbour;
        assert_eq!(advertisement.holds_s, 120);
        assert_eq!(neighbour.chassis.as_deref(), Some("02:ff:00:00:00:07"));
        assert_eq!(neighbour.port.as_deref(), Some("Ethernet1/7"));
        assert_eq!(neighbour.system.as_deref(), Some("leaf1"));
        assert_eq!(neighbour.port_description.as_deref(), Some("to beta[31m"), "no control characters");
        assert_eq!(neighbour.management, ["192.0.2.1"]);
        assert_eq!((neighbour.frame_bytes_max, neighbour.mtu()), (Some(1518), Some(1500)));
        assert_eq!((neighbour.vlan_untagged, neighbour.vlans), (Some(100), vec![200]));
        assert_eq!(neighbour.aggregation, Some(Aggregation { able: true, on: true, number: Some(5) }));
        assert_eq!(neighbour.autonegotiation, Some(true));
        let ets = neighbour.ets.unwrap();
        assert_eq!((ets.willing, ets.classes_max), (Some(true), Some(8)));
        assert_eq!(ets.priority_class, [0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(ets.share_percent[..2], [50, 50]);
        assert_eq!(neighbour.pfc.unwrap().lossless, [3]);
        let roce = Application { selector: Selector::Datagram, protocol: 4791, priority: 3 };
        assert_eq!(neighbour.applications, [roce]);
    }

    #[test]
    fn a_truncated_frame_is_no_harm() {
        let whole = switch_frame("leaf1", 9234, 120);
        for length in 0..whole.len() {
            let _ = read(&whole[..length]);
        }
        assert_eq!(read(&whole[..20]), None);
        let mut other = whole;
        other[13] = 0;
        assert_eq!(read(&other), None, "not LLDP's EtherType");
    }
}
