//! What rustls asks about the other end's certificates.

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::verify_tls13_signature;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, PeerIncompatible, SignatureScheme};

use crate::bundle::TrustedAuthority;
use crate::certificate::{AuthorityId, Facts};
use crate::identity::Identity;
use crate::name::{ClusterName, HostName, join_uri};
use crate::peer::{INTERMEDIATES_MAX, PeerError, Side, verify_chain};
use crate::revocation::Revocations;

/// Hosts of the cluster.
#[derive(Debug)]
pub(super) struct HostVerifier {
    pub(super) identity: Identity,
    pub(super) expected: Option<HostName>,
}

impl HostVerifier {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        side: Side,
        now: UnixTime,
    ) -> Result<(), PeerError> {
        let mut chain = vec![end_entity.clone()];
        chain.extend(intermediates.iter().cloned());
        self.identity.verify(&chain, side, self.expected.as_ref(), now).map(drop)
    }
}

/// The server that has a token's authority behind it.
#[derive(Debug)]
pub(super) struct TokenVerifier {
    pub(super) authority: AuthorityId,
}

/// Whether a chain comes from the authority with this key, and belongs to its own server. The chain has to include the
/// authority's certificate, since a host that joins has none yet.
pub(super) fn verify_token(
    authority: AuthorityId,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    now: UnixTime,
) -> Result<ClusterName, PeerError> {
    if intermediates.len() > INTERMEDIATES_MAX {
        return Err(PeerError::TooMany(intermediates.len() + 1));
    }
    let keys =
        intermediates.iter().map(|certificate| Facts::of(certificate).map(|facts| (certificate, facts.key)));
    let pinned = keys.flatten().find(|(_, key)| *key == authority).ok_or(PeerError::NotTheTokens)?.0;
    let pinned = TrustedAuthority::new(pinned.clone().into_owned()).map_err(|_| PeerError::NotTheTokens)?;
    let cluster = pinned.cluster.clone().ok_or(PeerError::NoName)?;
    let facts = verify_chain(&[pinned], &Revocations::default(), end_entity, &[], Side::Server, now)?;
    // A host of the cluster has a certificate of the same authority, and may not take the secret.
    if facts.uris != [join_uri(&cluster)] {
        return Err(PeerError::NotTheTokens);
    }
    Ok(cluster)
}

fn signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    verify_tls13_signature(
        message,
        certificate,
        signed,
        &default_provider().signature_verification_algorithms,
    )
}

fn schemes() -> Vec<SignatureScheme> {
    default_provider().signature_verification_algorithms.supported_schemes()
}

/// Never asked: TLS 1.2 is not configured.
fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(PeerIncompatible::Tls12NotOfferedOrEnabled.into())
}

impl ClientCertVerifier for HostVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        // A stranger does not learn which authorities this host trusts; every host has one certificate to show.
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.verify(end_entity, intermediates, Side::Client, now)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

macro_rules! server_verifier {
    ($kind:ident, $verify:expr) => {
        impl ServerCertVerifier for $kind {
            fn verify_server_cert(
                &self,
                end_entity: &CertificateDer<'_>,
                intermediates: &[CertificateDer<'_>],
                _: &ServerName<'_>,
                _: &[u8],
                now: UnixTime,
            ) -> Result<ServerCertVerified, Error> {
                $verify(self, end_entity, intermediates, now)?;
                Ok(ServerCertVerified::assertion())
            }

            fn verify_tls12_signature(
                &self,
                _: &[u8],
                _: &CertificateDer<'_>,
                _: &DigitallySignedStruct,
            ) -> Result<HandshakeSignatureValid, Error> {
                no_tls12()
            }

            fn verify_tls13_signature(
                &self,
                message: &[u8],
                certificate: &CertificateDer<'_>,
                signed: &DigitallySignedStruct,
            ) -> Result<HandshakeSignatureValid, Error> {
                signature(message, certificate, signed)
            }

            fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
                schemes()
            }
        }
    };
}

server_verifier!(HostVerifier, |verifier: &HostVerifier, end_entity, intermediates, now| {
    verifier.verify(end_entity, intermediates, Side::Server, now)
});
server_verifier!(TokenVerifier, |verifier: &TokenVerifier, end_entity, intermediates, now| {
    verify_token(verifier.authority, end_entity, intermediates, now)
});
