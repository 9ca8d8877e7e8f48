//! dcbnl: shares, lossless priorities, application priorities, DCBX, read and written. Structures and numbers are
//! those of `linux/dcbnl.h`.
//!
//! The kernel answers a request with a status of one byte, beside the acknowledgement of netlink. It passes over in
//! silence what a driver does not have: the caller reads back what it sets.

use std::io;

use linerate_net::netlink::NetlinkError;
use netlink_sys::protocols::NETLINK_ROUTE;
use thiserror::Error;

use super::netlink::{Asker, Attributes, Writer, is_absent};
use crate::model::{Application, Dcb, Dcbx, Ets, Note, Pfc, Port, Selector};

const GET_DCB: u16 = 78;
const IEEE_GET: u8 = 21;
const DCBX_GET: u8 = 22;
/// Family, command, two reserved bytes.
const HEADER_BYTES: usize = 4;
const NAME: u16 = 1;
const IEEE: u16 = 13;
const DCBX: u16 = 14;

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
fn of(asker: &mut Asker, port: &str) -> Result<Dcb, NetlinkError> {
    let mut dcb = Dcb::default();
    for command in [IEEE_GET, DCBX_GET] {
        if let Some(answer) = ask(asker, port, command)? {
            apply(&answer, &mut dcb);
        }
    }
    Ok(dcb)
}

fn ask(asker: &mut Asker, port: &str, command: u8) -> Result<Option<Vec<u8>>, NetlinkError> {
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

const SET_DCB: u16 = 79;
const IEEE_SET: u8 = 20;
const DCBX_SET: u8 = 23;
const IEEE_DELETE: u8 = 27;
const ETS: u16 = 1;
const PFC: u16 = 2;
const APPLICATIONS: u16 = 3;
const APPLICATION: u16 = 1;
const ETS_BYTES: usize = 59;
const PFC_BYTES: usize = 136;
const HOST: u8 = 1;
const IEEE_VERSION: u8 = 8;

/// A request that did not go through.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum DcbError {
    /// The kernel refused, or the driver has no DCB at all.
    #[error("the kernel refused: {0}")]
    Kernel(#[source] NetlinkError),
    #[error("the adapter's driver refused: {0}")]
    Driver(#[source] io::Error),
    /// The driver did not take the mode of DCBX; it gives no reason.
    #[error(
        "the adapter's driver does not let the host decide; its firmware may be set so by its maker's tool"
    )]
    Mode,
    /// The kernel's answer has no status.
    #[error("the kernel did not confirm whether it was done")]
    Silent,
}

impl DcbError {
    /// The driver has no DCB, or the kernel none for anybody.
    pub fn is_absent(&self) -> bool {
        const NOT_SUPPORTED: i32 = 95;
        match self {
            DcbError::Kernel(NetlinkError::Refused(error)) => error.raw_os_error() == Some(NOT_SUPPORTED),
            _ => false,
        }
    }
}

/// What sets DCB of one port. The kernel does, by [`Setter`]; tests record the calls.
pub trait SetDcb {
    /// All of it as it is now; `None` if that cannot be read.
    fn now(&mut self) -> Option<Dcb>;
    /// Who decides. What is not the host is left to the adapter.
    fn dcbx(&mut self, mode: Dcbx) -> Result<(), DcbError>;
    /// Classes and shares. What the model does not know of stays.
    fn ets(&mut self, ets: &Ets) -> Result<(), DcbError>;
    /// Lossless priorities. Delay and everything else stays.
    fn lossless(&mut self, priorities: &[u8]) -> Result<(), DcbError>;
    /// An entry of the application table comes. One by one: the kernel stops in the middle of a list where one is
    /// refused.
    fn add(&mut self, entry: Application) -> Result<(), DcbError>;
    /// An entry of the application table goes.
    fn remove(&mut self, entry: Application) -> Result<(), DcbError>;
}

/// Sets DCB of one port.
pub struct Setter<'a> {
    asker: Asker,
    port: &'a str,
}

