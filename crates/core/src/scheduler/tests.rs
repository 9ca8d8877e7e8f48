use super::*;
use crate::extent::{normalise, total_bytes};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn ms(n: u64) -> Time {
    Time(n * 1_000_000)
}

fn with_channels(n: u32) -> Scheduler {
    let mut scheduler = Scheduler::new(Config::default());
    (0..n).for_each(|id| scheduler.add_channel(Time::ZERO, id, id as LinkId));
    scheduler
}

fn work(next: Next) -> Work {
    match next {
        Next::Work(work) => work,
        other => panic!("no work: {other:?}"),
    }
}

#[test]
fn hands_out_everything_once_in_pieces() {
    let mut scheduler = with_channels(2);
    scheduler.add_work(vec![Extent::new(0, 0, 3 * MIB), Extent::new(1, 8192, 4096)]);
    let mut seen = Vec::new();
    for turn in 0.. {
        let channel = turn % 2;
        match scheduler.next(ms(1), channel) {
            Next::Work(work) => {
                seen.extend(work.runs.iter().map(|&run| Extent { region: work.region, run }));
                scheduler.acknowledged(ms(2), channel, work.sequence, &[]);
            }
            _ => break,
        }
    }
    assert_eq!(total_bytes(&seen), 3 * MIB + 4096);
    assert_eq!(normalise(seen), vec![Extent::new(0, 0, 3 * MIB), Extent::new(1, 8192, 4096)]);
    assert!(scheduler.is_drained());
}

#[test]
fn a_lost_channels_work_is_not_given_away_before_the_fence() {
    let mut scheduler = with_channels(2);
    scheduler.add_work(vec![Extent::new(0, 0, 64 << 10)]);
    let first = work(scheduler.next(ms(0), 0));
    let second = work(scheduler.next(ms(0), 0));
    assert!(scheduler.lost(0));
    assert!(!scheduler.lost(0), "reported only once");
    assert_eq!(scheduler.next(ms(1), 1), Next::Wait, "in flight on a channel that is not fenced");
    assert!(!scheduler.is_drained());
    scheduler.fenced(ms(2), 0, first.sequence, &[]);
    let again = work(scheduler.next(ms(3), 1));
    assert_eq!(again.runs, second.runs, "only what was not applied goes again");
}

#[test]
fn an_active_channel_cannot_be_fenced_away() {
    let mut scheduler = with_channels(1);
    scheduler.add_work(vec![Extent::new(0, 0, 4096)]);
    work(scheduler.next(ms(0), 0));
    scheduler.fenced(ms(1), 0, 0, &[]);
    assert_eq!(scheduler.pending_bytes(), 0);
    assert_eq!(scheduler.active_channels(), 1);
}

#[test]
fn a_damaged_write_is_kept_for_the_next_round() {
    let mut scheduler = with_channels(1);
    scheduler.add_work(vec![Extent::new(0, 0, 4096)]);
    let write = work(scheduler.next(ms(0), 0));
    scheduler.acknowledged(ms(1), 0, write.sequence, &[write.sequence]);
    assert!(scheduler.is_drained());
    assert_eq!(scheduler.acknowledged_bytes(), 0);
    assert_eq!(scheduler.take_damaged(), vec![Extent::new(0, 0, 4096)]);
    assert!(scheduler.take_damaged().is_empty());
}

#[test]
fn an_idle_channel_is_pinged_and_a_busy_one_is_not() {
    let mut scheduler = with_channels(1);
    assert_eq!(scheduler.next(ms(10), 0), Next::Wait);
    let Next::Ping { sequence } = scheduler.next(ms(160), 0) else { panic!("no ping") };
    assert_eq!(scheduler.next(ms(900), 0), Next::Wait, "one unanswered ping is enough");
    assert!(scheduler.is_drained(), "a ping carries nothing");
    scheduler.acknowledged(ms(901), 0, sequence, &[]);
    assert!(matches!(scheduler.next(ms(1_100), 0), Next::Ping { .. }));
}

#[test]
fn a_slow_channel_does_not_take_work_that_it_would_finish_last() {
    let mut scheduler = with_channels(2);
    // Teach the rates: channel 0 carries four times as much as channel 1.
    scheduler.add_work(vec![Extent::new(0, 0, 400 * MIB)]);
    for step in 1..=20u64 {
        for (channel, times) in [(0, 4), (1, 1)] {
            let taken: Vec<Work> =
                (0..times).map(|_| work(scheduler.next(ms(step * 30 - 29), channel))).collect();
            scheduler.acknowledged(ms(step * 30), channel, taken[times - 1].sequence, &[]);
        }
    }
    // Drain to a small rest, with the slow one holding a piece.
    let held = work(scheduler.next(ms(700), 1));
    while scheduler.pending_bytes() > 100 << 10 {
        let write = work(scheduler.next(ms(700), 0));
        scheduler.acknowledged(ms(700), 0, write.sequence, &[]);
    }
    assert_eq!(scheduler.next(ms(701), 1), Next::Wait);
    assert!(matches!(scheduler.next(ms(701), 0), Next::Work(_)), "the fast one takes the rest");
    scheduler.acknowledged(ms(720), 1, held.sequence, &[]);
}

