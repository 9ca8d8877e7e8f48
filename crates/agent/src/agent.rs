//! The agent: it makes the modules and gives each what it needs. It decides which module gets a connection from another
//! agent, and answers what concerns sessions of all kinds.

mod connections;
mod parts;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_api::{
    AuditAction, AuditCaller, AuditEntry, AuditResult, ErrorBody, LibvirtRequest, MigrateRequest,
    MigrationSummary,
};
use linerate_core::{Code, Fault, Outcome, SessionId, Side, Step};
use linerate_fabric::probe::SentBack;
use linerate_guest::host::QemuCache;
use linerate_guest::registry::{GuestRecord, Registry};
use linerate_net::rdma::listen::Accepted as RdmaAccepted;
use linerate_net::tcp::listen::Accepted;
use linerate_wire::frame::{Hello, Role as Purpose, Welcome};
use linerate_wire::negotiate;
use rustls_pki_types::UnixTime;
use tokio::runtime::Handle;

use crate::audit::{self, Asked, Audit};
use crate::config::Config;
use crate::decision::DECISION_WAIT;
use crate::doctor::{self, Doctor};
use crate::faults::chain;
use crate::fleet::HostInFleet;
use crate::host_record::Describer;
use crate::incoming::Incoming;
use crate::journal::{Journal, process};
use crate::libvirt::Moves;
use crate::name_claims::{NameClaim, NameClaims};
use crate::not_taken::{NotTaken, refuse};
use crate::outgoing::Outgoing;
use crate::recovery::Unfinished;
use crate::seats::{NO_SEAT, Seats};
use crate::security::{Caller, PeerName, Security};
use crate::send_back::SentGuests;
use crate::session::offer::RdmaPorts;
use crate::stream_gate::ArrivalCount;
use crate::trial::Trials;
use crate::tunnel::Tunnel;
use crate::{
    bench, both_hosts, cluster, incoming, libvirt, outgoing, permission, recovery, send_back, settings,
    tunnel,
};
use connections::{Connections, check_opener, welcome_once};
use parts::Sessions;

pub struct Agent {
    pub config: Arc<Config>,
    /// Who this host is to other agents, and what they may do.
    pub security: Arc<Security>,
    /// Whether this host takes guests from others.
    pub(crate) fleet: Arc<HostInFleet>,
    /// What this host has, for others that ask.
    pub(crate) describer: Arc<Describer>,
    /// Guests that other hosts wanted back.
    sent_guests: SentGuests,
    /// Who did what on this host.
    pub audit: Arc<Audit>,
    /// Takes up this host's identity, and listens as it allows.
    pub(crate) cluster: Arc<cluster::watch::Watch>,
    /// What must be known after a crash.
    pub journal: Arc<Journal>,
    /// Guests of this host.
    pub registry: Registry,
    /// What the configured QEMU programs report about themselves.
    pub qemu_cache: Arc<QemuCache>,
    /// Measurements of the links.
    pub bench: Arc<bench::Host>,
    /// Questions about the cluster that are answered now.
    members: Seats,
    /// Of the sessions that other hosts opened.
    connections: Connections,
    /// Where RDMA connections are taken, for migrations and measurements.
    pub(crate) rdma: RdmaPorts,
    /// This host as the doctor knows it.
    pub doctor: Arc<Doctor>,
    /// Changes of ports that wait for confirmation.
    pub trials: Arc<Trials>,
    /// When the agent was started.
    pub started: Instant,
    /// Guests that are just being started, stopped or taken over, that arrive, or whose migration is just beginning.
    pub(crate) names: NameClaims,
    pub outgoing: Arc<outgoing::Sessions>,
    pub incoming: Arc<incoming::Sessions>,
    /// Sessions that recovery is ending.
    pub recovery: Arc<recovery::Sessions>,
    /// An operator's decision over a session in doubt is answered within this, carried out or not.
    pub(crate) decision_wait: Duration,
    pub tunnels: Arc<tunnel::Sessions>,
    /// Domains that libvirt is asked to move.
    pub(crate) moves: Arc<Moves>,
}

