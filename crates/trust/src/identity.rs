//! Who this host is and whom it trusts: key, certificate, authorities and revocation lists, from files.
//!
//! Every handshake reads what is current, so renewed files count without a restart. Files that cannot be used change
//! nothing: what was read before stays in force.
//!
//! The folder of a host that joined has two files, each replaced as a whole: `host.pem` (key and certificate) and
//! `trust.pem` (authorities and revocation lists).

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use linerate_lock::{Mutex, RwLock};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::sign::CertifiedKey;

use crate::bundle::{Bundle, BundleError, TrustedAuthority};
use crate::certificate::{AuthorityId, CertificateError, Facts, Serial, key_id};
use crate::files::{self, FileError, Secrecy};
use crate::name::{HostName, Name, NameError};
use crate::peer::{Naming, Peer, PeerError, Side, verify_chain};
use crate::pem::{Pair, PemError, PemSettings, Trusted, certificate_pem};
use crate::request::NewKey;
use crate::revocation::{RevocationError, RevocationList, Revocations};

const HOST_FILE: &str = "host.pem";
const TRUST_FILE: &str = "trust.pem";

/// Why an identity was not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file is no PEM with what is expected in it.
    #[error(transparent)]
    Pem(#[from] PemError),
    /// A file was not written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The authorities' certificates are missing or not usable.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// A revocation list is damaged, or not from a known authority.
    #[error(transparent)]
    Revocation(#[from] RevocationError),
    /// This host's own certificate cannot be used.
    #[error("this host's certificate: {0}")]
    Certificate(#[from] CertificateError),
    /// The name of this host in its certificate.
    #[error("this host's certificate: {0}")]
    Name(#[from] NameError),
    /// Another key, or one of a kind that TLS 1.3 does not have.
    #[error("this host's private key cannot be used with its certificate: {0}")]
    Key(rustls::Error),
    /// Other hosts would refuse it.
    #[error("this host's certificate would be refused: {0}")]
    Own(PeerError),
    /// The new certificate is for another key or name than was requested.
    #[error("the certificate that came is for another key or name than was requested; make a new request")]
    NotRequested,
    /// The authority that was expected is not among those that came.
    #[error("authority {0} is not among the authorities that came; make a new token")]
    NoAuthority(AuthorityId),
    /// Files that an operator keeps are not written.
    #[error("certificates from agent.toml are not changed by the agent; change the files themselves")]
    Operators,
}

#[derive(Debug)]
enum Source {
    Folder(PathBuf),
    Operator(PemSettings),
}

/// What is in force.
struct State {
    key: Arc<CertifiedKey>,
    own: Facts,
    host: HostName,
    naming: Naming,
    bundle: Bundle,
    revocations: Revocations,
}

#[derive(Debug)]
struct Inner {
    source: Source,
    state: RwLock<Arc<State>>,
    /// One change at a time: from what is in force to what follows.
    changing: Mutex<()>,
}

/// See the module. Clones are the same identity.
#[derive(Clone, Debug)]
pub struct Identity {
    inner: Arc<Inner>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "State {{ host: {}, serial: {}, key: hidden }}", self.host, self.own.serial)
    }
}

impl Identity {
    /// Whether the folder has one. It may still be damaged.
    pub fn exists(folder: &Path) -> bool {
        folder.join(HOST_FILE).exists()
    }

    /// Of a host that joined, or made the cluster.
    pub fn open(folder: &Path) -> Result<Identity, IdentityError> {
        Identity::of(Source::Folder(folder.to_owned()))
    }

    /// Of an operator's own files.
    pub fn open_pem(settings: PemSettings) -> Result<Identity, IdentityError> {
        Identity::of(Source::Operator(settings))
    }

    fn of(source: Source) -> Result<Identity, IdentityError> {
        let state = State::read(&source, &Revocations::default())?;
        let inner = Inner { source, state: RwLock::new(Arc::new(state)), changing: Mutex::new(()) };
        Ok(Identity { inner: Arc::new(inner) })
    }

    /// Writes what a host got when it joined, or made for itself, and opens it. `authority` is the one that the token
    /// names: it must have signed the certificate.
    pub fn install(
        folder: &Path,
        key: &NewKey,
        certificate: &CertificateDer<'static>,
        bundle: &Bundle,
        authority: AuthorityId,
        now: UnixTime,
    ) -> Result<Identity, IdentityError> {
        let signer = bundle.authorities().iter().find(|one| one.id() == authority);
        let signer = signer.ok_or(IdentityError::NoAuthority(authority))?;
        bundle.check_cluster(&key.name().cluster)?;
        check_issued(key, certificate, std::slice::from_ref(signer), now)?;
        files::make_folder(folder)?;
        // The host's file is last: with it the host has an identity.
        files::write(&folder.join(TRUST_FILE), bundle.to_pem().as_bytes(), Secrecy::Public)?;
        write_host(folder, key, certificate)?;
        Identity::open(folder)
    }

    /// Replaces key and certificate after a renewal.
    pub fn renew(
        &self,
        key: &NewKey,
        certificate: &CertificateDer<'static>,
        now: UnixTime,
    ) -> Result<(), IdentityError> {
        let _changing = self.changing();
        let folder = self.folder()?;
        let state = self.state();
        if *key.name() != self.name() {
            return Err(IdentityError::NotRequested);
        }
        check_issued(key, certificate, state.bundle.authorities(), now)?;
        write_host(folder, key, certificate)?;
        self.read_again()
    }

    /// Takes a newer revocation list, on disk and for every handshake from now on. False if it was in force already.
    pub fn accept_revocations(&self, der: &[u8]) -> Result<bool, IdentityError> {
        let _changing = self.changing();
        let folder = self.folder()?;
        let state = self.state();
        let list = RevocationList::read(der, &state.bundle)?;
        let known = state.revocations.list(list.authority());
        if known.is_some_and(|known| known.der() == der) {
            return Ok(false);
        }
        let revocations = state.revocations.with(list)?;
        write_trust(folder, &state.bundle, &revocations)?;
        self.read_again()?;
        Ok(true)
    }

    /// Whether [`accept_revocations`](Identity::accept_revocations) would take the list now. Opens no file.
    pub fn is_newer(&self, der: &[u8]) -> Result<bool, IdentityError> {
        self.folder()?;
        let state = self.state();
        let list = RevocationList::read(der, &state.bundle)?;
        if state.revocations.list(list.authority()).is_some_and(|known| known.der() == der) {
            return Ok(false);
        }
        Ok(state.revocations.with(list).map(|_| true)?)
    }

    /// Trusts these authorities instead. Revocation lists of those that leave go with them.
    pub fn set_authorities(&self, bundle: &Bundle) -> Result<(), IdentityError> {
        let _changing = self.changing();
        let folder = self.folder()?;
        let state = self.state();
        bundle.check_cluster(&state.naming.cluster)?;
        write_trust(folder, bundle, &state.revocations.of(bundle))?;
        self.read_again()
    }

    /// Reads the files again. If they cannot be used, what was read before stays.
    pub fn reload(&self) -> Result<(), IdentityError> {
        let _changing = self.changing();
        self.read_again()
    }

    fn read_again(&self) -> Result<(), IdentityError> {
        let state = State::read(&self.inner.source, &self.state().revocations)?;
        *self.inner.state.write() = Arc::new(state);
        Ok(())
    }

    /// Cluster and host name in this host's certificate.
    pub fn name(&self) -> Name {
        let state = self.state();
        Name { cluster: state.naming.cluster.clone(), host: state.host.clone() }
    }

    /// The files that it was read from, to see whether they change.
    pub fn files(&self) -> Vec<PathBuf> {
        match &self.inner.source {
            Source::Folder(folder) => vec![folder.join(HOST_FILE), folder.join(TRUST_FILE)],
            Source::Operator(settings) => {
                let named = [&settings.certificate, &settings.key, &settings.authorities];
                named.into_iter().chain(&settings.revocations).cloned().collect()
            }
        }
    }

    /// The number of this host's certificate.
    pub fn serial(&self) -> Serial {
        self.state().own.serial.clone()
    }

    /// The end of this host's certificate.
    pub fn not_after(&self) -> UnixTime {
        self.state().own.not_after
    }

    /// This host's certificate as another host judges it: `Ok` if it would be accepted.
    pub fn check_own(&self, now: UnixTime) -> Result<Peer, IdentityError> {
        let chain = self.certified_key().cert.clone();
        self.verify(&chain, Side::Client, None, now).map_err(IdentityError::Own)?;
        self.verify(&chain, Side::Server, None, now).map_err(IdentityError::Own)
    }

    /// Whether hosts that trust this authority alone would accept this host's certificate.
    pub fn is_issued_by(&self, authority: AuthorityId, now: UnixTime) -> bool {
        let state = self.state();
        let one = state.bundle.authorities().iter().find(|one| one.id() == authority);
        let proves = |one, side| state.proves(one, &state.key.cert, side, now);
        one.is_some_and(|one| proves(one, Side::Client) && proves(one, Side::Server))
    }

    /// Which of the trusted authorities this chain of certificates is from, another host's own first.
    pub fn issuer_of(&self, chain: &[CertificateDer<'_>], side: Side, now: UnixTime) -> Option<AuthorityId> {
        let state = self.state();
        let authorities = state.bundle.authorities().iter();
        let issuer = authorities.into_iter().find(|one| state.proves(one, chain, side, now));
        issuer.map(TrustedAuthority::id)
    }

    /// The authorities that are trusted.
    pub fn bundle(&self) -> Bundle {
        self.state().bundle.clone()
    }

    /// The number of an authority's revocation list, 0 without one. A handshake sends it to the other side.
    pub fn revocation_number(&self, authority: AuthorityId) -> u64 {
        self.state().revocations.number(authority)
    }

    /// An authority's revocation list in DER, to send to a host with a smaller number.
    pub fn revocation_list(&self, authority: AuthorityId) -> Option<Vec<u8>> {
        self.state().revocations.list(authority).map(|list| list.der().to_vec())
    }

    /// Who has this chain of certificates, its own first. `expected` is who was called, if the name is known.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        side: Side,
        expected: Option<&HostName>,
        now: UnixTime,
    ) -> Result<Peer, PeerError> {
        let (end_entity, intermediates) = chain.split_first().ok_or(PeerError::NoCertificate)?;
        let state = self.state();
        let facts = verify_chain(
            state.bundle.authorities(),
            &state.revocations,
            end_entity,
            intermediates,
            side,
            now,
        )?;
        let host = state.naming.host(&facts)?;
        if let Some(expected) = expected.filter(|expected| **expected != host) {
            return Err(PeerError::Host { found: host, expected: expected.clone() });
        }
        let cluster = state.naming.cluster.clone();
        Ok(Peer { cluster, host, serial: facts.serial, not_after: facts.not_after })
    }

    /// Whether one of these certificates was revoked, also if it has ended since. Of a chain that was verified before.
    pub fn is_revoked(&self, chain: &[CertificateDer<'_>]) -> bool {
        let state = self.state();
        chain.iter().any(|certificate| state.revocations.have(certificate))
    }

    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.state().key)
    }

    fn state(&self) -> Arc<State> {
        Arc::clone(&self.inner.state.read())
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.inner.changing.lock()
    }

    fn folder(&self) -> Result<&Path, IdentityError> {
        match &self.inner.source {
            Source::Folder(folder) => Ok(folder),
            Source::Operator(_) => Err(IdentityError::Operators),
        }
    }
}

