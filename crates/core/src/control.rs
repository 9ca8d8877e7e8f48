//! Control messages over several links: numbered, acknowledged, delivered once and in order.
//!
//! Every link has a control connection (a *path*). A message goes out on the path that last answered, or one that
//! answers much sooner. Small ones go out on all of them, because a copy costs nothing and a dead link must not cost a
//! blackout its time-out. What is not acknowledged in time, or was sent on a path that is lost, goes out again on
//! another. The receiver drops copies and puts what comes early in its place.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::{Message, PathId, Time};

/// First wait for an acknowledgement; doubles with each repetition up to [`RESEND_WAIT_MAX`]. A far path has
/// [`RESEND_ROUND_TRIPS`], up to the same limit.
const RESEND_WAIT: Duration = Duration::from_millis(200);
/// Longest wait between repetitions.
const RESEND_WAIT_MAX: Duration = Duration::from_secs(2);
/// A message is not repeated before an acknowledgement can have come.
const RESEND_ROUND_TRIPS: u32 = 2;
/// Most messages held that came ahead of their turn; a peer that sends more is broken.
const EARLY_MAX: u64 = 4096;
/// Their bytes. What comes ahead of its turn beyond that is dropped, and the peer sends it again.
const EARLY_BYTES_MAX: usize = 16 << 20;

/// Messages that may wait for the peer's acknowledgement while more of it are taken: each may cause an answer. Beyond
/// that its messages are dropped, and it sends them again. Device state has fewer pieces.
const UNACKNOWLEDGED_MAX: usize = 8192;

/// A path that works brings something at least this often, with time to spare for a busy host: keep-alives come 100 to
/// 150 ms apart.
const FRESH: Duration = Duration::from_millis(250);
/// A path answers much sooner than another: in a third of its time, and this less.
const SOONER_TIMES: u32 = 3;
const SOONER_BY: Duration = Duration::from_millis(1);
/// Messages on one path whose acknowledgement is waited for, to know how long it takes.
const TIMED_MAX: usize = 64;
/// Round trips of a path that are remembered.
const SAMPLES: usize = 8;

/// What is to be sent on a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// A message that is sent again until the peer acknowledges it.
    Message {
        /// Its number, from 1.
        sequence: u64,
        /// What is said, without its number.
        message: Message,
    },
    /// Everything up to `through` has arrived.
    Acknowledgement {
        /// Highest number of an unbroken sequence.
        through: u64,
    },
}

impl Outgoing {
    /// Whether it reports that the guest runs at the destination: the source ends its copy then.
    pub fn reports_running(&self) -> bool {
        matches!(self, Outgoing::Message { message: Message::TakenOver { .. }, .. })
    }
}

#[derive(Debug)]
struct Unacknowledged {
    sequence: u64,
    message: Message,
    /// Paths it was sent on that still live.
    sent_on: Vec<PathId>,
    resend_at: Time,
    wait: Duration,
}

#[derive(Debug)]
struct Path {
    last_received_at: Time,
    acknowledge: bool,
    /// Numbers that were sent on it, and when.
    timed: VecDeque<(u64, Time)>,
    /// From a message to its acknowledgement on this path, the last [`SAMPLES`] times. What a link needs is the least
    /// of them: at the beginning of a session, and while much is done, agents answer late.
    round_trips: VecDeque<Duration>,
}

impl Path {
    fn new(now: Time) -> Path {
        Path {
            last_received_at: now,
            acknowledge: true,
            timed: VecDeque::new(),
            round_trips: VecDeque::new(),
        }
    }

    fn sent(&mut self, now: Time, sequence: u64) {
        // Of a message that is repeated it is not known which copy is acknowledged: its time runs from the first.
        let again = self.timed.iter().any(|(timed, _)| *timed == sequence);
        if !again && self.timed.len() < TIMED_MAX {
            self.timed.push_back((sequence, now));
        }
    }

