use std::time::Duration;

use super::*;
use crate::scheduler::Next;
use crate::{StreamNote, Time};

mod classes;

const CHANNEL: u32 = 7;

fn config() -> Config {
    Config { window_bytes: 1000, streams_max: 3, piece_bytes: 100, lookahead_bytes: 200, ..Config::default() }
}

fn source() -> Streams {
    let mut streams = Streams::new(End::Source, config());
    streams.channel_up(Time::ZERO, CHANNEL, 0);
    streams
}

/// An open stream of the source whose peer takes `window` bytes.
fn opened(streams: &mut Streams, window: u64) -> StreamId {
    let stream = streams.open("x").unwrap();
    streams.note(stream, StreamNote::Opened { window }).unwrap();
    while streams.poll_note().is_some() {}
    stream
}

fn notes(streams: &mut Streams) -> Vec<StreamNote> {
    std::iter::from_fn(|| streams.poll_note()).map(|(_, note)| note).collect()
}

/// Pieces that the channel is given, until it waits.
fn pulled(streams: &mut Streams) -> Vec<Piece> {
    let mut pieces = Vec::new();
    while let Next::Work(work) = streams.next(Time::ZERO, CHANNEL) {
        pieces.extend(work.runs.into_iter().map(Piece::of));
    }
    pieces
}

fn piece(stream: StreamId, position: u64, bytes: u64) -> Piece {
    Piece { stream, position, bytes }
}

#[test]
fn an_address_is_the_stream_and_the_position() {
    assert_eq!(position_of(address(0xfffe, POSITION_MAX)), (0xfffe, POSITION_MAX));
    assert_eq!(piece(3, 17, 5).run().offset, (3 << 48) + 17);
}

#[test]
fn no_data_is_sent_before_open_or_beyond_the_credit() {
    let mut streams = source();
    let stream = streams.open("x").unwrap();
    streams.produced(stream, 900);
    assert!(pulled(&mut streams).is_empty(), "not open yet");
    streams.note(stream, StreamNote::Opened { window: 250 }).unwrap();
    assert_eq!(pulled(&mut streams).iter().map(|piece| piece.bytes).sum::<u64>(), 250);
    streams.note(stream, StreamNote::Credit { limit: 300 }).unwrap();
    streams.note(stream, StreamNote::Credit { limit: 260 }).unwrap();
    assert_eq!(pulled(&mut streams), [piece(stream, 250, 50)], "a lower credit takes nothing back");
}

#[test]
fn the_ring_is_full_until_the_peer_has_it() {
    let mut streams = source();
    let stream = opened(&mut streams, 10_000);
    streams.produced(stream, 1000);
    assert_eq!(streams.send_space(stream), SendSpace::Wait);
    let pieces = pulled(&mut streams);
    assert_eq!(streams.send_space(stream), SendSpace::Wait, "sent is not acknowledged");
    streams.acknowledged(Time::ZERO, CHANNEL, 1 + pieces.len() as u64, &[]);
    assert_eq!(streams.send_space(stream), SendSpace::Space { position: 1000, bytes: 1000 });
}

/// Most bytes that wait for the peer once a rate is known. Every piece of 256 KiB takes `each`. Another stream has
/// `other` bytes waiting that the peer does not read.
fn most_that_wait(each: Duration, other: u64) -> u64 {
    let config =
        Config { window_bytes: 8 << 20, backlog: Some(Duration::from_millis(50)), ..Config::default() };
    let mut streams = Streams::new(End::Source, config);
    streams.channel_up(Time::ZERO, CHANNEL, 0);
    let stuck = opened(&mut streams, 0);
    streams.produced(stuck, other);
    let stream = opened(&mut streams, 1 << 30);
    assert_eq!(
        streams.send_space(stream),
        SendSpace::Space { position: 0, bytes: 1 << 20 },
        "no rate is known yet"
    );
    let (mut now, mut position, mut most) = (Time::ZERO, 0, 0);
    for turn in 0..200 {
        if let SendSpace::Space { position: at, bytes } = streams.send_space(stream) {
            assert_eq!(at, position);
            streams.produced(stream, bytes);
            position += bytes;
        }
        if turn >= 100 {
            most = most.max(position - streams.scheduler().acknowledged_bytes());
        }
        if let Next::Work(work) = streams.next(now, CHANNEL) {
            now = now + each;
            streams.acknowledged(now, CHANNEL, work.sequence, &[]);
        }
    }
    most
}

#[test]
fn no_more_waits_for_the_peer_than_the_time_allowed() {
    // 262 MB/s, of which 50 ms are 13 MB, more than the ring.
    assert_eq!(
        most_that_wait(Duration::from_millis(1), 0),
        8 << 20,
        "the links are fast enough for the whole ring"
    );
    // 65.5 MB/s, of which 50 ms are 3.28 MB.
    let most = most_that_wait(Duration::from_millis(4), 0);
    assert!((3_200_000..3_400_000).contains(&most), "{most} bytes wait");
    // What others wait for is not for this one, but for the least, which everyone has.
    let most = most_that_wait(Duration::from_millis(4), 1 << 20);
    assert!((2_150_000..2_350_000).contains(&most), "{most} bytes wait");
    assert_eq!(most_that_wait(Duration::from_millis(4), 8 << 20), 1 << 20);
    // 6.55 MB/s, of which 50 ms are a third of a MB: there the least counts.
    assert_eq!(most_that_wait(Duration::from_millis(40), 0), 1 << 20);
}

