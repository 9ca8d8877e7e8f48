//! The rules of a fleet, over both stores.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::sync::Arc;

use common::{GIB, Kind, Leased, Loss, Lossy, answer, check, drain, fleet, host, wait, with_guests};
use linerate_store::fleet::records::{DrainRecord, DrainState};
use linerate_store::fleet::{Fleet, FleetError, Ownership};
use linerate_store::{StoreError, Transaction, Write};

fn hosts(fleet: &Fleet, names: &[&str]) {
    for name in names {
        fleet.register(&host(name, 8)).unwrap();
    }
}

#[test]
fn a_host_of_the_same_name_is_refused_while_the_first_runs() {
    for kind in Kind::both() {
        let client = kind.open();
        let first = client.fleet("a");
        first.register(&host("a", 8)).unwrap();
        // Once more, as after a change.
        first.register(&with_guests(host("a", 8), &[("g", 3)])).unwrap();
        let other = client.fleet("a");
        assert!(matches!(other.register(&host("a", 1)), Err(FleetError::NameTaken(_))));
        let view = first.view().unwrap();
        assert!(view.hosts["a"].alive);
        assert_eq!(view.hosts["a"].free_bytes(), 5 * GIB);
        drop((first, other));
        client.end();

        let next = kind.open().fleet("a");
        wait("the end of the lease", || !next.view().unwrap().hosts["a"].alive);
        assert_eq!(next.view().unwrap().hosts["a"].record.guests.len(), 1, "what is known of it stays");
        next.register(&host("a", 2)).unwrap();
        assert!(next.view().unwrap().hosts["a"].alive);
    }
}

#[test]
fn an_agent_that_is_not_registered_changes_nothing_of_its_host() {
    for kind in Kind::both() {
        let [first, second] = kind.clients();
        let (one, other) = (first.fleet("a"), second.fleet("a"));
        let deeds = |fleet: &Fleet| {
            [
                fleet.cordon("a", "ben", 2).map(drop),
                fleet.uncordon("a").map(drop),
                fleet.begin(&drain("d2", "a")).map(drop),
            ]
        };
        hosts(&one, &["a"]);
        one.begin(&drain("d1", "a")).unwrap();
        one.end(&one.take_over("d1").unwrap().0, &drain("d1", "a")).unwrap();
        let before = one.view().unwrap();
        for answer in &deeds(&other) {
            assert!(matches!(answer, Err(FleetError::NameTaken(name)) if name == "a"), "{answer:?}");
        }
        assert_eq!(one.view().unwrap(), before);
        one.withdraw("a").unwrap();
        for answer in &deeds(&one) {
            assert!(matches!(answer, Err(FleetError::NotRegistered(name)) if name == "a"), "{answer:?}");
        }
        // An open drain is taken by the registered one alone.
        hosts(&one, &["a"]);
        one.begin(&drain("d3", "a")).unwrap();
        first.store().commit(&without("owner/d3")).unwrap();
        assert!(matches!(other.take_over("d3"), Err(FleetError::NameTaken(_))));
        one.take_over("d3").unwrap();
    }
}

fn without(key: &str) -> Transaction {
    Transaction { conditions: Vec::new(), writes: vec![Write::Delete(key.to_owned())] }
}

#[test]
fn names_that_no_key_can_have_are_refused() {
    let kind = Kind::Local(tempfile::tempdir().unwrap());
    let client = kind.open();
    for name in ["", "a/b", "a\nb", &"x".repeat(254)] {
        assert!(matches!(Fleet::new(client.store(), name, "1"), Err(FleetError::Name(_))), "{name}");
        let fleet = client.fleet("a");
        assert!(matches!(fleet.register(&host(name, 1)), Err(FleetError::Name(_))), "{name}");
        assert!(matches!(fleet.begin(&drain(name, "a")), Err(FleetError::Name(_))), "{name}");
        assert!(matches!(fleet.cordon(name, "x", 1), Err(FleetError::Name(_))), "{name}");
    }
}

