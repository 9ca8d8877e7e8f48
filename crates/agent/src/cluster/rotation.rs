//! The change from one authority to the next, in three steps, each by `linerate cluster rotate` on the authority's host:
//!
//! | step | what it does | what hosts do then | what it waits for |
//! |---|---|---|---|
//! | begin | makes the next authority, and a statement of the present one about it | trust both | |
//! | switch | has the next authority sign | get a certificate of it | every host trusts both |
//! | finish | retires the present one | trust the next one alone | every host has a certificate of the next |
//!
//! Hosts hear of it when they ask the authority's agent for revocation lists. They believe the authorities' signatures
//! alone. Between the steps every host accepts every other, so guests move on.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use data_encoding::BASE64;
use linerate_trust::authority::{Authority, Grounds};
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
use super::operations::{lock_identity, new_key, open_authority, open_identity, request};
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
    /// The authority before is not trusted any more.
    Finished,
}

/// A step that was done.
#[derive(Clone, Debug)]
pub struct Rotated {
    /// Which step.
    pub step: Step,
    /// The authority that leaves.
    pub old: AuthorityId,
    /// The one that comes.
    pub new: AuthorityId,
    /// Hosts that were not waited for: they must join again.
    pub left_behind: Vec<HostName>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    /// Statement of the authority that leaves; in DER, in base64.
    successor: String,
    /// Hosts that trust both.
    trusting: BTreeSet<HostName>,
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

/// All authorities of this host, the present one first.
pub(super) fn folders(config: &Config) -> Vec<PathBuf> {
    let next = in_progress(config).map(|(folder, _)| folder);
    std::iter::once(config.authority_folder()).chain(next).collect()
}

/// Does the next step. `leave_behind`: also if hosts have not followed the one before.
pub fn rotate(config: &Config, leave_behind: bool) -> Result<Rotated, ClusterError> {
    let now = UnixTime::now();
    let own = open_identity(&config.identity_folder())?;
    let _alone = lock_identity(&config.identity_folder())?;
    let present = config.authority_folder();
    let next = next_folder(config);
    // A crash between the two renamings of the last step.
    if !Authority::exists(&present) && State::read(&next).is_some_and(|state| state.retired.is_some()) {
        rename(&next, &present)?;
    }
    let mut old = open_authority(&present)?;
    if !has_own_authority(&present, &own) {
        return Err(ClusterError::NoAuthority(present));
    }
    let Some((folder, state)) = in_progress(config) else { return begin(&own, &old, &next, now) };
    let mut new = open_authority(&folder)?;
    let followed = |host: &HostName| match state.switched {
        false => state.trusting.contains(host),
        true => new.hosts(now).any(|one| one.host == *host),
    };
    let waits_for = |host: &HostName| *host != own.name().host && !followed(host);
    let missing: BTreeSet<HostName> = old.hosts(now).map(|one| one.host).filter(waits_for).collect();
    let missing: Vec<HostName> = missing.into_iter().collect();
    if !missing.is_empty() && !leave_behind {
        let what = match state.switched {
            false => "they do not trust the next authority yet",
            true => "they have no certificate of the next authority yet",
        };
        return Err(ClusterError::NotReady { what, hosts: missing });
    }
    let (old_id, new_id) = (old.id(), new.id());
    let step = match state.switched {
        false => switch(&own, &mut new, &folder, state, now)?,
        true => finish(config, &own, &mut old, new, (folder, state), now)?,
    };
    Ok(Rotated { step, old: old_id, new: new_id, left_behind: missing })
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
    old: &mut Authority,
    new: Authority,
    (folder, state): (PathBuf, State),
    now: UnixTime,
) -> Result<Step, ClusterError> {
    let retired = new.state(Statement::Retired, old.certificate(), now)?;
    State { retired: Some(BASE64.encode(&retired)), ..state }.write(&folder)?;
    own.reload()?;
    own.set_authorities(&Bundle::new(vec![new.certificate().clone()])?)?;
    let present = config.authority_folder();
    let id = old.id().to_string();
    let retired = beside(&present, &format!("retired-{}", id.get(..16).unwrap_or_default()));
    // Its lock goes with the folder.
    drop(new);
    rename(&present, &retired)?;
    rename(&folder, &present)?;
    Ok(Step::Finished)
}

fn rename(from: &Path, to: &Path) -> Result<(), ClusterError> {
    let renamed = std::fs::rename(from, to).and_then(|()| {
        let parent = to.parent().unwrap_or(Path::new("/"));
        std::fs::File::open(parent)?.sync_all()
    });
    renamed.map_err(|source| ClusterError::Rename { folder: from.to_owned(), source })
}

/// What a member is told that trusts these authorities. Remembers that it follows.
pub(super) fn tell(
    config: &Config,
    identity: &Identity,
    member: &Peer,
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
        if trusted.contains(&id.to_string()) && !state.trusting.contains(&member.host) {
            remember(config, &member.host);
        }
        let certificate =
            identity.bundle().authorities().iter().find(|one| one.id() == id)?.certificate().clone();
        Some((state.successor, BASE64.encode(&certificate)))
    });
    AuthorityChange { successor, retired, signs }
}

