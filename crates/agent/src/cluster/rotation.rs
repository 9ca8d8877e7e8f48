//! The change from one authority to the next, in three steps, each by `linerate cluster rotate` on the authority's
//! host:
//!
//! | step | what it does | what hosts do then | what it waits for |
//! |---|---|---|---|
//! | begin | makes the next authority, and a statement of the present one about it | trust both | |
//! | switch | has the next authority sign | get a certificate of it | every host trusts both |
//! | finish | retires the present one | trust the next one alone | every host has a certificate of the next |
//!
//! Hosts hear of it when they ask the authority's agent for revocation lists. They believe the authorities' signatures
//! alone. Between the steps every host accepts every other, so guests move on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use linerate_api::AuditAction;
use linerate_trust::authority::{Authority, Grounds, Issued};
use linerate_trust::bundle::Bundle;
use linerate_trust::certificate::AuthorityId;
use linerate_trust::files::{self, Secrecy};
use linerate_trust::identity::Identity;
use linerate_trust::name::HostName;
use linerate_trust::peer::Peer;
use linerate_trust::request::Request;
use linerate_trust::succession::{self, Statement};
use rustls_pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use super::message::{AuthorityChange, decoded};
use super::operations::{lock_identity, new_key, note, open_authority, open_identity, request};
use super::{ClusterError, has_own_authority};
use crate::config::Config;

/// In the folder of the authority that comes, also when it has come.
const FILE: &str = "rotation.json";

/// What a step has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is a next authority, which hosts begin to trust.
    Begun,
    /// The next authority signs.
    Switched,
    /// The former authority is no longer trusted.
    Finished,
}

/// A step that was done.
#[derive(Clone, Debug)]
pub struct Rotated {
    /// The step of the rotation that was taken.
    pub step: Step,
    /// The authority that leaves.
    pub old: AuthorityId,
    /// The one that comes.
    pub new: AuthorityId,
    /// Hosts that were not waited for: they must join again.
    pub left_behind: Vec<HostName>,
}

impl Rotated {
    /// For the audit log.
    fn audit_text(&self) -> String {
        let step = match self.step {
            Step::Begun => "begun",
            Step::Switched => "switched",
            Step::Finished => "finished",
        };
        let left: Vec<String> = self.left_behind.iter().map(ToString::to_string).collect();
        let left =
            if left.is_empty() { String::new() } else { format!("; left behind: {}", left.join(", ")) };
        format!("{step}: from authority {} to {}{left}", self.old, self.new)
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// Statement of the authority that leaves; in DER, in base64.
    successor: String,
    /// Hosts that trust both.
    trusting: BTreeSet<HostName>,
    /// Numbers of certificates of the authority that comes with which hosts have proved who they are. One that was
    /// issued may have been lost on its way, or not been written.
    #[serde(default)]
    certified: BTreeMap<HostName, String>,
    /// The authority that comes signs.
    switched: bool,
    /// Statement of the authority that came; in DER, in base64.
    retired: Option<String>,
}

impl State {
    fn read(folder: &Path) -> Option<State> {
        serde_json::from_slice(&files::read(&folder.join(FILE), Secrecy::Private).ok()?).ok()
    }

    fn write(&self, folder: &Path) -> Result<(), ClusterError> {
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        Ok(files::write(&folder.join(FILE), &text, Secrecy::Private)?)
    }
}

/// The folder of the authority that comes, beside the present one's.
fn next_folder(config: &Config) -> PathBuf {
    beside(&config.authority_folder(), "next")
}

fn beside(folder: &Path, what: &str) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_owned();
    name.push(format!("-{what}"));
    folder.with_file_name(name)
}

/// The authority that comes, once hosts were told of it, and how far the change is.
fn in_progress(config: &Config) -> Option<(PathBuf, State)> {
    let folder = next_folder(config);
    State::read(&folder).map(|state| (folder, state))
}

