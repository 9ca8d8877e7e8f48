//! What members ask the authority's agent, at its usual port: a new certificate, and the list of revoked ones.
//!
//! The answer need not be believed: a certificate counts if a trusted authority signed it for this host's new key, and
//! a list if it is signed and newer. So authorities are never taken from it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use linerate_api::{AuditAction, AuditResult};
use linerate_fabric::probe::ask::{AskError, QUESTION_WAIT, hello, receive, receive_at_most, send};
use linerate_net::tcp::connect::{Route, connect};
use linerate_net::tcp::exchange::ExchangeError;
use linerate_net::tcp::listen::Accepted;
use linerate_net::tcp::options::TcpOptions;
use linerate_net::tls::Tls;
use linerate_trust::authority::Grounds;
use linerate_trust::bundle::AUTHORITIES_MAX;
use linerate_trust::files::{self, Secrecy};
use linerate_trust::identity::Identity;
use linerate_trust::peer::{Peer, PeerError, Side};
use linerate_trust::request::Request;
use linerate_trust::revocation::REVOCATION_BYTES_MAX;
use linerate_trust::tls;
use linerate_wire::frame::{Role, Welcome};
use linerate_wire::negotiate;
use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use super::message::{self, Answer, AuthorityChange, Signed};
use super::operations::{lock_identity, new_key, open_authority, open_identity, request};
use super::{ClusterError, Membership, has_own_authority, read_addresses, rotation};
use crate::audit::Asked;
use crate::config::Config;
use crate::faults::chain;
use crate::not_taken::no_common_version;
use crate::session::address;

/// A request, or the lists that a member may offer, in base64.
const QUESTION_BYTES_MAX: usize = (64 << 10) + AUTHORITIES_MAX * REVOCATION_BYTES_MAX.div_ceil(3) * 4;
const CONNECT_WAIT: Duration = Duration::from_secs(5);
/// The authority waits for a command that has it, and writes to its disk.
const ANSWER_WAIT: Duration = Duration::from_secs(20);

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
enum Question {
    /// A certificate for another key and the same name.
    Renew {
        /// PKCS #10 in DER, in base64.
        request: String,
    },
    /// The newest revocation lists, if they are newer than those known.
    Revocations {
        /// What the asking host has.
        known: Vec<Known>,
        /// Lists that the asking host takes for newer than those of this one. In DER, in base64.
        #[serde(default)]
        offered: Vec<String>,
    },
}

/// A revocation list that a host has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// SHA-256 of the authority's public key, in hex.
    authority: String,
    number: u64,
}

/// Renews this host's certificate; `from` is the authority's agent, if it is not where it was.
pub fn renew(config: &Config, from: Option<&str>) -> Result<Membership, ClusterError> {
    let folder = config.identity_folder();
    let identity = open_identity(&folder)?;
    let addresses = match from {
        Some(host) => address::addresses(host)
            .map_err(|source| ClusterError::Resolve { host: host.to_owned(), source })?,
        None => read_addresses(&folder),
    };
    let now = UnixTime::now();
    // A change of the authority comes first: it may be all that was due.
    let has_authority = has_own_authority(&config.authority_folder(), &identity);
    if !has_authority && exchange_with_authority(config, &identity, &addresses, now)?.changed {
        return Ok(Membership::of(&identity));
    }
    renew_at(config, &identity, &addresses, now)?;
    Ok(Membership::of(&identity))
}

/// The same for an identity that is open. Where the authority is here, nobody is asked.
pub(super) fn renew_at(
    config: &Config,
    identity: &Identity,
    addresses: &[SocketAddr],
    now: UnixTime,
) -> Result<(), ClusterError> {
    let _alone = lock_identity(&config.identity_folder())?;
    // A command may have changed the files, also to another cluster's.
    identity.reload()?;
    let key = new_key(identity.name())?;
    let request_der = request(&key)?;
    let certificate = if has_own_authority(&config.authority_folder(), identity) {
        let mut authority = open_authority(&rotation::signing_folder(config))?;
        // Who may read the authority's key may have a certificate. An expired one proves nothing any more.
        let own = identity.check_own(now).ok();
        let grounds = own.as_ref().map_or(Grounds::Own, Grounds::Renewal);
        authority.issue(&Request::read(&request_der)?, &grounds, now)?
    } else {
        // What is signed counts, also if it is lost here: a disk that takes nothing is found out before.
        let probe = config.identity_folder().join("renewal");
        files::write(&probe, &[0; 8 << 10], Secrecy::Private)?;
        let _ = std::fs::remove_file(&probe);
        let question = Question::Renew { request: BASE64.encode(&request_der) };
        match ask(identity, addresses, &question)? {
            (Answer::Signed(signed), address) => {
                signed.certificate().ok_or(ClusterError::Form { address })?
            }
            (Answer::Refused { why }, address) => return Err(ClusterError::Refused { address, why }),
            (Answer::Revocations { .. }, address) => return Err(ClusterError::Form { address }),
        }
    };
    Ok(identity.renew(&key, &certificate, now)?)
}

