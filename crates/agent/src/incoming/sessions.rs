//! All incoming migrations, and what they need of this host.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use linerate_api::MigrationSummary;
use linerate_core::journal::{DestinationPhase, ProcessFate, outcome};
use linerate_core::recovery::{Entry, Phase, process_fate};
use linerate_core::{Code, Fault, Outcome, SessionId, Side, Step};
use linerate_guest::host::QemuCache;
use linerate_guest::images::Claims;
use linerate_guest::registry::{GuestRecord, Registry};
use linerate_lock::Mutex;
use linerate_wire::frame::{Hello, Role};

use super::Incoming;
use super::budget::Budget;
use crate::audit::Audit;
use crate::bench;
use crate::config::Config;
use crate::faults::{chain, fault};
use crate::journal::{IncomingRecord, Journal, JournalError, Record};
use crate::name_claims::NameClaims;
use crate::recovery::{self, Unfinished, can_run, is_alive};
use crate::security::{Caller, Security};
use crate::session::identity::Identity;
use crate::stream_gate::ArrivalCount;

/// Guests that arrive at a time. Each session has threads, and room for what its source sends.
const LIVE_MAX: usize = 64;
/// Of them from one host.
const LIVE_OF_ONE_HOST: usize = 16;
/// The same with guests that are here, and whose sources have not finished or do not know it yet.
const OPEN_OF_ONE_HOST: usize = 2 * LIVE_OF_ONE_HOST;
/// Ended migrations that are shown.
const ENDED_SHOWN: usize = 100;

pub struct Sessions {
    pub(super) config: Arc<Config>,
    pub(super) journal: Arc<Journal>,
    pub(super) registry: Registry,
    /// Images that guests which are arriving copy into.
    pub(super) image_claims: Claims,
    pub(super) qemu_cache: Arc<QemuCache>,
    /// Measurements are ended for an incoming guest.
    pub(super) bench: Arc<bench::Host>,
    /// Domains whose stream is released to this host.
    pub(super) arrivals: Arc<ArrivalCount>,
    recovery: Arc<recovery::Sessions>,
    pub(super) security: Arc<Security>,
    pub(super) audit: Arc<Audit>,
    /// Names of guests that something is just about to take.
    pub(super) names: NameClaims,
    pub(super) budget: Arc<Budget>,
    live: Mutex<BTreeMap<SessionId, Arc<Incoming>>>,
    past: Mutex<Vec<MigrationSummary>>,
}

/// What incoming migrations need of this host.
pub struct Needs {
    pub config: Arc<Config>,
    pub journal: Arc<Journal>,
    pub registry: Registry,
    pub qemu_cache: Arc<QemuCache>,
    pub bench: Arc<bench::Host>,
    pub arrivals: Arc<ArrivalCount>,
    pub recovery: Arc<recovery::Sessions>,
    pub security: Arc<Security>,
    pub audit: Arc<Audit>,
    pub names: NameClaims,
}

impl Sessions {
    pub fn new(needs: Needs) -> Sessions {
        let Needs {
            config,
            journal,
            registry,
            qemu_cache,
            bench,
            arrivals,
            recovery,
            security,
            audit,
            names,
        } = needs;
        let (image_claims, live, past) = (Claims::default(), Mutex::default(), Mutex::default());
        let budget = Arc::new(Budget::of(&config));
        Sessions {
            config,
            journal,
            registry,
            image_claims,
            qemu_cache,
            bench,
            arrivals,
            recovery,
            security,
            audit,
            names,
            budget,
            live,
            past,
        }
    }

    pub fn all(&self) -> Vec<Arc<Incoming>> {
        self.live.lock().values().cloned().collect()
    }

    pub fn get(&self, session: SessionId) -> Option<Arc<Incoming>> {
        self.live.lock().get(&session).cloned()
    }

    /// Those that have ended.
    pub fn past(&self) -> Vec<MigrationSummary> {
        self.past.lock().clone()
    }

    /// Whether recovery of an earlier session is removing what that left of this guest.
    pub(super) fn is_going(&self, guest: &str) -> bool {
        self.recovery.is_going(guest)
    }

