//! Tests of the ledger that a drain makes of its hosts.

use linerate_store::fleet::records::GuestRecord;

use super::*;

fn at(name: &str, ports: &[(&str, u64)]) -> HostRecord {
    let port = |(network, bytes_per_s): &(&str, u64)| PortRecord {
        network: (*network).to_owned(),
        bytes_per_s: *bytes_per_s,
    };
    HostRecord {
        name: name.into(),
        memory_bytes: 1 << 30,
        ports: ports.iter().map(port).collect(),
        ..HostRecord::default()
    }
}

fn answered(record: HostRecord) -> Destination {
    Destination { record: Some(record), lost: None, ..Destination::new("it") }
}

#[test]
fn what_other_drains_have_reserved_is_not_free() {
    let source = at("a", &[("10.0.0.0/24", 1)]);
    let others = [("u8".to_owned(), ("dns-8".to_owned(), 600 << 20))].into();
    let there = Destination { others, ..answered(at("b", &[("10.0.0.0/24", 1)])) };
    let ledger = |guest: u64, there: &Destination| {
        let guest = Leaving { memory_bytes: guest << 20, ..Leaving::default() };
        ledger(&source, std::slice::from_ref(there), &[(guest, Place::Source)], &Rules::default()).ledger
    };
    assert_eq!(ledger(1, &there).free_bytes(HostId(1)), 424 << 20);
    let request = linerate_core::fleet::Request { guests: vec![GuestId(0)], ..Default::default() };
    assert!(ledger(424, &there).place(&request)[0].1.is_ok());
    assert!(ledger(425, &there).place(&request)[0].1.is_err());
}

#[test]
fn a_guest_on_its_way_counts_once_at_its_destination() {
    let source = at("a", &[("10.0.0.0/24", 1)]);
    let free = |place, others: &[(&str, &str)], arriving: &[&str]| {
        let mut record = at("b", &[("10.0.0.0/24", 1)]);
        record.arriving = arriving.iter().map(|name| ((*name).to_owned(), 100 << 20)).collect();
        let other = |(key, name): &(&str, &str)| ((*key).to_owned(), ((*name).to_owned(), 100 << 20));
        let there = Destination { others: others.iter().map(other).collect(), ..answered(record) };
        let guest =
            Leaving { name: "web".into(), key: "u1".into(), memory_bytes: 100 << 20, ..Leaving::default() };
        let known = ledger(&source, std::slice::from_ref(&there), &[(guest, place)], &Rules::default());
        known.ledger.free_bytes(HostId(1)) >> 20
    };
    let reserved = Place::Reserved(HostId(1));
    assert_eq!(free(reserved, &[], &[]), 924);
    assert_eq!(free(reserved, &[], &["web"]), 924, "its QEMU is there");
    assert_eq!(free(reserved, &[("u2", "db")], &["web", "db"]), 824, "as another drain's is");
    assert_eq!(free(reserved, &[], &["web", "log"]), 824, "and one that somebody moves by hand");
    assert_eq!(free(Place::Source, &[], &["web"]), 924, "an earlier try has not ended yet");
}

#[test]
fn a_domain_counts_once_at_its_destination() {
    let source = at("a", &[("10.0.0.0/24", 1)]);
    // `u1` is of the drain, `u2` of another one.
    let free = |place, domains: &[&str], arriving: &[&str]| {
        let mut record = at("b", &[("10.0.0.0/24", 1)]);
        record.domains = domains.iter().map(|key| ((*key).to_owned(), format!("name of {key}"))).collect();
        record.arriving = arriving.iter().map(|key| ((*key).to_owned(), 100 << 20)).collect();
        let others = [("u2".to_owned(), ("name of u2".to_owned(), 100 << 20))].into();
        let there = Destination { others, ..answered(record) };
        let guest = Leaving {
            name: "name of u1".into(),
            key: "u1".into(),
            domain: true,
            memory_bytes: 100 << 20,
            ..Leaving::default()
        };
        let known = ledger(&source, std::slice::from_ref(&there), &[(guest, place)], &Rules::default());
        known.ledger.free_bytes(HostId(1)) >> 20
    };
    let (reserved, moved) = (Place::Reserved(HostId(1)), Place::At(HostId(1)));
    assert_eq!(free(reserved, &[], &[]), 824);
    assert_eq!(free(reserved, &["u1", "u2"], &["u1", "u2"]), 824, "their QEMUs are there");
    assert_eq!(free(moved, &["u1"], &["u1"]), 824, "the record is older than its arrival");
    // What these take is missing from the memory of the record.
    assert_eq!(free(reserved, &["u1"], &[]), 924, "it runs there");
    assert_eq!(free(moved, &["u1", "u2"], &[]), 1024);
    assert_eq!(free(moved, &[], &[]), 824, "its host does not list it yet");
}