/// Takes newer revocation lists. True if there was one.
#[cfg(test)]
pub(super) fn refresh_revocations(
    config: &Config,
    identity: &Identity,
    addresses: &[SocketAddr],
) -> Result<bool, ClusterError> {
    exchange_lists(config, identity, addresses, &[])
}

/// What came of a question to the authority's host.
pub(super) struct Exchanged {
    /// There was a newer revocation list.
    pub newer: bool,
    /// Other authorities are trusted, or this host has a certificate of another.
    pub changed: bool,
}

/// Most questions in a row: each step of a change of the authority is told with the next one.
const QUESTIONS_MAX: usize = 4;

/// Takes newer lists from the authority's agent, and follows a change of the authority.
pub(super) fn exchange_with_authority(
    config: &Config,
    identity: &Identity,
    addresses: &[SocketAddr],
    now: UnixTime,
) -> Result<Exchanged, ClusterError> {
    let mut all = Exchanged { newer: false, changed: false };
    for _ in 0..QUESTIONS_MAX {
        let (lists, change) = ask_for_lists(identity, addresses, &[])?;
        let followed = rotation::follow(config, identity, &change, now)?;
        all.newer |= take_lists(config, identity, &lists)?;
        let renewed = rotation::needs_certificate(identity, &change, now);
        if renewed {
            renew_at(config, identity, addresses, now)?;
        }
        if !followed && !renewed {
            break;
        }
        all.changed = true;
    }
    Ok(all)
}

/// The same, and gives the other host lists that are newer here.
pub(super) fn exchange_lists(
    config: &Config,
    identity: &Identity,
    addresses: &[SocketAddr],
    offered: &[Vec<u8>],
) -> Result<bool, ClusterError> {
    let (lists, _) = ask_for_lists(identity, addresses, offered)?;
    take_lists(config, identity, &lists)
}

/// Lists that are newer than those here, and what is told of a change of the authority.
fn ask_for_lists(
    identity: &Identity,
    addresses: &[SocketAddr],
    offered: &[Vec<u8>],
) -> Result<(Vec<Vec<u8>>, AuthorityChange), ClusterError> {
    let bundle = identity.bundle();
    let known = bundle
        .authorities()
        .iter()
        .map(|one| Known { authority: one.id().to_string(), number: identity.revocation_number(one.id()) });
    let question = Question::Revocations { known: known.collect(), offered: message::encoded(offered) };
    match ask(identity, addresses, &question)? {
        (Answer::Revocations { lists, change }, address) => {
            Ok((message::lists(&lists).ok_or(ClusterError::Form { address })?, change))
        }
        (Answer::Refused { why }, address) => Err(ClusterError::Refused { address, why }),
        (Answer::Signed(_), address) => Err(ClusterError::Form { address }),
    }
}

