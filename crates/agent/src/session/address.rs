//! Addresses of a host name.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use linerate_core::{Code, Fault, Side, Step};

use crate::config::DEFAULT_PORT;

/// `HOST` or `HOST:PORT`, as addresses.
pub(crate) fn resolve(to: &str) -> Result<Vec<SocketAddr>, Fault> {
    addresses(to).map_err(|error| {
        let detail = format!("cannot find the host {to}: {error}");
        Fault::new(Code::NoLink, Step::Resolve, Side::Source, detail)
    })
}

/// `HOST` or `HOST:PORT`, as addresses; at least one.
pub(crate) fn addresses(to: &str) -> io::Result<Vec<SocketAddr>> {
    let found =
        to.to_socket_addrs().or_else(|_| (to.trim_matches(['[', ']']), DEFAULT_PORT).to_socket_addrs());
    let addresses: Vec<SocketAddr> = found?.collect();
    if addresses.is_empty() { Err(io::Error::other("the name has no address")) } else { Ok(addresses) }
}
