//! Whether a port can have an intent at all: what it must be, and what it must be able to.

use super::impossible::Impossible;
use super::intent::{Intent, Roce};
use super::plan::PRIORITIES;
use super::ports;
use crate::model::{Dcb, Ets, Inventory, Pfc, Port};

/// The port of this name.
pub(super) fn found<'a>(host: &'a Inventory, name: &str) -> Result<&'a Port, Impossible> {
    let (at, port) = (host.host.clone(), name.to_owned());
    if host.system.os.as_deref() == Some("windows") {
        return Err(Impossible::Windows { host: at });
    }
    host.port(name).ok_or_else(|| match ports::infiniband(host) {
        Some(device) => Impossible::Infiniband {
            host: at,
            port,
            device: device.name.clone(),
            command: ports::to_ethernet(device),
        },
        None => Impossible::NoPort { host: at, port },
    })
}

/// The port's DCB, if the intent can be had on it.
pub(super) fn able<'a>(
    host: &Inventory,
    port: &'a Port,
    intent: &Intent,
) -> Result<(&'a Dcb, &'a Ets, &'a Pfc), Impossible> {
    let (at, name) = (host.host.clone(), port.name.clone());
    let Some(dcb) = &port.dcb else { return Err(without_dcb(host, port)) };
    takes_marks(host, port, intent)?;
    if dcb.dcbx.is_some_and(|mode| mode.firmware && !mode.host) {
        return Err(Impossible::Firmware { host: at, port: name, command: ports::free_from_firmware(port) });
    }
    let Some(ets) = dcb.ets.as_ref().filter(|ets| complete(ets)) else {
        return Err(Impossible::Part { host: at, port: name, what: "shares (ETS)" });
    };
    let Some(pfc) = &dcb.pfc else {
        return Err(Impossible::Part { host: at, port: name, what: "lossless priorities (PFC)" });
    };
    let wanted = u8::try_from(intent.classes().count() + 1).unwrap_or(u8::MAX);
    if let Some(most) = ets.classes_max.filter(|most| *most > 0 && *most < wanted) {
        return Err(Impossible::Classes { host: at, port: name, most, wanted });
    }
    let wanted = u8::try_from(intent.lossless().len()).unwrap_or(u8::MAX);
    if let Some(most) = pfc.lossless_max.filter(|most| *most < wanted) {
        return Err(Impossible::Lossless { host: at, port: name, most, wanted });
    }
    if intent.roce != Roce::None {
        has_roce(host, port)?;
    }
    Ok((dcb, ets, pfc))
}

/// Saved inventories may say anything.
fn complete(ets: &Ets) -> bool {
    let eight = usize::from(PRIORITIES);
    [ets.priority_class.len(), ets.share_percent.len(), ets.selection.len()] == [eight; 3]
        && ets.priority_class.iter().all(|class| *class < PRIORITIES)
}

fn without_dcb(host: &Inventory, port: &Port) -> Impossible {
    let (at, name, kind) = (host.host.clone(), port.name.clone(), ports::kind(port));
    match ports::below(host, port).join(", ") {
        below if below.is_empty() => Impossible::NoDcb { host: at, port: name, kind },
        below => Impossible::Upper { host: at, port: name, kind, below },
    }
}

/// By the sources of the kernel's drivers. `ice` takes marks by DSCP only; with the first one it overwrites the shares,
/// gives priority N to class N and keeps that map.
fn takes_marks(host: &Inventory, port: &Port, intent: &Intent) -> Result<(), Impossible> {
    let (at, name) = (host.host.clone(), port.name.clone());
    match port.driver.as_deref() {
        Some("ice") => Err(Impossible::FixedClasses { host: at, port: name }),
        Some("mlx5_core") => match intent.classes().find(|class| class.dscp.is_none()) {
            Some(class) => Err(Impossible::DscpOnly { host: at, port: name, class: class.name }),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn has_roce(host: &Inventory, port: &Port) -> Result<(), Impossible> {
    let (at, name) = (host.host.clone(), port.name.clone());
    match ports::rdma(host, port) {
        // Not known is not absent.
        None if host.rdma.is_none() => Ok(()),
        None => Err(Impossible::NoRdma { host: at, port: name, kind: ports::kind(port) }),
        Some((device, _)) if device.node_type.as_deref() == Some("RNIC") => Err(Impossible::Iwarp {
            host: at,
            port: name,
            device: device.name.clone(),
            address: device.pcie_address.clone().unwrap_or_else(|| "ADDRESS".to_owned()),
        }),
        Some(_) => Ok(()),
    }
}
