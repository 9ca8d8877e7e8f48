//! Settings go to the kernel, and back: MTU by rtnetlink, DCB by dcbnl, the rest by ethtool netlink.

use std::collections::BTreeMap;

use linerate_net::netlink::NetlinkError;
use netlink_sys::protocols::NETLINK_ROUTE;
use thiserror::Error;

use super::Settings;
use crate::collect::kernel::netlink::{Asker, Family, Writer};
use crate::collect::root::Root;
use crate::model::Port;
use crate::qos::apply::{self as qos, QosError};

/// A setting that did not go in.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum ApplyError {
    /// The kernel or the driver refused.
    #[error("{what} of {port} could not be set: {source}")]
    Setting {
        what: &'static str,
        port: String,
        /// What the kernel said.
        #[source]
        source: NetlinkError,
    },
    /// The kernel has no ethtool netlink.
    #[error("{what} of {port} could not be set: this kernel has no ethtool netlink (Linux 5.6)")]
    NoEthtool { what: &'static str, port: String },
    /// Priorities, shares or lossless traffic.
    #[error(transparent)]
    Qos(#[from] QosError),
}

/// Sets what is `Some`, one after the other, and stops where something is refused; what was before it is set then.
pub fn apply(port: &str, index: u32, settings: &Settings) -> Result<(), ApplyError> {
    for request in ethtool(port, settings) {
        ask(port, request)?;
    }
    if let Some(mtu) = settings.mtu {
        set_mtu(port, index, mtu)?;
    }
    if let Some(dcb) = &settings.dcb {
        qos::apply(port, dcb, &Root::default())?;
    }
    Ok(())
}

/// Puts back what is `Some` and not so on the port as it is now: everything that can be, whatever is refused. Gives
/// back what could not be.
pub fn put_back(now: &Port, undo: &Settings) -> Vec<ApplyError> {
    let (port, undo) = (now.name.as_str(), left(now, undo));
    let mut errors = Vec::new();
    // The other way round: drivers (ice, i40e, hns3) refuse pause frames as long as a priority is lossless.
    if let Some(dcb) = &undo.dcb {
        let refused = qos::put_back(port, dcb, &Root::default());
        errors.extend(refused.into_iter().map(ApplyError::from));
    }
    let asked = ethtool(port, &undo).into_iter().map(|request| ask(port, request));
    errors.extend(asked.filter_map(Result::err));
    if let Some(mtu) = undo.mtu {
        errors.extend(set_mtu(port, now.index.unwrap_or(0), mtu).err());
    }
    errors
}

/// What is not as it was. The rest never changed, so that it is no failure if the adapter does not take it now.
fn left(now: &Port, undo: &Settings) -> Settings {
    fn same_goes<T: PartialEq>(undo: &mut Option<T>, now: Option<T>) {
        if *undo == now {
            *undo = None;
        }
    }
    let mut left = undo.clone();
    let queues = now.queues.unwrap_or_default();
    same_goes(&mut left.mtu, now.mtu);
    same_goes(&mut left.pause, now.pause);
    same_goes(&mut left.queues_combined, queues.combined);
    same_goes(&mut left.queues_rx, queues.rx);
    same_goes(&mut left.queues_tx, queues.tx);
    let link = &now.link;
    let same_speed = match undo.autonegotiation {
        Some(true) => undo.modes.iter().all(|(mode, on)| link.advertised.contains(mode) == *on),
        _ => undo.speed_mbps == link.speed_mbps,
    };
    if same_speed {
        same_goes(&mut left.autonegotiation, link.autonegotiation);
    }
    if let Some(fec) = &now.fec {
        let is_on = |name: &String| fec.configured.iter().any(|one| one.eq_ignore_ascii_case(name));
        let as_many = |names: &Vec<String>| names.len() == fec.configured.len();
        if undo.fec.as_ref().is_none_or(|names| names.iter().all(is_on) && as_many(names)) {
            same_goes(&mut left.fec_auto, fec.auto);
            left.fec = left.fec.filter(|_| left.fec_auto.is_some());
        }
    }
    left
}

/// One request to ethtool netlink.
fn ask(port: &str, (what, command, attributes): (&'static str, u8, Writer)) -> Result<(), ApplyError> {
    let failed = |source| ApplyError::Setting { what, port: port.to_owned(), source };
    let family = Family::find("ethtool").map_err(failed)?;
    let mut family = family.ok_or_else(|| ApplyError::NoEthtool { what, port: port.to_owned() })?;
    family.ask(command, 0, attributes).map_err(failed).map(drop)
}

fn set_mtu(port: &str, index: u32, mtu: u32) -> Result<(), ApplyError> {
    const NEW_LINK: u16 = 16;
    const MTU: u16 = 4;
    // struct ifinfomsg: family, type, index, flags, mask.
    let mut message = vec![0; 4];
    message.extend(index.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(Writer::new().u32(MTU, mtu).finish());
    let asked = Asker::open(NETLINK_ROUTE).and_then(|mut asker| asker.ask(NEW_LINK, 0, &message));
    asked.map(drop).map_err(|source| ApplyError::Setting { what: "the MTU", port: port.to_owned(), source })
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
    use crate::collect::kernel::netlink::{Attributes, named_bits};
    use crate::link::plan::plan;
    use crate::link::{RequestedSettings, Speed};
    use crate::model::Pause;
    use crate::qos::DcbSettings;
    use crate::testing::healthy_survey;

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
        let mut named = named_bits(Attributes::new(&bytes));
        named.sort();
        assert_eq!(named, [("1000baseT/Full".to_owned(), true), ("100baseT/Full".to_owned(), false)]);
    }

    #[test]
    fn nothing_to_set_is_no_request() {
        assert!(ethtool("x", &Settings::default()).is_empty());
        apply("no-such-port", 0, &Settings::default()).unwrap();
    }

    /// A kernel that refuses everything, since the port is not there: each step is tried, lossless priorities before
    /// pause frames.
    #[test]
    fn every_step_back_is_tried_dcb_first() {
        let on = Pause { autonegotiation: Some(false), rx: Some(true), tx: Some(true) };
        let undo = Settings {
            mtu: Some(1500),
            pause: Some(on),
            queues_combined: Some(8),
            dcb: Some(DcbSettings { lossless: Some(vec![]), ..DcbSettings::default() }),
            ..Settings::default()
        };
        let gone = Port { name: "no-such-port".into(), ..Port::default() };
        let errors: Vec<String> = put_back(&gone, &undo).iter().map(ToString::to_string).collect();
        let whats = ["the lossless priorities", "pause", "the number of queues", "the MTU"];
        assert_eq!(errors.len(), whats.len(), "{errors:?}");
        for (error, what) in errors.iter().zip(whats) {
            assert!(error.starts_with(&format!("{what} of no-such-port could not be set")), "{errors:?}");
        }
    }

    #[test]
    fn what_never_changed_is_not_put_back() {
        let survey = healthy_survey();
        let before = survey.hosts[0].port("ens1f1").unwrap();
        let requested = RequestedSettings {
            mtu: Some(1500),
            speed: Some(Speed::Forced(10_000)),
            fec: Some("off".into()),
            pause: Some(true),
            queues: Some(4),
        };
        let undo = plan(before, &requested).unwrap().undo;
        assert_eq!(ethtool("x", &undo).len(), 4, "{undo:?}");
        let nothing = left(before, &undo);
        assert!(ethtool("x", &nothing).is_empty() && nothing.mtu.is_none(), "{nothing:?}");
        // One after the other has changed: that one goes back.
        let mut speed = before.clone();
        (speed.link.autonegotiation, speed.link.speed_mbps) = (Some(false), Some(10_000));
        let mut fec = before.clone();
        fec.fec.as_mut().unwrap().auto = Some(false);
        let mut pause = before.clone();
        pause.pause.as_mut().unwrap().rx = Some(true);
        let mut queues = before.clone();
        queues.queues.as_mut().unwrap().combined = Some(4);
        for (changed, what) in
            [(speed, "the speed"), (fec, "the FEC"), (pause, "pause"), (queues, "the number of queues")]
        {
            let left = left(&changed, &undo);
            let whats: Vec<&str> = ethtool("x", &left).into_iter().map(|(what, ..)| what).collect();
            assert_eq!(whats, [what]);
        }
        assert_eq!(left(&Port { mtu: Some(1500), ..before.clone() }, &undo).mtu, before.mtu);
        // What cannot be read is put back.
        let unread = left(&Port::default(), &undo);
        assert_eq!((ethtool("x", &unread).len(), unread.mtu), (4, before.mtu));
    }
}
