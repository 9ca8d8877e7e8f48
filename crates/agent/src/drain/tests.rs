//! A drain from its beginning to when it is forgotten.

use std::sync::Arc;

use linerate_core::SessionId;
use linerate_store::StoreError;
use linerate_store::local::Local;
use tempfile::TempDir;
use tokio::runtime::{Handle, Runtime};

use super::begin::{forget_old, look_again, may_have_begun, settle_known, unsure};
use super::*;
use crate::testing::wait;

/// A drain that goes on.
pub(super) fn record(id: &str, host: &str) -> DrainRecord {
    let kept = owner::kept(&DrainRequest::default(), &leaving::Unseen::default());
    DrainRecord {
        id: id.into(),
        host: host.into(),
        by: "anna".into(),
        state: Stored::Running,
        settings: serde_json::to_value(&kept).unwrap(),
        guests: BTreeMap::new(),
        begun_ms: 1,
        ended_ms: None,
    }
}

/// A guest of a drain, as the store has it.
pub(super) fn guest(name: &str, uuid: &str, state: &str, to: Option<&str>) -> serde_json::Value {
    serde_json::json!({
        "guest": name, "uuid": uuid, "state": state, "to": to, "memory_bytes": 1, "copy_bytes": 1,
        "copied_bytes": 0, "rate_bytes_per_s": 0, "write_rate_bytes_per_s": 0, "tries": [],
    })
}

/// A drain of a host that has ended, under a cordon of its own. Its guests went to `b`. Only of `web` it is known in
/// which migration.
pub(super) fn drained(agent: &Agent, number: u64, to: &[String], moved: &[&str]) {
    let fleet = agent.fleet.fleet().unwrap();
    let request = DrainRequest { to: to.to_vec(), ..DrainRequest::default() };
    let kept = Kept {
        cordoned_ms: Some(number),
        order: number,
        ..owner::kept(&request, &leaving::Unseen::default())
    };
    let guest = |name: &&str| {
        let mut guest = guest(name, name, "moved", Some("b"));
        guest["migration"] = (*name == "web").then(|| SessionId([1; 16]).to_string()).into();
        ((*name).to_owned(), guest)
    };
    let record = DrainRecord {
        settings: serde_json::to_value(&kept).unwrap(),
        guests: moved.iter().map(guest).collect(),
        begun_ms: number,
        ..record(&format!("d{number}"), &agent.config.name)
    };
    let owner = fleet.begin(&record).unwrap();
    fleet.end(&owner, &record).unwrap();
}

/// A host whose agent has begun no drain yet.
struct Stage {
    fleet: Fleet,
    drains: Arc<Drains>,
    agent: Arc<Agent>,
    runtime: Runtime,
    _dir: TempDir,
}

impl Stage {
    fn new() -> Stage {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        Stage {
            fleet: agent.fleet.fleet().unwrap(),
            drains: Arc::default(),
            agent,
            runtime: Runtime::new().unwrap(),
            _dir: dir,
        }
    }

    /// A drain of this host that goes on.
    fn record(&self) -> DrainRecord {
        record("d1", &self.agent.config.name)
    }

    fn stored(&self) -> DrainRecord {
        self.fleet.drain("d1").unwrap().unwrap()
    }

    fn shown(&self) -> DrainDetail {
        show(&self.agent, &self.drains, "d1").unwrap()
    }

    fn steer(&self, order: DrainOrder) -> Answer<DrainDetail> {
        steer(&self.agent, &self.drains, "d1", order)
    }

    fn tasks(&self) -> Handle {
        self.runtime.handle().clone()
    }
}

#[test]
fn a_drain_that_may_have_begun_is_gone_on_with_if_the_store_has_it() {
    let stage = Stage::new();
    // As if the answer was lost.
    stage.fleet.begin(&stage.record()).unwrap();
    look_again(&stage.agent, &stage.drains, stage.tasks(), "d1");
    wait("nobody works on it", || stage.stored().state == Stored::Ended);
    assert!(stage.drains.open.lock().is_some());
}