#[test]
fn zero_pages_leave_room_in_the_window() {
    let mut scheduler = with_channels(1);
    scheduler.add_work(vec![Extent::new(0, 0, 1 << 30)]);
    for _ in 0..1000 {
        let write = work(scheduler.next(ms(1), 0));
        scheduler.sent(0, write.sequence, 64);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Next(u32),
    Ack(u32, u8, bool),
    Lose(u32),
    Fence(u32, u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u32..4).prop_map(Op::Next),
        4 => (0u32..4, any::<u8>(), any::<bool>()).prop_map(|(c, n, r)| Op::Ack(c, n, r)),
        1 => (0u32..4).prop_map(Op::Lose),
        1 => (0u32..4, any::<u8>()).prop_map(|(c, n)| Op::Fence(c, n)),
    ]
}

proptest! {
    #[test]
    fn no_byte_is_lost_or_in_flight_twice(ops in prop::collection::vec(op(), 1..200)) {
        let mut scheduler = with_channels(4);
        let all = vec![Extent::new(0, 0, 2 * MIB), Extent::new(1, 4096, MIB), Extent::new(0, 4 * MIB, 65536)];
        let total = total_bytes(&all);
        scheduler.add_work(all);
        let mut handed = [0u64; 4];
        let mut damaged = 0;
        for (at, op) in ops.into_iter().enumerate() {
            let now = ms(at as u64);
            match op {
                Op::Next(c) => match scheduler.next(now, c) {
                    Next::Work(w) => handed[c as usize] = w.sequence,
                    Next::Ping { sequence } => handed[c as usize] = sequence,
                    _ => {}
                },
                Op::Ack(c, n, refuse) => {
                    let through = handed[c as usize].saturating_sub(u64::from(n % 3));
                    let list: Vec<u64> = if refuse { vec![through] } else { vec![] };
                    scheduler.acknowledged(now, c, through, &list);
                }
                Op::Lose(c) => { scheduler.lost(c); }
                Op::Fence(c, n) => {
                    scheduler.fenced(now, c, handed[c as usize].saturating_sub(u64::from(n % 3)), &[]);
                }
            }
            damaged += total_bytes(&scheduler.take_damaged());
            let flying: Vec<Extent> = scheduler.in_flight().map(|(_, _, extent)| extent).collect();
            let bytes = total_bytes(&flying);
            prop_assert_eq!(bytes, scheduler.in_flight_bytes());
            prop_assert_eq!(total_bytes(&normalise(flying)), bytes, "an extent is in flight twice");
            prop_assert_eq!(
                scheduler.pending_bytes() + scheduler.in_flight_bytes() + scheduler.acknowledged_bytes() + damaged,
                total
            );
        }
    }
}

#[test]
fn pings_over_a_long_link_do_not_change_its_rate() {
    let mut scheduler = with_channels(1);
    scheduler.add_work(vec![Extent::new(0, 0, MIB)]);
    while scheduler.pending_bytes() > 0 {
        let write = work(scheduler.next(ms(0), 0));
        scheduler.acknowledged(ms(40), 0, write.sequence, &[]);
    }
    let rate = scheduler.bytes_per_s();
    assert!(rate > 0.0);
    for turn in 1..=20 {
        let Next::Ping { sequence } = scheduler.next(ms(turn * 1000), 0) else { panic!("no ping") };
        scheduler.acknowledged(ms(turn * 1000 + 40), 0, sequence, &[]);
    }
    assert_eq!(scheduler.bytes_per_s(), rate);
}

/// Rounds of a few pages, whose first piece the slow channel takes each time.
#[test]
fn a_slow_channel_that_asks_first_does_not_keep_small_rounds_for_itself() {
    let mut scheduler = with_channels(1);
    scheduler.add_work(vec![Extent::new(0, 0, MIB)]);
    while let Next::Work(work) = scheduler.next(ms(0), 0) {
        scheduler.acknowledged(ms(500), 0, work.sequence, &[]);
    }
    scheduler.add_channel(ms(500), 1, 1);
    scheduler.add_work(vec![Extent::new(0, 0, 24 * PAGE_BYTES)]);
    let first = work(scheduler.next(ms(500), 0));
    assert_eq!(scheduler.next(ms(500), 0), Next::Wait, "the other has not shown what it can do");
    work(scheduler.next(ms(500), 1));
    // Alone it takes the rest: a channel that has a piece is not waited for.
    scheduler.acknowledged(ms(501), 0, first.sequence, &[]);
    work(scheduler.next(ms(501), 0));
}