/// The authority that signs now.
pub(super) fn signing_folder(config: &Config) -> PathBuf {
    match in_progress(config) {
        Some((folder, State { switched: true, .. })) => folder,
        _ => config.authority_folder(),
    }
}

/// All authorities here that this host trusts, the present one first. Also those of a step that was cut off.
pub(super) fn folders(config: &Config, own: &Identity) -> Vec<PathBuf> {
    let all = [config.authority_folder(), next_folder(config)];
    all.into_iter().filter(|folder| has_own_authority(folder, own)).collect()
}

/// What the authority that comes has issued; of `present`, the other one's folder. Not while that one is open.
pub(super) fn issued_by_next(present: &Path, now: UnixTime) -> Result<Vec<Issued>, ClusterError> {
    let next = beside(present, "next");
    match State::read(&next) {
        Some(_) => Ok(open_authority(&next)?.hosts(now).collect()),
        None => Ok(Vec::new()),
    }
}

/// Does the next step. `leave_behind`: also if hosts have not followed the one before.
pub fn rotate(config: &Config, leave_behind: bool) -> Result<Rotated, ClusterError> {
    let rotated = next_step(config, leave_behind);
    note(config, AuditAction::ClusterRotate, None, &rotated, Rotated::audit_text);
    rotated
}

fn next_step(config: &Config, leave_behind: bool) -> Result<Rotated, ClusterError> {
    let now = UnixTime::now();
    let own = open_identity(&config.identity_folder())?;
    let _alone = lock_identity(&config.identity_folder())?;
    own.reload()?;
    if let Some((old, new)) = end_of_finish(config, &own)? {
        return Ok(Rotated { step: Step::Finished, old, new, left_behind: Vec::new() });
    }
    let present = config.authority_folder();
    if !has_own_authority(&present, &own) {
        return Err(ClusterError::NoAuthority(present));
    }
    let Some((folder, state)) = in_progress(config) else {
        return begin(&own, &open_authority(&present)?, &next_folder(config), now);
    };
    // In this order, as everybody who has both: two that have one each would wait for each other.
    let mut new = open_authority(&folder)?;
    let old = open_authority(&present)?;
    let missing = missing(&own, &old, &new, &state, now);
    if !missing.is_empty() && !leave_behind {
        let what = match state.switched {
            false => "they do not trust the next authority yet",
            true => "they do not use a certificate of the next authority yet",
        };
        return Err(ClusterError::NotReady { what, hosts: missing });
    }
    let (old_id, new_id) = (old.id(), new.id());
    let step = match state.switched {
        false => switch(&own, &mut new, &folder, state, now)?,
        true => finish(config, &own, &old, new, (folder, state), now)?,
    };
    Ok(Rotated { step, old: old_id, new: new_id, left_behind: missing })
}

/// Hosts that would be cut off by the next step.
fn missing(own: &Identity, old: &Authority, new: &Authority, state: &State, now: UnixTime) -> Vec<HostName> {
    // A host that has joined again since has a certificate of the old authority alone.
    let newest =
        |host: &HostName| old.hosts(now).filter(|one| one.host == *host).map(|one| one.not_after).max();
    let followed = |host: &HostName| match (state.switched, state.certified.get(host)) {
        (false, _) => state.trusting.contains(host),
        (true, None) => false,
        (true, Some(serial)) => {
            new.hosts(now).any(|one| one.serial.to_string() == *serial && Some(one.not_after) >= newest(host))
        }
    };
    let waits_for = |host: &HostName| *host != own.name().host && !followed(host);
    let missing: BTreeSet<HostName> = old.hosts(now).map(|one| one.host).filter(waits_for).collect();
    missing.into_iter().collect()
}