    fn acknowledged(&mut self, now: Time, through: u64) {
        let mut last = None;
        while let Some((_, sent)) = self.timed.front().filter(|(sequence, _)| *sequence <= through) {
            last = Some(now - *sent);
            self.timed.pop_front();
        }
        self.round_trips.extend(last);
        if self.round_trips.len() > SAMPLES {
            self.round_trips.pop_front();
        }
    }

    /// How long an answer takes at least; `None` before the first one.
    fn least(&self) -> Option<Duration> {
        self.round_trips.iter().min().copied()
    }

    /// How long an answer takes: as long as the quickest did lately, or as long as nothing at all came while one is
    /// waited for. What is received meanwhile shows that the path works: the acknowledgement waits for an earlier
    /// message, on another path.
    fn takes(&self, now: Time) -> Option<Duration> {
        let silent = self.timed.front().map(|(_, sent)| now - (*sent).max(self.last_received_at));
        self.least().map(|least| least.max(silent.unwrap_or_default()))
    }

    /// It answers much sooner than the other, and not later just now. The distance of a path that has not answered yet
    /// is not known.
    fn is_sooner(&self, other: &Path, now: Time) -> bool {
        let Some((least, takes)) = self.least().zip(self.takes(now)) else { return false };
        let much = other.least().is_none_or(|other| least * SOONER_TIMES + SOONER_BY < other);
        much && other.takes(now).is_none_or(|other| takes < other)
    }
}

/// See the module. Both sides hold one.
#[derive(Debug, Default)]
pub struct Control {
    next_sequence: u64,
    unacknowledged: VecDeque<Unacknowledged>,
    paths: BTreeMap<PathId, Path>,
    received_through: u64,
    early: BTreeMap<u64, Message>,
    /// Of the messages in `early`.
    early_bytes: usize,
    delivered: VecDeque<Message>,
    outgoing: VecDeque<(PathId, Outgoing)>,
    last_path_lost: Option<Time>,
}

/// Small enough to be sent on every path at once. Streams of bytes and the long documents are not.
fn is_small(message: &Message) -> bool {
    !matches!(message, Message::DeviceState { .. } | Message::Offer { .. })
}

impl Control {
    /// Queues a message; it is kept and repeated until the peer acknowledges it.
    pub fn send(&mut self, now: Time, message: Message) {
        self.next_sequence += 1;
        self.unacknowledged.push_back(Unacknowledged {
            sequence: self.next_sequence,
            message,
            sent_on: Vec::new(),
            resend_at: now,
            wait: RESEND_WAIT,
        });
        self.transmit(now);
    }

    /// A message that has not been acknowledged is not repeated any more; what comes after it takes its place. It may
    /// have arrived all the same.
    pub fn replace_unacknowledged(&mut self, now: Time, message: &Message) {
        let Some(at) = self.unacknowledged.iter().position(|one| one.message == *message) else { return };
        let Some(recalled) = self.unacknowledged.remove(at) else { return };
        for later in self.unacknowledged.iter_mut().skip(at) {
            later.sequence -= 1;
            later.sent_on.clear();
            later.resend_at = now;
        }
        self.next_sequence -= 1;
        let goes = |outgoing: &Outgoing| match outgoing {
            Outgoing::Message { sequence, .. } => *sequence < recalled.sequence,
            Outgoing::Acknowledgement { .. } => true,
        };
        self.outgoing.retain(|(_, outgoing)| goes(outgoing));
    }

    /// A control connection is up.
    pub fn path_up(&mut self, now: Time, path: PathId) {
        self.paths.insert(path, Path::new(now));
        self.last_path_lost = None;
        self.transmit(now);
    }