#[test]
fn a_host_has_one_open_drain_and_is_cordoned_until_it_is_released() {
    for kind in Kind::both() {
        let fleet = kind.open().fleet("a");
        hosts(&fleet, &["a", "b"]);
        assert!(matches!(fleet.begin(&drain("d0", "nowhere")), Err(FleetError::NoHost(_))));
        let owner = fleet.begin(&drain("d1", "a")).unwrap();
        let open = |error| matches!(error, Err(FleetError::Draining { drain, .. }) if drain == "d1");
        assert!(open(fleet.begin(&drain("d2", "a")).map(drop)));
        assert!(open(fleet.uncordon("a").map(drop)));
        assert!(open(fleet.forget("d1")));
        let view = fleet.view().unwrap();
        assert_eq!(view.hosts["a"].drain.as_deref(), Some("d1"));
        assert_eq!(view.hosts["a"].cordon.as_ref().unwrap().drain.as_deref(), Some("d1"));
        assert_eq!(view.drains["d1"].owner.as_ref().unwrap().host, "a");

        fleet.update(&owner, &DrainRecord { state: DrainState::Paused, ..drain("d1", "a") }).unwrap();
        assert_eq!(fleet.drain("d1").unwrap().unwrap().state, DrainState::Paused);
        fleet.end(&owner, &drain("d1", "a")).unwrap();
        let view = fleet.view().unwrap();
        assert_eq!((&view.hosts["a"].drain, view.drains["d1"].record.state), (&None, DrainState::Ended));
        assert!(view.hosts["a"].cordon.is_some(), "an empty host takes no guests until somebody says so");
        assert!(matches!(fleet.update(&owner, &drain("d1", "a")), Err(FleetError::NotOwner(_))));
        assert!(matches!(fleet.take_over("d1"), Err(FleetError::HasEnded(_))));
        assert!(matches!(fleet.take_over("d9"), Err(FleetError::NoDrain(_))));
        assert!(fleet.uncordon("a").unwrap());
        assert!(!fleet.uncordon("a").unwrap());
        fleet.begin(&drain("d2", "a")).unwrap();
        fleet.forget("d1").unwrap();
        assert!(fleet.drain("d1").unwrap().is_none());
    }
}

#[test]
fn guests_that_an_undrain_has_not_brought_back_are_known_to_the_next_agent_of_their_host() {
    for kind in Kind::both() {
        let client = kind.open();
        let (first, other) = (client.fleet("a"), client.fleet("b"));
        hosts(&first, &["a"]);
        hosts(&other, &["b"]);
        assert_eq!(first.elsewhere().unwrap(), None);
        let guests = serde_json::json!({ "guests": ["web"] });
        first.set_elsewhere(Some(&guests)).unwrap();
        first.set_elsewhere(Some(&guests)).unwrap();
        assert_eq!((first.elsewhere().unwrap(), other.elsewhere().unwrap()), (Some(guests.clone()), None));
        assert_eq!(first.view().unwrap().hosts.len(), 2, "it is no host and no drain");
        drop((first, other));
        client.end();

        let next = kind.open().fleet("a");
        wait("the end of the lease", || !next.view().unwrap().hosts["a"].alive);
        assert_eq!(next.elsewhere().unwrap(), Some(guests));
        assert!(matches!(next.set_elsewhere(None), Err(FleetError::NotRegistered(_))));
        hosts(&next, &["a"]);
        next.set_elsewhere(None).unwrap();
        assert_eq!(next.elsewhere().unwrap(), None);
    }
}

#[test]
fn a_cordon_of_the_operator_stays_the_operators() {
    let kind = Kind::Local(tempfile::tempdir().unwrap());
    let fleet = kind.open().fleet("a");
    hosts(&fleet, &["a"]);
    assert!(fleet.cordon("a", "anna@desk", 7).unwrap());
    assert!(!fleet.cordon("a", "bert@desk", 8).unwrap());
    let owner = fleet.begin(&drain("d1", "a")).unwrap();
    let cordon = fleet.view().unwrap().hosts["a"].cordon.clone().unwrap();
    assert_eq!((cordon.by.as_str(), cordon.since_ms, cordon.drain), ("anna@desk", 7, None), "the first one");
    fleet.end(&owner, &drain("d1", "a")).unwrap();
    // The cordon of a drain becomes that of an operator who asks for one.
    assert!(fleet.uncordon("a").unwrap());
    let owner = fleet.begin(&drain("d2", "a")).unwrap();
    let of_drain = fleet.view().unwrap().hosts["a"].cordon.clone().unwrap();
    assert!(!fleet.cordon("a", "bert@desk", 9).unwrap());
    let cordon = fleet.view().unwrap().hosts["a"].cordon.clone().unwrap();
    assert_eq!((of_drain.drain.as_deref(), cordon.drain), (Some("d2"), None));
    assert_eq!((cordon.by.as_str(), cordon.since_ms), ("bert@desk", of_drain.since_ms));
    fleet.end(&owner, &drain("d2", "a")).unwrap();
    assert!(matches!(fleet.cordon("b", "anna@desk", 7), Err(FleetError::NoHost(_))));
    assert!(matches!(fleet.uncordon("b"), Err(FleetError::NoHost(_))));
}

