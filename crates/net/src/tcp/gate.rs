//! Turns to do the handshake. Strangers and known hosts have their own, so that neither waits for the other.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use super::Stream;
use super::exchange::ExchangeError;
use super::known::Known;
use super::room::{Limits, Origin, Room};
use linerate_lock::Mutex;

/// A handshake has this long before it may have to give way. A host at a round trip of 300 ms needs 600 ms.
const TURN_MIN: Duration = Duration::from_secs(1);
/// Between two warnings of connections that were refused.
const REPORT_GAP: Duration = Duration::from_secs(1);

/// Something for each of the two kinds of hosts.
#[derive(Debug)]
pub(super) struct Both<T> {
    pub known: T,
    pub strangers: T,
}

impl<T> Both<T> {
    pub fn of(&mut self, known: bool) -> &mut T {
        if known { &mut self.known } else { &mut self.strangers }
    }
}

#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    /// Readable when a turn is over.
    turn_over: OwnedFd,
}

#[derive(Debug)]
struct State {
    next: u64,
    known: Known,
    turns: Both<Room<Turn>>,
    log: Log,
}

/// A handshake that is under way.
#[derive(Debug)]
struct Turn {
    connection: Weak<OwnedFd>,
    since: Instant,
    /// It has said what it wants, and is being answered.
    spoke: bool,
    /// It was told to give way.
    is_ending: bool,
}

#[derive(Debug, Default)]
struct Log {
    /// When an operator was last told of connections that were refused, and of some that gave way.
    refused: Option<Instant>,
    crowded: Option<Instant>,
    /// Connections that gave way since.
    gave_way: u64,
}

/// The right to do a handshake, until it is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    gate: Arc<Gate>,
    number: u64,
    origin: Origin,
    known: bool,
}

impl Gate {
    /// `turns`: how many handshakes at a time, for known hosts and for strangers.
    pub fn new(turns: Both<Limits>) -> std::io::Result<Gate> {
        let turn_over = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let turns = Both { known: Room::new(turns.known), strangers: Room::new(turns.strangers) };
        let state = State { next: 0, known: Known::default(), turns, log: Log::default() };
        Ok(Gate { state: Mutex::new(state), turn_over })
    }

    pub fn turn_over(&self) -> &OwnedFd {
        &self.turn_over
    }

    /// No turn that was over before is told again.
    pub fn seen(&self) {
        let _ = rustix::io::read(&self.turn_over, &mut [0; 8]);
    }

    pub fn knows(&self, origin: Origin) -> bool {
        self.state.lock().known.contains(origin)
    }

    /// Handshakes that are under way from there, and whether as many as may be are.
    pub fn turns_of(&self, known: bool, origin: Origin) -> (usize, bool) {
        let mut state = self.state.lock();
        let turns = state.turns.of(known);
        (turns.count(origin), turns.is_full())
    }

    /// A turn, if one is free. Otherwise one that lasts too long is ended: asked again, there will be one.
    pub fn turn(gate: &Arc<Gate>, origin: Origin, known: bool, connection: &Stream) -> Option<Slot> {
        let mut state = gate.state.lock();
        let turns = state.turns.of(known);
        if !turns.has_room(origin) {
            // One at a time: it ends as soon as its thread runs.
            if !turns.iter().any(|(_, _, turn)| turn.is_ending) {
                let late = |turn: &Turn| !turn.spoke && turn.since.elapsed() >= TURN_MIN;
                let first = turns.first_to_go(origin, late).and_then(|number| turns.get_mut(number));
                first.into_iter().for_each(Turn::end);
            }
            return None;
        }
        let connection = Arc::downgrade(&connection.socket);
        let turn = Turn { connection, since: Instant::now(), spoke: false, is_ending: false };
        let number = state.next;
        state.next += 1;
        state.turns.of(known).insert(number, origin, turn);
        drop(state);
        Some(Slot { gate: Arc::clone(gate), number, origin, known })
    }

    /// A peer that is refused by TLS is worth a warning, at most one in a second: strangers must not fill the log.
    pub fn report(&self, peer: SocketAddr, error: &ExchangeError) {
        let is_due = matches!(error, ExchangeError::Tls(_)) && is_due(&mut self.state.lock().log.refused);
        if is_due {
            tracing::warn!(%peer, %error, "a connection was refused");
        } else {
            tracing::debug!(%peer, %error, "a connection was dropped in the handshake");
        }
    }

