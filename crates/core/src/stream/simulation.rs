//! Two sides of a session joined by virtual channels that delay, damage and die. Real bytes go through real rings, so
//! that a byte which lands on the wrong one is seen. Every run follows from its seed.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::scheduler::Next;
use crate::{ChannelId, StreamNote, Time};

const WINDOW: u64 = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
    fn chance(&mut self, of_1000: u64) -> bool {
        self.below(1000) < of_1000
    }
}

struct Frame {
    sequence: u64,
    pieces: Vec<(Piece, Vec<u8>)>,
}

/// A channel; its writer is side `from`.
struct Channel {
    id: ChannelId,
    from: usize,
    wire: VecDeque<Frame>,
    applied: u64,
    damaged: Vec<u64>,
    reported_damaged: usize,
    lost: bool,
    fenced: bool,
}

enum Message {
    Note(StreamId, StreamNote),
    Fence(ChannelId),
    Fenced(ChannelId, u64, Vec<u64>),
}

#[derive(Default)]
struct Rings {
    send: Vec<u8>,
    receive: Vec<u8>,
    /// All that the local socket sent, and all that it received.
    sent: Vec<u8>,
    received: Vec<u8>,
    writes_left: u64,
    /// The end was given out, not a break.
    clean: bool,
    aborted: bool,
}

struct Side {
    streams: Streams,
    rings: BTreeMap<StreamId, Rings>,
    gone: BTreeMap<StreamId, Rings>,
    inbox: VecDeque<Message>,
}

