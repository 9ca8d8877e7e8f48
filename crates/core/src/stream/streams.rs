//! All streams of a session.

mod opening;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::fair_queue::{Class, FairQueue};
use super::receive::{Readable, ReceiveHalf};
use super::send::{SendHalf, SendSpace};
use super::{Config, End, Piece, REGION, StreamId, StreamViolation, address};
use crate::scheduler::{Next, Scheduler};
use crate::{ChannelId, Extent, LinkId, StreamNote, Time};

/// Something that the driver must see to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer wants a stream to a service: [`Streams::accept`] or [`Streams::refuse`] it.
    OpenRequested {
        /// The number that the peer chose.
        stream: StreamId,
        /// Name of the service that the peer wants, such as `qemu`.
        service: String,
    },
    /// A stream that was opened here is there.
    Opened(StreamId),
    /// It is not. Its number is free again.
    Refused {
        /// The number of the stream that was to be opened here.
        stream: StreamId,
        /// Why, as the peer says.
        reason: String,
    },
    /// Room or something readable may be there, or the end: look again.
    Changed(StreamId),
    /// Both sides are through with it: its rings can go.
    Gone(StreamId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Opened here, not answered.
    Opening,
    /// Opened there, not answered.
    OpenRequested,
    Open,
}

#[derive(Debug)]
struct Stream {
    phase: Phase,
    class: Class,
    send: SendHalf,
    receive: ReceiveHalf,
    /// Bytes of the peer's ring for it; 0 until the peer has said so.
    peer_window: u64,
    /// It is in the queue of turns.
    queued: bool,
    sent_closed: bool,
    peer_closed: bool,
}

/// However slow the links are, this much of a stream may wait: enough for a round trip of 10 ms at 100 MB/s. As much
/// for each class where there are several.
const BACKLOG_BYTES_MIN: u64 = 1 << 20;

/// All byte streams of a session at one end.
#[derive(Debug)]
pub struct Streams {
    end: End,
    config: Config,
    scheduler: Scheduler,
    streams: BTreeMap<StreamId, Stream>,
    /// None when all were given.
    next_number: Option<StreamId>,
    turns: FairQueue,
    notes: VecDeque<(StreamId, StreamNote)>,
    events: VecDeque<Event>,
    over: bool,
}

impl Streams {
    /// Begins without streams; `end` decides which numbers are its own.
    pub fn new(end: End, config: Config) -> Streams {
        let mut scheduler = Scheduler::new(config.scheduler.clone());
        scheduler.record_delivered();
        Streams {
            end,
            turns: FairQueue::new(&config.weights),
            config,
            scheduler,
            streams: BTreeMap::new(),
            next_number: Some(StreamId::from(end == End::Destination)),
            notes: VecDeque::new(),
            events: VecDeque::new(),
            over: false,
        }
    }

    // ---- the local sockets ----

    /// What the reader of the local socket may do.
    pub fn send_space(&self, stream: StreamId) -> SendSpace {
        let Some(one) = self.streams.get(&stream) else { return SendSpace::Stopped };
        let space = one.send.send_space();
        let (Some(most), SendSpace::Space { position, bytes }) = (self.backlog_bytes(), space) else {
            return space;
        };
        let waiting = one.send.waiting();
        let sum = |streams: &mut dyn Iterator<Item = &Stream>| -> u64 {
            streams.map(|one| one.send.waiting()).sum()
        };
        let left = most.saturating_sub(sum(&mut self.streams.values()) - waiting);
        // Others may have filled it: what its class has a right to is kept for it.
        let same_class = &mut self.streams.values().filter(|other| other.class == one.class);
        let kept = self.share_of(one.class, most).saturating_sub(sum(same_class) - waiting);
        match left.max(kept).max(self.least(one.class)).saturating_sub(waiting) {
            0 => SendSpace::Wait,
            free => SendSpace::Space { position, bytes: bytes.min(free) },
        }
    }