    /// A connection that said nothing gave way to one from `peer`.
    pub fn gave_way(&self, peer: SocketAddr) {
        let mut state = self.state.lock();
        state.log.gave_way += 1;
        if is_due(&mut state.log.crowded) {
            let closed = std::mem::take(&mut state.log.gave_way);
            tracing::warn!(newest = %peer, closed, "many connections say nothing: the oldest were closed for new ones");
        }
    }
}

fn is_due(last: &mut Option<Instant>) -> bool {
    let due = last.is_none_or(|last| last.elapsed() >= REPORT_GAP);
    if due {
        *last = Some(Instant::now());
    }
    due
}

impl Turn {
    fn end(&mut self) {
        self.is_ending = true;
        if let Some(connection) = self.connection.upgrade() {
            forget_at_close(&connection);
            // It fails only if the connection has ended already.
            let _ = rustix::net::shutdown(&connection, rustix::net::Shutdown::Both);
        }
    }
}

/// The kernel keeps nothing of the connection once it is closed: the peer gets a reset.
pub(super) fn forget_at_close(connection: &OwnedFd) {
    let _ = socket2::SockRef::from(connection).set_linger(Some(Duration::ZERO));
}

impl Slot {
    /// The peer proved who it is: its address is known, and it does not take the turn of a stranger.
    pub fn proved(&mut self) {
        let mut state = self.gate.state.lock();
        state.known.note(self.origin);
        if !std::mem::replace(&mut self.known, true)
            && let Some(turn) = state.turns.strangers.remove(self.number)
        {
            state.turns.known.insert(self.number, self.origin, turn);
        }
    }

    /// The peer has said what it wants: its turn lasts until it is answered.
    pub fn spoke(&self) {
        if let Some(turn) = self.gate.state.lock().turns.of(self.known).get_mut(self.number) {
            turn.spoke = true;
        }
    }

    /// The peer's connection was taken: its address is known as long as that is open.
    pub fn taken(&self, connection: &Stream) {
        self.gate.state.lock().known.hold(self.origin, &connection.socket);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gate.state.lock().turns.of(self.known).remove(self.number);
        // It fails only if it was told so often that nothing more fits in.
        let _ = rustix::io::write(&self.gate.turn_over, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    const ALL: Limits = Limits { total: 4, of_one: 4 };

    fn gate() -> Arc<Gate> {
        Arc::new(Gate::new(Both { known: ALL, strangers: Limits { of_one: 2, ..ALL } }).unwrap())
    }

    fn origin(host: u8) -> Origin {
        Origin::of(([10, 0, 0, host], 1).into())
    }

    fn stream() -> Stream {
        Stream::new(UnixStream::pair().unwrap().0).unwrap()
    }

    #[test]
    fn turns_are_bounded_for_an_address_and_in_total_and_come_back() {
        let (gate, stream) = (gate(), stream());
        let turn = |host| Gate::turn(&gate, origin(host), false, &stream);
        let (first, second) = (turn(1).unwrap(), turn(1).unwrap());
        assert!(turn(1).is_none(), "of one address");
        let others = (turn(2).unwrap(), turn(3).unwrap());
        assert!(turn(4).is_none(), "in total");
        assert!(Gate::turn(&gate, origin(4), true, &stream).is_some(), "known hosts have their own");
        drop(first);
        assert!(turn(1).is_some() && turn(4).is_some());
        drop((second, others));
    }

    #[test]
    fn who_proves_itself_gives_the_strangers_turn_back_and_is_known() {
        let (gate, stream) = (gate(), stream());
        let turn = |host| Gate::turn(&gate, origin(host), false, &stream);
        let mut slots = [turn(1).unwrap(), turn(1).unwrap()];
        assert!(!gate.knows(origin(1)));
        slots.iter_mut().for_each(Slot::proved);
        assert!(gate.knows(origin(1)));
        assert!(turn(1).is_some());
        drop(slots);
        let four: Vec<Slot> = (0..4)
            .map(|_| Gate::turn(&gate, origin(1), true, &stream).expect("all were given back"))
            .collect();
        assert!(Gate::turn(&gate, origin(2), true, &stream).is_none());
        drop(four);
    }
}
