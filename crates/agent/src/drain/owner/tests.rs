//! One owner, whose destinations do not answer.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;

use linerate_core::Step;
use linerate_core::drain::Whereabouts;
use linerate_store::local::Local;
use linerate_store::{Entry, Lease, Outcome as StoreOutcome, Store, StoreError, Transaction};
use tokio::runtime::Runtime;

use super::super::leaving::Leaving;
use super::super::nothing;
use super::*;
use crate::config::Placement;

const GUEST: GuestId = GuestId(0);

/// A store that does not answer, or whose lease has ended, as long as the test says so.
struct Switched {
    store: Local,
    is_away: AtomicBool,
    has_no_lease: AtomicBool,
}

impl Switched {
    fn answers(&self) -> Result<(), StoreError> {
        let is_away = self.is_away.load(Ordering::Relaxed);
        if is_away { Err(StoreError::Away("by the test".into())) } else { Ok(()) }
    }
}

impl Store for Switched {
    fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        self.answers().and_then(|()| self.store.get(key))
    }

    fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
        self.answers().and_then(|()| self.store.list(prefix))
    }

    fn commit(&self, transaction: &Transaction) -> Result<StoreOutcome, StoreError> {
        self.answers().and_then(|()| self.store.commit(transaction))
    }

    fn lease(&self) -> Option<Lease> {
        self.store.lease().filter(|_| !self.has_no_lease.load(Ordering::Relaxed))
    }
}

/// Of a drain of one domain, whose destinations do not answer. What its threads report is not looked at.
fn owner(dir: &tempfile::TempDir, runtime: &Runtime) -> (Owner, Receiver<Input>) {
    let agent = crate::testing::agent(dir, &[]);
    let fleet = agent.fleet.fleet().unwrap();
    owner_over(agent, fleet, runtime)
}

/// The same, and its store.
fn owner_with_store(dir: &tempfile::TempDir, runtime: &Runtime) -> (Owner, Receiver<Input>, Arc<Switched>) {
    let agent = crate::testing::agent(dir, &[]);
    let store = Local::open(&dir.path().join("switched.redb")).unwrap();
    let store = Arc::new(Switched { store, is_away: false.into(), has_no_lease: false.into() });
    let fleet = Fleet::new(store.clone(), &agent.config.name, "1").unwrap();
    fleet.register(&HostRecord { name: agent.config.name.clone(), ..HostRecord::default() }).unwrap();
    let (owner, inbox) = owner_over(agent, fleet, runtime);
    (owner, inbox, store)
}

fn owner_over(agent: Arc<Agent>, fleet: Fleet, runtime: &Runtime) -> (Owner, Receiver<Input>) {
    let kept = kept(&DrainRequest::default(), &Unseen::default());
    let record = super::super::tests::record("d1", &agent.config.name);
    let (to_self, inbox) = channel();
    let begin = Begin {
        drain: Arc::new(Drain { inbox: to_self.clone(), detail: linerate_lock::Mutex::new(nothing()) }),
        ownership: fleet.begin(&record).unwrap(),
        fleet,
        record,
        kept,
        destinations: ["127.0.0.1:1", "127.0.0.1:2"].map(Destination::new).into(),
        warnings: Vec::new(),
        rules: Rules::default(),
        is_again: false,
    };
    let mut owner = Owner::new(agent, runtime.handle().clone(), to_self, begin);
    let guest = Leaving {
        name: "web".into(),
        key: "u1".into(),
        domain: true,
        memory_bytes: 1,
        copy_bytes: 1,
        looked: true,
        ..Leaving::default()
    };
    owner.begin(vec![Member::new(guest)]);
    (owner, inbox)
}

fn found(host: u32) -> PlaceResult {
    Ok((HostId(host), 1, 1e9))
}

fn state_of(owner: &Owner) -> Option<State> {
    owner.controller.guests().find(|(id, ..)| *id == GUEST).map(|(_, state, _)| state.clone())
}

#[test]
fn an_answer_to_an_earlier_question_changes_nothing() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox) = owner(&dir, &runtime);
    let first = owner.questions[&GUEST];
    // As if the first had not been answered in time.
    owner.place(vec![(GUEST, Vec::new())]);
    let second = owner.questions[&GUEST];
    owner.placed(GUEST, first, found(1));
    assert_eq!((owner.members[0].to, state_of(&owner)), (None, Some(State::Placing)));
    owner.placed(GUEST, second, found(2));
    for late in [found(1), Err((Default::default(), None))] {
        owner.placed(GUEST, first, late.clone());
        owner.placed(GUEST, second, late);
        assert_eq!(owner.members[0].to, Some(HostId(2)));
        assert_eq!(owner.reserved[&GUEST], HostId(2));
    }
}

