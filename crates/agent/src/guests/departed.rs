//! A guest that has left this host runs at another one, maybe with a disk that both hosts reach and that has no locks.
//! So it is started here again only if the host to which it went answers that it does not have the guest any more. Or
//! an operator says so.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use linerate_api::{ErrorBody, code};
use linerate_core::{Outcome, SessionId};
use linerate_fabric::probe::ask::ask;
use linerate_fabric::probe::{Answer as PeerAnswer, Question};
use linerate_guest::graph::named_files;
use linerate_guest::spec::GuestSpec;
use linerate_net::tcp::connect::Route;
use linerate_store::fleet::records::HostRecord;
use rustls_pki_types::UnixTime;

use super::{Answer, failed};
use crate::agent::Agent;
use crate::cluster::utc;
use crate::faults::chain;
use crate::journal::{Role, parse_token};
use crate::session::contact::{NoAnswer, OPEN_WITHIN, ask_before_resuming};
use crate::session::identity::Identity;

/// The other host asks its QEMUs for this answer.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
const NO_ANSWER: &str = "its agent does not answer";

/// Refuses to start a guest that has left, unless it is not at the host any more to which it went. Returns the
/// migration in which it left if it may be started all the same: once it runs, that is to be noted.
pub(super) fn refuse(agent: &Agent, spec: &GuestSpec, runs_nowhere_else: bool) -> Answer<Option<SessionId>> {
    let known = agent.journal.departure_of(&spec.name);
    let known = known.map_err(|error| failed("journal_failed", &error))?;
    let Some((session, record)) = known else { return Ok(None) };
    let Role::Source { qemu, peers, token, peer, copied, .. } = &record.role else { return Ok(None) };
    let here = agent.registry.get(&spec.name).ok();
    let was_here_since = here.is_some_and(|here| !here.is_same_process(qemu));
    if was_here_since || has_only_copied(spec, copied) {
        return Ok(None);
    }
    let name = &spec.name;
    let host = peer.as_ref().map(ToString::to_string);
    let host =
        host.or_else(|| peers.first().map(ToString::to_string)).unwrap_or_else(|| "another host".into());
    if runs_nowhere_else {
        tracing::warn!(guest = name, %session, host, "it has left for this host, and is started here again: an operator says that it runs nowhere else");
        return Ok(Some(session));
    }
    let identity = Identity::with_peer(session, parse_token(token), &agent.security, peer);
    let asked = identity.map_err(|fault| fault.detail).and_then(|identity| look(peers, &identity, spec));
    let why = match asked {
        Ok(Found::Nothing) => {
            tracing::info!(guest = name, %session, host, "it has left for this host, which does not have it any more");
            return Ok(Some(session));
        }
        Ok(Found::Guest(what)) => format!("{host} answers that {what}"),
        Err(why) => format!("{host} has not said that it does not have it any more: {why}"),
    };
    let when = utc(&UnixTime::since_unix_epoch(Duration::from_millis(record.changed_unix_ms)));
    let text = format!("{name} has left this host for {host} on {when}, and {why}");
    let hint = format!(
        "see `linerate vm list` and `linerate migration list` on {host}; a guest that is to run here is moved back from where it runs. If it runs nowhere else: `linerate vm start SPEC --runs-nowhere-else`. Two copies that run destroy its disks"
    );
    Err(ErrorBody::new(code::REFUSED, text).with_hint(hint))
}

/// Whether the guest has disks of its own at the other host, and here only those that it left: their marks decide.
fn has_only_copied(spec: &GuestSpec, copied: &[PathBuf]) -> bool {
    let own = spec.disk.iter().filter(|disk| !disk.readonly).map(|disk| disk.path.clone());
    let further = named_files(&spec.extra_args).into_iter().map(PathBuf::from);
    !copied.is_empty() && own.chain(further).all(|path| copied.contains(&path))
}

