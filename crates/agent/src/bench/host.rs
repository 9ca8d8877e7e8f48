//! A host as measurements see it: one of them at a time, whichever side of it this host is.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use linerate_core::{Code, Fault, SessionId, Side, Step, Token};
use linerate_net::rdma::{self, listen::Accepted as RdmaAccepted};
use linerate_net::tcp::listen::Accepted;
use linerate_net::wires::Wire;
use linerate_net::wires::talk::Talk;
use linerate_wire::frame::{Hello, Role, Welcome};
use linerate_wire::negotiate;

use super::documents::CONNECTIONS_MAX;
use super::stop::{Reason, Stop};
use super::{BenchError, answer};
use crate::faults::chain;

/// Conversations at a time; all but one of them wait to be told that this host is busy.
const CONVERSATIONS_MAX: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct Host {
    /// Its name, for the other side.
    pub(super) name: String,
    listen: Mutex<Vec<SocketAddr>>,
    listen_rdma: Mutex<Vec<SocketAddr>>,
    active: Mutex<Option<Arc<Measurement>>>,
    conversations: AtomicUsize,
}

/// The one measurement.
pub(super) struct Measurement {
    session: SessionId,
    token: Token,
    /// Ends it.
    pub stop: Arc<Stop>,
    force: AtomicBool,
    /// Connections by channel that are not in use; `None` on the asking side, which takes none.
    wires: Option<Mutex<BTreeMap<u32, Attached>>>,
    /// What its queue pairs share on one device.
    pub domains: rdma::Domains,
    came: Condvar,
}

/// A connection that is measured, at the answering side.
pub(super) struct Attached {
    pub wire: Box<dyn Wire>,
    /// Address of this end.
    pub own: Option<SocketAddr>,
}

impl std::fmt::Debug for Measurement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Measurement({})", self.session)
    }
}

/// The place is taken as long as this lives.
#[derive(Debug)]
pub(super) struct Claim {
    host: Arc<Host>,
    pub measurement: Arc<Measurement>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.measurement.stop.stop(Reason::Over);
        *lock(&self.host.active) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// A host of this name that takes connections at these addresses.
    pub fn new(name: String, listen: Vec<SocketAddr>) -> Host {
        Host {
            name,
            listen: Mutex::new(listen),
            listen_rdma: Mutex::default(),
            active: Mutex::default(),
            conversations: AtomicUsize::new(0),
        }
    }

    /// The addresses are known only now.
    pub(super) fn listen_at(&self, listen: Vec<SocketAddr>) {
        *lock(&self.listen) = listen;
    }

    /// Where it takes connections.
    pub(super) fn listens(&self) -> Vec<SocketAddr> {
        lock(&self.listen).clone()
    }

    /// Where RDMA connections are taken.
    pub(crate) fn takes_rdma_at(&self, addresses: &[SocketAddr]) {
        *lock(&self.listen_rdma) = addresses.to_vec();
    }

    /// The port for RDMA connections at an address; 0 if there is none.
    pub(super) fn rdma_port(&self, ip: IpAddr) -> u16 {
        lock(&self.listen_rdma).iter().find(|address| address.ip() == ip).map_or(0, SocketAddr::port)
    }

    /// Whether the measurement under way is of this session, and answered here.
    pub(crate) fn answers(&self, session: SessionId) -> bool {
        lock(&self.active).as_ref().is_some_and(|one| one.session == session && one.wires.is_some())
    }

    /// A migration begins: a measurement that was not forced ends.
    pub fn give_way(&self) {
        let active = lock(&self.active).clone();
        if let Some(measurement) = active.filter(|one| !one.force.load(Ordering::SeqCst)) {
            tracing::info!(?measurement, "a measurement gives way to a migration");
            measurement.stop.stop(Reason::Migration);
        }
    }

    /// Takes the place.
    pub(super) fn claim(
        self: &Arc<Host>,
        (session, token): (SessionId, Token),
        stop: &Arc<Stop>,
        answering: bool,
    ) -> Result<Claim, BenchError> {
        let mut active = lock(&self.active);
        if active.is_some() {
            return Err(BenchError::Busy { host: "this host".into() });
        }
        let measurement = Arc::new(Measurement {
            session,
            token,
            stop: Arc::clone(stop),
            force: AtomicBool::new(false),
            wires: answering.then(Mutex::default),
            domains: rdma::Domains::default(),
            came: Condvar::new(),
        });
        *active = Some(Arc::clone(&measurement));
        Ok(Claim { host: Arc::clone(self), measurement })
    }

    /// The measurement that a connection belongs to.
    fn belongs(&self, hello: &Hello) -> Result<Arc<Measurement>, Fault> {
        let refusal = |code| Fault::new(code, Step::Connect, Side::Destination, "no such measurement");
        let active = lock(&self.active).clone().filter(|one| one.session == hello.session);
        let measurement = active.ok_or_else(|| refusal(Code::SessionUnknown))?;
        if !measurement.knows(&hello.token) {
            return Err(refusal(Code::NotAuthorised));
        }
        if !measurement.has_room(hello.channel) {
            return Err(refusal(Code::ProtocolViolation));
        }
        Ok(measurement)
    }
}

