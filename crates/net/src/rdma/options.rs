//! Options of RDMA connections.

use std::time::Duration;

use super::abi::{RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_ID_TOS};
use super::cm::Identifier;
use super::error::RdmaError;
use crate::round_trip::RoundTrip;

/// WRITEs and PROBEs that may be in flight on a channel without acknowledgement.
pub(super) const FRAMES_MAX: usize = 32;
/// CLAIMs that may be in flight on a channel without an answer.
pub(super) const CLAIMS_MAX: usize = 16;
/// Bytes of payload that may be in flight on a channel: twice what 200 Gb/s carry in the 150 µs that an acknowledgement
/// takes to come back.
pub(super) const BYTES_MAX: u64 = 8 << 20;
/// Windows that are claimed ahead of the one in use.
pub(super) const CLAIM_AHEAD: u64 = 2;
/// Bytes of a message: a WRITE with the most runs, rounded up to whole cache lines.
pub(super) const MESSAGE_BYTES: usize = 8256;
/// Messages that are ready to be received, and slots to send from, on either side.
pub(super) const MESSAGES: usize = FRAMES_MAX + CLAIMS_MAX + 16;
/// Operations in the send queue: a WRITE with the most runs, each of them over the border of a window, and claims.
pub(super) const SEND_QUEUE: usize = 1024 + MESSAGES;

/// Bytes of a message that travel in the request itself, which saves the adapter a read of this host's memory; where
/// the adapter can do that. A cache line: acknowledgements, grants and short messages of a ping-pong.
pub(super) const INLINE_BYTES: u32 = 64;

#[derive(Clone, Debug)]
pub struct RdmaOptions {
    /// Limit for each step of connecting. Longer delays the fall-back to TCP, shorter loses slow peers. A far link
    /// has longer.
    pub connect_wait: Duration,
    /// The adapter sends again what was not acknowledged within 4.096 µs times two to this power, seven times, before
    /// it gives the connection up. 14 is 67 ms, half a second in all. A far link has longer.
    pub ack_timeout: u8,
    /// Round trip of the link, measured over TCP.
    pub round_trip: RoundTrip,
    /// Type of service (DSCP and ECN bits): the traffic class of RoCE v2 packets, from which switches choose the
    /// priority that they treat as lossless, and the service level on InfiniBand. `None` for the system's.
    pub type_of_service: Option<u8>,
    /// Sum payloads at the source and compare at the destination. Off, the adapter's own checks have to do, which do
    /// not see damage inside the hosts; docs/rdma.md says what it costs.
    pub checksums: bool,
    /// Let the adapter read guest RAM where it lies. Off, every payload is copied first. That is needed where the guest
    /// may give pages back (balloon): the adapter would go on reading the page that was there when the window was
    /// registered.
    pub zero_copy: bool,
}

impl Default for RdmaOptions {
    fn default() -> RdmaOptions {
        RdmaOptions {
            connect_wait: Duration::from_secs(2),
            ack_timeout: 14,
            round_trip: RoundTrip::default(),
            type_of_service: None,
            checksums: true,
            zero_copy: true,
        }
    }
}

impl RdmaOptions {
    /// Sets what must be set before the route is resolved.
    pub(super) fn apply(&self, identifier: &Identifier) -> Result<(), RdmaError> {
        if let Some(value) = self.type_of_service {
            identifier.set(RDMA_OPTION_ID_TOS, value)?;
        }
        self.apply_time_out(identifier);
        Ok(())
    }

    /// Limit for each step of connecting over this link.
    pub(super) fn step_wait(&self) -> Duration {
        self.round_trip.silence(self.connect_wait)
    }

    /// The adapter's time-out, longer than the round trip. Otherwise it would retransmit what is only late, and
    /// give up.
    fn time_out(&self) -> u8 {
        const UNIT_NS: u128 = 4096;
        const LONGEST: u8 = 31;
        let least_ns = (self.round_trip.get() * 5 / 4).as_nanos();
        (self.ack_timeout..LONGEST).find(|power| UNIT_NS << power >= least_ns).unwrap_or(LONGEST)
    }

    /// Sets what either end sets for its own adapter, before it connects or accepts.
    pub(super) fn apply_time_out(&self, identifier: &Identifier) {
        // Kernels before 5.2 do not know it; the default is some seconds there, and the pump's stall limit is shorter.
        if let Err(error) = identifier.set(RDMA_OPTION_ID_ACK_TIMEOUT, self.time_out()) {
            tracing::debug!(%error, "the adapter's own time-out stays as it is");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_far_adapter_waits_longer_than_the_round_trip_and_a_near_one_as_ever() {
        let power = |ms| {
            let round_trip = RoundTrip::new(Duration::from_millis(ms));
            RdmaOptions { round_trip, ..RdmaOptions::default() }.time_out()
        };
        assert_eq!([0, 1, 50].map(power), [14; 3]);
        // 134 ms, 537 ms and 1.07 s.
        assert_eq!([60, 400, 800].map(power), [15, 17, 18]);
    }
}
