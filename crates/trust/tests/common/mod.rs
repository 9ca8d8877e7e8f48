//! A cluster in a temporary folder, and handshakes in memory.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::result_large_err)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use linerate_trust::authority::{Authority, Grounds};
use linerate_trust::bundle::Bundle;
use linerate_trust::identity::Identity;
use linerate_trust::name::{HostName, Name};
use linerate_trust::peer::PeerError;
use linerate_trust::request::{NewKey, Request};
use linerate_trust::tls;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use tempfile::TempDir;

pub const DAY: Duration = Duration::from_secs(24 * 3600);

/// A cluster's authority with the folders of its hosts.
pub struct Cluster {
    pub folder: TempDir,
    pub authority: Authority,
    pub made: UnixTime,
}

impl Cluster {
    pub fn new(name: &str) -> Cluster {
        Cluster::at(name, UnixTime::now())
    }

    pub fn at(name: &str, made: UnixTime) -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let authority =
            Authority::create(&folder.path().join("authority"), &name.parse().unwrap(), made).unwrap();
        Cluster { folder, authority, made }
    }

    pub fn name(&self, host: &str) -> Name {
        Name { cluster: self.authority.cluster().clone(), host: host.parse().unwrap() }
    }

    pub fn bundle(&self) -> Bundle {
        Bundle::new(vec![self.authority.certificate().clone()]).unwrap()
    }

    pub fn host_folder(&self, host: &str) -> PathBuf {
        self.folder.path().join(host)
    }

    /// A new key, and its certificate.
    pub fn issue(&mut self, host: &str, now: UnixTime) -> (NewKey, CertificateDer<'static>) {
        let key = NewKey::make(self.name(host)).unwrap();
        let request = Request::read(&key.request().unwrap()).unwrap();
        let certificate = self.authority.issue(&request, &Grounds::Own, now).unwrap();
        (key, certificate)
    }

    pub fn host(&mut self, host: &str) -> Identity {
        self.host_with(host, &self.bundle())
    }

    pub fn host_with(&mut self, host: &str, bundle: &Bundle) -> Identity {
        let (key, certificate) = self.issue(host, self.made);
        let folder = self.host_folder(host);
        Identity::install(&folder, &key, &certificate, bundle, self.authority.id(), self.made).unwrap()
    }

    /// The authority's own key, for certificates that it would never make.
    pub fn issuer(&self) -> Issuer<'static, KeyPair> {
        let folder = self.folder.path().join("authority");
        let key = std::fs::read_to_string(folder.join("authority-key.pem")).unwrap();
        Issuer::from_ca_cert_der(self.authority.certificate(), KeyPair::from_pem(&key).unwrap()).unwrap()
    }

    /// A host's files with a certificate that the test makes, signed with the authority's key.
    pub fn forged(&self, host: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = host_params(&self.name(host).to_string());
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer()).unwrap();
        write_identity(&self.host_folder(host), &key, &certificate.pem(), &self.bundle().to_pem())
    }
}

/// Like those of the authority.
pub fn host_params(uri: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    let hour = Duration::from_secs(3600);
    params.not_before = time::OffsetDateTime::now_utc() - hour;
    params.not_after = time::OffsetDateTime::now_utc() + 90 * DAY;
    params.subject_alt_names = vec![SanType::URI(uri.to_owned().try_into().unwrap())];
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params
}

pub fn write_identity(folder: &std::path::Path, key: &KeyPair, certificates: &str, trust: &str) -> Identity {
    use linerate_trust::files::{Secrecy, make_folder, write};
    make_folder(folder).unwrap();
    write(&folder.join("host.pem"), (key.serialize_pem() + certificates).as_bytes(), Secrecy::Private)
        .unwrap();
    write(&folder.join("trust.pem"), trust.as_bytes(), Secrecy::Public).unwrap();
    Identity::open(folder).unwrap()
}

/// Key and chain of a host, for a configuration that the test makes itself.
pub fn key_of(cluster: &Cluster, host: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let pem = std::fs::read(cluster.host_folder(host).join("host.pem")).unwrap();
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().unwrap();
    (chain, PrivateKeyDer::from_pem_slice(&pem).unwrap())
}

pub fn host(name: &str) -> HostName {
    name.parse().unwrap()
}

pub fn after(time: UnixTime, duration: Duration) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(time.as_secs()) + duration)
}

pub fn before(time: UnixTime, duration: Duration) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(time.as_secs()) - duration)
}

/// A clock that does not advance.
#[derive(Debug)]
pub struct At(pub UnixTime);

impl TimeProvider for At {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.0)
    }
}

pub struct Connected {
    pub client: ClientConnection,
    pub server: ServerConnection,
}

/// What each end says of a handshake that came to nothing.
#[derive(Debug)]
pub struct Refused {
    pub client: Option<rustls::Error>,
    pub server: Option<rustls::Error>,
}

impl Refused {
    /// Why the server refused the client.
    pub fn by_server(&self) -> &PeerError {
        self.server.as_ref().and_then(PeerError::of).unwrap_or_else(|| panic!("{self:?}"))
    }

    /// Why the client refused the server.
    pub fn by_client(&self) -> &PeerError {
        self.client.as_ref().and_then(PeerError::of).unwrap_or_else(|| panic!("{self:?}"))
    }
}

pub fn handshake(client: ClientConfig, server: ServerConfig) -> Result<Connected, Refused> {
    let mut client = ClientConnection::new(Arc::new(client), tls::server_name()).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let mut refused = Refused { client: None, server: None };
    let mut bytes = Vec::new();
    for _ in 0..10 {
        bytes.clear();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        feed(&bytes, |piece| server.read_tls(piece));
        if let Err(error) = server.process_new_packets() {
            refused.server.get_or_insert(error);
        }
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        feed(&bytes, |piece| client.read_tls(piece));
        if let Err(error) = client.process_new_packets() {
            refused.client.get_or_insert(error);
        }
    }
    let done = !client.is_handshaking() && !server.is_handshaking();
    if done && refused.client.is_none() && refused.server.is_none() {
        Ok(Connected { client, server })
    } else {
        Err(refused)
    }
}

fn feed(mut bytes: &[u8], mut read: impl FnMut(&mut dyn std::io::Read) -> std::io::Result<usize>) {
    while !bytes.is_empty() {
        // An end that refused takes nothing more.
        if !matches!(read(&mut bytes), Ok(1..)) {
            return;
        }
    }
}

/// Between two hosts, with nothing changed.
pub fn connect(client: &Identity, server: &Identity) -> Result<Connected, Refused> {
    handshake(tls::client(client, None).unwrap(), tls::server(server).unwrap())
}
