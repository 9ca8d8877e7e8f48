//! Sessions that carry byte streams between sockets of two hosts, and move no guest.
//!
//! | module | contents |
//! |---|---|
//! | here | what all threads of a session share |
//! | `sessions` | all of them, and what they need of this host |
//! | `start` | both ends: a request becomes a session, a connection becomes one |
//! | `session_loop` | the loop: control messages to the streams, notes of the streams to control messages |
//! | `links` | what the links of [`crate::session`] are to a tunnel |
//! | `stale` | sockets that a killed agent or hypervisor left in the file system |
//! | `listen`, `connect` | local sockets: where streams come from, and where they go |
//!
//! The two ends differ only in which one connects, which one listens and which one has even numbers.

mod connect;
mod links;
mod listen;
mod session_loop;
mod sessions;
mod stale;
mod start;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use linerate_api::TunnelEvent;
use linerate_core::stream::StreamId;
use linerate_core::{ChannelId, Code, Fault, LinkId, PathId, SessionId, Side, Step, Token};
use linerate_lock::Mutex;
use linerate_net::channel::ChannelError;
use linerate_net::control::ControlPath;
use linerate_net::fence::Fenced;
use linerate_wire::frame::Hello;

use crate::clock::Clock;
use crate::security::{PeerName, REVOKED, SessionPart};
use crate::session::links::{Dialler, Losses};
use crate::session::notice::Notice;
use crate::session::paths::{Door, Held, PathEvent};
use crate::session::stream_transport::StreamTransport;
use crate::stream_gate::{LibvirtJob, StreamGate};

pub(crate) use connect::may_reach;
pub use sessions::Sessions;
pub use stale::clear_folders;
pub use start::{Begun, begin};

/// What the loop of a session receives.
enum Input {
    Control(PathEvent, Held),
    Path(PathId, Option<LinkId>, ControlPath),
    LinkLost(LinkId),
    /// The streams have notes for the peer.
    Attention,
    /// A channel of this side cannot be used any more.
    ChannelLost(ChannelId, ChannelError),
    /// The peer must fence a channel of this side.
    Fence(ChannelId),
    /// A channel of the peer applies nothing more.
    Fenced(ChannelId, Fenced),
    Asked(StreamId, String),
    /// The peer refused a stream, for this reason.
    Refused(StreamId, String),
    End(Fault),
}

/// A session, at either end.
pub struct Tunnel {
    /// Names it on both hosts.
    pub session: SessionId,
    dialler: Dialler,
    pub peer: SocketAddr,
    /// The host that asked for it, where hosts prove who they are and this is the other one.
    pub opener: PeerName,
    clock: Clock,
    stream_transport: Arc<StreamTransport>,
    inbox: Sender<Input>,
    door: Door,
    losses: Losses,
    /// All links may be gone for so long.
    link_timeout: Duration,
    /// The watcher's channel, at the host that asked.
    events: Mutex<Option<tokio::sync::mpsc::UnboundedSender<TunnelEvent>>>,
    over: AtomicBool,
    /// Where connections wait, at the host that asked.
    gates: Mutex<Vec<Arc<StreamGate>>>,
    /// By which a libvirt drives.
    jobs: Mutex<Vec<Arc<LibvirtJob>>>,
}

impl Tunnel {
    fn send(&self, input: Input) {
        // After the session's end the inbox has no reader, and none is needed.
        let _ = self.inbox.send(input);
    }

    fn publish(&self, event: TunnelEvent) {
        if let Some(events) = &*self.events.lock() {
            let _ = events.send(event);
        }
    }

    /// Whether a connection that shows this token belongs here.
    fn knows(&self, token: &Token) -> bool {
        self.dialler.identity.knows(token)
    }

    /// Refuses a connection without the token, and one of any host but that which asked for the tunnel.
    pub fn check_opener(&self, hello: &Hello, name: &PeerName) -> Result<(), Fault> {
        let refused =
            |detail: &str| Fault::new(Code::NotAuthorised, Step::Authorise, Side::Destination, detail);
        if !self.knows(&hello.token) {
            return Err(refused("wrong token"));
        }
        if self.opener != *name {
            return Err(refused("another host asked for this tunnel"));
        }
        Ok(())
    }

    /// Whether it is over.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Asks for its end.
    pub fn end(&self, fault: Fault) {
        self.send(Input::End(fault));
    }
}

impl SessionPart for Tunnel {
    fn peer_revoked(&self) {
        // Only the host that was asked knows an opener.
        let side = if self.opener.is_some() { Side::Destination } else { Side::Source };
        self.end(Fault::new(Code::PeerLost, Step::Copy, side, REVOKED));
    }
}

impl From<Notice> for Input {
    fn from(notice: Notice) -> Input {
        match notice {
            Notice::Speak => Input::Attention,
            Notice::Asked(stream, service) => Input::Asked(stream, service),
            Notice::Refused(stream, reason) => Input::Refused(stream, reason),
            Notice::ChannelLost(channel, error) => Input::ChannelLost(channel, error),
        }
    }
}
