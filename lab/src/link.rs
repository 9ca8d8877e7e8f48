//! Links between hosts: rates, shaping and faults on one device.

use serde::{Deserialize, Serialize};

use crate::{LabError, tool};

/// One link: what each direction carries. A rate is what goes over the wire, headers included, in 10^6 bits per second.
/// Without one the link runs as fast as the machine copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSpec {
    /// From the first host towards the others, and the other way when `reverse_rate_mbps` is not set.
    pub rate_mbps: Option<u64>,
    /// Towards the first host.
    pub reverse_rate_mbps: Option<u64>,
    /// Largest packet in bytes, without the Ethernet header.
    pub mtu: u32,
}

/// Jumbo frames, as migration networks have them.
pub const DEFAULT_MTU: u32 = 9000;

impl LinkSpec {
    /// The same rate in both directions.
    pub fn shaped(rate_mbps: u64) -> Self {
        LinkSpec { rate_mbps: Some(rate_mbps), reverse_rate_mbps: None, mtu: DEFAULT_MTU }
    }

    /// As fast as the machine goes.
    pub fn unshaped() -> Self {
        LinkSpec { rate_mbps: None, reverse_rate_mbps: None, mtu: DEFAULT_MTU }
    }

    pub fn mtu(self, mtu: u32) -> Self {
        LinkSpec { mtu, ..self }
    }

    /// Rate of what a host sends.
    pub fn rate_from(&self, host: usize) -> Option<u64> {
        if host == 0 { self.rate_mbps } else { self.reverse_rate_mbps.or(self.rate_mbps) }
    }

    /// Reads a list: `2x2500` (two of the kind), `2500,1000` (one each), `2500/1000` (there/back), `3` or `3x0` (three
    /// unshaped).
    pub fn parse_list(text: &str, mtu: u32) -> Result<Vec<LinkSpec>, LabError> {
        let refuse = || LabError::LinkSpec { text: text.to_owned() };
        if let Ok(count) = text.parse::<usize>()
            && count <= 16
        {
            return Ok(vec![LinkSpec::unshaped().mtu(mtu); count]);
        }
        let mut links = Vec::new();
        for part in text.split(',') {
            let (count, rates) = part.split_once('x').unwrap_or(("1", part));
            let count: usize = count.parse().map_err(|_| refuse())?;
            let link = parse_rates(rates, mtu).ok_or_else(refuse)?;
            if count == 0 || links.len() + count > 100 {
                return Err(refuse());
            }
            links.extend(std::iter::repeat_n(link, count));
        }
        Ok(links)
    }
}

fn parse_rates(text: &str, mtu: u32) -> Option<LinkSpec> {
    let (there, back) = match text.split_once('/') {
        Some((there, back)) => (there, Some(back.parse::<u64>().ok()?)),
        None => (text, None),
    };
    let rate: u64 = there.parse().ok()?;
    Some(LinkSpec { rate_mbps: (rate > 0).then_some(rate), reverse_rate_mbps: back, mtu })
}

// Tokens for 5 ms. With less, a busy 2-core machine that runs late by some ms cannot use the whole rate: 1 ms gave 93 %
// and 4 ms 98 %, measured with iperf3 at 2500 Mb/s. With much more, short probes would see a faster link than there is.
const BURST_MS: u64 = 5;
// At low rates the bucket must still hold a full segmentation-offload packet, or each is cut up before it is sent.
const SMALLEST_BURST_BYTES: u64 = 96 * 1024;

/// Shapes what leaves through the device. `None` takes the shaper away.
pub(crate) fn shape(namespace: &str, device: &str, rate_mbps: Option<u64>) -> Result<(), LabError> {
    let Some(rate) = rate_mbps else {
        // Fails when there is none to take away.
        let _ = tool::run("tc", &["-n", namespace, "qdisc", "del", "dev", device, "root"]);
        return Ok(());
    };
    let burst = (rate * 1000 / 8 * BURST_MS).max(SMALLEST_BURST_BYTES);
    let (rate, burst) = (format!("{rate}mbit"), burst.to_string());
    let arguments = [
        "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", &rate, "burst", &burst,
        "latency", "20ms",
    ];
    tool::run("tc", &arguments).map(drop)
}

/// Drops everything that comes in through the device, without any error to either side.
pub(crate) fn drop_ingress(namespace: &str, device: &str) -> Result<(), LabError> {
    let rule = format!(
        "add table netdev lab_{device}; add chain netdev lab_{device} ingress \
         {{ type filter hook ingress device {device} priority 0; policy drop; }}"
    );
    tool::run("ip", &["netns", "exec", namespace, "nft", &rule]).map(drop)
}

/// Drops so many of a hundred packets that come in through the device, each by chance.
pub(crate) fn lose_ingress(namespace: &str, device: &str, percent: u32) -> Result<(), LabError> {
    let rule = format!(
        "add table netdev lab_{device}; add chain netdev lab_{device} ingress \
         {{ type filter hook ingress device {device} priority 0; policy accept; }}; \
         add rule netdev lab_{device} ingress numgen random mod 1000 < {} drop",
        percent * 10
    );
    tool::run("ip", &["netns", "exec", namespace, "nft", &rule]).map(drop)
}

/// Takes [`drop_ingress`] back; fine when nothing was dropped.
pub(crate) fn pass_ingress(namespace: &str, device: &str) -> Result<(), LabError> {
    // `add` first, because deleting what does not exist is an error.
    let rule = format!("add table netdev lab_{device}; delete table netdev lab_{device}");
    tool::run("ip", &["netns", "exec", namespace, "nft", &rule]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(text: &str) -> Vec<(Option<u64>, Option<u64>)> {
        let links = LinkSpec::parse_list(text, 9000).unwrap();
        links.iter().map(|link| (link.rate_from(0), link.rate_from(1))).collect()
    }

    #[test]
    fn link_lists() {
        assert_eq!(rates("2x2500"), [(Some(2500), Some(2500)); 2]);
        assert_eq!(rates("2500,1000"), [(Some(2500), Some(2500)), (Some(1000), Some(1000))]);
        assert_eq!(rates("2500/1000"), [(Some(2500), Some(1000))]);
        assert_eq!(rates("3"), [(None, None); 3]);
        assert_eq!(rates("2x0"), [(None, None); 2]);
    }

    #[test]
    fn bad_link_lists_are_refused() {
        for text in ["", "x", "2x", "0x100", "fast", "100,", "1000x1", "-1"] {
            assert!(LinkSpec::parse_list(text, 9000).is_err(), "{text:?}");
        }
    }
}
