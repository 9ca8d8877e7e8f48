//! The authorities that a host trusts: one, or two while the hosts change from one to the next.

use rustls::pki_types::{CertificateDer, TrustAnchor};

use crate::certificate::{AuthorityId, CertificateError, Facts};
use crate::name::{ClusterName, cluster_of_authority};

/// Authorities that may be trusted at a time: the one that leaves and the one that comes.
pub const AUTHORITIES_MAX: usize = 2;

/// Why a list of authorities was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// No certificate in it.
    #[error("there is no authority's certificate; it begins with -----BEGIN CERTIFICATE-----")]
    Empty,
    /// The file has more than [`AUTHORITIES_MAX`] certificates.
    #[error(
        "there are more than {AUTHORITIES_MAX} authorities; take out those that no host's certificate comes from"
    )]
    Many,
    /// The same key twice.
    #[error("authority {0} is there twice; take one out")]
    Twice(AuthorityId),
    /// A host's certificate, or another that may not sign.
    #[error("{0} is no authority: its certificate may not sign others (basicConstraints, keyUsage)")]
    NoAuthority(AuthorityId),
    /// An authority of Linerate for another cluster.
    #[error("authority {id} is for cluster {found}, this host is in {expected}")]
    Cluster {
        /// Hash of the authority's public key.
        id: AuthorityId,
        /// What its certificate says.
        found: ClusterName,
        /// Cluster in this host's own certificate.
        expected: ClusterName,
    },
    /// One of the certificates.
    #[error("an authority's certificate: {0}")]
    Certificate(#[from] CertificateError),
}

/// An authority whose certificates are accepted.
#[derive(Clone, Debug)]
pub struct TrustedAuthority {
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) anchor: TrustAnchor<'static>,
    pub(crate) id: AuthorityId,
    pub(crate) path_length: Option<u32>,
    /// Known for Linerate's own authorities only.
    pub(crate) cluster: Option<ClusterName>,
}

impl TrustedAuthority {
    pub(crate) fn new(certificate: CertificateDer<'static>) -> Result<TrustedAuthority, BundleError> {
        let facts = Facts::of(&certificate)?;
        if !facts.is_authority {
            return Err(BundleError::NoAuthority(facts.key));
        }
        let anchor = webpki::anchor_from_trusted_cert(&certificate)
            .map_err(|_| CertificateError::Encoding)?
            .to_owned();
        let cluster = facts.uris.iter().find_map(|uri| cluster_of_authority(uri).ok());
        Ok(TrustedAuthority { certificate, anchor, id: facts.key, path_length: facts.path_length, cluster })
    }

    /// The hash of its public key.
    pub fn id(&self) -> AuthorityId {
        self.id
    }

    /// In DER, for another host's bundle.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }
}

/// One or two authorities, with different keys.
#[derive(Clone, Debug)]
pub struct Bundle {
    authorities: Vec<TrustedAuthority>,
}

impl Bundle {
    /// From certificates in DER.
    pub fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Bundle, BundleError> {
        if certificates.is_empty() {
            return Err(BundleError::Empty);
        }
        if certificates.len() > AUTHORITIES_MAX {
            return Err(BundleError::Many);
        }
        let mut authorities: Vec<TrustedAuthority> = Vec::new();
        for certificate in certificates {
            let next = TrustedAuthority::new(certificate)?;
            if authorities.iter().any(|known| known.id == next.id) {
                return Err(BundleError::Twice(next.id));
            }
            authorities.push(next);
        }
        Ok(Bundle { authorities })
    }

    /// All certificates as PEM text, one after the other.
    pub fn to_pem(&self) -> String {
        self.authorities.iter().map(|one| crate::pem::certificate_pem(&one.certificate)).collect()
    }

    /// Each of them; the order says nothing.
    pub fn authorities(&self) -> &[TrustedAuthority] {
        &self.authorities
    }

    /// Every authority of Linerate's in it is this cluster's.
    pub(crate) fn check_cluster(&self, expected: &ClusterName) -> Result<(), BundleError> {
        for one in &self.authorities {
            if let Some(found) = one.cluster.as_ref().filter(|found| *found != expected) {
                let (found, expected) = (found.clone(), expected.clone());
                return Err(BundleError::Cluster { id: one.id, found, expected });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    #[test]
    fn one_or_two_different_authorities_are_a_bundle() {
        let authority = || {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let [one, two, three] = [authority(), authority(), authority()];
        assert_eq!(Bundle::new(vec![]).unwrap_err(), BundleError::Empty);
        assert!(Bundle::new(vec![one.clone()]).is_ok());
        assert_eq!(Bundle::new(vec![one.clone(), two.clone()]).unwrap().authorities().len(), 2);
        assert!(matches!(Bundle::new(vec![one.clone(), one.clone()]), Err(BundleError::Twice(_))));
        assert_eq!(Bundle::new(vec![one, two, three]).unwrap_err(), BundleError::Many);
    }
}