impl Agent {
    /// An agent that knows no session yet.
    pub fn new(
        config: Config,
        journal: Journal,
        registry: Registry,
        security: Arc<Security>,
        audit: Audit,
    ) -> Agent {
        let audit = Arc::new(audit);
        let bench = Arc::new(bench::Host::new(config.name.clone(), config.listen.clone(), security.clone()));
        let fleet = Arc::new(HostInFleet::new(&config));
        let (config, journal) = (Arc::new(config), Arc::new(journal));
        let (names, moves) = (NameClaims::default(), Arc::<Moves>::default());
        let (rdma, qemu_cache) = (bench.rdma.clone(), Arc::<QemuCache>::default());
        let recovery = Arc::new(recovery::Sessions::new(
            journal.clone(),
            registry.clone(),
            security.clone(),
            audit.clone(),
        ));
        let Sessions { outgoing, incoming, tunnels } = Sessions::new(incoming::Needs {
            config: config.clone(),
            journal: journal.clone(),
            registry: registry.clone(),
            qemu_cache: qemu_cache.clone(),
            bench: bench.clone(),
            arrivals: Arc::<ArrivalCount>::default(),
            recovery: recovery.clone(),
            security: security.clone(),
            audit: audit.clone(),
            names: names.clone(),
        });
        let cluster = Arc::new(cluster::watch::Watch::new(config.clone(), security.clone()));
        let describer = Arc::new(Describer::new(
            config.clone(),
            registry.clone(),
            qemu_cache.clone(),
            (outgoing.clone(), incoming.clone()),
            cluster.clone(),
            fleet.clone(),
        ));
        let doctor = Arc::new(parts::doctor(&describer, &bench, &security, &moves));
        let trials = Arc::new(Trials::new(doctor.clone()));
        let started = Instant::now();
        Agent {
            config,
            security,
            fleet,
            describer,
            sent_guests: SentGuests::default(),
            audit,
            cluster,
            journal,
            registry,
            qemu_cache,
            bench,
            members: connections::members(),
            connections: Connections::new(),
            rdma,
            doctor,
            trials,
            started,
            names,
            outgoing,
            incoming,
            recovery,
            decision_wait: DECISION_WAIT,
            tunnels,
            moves,
        }
    }

    // ---- sessions ----

    /// Begins a migration of a guest unless another has it. Two requests for one guest cannot both begin.
    pub fn begin_outgoing(
        &self,
        guest: &str,
        begin: impl FnOnce() -> Result<Arc<Outgoing>, Fault>,
    ) -> Result<Arc<Outgoing>, Fault> {
        let _claim = self.claim(guest)?;
        self.bench.yield_to_migration();
        let begun = begin();
        if let Ok(begun) = &begun {
            self.outgoing.add(begun.clone());
            // A measurement that began meanwhile did not know of it.
            self.bench.yield_to_migration();
        }
        begun
    }

    fn claim(&self, guest: &str) -> Result<NameClaim, Fault> {
        // First: what another has begun meanwhile is among the sessions.
        let claim = self.names.claim(guest);
        let here = self.registry.get(guest).ok().map(|record| process(&record));
        let unfinished = self.unfinished().into_iter().find(|one| one.decides_about(guest, here.as_ref()));
        let holder = self.session_in_progress(guest).or(unfinished.map(|one| one.session));
        let detail = match (holder, claim) {
            (Some(session), _) => format!("{guest}: migration {session}"),
            (None, Some(claim)) => return Ok(claim),
            (None, None) => format!(
                "{guest}: another request on this host is starting it, stopping it, taking it over, or beginning to move it"
            ),
        };
        Err(Fault::new(Code::GuestBusy, Step::Resolve, Side::Source, detail))
    }

    /// A migration of a guest of this name that is not over. Until then it may run on the other host, whatever has
    /// become of its QEMU here.
    pub fn session_in_progress(&self, guest: &str) -> Option<SessionId> {
        let outgoing = self.outgoing().into_iter().find(|one| one.request.guest == guest && !one.is_over());
        let incoming = self.incoming_live().into_iter().find(|one| one.guest() == guest && !one.is_arrived());
        outgoing.map(|one| one.session).or(incoming.map(|one| one.session))
    }