#[test]
fn streams_take_turns() {
    let mut streams = source();
    let (one, two) = (opened(&mut streams, 10_000), opened(&mut streams, 10_000));
    streams.produced(one, 1000);
    streams.produced(two, 50);
    let order: Vec<StreamId> = pulled(&mut streams).iter().map(|piece| piece.stream).collect();
    let place = order.iter().position(|stream| *stream == two).unwrap();
    assert!(place <= 2, "a small stream waits for a large one's backlog: {order:?}");
}

#[test]
fn an_unread_stream_does_not_delay_others() {
    let mut streams = source();
    let (stuck, moving) = (opened(&mut streams, 0), opened(&mut streams, 10_000));
    streams.produced(stuck, 1000);
    streams.produced(moving, 300);
    assert!(pulled(&mut streams).iter().all(|piece| piece.stream == moving));
}

#[test]
fn an_idle_stream_has_nothing_to_do() {
    let mut streams = source();
    let stream = opened(&mut streams, 1000);
    assert_eq!(streams.next(Time::ZERO, CHANNEL), Next::Wait);
    assert!(notes(&mut streams).is_empty());
    assert_eq!(streams.readable(stream), Readable::Wait);
}

#[test]
fn many_small_writes_become_few_pieces() {
    let mut streams = source();
    let stream = opened(&mut streams, 1000);
    let mut pieces = Vec::new();
    for _ in 0..200 {
        streams.produced(stream, 1);
        pieces.extend(pulled(&mut streams));
    }
    assert_eq!(pieces.len(), 65);
    assert_eq!(pieces.last(), Some(&piece(stream, 64, 100)), "a whole piece goes all the same");
    streams.acknowledged(Time::ZERO, CHANNEL, 66, &[]);
    assert_eq!(pulled(&mut streams), [piece(stream, 164, 36)]);
}

#[test]
fn credit_is_sent_by_the_quarter() {
    let mut streams = source();
    let stream = opened(&mut streams, 1000);
    streams.received(piece(stream, 0, 600)).unwrap();
    streams.consumed(stream, 249);
    assert!(notes(&mut streams).is_empty());
    streams.consumed(stream, 1);
    assert_eq!(notes(&mut streams), [StreamNote::Credit { limit: 1250 }]);
}

#[test]
fn pieces_out_of_order_wait_until_the_gap_is_filled() {
    let mut streams = source();
    let stream = opened(&mut streams, 1000);
    streams.received(piece(stream, 100, 50)).unwrap();
    assert_eq!(streams.readable(stream), Readable::Wait);
    streams.received(piece(stream, 0, 100)).unwrap();
    assert_eq!(streams.readable(stream), Readable::Bytes { position: 0, bytes: 150 });
}

#[test]
fn the_end_comes_after_the_last_byte_also_beyond_the_credit() {
    let mut streams = source();
    let stream = opened(&mut streams, 1000);
    streams.note(stream, StreamNote::End { total: 1400 }).unwrap();
    assert_eq!(streams.readable(stream), Readable::Wait);
    streams.received(piece(stream, 0, 1000)).unwrap();
    streams.consumed(stream, 1000);
    assert_eq!(notes(&mut streams), [StreamNote::Credit { limit: 2000 }]);
    streams.received(piece(stream, 1000, 400)).unwrap();
    streams.consumed(stream, 400);
    assert_eq!(streams.readable(stream), Readable::End);
    streams.finished(stream);
    assert!(notes(&mut streams).is_empty(), "the other direction is open");
    streams.ended(stream);
    assert_eq!(notes(&mut streams), [StreamNote::End { total: 0 }, StreamNote::Closed]);
}

#[test]
fn a_stopped_stream_is_closed_only_when_nothing_is_in_flight() {
    let mut streams = source();
    let stream = opened(&mut streams, 1000);
    streams.produced(stream, 1000);
    let Next::Work(_) = streams.next(Time::ZERO, CHANNEL) else { panic!("nothing to do") };
    streams.reset_locally(stream);
    streams.finished(stream);
    assert_eq!(notes(&mut streams), [StreamNote::Reset, StreamNote::Stop]);
    assert_eq!(streams.next(Time::ZERO, CHANNEL), Next::Wait, "what was pending is forgotten");
    assert!(streams.channel_lost(CHANNEL));
    assert!(notes(&mut streams).is_empty(), "a lost channel may still deliver");
    streams.fenced(Time::ZERO, CHANNEL, 1, &[]);
    assert_eq!(notes(&mut streams), [StreamNote::Closed]);
    streams.note(stream, StreamNote::Reset).unwrap();
    streams.note(stream, StreamNote::Closed).unwrap();
    assert_eq!(streams.count(), 0);
}

