//! Bytes of probe datagrams. A reply is never longer than its request, so that an echo cannot be used against others.

use std::time::Duration;

/// Smallest request, and size of every reply.
pub const REPLY_BYTES: usize = 64;
const TOKEN_BYTES: usize = 16;
const NAME_BYTES_MAX: usize = 15;

/// What a reply says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Number of the request.
    pub sequence: u32,
    /// Bytes of the request that came.
    pub bytes: u32,
    /// The receiver's clock, since 1970.
    pub clock: Duration,
    /// The port that it came in by; empty if the receiver does not know.
    pub port: String,
    /// Requests of this sender that came so far, this one counted; 0 if the receiver does not count.
    pub arrived: u32,
}

/// Where the count is, behind number, size, clock and name.
const ARRIVED_AT: usize = 32;

/// A request of this many bytes (at least [`REPLY_BYTES`]): token, number, zeros.
pub fn request(token: &[u8; TOKEN_BYTES], sequence: u32, bytes: usize) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(bytes.max(REPLY_BYTES));
    datagram.extend(token);
    datagram.extend(sequence.to_le_bytes());
    datagram.resize(bytes.max(REPLY_BYTES), 0);
    datagram
}

/// The number of a request, if it is one and knows the token.
pub fn read_request(datagram: &[u8], token: &[u8; TOKEN_BYTES]) -> Option<u32> {
    if datagram.len() < REPLY_BYTES {
        return None;
    }
    number(datagram.strip_prefix(token)?)
}

/// The reply: token, number, size of the request, clock in nanoseconds, length of the port's name, name, requests that
/// came.
pub fn reply(token: &[u8; TOKEN_BYTES], reply: &Reply) -> Vec<u8> {
    let name = reply.port.as_bytes().get(..reply.port.len().min(NAME_BYTES_MAX)).unwrap_or_default();
    let clock_ns = u64::try_from(reply.clock.as_nanos()).unwrap_or(u64::MAX);
    let mut datagram = Vec::with_capacity(REPLY_BYTES);
    datagram.extend(token);
    datagram.extend(reply.sequence.to_le_bytes());
    datagram.extend(reply.bytes.to_le_bytes());
    datagram.extend(clock_ns.to_le_bytes());
    datagram.push(name.len() as u8);
    datagram.extend(name);
    datagram.resize(TOKEN_BYTES + ARRIVED_AT, 0);
    datagram.extend(reply.arrived.to_le_bytes());
    datagram.resize(REPLY_BYTES, 0);
    datagram
}

/// Decodes a reply; `None` if it is none, or does not begin with the token.
pub fn read_reply(datagram: &[u8], token: &[u8; TOKEN_BYTES]) -> Option<Reply> {
    let rest = datagram.strip_prefix(token)?;
    let name_length = usize::from(*rest.get(16)?);
    let name = rest.get(17..17 + name_length.min(NAME_BYTES_MAX))?;
    Some(Reply {
        sequence: number(rest)?,
        bytes: number(rest.get(4..)?)?,
        clock: Duration::from_nanos(u64::from_le_bytes(*rest.get(8..)?.first_chunk()?)),
        port: String::from_utf8_lossy(name).chars().filter(|c| !c.is_control()).collect(),
        arrived: rest.get(ARRIVED_AT..).and_then(number).unwrap_or(0),
    })
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|four| u32::from_le_bytes(*four))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: [u8; 16] = [7; 16];

    #[test]
    fn a_probe_and_its_answer_round_trip() {
        assert_eq!(read_request(&request(&TOKEN, 9, 1472), &TOKEN), Some(9));
        let clock = Duration::from_nanos(12_345);
        let expected = Reply { sequence: 9, bytes: 1472, clock, port: "a-name-of-15-by".into(), arrived: 7 };
        assert_eq!(read_reply(&reply(&TOKEN, &expected), &TOKEN), Some(expected));
    }

    #[test]
    fn a_reply_is_never_longer_than_its_request() {
        assert_eq!(request(&TOKEN, 1, 0).len(), REPLY_BYTES);
        let long = Reply { sequence: 1, bytes: 1, clock: Duration::MAX, port: "x".repeat(300), arrived: 1 };
        assert_eq!(reply(&TOKEN, &long).len(), REPLY_BYTES);
        assert_eq!(read_request(&request(&TOKEN, 1, 0)[..REPLY_BYTES - 1], &TOKEN), None);
    }

    #[test]
    fn who_does_not_know_the_token_gets_nothing() {
        assert_eq!(read_request(&request(&[8; 16], 1, 64), &TOKEN), None);
        assert_eq!(read_reply(&[7; 20], &TOKEN), None);
        assert_eq!(read_reply(b"", &TOKEN), None);
    }
}
