//! Opening a link's channels: queue pairs where both ends have RDMA, TCP connections elsewhere and when RDMA fails.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use linerate_api::Transport;
use linerate_core::link::{Patience, RdmaHealth};
use linerate_net::channel_thread::ChannelEnds;
use linerate_net::links::{Link, channels_for, queue_pairs_for};
use linerate_net::rdma;
use linerate_net::round_trip::RoundTrip;
use linerate_net::tcp::connect::Route;
use linerate_net::tcp::stats::Progress as TcpProgress;
use linerate_wire::frame::Role;

use super::dialler::Dialler;
use super::losses::LinkLoss;
use super::view::{ChannelStatus, describe};
use crate::clock::Clock;
use crate::faults::chain;
use crate::session::contact::OPEN_WITHIN;
use crate::session::probe::{OpenError, probe, tcp_ends};

/// A channel that has moved its probe.
pub(super) struct Opened {
    pub view: ChannelStatus,
    pub ends: ChannelEnds,
}

/// The RDMA side of a link's port at this host.
#[derive(Clone, Debug)]
pub(crate) struct RdmaPort {
    /// Device and number, for people.
    pub name: String,
    /// Where its counters are.
    pub folder: PathBuf,
}

/// The port of this host that a link can use for RDMA; the destination must offer it too.
pub(crate) fn rdma_port(link: &Link) -> Option<RdmaPort> {
    link.rdma?;
    let ports = rdma::devices::list();
    let port = rdma::devices::port_of(&ports, link.device.as_deref()?)?;
    Some(RdmaPort { name: format!("{}/{}", port.device, port.number), folder: port.folder.clone() })
}

/// How a link's channels are opened, and what was learnt about it.
pub(super) struct Opener {
    link: Link,
    rdma_here: bool,
    trust: RdmaHealth,
    carries_rdma: bool,
    /// As the link's control connection showed it.
    round_trip: RoundTrip,
    patience: Patience,
    clock: Clock,
}

impl Opener {
    pub fn new(link: Link, rdma_here: bool) -> Opener {
        Opener {
            link,
            rdma_here,
            trust: RdmaHealth::default(),
            carries_rdma: false,
            round_trip: RoundTrip::default(),
            patience: Patience::new(OPEN_WITHIN),
            clock: Clock::start(),
        }
    }

    /// The link was lost while it carried.
    pub fn lost(&mut self, loss: &LinkLoss) {
        if self.carries_rdma && loss.of_transport {
            self.trust.failed(self.clock.now(), &loss.reason);
        }
    }

    /// The link itself is lost: RDMA is not the cause.
    pub fn unreachable(&mut self) {
        self.trust.was_not_rdma();
        self.patience.reset();
    }

    /// Opens the channels. A TCP connection over the link has just worked, and showed its round trip. `fell_back` is
    /// warned once why TCP is used instead of RDMA.
    pub fn open(
        &mut self,
        dialler: &Dialler,
        round_trip: RoundTrip,
        fell_back: impl FnOnce(&str),
    ) -> Result<Vec<Opened>, OpenError> {
        self.carries_rdma = false;
        self.round_trip = round_trip;
        let opened = self.channels(dialler, fell_back);
        self.patience.tried(opened.is_ok());
        opened
    }

    fn channels(
        &mut self,
        dialler: &Dialler,
        fell_back: impl FnOnce(&str),
    ) -> Result<Vec<Opened>, OpenError> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let patience = self.patience.get();
        if let Some(remote) = self.wants_rdma(dialler)? {
            let count = queue_pairs_for(self.link.speed_mbps, cpus);
            let patience = dialler.rdma_patience(patience);
            match (0..count).map(|_| self.queue_pair(dialler, remote, patience)).collect() {
                Ok(opened) => {
                    self.carries_rdma = true;
                    self.trust.connected();
                    return Ok(opened);
                }
                Err(error) if dialler.transport == Transport::Rdma => return Err(error),
                Err(error) => self.trust.failed(self.clock.now(), &chain(&error)),
            }
        }
        if let Some(reason) = self.trust.take_reason() {
            tracing::warn!(link = describe(&self.link), reason, "RDMA failed; the link carries over TCP");
            fell_back(&reason);
        }
        (0..channels_for(self.link.speed_mbps, cpus)).map(|_| self.connection(dialler, patience)).collect()
    }

    /// Whether RDMA is tried when the link is opened next.
    pub fn tries_rdma(&self, dialler: &Dialler) -> bool {
        matches!(self.wants_rdma(dialler), Ok(Some(_)))
    }

    /// Whether the channels that were opened last carry over RDMA.
    pub fn carries_rdma(&self) -> bool {
        self.carries_rdma
    }

    /// Where to connect by RDMA; `None` for TCP.
    fn wants_rdma(&self, dialler: &Dialler) -> Result<Option<SocketAddr>, OpenError> {
        let refuse =
            |why| if dialler.transport == Transport::Rdma { Err(OpenError::NoRdma(why)) } else { Ok(None) };
        match (dialler.transport, self.link.rdma, self.rdma_here) {
            (Transport::Tcp, _, _) => Ok(None),
            (_, None, _) => refuse("the destination has none on this link"),
            (_, _, false) => refuse("this host's port has none"),
            (Transport::Auto, Some(_), true) if self.trust.is_lost() => Ok(None),
            (_, Some(remote), true) => Ok(Some(remote)),
        }
    }

    /// Whether the link carries over TCP since RDMA failed, and RDMA moves bytes now. Tries it now and then; blocks
    /// meanwhile, at most as long as opening a channel may take.
    pub fn can_go_back_to_rdma(&mut self, dialler: &Dialler) -> bool {
        let may_try = self.trust.may_try(self.clock.now());
        if self.carries_rdma || dialler.transport != Transport::Auto || !may_try {
            return false;
        }
        let Ok(Some(remote)) = self.wants_rdma(dialler) else { return false };
        match self.queue_pair(dialler, remote, OPEN_WITHIN) {
            Ok(_) => true,
            Err(error) => {
                tracing::debug!(link = describe(&self.link), error = chain(&error), "RDMA does not work yet");
                self.trust.failed(self.clock.now(), &chain(&error));
                false
            }
        }
    }

    fn queue_pair(
        &self,
        dialler: &Dialler,
        remote: SocketAddr,
        patience: Duration,
    ) -> Result<Opened, OpenError> {
        let route = Route { remote, ..Route::from(&self.link) };
        let options = dialler.rdma_options(self.round_trip, patience);
        let (channel, connection) = dialler.connect_rdma(&route, self.link.id, &options)?;
        let (sender, acks, closer) = rdma::send::halves(connection, options);
        let mut ends = ChannelEnds { sender: Box::new(sender), acks: Box::new(acks), closer };
        probe(&mut ends, patience)?;
        Ok(Opened { view: ChannelStatus::new(channel, ends.sender.stats(), None), ends })
    }

    fn connection(&self, dialler: &Dialler, patience: Duration) -> Result<Opened, OpenError> {
        let (channel, stream) = dialler.connect(&Route::from(&self.link), Role::Data, self.link.id)?;
        let ends = tcp_ends(&stream, patience)?;
        let view = ChannelStatus::new(channel, ends.sender.stats(), TcpProgress::of(&stream));
        Ok(Opened { view, ends })
    }
}
