//! What recovery does to real processes.

use linerate_api::{GuestRunState, StartGuest, StopGuest};
use linerate_core::SessionId;
use linerate_core::journal::SourcePhase;
use linerate_guest::registry::{GuestRecord, Origin};

use super::recover;
use crate::agent::Agent;
use crate::guests;
use crate::journal::{Record, Role};
use crate::testing::agent;

/// A guest whose process is this test, and whose commit was sent to a host that does not answer.
fn commit_sent(agent: &Agent) -> GuestRecord {
    let own = i32::try_from(std::process::id()).unwrap();
    let qemu =
        GuestRecord::new("g", Origin::Started, own, agent.registry.folder("g").unwrap().join("q"), vec![])
            .unwrap();
    agent.registry.put(&qemu).unwrap();
    let role = Role::Source {
        phase: SourcePhase::CommitSent,
        qemu: qemu.clone(),
        peers: vec!["127.0.0.1:9".parse().unwrap()],
        ran: true,
        stood: None,
        token: "00".repeat(32),
        settings: None,
        copied: vec![],
        untold: false,
    };
    let record = Record::new("g", agent.journal.next_order(), role);
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
