//! Netlink sockets that are asked: requests, answers, attributes, bit sets, families of generic netlink.

use std::io;
use std::time::Duration;

use linerate_net::netlink::{NetlinkError, open, receive};
use netlink_packet_core::{NLA_F_NESTED, NLM_F_ACK, NLM_F_REQUEST, NlasIterator};
use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

const MESSAGE_BYTES: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// The kernel answers from its own tables and the adapters' registers; firmware that is asked takes some hundred ms.
const ANSWER_WAIT: Duration = Duration::from_secs(3);
/// A host with a thousand ports stays far below.
const ANSWERS_MAX: usize = 100_000;

/// A netlink socket of one protocol.
pub struct Asker {
    socket: Socket,
    sequence: u32,
}

/// What the kernel answered: the message's type and what follows its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Type of the message.
    pub kind: u16,
    /// What follows the netlink header.
    pub payload: Vec<u8>,
}

impl Asker {
    /// Opens a socket in the network namespace of this thread.
    pub fn open(protocol: isize) -> Result<Asker, NetlinkError> {
        Ok(Asker { socket: open(protocol, 0)?, sequence: 0 })
    }

    /// Asks, and waits for the last answer. `flags` beside REQUEST and ACK, such as DUMP.
    pub fn ask(&mut self, kind: u16, flags: u16, payload: &[u8]) -> Result<Vec<Answer>, NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = message(kind, flags | NLM_F_REQUEST | NLM_F_ACK, self.sequence, payload);
        self.socket.send_to(&request, &SocketAddr::new(0, 0), 0).map_err(NetlinkError::Request)?;
        let mut answers = Vec::new();
        loop {
            let datagram = receive(&self.socket, ANSWER_WAIT)?.ok_or(NetlinkError::NoAnswer)?;
            if collect(&datagram, self.sequence, &mut answers)? {
                return Ok(answers);
            }
            if answers.len() > ANSWERS_MAX {
                return Err(NetlinkError::NoAnswer);
            }
        }
    }
}

/// A request as bytes.
fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(MESSAGE_BYTES + payload.len());
    bytes.extend(((MESSAGE_BYTES + payload.len()) as u32).to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(payload);
    bytes
}

/// Takes the answers out of a datagram. True when the last one has come.
fn collect(datagram: &[u8], sequence: u32, answers: &mut Vec<Answer>) -> Result<bool, NetlinkError> {
    let mut rest = datagram;
    while let Some((header, _)) = rest.split_at_checked(MESSAGE_BYTES) {
        let length = u32_at(header, 0) as usize;
        let payload = rest.get(MESSAGE_BYTES..length).unwrap_or_default();
        let kind = u16_at(header, 4);
        if u32_at(header, 8) == sequence {
            match kind {
                ERROR => return refusal(payload).map_or(Ok(true), |error| Err(NetlinkError::Refused(error))),
                // DONE carries an error number too, where a dump broke off.
                DONE => return refusal(payload).map_or(Ok(true), |error| Err(NetlinkError::Refused(error))),
                _ => answers.push(Answer { kind, payload: payload.to_vec() }),
            }
        }
        // Padded to four bytes; a length of nothing would never end.
        rest = rest.get(length.max(MESSAGE_BYTES).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn refusal(payload: &[u8]) -> Option<io::Error> {
    let number = i32::from_ne_bytes(*payload.first_chunk()?);
    (number < 0).then(|| io::Error::from_raw_os_error(-number))
}

/// The kernel does not know of such a thing, or this port has none: not known, and not worth a note.
pub fn is_absent(error: &NetlinkError) -> bool {
    const ABSENT: [i32; 4] = [2, 19, 22, 95]; // ENOENT, ENODEV, EINVAL, EOPNOTSUPP
    let NetlinkError::Refused(error) = error else { return matches!(error, NetlinkError::Open(_)) };
    error.raw_os_error().is_some_and(|number| ABSENT.contains(&number))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_ne_bytes(*four))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |two| u16::from_ne_bytes(*two))
}

/// Attributes of a message, or nested ones.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The bytes hold attributes; from the first broken one on they are passed over.
    pub fn new(bytes: &'a [u8]) -> Attributes<'a> {
        Attributes(bytes)
    }

    /// Each with its type.
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        NlasIterator::new(self.0).map_while(Result::ok).map(|one| {
            let whole: &'a [u8] = one.into_inner();
            (one.kind(), whole.get(4..usize::from(one.length())).unwrap_or_default())
        })
    }

    /// The first of a type.
    pub fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(one, _)| *one == kind).map(|(_, value)| value)
    }

    /// The attributes inside the first one of `kind`; `None` if there is none.
    pub fn nested(self, kind: u16) -> Option<Attributes<'a>> {
        self.get(kind).map(Attributes)
    }

    /// A number of one byte.
    pub fn u8(self, kind: u16) -> Option<u8> {
        self.get(kind)?.first().copied()
    }

    /// A number of four bytes.
    pub fn u32(self, kind: u16) -> Option<u32> {
        self.get(kind)?.first_chunk().map(|four| u32::from_ne_bytes(*four))
    }

    /// A number of four bytes in network order.
    pub fn u32_network(self, kind: u16) -> Option<u32> {
        self.get(kind)?.first_chunk().map(|four| u32::from_be_bytes(*four))
    }

    /// A text, which the kernel ends with a zero.
    pub fn text(self, kind: u16) -> Option<String> {
        let bytes = self.get(kind)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
    }
}

