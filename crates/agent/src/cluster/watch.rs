//! The running agent: it takes up files that change, listens accordingly, and keeps its certificate and lists new.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_api::{HostIdentity, SecurityState};
use linerate_lock::Mutex;
use linerate_net::interfaces;
use linerate_net::tcp::listen::{Accepted, ListenError, ListenOptions, Listener, OnRefusal};
use linerate_net::tcp::options::TcpOptions;
use linerate_trust::authority::renewal_due;
use linerate_trust::certificate::utc;
use linerate_trust::identity::{Identity, IdentityError};
use linerate_trust::tls::ConfigError;
use linerate_trust::token::{StoreError, Tokens};
use rustls_pki_types::UnixTime;

use super::join_server::{Host, JoinServer};
use super::operations::own_revocations;
use super::renewal::{exchange_with_authority, renew_at};
use super::spread::Spread;
use super::{ClusterError, has_own_authority, is_authoritys_host, read_addresses, rotation};
use crate::audit::Audit;
use crate::config::Config;
use crate::faults::chain;
use crate::own_addresses;
use crate::security::{Security, no_identity};
use crate::session::offer;

/// Files that a command has changed are found within this, also if it does not say so.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often ports are looked at that may have got their addresses after the agent's start.
const PORTS_INTERVAL: Duration = Duration::from_secs(30);
/// How often the authority is asked for a newer revocation list.
const QUESTION_INTERVAL: Duration = Duration::from_secs(300);
/// How often a renewal that failed is tried again.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(3600);
/// How often an operator is told that it fails.
const WARNING_INTERVAL: Duration = Duration::from_secs(24 * 3600);

type Accept = dyn Fn(Accepted) + Send + Sync;

/// What looks at the identity's files, and binds the ports that these allow.
pub(crate) struct Watch {
    config: Arc<Config>,
    security: Arc<Security>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Who gets a connection; `None` before the start.
    accept: Option<Arc<Accept>>,
    /// Called for peers that are refused in the handshake.
    on_refusal: Option<OnRefusal>,
    /// Where hosts that join are written down; `None` before the start.
    audit: Option<Arc<Audit>>,
    listener: Option<Listener>,
    /// It listens: at all addresses, or at those of loopback alone. `None` before the start.
    listening: Option<bool>,
    /// Of the identity's files, as they were read last.
    files: Vec<Option<Stamp>>,
    /// The files changed when they were looked at last.
    look_again: bool,
    join: Option<JoinServer>,
    /// What could not be done, so that it is told once.
    reported: String,
    /// Why the identity's files are not in force as they are.
    not_taken_up: Option<String>,
    /// Why newer revocation lists are not in force here.
    lists: Option<String>,
    /// Which ports are not answered at, with `listen_auto`.
    unanswered: Option<String>,
}

/// What could not be taken up. The texts have their causes.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("the changed identity is not used, the former one still is: {0}")]
    Changed(IdentityError),
    /// There was none before.
    #[error("the identity in {} is not used: {error}", .folder.display())]
    New { folder: PathBuf, error: Box<IdentityError> },
    #[error("{0}")]
    Tls(ConfigError),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("no host can join: {0}")]
    Tokens(StoreError),
    #[error("no host can join: `listen` and `join_listen` name no address")]
    NoJoinAddress,
    #[error("no host can join: {0}")]
    JoinServer(Box<ClusterError>),
}

/// A file that was replaced has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    changed_ns: (i64, i64),
}

fn stamps(files: &[PathBuf]) -> Vec<Option<Stamp>> {
    let stamp = |file: &PathBuf| {
        let about = std::fs::metadata(file).ok()?;
        let changed_ns = (about.ctime(), about.ctime_nsec());
        Some(Stamp { inode: about.ino(), bytes: about.size(), changed_ns })
    };
    files.iter().map(stamp).collect()
}

impl Watch {
    pub fn new(config: Arc<Config>, security: Arc<Security>) -> Watch {
        let files = security.identity().map(|identity| stamps(&identity.files())).unwrap_or_default();
        Watch { config, security, state: Mutex::new(State { files, ..State::default() }) }
    }

