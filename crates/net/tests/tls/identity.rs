//! Authorities, certificates and configurations, as an operator has them.

use std::sync::Arc;

use linerate_net::tls::Tls;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    CipherSuiteCommon, ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite, Tls13CipherSuite,
};

pub const ALPN: &[u8] = b"linerate/test";

pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A host on loopback.
    pub fn host(&self) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
    }

    pub fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }
}

/// What a host's TLS is made from.
pub struct Parts {
    pub trusts: Arc<RootCertStore>,
    pub client: Option<Identity>,
    pub server: Identity,
    pub alpn: Vec<Vec<u8>>,
    pub provider: CryptoProvider,
}

impl Parts {
    pub fn of(authority: &Authority) -> Parts {
        Parts {
            trusts: authority.roots(),
            client: Some(authority.host()),
            server: authority.host(),
            alpn: vec![ALPN.to_vec()],
            provider: aws_lc_rs::default_provider(),
        }
    }

    pub fn server_config(&self) -> ServerConfig {
        let provider = Arc::new(self.provider.clone());
        let verifier = WebPkiClientVerifier::builder_with_provider(self.trusts.clone(), provider.clone())
            .build()
            .unwrap();
        let (chain, key) = (self.server.0.clone(), self.server.1.clone_key());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = self.alpn.clone();
        config
    }

    pub fn client_config(&self) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(Arc::new(self.provider.clone()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.trusts.clone());
        let mut config = match &self.client {
            Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key()).unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = self.alpn.clone();
        config
    }

    pub fn tls(&self) -> Tls {
        Tls::new(self.client_config(), self.server_config())
    }
}

/// One cipher, whose keys make so many records before they are changed.
pub fn aes_128_gcm(records: u64) -> CryptoProvider {
    let mut provider = aws_lc_rs::default_provider();
    let suite = aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256.tls13().unwrap();
    let suite = Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: records,
        },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: None,
    };
    provider.cipher_suites = vec![SupportedCipherSuite::Tls13(Box::leak(Box::new(suite)))];
    provider
}
