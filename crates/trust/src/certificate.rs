//! What a certificate says: names, serial number, validity, key. Nothing here is verified; [`crate::identity`] does
//! that.

use std::fmt;

use aws_lc_rs::digest;
use rustls::pki_types::UnixTime;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

/// Largest certificate that is read, in bytes. Those of [`crate::authority`] have about 600.
pub const CERTIFICATE_BYTES_MAX: usize = 16 << 10;

/// Most names of a kind that a certificate may have.
const NAMES_MAX: usize = 64;

/// Why a certificate could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// Bytes of its DER, more than [`CERTIFICATE_BYTES_MAX`].
    #[error("the certificate has {0} bytes; at most {CERTIFICATE_BYTES_MAX} are read")]
    Large(usize),
    /// Not the DER encoding of a certificate, or bytes follow it.
    #[error("the certificate is damaged; copy its file again")]
    Encoding,
    /// An extension that twice has the same kind, or cannot be read.
    #[error("the certificate's extensions cannot be read; issue it again")]
    Extensions,
    /// More names than a host needs.
    #[error("the certificate has more than {NAMES_MAX} names; issue one for a single host")]
    Names,
}

/// A certificate's number, as its authority gave it: big endian, as in its DER encoding.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial(Vec<u8>);

impl Serial {
    pub(crate) fn new(bytes: &[u8]) -> Serial {
        Serial(bytes.to_vec())
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, &self.0)
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, &self.0)
    }
}

/// An authority: the SHA-256 of its public key (SubjectPublicKeyInfo, RFC 5280 section 4.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuthorityId(pub(crate) [u8; 32]);

impl AuthorityId {
    /// The hash itself.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for AuthorityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, &self.0)
    }
}

impl fmt::Debug for AuthorityId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(f, &self.0)
    }
}

fn hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// What Linerate reads from a certificate; its signature is not checked.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub uris: Vec<String>,
    pub dns_names: Vec<String>,
    pub common_name: Option<String>,
    pub serial: Serial,
    pub not_after: UnixTime,
    /// Of the public key.
    pub key: AuthorityId,
    /// Whether it may sign certificates: basicConstraints and, if there, keyUsage.
    pub is_authority: bool,
    /// Most certificates between an authority's and a host's: pathLenConstraint, any number without it.
    pub path_length: Option<u32>,
    /// Whether extendedKeyUsage is there and names clients of TLS.
    pub for_clients: bool,
    /// The same for servers.
    pub for_servers: bool,
}

impl Facts {
    pub(crate) fn of(der: &[u8]) -> Result<Facts, CertificateError> {
        if der.len() > CERTIFICATE_BYTES_MAX {
            return Err(CertificateError::Large(der.len()));
        }
        let (rest, parsed) = X509Certificate::from_der(der).map_err(|_| CertificateError::Encoding)?;
        if !rest.is_empty() {
            return Err(CertificateError::Encoding);
        }
        let constraints = parsed.basic_constraints().map_err(|_| CertificateError::Extensions)?;
        let usage = parsed.key_usage().map_err(|_| CertificateError::Extensions)?;
        let extended = parsed.extended_key_usage().map_err(|_| CertificateError::Extensions)?;
        let names = parsed.subject_alternative_name().map_err(|_| CertificateError::Extensions)?;
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        if names.len() > NAMES_MAX {
            return Err(CertificateError::Names);
        }
        let (uris, dns_names) = sorted(names);
        Ok(Facts {
            uris,
            dns_names,
            common_name: parsed
                .subject()
                .iter_common_name()
                .next()
                .and_then(|name| name.as_str().ok())
                .map(str::to_owned),
            serial: Serial::new(parsed.raw_serial()),
            not_after: seconds(parsed.validity().not_after.timestamp()),
            key: key_id(parsed.public_key().raw),
            path_length: constraints.as_ref().and_then(|found| found.value.path_len_constraint),
            for_clients: extended.as_ref().is_some_and(|found| found.value.client_auth),
            for_servers: extended.as_ref().is_some_and(|found| found.value.server_auth),
            is_authority: constraints.is_some_and(|found| found.value.ca)
                && usage.is_none_or(|found| found.value.key_cert_sign()),
        })
    }
}

fn sorted(names: &[GeneralName<'_>]) -> (Vec<String>, Vec<String>) {
    let (mut uris, mut dns_names) = (Vec::new(), Vec::new());
    for name in names {
        match name {
            GeneralName::URI(uri) => uris.push((*uri).to_owned()),
            GeneralName::DNSName(name) => dns_names.push((*name).to_owned()),
            _ => {}
        }
    }
    (uris, dns_names)
}

/// The URIs of a certificate request's alternative names.
pub(crate) fn requested_uris<'a>(extensions: impl Iterator<Item = &'a ParsedExtension<'a>>) -> Vec<String> {
    extensions
        .filter_map(|extension| match extension {
            ParsedExtension::SubjectAlternativeName(names) => Some(sorted(&names.general_names).0),
            _ => None,
        })
        .flatten()
        .collect()
}

/// The id of a public key in DER (SubjectPublicKeyInfo).
pub(crate) fn key_id(spki: &[u8]) -> AuthorityId {
    AuthorityId(sha256(spki))
}

pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    let hash = digest::digest(&digest::SHA256, bytes);
    out.iter_mut().zip(hash.as_ref()).for_each(|(to, from)| *to = *from);
    out
}

fn seconds(timestamp: i64) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(timestamp.try_into().unwrap_or(0)))
}

/// For messages: minutes are enough to compare with a clock.
pub fn utc(time: &UnixTime) -> String {
    let Ok(time) = date_time(*time) else { return format!("{} s after 1970", time.as_secs()) };
    format!("{} {:02}:{:02} UTC", time.date(), time.hour(), time.minute())
}

/// As the makers of certificates take it; none behind the year 9999.
pub(crate) fn date_time(time: UnixTime) -> Result<OffsetDateTime, time::error::ComponentRange> {
    OffsetDateTime::from_unix_timestamp(time.as_secs().try_into().unwrap_or(i64::MAX))
}
