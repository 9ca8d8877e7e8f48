//! Safety rules 3 and 5: after a fence or a seal, not one byte changes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::forward::forward;
use common::*;
use linerate_core::Run;
use linerate_net::channel::{AckReader, ChannelEnd, ChannelError, Sender, WriteOrder};
use linerate_net::region::Region;
use linerate_net::region::heap::HeapRegion;
use linerate_net::tcp::Stream;
use linerate_net::tcp::send::{StreamAcks, StreamSender};

/// Lets time pass between the moment that a receive was called and the moment that it writes, as a page fault does.
/// What does not wait for the writing thread is seen to fail.
struct SlowRegion(HeapRegion, AtomicU64);

impl SlowRegion {
    fn new(size: usize) -> Arc<SlowRegion> {
        Arc::new(SlowRegion(HeapRegion::new(size), AtomicU64::new(0)))
    }
}

impl Region for SlowRegion {
    forward!(size checksum_after split_zero send read write clear populate);

    fn receive(&self, socket: BorrowedFd<'_>, runs: &[Run], done: usize) -> io::Result<usize> {
        self.1.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(60));
        self.0.receive(socket, runs, done)
    }
}

const PAGES: u64 = 64;

/// Sends ever new content to every page until it is stopped or cannot.
fn keep_sending(stream: Stream, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let source = HeapRegion::new((PAGES * PAGE) as usize);
        let mut sender = StreamSender::new(stream);
        for sequence in 1.. {
            let page = sequence % PAGES;
            source.store((page * PAGE) as usize, &[(sequence % 251) as u8 + 1; PAGE as usize]).unwrap();
            let data = [run(page * PAGE, PAGE)];
            let order = WriteOrder { sequence, region_id: 0, region: &source, data: &data, zero: &[] };
            if stop.load(Ordering::SeqCst) || sender.write(&order).is_err() {
                return;
            }
        }
    })
}

#[test]
fn no_byte_changes_after_the_fence_closed() {
    let region = SlowRegion::new((PAGES * PAGE) as usize);
    let (source_end, destination_end) = tcp_pair();
    let destination = Destination::serve(destination_end, table(Arc::clone(&region) as Arc<dyn Region>));
    let stop = Arc::new(AtomicBool::new(false));
    let sending = keep_sending(source_end, Arc::clone(&stop));
    until("some writes", || region.1.load(Ordering::SeqCst) > 3);
    let fenced = destination.fence.close(WAIT).unwrap();
    let after = region.0.snapshot();
    std::thread::sleep(Duration::from_millis(300));
    assert!(region.0.snapshot() == after, "a byte changed after the fence had closed");
    assert!(fenced.applied >= 2 && fenced.damaged.is_empty(), "{fenced:?}");
    for sequence in 1..=fenced.applied {
        let byte = after[((sequence % PAGES) * PAGE) as usize];
        assert!(u64::from(byte) > sequence % 251, "frame {sequence} counts as applied and is not there");
    }
    stop.store(true, Ordering::SeqCst);
    sending.join().unwrap();
    assert!(matches!(destination.end(), ChannelEnd::Fenced));
}

#[test]
fn no_byte_changes_after_the_seal() {
    let region = SlowRegion::new((PAGES * PAGE) as usize);
    let regions = table(Arc::clone(&region) as Arc<dyn Region>);
    let (source_end, destination_end) = tcp_pair();
    let destination = Destination::serve(destination_end, Arc::clone(&regions));
    let stop = Arc::new(AtomicBool::new(false));
    // Its end stays open here: closed with unread acknowledgements, it would reset the connection.
    let sending = keep_sending(source_end.clone(), Arc::clone(&stop));
    until("some writes", || region.1.load(Ordering::SeqCst) > 3);
    regions.seal();
    let after = region.0.snapshot();
    std::thread::sleep(Duration::from_millis(300));
    assert!(region.0.snapshot() == after, "a byte changed after the seal");
    stop.store(true, Ordering::SeqCst);
    // It may be waiting for room.
    source_end.closer().close();
    sending.join().unwrap();
    let end = destination.end();
    assert!(matches!(end, ChannelEnd::Failed(ChannelError::Sealed)), "{end:?}");
}

#[test]
fn a_sealed_table_refuses_zero_runs_too() {
    let (region, regions) = heap(vec![7; PAGE as usize]);
    let (source_end, destination_end) = tcp_pair();
    let destination = Destination::serve(destination_end, Arc::clone(&regions));
    regions.seal();
    let zero = [run(0, PAGE)];
    let order = WriteOrder { sequence: 1, region_id: 0, region: region.as_ref(), data: &[], zero: &zero };
    StreamSender::new(source_end.clone()).write(&order).unwrap();
    assert!(matches!(destination.end(), ChannelEnd::Failed(ChannelError::Sealed)));
    assert_eq!(region.snapshot(), vec![7; PAGE as usize]);
    assert!(StreamAcks::new(source_end).next(WAIT).is_err(), "and the source is notified of the end");
}
