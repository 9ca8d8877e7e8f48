//! The source's data path against real destinations.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use common::*;
use linerate_core::{ChannelId, Run};
use linerate_net::channel::{ChannelEnd, ChannelError};
use linerate_net::channel_thread::{ChannelEnds, ChannelHandle, ChannelThreadOptions, Next, WorkSource};
use linerate_net::pacer::Pacer;
use linerate_net::tcp::Stream;
use linerate_net::tcp::send::{StreamAcks, StreamSender};

/// Gives out a list of runs once, one per frame, and notes what became of them.
#[derive(Default)]
struct List {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    work: VecDeque<Run>,
    sequence: u64,
    acknowledged: u64,
    data: u64,
    zero: u64,
    pings: u64,
    lost: Vec<ChannelError>,
    /// Stop when all is done, or go on with pings.
    keep: bool,
}

impl List {
    fn new(work: impl IntoIterator<Item = Run>, keep: bool) -> Arc<List> {
        let state = State { work: work.into_iter().collect(), keep, ..State::default() };
        Arc::new(List { state: Mutex::new(state), changed: Condvar::new() })
    }
}

impl WorkSource for List {
    fn next(&self, _channel: ChannelId) -> Next {
        let mut state = self.state.lock().unwrap();
        if let Some(run) = state.work.pop_front() {
            state.sequence += 1;
            return Next::Work { sequence: state.sequence, region: 0, runs: vec![run] };
        }
        if !state.keep || !state.lost.is_empty() {
            return Next::Stop;
        }
        let (mut state, _) = self.changed.wait_timeout(state, Duration::from_millis(30)).unwrap();
        state.sequence += 1;
        state.pings += 1;
        Next::Ping { sequence: state.sequence }
    }
    fn sent(&self, _channel: ChannelId, _sequence: u64, data_bytes: u64, zero_bytes: u64, _wire_bytes: u64) {
        let mut state = self.state.lock().unwrap();
        state.data += data_bytes;
        state.zero += zero_bytes;
    }
    fn acknowledged(&self, _channel: ChannelId, through: u64, damaged: &[u64]) {
        assert_eq!(damaged, []);
        self.state.lock().unwrap().acknowledged = through;
    }
    fn lost(&self, _channel: ChannelId, error: ChannelError) {
        self.state.lock().unwrap().lost.push(error);
        self.changed.notify_all();
    }
}

fn ends(stream: &Stream) -> ChannelEnds {
    ChannelEnds {
        sender: Box::new(StreamSender::new(stream.clone())),
        acks: Box::new(StreamAcks::new(stream.clone())),
        closer: stream.closer(),
    }
}

fn extents(size: usize, step: u64) -> impl Iterator<Item = Run> {
    (0..size as u64 / step).map(move |number| run(number * step, step))
}

#[test]
fn everything_arrives_and_is_acknowledged() {
    let size = 8 << 20;
    let (source, regions) = heap(content(size));
    let (landed, target) = heap(vec![0xee; size]);
    let (source_end, destination_end) = tcp_pair();
    let destination = Destination::serve(destination_end, target);
    let list = List::new(extents(size, 256 << 10), false);
    let pump =
        ChannelHandle::start(3, ends(&source_end), list.clone(), ChannelThreadOptions::new(regions)).unwrap();
    pump.join();
    assert!(matches!(destination.end(), ChannelEnd::Closed));
    let state = list.state.lock().unwrap();
    assert!(state.lost.is_empty(), "{:?}", state.lost);
    assert_eq!((state.acknowledged, state.data + state.zero), (32, size as u64));
    assert!(landed.snapshot() == source.snapshot());
}

#[test]
fn a_peer_that_reads_nothing_is_lost_as_stalled_and_reported_once() {
    let size = 32 << 20;
    let (_, regions) = heap(vec![1; size]);
    let (source_end, _unread) = tcp_pair();
    let list = List::new(extents(size, 1 << 20), true);
    let pump =
        ChannelHandle::start(0, ends(&source_end), list.clone(), ChannelThreadOptions::new(regions)).unwrap();
    until("the loss", || !list.state.lock().unwrap().lost.is_empty());
    pump.join();
    let state = list.state.lock().unwrap();
    assert!(matches!(state.lost[..], [ChannelError::Stalled { .. }]), "{:?}", state.lost);
}

#[test]
fn an_idle_channel_pings_and_is_not_lost_and_a_stop_reports_no_loss() {
    let (_, regions) = heap(vec![1; 4096]);
    let (source_end, destination_end) = tcp_pair();
    let destination = Destination::serve(destination_end, Arc::clone(&regions));
    let list = List::new([], true);
    let pump =
        ChannelHandle::start(0, ends(&source_end), list.clone(), ChannelThreadOptions::new(regions)).unwrap();
    until("twenty pings", || list.state.lock().unwrap().acknowledged >= 20);
    list.state.lock().unwrap().keep = false;
    pump.stop();
    pump.join();
    drop(destination);
    assert!(list.state.lock().unwrap().lost.is_empty());
}

#[test]
fn a_channel_that_breaks_is_lost_once() {
    let (_, regions) = heap(vec![1; 1 << 20]);
    let (source_end, destination_end) = tcp_pair();
    let destination = Destination::serve(destination_end, Arc::clone(&regions));
    let list = List::new(extents(1 << 20, 4096), true);
    let pump =
        ChannelHandle::start(0, ends(&source_end), list.clone(), ChannelThreadOptions::new(regions)).unwrap();
    until("an acknowledgement", || list.state.lock().unwrap().acknowledged > 0);
    destination.fence.close(WAIT).unwrap();
    until("the loss", || !list.state.lock().unwrap().lost.is_empty());
    pump.join();
    assert_eq!(list.state.lock().unwrap().lost.len(), 1);
}

#[test]
fn the_bandwidth_limit_holds() {
    let (_, regions) = heap(vec![1; 4 << 20]);
    let (source_end, destination_end) = tcp_pair();
    let _destination = Destination::serve(destination_end, Arc::clone(&regions));
    let list = List::new(extents(4 << 20, 256 << 10), false);
    let pacer = Arc::new(Pacer::new(NonZeroU64::new(16 << 20).unwrap()));
    let options = ChannelThreadOptions { pacer: Some(pacer), ..ChannelThreadOptions::new(regions) };
    let begun = Instant::now();
    ChannelHandle::start(0, ends(&source_end), list.clone(), options).unwrap().join();
    // Sixteen writes, the first on credit: the rate allows the last one no earlier than this. Slower machines pass too.
    assert!(begun.elapsed() >= Duration::from_millis(215), "{:?}", begun.elapsed());
    assert_eq!(list.state.lock().unwrap().acknowledged, 16);
}