impl<'a> Setter<'a> {
    /// Opens a socket in the network namespace of this thread.
    pub fn open(port: &'a str) -> Result<Setter<'a>, DcbError> {
        Ok(Setter { asker: Asker::open(NETLINK_ROUTE).map_err(DcbError::Kernel)?, port })
    }

    /// A structure as it is now; empty if the driver does not have it.
    fn part(&mut self, kind: u16) -> Result<Vec<u8>, DcbError> {
        let answer = ask(&mut self.asker, self.port, IEEE_GET).map_err(DcbError::Kernel)?;
        let answer = answer.unwrap_or_default();
        let attributes = Attributes::new(answer.get(HEADER_BYTES..).unwrap_or_default());
        Ok(attributes.nested(IEEE).and_then(|ieee| ieee.get(kind)).unwrap_or_default().to_vec())
    }

    fn ieee(&mut self, command: u8, inner: Writer) -> Result<(), DcbError> {
        done(self.send(command, Writer::new().nest(IEEE, inner), IEEE)?)
    }

    /// Sends, and gives back the status.
    fn send(&mut self, command: u8, attributes: Writer, status: u16) -> Result<u8, DcbError> {
        let request = request(self.port, command, attributes);
        let answers = self.asker.ask(SET_DCB, 0, &request).map_err(DcbError::Kernel)?;
        answers.iter().find_map(|answer| status_in(&answer.payload, status)).ok_or(DcbError::Silent)
    }
}

impl SetDcb for Setter<'_> {
    fn now(&mut self) -> Option<Dcb> {
        of(&mut self.asker, self.port).ok()
    }

    fn dcbx(&mut self, mode: Dcbx) -> Result<(), DcbError> {
        let attribute = Writer::new().u8(DCBX, dcbx_bits(mode));
        match self.send(DCBX_SET, attribute, DCBX)? {
            0 => Ok(()),
            _ => Err(DcbError::Mode),
        }
    }

    fn ets(&mut self, ets: &Ets) -> Result<(), DcbError> {
        let now = self.part(ETS)?;
        self.ieee(IEEE_SET, Writer::new().bytes(ETS, &ets_bytes(&now, ets)))
    }

    fn lossless(&mut self, priorities: &[u8]) -> Result<(), DcbError> {
        let now = self.part(PFC)?;
        self.ieee(IEEE_SET, Writer::new().bytes(PFC, &pfc_bytes(&now, priorities)))
    }

    fn add(&mut self, entry: Application) -> Result<(), DcbError> {
        self.ieee(IEEE_SET, application_table(entry))
    }

    fn remove(&mut self, entry: Application) -> Result<(), DcbError> {
        self.ieee(IEEE_DELETE, application_table(entry))
    }
}

/// The status in an answer.
fn status_in(payload: &[u8], kind: u16) -> Option<u8> {
    Attributes::new(payload.get(HEADER_BYTES..)?).u8(kind)
}

/// The kernel cuts a negative error number down to the byte.
fn done(status: u8) -> Result<(), DcbError> {
    match status {
        0 => Ok(()),
        _ => Err(DcbError::Driver(io::Error::from_raw_os_error(status.wrapping_neg().into()))),
    }
}

/// `struct dcbmsg`, the port's name, then what is set.
fn request(port: &str, command: u8, attributes: Writer) -> Vec<u8> {
    [vec![0, command, 0, 0], Writer::new().text(NAME, port).finish(), attributes.finish()].concat()
}

/// No driver takes back DCBX into its firmware by name; those that can, do so with no bit set.
fn dcbx_bits(mode: Dcbx) -> u8 {
    const CEE_VERSION: u8 = 4;
    const FIXED: u8 = 16;
    let bits = [(mode.ieee, IEEE_VERSION), (mode.cee, CEE_VERSION), (mode.fixed, FIXED)];
    match mode.host {
        true => bits.into_iter().filter(|(on, _)| *on).fold(HOST, |all, (_, bit)| all | bit),
        false => 0,
    }
}

