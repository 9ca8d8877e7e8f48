//! Network ports: `info network` lists devices with what they are connected to; taps are named by /proc where QEMU got
//! them as descriptors; bridges by /sys.

use std::path::Path;

use super::{Asker, ReadError};
use crate::description::Nic;
use crate::procfs;

pub(super) fn read(asker: &mut Asker<'_>, pid: i32) -> Result<Vec<Nic>, ReadError> {
    let mut ports = parse(&asker.monitor("info network")?);
    for port in &mut ports {
        if port.nic.tap.is_none()
            && let Some(descriptor) = port.descriptor
        {
            port.nic.tap = procfs::tap_of_descriptor(pid, descriptor);
        }
        // A port whose tap QEMU's helper made says its bridge, and not the name of the tap.
        port.nic.bridge = port.nic.tap.as_deref().and_then(bridge_of).or(port.helper_bridge.take());
    }
    Ok(ports.into_iter().map(|port| port.nic).collect())
}

/// Back ends that map the guest's RAM in another process or device.
pub(super) fn foreign(listing: &str) -> Vec<String> {
    let kind_of = |line: &str| field(line, "type").map(str::to_owned);
    listing.lines().filter_map(kind_of).filter(|kind| kind == "vhost-user" || kind == "vhost-vdpa").collect()
}

/// The bridge (or other master) that an interface belongs to.
pub(crate) fn bridge_of(interface: &str) -> Option<String> {
    let link = std::fs::read_link(Path::new("/sys/class/net").join(interface).join("master")).ok()?;
    Some(link.file_name()?.to_str()?.to_owned())
}

struct Port {
    nic: Nic,
    descriptor: Option<i32>,
    helper_bridge: Option<String>,
}

fn parse(listing: &str) -> Vec<Port> {
    let mut ports: Vec<Port> = Vec::new();
    for line in listing.lines() {
        let Some((name, rest)) = line.trim_start().split_once(": ") else { continue };
        let peer = name.strip_prefix("\\ ");
        let kind = field(rest, "type");
        match (peer, kind, ports.last_mut()) {
            (None, Some("nic"), _) => {
                ports.push(Port { nic: nic(name, rest), descriptor: None, helper_bridge: None });
            }
            // The first peer counts: with several queues all are of one interface.
            (Some(peer), Some(kind), Some(port)) if port.nic.netdev.is_none() => {
                port.nic.netdev = Some(peer.to_owned());
                port.nic.kind = Some(kind.to_owned());
                port.nic.tap = field(rest, "ifname").filter(|_| kind == "tap").map(str::to_owned);
                port.descriptor = field(rest, "fd").and_then(|number| number.parse().ok());
                port.helper_bridge = field(rest, "br").map(str::to_owned);
            }
            _ => {}
        }
    }
    ports
}

fn nic(name: &str, rest: &str) -> Nic {
    Nic {
        id: name.to_owned(),
        model: field(rest, "model").unwrap_or_default().to_owned(),
        mac: field(rest, "macaddr").unwrap_or_default().to_owned(),
        netdev: None,
        kind: None,
        tap: None,
        bridge: None,
    }
}

fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split([',', ' ']).find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_is_read() {
        let listing = "net0: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:11:22:33\n \\ hostnet0: index=0,type=tap,fd=34\n \\ hostnet0: index=1,type=tap,fd=35\ne1000.0: index=0,type=nic,model=e1000,macaddr=52:54:00:12:34:57\n \\ t0: index=0,type=tap,ifname=tap7,script=no,downscript=no\nx: index=0,type=vhost-user\n";
        let ports = parse(listing);
        assert_eq!(ports.len(), 2);
        assert_eq!(ports.iter().filter_map(|port| port.helper_bridge.as_ref()).count(), 0);
        let helped = " n: index=0,type=nic,model=virtio-net-pci,macaddr=52:54:00:12:34:58\n \\ net0: index=0,type=tap,helper=/usr/lib/qemu/qemu-bridge-helper,br=br0\n";
        assert_eq!(parse(helped)[0].helper_bridge.as_deref(), Some("br0"));
        assert_eq!(ports[0].descriptor, Some(34));
        assert_eq!(ports[0].nic.netdev.as_deref(), Some("hostnet0"));
        assert_eq!(ports[1].nic.tap.as_deref(), Some("tap7"));
        assert_eq!(ports[1].nic.mac, "52:54:00:12:34:57");
        assert_eq!(foreign(listing), ["vhost-user"]);
    }
}
