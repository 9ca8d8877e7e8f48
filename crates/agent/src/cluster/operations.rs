//! What the commands do. Each needs the files of this host only, and works with or without a running agent.

use std::error::Error;
use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use linerate_api::AuditAction;
use linerate_trust::authority::{Authority, AuthorityError, Grounds, Issued, RegisterError};
use linerate_trust::bundle::Bundle;
use linerate_trust::files;
use linerate_trust::identity::{Identity, IdentityError};
use linerate_trust::name::{ClusterName, HostName, Name, NameError};
use linerate_trust::request::{NewKey, Request};
use linerate_trust::token::{Listed, StoreError, TokenId};
use rustls_pki_types::UnixTime;

use super::{ClusterError, Membership, rotation, utc};
use crate::audit;
use crate::config::Config;

/// Another command, or the agent, has the authority for no longer.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// Name of a cluster that its maker did not name.
pub const DEFAULT_CLUSTER: &str = "linerate";

/// A token that was just made.
pub struct NewToken {
    /// The line of the token. Whoever reads it can join.
    pub line: String,
    /// Names it in the list.
    pub id: TokenId,
    /// The only host that may join with it.
    pub host: Option<HostName>,
    /// From then on it does not count.
    pub expires: UnixTime,
    /// Addresses for `linerate join`, as configured or derived from `listen`.
    pub addresses: Vec<SocketAddr>,
}

/// A host's certificate, as its own host sees it.
pub struct Shown {
    /// Who this host is.
    pub membership: Membership,
    /// Number of the certificate.
    pub serial: String,
    /// From then on it is renewed.
    pub renewal_from: UnixTime,
    /// Why other hosts would refuse it, if they would.
    pub problem: Option<String>,
    /// The authorities that are trusted, with the number of the revocation list of each; 0 without one.
    pub authorities: Vec<(String, u64)>,
    /// This host has the authority.
    pub is_authority: bool,
}

pub(super) fn parse<T: std::str::FromStr<Err = NameError>>(text: &str) -> Result<T, ClusterError> {
    text.parse().map_err(|source| ClusterError::Name { text: text.to_owned(), source })
}

/// The authority of this host, which nobody else uses meanwhile.
pub(super) fn open_authority(folder: &Path) -> Result<Authority, ClusterError> {
    if !Authority::exists(folder) {
        return Err(ClusterError::NoAuthority(folder.to_owned()));
    }
    let end = Instant::now() + LOCK_WAIT;
    loop {
        match Authority::open(folder) {
            Err(AuthorityError::Busy) if Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => return Ok(opened?),
        }
    }
}

/// Keeps other commands and the agent from writing this host's identity meanwhile.
pub(super) fn lock_identity(folder: &Path) -> Result<File, ClusterError> {
    files::make_folder(folder)?;
    files::lock_within(&folder.join("lock"), LOCK_WAIT)?
        .ok_or_else(|| ClusterError::Locked(folder.to_owned()))
}

/// Makes an authority, and this host the first of its cluster. What a crash left half done is ended.
pub fn init(config: &Config, cluster: Option<&str>, host: Option<&str>) -> Result<Membership, ClusterError> {
    let made = init_here(config, cluster, host);
    note(config, AuditAction::ClusterInit, None, &made, |made| format!("this host is {}", made.name));
    made
}

