//! The cluster's authority: signs certificates of hosts and the list of revoked ones.
//!
//! Its folder has the key, the certificate, the tokens and a register of what was issued. A certificate is in the
//! register on disk before anybody gets it, so everything that exists can be revoked. A lock keeps a second process
//! away.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, UnixTime};

use crate::bundle::{Bundle, BundleError, TrustedAuthority};
use crate::certificate::{AuthorityId, CertificateError, Facts, date_time, key_id, utc};
use crate::files::{self, FileError, Secrecy};
use crate::name::{ClusterName, HostName, Name, authority_uri, join_uri};
use crate::peer::Peer;
use crate::request::{Request, common_name};
use crate::revocation::{RevocationError, RevocationList};
use crate::succession::{self, Statement};
use crate::token::{Redeemed, StoreError, Token, Tokens};

mod register;

use register::Register;
pub use register::{ISSUED_MAX, Issued, RegisterError};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How long a host's certificate is valid.
pub const HOST_VALIDITY: Duration = Duration::from_secs(90 * DAY.as_secs());

/// From this age on a host's certificate is renewed.
pub const RENEWAL_AGE: Duration = Duration::from_secs(30 * DAY.as_secs());

/// Certificates are valid from this long before they are made, for clocks that differ.
pub const CLOCK_DIFFERENCE: Duration = Duration::from_secs(3600);

/// From so many valid certificates on, a host that renews gets no more than one a day. Answers may be lost, so it may
/// need some; a host that renews without end would fill the register, and no other could join or renew.
pub const OF_ONE_HOST: usize = 8;

/// How long an authority is valid.
pub const AUTHORITY_VALIDITY: Duration = Duration::from_secs(3650 * DAY.as_secs());

const KEY_FILE: &str = "authority-key.pem";
const CERTIFICATE_FILE: &str = "authority.pem";
const LOCK_FILE: &str = "lock";

