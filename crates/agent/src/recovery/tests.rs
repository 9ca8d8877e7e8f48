//! What recovery does to real processes.

use linerate_api::{GuestRunState, StartGuest, StopGuest};
use linerate_core::journal::{DestinationPhase, SourcePhase};
use linerate_core::{Outcome, SessionId};
use linerate_guest::registry::{GuestRecord, Origin};

use super::recover;
use crate::agent::Agent;
use crate::guests;
use crate::journal::{Record, Role, Waiting};
use crate::testing::{Ending, agent, arrived};

/// Of a guest that leaves for a host that does not answer.
fn leaves(qemu: &GuestRecord, phase: SourcePhase) -> Role {
    Role::Source {
        phase,
        qemu: qemu.clone(),
        peers: vec!["127.0.0.1:9".parse().unwrap()],
        ran: true,
        stood: None,
        token: "00".repeat(32),
        settings: None,
        copied: vec![],
        untold: false,
    }
}

/// A guest whose process is this test, and whose commit was sent.
fn commit_sent(agent: &Agent) -> GuestRecord {
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu =
        GuestRecord::new("g", Origin::Started, own, agent.registry.folder("g").unwrap().join("q"), vec![])
            .unwrap();
    agent.registry.put(&qemu).unwrap();
    let record = Record::new("g", agent.journal.next_order(), leaves(&qemu, SourcePhase::CommitSent));
    agent.journal.put(SessionId([7; 16]), &record).unwrap();
    qemu
}

#[test]
fn an_undecided_guest_is_shown_as_such_and_neither_stopped_nor_started_anew() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let qemu = commit_sent(&agent);
    recover(&agent).unwrap();
    let listed = guests::list(&agent).unwrap();
    assert_eq!(listed[0].state, GuestRunState::Undecided, "{listed:?}");
    assert!(listed[0].direct.reasons[0].contains("linerate migration list"), "{listed:?}");
    assert_eq!(guests::show(&agent, "g").unwrap().summary.state, GuestRunState::Undecided);
    let error = guests::stop(&agent, "g", StopGuest { force: true }).unwrap_err();
    assert_eq!(error.code, "guest_busy");
    // Also when nothing of it is left here: it may run at the other host, with the same disks.
    for _ in 0..2 {
        let spec_toml = Some("name = 'g'\nmemory = '64M'\n".to_owned());
        let error = guests::start(&agent, &StartGuest { spec_toml, spec_path: None }).unwrap_err();
        assert_eq!(error.code, "guest_busy", "{error:?}");
        assert!(
            error.message.contains("is not decided") && error.hint.contains("linerate resolve"),
            "{error:?}"
        );
        let _ = agent.registry.remove(&qemu);
    }
}

/// The source gives its copy up for *Committed*, and lets it run or keeps it for the other answers: neither may come too early.
#[test]
fn a_source_that_asks_while_the_destinations_qemu_is_ending_is_told_to_ask_again() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let mut ending = Ending::start(&dir);
    let qemu = arrived(&agent, ending.pid());
    let phases = [DestinationPhase::Running, DestinationPhase::Committed];
    for (id, phase) in (1..).zip(phases) {
        let waiting = Waiting { qemu: Some(qemu.clone()), ..Waiting::default() };
        let record = Record::new("g", agent.journal.next_order(), waiting.role(phase));
        agent.journal.put(SessionId([id; 16]), &record).unwrap();
    }
    let asked = || [1, 2].map(|id| agent.outcome(SessionId([id; 16])));
    assert_eq!(asked(), [Outcome::Pending; 2], "it has its files, and their locks");
    ending.end();
    assert_eq!(asked(), [Outcome::Gone; 2]);
    let left = leaves(&qemu, SourcePhase::Finished);
    agent.journal.put(SessionId([9; 16]), &Record::new("g", agent.journal.next_order(), left)).unwrap();
    assert_eq!(asked(), [Outcome::Committed; 2], "it ran here, and moved on");
}