#[test]
fn whoever_watches_an_undrain_does_not_wait_for_one_that_waits_for_the_store() {
    let stage = Stage::new();
    drained(&stage.agent, 1, &[], &[]);
    // Orders wait until the host takes part in its fleet.
    stage.agent.fleet.note(Some("by the test".into()));
    std::thread::scope(|scope| {
        let begun = scope.spawn(|| undrain::begin(&stage.agent, &stage.drains, stage.tasks(), None));
        wait("who watches waits too", || {
            stage.drains.changing.try_lock().is_none() && stage.drains.undrain.try_lock().is_some()
        });
        stage.agent.fleet.note(None);
        begun.join().unwrap().unwrap();
    });
    wait("the undrain does not end", || undrain::show(&stage.drains).unwrap().over);
}

#[test]
fn a_drain_that_was_open_when_the_host_was_renamed_is_ended_and_keeps_no_memory() {
    let stage = Stage::new();
    for name in ["earlier", "b"] {
        let record = HostRecord { name: name.into(), memory_bytes: 8, ..HostRecord::default() };
        stage.fleet.register(&record).unwrap();
    }
    let mut open = record("d1", "earlier");
    open.guests.insert("u1".into(), guest("web", "u1", "prepared", Some("b")));
    open.guests.insert("u2".into(), guest("db", "u2", "moved", Some("b")));
    let owner = stage.fleet.begin(&open).unwrap();
    stage.fleet.reserve(&owner, "u1", "web", 1, "b", None).unwrap();
    resume(&stage.agent, &stage.drains, stage.tasks());
    wait("it stays open", || stage.stored().state == Stored::Ended);
    wait("no undrain finds it", || stage.stored().host == stage.agent.config.name);
    let (_, coming) = undrain::to_come(&stage.agent, &stage.fleet).unwrap();
    let names: Vec<&str> = coming.guests.iter().map(|one| one.guest.as_str()).collect();
    assert_eq!(names, ["db"]);
    let stored = stage.stored();
    let web = &stored.guests["u1"];
    assert_eq!(web["state"], "failed");
    assert!(web["reason"].as_str().unwrap().contains("host earlier is called"), "{web}");
    assert_eq!(stage.fleet.reserved_at("b").unwrap(), [""; 0]);
    assert_eq!(stage.fleet.view().unwrap().hosts["earlier"].drain, None);
}

/// A guest as a later release may write it.
fn unknown_guest() -> serde_json::Value {
    serde_json::json!({ "guest": "web", "uuid": "u1", "state": "of another release" })
}

#[test]
fn a_drain_that_cannot_be_read_is_shown_with_what_to_do_and_can_be_ended() {
    let stage = Stage::new();
    let mut damaged = stage.record();
    damaged.settings = serde_json::json!({ "request": 7 });
    damaged.guests.insert("u1".into(), unknown_guest());
    stage.fleet.begin(&damaged).unwrap();
    resume(&stage.agent, &stage.drains, stage.tasks());
    let says = |texts: &[String], part: &str| texts.iter().any(|text| text.contains(part));
    let reason = "has not taken the drain up yet: drain d1 cannot be read";
    wait("the reason is not shown", || says(&stage.shown().warnings, reason));
    let open = stage.shown();
    assert!(says(&open.unseen, "linerate drain abort d1") && says(&open.unseen, "of guest web"), "{open:?}");
    stage.steer(DrainOrder::Pause).unwrap_err();
    assert_eq!(stage.shown().state, DrainState::Running);
    let ended = stage.steer(DrainOrder::Abort).unwrap();
    assert!(ended.state == DrainState::Ended && ended.unseen.len() == 2, "not known to be empty: {ended:?}");
    assert_eq!(stage.fleet.view().unwrap().hosts[&stage.agent.config.name].drain, None);
    assert_eq!(stage.stored().guests["u1"], unknown_guest());
    wait("its thread does not end", || stage.drains.not_taken_up.lock().is_none());
}

