//! Limits that follow the round trip of a link. docs/links.md has the rule and its reason.

use std::time::Duration;

use crate::tcp::Stream;
use crate::tcp::stats::tcp_info;

/// The longest round trip of a link that is supported: two of them, to find the neighbour and to connect, fit into the
/// 2 s of a first contact.
pub const ROUND_TRIP_MAX: Duration = Duration::from_millis(800);

/// A young connection repeats a lost segment after three round trips, and the answer takes a fourth. The fifth is
/// spare.
const SILENCE: u32 = 5;
/// A connection that begins with ten segments has moved a probe after six round trips. As many are spare, for losses.
const OPENING: u32 = 12;

/// Round trip of a link: the least that was measured. Zero where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTrip(Duration);

impl RoundTrip {
    /// A round trip that was measured. More than [`ROUND_TRIP_MAX`] counts as that.
    pub fn new(measured: Duration) -> RoundTrip {
        RoundTrip(measured.min(ROUND_TRIP_MAX))
    }

    /// The least that the kernel has seen on a connection; zero if it does not say. Queues and busy hosts do not
    /// lengthen it.
    pub fn of(stream: &Stream) -> RoundTrip {
        RoundTrip::new(tcp_info(stream).and_then(|info| info.rtt_min).unwrap_or_default())
    }

    /// How long the link may be silent before it is lost: `near`, or longer where the link is far.
    pub fn silence(self, near: Duration) -> Duration {
        near.max(self.0 * SILENCE)
    }

    /// How long a new connection may take to move a probe: `near`, or longer where the link is far.
    pub fn opening(self, near: Duration) -> Duration {
        near.max(self.0 * OPENING)
    }

    pub fn get(self) -> Duration {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_loss_timeout_grows_only_for_long_round_trips() {
        let limit = |round_trip| RoundTrip::new(ms(round_trip)).silence(ms(400));
        assert_eq!([0, 1, 50, 80].map(limit), [ms(400); 4]);
        assert_eq!([100, 260, 600].map(limit), [ms(500), ms(1300), ms(3000)]);
        assert_eq!(RoundTrip::new(ms(150)).silence(ms(900)), ms(900), "what had longer before keeps it");
    }

    #[test]
    fn no_round_trip_makes_a_limit_longer_than_the_longest_that_is_supported() {
        let longest = RoundTrip::new(ROUND_TRIP_MAX).silence(ms(400));
        assert_eq!(RoundTrip::new(Duration::MAX).silence(ms(400)), longest);
    }

    #[test]
    fn both_ends_of_a_connection_know_its_round_trip() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let began = std::time::Instant::now();
        let one = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let other = listener.accept().unwrap().0;
        let took = began.elapsed();
        for end in [one, other] {
            let end = Stream::new(end).unwrap();
            let measured = tcp_info(&end).unwrap().rtt_min.expect("they know it from the handshake on");
            assert!(measured <= took, "a handshake of {took:?} had a round trip of {measured:?}");
            assert_eq!(RoundTrip::of(&end), RoundTrip::new(measured));
        }
    }
}