    /// Most bytes of all streams that may wait for the peer; none if their rings alone limit them.
    fn backlog_bytes(&self) -> Option<u64> {
        let seconds = self.config.backlog?.as_secs_f64();
        Some((self.scheduler.bytes_per_s() * seconds) as u64)
    }

    /// What of a stream may wait however slow the links are. All that waits on slow links is in flight, and nothing is
    /// left to take turns: classes then have of the links what they have waiting. So where there are several classes it
    /// goes by weight too. The streams of a class that use at least half of their part get equal parts.
    fn least(&self, class: Class) -> u64 {
        let classes = self.classes().len() as u64;
        if classes < 2 {
            return BACKLOG_BYTES_MIN;
        }
        let of_class = self.share_of(class, classes * BACKLOG_BYTES_MIN);
        let waiting = || self.streams.values().filter(|one| one.class == class).map(|one| one.send.waiting());
        // One that seldom has anything, as QEMU's main connection, leaves its part to the others.
        let half = of_class / (2 * waiting().count().max(1) as u64);
        let at_work = waiting().filter(|waiting| *waiting > half).count();
        (of_class / at_work.max(1) as u64).max(self.config.scheduler.write_bytes_min)
    }

    /// Those that have streams.
    fn classes(&self) -> BTreeSet<Class> {
        self.streams.values().map(|one| one.class).collect()
    }

    /// Share of `bytes` that a class gets while all classes with streams send.
    fn share_of(&self, class: Class, bytes: u64) -> u64 {
        let weights: u64 = self.classes().into_iter().map(|class| self.turns.weight(class)).sum();
        let share = u128::from(bytes) * u128::from(self.turns.weight(class)) / u128::from(weights.max(1));
        u64::try_from(share).unwrap_or(bytes)
    }

    /// Bytes of the peer's ring for a stream: a position lies there at the remainder of its division by them. None if
    /// that is not known.
    pub fn peer_window(&self, stream: StreamId) -> Option<u64> {
        self.streams.get(&stream).map(|one| one.peer_window).filter(|bytes| *bytes > 0)
    }

    /// Bytes were put into the ring where [`SendSpace::Space`] said.
    pub fn produced(&mut self, stream: StreamId, bytes: u64) {
        if let Some(one) = self.streams.get_mut(&stream) {
            one.send.produced(bytes);
            self.queue(stream);
        }
    }

    /// The local socket has no more to say.
    pub fn ended(&mut self, stream: StreamId) {
        if let Some(total) = self.streams.get_mut(&stream).and_then(|one| one.send.end()) {
            self.notes.push_back((stream, StreamNote::End { total }));
            self.look_at(stream);
        }
    }

    /// The local socket was reset; what was not sent yet is thrown away.
    pub fn reset_locally(&mut self, stream: StreamId) {
        if self.stop_sending(stream) {
            self.notes.push_back((stream, StreamNote::Reset));
            self.look_at(stream);
        }
    }

    /// What the writer of the local socket may do.
    pub fn readable(&self, stream: StreamId) -> Readable {
        self.streams.get(&stream).map_or(Readable::Done, |one| match one.phase {
            Phase::Open => one.receive.readable(),
            Phase::Opening | Phase::OpenRequested => Readable::Wait,
        })
    }

    /// Bytes were written out of the ring.
    pub fn consumed(&mut self, stream: StreamId, bytes: u64) {
        if let Some(limit) = self.streams.get_mut(&stream).and_then(|one| one.receive.consumed(bytes)) {
            self.notes.push_back((stream, StreamNote::Credit { limit }));
        }
    }

    /// The local socket takes no more: after [`Readable::End`] or [`Readable::Reset`], or because it broke.
    pub fn finished(&mut self, stream: StreamId) {
        let Some(one) = self.streams.get_mut(&stream) else { return };
        let ended = matches!(one.receive.readable(), Readable::End | Readable::Reset);
        if one.receive.finish() && !ended && !one.peer_closed {
            self.notes.push_back((stream, StreamNote::Stop));
        }
        self.look_at(stream);
    }

