//! Who this host is to other agents, how connections with them are protected, and what each of them may do.

use std::net::SocketAddr;
use std::sync::Arc;

use linerate_core::{Code, Fault, Side, Step};
use linerate_lock::Mutex;
use linerate_net::tls::Tls;
use linerate_trust::grants::Grants;
use linerate_trust::identity::{Identity, IdentityError};
use linerate_trust::name::HostName;
use linerate_trust::peer::{PeerError, Side as PeerSide};
use linerate_trust::roles::{Permission, Policy};
use linerate_trust::tls::ConfigError as TlsConfigError;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::config::{Config, Protection, RdmaNetwork};

mod parts;

use parts::Parts;
pub(crate) use parts::{REVOKED, SessionPart};

/// Why connections cannot be protected as configured.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    #[error("the certificate of this host cannot be used")]
    Identity(#[from] IdentityError),
    #[error("TLS cannot be set up")]
    Tls(#[from] TlsConfigError),
}

/// Whether a certificate is refused for the time alone: it was good, or will be.
fn is_of_its_time(error: &PeerError) -> bool {
    matches!(error, PeerError::Expired(_) | PeerError::NotYetValid(_) | PeerError::Revoked)
}

/// The name of a host that proved it; `None` in plain text, where no host proves anything.
pub(crate) type PeerName = Option<HostName>;

/// What a host's share of something is counted by: its name, or its address where it proves none.
pub(crate) fn counted_as(name: &PeerName, peer: SocketAddr) -> String {
    name.as_ref().map_or_else(|| peer.ip().to_string(), ToString::to_string)
}

/// What is granted to one host.
pub(crate) struct HostGrants<'a> {
    pub host: &'a HostName,
    pub grants: &'a Grants,
    /// Where an operator reads and changes it in agent.toml.
    pub table: String,
}

/// The one host that connections of a session go to, and what protects them.
pub(crate) struct Pinned {
    pub host: HostName,
    pub tls: Tls,
}

fn refused(text: String) -> Fault {
    Fault::new(Code::NotAuthorised, Step::Authorise, Side::Source, text)
}

/// Who opened a connection.
pub(crate) enum Caller {
    /// Over TCP: what its handshake proved.
    Tcp(PeerName),
    /// Over RDMA, which proves nothing but the session's token.
    Rdma,
}

impl Caller {
    /// Whether it may join a session that this host opened.
    pub fn may_join(&self, opener: &PeerName) -> bool {
        match self {
            Caller::Tcp(name) => name == opener,
            Caller::Rdma => true,
        }
    }

    /// Whether it may begin a session: its permissions were looked at.
    pub fn may_begin(&self) -> bool {
        matches!(self, Caller::Tcp(_))
    }

    /// Its name, if it has proved one.
    pub fn name(self) -> PeerName {
        match self {
            Caller::Tcp(name) => name,
            Caller::Rdma => None,
        }
    }
}

/// Identity and grants of this host, for connections that it opens and accepts.
#[derive(Debug)]
pub struct Security {
    /// `None` for plain text.
    protection: Option<Protected>,
    policy: Policy,
    rdma: RdmaNetwork,
}

/// What TLS needs: this host's identity, once there is one, and the configurations made of it.
#[derive(Debug)]
struct Protected {
    /// `None` until this host has joined a cluster. Every handshake fails until then.
    identity: Mutex<Option<Identity>>,
    tls: Tls,
    /// What ends with TLS connections when a host is revoked.
    parts: Parts,
}

impl Protected {
    /// Every handshake fails until an identity is taken up.
    fn new() -> Protected {
        Protected { identity: Mutex::default(), tls: Tls::without_identity(), parts: Parts::default() }
    }
}

impl Security {
    /// Connections in plain text.
    pub(crate) fn insecure() -> Arc<Security> {
        Arc::new(Security { protection: None, policy: Policy::default(), rdma: RdmaNetwork::default() })
    }

    /// As configured. Refuses an operator's certificate that other hosts never accept. With one that has ended, has not
    /// begun by this host's clock, or was revoked, the agent starts: what is open must be brought to its end. The files
    /// can be replaced while it runs.
    pub(crate) fn open(config: &Config) -> Result<Arc<Security>, SecurityError> {
        if config.security == Some(Protection::Insecure) {
            tracing::warn!(
                "security = \"insecure\": connections between agents are plain text, and every host that reaches \
                 `listen` may send guests"
            );
            return Ok(Security::insecure());
        }
        let security = Security {
            protection: Some(Protected::new()),
            policy: config.peers.clone(),
            rdma: config.rdma_network,
        };
        if let Some(files) = &config.certificate {
            let identity = Identity::open_pem(files.clone())?;
            match identity.check_own(UnixTime::now()) {
                Err(IdentityError::Own(error)) if is_of_its_time(&error) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => {}
            }
            security.take_up(identity)?;
        } else if Identity::exists(&config.identity_folder()) {
            security.take_up(Identity::open(&config.identity_folder())?)?;
        } else {
            tracing::warn!("{}", no_identity(config));
        }
        Ok(Arc::new(security))
    }