/// Writes down what became of a command.
pub(super) fn note<T>(
    config: &Config,
    action: AuditAction,
    to: Option<&str>,
    done: &Result<T, ClusterError>,
    text: impl FnOnce(&T) -> String,
) {
    let done = done.as_ref().map(text).map_err(|error| error as &(dyn Error + 'static));
    audit::command::record(config, action, to.map(str::to_owned), done);
}

fn init_here(config: &Config, cluster: Option<&str>, host: Option<&str>) -> Result<Membership, ClusterError> {
    let (folder, authority) = (config.identity_folder(), config.authority_folder());
    let cluster_name: ClusterName = parse(cluster.unwrap_or(DEFAULT_CLUSTER))?;
    let host: HostName = parse(host.unwrap_or(&config.name.to_ascii_lowercase()))?;
    let _alone = lock_identity(&folder)?;
    if Identity::exists(&folder) {
        return Err(member(&folder));
    }
    let now = UnixTime::now();
    let mut made = match Authority::exists(&authority) {
        true => open_authority(&authority)?,
        false => Authority::create(&authority, &cluster_name, now)?,
    };
    if *made.cluster() != cluster_name {
        let (found, wanted) = (made.cluster().to_string(), cluster_name.to_string());
        return Err(ClusterError::OtherCluster { folder: authority, found, wanted });
    }
    let identity = certify(&mut made, &folder, host, now)?;
    Ok(Membership::of(&identity))
}

/// Gives this host a certificate of its own authority.
fn certify(
    authority: &mut Authority,
    folder: &Path,
    host: HostName,
    now: UnixTime,
) -> Result<Identity, ClusterError> {
    let key = new_key(Name { cluster: authority.cluster().clone(), host })?;
    let request = Request::read(&request(&key)?)?;
    let certificate = authority.issue(&request, &Grounds::Own, now)?;
    let bundle = Bundle::new(vec![authority.certificate().clone()])?;
    let identity = Identity::install(folder, &key, &certificate, &bundle, authority.id(), now)?;
    if let Some(list) = authority.revocations() {
        identity.accept_revocations(list)?;
    }
    Ok(identity)
}

pub(super) fn new_key(name: Name) -> Result<NewKey, ClusterError> {
    NewKey::make(name).map_err(|error| ClusterError::Key(error.to_string()))
}

pub(super) fn request(key: &NewKey) -> Result<Vec<u8>, ClusterError> {
    key.request().map_err(|error| ClusterError::Key(error.to_string()))
}

fn member(folder: &Path) -> ClusterError {
    match open_identity(folder) {
        Ok(known) => ClusterError::Member { name: known.name(), folder: folder.to_owned() },
        Err(error) => error,
    }
}

pub(super) fn open_identity(folder: &Path) -> Result<Identity, ClusterError> {
    if !Identity::exists(folder) {
        return Err(ClusterError::NotMember(folder.to_owned()));
    }
    let damaged =
        |source: IdentityError| ClusterError::Damaged { folder: folder.to_owned(), source: Box::new(source) };
    Identity::open(folder).map_err(damaged)
}

/// A token with which one host may join; this host alone, if one is named.
pub fn create_token(config: &Config, ttl: Duration, host: Option<&str>) -> Result<NewToken, ClusterError> {
    let made = make_token(config, ttl, host);
    // The line itself is a secret.
    let text = |made: &NewToken| format!("token {} was made, until {}", made.id, utc(&made.expires));
    note(config, AuditAction::Token, host, &made, text);
    made
}

fn make_token(config: &Config, ttl: Duration, host: Option<&str>) -> Result<NewToken, ClusterError> {
    let host: Option<HostName> = host.map(parse).transpose()?;
    let mut authority = open_authority(&config.authority_folder())?;
    let token = authority.create_token(ttl, "", host, UnixTime::now())?;
    let listed = authority.tokens().list().pop().ok_or(StoreError::Unknown)?;
    Ok(NewToken {
        line: token.line(),
        id: listed.id,
        host: listed.host,
        expires: listed.expires,
        addresses: config.join_addresses(),
    })
}

/// All tokens that are kept, in the order in which they were made.
pub fn tokens(config: &Config) -> Result<Vec<Listed>, ClusterError> {
    Ok(open_authority(&config.authority_folder())?.tokens().list())
}

/// A token does not count any more.
pub fn revoke_token(config: &Config, id: &str) -> Result<(), ClusterError> {
    let revoked = open_authority(&config.authority_folder())
        .and_then(|mut authority| Ok(authority.tokens().revoke(&TokenId::new(id))?));
    note(config, AuditAction::Token, None, &revoked, |()| format!("token {id} was revoked"));
    revoked
}

/// Certificates that are valid, by host.
pub fn hosts(config: &Config) -> Result<Vec<Issued>, ClusterError> {
    let now = UnixTime::now();
    let mut hosts: Vec<Issued> = open_authority(&config.authority_folder())?.hosts(now).collect();
    hosts.extend(rotation::issued_by_next(&config.authority_folder(), now)?);
    hosts.sort_by(|one, other| (&one.host, one.not_after).cmp(&(&other.host, other.not_after)));
    Ok(hosts)
}

/// Revokes all certificates of a host. This host knows at once, others when they ask next.
pub fn revoke_host(config: &Config, host: &str) -> Result<u64, ClusterError> {
    let revoked = revoke_everywhere(config, host);
    note(config, AuditAction::Revoke, Some(host), &revoked, |number| format!("revocation list {number}"));
    revoked
}

fn revoke_everywhere(config: &Config, host: &str) -> Result<u64, ClusterError> {
    let host: HostName = parse(host)?;
    open_identity(&config.identity_folder())?;
    // Before the list is made: a list that cannot be put in force here would only be the authority's.
    let _alone = lock_identity(&config.identity_folder())?;
    let own = open_identity(&config.identity_folder())?;
    if own.name().host == host {
        return Err(ClusterError::OwnHost(host));
    }
    // While the authority changes, the host may have certificates of both.
    let folders = rotation::folders(config, &own);
    if folders.is_empty() {
        return Err(ClusterError::NoAuthority(config.authority_folder()));
    }
    let (mut number, mut unknown, mut failed) = (None, None, None);
    for folder in folders {
        // Each does what it can: the other's failure leaves no certificate valid.
        match revoke_at(&folder, &host, &own) {
            Ok(list) => number = number.max(Some(list)),
            Err(error @ ClusterError::Authority(AuthorityError::Register(RegisterError::UnknownHost(_)))) => {
                unknown = Some(error);
            }
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match (failed, number, unknown) {
        (Some(error), _, _) | (None, None, Some(error)) => Err(error),
        (None, number, _) => Ok(number.unwrap_or_default()),
    }
}

/// The number of the list that one authority makes.
fn revoke_at(folder: &Path, host: &HostName, own: &Identity) -> Result<u64, ClusterError> {
    let mut authority = open_authority(folder)?;
    // Before: hosts take no list that is older than theirs, and the next one must not leave out whom theirs has.
    catch_up(&mut authority, own)?;
    let revoked = authority.revoke(host, UnixTime::now());
    // Also the list of a command that was cut off, after which no certificate is left to revoke.
    take_revocations(&authority, own)?;
    revoked?;
    Ok(own.revocation_number(authority.id()))
}

/// Has an authority that was restored from a backup go on from the newest list that its own host has.
fn catch_up(authority: &mut Authority, own: &Identity) -> Result<(), ClusterError> {
    let Some(list) = own.revocation_list(authority.id()) else { return Ok(()) };
    if authority.catch_up(&list, UnixTime::now())? {
        tracing::warn!(
            "the authority's register is older than its revocation list: it was restored from a backup. Hosts that have \
             joined or renewed since have to join again"
        );
    }
    Ok(())
}

/// Puts the authority's list in force on its own host. True if it was not.
fn take_revocations(authority: &Authority, own: &Identity) -> Result<bool, ClusterError> {
    Ok(authority.revocations().map_or(Ok(false), |list| own.accept_revocations(list))?)
}

/// The same for the agent of the authority's host: the command that made the list may have been cut off.
pub(super) fn own_revocations(config: &Config, own: &Identity) -> Result<bool, ClusterError> {
    let _alone = lock_identity(&config.identity_folder())?;
    // A command may have changed the files, also to another cluster's.
    own.reload()?;
    let mut newer = false;
    for folder in rotation::folders(config, own) {
        let mut authority = open_authority(&folder)?;
        catch_up(&mut authority, own)?;
        newer |= take_revocations(&authority, own)?;
    }
    Ok(newer)
}

/// This host's certificate, its times and its authorities, read from the files.
pub fn show(config: &Config) -> Result<Shown, ClusterError> {
    let identity = open_identity(&config.identity_folder())?;
    let bundle = identity.bundle();
    let authorities = bundle.authorities().iter();
    let authorities =
        authorities.map(|one| (one.id().to_string(), identity.revocation_number(one.id()))).collect();
    Ok(Shown {
        membership: Membership::of(&identity),
        serial: identity.serial().to_string(),
        renewal_from: linerate_trust::authority::renewal_due(identity.not_after()),
        problem: identity.check_own(UnixTime::now()).err().map(|error| error.to_string()),
        authorities,
        is_authority: super::is_authoritys_host(&config.authority_folder()),
    })
}
