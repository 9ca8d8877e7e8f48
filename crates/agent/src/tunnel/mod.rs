//! Sessions that carry byte streams between sockets of two hosts, and move no guest.
//!
//! | room | what lives there |
//! |---|---|
//! | here | what all threads of a session share |
//! | `start` | both ends: a request becomes a session, a connection becomes one |
//! | `body` | the loop: control messages to the streams, notes of the streams to control messages |
//! | `links` | at the host that asked: one thread per link, opened again whenever it is lost |
//! | `stale` | sockets that a killed agent or hypervisor left in the file system |
//! | `kept` | sessions that the next life of a killed agent withdraws |
//! | `listen`, `connect` | local sockets: where streams come from, and where they go |
//!
//! Both ends are the same but for who connects, who listens and whose numbers are even.

mod body;
mod connect;
mod kept;
mod links;
mod listen;
mod stale;
mod start;
#[cfg(test)]
mod tests;

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use linerate_api::TunnelEvent;
use linerate_core::stream::StreamId;
use linerate_core::{ChannelId, Fault, LinkId, PathId, SessionId, Token};
use linerate_net::channel::ChannelError;
use linerate_net::control::{ControlEvent, ControlPath};
use linerate_net::fence::Fenced;
use linerate_net::stream::Owner;

use crate::carriage::Carriage;
use crate::clock::Clock;
use crate::gate::{Gate, JobGate};

pub(crate) use kept::Kept;
pub use kept::withdraw_left;
pub use stale::clear_folders;
pub use start::{Begun, accept, begin};

/// What the loop of a session receives.
enum Input {
    Control(ControlEvent),
    Path(PathId, Option<LinkId>, ControlPath),
    LinkLost(LinkId),
    /// The streams have notes for the peer.
    Attention,
    /// A channel of this side is of no more use.
    ChannelLost(ChannelId, String),
    /// The peer must fence a channel of this side.
    Fence(ChannelId),
    /// A channel of the peer applies nothing more.
    Fenced(ChannelId, Fenced),
    Asked(StreamId, String),
    End(Fault),
}

/// A session, at either end.
pub struct Tunnel {
    /// Names it on both hosts.
    pub session: SessionId,
    token: Token,
    /// The other host.
    pub peer: SocketAddr,
    clock: Clock,
    carriage: Carriage,
    inbox: Sender<Input>,
    control: Mutex<Option<Sender<ControlEvent>>>,
    next_path: AtomicU32,
    next_channel: AtomicU32,
    /// All links may be gone for so long.
    link_timeout: Duration,
    /// Who watches, at the host that asked.
    events: Mutex<Option<tokio::sync::mpsc::UnboundedSender<TunnelEvent>>>,
    over: AtomicBool,
    /// Where connections wait, at the host that asked.
    gates: Mutex<Vec<Arc<Gate>>>,
    /// By which a libvirt drives.
    jobs: Mutex<Vec<Arc<JobGate>>>,
}

impl Tunnel {
    fn tell(&self, input: Input) {
        // After the end nobody reads it, which is as well.
        let _ = self.inbox.send(input);
    }

    fn publish(&self, event: TunnelEvent) {
        if let Some(events) = &*self.events.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = events.send(event);
        }
    }

    /// Whether a connection that shows this token belongs here. Takes the same time whichever byte differs.
    pub fn knows(&self, token: &Token) -> bool {
        self.token.0.iter().zip(token.0).fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs)) == 0
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Whether this side, which asked for the session, has given a channel this number.
    fn has_opened(&self, channel: ChannelId) -> bool {
        channel < self.next_channel.load(Ordering::Relaxed)
    }

    /// Asks for its end.
    pub fn end(&self, fault: Fault) {
        self.tell(Input::End(fault));
    }

    /// A control connection that shook hands. The loop owns it from then on. Returns its number.
    pub fn attach_path(&self, mut control: ControlPath, link: Option<LinkId>) -> io::Result<PathId> {
        let number = self.next_path.fetch_add(1, Ordering::Relaxed);
        let path = u16::try_from(number).map_err(io::Error::other)?;
        let events = self.control.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let events = events.ok_or_else(|| io::Error::other("the session is over"))?;
        control.listen(path, events).map_err(io::Error::other)?;
        self.tell(Input::Path(number, link, control));
        Ok(number)
    }
}

/// Tells the loop what the streams want.
struct Teller(Mutex<Sender<Input>>);

impl Teller {
    fn tell(&self, input: Input) {
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(input);
    }
}

/// The streams' owner: everything goes to the loop.
struct ToLoop {
    inbox: Teller,
    events: Option<tokio::sync::mpsc::UnboundedSender<TunnelEvent>>,
}

impl Owner for ToLoop {
    fn attention(&self) {
        self.inbox.tell(Input::Attention);
    }

    fn asked(&self, stream: StreamId, service: String) {
        self.inbox.tell(Input::Asked(stream, service));
    }

    fn refused(&self, stream: StreamId, reason: String) {
        tracing::warn!(stream, reason, "a connection was not taken at the other host");
        if let Some(events) = &self.events {
            let _ = events.send(TunnelEvent::Refused { reason });
        }
    }

    fn channel_lost(&self, channel: ChannelId, error: ChannelError) {
        self.inbox.tell(Input::ChannelLost(channel, crate::faults::chain(&error)));
    }
}
