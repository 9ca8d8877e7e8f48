//! Both ends of a session: a request becomes one here, a connection becomes one there.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::time::Duration;

use linerate_api::{Transport, TunnelEvent, TunnelRequest};
use linerate_core::stream::{Config, End};
use linerate_core::{Code, Fault, Side, Step};
use linerate_lock::Mutex;
use linerate_net::links::parse_networks;
use linerate_net::tcp::Stream;
use linerate_wire::frame::{Hello, Role};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::listen::{Accepting, Listeners};
use super::session_loop::{Opening, SessionLoop};
use super::{Input, Sessions, Tunnel, connect};
use crate::clock::Clock;
use crate::faults::fault;
use crate::security::PeerName;
use crate::session::address::resolve;
use crate::session::contact::{keep, open_session};
use crate::session::identity::Identity;
use crate::session::links::{Dialler, Losses, Session};
use crate::session::notice::LoopSender;
use crate::session::offer::offered;
use crate::session::paths::Door;
use crate::session::pending_notice::PendingNotice;
use crate::session::probe::OpenError;
use crate::session::stream_transport::StreamTransport;

/// The other end waits for links this long: the host that asked decides by its own limit, which is not longer, and
/// sends the end.
const LINK_TIMEOUT: Duration = Duration::from_secs(LINK_TIMEOUT_S as u64);
const LINK_TIMEOUT_S: u32 = 120;

/// A tunnel that was asked for here. Dropping it ends it.
pub struct Begun {
    pub(super) tunnel: Arc<Tunnel>,
    accepting: Option<Accepting>,
    /// What happens to it.
    pub events: UnboundedReceiver<TunnelEvent>,
}

impl Begun {
    /// Cipher of its first connection; none in plain text.
    pub fn cipher(&self) -> Option<&'static str> {
        self.tunnel.dialler.identity.cipher()
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.accepting = None;
        let detail = "the client that asked for the tunnel has disconnected";
        self.tunnel.end(Fault::new(Code::Cancelled, Step::Copy, Side::Source, detail));
    }
}

