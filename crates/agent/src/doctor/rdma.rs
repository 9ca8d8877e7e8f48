//! RDMA throughput of a link, by the measurement of `linerate bench`: one direction, some queue pairs, a third of a
//! second.

use std::net::IpAddr;
use std::sync::Arc;

use linerate_api::{BenchCpu, BenchRequest, BenchTest, BenchTransport};
use linerate_fabric::model::Probe;
use linerate_fabric::probe::{Depth, Target};
use linerate_net::bench::TestError;
use linerate_net::rdma::connect::ConnectError;
use linerate_net::rdma::error::RdmaError;
use rustix::io::Errno;

use super::Doctor;
use crate::bench::{self, BenchError, Stop};
use crate::faults::chain;

/// How long bytes flow. Queue pairs have no slow start.
const LASTS_MS: u32 = 300;

/// The adapters of a measurement wait 67 ms for an acknowledgement.
const ROUND_TRIP_MAX_NS: u64 = 50_000_000;

/// Measures it if both ends have RDMA, into the probe. A host that migrates is left alone, and so is a far link.
pub fn probe(doctor: &Doctor, target: &Target, depth: Depth, probe: &mut Probe) {
    if depth != Depth::Full || !target.rdma {
        return;
    }
    let is_far = probe.latency.is_some_and(|latency| latency.median_ns > ROUND_TRIP_MAX_NS);
    match (doctor.is_migrating(), is_far) {
        (true, _) => probe.rdma_not_measured = Some("a guest is being migrated".into()),
        (false, true) => probe.rdma_not_measured = Some("the link is too far for this measurement".into()),
        (false, false) => note(measure(doctor, target), probe),
    }
}

fn note(measured: Result<u64, BenchError>, probe: &mut Probe) {
    match measured {
        Ok(rate) => probe.rdma_mbps = Some(rate),
        Err(error) if is_blocked(&error) => probe.rdma_failure = Some(chain(&error)),
        Err(error) => probe.rdma_not_measured = Some(chain(&error)),
    }
}

/// RDMA packets are lost. Other reasons why a measurement cannot be made show nothing about the path: a guest that
/// moves, another measurement, too little memory that may be locked, a refusal of the other agent.
fn is_blocked(error: &BenchError) -> bool {
    match error {
        BenchError::ConnectRdma(ConnectError::Here { source, .. }) => is_lost(source),
        BenchError::ConnectRdma(error) => match error {
            ConnectError::Address { .. }
            | ConnectError::Unreachable { .. }
            | ConnectError::Rejected { .. }
            | ConnectError::NoWelcome { .. } => true,
            // Its agent's refusal arrived by RDMA.
            ConnectError::Here { .. } | ConnectError::Refused { .. } => false,
        },
        BenchError::TestConnection { source, .. } => match source {
            TestError::Rdma(error) => is_lost(error),
            TestError::Silent { .. } | TestError::TimedOut { .. } => true,
            _ => false,
        },
        _ => false,
    }
}

/// The adapters got no answer from each other, or a wrong one.
fn is_lost(error: &RdmaError) -> bool {
    match error {
        // The limit of locked memory, by another call.
        RdmaError::Call { source, .. } => *source != Errno::NOMEM,
        RdmaError::RemoteAccess
        | RdmaError::Silent { .. }
        | RdmaError::Completion { .. }
        | RdmaError::DeviceGone
        | RdmaError::TimedOut { .. } => true,
        RdmaError::Library(_)
        | RdmaError::NoDevice(_)
        | RdmaError::Register { .. }
        | RdmaError::NotMapped { .. }
        | RdmaError::Refused(_)
        | RdmaError::PeerClosed
        | RdmaError::ClosedHere
        | RdmaError::Revoked
        | RdmaError::Rules(_) => false,
    }
}

fn measure(doctor: &Doctor, target: &Target) -> Result<u64, BenchError> {
    let request = BenchRequest {
        to: target.agent.to_string(),
        links: [target.from.ip, target.to.ip].map(alone).to_vec(),
        transport: BenchTransport::Rdma,
        channels: 0,
        cpu: BenchCpu::Any,
        speed_mbps: None,
        force: false,
        test: BenchTest::Bandwidth { time_ms: LASTS_MS },
    };
    let report = bench::send(&doctor.bench, &request, &Arc::new(Stop::default()))?;
    let rate = report.bandwidth.first().map(|one| one.sum.out_mbps);
    // A rate that is no number becomes 0.
    Ok(rate.unwrap_or_default() as u64)
}