impl State {
    /// Whether who trusts this authority alone would accept the chain.
    fn proves(
        &self,
        authority: &TrustedAuthority,
        chain: &[CertificateDer<'_>],
        side: Side,
        now: UnixTime,
    ) -> bool {
        let Some((own, between)) = chain.split_first() else { return false };
        let authorities = std::slice::from_ref(authority);
        verify_chain(authorities, &self.revocations, own, between, side, now).is_ok()
    }

    /// `known` are the lists in force: an older list in the files is refused.
    fn read(source: &Source, known: &Revocations) -> Result<State, IdentityError> {
        let (pair, trusted) = match source {
            Source::Folder(folder) => {
                // The certificate is in the key's file, which others may not read.
                let (host, trust) = (folder.join(HOST_FILE), folder.join(TRUST_FILE));
                (Pair::read(&host, &host)?, Trusted::read(&trust, Some(&trust))?)
            }
            Source::Operator(settings) => {
                let trusted = Trusted::read(&settings.authorities, settings.revocations.as_deref())?;
                (Pair::read(&settings.certificate, &settings.key)?, trusted)
            }
        };
        let end_entity = pair.chain.first().ok_or(PeerError::NoCertificate).map_err(IdentityError::Own)?;
        let own = Facts::of(end_entity)?;
        let key =
            CertifiedKey::from_der(pair.chain, pair.key, &default_provider()).map_err(IdentityError::Key)?;
        let naming = match source {
            Source::Operator(settings) => {
                let lower = |(name, host): (&String, &HostName)| (name.to_ascii_lowercase(), host.clone());
                Naming {
                    cluster: settings.cluster.clone(),
                    hosts: settings.hosts.iter().map(lower).collect(),
                }
            }
            Source::Folder(_) => {
                let uri = own.uris.first().ok_or(PeerError::NoName).map_err(IdentityError::Own)?;
                Naming { cluster: uri.parse::<Name>()?.cluster, hosts: BTreeMap::new() }
            }
        };
        let host = naming.host(&own).map_err(IdentityError::Own)?;
        let bundle = Bundle::new(trusted.authorities)?;
        bundle.check_cluster(&naming.cluster)?;
        let mut revocations = known.of(&bundle);
        for der in trusted.revocations {
            revocations = revocations.with(RevocationList::read(&der, &bundle)?)?;
        }
        Ok(State { key: Arc::new(key), own, host, naming, bundle, revocations })
    }
}

/// The certificate is for this key and name, and other hosts accept it.
fn check_issued(
    key: &NewKey,
    certificate: &CertificateDer<'static>,
    authorities: &[TrustedAuthority],
    now: UnixTime,
) -> Result<(), IdentityError> {
    let facts = Facts::of(certificate)?;
    if facts.key != key_id(&key.spki()) || facts.uris != [key.name().to_string()] {
        return Err(IdentityError::NotRequested);
    }
    for side in [Side::Client, Side::Server] {
        let chain = verify_chain(authorities, &Revocations::default(), certificate, &[], side, now);
        chain.map_err(IdentityError::Own)?;
    }
    Ok(())
}

fn write_host(folder: &Path, key: &NewKey, certificate: &CertificateDer<'static>) -> Result<(), FileError> {
    let text = key.to_pem() + &certificate_pem(certificate);
    files::write(&folder.join(HOST_FILE), text.as_bytes(), Secrecy::Private)
}

fn write_trust(folder: &Path, bundle: &Bundle, revocations: &Revocations) -> Result<(), FileError> {
    let text = bundle.to_pem() + &revocations.to_pem();
    files::write(&folder.join(TRUST_FILE), text.as_bytes(), Secrecy::Public)
}