/// `struct ieee_ets`: see the reading side. Number of classes, credit shaper, receive shares and recommendations to the
/// switch stay.
fn ets_bytes(now: &[u8], ets: &Ets) -> Vec<u8> {
    let code = |name: &String| match name.as_str() {
        "ets" => 2,
        "credit_shaper" => 1,
        "vendor" => 255,
        _ => 0,
    };
    let selection: Vec<u8> = ets.selection.iter().map(code).collect();
    let (share, class) = (&ets.share_percent, &ets.priority_class);
    let mut bytes = now.to_vec();
    bytes.resize(ETS_BYTES, 0);
    let own = [ets.willing.unwrap_or(false).into()];
    for (at, new) in [(0, &own[..]), (3, share), (19, &selection), (27, class)] {
        bytes.iter_mut().skip(at).zip(new.iter().take(8)).for_each(|(byte, new)| *byte = *new);
    }
    bytes
}

/// `struct ieee_pfc`: how many, which, then what stays: macsec bypass, delay. Counters are not set.
fn pfc_bytes(now: &[u8], priorities: &[u8]) -> Vec<u8> {
    const COUNTERS: usize = 8;
    let mut bytes: Vec<u8> = now.iter().copied().take(COUNTERS).collect();
    bytes.resize(PFC_BYTES, 0);
    let bits = priorities.iter().filter(|one| **one < 8).fold(0, |all, one| all | 1 << one);
    if let Some(enabled) = bytes.get_mut(1) {
        *enabled = bits;
    }
    bytes
}

/// `struct dcb_app`: selector, priority, protocol. A plan has no entries of other selectors.
fn application_table(entry: Application) -> Writer {
    let selector = match entry.selector {
        Selector::EtherType => 1,
        Selector::Stream => 2,
        Selector::Datagram => 3,
        Selector::AnyPort => 4,
        Selector::Dscp => 5,
        Selector::Other => return Writer::new(),
    };
    let [low, high] = entry.protocol.to_ne_bytes();
    let list = Writer::new().bytes(APPLICATION, &[selector, entry.priority, low, high]);
    Writer::new().nest(APPLICATIONS, list)
}

const _: () = assert!(ETS_BYTES == 3 + 7 * 8);

#[cfg(test)]
mod tests {
    mod read {
        use super::super::*;

        /// No machine of the tests has such an adapter: bytes by `struct ieee_ets`, `ieee_pfc`, `dcb_app` of
        /// linux/dcbnl.h.
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
                [vec![0, IEEE_GET, 0, 0], Writer::new().text(NAME, "ens1f0").nest(IEEE, ieee).finish()]
                    .concat();
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

    mod write {
        use super::super::*;

        /// No machine of the tests has such an adapter: bytes by the structures of linux/dcbnl.h.
        #[test]
        fn shares_are_a_struct_ieee_ets() {
            let ets = Ets {
                willing: Some(false),
                classes_max: Some(8),
                priority_class: vec![0, 0, 0, 1, 2, 0, 0, 0],
                share_percent: vec![20, 50, 30, 0, 0, 0, 0, 0],
                selection: ["ets", "ets", "ets", "strict", "strict", "strict", "strict", "vendor"]
                    .map(String::from)
                    .to_vec(),
            };
            let now: Vec<u8> = [1, 6, 1].into_iter().chain(3..59).collect();
            let bytes = ets_bytes(&now, &ets);
            let share = [20, 50, 30, 0, 0, 0, 0, 0];
            let selection = [2, 2, 2, 0, 0, 0, 0, 255];
            let class = [0, 0, 0, 1, 2, 0, 0, 0];
            // Not willing; the adapter's number of classes, its credit shaper, receive shares and recommendations stay.
            let expected = [&[0, 6, 1][..], &share, &now[11..19], &selection, &class, &now[35..]].concat();
            assert_eq!(bytes, expected);
            // So that what was there is there again, to the byte.
            let before = Ets {
                willing: Some(true),
                classes_max: Some(6),
                priority_class: now[27..35].to_vec(),
                share_percent: now[3..11].to_vec(),
                selection: vec!["strict".into(); 8],
            };
            let now = [&now[..19], &[0; 8], &now[27..]].concat();
            assert_eq!(ets_bytes(&ets_bytes(&now, &ets), &before), now);
            assert_eq!(bytes.len(), ETS_BYTES);
            assert_eq!(ets_bytes(&[], &Ets::default()).len(), ETS_BYTES);
        }