#[test]
fn guests_are_kept_apart_by_their_names() {
    let source = at("a", &[("10.0.0.0/24", 1)]);
    let mut there = at("b", &[("10.0.0.0/24", 1)]);
    there.guests.insert("u9".into(), GuestRecord { name: "db-9".into(), memory_bytes: 1 << 20 });
    there.domains.insert("u7".into(), "log-7".into());
    let mut third = answered(at("c", &[("10.0.0.0/24", 1)]));
    third.others.insert("u8".into(), ("dns-8".into(), 0));
    let destinations = [answered(there), third];
    let names = ["db-1", "dns-1", "log-1", "web", "db-2"];
    let guest = |name: &str| Leaving {
        name: name.into(),
        key: format!("key of {name}"),
        memory_bytes: 1 << 20,
        ..Leaving::default()
    };
    let guests = names.map(|name| (guest(name), Place::Source));
    let apart = ["db-*", "dns-*", "log-*"].map(|name| vec![name.to_owned()]);
    let rules = Rules::new(&crate::config::Placement::default(), &apart, &[]).unwrap();
    let known = ledger(&source, &destinations, &guests, &rules);
    let request =
        linerate_core::fleet::Request { guests: (0..5).map(GuestId).collect(), ..Default::default() };
    let placed: Vec<_> = known.ledger.place(&request).into_iter().map(|(_, found)| found.ok()).collect();
    let [b, c] = [1, 2].map(|host| Some(HostId(host)));
    assert_eq!((placed[1], placed[2], placed[3].is_some()), (b, c, true), "{placed:?}");
    // Neither can be on b, and only one on c.
    let mut databases = [placed[0], placed[4]];
    databases.sort();
    assert_eq!(databases, [None, c], "{placed:?}");
    let why = |guest| why(&known, GuestId(guest), &destinations, &request.guests);
    let of = |name: &str| format!("{name} is there or on its way there, and the two must be apart");
    assert_eq!(why(0), [vec![of("db-9")], vec![]]);
    assert_eq!(why(1), [vec![], vec![of("dns-8")]]);
    assert_eq!(why(2), [vec![of("log-7")], vec![]]);
    let free = ledger(&source, &destinations, &guests, &Rules::default());
    assert!(free.ledger.place(&request).iter().all(|(_, found)| found.is_ok()));
}

#[test]
fn guests_are_kept_together_by_their_names() {
    let source = at("a", &[("10.0.0.0/24", 1)]);
    let mut there = at("b", &[("10.0.0.0/24", 1)]);
    there.domains.insert("u7".into(), "log-7".into());
    let third = at("c", &[("10.0.0.0/24", 1)]);
    let destinations = [there, third].map(answered);
    let names = ["web", "db", "log-1", "big-1", "big-2"];
    let guest = |name: &str| Leaving {
        name: name.into(),
        key: format!("key of {name}"),
        memory_bytes: if name.starts_with("big") { 600 << 20 } else { 1 << 20 },
        ..Leaving::default()
    };
    let guests = names.map(|name| (guest(name), Place::Source));
    let lists = [&["web", "db"][..], &["log-*"], &["big-*"]];
    let lists = lists.map(|list| list.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>());
    let rules = Rules::new(&crate::config::Placement::default(), &[], &lists).unwrap();
    let known = ledger(&source, &destinations, &guests, &rules);
    let all: Vec<GuestId> = (0..5).map(GuestId).collect();
    let request = linerate_core::fleet::Request { guests: all.clone(), ..Default::default() };
    let placed: Vec<_> = known.ledger.place(&request).into_iter().map(|(_, found)| found.ok()).collect();
    assert!(placed[0].is_some() && placed[0] == placed[1], "{placed:?}");
    assert_eq!(placed[2..], [Some(HostId(1)), None, None], "{placed:?}");
    let why = |guest, leave: &[GuestId]| why(&known, GuestId(guest), &destinations, leave);
    let of_log = "a guest that it must be together with is on b or on its way there".to_owned();
    assert_eq!(why(2, &all), [vec![], vec![of_log]]);
    let big = "the guests that must be together need 1200 MiB and 1024 MiB are free".to_owned();
    assert_eq!(why(3, &all), [vec![big.clone()], vec![big]]);
    let stays = "a guest that it must be together with stays on this host".to_owned();
    assert_eq!(why(0, &[GuestId(0)]), [vec![stays.clone()], vec![stays]], "db is kept");
}