    /// Every handshake from now on has this identity. In plain text nothing has one.
    pub(crate) fn take_up(&self, identity: Identity) -> Result<(), TlsConfigError> {
        let Some(protected) = &self.protection else { return Ok(()) };
        let (client, server) =
            (linerate_trust::tls::client(&identity, None)?, linerate_trust::tls::server(&identity)?);
        let name = identity.name();
        if let Err(error) = identity.check_own(UnixTime::now()) {
            tracing::error!(%name, %error, "other hosts will refuse this host");
        }
        *protected.identity.lock() = Some(identity);
        protected.tls.set(client, server);
        tracing::info!(%name, "connections between agents are protected by TLS");
        Ok(())
    }

    /// Who this host is; `None` in plain text, and before it has joined.
    pub(crate) fn identity(&self) -> Option<Identity> {
        self.protection.as_ref()?.identity.lock().clone()
    }

    /// Ends the connections of hosts that were revoked meanwhile, whatever they carry, and the parts of their sessions.
    /// How many there were.
    pub(crate) fn end_revoked(&self) -> usize {
        let (Some(protected), Some(identity)) = (&self.protection, self.identity()) else { return 0 };
        // Only that counts: a certificate that has ended, or whose authority leaves, was good when the connection was
        // made. Parts first: they know the reason, and a connection that is closed does not.
        let parts = protected.parts.end(|chain| identity.is_revoked(chain));
        parts + protected.tls.end_connections(|chain, _| identity.is_revoked(chain))
    }

