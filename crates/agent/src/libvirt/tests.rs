//! A migration from the request to its record in the journal, with a libvirt that answers what the test sets.

use linerate_api::{MigrationState, ModeChoice};

use linerate_net::tcp::listen::{Accepted, ListenOptions, Listener};
use linerate_wire::VERSION_MAX;
use linerate_wire::frame::{Role as Purpose, Welcome};

use super::testing::{FakeLibvirt, LONG, request, target, wait};
use super::*;
use crate::journal::Role;

/// A host that says that it takes guests, and does nothing more.
fn willing() -> Listener {
    let welcome = |accepted: Accepted| {
        if accepted.hello.role == Purpose::Arrival {
            let _ = accepted.welcome(Welcome { version: VERSION_MAX, control_received: 0 });
        }
    };
    Listener::start(&["127.0.0.1:0".parse().unwrap()], ListenOptions::default(), welcome).unwrap()
}

async fn ask(needs: &Arc<Needs>, here: &FakeLibvirt) -> Result<MigrationId, ErrorBody> {
    let (there, (request, libvirt)) = (willing(), request());
    let to = there.addresses()[0].to_string();
    let request = MigrateRequest { mode: ModeChoice::Stream, to, ..request };
    tokio::time::timeout(LONG, prepare(needs.clone(), request, libvirt, here.virsh())).await.expect("it ends")
}

#[tokio::test]
async fn nothing_is_begun_that_is_not_in_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let (needs, here) = (agent.libvirt(), FakeLibvirt::new(Some("running")));
    agent.journal.break_disk();
    assert_eq!(ask(&needs, &here).await.unwrap_err().code, "journal_failed");
    assert!(needs.moves.all().is_empty() && here.asked("migrate") == 0);
    agent.journal.mend_disk();
    // The domain is free again. The next one ends too, as the other host takes no tunnel, and frees it as well.
    let id = ask(&needs, &here).await.map_err(|error| error.message).unwrap();
    let one = needs.moves.by_id(&id.0).unwrap();
    wait("it is over", || one.is_over()).await;
    assert_eq!((one.summary().state, here.asked("migrate")), (MigrationState::Failed, 0));
    let records = agent.journal.all().unwrap();
    assert!(!records.is_empty());
    for (_, record) in records {
        assert!(matches!(record.role, Role::Libvirt { over: true, .. }), "{record:?}");
    }
    assert!(needs.moves.claim(&target().uuid, "web").is_ok());
}

#[tokio::test]
async fn a_domain_with_its_hosts_processor_moves_with_a_warning_where_the_other_one_is_not_known() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let (needs, here) = (agent.libvirt(), FakeLibvirt::new(Some("running")));
    here.set("xml", "<domain>\n  <cpu mode='host-passthrough'/>\n</domain>\n");
    let id = ask(&needs, &here).await.map_err(|error| error.message).unwrap();
    let one = needs.moves.by_id(&id.0).unwrap();
    wait("it is over", || one.is_over()).await;
    let warned = super::testing::warnings(&one);
    assert!(warned.iter().any(|text| text.contains("host's processor")), "{warned:?}");
}

#[tokio::test]
async fn nothing_is_begun_to_a_host_that_does_not_say_that_it_takes_guests() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let (needs, here) = (agent.libvirt(), FakeLibvirt::new(Some("running")));
    let (_closed, address) = crate::testing::closed_port();
    let (request, libvirt) = request();
    let request = MigrateRequest { to: address.to_string(), ..request };
    let refused = prepare(needs.clone(), request, libvirt, here.virsh()).await.unwrap_err();
    assert_eq!(refused.code, "no_link", "{refused:?}");
    assert!(agent.journal.all().unwrap().is_empty() && here.asked("migrate") == 0);
    assert!(needs.moves.claim(&target().uuid, "web").is_ok());
}

#[tokio::test]
async fn a_domain_of_another_migration_is_refused_before_libvirt_is_asked_about_it() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let (needs, here) = (agent.libvirt(), FakeLibvirt::new(Some("running")));
    let claim = needs.moves.claim(&target().uuid, "its earlier name").map_err(|error| error.message).unwrap();
    assert_eq!(ask(&needs, &here).await.unwrap_err().code, "guest_busy");
    assert!(agent.journal.all().unwrap().is_empty() && here.asked("domstate") == 0);
    drop(claim);
}

#[tokio::test]
async fn a_domain_that_libvirt_moves_already_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let (needs, here) = (agent.libvirt(), FakeLibvirt::new(Some("running")));
    here.set("job", super::testing::MIGRATES);
    assert_eq!(ask(&needs, &here).await.unwrap_err().code, "guest_busy");
    assert!(agent.journal.all().unwrap().is_empty() && here.asked("migrate") == 0);
    here.remove("job");
    here.set("state", "crashed");
    assert_eq!(ask(&needs, &here).await.unwrap_err().code, code::REFUSED);
}
