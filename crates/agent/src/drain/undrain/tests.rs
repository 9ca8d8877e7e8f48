//! What comes back, and what is said of the rest.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use linerate_core::SessionId;
use linerate_core::journal::DestinationPhase;
use linerate_fabric::probe::ask::{QUESTION_BYTES_MAX, receive_at_most, send};
use linerate_guest::registry::GuestRecord;
use linerate_net::tcp::listen::Accepted;
use linerate_wire::VERSION_MAX;
use linerate_wire::frame::Welcome;

use super::*;
use crate::drain::tests::{drained, guest, record};
use crate::journal::{IncomingRecord, Record};
use crate::security::Security;
use crate::testing::{SilentGuest, wait};

#[test]
fn guests_and_domains_of_one_name_all_come_back_each_as_it_left_last() {
    let guest = |uuid: &str, domain: bool, state: &str, to: &str| {
        let mut guest = guest("web", uuid, state, Some(to));
        guest["domain"] = domain.into();
        guest
    };
    let drain = |guests: Vec<serde_json::Value>| DrainRecord {
        id: "d".into(),
        host: "a".into(),
        by: "anna".into(),
        state: Stored::Ended,
        settings: serde_json::Value::Null,
        guests: (0..).map(|n: usize| n.to_string()).zip(guests).collect(),
        begun_ms: 0,
        ended_ms: None,
    };
    let earlier = drain(vec![guest("web", false, "moved", "b"), guest("u2", true, "in_doubt", "b")]);
    let last = drain(vec![guest("web", false, "moved", "c"), guest("u3", true, "failed", "c")]);
    let brought = |moved: &[DrainGuest]| -> Vec<(String, Option<String>)> {
        moved.iter().map(|one| (one.uuid.clone(), one.to.clone())).collect()
    };
    let at = |uuid: &str, host: &str| (uuid.to_owned(), Some(host.to_owned()));
    let moved = moved_by(&[&last, &earlier], Vec::new()).unwrap();
    assert_eq!(brought(&moved), [at("web", "c"), at("u2", "b")]);
    // The undrain of the first drain did not bring them back, and the second has begun since.
    let before = moved_by(&[&earlier], Vec::new()).unwrap();
    assert_eq!(brought(&moved_by(&[&last], before).unwrap()), [at("web", "c"), at("u2", "b")]);
    // When the first had left, another guest was started under its name. Both are named, whatever becomes of them.
    let earlier = drain(vec![guest("u8", false, "moved", "b")]);
    let last = drain(vec![guest("u7", false, "moved", "c")]);
    let moved = moved_by(&[&last, &earlier], Vec::new()).unwrap();
    assert_eq!(brought(&moved), [at("u7", "c"), at("u8", "b")]);
    let both = drain(vec![guest("u8", false, "moved", "b"), guest("u7", false, "moved", "c")]);
    assert_eq!(moved_by(&[&both], Vec::new()).unwrap(), moved);
    // The second drain could not look at it, and it is one.
    let unlooked = drain(vec![guest("web", false, "in_doubt", "b")]);
    let moved = moved_by(&[&unlooked, &earlier], Vec::new()).unwrap();
    assert_eq!(brought(&moved), [at("web", "b")]);
}

/// The guests of an undrain that has ended.
fn ended(drains: &Drains) -> Vec<(String, State)> {
    wait("the undrain does not end", || show(drains).unwrap().over);
    show(drains).unwrap().guests.into_iter().map(|one| (one.guest, one.state)).collect()
}