    /// Keeps files of a guest that left open to it at the other host, before its leftovers here are removed.
    pub(super) fn hand_files_over(&self, guest: &str) -> Result<(), JournalError> {
        self.recovery.hand_files_over(guest)
    }

    /// Recovery goes on with a session whose guest was committed.
    pub(super) fn leave_to_recovery(&self, session: SessionId, record: Record, rolled_back: bool) {
        recovery::continue_arrival(&self.recovery, session, record, rolled_back);
    }

    /// An incoming migration has ended. One that recovery goes on with is shown there.
    pub fn forget(&self, session: SessionId) {
        let ended = self.live.lock().remove(&session);
        if let Some(ended) = ended.filter(|_| self.recovery.get(session).is_none()) {
            let mut past = self.past.lock();
            past.push(ended.summary());
            let surplus = past.len().saturating_sub(ENDED_SHOWN);
            past.drain(..surplus);
        }
    }

    /// Another session that moves this guest here and is not done.
    pub fn incoming_session_of(&self, guest: &str, session: SessionId) -> Option<Arc<Incoming>> {
        let other = |one: &Arc<Incoming>| one.session != session && one.guest() == guest && !one.is_arrived();
        self.all().into_iter().find(other)
    }

    /// Names and UUIDs of the guests that are here.
    pub fn names_here(&self) -> Vec<(String, Option<String>)> {
        let records = self.registry.list().unwrap_or_default();
        let alive = records.into_iter().filter(GuestRecord::is_alive);
        alive.map(|record| (record.name.clone(), record.uuid())).collect()
    }