#[test]
fn a_guest_of_a_drain_that_cannot_be_read_is_named_and_stays_in_the_store() {
    let stage = Stage::new();
    let mut damaged = stage.record();
    damaged.guests.insert("u1".into(), unknown_guest());
    stage.fleet.begin(&damaged).unwrap();
    take_up(&stage.agent, &stage.drains, stage.tasks(), "d1").unwrap();
    wait("the drain does not end", || stage.stored().state == Stored::Ended);
    let stored = stage.stored();
    assert_eq!(stored.guests["u1"], unknown_guest(), "the release that wrote it can read it");
    // As long as this process knows it, and by a later one.
    for shown in [stage.shown(), of_record(&stored)] {
        assert!(shown.unseen.iter().any(|text| text.contains("of guest web")), "{shown:?}");
    }
}

#[test]
fn a_cordon_of_a_drain_becomes_the_operators_who_asks_for_it() {
    let stage = Stage::new();
    let is_by_hand = || stage.agent.fleet.cordon().unwrap().unwrap().by_hand;
    stage.fleet.begin(&stage.record()).unwrap();
    assert!(!is_by_hand());
    stage.agent.fleet.set_cordon("ben").unwrap();
    assert!(is_by_hand());
}

#[test]
fn what_is_said_of_an_order_that_is_not_in_the_store_is_true() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let says = |order, now| not_written(&agent, "d1", order, now).message;
    for (order, now) in [
        (DrainOrder::Pause, DrainState::Paused),
        (DrainOrder::Resume, DrainState::Running),
        (DrainOrder::Abort, DrainState::Aborting),
    ] {
        assert!(says(order, now).contains("the store has not taken the order"), "{order:?}");
    }
    assert!(says(DrainOrder::Abort, DrainState::Running).contains("may have done what was asked"));
}

#[test]
fn a_guest_that_was_only_looked_for_after_a_restart_has_not_begun_to_move_after_the_next() {
    let found = |state: &str, began: Option<&BTreeSet<String>>| {
        let shown = serde_json::from_value(guest("web", "u1", state, Some("b"))).unwrap();
        again(shown, &[], began).began
    };
    // All are shown so that are looked for, those that waited too.
    let (none, one) = (BTreeSet::new(), BTreeSet::from(["u1".to_owned()]));
    assert!(!found("recovering", Some(&none)) && found("recovering", Some(&one)));
    // An earlier release did not write it.
    assert!(found("recovering", None) && found("copying", None) && !found("waiting", None));
}

#[test]
fn what_is_said_of_a_drain_that_may_have_begun_is_true() {
    let unknown = FleetError::Store(StoreError::Unknown("no answer".into()));
    let away = FleetError::Store(StoreError::Away("no answer".into()));
    let open = |drain: &str| FleetError::Draining { host: "a".into(), drain: drain.into() };
    assert!(may_have_begun(&unknown, "d1") && may_have_begun(&open("d1"), "d1"));
    assert!(!may_have_begun(&away, "d1") && !may_have_begun(&open("d2"), "d1"));
    let error = unsure(&unknown, "d1");
    assert!(error.message.contains("Drain d1 may have begun"), "{}", error.message);
    assert!(!error.message.contains("nothing was") && error.hint.contains("linerate drain abort d1"));
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    assert!(of_fleet(&unknown, &agent).message.ends_with("it may have been changed"));
    assert!(of_fleet(&away, &agent).message.ends_with("nothing was changed"));
}

