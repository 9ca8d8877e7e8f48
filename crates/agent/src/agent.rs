//! The agent: what all its parts share, and who is told about a connection from another agent.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use linerate_api::MigrationSummary;
use linerate_core::journal::{DestinationPhase, Fate, outcome};
use linerate_core::recovery::{Entry, Phase, fate};
use linerate_core::{Code, Fault, Outcome, SessionId, Side, Step};
use linerate_guest::host::QemuCache;
use linerate_guest::images::Claims;
use linerate_guest::registry::{GuestRecord, Registry};
use linerate_net::rdma::listen::Accepted as RdmaAccepted;
use linerate_net::tcp::listen::Accepted;
use linerate_wire::frame::{Hello, Role as Purpose, Welcome};
use linerate_wire::negotiate;

use crate::bench;
use crate::config::Config;
use crate::doctor::{self, Doctor};
use crate::faults::{chain, fault};
use crate::gate::{Arrivals, Gates};
use crate::incoming::Incoming;
use crate::journal::{Journal, Record, Waiting, process};
use crate::outgoing::Outgoing;
use crate::recovery::{Unfinished, can_run, lives};
use crate::trial::Trials;
use crate::tunnel::{self, Tunnel};

/// Tunnels at a time: each has threads and connections.
const TUNNELS_MAX: usize = 64;
/// Ended migrations that are shown.
const ENDED_SHOWN: usize = 100;

