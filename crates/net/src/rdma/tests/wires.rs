//! Queue pairs that are measured.

use std::sync::atomic::AtomicUsize;

use super::super::options::MESSAGES;
use super::super::test_connection::{RdmaTestConnection, UNCREDITED_MAX};
use super::*;
use crate::bench::role::{TestResult, TestRole, run_role};
use crate::bench::{MESSAGE_BYTES_MAX, TestConnection, TestError};

fn wires() -> (RdmaTestConnection, RdmaTestConnection) {
    let (source, destination) = connected(&patient());
    let other = std::thread::spawn(move || RdmaTestConnection::new(destination, WAIT).unwrap());
    (RdmaTestConnection::new(source, WAIT).unwrap(), other.join().unwrap())
}

fn both(
    near: &mut RdmaTestConnection,
    far: &mut RdmaTestConnection,
    ask: TestRole,
    answer: TestRole,
) -> (TestResult, TestResult) {
    std::thread::scope(|scope| {
        let there = scope.spawn(|| run_role(far, answer).unwrap());
        (run_role(near, ask).unwrap(), there.join().unwrap())
    })
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn messages_of_all_sizes_and_streams_go_over_a_wire() {
    let _link = link();
    let (mut near, mut far) = wires();
    for bytes in [0, 1, 4096, MESSAGE_BYTES_MAX] {
        let (ask, answer) =
            (TestRole::Ask { bytes, repetitions: 3 }, TestRole::Answer { bytes, repetitions: 3 });
        let (here, there) = both(&mut near, &mut far, ask, answer);
        assert_eq!((here.sent_bytes, here.received_bytes), (there.received_bytes, there.sent_bytes));
        assert_eq!(here.sent_bytes, 3 * (bytes as u64).max(1));
    }
    // More blocks than are in flight at a time, and then back.
    let (here, there) =
        both(&mut near, &mut far, TestRole::Send { time: Duration::from_secs(3) }, TestRole::Receive);
    assert_eq!(here.sent_bytes, there.received_bytes);
    let time = Duration::from_millis(100);
    let (back, forth) = both(&mut near, &mut far, TestRole::Receive, TestRole::Send { time });
    assert_eq!(back.received_bytes, forth.sent_bytes);
    // Nothing of the streams is left on the wire.
    let (ask, answer) =
        (TestRole::Ask { bytes: 4, repetitions: 3 }, TestRole::Answer { bytes: 4, repetitions: 3 });
    let (here, there) = both(&mut near, &mut far, ask, answer);
    assert_eq!((here.sent_bytes, here.received_bytes), (there.received_bytes, there.sent_bytes));
}

/// How often an adapter of the first link had no slot for a message, as both ends count it.
fn not_ready() -> u64 {
    let count = |device: &str, name: &str| -> u64 {
        let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{name}");
        std::fs::read_to_string(path).unwrap().trim().parse().unwrap()
    };
    ["rx0a", "rx0b"].iter().map(|device| count(device, "rcvd_rnr_err") + count(device, "send_rnr_err")).sum()
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_stream_waits_for_the_receiving_thread_and_no_message_comes_without_a_slot() {
    let _link = link();
    let (mut near, mut far) = wires();
    let (before, sent) = (not_ready(), AtomicUsize::new(0));
    let blocks = 3 * MESSAGES + 5;
    let (stalled, taken) = std::thread::scope(|scope| {
        scope.spawn(|| {
            for block in 1..=blocks {
                near.send_block(block == blocks).unwrap();
                sent.fetch_add(1, Ordering::SeqCst);
            }
        });
        until("a sender without credit", || sent.load(Ordering::SeqCst) >= UNCREDITED_MAX);
        // The adapters have taken all of it long before; only the thread has not.
        std::thread::sleep(Duration::from_secs(2));
        let stalled = sent.load(Ordering::SeqCst);
        let taken = (1..).find(|_| far.receive_block().unwrap()).unwrap();
        (stalled, taken)
    });
    assert_eq!((stalled, taken), (UNCREDITED_MAX, blocks));
    assert_eq!(not_ready(), before, "a message came and found no slot");
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_wire_that_is_cut_off_ends_both_waits() {
    let _link = link();
    let (mut near, mut far) = wires();
    let closer = near.closer();
    let ended = std::thread::scope(|scope| {
        let far = scope.spawn(|| far.receive(4).unwrap_err());
        let near = scope.spawn(|| near.receive(4).unwrap_err());
        std::thread::sleep(Duration::from_millis(200));
        closer.close();
        [near.join().unwrap(), far.join().unwrap()]
    });
    assert!(ended.iter().all(|error| matches!(error, TestError::Closed)), "{ended:?}");
    assert!(matches!(near.send(MESSAGE_BYTES_MAX + 1), Err(TestError::TooLarge { .. })));
}
