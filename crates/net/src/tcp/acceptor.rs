//! The thread that accepts connections. It holds each until the peer has said something, and then gives it a thread for
//! the handshake. A connection that is held costs a descriptor and what the kernel has for it.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_core::{Code, Fault, Side, Step};
use linerate_wire::frame::{Frame, Tag};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use socket2::Socket;

use super::Stream;
use super::exchange::{self, ExchangeError};
use super::gate::{Both, Gate, Slot, forget_at_close};
use super::listen::{Accepted, ListenOptions};
use super::room::{Limits, Origin, Room};
use crate::tls::TlsError;

/// What is told of the descriptors of the listener itself; connections are told of from `FIRST_CONNECTION` on.
const STOPPED: u64 = 0;
const TURN_OVER: u64 = 1;
const FIRST_SOCKET: u64 = 2;
const FIRST_CONNECTION: u64 = 1 << 32;
/// Connections of an address that are accepted before the others are looked at.
const ACCEPTED_AT_ONCE: usize = 64;
/// How often it is seen whether a handshake that lasts too long can give way.
const TURN_CHECK: Duration = Duration::from_millis(100);

/// A connection without a thread.
struct Held {
    stream: Stream,
    peer: SocketAddr,
    since: Instant,
    /// It said something, and waits for its turn.
    spoke: bool,
}

pub(super) struct Acceptor<H> {
    epoll: OwnedFd,
    sockets: Vec<Socket>,
    /// Readable when the listener was dropped.
    _stopped: OwnedFd,
    gate: Arc<Gate>,
    options: ListenOptions,
    handler: Arc<H>,
    next: u64,
    held: Both<Room<Held>>,
}

