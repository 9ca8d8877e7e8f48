//! What a guest that leaves has here: images that stay, and files that both hosts use.

use linerate_guest::stale;

use super::*;
use crate::testing::{wait, with_access};

/// An operator gives its memory up, and starts it from them. If it runs at the destination too, it has its disks there.
#[test]
fn images_of_a_guest_that_ran_here_only_after_commit_are_not_marked_as_stale() {
    for (ran, on_both, is_marked) in
        [(RanHere::Maybe, false, true), (RanHere::Yes, true, true), (RanHere::Yes, false, false)]
    {
        let (dir, agent, peer, qemu) = ended_at_its_source();
        let image = dir.path().join("copied-image");
        std::fs::write(&image, "x").unwrap();
        let session = peer.session(&agent, &qemu, SourcePhase::CommitSent, false);
        let mut record = agent.journal.get(session).unwrap().unwrap();
        let Role::Source { copied, .. } = &mut record.role else { panic!("{record:?}") };
        *copied = vec![image.clone()];
        agent.journal.put(session, &record).unwrap();
        note_ran_here(&agent, session, ran);
        if on_both {
            agent.journal.note_on_both_hosts(session);
        }
        recover(&agent.recovery).unwrap();
        agent.unfinished()[0].resolve(false).unwrap();
        wait_written(&agent, session, (SourcePhase::Finished, false));
        assert_eq!(stale::of(&image).is_some(), is_marked, "{ran:?}, {on_both}");
    }
}

/// The destination may have it resumed until then.
#[test]
fn what_a_guest_leaves_is_marked_and_handed_over_when_its_qemu_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let agent = with_access(&dir);
    let (_hand, qemu) = runs(&dir);
    agent.registry.put(&qemu).unwrap();
    let [image, disk] = ["copied-image", "common-disk"].map(|name| dir.path().join(name));
    [&image, &disk].iter().for_each(|path| std::fs::write(path, "x").unwrap());
    let folder = dir.path().join("state/access");
    std::fs::create_dir_all(&folder).unwrap();
    let access = folder.join("g.json");
    let file = serde_json::json!({ "path": disk, "device": 0, "inode": 0, "writable": true, "owned": true });
    let text = serde_json::json!({ "guest": "g", "uid": 65534, "files": [file] }).to_string();
    std::fs::write(&access, text).unwrap();
    let mut role = leaves(&qemu, SourcePhase::CommitSent);
    let Role::Source { copied, .. } = &mut role else { panic!("{role:?}") };
    *copied = vec![image.clone()];
    let (order, session) = (agent.journal.next_order(), SessionId([7; 16]));
    agent.journal.put(session, &Record::new("g", order, role)).unwrap();
    // QEMU serves one client at a time: it gets no command to end, and is killed after a while.
    let _other = std::os::unix::net::UnixStream::connect(&qemu.qmp).unwrap();
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    one.resolve(false).unwrap();
    while written(&agent, session).0 == SourcePhase::CommitSent {
        let is_marked = stale::of(&image).is_some();
        let is_kept = std::fs::read_to_string(&access).is_ok_and(|text| text.contains("common-disk"));
        assert!((!is_marked && is_kept) || !qemu.is_alive(), "{is_marked}, {is_kept}: it may be resumed");
        wait("its QEMU does not end");
    }
    assert!(stale::of(&image).is_some());
    assert!(!access.exists());
}

/// The mark says that not all of the guest has arrived, and no guest would be started with it.
#[test]
fn images_of_a_guest_that_had_just_begun_to_run_when_the_agent_ended_are_not_stale() {
    for (case, is_cleared) in [("runs", true), ("has ended", false), ("is leaving", false)] {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let (hand, qemu) = runs(&dir);
        agent.registry.put(&qemu).unwrap();
        let [image, given_up] = ["copied-image", "given-up"].map(|name| dir.path().join(name));
        for (path, guest) in [(&image, "g"), (&given_up, "another")] {
            std::fs::write(path, "x").unwrap();
            stale::mark(path, guest, "this host").unwrap();
        }
        let session = comes(&agent, qemu.clone(), DestinationPhase::Running);
        let mut record = agent.journal.get(session).unwrap().unwrap();
        let Role::Destination { incoming, .. } = &mut record.role else { panic!("{record:?}") };
        incoming.copied = vec![given_up.clone(), image.clone()];
        agent.journal.put(session, &record).unwrap();
        if case == "is leaving" {
            let order = agent.journal.next_order();
            let record = Record::new("g", order, leaves(&qemu, SourcePhase::CommitSent));
            agent.journal.put(SessionId([9; 16]), &record).unwrap();
        }
        // It ends with this.
        let hand = (case != "has ended").then_some(hand);
        recover(&agent.recovery).unwrap();
        if is_cleared {
            wait("its image is still marked as stale", || stale::of(&image).is_none());
        }
        assert_eq!(stale::of(&image).is_none(), is_cleared, "{case}");
        assert!(stale::of(&given_up).is_some(), "it is another guest's, which left it here");
        drop(hand);
    }
}