    /// The session that must end before this guest may be touched.
    pub fn open_session_of(&self, record: &GuestRecord) -> Option<OpenSession> {
        let here = Some(process(record));
        self.find_open_session(&record.name, |one| one.process == here)
    }

    /// The same for any guest of this name, also for one whose process has ended.
    pub fn open_session_of_name(&self, guest: &str) -> Option<OpenSession> {
        self.find_open_session(guest, |one| one.guest == guest)
    }

    fn find_open_session(&self, guest: &str, of_guest: impl Fn(&Unfinished) -> bool) -> Option<OpenSession> {
        let unfinished = self.unfinished().into_iter().find(|one| of_guest(one));
        if let Some(one) = unfinished {
            return Some(OpenSession { session: one.session, in_doubt: one.is_in_doubt() });
        }
        let incoming = self.incoming_live().into_iter().find(|one| one.guest() == guest && one.is_in_doubt());
        let leaving = self.outgoing().into_iter().find(|one| one.request.guest == guest && one.is_in_doubt());
        let session = incoming.map(|one| one.session).or(leaving.map(|one| one.session))?;
        Some(OpenSession { session, in_doubt: true })
    }

    /// Frees what guests have whose QEMU has ended. What that could open stays open as long as a session has the guest:
    /// the QEMU at the other host may have the same user.
    pub fn free_ram_of_dead(&self) {
        self.registry.free_ram_of_dead(|record| {
            self.open_session_of(record).is_some() || self.session_in_progress(&record.name).is_some()
        });
    }

    /// Guests are being moved from or to this host.
    pub fn is_migrating(&self) -> bool {
        parts::is_migrating(&self.outgoing, &self.incoming, &self.moves)
    }

    /// Migrations that leave, ended ones too.
    pub fn outgoing(&self) -> Vec<Arc<Outgoing>> {
        self.outgoing.all()
    }

    /// A migration that leaves.
    pub fn outgoing_by_id(&self, id: &str) -> Option<Arc<Outgoing>> {
        self.outgoing.all().into_iter().find(|one| one.session.to_string() == id)
    }

    pub fn incoming_live(&self) -> Vec<Arc<Incoming>> {
        self.incoming.all()
    }

    /// Incoming migrations that have ended.
    pub fn past_incoming(&self) -> Vec<MigrationSummary> {
        self.incoming.past()
    }

    /// Names and UUIDs of the guests that are here.
    pub fn names_here(&self) -> Vec<(String, Option<String>)> {
        self.incoming.names_here()
    }

    /// Sessions that recovery is ending ([`crate::recovery`]).
    pub fn unfinished(&self) -> Vec<Arc<Unfinished>> {
        self.recovery.all()
    }

    /// What the moves of libvirt's domains need.
    pub(crate) fn libvirt(self: &Arc<Agent>) -> Arc<libvirt::Needs> {
        let agent = self.clone();
        let begin_copy = move |request: MigrateRequest| {
            let guest = request.guest.clone();
            agent.begin_outgoing(&guest, || outgoing::start(&agent.outgoing, request))
        };
        Arc::new(libvirt::Needs {
            config: self.config.clone(),
            journal: self.journal.clone(),
            bench: self.bench.clone(),
            tunnels: self.tunnels.clone(),
            moves: self.moves.clone(),
            audit: self.audit.clone(),
            security: self.security.clone(),
            begin_copy: Box::new(begin_copy),
        })
    }

    // ---- connections ----