#[test]
fn a_host_that_has_joined_stays_and_the_others_keep_their_numbers() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox) = owner(&dir, &runtime);
    let before = owner.destinations.clone();
    let mut with_new = before.clone();
    with_new.push(Destination::new("127.0.0.1:3"));
    owner.hosts_are(with_new);
    // As a thread sends it that began before.
    owner.hosts_are(before);
    let names: Vec<&str> = owner.destinations.iter().map(Destination::name).collect();
    assert_eq!(names, ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]);
}

#[test]
fn a_guest_that_somebody_else_moves_is_waited_for_and_uses_no_try() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox) = owner(&dir, &runtime);
    let now = owner.clock.now();
    for _ in 0..5 {
        owner.placed(GUEST, owner.questions[&GUEST], found(1));
        assert_eq!(state_of(&owner), Some(State::Preparing));
        let busy = Fault::new(Code::GuestBusy, Step::Resolve, Side::Source, "");
        owner.ended(GUEST, End::Stays(busy), None, now);
        assert_eq!(state_of(&owner), None);
        let shown = owner.guests();
        assert_eq!((shown[0].state, shown[0].tries.len()), (DrainGuestState::Recovering, 0));
        assert!(!owner.is_over() && owner.reserved.is_empty());
        owner.found(GUEST, Whereabouts::Here);
        assert_eq!(state_of(&owner), Some(State::Placing), "it is drained then");
    }
}

#[test]
fn what_stays_of_a_group_is_tried_once_more_when_others_have_left() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox) = owner(&dir, &runtime);
    let lists = [vec!["web".to_owned(), "db".to_owned()]];
    owner.rules = Rules::new(&Placement::default(), &[], &lists).unwrap();
    let other = Leaving { name: "db".into(), key: "u2".into(), looked: true, ..Leaving::default() };
    let moved = Decided { state: DrainGuestState::Moved, reason: None, hint: String::new() };
    owner.members.push(Member { decided: Some(moved), to: Some(HostId(2)), ..Member::new(other) });
    let now = owner.clock.now();
    // Wherever it goes, something is lacking, until it has been everywhere.
    let fail = |owner: &mut Owner| {
        for _ in 0..owner.controller.settings().placements_max {
            let question = owner.questions[&GUEST];
            owner.placed(GUEST, question, found(1));
            let lacks = Fault::new(Code::NotMigratable, Step::Prepare, Side::Destination, "");
            owner.ended(GUEST, End::Stays(lacks), None, now);
        }
        let state = state_of(owner);
        let has_failed = matches!(state, Some(State::Ended(Outcome::Failed { in_doubt: false, .. })));
        assert!(has_failed, "{state:?}");
    };
    fail(&mut owner);
    owner.try_split_again();
    assert_eq!(state_of(&owner), Some(State::Placing));
    fail(&mut owner);
    owner.try_split_again();
    assert!(matches!(state_of(&owner), Some(State::Ended(_))), "not for ever");
    let here = Some(owner.record.host.clone());
    let split: BTreeMap<String, Option<String>> =
        [("db".to_owned(), Some("127.0.0.1:2".to_owned())), ("web".to_owned(), here)].into();
    assert_eq!(owner.split_groups(), [split]);
}

#[test]
fn only_another_migration_of_the_guest_itself_is_waited_for() {
    let fault = |code, side| Fault::new(code, Step::Resolve, side, "");
    assert!(is_taken(&fault(Code::GuestBusy, Side::Source)));
    // The destination may be told to take it by its own recovery: elsewhere it can go at once.
    assert!(!is_taken(&fault(Code::GuestBusy, Side::Destination)));
    assert!(!is_taken(&fault(Code::NoLink, Side::Source)));
}

/// As if the pause between two questions to a store that is away were over.
fn ask_store(owner: &mut Owner) {
    owner.away = owner.away.and_then(|since| since.checked_sub(STORE_AGAIN));
    owner.save();
    assert!(owner.away.is_none(), "the store answers again");
}

