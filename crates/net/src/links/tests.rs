use proptest::prelude::*;

use super::*;

fn interface(index: u32, addresses: &[&str]) -> Interface {
    Interface {
        name: format!("eth{index}"),
        index,
        up: true,
        carrier: true,
        loopback: false,
        mtu: 9000,
        speed_mbps: 25_000,
        numa: 1,
        addresses: addresses.iter().map(|text| address(text)).collect(),
    }
}

fn address(text: &str) -> InterfaceAddress {
    let (ip, prefix) = text.split_once('/').unwrap();
    InterfaceAddress { ip: ip.parse().unwrap(), prefix: prefix.parse().unwrap() }
}

fn endpoint(name: &str, text: &str) -> Endpoint {
    let address = address(text);
    Endpoint {
        interface: name.into(),
        address: SocketAddr::new(address.ip, 7070),
        prefix: address.prefix,
        speed_mbps: 10_000,
        mtu: 9000,
        numa: 0,
        up: true,
        rdma_port: 7070,
    }
}

fn ends(links: &[Link]) -> Vec<(String, String)> {
    links
        .iter()
        .map(|link| (link.local.map_or("any".into(), |ip| ip.to_string()), link.remote.ip().to_string()))
        .collect()
}

fn expect(links: &[Link], wanted: &[(&str, &str)]) {
    let wanted: Vec<_> = wanted.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    assert_eq!(ends(links), wanted);
}

#[test]
fn ports_in_one_subnet_pair_and_others_do_not() {
    let local =
        [interface(1, &["10.1.0.1/24"]), interface(2, &["10.2.0.1/24"]), interface(3, &["10.3.0.1/24"])];
    let remote =
        [endpoint("p0", "10.2.0.2/24"), endpoint("p1", "10.1.0.2/24"), endpoint("p2", "10.9.0.2/24")];
    let links = pair(&local, &remote, &[]);
    expect(&links, &[("10.1.0.1", "10.1.0.2"), ("10.2.0.1", "10.2.0.2")]);
    assert_eq!(links.iter().map(|link| link.id).collect::<Vec<_>>(), [0, 1]);
    let first = &links[0];
    assert_eq!((first.speed_mbps, first.mtu, first.numa, first.mtu_differs), (10_000, 9000, 1, false));
    assert_eq!(first.device.as_deref(), Some("eth1"));
}

#[test]
fn both_must_see_each_other_in_their_subnet() {
    // 10.1.5.1/16 sees 10.1.0.2, but 10.1.0.2/24 would answer through a router.
    let links = pair(&[interface(1, &["10.1.5.1/16"])], &[endpoint("p0", "10.1.0.2/24")], &[]);
    expect(&links, &[("any", "10.1.0.2")]);
}

#[test]
fn ipv4_is_preferred_on_the_same_pair_of_ports() {
    let local = [interface(1, &["fd00::1/64", "10.1.0.1/24"])];
    let remote = [endpoint("p0", "fd00::2/64"), endpoint("p0", "10.1.0.2/24")];
    expect(&pair(&local, &remote, &[]), &[("10.1.0.1", "10.1.0.2")]);
    expect(&pair(&local, &remote[..1], &[]), &[("fd00::1", "fd00::2")]);
}

#[test]
fn two_ports_in_one_subnet_make_every_pair() {
    let local = [interface(1, &["10.1.0.1/24"]), interface(2, &["10.1.0.3/24"])];
    let remote = [endpoint("p0", "10.1.0.2/24"), endpoint("p1", "10.1.0.4/24")];
    assert_eq!(pair(&local, &remote, &[]).len(), 4);
}

#[test]
fn routed_only_if_nothing_else_pairs() {
    let local = [interface(1, &["10.1.0.1/24"])];
    let far = [endpoint("p0", "fd00::7/64"), endpoint("p0", "10.8.0.2/24"), endpoint("p1", "10.9.0.2/24")];
    let links = pair(&local, &far, &[]);
    expect(&links, &[("any", "10.8.0.2"), ("any", "10.9.0.2")]);
    assert!(links.iter().all(|link| link.device.is_none() && link.numa == -1));
    let near = [far[1].clone(), endpoint("p2", "10.1.0.2/24")];
    expect(&pair(&local, &near, &[]), &[("10.1.0.1", "10.1.0.2")]);
}

#[test]
fn the_filter_narrows_both_sides() {
    let local = [interface(1, &["10.1.0.1/24"]), interface(2, &["10.2.0.1/24"])];
    let remote = [endpoint("p0", "10.1.0.2/24"), endpoint("p1", "10.2.0.2/24")];
    let filter = parse_networks("10.2.0.0/16, 10.7.0.0/16").unwrap();
    expect(&pair(&local, &remote, &filter), &[("10.2.0.1", "10.2.0.2")]);
    let none = parse_networks("192.168.0.0/16").unwrap();
    expect(&pair(&local, &remote, &none), &[]);
}

#[test]
fn ports_that_are_down_are_left_out() {
    let mut dead = interface(1, &["10.1.0.1/24"]);
    dead.carrier = false;
    let mut gone = endpoint("p1", "10.2.0.2/24");
    gone.up = false;
    let remote = [endpoint("p0", "10.1.0.2/24"), gone];
    let links = pair(&[dead, interface(2, &["10.2.0.1/24"])], &remote, &[]);
    expect(&links, &[("any", "10.1.0.2")]);
}

