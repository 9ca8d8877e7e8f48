//! What another agent does between the reads of an operation and its write counts.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::sync::Arc;

use common::{Client, GIB, Kind, Meanwhile, check, drain, fleet, host, with_guests};
use linerate_store::fleet::{Fleet, FleetError, Ownership};
use linerate_store::{Store, Transaction, Write};

/// Agent of host `a`, which owns drain `d1` of it; hosts `b` and `c` have 8 GiB each.
struct Scene {
    meanwhile: Arc<Meanwhile>,
    fleet: Fleet,
    owner: Ownership,
    client: Client,
    _kind: Kind,
}

fn scene() -> Scene {
    let kind = Kind::Local(tempfile::tempdir().unwrap());
    let client = kind.open();
    let meanwhile = Meanwhile::new(client.store());
    let fleet = fleet(meanwhile.clone(), "a");
    for name in ["a", "b", "c"] {
        fleet.register(&host(name, 8)).unwrap();
    }
    let owner = fleet.begin(&drain("d1", "a")).unwrap();
    Scene { meanwhile, fleet, owner, client, _kind: kind }
}

impl Scene {
    fn reserve(&self, gib: u64) -> Result<(), FleetError> {
        let done = self.fleet.reserve(&self.owner, "g1", "g1", gib * GIB, "b", None);
        assert!(self.meanwhile.has_happened());
        check(&self.fleet);
        done
    }

    fn removes(&self, key: &str) {
        let (store, key) = (self.client.store(), key.to_owned());
        self.meanwhile.next(move |_| remove(&*store, &key));
    }
}

fn remove(store: &dyn Store, key: &str) {
    let writes = vec![Write::Delete(key.to_owned())];
    store.commit(&Transaction { conditions: Vec::new(), writes }).unwrap();
}

#[test]
fn the_destination_is_cordoned() {
    let scene = scene();
    scene.meanwhile.next(|other| assert!(other.cordon("b", "anna", 1).unwrap()));
    assert!(matches!(scene.reserve(1), Err(FleetError::Cordoned { .. })));
}

#[test]
fn the_destination_gets_another_guest() {
    let scene = scene();
    // By the same agent: an instance has its host's name.
    let (store, instance) = (scene.client.store(), "own");
    remove(&*store, "alive/b");
    let own = Fleet::new(store, "b", instance).unwrap();
    own.register(&host("b", 8)).unwrap();
    scene.meanwhile.next(move |_| own.register(&with_guests(host("b", 8), &[("x", 6)])).unwrap());
    assert!(matches!(scene.reserve(3), Err(FleetError::NoRoom { free_bytes, .. }) if free_bytes == 2 * GIB));
}

#[test]
fn the_guest_arrives_by_another_way() {
    let scene = scene();
    remove(&*scene.client.store(), "alive/b");
    let own = Fleet::new(scene.client.store(), "b", "own").unwrap();
    own.register(&host("b", 8)).unwrap();
    scene.meanwhile.next(move |_| own.register(&with_guests(host("b", 8), &[("g1", 1)])).unwrap());
    assert!(matches!(scene.reserve(1), Err(FleetError::Place { is_there: true, .. })));
}

#[test]
fn another_drain_takes_the_memory() {
    let scene = scene();
    scene.meanwhile.next(|other| {
        let owner = other.begin(&drain("d2", "c")).unwrap();
        other.reserve(&owner, "g9", "g9", 6 * GIB, "b", None).unwrap();
    });
    assert!(matches!(scene.reserve(3), Err(FleetError::NoRoom { free_bytes, .. }) if free_bytes == 2 * GIB));
}

