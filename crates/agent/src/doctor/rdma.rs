//! RDMA throughput of a link, by the measurement of `linerate bench`: one direction, some queue pairs, a third of a second.

use std::net::IpAddr;
use std::sync::Arc;

use linerate_api::{BenchCpu, BenchRequest, BenchTest, BenchTransport};
use linerate_fabric::model::Probe;
use linerate_fabric::probe::{Depth, Target};

use crate::agent::Agent;
use crate::bench::{self, Stop};
use crate::faults::chain;

/// How long bytes flow. Queue pairs have no slow start.
const LASTS_MS: u32 = 300;

/// Measures it if both ends have RDMA, into the probe. A host that migrates is left alone.
pub fn probe(agent: &Agent, target: &Target, depth: Depth, probe: &mut Probe) {
    if depth != Depth::Full || !target.rdma || agent.is_migrating() {
        return;
    }
    match measure(agent, target) {
        Ok(rate) => probe.rdma_mbps = Some(rate),
        Err(why) => probe.rdma_failure = Some(why),
    }
}

fn measure(agent: &Agent, target: &Target) -> Result<u64, String> {
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
    let report =
        bench::send(&agent.bench, &request, &Arc::new(Stop::default())).map_err(|error| chain(&error))?;
    let rate = report.bandwidth.first().map(|one| one.sum.out_gbit_per_s);
    // From a rate that is no number comes 0.
    Ok((rate.unwrap_or_default() * 1000.0) as u64)
}

/// The network of one address.
fn alone(ip: IpAddr) -> String {
    format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 })
}
