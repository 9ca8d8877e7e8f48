//! The audit log has the end of a migration that a restarted agent continues.

use linerate_api::{AuditAction, AuditEntry, AuditRequest, AuditResult};
use linerate_net::tcp::listen::Accepted;

use super::*;
use crate::security::Security;
use crate::testing::listen;

const SESSION: SessionId = SessionId([7; 16]);

/// How the session ended for this host: the action, its result and the reason.
fn end_of(agent: &Agent) -> (AuditAction, AuditResult, String) {
    let end = Instant::now() + Duration::from_secs(60);
    while lines(agent).is_empty() {
        assert!(Instant::now() < end, "no line");
        std::thread::sleep(Duration::from_millis(5));
    }
    // The next start of the agent finds the session at its end.
    let all_ended = || {
        while !agent.unfinished().is_empty() {
            assert!(Instant::now() < end, "it is not ended");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    all_ended();
    recover(&agent.recovery).unwrap();
    all_ended();
    let [entry] = <[_; 1]>::try_from(lines(agent)).unwrap();
    assert_eq!(entry.guest.as_deref(), Some("g"));
    (entry.action, entry.result, entry.reason.unwrap())
}

fn lines(agent: &Agent) -> Vec<AuditEntry> {
    let request = AuditRequest { session: Some(SESSION.to_string()), limit: 10, ..AuditRequest::default() };
    agent.audit.read(&request).unwrap().entries
}

fn recovers(agent: &Agent, role: Role) -> (AuditAction, AuditResult, String) {
    agent.journal.put(SESSION, &Record::new("g", agent.journal.next_order(), role)).unwrap();
    recover(&agent.recovery).unwrap();
    end_of(agent)
}

/// A QEMU of this host for an arrival.
fn comes_in(agent: &Agent, dir: &TempDir) -> (Ending, IncomingRecord) {
    let ending = Ending::start(dir);
    let qemu = Some(arrived(agent, ending.pid()));
    (ending, IncomingRecord { qemu, ..IncomingRecord::default() })
}

/// `linerate migrate` lost the agent: nothing else says what became of the guest.
#[test]
fn a_migration_that_a_restarted_agent_rolls_back_has_its_end_in_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let destination = listen(&Security::insecure(), |accepted: Accepted| {
        let _ = accepted.outcome(Outcome::Aborted);
    });
    let (_hand, qemu) = runs(&dir);
    let mut role = leaves(&qemu, SourcePhase::Started);
    let Role::Source { peers, .. } = &mut role else { panic!("{role:?}") };
    *peers = destination.addresses().to_vec();
    let (action, result, reason) = recovers(&agent, role);
    assert_eq!((action, result), (AuditAction::MigrationEnd, AuditResult::Failed));
    assert!(reason.ends_with("the guest is paused at the source"), "{reason}");
}

#[test]
fn a_migration_whose_qemu_has_ended_with_the_agent_has_its_end_in_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let qemu = ended(&agent, &dir);
    let (action, result, reason) = recovers(&agent, leaves(&qemu, SourcePhase::Started));
    assert_eq!((action, result), (AuditAction::MigrationEnd, AuditResult::Failed));
    assert!(reason.contains("its QEMU here has ended"), "{reason}");
}

#[test]
fn an_arrival_that_a_restarted_agent_gives_up_has_its_end_in_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (_ending, incoming) = comes_in(&agent, &dir);
    let (action, result, reason) = recovers(&agent, incoming.role(DestinationPhase::Started));
    assert_eq!((action, result), (AuditAction::ArrivalEnd, AuditResult::Failed));
    assert!(reason.ends_with("the guest did not come here"), "{reason}");
}

/// The agent ended between the guest's start here and the line.
#[test]
fn an_arrival_whose_guest_runs_already_when_the_agent_starts_again_has_its_end_in_the_audit_log() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (_ending, incoming) = comes_in(&agent, &dir);
    let (action, result, reason) = recovers(&agent, incoming.role(DestinationPhase::Running));
    assert_eq!((action, result), (AuditAction::ArrivalEnd, AuditResult::Done));
    assert!(reason.ends_with("the guest came here"), "{reason}");
}

/// It was to run here, and nobody knows whether it did.
#[test]
fn an_arrival_whose_qemu_ends_before_it_is_seen_to_run_is_not_called_done() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (mut ending, incoming) = comes_in(&agent, &dir);
    let role = incoming.role(DestinationPhase::Committed);
    agent.journal.put(SESSION, &Record::new("g", agent.journal.next_order(), role)).unwrap();
    recover(&agent.recovery).unwrap();
    ending.end();
    let (action, result, reason) = end_of(&agent);
    assert_eq!((action, result), (AuditAction::ArrivalEnd, AuditResult::Failed));
    assert!(reason.ends_with("its QEMU here does not run it"), "{reason}");
}