    /// A connection from another agent: a new session, one more connection of a session, or a question.
    pub fn accept(self: &Arc<Agent>, mut accepted: Accepted) {
        let (peer, hello) = (accepted.peer, accepted.hello.clone());
        let name = match self.security.peer(accepted.peer_certificates()) {
            Ok(name) => name,
            Err(error) => {
                tracing::warn!(%peer, %error, "a connection was refused");
                let caller = audit::host(&None, peer, accepted.cipher());
                let line = audit::entry(AuditAction::Connection, AuditResult::Refused, caller);
                return self.audit.record(AuditEntry { reason: Some(error.to_string()), ..line });
            }
        };
        let caller = audit::host(&name, peer, accepted.cipher());
        let needed = permission::of_purpose(hello.role);
        let permitted = check_opener(&hello, &self.outgoing, &self.config.name);
        let permitted =
            permitted.and_then(|()| needed.map_or(Ok(()), |needed| self.security.permit(&name, needed)));
        let permitted = permitted.and_then(|()| match hello.role {
            Purpose::ControlNew | Purpose::Arrival => self.fleet.admit(),
            _ => Ok(()),
        });
        let permitted = permitted.and_then(|()| self.connections.count(&mut accepted, &name));
        let mut asked = None;
        let handled = match hello.role {
            _ if permitted.is_err() => {
                permitted.map_err(|fault| refuse(fault, |fault| accepted.refuse(fault)))
            }
            Purpose::Query => self.committed_again(accepted, &name, true),
            Purpose::RolledBack => self.roll_back_notice(accepted, &name),
            Purpose::CommitAgain => self.committed_again(accepted, &name, false),
            Purpose::Resumes | Purpose::Waits => self.source_resumes(accepted, &name),
            Purpose::Bench | Purpose::BenchData => {
                let may_force = self.security.permit(&name, permission::TO_DISTURB).is_ok();
                let terms = bench::Terms { migrating: self.is_migrating(), may_force };
                bench::accept(&self.bench, accepted, terms).map(|one| asked = one)
            }
            Purpose::Doctor => {
                let doing = doctor::serve::Doing {
                    change: |change| settings::asked_by_another(&self.trials, change, &name),
                    send_back: |session: &str, domain: Option<&str>, port| {
                        let to = SocketAddr::new(peer.ip(), port);
                        self.send_back(session, domain, to, (&name, &caller))
                    },
                };
                let served = doctor::serve::serve(&self.doctor, accepted, &name, doing);
                served.map(|one| asked = Some(one)).map_err(NotTaken::by_module)
            }
            // Nothing forbids it.
            Purpose::Arrival => welcome_once(accepted),
            Purpose::Membership => self.answer_member(accepted, &name).map(|one| asked = one),
            Purpose::TunnelNew => self.new_tunnel(accepted, name),
            _ => {
                // Joining moves bytes: not under the lock.
                let tunnel = self.tunnels.get(hello.session);
                match tunnel {
                    Some(tunnel) => join_tunnel(&tunnel, accepted, &name),
                    None => self.join(accepted, name),
                }
            }
        };
        let error = handled.err().map(|error| chain(&error));
        if let Some(error) = &error {
            tracing::warn!(%peer, session = %hello.session, error, "a connection was not taken");
        }
        match asked {
            Some(asked) => self.note_asked(&hello, asked, caller),
            None => self.note(&hello, caller, error),
        }
    }

    /// A question about the cluster.
    fn answer_member(&self, accepted: Accepted, name: &PeerName) -> Result<Option<Asked>, NotTaken> {
        let Some(_seat) = self.members.take(name, accepted.peer) else {
            let fault = refusal(Code::GuestBusy, NO_SEAT);
            return Err(refuse(fault, |fault| accepted.refuse(fault)));
        };
        cluster::renewal::serve(&self.config, self.security.identity(), accepted, UnixTime::now())
            .map_err(NotTaken::by_module)
    }

    /// Moves a guest back to the host that asks for it, or says how far that is. `domain` is a domain's UUID.
    pub(crate) fn send_back(
        self: &Arc<Agent>,
        session: &str,
        domain: Option<&str>,
        to: SocketAddr,
        (asker, caller): (&PeerName, &AuditCaller),
    ) -> SentBack {
        let Some(session) = send_back::parse(session) else {
            return send_back::refused("the session has no such name");
        };
        if let Some(uuid) = domain {
            return self.send_domain_back(uuid, (session, to), (asker, caller));
        }
        let begin = |request: MigrateRequest| {
            let guest = request.guest.clone();
            let begun = self.begin_outgoing(&guest, || outgoing::start(&self.outgoing, request));
            let session = begun.as_ref().map(|outgoing| outgoing.session.to_string());
            self.note_sent_back(guest, to, session.map_err(|fault| fault as &dyn fmt::Display), caller);
            begun
        };
        self.sent_guests.answer((&self.journal, &self.registry), asker, (session, to), begin)
    }

