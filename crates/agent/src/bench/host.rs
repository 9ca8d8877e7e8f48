//! A host as measurements see it: one of them at a time, whichever side of it this host is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use linerate_api::{AuditAction, AuditResult};
use linerate_core::{Code, Fault, SessionId, Side, Step, Token};
use linerate_lock::Mutex;
use linerate_net::bench::document_channel::DocumentChannel;
use linerate_net::rdma::{self, listen::Accepted as RdmaAccepted};
use linerate_net::round_trip::RoundTrip;
use linerate_net::tcp::listen::Accepted;
use linerate_net::tcp::options::TcpOptions;
use linerate_wire::frame::{Hello, Role, Welcome};
use linerate_wire::negotiate;

use super::slots::{Attached, ConnectionSlots, Reserved};
use super::stop::{Reason, Stop};
use super::{BenchError, answer};
use crate::audit::Asked;
use crate::faults::chain;
use crate::not_taken::{NotTaken, refuse};
use crate::security::Security;
use crate::session::offer::RdmaPorts;

/// Conversations at a time; all but one of them are refused, as this host is busy.
const CONVERSATIONS_MAX: usize = 8;

/// A host as measurements see it: at most one of them is active.
#[derive(Debug)]
pub struct Host {
    /// Its name, for the other side.
    pub(super) name: String,
    listen: Mutex<Vec<SocketAddr>>,
    /// Where RDMA connections are taken.
    pub(crate) rdma: RdmaPorts,
    pub(super) security: Arc<Security>,
    active: Mutex<Option<Arc<Measurement>>>,
    conversations: AtomicUsize,
    /// Migrations that have begun.
    begun: AtomicU64,
}

pub(super) struct Measurement {
    session: SessionId,
    token: Token,
    pub stop: Arc<Stop>,
    force: AtomicBool,
    /// Of its connections; `None` on the asking side, which takes none.
    pub places: Option<ConnectionSlots>,
    /// What its queue pairs share on one device.
    pub domains: rdma::Domains,
}

impl std::fmt::Debug for Measurement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Measurement({})", self.session)
    }
}

/// The place is taken until this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    pub host: Arc<Host>,
    pub measurement: Arc<Measurement>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.measurement.stop.stop(Reason::Over);
        *self.host.active.lock() = None;
    }
}

impl Host {
    /// A host of this name that takes connections at these addresses.
    pub fn new(name: String, listen: Vec<SocketAddr>, security: Arc<Security>) -> Host {
        Host {
            name,
            listen: Mutex::new(listen),
            rdma: RdmaPorts::default(),
            security,
            active: Mutex::default(),
            conversations: AtomicUsize::new(0),
            begun: AtomicU64::new(0),
        }
    }

    /// Of connections to other agents.
    pub(super) fn tcp_options(&self) -> TcpOptions {
        TcpOptions { tls: self.security.tls().cloned(), ..TcpOptions::default() }
    }

    /// The addresses are known only now.
    pub(super) fn listen_at(&self, listen: Vec<SocketAddr>) {
        *self.listen.lock() = listen;
    }

    /// Where it takes connections.
    pub(super) fn listens(&self) -> Vec<SocketAddr> {
        self.listen.lock().clone()
    }

    /// Whether the measurement in progress is of this session, and answered here.
    pub(crate) fn answers(&self, session: SessionId) -> bool {
        self.active.lock().as_ref().is_some_and(|one| one.session == session && one.places.is_some())
    }

    /// How many migrations have begun so far. Where it has grown since it was asked whether guests move, one has begun
    /// that found no measurement to end.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// A migration begins, or has just become known: a measurement that was not forced ends.
    pub fn yield_to_migration(&self) {
        self.begun.fetch_add(1, Ordering::SeqCst);
        let active = self.active.lock().clone();
        if let Some(measurement) = active.filter(|one| !one.force.load(Ordering::SeqCst)) {
            tracing::info!(?measurement, "a measurement is ended for a migration");
            measurement.stop.stop(Reason::Migration);
        }
    }

    pub(super) fn claim(
        self: &Arc<Host>,
        (session, token): (SessionId, Token),
        stop: &Arc<Stop>,
        answering: bool,
    ) -> Result<Claim, BenchError> {
        let mut active = self.active.lock();
        if active.is_some() {
            return Err(BenchError::Busy { host: "this host".into() });
        }
        let measurement = Arc::new(Measurement {
            session,
            token,
            stop: Arc::clone(stop),
            force: AtomicBool::new(false),
            places: answering.then(ConnectionSlots::default),
            domains: rdma::Domains::default(),
        });
        *active = Some(Arc::clone(&measurement));
        Ok(Claim { host: Arc::clone(self), measurement })
    }

    /// A slot in the measurement in progress for a peer that knows it, and the version that both speak. `memory` is
    /// what the connection will take for messages as long as it is there.
    pub(super) fn admit(&self, hello: &Hello, memory: usize) -> Result<(Reserved, u16), Fault> {
        let refusal = |code, detail: &str| Fault::new(code, Step::Connect, Side::Destination, detail);
        // One of a revoked host takes no more connections: by RDMA it shows the token and no certificate.
        let takes = |one: &Arc<Measurement>| {
            one.session == hello.session && one.stop.reason() != Some(Reason::Revoked)
        };
        let active = self.active.lock().clone().filter(takes);
        let measurement = active.ok_or_else(|| refusal(Code::SessionUnknown, "no such measurement"))?;
        if !measurement.knows(&hello.token) {
            return Err(refusal(Code::NotAuthorised, "no such measurement"));
        }
        let version = negotiate(hello.version_min, hello.version_max)
            .ok_or_else(|| refusal(Code::VersionMismatch, "update the older agent"))?;
        let place = Reserved::new(measurement, hello.channel, memory)
            .map_err(|error| refusal(Code::ProtocolViolation, &error.to_string()))?;
        Ok((place, version))
    }
}

