//! Connects the channels of a session, and numbers them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use linerate_api::Transport;
use linerate_core::{ChannelId, LinkId};
use linerate_net::rdma::options::RdmaOptions;
use linerate_net::rdma::{self, Domains};
use linerate_net::round_trip::RoundTrip;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::{ConnectError, Route, connect};
use linerate_wire::frame::Role;

use crate::session::contact::tcp_options;
use crate::session::identity::Identity;

/// How the host that asked for a session connects to the other.
pub(crate) struct Dialler {
    pub identity: Identity,
    pub transport: Transport,
    rdma: RdmaOptions,
    /// Keys and registered memory of this session on every RDMA device.
    domains: Domains,
    next_channel: AtomicU32,
}

impl Dialler {
    pub fn new(identity: Identity, transport: Transport, rdma: RdmaOptions) -> Dialler {
        Dialler { identity, transport, rdma, domains: Domains::default(), next_channel: AtomicU32::new(0) }
    }

    /// Whether a channel was given this number.
    pub fn has_opened(&self, channel: ChannelId) -> bool {
        channel < self.next_channel.load(Ordering::Relaxed)
    }

    pub(super) fn next_channel(&self) -> ChannelId {
        self.next_channel.fetch_add(1, Ordering::Relaxed)
    }

    /// As if so many channels had been opened.
    #[cfg(test)]
    pub fn skip(&self, channels: u32) {
        self.next_channel.fetch_add(channels, Ordering::Relaxed);
    }

    /// One more control connection, over this link.
    pub(super) fn join(&self, route: &Route, link: LinkId) -> Result<Stream, ConnectError> {
        let hello = self.identity.hello(Role::ControlJoin, link, 0);
        let (stream, _) = connect(route, &hello, &tcp_options(&self.identity))?;
        self.identity.note_peer(stream.peer_certificates());
        Ok(stream)
    }

    /// One more channel over TCP.
    pub(super) fn connect(
        &self,
        route: &Route,
        role: Role,
        link: LinkId,
    ) -> Result<(ChannelId, Stream), ConnectError> {
        let channel = self.next_channel();
        Ok((
            channel,
            connect(route, &self.identity.hello(role, link, channel), &tcp_options(&self.identity))?.0,
        ))
    }

    /// What each step of an RDMA connection has that a link waits for, if a TCP connection has `patience`.
    pub(super) fn rdma_patience(&self, patience: Duration) -> Duration {
        patience.max(self.rdma.connect_wait)
    }

    /// For queue pairs of a link with this round trip. Each step of connecting has `patience`, or what a far link
    /// needs.
    pub(super) fn rdma_options(&self, round_trip: RoundTrip, patience: Duration) -> RdmaOptions {
        RdmaOptions { round_trip, connect_wait: patience, ..self.rdma.clone() }
    }

    /// One more channel over RDMA.
    pub(super) fn connect_rdma(
        &self,
        route: &Route,
        link: LinkId,
        options: &RdmaOptions,
    ) -> Result<(ChannelId, Arc<rdma::Connection>), rdma::connect::ConnectError> {
        let channel = self.next_channel();
        let hello = self.identity.hello(Role::Data, link, channel);
        let (connection, _) = rdma::connect::connect(route, &hello, options, &self.domains)?;
        self.identity.end_with_peer(connection.clone());
        Ok((channel, connection))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use linerate_core::SessionId;
    use linerate_core::Token;
    use linerate_net::channel::{AckReader, ChannelError};
    use linerate_net::rdma::error::RdmaError;
    use linerate_net::rdma::listen::{Accepted, Listener};
    use linerate_wire::VERSION_MAX;
    use linerate_wire::frame::Welcome;

    use super::*;
    use crate::security::tests::{certificates, member, revoke};
    use crate::testing::authority;

    #[test]
    fn rdma_has_the_configured_time_and_no_less_than_tcp() {
        let seconds = Duration::from_secs;
        let plain = crate::security::Security::insecure();
        let identity = Identity::new(SessionId([1; 16]), Token([2; 32]), &plain);
        let configured = RdmaOptions { connect_wait: seconds(5), ..RdmaOptions::default() };
        let dialler = Dialler::new(identity, Transport::Auto, configured);
        assert_eq!([2, 8].map(|tcp| dialler.rdma_patience(seconds(tcp))), [seconds(5), seconds(8)]);
    }

    #[test]
    #[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
    fn queue_pairs_of_a_session_end_when_its_destination_is_revoked() {
        const LONG: Duration = Duration::from_secs(60);
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let mut authority = authority(&path("authority"));
        member(&mut authority, &path("there"), "b", "");
        let here = member(&mut authority, &path("here"), "a", "");
        let (taken, connections) = channel();
        let listener = Listener::start(&[([10, 9, 0, 2], 0).into()], move |accepted: Accepted| {
            let welcome = Welcome { version: VERSION_MAX, control_received: 0 };
            let welcomed = accepted.welcome(welcome, &Domains::default(), RoundTrip::default());
            drop(taken.send(welcomed.unwrap()));
        })
        .unwrap();
        let identity = Identity::random(&here).unwrap();
        identity.note_peer(&certificates(&path("there")));
        let dialler = Dialler::new(identity, Transport::Rdma, RdmaOptions::default());
        let remote = listener.addresses()[0];
        let route = Route { local: Some("10.9.0.1".parse().unwrap()), device: None, remote };
        // Emulated adapters are slow.
        let options = RdmaOptions { connect_wait: LONG, ack_timeout: 18, ..RdmaOptions::default() };
        let (_, connection) = dialler.connect_rdma(&route, 0, &options).unwrap();
        let _far_end = connections.recv_timeout(LONG).unwrap();
        let (_sender, mut acks, _closer) = rdma::send::halves(connection, options);
        revoke(&mut authority, "b", &here);
        let error = acks.next(LONG).unwrap_err();
        assert!(matches!(error, ChannelError::Rdma(RdmaError::Revoked)), "{error:?}");
    }
}