    fn send_domain_back(
        self: &Arc<Agent>,
        uuid: &str,
        (session, to): (SessionId, SocketAddr),
        (asker, caller): (&PeerName, &AuditCaller),
    ) -> SentBack {
        if !send_back::is_uuid(uuid) {
            return send_back::refused("the domain has no such UUID");
        }
        let service = format!("unix:{}", LibvirtRequest::DEFAULT_REMOTE_SOCKET);
        if let Err(error) = tunnel::may_reach(&self.tunnels, asker, service) {
            self.note_sent_back(uuid.to_owned(), to, Err(&error), caller);
            return send_back::refused(&error.to_string());
        }
        let Ok(runtime) = Handle::try_current() else {
            return send_back::refused("this agent does not move domains");
        };
        if let Some(state) = self.sent_guests.answer_domain(session) {
            return state;
        }
        let (agent, uuid, caller) = (self.clone(), uuid.to_owned(), caller.clone());
        runtime.spawn(async move {
            let asked = LibvirtRequest::default();
            let request =
                MigrateRequest { libvirt: Some(asked.clone()), ..MigrateRequest::new(&uuid, to.to_string()) };
            let begun = libvirt::begin(agent.libvirt(), request, asked).await;
            let id = begun.as_ref().map(|id| id.0.clone());
            agent.note_sent_back(uuid, to, id.map_err(|error| &error.message as &dyn fmt::Display), &caller);
            let lost = || ErrorBody::new("internal", "a migration of a domain was lost");
            let moving = begun.and_then(|id| agent.moves.by_id(&id.0).ok_or_else(lost));
            agent.sent_guests.domain_begun(session, moving);
        });
        SentBack::Moving
    }

    fn note_sent_back(
        &self,
        guest: String,
        to: SocketAddr,
        session: Result<String, &dyn fmt::Display>,
        caller: &AuditCaller,
    ) {
        let result = if session.is_ok() { AuditResult::Done } else { AuditResult::Failed };
        self.audit.record(AuditEntry {
            guest: Some(guest),
            to: Some(to.to_string()),
            reason: session.as_ref().err().map(ToString::to_string),
            session: session.ok(),
            ..audit::entry(AuditAction::MigrationBegin, result, caller.clone())
        });
    }

    /// A measurement, or a question of the doctor's or about the cluster.
    fn note_asked(&self, hello: &Hello, asked: Asked, caller: AuditCaller) {
        let Asked { action, result, only_looks, reason } = asked;
        let session = Some(hello.session.to_string());
        let line = AuditEntry { session, reason, ..audit::entry(action, result, caller) };
        if only_looks {
            self.audit.record_look(line);
        } else {
            self.audit.record(line);
        }
    }

    /// What another host's agent began here, and what was refused to it.
    fn note(&self, hello: &Hello, caller: AuditCaller, refusal: Option<String>) {
        let action = match hello.role {
            Purpose::ControlNew => AuditAction::ArrivalBegin,
            Purpose::TunnelNew => AuditAction::Tunnel,
            Purpose::Doctor => AuditAction::Doctor,
            Purpose::Bench => AuditAction::Bench,
            // More of what one of these began.
            _ if refusal.is_none() => return,
            _ => AuditAction::Connection,
        };
        let result = if refusal.is_none() { AuditResult::Done } else { AuditResult::Refused };
        let line = audit::entry(action, result, caller);
        self.audit.record(AuditEntry { session: Some(hello.session.to_string()), reason: refusal, ..line });
    }

    /// Another host wants streams to sockets here.
    fn new_tunnel(&self, accepted: Accepted, name: PeerName) -> Result<(), NotTaken> {
        let hello = accepted.hello.clone();
        match self.tunnels.accept(&hello, accepted.peer, name.clone()) {
            Ok(tunnel) => join_tunnel(&tunnel, accepted, &name),
            Err(fault) => Err(refuse(fault, |fault| accepted.refuse(fault))),
        }
    }