impl Measurement {
    /// Whether it continues during a migration.
    pub fn allow(&self, force: bool) {
        self.force.store(force, Ordering::SeqCst);
    }

    fn knows(&self, token: &Token) -> bool {
        self.token.0.iter().zip(token.0).fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs)) == 0
    }
}

/// What decides whether a host that asks may be measured with now.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Guests move from or to this host.
    pub migrating: bool,
    /// The host that asks may take the links of guests that move (`--force`).
    pub may_force: bool,
}

/// Takes a connection with a role of a measurement, and serves it until it is over. The measurement that it asked for.
pub fn accept(host: &Arc<Host>, accepted: Accepted, terms: Terms) -> Result<Option<Asked>, NotTaken> {
    let (peer, role) = (accepted.peer, accepted.hello.role);
    if role != Role::Bench {
        return attach(host, accepted).map(|()| None);
    }
    let asked = serve(host, accepted, terms)?;
    match &asked.reason {
        None => tracing::debug!(%peer, "a measurement for another host is done"),
        Some(error) => tracing::warn!(%peer, error, "a measurement for another host ended"),
    }
    Ok(Some(asked))
}

fn serve(host: &Arc<Host>, accepted: Accepted, terms: Terms) -> Result<Asked, NotTaken> {
    struct Seat<'a>(&'a AtomicUsize);
    impl Drop for Seat<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let before = host.conversations.fetch_add(1, Ordering::SeqCst);
    let _seat = Seat(&host.conversations);
    if before >= CONVERSATIONS_MAX {
        return Err(NotTaken::Conversations);
    }
    let hello = accepted.hello.clone();
    let Some(version) = negotiate(hello.version_min, hello.version_max) else {
        let fault = Fault::new(Code::VersionMismatch, Step::Authorise, Side::Destination, "");
        return Err(refuse(fault, |fault| accepted.refuse(fault)));
    };
    let stop = Arc::<Stop>::default();
    let begun = host.begun();
    host.security.end_with_peer(accepted.peer_certificates(), stop.clone());
    let stream = accepted.welcome(Welcome { version, control_received: 0 })?;
    let mut force = false;
    let names = (hello.session, hello.token);
    let talk = DocumentChannel::new(stream);
    let served = answer::serve(host, &talk, names, &stop, (terms, begun), &mut force);
    let result = match &served {
        Ok(()) => AuditResult::Done,
        Err(BenchError::Force) => AuditResult::Refused,
        Err(_) => AuditResult::Failed,
    };
    Ok(Asked {
        action: AuditAction::Bench,
        result,
        only_looks: !(force && terms.may_force),
        reason: served.err().map(|error| chain(&error)),
    })
}

fn attach(host: &Host, accepted: Accepted) -> Result<(), NotTaken> {
    // What it plays is counted when it does.
    let (mut place, version) = match host.admit(&accepted.hello, 0) {
        Ok(admitted) => admitted,
        Err(fault) => return Err(refuse(fault, |fault| accepted.refuse(fault))),
    };
    let stream = accepted.welcome(Welcome { version, control_received: 0 })?;
    place.closes(stream.closer());
    let own = stream.own_address();
    let connection = super::tcp_test_connection(stream)?;
    place.fill(Attached { connection, own });
    Ok(())
}

/// Takes a queue pair of the measurement in progress. The two ends exchange where they can be written to, so that this
/// waits for the peer: in a thread of its own, once it has a place. The error is why it has none.
pub fn accept_rdma(host: &Host, accepted: RdmaAccepted) -> Result<(), NotTaken> {
    let peer = accepted.peer;
    let not_taken = move |error: NotTaken| {
        tracing::warn!(%peer, error = chain(&error), "an RDMA connection of a measurement was not taken");
    };
    let (place, version) = match host.admit(&accepted.hello, rdma::test_connection::MEMORY_BYTES) {
        Ok(admitted) => admitted,
        Err(fault) => return Err(refuse(fault, |fault| accepted.refuse(fault))),
    };
    let attaching = move || attach_rdma(place, version, accepted).unwrap_or_else(not_taken);
    if let Err(error) = std::thread::Builder::new().name("bench-rdma".into()).spawn(attaching) {
        tracing::error!(%error, "cannot start a thread for an RDMA connection");
    }
    Ok(())
}

fn attach_rdma(mut place: Reserved, version: u16, accepted: RdmaAccepted) -> Result<(), NotTaken> {
    let own = accepted.own_address();
    let welcome = Welcome { version, control_received: 0 };
    let connection = accepted.welcome(welcome, &place.measurement.domains, RoundTrip::default())?;
    // Before it waits for the peer: it does so no longer than there is a measurement.
    place.closes(rdma::receive::closer(&connection));
    let connection = super::rdma_test_connection(connection)?;
    place.fill(Attached { connection, own });
    Ok(())
}
