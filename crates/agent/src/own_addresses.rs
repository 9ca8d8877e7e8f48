//! The addresses of this host at which its agent answers with `listen_auto`.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use linerate_net::interfaces::{self, Interface};
use linerate_net::netlink::NetlinkError;

/// A bond over VLANs over ports has three layers.
const LAYERS_MAX: u32 = 8;

/// Addresses of this host's ports, and of bonds, VLANs and bridges over them, with this port.
pub(crate) fn find(port: u16) -> Result<Vec<SocketAddr>, NetlinkError> {
    let folder = Path::new("/sys/class/net");
    Ok(chosen(&interfaces::list()?, port, |name| has_port(folder, name, LAYERS_MAX)))
}

/// Ports of this host that have such addresses, and of which `listen` has none: they came after the agent's start.
pub(crate) fn unanswered(listen: &[SocketAddr]) -> Result<Vec<String>, NetlinkError> {
    let folder = Path::new("/sys/class/net");
    Ok(without(&interfaces::list()?, listen, |name| has_port(folder, name, LAYERS_MAX)))
}

/// Bridges of containers and guests have no port.
fn chosen(interfaces: &[Interface], port: u16, has_port: impl Fn(&str) -> bool) -> Vec<SocketAddr> {
    let ips = interfaces.iter().filter(|one| is_used(one, &has_port)).flat_map(ips);
    ips.map(|ip| SocketAddr::new(ip, port)).collect()
}

fn without(interfaces: &[Interface], listen: &[SocketAddr], has_port: impl Fn(&str) -> bool) -> Vec<String> {
    let is_answered = |ip: &IpAddr| listen.iter().any(|address| address.ip() == *ip);
    let is_late = |interface: &&Interface| {
        let ips = ips(interface);
        !ips.is_empty() && !ips.iter().any(is_answered)
    };
    let used = interfaces.iter().filter(|one| is_used(one, &has_port));
    used.filter(is_late).map(|one| one.name.clone()).collect()
}

fn is_used(interface: &Interface, has_port: impl Fn(&str) -> bool) -> bool {
    interface.up && !interface.loopback && has_port(&interface.name)
}

/// IPv6 counts where there is no IPv4: its addresses may change by themselves.
fn ips(interface: &Interface) -> Vec<IpAddr> {
    let of = |version_4: bool| {
        let all = interface.addresses.iter().map(|address| address.ip);
        all.filter(move |ip| ip.is_ipv4() == version_4 && is_routed(ip)).collect::<Vec<_>>()
    };
    Some(of(true)).filter(|ips| !ips.is_empty()).unwrap_or_else(|| of(false))
}

/// Neither of loopback nor of the link alone.
fn is_routed(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => !ip.is_loopback() && !ip.is_link_local(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
    }
}

/// Whether an interface is the port of a device, or is made of one; `folder` is `/sys/class/net`.
fn has_port(folder: &Path, name: &str, layers: u32) -> bool {
    let path = folder.join(name);
    if path.join("device").exists() {
        return true;
    }
    let Some(layers) = layers.checked_sub(1) else { return false };
    let Ok(entries) = std::fs::read_dir(path) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        name.to_str()
            .and_then(|name| name.strip_prefix("lower_"))
            .is_some_and(|name| has_port(folder, name, layers))
    })
}

#[cfg(test)]
mod tests {
    use linerate_net::interfaces::InterfaceAddress;

    use super::*;

    fn interface(name: &str, addresses: &[&str]) -> Interface {
        let address = |text: &&str| InterfaceAddress { ip: text.parse().unwrap(), prefix: 24 };
        Interface {
            name: name.to_owned(),
            index: 1,
            up: true,
            carrier: true,
            loopback: name == "lo",
            mtu: 1500,
            speed_mbps: 0,
            numa: -1,
            addresses: addresses.iter().map(address).collect(),
        }
    }

    #[test]
    fn addresses_of_ports_are_taken_and_those_of_guests_bridges_are_not() {
        let down = Interface { up: false, ..interface("eth9", &["10.0.9.1"]) };
        let interfaces = [
            interface("lo", &["127.0.0.1", "10.0.7.1"]),
            interface("eth0", &["10.0.0.1", "fe80::1", "fd00::1", "169.254.1.1"]),
            interface("eth1", &["fe80::2", "fd00::2"]),
            interface("docker0", &["172.17.0.1"]),
            down,
        ];
        let found = chosen(&interfaces, 7979, |name| name != "docker0");
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1:7979", "[fd00::2]:7979"]);
    }

    #[test]
    fn a_port_that_got_its_addresses_after_the_start_is_named() {
        let listen: [SocketAddr; 2] = ["10.0.0.1:7979", "[fd00::2]:7979"].map(|text| text.parse().unwrap());
        let interfaces = [
            // Another address of a port that is answered, and a new temporary one.
            interface("eth0", &["10.0.0.1", "10.0.0.9"]),
            interface("eth1", &["fd00::2", "fd00::77"]),
            interface("eth2", &["10.0.2.1"]),
            // Its lease has ended, and it got another address.
            interface("eth3", &["10.0.3.8"]),
            interface("eth4", &["fe80::4"]),
            interface("docker0", &["172.17.0.1"]),
            Interface { up: false, ..interface("eth9", &["10.0.9.1"]) },
        ];
        assert_eq!(without(&interfaces, &listen, |name| name != "docker0"), ["eth2", "eth3"]);
    }

    #[test]
    fn an_interface_over_a_port_has_one_and_a_bridge_of_taps_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let make = |path: &&str| std::fs::create_dir_all(folder.path().join(path)).unwrap();
        ["eth0/device", "bond0/lower_eth0", "vlan5/lower_bond0", "tap0", "virbr0/lower_tap0"]
            .iter()
            .for_each(make);
        // No kernel has a circle; a program does not hang in one.
        ["x/lower_y", "y/lower_x"].iter().for_each(make);
        for (name, expected) in [
            ("eth0", true),
            ("vlan5", true),
            ("tap0", false),
            ("virbr0", false),
            ("x", false),
            ("none", false),
        ] {
            assert_eq!(has_port(folder.path(), name, LAYERS_MAX), expected, "{name}");
        }
    }
}