    /// A control connection is lost; what was sent only on it goes out again.
    pub fn path_lost(&mut self, now: Time, path: PathId) {
        if self.paths.remove(&path).is_none() {
            return;
        }
        if self.paths.is_empty() {
            self.last_path_lost = Some(now);
        }
        self.outgoing.retain(|(to, _)| *to != path);
        for unacknowledged in &mut self.unacknowledged {
            unacknowledged.sent_on.retain(|sent| *sent != path);
            if unacknowledged.sent_on.is_empty() {
                unacknowledged.resend_at = now;
            }
        }
        self.transmit(now);
    }

    /// Anything at all came in on the path.
    pub fn note_activity(&mut self, now: Time, path: PathId) {
        if let Some(path) = self.paths.get_mut(&path) {
            path.last_received_at = now;
        }
    }

    /// A numbered message came in. Returns false if the peer runs further ahead than any sane one would.
    #[must_use]
    pub fn received(&mut self, now: Time, path: PathId, sequence: u64, message: Message) -> bool {
        self.note_activity(now, path);
        if let Some(path) = self.paths.get_mut(&path) {
            path.acknowledge = true;
        }
        if sequence > self.received_through.saturating_add(EARLY_MAX) {
            return false;
        }
        if self.unacknowledged.len() >= UNACKNOWLEDGED_MAX {
            return true;
        }
        let bytes = message.weight();
        let fits = sequence == self.received_through + 1 || self.early_bytes + bytes <= EARLY_BYTES_MAX;
        if sequence > self.received_through && fits && !self.early.contains_key(&sequence) {
            self.early_bytes += bytes;
            self.early.insert(sequence, message);
        }
        while let Some(message) = self.early.remove(&(self.received_through + 1)) {
            self.received_through += 1;
            self.early_bytes -= message.weight();
            self.delivered.push_back(message);
        }
        true
    }

    /// The peer has everything up to `through`.
    pub fn acknowledged(&mut self, now: Time, path: PathId, through: u64) {
        self.note_activity(now, path);
        if let Some(path) = self.paths.get_mut(&path) {
            path.acknowledged(now, through);
        }
        while self.unacknowledged.front().is_some_and(|first| first.sequence <= through) {
            self.unacknowledged.pop_front();
        }
    }

    /// The next message in order, if it has arrived.
    pub fn poll_delivered(&mut self) -> Option<Message> {
        self.delivered.pop_front()
    }

    /// The next thing to put on a wire.
    pub fn poll_outgoing(&mut self, now: Time) -> Option<(PathId, Outgoing)> {
        self.transmit(now);
        if let Some(outgoing) = self.outgoing.pop_front() {
            return Some(outgoing);
        }
        let through = self.received_through;
        let (&id, path) = self.paths.iter_mut().find(|(_, path)| path.acknowledge)?;
        path.acknowledge = false;
        Some((id, Outgoing::Acknowledgement { through }))
    }

    /// Whether something waits to be put on a wire.
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty() || self.paths.values().any(|path| path.acknowledge)
    }

    /// When something will have to be sent again.
    pub fn timeout(&self) -> Option<Time> {
        if self.paths.is_empty() {
            return None;
        }
        self.unacknowledged.iter().map(|message| message.resend_at).min()
    }

    /// How long no path has been up; `None` while one is (or before the first).
    pub fn unreachable_since(&self) -> Option<Time> {
        self.last_path_lost
    }

    /// Number of active paths.
    pub fn paths(&self) -> usize {
        self.paths.len()
    }

    /// Messages that the peer has not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.unacknowledged.len()
    }

    /// Memory of the messages that came ahead of their turn.
    pub fn early_bytes(&self) -> usize {
        self.early_bytes
    }

    /// Highest number received without a gap.
    pub fn received_through(&self) -> u64 {
        self.received_through
    }

    fn transmit(&mut self, now: Time) {
        if self.paths.is_empty() {
            return;
        }
        for unacknowledged in &mut self.unacknowledged {
            if unacknowledged.resend_at > now {
                continue;
            }
            let targets = targets(now, &self.paths, &unacknowledged.sent_on, &unacknowledged.message);
            for &path in &targets {
                let (sequence, message) = (unacknowledged.sequence, unacknowledged.message.clone());
                self.outgoing.push_back((path, Outgoing::Message { sequence, message }));
                self.paths.get_mut(&path).into_iter().for_each(|path| path.sent(now, sequence));
            }
            let known = targets.iter().filter_map(|path| self.paths.get(path)?.least());
            let least = known.min().unwrap_or_default();
            let again = !unacknowledged.sent_on.is_empty();
            unacknowledged.sent_on.extend(targets);
            unacknowledged.sent_on.sort_unstable();
            unacknowledged.sent_on.dedup();
            if again {
                unacknowledged.wait = (unacknowledged.wait * 2).min(RESEND_WAIT_MAX);
            }
            let far = (least * RESEND_ROUND_TRIPS).min(RESEND_WAIT_MAX);
            unacknowledged.resend_at = now + unacknowledged.wait.max(far);
        }
    }
}

