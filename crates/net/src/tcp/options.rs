//! Options of TCP sockets.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

use super::Stream;
use crate::round_trip::RoundTrip;
use crate::tls::Tls;

/// Options of connections. The defaults are for ports of 10 to 200 Gb/s on a local network.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// Limit for connecting and for the handshake behind it. Longer delays the loss of a link, shorter loses slow
    /// peers. The handshake has longer where the link is far.
    pub connect_wait: Duration,
    /// `TCP_USER_TIMEOUT`: how long sent bytes may stay unacknowledged before the kernel gives the connection up.
    /// A far link has longer.
    pub user_timeout: Duration,
    /// Send and receive buffer, bytes; 0 leaves them to the kernel, which sizes them by what is in flight.
    pub buffer_bytes: usize,
    /// Type of service (DSCP and ECN bits) for switches that sort by it; `None` for the system's.
    pub type_of_service: Option<u8>,
    /// Every connection speaks TLS with this; `None` for plain text. Both ends must have the same: it is not
    /// negotiated.
    pub tls: Option<Tls>,
}

impl Default for TcpOptions {
    fn default() -> TcpOptions {
        TcpOptions {
            connect_wait: Duration::from_secs(2),
            user_timeout: Duration::from_secs(1),
            buffer_bytes: 0,
            type_of_service: None,
            tls: None,
        }
    }
}

impl TcpOptions {
    /// Sets what must be set before connecting or listening: window scale is agreed on in the handshake.
    pub(crate) fn apply_before(&self, socket: &socket2::Socket) -> io::Result<()> {
        if self.buffer_bytes > 0 {
            socket.set_send_buffer_size(self.buffer_bytes)?;
            socket.set_recv_buffer_size(self.buffer_bytes)?;
        }
        Ok(())
    }

    /// Sets the rest on a connected socket.
    pub(crate) fn apply(&self, stream: &Stream) -> io::Result<()> {
        let socket = SockRef::from(stream);
        // ACKs and the last frame of a round must not wait for company.
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_user_timeout(Some(RoundTrip::of(stream).silence(self.user_timeout)))?;
        // Finds a peer that died while nothing was in flight; the user time-out finds it while something is.
        let keepalive =
            TcpKeepalive::new().with_time(Duration::from_secs(1)).with_interval(Duration::from_secs(1));
        socket.set_tcp_keepalive(&keepalive)?;
        self.apply_type_of_service(stream)
    }

    fn apply_type_of_service(&self, stream: &Stream) -> io::Result<()> {
        let Some(value) = self.type_of_service else { return Ok(()) };
        match SockRef::from(stream).domain()? {
            socket2::Domain::IPV6 => rustix::net::sockopt::set_ipv6_tclass(stream, value.into())?,
            _ => rustix::net::sockopt::set_ip_tos(stream, value)?,
        }
        Ok(())
    }
}