fn begin(own: &Identity, old: &Authority, next: &Path, now: UnixTime) -> Result<Rotated, ClusterError> {
    // Of a step that a crash cut off: nobody was told.
    let new = match Authority::exists(next) {
        true => open_authority(next)?,
        false => Authority::create(next, old.cluster(), now)?,
    };
    let statement = old.state(Statement::Successor, new.certificate(), now)?;
    let both = Bundle::new(vec![old.certificate().clone(), new.certificate().clone()])?;
    own.reload()?;
    own.set_authorities(&both)?;
    State { successor: BASE64.encode(&statement), ..State::default() }.write(next)?;
    Ok(Rotated { step: Step::Begun, old: old.id(), new: new.id(), left_behind: Vec::new() })
}

fn switch(
    own: &Identity,
    new: &mut Authority,
    folder: &Path,
    state: State,
    now: UnixTime,
) -> Result<Step, ClusterError> {
    let key = new_key(own.name())?;
    let certificate = new.issue(&Request::read(&request(&key)?)?, &Grounds::Own, now)?;
    own.reload()?;
    own.renew(&key, &certificate, now)?;
    State { switched: true, ..state }.write(folder)?;
    Ok(Step::Switched)
}

fn finish(
    config: &Config,
    own: &Identity,
    old: &Authority,
    new: Authority,
    (folder, state): (PathBuf, State),
    now: UnixTime,
) -> Result<Step, ClusterError> {
    let retired = new.state(Statement::Retired, old.certificate(), now)?;
    State { retired: Some(BASE64.encode(&retired)), ..state }.write(&folder)?;
    own.reload()?;
    own.set_authorities(&Bundle::new(vec![new.certificate().clone()])?)?;
    // Its lock goes with the folder.
    drop(new);
    rename_folders(config, old.id())?;
    Ok(Step::Finished)
}

/// What remains of the last step once this host trusts the authority that came alone.
fn rename_folders(config: &Config, old: AuthorityId) -> Result<(), ClusterError> {
    let present = config.authority_folder();
    if Authority::exists(&present) {
        let id = old.to_string();
        rename(&present, &beside(&present, &format!("retired-{}", id.get(..16).unwrap_or_default())))?;
    }
    rename(&next_folder(config), &present)
}

/// Ends a last step that was cut off after this host had ceased to trust the old authority: there is no way back. The
/// old and the new one, if it was so. The caller has the identity's lock, and has read the identity again.
fn end_of_finish(
    config: &Config,
    own: &Identity,
) -> Result<Option<(AuthorityId, AuthorityId)>, ClusterError> {
    let next = next_folder(config);
    let Some(retired) = State::read(&next).and_then(|state| decoded(&state.retired?)) else {
        return Ok(None);
    };
    let new = Authority::id_in(&next)?;
    if own.bundle().authorities().iter().any(|one| one.id() != new) {
        return Ok(None);
    }
    let old = succession::about(&retired.into())?;
    rename_folders(config, old)?;
    Ok(Some((old, new)))
}

/// The same for the agent: until it is done, nobody renews and no host joins.
pub(super) fn finish_interrupted(config: &Config, own: &Identity) -> Result<(), ClusterError> {
    if State::read(&next_folder(config)).is_none_or(|state| state.retired.is_none()) {
        return Ok(());
    }
    let _alone = lock_identity(&config.identity_folder())?;
    own.reload()?;
    if end_of_finish(config, own)?.is_some() {
        tracing::info!("the last step of the change of the authority had been cut off; it is done");
    }
    Ok(())
}

fn rename(from: &Path, to: &Path) -> Result<(), ClusterError> {
    let renamed = std::fs::rename(from, to).and_then(|()| {
        let parent = to.parent().unwrap_or(Path::new("/"));
        std::fs::File::open(parent)?.sync_all()
    });
    renamed.map_err(|source| ClusterError::Rename { folder: from.to_owned(), source })
}

