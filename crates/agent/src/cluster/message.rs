//! What a host that joins sends, and what it gets: a length in four bytes (little endian) and a JSON document, each
//! way.

use std::io::{self, Read, Write};
use std::net::SocketAddr;

use data_encoding::BASE64;
use linerate_trust::bundle::Bundle;
use linerate_trust::revocation::REVOCATION_BYTES_MAX;
use linerate_trust::token::Secret;
use rustls_pki_types::CertificateDer;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A request has about 500 bytes.
pub const REQUEST_BYTES_MAX: usize = 4 << 10;
/// An answer has about 2 KiB, and with it the revocation lists of two authorities in base64.
pub const ANSWER_BYTES_MAX: usize = (16 << 10) + 2 * REVOCATION_BYTES_MAX * 4 / 3;

/// Of a host that joins. It has no `Debug`: there is a secret in it.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The token's 16 bytes in base64.
    secret: String,
    /// PKCS #10 in DER, in base64.
    request: String,
}

impl JoinRequest {
    pub fn new(secret: &Secret, request: &[u8]) -> JoinRequest {
        JoinRequest { secret: BASE64.encode(secret.bytes()), request: BASE64.encode(request) }
    }

    /// The secret and the request in DER.
    pub fn read(&self) -> Option<(Secret, Vec<u8>)> {
        let secret = BASE64.decode(self.secret.as_bytes()).ok()?.try_into().ok()?;
        Some((Secret::from_bytes(secret), BASE64.decode(self.request.as_bytes()).ok()?))
    }
}

/// The authority's answer to a request for a certificate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// The certificate that was asked for.
    Signed(Signed),
    /// A list of revoked certificates, or none if the asking host has the newest.
    Revocations {
        /// In DER, in base64.
        lists: Vec<String>,
        /// What the authority's host says of a change of the authority; empty from other hosts.
        #[serde(default)]
        change: AuthorityChange,
    },
    /// Nothing was signed; a reason for the user.
    Refused {
        /// Why, and what to do.
        why: String,
    },
}

/// A change from one authority to the next, in statements that need not be believed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct AuthorityChange {
    /// The statement of the authority that leaves, and the certificate of the one that comes. In DER, in base64.
    pub successor: Option<(String, String)>,
    /// The statement of the authority that came, about the one that leaves.
    pub retired: Option<String>,
    /// The authority that signs certificates now: hosts with another's ask for a new one.
    pub signs: Option<String>,
}

/// A certificate, and all that goes with it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Signed {
    /// DER, in base64, as all that follows.
    certificate: String,
    authorities: Vec<String>,
    revocations: Vec<String>,
    /// Where the authority's agent answers members.
    pub agents: Vec<SocketAddr>,
}

impl Signed {
    pub fn new(
        certificate: &[u8],
        bundle: &Bundle,
        revocations: &[Vec<u8>],
        agents: &[SocketAddr],
    ) -> Signed {
        Signed {
            certificate: BASE64.encode(certificate),
            authorities: bundle.authorities().iter().map(|one| BASE64.encode(one.certificate())).collect(),
            revocations: encoded(revocations),
            agents: agents.to_vec(),
        }
    }

    pub fn certificate(&self) -> Option<CertificateDer<'static>> {
        Some(decoded(&self.certificate)?.into())
    }

    pub fn authorities(&self) -> Option<Vec<CertificateDer<'static>>> {
        self.authorities.iter().map(|one| Some(decoded(one)?.into())).collect()
    }

    pub fn revocations(&self) -> Option<Vec<Vec<u8>>> {
        lists(&self.revocations)
    }
}

pub fn encoded(lists: &[Vec<u8>]) -> Vec<String> {
    lists.iter().map(|list| BASE64.encode(list)).collect()
}

pub fn lists(encoded: &[String]) -> Option<Vec<Vec<u8>>> {
    encoded.iter().map(|list| decoded(list)).collect()
}

pub fn decoded(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text.as_bytes()).ok()
}

/// Sends a document: its length as u32, big-endian, then JSON.
pub fn send(to: &mut impl Write, document: &impl Serialize) -> io::Result<()> {
    let body = serde_json::to_vec(document)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    to.write_all(&[&length.to_le_bytes()[..], &body].concat())?;
    to.flush()
}

/// Receives a document of at most `most` bytes.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read, most: usize) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > most {
        let text = format!("{length} bytes were announced, more than the {most} that are taken");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    serde_json::from_slice(&body).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no such document"))
}