    /// Listens, and looks at the files from now on, until [`stop`](Watch::stop).
    pub fn start(
        self: &Arc<Self>,
        accept: impl Fn(Accepted) + Send + Sync + 'static,
        on_refusal: OnRefusal,
        audit: Arc<Audit>,
    ) -> Result<(), ListenError> {
        if self.config.listen.is_empty() {
            tracing::warn!("`listen` names no address: guests can leave this host and none can arrive");
        }
        {
            let mut state = self.state.lock();
            state.accept = Some(Arc::new(accept));
            (state.on_refusal, state.audit) = (Some(on_refusal), Some(audit));
            self.listen(&mut state)?;
        }
        Spread::start(&self.config, &self.security);
        let (looking, keeping) = (self.clone(), self.clone());
        spawn("identity", move || {
            let mut ports_due = Instant::now();
            loop {
                looking.look();
                if Instant::now() >= ports_due {
                    looking.look_at_ports();
                    ports_due = Instant::now() + PORTS_INTERVAL;
                }
                std::thread::sleep(INTERVAL);
            }
        });
        spawn("membership", move || keeping.keep());
        Ok(())
    }

    /// Takes no more connections.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        (state.accept, state.listener, state.join) = (None, None, None);
    }

    /// What changed since it was looked at last is in force when this returns.
    pub fn look(&self) {
        let mut state = self.state.lock();
        let taken_up = self.look_at_identity(&mut state);
        state.not_taken_up = taken_up.as_ref().err().map(|error| chain(error));
        let looked = taken_up.and_then(|()| {
            self.listen(&mut state)?;
            self.open_or_close_join(&mut state)
        });
        let problem = looked.err().map(|error| chain(&error)).unwrap_or_default();
        if problem != state.reported && !problem.is_empty() {
            tracing::warn!("{problem}");
        }
        state.reported = problem;
    }

    /// Addresses at which connections from other agents are taken now.
    pub fn listens_at(&self) -> Vec<SocketAddr> {
        let bound = self.bound();
        let absent = absent(&bound);
        bound.into_iter().filter(|address| !absent.contains(address)).collect()
    }

    /// The same, with those that no port of this host has now.
    pub(super) fn bound(&self) -> Vec<SocketAddr> {
        self.state.lock().listener.as_ref().map(|one| one.addresses().to_vec()).unwrap_or_default()
    }

    /// Addresses at which hosts can join now.
    pub fn joins_at(&self) -> Vec<SocketAddr> {
        self.state.lock().join.as_ref().map(|one| one.addresses().to_vec()).unwrap_or_default()
    }

    /// What could not be taken up.
    fn problem(&self) -> Option<String> {
        Some(self.state.lock().reported.clone()).filter(|problem| !problem.is_empty())
    }

    /// The addresses of `listen_auto` are those of the agent's start.
    fn look_at_ports(&self) {
        if !self.config.listen_auto {
            return;
        }
        let late = own_addresses::unanswered(&self.config.listen).unwrap_or_default();
        let text = format!(
            "{} got an address after the agent's start, and is not answered at: `systemctl restart linerate-agent`",
            late.join(", ")
        );
        let text = Some(text).filter(|_| !late.is_empty());
        let mut state = self.state.lock();
        if let Some(text) = text.as_ref().filter(|_| text != state.unanswered) {
            tracing::warn!("{text}");
        }
        state.unanswered = text;
    }

    fn look_at_identity(&self, state: &mut State) -> Result<(), LookError> {
        if self.security.tls().is_none() {
            return Ok(());
        }
        let Some(identity) = self.security.identity() else {
            let folder = self.config.identity_folder();
            if !Identity::exists(&folder) {
                return Ok(());
            }
            let found =
                Identity::open(&folder).map_err(|error| LookError::New { folder, error: Box::new(error) })?;
            state.files = stamps(&found.files());
            return self.security.take_up(found).map_err(LookError::Tls);
        };
        let now = stamps(&identity.files());
        if now == state.files {
            // Once more: a handshake may have ended with the list of before.
            if std::mem::take(&mut state.look_again) {
                self.end_revoked();
            }
            return Ok(());
        }
        identity.reload().map_err(LookError::Changed)?;
        state.files = now;
        state.look_again = true;
        self.end_revoked();
        tracing::info!(name = %identity.name(), ends = utc(&identity.not_after()), "the identity was read again");
        Ok(())
    }

    fn end_revoked(&self) {
        match self.security.end_revoked() {
            0 => {}
            count => tracing::warn!(count, "connections of hosts that were revoked are ended"),
        }
    }

    /// Without an identity other hosts reach nothing of this agent.
    fn listen(&self, state: &mut State) -> Result<(), ListenError> {
        let Some(accept) = state.accept.clone() else { return Ok(()) };
        let everywhere = self.security.is_ready();
        if state.listening == Some(everywhere) {
            return Ok(());
        }
        let wanted = self.config.listen.iter().filter(|address| everywhere || address.ip().is_loopback());
        let wanted: Vec<SocketAddr> = wanted.copied().collect();
        // Addresses that stay are bound anew.
        (state.listener, state.listening) = (None, None);
        if !wanted.is_empty() {
            let tls = self.security.tls().cloned();
            let tcp = TcpOptions { tls, ..TcpOptions::default() };
            let on_refusal = state.on_refusal.clone();
            // A port that has failed, or gets its address later, keeps the agent from no other port.
            let options = ListenOptions { tcp, on_refusal, may_be_absent: true, ..ListenOptions::default() };
            state.listener = Some(Listener::start(&wanted, options, move |accepted| accept(accepted))?);
        }
        state.listening = Some(everywhere);
        if everywhere {
            tracing::info!(listen = ?wanted, "connections from other agents are taken");
        }
        let absent = absent(&wanted);
        if !absent.is_empty() {
            tracing::warn!(
                ?absent,
                "no port of this host has these addresses now: connections are taken there once one has"
            );
        }
        Ok(())
    }

    fn open_or_close_join(&self, state: &mut State) -> Result<(), LookError> {
        let folder = self.config.authority_folder();
        let identity = self.security.identity().filter(|_| self.config.certificate.is_none());
        let identity = identity.filter(|_| state.accept.is_some() && is_authoritys_host(&folder));
        let (Some(identity), Some(audit)) = (identity, state.audit.clone()) else {
            state.join = None;
            return Ok(());
        };
        let open = Tokens::open_until(&folder, UnixTime::now());
        match (open.map_err(LookError::Tokens)?, &state.join) {
            (Some(until), None) => {
                let addresses = self.config.join_addresses();
                if addresses.is_empty() {
                    return Err(LookError::NoJoinAddress);
                }
                let agents = self.config.listen.clone();
                let host = Host { authority: folder, identity, agents, audit };
                let server = JoinServer::start(&addresses, host)
                    .map_err(|error| LookError::JoinServer(Box::new(error)))?;
                tracing::info!(addresses = ?server.addresses(), until = utc(&until), "hosts can join");
                state.join = Some(server);
            }
            (None, Some(_)) => {
                state.join = None;
                tracing::info!("no token can be used any more: hosts cannot join");
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        Ok(())
    }

    fn keep(&self) {
        let mut due = Due::default();
        loop {
            std::thread::sleep(INTERVAL);
            if self.config.ignores_identity().is_some() {
                return;
            }
            if let Some(identity) = self.security.identity() {
                self.attend(&identity, &mut due, UnixTime::now(), Instant::now());
            }
        }
    }

    /// Takes newer revocation lists, from the authority's agent or from the authority here. True if there was one.
    pub(super) fn take_newer_lists(&self, identity: &Identity) -> Result<bool, ClusterError> {
        rotation::finish_interrupted(&self.config, identity)?;
        if has_own_authority(&self.config.authority_folder(), identity) {
            return own_revocations(&self.config, identity);
        }
        let addresses = read_addresses(&self.config.identity_folder());
        Ok(exchange_with_authority(&self.config, identity, &addresses, UnixTime::now())?.newer)
    }

    /// Asks the authority for what is due.
    fn attend(&self, identity: &Identity, due: &mut Due, now: UnixTime, clock: Instant) {
        let addresses = read_addresses(&self.config.identity_folder());
        if due.question.is_none_or(|due| clock >= due) {
            due.question = Some(clock + QUESTION_INTERVAL);
            match self.take_newer_lists(identity) {
                Ok(newer) => {
                    self.state.lock().lists = None;
                    if newer {
                        tracing::info!("a newer revocation list is in force");
                    }
                }
                Err(error) if is_of_the_authoritys_host(&error) => {
                    tracing::debug!(%error, "the authority was not asked for its revocation list");
                }
                Err(error) => {
                    let text = format!(
                        "newer revocation lists are not in force here, so that a revoked host may be welcome: {}",
                        chain(&error)
                    );
                    tracing::warn!("{text}");
                    self.state.lock().lists = Some(text);
                }
            }
        }
        if now < renewal_due(identity.not_after()) || due.renewal.is_some_and(|due| clock < due) {
            return;
        }
        due.renewal = Some(clock + RENEWAL_INTERVAL);
        match renew_at(&self.config, identity, &addresses, now) {
            Ok(()) => {
                tracing::info!(ends = utc(&identity.not_after()), "this host's certificate was renewed");
                due.warning = None;
            }
            Err(error) if due.warning.is_none_or(|due| clock >= due) => {
                due.warning = Some(clock + WARNING_INTERVAL);
                let ends = utc(&identity.not_after());
                tracing::warn!(%error, "this host's certificate ends on {ends} and could not be renewed");
            }
            Err(error) => tracing::debug!(%error, "this host's certificate could not be renewed"),
        }
    }

    /// State of the protection, and the certificate's end, for `linerate status`.
    pub fn status(&self) -> Status {
        let identity = self.security.identity();
        let (state, advice) = match (self.security.tls(), &identity) {
            (None, _) => (
                SecurityState::Insecure,
                Some(
                    "connections between agents are plain text, and every host that reaches them may send guests".into(),
                ),
            ),
            (Some(_), None) => (SecurityState::NoIdentity, Some(no_identity(&self.config))),
            (Some(_), Some(identity)) => {
                let refused = identity.check_own(UnixTime::now()).err().map(|error| error.to_string());
                (SecurityState::Tls, refused)
            }
        };
        let identity = identity.map(|identity| HostIdentity {
            cluster: identity.name().cluster.to_string(),
            host: identity.name().host.to_string(),
            ends_unix_ms: identity.not_after().as_secs().saturating_mul(1000),
        });
        let (not_taken_up, lists, unanswered) = {
            let state = self.state.lock();
            (state.not_taken_up.clone(), state.lists.clone(), state.unanswered.clone())
        };
        let advice = self.problem().or(lists).or(advice).or(unanswered);
        Status { state, advice, identity, not_taken_up }
    }
}

/// Whether the authority's host is the reason: it is down, or this host does not reach it. Others give their lists.
fn is_of_the_authoritys_host(error: &ClusterError) -> bool {
    use ClusterError::{Asked, Form, NoAddresses, Refused};
    matches!(error, Asked(_) | Form { .. } | NoAddresses | Refused { .. })
}

/// What an operator is shown.
pub(crate) struct Status {
    pub state: SecurityState,
    pub advice: Option<String>,
    pub identity: Option<HostIdentity>,
    pub not_taken_up: Option<String>,
}

/// Addresses that no port of this host has now.
fn absent(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let Ok(interfaces) = interfaces::list() else { return Vec::new() };
    let is_absent = |address: &SocketAddr| offer::interface(&interfaces, address.ip()).is_none();
    addresses.iter().copied().filter(is_absent).collect()
}

/// When what is done next. `None`: at once.
#[derive(Default)]
struct Due {
    question: Option<Instant>,
    renewal: Option<Instant>,
    warning: Option<Instant>,
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(body) {
        tracing::error!(%error, "cannot start a thread to look after this host's identity");
    }
}

#[cfg(test)]
mod tests {
    use linerate_trust::authority::RENEWAL_AGE;

    use super::super::tests::{agent, first, join_at, site};
    use super::super::{operations, write_addresses};
    use super::*;

    /// Its disk takes nothing. A host that is revoked would be welcome, and nobody would know.
    #[test]
    fn a_revocation_list_that_is_not_in_force_is_shown() {
        let (one, two) = (first(), site("two", ""));
        let server = one.server();
        join_at(&two, &server, &one.token()).unwrap();
        join_at(&site("three", ""), &server, &one.token()).unwrap();
        operations::revoke_host(&one.config, "three").unwrap();
        let watch = Watch::new(two.config.clone(), Security::open(&two.config).unwrap());
        let (identity, clock, mut due) = (two.identity(), Instant::now(), Due::default());
        let (folder, now) = (two.config.identity_folder(), UnixTime::now());
        let (_closed, nobody) = crate::testing::closed_port();
        write_addresses(&folder, &[nobody]).unwrap();
        watch.attend(&identity, &mut due, now, clock);
        assert_eq!(watch.status().advice, None, "the authority's host is down");
        let answers = agent(&one, now);
        write_addresses(&folder, answers.addresses()).unwrap();
        let in_the_way = folder.join(".trust.pem.new");
        std::fs::create_dir(&in_the_way).unwrap();
        watch.attend(&identity, &mut due, now, clock + QUESTION_INTERVAL);
        let advice = watch.status().advice.unwrap_or_default();
        assert!(advice.contains("revocation lists are not in force here"), "{advice}");
        std::fs::remove_dir(&in_the_way).unwrap();
        watch.attend(&identity, &mut due, now, clock + 2 * QUESTION_INTERVAL);
        assert_eq!(watch.status().advice, None);
    }

    #[test]
    fn ports_that_got_their_addresses_too_late_are_shown() {
        let one = first();
        let watch = Watch::new(one.config.clone(), Security::open(&one.config).unwrap());
        watch.look_at_ports();
        assert_eq!(watch.status().advice, None, "`listen` names each address");
        watch.state.lock().unanswered = Some("eth2 is late".into());
        assert_eq!(watch.status().advice.as_deref(), Some("eth2 is late"));
    }

    /// The agent's own loop, at times that the test chooses.
    #[test]
    fn the_agent_renews_by_itself_from_day_thirty_on_and_tries_again_each_hour() {
        let (one, two) = (first(), site("two", ""));
        join_at(&two, &one.server(), &one.token()).unwrap();
        let watch = Watch::new(two.config.clone(), Security::open(&two.config).unwrap());
        let identity = watch.security.identity().unwrap();
        let (serial, clock, mut due) = (identity.serial(), Instant::now(), Due::default());
        let folder = two.config.identity_folder();
        // Nobody answers there.
        let (_closed, nobody) = crate::testing::closed_port();
        write_addresses(&folder, &[nobody]).unwrap();
        watch.attend(&identity, &mut due, UnixTime::now(), clock);
        assert!(due.renewal.is_none(), "too early");
        let later = UnixTime::now().as_secs() + RENEWAL_AGE.as_secs() + 60;
        let later = UnixTime::since_unix_epoch(Duration::from_secs(later));
        watch.attend(&identity, &mut due, later, clock);
        assert_eq!((due.renewal, due.warning.is_some()), (Some(clock + RENEWAL_INTERVAL), true));
        let answers = agent(&one, later);
        write_addresses(&folder, answers.addresses()).unwrap();
        watch.attend(&identity, &mut due, later, clock + RENEWAL_INTERVAL - INTERVAL);
        assert_eq!(identity.serial(), serial, "not within the hour");
        watch.attend(&identity, &mut due, later, clock + RENEWAL_INTERVAL);
        assert_ne!(identity.serial(), serial);
        assert!(due.warning.is_none(), "the next failure is reported");
    }
}
