//! An etcd cluster of three members that loses some or all of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{End, GIB, answer, check, drain, etcd, fleet, host, is_transient, wait};
use linerate_lab::etcd::Cluster;
use linerate_store::Store;
use linerate_store::fleet::{Fleet, FleetError, Ownership};

/// The tests of its end wait for that; longer than a busy machine delays etcd.
const LEASE: Duration = Duration::from_secs(12);

/// Owns a drain and reserves and releases at two hosts, until that is over. How often the store had no answer.
fn own_until(over: &AtomicBool, fleet: &Fleet, source: &str, answers: &AtomicU64) -> (Ownership, u64) {
    let owner = answer(|| fleet.begin(&drain(source, source))).unwrap();
    let (mut number, mut failures) = (0u64, 0u64);
    while !over.load(Ordering::Relaxed) {
        number += 1;
        let guest = format!("{source}-{}", number % 30);
        let host = ["t0", "t1"][number as usize % 2];
        let done = match number % 60 < 30 {
            true => fleet.reserve(&owner, &guest, &guest, 2 * GIB, host, None),
            false => fleet.release(&owner, &guest),
        };
        match done {
            Ok(()) => drop(answers.fetch_add(1, Ordering::Relaxed)),
            Err(FleetError::NoRoom { .. } | FleetError::Reserved { .. }) => {}
            Err(error) if is_transient(&error) => failures += 1,
            Err(other) => panic!("{other}"),
        }
    }
    (owner, failures)
}

/// Two are killed and two frozen, one after another; all of them are back at the end.
fn kill_and_freeze_leaders(cluster: &mut Cluster) {
    for round in 0..4 {
        let leader = cluster.wait_for_leader().unwrap();
        std::thread::sleep(Duration::from_secs(2));
        match round % 2 {
            0 => cluster.kill(leader).unwrap(),
            _ => cluster.freeze(leader).unwrap(),
        }
        std::thread::sleep(Duration::from_secs(4));
        match round % 2 {
            0 => cluster.begin(leader).unwrap(),
            _ => cluster.thaw(leader).unwrap(),
        }
    }
    cluster.wait_for_leader().unwrap();
}

#[test]
fn a_leader_that_is_killed_or_frozen_overfills_nothing_and_loses_no_drain() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(folder.path(), 3).unwrap();
    // A lease that outlives an election on a busy machine: no owner loses its drain here.
    let client = |name: &str| fleet(Arc::new(etcd(cluster.endpoints(), Duration::from_secs(60))), name);
    let fleets: Vec<Fleet> = ["s0", "s1"].iter().map(|name| client(name)).collect();
    for (number, name) in [(0, "s0"), (1, "s1"), (0, "t0"), (0, "t1")] {
        answer(|| fleets[number].register(&host(name, 40))).unwrap();
    }
    let over = AtomicBool::new(false);
    let answers = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        let end = End(&over);
        let owners: Vec<_> = fleets
            .iter()
            .zip(["s0", "s1"])
            .zip(&answers)
            .map(|((fleet, source), answers)| {
                let over = &over;
                scope.spawn(move || own_until(over, fleet, source, answers))
            })
            .collect();
        kill_and_freeze_leaders(&mut cluster);
        let before = answers.each_ref().map(|answers| answers.load(Ordering::Relaxed));
        wait("more answers", || {
            answers.iter().zip(before).all(|(now, before)| now.load(Ordering::Relaxed) > before + 20)
        });
        drop(end);
        for ((owner, fleet), answers) in owners.into_iter().zip(&fleets).zip(&answers) {
            let (owner, failures) = owner.join().unwrap();
            println!("{}: {answers:?} answers, {failures} without", owner.drain());
            wait("an answer", || fleet.update(&owner, &drain(owner.drain(), owner.drain())).is_ok());
            assert!(fleet.owns(&owner));
        }
    });
    check(&fleets[0]);
}

#[test]
fn a_cluster_that_was_away_as_a_whole_has_all_but_what_was_leased() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(folder.path(), 3).unwrap();
    let store = Arc::new(etcd(cluster.endpoints(), LEASE));
    let fleet = fleet(store.clone(), "a");
    answer(|| fleet.register(&host("a", 8))).unwrap();
    answer(|| fleet.register(&host("b", 8))).unwrap();
    let owner = answer(|| fleet.begin(&drain("d1", "a"))).unwrap();
    answer(|| fleet.reserve(&owner, "g1", "g1", GIB, "b", None)).unwrap();
    let lease = store.lease().unwrap();

    (0..3).try_for_each(|number| cluster.kill(number)).unwrap();
    wait("the end of the lease", || store.lease().is_none());
    assert!(!fleet.owns(&owner), "without the store's word an owner starts nothing");
    let answers =
        [fleet.reserve(&owner, "g2", "g2", GIB, "b", None), fleet.update(&owner, &drain("d1", "a"))];
    for answer in answers {
        assert!(answer.as_ref().is_err_and(is_transient), "{answer:?}");
    }

    (0..3).try_for_each(|number| cluster.begin(number)).unwrap();
    cluster.wait_for_leader().unwrap();
    wait("another lease", || store.lease().is_some_and(|now| now != lease));
    assert!(!fleet.owns(&owner), "it was owned with the lease before");
    wait("the end of what was leased", || fleet.view().is_ok_and(|view| view.drains["d1"].owner.is_none()));
    let late = answer(|| fleet.update(&owner, &drain("d1", "a")));
    assert!(matches!(late, Err(FleetError::NotOwner(_))), "{late:?}");
    let view = answer(|| fleet.view()).unwrap();
    assert_eq!(view.reservations["g1"].host, "b");
    assert!(!view.hosts["b"].alive && view.hosts["a"].cordon.is_some());
    answer(|| fleet.register(&host("a", 8))).unwrap();
    answer(|| fleet.register(&host("b", 8))).unwrap();
    let (now, _) = answer(|| fleet.take_over("d1")).unwrap();
    answer(|| fleet.reserve(&now, "g2", "g2", GIB, "b", None)).unwrap();
    check(&fleet);
}

#[test]
fn a_member_that_is_cut_off_with_its_client_loses_the_drain_to_the_majority() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(folder.path(), 3).unwrap();
    let leader = cluster.wait_for_leader().unwrap();
    let minority = (leader + 1) % 3;
    // This client knows one member alone.
    let store = Arc::new(etcd(vec![cluster.endpoints()[minority].clone()], LEASE));
    let one = fleet(store.clone(), "a");
    // It asks the member that hangs, too, and keeps its lease meanwhile.
    let two = fleet(Arc::new(etcd(cluster.endpoints(), Duration::from_secs(120))), "b");
    answer(|| one.register(&host("a", 8))).unwrap();
    answer(|| two.register(&host("b", 8))).unwrap();
    let owner = answer(|| one.begin(&drain("d1", "a"))).unwrap();
    cluster.freeze(minority).unwrap();
    wait("the end of its lease", || !one.owns(&owner));
    wait("the drain at the other", || two.take_over("d1").is_ok());
    cluster.thaw(minority).unwrap();
    wait("an answer of the member", || store.get("host/a").is_ok());
    let late = answer(|| one.update(&owner, &drain("d1", "a")));
    assert!(matches!(late, Err(FleetError::NotOwner(_))), "{late:?}");
    let taken = answer(|| one.take_over("d1"));
    assert!(matches!(&taken, Err(FleetError::Owned { owner, .. }) if owner == "b"), "{taken:?}");
}