impl<H: Fn(Accepted) + Send + Sync + 'static> Acceptor<H> {
    pub fn new(
        sockets: Vec<Socket>,
        stopped: OwnedFd,
        gate: Arc<Gate>,
        options: ListenOptions,
        handler: H,
    ) -> io::Result<Acceptor<H>> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &stopped, EventData::new_u64(STOPPED), EventFlags::IN)?;
        epoll::add(&epoll, gate.turn_over(), EventData::new_u64(TURN_OVER), EventFlags::IN)?;
        for (socket, number) in sockets.iter().zip(FIRST_SOCKET..) {
            epoll::add(&epoll, socket, EventData::new_u64(number), EventFlags::IN)?;
        }
        let total = options.silent_max.max(1);
        let strangers = Limits { total, of_one: options.silent_per_address.clamp(1, total) };
        // Of a known host all may come from one address.
        let held =
            Both { known: Room::new(Limits { total, of_one: total }), strangers: Room::new(strangers) };
        let handler = Arc::new(handler);
        Ok(Acceptor {
            epoll,
            sockets,
            _stopped: stopped,
            gate,
            options,
            handler,
            next: FIRST_CONNECTION,
            held,
        })
    }

    /// Until the listener is dropped.
    pub fn run(mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        loop {
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                self.timeout().as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "no connection is accepted any more"),
            }
            for event in events.drain(..) {
                match { event.data }.u64() {
                    STOPPED => return,
                    TURN_OVER => self.gate.seen(),
                    number if number >= FIRST_CONNECTION => self.has_spoken(number),
                    number => self.accept_from(number),
                }
            }
            self.give_up_late();
            self.give_turns();
        }
    }

    /// Until the next connection was silent for too long, or a turn may have to end.
    fn timeout(&self) -> Option<Timespec> {
        let both = [&self.held.known, &self.held.strangers];
        if both.iter().any(|room| room.iter().any(|(_, _, held)| held.spoke)) {
            return Timespec::try_from(TURN_CHECK).ok();
        }
        let oldest =
            both.iter().filter_map(|room| room.iter().next().map(|(_, _, held)| held.since)).min()?;
        let left = self.options.handshake_wait.saturating_sub(oldest.elapsed());
        // A little more: it would be woken a little too early again and again.
        Timespec::try_from(left + Duration::from_millis(1)).ok()
    }

    fn accept_from(&mut self, number: u64) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let place = usize::try_from(number - FIRST_SOCKET).unwrap_or(usize::MAX);
            let Some(socket) = self.sockets.get(place) else { return };
            match socket.accept() {
                Ok((connection, peer)) => {
                    if let Some(peer) = peer.as_socket() {
                        self.hold(connection, peer);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Out of descriptors, most likely: the connection stays in the queue, so do not spin.
                    return std::thread::sleep(Duration::from_millis(20));
                }
            }
        }
    }

    /// Holds a connection until it says something. The oldest gives way if there is no room.
    fn hold(&mut self, connection: Socket, peer: SocketAddr) {
        let origin = Origin::of(peer);
        let known = self.gate.knows(origin);
        let room = self.held.of(known);
        if !room.has_room(origin)
            && let Some(first) = room.first_to_go(origin, |_| true)
        {
            self.close(known, first);
            self.gate.gave_way(peer);
        }
        let number = self.next;
        self.next += 1;
        let watched = Stream::new(connection).and_then(|stream| {
            let once = EventFlags::IN | EventFlags::ONESHOT;
            epoll::add(&self.epoll, &stream, EventData::new_u64(number), once)?;
            Ok(stream)
        });
        match watched {
            Ok(stream) => {
                let held = Held { stream, peer, since: Instant::now(), spoke: false };
                self.held.of(known).insert(number, origin, held);
            }
            Err(error) => tracing::warn!(%peer, %error, "a connection could not be taken"),
        }
    }

    fn close(&mut self, known: bool, number: u64) {
        if let Some(held) = self.held.of(known).remove(number) {
            forget_at_close(&held.stream.socket);
        }
    }

    fn has_spoken(&mut self, number: u64) {
        for known in [true, false] {
            if let Some(held) = self.held.of(known).get_mut(number) {
                held.spoke = true;
            }
        }
    }

    /// Closes those that were silent for too long, and those that waited for their turn for twice as long.
    fn give_up_late(&mut self) {
        let wait = self.options.handshake_wait;
        for known in [true, false] {
            let late = |held: &Held| held.since.elapsed() >= if held.spoke { 2 * wait } else { wait };
            let room = self.held.of(known).iter();
            let numbers: Vec<u64> =
                room.filter(|(_, _, held)| late(held)).map(|(number, _, _)| number).collect();
            numbers.into_iter().for_each(|number| self.close(known, number));
        }
    }

    /// Begins the handshakes of those that spoke, as far as there are turns for them.
    fn give_turns(&mut self) {
        for known in [true, false] {
            let mut passed = HashSet::new();
            while let Some((number, origin, stream)) = self.next_in_line(known, &passed) {
                match Gate::turn(&self.gate, origin, known, &stream) {
                    Some(slot) => {
                        if let Some(held) = self.held.of(known).remove(number) {
                            self.begin(held, slot);
                        }
                    }
                    None if self.gate.turns_of(known, origin).1 => break,
                    // Others of its address wait as well.
                    None => drop(passed.insert(origin)),
                }
            }
        }
    }

    /// Who has the next turn: the first of the address that has fewest turns, and fewest connections here.
    fn next_in_line(&mut self, known: bool, passed: &HashSet<Origin>) -> Option<(u64, Origin, Stream)> {
        let gate = Arc::clone(&self.gate);
        let room = self.held.of(known);
        let line = room.iter().filter(|(_, origin, held)| held.spoke && !passed.contains(origin));
        let (number, origin, held) = line.min_by_key(|(number, origin, _)| {
            (gate.turns_of(known, *origin).0, room.count(*origin), *number)
        })?;
        Some((number, origin, held.stream.clone()))
    }

    fn begin(&self, held: Held, slot: Slot) {
        let Held { stream, peer, .. } = held;
        // A clone of it may live elsewhere.
        let _ = epoll::delete(&self.epoll, &stream);
        let (options, handler, gate) =
            (self.options.clone(), Arc::clone(&self.handler), Arc::clone(&self.gate));
        let thread = std::thread::Builder::new().name("handshake".into());
        let spawned = thread.spawn(move || match handshake(stream, peer, &options, slot) {
            Ok(accepted) => handler(accepted),
            Err(error) => {
                if let (ExchangeError::Tls(refused), Some(on_refusal)) = (&error, &options.on_refusal) {
                    (on_refusal.0)(peer, &refused.to_string());
                }
                gate.report(peer, &error);
            }
        });
        if let Err(error) = spawned {
            tracing::warn!(%peer, %error, "cannot start a thread for a connection");
        }
    }
}

fn handshake(
    stream: Stream,
    peer: SocketAddr,
    options: &ListenOptions,
    mut slot: Slot,
) -> Result<Accepted, ExchangeError> {
    let deadline = Instant::now() + options.handshake_wait;
    options.tcp.apply(&stream).map_err(ExchangeError::Socket)?;
    let stream = match &options.tcp.tls {
        Some(tls) => {
            let stream = stream.accept_tls(tls, deadline)?;
            slot.proved();
            stream
        }
        None => stream,
    };
    let hello = exchange::receive(&stream, &[Tag::Hello], deadline);
    if let Err(ExchangeError::Tls(TlsError::PeerSpokeTls)) = &hello {
        // A frame, by which it sees that this is a plain port.
        let fault = Fault::new(Code::NotAuthorised, Step::Authorise, Side::Destination, "this port is plain");
        exchange::send(&stream, &Frame::Refuse(fault), deadline)?;
    }
    match hello? {
        Frame::Hello(hello) => {
            slot.spoke();
            Ok(Accepted { hello, peer, stream, tls: options.tcp.tls.clone(), deadline, slot })
        }
        other => Err(ExchangeError::Unexpected(other.tag())),
    }
}