/// Attributes of a request.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// A writer without any attribute yet.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// Appends an attribute with these bytes, padded to four.
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Writer {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value.iter().take(usize::from(length) - 4));
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// A number of one byte.
    pub fn u8(self, kind: u16, value: u8) -> Writer {
        self.bytes(kind, &[value])
    }

    /// A number of four bytes.
    pub fn u32(self, kind: u16, value: u32) -> Writer {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Appends a text with the zero byte that the kernel wants at its end.
    pub fn text(self, kind: u16, value: &str) -> Writer {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    /// Appends the attributes of `inner` as one nested attribute.
    pub fn nest(self, kind: u16, inner: Writer) -> Writer {
        self.bytes(kind | NLA_F_NESTED, &inner.0)
    }

    /// All attributes, as they stand in a message.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

const BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;
/// Far more than there are link modes or features.
const BITS_MAX: usize = 4096;

/// Names of the bits that are listed, and whether each is set. In a set without a mask every listed bit is set.
pub fn named_bits(set: Attributes<'_>) -> Vec<(String, bool)> {
    const NO_MASK: u16 = 1;
    let all_set = set.get(NO_MASK).is_some();
    let bits = set.nested(BITS).into_iter().flat_map(Attributes::iter);
    let bits = bits.filter(|(kind, _)| *kind == BIT).take(BITS_MAX).map(|(_, bit)| Attributes::new(bit));
    bits.filter_map(|bit| Some((bit.text(BIT_NAME)?, all_set || bit.get(BIT_VALUE).is_some()))).collect()
}

/// Names of the bits that are set.
pub fn set_bits(bits: Attributes<'_>) -> Vec<String> {
    named_bits(bits).into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
}

const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// Command, version, two reserved bytes.
const GENERIC_BYTES: usize = 4;

/// A family of the kernel.
pub struct Family {
    asker: Asker,
    number: u16,
}

impl Family {
    /// Looks a family up. `None` if the kernel has no such family.
    pub fn find(name: &str) -> Result<Option<Family>, NetlinkError> {
        let mut asker = Asker::open(NETLINK_GENERIC)?;
        let request = Writer::new().text(FAMILY_NAME, name).finish();
        match asker.ask(CONTROLLER, 0, &with_header(GET_FAMILY, request)) {
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
            Ok(answers) => Ok(answers
                .first()
                .and_then(|answer| family_number(&answer.payload))
                .map(|number| Family { asker, number })),
        }
    }

    /// Asks it; gives each answer's attributes.
    pub fn ask(&mut self, command: u8, flags: u16, attributes: Writer) -> Result<Vec<Vec<u8>>, NetlinkError> {
        let answers = self.asker.ask(self.number, flags, &with_header(command, attributes.finish()))?;
        Ok(answers
            .into_iter()
            .filter_map(|answer| Some(answer.payload.get(GENERIC_BYTES..)?.to_vec()))
            .collect())
    }
}

fn with_header(command: u8, attributes: Vec<u8>) -> Vec<u8> {
    [vec![command, 1, 0, 0], attributes].concat()
}

fn family_number(payload: &[u8]) -> Option<u16> {
    let value = Attributes::new(payload.get(GENERIC_BYTES..)?).get(FAMILY_ID)?;
    value.first_chunk().map(|two| u16::from_ne_bytes(*two))
}

#[cfg(test)]
mod tests {
    mod ask {
        use super::super::*;

        fn datagram(parts: &[(u16, u32, &[u8])]) -> Vec<u8> {
            let mut bytes = Vec::new();
            for (kind, sequence, payload) in parts {
                bytes.extend(message(*kind, 0, *sequence, payload));
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        }

        #[test]
        fn answers_are_collected_up_to_done() {
            let mut answers = Vec::new();
            let bytes = datagram(&[(20, 7, b"abcde"), (20, 6, b"old"), (20, 7, b"xyz")]);
            assert!(!collect(&bytes, 7, &mut answers).unwrap());
            let payloads: Vec<&[u8]> = answers.iter().map(|answer| &answer.payload[..]).collect();
            assert_eq!(payloads, [&b"abcde"[..], b"xyz"]);
            assert!(collect(&datagram(&[(DONE, 7, &[0; 4])]), 7, &mut answers).unwrap());
            assert!(collect(&datagram(&[(ERROR, 7, &[0; 20])]), 7, &mut answers).unwrap());
        }

        #[test]
        fn a_refusal_is_an_error() {
            let bytes = datagram(&[(ERROR, 1, &(-95i32).to_ne_bytes())]);
            let error = collect(&bytes, 1, &mut Vec::new()).unwrap_err();
            assert!(is_absent(&error), "{error}");
            let bytes = datagram(&[(DONE, 1, &(-1i32).to_ne_bytes())]);
            assert!(!is_absent(&collect(&bytes, 1, &mut Vec::new()).unwrap_err()));
        }

        #[test]
        fn parsing_of_garbage_ends() {
            for length in 0..40 {
                assert!(!collect(&vec![0; length], 1, &mut Vec::new()).unwrap());
                let _ = collect(&vec![0xff; length], u32::MAX, &mut Vec::new());
            }
        }
    }

    mod attributes {
        use super::super::*;

        #[test]
        fn what_is_written_can_be_read() {
            let inner = Writer::new().u8(1, 9).text(2, "ens1f0");
            let bytes = Writer::new().u32(3, 9000).nest(4, inner).bytes(5, b"\0\0\0\x07").finish();
            let attributes = Attributes::new(&bytes);
            assert_eq!(attributes.u32(3), Some(9000));
            assert_eq!(attributes.u32_network(5), Some(7));
            let nested = attributes.nested(4).unwrap();
            assert_eq!((nested.u8(1), nested.text(2).as_deref()), (Some(9), Some("ens1f0")));
            assert_eq!(nested.u32(1), None);
        }

        #[test]
        fn broken_attributes_are_passed_over() {
            let good = Writer::new().u8(1, 9).finish();
            for broken in [&b"\x03\0\x02\0"[..], b"\xff\xff\x02\0\0", b"\0\0\0\0", b"x"] {
                let bytes = [good.clone(), broken.to_vec()].concat();
                assert_eq!(Attributes::new(&bytes).u8(1), Some(9));
                assert_eq!(Attributes::new(&bytes).get(2), None);
            }
        }
    }

    mod generic {
        use super::super::*;

        #[test]
        fn the_kernel_has_ethtool_and_no_nonsense() {
            assert!(Family::find("ethtool").unwrap().is_some());
            assert!(Family::find("no-such-family").unwrap().is_none());
        }
    }
}
