//! One owner, whose destinations do not answer.

use std::sync::mpsc::channel;

use linerate_core::Step;
use linerate_core::drain::Whereabouts;
use tokio::runtime::Runtime;

use super::super::leaving::Leaving;
use super::super::nothing;
use super::*;
use crate::config::Placement;

const GUEST: GuestId = GuestId(0);

/// Of a drain of one domain, whose destinations do not answer. What its threads report is not looked at.
fn owner(dir: &tempfile::TempDir, runtime: &Runtime) -> (Owner, Receiver<Input>) {
    let agent = crate::testing::agent(dir, &[]);
    let fleet = agent.fleet.fleet().unwrap();
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
