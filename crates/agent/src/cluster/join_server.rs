//! The port that hosts join at, on the authority's host. It is open only while a token can be used.
//!
//! A stranger costs one of [`AT_ONCE`] slots for at most [`LIMIT`], and [`REQUEST_BYTES_MAX`] of memory. When all are
//! taken, a new connection closes one that has sent no request yet.

use std::cmp::Reverse;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_lock::Mutex;
use linerate_trust::authority::{Authority, AuthorityError, Grounds};
use linerate_trust::bundle::Bundle;
use linerate_trust::identity::Identity;
use linerate_trust::request::{Request, RequestError};
use linerate_trust::tls::join_server;
use linerate_trust::token::{Secret, StoreError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::UnixTime;

use super::deadline::Deadline;
use super::message::{self, Answer, JoinRequest, REQUEST_BYTES_MAX, Signed};
use super::operations::open_authority;
use super::{ClusterError, rotation};
use crate::audit::Audit;

/// All of a connection: handshake, request, answer.
pub const LIMIT: Duration = Duration::from_secs(10);
/// Connections at a time.
pub const AT_ONCE: usize = 8;
/// Between two warnings, so that strangers do not fill the log.
const REPORT_GAP: Duration = Duration::from_secs(1);

/// What a joining host is answered from.
pub struct Host {
    /// Folder of the authority's key, register and tokens.
    pub authority: PathBuf,
    /// Of this host: whom it trusts, and whom no longer.
    pub identity: Identity,
    /// Where this host's agent answers members.
    pub agents: Vec<SocketAddr>,
    /// Where each try is written down.
    pub audit: Arc<Audit>,
}

struct Shared {
    host: Host,
    tls: Arc<ServerConfig>,
    slots: Mutex<Vec<Slot>>,
    connections: AtomicU64,
    wrong_secrets: AtomicU64,
    reported: Mutex<Option<Instant>>,
}

/// A connection that is being served.
struct Slot {
    number: u64,
    address: IpAddr,
    socket: TcpStream,
    /// Its request has come: it is answered.
    has_asked: bool,
}

/// Listens until it is dropped. Joins that are under way end in time.
pub struct JoinServer {
    addresses: Vec<SocketAddr>,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    #[cfg(test)]
    shared: Arc<Shared>,
}

impl JoinServer {
    /// Listens at each address that a port of this host has, or fails.
    pub fn start(addresses: &[SocketAddr], host: Host) -> Result<JoinServer, ClusterError> {
        let tls = join_server(&open_authority(&host.authority)?, UnixTime::now())?;
        let (mut sockets, mut absent) = (Vec::new(), None);
        for address in addresses {
            match listen(*address) {
                Ok(socket) => sockets.push(socket),
                Err(source) => {
                    let is_absent = source.kind() == io::ErrorKind::AddrNotAvailable;
                    let error = ClusterError::Connect { address: *address, source };
                    if !is_absent {
                        return Err(error);
                    }
                    absent = Some(error);
                }
            }
        }
        if let Some(error) = absent.filter(|_| sockets.is_empty()) {
            return Err(error);
        }
        let bound = sockets.iter().filter_map(|socket| socket.local_addr().ok()).collect();
        let shared = Arc::new(Shared {
            host,
            tls: Arc::new(tls),
            slots: Mutex::default(),
            connections: AtomicU64::new(0),
            wrong_secrets: AtomicU64::new(0),
            reported: Mutex::default(),
        });
        let failed = |error: io::Error| ClusterError::Asked(error.to_string());
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        let serving = shared.clone();
        let thread = std::thread::Builder::new().name("join".into());
        let thread = thread.spawn(move || accept(&sockets, &stopped, &serving)).map_err(failed)?;
        Ok(JoinServer {
            addresses: bound,
            stop: Some(stop),
            thread: Some(thread),
            #[cfg(test)]
            shared,
        })
    }

    /// Addresses that it is bound to, with the ports that the system chose.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Secrets that no token had.
    #[cfg(test)]
    pub fn wrong_secrets(&self) -> u64 {
        self.shared.wrong_secrets.load(Ordering::SeqCst)
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

impl Drop for JoinServer {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // How it ended changes nothing any more.
            let _ = thread.join();
        }
    }
}

fn accept(sockets: &[TcpListener], stopped: &OwnedFd, shared: &Arc<Shared>) {
    loop {
        let mut fds = vec![PollFd::new(stopped, PollFlags::IN)];
        fds.extend(sockets.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return tracing::error!(%error, "no host can join any more"),
        }
        if fds.first().is_none_or(|stopped| !stopped.revents().is_empty()) {
            return;
        }
        let ready = sockets.iter().zip(fds.iter().skip(1)).filter(|(_, fd)| !fd.revents().is_empty());
        for (socket, _) in ready {
            match socket.accept() {
                Ok((connection, peer)) => begin(connection, peer, shared),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Out of descriptors, most likely: the connection stays in the queue, so do not spin.
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

fn begin(connection: TcpStream, peer: SocketAddr, shared: &Arc<Shared>) {
    let Some(serving) = Serving::begin(shared, &connection, peer) else {
        return shared.report(peer, "too many hosts join at a time; this one was not answered");
    };
    let thread = std::thread::Builder::new().name("joining".into());
    // Without a thread the connection is closed and its slot is free again.
    let _ = thread.spawn(move || {
        if let Err(error) = serve(&serving, connection, peer) {
            serving.shared.report(peer, &format!("a host did not join: {error}"));
        }
    });
}

/// Holds a slot until it is dropped.
struct Serving {
    shared: Arc<Shared>,
    number: u64,
}

impl Serving {
    /// None if there is no slot, because all have asked.
    fn begin(shared: &Arc<Shared>, connection: &TcpStream, peer: SocketAddr) -> Option<Serving> {
        let socket = connection.try_clone().ok()?;
        let mut slots = shared.slots.lock();
        if slots.len() >= AT_ONCE {
            let at = least_wanted(&slots)?;
            let silent = slots.swap_remove(at);
            let _ = silent.socket.shutdown(Shutdown::Both);
        }
        let number = shared.connections.fetch_add(1, Ordering::SeqCst);
        slots.push(Slot { number, address: peer.ip(), socket, has_asked: false });
        Some(Serving { shared: shared.clone(), number })
    }

    /// False if the connection was closed meanwhile to make room for a newer one. The answer would not arrive, and a
    /// token would be spent for nothing.
    fn note_request(&self) -> bool {
        let mut slots = self.shared.slots.lock();
        let own = slots.iter_mut().find(|slot| slot.number == self.number);
        own.map(|slot| slot.has_asked = true).is_some()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.shared.slots.lock().retain(|slot| slot.number != self.number);
    }
}

/// The oldest silent connection of the address that has most of them.
fn least_wanted(slots: &[Slot]) -> Option<usize> {
    let of_address = |slot: &Slot| slots.iter().filter(|one| one.address == slot.address).count();
    let silent = slots.iter().enumerate().filter(|(_, slot)| !slot.has_asked);
    silent.max_by_key(|(_, slot)| (of_address(slot), Reverse(slot.number))).map(|(at, _)| at)
}

fn serve(serving: &Serving, connection: TcpStream, peer: SocketAddr) -> io::Result<()> {
    let shared = &serving.shared;
    let tls = ServerConnection::new(shared.tls.clone()).map_err(io::Error::other)?;
    let mut stream = StreamOwned::new(tls, Deadline::new(connection, LIMIT)?);
    let request: JoinRequest = message::receive(&mut stream, REQUEST_BYTES_MAX)?;
    if !serving.note_request() {
        return Err(io::Error::other(
            "the connection was closed to make room for a newer one, before its request had arrived",
        ));
    }
    let signed = shared.sign(&request, peer);
    let joined = signed.as_ref().map(|(_, name)| name.as_str());
    // Before the answer: the host has joined, or the token is spent, whether or not that arrives.
    shared.host.audit.join(peer, joined.map_err(|error| error as &dyn std::error::Error));
    let answer = match signed {
        Ok((signed, _)) => Answer::Signed(signed),
        Err(error) => Answer::Refused { why: error.to_string() },
    };
    message::send(&mut stream, &answer)?;
    stream.conn.send_close_notify();
    stream.conn.complete_io(&mut stream.sock).map(drop)
}

/// Why a host did not join. Operators of both hosts read it.
#[derive(Debug, thiserror::Error)]
enum JoinRefused {
    #[error("the request was not understood; install the same release on both hosts")]
    Form,
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The cause is not for the other host.
    #[error("the authority cannot be used now; its agent's log says why")]
    Authority,
    #[error(transparent)]
    Token(#[from] StoreError),
    /// It failed after the token was redeemed.
    #[error("{0}; the token is spent all the same: make a new one with `linerate token create`")]
    Spent(AuthorityError),
}

impl Shared {
    /// Accepts the secret once, and signs; also the host's name.
    fn sign(&self, request: &JoinRequest, peer: SocketAddr) -> Result<(Signed, String), JoinRefused> {
        let (secret, request) = request.read().ok_or(JoinRefused::Form)?;
        // Before the token: what cannot be signed does not spend it.
        let request = Request::read(&request)?;
        let cannot = |error: ClusterError| {
            tracing::error!(%peer, %error, "a host cannot join: the authority cannot be used");
            JoinRefused::Authority
        };
        // During a change of the authority hosts have certificates of the next one, too.
        let next = rotation::issued_by_next(&self.host.authority, UnixTime::now()).map_err(cannot)?;
        let in_use = next.iter().any(|one| one.host == request.name().host);
        let mut authority = open_authority(&self.host.authority).map_err(cannot)?;
        let certificate = self.redeem_and_issue(&mut authority, &secret, &request, in_use, peer)?;
        let bundle = self.trusted(&authority).map_err(JoinRefused::Spent)?;
        // The authority's own list is the newest; another's is as this host has it.
        let others = bundle.authorities().iter().filter(|one| one.id() != authority.id());
        let others = others.filter_map(|one| self.host.identity.revocation_list(one.id()));
        let lists: Vec<Vec<u8>> =
            authority.revocations().map(<[u8]>::to_vec).into_iter().chain(others).collect();
        tracing::info!(%peer, host = %request.name(), "a host has joined");
        let name = request.name().host.to_string();
        Ok((Signed::new(&certificate, &bundle, &lists, &self.host.agents), name))
    }

    fn redeem_and_issue(
        &self,
        authority: &mut Authority,
        secret: &Secret,
        request: &Request,
        in_use: bool,
        peer: SocketAddr,
    ) -> Result<Vec<u8>, JoinRefused> {
        let now = UnixTime::now();
        // On disk as used from here on: whatever follows, it is not accepted a second time.
        let redeemed = authority.tokens().redeem(secret, now);
        let redeemed = redeemed.inspect_err(|error| self.refused(error, peer))?;
        let issued = match in_use && redeemed.host().is_none() {
            true => Err(AuthorityError::NameInUse(request.name().host.clone())),
            false => authority.issue(request, &Grounds::Token(&redeemed), now),
        };
        issued.map(|certificate| certificate.to_vec()).map_err(|error| {
            tracing::warn!(%peer, host = %request.name(), %error, "a host did not join, and its token is spent");
            JoinRefused::Spent(error)
        })
    }

    /// A secret that no token has is somebody's guess, or of a token that was revoked.
    fn refused(&self, error: &StoreError, peer: SocketAddr) {
        match error {
            StoreError::Unknown => {
                let count = self.wrong_secrets.fetch_add(1, Ordering::SeqCst) + 1;
                self.report(peer, &format!("a host did not join: no token has its secret ({count} so far)"));
            }
            error => self.report(peer, &format!("a host did not join: {error}")),
        }
    }

    /// Whom hosts of this cluster trust: what this host does, once it has an identity of this authority.
    fn trusted(&self, authority: &Authority) -> Result<Bundle, AuthorityError> {
        let bundle = self.host.identity.bundle();
        if bundle.authorities().iter().any(|one| one.id() == authority.id()) {
            return Ok(bundle);
        }
        Ok(Bundle::new(vec![authority.certificate().clone()])?)
    }

    /// At most one warning in a second.
    fn report(&self, peer: SocketAddr, text: &str) {
        let mut reported = self.reported.lock();
        if reported.is_some_and(|last| last.elapsed() < REPORT_GAP) {
            return tracing::debug!(%peer, "{text}");
        }
        *reported = Some(Instant::now());
        tracing::warn!(%peer, "{text}");
    }
}