#[test]
fn what_an_undrain_has_not_brought_back_is_known_after_a_restart_and_to_later_drains() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), tokio::runtime::Runtime::new().unwrap());
    // It takes connections, and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let to = [silent.local_addr().unwrap().to_string()];
    let first = crate::testing::agent(&dir, &[]);
    // Of `db` it is not known how it left: no host can be asked for it.
    drained(&first, 1, &to, &["db", "web"]);
    let drains = Arc::new(Drains { silent_max: Some(Duration::ZERO), ..Drains::default() });
    begin(&first, &drains, runtime.handle().clone(), None).unwrap();
    let known = LeftOver::read(&first.fleet.fleet().unwrap()).unwrap();
    assert_eq!(
        (known.guests.len(), &known.to[..]),
        (2, &to[..]),
        "the agent may end before the undrain does"
    );
    drop(silent);
    let failed = |name: &str| (name.to_owned(), State::Failed);
    assert_eq!(ended(&drains), [failed("db"), failed("web")]);
    wait("the thread of the undrain does not end", || Arc::strong_count(&first) == 1);
    drop(first);

    let second = crate::testing::agent(&dir, &[]);
    drained(&second, 2, &to, &[]);
    let drains = Arc::new(Drains { silent_max: Some(Duration::ZERO), ..Drains::default() });
    let begun = begin(&second, &drains, runtime.handle().clone(), None).unwrap();
    assert_eq!(begun.guests.iter().map(|one| &one.guest[..]).collect::<Vec<_>>(), ["web"]);
    assert_eq!(ended(&drains), [failed("web")]);
}

#[test]
fn a_silent_host_is_waited_for_once_and_all_its_guests_are_named() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), tokio::runtime::Runtime::new().unwrap());
    let agent = crate::testing::agent(&dir, &[]);
    // It takes connections, and ends them without an answer.
    let taken = Arc::new(AtomicUsize::new(0));
    let counted = taken.clone();
    let listener = crate::testing::listen(&agent.security, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let mut there = Destination::new("b");
    there.at = listener.addresses()[0].to_string();
    let left = |name: &str| -> DrainGuest {
        let mut guest = guest(name, name, "moved", Some("b"));
        guest["migration"] = SessionId([1; 16]).to_string().into();
        serde_json::from_value(guest).unwrap()
    };
    let shown = |guest: &DrainGuest| UndrainGuest {
        guest: guest.guest.clone(),
        from: "b".into(),
        state: State::Waiting,
        paused: false,
        reason: None,
        hint: String::new(),
    };
    let (db, web) = (left("db"), left("web"));
    let drains = Drains::default();
    let guests = vec![shown(&db), shown(&web)];
    *drains.undrain.lock() =
        Some(UndrainDetail { drain: "d1".into(), host: "a".into(), guests, over: false });
    let here = Here { agent, runtime: runtime.handle().clone() };
    let asked = Asked { silent_max: Duration::ZERO, ..Asked::new(Some(&there)) };
    let left = || vec![(0, &db), (1, &web)];
    let later = here.of_host(&drains, left(), asked);
    assert_eq!(taken.load(Ordering::SeqCst), 1, "the second guest waits for the same host");
    assert_eq!(later, BTreeSet::from([0, 1]), "a later undrain asks for both");
    let is_named = |words: [&str; 2]| {
        for (one, words) in show(&drains).unwrap().guests.iter().zip(words) {
            let why = one.reason.as_deref().unwrap_or_default();
            assert!(one.state == State::Failed && why.contains(words), "{one:?}");
        }
    };
    is_named(["does not answer, and may have moved it", "does not answer, and was not asked for it"]);
    // The store is away, and nobody says where the hosts are.
    let unknown = unreached("the fleet's hosts cannot be looked up".into(), "");
    let later = here.of_host(&drains, left(), Asked { silent: Some(unknown), ..Asked::new(None) });
    assert_eq!(later, BTreeSet::from([0, 1]));
    is_named(["cannot be looked up"; 2]);
}

