//! Settings go to the kernel: MTU by rtnetlink, DCB by dcbnl, the rest by ethtool netlink.

use std::collections::BTreeMap;

use linerate_net::netlink::NetlinkError;
use netlink_sys::protocols::NETLINK_ROUTE;
use thiserror::Error;

use super::Settings;
use crate::collect::kernel::ask::Asker;
use crate::collect::kernel::attributes::Writer;
use crate::collect::kernel::generic::Family;
use crate::collect::root::Root;
use crate::qos::apply::{self as qos, QosError};

/// Settings that did not go in. Those before it did.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The kernel or the driver refused.
    #[error("{what} of {port} could not be set: {source}")]
    Setting {
        /// Which.
        what: &'static str,
        /// The port.
        port: String,
        /// What the kernel said.
        #[source]
        source: NetlinkError,
    },
    /// The kernel has no ethtool netlink.
    #[error("{what} of {port} could not be set: this kernel has no ethtool netlink (Linux 5.6)")]
    NoEthtool {
        /// Which.
        what: &'static str,
        /// The port.
        port: String,
    },
    /// Priorities, shares or lossless traffic.
    #[error(transparent)]
    Qos(#[from] QosError),
}

/// Sets what is `Some`, one after the other.
pub fn apply(port: &str, index: u32, settings: &Settings) -> Result<(), ApplyError> {
    let failed = |what| move |source| ApplyError::Setting { what, port: port.to_owned(), source };
    for (what, command, attributes) in ethtool(port, settings) {
        let family = Family::find("ethtool").map_err(failed(what))?;
        let mut family = family.ok_or_else(|| ApplyError::NoEthtool { what, port: port.to_owned() })?;
        family.ask(command, 0, attributes).map_err(failed(what))?;
    }
    if let Some(mtu) = settings.mtu {
        set_mtu(index, mtu).map_err(failed("the MTU"))?;
    }
    if let Some(dcb) = &settings.dcb {
        qos::apply(port, dcb, &Root::default())?;
    }
    Ok(())
}

fn set_mtu(index: u32, mtu: u32) -> Result<(), NetlinkError> {
    const NEW_LINK: u16 = 16;
    const MTU: u16 = 4;
    // struct ifinfomsg: family, type, index, flags, mask.
    let mut message = vec![0; 4];
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(Writer::new().u32(MTU, mtu).finish());
    Asker::open(NETLINK_ROUTE)?.ask(NEW_LINK, 0, &message).map(drop)
}

/// The requests: what they set, command, attributes.
fn ethtool(port: &str, settings: &Settings) -> Vec<(&'static str, u8, Writer)> {
    let header = || Writer::new().nest(1, Writer::new().text(2, port));
    let mut requests = Vec::new();
    if let Some(auto) = settings.autonegotiation {
        let mut speed = header().u8(2, auto.into());
        if !settings.modes.is_empty() {
            speed = speed.nest(3, bits(&settings.modes));
        }
        if let Some(mbps) = settings.speed_mbps {
            const FULL_DUPLEX: u8 = 1;
            speed = speed.u32(5, mbps).u8(6, FULL_DUPLEX);
        }
        requests.push(("the speed", 5, speed));
    }
    if settings.fec.is_some() || settings.fec_auto.is_some() {
        let mut fec = header();
        if let Some(names) = &settings.fec {
            let all = ["None", "RS", "BASER", "LLRS"];
            let chosen = all.map(|name| (name.to_owned(), names.iter().any(|one| one == name)));
            fec = fec.nest(2, bits(&BTreeMap::from(chosen)));
        }
        requests.push(("the FEC", 30, fec.u8(3, settings.fec_auto.unwrap_or(false).into())));
    }
    if let Some(pause) = settings.pause {
        let flags = [(2, pause.autonegotiation), (3, pause.rx), (4, pause.tx)];
        requests.push((
            "pause",
            22,
            flags.into_iter().fold(header(), |request, (kind, flag)| match flag {
                Some(on) => request.u8(kind, on.into()),
                None => request,
            }),
        ));
    }
    let counts = [(6, settings.queues_rx), (7, settings.queues_tx), (9, settings.queues_combined)];
    if counts.iter().any(|(_, count)| count.is_some()) {
        requests.push((
            "the number of queues",
            18,
            counts.into_iter().fold(header(), |request, (kind, count)| match count {
                Some(count) => request.u32(kind, count),
                None => request,
            }),
        ));
    }
    requests
}

/// Bits by name; those that are not listed stay.
fn bits(all: &BTreeMap<String, bool>) -> Writer {
    const BITS: u16 = 3;
    const BIT: u16 = 1;
    let list = all.iter().fold(Writer::new(), |list, (name, set)| {
        let bit = Writer::new().text(2, name);
        list.nest(BIT, if *set { bit.bytes(3, &[]) } else { bit })
    });
    Writer::new().nest(BITS, list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::kernel::attributes::Attributes;
    use crate::collect::kernel::bitset;

    #[test]
    fn a_forced_speed_is_one_request() {
        let settings =
            Settings { autonegotiation: Some(false), speed_mbps: Some(10_000), ..Settings::default() };
        let mut requests = ethtool("ens1f0", &settings);
        assert_eq!(requests.len(), 1);
        let (_, command, request) = requests.remove(0);
        let bytes = request.finish();
        let request = Attributes::new(&bytes);
        assert_eq!(command, 5);
        assert_eq!(request.nested(1).unwrap().text(2).as_deref(), Some("ens1f0"));
        assert_eq!((request.u8(2), request.u32(5), request.u8(6)), (Some(0), Some(10_000), Some(1)));
    }

    #[test]
    fn modes_that_are_not_offered_are_listed_without_value() {
        let modes =
            BTreeMap::from([("1000baseT/Full".to_owned(), true), ("100baseT/Full".to_owned(), false)]);
        let bytes = bits(&modes).finish();
        let mut named = bitset::named(Attributes::new(&bytes));
        named.sort();
        assert_eq!(named, [("1000baseT/Full".to_owned(), true), ("100baseT/Full".to_owned(), false)]);
    }

    #[test]
    fn nothing_to_set_is_no_request() {
        assert!(ethtool("x", &Settings::default()).is_empty());
        apply("no-such-port", 0, &Settings::default()).unwrap();
    }
}
