//! What a destination that starts again hears of its source before a guest runs here.

use linerate_guest::process::connect;
use linerate_guest::stale;
use serde_json::json;

use super::*;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A guest that is paused here and has run nothing since it was committed.
fn committed(agent: &Agent, qemu: &GuestRecord) -> SessionId {
    let cpus = connect(qemu, soon()).unwrap().execute("query-cpus-fast", json!({}), soon()).unwrap();
    let thread = i32::try_from(cpus[0]["thread-id"].as_i64().unwrap()).unwrap();
    let mut vcpu_time = VcpuTime::of(&[thread]);
    vcpu_time.count(qemu.process.pid);
    let incoming = IncomingRecord { qemu: Some(qemu.clone()), vcpu_time, ..IncomingRecord::default() };
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    let record = Record::new("g", order, incoming.role(DestinationPhase::Committed));
    agent.journal.put(session, &record).unwrap();
    session
}

/// Its source has its guest back since, or waits for this host.
#[test]
fn a_committed_guest_is_not_run_by_a_new_agent_before_its_source_is_heard() {
    for is_back in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let (_hand, qemu) = runs(&dir);
        let qemu = GuestRecord { origin: Origin::Arrived, ..qemu };
        let session = committed(&agent, &qemu);
        recover(&agent.recovery).unwrap();
        let (one, wait) = the_one(&agent);
        while !one.summary().note.unwrap().contains("never ran here") {
            wait("it is not looked at, or runs");
        }
        assert_eq!(agent.incoming.source_resumes(session, false), Outcome::Pending);
        if is_back {
            one.rolled_back_at_source();
        } else {
            one.source_resumes(true);
        }
        while agent.incoming.outcome(session) == Outcome::Pending {
            wait("nothing follows");
        }
        let found = (agent.incoming.outcome(session), qemu.is_alive());
        let wanted = if is_back { (Outcome::Returned, false) } else { (Outcome::Committed, true) };
        assert_eq!(found, wanted);
    }
}

#[test]
fn a_held_guest_is_not_let_run_while_its_source_says_that_it_has_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (_hand, qemu) = runs(&dir);
    let session = comes(&agent, qemu, DestinationPhase::Committed);
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    while !one.is_in_doubt() {
        wait("it is not held");
    }
    assert_eq!(one.resolve(true), Err(NotDecided::JustStarted));
    one.source_resumes(false);
    let refused = one.resolve(true).unwrap_err();
    assert_eq!(refused, NotDecided::SourceResumes);
    assert!(refused.to_string().contains("Both copies would run"), "{refused}");
    // It knows that the guest is committed here, and keeps its own paused.
    one.source_resumes(true);
    one.resolve(true).unwrap();
    while agent.incoming.outcome(session) != Outcome::Committed {
        wait("it does not run");
    }
}

/// Its source would resume a copy that is older than the disks.
#[test]
fn a_guest_that_another_program_lets_run_while_it_waits_is_not_given_back() {
    for asked in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let (_hand, qemu) = runs(&dir);
        agent.registry.put(&qemu).unwrap();
        let session = comes(&agent, qemu.clone(), DestinationPhase::Loaded);
        let image = dir.path().join("copied-image");
        std::fs::write(&image, "x").unwrap();
        stale::mark(&image, "g", "source").unwrap();
        let mut record = agent.journal.get(session).unwrap().unwrap();
        let Role::Destination { incoming, .. } = &mut record.role else { panic!("{record:?}") };
        incoming.copied = vec![image.clone()];
        agent.journal.put(session, &record).unwrap();
        recover(&agent.recovery).unwrap();
        let (one, wait) = the_one(&agent);
        assert!(one.is_in_doubt());
        connect(&qemu, soon()).unwrap().execute("cont", json!({}), soon()).unwrap();
        if asked {
            assert_eq!(agent.incoming.source_resumes(session, false), Outcome::Committed);
        }
        while !agent.unfinished().is_empty() {
            wait("it is not noticed");
        }
        let role = agent.journal.get(session).unwrap().unwrap().role;
        assert!(matches!(role, Role::Destination { phase: DestinationPhase::Finished, .. }), "{role:?}");
        assert!(qemu.is_alive());
        assert!(stale::of(&image).is_none(), "it cannot be started again");
    }
}

/// That program keeps the monitor: a person at a terminal, for example.
#[test]
fn a_guest_that_waits_and_works_while_another_client_has_its_monitor_is_not_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (_hand, qemu) = runs(&dir);
    let mut other = connect(&qemu, soon()).unwrap();
    let cpus = other.execute("query-cpus-fast", json!({}), soon()).unwrap();
    let thread = i32::try_from(cpus[0]["thread-id"].as_i64().unwrap()).unwrap();
    let incoming = IncomingRecord {
        qemu: Some(qemu.clone()),
        vcpu_time: VcpuTime::of(&[thread]),
        ..IncomingRecord::default()
    };
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    agent.journal.put(session, &Record::new("g", order, incoming.role(DestinationPhase::Loaded))).unwrap();
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    other.execute("cont", json!({}), soon()).unwrap();
    while agent.incoming.source_resumes(session, false) != Outcome::Pending {
        wait("its source is let resume its copy");
    }
    assert!(one.is_in_doubt());
    drop(other);
    while !agent.unfinished().is_empty() {
        wait("it is not noticed");
    }
    assert_eq!(agent.incoming.outcome(session), Outcome::Committed);
}