#[test]
fn a_host_where_something_else_has_the_guest_is_asked_again() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let (there, listener) =
        crate::testing::listening(&other_dir, Security::insecure(), move |agent, accepted| {
            counted.fetch_add(1, Ordering::SeqCst);
            agent.accept(accepted);
        });
    let mut process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let came = crate::testing::arrived(&there, i32::try_from(process.id()).unwrap());
    there.registry.put(&came).unwrap();
    let incoming = IncomingRecord { qemu: Some(came), ..IncomingRecord::default() };
    let role = Role::Destination { phase: DestinationPhase::Finished, incoming };
    let session = SessionId([1; 16]);
    there.journal.put(session, &Record::new("g", 1, role)).unwrap();
    let mut left = guest("g", "u1", "moved", Some("b"));
    left["migration"] = session.to_string().into();
    let left: DrainGuest = serde_json::from_value(left).unwrap();
    let mut at = Destination::new("b");
    at.at = listener.addresses()[0].to_string();
    let here = Here { agent: crate::testing::agent(&dir, &[]), runtime: runtime.handle().clone() };
    // As recovery has it, or a migration by hand.
    let claim = there.names.claim("g").unwrap();
    let drains = Drains::default();
    let answer = std::thread::scope(|scope| {
        let fetched = scope.spawn(|| here.one(&drains, &left, &mut Asked::new(Some(&at))));
        wait("it is given up at once", || asked.load(Ordering::SeqCst) > 1);
        drop(claim);
        fetched.join().unwrap()
    });
    process.kill().unwrap();
    process.wait().unwrap();
    // Nothing has it any more: its migration begins, and finds no QEMU.
    let error = answer.unwrap_err();
    assert!(!is_busy(&error), "{error:?}");
}

/// Answers whoever asks for a guest.
fn answer(accepted: Accepted, state: SentBack) {
    let (peer, end) = (accepted.peer, Instant::now() + Duration::from_secs(60));
    let stream = accepted.welcome(Welcome { version: VERSION_MAX, control_received: 0 }).unwrap();
    let _: Question = receive_at_most(QUESTION_BYTES_MAX, &stream, peer, end).unwrap();
    send(&stream, &PeerAnswer::SendBack { state }, peer, end).unwrap();
}

/// What is said of a guest whose host answers with an error when it is here already: at first, and when its undrain is
/// given again.
fn back_with(error: ErrorBody) -> [IsBack; 2] {
    const UUID: &str = "0f0e8c9a-0000-4000-8000-000000000001";
    let (dir, runtime) = (tempfile::tempdir().unwrap(), tokio::runtime::Runtime::new().unwrap());
    let agent = crate::testing::agent(&dir, &[]);
    let (arriving, came): (_, Mutex<Option<SilentGuest>>) = (agent.clone(), Mutex::default());
    let listener = crate::testing::listen(&agent.security, move |accepted| {
        *came.lock() = Some(SilentGuest::start(&arriving, UUID));
        answer(accepted, SentBack::Failed(Box::new(error.clone())));
    });
    let mut left = guest("g", UUID, "moved", Some("b"));
    left["migration"] = SessionId([1; 16]).to_string().into();
    let left: DrainGuest = serde_json::from_value(left).unwrap();
    let mut at = Destination::new("b");
    at.at = listener.addresses()[0].to_string();
    let here = Here { agent, runtime: runtime.handle().clone() };
    let drains = Drains::default();
    [Some(&at), None].map(|at| here.one(&drains, &left, &mut Asked::new(at)).unwrap())
}

#[test]
fn what_failed_after_a_guest_was_moved_back_is_said_of_it() {
    let error = ErrorBody::new("guest_stopped", "a disk failed");
    let error = ErrorBody { guest_state: Some(GuestState::StoppedAtDestination), ..error };
    let [back, again] = back_with(error);
    let said = back.fault.map(|error| error.message);
    assert_eq!(said.as_deref(), Some("host b says (\"here\" is b): a disk failed"));
    // Given again, it is found here at once, and its QEMU says nothing.
    assert!(again.fault.is_some_and(|error| error.message.contains("does not say whether it runs")));
}

#[test]
fn only_an_end_at_this_host_is_a_fault_of_a_guest_that_is_back() {
    use GuestState as S;
    let error = |state| ErrorBody { guest_state: state, ..ErrorBody::new("libvirt_failed", "") };
    for state in [S::RunsAtDestination, S::PausedAtDestination, S::StoppedAtDestination] {
        assert!(is_of_arrived(&error(Some(state))), "{state:?}");
    }
    for state in [None, Some(S::RunsAtSource), Some(S::InDoubt), Some(S::Gone), Some(S::Unknown)] {
        assert!(!is_of_arrived(&error(state)), "{state:?}");
    }
}