fn remember(config: &Config, host: &HostName) {
    let remembered = lock_identity(&config.identity_folder()).and_then(|_alone| {
        let Some((folder, mut state)) = in_progress(config) else { return Ok(()) };
        state.trusting.insert(host.clone());
        state.write(&folder)
    });
    match remembered {
        Ok(()) => tracing::info!(%host, "it trusts the next authority"),
        Err(error) => tracing::warn!(%host, %error, "that it trusts the next authority could not be written"),
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
    if let Some((statement, next)) = &change.successor
        && let (Some(statement), Some(next)) = (decoded(statement), decoded(next))
        && let Some(both) =
            succession::with_successor(&identity.bundle(), &statement.into(), next.into(), now)?
    {
        identity.set_authorities(&both)?;
        tracing::info!("the cluster changes its authority: the next one is trusted, too");
        followed = true;
    }
    if let Some(statement) = change.retired.as_deref().and_then(decoded)
        && let Some(one) = succession::without_retired(&identity.bundle(), &statement.into(), now)?
        && one.authorities().iter().all(|one| identity.is_issued_by(one.id(), now))
    {
        identity.set_authorities(&one)?;
        tracing::info!("the cluster has changed its authority: the one before is not trusted any more");
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
mod tests {
    use super::super::renewal::exchange_with_authority;
    use super::super::testing::{Running, running};
    use super::super::tests::{first, join_at, site};
    use super::super::{join, operations};
    use super::*;

    /// Every host takes connections of every other: a guest can move in any direction.
    fn all_meet(hosts: &[&Running]) {
        for from in hosts {
            for to in hosts {
                from.connect_to(to).unwrap();
            }
        }
    }

    /// What a host's agent does each five minutes.
    fn follows(host: &Running, authority: &Running) {
        let addresses = authority.listener.addresses();
        exchange_with_authority(&host.site.config, &host.identity(), addresses, UnixTime::now()).unwrap();
    }

    fn waits_for(authority: &Running) -> Vec<String> {
        match rotate(&authority.site.config, false).unwrap_err() {
            ClusterError::NotReady { hosts, .. } => hosts.iter().map(ToString::to_string).collect(),
            other => panic!("{other}"),
        }
    }

    fn step(authority: &Running, leave_behind: bool) -> Rotated {
        let done = rotate(&authority.site.config, leave_behind).unwrap();
        authority.look();
        done
    }

    fn trusts(host: &Running) -> Vec<AuthorityId> {
        host.identity().bundle().authorities().iter().map(|one| one.id()).collect()
    }

    #[test]
    fn a_cluster_changes_its_authority_and_every_host_accepts_every_other_all_the_while() {
        let one = first();
        let server = one.server();
        let [two, three] = ["two", "three"].map(|name| {
            let site = site(name, "");
            join_at(&site, &server, &one.token()).unwrap();
            site
        });
        drop(server);
        let (one, two, three) = (running(one), running(two), running(three));
        let all = [&one, &two, &three];
        let begun = step(&one, false);
        assert_eq!(begun.step, Step::Begun);
        all_meet(&all);
        assert_eq!(waits_for(&one), ["three", "two"]);
        follows(&two, &one);
        all_meet(&all);
        assert_eq!(waits_for(&one), ["three"]);
        follows(&three, &one);
        assert_eq!(trusts(&three), [begun.old, begun.new]);
        assert_eq!(step(&one, false).step, Step::Switched);
        all_meet(&all);
        assert_eq!(waits_for(&one), ["three", "two"]);
        follows(&two, &one);
        all_meet(&all);
        assert_eq!(waits_for(&one), ["three"]);
        follows(&three, &one);
        assert_eq!(step(&one, false).step, Step::Finished);
        all_meet(&all);
        assert_eq!(trusts(&one), [begun.new]);
        for host in [&two, &three] {
            follows(host, &one);
            assert_eq!(trusts(host), [begun.new]);
        }
        all_meet(&all);
        // It is a whole authority: it revokes, and lets hosts join.
        operations::revoke_host(&one.site.config, "two").unwrap();
        one.look();
        assert!(two.connect_to(&one).is_err());
        let four = site("four", "");
        join_at(&four, &one.site.server(), &one.site.token()).unwrap();
        assert_eq!(step(&one, false).step, Step::Begun, "and can be changed again");
    }

    #[test]
    fn a_host_that_missed_the_change_is_told_to_join_again() {
        let (one, two) = (first(), site("two", ""));
        join_at(&two, &one.server(), &one.token()).unwrap();
        let (one, two) = (running(one), running(two));
        step(&one, false);
        assert_eq!(waits_for(&one), ["two"]);
        let switched = step(&one, true);
        assert_eq!(switched.left_behind, ["two".parse().unwrap()]);
        step(&one, true);
        let error = two.connect_to(&one).unwrap_err();
        let told = crate::faults::chain(&error);
        assert!(told.contains("linerate join --replace"), "{told}");
        let addresses = one.listener.addresses();
        let asked = exchange_with_authority(&two.site.config, &two.identity(), addresses, UnixTime::now());
        let told = asked.err().unwrap().to_string();
        assert!(told.contains("linerate join --replace"), "{told}");
        let server = one.site.server();
        let (address, token) = (server.addresses()[0].to_string(), one.site.token());
        join::join(&two.site.config, &address, &token.line, None, true).unwrap();
        two.look();
        two.connect_to(&one).unwrap();
    }

    #[test]
    fn a_revocation_during_a_change_counts_with_both_authorities() {
        let (one, two, three) = (first(), site("two", ""), site("three", ""));
        let server = one.server();
        join_at(&two, &server, &one.token()).unwrap();
        join_at(&three, &server, &one.token()).unwrap();
        let (one, two, three) = (running(one), running(two), running(three));
        step(&one, false);
        follows(&two, &one);
        follows(&three, &one);
        step(&one, false);
        // This host has certificates of both.
        follows(&two, &one);
        operations::revoke_host(&one.site.config, "two").unwrap();
        one.look();
        assert!(two.connect_to(&one).is_err());
        follows(&three, &one);
        assert!(two.connect_to(&three).is_err());
        assert_eq!(step(&one, false).step, Step::Finished, "a revoked host is not waited for");
    }
}