    /// Everything is over: no stream moves any more. Their sockets are to be reset.
    pub fn fail_all(&mut self) {
        self.over = true;
        self.scheduler.stop();
        for (&stream, one) in &mut self.streams {
            one.phase = Phase::Open;
            one.send.stop();
            one.receive.reset();
            self.events.push_back(Event::Changed(stream));
        }
        self.notes.clear();
    }

    fn stop_sending(&mut self, stream: StreamId) -> bool {
        let Some(one) = self.streams.get_mut(&stream) else { return false };
        let news = one.send.stop();
        self.discard(stream);
        news
    }

    // ---- the peer ----

    /// The peer said something of a stream.
    pub fn note(&mut self, stream: StreamId, note: StreamNote) -> Result<(), StreamViolation> {
        if self.over {
            // What the peer said before it knew.
            return Ok(());
        }
        if let StreamNote::Open { service, window } = note {
            return self.open_requested(stream, service, window);
        }
        let one = self.streams.get_mut(&stream).ok_or(StreamViolation::Unknown(stream))?;
        let open = one.phase == Phase::Open && !one.peer_closed;
        match (one.phase, note) {
            (Phase::Opening, StreamNote::Opened { window }) => {
                one.phase = Phase::Open;
                one.peer_window = window;
                one.send.credit(window);
                self.events.push_back(Event::Opened(stream));
                self.queue(stream);
            }
            (Phase::Opening, StreamNote::Refused { reason }) => {
                self.streams.remove(&stream);
                self.events.push_back(Event::Refused { stream, reason });
                return Ok(());
            }
            (_, StreamNote::Credit { limit }) if open => {
                one.send.credit(limit);
                self.queue(stream);
            }
            (_, StreamNote::End { total }) if open => one.receive.end(stream, total)?,
            (_, StreamNote::Reset) if open || one.phase == Phase::OpenRequested => one.receive.reset(),
            (_, StreamNote::Stop) if open || one.phase == Phase::OpenRequested => {
                self.stop_sending(stream);
            }
            (_, StreamNote::Closed) if open && (one.receive.has_ended() || one.receive.is_done()) => {
                one.peer_closed = true;
            }
            _ => return Err(StreamViolation::UnexpectedNote(stream)),
        }
        self.look_at(stream);
        Ok(())
    }

    /// Whether a write of these bytes may land. Asked before they are received.
    pub fn check(&self, piece: Piece) -> Result<(), StreamViolation> {
        let one = self
            .streams
            .get(&piece.stream)
            .filter(|one| one.phase != Phase::OpenRequested && !one.peer_closed);
        let one = one.ok_or(StreamViolation::Unknown(piece.stream))?;
        one.receive.check(piece.stream, piece.position, piece.bytes)
    }

    /// A write has landed and fitted its checksum.
    pub fn received(&mut self, piece: Piece) -> Result<(), StreamViolation> {
        let one = self.streams.get_mut(&piece.stream).ok_or(StreamViolation::Unknown(piece.stream))?;
        let before = one.receive.readable();
        one.receive.received(piece.stream, piece.position, piece.bytes)?;
        if one.receive.readable() != before {
            self.events.push_back(Event::Changed(piece.stream));
        }
        Ok(())
    }

    // ---- channels ----

    /// A channel can carry work.
    pub fn channel_up(&mut self, now: Time, channel: ChannelId, link: LinkId) {
        self.scheduler.add_channel(now, channel, link);
    }

    /// A channel is lost. Returns whether the peer must fence it, which is so the first time.
    pub fn channel_lost(&mut self, channel: ChannelId) -> bool {
        self.scheduler.lost(channel)
    }

    /// What the channel does next.
    pub fn next(&mut self, now: Time, channel: ChannelId) -> Next {
        let ahead = self.config.lookahead_bytes * self.scheduler.active_channels().max(1) as u64;
        while self.scheduler.pending_bytes() < ahead {
            let Some(stream) = self.turns.pop() else { break };
            let Some(one) = self.streams.get_mut(&stream) else { continue };
            one.queued = false;
            if let Some(piece) = one.send.next_piece(stream, self.config.piece_bytes) {
                self.turns.charge(one.class, piece.bytes);
                self.scheduler.add_work(vec![Extent { region: REGION, run: piece.run() }]);
                self.queue(stream);
            }
        }
        self.scheduler.next(now, channel)
    }

