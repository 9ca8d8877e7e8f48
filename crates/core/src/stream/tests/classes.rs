//! How classes of streams share what the links carry.

use std::collections::VecDeque;

use super::*;

/// The second class's part of what is carried, in percent. The first has so many streams, and both always have
/// something to send. `idle`: the second has nothing in the first half.
fn share_of_the_second(weights: [u16; 2], streams_of_first: usize, idle: bool) -> u64 {
    let config = Config { weights: weights.to_vec(), streams_max: 9, ..config() };
    let mut streams = Streams::new(End::Source, config);
    streams.channel_up(Time::ZERO, CHANNEL, 0);
    let classes = [vec![0; streams_of_first], vec![1]].concat();
    let ids: Vec<StreamId> = classes
        .iter()
        .map(|class| {
            let stream = streams.open_in(*class, "x").unwrap();
            streams.note(stream, StreamNote::Opened { window: 1 << 40 }).unwrap();
            stream
        })
        .collect();
    let second = *ids.last().unwrap();
    let (mut all, mut of_second) = (0, 0);
    for turn in 0..4000 {
        for stream in ids.iter().filter(|stream| !idle || turn >= 2000 || **stream != second) {
            if let SendSpace::Space { bytes, .. } = streams.send_space(*stream) {
                streams.produced(*stream, bytes);
            }
        }
        let Next::Work(work) = streams.next(Time::ZERO, CHANNEL) else { continue };
        if !idle || turn >= 2000 {
            let pieces = work.runs.iter().map(|run| Piece::of(*run));
            pieces.clone().for_each(|piece| all += piece.bytes);
            pieces.filter(|piece| piece.stream == second).for_each(|piece| of_second += piece.bytes);
        }
        streams.acknowledged(Time::ZERO, CHANNEL, work.sequence, &[]);
    }
    of_second * 100 / all
}

#[test]
fn classes_share_by_weight_however_many_streams_they_have() {
    for streams in [1, 5] {
        assert!((49..=51).contains(&share_of_the_second([1, 1], streams, false)));
        assert!((19..=21).contains(&share_of_the_second([80, 20], streams, false)));
        assert!((98..=99).contains(&share_of_the_second([1, 99], streams, false)));
    }
}

#[test]
fn a_class_that_was_idle_does_not_catch_up() {
    let share = share_of_the_second([50, 50], 2, true);
    assert!((49..=51).contains(&share), "{share} %");
}

/// The part of the backlog that the second class may fill after the first has filled what it could, in percent.
fn kept_for_the_second(weights: [u16; 2]) -> u64 {
    let backlog = Some(Duration::from_millis(50));
    let config = Config { window_bytes: 64 << 20, backlog, weights: weights.to_vec(), ..Config::default() };
    let mut streams = Streams::new(End::Source, config);
    streams.channel_up(Time::ZERO, CHANNEL, 0);
    let mut open = |class| {
        let stream = streams.open_in(class, "x").unwrap();
        streams.note(stream, StreamNote::Opened { window: 1 << 40 }).unwrap();
        stream
    };
    let (first, second) = (open(0), open(1));
    let mut now = Time::ZERO;
    for _ in 0..200 {
        if let SendSpace::Space { bytes, .. } = streams.send_space(first) {
            streams.produced(first, bytes);
        }
        let Next::Work(work) = streams.next(now, CHANNEL) else { break };
        now = now + Duration::from_micros(500);
        streams.acknowledged(now, CHANNEL, work.sequence, &[]);
    }
    let SendSpace::Space { bytes: before, .. } = streams.send_space(second) else { panic!("no space") };
    while let SendSpace::Space { bytes, .. } = streams.send_space(first) {
        streams.produced(first, bytes);
    }
    let SendSpace::Space { bytes, .. } = streams.send_space(second) else { panic!("no space") };
    bytes * 100 / (before.max(streams.scheduler().bytes_per_s() as u64 / 20))
}

#[test]
fn what_one_class_has_waiting_leaves_the_others_their_part() {
    assert!((49..=50).contains(&kept_for_the_second([1, 1])));
    assert!((19..=20).contains(&kept_for_the_second([80, 20])));
}

/// Which part of a link of 5 MB/s the second class has, in percent, where the first has so many streams. All always
/// have something to send, and all that may wait is in flight at once.
fn share_of_a_slow_link(weights: [u16; 2], streams_of_first: usize) -> u64 {
    let backlog = Some(Duration::from_millis(50));
    let config = Config { window_bytes: 64 << 20, backlog, weights: weights.to_vec(), ..Config::default() };
    let mut streams = Streams::new(End::Source, config);
    streams.channel_up(Time::ZERO, CHANNEL, 0);
    let classes = [vec![0; streams_of_first], vec![1]].concat();
    let ids: Vec<StreamId> = classes.iter().map(|class| streams.open_in(*class, "x").unwrap()).collect();
    ids.iter().for_each(|id| streams.note(*id, StreamNote::Opened { window: 1 << 40 }).unwrap());
    let (mut now, mut in_flight) = (Time::ZERO, VecDeque::new());
    let (mut all, mut of_second) = (0, 0);
    for turn in 0..2000 {
        for stream in &ids {
            if let SendSpace::Space { bytes, .. } = streams.send_space(*stream) {
                streams.produced(*stream, bytes);
            }
        }
        while let Next::Work(work) = streams.next(now, CHANNEL) {
            in_flight.push_back(work);
        }
        let Some(work) = in_flight.pop_front() else { continue };
        for piece in work.runs.iter().map(|run| Piece::of(*run)) {
            now = now + Duration::from_nanos(piece.bytes * 200);
            if turn >= 1000 {
                all += piece.bytes;
                of_second += if ids.last() == Some(&piece.stream) { piece.bytes } else { 0 };
            }
        }
        streams.acknowledged(now, CHANNEL, work.sequence, &[]);
    }
    of_second * 100 / all
}

#[test]
fn slow_links_are_shared_by_weight_too() {
    for streams in [1, 2, 5] {
        for (weights, percent) in [([1, 1], 50), ([80, 20], 20), ([20, 80], 80)] {
            let found = share_of_a_slow_link(weights, streams);
            assert!(found.abs_diff(percent) <= 3, "{found} % instead of {percent} beside {streams} streams");
        }
    }
    // However little its class has, a stream has room for something.
    assert!(share_of_a_slow_link([99, 1], 8) > 0);
}