/// Small messages: all paths. Others: one that was not tried yet, or any: the freshest, unless one that is about as
/// fresh answers much sooner.
fn targets(now: Time, paths: &BTreeMap<PathId, Path>, tried: &[PathId], message: &Message) -> Vec<PathId> {
    if is_small(message) {
        return paths.keys().copied().collect();
    }
    let best = |filter: &dyn Fn(&PathId) -> bool| {
        let allowed = || paths.iter().filter(|(id, _)| filter(id));
        let (&freshest, newest) = allowed().max_by_key(|(_, path)| path.last_received_at)?;
        let is_fresh = |path: &Path| newest.last_received_at - path.last_received_at <= FRESH;
        let sooner = allowed().filter(|(_, path)| is_fresh(path) && path.is_sooner(newest, now));
        Some(sooner.min_by_key(|(_, path)| path.takes(now)).map_or(freshest, |(&id, _)| id))
    };
    best(&|id| !tried.contains(id)).or_else(|| best(&|_| true)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(n: u64) -> Time {
        Time(n * 1_000_000)
    }

    fn numbered(n: u64) -> Message {
        Message::DeviceStateEnd { total: n }
    }

    fn chunk(n: u8) -> Message {
        Message::DeviceState { bytes: vec![n] }
    }

    #[test]
    fn bytes_ahead_of_their_turn_are_bounded_and_all_arrive_in_the_end() {
        let mut a = Control::default();
        let piece = |n: u64| Message::DeviceState { bytes: vec![n as u8; 256 << 10] };
        let most = (EARLY_BYTES_MAX / (256 << 10)) as u64;
        for sequence in 2..2 * most {
            assert!(a.received(ms(0), 0, sequence, piece(sequence)), "{sequence}");
        }
        assert!(a.early_bytes <= EARLY_BYTES_MAX && a.early.len() as u64 >= most - 2);
        // The rest comes again, since it is not acknowledged.
        let mut next = 1;
        while next < 2 * most {
            assert!(a.received(ms(1), 0, next, piece(next)));
            while let Some(message) = a.poll_delivered() {
                assert_eq!(message, piece(next));
                next += 1;
            }
        }
        assert_eq!((a.received_through(), a.early_bytes), (2 * most - 1, 0));
    }

    #[test]
    fn a_peer_that_acknowledges_nothing_gets_a_bounded_number_of_answers() {
        let mut a = Control::default();
        for number in 1..2 * UNACKNOWLEDGED_MAX as u64 {
            let next = a.received_through() + 1;
            assert!(a.received(ms(0), 0, next, numbered(number)));
            while a.poll_delivered().is_some() {
                a.send(ms(0), numbered(number));
            }
        }
        assert_eq!(a.unacknowledged(), UNACKNOWLEDGED_MAX);
        a.acknowledged(ms(1), 0, 1);
        let next = a.received_through() + 1;
        assert!(a.received(ms(1), 0, next, numbered(next)));
        assert_eq!(a.received_through(), next, "its messages are taken again");
    }

    fn drain(control: &mut Control, now: Time) -> Vec<(PathId, Outgoing)> {
        std::iter::from_fn(|| control.poll_outgoing(now)).collect()
    }

    #[test]
    fn a_recalled_message_is_not_repeated_and_what_follows_arrives_in_its_place() {
        let (mut a, mut b) = (Control::default(), Control::default());
        a.path_up(ms(0), 0);
        a.send(ms(0), numbered(1));
        a.send(ms(0), Message::Commit);
        a.send(ms(0), numbered(2));
        drain(&mut a, ms(0));
        a.acknowledged(ms(1), 0, 1);
        a.path_lost(ms(1), 0);
        a.replace_unacknowledged(ms(1), &Message::Commit);
        a.path_up(ms(2), 1);
        a.send(ms(2), numbered(3));
        b.path_up(ms(2), 1);
        assert!(b.received(ms(2), 1, 1, numbered(1)));
        for (path, outgoing) in drain(&mut a, ms(2)) {
            if let Outgoing::Message { sequence, message } = outgoing {
                assert!(b.received(ms(2), path, sequence, message));
            }
        }
        let delivered: Vec<Message> = std::iter::from_fn(|| b.poll_delivered()).collect();
        assert_eq!(delivered, [numbered(1), numbered(2), numbered(3)]);
        a.replace_unacknowledged(ms(3), &Message::Commit);
        assert_eq!(a.unacknowledged(), 2, "nothing else is recalled");
    }

    #[test]
    fn a_small_message_goes_out_on_every_path_and_is_delivered_once() {
        let (mut a, mut b) = (Control::default(), Control::default());
        for path in [0, 1] {
            a.path_up(ms(0), path);
            b.path_up(ms(0), path);
        }
        drain(&mut a, ms(0));
        a.send(ms(1), Message::Commit);
        let sent = drain(&mut a, ms(1));
        assert_eq!(sent.len(), 2);
        for (path, outgoing) in sent {
            let Outgoing::Message { sequence, message } = outgoing else { panic!() };
            assert!(b.received(ms(2), path, sequence, message));
        }
        assert_eq!(b.poll_delivered(), Some(Message::Commit));
        assert_eq!(b.poll_delivered(), None);
    }

    #[test]
    fn what_a_lost_path_carried_goes_out_again_at_once() {
        let mut a = Control::default();
        a.path_up(ms(0), 7);
        drain(&mut a, ms(0));
        a.send(ms(1), chunk(1));
        assert_eq!(drain(&mut a, ms(1)).len(), 1);
        a.path_lost(ms(2), 7);
        assert_eq!(a.unreachable_since(), Some(ms(2)));
        assert!(drain(&mut a, ms(3)).is_empty());
        a.path_up(ms(4), 8);
        assert_eq!(a.unreachable_since(), None);
        let again = drain(&mut a, ms(4));
        assert!(
            again
                .iter()
                .any(|(path, out)| *path == 8 && matches!(out, Outgoing::Message { sequence: 1, .. }))
        );
    }

    #[test]
    fn an_unanswered_message_is_sent_again_on_another_path_and_less_and_less_often() {
        let mut a = two_paths();
        a.send(ms(0), chunk(1));
        let first = drain(&mut a, ms(0))[0].0;
        assert!(drain(&mut a, ms(150)).is_empty());
        let second = drain(&mut a, ms(201))[0].0;
        assert_ne!(first, second);
        assert!(drain(&mut a, ms(450)).is_empty(), "waits twice as long");
        assert_eq!(drain(&mut a, ms(700)).len(), 1);
        a.acknowledged(ms(701), 0, 1);
        assert_eq!(a.timeout(), None);
    }

    #[test]
    fn a_message_is_not_repeated_before_a_far_path_can_have_answered() {
        let mut a = one_path();
        a.send(ms(0), numbered(1));
        assert_eq!(
            [0, 199, 200].map(|now| drain(&mut a, ms(now)).len()),
            [1, 0, 1],
            "its delay is not known yet"
        );
        a.acknowledged(ms(600), 0, 1);
        a.send(ms(1000), chunk(2));
        assert_eq!([1000, 2199, 2200].map(|now| drain(&mut a, ms(now)).len()), [1, 0, 1]);
    }

    #[test]
    fn a_far_path_whose_messages_were_repeated_is_not_taken_for_a_near_one() {
        let mut a = two_paths();
        a.send(ms(0), numbered(1));
        drain(&mut a, ms(0));
        // Over the second path it goes a second time too, just before the first copy is acknowledged.
        a.path_lost(ms(1), 0);
        a.path_up(ms(1), 2);
        drain(&mut a, ms(599));
        a.acknowledged(ms(600), 1, 1);
        assert_eq!(a.paths[&1].least(), Some(Duration::from_millis(600)));
    }

    fn one_path() -> Control {
        let mut a = Control::default();
        a.path_up(ms(0), 0);
        drain(&mut a, ms(0));
        a
    }

    fn two_paths() -> Control {
        let mut a = Control::default();
        a.path_up(ms(0), 0);
        a.path_up(ms(0), 1);
        drain(&mut a, ms(0));
        a
    }

    /// Two paths, of which the second answers 50 ms later; a message that went over both.
    fn near_and_far() -> Control {
        let mut a = two_paths();
        a.send(ms(1), numbered(1));
        drain(&mut a, ms(1));
        a.acknowledged(ms(2), 0, 1);
        a.acknowledged(ms(51), 1, 1);
        a
    }

    #[test]
    fn device_state_goes_where_it_arrives_soonest() {
        let mut a = near_and_far();
        a.send(ms(60), chunk(1));
        assert_eq!(drain(&mut a, ms(60))[0].0, 0, "path 1 received last, and is far");
    }

    #[test]
    fn answers_that_were_late_once_do_not_make_a_path_far() {
        let mut a = two_paths();
        for (number, late) in [(1, 70), (2, 60), (3, 0)] {
            let now = 100 * number;
            a.send(ms(now), numbered(number));
            drain(&mut a, ms(now));
            a.acknowledged(ms(now + 1 + late), 0, number);
            a.acknowledged(ms(now + 51 + late / 10), 1, number);
        }
        a.send(ms(360), chunk(1));
        assert_eq!(drain(&mut a, ms(360))[0].0, 0);
    }

    #[test]
    fn a_path_without_a_measured_round_trip_counts_as_far() {
        let mut a = two_paths();
        a.send(ms(1), numbered(1));
        drain(&mut a, ms(1));
        a.acknowledged(ms(2), 0, 1);
        a.note_activity(ms(9), 1);
        a.send(ms(10), chunk(1));
        assert_eq!(drain(&mut a, ms(10))[0].0, 0);
    }

    #[test]
    fn device_state_is_not_sent_over_a_path_of_unknown_delay() {
        let mut a = Control::default();
        a.path_up(ms(0), 0);
        drain(&mut a, ms(0));
        a.send(ms(1), numbered(1));
        drain(&mut a, ms(1));
        a.acknowledged(ms(2), 0, 1);
        a.path_up(ms(10), 1);
        a.note_activity(ms(90), 0);
        a.note_activity(ms(100), 1);
        a.send(ms(101), chunk(1));
        assert_eq!(drain(&mut a, ms(101))[0].0, 0, "path 1 received last, and has answered nothing");
    }

    #[test]
    fn a_near_path_whose_acknowledgement_waits_for_a_far_one_stays_near() {
        let mut a = near_and_far();
        a.send(ms(60), numbered(2));
        drain(&mut a, ms(60));
        // It has come over the near path, and cannot be acknowledged: one before it is still on its way.
        a.acknowledged(ms(61), 0, 1);
        for now in [100, 150] {
            a.note_activity(ms(now), 0);
            a.note_activity(ms(now), 1);
        }
        a.send(ms(151), chunk(1));
        assert_eq!(drain(&mut a, ms(151))[0].0, 0);
    }

    #[test]
    fn a_near_path_that_is_late_for_once_is_taken_as_long_as_the_far_one_takes_longer() {
        let to_which = |waited: u64| {
            let mut a = near_and_far();
            a.send(ms(60), numbered(2));
            drain(&mut a, ms(60));
            a.note_activity(ms(60 + waited), 1);
            a.send(ms(60 + waited), chunk(1));
            drain(&mut a, ms(60 + waited))[0].0
        };
        assert_eq!((to_which(30), to_which(120)), (0, 1));
    }

    #[test]
    fn a_keepalive_that_is_late_does_not_make_a_near_path_silent() {
        let mut a = near_and_far();
        a.note_activity(ms(200), 1);
        a.send(ms(201), chunk(1));
        assert_eq!(drain(&mut a, ms(201))[0].0, 0);
    }

    #[test]
    fn a_path_that_fell_silent_is_not_near_any_more() {
        let mut a = near_and_far();
        a.note_activity(ms(400), 1);
        a.send(ms(401), chunk(1));
        assert_eq!(drain(&mut a, ms(401))[0].0, 1);
    }

    #[test]
    fn a_peer_that_runs_far_ahead_is_refused() {
        let mut a = Control::default();
        assert!(!a.received(ms(0), 0, EARLY_MAX + 1, Message::Commit));
    }

    proptest! {
        /// Whatever is dropped, copied or reordered: what arrives is a prefix of what was sent, and once the wires
        /// work, all.
        #[test]
        fn delivery_is_complete_ordered_and_single(seed in any::<u64>(), count in 1u64..30) {
            let mut random = seed | 1;
            let mut roll = |n: u64| { random ^= random << 13; random ^= random >> 7; random ^= random << 17; random % n };
            let (mut a, mut b) = (Control::default(), Control::default());
            for path in 0..3 { a.path_up(ms(0), path); b.path_up(ms(0), path); }
            let mut wire: Vec<(bool, PathId, Outgoing)> = Vec::new();
            let mut got = Vec::new();
            for n in 1..=count {
                a.send(ms(n), if n % 2 == 0 { numbered(n) } else { chunk(n as u8) });
            }
            for step in 0..600u64 {
                let now = ms(100 + step * 50);
                let broken = step < 100;
                wire.extend(drain(&mut a, now).into_iter().map(|(p, o)| (true, p, o)));
                wire.extend(drain(&mut b, now).into_iter().map(|(p, o)| (false, p, o)));
                if broken && roll(20) == 0 { let p = roll(3) as PathId; a.path_lost(now, p); b.path_lost(now, p); }
                if roll(10) == 0 { let p = roll(3) as PathId; a.path_up(now, p); b.path_up(now, p); }
                let mut late = Vec::new();
                for (to_b, path, outgoing) in wire.drain(..) {
                    if broken && roll(3) == 0 { continue }
                    if broken && roll(3) == 0 { late.push((to_b, path, outgoing)); continue }
                    let receiver = if to_b { &mut b } else { &mut a };
                    match outgoing {
                        Outgoing::Message { sequence, message } => prop_assert!(receiver.received(now, path, sequence, message)),
                        Outgoing::Acknowledgement { through } => receiver.acknowledged(now, path, through),
                    }
                }
                late.reverse();
                wire = late;
                while let Some(message) = b.poll_delivered() { got.push(message); }
            }
            let want: Vec<Message> = (1..=count).map(|n| if n % 2 == 0 { numbered(n) } else { chunk(n as u8) }).collect();
            prop_assert_eq!(got, want);
            prop_assert_eq!(a.unacknowledged(), 0);
        }
    }
}