#[test]
fn a_copy_begins_when_the_store_has_that_it_does() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox, store) = owner_with_store(&dir, &runtime);
    store.is_away.store(true, Ordering::Relaxed);
    owner.placed(GUEST, owner.questions[&GUEST], found(1));
    assert_eq!(state_of(&owner), Some(State::Preparing));
    owner.handle(Event::Prepared { guest: GUEST });
    assert_eq!(state_of(&owner), Some(State::Prepared), "it is copied, and the store does not know it");
    assert!(!owner.members[0].began && owner.away.is_some());
    store.is_away.store(false, Ordering::Relaxed);
    ask_store(&mut owner);
    assert_eq!(state_of(&owner), Some(State::Copying));
    // As another process of this agent finds it that goes on from here.
    let stored = owner.fleet.drain("d1").unwrap().unwrap();
    assert_eq!(stored.guests["u1"]["state"], "copying");
    assert_eq!(stored.settings["began"], serde_json::json!(["u1"]));
}

#[test]
fn an_owner_whose_lease_has_ended_unseen_starts_nothing_more() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox, store) = owner_with_store(&dir, &runtime);
    // As when the process was stopped for long, and its next event comes before it looks around.
    store.has_no_lease.store(true, Ordering::Relaxed);
    owner.placed(GUEST, owner.questions[&GUEST], found(1));
    assert_eq!(state_of(&owner), Some(State::Placed), "it is not prepared");
    store.has_no_lease.store(false, Ordering::Relaxed);
    ask_store(&mut owner);
    assert_eq!(state_of(&owner), Some(State::Preparing));
}

#[test]
fn a_guest_that_is_found_has_no_copy_that_may_be_elsewhere() {
    let runtime = Runtime::new().unwrap();
    for (at, stays) in [(Whereabouts::Here, false), (Whereabouts::Gone, false), (Whereabouts::Doubt, true)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut owner, _inbox) = owner(&dir, &runtime);
        owner.members[0].began = true;
        owner.settling.insert(GUEST, Settling::new(owner.clock.now(), None));
        owner.found(GUEST, at);
        assert_eq!(owner.members[0].began, stays, "{at:?}");
    }
}

/// Its agent was started again in the middle.
#[test]
fn a_domain_that_recovery_found_at_its_destination_is_shown_with_what_is_left_undone() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox) = owner(&dir, &runtime);
    let domain = crate::journal::MovedDomain {
        id: "m1".into(),
        uuid: "u1".into(),
        paused: false,
        autostart: true,
        to: "b".into(),
        remote_socket: String::new(),
        links: Vec::new(),
    };
    let moving = Arc::new(crate::libvirt::Move::new("web", &domain, None));
    let undone = linerate_api::ErrorBody::new("libvirt_failed", "it is still defined here");
    moving.event_log.publish(linerate_api::EventKind::Finished {
        outcome: linerate_api::MigrationOutcome::Completed,
        error: Some(Box::new(undone)),
        report: None,
    });
    owner.agent.moves.add(moving);
    owner.members[0].migration = Some("m1".into());
    owner.settling.insert(GUEST, Settling::new(owner.clock.now(), None));
    owner.found(GUEST, Whereabouts::At(HostId(1)));
    let shown = owner.guests().remove(0);
    let said = (shown.state, shown.reason.as_deref());
    assert_eq!(said, (DrainGuestState::Moved, Some("it is still defined here")), "{shown:?}");
}

#[test]
fn memory_reserved_for_another_hosts_guest_of_its_name_is_not_given_up() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox, store) = owner_with_store(&dir, &runtime);
    // Its drain has ended, and left a guest in doubt that has no UUID.
    let other = Fleet::new(store, "b", "2").unwrap();
    for name in ["b", "c"] {
        let record = HostRecord { name: name.into(), memory_bytes: 8, ..HostRecord::default() };
        other.register(&record).unwrap();
    }
    let record = super::super::tests::record("d2", "b");
    let ownership = other.begin(&record).unwrap();
    for key in ["u1", "web"] {
        other.reserve(&ownership, key, "web", 1, "c", None).unwrap();
    }
    other.end(&ownership, &record).unwrap();
    owner.members[0].guest.key = "web".into();
    owner.give_reservation_up(GUEST);
    assert_eq!(other.reserved_at("c").unwrap(), ["u1", "web"]);
    // By its UUID it is the same guest, and it is here.
    owner.members[0].guest.key = "u1".into();
    owner.give_reservation_up(GUEST);
    assert_eq!(other.reserved_at("c").unwrap(), ["web"]);
}