#[test]
fn a_guest_does_not_go_where_another_one_of_its_name_is() {
    let source = at("a", &[("10.0.0.0/24", 1)]);
    let mut there = at("b", &[("10.0.0.0/24", 1)]);
    // It has no UUID.
    there.guests.insert("web".into(), GuestRecord { name: "web".into(), memory_bytes: 600 << 20 });
    there.domains.insert("u7".into(), "mail".into());
    let destinations = [answered(there), answered(at("c", &[("10.0.0.0/24", 1)]))];
    let guest = |name: &str, key: &str, domain| Leaving {
        name: name.into(),
        key: key.into(),
        domain,
        memory_bytes: 1 << 20,
        ..Leaving::default()
    };
    let leave = [guest("web", "web", false), guest("mail", "u8", true), guest("mail", "mail", false)];
    let guests = leave.map(|one| (one, Place::Source));
    let known = ledger(&source, &destinations, &guests, &Rules::default());
    let request =
        linerate_core::fleet::Request { guests: (0..3).map(GuestId).collect(), ..Default::default() };
    let placed: Vec<_> = known.ledger.place(&request).into_iter().map(|(_, found)| found.ok()).collect();
    assert_eq!((placed[0], placed[1]), (Some(HostId(2)), Some(HostId(2))));
    // One host lacks something, and was left out since; the other one was not tried.
    let tried = Obstacle::Forbidden.name();
    let told = |hosts| known.told(GuestId(0), Nowhere(vec![(tried, hosts)])).0;
    assert_eq!(told(2), [(tried, 1), ("another guest of its name", 1)]);
    assert_eq!(told(1), [("another guest of its name", 1)]);
    assert_eq!(known.told(GuestId(2), Nowhere(vec![(tried, 2)])).0, [(tried, 2)]);
    let of = |guest| why(&known, GuestId(guest), &destinations, &request.guests);
    let is_there = "another guest of its name is there".to_owned();
    assert_eq!(of(0), [vec![is_there.clone()], vec![]]);
    assert_eq!(of(1), [vec![is_there], vec![]]);
    assert!(of(2).iter().all(Vec::is_empty), "a guest and a domain may have one name");
    assert_eq!(known.ledger.free_bytes(HostId(1)), 424 << 20, "what the other takes is not free");
    // It has arrived there.
    let arrived = [(guest("web", "web", false), Place::At(HostId(1)))];
    let known = ledger(&source, &destinations, &arrived, &Rules::default());
    assert_eq!(known.ledger.free_bytes(HostId(1)), 1023 << 20, "it counts once");
}

#[test]
fn a_guest_that_has_just_come_back_is_not_taken_for_another_one_of_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (there, listener) = crate::testing::listening(&dir, Security::insecure(), |agent, accepted| {
        agent.accept(accepted);
    });
    let mut record = at(&there.config.name, &[]);
    record.guests.insert("web".into(), GuestRecord { name: "web".into(), memory_bytes: 1 });
    let mut destinations = [answered(record)];
    destinations[0].at = listener.addresses()[0].to_string();
    let guests = [(Leaving { name: "web".into(), key: "web".into(), ..Leaving::default() }, Place::Source)];
    let mut found = |is_shared| {
        look_at_namesakes(is_shared, &Security::insecure(), &mut destinations, &guests);
        assert_eq!(destinations[0].lost, None);
        namesakes(&destinations, &guests).len()
    };
    assert_eq!(found(false), 1, "a host that was asked itself is not asked again");
    assert_eq!(found(true), 0, "what the store has is older");
}

/// Its guests were started elsewhere when it was lost. To ask it takes 30 s for each of its addresses.
#[test]
fn a_lost_host_is_not_asked_for_the_guests_that_it_had() {
    let mut record = at("b", &[]);
    record.guests.insert("u1".into(), GuestRecord { name: "web".into(), memory_bytes: 1 });
    let mut destinations = [answered(record)];
    destinations[0].at = "127.0.0.1:1".into();
    destinations[0].lost = Some("by the test".into());
    let guests = [(Leaving { name: "web".into(), key: "u1".into(), ..Leaving::default() }, Place::Source)];
    look_at_namesakes(true, &Security::insecure(), &mut destinations, &guests);
    assert_eq!(destinations[0].lost.as_deref(), Some("by the test"));
}

#[test]
fn hosts_that_have_joined_are_found_once() {
    let host = |name: &str| {
        let record = at(name, &[]);
        (name.to_owned(), linerate_store::fleet::HostView { record, alive: true, ..Default::default() })
    };
    let view = View { hosts: ["a", "b", "c"].map(host).into(), ..View::default() };
    let mut known = vec![answered(at("b", &[]))];
    let new = new_in(&view, "a", &known, None);
    let names: Vec<&str> = new.iter().map(Destination::name).collect();
    assert_eq!((names, new[0].lost.is_none()), (vec!["c"], true));
    known.extend(new);
    assert!(new_in(&view, "a", &known, None).is_empty());
}

#[test]
fn hosts_without_a_network_in_common_are_reached_by_routers() {
    let source = at("a", &[("10.0.0.0/24", 200_000_000), ("10.0.1.0/24", 300_000_000)]);
    let near = answered(at("b", &[("10.0.1.0/24", 250_000_000), ("10.9.0.0/24", 1)]));
    let far = answered(at("c", &[("192.0.2.0/24", 150_000_000)]));
    let all = [near.clone(), far];
    assert_eq!(port_rates(&source, &all), [300_000_000.0, 0.0, 300_000_000.0]);
    assert_eq!(port_rates(&source, &[near]), [0.0, 0.0, 300_000_000.0], "no routers");
    let Known { ledger, .. } = ledger(&source, &all, &[], &Rules::default());
    assert_eq!(ledger.links(SOURCE, HostId(1)), (0b100, 250_000_000.0));
    assert_eq!(ledger.links(SOURCE, HostId(2)), (0b001, 150_000_000.0));
}
