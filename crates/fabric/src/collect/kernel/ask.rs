//! One request to the kernel over a netlink protocol, and all of its answers.

use std::io;
use std::time::Duration;

use linerate_net::netlink::{NetlinkError, open, receive};
use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};
use netlink_sys::{Socket, SocketAddr};

const HEADER_BYTES: usize = 16;
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
        self.socket.send_to(&request, &SocketAddr::new(0, 0), 0).map_err(NetlinkError::Ask)?;
        let mut answers = Vec::new();
        loop {
            let datagram = receive(&self.socket, ANSWER_WAIT)?.ok_or(NetlinkError::Silent)?;
            if collect(&datagram, self.sequence, &mut answers)? {
                return Ok(answers);
            }
            if answers.len() > ANSWERS_MAX {
                return Err(NetlinkError::Silent);
            }
        }
    }
}

/// A request as bytes.
fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload.len());
    bytes.extend(((HEADER_BYTES + payload.len()) as u32).to_ne_bytes());
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
    while let Some((header, _)) = rest.split_at_checked(HEADER_BYTES) {
        let length = u32_at(header, 0) as usize;
        let payload = rest.get(HEADER_BYTES..length).unwrap_or_default();
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
        rest = rest.get(length.max(HEADER_BYTES).next_multiple_of(4)..).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(parts: &[(u16, u32, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, sequence, payload) in parts {
            bytes.extend(message(*kind, 0, *sequence, payload));
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn answers_up_to_the_last() {
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
    fn nonsense_ends() {
        for length in 0..40 {
            assert!(!collect(&vec![0; length], 1, &mut Vec::new()).unwrap());
            let _ = collect(&vec![0xff; length], u32::MAX, &mut Vec::new());
        }
    }
}