#[test]
fn a_copy_that_the_other_host_may_have_left_is_a_fault_of_a_guest_that_is_back() {
    use GuestState as S;
    let left: DrainGuest = serde_json::from_value(guest("g", "u1", "moved", Some("b"))).unwrap();
    let text = "libvirt has moved the domain, but it is running here too: end it here";
    let error = |state| {
        let error = ErrorBody { guest_state: state, ..ErrorBody::new("libvirt_failed", text) };
        error.with_hint("`virsh domstate` on both hosts")
    };
    for (state, of_domain, of_guest) in [
        (None, false, false),
        (Some(S::Unknown), true, false),
        (Some(S::InDoubt), true, false),
        (Some(S::RunsAtSource), true, true),
        (Some(S::PausedAtSource), true, true),
    ] {
        let is = [true, false].map(|domain| is_of_back(&error(state), domain));
        assert_eq!(is, [of_domain, of_guest], "{state:?}");
    }
    // Nobody ends the one at this host because the other host calls itself so.
    let told = said(error(Some(S::Unknown)), &left);
    assert_eq!(told.message, format!("host b says (\"here\" is b): {text}"));
    assert_eq!(told.hint, "on b: `virsh domstate` on both hosts");
    assert_eq!(told.guest_state, Some(S::Unknown));
    assert_eq!(said(error(None), &left).hint, "`virsh domstate` on both hosts", "nothing has begun there");
}

#[test]
fn a_guest_that_is_back_while_its_host_still_runs_it_has_a_fault() {
    let error = ErrorBody::new("peer_lost", "it runs on both hosts");
    let error = ErrorBody { guest_state: Some(GuestState::RunsAtSource), ..error };
    let [back, _] = back_with(error);
    assert!(back.fault.is_some_and(|error| error.message.contains("it runs on both hosts")));
}

#[test]
fn a_domain_that_is_back_and_does_not_run_is_paused_and_well_only_if_its_user_paused_it() {
    for state in ["running (migrated)", "running (unpaused)"] {
        assert_eq!(of_domain(Some(state)), IsBack::default(), "{state}");
    }
    assert_eq!(of_domain(Some("paused (user)")), IsBack { paused: true, fault: None });
    for state in ["paused (I/O error)", "paused (migrating)", "crashed (panicked)"] {
        let IsBack { paused, fault } = of_domain(Some(state));
        assert!(paused && fault.is_some_and(|error| error.message.contains(state)), "{state}");
    }
    assert!(of_domain(None).fault.is_some(), "libvirt does not answer");
}

#[test]
fn a_guest_that_is_back_and_does_not_run_is_well_only_if_its_operator_paused_it() {
    for state in [RunState::Running, RunState::Suspended] {
        assert_eq!(of_guest(Some(&state)), IsBack::default(), "{state}");
    }
    for state in [RunState::Paused, RunState::PreLaunch] {
        assert_eq!(of_guest(Some(&state)), IsBack { paused: true, fault: None }, "{state}");
    }
    for state in [RunState::IoError, RunState::GuestPanicked, RunState::InMigrate] {
        let IsBack { paused, fault } = of_guest(Some(&state));
        assert!(paused && fault.is_some_and(|error| error.message.contains(state.name())), "{state}");
    }
    assert!(of_guest(None).fault.is_some());
}

#[test]
fn a_guest_that_was_dismissed_comes_back_only_if_it_has_left_again() {
    let drain = |id: &str, session: u8| {
        let mut web = guest("web", "u1", "moved", Some("b"));
        web["migration"] = SessionId([session; 16]).to_string().into();
        DrainRecord { guests: [("u1".to_owned(), web)].into(), ..record(id, "a") }
    };
    let (first, second) = (drain("d1", 1), drain("d2", 2));
    let mut left_over = LeftOver::default();
    left_over.dismiss(&moved_by(&[&first], Vec::new()).unwrap()[0]);
    let still = coming(&[&first], left_over.clone(), true).unwrap();
    assert_eq!((still.guests.len(), still.dismissed.len()), (0, 1));
    // It was found after all, and came back by hand.
    let again = coming(&[&second, &first], left_over, true).unwrap();
    assert_eq!(again.guests, moved_by(&[&second], Vec::new()).unwrap());
    assert_eq!((again.dismissed.len(), &again.to[..]), (0, &["b".to_owned()][..]));
}

