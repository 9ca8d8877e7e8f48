//! Who is at the other end: a chain of certificates is verified against authorities, time, use, revocation and name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustls::OtherError;
use rustls::pki_types::{CertificateDer, TrustAnchor, UnixTime};
use webpki::{
    EndEntityCert, ExpirationPolicy, KeyUsage, RevocationCheckDepth, RevocationOptionsBuilder,
    UnknownStatusPolicy,
};

use crate::bundle::TrustedAuthority;
use crate::certificate::{CertificateError, Facts, Serial, utc};
use crate::name::{ClusterName, HostName, Name, NameError};
use crate::revocation::Revocations;

/// Certificates between a host's and the authority's that are accepted. Linerate's authorities make none.
pub const INTERMEDIATES_MAX: usize = 4;

/// What a verified certificate says about the host at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The same as this host's.
    pub cluster: ClusterName,
    /// Which host it is.
    pub host: HostName,
    /// The number of its certificate.
    pub serial: Serial,
    /// The end of its certificate.
    pub not_after: UnixTime,
}

/// Which end of the connection the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It opened the connection.
    Client,
    /// It accepted the connection.
    Server,
}

/// Why a peer was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// No certificate, or the handshake is not finished.
    #[error("the other host has no certificate; run `linerate join` there")]
    NoCertificate,
    /// The chain is longer than [`INTERMEDIATES_MAX`] allows.
    #[error("the other host sent {0} certificates; at most {max} are accepted", max = INTERMEDIATES_MAX + 1)]
    TooMany(usize),
    /// A certificate cannot be read.
    #[error("the certificate cannot be used: {0}")]
    Certificate(#[from] CertificateError),
    /// No trusted authority issued it.
    #[error(
        "the certificate is from an authority that is not trusted; join both hosts to one cluster. After a change of \
         the cluster's authority, run `linerate join --replace` with a new token on the host that missed it"
    )]
    UnknownAuthority,
    /// Its time is over.
    #[error("the certificate ended on {}; renew it at its host, and compare the clocks", utc(.0))]
    Expired(UnixTime),
    /// Its time has not begun.
    #[error("the certificate begins on {}; compare the clocks of both hosts", utc(.0))]
    NotYetValid(UnixTime),
    /// The authority revoked it.
    #[error("the certificate was revoked; if its host may come back, join it again with a new token")]
    Revoked,
    /// Not made for this end of a connection.
    #[error("the certificate is not for this use; it needs extendedKeyUsage serverAuth and clientAuth")]
    Usage,
    /// A host's certificate signed another one, or an authority's was used by a host.
    #[error("the certificates are no valid chain; only an authority may sign a host's certificate")]
    Chain,
    /// Something else about the chain.
    #[error("the certificate is not valid: {0}")]
    Invalid(webpki::Error),
    /// Its name cannot be read.
    #[error("the certificate's name: {0}")]
    Name(#[from] NameError),
    /// It has no name that is known here.
    #[error("the certificate has no SPIFFE name, and none of its DNS names is listed under `hosts`")]
    NoName,
    /// More than one name.
    #[error("the certificate has more than one host's name; issue one for a single host")]
    ManyNames,
    /// A host of another cluster.
    #[error("the other host is in cluster {found}, this host is in {expected}")]
    Cluster {
        /// Cluster in the peer's certificate.
        found: ClusterName,
        /// Cluster in this host's certificate.
        expected: ClusterName,
    },
    /// Another host than the one that was called.
    #[error("{found} answered instead of {expected}; check the address")]
    Host {
        /// Host in the certificate of the peer that answered.
        found: HostName,
        /// Host that this host meant to reach.
        expected: HostName,
    },
    /// It does not speak Linerate's protocol, or this one of its two.
    #[error("the other end did not agree on {0}; is it an agent of Linerate, and of the same version?")]
    Protocol(&'static str),
    /// The authority that a token names did not answer.
    #[error(
        "the host at this address is not the one that the token is for; check the address, and make a new token"
    )]
    NotTheTokens,
}

