//! A host that joins: it proves that it has a token's secret, to the token's authority alone.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use linerate_api::AuditAction;
use linerate_trust::bundle::Bundle;
use linerate_trust::identity::Identity;
use linerate_trust::name::{HostName, Name};
use linerate_trust::request::NewKey;
use linerate_trust::tls::{join_client, join_peer, server_name};
use linerate_trust::token::Token;
use rustls::{ClientConnection, StreamOwned};
use rustls_pki_types::UnixTime;

use super::deadline::Deadline;
use super::message::{self, ANSWER_BYTES_MAX, Answer, JoinRequest, Signed};
use super::operations::{lock_identity, new_key, note, parse, request};
use super::{ClusterError, Membership, write_addresses};
use crate::config::{Config, JOIN_PORT};

/// How long a connection may take to come about.
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// How long all behind it may take. The authority's host gives it [`super::join_server::LIMIT`].
const WAIT: Duration = Duration::from_secs(15);

/// Joins the cluster of a token. `replace`: also where this host has an identity, which it loses.
pub fn join(
    config: &Config,
    address: &str,
    token: &str,
    host: Option<&str>,
    replace: bool,
) -> Result<Membership, ClusterError> {
    let joined = join_here(config, address, token, host, replace);
    let text = |joined: &Membership| format!("this host is {}", joined.name);
    note(config, AuditAction::Join, Some(address), &joined, text);
    joined
}

fn join_here(
    config: &Config,
    address: &str,
    token: &str,
    host: Option<&str>,
    replace: bool,
) -> Result<Membership, ClusterError> {
    let token: Token = token.parse()?;
    let host: HostName = parse(host.unwrap_or(&config.name.to_ascii_lowercase()))?;
    let folder = config.identity_folder();
    if Identity::exists(&folder) && !replace {
        let known = Identity::open(&folder);
        return Err(match known {
            Ok(known) => ClusterError::Member { name: known.name(), folder },
            Err(source) => ClusterError::Damaged { folder, source: Box::new(source) },
        });
    }
    let (socket, address) = connect(address)?;
    join_over(&folder, socket, address, &token, host)
}

/// Whether other hosts know this one by the same name afterwards: same host, and an authority that it trusts already.
pub fn keeps_name(config: &Config, token: &str, host: Option<&str>) -> bool {
    let host = host.map_or_else(|| config.name.to_ascii_lowercase(), str::to_owned);
    let (Ok(own), Ok(token)) = (Identity::open(&config.identity_folder()), token.parse::<Token>()) else {
        return false;
    };
    let trusts = own.bundle().authorities().iter().any(|one| one.id() == token.authority());
    trusts && own.name().host.as_str() == host
}

/// The first of the host's addresses that takes a connection.
fn connect(host: &str) -> Result<(TcpStream, SocketAddr), ClusterError> {
    let resolve = |source| ClusterError::Resolve { host: host.to_owned(), source };
    let found =
        host.to_socket_addrs().or_else(|_| (host.trim_matches(['[', ']']), JOIN_PORT).to_socket_addrs());
    let mut last = resolve(io::Error::other("the name has no address"));
    for address in found.map_err(resolve)? {
        match TcpStream::connect_timeout(&address, CONNECT_WAIT) {
            Ok(socket) => return Ok((socket, address)),
            Err(source) => last = ClusterError::Connect { address, source },
        }
    }
    Err(last)
}

pub(super) fn join_over(
    folder: &Path,
    socket: TcpStream,
    address: SocketAddr,
    token: &Token,
    host: HostName,
) -> Result<Membership, ClusterError> {
    let not_proved = |why: String| ClusterError::NotProved { address, why };
    let tls = ClientConnection::new(Arc::new(join_client(token)?), server_name());
    let tls = tls.map_err(|error| not_proved(error.to_string()))?;
    let socket = Deadline::new(socket, WAIT).map_err(|source| ClusterError::Connect { address, source })?;
    let mut stream = StreamOwned::new(tls, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).map_err(|error| not_proved(words(&error)))?;
    }
    // Who answered is looked at once more: nothing was sent so far, and the secret goes to this end alone.
    let cluster =
        join_peer(token, &stream.conn, UnixTime::now()).map_err(|error| not_proved(error.to_string()))?;
    let _alone = lock_identity(folder)?;
    let key = new_key(Name { cluster, host })?;
    let request = request(&key)?;
    let broken = |source: io::Error| {
        let closed = source.kind() == io::ErrorKind::UnexpectedEof;
        let source = if closed { io::Error::other("the other end closed it") } else { source };
        ClusterError::Broken { address, source }
    };
    message::send(&mut stream, &JoinRequest::new(token.secret(), &request)).map_err(broken)?;
    match message::receive(&mut stream, ANSWER_BYTES_MAX).map_err(broken)? {
        Answer::Signed(signed) => install(folder, &key, &signed, token, address),
        Answer::Refused { why } => Err(ClusterError::Refused { address, why }),
        Answer::Revocations { .. } => Err(ClusterError::Form { address }),
    }
}

/// The verifier's own words where it has some.
fn words(error: &io::Error) -> String {
    let refused = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match refused {
        Some(rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other))) => {
            other.0.to_string()
        }
        Some(error) => error.to_string(),
        None => error.to_string(),
    }
}

fn install(
    folder: &Path,
    key: &NewKey,
    signed: &Signed,
    token: &Token,
    address: SocketAddr,
) -> Result<Membership, ClusterError> {
    let form = ClusterError::Form { address };
    let (Some(certificate), Some(authorities), Some(lists)) =
        (signed.certificate(), signed.authorities(), signed.revocations())
    else {
        return Err(form);
    };
    let bundle = Bundle::new(authorities)?;
    let now = UnixTime::now();
    let identity = Identity::install(folder, key, &certificate, &bundle, token.authority(), now)?;
    for list in lists {
        identity.accept_revocations(&list)?;
    }
    write_addresses(folder, &signed.agents)?;
    Ok(Membership::of(&identity))
}