#[test]
fn a_damaged_frame_is_sent_again_at_once() {
    let mut streams = source();
    let stream = opened(&mut streams, 1000);
    streams.produced(stream, 80);
    assert_eq!(pulled(&mut streams), [piece(stream, 0, 80)]);
    streams.acknowledged(Time::ZERO, CHANNEL, 2, &[2]);
    assert_eq!(pulled(&mut streams), [piece(stream, 0, 80)]);
}

#[test]
fn limits_hold_on_both_sides() {
    let mut streams = source();
    for _ in 0..3 {
        streams.open("x").unwrap();
    }
    assert_eq!(streams.open("x"), Err(OpenError::TooMany { max: 3 }));
    while streams.poll_note().is_some() {}
    streams.note(1, StreamNote::Open { service: "y".into(), window: 9 }).unwrap();
    assert!(matches!(notes(&mut streams)[..], [StreamNote::Refused { .. }]));
    assert_eq!(streams.count(), 3);
}

#[test]
fn stream_numbers_are_not_reused_at_once() {
    let mut streams = source();
    let first = streams.open("x").unwrap();
    streams.note(first, StreamNote::Refused { reason: String::new() }).unwrap();
    assert_ne!(streams.open("x").unwrap(), first);
}

#[test]
fn where_numbers_are_given_once_none_comes_again() {
    let mut streams = Streams::new(End::Destination, Config { never_reuse_numbers: true, ..config() });
    let mut given = 0;
    while let Ok(stream) = streams.open("x") {
        assert_eq!(usize::from(stream), 2 * given + 1, "a number of this end that was not given before");
        streams.note(stream, StreamNote::Refused { reason: String::new() }).unwrap();
        given += 1;
    }
    assert_eq!(given, 1 << 15, "all of this end");
    assert_eq!(streams.count(), 0, "it is not that there are too many at a time");
}

#[test]
fn the_size_of_the_peers_ring_is_what_it_sent_at_opening() {
    let mut streams = source();
    let stream = streams.open("x").unwrap();
    assert_eq!(streams.peer_window(stream), None);
    streams.note(stream, StreamNote::Opened { window: 250 }).unwrap();
    streams.note(stream, StreamNote::Credit { limit: 400 }).unwrap();
    assert_eq!(streams.peer_window(stream), Some(250));
    streams.note(1, StreamNote::Open { service: "y".into(), window: 9 }).unwrap();
    assert_eq!(streams.peer_window(1), Some(9));
}

#[test]
fn a_failed_session_breaks_every_stream_and_lets_it_go() {
    let mut streams = source();
    let stream = opened(&mut streams, 1000);
    streams.produced(stream, 500);
    let Next::Work(_) = streams.next(Time::ZERO, CHANNEL) else { panic!("nothing to do") };
    streams.fail_all();
    assert_eq!((streams.send_space(stream), streams.readable(stream)), (SendSpace::Stopped, Readable::Reset));
    streams.finished(stream);
    assert!(!streams.has_notes() && streams.poll_note().is_none(), "sockets that are reset are no news");
    assert_eq!(streams.count(), 0);
    assert_eq!(streams.open("x"), Err(OpenError::Over));
    assert_eq!(streams.next(Time(1) + Duration::from_secs(9), CHANNEL), Next::Stop);
}

#[test]
fn what_breaks_the_rules_is_a_violation() {
    let mut streams = source();
    let stream = opened(&mut streams, 1000);
    streams.received(piece(stream, 0, 400)).unwrap();
    streams.consumed(stream, 400);
    let open = |number| (number, StreamNote::Open { service: String::new(), window: 1 });
    for (number, note) in [
        (9, StreamNote::Reset),
        open(2),
        open(stream),
        (stream, StreamNote::Opened { window: 1 }),
        (stream, StreamNote::Refused { reason: String::new() }),
        (stream, StreamNote::End { total: 399 }),
        (stream, StreamNote::Closed),
    ] {
        assert!(streams.note(number, note.clone()).is_err(), "{number} {note:?}");
    }
    for bad in
        [piece(stream, 399, 2), piece(stream, 1300, 101), piece(stream, POSITION_MAX, 9), piece(4, 0, 1)]
    {
        assert!(streams.check(bad).is_err(), "{bad:?}");
    }
    assert_eq!(streams.check(piece(stream, 400, 1000)), Ok(()));
}

#[test]
fn a_peer_cannot_make_us_keep_gaps_without_bound() {
    let mut streams = Streams::new(End::Source, Config { window_bytes: 1 << 20, ..config() });
    let stream = opened(&mut streams, 1);
    let failed = (0..10_000u64).find_map(|n| streams.received(piece(stream, 1 + 2 * n, 1)).err());
    assert_eq!(failed, Some(StreamViolation::TooManyGaps(stream)));
}