impl PeerError {
    /// The refusal within an error of rustls, if it is one.
    pub fn of(error: &rustls::Error) -> Option<&PeerError> {
        match error {
            rustls::Error::InvalidCertificate(rustls::CertificateError::Other(OtherError(inner))) => {
                inner.downcast_ref()
            }
            _ => None,
        }
    }
}

impl From<PeerError> for rustls::Error {
    fn from(error: PeerError) -> rustls::Error {
        rustls::Error::InvalidCertificate(rustls::CertificateError::Other(OtherError(Arc::new(error))))
    }
}

impl From<webpki::Error> for PeerError {
    fn from(error: webpki::Error) -> PeerError {
        match error {
            webpki::Error::CertExpired { not_after, .. } => PeerError::Expired(not_after),
            webpki::Error::CertNotValidYet { not_before, .. } => PeerError::NotYetValid(not_before),
            webpki::Error::CertRevoked => PeerError::Revoked,
            // The same name and another key: an imitation of the authority.
            webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
                PeerError::UnknownAuthority
            }
            webpki::Error::RequiredEkuNotFoundContext(_) => PeerError::Usage,
            webpki::Error::CaUsedAsEndEntity
            | webpki::Error::EndEntityUsedAsCa
            | webpki::Error::PathLenConstraintViolated => PeerError::Chain,
            other => PeerError::Invalid(other),
        }
    }
}

/// How the name of a peer is found in its certificate.
#[derive(Clone, Debug)]
pub(crate) struct Naming {
    /// Peers are in it.
    pub cluster: ClusterName,
    /// DNS names, or common names, of an operator's certificates, in lower case.
    pub hosts: BTreeMap<String, HostName>,
}

impl Naming {
    /// The SPIFFE name if there is one. Otherwise a DNS name, or without any the common name, that the operator listed.
    pub(crate) fn host(&self, facts: &Facts) -> Result<HostName, PeerError> {
        let mut uris = facts.uris.iter();
        if let Some(uri) = uris.next() {
            if uris.next().is_some() {
                return Err(PeerError::ManyNames);
            }
            let Name { cluster: found, host } = uri.parse()?;
            if found != self.cluster {
                return Err(PeerError::Cluster { found, expected: self.cluster.clone() });
            }
            return Ok(host);
        }
        let names: Vec<&String> = match facts.dns_names.as_slice() {
            [] => facts.common_name.iter().collect(),
            names => names.iter().collect(),
        };
        let listed: BTreeSet<&HostName> =
            names.into_iter().filter_map(|name| self.hosts.get(&name.to_ascii_lowercase())).collect();
        let mut listed = listed.into_iter();
        match (listed.next(), listed.next()) {
            (Some(host), None) => Ok(host.clone()),
            (None, _) => Err(PeerError::NoName),
            (Some(_), Some(_)) => Err(PeerError::ManyNames),
        }
    }
}

