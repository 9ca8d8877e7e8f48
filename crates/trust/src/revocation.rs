//! Which certificates are no longer accepted: a list that an authority signs (CRL, RFC 5280 section 5), with a number.
//!
//! A host takes a list only if its number is larger than the number of the list that it has. So an old list that an
//! attacker replays changes nothing. A list counts also when its next one is overdue: an authority that is down for
//! long must not make revoked hosts welcome again.

use std::sync::Arc;

use rustls::pki_types::CertificateRevocationListDer;
use webpki::{CertRevocationList, OwnedCertRevocationList};
use x509_parser::oid_registry::{OID_PKCS1_SHA1WITHRSA, OID_SHA1_WITH_RSA};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::bundle::{Bundle, TrustedAuthority};
use crate::certificate::{AuthorityId, Serial};

/// Largest list that is read, in bytes: some 6,000 certificates. Linerate's authorities keep
/// [`ISSUED_MAX`](crate::authority::ISSUED_MAX).
pub const REVOCATION_BYTES_MAX: usize = 256 << 10;

/// Why a list was not taken. The list from before stays in force.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevocationError {
    /// Its bytes, more than [`REVOCATION_BYTES_MAX`].
    #[error("the revocation list has {0} bytes; at most {REVOCATION_BYTES_MAX} are read")]
    Large(usize),
    /// Not the DER encoding of a list, or one of a kind that is not supported (delta lists, version 1).
    #[error("the revocation list is damaged or of another kind (a full list of version 2 is needed)")]
    Encoding,
    /// RFC 5280 requires one.
    #[error("the revocation list has no number that fits 64 bits; have its authority number its lists")]
    Number,
    /// None of the trusted authorities signed it.
    #[error("no trusted authority signed the revocation list; fetch it from the authority's host")]
    Signature,
    /// An older list than the one in force, or one that was changed without a new number.
    #[error("revocation list {offered} is not newer than list {known}, which is in force")]
    Older {
        /// The number of the list that was refused.
        offered: u64,
        /// The number of the list in force.
        known: u64,
    },
}

/// One authority's list; its signature is verified.
#[derive(Debug)]
pub struct RevocationList {
    der: CertificateRevocationListDer<'static>,
    parsed: CertRevocationList<'static>,
    number: u64,
    authority: AuthorityId,
    /// Name of the authority, in DER.
    issuer: Vec<u8>,
}

impl RevocationList {
    /// Reads and verifies a list in DER.
    pub fn read(der: &[u8], bundle: &Bundle) -> Result<RevocationList, RevocationError> {
        if der.len() > REVOCATION_BYTES_MAX {
            return Err(RevocationError::Large(der.len()));
        }
        // The library that later decides reads it first; it also knows which extensions are not supported.
        let parsed = OwnedCertRevocationList::from_der(der).map_err(|_| RevocationError::Encoding)?;
        let (_, list) = CertificateRevocationList::from_der(der).map_err(|_| RevocationError::Encoding)?;
        let number =
            list.crl_number().and_then(|number| u64::try_from(number).ok()).ok_or(RevocationError::Number)?;
        let signer = bundle.authorities().iter().find(|authority| signed_by(&list, authority));
        let authority = signer.ok_or(RevocationError::Signature)?.id();
        let issuer = list.issuer().as_raw().to_vec();
        Ok(RevocationList { der: der.to_vec().into(), parsed: parsed.into(), number, authority, issuer })
    }

    /// Larger in every later list of the same authority.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Authority that signed it, by the hash of its public key.
    pub fn authority(&self) -> AuthorityId {
        self.authority
    }

    /// To send to another host.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Numbers of the certificates that it revokes, and when they were revoked, in seconds since 1970.
    pub(crate) fn revoked(&self) -> Vec<(Serial, u64)> {
        let Ok((_, list)) = CertificateRevocationList::from_der(&self.der) else { return Vec::new() };
        let revoked = list.iter_revoked_certificates().map(|one| {
            let seconds = u64::try_from(one.revocation_date.timestamp()).unwrap_or_default();
            (Serial::new(one.raw_serial()), seconds)
        });
        revoked.collect()
    }

    fn has(&self, serial: &Serial) -> bool {
        // A list that cannot be searched refuses everybody.
        !matches!(self.parsed.find_serial(serial.bytes()), Ok(None))
    }
}

fn signed_by(list: &CertificateRevocationList<'_>, authority: &TrustedAuthority) -> bool {
    // Signatures on SHA-1 can be forged.
    let algorithm = &list.signature_algorithm.algorithm;
    if *algorithm == OID_PKCS1_SHA1WITHRSA || *algorithm == OID_SHA1_WITH_RSA {
        return false;
    }
    let Ok((_, certificate)) = X509Certificate::from_der(&authority.certificate) else { return false };
    list.issuer().as_raw() == certificate.subject().as_raw()
        && list.verify_signature(certificate.public_key()).is_ok()
}

/// The newest list of each authority.
#[derive(Debug, Default)]
pub struct Revocations {
    lists: Vec<Arc<RevocationList>>,
}

impl Revocations {
    /// These, and this list if it is newer than the one of the same authority. The same list once more changes nothing.
    pub fn with(&self, list: RevocationList) -> Result<Revocations, RevocationError> {
        let known = self.lists.iter().find(|known| known.authority == list.authority);
        if let Some(known) = known.filter(|known| known.number >= list.number && known.der != list.der) {
            return Err(RevocationError::Older { offered: list.number, known: known.number });
        }
        let others = self.lists.iter().filter(|known| known.authority != list.authority).cloned();
        let mut lists: Vec<_> = others.collect();
        lists.push(Arc::new(list));
        Ok(Revocations { lists })
    }

    /// Those of the authorities in a bundle.
    pub(crate) fn of(&self, bundle: &Bundle) -> Revocations {
        let in_it =
            |list: &&Arc<RevocationList>| bundle.authorities().iter().any(|one| one.id() == list.authority);
        Revocations { lists: self.lists.iter().filter(in_it).cloned().collect() }
    }

    /// The number of an authority's list, 0 if there is none yet. A handshake sends it to the other side.
    pub fn number(&self, authority: AuthorityId) -> u64 {
        self.list(authority).map_or(0, RevocationList::number)
    }

    /// The newest list of an authority; `None` before the first one.
    pub fn list(&self, authority: AuthorityId) -> Option<&RevocationList> {
        self.lists.iter().find(|list| list.authority == authority).map(|list| &**list)
    }

    /// Whether one of the lists has this certificate, in DER. Its signature and its time are not looked at.
    pub(crate) fn have(&self, certificate: &[u8]) -> bool {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
        let issuer = certificate.issuer().as_raw();
        let serial = Serial::new(certificate.raw_serial());
        self.lists.iter().any(|list| list.issuer == issuer && list.has(&serial))
    }

    /// All lists as a PEM file.
    pub fn to_pem(&self) -> String {
        self.lists.iter().map(|list| crate::pem::revocations_pem(list.der())).collect()
    }

    /// For webpki, which checks the issuer and the signature of each list once more.
    pub(crate) fn parsed(&self) -> Vec<&CertRevocationList<'static>> {
        self.lists.iter().map(|list| &list.parsed).collect()
    }
}