/// See the module.
pub struct Agent {
    /// The operator's configuration.
    pub config: Config,
    /// What must be known after a crash.
    pub journal: Arc<Journal>,
    /// Guests of this host.
    pub registry: Registry,
    /// Images that guests which are arriving copy into.
    pub image_claims: Claims,
    /// What the configured QEMU programs say of themselves.
    pub qemu_cache: QemuCache,
    /// Measurements of the wires.
    pub bench: Arc<bench::Host>,
    /// Where RDMA connections are taken, for migrations and measurements.
    pub(crate) rdma: bench::RdmaPorts,
    /// What the doctor keeps.
    pub doctor: Doctor,
    /// Changes of ports that wait for confirmation.
    pub trials: Trials,
    /// When the agent was started.
    pub started: Instant,
    /// Guests whose migration is just beginning.
    starting: Mutex<BTreeSet<String>>,
    outgoing: Mutex<BTreeMap<SessionId, Arc<Outgoing>>>,
    incoming: Mutex<BTreeMap<SessionId, Arc<Incoming>>>,
    past_incoming: Mutex<Vec<MigrationSummary>>,
    unfinished: Mutex<BTreeMap<SessionId, Arc<Unfinished>>>,
    tunnels: Mutex<BTreeMap<SessionId, Arc<Tunnel>>>,
    /// Where connections of tunnels wait.
    pub(crate) gates: Arc<Gates>,
    /// Domains whose stream goes through to this host.
    pub(crate) arrivals: Arc<Arrivals>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Agent {
    /// An agent that knows no session yet.
    pub fn new(config: Config, journal: Journal, registry: Registry) -> Agent {
        let bench = Arc::new(bench::Host::new(config.name.clone(), config.listen.clone()));
        Agent {
            rdma: bench.rdma.clone(),
            bench,
            config,
            journal: Arc::new(journal),
            registry,
            image_claims: Claims::default(),
            qemu_cache: QemuCache::default(),
            doctor: Doctor::default(),
            trials: Trials::default(),
            started: Instant::now(),
            starting: Mutex::default(),
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
            past_incoming: Mutex::default(),
            unfinished: Mutex::default(),
            tunnels: Mutex::default(),
            gates: Arc::default(),
            arrivals: Arc::default(),
        }
    }

    // ---- sessions ----

    /// Begins a migration of a guest unless another has it. Two requests for one guest cannot both begin.
    pub fn begin_outgoing(
        &self,
        guest: &str,
        begin: impl FnOnce() -> Result<Arc<Outgoing>, Fault>,
    ) -> Result<Arc<Outgoing>, Fault> {
        self.claim(guest)?;
        self.bench.give_way();
        let begun = begin();
        if let Ok(begun) = &begun {
            let mut outgoing = lock(&self.outgoing);
            let mut ended: Vec<_> = outgoing.values().filter(|one| one.is_over()).cloned().collect();
            ended.sort_by_key(|one| one.started_unix_ms());
            for old in ended.iter().take(ended.len().saturating_sub(ENDED_SHOWN)) {
                outgoing.remove(&old.session);
            }
            outgoing.insert(begun.session, begun.clone());
        }
        lock(&self.starting).remove(guest);
        begun
    }

    fn claim(&self, guest: &str) -> Result<(), Fault> {
        let mut starting = lock(&self.starting);
        let outgoing = self.outgoing().into_iter().find(|one| one.request.guest == guest && !one.is_over());
        let coming = self.coming().into_iter().find(|one| one.guest() == guest && !one.is_arrived());
        let here = self.registry.get(guest).ok().map(|record| process(&record));
        let unfinished = self.unfinished().into_iter().find(|one| one.decides_about(guest, here.as_ref()));
        let holder = outgoing
            .map(|one| one.session)
            .or(coming.map(|one| one.session))
            .or(unfinished.map(|one| one.session));
        let detail = match holder {
            Some(session) => format!("{guest}: migration {session}"),
            None if starting.insert(guest.to_owned()) => return Ok(()),
            None => format!("{guest}: a migration is just beginning"),
        };
        Err(Fault::new(Code::GuestBusy, Step::Resolve, Side::Source, detail))
    }

    /// The session that has to come to its end before this guest may be touched.
    pub fn unsettled(&self, record: &GuestRecord) -> Option<Unsettled> {
        let here = Some(process(record));
        self.unsettled_of(&record.name, |one| one.process == here)
    }

    /// The same for any guest of this name, also for one whose process has ended.
    pub fn unsettled_name(&self, guest: &str) -> Option<Unsettled> {
        self.unsettled_of(guest, |one| one.guest == guest)
    }

    fn unsettled_of(&self, guest: &str, of_guest: impl Fn(&Unfinished) -> bool) -> Option<Unsettled> {
        let unfinished = self.unfinished().into_iter().find(|one| of_guest(one));
        if let Some(one) = unfinished {
            return Some(Unsettled { session: one.session, undecided: one.is_undecided() });
        }
        let coming = self.coming().into_iter().find(|one| one.guest() == guest && one.is_held());
        let leaving =
            self.outgoing().into_iter().find(|one| one.request.guest == guest && one.is_undecided());
        let session = coming.map(|one| one.session).or(leaving.map(|one| one.session))?;
        Some(Unsettled { session, undecided: true })
    }

    /// Guests are being moved from or to this host.
    pub fn is_migrating(&self) -> bool {
        self.outgoing().iter().any(|one| !one.is_over()) || !self.coming().is_empty()
    }

    /// Migrations that leave, ended ones too.
    pub fn outgoing(&self) -> Vec<Arc<Outgoing>> {
        lock(&self.outgoing).values().cloned().collect()
    }

    /// A migration that leaves.
    pub fn outgoing_by_id(&self, id: &str) -> Option<Arc<Outgoing>> {
        lock(&self.outgoing).values().find(|one| one.session.to_string() == id).cloned()
    }

    /// Migrations that come.
    pub fn coming(&self) -> Vec<Arc<Incoming>> {
        lock(&self.incoming).values().cloned().collect()
    }

    pub fn came(&self) -> Vec<MigrationSummary> {
        lock(&self.past_incoming).clone()
    }

    /// A migration that comes has ended.
    pub fn forget_incoming(&self, session: SessionId) {
        if let Some(ended) = lock(&self.incoming).remove(&session) {
            let mut past = lock(&self.past_incoming);
            past.push(ended.summary());
            let surplus = past.len().saturating_sub(ENDED_SHOWN);
            past.drain(..surplus);
        }
    }

    /// Another session that brings this guest here and is not done.
    pub fn comes_already(&self, guest: &str, session: SessionId) -> Option<Arc<Incoming>> {
        let other = |one: &Arc<Incoming>| one.session != session && one.guest() == guest && !one.is_arrived();
        self.coming().into_iter().find(other)
    }

    /// Names and UUIDs of the guests that are here.
    pub fn names_here(&self) -> Vec<(String, Option<String>)> {
        let records = self.registry.list().unwrap_or_default();
        records.into_iter().filter(|record| record.is_alive()).map(|record| (record.name, None)).collect()
    }

    /// Sessions that are being brought to their end ([`crate::recovery`]).
    pub fn unfinished(&self) -> Vec<Arc<Unfinished>> {
        lock(&self.unfinished).values().cloned().collect()
    }

    fn unfinished_by_id(&self, session: SessionId) -> Option<Arc<Unfinished>> {
        lock(&self.unfinished).get(&session).cloned()
    }

    /// One more.
    pub fn add_unfinished(&self, unfinished: Arc<Unfinished>) {
        lock(&self.unfinished).insert(unfinished.session, unfinished);
    }

    /// It has come to its end.
    pub fn forget_unfinished(&self, session: SessionId) {
        lock(&self.unfinished).remove(&session);
    }

    /// Recovery of an earlier session is removing what it left of this guest.
    pub fn is_going(&self, guest: &str) -> bool {
        self.unfinished().iter().any(|one| one.guest == guest && one.is_going())
    }

    /// The waiting guest's process goes into the journal, so that a later life of the agent ends it and no other.
    pub fn note_waiting(
        &self,
        session: SessionId,
        guest: &str,
        order: u64,
        waiting: &Mutex<Waiting>,
    ) -> Result<(), Fault> {
        let role = lock(waiting).clone().role(DestinationPhase::Started);
        let record = Record::new(guest, order, role);
        let failed = |error| fault(Code::JournalFailed, Step::Prepare, Side::Destination, &error);
        // The loop may have given the session up while the QEMU was being started.
        let over = |now: &Record| {
            now.entry(session).is_some_and(|now| now.phase != Phase::Destination(DestinationPhase::Started))
        };
        match self.journal.put_unless(session, &record, over).map_err(failed)? {
            true => Ok(()),
            false => {
                let detail = "the session was given up meanwhile";
                Err(Fault::new(Code::Cancelled, Step::Prepare, Side::Destination, detail))
            }
        }
    }

    /// A tunnel begins here.
    pub fn add_tunnel(&self, tunnel: Arc<Tunnel>) {
        lock(&self.tunnels).insert(tunnel.session, tunnel);
    }

    /// The tunnel of a session.
    #[cfg(test)]
    pub fn tunnel(&self, session: SessionId) -> Option<Arc<Tunnel>> {
        lock(&self.tunnels).get(&session).cloned()
    }

    /// A tunnel is over.
    pub fn forget_tunnel(&self, session: SessionId) {
        lock(&self.tunnels).remove(&session);
    }

    // ---- connections ----

    /// A connection from another agent: a new session, one more connection of a session, or a question.
    pub fn accept(self: &Arc<Agent>, accepted: Accepted) {
        let (peer, hello) = (accepted.peer, accepted.hello.clone());
        let handled = match hello.role {
            Purpose::Query => self.committed_again(accepted, true),
            Purpose::Withdraw => self.withdrawn(accepted),
            Purpose::CommitAgain => self.committed_again(accepted, false),
            Purpose::Bench | Purpose::BenchData => {
                bench::accept(&self.bench, accepted, self.is_migrating());
                Ok(())
            }
            Purpose::Doctor => doctor::serve::serve(self, accepted),
            Purpose::StreamsNew => self.new_tunnel(accepted),
            _ => {
                // Joining moves bytes: not under the lock.
                let tunnel = lock(&self.tunnels).get(&hello.session).cloned();
                match tunnel {
                    Some(tunnel) => join_tunnel(&tunnel, accepted),
                    None => self.join(accepted),
                }
            }
        };
        if let Err(error) = handled {
            tracing::warn!(%peer, session = %hello.session, error, "a connection was not taken");
        }
    }

    /// Another host wants streams to sockets here.
    fn new_tunnel(self: &Arc<Agent>, accepted: Accepted) -> Result<(), String> {
        let hello = accepted.hello.clone();
        let begun = {
            // Held meanwhile: of two that come at once, one finds the other.
            let mut tunnels = lock(&self.tunnels);
            if tunnels.len() >= TUNNELS_MAX {
                Err(refusal(Code::GuestBusy, "there are as many tunnels as there may be"))
            } else if tunnels.contains_key(&hello.session) {
                Err(refusal(Code::ProtocolViolation, "this session exists already"))
            } else {
                let begun = tunnel::accept(self, &hello, accepted.peer);
                tunnels.extend(begun.as_ref().ok().map(|tunnel| (hello.session, tunnel.clone())));
                begun
            }
        };
        match begun {
            Ok(tunnel) => join_tunnel(&tunnel, accepted),
            Err(fault) => {
                let said = fault.to_string();
                accepted.refuse(fault).map_err(|error| chain(&error))?;
                Err(said)
            }
        }
    }

    /// A source that has committed asks how the session stands, and says commit once more: the message may never have arrived.
    /// Whether it is heeded is the brain's to decide. `copy`: it still has its own.
    fn committed_again(&self, accepted: Accepted, copy: bool) -> Result<(), String> {
        let (peer, session) = (accepted.peer, accepted.hello.session);
        let live = lock(&self.incoming).get(&session).cloned();
        let unfinished = self.unfinished_by_id(session);
        let token = &accepted.hello.token;
        let known = live.as_ref().is_none_or(|live| live.knows(token))
            && unfinished.as_ref().is_none_or(|one| one.knows(token));
        if !known {
            accepted.refuse(refusal(Code::NotAuthorised, "wrong token")).map_err(|error| chain(&error))?;
            return Err("commit was said again with a wrong token".into());
        }
        if let Some(live) = live {
            live.commit_again(copy);
        }
        if let Some(unfinished) = unfinished {
            unfinished.commit_again(copy);
        }
        let outcome = self.outcome(session);
        // Asked every second until it is decided.
        tracing::debug!(%session, %peer, ?outcome, copy, "its source has committed and asks");
        accepted.outcome(outcome).map_err(|error| chain(&error))
    }

    /// A source that rolled back says so. Whether it is heeded is the brain's to decide; what is over is the journal's word.
    fn withdrawn(&self, accepted: Accepted) -> Result<(), String> {
        let (peer, session) = (accepted.peer, accepted.hello.session);
        let live = lock(&self.incoming).get(&session).cloned();
        if let Some(live) = &live {
            if !live.knows(&accepted.hello.token) {
                let fault = refusal(Code::NotAuthorised, "wrong token");
                accepted.refuse(fault).map_err(|error| chain(&error))?;
                return Err("a session was withdrawn with a wrong token".into());
            }
            live.withdraw();
        }
        if let Some(unfinished) = self.unfinished_by_id(session) {
            if !unfinished.knows(&accepted.hello.token) {
                accepted
                    .refuse(refusal(Code::NotAuthorised, "wrong token"))
                    .map_err(|error| chain(&error))?;
                return Err("a session was withdrawn with a wrong token".into());
            }
            unfinished.withdraw();
        }
        let tunnel = lock(&self.tunnels).get(&session).cloned();
        if let Some(tunnel) = tunnel.filter(|tunnel| tunnel.knows(&accepted.hello.token)) {
            tunnel.end(refusal(Code::PeerLost, "the other host has ended it, and no link could say so"));
        }
        let outcome = self.outcome(session);
        tracing::info!(%session, %peer, ?outcome, "withdrawn by its source");
        accepted.outcome(outcome).map_err(|error| chain(&error))
    }

    fn join(self: &Arc<Agent>, accepted: Accepted) -> Result<(), String> {
        let hello = accepted.hello.clone();
        let (session, version) = match self.agreed(&hello, accepted.peer) {
            Ok(joined) => joined,
            Err(fault) => {
                let said = fault.to_string();
                accepted.refuse(fault).map_err(|error| chain(&error))?;
                return Err(said);
            }
        };
        let welcome = Welcome { version, control_received: session.received_through() };
        let stream = accepted.welcome(welcome).map_err(|error| chain(&error))?;
        let attached = match hello.role {
            Purpose::Data => session.attach_channel(hello.channel, stream),
            Purpose::DataBack => return session.attach_back(hello.channel, hello.link, &stream),
            _ => session.attach_path(hello.link, stream),
        };
        attached.map_err(|error| chain(&error))
    }

    /// A request for a queue pair: one more channel of a session, or of a measurement.
    pub fn accept_rdma(self: &Arc<Agent>, accepted: RdmaAccepted) {
        let (hello, peer) = (accepted.hello.clone(), accepted.peer);
        if self.bench.answers(hello.session) {
            return bench::accept_rdma(&self.bench, accepted);
        }
        let handled = match self.agreed(&hello, peer) {
            Ok((session, version)) => {
                let welcome = Welcome { version, control_received: session.received_through() };
                session.attach_rdma(accepted, welcome)
            }
            Err(fault) => {
                let said = fault.to_string();
                accepted.refuse(fault).map_err(|error| chain(&error)).and(Err(said))
            }
        };
        if let Err(error) = handled {
            tracing::warn!(%peer, session = %hello.session, error, "an RDMA connection was not taken");
        }
    }

    /// The session of a connection, and the version that both speak.
    fn agreed(self: &Arc<Agent>, hello: &Hello, peer: SocketAddr) -> Result<(Arc<Incoming>, u16), Fault> {
        let session = self.session_for(hello, peer)?;
        let version = negotiate(hello.version_min, hello.version_max)
            .ok_or_else(|| refusal(Code::VersionMismatch, "update the older agent"))?;
        Ok((session, version))
    }

    /// The session that a connection belongs to; a new one for the first connection.
    pub(crate) fn session_for(
        self: &Arc<Agent>,
        hello: &Hello,
        peer: SocketAddr,
    ) -> Result<Arc<Incoming>, Fault> {
        let mut incoming = lock(&self.incoming);
        match (incoming.get(&hello.session), hello.role) {
            (Some(session), _) if !session.knows(&hello.token) => {
                Err(refusal(Code::NotAuthorised, "wrong token"))
            }
            (Some(session), Purpose::ControlJoin | Purpose::Data | Purpose::DataBack) => Ok(session.clone()),
            (Some(_), _) => Err(refusal(Code::ProtocolViolation, "this session exists already")),
            (None, Purpose::ControlNew) => {
                let known = self.journal.get(hello.session);
                let known = known.map_err(|error| {
                    fault(Code::JournalFailed, Step::Authorise, Side::Destination, &error)
                })?;
                if known.is_some() {
                    return Err(refusal(Code::ProtocolViolation, "this session was here before"));
                }
                self.bench.give_way();
                let session = Incoming::start(self, hello.session, hello.token, peer)
                    .map_err(|error| fault(Code::Internal, Step::Authorise, Side::Destination, &error))?;
                incoming.insert(hello.session, session.clone());
                Ok(session)
            }
            (None, _) => Err(refusal(Code::SessionUnknown, "")),
        }
    }

    /// What a source that asks is told: the live session knows best, then recovery, then the journal.
    pub fn outcome(&self, session: SessionId) -> Outcome {
        let live = lock(&self.incoming).get(&session).map(|live| live.outcome());
        if let Some(outcome) = live.filter(|outcome| *outcome != Outcome::Committed) {
            return outcome;
        }
        if let Some(outcome) = self.unfinished_by_id(session).and_then(|one| one.outcome()) {
            return outcome;
        }
        let entries = match self.journal.all() {
            Ok(all) => all.iter().filter_map(|(id, record)| record.entry(*id)).collect::<Vec<_>>(),
            Err(error) => {
                tracing::error!(error = chain(&error), "the journal cannot be read");
                return Outcome::Pending;
            }
        };
        let Some(entry) = entries.iter().find(|entry| entry.session == session) else {
            return Outcome::Unknown;
        };
        from_journal(entry, &entries, live)
    }
}

/// A session that stands between a guest and whoever wants to do something with it.
#[derive(Clone, Copy, Debug)]
pub struct Unsettled {
    pub session: SessionId,
    /// The other host or an operator decides; otherwise recovery brings it to its end by itself.
    pub undecided: bool,
}

impl fmt::Display for Unsettled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.undecided { "is not decided" } else { "is being brought to its end" };
        write!(f, "its migration {} {what}: `linerate migration list` says what it waits for", self.session)
    }
}