/// Puts lists in force that an authority signed and that are newer. True if there was one.
pub(super) fn take_lists(
    config: &Config,
    identity: &Identity,
    lists: &[Vec<u8>],
) -> Result<bool, ClusterError> {
    // Before the lock, which commands wait for: any member may offer any bytes, as often as it likes.
    let (mut wanted, mut failed) = (Vec::new(), None);
    for list in lists {
        match identity.is_newer(list) {
            Ok(true) => wanted.push(list),
            Ok(false) => {}
            Err(error) => failed = Some(error),
        }
    }
    if wanted.is_empty() {
        return failed.map_or(Ok(false), |error| Err(error.into()));
    }
    let _alone = lock_identity(&config.identity_folder())?;
    // A command may have changed the files: what it wrote must not be lost.
    identity.reload()?;
    let mut newer = false;
    for list in wanted {
        match identity.accept_revocations(list) {
            Ok(taken) => newer |= taken,
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        Some(error) if !newer => Err(error.into()),
        _ => Ok(newer),
    }
}

/// The first address that answers.
fn ask(
    identity: &Identity,
    addresses: &[SocketAddr],
    question: &Question,
) -> Result<(Answer, SocketAddr), ClusterError> {
    let tls = Tls::new(tls::client(identity, None)?, tls::server(identity)?);
    let options = TcpOptions { connect_wait: CONNECT_WAIT, tls: Some(tls), ..TcpOptions::default() };
    let hello = hello(Role::Membership);
    let mut last = ClusterError::NoAddresses;
    for address in addresses {
        let route = Route { local: None, device: None, remote: *address };
        let stream = match connect(&route, &hello, &options) {
            Ok((stream, _)) => stream,
            Err(error) => {
                last = ClusterError::Asked(chain(&error));
                continue;
            }
        };
        let deadline = Instant::now() + ANSWER_WAIT;
        let asked = send(&stream, question, *address, deadline);
        let answer = asked.and_then(|()| receive(&stream, *address, deadline));
        return Ok((answer.map_err(|error| ClusterError::Asked(chain(&error)))?, *address));
    }
    Err(last)
}

/// Why a member got no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("{}", no_common_version())]
    Version,
    #[error("a question about the cluster came, and this host has no identity")]
    NoIdentity,
    /// Its certificate is refused; the text has the cause.
    #[error("{0}")]
    Peer(PeerError),
    #[error(transparent)]
    Handshake(#[from] ExchangeError),
    /// The question did not come, or the answer was not sent.
    #[error(transparent)]
    Ask(#[from] AskError),
}

/// Answers a member. What it asked for, if that was a new certificate.
pub(crate) fn serve(
    config: &Config,
    identity: Option<Identity>,
    accepted: Accepted,
    now: UnixTime,
) -> Result<Option<Asked>, ServeError> {
    let hello = &accepted.hello;
    let version = negotiate(hello.version_min, hello.version_max).ok_or(ServeError::Version)?;
    // In plain text nobody has proved who asks.
    let identity = identity.ok_or(ServeError::NoIdentity)?;
    let member = identity.verify(accepted.peer_certificates(), Side::Client, None, now);
    let member = member.map_err(ServeError::Peer)?;
    let issuer = identity.issuer_of(accepted.peer_certificates(), Side::Client, now);
    let peer = accepted.peer;
    let stream = accepted.welcome(Welcome { version, control_received: 0 })?;
    let question = receive_at_most(QUESTION_BYTES_MAX, &stream, peer, Instant::now() + QUESTION_WAIT)?;
    let mut asked = None;
    let answer = match question {
        Question::Renew { request } => match sign(config, &identity, &member, &request, now) {
            Ok(signed) => {
                tracing::info!(%peer, host = %member.host, "its certificate was renewed");
                asked = Some(asked_to_renew(AuditResult::Done, None));
                Answer::Signed(signed)
            }
            Err(error) => {
                let why = error.to_string();
                asked = Some(asked_to_renew(AuditResult::Failed, Some(why.clone())));
                Answer::Refused { why }
            }
        },
        Question::Revocations { known, offered } => {
            take_offered(config, &identity, &member, &offered);
            let trusted: Vec<String> = known.iter().map(|one| one.authority.clone()).collect();
            let change = rotation::change_for_member(config, &identity, &member, issuer, &trusted);
            Answer::Revocations { lists: newer(&identity, &known), change }
        }
    };
    let sent = send(&stream, &answer, peer, Instant::now() + ANSWER_WAIT);
    match (asked, sent) {
        // What was signed is signed.
        (Some(asked), sent) => {
            if let Err(error) = sent {
                tracing::warn!(%peer, host = %member.host, error = chain(&error), "it did not get the answer");
            }
            Ok(Some(asked))
        }
        (None, sent) => sent.map(|()| None).map_err(ServeError::Ask),
    }
}

fn asked_to_renew(result: AuditResult, reason: Option<String>) -> Asked {
    Asked { action: AuditAction::Renew, result, only_looks: false, reason }
}

/// Lists that a member offers. One that is not taken is told to nobody: the member may have an older one by now.
fn take_offered(config: &Config, identity: &Identity, member: &Peer, offered: &[String]) {
    let offered = offered.get(..offered.len().min(AUTHORITIES_MAX)).unwrap_or_default();
    let lists = message::lists(offered).unwrap_or_default();
    match take_lists(config, identity, &lists) {
        Ok(true) => {
            tracing::info!(host = %member.host, "a newer revocation list came from it and is in force")
        }
        Ok(false) => {}
        Err(error) => tracing::debug!(host = %member.host, %error, "its revocation list was not taken"),
    }
}

fn sign(
    config: &Config,
    identity: &Identity,
    member: &Peer,
    request: &str,
    now: UnixTime,
) -> Result<Signed, ClusterError> {
    let request = BASE64.decode(request.as_bytes()).unwrap_or_default();
    let request = Request::read(&request)?;
    let (mut authority, grounds) = rotation::signer_for(config, member, now)?;
    let certificate = authority.issue(&request, &grounds, now)?;
    Ok(Signed::new(&certificate, &identity.bundle(), &[], &config.listen))
}

fn newer(identity: &Identity, known: &[Known]) -> Vec<String> {
    let bundle = identity.bundle();
    let wanted = bundle.authorities().iter().map(linerate_trust::bundle::TrustedAuthority::id).filter(|id| {
        let text = id.to_string();
        let number = known.iter().find(|one| one.authority == text).map_or(0, |one| one.number);
        identity.revocation_number(*id) > number
    });
    let lists: Vec<Vec<u8>> = wanted.filter_map(|id| identity.revocation_list(id)).collect();
    message::encoded(&lists)
}