#[test]
fn loopback_pairs_with_loopback_only_and_where_it_is_named() {
    let mut lo = interface(1, &["127.0.0.1/8"]);
    lo.loopback = true;
    let remote = [endpoint("lo", "127.0.0.1/8")];
    expect(&pair(&[lo.clone()], &remote, &[]), &[("127.0.0.1", "127.0.0.1")]);
    expect(&pair(&[lo.clone()], &remote, &parse_networks("0.0.0.0/0").unwrap()), &[]);
    let named = parse_networks("127.0.0.0/8").unwrap();
    expect(&pair(&[lo], &remote, &named), &[("127.0.0.1", "127.0.0.1")]);
    expect(&pair(&[interface(2, &["10.1.0.1/24"])], &remote, &[]), &[]);
}

#[test]
fn link_local_addresses_are_not_used() {
    let links = pair(&[interface(1, &["fe80::1/64"])], &[endpoint("p0", "fe80::2/64")], &[]);
    expect(&links, &[]);
}

#[test]
fn differing_mtus_are_reported_and_unknown_speeds_do_not_hide_known_ones() {
    let mut remote = endpoint("p0", "10.1.0.2/24");
    remote.mtu = 1500;
    remote.speed_mbps = 0;
    let links = pair(&[interface(1, &["10.1.0.1/24"])], &[remote], &[]);
    assert!(links[0].mtu_differs);
    assert_eq!((links[0].mtu, links[0].speed_mbps), (1500, 25_000));
}

#[test]
fn channels_by_speed_and_cpus() {
    let table = [
        (0, 16, 2),
        (0, 1, 1),
        (1_000, 16, 1),
        (10_000, 16, 1),
        (25_000, 16, 2),
        (40_000, 16, 4),
        (50_000, 16, 4),
        (100_000, 16, 8),
        (100_000, 4, 4),
        (200_000, 64, 16),
        (400_000, 8, 8),
        (100_000, 0, 1),
        (u32::MAX, 4, 4),
    ];
    for (speed, cpus, wanted) in table {
        assert_eq!(channels_for(speed, cpus), wanted, "{speed} Mb/s, {cpus} CPUs");
    }
}

#[test]
fn only_ports_that_links_may_use_count_as_wires() {
    let ports = [
        interface(1, &["10.0.1.1/24"]),
        interface(2, &["10.0.2.1/24", "fe80::2/64"]),
        // A bond's member, a tap, one that is down.
        interface(3, &[]),
        interface(4, &["fe80::4/64"]),
        Interface { carrier: false, ..interface(5, &["10.0.5.1/24"]) },
        Interface { loopback: true, ..interface(6, &["127.0.0.1/8"]) },
    ];
    assert_eq!(speed_of_all(&ports, &[]), 50_000);
    assert_eq!(speed_of_all(&ports, &parse_networks("10.0.2.0/24").unwrap()), 25_000);
    assert_eq!(speed_of_all(&ports, &parse_networks("10.9.0.0/16").unwrap()), 0);
}

#[test]
fn networks_are_parsed_with_a_word_on_what_is_wrong() {
    assert_eq!("10.1.0.0/16".parse::<Network>().unwrap().to_string(), "10.1.0.0/16");
    assert_eq!("fd00::1".parse::<Network>().unwrap().to_string(), "fd00::1/128");
    assert_eq!(
        parse_networks("10.1.0.0/33").unwrap_err().to_string(),
        "a prefix of 33 bits is longer than the address 10.1.0.0"
    );
    assert_eq!(parse_networks("ten/8").unwrap_err(), NetworkError::Address("ten".into()));
    assert_eq!(parse_networks("10.0.0.0/x").unwrap_err(), NetworkError::Prefix("x".into()));
    assert_eq!(parse_networks("").unwrap(), []);
}

fn any_ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<[u8; 16]>().prop_map(IpAddr::from),
        (0u8..4, 0u8..4).prop_map(|(net, host)| IpAddr::from([10, net, 0, host])),
    ]
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    (any_ip(), any::<u8>(), 0u8..3, any::<u32>(), any::<bool>()).prop_map(
        |(ip, prefix, name, speed_mbps, up)| Endpoint {
            interface: format!("p{name}"),
            address: SocketAddr::new(ip, 1),
            prefix,
            speed_mbps,
            mtu: 1500,
            numa: -1,
            up,
            rdma_port: 0,
        },
    )
}

proptest! {
    #[test]
    fn a_network_agrees_with_its_bits(own in any::<u32>(), other in any::<u32>(), prefix in 0u8..=32) {
        let network = Network::new(IpAddr::V4(own.into()), prefix).unwrap();
        let same = (0..u32::from(prefix)).all(|bit| (own ^ other) >> (31 - bit) & 1 == 0);
        prop_assert_eq!(network.contains(IpAddr::V4(other.into())), same);
    }

    #[test]
    fn whatever_a_peer_offers_each_pair_of_ports_is_one_link(
        endpoints in prop::collection::vec(any_endpoint(), 0..20),
        locals in prop::collection::vec((any_ip(), 0u8..=140), 0..6),
    ) {
        let mut interfaces = vec![interface(1, &[]), interface(2, &[])];
        for (number, (ip, prefix)) in locals.into_iter().enumerate() {
            interfaces[number % 2].addresses.push(InterfaceAddress { ip, prefix });
        }
        let links = pair(&interfaces, &endpoints, &[]);
        let mut ports: Vec<_> = links.iter().map(|link| (link.device.clone(), link.remote_interface.clone())).collect();
        ports.sort();
        ports.dedup();
        prop_assert_eq!(ports.len(), links.len());
        prop_assert!(links.iter().enumerate().all(|(number, link)| usize::from(link.id) == number));
        for link in &links {
            prop_assert!(endpoints.iter().any(|endpoint| endpoint.up && endpoint.address == link.remote));
        }
    }
}