/// The answer to a member that trusts these authorities and has a certificate of `issuer`. Remembers that it follows.
pub(super) fn change_for_member(
    config: &Config,
    identity: &Identity,
    member: &Peer,
    issuer: Option<AuthorityId>,
    trusted: &[String],
) -> AuthorityChange {
    let present = config.authority_folder();
    if !has_own_authority(&present, identity) {
        return AuthorityChange::default();
    }
    let retired = State::read(&present).and_then(|state| state.retired);
    let signs = Authority::id_in(&signing_folder(config)).ok().map(|id| id.to_string());
    let successor = in_progress(config).and_then(|(folder, state)| {
        let id = Authority::id_in(&folder).ok()?;
        let trusts = trusted.contains(&id.to_string()) && !state.trusting.contains(&member.host);
        let serial = Some(member.serial.to_string()).filter(|_| issuer == Some(id));
        let serial = serial.filter(|serial| state.certified.get(&member.host) != Some(serial));
        if trusts || serial.is_some() {
            remember(config, &member.host, serial);
        }
        let certificate =
            identity.bundle().authorities().iter().find(|one| one.id() == id)?.certificate().clone();
        Some((state.successor, BASE64.encode(&certificate)))
    });
    AuthorityChange { successor, retired, signs }
}

/// The host trusts the next authority, and has a certificate of it with this number.
fn remember(config: &Config, host: &HostName, serial: Option<String>) {
    let certified = serial.is_some();
    let remembered = lock_identity(&config.identity_folder()).and_then(|_alone| {
        let Some((folder, mut state)) = in_progress(config) else { return Ok(()) };
        state.trusting.insert(host.clone());
        state.certified.extend(serial.map(|serial| (host.clone(), serial)));
        state.write(&folder)
    });
    match remembered {
        Ok(()) => tracing::info!(%host, certified, "it follows the change of the authority"),
        Err(error) => {
            tracing::warn!(%host, %error, "that it follows the change of the authority could not be written")
        }
    }
}

/// Follows what the authority's host told. True if other authorities are trusted now.
pub(super) fn follow(
    config: &Config,
    identity: &Identity,
    change: &AuthorityChange,
    now: UnixTime,
) -> Result<bool, ClusterError> {
    let _alone = lock_identity(&config.identity_folder())?;
    identity.reload()?;
    let mut followed = false;
    // First: a host that was away may trust two, and a third is refused.
    if let Some(statement) = change.retired.as_deref().and_then(decoded)
        && let Some(one) = succession::without_retired(&identity.bundle(), &statement.into(), now)?
        && one.authorities().iter().all(|one| identity.is_issued_by(one.id(), now))
    {
        identity.set_authorities(&one)?;
        tracing::info!("the cluster has changed its authority: the former one is no longer trusted");
        followed = true;
    }
    if let Some((statement, next)) = &change.successor
        && let (Some(statement), Some(next)) = (decoded(statement), decoded(next))
        && let Some(both) =
            succession::with_successor(&identity.bundle(), &statement.into(), next.into(), now)?
    {
        identity.set_authorities(&both)?;
        tracing::info!("the cluster changes its authority: the next one is trusted, too");
        followed = true;
    }
    Ok(followed)
}

/// Whether this host needs a certificate of another authority, which signs now.
pub(super) fn needs_certificate(identity: &Identity, change: &AuthorityChange, now: UnixTime) -> bool {
    let bundle = identity.bundle();
    let signs = bundle.authorities().iter().find(|one| Some(one.id().to_string()) == change.signs);
    signs.is_some_and(|one| !identity.is_issued_by(one.id(), now))
}

/// The authority that signs for a member, and why it may have a certificate.
pub(super) fn signer_for<'a>(
    config: &Config,
    member: &'a Peer,
    now: UnixTime,
) -> Result<(Authority, Grounds<'a>), ClusterError> {
    let signing = open_authority(&signing_folder(config))?;
    let present = config.authority_folder();
    if signing_folder(config) == present || signing.has_issued(member, now) {
        return Ok((signing, Grounds::Renewal(member)));
    }
    match open_authority(&present)?.has_issued(member, now) {
        true => Ok((signing, Grounds::Succession(member))),
        false => Ok((signing, Grounds::Renewal(member))),
    }
}

#[cfg(test)]
mod tests;