        #[test]
        fn lossless_priorities_are_a_struct_ieee_pfc() {
            let mut now = vec![8, 0b10_0000, 1, 0, 7, 0, 0, 0];
            now.extend([255; 128]);
            let mut expected = vec![8, 0b1_1000, 1, 0, 7, 0, 0, 0];
            expected.resize(PFC_BYTES, 0);
            assert_eq!(pfc_bytes(&now, &[3, 4]), expected);
            assert_eq!(pfc_bytes(&[], &[200, 3]).len(), PFC_BYTES);
        }

        #[test]
        fn a_whole_request_to_the_byte() {
            let dscp = Application { selector: Selector::Dscp, protocol: 26, priority: 3 };
            let nested = Writer::new().nest(IEEE, application_table(dscp));
            let bytes = request("eth0", IEEE_SET, nested);
            let [low, high] = 26u16.to_ne_bytes();
            let ne = |number: u16| number.to_ne_bytes();
            let expected = [
                &[0, 20, 0, 0][..], // struct dcbmsg: AF_UNSPEC, DCB_CMD_IEEE_SET
                &ne(9),
                &ne(1),
                b"eth0\0\0\0\0", // DCB_ATTR_IFNAME, padded
                &ne(16),
                &ne(13 | 0x8000), // DCB_ATTR_IEEE, nested
                &ne(12),
                &ne(3 | 0x8000), // DCB_ATTR_IEEE_APP_TABLE, nested
                &ne(8),
                &ne(1),
                &[5, 3, low, high], // DCB_ATTR_IEEE_APP: struct dcb_app
            ]
            .concat();
            assert_eq!(bytes, expected);
        }

        #[test]
        fn a_status_that_is_not_zero_is_a_refusal() {
            let answer =
                |kind, status| [vec![0, IEEE_SET, 0, 0], Writer::new().u8(kind, status).finish()].concat();
            assert_eq!(status_in(&answer(IEEE, 0), IEEE), Some(0));
            assert_eq!(status_in(&answer(DCBX, 0), IEEE), None);
            assert_eq!(status_in(&[0, IEEE_SET], IEEE), None);
            done(0).unwrap();
            const INVALID: i32 = 22;
            let refused = done(status_in(&answer(IEEE, INVALID.wrapping_neg() as u8), IEEE).unwrap());
            assert!(
                matches!(&refused, Err(DcbError::Driver(error)) if error.raw_os_error() == Some(INVALID)),
                "{refused:?}"
            );
        }

        #[test]
        fn dcbx_modes() {
            let host = Dcbx { host: true, ieee: true, ..Dcbx::default() };
            assert_eq!(dcbx_bits(host), 0x09);
            assert_eq!(dcbx_bits(Dcbx { ieee: true, cee: true, ..Dcbx::default() }), 0);
        }

        /// The loopback has no DCB on any kernel: it is refused by the kernel's own code, whether it has DCB or not.
        #[test]
        fn a_port_without_dcb_is_no_other_refusal() {
            let mut setter = Setter::open("lo").unwrap();
            let dscp = Application { selector: Selector::Dscp, protocol: 26, priority: 3 };
            for error in [setter.lossless(&[3]).unwrap_err(), setter.add(dscp).unwrap_err()] {
                assert!(error.is_absent(), "{error}");
            }
            assert_eq!(setter.now(), None, "what cannot be read is not taken for empty");
            let error = Setter::open("no-such-port").unwrap().add(dscp).unwrap_err();
            assert!(matches!(error, DcbError::Kernel(_)), "{error}");
        }
    }
}
