//! PEM files (RFC 7468): how they are read and written, and where an operator's own ones are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ::pem::{EncodeConfig, LineEnding, Pem};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};

use crate::files::{self, FileError, Secrecy};
use crate::name::{ClusterName, HostName};

/// Sections that are read of a file. More is not a host's.
const SECTIONS_MAX: usize = 16;

/// Why a PEM file was not read.
#[derive(Debug, thiserror::Error)]
pub enum PemError {
    /// Cut short, or not base64.
    #[error("{} is damaged; copy it again", .0.display())]
    Damaged(PathBuf),
    /// It has more than [`SECTIONS_MAX`] sections.
    #[error("{} has more than {SECTIONS_MAX} sections; is it the right file?", .0.display())]
    Sections(PathBuf),
    /// No section with a certificate.
    #[error("{} has no certificate; it begins with -----BEGIN CERTIFICATE-----", .0.display())]
    NoCertificate(PathBuf),
    /// No section with a key, or it is encrypted.
    #[error("{} has no private key without a password; openssl pkey writes one", .0.display())]
    NoKey(PathBuf),
    /// The file was not read.
    #[error(transparent)]
    File(#[from] FileError),
}

/// An operator's own certificates instead of those of `linerate join`. In agent.toml; unknown keys are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PemSettings {
    /// The cluster that all hosts of these authorities are in. SPIFFE names must have it as their trust domain.
    pub cluster: ClusterName,
    /// This host's certificate, with those between it and the authority behind it.
    pub certificate: PathBuf,
    /// Its private key, without a password. Only its owner may read it.
    pub key: PathBuf,
    /// One or two authorities whose hosts are trusted.
    pub authorities: PathBuf,
    /// Revocation lists that these authorities signed. None by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revocations: Option<PathBuf>,
    /// DNS names, or common names, of certificates without a SPIFFE name: `"kvm1.example.org" = "kvm1"`. An authority
    /// may have other certificates than those of hosts, so a name that is not listed is refused. None by default.
    #[serde(default)]
    pub hosts: BTreeMap<String, HostName>,
}

/// A certificate chain and its key.
pub(crate) struct Pair {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Pair {
    /// Both may be in one file.
    pub(crate) fn read(certificate: &Path, key: &Path) -> Result<Pair, PemError> {
        let bytes = files::read(key, Secrecy::Private)?;
        let found = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| match error {
            rustls::pki_types::pem::Error::NoItemsFound => PemError::NoKey(key.to_owned()),
            _ => PemError::Damaged(key.to_owned()),
        })?;
        let bytes = files::read(certificate, Secrecy::Public)?;
        let chain = sections(&bytes, certificate)?;
        if chain.is_empty() {
            return Err(PemError::NoCertificate(certificate.to_owned()));
        }
        Ok(Pair { chain, key: found })
    }
}

/// The authorities and the revocation lists, which may be in one file.
pub(crate) struct Trusted {
    pub authorities: Vec<CertificateDer<'static>>,
    pub revocations: Vec<CertificateRevocationListDer<'static>>,
}

impl Trusted {
    pub(crate) fn read(authorities: &Path, revocations: Option<&Path>) -> Result<Trusted, PemError> {
        let bytes = files::read(authorities, Secrecy::Public)?;
        let authorities = sections(&bytes, authorities)?;
        let Some(path) = revocations else { return Ok(Trusted { authorities, revocations: Vec::new() }) };
        let bytes = files::read(path, Secrecy::Public)?;
        Ok(Trusted { authorities, revocations: sections(&bytes, path)? })
    }
}

/// Sections of another kind and text between them are passed over.
fn sections<T: PemObject>(bytes: &[u8], path: &Path) -> Result<Vec<T>, PemError> {
    let mut found = Vec::new();
    for section in T::pem_slice_iter(bytes) {
        found.push(section.map_err(|_| PemError::Damaged(path.to_owned()))?);
        if found.len() > SECTIONS_MAX {
            return Err(PemError::Sections(path.to_owned()));
        }
    }
    Ok(found)
}

pub(crate) fn certificate_pem(der: &[u8]) -> String {
    section("CERTIFICATE", der)
}

pub(crate) fn revocations_pem(der: &[u8]) -> String {
    section("X509 CRL", der)
}

fn section(label: &str, der: &[u8]) -> String {
    ::pem::encode_config(&Pem::new(label, der), EncodeConfig::new().set_line_ending(LineEnding::LF))
}