    /// The transport took a frame of `wire_bytes`.
    pub fn sent(&mut self, channel: ChannelId, sequence: u64, wire_bytes: u64) {
        self.scheduler.sent(channel, sequence, wire_bytes);
    }

    /// The peer has applied frames of the channel.
    pub fn acknowledged(&mut self, now: Time, channel: ChannelId, through: u64, damaged: &[u64]) {
        self.scheduler.acknowledged(now, channel, through, damaged);
        self.settle();
    }

    /// The peer applies nothing more from a lost channel.
    pub fn fenced(&mut self, now: Time, channel: ChannelId, applied: u64, damaged: &[u64]) {
        self.scheduler.fenced(now, channel, applied, damaged);
        // What a stopped stream had on it is pending again, and is not needed.
        let stopped: Vec<StreamId> =
            self.streams.iter().filter(|(_, one)| one.send.is_stopped()).map(|(id, _)| *id).collect();
        for stream in stopped {
            self.discard(stream);
            self.look_at(stream);
        }
        self.settle();
    }

    fn settle(&mut self) {
        for extent in self.scheduler.take_delivered() {
            let piece = Piece::of(extent.run);
            let Some(one) = self.streams.get_mut(&piece.stream) else { continue };
            one.send.delivered(piece.position, piece.bytes);
            self.events.push_back(Event::Changed(piece.stream));
            self.queue(piece.stream);
            self.look_at(piece.stream);
        }
        for extent in self.scheduler.take_damaged() {
            let piece = Piece::of(extent.run);
            match self.streams.get_mut(&piece.stream) {
                Some(one) if one.send.is_stopped() => {
                    one.send.forget(piece.bytes);
                    self.look_at(piece.stream);
                }
                Some(_) => self.scheduler.add_work(vec![extent]),
                None => {}
            }
        }
    }

    fn discard(&mut self, stream: StreamId) {
        let range = address(stream, 0)..address(stream, super::POSITION_MAX);
        let dropped = self.scheduler.discard(REGION, range);
        if let Some(one) = self.streams.get_mut(&stream) {
            one.send.forget(dropped);
        }
    }

    fn queue(&mut self, stream: StreamId) {
        let Some(one) = self.streams.get_mut(&stream) else { return };
        if one.phase == Phase::Open && !one.queued && one.send.is_ready(self.config.piece_bytes) {
            one.queued = true;
            self.turns.push(one.class, stream);
        }
    }

    /// Says Closed when it is due, and lets the number go when both have.
    fn look_at(&mut self, stream: StreamId) {
        self.events.push_back(Event::Changed(stream));
        let Some(one) = self.streams.get_mut(&stream) else { return };
        let through = one.phase == Phase::Open && one.send.is_done() && one.receive.is_done();
        if through && !one.sent_closed {
            one.sent_closed = true;
            self.notes.push_back((stream, StreamNote::Closed));
        }
        if one.sent_closed && one.peer_closed || self.over && one.receive.is_done() {
            self.streams.remove(&stream);
            self.events.push_back(Event::Gone(stream));
        }
    }

    // ---- outputs ----

    /// The next note for the peer. None after the end: what sockets do then is no news of the streams.
    pub fn poll_note(&mut self) -> Option<(StreamId, StreamNote)> {
        if self.over { None } else { self.notes.pop_front() }
    }

    /// Whether there is one.
    pub fn has_notes(&self) -> bool {
        !self.over && !self.notes.is_empty()
    }

    /// The next thing for the driver.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Streams that are not gone.
    pub fn count(&self) -> usize {
        self.streams.len()
    }

    /// Channels, rates and what is in flight.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }
}