/// Why the authority did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// Another process has the authority open.
    #[error("another process uses this authority; is the agent running?")]
    Busy,
    /// Key and certificate are not a pair, or damaged.
    #[error(
        "the authority's key is damaged or does not belong to its certificate; restore both from one backup"
    )]
    Key,
    /// The certificate is no authority's of Linerate.
    #[error("the authority's certificate names no cluster; restore it from a backup")]
    NoCluster,
    /// The request asks for another name than its sender may have.
    #[error("the request asks for {requested}, and its sender may only be {authorised}")]
    Name {
        /// What the request asks for.
        requested: Name,
        /// Whom it may be for.
        authorised: Name,
    },
    /// The request asks for a host of another cluster.
    #[error("the request asks for {requested}, and this is the authority of cluster {cluster}")]
    Cluster {
        /// What the request asks for.
        requested: Name,
        /// Whose authority this is.
        cluster: ClusterName,
    },
    /// A token for any host does not allow taking the place of one that exists.
    #[error("host {0} has a certificate; revoke it first, or make a token for this host with `--host {0}`")]
    NameInUse(HostName),
    /// A host renews only what will end.
    #[error("the certificate of {host} is renewed from {} on", utc(.from))]
    Early {
        /// Host whose certificate it is.
        host: HostName,
        /// When its age is [`RENEWAL_AGE`].
        from: UnixTime,
    },
    /// It has [`OF_ONE_HOST`] valid ones.
    #[error("{host} has {OF_ONE_HOST} valid certificates; the next one is issued from {} on", utc(.from))]
    Often {
        /// Whose certificates are counted, by the name in the one that it shows.
        host: HostName,
        /// A day after its last one, or the end of the authority if that one lasts as long.
        from: UnixTime,
    },
    /// Revoked, or not in the register.
    #[error(
        "the certificate of {0} was revoked or is not from this authority; join it again with a new token"
    )]
    NotIssued(HostName),
    /// The register of issued certificates did not take an entry.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// Its own certificate, or one that it made.
    #[error("{0}")]
    Certificate(#[from] CertificateError),
    /// Its own certificate may not sign.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A list that is to be caught up with is not this authority's.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// Making a key or signing.
    #[error("a certificate could not be made: {0}")]
    Making(#[from] rcgen::Error),
    /// A time behind the year 9999.
    #[error("the system's clock is wrong: {0}")]
    Clock(#[from] time::error::ComponentRange),
    /// The system's random numbers.
    #[error("the system gave no random numbers")]
    Random,
    /// A token was not accepted, made or revoked.
    #[error(transparent)]
    Token(#[from] StoreError),
    /// A file was not read or written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a certificate may be issued.
#[derive(Debug)]
pub enum Grounds<'a> {
    /// The authority's own host, in `cluster init`: the caller is who may read the authority's key.
    Own,
    /// A host that joins.
    Token(&'a Redeemed),
    /// A host that proved in a handshake who it is. It gets the same name again.
    Renewal(&'a Peer),
    /// The same with a certificate of the authority before this one, which has not revoked it.
    Succession(&'a Peer),
}

/// See the module. Its `Debug` has no key.
pub struct Authority {
    cluster: ClusterName,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    facts: Facts,
    register: Register,
    tokens: Tokens,
    /// Held while this exists.
    _lock: File,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authority {{ cluster: {}, id: {}, key: hidden }}", self.cluster, self.facts.key)
    }
}

impl Authority {
    /// Makes the key and the certificate. The folder must have no authority; it is made with mode 0700.
    pub fn create(folder: &Path, cluster: &ClusterName, now: UnixTime) -> Result<Authority, AuthorityError> {
        files::make_folder(folder)?;
        let lock = files::lock(&folder.join(LOCK_FILE))?.ok_or(AuthorityError::Busy)?;
        let (key_file, certificate_file) = (folder.join(KEY_FILE), folder.join(CERTIFICATE_FILE));
        // The certificate is written last: a key alone is what a crash left, and signed nothing.
        match files::read(&certificate_file, Secrecy::Public) {
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Err(FileError::Exists(certificate_file).into()),
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let id = key_id(&key.subject_public_key_info()).to_string();
        let mut params = validity(now, AUTHORITY_VALIDITY)?;
        // The subject differs between authorities of one cluster: a revocation list names its issuer by it.
        let distinct = id.get(..16).unwrap_or_default();
        params.distinguished_name = common_name(&format!("Linerate {cluster} {distinct}"));
        params.subject_alt_names = vec![SanType::URI(authority_uri(cluster).try_into()?)];
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        files::write(&key_file, key.serialize_pem().as_bytes(), Secrecy::Private)?;
        files::write(&certificate_file, certificate.pem().as_bytes(), Secrecy::Public)?;
        Authority::load(folder, lock)
    }

    /// Whether the folder has an authority. It may still be damaged.
    pub fn exists(folder: &Path) -> bool {
        folder.join(CERTIFICATE_FILE).exists()
    }

    /// Which authority the folder has. Needs neither its key nor its lock.
    pub fn id_in(folder: &Path) -> Result<AuthorityId, AuthorityError> {
        let certificate = files::read(&folder.join(CERTIFICATE_FILE), Secrecy::Public)?;
        let certificate =
            CertificateDer::from_pem_slice(&certificate).map_err(|_| CertificateError::Encoding)?;
        Ok(Facts::of(&certificate)?.key)
    }

    /// Reads what [`Authority::create`] made.
    pub fn open(folder: &Path) -> Result<Authority, AuthorityError> {
        // Before the lock's file is made: a missing authority stays a missing file.
        files::read(&folder.join(KEY_FILE), Secrecy::Private)?;
        let lock = files::lock(&folder.join(LOCK_FILE))?.ok_or(AuthorityError::Busy)?;
        Authority::load(folder, lock)
    }

    fn load(folder: &Path, lock: File) -> Result<Authority, AuthorityError> {
        let key = files::read(&folder.join(KEY_FILE), Secrecy::Private)?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(&key).map_err(|_| AuthorityError::Key)?;
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ECDSA_P256_SHA256);
        let key = key.map_err(|_| AuthorityError::Key)?;
        let certificate = files::read(&folder.join(CERTIFICATE_FILE), Secrecy::Public)?;
        let certificate =
            CertificateDer::from_pem_slice(&certificate).map_err(|_| CertificateError::Encoding)?;
        let facts = Facts::of(&certificate)?;
        if facts.key != key_id(&key.subject_public_key_info()) {
            return Err(AuthorityError::Key);
        }
        let cluster = TrustedAuthority::new(certificate.clone())?.cluster.ok_or(AuthorityError::NoCluster)?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        let (register, tokens) = (Register::open(folder)?, Tokens::open(folder)?);
        Ok(Authority { cluster, issuer, certificate, facts, register, tokens, _lock: lock })
    }

    /// Whose authority it is.
    pub fn cluster(&self) -> &ClusterName {
        &self.cluster
    }

    /// The hash of its public key.
    pub fn id(&self) -> AuthorityId {
        self.facts.key
    }

    /// For the bundles of hosts.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// To redeem, list and revoke tokens.
    pub fn tokens(&mut self) -> &mut Tokens {
        &mut self.tokens
    }

    /// A token with which one host may join; this host alone, if one is named.
    pub fn create_token(
        &mut self,
        ttl: Duration,
        label: &str,
        host: Option<HostName>,
        now: UnixTime,
    ) -> Result<Token, AuthorityError> {
        Ok(self.tokens.create(self.facts.key, ttl, label, host, now)?)
    }

    /// Signs a host's certificate. All of its content is made here; the request gives the key alone.
    pub fn issue(
        &mut self,
        request: &Request,
        grounds: &Grounds<'_>,
        now: UnixTime,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let name = request.name();
        self.check_name(name, grounds, now)?;
        let mut params = self.host_params(now)?;
        params.distinguished_name = common_name(name.host.as_str());
        params.subject_alt_names = vec![SanType::URI(name.to_string().try_into()?)];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(request.key(), &self.issuer)?.der().clone();
        let facts = Facts::of(&certificate)?;
        self.register
            .add(Issued { serial: facts.serial, host: name.host.clone(), not_after: facts.not_after }, now)?;
        Ok(certificate)
    }

    fn check_name(&self, name: &Name, grounds: &Grounds<'_>, now: UnixTime) -> Result<(), AuthorityError> {
        if name.cluster != self.cluster {
            return Err(AuthorityError::Cluster { requested: name.clone(), cluster: self.cluster.clone() });
        }
        let authorised = match grounds {
            Grounds::Own => return Ok(()),
            Grounds::Renewal(peer) => {
                // A handshake with an older revocation list may have let it in.
                if !self.register.is_valid(&peer.serial, &peer.host, now) {
                    return Err(AuthorityError::NotIssued(peer.host.clone()));
                }
                let from = renewal_due(peer.not_after);
                if now < from {
                    return Err(AuthorityError::Early { host: peer.host.clone(), from });
                }
                self.check_number(&peer.host, now)?;
                &peer.host
            }
            Grounds::Succession(peer) => {
                self.check_number(&peer.host, now)?;
                &peer.host
            }
            Grounds::Token(redeemed) => match redeemed.host() {
                Some(host) => host,
                None if self.register.has(&name.host, now) => {
                    return Err(AuthorityError::NameInUse(name.host.clone()));
                }
                None => return Ok(()),
            },
        };
        if *authorised == name.host {
            return Ok(());
        }
        let authorised = Name { cluster: self.cluster.clone(), host: authorised.clone() };
        Err(AuthorityError::Name { requested: name.clone(), authorised })
    }

    /// Whether a host that renews may have one more certificate now.
    fn check_number(&self, host: &HostName, now: UnixTime) -> Result<(), AuthorityError> {
        let own = self.register.valid(now).filter(|one| one.host == *host);
        let ends: Vec<u64> = own.map(|one| one.not_after.as_secs()).collect();
        let last = ends.iter().copied().max().unwrap_or_default();
        // A certificate that ends with the authority does not show when it was issued, and another one would not last
        // longer.
        let is_last = last >= self.facts.not_after.as_secs();
        let a_day_after = last.saturating_sub(HOST_VALIDITY.saturating_sub(DAY).as_secs());
        let from = if is_last { last } else { a_day_after };
        if ends.len() < OF_ONE_HOST || now.as_secs() >= from {
            return Ok(());
        }
        let from = UnixTime::since_unix_epoch(Duration::from_secs(from));
        Err(AuthorityError::Often { host: host.clone(), from })
    }

    /// Revokes all certificates of a host and returns the new list in DER. The list is on disk by then.
    pub fn revoke(&mut self, host: &HostName, now: UnixTime) -> Result<Vec<u8>, AuthorityError> {
        self.register.revoke(host, now, &self.issuer)
    }

    /// Takes a list of this authority, in DER, that is newer than its register: that was restored from a backup. What
    /// the list revokes stays revoked, and a list that is newer than both is on disk. False if the register is not
    /// older.
    pub fn catch_up(&mut self, list: &[u8], now: UnixTime) -> Result<bool, AuthorityError> {
        let known = RevocationList::read(list, &Bundle::new(vec![self.certificate.clone()])?)?;
        self.register.catch_up(&known, now, &self.issuer)
    }

    /// The newest list in DER; empty if no certificate was revoked yet.
    pub fn revocations(&self) -> Option<&[u8]> {
        self.register.revocations()
    }

    /// Whether it has issued a certificate with this number to this host, and has not revoked it.
    pub fn has_issued(&self, peer: &Peer, now: UnixTime) -> bool {
        self.register.is_valid(&peer.serial, &peer.host, now)
    }

    /// States something of another authority of this cluster, in DER. Valid as long as this authority.
    pub fn state(
        &self,
        statement: Statement,
        about: &CertificateDer<'_>,
        now: UnixTime,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let mut params = self.host_params(now)?;
        params.not_after = date_time(self.facts.not_after)?;
        Ok(succession::sign(statement, &self.cluster, about, params, &self.issuer)?)
    }

    /// What is valid now.
    pub fn hosts(&self, now: UnixTime) -> impl Iterator<Item = Issued> {
        self.register.valid(now)
    }

    /// A key and certificate for the server that hosts join at, valid as long as the authority. Only who has the
    /// authority's key can make one, so a host of the cluster cannot take a token's secret.
    pub(crate) fn join_certificate(
        &self,
        now: UnixTime,
    ) -> Result<(CertificateDer<'static>, KeyPair), AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = self.host_params(now)?;
        params.not_after = date_time(self.facts.not_after)?;
        params.distinguished_name = common_name("authority");
        params.subject_alt_names = vec![SanType::URI(join_uri(&self.cluster).try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Ok((params.signed_by(&key, &self.issuer)?.der().clone(), key))
    }

    fn host_params(&self, now: UnixTime) -> Result<CertificateParams, AuthorityError> {
        let mut params = validity(now, HOST_VALIDITY)?;
        params.not_after = params.not_after.min(date_time(self.facts.not_after)?);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}

/// When a certificate that ends then has the age of [`RENEWAL_AGE`].
pub fn renewal_due(not_after: UnixTime) -> UnixTime {
    let left = HOST_VALIDITY.saturating_sub(RENEWAL_AGE);
    UnixTime::since_unix_epoch(Duration::from_secs(not_after.as_secs().saturating_sub(left.as_secs())))
}

fn validity(now: UnixTime, length: Duration) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::default();
    params.not_before = date_time(now)? - CLOCK_DIFFERENCE;
    params.not_after = date_time(now)? + length;
    params.serial_number = Some(serial()?);
    Ok(params)
}

/// 126 random bits, positive and of the same length always (RFC 5280 section 4.1.2.2).
fn serial() -> Result<SerialNumber, AuthorityError> {
    let mut bytes = [0; 16];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| AuthorityError::Random)?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}
