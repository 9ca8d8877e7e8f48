//! TLS 1.3 under the TCP transport, by `rustls`. docs/trust.md has the choices.
//!
//! * [`Tls`]: the configurations of a host, in [`TcpOptions`](crate::tcp::options::TcpOptions). With it, every
//!   connection is made and taken with TLS, and a [`Stream`](crate::tcp::Stream) reads and writes records.
//! * [`error`]: why a handshake or a connection failed.
//!
//! A record is verified before a byte of it reaches a region. A connection that ends without `close_notify` is an
//! error.

mod connection;
mod connections;
pub mod error;
mod handshake;
mod incoming;
mod large;
pub mod lists;
mod outgoing;
pub(crate) mod session;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::NoServerSessionStorage;
use rustls::{ClientConfig, ServerConfig};

pub use error::TlsError;

use self::connection::RECORD_BYTES_MAX;
pub(crate) use connections::Connections;
use linerate_lock::Mutex;
use lists::{ListExchange, Lists};

/// Content that is copied from or to RAM at a time: of many records, and still in the processor's cache when they are
/// encrypted or decrypted. Received content may be one record more.
const BATCH_BYTES: usize = 8 * RECORD_BYTES_MAX;

/// The TLS of a host: what it is when it connects, and when it is connected to. Clones are the same: a host without an
/// identity may get one later, and every handshake from then on has it.
///
/// Who may be a peer is up to the verifiers in the configurations, and so are ciphers, certificate and ALPN. With ALPN
/// configured, a peer that agrees on none of the protocols is refused.
#[derive(Clone)]
pub struct Tls {
    configurations: Arc<Mutex<Option<Configurations>>>,
    connections: Arc<Connections>,
    lists: Arc<Lists>,
}

#[derive(Clone)]
struct Configurations {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// Switches resumption, tickets and early data off in both configurations.
    pub fn new(client: ClientConfig, server: ServerConfig) -> Tls {
        let tls = Tls::without_identity();
        tls.set(client, server);
        tls
    }

    /// Of a host without an identity: every handshake fails with [`TlsError::NoIdentity`].
    pub fn without_identity() -> Tls {
        Tls { configurations: Arc::default(), connections: Arc::default(), lists: Arc::default() }
    }

    /// Other configurations of the same host: [`end_connections`](Tls::end_connections) of either ends those of both.
    pub fn with_configurations(&self, client: ClientConfig, server: ServerConfig) -> Tls {
        let (connections, lists) = (self.connections.clone(), self.lists.clone());
        let tls = Tls { connections, lists, ..Tls::without_identity() };
        tls.set(client, server);
        tls
    }

    /// Ends the connections in progress whose peer is not wanted any more, in both directions and at once, and returns
    /// how many there were. `unwanted` is given the peer's chain, and whether this host opened the connection.
    pub fn end_connections(&self, unwanted: impl Fn(&[CertificateDer<'static>], bool) -> bool) -> usize {
        self.connections.end(unwanted)
    }

    /// Tells peers from now on which revocation lists this host has, and is told which they have. Also for
    /// [other configurations](Tls::with_configurations) of this host.
    pub fn exchange_lists(&self, by: Arc<dyn ListExchange>) {
        self.lists.set(by);
    }

    pub(crate) fn lists(&self) -> &Lists {
        &self.lists
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.connections
    }

    /// The configurations of every handshake from now on.
    pub fn set(&self, mut client: ClientConfig, mut server: ServerConfig) {
        client.resumption = Resumption::disabled();
        client.enable_early_data = false;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.max_early_data_size = 0;
        server.send_half_rtt_data = false;
        // Records are made for the buffers of a session.
        (client.max_fragment_size, server.max_fragment_size) = (None, None);
        let made = Configurations { client: Arc::new(client), server: Arc::new(server) };
        *self.configurations.lock() = Some(made);
    }

    fn client(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let configurations = self.configurations.lock();
        configurations.as_ref().map(|made| made.client.clone()).ok_or(TlsError::NoIdentity)
    }

    fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let configurations = self.configurations.lock();
        configurations.as_ref().map(|made| made.server.clone()).ok_or(TlsError::NoIdentity)
    }
}

/// The name that the client's verifier is asked about: the address that is connected to.
fn peer_name(address: Option<IpAddr>) -> ServerName<'static> {
    ServerName::IpAddress(address.unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED)).into())
}

/// Keys are in it.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}
