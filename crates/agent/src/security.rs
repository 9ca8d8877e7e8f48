//! Who this host is to other agents, how connections with them are protected, and what each of them may do.

use std::sync::Arc;

use linerate_core::{Code, Fault, Side, Step};
use linerate_net::tls::Tls;
use linerate_trust::grants::Grants;
use linerate_trust::identity::{Identity, IdentityError};
use linerate_trust::name::HostName;
use linerate_trust::peer::{PeerError, Side as PeerSide};
use linerate_trust::roles::{Permission, Policy};
use linerate_trust::tls::ConfigError as TlsConfigError;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::config::{Config, Protection, RdmaNetwork};

/// Why connections cannot be protected as configured.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    #[error("the certificate of this host ([certificate] in the configuration) cannot be used")]
    Identity(#[from] IdentityError),
    #[error("TLS cannot be set up")]
    Tls(#[from] TlsConfigError),
}

/// The name of a host that proved it; `None` in plain text, where no host proves anything.
pub(crate) type PeerName = Option<HostName>;

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
    protection: Option<(Identity, Tls)>,
    policy: Policy,
    rdma: RdmaNetwork,
}

impl Security {
    /// Connections in plain text.
    pub(crate) fn insecure() -> Arc<Security> {
        Arc::new(Security { protection: None, policy: Policy::default(), rdma: RdmaNetwork::default() })
    }

    /// As configured. Refuses a certificate that other hosts would refuse.
    pub(crate) fn open(config: &Config) -> Result<Arc<Security>, SecurityError> {
        let files = match (config.security, &config.certificate) {
            (Protection::Tls, Some(files)) => files.clone(),
            _ => {
                tracing::warn!(
                    "security = \"insecure\": connections between agents are plain text, and every host that reaches \
                     `listen` may send guests"
                );
                return Ok(Security::insecure());
            }
        };
        let identity = Identity::open_pem(files)?;
        identity.check_own(UnixTime::now())?;
        tracing::info!(name = %identity.name(), "connections between agents are protected by TLS");
        Security::of(identity, config.peers.clone(), config.rdma_network)
    }

    fn of(identity: Identity, policy: Policy, rdma: RdmaNetwork) -> Result<Arc<Security>, SecurityError> {
        let client = linerate_trust::tls::client(&identity, None)?;
        let tls = Tls::new(client, linerate_trust::tls::server(&identity)?);
        Ok(Arc::new(Security { protection: Some((identity, tls)), policy, rdma }))
    }

    /// What connections to other agents are protected with; `None` for plain text.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.protection.as_ref().map(|(_, tls)| tls)
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
        let Some((identity, _)) = &self.protection else { return Ok(None) };
        let peer = identity.verify(chain, PeerSide::Server, None, UnixTime::now());
        let host = peer.map_err(|error| refused(error.to_string()))?.host;
        if let Some(permission) = needs {
            self.policy.check(&host, permission).map_err(|error| refused(error.to_string()))?;
        }
        self.pin_to(host).map(Some)
    }

    /// What connections to that host, and no other, are protected with. Refused in plain text, where nobody can prove to
    /// be it.
    pub(crate) fn pin_to(&self, host: HostName) -> Result<Pinned, Fault> {
        let Some((identity, _)) = &self.protection else {
            let text = format!(
                "the session is with host {host}, which proved that by TLS, and this agent has security = \
                 \"insecure\": nobody who answers could prove it"
            );
            return Err(refused(text));
        };
        let pinned = || {
            let client = linerate_trust::tls::client(identity, Some(host.clone()))?;
            let tls = Tls::new(client, linerate_trust::tls::server(identity)?);
            Ok(Pinned { host: host.clone(), tls })
        };
        pinned().map_err(|error: TlsConfigError| refused(error.to_string()))
    }

    /// Who opened a connection, by the certificates that it showed. A peer that was revoked since its handshake is refused.
    pub(crate) fn peer(&self, chain: &[CertificateDer<'static>]) -> Result<PeerName, PeerError> {
        let Some((identity, _)) = &self.protection else { return Ok(None) };
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

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use linerate_trust::authority::{Authority, Grounds};
    use linerate_trust::bundle::Bundle;
    use linerate_trust::name::Name;
    use linerate_trust::request::{NewKey, Request};

    use super::*;

    /// A host of this name, with a certificate of the authority.
    pub(crate) fn member(
        authority: &mut Authority,
        folder: &Path,
        name: &str,
        policy: &str,
    ) -> Arc<Security> {
        let now = UnixTime::now();
        let name = Name { cluster: authority.cluster().clone(), host: name.parse().unwrap() };
        let key = NewKey::make(name).unwrap();
        let request = Request::read(&key.request().unwrap()).unwrap();
        let certificate = authority.issue(&request, &Grounds::Own, now).unwrap();
        let bundle = Bundle::new(vec![authority.certificate().clone()]).unwrap();
        let identity = Identity::install(folder, &key, &certificate, &bundle, authority.id(), now).unwrap();
        Security::of(identity, toml::from_str(policy).unwrap(), RdmaNetwork::Untrusted).unwrap()
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
        let mut authority =
            Authority::create(&dir.path().join("authority"), &"lab".parse().unwrap(), UnixTime::now())
                .unwrap();
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