#[test]
fn a_reservation_needs_room_and_a_host_that_takes_guests() {
    for kind in Kind::both() {
        let fleet = kind.open().fleet("a");
        hosts(&fleet, &["a", "c"]);
        let mut full = with_guests(host("b", 8), &[("there", 3)]);
        full.reserve_bytes = GIB;
        fleet.register(&full).unwrap();
        let owner = fleet.begin(&drain("d1", "a")).unwrap();
        let reserve =
            |guest: &str, gib: u64, host: &str| fleet.reserve(&owner, guest, guest, gib * GIB, host, None);
        reserve("g1", 3, "b").unwrap();
        // Asked again: it is there.
        reserve("g1", 3, "b").unwrap();
        let free = |error| match error {
            Err(FleetError::NoRoom { free_bytes, .. }) => free_bytes / GIB,
            other => panic!("{other:?}"),
        };
        assert_eq!(free(reserve("g2", 2, "b")), 1);
        reserve("g2", 1, "b").unwrap();
        assert_eq!(fleet.view().unwrap().hosts["b"].free_bytes(), 0);
        assert!(matches!(reserve("g1", 3, "c"), Err(FleetError::Reserved { by, .. }) if by.host == "b"));
        assert!(matches!(reserve("g3", 1, "nowhere"), Err(FleetError::NoHost(_))));
        assert!(matches!(reserve("there", 1, "b"), Err(FleetError::Place { is_there: true, .. })));
        fleet.cordon("c", "root", 1).unwrap();
        assert!(matches!(reserve("g3", 1, "c"), Err(FleetError::Cordoned { .. })));
        fleet.release(&owner, "g1").unwrap();
        fleet.release(&owner, "g1").unwrap();
        assert_eq!(fleet.view().unwrap().hosts["b"].free_bytes(), 3 * GIB);
        check(&fleet);
    }
}

#[test]
fn memory_of_an_arrived_guest_is_never_counted_as_free() {
    for kind in Kind::both() {
        let fleet = kind.open().fleet("a");
        hosts(&fleet, &["a", "b"]);
        let owner = fleet.begin(&drain("d1", "a")).unwrap();
        fleet.reserve(&owner, "g1", "g1", 3 * GIB, "b", None).unwrap();
        assert!(matches!(fleet.arrived(&owner, "g1"), Err(FleetError::Place { is_there: false, .. })));
        fleet.register(&with_guests(host("b", 8), &[("g1", 3)])).unwrap();
        assert_eq!(
            fleet.view().unwrap().hosts["b"].free_bytes(),
            5 * GIB,
            "once, though it is still reserved"
        );
        fleet.arrived(&owner, "g1").unwrap();
        fleet.arrived(&owner, "g1").unwrap();
        assert_eq!(fleet.view().unwrap().hosts["b"].free_bytes(), 5 * GIB);
        // A domain of libvirt is listed apart.
        fleet.reserve(&owner, "d1", "d1", GIB, "b", None).unwrap();
        assert!(matches!(fleet.arrived(&owner, "d1"), Err(FleetError::Place { is_there: false, .. })));
        let mut record = with_guests(host("b", 8), &[("g1", 3)]);
        record.domains.insert("d1".into(), "web".into());
        fleet.register(&record).unwrap();
        fleet.arrived(&owner, "d1").unwrap();
        assert!(fleet.view().unwrap().reservations.is_empty());
        check(&fleet);
    }
}