#[test]
fn what_could_not_be_reached_is_asked_for_again_by_a_later_undrain() {
    assert!(may_come_later(&unreached("b does not answer".into(), "")));
    assert!(may_come_later(&ErrorBody::new("not_converging", "")));
    assert!(!may_come_later(&refused("it was moved on", "")));
}

#[test]
fn a_guest_that_was_never_looked_at_is_known_by_its_name() {
    let left =
        |uuid: &str| -> DrainGuest { serde_json::from_value(guest("web", uuid, "in_doubt", None)).unwrap() };
    assert!(is_it("u1", &left("u1")) && !is_it("u2", &left("u1")));
    assert!(is_it("u1", &left("web")), "it was in doubt all the time");
}

#[test]
fn a_guest_without_a_uuid_is_back_only_if_it_came_from_there_after_it_left() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let mut process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let here = crate::testing::arrived(&agent, i32::try_from(process.id()).unwrap());
    let session = |number: u8| SessionId([number; 16]);
    let comes = |number: u8, order: u64, from: Option<&str>| {
        let peer = from.map(|name| name.parse().unwrap());
        let incoming = IncomingRecord { peer, ..IncomingRecord::default() };
        let role = Role::Destination { phase: DestinationPhase::Finished, incoming };
        agent.journal.put(session(number), &Record::new("g", order, role)).unwrap();
    };
    let guest: DrainGuest = serde_json::from_value(serde_json::json!({
        "guest": here.name, "uuid": here.name, "state": "moved", "to": "b", "memory_bytes": 1,
        "copy_bytes": 1, "copied_bytes": 0, "rate_bytes_per_s": 0, "write_rate_bytes_per_s": 0,
        "migration": session(1).to_string(), "tries": []
    }))
    .unwrap();
    let is_back = |by: Option<u8>| {
        let session = by.map(|number| session(number).to_string());
        agent.registry.put(&GuestRecord { session, ..here.clone() }).unwrap();
        came_back(&agent.journal, &agent.registry, &guest)
    };
    comes(1, 5, None);
    assert!(!is_back(None), "another guest was started under its name");
    // To which host it left, in its certificate's name; none in plain text.
    for (left, order, from, back) in [
        (None, 4, None, false),
        (None, 6, None, true),
        (Some("b"), 4, Some("b"), false),
        (Some("b"), 6, Some("b"), true),
        (Some("b"), 6, Some("c"), false),
        (Some("b"), 6, None, false),
    ] {
        comes(1, 5, left);
        comes(2, order, from);
        assert_eq!(is_back(Some(2)), back, "{left:?} {order} {from:?}");
    }
    process.kill().unwrap();
    process.wait().unwrap();
}

#[test]
fn a_domain_that_is_paused_here_is_back_only_if_its_host_says_so() {
    assert!(has_arrived(Some("running"), false) && has_arrived(Some("running"), true));
    assert!(has_arrived(Some("paused"), true) && !has_arrived(Some("paused"), false));
    for other in [None, Some("shut off"), Some("crashed")] {
        assert!(!has_arrived(other, true), "{other:?}");
    }
}

/// The agent may be restarted before the undrain ends. Then somebody moves the guest elsewhere, and a later drain is
/// undone.
#[test]
fn a_guest_that_is_back_is_written_down_at_once() {
    let (dir, runtime) = (tempfile::tempdir().unwrap(), tokio::runtime::Runtime::new().unwrap());
    let agent = crate::testing::agent(&dir, &[]);
    let left =
        |name: &str| -> DrainGuest { serde_json::from_value(guest(name, name, "moved", Some("b"))).unwrap() };
    let mut of_all = LeftOver { guests: vec![left("db"), left("web")], ..LeftOver::default() };
    of_all.write(&agent.fleet.fleet().unwrap()).unwrap();
    let here = Here { agent: agent.clone(), runtime: runtime.handle().clone() };
    here.is_back_for_good(&left("web"), &mut of_all);
    let known = LeftOver::read(&agent.fleet.fleet().unwrap()).unwrap();
    assert_eq!(known.guests, [left("db")]);
}