/// What the journal says of a session. `live`: what a live session says of itself; whether its process lives is looked at here.
fn from_journal(entry: &Entry, all: &[Entry], live: Option<Outcome>) -> Outcome {
    let Phase::Destination(phase) = entry.phase else { return Outcome::Unknown };
    let fate = fate(entry, all, can_run);
    let found = match live {
        Some(Outcome::Committed) if fate == Fate::Ended => Outcome::Gone,
        Some(outcome) => outcome,
        None => outcome(Some(phase), fate),
    };
    match found {
        // It does not run any more, and still has its files.
        Outcome::Gone if entry.process.as_ref().is_some_and(lives) => Outcome::Pending,
        found => found,
    }
}

/// One more connection of a tunnel.
fn join_tunnel(tunnel: &Tunnel, accepted: Accepted) -> Result<(), String> {
    let hello = accepted.hello.clone();
    let version = negotiate(hello.version_min, hello.version_max);
    let refused = match version {
        _ if !tunnel.knows(&hello.token) => Some(refusal(Code::NotAuthorised, "wrong token")),
        _ if tunnel.is_over() => Some(refusal(Code::SessionUnknown, "the tunnel is over")),
        None => Some(refusal(Code::VersionMismatch, "update the older agent")),
        Some(_) => None,
    };
    if let Some(fault) = refused {
        let said = fault.to_string();
        accepted.refuse(fault).map_err(|error| chain(&error))?;
        return Err(said);
    }
    let welcome = Welcome { version: version.unwrap_or_default(), control_received: 0 };
    let stream = accepted.welcome(welcome).map_err(|error| chain(&error))?;
    tunnel.attach(&hello, stream)
}

fn refusal(code: Code, detail: &str) -> Fault {
    Fault::new(code, Step::Authorise, Side::Destination, detail)
}