/// Makes a tunnel to another host.
pub fn begin(sessions: &Arc<Sessions>, request: &TunnelRequest) -> Result<Begun, Fault> {
    let here =
        |code, error: &(dyn std::error::Error + 'static)| fault(code, Step::Resolve, Side::Source, error);
    parse_networks(&request.links.join(",")).map_err(|error| here(Code::NoLink, &error))?;
    if request.link_timeout_s > LINK_TIMEOUT_S {
        let detail = format!("the other host waits for links for {LINK_TIMEOUT_S} s and no longer");
        return Err(Fault::new(Code::ResourceMissing, Step::Resolve, Side::Source, detail));
    }
    let listeners = Listeners::open(&request.pairs).map_err(|error| here(Code::ResourceMissing, &error))?;
    let identity = Identity::random(&sessions.security)?;
    let peers = resolve(&request.to)?;
    let kept = PendingNotice::new(&sessions.config.state_dir, &identity, &peers)
        .map_err(|error| here(Code::JournalFailed, &error))?;
    let (control, peer) = open_session(&peers, Role::TunnelNew, &identity)?;
    kept.pin(&identity, &peers).map_err(|error| here(Code::JournalFailed, &error))?;
    let (events_in, watched) = unbounded_channel();
    let timeout = Duration::from_secs(request.link_timeout_s.into());
    let (events, kept) = (Some(events_in), Some(kept));
    let session = identity.session;
    let parts = TunnelParts { identity, peer, opener: None, end: End::Source, timeout, events, notice: kept };
    let filter = request.links.clone();
    let failed = |error: std::io::Error| fault(Code::Internal, Step::Connect, Side::Source, &error);
    let tunnel = run(sessions, parts, Opening::Ask, filter).map_err(failed)?;
    sessions.add(tunnel.clone());
    let mut begun = Begun { tunnel: tunnel.clone(), accepting: None, events: watched };
    tunnel.end_with_peer();
    tunnel.attach_path(control, None).map_err(failed)?;
    let listen = listeners.addresses();
    begun.accepting = Some(listeners.start(tunnel.clone()).map_err(failed)?);
    tunnel.open_gates(sessions, &request.pairs).map_err(|error| here(Code::ResourceMissing, &error))?;
    tunnel.publish(TunnelEvent::Ready { listen });
    tracing::info!(%session, to = request.to, "a tunnel begins");
    Ok(begun)
}

/// Another host asks for a session. Its first connection is not welcomed yet.
pub fn accept(
    sessions: &Arc<Sessions>,
    hello: &Hello,
    peer: SocketAddr,
    opener: PeerName,
) -> Result<Arc<Tunnel>, Fault> {
    let Hello { session, token, .. } = *hello;
    if sessions.config.tunnel_targets.is_empty() {
        let detail =
            format!("tunnel_targets of the agent at {} names nothing to connect to", sessions.config.name);
        return Err(Fault::new(Code::NotAuthorised, Step::Authorise, Side::Destination, detail));
    }
    let offered = offered(&sessions.config.listen, &sessions.rdma)?;
    let parts = TunnelParts {
        identity: Identity::new(session, token, &sessions.security),
        peer,
        opener,
        end: End::Destination,
        timeout: LINK_TIMEOUT,
        events: None,
        notice: None,
    };
    let failed = |error: std::io::Error| fault(Code::Internal, Step::Authorise, Side::Destination, &error);
    let tunnel = run(sessions, parts, Opening::Offer(offered), Vec::new()).map_err(failed)?;
    tracing::info!(%session, %peer, "a tunnel from another host");
    Ok(tunnel)
}

/// What is different at both ends.
struct TunnelParts {
    identity: Identity,
    peer: SocketAddr,
    /// The host that asked for it, where hosts prove who they are and this is the other one.
    opener: PeerName,
    end: End,
    timeout: Duration,
    events: Option<UnboundedSender<TunnelEvent>>,
    /// At the host that asked.
    notice: Option<PendingNotice>,
}

/// The session's loop, in a thread of its own.
fn run(
    sessions: &Arc<Sessions>,
    parts: TunnelParts,
    opening: Opening,
    filter: Vec<String>,
) -> std::io::Result<Arc<Tunnel>> {
    let (inbox, receiver) = channel();
    let config = Config {
        window_bytes: sessions.config.tunnel_window_mib << 20,
        streams_max: sessions.config.tunnel_streams_max,
        ..Config::default()
    };
    let owner = Box::new(LoopSender::new(inbox.clone()));
    let events = inbox.clone();
    let door = Door::open(move |event, held| drop(events.send(Input::Control(event, held))))?;
    let session = parts.identity.session;
    let tunnel = Arc::new(Tunnel {
        session,
        dialler: Dialler::new(parts.identity, Transport::Tcp, Default::default()),
        peer: parts.peer,
        opener: parts.opener,
        clock: Clock::start(),
        stream_transport: Arc::new(StreamTransport::new(parts.end, config, owner, Arc::default())),
        inbox,
        door,
        losses: Losses::default(),
        link_timeout: parts.timeout,
        events: Mutex::new(parts.events),
        over: AtomicBool::new(false),
        gates: Mutex::default(),
        jobs: Mutex::default(),
    });
    let connector = connect::start(sessions.clone(), tunnel.clone())?;
    let session_loop =
        SessionLoop::new(sessions.clone(), tunnel.clone(), connector, opening, (filter, parts.notice));
    std::thread::Builder::new()
        .name(format!("tunnel-{}", session))
        .spawn(move || session_loop.run(&receiver))?;
    Ok(tunnel)
}

impl Tunnel {
    /// Ends when the other host is revoked: no link to it comes back.
    fn end_with_peer(self: &Arc<Tunnel>) {
        self.dialler.identity.end_with_peer(self.clone());
    }

    /// A welcomed connection of the session, at the host that was asked.
    pub fn attach(self: &Arc<Tunnel>, hello: &Hello, stream: Stream) -> Result<(), OpenError> {
        match hello.role {
            Role::Data => self.stream_transport.serve(hello.channel, stream, |_| {})?,
            Role::ReverseData => {
                self.stream_transport.attach_back(hello.channel, hello.link, &stream)?;
            }
            role => {
                self.dialler.identity.note_peer(stream.peer_certificates());
                if role == Role::TunnelNew {
                    self.end_with_peer();
                }
                let link = (role != Role::TunnelNew).then_some(hello.link);
                keep(stream).and_then(|control| self.attach_path(control, link))?;
            }
        }
        Ok(())
    }
}