    /// A source that has committed asks for the session's outcome, and so sends commit once more: the message may never
    /// have arrived. The core decides whether it counts. `copy`: it still has its own.
    fn committed_again(&self, accepted: Accepted, name: &PeerName, copy: bool) -> Result<(), NotTaken> {
        let (peer, session) = (accepted.peer, accepted.hello.session);
        if let Err(fault) = self.may_decide(&accepted.hello, name) {
            accepted.refuse(fault.clone())?;
            return Err(NotTaken::CommitAgain(fault));
        }
        if let Some(live) = self.incoming.get(session) {
            live.commit_again(copy);
        }
        if let Some(unfinished) = self.recovery.get(session) {
            unfinished.commit_again(copy);
        }
        let outcome = self.incoming.outcome(session);
        // Asked every second until it is decided.
        tracing::debug!(%session, %peer, ?outcome, copy, "its source has committed and asks");
        Ok(accepted.outcome(outcome)?)
    }

    /// A source that is about to resume its guest asks whether it runs here. For some seconds one that is not committed
    /// is not let run then. Or the source waits for a guest that is committed here.
    fn source_resumes(&self, accepted: Accepted, name: &PeerName) -> Result<(), NotTaken> {
        let (peer, session) = (accepted.peer, accepted.hello.session);
        if let Err(fault) = self.may_decide(&accepted.hello, name) {
            accepted.refuse(fault.clone())?;
            return Err(NotTaken::Resumes(fault));
        }
        let waits = accepted.hello.role == Purpose::Waits;
        let outcome = self.incoming.source_resumes(session, waits);
        if waits {
            // Asked every second until it is decided.
            tracing::debug!(%session, %peer, ?outcome, "its source waits for the guest here and asks");
        } else {
            tracing::info!(%session, %peer, ?outcome, "its source is about to resume the guest and asks");
        }
        Ok(accepted.outcome(outcome)?)
    }