/// Each way in which a guest that must be apart comes to the destination between the reads and the write.
#[test]
fn a_guest_that_must_be_apart_comes_meanwhile() {
    for way in ["reservation", "guest", "domain"] {
        let scene = scene();
        remove(&*scene.client.store(), "alive/b");
        let own = Fleet::new(scene.client.store(), "b", "own").unwrap();
        own.register(&host("b", 8)).unwrap();
        scene.meanwhile.next(move |other| {
            let mut record = with_guests(host("b", 8), &[("g8", 1)]);
            match way {
                "reservation" => {
                    let owner = other.begin(&drain("d2", "c")).unwrap();
                    other.reserve(&owner, "g9", "db-2", GIB, "b", None).unwrap();
                }
                "guest" => record.guests.get_mut("g8").unwrap().name = "db-2".into(),
                _ => drop(record.domains.insert("g9".into(), "db-2".into())),
            }
            own.register(&record).unwrap();
        });
        let reserve = |begins: &str| {
            let apart = |name: &str| name.starts_with(begins);
            scene.fleet.reserve(&scene.owner, "g1", "db-1", GIB, "b", Some(&apart))
        };
        let refused = reserve("db-");
        assert!(scene.meanwhile.has_happened());
        assert!(matches!(refused, Err(FleetError::Apart { other, .. }) if other == "db-2"), "{way}");
        check(&scene.fleet);
        reserve("web-").unwrap();
        // It has its reservation there, from which it is not apart itself.
        reserve("db-1").unwrap();
    }
}

#[test]
fn another_drain_reserves_for_the_guest() {
    for to in ["b", "c"] {
        let scene = scene();
        scene.fleet.register(&host("d", 8)).unwrap();
        scene.meanwhile.next(move |other| {
            let owner = other.begin(&drain("d2", "d")).unwrap();
            other.reserve(&owner, "g1", "g1", GIB, to, None).unwrap();
        });
        let refused = scene.reserve(1);
        assert!(matches!(refused, Err(FleetError::Reserved { by, .. }) if by.drain == "d2"), "{to}");
    }
}

#[test]
fn the_destination_is_lost() {
    let scene = scene();
    scene.removes("alive/b");
    assert!(matches!(scene.reserve(1), Err(FleetError::Lost(_))));
}

type Deed = fn(&Scene) -> Result<(), FleetError>;

#[test]
fn the_owner_is_lost() {
    let deeds: [Deed; 5] = [
        |scene| scene.reserve(1),
        |scene| scene.fleet.update(&scene.owner, &drain("d1", "a")),
        |scene| scene.fleet.release(&scene.owner, "g0"),
        |scene| scene.fleet.arrived(&scene.owner, "g0"),
        |scene| scene.fleet.end(&scene.owner, &drain("d1", "a")),
    ];
    for (number, deed) in deeds.into_iter().enumerate() {
        let scene = scene();
        scene.fleet.reserve(&scene.owner, "g0", "g0", GIB, "c", None).unwrap();
        if number == 3 {
            remove(&*scene.client.store(), "host/c");
        }
        scene.removes("owner/d1");
        let before = scene.fleet.view().unwrap();
        assert!(matches!(deed(&scene), Err(FleetError::NotOwner(_))), "deed {number}");
        let after = scene.fleet.view().unwrap();
        assert_eq!(after.reservations, before.reservations, "deed {number}");
        assert_eq!(after.drains["d1"].record, before.drains["d1"].record, "deed {number}");
    }
}

#[test]
fn the_drain_is_taken_by_another() {
    let scene = scene();
    remove(&*scene.client.store(), "owner/d1");
    scene.meanwhile.next(|other| drop(other.take_over("d1").unwrap()));
    assert!(matches!(scene.fleet.take_over("d1"), Err(FleetError::Owned { owner, .. }) if owner == "other"));
    assert!(matches!(scene.fleet.update(&scene.owner, &drain("d1", "a")), Err(FleetError::NotOwner(_))));
}

#[test]
fn the_drain_ends_before_it_is_taken() {
    let scene = scene();
    remove(&*scene.client.store(), "owner/d1");
    scene.meanwhile.next(|other| {
        let (owner, record) = other.take_over("d1").unwrap();
        other.end(&owner, &record).unwrap();
    });
    assert!(matches!(scene.fleet.take_over("d1"), Err(FleetError::HasEnded(_))));
}

#[test]
fn another_drain_of_the_host_begins() {
    for is_cordoned in [false, true] {
        let scene = scene();
        if is_cordoned {
            scene.fleet.cordon("c", "anna", 1).unwrap();
        }
        scene.meanwhile.next(|other| drop(other.begin(&drain("d2", "c")).unwrap()));
        let refused = scene.fleet.begin(&drain("d3", "c"));
        assert!(matches!(refused, Err(FleetError::Draining { drain, .. }) if drain == "d2"), "{is_cordoned}");
        assert!(scene.fleet.drain("d3").unwrap().is_none());
    }
}