    /// Whether the host with these certificates was revoked. Never in plain text.
    pub(crate) fn is_revoked(&self, chain: &[CertificateDer<'static>]) -> bool {
        self.identity().is_some_and(|identity| identity.is_revoked(chain))
    }

    /// Ends a part of a session when the host with these certificates is revoked, and now if it is revoked already.
    pub(crate) fn end_with_peer(&self, chain: &[CertificateDer<'static>], part: Arc<dyn SessionPart>) {
        let Some(protected) = &self.protection else { return };
        protected.parts.add(chain, &part);
        // Only now: of a list that comes into force meanwhile, one of the two sees the other.
        if self.is_revoked(chain) {
            part.peer_revoked();
        }
    }

    /// Connections from other hosts can be taken: they prove who they are, or the operator has chosen that they need
    /// not.
    pub(crate) fn is_ready(&self) -> bool {
        self.protection.as_ref().is_none_or(|protected| protected.identity.lock().is_some())
    }

    /// What connections to other agents are protected with; `None` for plain text.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.protection.as_ref().map(|protected| &protected.tls)
    }

    /// Whether RDMA may be used: the agents cannot encrypt it.
    pub(crate) fn allows_rdma(&self) -> bool {
        self.protection.is_none() || self.rdma == RdmaNetwork::Trusted
    }

    /// What the further connections of a session are protected with: only the host that its first one reached may take
    /// them. Refuses a host that does not have what it `needs`. `None` in plain text.
    pub(crate) fn pin(
        &self,
        chain: &[CertificateDer<'static>],
        needs: Option<Permission>,
    ) -> Result<Option<Pinned>, Fault> {
        if self.protection.is_none() {
            return Ok(None);
        }
        let identity = self.identity().ok_or_else(|| refused("this host has no identity".to_owned()))?;
        let peer = identity.verify(chain, PeerSide::Server, None, UnixTime::now());
        let host = peer.map_err(|error| refused(error.to_string()))?.host;
        if let Some(permission) = needs {
            self.policy.check(&host, permission).map_err(|error| refused(error.to_string()))?;
        }
        self.pin_to(host).map(Some)
    }

    /// What connections to that host, and no other, are protected with. Refused in plain text, where nobody can prove
    /// to be it.
    pub(crate) fn pin_to(&self, host: HostName) -> Result<Pinned, Fault> {
        let Some(protected) = &self.protection else {
            let text = format!(
                "the session is with host {host}, which proved that by TLS, and this agent has security = \
                 \"insecure\": nobody who answers could prove it"
            );
            return Err(refused(text));
        };
        let identity = self.identity().ok_or_else(|| refused("this host has no identity".to_owned()))?;
        let pinned = || {
            let client = linerate_trust::tls::client(&identity, Some(host.clone()))?;
            let tls = protected.tls.with_configurations(client, linerate_trust::tls::server(&identity)?);
            Ok(Pinned { host: host.clone(), tls })
        };
        pinned().map_err(|error: TlsConfigError| refused(error.to_string()))
    }

    /// Who opened a connection, by the certificates that it showed. A peer that was revoked since its handshake is
    /// refused.
    pub(crate) fn peer(&self, chain: &[CertificateDer<'static>]) -> Result<PeerName, PeerError> {
        if self.protection.is_none() {
            return Ok(None);
        }
        let identity = self.identity().ok_or(PeerError::NoCertificate)?;
        Ok(Some(identity.verify(chain, PeerSide::Client, None, UnixTime::now())?.host))
    }

    /// What guests of that host, and its tunnels, may open here; `None` where grants are not used.
    pub(crate) fn grants<'a>(&'a self, peer: &'a PeerName) -> Option<HostGrants<'a>> {
        let host = peer.as_ref()?;
        let grants = self.policy.grants(host)?;
        Some(HostGrants { host, grants, table: self.policy.grants_table(host) })
    }

    /// Whether that host may do this here. In plain text every host may.
    pub(crate) fn permit(&self, peer: &PeerName, permission: Permission) -> Result<(), Fault> {
        let Some(host) = peer else { return Ok(()) };
        let denied = |text: String| Fault::new(Code::NotAuthorised, Step::Authorise, Side::Destination, text);
        self.policy.check(host, permission).map_err(|error| denied(error.to_string()))
    }
}

/// What an agent without an identity says.
pub(crate) fn no_identity(config: &Config) -> String {
    format!(
        "this host is in no cluster (no identity in {}): other hosts cannot reach its agent. Run `linerate cluster init` on \
         the first host, and on each other `linerate join` with a token of it",
        config.identity_folder().display()
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use linerate_trust::authority::{Authority, Grounds};
    use linerate_trust::bundle::Bundle;
    use linerate_trust::name::Name;
    use linerate_trust::request::{NewKey, Request};
    use rustls_pki_types::pem::PemObject;

    use super::*;
    use crate::testing::authority;

    /// A host of this name, with a certificate of the authority.
    pub(crate) fn member(
        authority: &mut Authority,
        folder: &Path,
        name: &str,
        policy: &str,
    ) -> Arc<Security> {
        let identity = installed(authority, folder, name, UnixTime::now());
        let security = Security {
            protection: Some(Protected::new()),
            policy: toml::from_str(policy).unwrap(),
            rdma: RdmaNetwork::Untrusted,
        };
        security.take_up(identity).unwrap();
        Arc::new(security)
    }

    /// A host's files, with a certificate that was made then.
    fn installed(authority: &mut Authority, folder: &Path, name: &str, made: UnixTime) -> Identity {
        let name = Name { cluster: authority.cluster().clone(), host: name.parse().unwrap() };
        let key = NewKey::make(name).unwrap();
        let request = Request::read(&key.request().unwrap()).unwrap();
        let certificate = authority.issue(&request, &Grounds::Own, made).unwrap();
        let bundle = Bundle::new(vec![authority.certificate().clone()]).unwrap();
        Identity::install(folder, &key, &certificate, &bundle, authority.id(), made).unwrap()
    }

    /// The agent of a host with an operator's certificate, which was made then, as it starts.
    fn opened(dir: &Path, made: UnixTime) -> Arc<Security> {
        let mut authority = Authority::create(&dir.join("authority"), &"lab".parse().unwrap(), made).unwrap();
        installed(&mut authority, &dir.join("a"), "a", made);
        Security::open(&operators(&dir.join("a"), &dir.join("a"))).unwrap()
    }

    /// `[certificate]` with a host's files, and whom it trusts.
    fn operators(host: &Path, trust: &Path) -> Config {
        let (host, trust) = (host.join("host.pem"), trust.join("trust.pem"));
        let text = format!(
            "[certificate]\ncluster = \"lab\"\ncertificate = {host:?}\nkey = {host:?}\nauthorities = {trust:?}\n"
        );
        toml::from_str(&text).unwrap()
    }

    /// Otherwise a guest that waits for the agent would stay paused.
    #[test]
    fn an_agent_starts_although_its_operators_certificate_has_ended_or_not_begun() {
        let now = UnixTime::now().as_secs();
        let hundred_days = 100 * 24 * 3600;
        for (made, why) in [(now - hundred_days, "ended on"), (now + hundred_days, "begins on")] {
            let dir = tempfile::tempdir().unwrap();
            let security = opened(dir.path(), UnixTime::since_unix_epoch(Duration::from_secs(made)));
            let refused = security.identity().unwrap().check_own(UnixTime::now()).unwrap_err();
            assert!(refused.to_string().contains(why), "{refused}");
        }
    }

    #[test]
    fn an_agent_does_not_start_with_an_operators_certificate_of_another_authority() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        let now = UnixTime::now();
        opened(&one, now);
        opened(&other, now);
        let refused = Security::open(&operators(&one.join("a"), &other.join("a"))).unwrap_err();
        let SecurityError::Identity(IdentityError::Own(refused)) = refused else { panic!("{refused:?}") };
        assert_eq!(refused, PeerError::UnknownAuthority);
    }

    /// What a [`member`] with this folder proves itself with.
    pub(crate) fn certificates(folder: &Path) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from_pem_slice(&std::fs::read(folder.join("host.pem")).unwrap()).unwrap()]
    }

    /// The authority revokes a host, and `here` has the list and acts on it.
    pub(crate) fn revoke(authority: &mut Authority, host: &str, here: &Security) {
        accept_list(authority, host, here);
        here.end_revoked();
    }

    fn accept_list(authority: &mut Authority, host: &str, here: &Security) {
        let list = authority.revoke(&host.parse().unwrap(), UnixTime::now()).unwrap();
        here.identity().unwrap().accept_revocations(&list).unwrap();
    }

    /// Counts how often it was ended.
    #[derive(Default)]
    struct Counted(AtomicUsize);

    impl SessionPart for Counted {
        fn peer_revoked(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Counted {
        fn with(here: &Security, folder: &Path) -> Arc<Counted> {
            let counted = Arc::new(Counted::default());
            here.end_with_peer(&certificates(folder), counted.clone());
            counted
        }

        fn ended(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn parts_of_a_revoked_host_end_and_those_of_other_hosts_stay() {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let folder = |name: &str| dir.path().join(name);
        for name in ["b", "c"] {
            member(&mut authority, &folder(name), name, "");
        }
        let here = member(&mut authority, &folder("a"), "a", "");
        let (of_b, of_c) = (Counted::with(&here, &folder("b")), Counted::with(&here, &folder("c")));
        drop(Counted::with(&here, &folder("b")));
        assert_eq!(here.end_revoked(), 0, "nobody is revoked");
        accept_list(&mut authority, "b", &here);
        assert_eq!((here.end_revoked(), of_b.ended(), of_c.ended()), (1, 1, 0));
        assert_eq!(here.end_revoked(), 0, "it has ended");
        // A part that was being made meanwhile.
        let (late, of_c_too) = (Counted::with(&here, &folder("b")), Counted::with(&here, &folder("c")));
        assert_eq!((late.ended(), of_c_too.ended()), (1, 0));
        assert!(
            here.is_revoked(&certificates(&folder("b"))) && !here.is_revoked(&certificates(&folder("c")))
        );
    }

    #[test]
    fn in_plain_text_every_host_may_do_everything_and_rdma_is_used() {
        let security = Security::insecure();
        assert_eq!(security.peer(&[]).unwrap(), None);
        for permission in Permission::ALL {
            security.permit(&None, permission).unwrap();
        }
        assert!(security.allows_rdma() && security.tls().is_none());
    }

    #[test]
    fn with_tls_a_role_decides_and_rdma_needs_a_trusted_network() {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let policy = "[hosts.b]\nrole = \"viewer\"\n";
        let security = member(&mut authority, &dir.path().join("a"), "a", policy);
        assert!(!security.allows_rdma());
        assert!(security.peer(&[]).is_err(), "no certificate");
        let (b, c) = (Some("b".parse().unwrap()), Some("c".parse().unwrap()));
        let refused = security.permit(&b, Permission::Send).unwrap_err();
        assert_eq!((refused.code, refused.step), (Code::NotAuthorised, Step::Authorise));
        security.permit(&b, Permission::Look).unwrap();
        security.permit(&c, Permission::Send).unwrap();
        assert!(security.permit(&c, Permission::SetPorts).is_err());
        assert!(Caller::Tcp(b.clone()).may_join(&b) && !Caller::Tcp(c).may_join(&b));
        assert!(!Caller::Tcp(None).may_join(&b));
    }
}
