//! What members ask the authority's agent, at its usual port: a new certificate, and the list of revoked ones.
//!
//! The answer need not be believed: a certificate counts if a trusted authority signed it for this host's new key, and a
//! list if it is signed and newer. So authorities are never taken from it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use linerate_fabric::probe::ask::{QUESTION_WAIT, hello, receive, send};
use linerate_net::tcp::connect::{Route, connect};
use linerate_net::tcp::listen::Accepted;
use linerate_net::tcp::options::TcpOptions;
use linerate_net::tls::Tls;
use linerate_trust::authority::{Authority, Grounds};
use linerate_trust::identity::Identity;
use linerate_trust::peer::{Peer, Side};
use linerate_trust::request::Request;
use linerate_trust::tls;
use linerate_wire::frame::{Role, Welcome};
use linerate_wire::{VERSION_MAX, VERSION_MIN, negotiate};
use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use super::message::{self, Answer, Signed};
use super::operations::{lock_identity, new_key, open_authority, open_identity, request};
use super::{ClusterError, Membership, has_own_authority, read_addresses};
use crate::config::Config;
use crate::faults::chain;
use crate::session::address;

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
    renew_at(config, &identity, &addresses, UnixTime::now())?;
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
    let key = new_key(identity.name())?;
    let request_der = request(&key)?;
    let certificate = if has_own_authority(&config.authority_folder(), identity) {
        let mut authority = open_authority(&config.authority_folder())?;
        // Who may read the authority's key may have a certificate. An expired one proves nothing any more.
        let own = identity.check_own(now).ok();
        let grounds = own.as_ref().map_or(Grounds::Own, Grounds::Renewal);
        authority.issue(&Request::read(&request_der)?, &grounds, now)?
    } else {
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
pub(super) fn refresh_revocations(
    config: &Config,
    identity: &Identity,
    addresses: &[SocketAddr],
) -> Result<bool, ClusterError> {
    let bundle = identity.bundle();
    let known = bundle
        .authorities()
        .iter()
        .map(|one| Known { authority: one.id().to_string(), number: identity.revocation_number(one.id()) });
    let question = Question::Revocations { known: known.collect() };
    let lists = match ask(identity, addresses, &question)? {
        (Answer::Revocations { lists }, address) => {
            message::lists(&lists).ok_or(ClusterError::Form { address })?
        }
        (Answer::Refused { why }, address) => return Err(ClusterError::Refused { address, why }),
        (Answer::Signed(_), address) => return Err(ClusterError::Form { address }),
    };
    let mut newer = false;
    for list in lists {
        let _alone = lock_identity(&config.identity_folder())?;
        newer |= identity.accept_revocations(&list)?;
    }
    Ok(newer)
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

/// Answers a member. The error is a sentence for the log.
pub(crate) fn serve(
    config: &Config,
    identity: Option<Identity>,
    accepted: Accepted,
    now: UnixTime,
) -> Result<(), String> {
    let hello = &accepted.hello;
    let version = negotiate(hello.version_min, hello.version_max)
        .ok_or_else(|| format!("no common version in {VERSION_MIN} to {VERSION_MAX}"))?;
    // In plain text nobody has proved who asks.
    let identity = identity.ok_or("a question about the cluster came, and this host has no identity")?;
    let member = identity.verify(accepted.peer_certificates(), Side::Client, None, now);
    let member = member.map_err(|error| error.to_string())?;
    let peer = accepted.peer;
    let stream = accepted.welcome(Welcome { version, control_received: 0 }).map_err(|error| chain(&error))?;
    let question = receive(&stream, peer, Instant::now() + QUESTION_WAIT).map_err(|error| chain(&error))?;
    let answer = match question {
        Question::Renew { request } => match sign(config, &identity, &member, &request, now) {
            Ok(signed) => {
                tracing::info!(%peer, host = %member.host, "its certificate was renewed");
                Answer::Signed(signed)
            }
            Err(error) => Answer::Refused { why: error.to_string() },
        },
        Question::Revocations { known } => Answer::Revocations { lists: newer(&identity, &known) },
    };
    send(&stream, &answer, peer, Instant::now() + ANSWER_WAIT).map_err(|error| chain(&error))
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
    let mut authority: Authority = open_authority(&config.authority_folder())?;
    let certificate = authority.issue(&request, &Grounds::Renewal(member), now)?;
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
