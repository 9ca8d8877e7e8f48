//! Opening a link's channels: queue pairs where both ends have RDMA, TCP connections elsewhere and when RDMA fails.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate_api::{EventKind, Transport};
use linerate_core::Code;
use linerate_net::channel::ChannelError;
use linerate_net::links::{Link, channels_for, queue_pairs_for};
use linerate_net::pump::Carrier;
use linerate_net::rdma;
use linerate_net::round_trip::RoundTrip;
use linerate_net::tcp::connect::{ConnectError, Route, connect};
use linerate_net::tcp::send::{StreamAcks, StreamSender};
use linerate_net::tcp::stats::Progress as TcpProgress;
use linerate_wire::frame::Role;

use super::Outgoing;
use super::board::{ChannelView, Loss};
use super::links::{OPEN_WITHIN, describe, hello, tcp_options};
use super::trust::Trust;
use crate::faults::chain;

/// Bytes really moved before a link is trusted: more than a path with a broken MTU lets through, and little enough to
/// take some milliseconds at 1 Gb/s.
const PROBE_BYTES: usize = PROBE_KIB << 10;
const PROBE_KIB: usize = 512;
/// Number of the frame that a probe is: the one before the scheduler's first.
const PROBE_SEQUENCE: u64 = linerate_core::scheduler::FIRST_SEQUENCE - 1;

/// Why a link could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Rdma(#[from] rdma::connect::ConnectError),
    #[error("RDMA alone was asked for, and {0}")]
    NoRdma(&'static str),
    #[error("small packets pass and a probe of {PROBE_KIB} KiB does not: {0}")]
    Probe(#[source] ChannelError),
    #[error(
        "small packets pass and a probe of {PROBE_KIB} KiB was not answered in time; check that the MTU is the same along the way"
    )]
    ProbeSilent,
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error(transparent)]
    Path(#[from] io::Error),
}

impl OpenError {
    /// The destination's agent lives and does not know the session.
    pub fn is_forgotten(&self) -> bool {
        matches!(self, OpenError::Connect(ConnectError::Refused { fault, .. }) if fault.code == Code::SessionUnknown)
    }
}

/// A channel that has moved its probe.
pub(super) struct Opened {
    pub view: ChannelView,
    pub carrier: Carrier,
}

/// The RDMA side of a link's port at this host.
#[derive(Clone, Debug)]
pub(super) struct RdmaPort {
    /// Device and number, for people.
    pub name: String,
    /// Where its counters are.
    pub folder: PathBuf,
}

/// The port of this host that a link can use for RDMA; the destination must offer it too.
pub(super) fn rdma_port(link: &Link) -> Option<RdmaPort> {
    link.rdma?;
    let ports = rdma::devices::list();
    let port = rdma::devices::port_of(&ports, link.device.as_deref()?)?;
    Some(RdmaPort { name: format!("{}/{}", port.device, port.number), folder: port.folder.clone() })
}

/// How a link's channels are opened, and what was learnt about it.
pub(super) struct Opener {
    link: Link,
    transport: Transport,
    rdma_here: bool,
    options: rdma::options::RdmaOptions,
    trust: Trust,
    carries_rdma: bool,
}

impl Opener {
    pub fn new(shared: &Outgoing, link: Link, rdma_here: bool) -> Opener {
        let options = rdma::options::RdmaOptions {
            connect_wait: OPEN_WITHIN,
            type_of_service: shared.rdma_type_of_service,
            checksums: shared.request.rdma_checksums,
            // A guest that gives pages back gets other ones for them, which the adapter would not know of. Rings of streams keep
            // theirs.
            zero_copy: shared.carriage().is_some() || !shared.may_discard,
            ..rdma::options::RdmaOptions::default()
        };
        let transport = shared.request.transport;
        Opener { link, transport, rdma_here, options, trust: Trust::default(), carries_rdma: false }
    }

    /// The link was lost while it carried.
    pub fn lost(&mut self, loss: &Loss) {
        if self.carries_rdma && loss.of_carrier {
            self.trust.failed(&loss.reason, Instant::now());
        }
    }

    /// The link itself is gone: nothing of it is RDMA's fault.
    pub fn unreachable(&mut self) {
        self.trust.was_not_rdma();
    }

    /// Opens the channels. A TCP connection over the link has just worked, and showed its round trip.
    pub fn open(&mut self, shared: &Outgoing, round_trip: RoundTrip) -> Result<Vec<Opened>, OpenError> {
        self.options.round_trip = round_trip;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        self.carries_rdma = false;
        if let Some(remote) = self.wants_rdma()? {
            let count = queue_pairs_for(self.link.speed_mbps, cpus);
            match (0..count).map(|_| self.queue_pair(shared, remote)).collect() {
                Ok(opened) => {
                    self.carries_rdma = true;
                    self.trust.connected();
                    return Ok(opened);
                }
                Err(error) if self.transport == Transport::Rdma => return Err(error),
                Err(error) => self.trust.failed(&chain(&error), Instant::now()),
            }
        }
        self.tell_of_tcp(shared);
        (0..channels_for(self.link.speed_mbps, cpus)).map(|_| self.connection(shared)).collect()
    }