#[test]
fn a_host_that_does_not_run_gets_no_reservation() {
    for kind in Kind::both() {
        let [gone, stays] = kind.clients();
        if matches!(kind, Kind::Local(_)) {
            // One process is all there is.
            continue;
        }
        gone.fleet("b").register(&host("b", 8)).unwrap();
        let fleet = stays.fleet("a");
        hosts(&fleet, &["a"]);
        let owner = fleet.begin(&drain("d1", "a")).unwrap();
        gone.end();
        wait("the end of b's lease", || !fleet.view().unwrap().hosts["b"].alive);
        assert!(matches!(fleet.reserve(&owner, "g1", "g1", GIB, "b", None), Err(FleetError::Lost(_))));
    }
}

#[test]
fn two_drains_at_the_same_time_never_overfill_a_host() {
    for kind in Kind::both() {
        let clients: [_; 4] = kind.clients();
        let sources = ["s0", "s1", "s2", "s3"];
        hosts(&clients[0].fleet("x"), &["t0", "t1", "t2"]);
        let got: Vec<usize> = std::thread::scope(|scope| {
            let owners: Vec<_> = sources
                .iter()
                .zip(&clients)
                .map(|(source, client)| {
                    scope.spawn(move || {
                        let fleet = client.fleet(source);
                        // The others may be quicker twenty times.
                        answer(|| fleet.register(&host(source, 8))).unwrap();
                        let record = drain(&format!("d-{source}"), source);
                        let owner = answer(|| fleet.begin(&record)).unwrap();
                        let mut got = 0;
                        for number in 0..12u64 {
                            let (guest, bytes) = (format!("{source}-{number}"), (1 + number % 3) * GIB);
                            let place = ["t0", "t1", "t2"].iter().find(|to| {
                                match answer(|| fleet.reserve(&owner, &guest, &guest, bytes, to, None)) {
                                    Ok(()) => true,
                                    Err(FleetError::NoRoom { .. }) => false,
                                    Err(other) => panic!("{other}"),
                                }
                            });
                            got += usize::from(place.is_some());
                            if number % 4 == 3 {
                                let before = format!("{source}-{}", number - 1);
                                answer(|| fleet.release(&owner, &before)).unwrap();
                            }
                        }
                        got
                    })
                })
                .collect();
            owners.into_iter().map(|owner| owner.join().unwrap()).collect()
        });
        let fleet = clients[0].fleet("x");
        check(&fleet);
        let free: u64 =
            ["t0", "t1", "t2"].iter().map(|to| fleet.view().unwrap().hosts[*to].free_bytes()).sum();
        assert!(got.iter().sum::<usize>() >= 8 && free < 24 * GIB, "{got:?}, {free} bytes free");
    }
}

/// Everything that an owner writes.
fn writes_of(fleet: &Fleet, owner: &Ownership) -> [Result<(), FleetError>; 4] {
    [
        fleet.update(owner, &drain("d1", "a")),
        fleet.reserve(owner, "g2", "g2", GIB, "b", None),
        fleet.release(owner, "g1"),
        fleet.end(owner, &drain("d1", "a")),
    ]
}

#[test]
fn an_owner_that_has_lost_its_drain_writes_nothing_of_it() {
    for kind in Kind::both() {
        let Kind::Etcd(..) = kind else { continue };
        let [first, second, witness] = kind.clients();
        hosts(&witness.fleet("x"), &["b"]);
        let (one, two) = (first.fleet("a"), second.fleet("c"));
        hosts(&one, &["a"]);
        hosts(&two, &["c"]);
        let owner = one.begin(&drain("d1", "a")).unwrap();
        one.reserve(&owner, "g1", "g1", GIB, "b", None).unwrap();
        assert!(one.owns(&owner));
        assert!(matches!(two.take_over("d1"), Err(FleetError::Owned { owner, .. }) if owner == "a"));

        first.end();
        assert!(!one.owns(&owner));
        wait("the end of its lease", || two.view().unwrap().drains["d1"].owner.is_none());
        // Nobody owns it: the former owner writes nothing either.
        for answer in writes_of(&one, &owner) {
            assert!(matches!(answer, Err(FleetError::NotOwner(_))), "{answer:?}");
        }
        let (next, record) = two.take_over("d1").unwrap();
        assert_eq!(record, drain("d1", "a"));
        assert_eq!(two.take_over("d1").unwrap().0, next, "asked again, it is the same");
        let refused = one.take_over("d1");
        assert!(matches!(&refused, Err(FleetError::Owned { owner, .. }) if owner == "c"), "{refused:?}");
        let before = two.view().unwrap();
        for answer in writes_of(&one, &owner) {
            assert!(matches!(answer, Err(FleetError::NotOwner(_))), "{answer:?}");
        }
        assert_eq!(two.view().unwrap(), before);
        for answer in writes_of(&two, &next) {
            answer.unwrap();
        }
        assert_eq!(two.view().unwrap().reservations.keys().collect::<Vec<_>>(), ["g2"]);
    }
}

