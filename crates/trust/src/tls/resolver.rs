//! Which certificate this end shows.

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::{JOIN_PROTOCOL, PROTOCOL};
use crate::identity::Identity;

/// What the identity has at the time of the handshake: a renewed certificate counts at once.
#[derive(Debug)]
pub(super) struct OfIdentity {
    pub(super) identity: Identity,
}

impl ResolvesServerCert for OfIdentity {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        offers(&hello, PROTOCOL).then(|| self.identity.certified_key())
    }
}

impl ResolvesClientCert for OfIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.identity.certified_key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// The server that hosts join at.
#[derive(Debug)]
pub(super) struct Fixed {
    pub(super) key: Arc<CertifiedKey>,
}

impl ResolvesServerCert for Fixed {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        offers(&hello, JOIN_PROTOCOL).then(|| Arc::clone(&self.key))
    }
}

/// rustls goes on with a client that names no protocol at all; without a certificate for it the handshake ends.
fn offers(hello: &ClientHello<'_>, protocol: &str) -> bool {
    hello.alpn().is_some_and(|mut offered| offered.any(|one| one == protocol.as_bytes()))
}