/// What the other host has.
enum Found {
    Nothing,
    /// A guest of the session, or of its name or UUID, as a part of a sentence.
    Guest(&'static str),
}

/// Asks the host to which the guest went.
///
/// # Errors
/// It has not said that it does not have the guest.
fn look(peers: &[SocketAddr], identity: &Identity, spec: &GuestSpec) -> Result<Found, String> {
    match ask_before_resuming(peers, identity) {
        Ok(Outcome::Gone | Outcome::Unknown | Outcome::Aborted | Outcome::Returned) => {}
        Ok(Outcome::Committed) => {
            return Ok(Found::Guest("it runs there, or was moved on from there"));
        }
        Ok(Outcome::Pending | Outcome::NotCommitted) => {
            return Ok(Found::Guest("it may run there, or be run"));
        }
        Err(NoAnswer { not_asked }) => return Err(not_asked.unwrap_or_else(|| NO_ANSWER.into())),
    }
    // Its QEMU of then has ended. It may have been started there again, or have come back there.
    if is_listed(peers, identity, spec)? {
        return Ok(Found::Guest("a guest of its name or UUID is there"));
    }
    Ok(Found::Nothing)
}

/// Whether the host has a guest of this name or UUID. That it has none counts if it proves its name, or if each of its
/// addresses says so: in plain text another host may have one of them by now.
fn is_listed(peers: &[SocketAddr], identity: &Identity, spec: &GuestSpec) -> Result<bool, String> {
    let (mut answers, mut silent) = (0, NO_ANSWER.to_owned());
    for &remote in peers {
        let route = Route { local: None, device: None, remote };
        let record = match ask(&route, &Question::Host, OPEN_WITHIN, ANSWER_WAIT, identity.tls()) {
            Ok(PeerAnswer::Host { record, .. }) => serde_json::from_value::<HostRecord>(*record),
            Ok(_) => continue,
            Err(error) => {
                silent = chain(&error);
                continue;
            }
        };
        match record {
            Ok(record) if has_guest(&record, spec) => return Ok(true),
            Ok(_) if identity.peer().is_some() => return Ok(false),
            Ok(_) => answers += 1,
            Err(error) => silent = chain(&error),
        }
    }
    if answers > 0 && answers == peers.len() { Ok(false) } else { Err(silent) }
}

fn has_guest(host: &HostRecord, spec: &GuestSpec) -> bool {
    let uuid = spec.uuid.as_ref().map(|uuid| uuid.to_lowercase());
    let is_it = |key: &String, name: &str| name == spec.name || uuid.as_ref() == Some(key);
    host.guests.iter().any(|(key, guest)| is_it(key, &guest.name))
        || host.arriving.keys().any(|key| is_it(key, key))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use linerate_api::StartGuest;
    use linerate_core::journal::{DestinationPhase, SourcePhase};
    use linerate_guest::registry::GuestRecord;
    use linerate_net::tcp::listen::Listener;
    use tempfile::TempDir;

    use super::*;
    use crate::journal::{IncomingRecord, Record};
    use crate::recovery::tests::{ended, leaves};
    use crate::security::Security;
    use crate::testing::{SilentGuest, agent, listening};

    const SESSION: SessionId = SessionId([7; 16]);
    const UUID: &str = "6f1ed002-ab15-4bb4-9d43-bd4ecb3a37a5";
    const SPEC: &str = "name = 'g'\nmemory = '64M'\naccel = 'tcg'\n[[disk]]\npath = '/srv/g.raw'\n";

    fn spec(text: &str) -> GuestSpec {
        GuestSpec::parse(text, Path::new("/")).unwrap()
    }

    /// Puts into the journal that the guest `g` has left for a host with these addresses.
    fn leave(agent: &Agent, qemu: &GuestRecord, to: &[SocketAddr], images: &[&str]) {
        let mut role = leaves(qemu, SourcePhase::Finished);
        let Role::Source { peers, copied, .. } = &mut role else { panic!("{role:?}") };
        *peers = to.to_vec();
        *copied = images.iter().map(PathBuf::from).collect();
        agent.journal.put(SESSION, &Record::new("g", agent.journal.next_order(), role)).unwrap();
    }

    /// A host that has the guest `g`, which came in the session, and that guest.
    fn destination(dir: &TempDir) -> (Arc<Agent>, Listener, (SilentGuest, GuestRecord)) {
        let (agent, port) = listening(dir, Security::insecure(), |agent, accepted| agent.accept(accepted));
        let guest = SilentGuest::start(&agent, UUID);
        let qemu = agent.registry.get("g").unwrap();
        let (process, token) = (Some(qemu.clone()), "00".repeat(32));
        let incoming = IncomingRecord { qemu: process, token, ..IncomingRecord::default() };
        let record = Record::new("g", 1, incoming.role(DestinationPhase::Finished));
        agent.journal.put(SESSION, &record).unwrap();
        (agent, port, (guest, qemu))
    }

    /// A disk without locks that both hosts reach would get two writers.
    #[test]
    fn a_guest_that_has_left_is_started_here_only_if_its_new_host_does_not_have_it_any_more() {
        let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let agent = agent(&dir, &[]);
        let (there, port, (came, qemu)) = destination(&other_dir);
        leave(&agent, &ended(&agent, &dir), port.addresses(), &[]);
        let starts = |text: &str| refuse(&agent, &spec(text), false);
        let why = |text: &str| {
            let refused = starts(text).unwrap_err();
            assert_eq!(refused.code, code::REFUSED, "{refused:?}");
            assert!(refused.hint.contains("--runs-nowhere-else"), "{refused:?}");
            assert!(refused.message.contains(&port.addresses()[0].to_string()), "{refused:?}");
            assert!(refused.message.contains(" UTC, and "), "{refused:?}");
            refused.message
        };
        assert!(why(SPEC).contains("it runs there"), "{}", why(SPEC));
        drop(came);
        let again = SilentGuest::start(&there, UUID);
        assert!(why(SPEC).contains("of its name or UUID is there"), "it was started there again");
        drop(again);
        assert_eq!(starts(SPEC).unwrap(), Some(SESSION));
        assert_eq!(starts(&SPEC.replace("'g'", "'h'")).unwrap(), None, "it has never left");
        // The answer about the session is all that says it.
        let moved_on = leaves(&qemu, SourcePhase::Finished);
        there.journal.put(SessionId([8; 16]), &Record::new("g", 2, moved_on)).unwrap();
        assert!(why(SPEC).contains("was moved on from there"), "{}", why(SPEC));
    }

    #[test]
    fn without_an_answer_a_guest_that_has_left_needs_its_operators_word() {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let (_held, silent) = crate::testing::closed_port();
        leave(&agent, &ended(&agent, &dir), &[silent], &[]);
        let request = StartGuest { spec_toml: Some(SPEC.into()), ..StartGuest::default() };
        let refused = crate::guests::start(&agent, &request).unwrap_err();
        assert_eq!(refused.code, code::REFUSED, "{refused:?}");
        assert!(refused.message.contains("has not said that it does not have it any more"), "{refused:?}");
        assert_eq!(refuse(&agent, &spec(SPEC), true).unwrap(), Some(SESSION));
        agent.journal.note_started_again(SESSION);
        assert_eq!(refuse(&agent, &spec(SPEC), false).unwrap(), None, "it lives here now");
    }

    #[test]
    fn a_guest_that_left_all_its_disks_as_copies_is_kept_back_by_their_marks_only() {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let (_held, silent) = crate::testing::closed_port();
        leave(&agent, &ended(&agent, &dir), &[silent], &["/srv/g.raw"]);
        assert_eq!(refuse(&agent, &spec(SPEC), false).unwrap(), None);
        let shared = format!("{SPEC}[[disk]]\npath = '/dev/lun'\n");
        assert!(refuse(&agent, &spec(&shared), false).is_err());
        let further = SPEC.replace("accel = 'tcg'\n", "extra_args = ['-hdb', '/dev/lun']\n");
        assert!(refuse(&agent, &spec(&further), false).is_err());
        let read_only = format!("{SPEC}[[disk]]\npath = '/srv/cd.iso'\nreadonly = true\n");
        assert_eq!(refuse(&agent, &spec(&read_only), false).unwrap(), None);
    }
}
