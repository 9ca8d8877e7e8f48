//! The destination learns it by the notice, the source by the answer.

use std::time::Instant;

use linerate_api::{AuditRequest, AuditResult};
use linerate_core::journal::{DestinationPhase, SourcePhase};
use linerate_guest::qmp::Qmp;
use linerate_guest::registry::Origin;

use super::*;
use crate::journal::IncomingRecord;
use crate::recovery::tests::leaves;
use crate::recovery::{continue_arrival, recover};
use crate::security::Security;
use crate::testing::{TestQemu, agent, arrived, listening, wait};

/// The source was rolled back by an operator, and its destination had run the guest before it could be reached.
#[test]
fn a_guest_that_may_run_on_both_hosts_is_shown_on_both() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (destination, port) =
        listening(&other_dir, Security::insecure(), |agent, accepted| agent.accept(accepted));
    let source = agent(&dir, &[]);
    let session = SessionId([7; 16]);
    let socket = other_dir.path().join("g.qmp");
    let hand = TestQemu::start(&socket, &[]);
    let pid = i32::try_from(hand.pid()).unwrap();
    let qemu = GuestRecord::new("g", Origin::Arrived, pid, socket, vec![]).unwrap();
    let incoming = IncomingRecord { qemu: Some(qemu), token: "00".repeat(32), ..IncomingRecord::default() };
    let order = destination.journal.next_order();
    let record = Record::new("g", order, incoming.role(DestinationPhase::Running));
    destination.journal.put(session, &record).unwrap();

    let own = i32::try_from(std::process::id()).unwrap();
    let mut role = leaves(&arrived(&source, own), SourcePhase::RolledBack);
    let Role::Source { peers, notice_due, .. } = &mut role else { panic!("{role:?}") };
    (*peers, *notice_due) = (port.addresses().to_vec(), true);
    source.journal.put(session, &Record::new("g", source.journal.next_order(), role)).unwrap();
    recover(&source.recovery).unwrap();

    let id = session.to_string();
    let sides = [
        (&source, Direction::Outgoing, AuditAction::MigrationEnd),
        (&destination, Direction::Incoming, AuditAction::ArrivalEnd),
    ];
    for (host, direction, action) in sides {
        wait("it is not shown", || has(&host.journal, &id));
        let [shown] = <[_; 1]>::try_from(summaries(&host.journal)).unwrap_or_else(|all| panic!("{all:?}"));
        assert_eq!((shown.direction, shown.state), (direction, MigrationState::InDoubt));
        assert!(shown.note.unwrap().contains("run on both hosts"));
        let request = AuditRequest { limit: 10, ..AuditRequest::default() };
        wait("the audit log has no line", || {
            let lines = host.audit.read(&request).unwrap().entries;
            lines.iter().any(|line| (line.action, line.result) == (action, AuditResult::Failed))
        });
    }
    wait("the notice is still due", || !source.journal.get(session).unwrap().unwrap().is_notice_due());
    drop(hand);
    assert!(!has(&destination.journal, &id), "its QEMU there has ended");

    let refused = resolve(&source.journal, &id, false).unwrap().unwrap_err();
    assert_eq!(refused.guest_state, Some(GuestState::InDoubt), "nothing was ended: {refused:?}");
    let settled = resolve(&source.journal, &id, true).unwrap().unwrap();
    assert_eq!((settled.state, settled.note), (MigrationState::Cancelled, None));
    assert!(!has(&source.journal, &id) && resolve(&source.journal, &id, true).is_none());
}

/// Its destination has said that the guest runs there. An operator who kept this copy would lose both.
#[test]
fn a_copy_that_is_being_ended_is_not_settled_as_the_one_that_stays() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let own = i32::try_from(std::process::id()).unwrap();
    let session = SessionId([7; 16]);
    let role = leaves(&arrived(&agent, own), SourcePhase::CommitSent);
    agent.journal.put(session, &Record::new("g", agent.journal.next_order(), role)).unwrap();
    note(&agent.journal, &agent.audit, session);
    let id = session.to_string();
    for stays_here in [true, false] {
        let refused = resolve(&agent.journal, &id, stays_here).unwrap().unwrap_err();
        assert!(refused.message.contains("keep the one at the destination"), "{refused:?}");
    }
    let [shown] = <[_; 1]>::try_from(summaries(&agent.journal)).unwrap_or_else(|all| panic!("{all:?}"));
    assert!(shown.note.unwrap().contains("being ended"));
}

/// QEMU had the command already. No source may be left to send the notice again.
#[test]
fn recovery_shows_a_guest_that_runs_although_its_source_has_rolled_back() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let socket = dir.path().join("g.qmp");
    let hand = TestQemu::start(&socket, &[]);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut qmp = Qmp::connect(&socket, deadline).unwrap();
    qmp.execute("cont", serde_json::json!({}), deadline).unwrap();
    drop(qmp);
    let pid = i32::try_from(hand.pid()).unwrap();
    let qemu = GuestRecord::new("g", Origin::Arrived, pid, socket, vec![]).unwrap();
    let incoming = IncomingRecord { qemu: Some(qemu), ..IncomingRecord::default() };
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    let record = Record::new("g", order, incoming.role(DestinationPhase::Committed));
    agent.journal.put(session, &record).unwrap();
    continue_arrival(&agent.recovery, session, record, true);
    wait("it is not shown", || has(&agent.journal, &session.to_string()));
    drop(hand);
}