#[test]
fn a_drain_begins_while_its_host_is_released() {
    let scene = scene();
    scene.fleet.cordon("c", "anna", 1).unwrap();
    scene.meanwhile.next(|other| drop(other.begin(&drain("d2", "c")).unwrap()));
    assert!(matches!(scene.fleet.uncordon("c"), Err(FleetError::Draining { .. })));
    assert!(scene.fleet.view().unwrap().hosts["c"].cordon.is_some());
}

#[test]
fn a_cordon_goes_while_a_drain_begins() {
    let scene = scene();
    scene.fleet.cordon("c", "anna", 1).unwrap();
    scene.meanwhile.next(|other| assert!(other.uncordon("c").unwrap()));
    scene.fleet.begin(&drain("d2", "c")).unwrap();
    let cordon = scene.fleet.view().unwrap().hosts["c"].cordon.clone();
    assert_eq!(cordon.unwrap().drain.as_deref(), Some("d2"));
}

#[test]
fn another_agent_takes_the_name() {
    let scene = scene();
    remove(&*scene.client.store(), "alive/b");
    scene.meanwhile.next(|other| other.register(&host("b", 4)).unwrap());
    assert!(matches!(scene.fleet.register(&host("b", 8)), Err(FleetError::NameTaken(_))));
    assert_eq!(scene.fleet.view().unwrap().hosts["b"].record.memory_bytes, 4 * GIB);
}

#[test]
fn another_agent_gets_this_hosts_name() {
    let deeds: [Deed; 4] = [
        |scene| scene.fleet.cordon("c", "anna", 1).map(drop),
        |scene| scene.fleet.uncordon("a").map(drop),
        |scene| scene.fleet.begin(&drain("d2", "c")).map(drop),
        |scene| scene.fleet.take_over("d1").map(drop),
    ];
    for (number, deed) in deeds.into_iter().enumerate() {
        let scene = scene();
        if number == 1 {
            scene.fleet.end(&scene.owner, &drain("d1", "a")).unwrap();
        }
        remove(&*scene.client.store(), "owner/d1");
        let before = scene.fleet.view().unwrap();
        let store = scene.client.store();
        scene.meanwhile.next(move |_| {
            remove(&*store, "alive/a");
            fleet(store.clone(), "a").register(&host("a", 8)).unwrap();
        });
        let refused = deed(&scene);
        assert!(matches!(refused, Err(FleetError::NameTaken(_))), "deed {number}: {refused:?}");
        let mut after = scene.fleet.view().unwrap();
        after.hosts.remove("other");
        assert_eq!(after, before, "deed {number}");
    }
}

#[test]
fn another_reservation_changes_while_one_is_given_up() {
    let scene = scene();
    scene.fleet.reserve(&scene.owner, "g0", "g0", GIB, "b", None).unwrap();
    scene.meanwhile.next(|other| {
        let owner = other.begin(&drain("d2", "c")).unwrap();
        other.reserve(&owner, "g9", "g9", 6 * GIB, "b", None).unwrap();
    });
    scene.fleet.release(&scene.owner, "g0").unwrap();
    check(&scene.fleet);
    assert_eq!(scene.fleet.view().unwrap().hosts["b"].reserved_bytes, 6 * GIB);
    scene.fleet.end(&scene.owner, &drain("d1", "a")).unwrap();
}

#[test]
fn settling_one_reservation_twice_at_once_succeeds_for_both() {
    let scene = scene();
    scene.fleet.reserve(&scene.owner, "g0", "g0", GIB, "b", None).unwrap();
    scene.fleet.reserve(&scene.owner, "g1", "g1", GIB, "b", None).unwrap();
    scene.fleet.end(&scene.owner, &drain("d1", "a")).unwrap();
    scene.meanwhile.next(|other| other.settle("g0").unwrap());
    scene.fleet.settle("g0").unwrap();
    check(&scene.fleet);
    assert_eq!(scene.fleet.view().unwrap().hosts["b"].reserved_bytes, GIB);
}