    /// Whether the channels that were opened last carry over RDMA.
    pub fn carries_rdma(&self) -> bool {
        self.carries_rdma
    }

    /// Where to connect by RDMA; `None` for TCP.
    fn wants_rdma(&self) -> Result<Option<std::net::SocketAddr>, OpenError> {
        let refuse =
            |why| if self.transport == Transport::Rdma { Err(OpenError::NoRdma(why)) } else { Ok(None) };
        match (self.transport, self.link.rdma, self.rdma_here) {
            (Transport::Tcp, _, _) => Ok(None),
            (_, None, _) => refuse("the destination has none on this link"),
            (_, _, false) => refuse("this host's port has none"),
            (Transport::Auto, Some(_), true) if self.trust.is_lost() => Ok(None),
            (_, Some(remote), true) => Ok(Some(remote)),
        }
    }

    /// Whether the link carries over TCP since RDMA failed, and RDMA moves bytes now. Tries it now and then; blocks meanwhile,
    /// at most as long as opening a channel may take.
    pub fn can_go_back_to_rdma(&mut self, shared: &Outgoing) -> bool {
        if self.carries_rdma || self.transport != Transport::Auto || !self.trust.may_try(Instant::now()) {
            return false;
        }
        let Ok(Some(remote)) = self.wants_rdma() else { return false };
        match self.queue_pair(shared, remote) {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(link = describe(&self.link), error = chain(&error), "RDMA does not work yet");
                self.trust.failed(&chain(&error), Instant::now());
                false
            }
        }
    }

    fn tell_of_tcp(&mut self, shared: &Outgoing) {
        let Some(reason) = self.trust.news() else { return };
        let link = describe(&self.link);
        tracing::warn!(link, reason, "RDMA failed; the link carries over TCP");
        shared.board.fell_back(self.link.id, &reason);
        let text = format!("{link}: RDMA failed, TCP is used instead: {reason}");
        shared.hub.publish(EventKind::Warning { text });
    }

    fn queue_pair(&self, shared: &Outgoing, remote: std::net::SocketAddr) -> Result<Opened, OpenError> {
        let channel = shared.next_channel.fetch_add(1, Ordering::Relaxed);
        let data = hello(shared.session, shared.token, Role::Data, self.link.id, channel);
        let route = Route { remote, ..Route::from(&self.link) };
        let (connection, _) = rdma::connect::connect(&route, &data, &self.options, &shared.rdma_domains)?;
        let (sender, acks, closer) = rdma::send::halves(connection, self.options.clone());
        let carrier = Carrier { sender: Box::new(sender), acks: Box::new(acks), closer };
        proven(channel, carrier, None)
    }

    fn connection(&self, shared: &Outgoing) -> Result<Opened, OpenError> {
        let channel = shared.next_channel.fetch_add(1, Ordering::Relaxed);
        let data = hello(shared.session, shared.token, Role::Data, self.link.id, channel);
        let (stream, _) = connect(&Route::from(&self.link), &data, &tcp_options())?;
        let carrier = Carrier {
            sender: Box::new(StreamSender::new(stream.clone())),
            acks: Box::new(StreamAcks::new(stream.clone())),
            closer: stream.closer(),
        };
        proven(channel, carrier, TcpProgress::of(&stream))
    }
}

/// The channel, if it moves some bytes for a proof.
fn proven(id: u32, mut carrier: Carrier, tcp: Option<TcpProgress>) -> Result<Opened, OpenError> {
    probe(&mut carrier)?;
    let view = ChannelView::new(id, carrier.sender.stats(), tcp);
    Ok(Opened { view, carrier })
}

/// Moves some bytes for a proof.
pub(crate) fn probe(carrier: &mut Carrier) -> Result<(), OpenError> {
    let end = Instant::now() + carrier.acks.round_trip().opening(OPEN_WITHIN);
    carrier.sender.probe(PROBE_SEQUENCE, PROBE_BYTES).map_err(OpenError::Probe)?;
    while Instant::now() < end {
        match carrier.acks.next(Duration::from_millis(50)).map_err(OpenError::Probe)? {
            // A refused probe did not arrive as it was sent.
            Some(told) if told.through >= PROBE_SEQUENCE && told.refused.is_empty() => return Ok(()),
            _ => {}
        }
    }
    Err(OpenError::ProbeSilent)
}
