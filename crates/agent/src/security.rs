//! Who this host is to other agents, how connections with them are protected, and what each of them may do.

use std::sync::Arc;

use linerate_core::{Code, Fault, Side, Step};
use linerate_net::tls::Tls;
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

    /// Its name, if it has proved one.
    pub fn name(self) -> PeerName {
        match self {
            Caller::Tcp(name) => name,
            Caller::Rdma => None,
        }
    }
}

/// See the module.
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
        let client = linerate_trust::tls::client(&identity, None)?;
        let tls = Tls::new(client, linerate_trust::tls::server(&identity)?);
        tracing::info!(name = %identity.name(), "connections between agents are protected by TLS");
        let (policy, rdma) = (config.peers.clone(), config.rdma_network);
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

    /// Whether the host that was connected to may receive guests of this one.
    pub(crate) fn permit_destination(&self, chain: &[CertificateDer<'static>]) -> Result<(), Fault> {
        let Some((identity, _)) = &self.protection else { return Ok(()) };
        let refused = |text: String| Fault::new(Code::NotAuthorised, Step::Authorise, Side::Source, text);
        let peer = identity.verify(chain, PeerSide::Server, None, UnixTime::now());
        let peer = peer.map_err(|error| refused(error.to_string()))?;
        let permitted = self.policy.check(&peer.host, Permission::Receive);
        permitted.map_err(|error| refused(error.to_string()))
    }

    /// Who opened a connection, by the certificates that it showed. A peer that was revoked since its handshake is refused.
    pub(crate) fn peer(&self, chain: &[CertificateDer<'static>]) -> Result<PeerName, PeerError> {
        let Some((identity, _)) = &self.protection else { return Ok(None) };
        Ok(Some(identity.verify(chain, PeerSide::Client, None, UnixTime::now())?.host))
    }

    /// Whether that host may do this here. In plain text every host may.
    pub(crate) fn permit(&self, peer: &PeerName, permission: Permission) -> Result<(), Fault> {
        let Some(host) = peer else { return Ok(()) };
        let denied = |text: String| Fault::new(Code::NotAuthorised, Step::Authorise, Side::Destination, text);
        self.policy.check(host, permission).map_err(|error| denied(error.to_string()))
    }
}
