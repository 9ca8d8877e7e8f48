//! rustls' configurations: TLS 1.3 only, aws-lc-rs only, both ends with certificates, no resumption, no early data.
//!
//! A handshake says who the other end is, and [`peer`] is the only way to ask: it verifies the chain once more and that
//! the protocol was agreed on. A caller asks again when a revocation list came, also in the middle of a copy.
//!
//! A host without a certificate uses another protocol, `linerate-join/1`. There the server has a certificate that only
//! the authority's key can make, and the client knows that key's hash from its token.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite, default_provider};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, CommonState, ServerConfig, SupportedCipherSuite};

use crate::authority::{Authority, AuthorityError};
use crate::identity::Identity;
use crate::name::{ClusterName, HostName};
use crate::peer::{Peer, PeerError, Side};
use crate::token::Token;

mod resolver;
mod verifier;

use resolver::{Fixed, OfIdentity};
use verifier::{HostVerifier, TokenVerifier, verify_token};

/// ALPN between hosts of a cluster.
pub const PROTOCOL: &str = "linerate/1";

/// ALPN of a host that joins.
pub const JOIN_PROTOCOL: &str = "linerate-join/1";

/// Why a configuration was not made.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The library has no TLS 1.3.
    #[error("TLS could not be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// The certificate of the server that hosts join at.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
}

/// For connections that other hosts open.
pub fn server(identity: &Identity) -> Result<ServerConfig, ConfigError> {
    let verifier = Arc::new(HostVerifier { identity: identity.clone(), expected: None });
    let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let resolver = Arc::new(OfIdentity { identity: identity.clone() });
    Ok(finish_server(config.with_client_cert_verifier(verifier).with_cert_resolver(resolver), PROTOCOL))
}

/// For connections to other hosts; to `expected` alone, if it is known who should answer.
pub fn client(identity: &Identity, expected: Option<HostName>) -> Result<ClientConfig, ConfigError> {
    let verifier = Arc::new(HostVerifier { identity: identity.clone(), expected });
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let config = config.dangerous().with_custom_certificate_verifier(verifier);
    let resolver = Arc::new(OfIdentity { identity: identity.clone() });
    Ok(finish_client(config.with_client_cert_resolver(resolver), PROTOCOL))
}

/// For a host that joins. Only the authority that the token names is accepted.
pub fn join_client(token: &Token) -> Result<ClientConfig, ConfigError> {
    let verifier = Arc::new(TokenVerifier { authority: token.authority() });
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13])?;
    let config = config.dangerous().with_custom_certificate_verifier(verifier);
    Ok(finish_client(config.with_no_client_auth(), JOIN_PROTOCOL))
}

/// For connections of hosts that join. The client proves nothing but that it has a token's secret.
pub fn join_server(authority: &Authority, now: UnixTime) -> Result<ServerConfig, ConfigError> {
    let (certificate, key) = authority.join_certificate(now)?;
    let chain = vec![certificate, authority.certificate().clone()];
    let provider = provider();
    let key = CertifiedKey::from_der(chain, PrivateKeyDer::Pkcs8(key.into()), &provider)?;
    let config = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    let resolver = Arc::new(Fixed { key: Arc::new(key) });
    Ok(finish_server(config.with_no_client_auth().with_cert_resolver(resolver), JOIN_PROTOCOL))
}

/// What rustls wants to know of a server before it connects. It is neither sent nor checked: names of hosts are in
/// their certificates, and addresses change.
pub fn server_name() -> ServerName<'static> {
    ServerName::from(std::net::Ipv4Addr::UNSPECIFIED)
}

/// Who is at the other end; `side` is the end that the peer is. Only behind a finished handshake.
pub fn peer(
    identity: &Identity,
    connection: &CommonState,
    side: Side,
    now: UnixTime,
) -> Result<Peer, PeerError> {
    let chain = agreed(connection, PROTOCOL)?;
    identity.verify(chain, side, None, now)
}

/// The cluster of the authority that answered a host with a token. Only then its secret may be sent.
pub fn join_peer(token: &Token, connection: &CommonState, now: UnixTime) -> Result<ClusterName, PeerError> {
    let chain = agreed(connection, JOIN_PROTOCOL)?;
    let (end_entity, intermediates) = chain.split_first().ok_or(PeerError::NoCertificate)?;
    verify_token(token.authority(), end_entity, intermediates, now)
}

fn agreed<'a>(
    connection: &'a CommonState,
    protocol: &'static str,
) -> Result<&'a [CertificateDer<'static>], PeerError> {
    if connection.is_handshaking() {
        return Err(PeerError::NoCertificate);
    }
    // Without it the other end took part in the handshake of another protocol.
    if connection.alpn_protocol() != Some(protocol.as_bytes()) {
        return Err(PeerError::Protocol(protocol));
    }
    connection.peer_certificates().ok_or(PeerError::NoCertificate)
}

fn finish_server(mut config: ServerConfig, protocol: &str) -> ServerConfig {
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    // A revoked host would keep its tickets, and without early data they save no round trip.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    // The end without AES instructions decides: it is the slower one.
    config.ignore_client_order = !has_aes();
    config
}

fn finish_client(mut config: ClientConfig, protocol: &str) -> ClientConfig {
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    config.enable_sni = false;
    config
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { cipher_suites: cipher_suites(has_aes()).to_vec(), ..default_provider() })
}

/// In the order of preference: what takes the least CPU time first.
fn cipher_suites(aes: bool) -> [SupportedCipherSuite; 3] {
    let chacha = cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
    let (aes_128, aes_256) = (cipher_suite::TLS13_AES_128_GCM_SHA256, cipher_suite::TLS13_AES_256_GCM_SHA384);
    if aes { [aes_128, aes_256, chacha] } else { [chacha, aes_128, aes_256] }
}

/// Instructions for AES and for GCM's multiplication.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheapest_cipher_is_first() {
        assert_eq!(cipher_suites(true)[0], cipher_suite::TLS13_AES_128_GCM_SHA256);
        assert_eq!(cipher_suites(false)[0], cipher_suite::TLS13_CHACHA20_POLY1305_SHA256);
    }
}