impl Measurement {
    /// Whether it goes on beside a migration.
    pub fn allow(&self, force: bool) {
        self.force.store(force, Ordering::SeqCst);
    }

    fn knows(&self, token: &Token) -> bool {
        self.token.0.iter().zip(token.0).fold(0, |differs, (ours, theirs)| differs | (ours ^ theirs)) == 0
    }

    fn has_room(&self, channel: u32) -> bool {
        let Some(wires) = &self.wires else { return false };
        let wires = lock(wires);
        wires.len() < CONNECTIONS_MAX && !wires.contains_key(&channel)
    }

    /// A connection is there, or free again.
    pub fn put(&self, channel: u32, attached: Attached) {
        if let Some(wires) = &self.wires {
            lock(wires).insert(channel, attached);
            self.came.notify_all();
        }
    }

    /// A connection, to be used. It may come a moment later than the request to use it, over another connection.
    pub fn take(&self, channel: u32, wait: Duration) -> Option<Attached> {
        let wires = lock(self.wires.as_ref()?);
        let absent = |wires: &mut BTreeMap<u32, Attached>| !wires.contains_key(&channel);
        let (mut wires, _) =
            self.came.wait_timeout_while(wires, wait, absent).unwrap_or_else(PoisonError::into_inner);
        wires.remove(&channel)
    }
}

/// Takes a connection with a role of a measurement, and serves it until it is over. `migrating` says whether guests move from
/// or to this host.
pub fn accept(host: &Arc<Host>, accepted: Accepted, migrating: bool) {
    let (peer, role) = (accepted.peer, accepted.hello.role);
    let served =
        if role == Role::Bench { converse(host, accepted, migrating) } else { attach(host, accepted) };
    match served {
        Ok(()) => tracing::debug!(%peer, ?role, "a connection of a measurement is done"),
        Err(error) => tracing::warn!(%peer, ?role, error, "a connection of a measurement ended"),
    }
}

fn converse(host: &Arc<Host>, accepted: Accepted, migrating: bool) -> Result<(), String> {
    struct Seat<'a>(&'a AtomicUsize);
    impl Drop for Seat<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let before = host.conversations.fetch_add(1, Ordering::SeqCst);
    let _seat = Seat(&host.conversations);
    if before >= CONVERSATIONS_MAX {
        return Err("too many ask for measurements".into());
    }
    let hello = accepted.hello.clone();
    let Some(version) = negotiate(hello.version_min, hello.version_max) else {
        let fault = Fault::new(Code::VersionMismatch, Step::Authorise, Side::Destination, "");
        return accepted.refuse(fault).map_err(|error| chain(&error));
    };
    let stream = accepted.welcome(Welcome { version, control_received: 0 }).map_err(|error| chain(&error))?;
    answer::converse(host, &Talk::new(stream), (hello.session, hello.token), migrating)
        .map_err(|error| chain(&error))
}

fn attach(host: &Arc<Host>, accepted: Accepted) -> Result<(), String> {
    let measurement = match host.belongs(&accepted.hello) {
        Ok(measurement) => measurement,
        Err(fault) => {
            let said = fault.to_string();
            accepted.refuse(fault).map_err(|error| chain(&error))?;
            return Err(said);
        }
    };
    let hello = accepted.hello.clone();
    let version = negotiate(hello.version_min, hello.version_max).ok_or("no common version")?;
    let stream = accepted.welcome(Welcome { version, control_received: 0 }).map_err(|error| chain(&error))?;
    let own = stream.own_address();
    let wire = super::wire(stream).map_err(|error| chain(&error))?;
    measurement.stop.add(wire.closer());
    measurement.put(hello.channel, Attached { wire, own });
    Ok(())
}

/// Takes a queue pair of the measurement under way. The two ends tell each other where they can be written to, so that this
/// waits for the peer: in a thread of its own.
pub fn accept_rdma(host: &Arc<Host>, accepted: RdmaAccepted) {
    let (host, peer) = (Arc::clone(host), accepted.peer);
    let attaching = move || {
        if let Err(error) = attach_rdma(&host, accepted) {
            tracing::warn!(%peer, error, "an RDMA connection of a measurement was not taken");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("bench-rdma".into()).spawn(attaching) {
        tracing::error!(%error, "no thread for an RDMA connection");
    }
}

fn attach_rdma(host: &Host, accepted: RdmaAccepted) -> Result<(), String> {
    let hello = accepted.hello.clone();
    let measurement = match host.belongs(&hello) {
        Ok(measurement) => measurement,
        Err(fault) => {
            let said = fault.to_string();
            accepted.refuse(fault).map_err(|error| chain(&error))?;
            return Err(said);
        }
    };
    let version = negotiate(hello.version_min, hello.version_max).ok_or("no common version")?;
    let welcome = Welcome { version, control_received: 0 };
    let own = accepted.own_address();
    let connection = accepted.welcome(welcome, &measurement.domains).map_err(|error| chain(&error))?;
    let wire = super::rdma_wire(connection).map_err(|error| chain(&error))?;
    measurement.stop.add(wire.closer());
    measurement.put(hello.channel, Attached { wire, own });
    Ok(())
}
