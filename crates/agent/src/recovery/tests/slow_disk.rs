//! What arrives while the journal is being written.

use super::*;

/// The source has its guest back: the one here must not run beside it.
#[test]
fn a_guest_is_not_run_if_a_roll_back_notice_arrives_while_commit_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let agent = agent(&dir, &[]);
    let (_hand, qemu) = runs(&dir);
    let qemu = GuestRecord { origin: Origin::Arrived, ..qemu };
    let session = comes(&agent, qemu.clone(), DestinationPhase::Loaded);
    let other = SessionId([9; 16]);
    let record = Record::new(
        "h",
        agent.journal.next_order(),
        IncomingRecord::default().role(DestinationPhase::Aborted),
    );
    agent.journal.put(other, &record).unwrap();
    recover(&agent.recovery).unwrap();
    let (one, wait) = the_one(&agent);
    // Another record is looked at for a long time: whatever is written waits for it.
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let journal = agent.journal.clone();
    let slow = std::thread::spawn(move || {
        let looks = |_: &Record| {
            begun.send(()).unwrap();
            ends.recv().is_err()
        };
        journal.put_unless(other, &record, looks).unwrap()
    });
    has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
    run_here(&one);
    while one.timeout().is_some() {
        wait("commit is not written");
    }
    one.rolled_back_at_source();
    drop(end);
    assert!(!slow.join().unwrap());
    while agent.incoming.outcome(session) == Outcome::Pending {
        wait("it stays");
    }
    assert_eq!(agent.incoming.outcome(session), Outcome::Returned);
    assert!(one.decided(true) == Decided::Overruled && !qemu.is_alive());
}