/// The network of one address.
fn alone(ip: IpAddr) -> String {
    format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use linerate_core::{Code, Fault, Side, Step};
    use linerate_fabric::model::End;

    use super::*;

    fn remote() -> SocketAddr {
        ([10, 0, 0, 2], 4791).into()
    }

    fn test_connection(source: TestError) -> BenchError {
        BenchError::TestConnection { link: "l0".into(), source }
    }

    fn here(source: RdmaError) -> BenchError {
        BenchError::ConnectRdma(ConnectError::Here { remote: remote(), source })
    }

    fn no() -> Fault {
        Fault::new(Code::NotAuthorised, Step::Connect, Side::Destination, "no".to_owned())
    }

    #[test]
    fn what_the_path_causes_is_blocked() {
        let (remote, source) = (remote(), Errno::TIMEDOUT);
        let waited = Duration::from_secs(1);
        let lost = || RdmaError::Silent { retries: "retry exceeded".into() };
        let completion = RdmaError::Completion { what: "a write", status: "flushed".into(), vendor: 0 };
        for error in [
            ConnectError::Address { remote, source }.into(),
            ConnectError::Unreachable { remote, source }.into(),
            ConnectError::Rejected { remote, reason: 8 }.into(),
            ConnectError::NoWelcome { remote }.into(),
            here(lost()),
            here(RdmaError::TimedOut { what: "the route", milliseconds: 1 }),
            here(RdmaError::Call { what: "rdma_connect", source }),
            test_connection(TestError::Rdma(lost())),
            test_connection(TestError::Rdma(completion)),
            test_connection(TestError::Rdma(RdmaError::RemoteAccess)),
            test_connection(TestError::Rdma(RdmaError::DeviceGone)),
            test_connection(TestError::Silent { waited }),
            test_connection(TestError::TimedOut { limit: waited }),
        ] {
            assert!(is_blocked(&error), "{error:?}");
        }
    }

    #[test]
    fn what_shows_nothing_about_the_path_is_not() {
        let link = || "l0".to_owned();
        let denied = RdmaError::Register { bytes: 1, source: Errno::NOMEM };
        let io = || std::io::ErrorKind::NotFound.into();
        for error in [
            BenchError::Migration { host: link() },
            BenchError::Busy { host: link() },
            BenchError::Cancelled,
            BenchError::Peer { host: link(), code: "bench_failed".into(), message: String::new() },
            BenchError::Unexpected { asked: "open", got: "close" },
            BenchError::Host { host: link(), source: io() },
            BenchError::NoLink { offered: link() },
            BenchError::NoRdma { link: link() },
            BenchError::Lost { link: link(), sent: 2, received: 1 },
            BenchError::QueuePairs { connections: 100 },
            BenchError::Memory { bytes: 1 },
            BenchError::Rdma(denied.clone()),
            ConnectError::Refused { remote: remote(), fault: no() }.into(),
            here(denied),
            here(RdmaError::Call { what: "ibv_create_cq", source: Errno::NOMEM }),
            here(RdmaError::NoDevice(Errno::NODEV)),
            here(RdmaError::Rules("too long")),
            here(RdmaError::NotMapped { region: 0 }),
            test_connection(TestError::Rdma(RdmaError::PeerClosed)),
            test_connection(TestError::Rdma(RdmaError::ClosedHere)),
            test_connection(TestError::Rdma(RdmaError::Refused(no()))),
            test_connection(TestError::Closed),
            test_connection(TestError::Socket(io())),
            test_connection(TestError::Thread(io())),
            test_connection(TestError::TooLarge { bytes: 1 }),
        ] {
            assert!(!is_blocked(&error), "{error:?}");
        }
    }

    #[test]
    fn why_it_was_not_measured_is_said_and_is_no_failure() {
        let end = |last| End { host: "a".into(), port: "l0".into(), ip: [10, 0, 0, last].into() };
        let noted = |measured: Result<u64, BenchError>| {
            let mut probe = Probe::new(end(1), end(2));
            note(measured, &mut probe);
            (probe.rdma_mbps, probe.rdma_failure.is_some(), probe.rdma_not_measured.is_some())
        };
        assert_eq!(noted(Ok(92_000)), (Some(92_000), false, false));
        let blocked = ConnectError::NoWelcome { remote: remote() };
        assert_eq!(noted(Err(blocked.into())), (None, true, false));
        assert_eq!(noted(Err(BenchError::Busy { host: "b".into() })), (None, false, true));
    }
}