#[test]
fn memory_that_an_earlier_drain_keeps_for_a_guest_in_doubt_is_free_when_it_is_known_where_that_is() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Local::open(&dir.path().join("fleet.redb")).unwrap());
    let fleet = Fleet::new(store, "a", "1").unwrap();
    let host = |name: &str| HostRecord { name: name.into(), memory_bytes: 8, ..HostRecord::default() };
    for name in ["a", "b"] {
        fleet.register(&host(name)).unwrap();
    }
    let owner = fleet.begin(&record("d1", "a")).unwrap();
    for guest in ["came", "back", "domain", "doubted"] {
        fleet.reserve(&owner, guest, guest, 1, "b", None).unwrap();
    }
    let mut there = host("b");
    there.guests.insert("came".into(), linerate_store::fleet::records::GuestRecord::default());
    let here = |key: &str, domain| {
        Member::new(leaving::Leaving { key: key.into(), domain, ..leaving::Leaving::default() })
    };
    let mut destination = Destination::new("b");
    (destination.record, destination.lost) = (Some(there), None);
    let ready = Ready {
        source: host("a"),
        members: vec![here("back", false), here("domain", true)],
        destinations: vec![destination],
        rules: Rules::default(),
        unsettled: BTreeSet::new(),
        arriving: BTreeSet::new(),
        unseen: leaving::Unseen::default(),
        warnings: Vec::new(),
    };
    let reserved = || fleet.view().unwrap().reservations.into_keys().collect::<Vec<_>>();
    settle_known(&fleet, &ready).unwrap();
    assert_eq!(reserved().len(), 4, "the drain is open");
    fleet.end(&owner, &record("d1", "a")).unwrap();
    settle_known(&fleet, &ready).unwrap();
    assert_eq!(reserved(), ["domain", "doubted"]);
}

#[test]
fn a_clock_that_is_set_back_does_not_change_which_drains_belong_together() {
    let drain = |id: &str, begun_ms: u64, settings: serde_json::Value| DrainRecord {
        id: id.into(),
        host: "a".into(),
        by: "anna".into(),
        state: Stored::Ended,
        settings,
        guests: BTreeMap::new(),
        begun_ms,
        ended_ms: None,
    };
    let numbered = |id, begun_ms, cordoned_ms: u64, order: u64| {
        drain(id, begun_ms, serde_json::json!({ "cordoned_ms": cordoned_ms, "order": order }))
    };
    // The third was begun under the second's cordon, after the clock was set back.
    let mut all = [
        numbered("third", 700, 1000, 4),
        numbered("other", 1500, 1500, 2),
        numbered("second", 1000, 1000, 3),
        drain("old", 9000, serde_json::Value::Null),
    ];
    all.sort_by_key(|one| Reverse(order(one)));
    assert_eq!(all.each_ref().map(|one| one.id.as_str()), ["third", "second", "other", "old"]);
    assert_eq!(all.each_ref().map(|one| is_of_cordon(one, 1000)), [true, true, false, true]);
}

#[test]
fn old_drains_are_forgotten_but_for_those_that_an_undrain_needs() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Local::open(&dir.path().join("fleet.redb")).unwrap());
    let fleet = Fleet::new(store, "a", "1").unwrap();
    for name in ["a", "b"] {
        fleet.register(&HostRecord { name: name.into(), ..HostRecord::default() }).unwrap();
    }
    let drain = |n: usize, host: &str| {
        let record = DrainRecord {
            id: format!("{host}{n}"),
            host: host.into(),
            by: "anna".into(),
            state: Stored::Running,
            settings: serde_json::Value::Null,
            guests: BTreeMap::new(),
            begun_ms: n as u64,
            ended_ms: None,
        };
        let owner = fleet.begin(&record).unwrap();
        fleet.end(&owner, &record).unwrap();
    };
    let known = |host: &str| {
        let drains = fleet.view().unwrap().drains;
        drains.values().filter(|drain| drain.record.host == host).count()
    };
    (1..=SHOWN + 3).for_each(|n| drain(n, "a"));
    drain(1, "b");
    // It has been cordoned since the first of them.
    forget_old(&fleet, "a").unwrap();
    assert_eq!(known("a"), SHOWN + 3);
    fleet.uncordon("a").unwrap();
    fleet.cordon("a", "anna", 3).unwrap();
    forget_old(&fleet, "a").unwrap();
    assert_eq!((known("a"), known("b")), (SHOWN + 1, 1), "the third was begun under this cordon");
    assert!(fleet.drain("a3").unwrap().is_some() && fleet.drain("a2").unwrap().is_none());
}