struct World {
    random: Random,
    now: Time,
    sides: [Side; 2],
    channels: Vec<Channel>,
    next_channel: ChannelId,
    faults: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let config = Config {
            window_bytes: WINDOW,
            piece_bytes: 512,
            lookahead_bytes: 1024,
            weights: vec![3, 1],
            ..Config::default()
        };
        let side = |end| Side {
            streams: Streams::new(end, config.clone()),
            rings: BTreeMap::new(),
            gone: BTreeMap::new(),
            inbox: VecDeque::new(),
        };
        World {
            random: Random(seed | 1),
            now: Time::ZERO,
            sides: [side(End::Source), side(End::Destination)],
            channels: Vec::new(),
            next_channel: 0,
            faults: true,
        }
    }

    fn new_rings(&mut self) -> Rings {
        let ring = vec![0xee; WINDOW as usize];
        let writes_left = self.random.below(12 * WINDOW);
        Rings { send: ring.clone(), receive: ring, writes_left, ..Rings::default() }
    }

    fn open(&mut self, at: usize) {
        let rings = self.new_rings();
        let class = self.random.below(2) as usize;
        if let Ok(stream) = self.sides[at].streams.open_in(class, "echo") {
            self.sides[at].rings.insert(stream, rings);
        }
    }

    fn add_channel(&mut self, from: usize) {
        let id = self.next_channel;
        self.next_channel += 1;
        self.sides[from].streams.channel_up(self.now, id, from as u16);
        let wire = VecDeque::new();
        let damaged = Vec::new();
        self.channels.push(Channel {
            id,
            from,
            wire,
            applied: 1,
            damaged,
            reported_damaged: 0,
            lost: false,
            fenced: false,
        });
    }

    fn events(&mut self, at: usize) {
        while let Some(event) = self.sides[at].streams.poll_event() {
            match event {
                Event::OpenRequested { stream, .. } => {
                    let rings = self.new_rings();
                    self.sides[at].rings.insert(stream, rings);
                    self.sides[at].streams.accept(stream);
                }
                Event::Gone(stream) => {
                    let rings = self.sides[at].rings.remove(&stream).expect("gone once");
                    self.sides[at].gone.insert(stream, rings);
                }
                _ => {}
            }
        }
        while let Some((stream, note)) = self.sides[at].streams.poll_note() {
            self.sides[1 - at].inbox.push_back(Message::Note(stream, note));
        }
    }

    fn receive(&mut self, at: usize) {
        let Some(message) = self.sides[at].inbox.pop_front() else { return };
        match message {
            Message::Note(stream, note) => {
                let received = self.sides[at].streams.note(stream, note.clone());
                assert!(received.is_ok(), "{at}: {stream} {note:?}: {received:?}");
            }
            Message::Fence(id) => {
                let channel = self.channels.iter_mut().find(|one| one.id == id).expect("known");
                channel.fenced = true;
                channel.wire.clear();
                let (applied, damaged) = (channel.applied, channel.damaged.clone());
                self.sides[1 - at].inbox.push_back(Message::Fenced(id, applied, damaged));
            }
            Message::Fenced(id, applied, damaged) => {
                self.sides[at].streams.fenced(self.now, id, applied, &damaged);
                self.channels.retain(|one| one.id != id);
            }
        }
        self.events(at);
    }

    fn some_stream(&mut self, at: usize) -> Option<StreamId> {
        let count = self.sides[at].rings.len() as u64;
        let nth = self.random.below(count) as usize;
        self.sides[at].rings.keys().nth(nth).copied()
    }

    /// The local socket says something, or ends, or breaks.
    fn send(&mut self, at: usize) {
        let Some(stream) = self.some_stream(at) else { return };
        let abort = self.faults && self.random.chance(3);
        let wanted = 1 + self.random.below(if self.random.0.is_multiple_of(3) { 3 } else { 900 });
        let side = &mut self.sides[at];
        let rings = side.rings.get_mut(&stream).expect("it has rings");
        match side.streams.send_space(stream) {
            SendSpace::Space { .. } if abort => {
                rings.aborted = true;
                side.streams.reset_locally(stream);
            }
            SendSpace::Space { .. } if rings.writes_left == 0 => side.streams.ended(stream),
            SendSpace::Space { position, bytes } => {
                let bytes = bytes.min(wanted).min(rings.writes_left);
                for at in position..position + bytes {
                    let byte = (self.random.below(256)) as u8;
                    rings.send[(at % WINDOW) as usize] = byte;
                    rings.sent.push(byte);
                }
                rings.writes_left -= bytes;
                side.streams.produced(stream, bytes);
            }
            SendSpace::Wait | SendSpace::Stopped => {}
        }
        self.events(at);
    }

    /// The local socket takes something, or goes.
    fn take(&mut self, at: usize) {
        let Some(stream) = self.some_stream(at) else { return };
        let (leave, wanted) = (self.faults && self.random.chance(2), 1 + self.random.below(1500));
        let side = &mut self.sides[at];
        let rings = side.rings.get_mut(&stream).expect("it has rings");
        match side.streams.readable(stream) {
            Readable::Bytes { .. } if leave => {
                rings.aborted = true;
                side.streams.finished(stream);
            }
            Readable::Bytes { position, bytes } => {
                let bytes = bytes.min(wanted);
                let taken = (position..position + bytes).map(|at| rings.receive[(at % WINDOW) as usize]);
                rings.received.extend(taken);
                side.streams.consumed(stream, bytes);
            }
            Readable::End => {
                rings.clean = true;
                side.streams.finished(stream);
            }
            Readable::Reset => side.streams.finished(stream),
            Readable::Wait | Readable::Done => {}
        }
        self.events(at);
    }

    fn pull(&mut self, nth: usize) {
        let Channel { id, from, lost: false, .. } = self.channels[nth] else { return };
        let Next::Work(work) = self.sides[from].streams.next(self.now, id) else { return };
        let pieces = work.runs.iter().map(|run| {
            let piece = Piece::of(*run);
            // A ring that was removed would be a byte in flight of a stream that both have closed.
            let ring =
                &self.sides[from].rings.get(&piece.stream).expect("a ring as long as it is sent from").send;
            let bytes = (piece.position..piece.position + piece.bytes).map(|at| ring[(at % WINDOW) as usize]);
            (piece, bytes.collect())
        });
        let frame = Frame { sequence: work.sequence, pieces: pieces.collect() };
        self.channels[nth].wire.push_back(frame);
    }

    fn deliver(&mut self, nth: usize) {
        let damage = self.faults && self.random.chance(30);
        let channel = &mut self.channels[nth];
        if channel.fenced {
            return;
        }
        let Some(frame) = channel.wire.pop_front() else { return };
        let side = &mut self.sides[1 - channel.from];
        for (piece, bytes) in &frame.pieces {
            let allowed = side.streams.check(*piece);
            assert!(allowed.is_ok(), "{piece:?}: {allowed:?}");
            let ring =
                &mut side.rings.get_mut(&piece.stream).expect("a ring as long as writes may come").receive;
            for (at, byte) in (piece.position..).zip(bytes) {
                ring[(at % WINDOW) as usize] = if damage { !byte } else { *byte };
            }
        }
        channel.applied = frame.sequence;
        if damage {
            channel.damaged.push(frame.sequence);
        } else {
            for (piece, _) in &frame.pieces {
                let received = side.streams.received(*piece);
                assert!(received.is_ok(), "{piece:?}: {received:?}");
            }
        }
    }

    fn acknowledge(&mut self, nth: usize) {
        let channel = &mut self.channels[nth];
        if channel.lost {
            return;
        }
        let damaged = channel.damaged.split_off(channel.reported_damaged);
        channel.damaged.extend(&damaged);
        channel.reported_damaged = channel.damaged.len();
        let (id, from, applied) = (channel.id, channel.from, channel.applied);
        self.sides[from].streams.acknowledged(self.now, id, applied, &damaged);
        self.events(from);
    }

    fn lose(&mut self, nth: usize) {
        let channel = &mut self.channels[nth];
        channel.lost = true;
        let (id, from) = (channel.id, channel.from);
        if self.sides[from].streams.channel_lost(id) {
            self.sides[1 - from].inbox.push_back(Message::Fence(id));
        }
    }

    fn step(&mut self) {
        self.now = self.now + Duration::from_micros(self.random.below(300));
        for from in [0, 1] {
            if self.channels.iter().filter(|one| one.from == from && !one.lost).count() < 2
                && self.random.chance(100)
            {
                self.add_channel(from);
            }
        }
        let at = self.random.below(2) as usize;
        let nth = self.random.below(self.channels.len() as u64) as usize;
        let a_channel = nth < self.channels.len();
        match self.random.below(12) {
            0 | 1 => self.send(at),
            2 | 3 => self.take(at),
            4 | 5 => self.receive(at),
            6 | 7 if a_channel => self.pull(nth),
            8 | 9 if a_channel => self.deliver(nth),
            10 if a_channel => self.acknowledge(nth),
            11 if a_channel && self.faults && self.random.chance(60) => self.lose(nth),
            _ => {}
        }
    }

    fn is_quiet(&self) -> bool {
        self.sides.iter().all(|side| side.streams.count() == 0 && side.inbox.is_empty())
    }

    fn compare(&self) {
        let [a, b] = &self.sides;
        assert_eq!(a.gone.len(), b.gone.len());
        for (stream, one) in &a.gone {
            let other = &b.gone[stream];
            for (sender, received) in [(one, other), (other, one)] {
                assert!(
                    sender.sent.starts_with(&received.received),
                    "stream {stream}: other bytes were received than were sent"
                );
                let broken = sender.aborted || received.aborted;
                assert!(received.clean || broken, "stream {stream} was reset without a reason");
                assert!(
                    !received.clean || sender.sent == received.received,
                    "stream {stream} ended before its end"
                );
            }
        }
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    let streams = 1 + world.random.below(6);
    for _ in 0..streams {
        let at = world.random.below(2) as usize;
        world.open(at);
        world.events(at);
    }
    for step in 0..400_000 {
        world.faults = step < 30_000;
        world.step();
        if world.is_quiet() {
            break;
        }
    }
    let left: Vec<_> = world.sides.iter().map(|side| &side.streams).collect();
    assert!(world.is_quiet(), "seed {seed}: streams never ended: {left:#?}");
    world.compare();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever is lost, damaged, late or reset: each side gets what the other sent, in order and once, up to its end
    /// or up to a break; every stream ends; no write comes that must be refused; no ring is needed after both have
    /// closed.
    #[test]
    fn streams_survive_whatever_links_do(seed in any::<u64>()) {
        run(seed);
    }
}