    /// The incoming QEMU's process goes into the journal, so that a restarted agent ends it and no other.
    pub fn note_incoming(
        &self,
        session: SessionId,
        guest: &str,
        order: u64,
        incoming: &Mutex<IncomingRecord>,
    ) -> Result<(), Fault> {
        let role = incoming.lock().clone().role(DestinationPhase::Started);
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

    /// The session that a connection belongs to; a new one for the first connection.
    pub fn session_for(
        self: &Arc<Sessions>,
        hello: &Hello,
        peer: SocketAddr,
        caller: Caller,
    ) -> Result<Arc<Incoming>, Fault> {
        let mut live = self.live.lock();
        match (live.get(&hello.session), hello.role) {
            (Some(session), _) if !session.knows(&hello.token) => {
                Err(refusal(Code::NotAuthorised, "wrong token"))
            }
            (Some(session), _) if !caller.may_join(&session.opener) => {
                Err(refusal(Code::NotAuthorised, "another host opened this session"))
            }
            // It shows the token and no certificate.
            (Some(session), _) if matches!(caller, Caller::Rdma) && session.opener_is_revoked() => {
                Err(refusal(Code::NotAuthorised, "the host that opened this session was revoked"))
            }
            (Some(session), Role::ControlJoin | Role::Data | Role::ReverseData) => Ok(session.clone()),
            (Some(_), _) => Err(refusal(Code::ProtocolViolation, "this session exists already")),
            (None, Role::ControlNew) if !caller.may_begin() => {
                Err(refusal(Code::ProtocolViolation, "sessions begin over TCP"))
            }
            (None, Role::ControlNew) => {
                let known = self.journal.get(hello.session);
                let known = known.map_err(|error| {
                    fault(Code::JournalFailed, Step::Authorise, Side::Destination, &error)
                })?;
                if known.is_some() {
                    return Err(refusal(Code::ProtocolViolation, "this session was here before"));
                }
                check_room(&live, &caller, peer)?;
                let Hello { session, token, .. } = *hello;
                let identity = Identity::new(session, token, &self.security);
                let session = Incoming::start(self, identity, peer, caller.name())
                    .map_err(|error| fault(Code::Internal, Step::Authorise, Side::Destination, &error))?;
                live.insert(hello.session, session.clone());
                // Only now: a measurement that begins later knows of it.
                self.bench.yield_to_migration();
                Ok(session)
            }
            (None, _) => Err(refusal(Code::SessionUnknown, "")),
        }
    }

    /// The answer to a source that asks: of the live session first, then of recovery, then of the journal.
    pub fn outcome(&self, session: SessionId) -> Outcome {
        self.answer(session, Incoming::outcome, Unfinished::outcome)
    }

    /// The answer to a source that is about to resume its guest. Both state machines keep that it is. `waits`: it knows
    /// that the guest is committed here, and keeps its own paused.
    pub fn source_resumes(&self, session: SessionId, waits: bool) -> Outcome {
        match self.answer(session, Incoming::source_resumes, |one| one.source_resumes(waits)) {
            // Its record was lost or forgotten, and the guest is here.
            Outcome::Unknown if self.has_guest_of(session) => Outcome::Pending,
            outcome => outcome,
        }
    }

    /// Whether a guest that runs here, or could, came in this session. What cannot be read may be one.
    fn has_guest_of(&self, session: SessionId) -> bool {
        let came = |guest: &GuestRecord| guest.session.as_deref() == Some(&session.to_string());
        self.registry.list().map_or(true, |all| all.iter().any(|guest| came(guest) && guest.is_alive()))
    }

    fn answer(
        &self,
        session: SessionId,
        of_live: impl Fn(&Incoming) -> Outcome,
        of_unfinished: impl Fn(&Unfinished) -> Option<Outcome>,
    ) -> Outcome {
        let live = self.get(session).map(|live| of_live(&live));
        if let Some(outcome) = live.filter(|outcome| *outcome != Outcome::Committed) {
            return outcome;
        }
        if let Some(outcome) = self.recovery.get(session).and_then(|one| of_unfinished(&one)) {
            return outcome;
        }
        self.journalled(session, live).unwrap_or_else(|error| {
            tracing::error!(error = chain(&error), "the journal cannot be read");
            Outcome::Pending
        })
    }

    fn journalled(&self, session: SessionId, live: Option<Outcome>) -> Result<Outcome, JournalError> {
        // All records are read only for a session that is there: others may ask about any number of them.
        let Some(entry) = self.journal.get(session)?.and_then(|record| record.entry(session)) else {
            return Ok(Outcome::Unknown);
        };
        let all = self.journal.all()?;
        let entries: Vec<Entry> = all.iter().filter_map(|(id, record)| record.entry(*id)).collect();
        Ok(from_journal(&entry, &entries, live))
    }
}

/// A session's outcome by the journal. `live`: the live session's own outcome; whether its process is alive is checked
/// here.
fn from_journal(entry: &Entry, all: &[Entry], live: Option<Outcome>) -> Outcome {
    let Phase::Destination(phase) = entry.phase else { return Outcome::Unknown };
    let fate = process_fate(entry, all, can_run);
    let found = match live {
        Some(Outcome::Committed) if fate == ProcessFate::Ended => Outcome::Gone,
        Some(outcome) => outcome,
        None => outcome(Some(phase), fate),
    };
    match found {
        // It does not run any more, and still has its files.
        Outcome::Gone if entry.process.as_ref().is_some_and(is_alive) => Outcome::Pending,
        found => found,
    }
}

/// Whether one more guest may arrive at the same time.
fn check_room(
    live: &BTreeMap<SessionId, Arc<Incoming>>,
    caller: &Caller,
    peer: SocketAddr,
) -> Result<(), Fault> {
    let Caller::Tcp(opener) = caller else { return Ok(()) };
    let of_host = || live.values().filter(|one| one.comes_from(opener, peer));
    // A guest that is here takes no more of the links, and its session ends in a moment.
    let arriving = of_host().filter(|one| !one.is_arrived()).count();
    if arriving >= LIVE_OF_ONE_HOST || of_host().count() >= OPEN_OF_ONE_HOST {
        let detail =
            format!("{arriving} guests arrive from that host already: try again when one of them is here");
        return Err(refusal(Code::GuestBusy, &detail));
    }
    if live.len() >= LIVE_MAX {
        let detail = format!("{} guests arrive already: try again when one of them is here", live.len());
        return Err(refusal(Code::GuestBusy, &detail));
    }
    Ok(())
}

fn refusal(code: Code, detail: &str) -> Fault {
    Fault::new(code, Step::Authorise, Side::Destination, detail)
}