/// etcd ends a lease later than its client does, and much later when another member leads by then.
#[test]
fn a_drain_that_is_owned_with_a_lease_that_has_ended_is_not_owned_until_it_is_taken_with_the_next() {
    let kind = Kind::Local(tempfile::tempdir().unwrap());
    let client = kind.open();
    let leased = Leased::new(client.store());
    let fleet = fleet(leased.clone(), "a");
    hosts(&fleet, &["a"]);
    let first = fleet.begin(&drain("d1", "a")).unwrap();
    assert!(fleet.owns(&first));
    let written = || client.store().get("owner/d1").unwrap().unwrap().revision;
    let before = written();
    leased.next();
    assert!(!fleet.owns(&first));
    let (second, _) = fleet.take_over("d1").unwrap();
    assert!(fleet.owns(&second) && !fleet.owns(&first));
    assert!(written() > before, "it would vanish with the lease that has ended");
    let before = written();
    assert_eq!(fleet.take_over("d1").unwrap().0, second);
    assert_eq!(written(), before);
    // It ends as soon as the owner is written.
    hosts(&fleet, &["b"]);
    leased.ends.store(true, std::sync::atomic::Ordering::Relaxed);
    let third = fleet.begin(&drain("d2", "b")).unwrap();
    assert!(!fleet.owns(&third));
    let (fourth, _) = fleet.take_over("d2").unwrap();
    assert!(fleet.owns(&fourth));
}

#[test]
fn an_owner_writes_of_its_own_drain_and_host_whatever_its_record_says() {
    let kind = Kind::Local(tempfile::tempdir().unwrap());
    let fleet = kind.open().fleet("a");
    hosts(&fleet, &["a", "b"]);
    let (one, other) = (fleet.begin(&drain("d1", "a")).unwrap(), fleet.begin(&drain("d2", "b")).unwrap());
    fleet.update(&one, &drain("d2", "b")).unwrap();
    assert_eq!(fleet.drain("d1").unwrap(), Some(drain("d1", "a")));
    // Said to have ended, it has ended.
    fleet.update(&one, &DrainRecord { state: DrainState::Ended, ..drain("d2", "b") }).unwrap();
    let view = fleet.view().unwrap();
    assert_eq!((&view.hosts["a"].drain, view.hosts["b"].drain.as_deref()), (&None, Some("d2")));
    assert_eq!(view.drains["d1"].record, DrainRecord { state: DrainState::Ended, ..drain("d1", "a") });
    assert!(view.drains["d1"].owner.is_none() && fleet.uncordon("a").unwrap());
    fleet.update(&other, &drain("d2", "b")).unwrap();
}

#[test]
fn a_store_that_never_answers_is_said_to_be_that() {
    let kind = Kind::Local(tempfile::tempdir().unwrap());
    let client = kind.open();
    let fleet: Fleet = fleet(Lossy::new(client.store(), |_| Loss::Question) as Arc<_>, "a");
    let refused = fleet.register(&host("a", 8));
    assert!(matches!(refused, Err(FleetError::Store(StoreError::Unknown(_)))), "{refused:?}");
}

#[test]
fn an_agent_that_starts_again_takes_its_drain_up() {
    for kind in Kind::both() {
        let client = kind.open();
        let fleet = client.fleet("a");
        hosts(&fleet, &["a", "b"]);
        let owner = fleet.begin(&drain("d1", "a")).unwrap();
        fleet.reserve(&owner, "g1", "g1", GIB, "b", None).unwrap();
        drop(fleet);
        client.end();
        let again = kind.open().fleet("a");
        wait("the end of its lease", || again.view().unwrap().drains["d1"].owner.is_none());
        hosts(&again, &["a", "b"]);
        let (now, record) = again.take_over("d1").unwrap();
        assert_eq!(record.state, DrainState::Running);
        assert_eq!(again.view().unwrap().reservations["g1"].host, "b");
        again.release(&now, "g1").unwrap();
        again.end(&now, &record).unwrap();
        check(&again);
    }
}

