//! What arrives, and what is sent, while the journal's disk hangs.

use linerate_core::Token;
use linerate_net::tcp::connect::{Route, query};
use linerate_net::tcp::options::TcpOptions;

use super::*;
use crate::both_hosts;
use crate::recovery::{notify_destination, start};
use crate::session::identity::Identity;
use crate::testing::{SlowDisk, listening};

/// An agent that answers other hosts, and what asks it about [`comes`]'s session. None: no answer within 60 s.
fn answers(dir: &TempDir) -> (Arc<Agent>, Listener, impl Fn(Purpose, SocketAddr) -> Option<Outcome>) {
    let (agent, listener) = listening(dir, Security::insecure(), |agent, accepted| agent.accept(accepted));
    let identity = Identity::new(SessionId([7; 16]), Token([0; 32]), &Security::insecure());
    let asks = move |purpose, remote| {
        let options = TcpOptions { connect_wait: Duration::from_secs(60), ..TcpOptions::default() };
        query(&Route { local: None, device: None, remote }, &identity.hello(purpose, 0, 0), &options).ok()
    };
    (agent, listener, asks)
}

/// The source has its guest back: the one here must not run beside it.
#[test]
fn a_guest_is_not_run_if_a_roll_back_notice_arrives_while_commit_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, port, asks) = answers(&dir);
    let (_hand, qemu) = runs(&dir);
    let qemu = GuestRecord { origin: Origin::Arrived, ..qemu };
    let session = comes(&agent, qemu.clone(), DestinationPhase::Loaded);
    let record = agent.journal.get(session).unwrap().unwrap();
    start(&agent.recovery, session, record, Machine::Destination(DestinationRecovery::wait()));
    let (one, wait) = the_one(&agent);
    let disk = SlowDisk::start(&agent.journal);
    one.resolve(true).unwrap();
    while one.timeout().is_some() {
        wait("commit is not written");
    }
    let at = port.addresses()[0];
    // Silence would let the source resume its guest.
    assert_eq!(asks(Purpose::Resumes, at), Some(Outcome::Pending));
    assert_eq!(asks(Purpose::RolledBack, at), Some(Outcome::Pending));
    disk.end();
    while agent.incoming.outcome(session) == Outcome::Pending {
        wait("it stays");
    }
    assert_eq!(agent.incoming.outcome(session), Outcome::Returned);
    assert!(one.decided(true) == Decided::Overruled && !qemu.is_alive());
}

/// Its session has ended, and the disk hangs for another one's.
#[test]
fn a_source_is_answered_that_its_guest_runs_here_while_the_disk_hangs() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, port, asks) = answers(&dir);
    let (_hand, qemu) = runs(&dir);
    let session = comes(&agent, qemu, DestinationPhase::Running);
    let disk = SlowDisk::start(&agent.journal);
    let at = port.addresses()[0];
    assert_eq!(asks(Purpose::Resumes, at), Some(Outcome::Committed));
    assert_eq!(asks(Purpose::Query, at), Some(Outcome::Committed));
    // Noted at once, though the first answer waits until that is on disk.
    std::thread::scope(|scope| {
        scope.spawn(|| asks(Purpose::RolledBack, at));
        let id = session.to_string();
        crate::testing::wait("it is not shown", || both_hosts::has(&agent.journal, &id));
        assert_eq!(asks(Purpose::RolledBack, at), Some(Outcome::Committed));
        disk.end();
    });
}

/// The destination's operator is heard after 20 s of silence, and would run the older copy.
#[test]
fn a_destination_is_notified_of_a_roll_back_while_the_disk_hangs() {
    for ran in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let (agent, peer) = (agent(&dir, &[]), Peer::new());
        let (_hand, qemu) = runs(&dir);
        let (session, record) = peer.rolled_back(&agent, &qemu, ran);
        if !ran {
            // Its operator has resumed it since, which is noted.
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut qmp = linerate_guest::process::connect(&qemu, deadline).unwrap();
            qmp.execute("cont", serde_json::json!({}), deadline).unwrap();
        }
        let disk = SlowDisk::start(&agent.journal);
        notify_destination(&agent.recovery, session, record);
        peer.is_notified();
        disk.end();
        let role = || agent.journal.get(session).unwrap().unwrap().role;
        crate::testing::wait("it is not noted", || matches!(role(), Role::Source { ran: true, .. }));
    }
}
