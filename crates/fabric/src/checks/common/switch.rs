//! The other end of a cable: what LLDP says, and what was exported of the switch.

use crate::model::{Ets, Neighbour, Pfc, PortRef, Room, SwitchPort};

/// What is known of the other end of a port's cable.
pub(in crate::checks) struct SwitchSide<'a> {
    heard: &'a [Neighbour],
    exported: Option<(&'a str, &'a SwitchPort)>,
}

/// The other end of a port's cable.
pub(in crate::checks) fn switch_side<'a>(room: &'a Room, at: PortRef<'a>) -> SwitchSide<'a> {
    let heard = at.port.neighbours.as_slice();
    let ours = |name: &str, port: &SwitchPort| {
        let told =
            port.host.as_ref() == Some(&at.host.host) && port.host_port.as_ref() == Some(&at.port.name);
        let same =
            |one: &Neighbour| one.system.as_deref() == Some(name) && one.port.as_ref() == Some(&port.name);
        told || heard.iter().any(same)
    };
    let mut all =
        room.switches.iter().flat_map(|one| one.ports.iter().map(|port| (one.switch.as_str(), port)));
    SwitchSide { heard, exported: all.find(|(name, port)| ours(name, port)) }
}

impl<'a> SwitchSide<'a> {
    fn heard<T>(&self, of: impl Fn(&'a Neighbour) -> Option<T>) -> Option<T> {
        self.heard.iter().find_map(of)
    }

    fn exported<T>(&self, of: impl Fn(&'a SwitchPort) -> Option<T>) -> Option<T> {
        self.exported.and_then(|(_, port)| of(port))
    }

    /// `leaf0 Ethernet1/2`.
    pub(in crate::checks) fn name(&self) -> String {
        let heard =
            self.heard(|one| Some((one.system.as_deref().or(one.chassis.as_deref())?, one.port.as_deref())));
        let exported = self.exported.map(|(name, port)| (name, Some(port.name.as_str())));
        match exported.or(heard) {
            Some((name, Some(port))) => format!("{name} {port}"),
            Some((name, None)) => name.to_owned(),
            None => "the switch".to_owned(),
        }
    }

    /// Largest packet, bytes.
    pub(in crate::checks) fn mtu(&self) -> Option<u32> {
        self.heard(Neighbour::mtu).or_else(|| self.exported(|port| port.mtu))
    }

    /// It negotiates the speed.
    pub(in crate::checks) fn autonegotiation(&self) -> Option<bool> {
        self.heard(|one| one.autonegotiation).or_else(|| self.exported(|port| port.autonegotiation))
    }

    /// Forward error correction.
    pub(in crate::checks) fn fec(&self) -> Option<&'a str> {
        self.exported(|port| port.fec.as_deref())
    }

    /// VLAN of untagged frames.
    pub(in crate::checks) fn vlan_untagged(&self) -> Option<u16> {
        let told = self.heard(|one| one.vlan_untagged).or_else(|| self.exported(|port| port.vlan_untagged));
        told.filter(|vlan| *vlan != 0)
    }

    /// VLANs that pass; `None` if it says none.
    pub(in crate::checks) fn vlans(&self) -> Option<&'a [u16]> {
        let some = |vlans: &'a Vec<u16>| (!vlans.is_empty()).then_some(vlans.as_slice());
        self.exported(|port| some(&port.vlans)).or_else(|| self.heard(|one| some(&one.vlans)))
    }

    /// Link aggregation is on.
    pub(in crate::checks) fn aggregated(&self) -> Option<bool> {
        self.heard(|one| one.aggregation.map(|aggregation| aggregation.on))
    }

    /// Lossless priorities.
    pub(in crate::checks) fn pfc(&self) -> Option<&'a Pfc> {
        self.heard(|one| one.pfc.as_ref()).or_else(|| self.exported(|port| port.pfc.as_ref()))
    }

    pub(in crate::checks) fn ets(&self) -> Option<&'a Ets> {
        self.heard(|one| one.ets.as_ref())
    }
}