    /// Whether the session is unknown here, or this host has opened it. Of one that has ended the journal knows.
    pub(crate) fn may_decide(&self, hello: &Hello, name: &PeerName) -> Result<(), Fault> {
        let (live, unfinished) = (self.incoming.get(hello.session), self.recovery.get(hello.session));
        let ended = match self.journal.get(hello.session) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(error = chain(&error), "the journal cannot be read");
                None
            }
        };
        let knows = live.as_ref().is_none_or(|live| live.knows(&hello.token))
            && unfinished.as_ref().is_none_or(|one| one.knows(&hello.token))
            && ended.as_ref().is_none_or(|record| record.knows(&hello.token));
        let is_of = live.as_ref().is_none_or(|live| live.is_of(name))
            && unfinished.as_ref().is_none_or(|one| one.is_of(name))
            && ended.as_ref().is_none_or(|record| record.is_of(name));
        match (knows, is_of) {
            (false, _) => Err(refusal(Code::NotAuthorised, "wrong token")),
            (true, false) => Err(refusal(Code::NotAuthorised, "another host opened this session")),
            (true, true) => Ok(()),
        }
    }

    /// A source sends that it has rolled back. The core decides whether it counts; of an ended session the journal
    /// decides.
    fn roll_back_notice(&self, accepted: Accepted, name: &PeerName) -> Result<(), NotTaken> {
        let (peer, session) = (accepted.peer, accepted.hello.session);
        if let Err(fault) = self.may_decide(&accepted.hello, name) {
            accepted.refuse(fault.clone())?;
            return Err(NotTaken::RollBackNotice(fault));
        }
        if let Some(live) = self.incoming.get(session) {
            live.rolled_back_at_source();
        }
        if let Some(unfinished) = self.recovery.get(session) {
            unfinished.rolled_back_at_source();
        }
        let outcome = self.incoming.outcome(session);
        if outcome == Outcome::Committed {
            both_hosts::note(&self.journal, &self.audit, session);
        }
        if let Some(tunnel) = self.tunnels.get(session) {
            let detail = "the other host has ended it, and no link could carry that message";
            match tunnel.check_opener(&accepted.hello, name) {
                Ok(()) => tunnel.end(refusal(Code::PeerLost, detail)),
                // If it is a guest's session too, that one's host gets its answer.
                Err(fault) if outcome == Outcome::Unknown => {
                    accepted.refuse(fault.clone())?;
                    return Err(NotTaken::RollBackNotice(fault));
                }
                Err(_) => {}
            }
        }
        tracing::info!(%session, %peer, ?outcome, "rolled back at its source");
        Ok(accepted.outcome(outcome)?)
    }

    fn join(&self, accepted: Accepted, name: PeerName) -> Result<(), NotTaken> {
        let hello = accepted.hello.clone();
        let (session, version) = match self.agreed(&hello, accepted.peer, Caller::Tcp(name)) {
            Ok(joined) => joined,
            Err(fault) => return Err(refuse(fault, |fault| accepted.refuse(fault))),
        };
        let welcome = Welcome { version, control_received: session.received_through() };
        let stream = accepted.welcome(welcome)?;
        match hello.role {
            Purpose::Data => session.attach_channel(hello.channel, stream)?,
            Purpose::ReverseData => {
                session.attach_back(hello.channel, hello.link, &stream).map_err(NotTaken::by_module)?;
            }
            _ => session.attach_path(hello.link, stream)?,
        }
        Ok(())
    }

    /// A request for a queue pair: one more channel of a session, or of a measurement.
    pub fn accept_rdma(&self, accepted: RdmaAccepted) {
        let (hello, peer) = (accepted.hello.clone(), accepted.peer);
        if let Err(error) = self.take_rdma(accepted) {
            let error = chain(&error);
            tracing::warn!(%peer, session = %hello.session, error, "an RDMA connection was not taken");
            self.note(&hello, audit::host(&None, peer, None), Some(error));
        }
    }

    fn take_rdma(&self, mut accepted: RdmaAccepted) -> Result<(), NotTaken> {
        let (hello, peer) = (accepted.hello.clone(), accepted.peer);
        if self.bench.answers(hello.session) {
            return bench::accept_rdma(&self.bench, accepted);
        }
        let agreed = self.agreed(&hello, peer, Caller::Rdma).and_then(|(session, version)| {
            self.connections.count_queue_pair(&mut accepted, session.opener())?;
            Ok((session, version))
        });
        match agreed {
            Ok((session, version)) => {
                let welcome = Welcome { version, control_received: session.received_through() };
                session.attach_rdma(accepted, welcome).map_err(NotTaken::by_module)
            }
            Err(fault) => Err(refuse(fault, |fault| accepted.refuse(fault))),
        }
    }

    /// The session of a connection, and the version that both speak.
    fn agreed(&self, hello: &Hello, peer: SocketAddr, caller: Caller) -> Result<(Arc<Incoming>, u16), Fault> {
        let session = self.incoming.session_for(hello, peer, caller)?;
        let version = negotiate(hello.version_min, hello.version_max)
            .ok_or_else(|| refusal(Code::VersionMismatch, "update the older agent"))?;
        Ok((session, version))
    }
}

/// A session that must end before anything else may be done with its guest.
#[derive(Clone, Copy, Debug)]
pub struct OpenSession {
    pub session: SessionId,
    /// The other host or an operator decides; otherwise recovery ends it by itself.
    pub in_doubt: bool,
}

impl fmt::Display for OpenSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.in_doubt { "is in doubt" } else { "is being brought to its end" };
        write!(f, "its migration {} {what}: `linerate migration list` shows what it waits for", self.session)
    }
}

/// One more connection of a tunnel.
fn join_tunnel(tunnel: &Arc<Tunnel>, accepted: Accepted, name: &PeerName) -> Result<(), NotTaken> {
    let hello = accepted.hello.clone();
    let version = negotiate(hello.version_min, hello.version_max);
    let refused = match (tunnel.check_opener(&hello, name), version) {
        (Err(fault), _) => Some(fault),
        _ if tunnel.is_over() => Some(refusal(Code::SessionUnknown, "the tunnel is over")),
        (Ok(()), None) => Some(refusal(Code::VersionMismatch, "update the older agent")),
        (Ok(()), Some(_)) => None,
    };
    if let Some(fault) = refused {
        return Err(refuse(fault, |fault| accepted.refuse(fault)));
    }
    let welcome = Welcome { version: version.unwrap_or_default(), control_received: 0 };
    let stream = accepted.welcome(welcome)?;
    Ok(tunnel.attach(&hello, stream)?)
}

fn refusal(code: Code, detail: &str) -> Fault {
    Fault::new(code, Step::Authorise, Side::Destination, detail)
}