#[test]
fn a_guest_that_ends_while_it_is_moved_is_not_just_gone() {
    let runtime = Runtime::new().unwrap();
    let fault = Fault::new(Code::GuestGone, Step::CleanUp, Side::Destination, "it has ended since it ran");
    // One that only waits for its copy, prepared, has ended by itself.
    for (fault, began) in [(None, true), (Some(fault.clone()), true), (Some(fault), false)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut owner, _inbox) = owner(&dir, &runtime);
        owner.placed(GUEST, owner.questions[&GUEST], found(1));
        owner.members[0].began = began;
        let now = owner.clock.now();
        owner.ended(GUEST, End::Gone(fault.clone()), None, now);
        let shown = owner.guests().remove(0);
        assert!(shown.state == DrainGuestState::Gone && has_left(&shown), "{shown:?}");
        assert_eq!(shown.reason.is_some(), fault.is_some() && began, "{shown:?}");
    }
    // Of one that was being moved when the agent ended nobody knows why it is nowhere.
    for began in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (mut owner, _inbox) = owner(&dir, &runtime);
        owner.members[0].began = began;
        owner.settling.insert(GUEST, Settling::new(owner.clock.now(), None));
        owner.found(GUEST, Whereabouts::Gone);
        let shown = owner.guests().remove(0);
        assert_eq!((shown.state, shown.reason.is_some()), (DrainGuestState::Gone, began), "{shown:?}");
    }
}

#[test]
fn an_order_is_answered_when_the_store_has_it() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox, store) = owner_with_store(&dir, &runtime);
    store.is_away.store(true, Ordering::Relaxed);
    let (done, answered) = channel();
    owner.take(Input::Steer(DrainOrder::Pause, done));
    assert!(answered.try_recv().is_err(), "after a restart of the agent the drain would go on");
    assert_eq!(owner.drain.detail.lock().state, DrainState::Paused, "it is followed all the same");
    store.is_away.store(false, Ordering::Relaxed);
    ask_store(&mut owner);
    answered.try_recv().unwrap();
    assert_eq!(owner.fleet.drain("d1").unwrap().unwrap().state, Stored::Paused);
}

/// The guest was in doubt, and is here after all: it is tried again, or at least not in doubt.
#[test]
fn a_drain_is_not_over_while_a_late_end_is_judged() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox) = owner(&dir, &runtime);
    owner.placed(GUEST, owner.questions[&GUEST], found(1));
    let fault = Fault::new(Code::PeerLost, Step::Copy, Side::Source, "cut");
    let now = owner.clock.now();
    owner.controller.leave_in_doubt(GUEST, fault.clone(), now);
    assert!(owner.is_over());
    owner.sessions.remove(&GUEST);
    owner.ended(GUEST, End::Stays(fault), None, now);
    assert!(!owner.is_over(), "its destination is being asked");
}

/// A guest that is started meanwhile leaves too: `end` looks for none.
#[test]
fn a_drain_does_not_come_to_its_end_while_its_store_is_away() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, inbox, store) = owner_with_store(&dir, &runtime);
    let fault = Fault::new(Code::PeerLost, Step::Copy, Side::Source, "cut");
    let now = owner.clock.now();
    owner.controller.leave_in_doubt(GUEST, fault, now);
    owner.sessions.remove(&GUEST);
    owner.save();
    assert!(owner.is_over() && owner.away.is_none());
    // Nothing has changed since the last write: nobody knows yet that the store is away.
    store.is_away.store(true, Ordering::Relaxed);
    let (agent, drain) = (owner.agent.clone(), owner.drain.clone());
    let ends = || {
        let request = linerate_api::AuditRequest { limit: 10, ..Default::default() };
        let entries = agent.audit.read(&request).unwrap().entries;
        entries.iter().filter(|one| one.action == linerate_api::AuditAction::Drain).count()
    };
    let running = std::thread::spawn(move || owner.run(Vec::new(), &inbox));
    let is_away = |text: &String| text.starts_with("the store does not answer");
    crate::testing::wait("it is not seen", || drain.detail.lock().warnings.iter().any(is_away));
    assert_eq!(ends(), 0);
    store.is_away.store(false, Ordering::Relaxed);
    crate::testing::wait("it does not end", || running.is_finished());
    assert_eq!(ends(), 1);
}

#[test]
fn a_store_that_went_away_after_the_last_write_is_noticed() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::new().unwrap());
    let (mut owner, _inbox, store) = owner_with_store(&dir, &runtime);
    owner.save();
    assert!(owner.has_store());
    store.is_away.store(true, Ordering::Relaxed);
    assert!(owner.away.is_none() && !owner.has_store());
}