/// A link that carries `bytes_per_ms` and whose bytes and acknowledgements take `far_us` more.
struct Wire {
    far_us: u64,
    bytes_per_ms: u64,
    free_at: Time,
    in_flight: VecDeque<(Time, u64)>,
}

impl Wire {
    fn new(far_us: u64, bytes_per_ms: u64) -> Wire {
        Wire { far_us, bytes_per_ms, free_at: Time::ZERO, in_flight: VecDeque::new() }
    }

    fn carry(&mut self, now: Time, sequence: u64, bytes: u64) {
        let begins = self.free_at.max(now);
        self.free_at = begins + Duration::from_nanos(bytes * 1_000_000 / self.bytes_per_ms);
        self.in_flight.push_back((self.free_at + Duration::from_micros(self.far_us), sequence));
    }
}

/// Rounds of these sizes over these wires; how long the last one takes.
fn last_round(wires: &mut [Wire], rounds: &[u64]) -> Duration {
    let mut scheduler = with_channels(wires.len() as u32);
    let mut now = ms(1);
    let mut took = Duration::ZERO;
    for bytes in rounds {
        // Idle for a while: pings.
        let began = now + Duration::from_millis(400);
        let mut given = false;
        loop {
            if !given && now >= began {
                scheduler.add_work(vec![Extent::new(0, 0, *bytes)]);
                given = true;
            }
            for (channel, wire) in (0..).zip(wires.iter_mut()) {
                while let Some((_, sequence)) = wire.in_flight.front().copied().filter(|(at, _)| *at <= now) {
                    wire.in_flight.pop_front();
                    scheduler.acknowledged(now, channel, sequence, &[]);
                }
                loop {
                    match scheduler.next(now, channel) {
                        Next::Work(work) => {
                            let bytes = work.runs.iter().map(|run| run.length).sum();
                            wire.carry(now, work.sequence, bytes);
                        }
                        Next::Ping { sequence } => wire.carry(now, sequence, 64),
                        _ => break,
                    }
                }
            }
            if given && scheduler.is_drained() {
                break;
            }
            now = now + Duration::from_micros(50);
        }
        took = now - began;
    }
    took
}

/// 1.25 GB/s and 0.1 ms beside 125 MB/s and 50 ms: a last copy of 1 MiB takes about a millisecond.
#[test]
fn a_link_of_50_ms_beside_a_fast_one_does_not_lengthen_the_last_copy() {
    let fast = || Wire::new(100, 1_250_000);
    for rate in [125_000, 1_250_000] {
        for last in [4096, 64 << 10, MIB, 8 * MIB] {
            let rounds = [256 * MIB, 32 * MIB, last];
            let alone = last_round(&mut [fast()], &rounds);
            for wires in [&mut [fast(), Wire::new(50_000, rate)], &mut [Wire::new(50_000, rate), fast()]] {
                let both = last_round(wires, &rounds);
                assert!(
                    both < alone + Duration::from_millis(10),
                    "{last} bytes: {both:?} instead of {alone:?}"
                );
            }
        }
    }
}

#[test]
fn a_far_link_has_no_part_in_a_round_that_it_would_hardly_shorten() {
    let near = || Wire::new(100, 125_000);
    let far = Wire::new(50_000, 125_000);
    let rounds = [256 * MIB, 10 * MIB];
    let alone = last_round(&mut [near()], &rounds);
    let both = last_round(&mut [near(), far], &rounds);
    assert_eq!(both, alone, "the near link needs 84 ms, the far one 50 ms for the first byte");
}

#[test]
fn a_long_round_uses_the_far_link_too_and_is_shorter_for_it() {
    let near = || Wire::new(100, 1_250_000);
    let alone = last_round(&mut [near()], &[256 * MIB, 1024 * MIB]);
    let both = last_round(&mut [near(), Wire::new(50_000, 1_250_000)], &[256 * MIB, 1024 * MIB]);
    assert!(both < alone, "{both:?} instead of {alone:?}");
    let equal = last_round(&mut [near(), near()], &[256 * MIB, 64 * MIB, 16 * MIB]);
    let one = last_round(&mut [near()], &[256 * MIB, 64 * MIB, 16 * MIB]);
    assert!(equal < one * 7 / 10, "two near links share a short round: {equal:?} instead of {one:?}");
}
