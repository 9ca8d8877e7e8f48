use super::super::testing::{FakeLibvirt, MIGRATES, moved, target, wait};
use super::*;

#[test]
fn states_are_read_from_libvirts_names() {
    for (state_text, state) in [
        (None, DomainState::Absent),
        (Some("shut off"), DomainState::Absent),
        (Some("running"), DomainState::Running),
        (Some("paused"), DomainState::Paused),
        (Some("in shutdown"), DomainState::Other),
    ] {
        assert_eq!(domain_state(state_text), state, "{state_text:?}");
    }
}

#[test]
fn an_operator_gets_advice_where_the_agents_may_not_decide() {
    let answer = |state: &str| Answer { state: Some(state.into()), trouble: "no link".into() };
    let answers = Answers { here: answer("paused"), there: answer("running") };
    let both = describe(DomainDoubt::AtBoth, &answers);
    assert!(both.contains("paused here and running at the destination") && both.contains("virsh destroy"));
    assert!(describe(DomainDoubt::DestinationSilent, &answers).ends_with("cannot be asked: no link"));
    let absent = Answers { here: Answer::default(), ..answers };
    assert!(describe(DomainDoubt::DestinationSilent, &absent).starts_with("the domain is not here"));
}

fn seeing(needs: &Arc<Needs>) -> DomainSearch {
    let domain = moved("a1");
    let record = Record::new("web", 1, Role::Libvirt { domain: domain.clone(), over: false });
    let shared = Arc::new(Move::recovering("web", &domain, &record));
    let claim = needs.moves.claim(&domain.uuid, "web").map_err(|error| error.message).unwrap();
    DomainSearch { needs: needs.clone(), shared, domain, claim }
}

#[tokio::test]
async fn a_migration_that_continues_is_waited_for_and_its_end_is_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let seeing = seeing(&crate::testing::agent(&dir, &[]).libvirt());
    let (here, mut answers) = (FakeLibvirt::new(Some("running")), Answer::default());
    let virsh = here.virsh();
    here.set("job", MIGRATES);
    assert_eq!(seeing.ask_here(&virsh, &mut answers).await, SourceAnswer::Migrating);
    here.remove("job");
    assert_eq!(seeing.ask_here(&virsh, &mut answers).await, SourceAnswer::At(DomainState::Running));
    assert_eq!(answers.state.as_deref(), Some("running"));
    // It leaves between the first question and the question for its job.
    here.leaves_after_first_look();
    assert_eq!(seeing.ask_here(&virsh, &mut answers).await, SourceAnswer::At(DomainState::Absent));
}

#[tokio::test]
async fn a_recovering_migration_has_its_domain_and_reports_what_it_waits_for() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let needs = agent.libvirt();
    let (shared, seeing) = {
        let seeing = seeing(&needs);
        (seeing.shared.clone(), seeing)
    };
    assert!(needs.moves.claim(&target().uuid, "web").is_err(), "no other migration moves it meanwhile");
    let here = FakeLibvirt::new(Some("running"));
    here.set("job", MIGRATES);
    let virsh = here.virsh();
    let see = seeing.see(&virsh);
    let noted = wait("it reports why", || {
        shared.summary().note.is_some_and(|note| note.contains("still has a migration"))
    });
    tokio::select! {
        _ = see => panic!("nothing is known"),
        () = noted => {}
    }
    drop(seeing);
    assert!(needs.moves.claim(&target().uuid, "web").is_ok());
}

#[tokio::test]
async fn a_recovered_migration_closes_its_record_and_frees_its_domain() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let (needs, key) = (agent.libvirt(), SessionId([7; 16]));
    let record = Record::new("web", 1, Role::Libvirt { domain: moved("a1"), over: false });
    agent.journal.put(key, &record).unwrap();
    let seeing = seeing(&needs);
    let shared = seeing.shared.clone();
    seeing.conclude(key, record, ended(DomainEnd::Arrived, &Answer::default()));
    let record = agent.journal.get(key).unwrap().unwrap();
    assert!(matches!(record.role, Role::Libvirt { over: true, .. }), "{record:?}");
    assert!(needs.moves.claim(&target().uuid, "web").is_ok());
    assert!(shared.is_over());
}

/// One migration in progress when the agent ended, one that had ended, and one whose end the disk had not taken.
#[tokio::test]
async fn a_restarted_agent_lists_what_has_not_ended_and_refuses_to_touch_it() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    for (number, over) in [(1, false), (2, true), (3, false)] {
        let role = Role::Libvirt { domain: moved(&format!("a{number}")), over };
        let order = 9 - u64::from(number);
        agent.journal.put(SessionId([number; 16]), &Record::new("web", order, role)).unwrap();
    }
    let needs = agent.libvirt();
    recover(&needs).unwrap();
    let listed: Vec<_> = needs.moves.all().iter().map(|one| one.id().0.clone()).collect();
    assert_eq!(listed, ["a1"], "the newest of this domain");
    let older = agent.journal.get(SessionId([3; 16])).unwrap().unwrap();
    assert!(matches!(older.role, Role::Libvirt { over: true, .. }), "{older:?}");
    let one = needs.moves.by_id("a1").unwrap();
    assert!(one.is_recovering());
    assert_eq!(one.cancel().unwrap_err().code, code::TOO_LATE);
    assert!(!one.is_asked());
    assert_eq!(needs.moves.claim(&target().uuid, "web").map(drop).unwrap_err().code, "guest_busy");
}

#[tokio::test]
async fn a_recovered_migration_says_what_is_left_of_its_domain_here() {
    let dir = tempfile::tempdir().unwrap();
    let mut seeing = seeing(&crate::testing::agent(&dir, &[]).libvirt());
    let here = |state: Option<&str>| Answer { state: state.map(str::to_owned), ..Answer::default() };
    assert!(seeing.undone(&here(None)).await.is_none());
    let left = seeing.undone(&here(Some("shut off"))).await.unwrap();
    assert!(left.message.contains("virsh undefine"), "{}", left.message);
    seeing.domain.autostart = true;
    let left = seeing.undone(&here(Some("shut off"))).await.unwrap();
    assert!(left.message.contains("both hosts would start it"), "{}", left.message);
}

#[tokio::test]
async fn a_recovered_domain_that_its_new_host_does_not_start_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let mut seeing = seeing(&crate::testing::agent(&dir, &[]).libvirt());
    let (_closed, address) = crate::testing::closed_port();
    (seeing.domain.autostart, seeing.domain.to) = (true, address.to_string());
    let error = seeing.undone(&Answer::default()).await.unwrap();
    assert!(error.message.contains("virsh autostart"), "{}", error.message);
}