/// The chain up to one of the authorities, its time, its use, and whether it is revoked. Says nothing of the name.
pub(crate) fn verify_chain(
    authorities: &[TrustedAuthority],
    revocations: &Revocations,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    side: Side,
    now: UnixTime,
) -> Result<Facts, PeerError> {
    if intermediates.len() > INTERMEDIATES_MAX {
        return Err(PeerError::TooMany(intermediates.len() + 1));
    }
    let facts = Facts::of(end_entity)?;
    // webpki looks at the use of each certificate that states one. A host's has to.
    let (usage, stated) = match side {
        Side::Client => (KeyUsage::client_auth(), facts.for_clients),
        Side::Server => (KeyUsage::server_auth(), facts.for_servers),
    };
    if !stated {
        return Err(PeerError::Usage);
    }
    let lists = revocations.parsed();
    // Without any list no certificate is revoked. An expired list counts, see the module of revocations.
    let revocation = RevocationOptionsBuilder::new(&lists).ok().map(|options| {
        options
            .with_depth(RevocationCheckDepth::Chain)
            .with_status_policy(UnknownStatusPolicy::Allow)
            .with_expiration_policy(ExpirationPolicy::Ignore)
            .build()
    });
    let parsed = EndEntityCert::try_from(end_entity).map_err(|error| match error {
        webpki::Error::CaUsedAsEndEntity => PeerError::Chain,
        _ => PeerError::Certificate(CertificateError::Encoding),
    })?;
    let anchors: Vec<TrustAnchor<'_>> = authorities.iter().map(|one| one.anchor.clone()).collect();
    let algorithms = webpki::ALL_VERIFICATION_ALGS;
    let path = parsed.verify_for_usage(algorithms, &anchors, intermediates, now, usage, revocation, None)?;
    // webpki does not look at the constraint of the authority itself: a host that got hold of an authority's
    // certificate by mistake must not make others.
    let key = &path.anchor().subject_public_key_info;
    let authority = authorities.iter().find(|one| one.anchor.subject_public_key_info == *key);
    let between = path.intermediate_certificates().count() as u64;
    match authority {
        Some(authority) if authority.path_length.is_none_or(|most| between <= u64::from(most)) => Ok(facts),
        _ => Err(PeerError::Chain),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::certificate::key_id;

    fn naming() -> Naming {
        let hosts = [("a.example", "a"), ("also-a.example", "a"), ("b.example", "b")];
        let hosts = hosts.map(|(dns, host)| (dns.to_owned(), host.parse().unwrap()));
        Naming { cluster: "lab".parse().unwrap(), hosts: hosts.into() }
    }

    fn facts(uris: &[&str], dns_names: &[&str], common_name: Option<&str>) -> Facts {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let zero = UnixTime::since_unix_epoch(std::time::Duration::ZERO);
        Facts {
            uris: owned(uris),
            dns_names: owned(dns_names),
            common_name: common_name.map(str::to_owned),
            serial: Serial::new(&[1]),
            not_after: zero,
            key: key_id(b""),
            is_authority: false,
            path_length: None,
            for_clients: true,
            for_servers: true,
        }
    }

    #[test]
    fn a_spiffe_name_comes_before_all_others() {
        let host = |facts| naming().host(&facts).map(|host| host.to_string());
        assert_eq!(
            host(facts(&["spiffe://lab/host/c"], &["a.example"], Some("b.example"))),
            Ok("c".to_owned())
        );
        let other = host(facts(&["spiffe://other/host/a"], &["a.example"], None));
        assert!(matches!(other, Err(PeerError::Cluster { .. })), "{other:?}");
        let two = host(facts(&["spiffe://lab/host/a", "spiffe://lab/host/b"], &[], None));
        assert_eq!(two, Err(PeerError::ManyNames));
        assert_eq!(
            host(facts(&["https://a.example"], &["a.example"], None)),
            Err(PeerError::Name(NameError::Scheme))
        );
    }

    #[test]
    fn a_dns_name_counts_only_if_the_operator_listed_it() {
        let host = |facts| naming().host(&facts).map(|host| host.to_string());
        assert_eq!(host(facts(&[], &["A.example", "also-a.example", "x.example"], None)), Ok("a".to_owned()));
        assert_eq!(host(facts(&[], &["x.example"], None)), Err(PeerError::NoName));
        assert_eq!(host(facts(&[], &["a"], None)), Err(PeerError::NoName));
        assert_eq!(host(facts(&[], &["a.example", "b.example"], None)), Err(PeerError::ManyNames));
        assert_eq!(host(facts(&[], &[], Some("b.example"))), Ok("b".to_owned()));
        // A common name beside DNS names is no name (RFC 6125 section 6.4.4).
        assert_eq!(host(facts(&[], &["x.example"], Some("b.example"))), Err(PeerError::NoName));
        assert_eq!(host(facts(&[], &[], None)), Err(PeerError::NoName));
    }
}
