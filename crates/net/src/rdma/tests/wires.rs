//! Queue pairs that are measured.

use super::super::wire::RdmaWire;
use super::*;
use crate::wires::play::{Part, Played, play};
use crate::wires::{MESSAGE_BYTES_MAX, Wire, WireError};

fn wires() -> (RdmaWire, RdmaWire) {
    let (source, destination) = connected(&patient());
    let other = std::thread::spawn(move || RdmaWire::new(destination, WAIT).unwrap());
    (RdmaWire::new(source, WAIT).unwrap(), other.join().unwrap())
}

fn both(near: &mut RdmaWire, far: &mut RdmaWire, ask: Part, answer: Part) -> (Played, Played) {
    std::thread::scope(|scope| {
        let there = scope.spawn(|| play(far, answer).unwrap());
        (play(near, ask).unwrap(), there.join().unwrap())
    })
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn messages_of_all_sizes_and_streams_go_over_a_wire() {
    let _link = link();
    let (mut near, mut far) = wires();
    for bytes in [0, 1, 4096, MESSAGE_BYTES_MAX] {
        let (ask, answer) = (Part::Ask { bytes, repetitions: 3 }, Part::Answer { bytes, repetitions: 3 });
        let (here, there) = both(&mut near, &mut far, ask, answer);
        assert_eq!((here.sent_bytes, here.received_bytes), (there.received_bytes, there.sent_bytes));
        assert_eq!(here.sent_bytes, 3 * (bytes as u64 + 1));
    }
    // More blocks than are under way at a time, and then back.
    let (here, there) = both(&mut near, &mut far, Part::Send { time: Duration::from_secs(3) }, Part::Receive);
    assert_eq!(here.sent_bytes, there.received_bytes);
    let time = Duration::from_millis(100);
    let (back, forth) = both(&mut near, &mut far, Part::Receive, Part::Send { time });
    assert_eq!(back.received_bytes, forth.sent_bytes);
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
    assert!(ended.iter().all(|error| matches!(error, WireError::Closed)), "{ended:?}");
    assert!(matches!(near.send(MESSAGE_BYTES_MAX + 1), Err(WireError::TooLarge { .. })));
}