/// The agent that ends a lost host's drain is interrupted, and the host comes back meanwhile.
#[test]
fn a_drain_that_was_taken_over_and_not_ended_is_still_left_behind() {
    for kind in Kind::both() {
        let [client, second, third] = kind.clients();
        let lost = client.fleet("a");
        hosts(&lost, &["a"]);
        let [helper, other] = [second.fleet("b"), third.fleet("c")];
        hosts(&helper, &["b"]);
        hosts(&other, &["c"]);
        lost.begin(&drain("d1", "a")).unwrap();
        assert_eq!(helper.left_behind().unwrap(), []);
        let store = second.store();
        let gone = |key: &str| Write::Delete(key.to_owned());
        let writes = vec![gone("owner/d1"), gone("alive/a")];
        store.commit(&Transaction { conditions: Vec::new(), writes }).unwrap();
        let left = [("d1".to_owned(), "a".to_owned())];
        assert_eq!(
            (helper.left_behind().unwrap(), other.left_behind().unwrap()),
            (left.to_vec(), left.to_vec())
        );
        let (owner, record) = helper.take_over("d1").unwrap();
        hosts(&lost, &["a"]);
        assert!(matches!(lost.take_over("d1"), Err(FleetError::Owned { owner, .. }) if owner == "b"));
        assert_eq!((helper.left_behind().unwrap(), other.left_behind().unwrap()), (left.to_vec(), vec![]));
        helper.end(&owner, &record).unwrap();
        assert_eq!(helper.left_behind().unwrap(), []);
        assert!(matches!(lost.take_over("d1"), Err(FleetError::HasEnded(_))));
    }
}

#[test]
fn a_host_that_never_comes_back_is_forgotten_with_all_that_was_kept_for_it() {
    for kind in Kind::both() {
        let [client, other] = kind.clients();
        let (fleet, lost) = (client.fleet("a"), other.fleet("b"));
        hosts(&fleet, &["a"]);
        hosts(&lost, &["b"]);
        let owner = lost.begin(&drain("d1", "b")).unwrap();
        assert!(matches!(fleet.forget_host("b"), Err(FleetError::Draining { drain, .. }) if drain == "d1"));
        lost.end(&owner, &drain("d1", "b")).unwrap();
        lost.uncordon("b").unwrap();
        lost.set_elsewhere(Some(&serde_json::json!(["web"]))).unwrap();
        let owner = fleet.begin(&drain("d2", "a")).unwrap();
        fleet.reserve(&owner, "g1", "db", GIB, "b", None).unwrap();
        assert!(matches!(fleet.forget_host("b"), Err(FleetError::Draining { host, .. }) if host == "a"));
        // In doubt: its reservation stays.
        fleet.end(&owner, &drain("d2", "a")).unwrap();
        lost.cordon("b", "ben", 1).unwrap();
        let before = fleet.view().unwrap();
        assert!(matches!(fleet.forget_host("b"), Err(FleetError::Runs(host)) if host == "b"));
        assert_eq!(fleet.view().unwrap(), before);

        client.store().commit(&without("alive/b")).unwrap();
        fleet.forget_host("b").unwrap();
        let keys: Vec<String> = client.store().list("").unwrap().into_iter().map(|entry| entry.key).collect();
        assert_eq!(keys, ["alive/a", "cordon/a", "drain/d2", "host/a"]);
        assert!(matches!(fleet.forget_host("b"), Err(FleetError::NoHost(host)) if host == "b"));
        check(&fleet);
        hosts(&lost, &["b"]);
        let back = fleet.view().unwrap().hosts["b"].clone();
        assert!(back.alive && back.cordon.is_none() && back.reserved_bytes == 0, "{back:?}");
    }
}

#[test]
fn what_is_kept_of_a_host_goes_along_when_it_is_renamed() {
    let kind = Kind::Local(tempfile::tempdir().unwrap());
    let before = kind.open().fleet("a");
    hosts(&before, &["a"]);
    let owner = before.begin(&drain("d1", "a")).unwrap();
    before.end(&owner, &drain("d1", "a")).unwrap();
    before.begin(&drain("d2", "a")).unwrap();
    let guests = serde_json::json!(["web"]);
    before.set_elsewhere(Some(&guests)).unwrap();
    drop(before);

    let renamed = kind.open().fleet("b");
    hosts(&renamed, &["b"]);
    renamed.renamed("b").unwrap();
    let view = renamed.view().unwrap();
    assert!(view.hosts["b"].cordon.is_some());
    let of = |id: &str| view.drains[id].record.host.as_str();
    assert_eq!((of("d1"), of("d2")), ("b", "a"), "one that is open is ended first");
    assert_eq!(renamed.elsewhere().unwrap(), Some(guests.clone()));
    renamed.renamed("b").unwrap();
    assert_eq!(renamed.view().unwrap(), view);
    // Who forgets the earlier name does not forget these.
    let (owner, open) = renamed.take_over("d2").unwrap();
    renamed.end(&owner, &open).unwrap();
    renamed.renamed("b").unwrap();
    renamed.forget_host("a").unwrap();
    assert_eq!(renamed.view().unwrap().drains.len(), 2);
    assert_eq!(renamed.elsewhere().unwrap(), Some(guests));
}

#[test]
fn a_reservation_in_doubt_stays_until_it_is_settled() {
    let kind = Kind::Local(tempfile::tempdir().unwrap());
    let fleet = kind.open().fleet("a");
    hosts(&fleet, &["a", "b"]);
    let owner = fleet.begin(&drain("d1", "a")).unwrap();
    fleet.reserve(&owner, "g1", "g1", GIB, "b", None).unwrap();
    assert!(matches!(fleet.settle("g1"), Err(FleetError::Draining { .. })));
    fleet.end(&owner, &drain("d1", "a")).unwrap();
    assert_eq!(fleet.view().unwrap().hosts["b"].reserved_bytes, GIB);
    fleet.settle("g1").unwrap();
    fleet.settle("g1").unwrap();
    assert_eq!(fleet.view().unwrap().hosts["b"].reserved_bytes, 0);
    check(&fleet);
}

/// The store does not say whether it has written: each operation happens once all the same.
#[test]
fn what_the_store_did_not_answer_happens_once() {
    let rules: [fn(u64) -> Loss; 3] = [
        |number| if number % 2 == 0 { Loss::Answer } else { Loss::Nothing },
        |number| if number % 2 == 0 { Loss::Question } else { Loss::Nothing },
        |number| [Loss::Answer, Loss::Question, Loss::Nothing, Loss::Question][number as usize % 4],
    ];
    for rule in rules {
        let kind = Kind::Local(tempfile::tempdir().unwrap());
        let client = kind.open();
        let fleet: Fleet = fleet(Lossy::new(client.store(), rule) as Arc<_>, "a");
        hosts(&fleet, &["a", "b"]);
        assert!(fleet.cordon("a", "root", 1).is_ok());
        let owner = fleet.begin(&drain("d1", "a")).unwrap();
        for guest in ["g1", "g2", "g3"] {
            fleet.reserve(&owner, guest, guest, GIB, "b", None).unwrap();
        }
        assert_eq!(fleet.view().unwrap().hosts["b"].reserved_bytes, 3 * GIB);
        fleet.release(&owner, "g1").unwrap();
        fleet.update(&owner, &drain("d1", "a")).unwrap();
        assert_eq!(fleet.view().unwrap().hosts["b"].reserved_bytes, 2 * GIB);
        fleet.end(&owner, &drain("d1", "a")).unwrap();
        fleet.uncordon("a").unwrap();
        fleet.settle("g2").unwrap();
        check(&fleet);
        assert_eq!(fleet.view().unwrap().hosts["b"].reserved_bytes, GIB);
        fleet.begin(&drain("d2", "a")).unwrap();
    }
}

#[test]
fn a_damaged_entry_is_named() {
    let kind = Kind::Local(tempfile::tempdir().unwrap());
    let client = kind.open();
    let fleet = client.fleet("a");
    let damaged = linerate_store::Write::Put { key: "host/a".into(), value: b"{".to_vec(), leased: false };
    let transaction = linerate_store::Transaction { conditions: Vec::new(), writes: vec![damaged] };
    client.store().commit(&transaction).unwrap();
    let error = fleet.view().unwrap_err();
    assert!(error.to_string().contains("host/a"), "{error}");
}
