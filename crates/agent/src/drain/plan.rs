//! What a drain would do: destinations, times, and a dry run of each migration. Nothing is changed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use linerate_api::{
    DrainBound, DrainDetail, DrainGuestState, DrainRequest, DrainState, ErrorBody, MigrationOutcome,
};
use linerate_core::drain::bound::{Bound, Work};
use linerate_core::fleet::HostId;

use super::hosts::{self, Known};
use super::leaving::Leaving;
use super::member::{Decided, Member};
use super::rules::Rules;
use super::{Answer, Ready, look, nothing, place, refused, sessions, sorted};
use crate::agent::Agent;
use crate::clock::unix_ms;
use crate::convert;
use crate::outgoing::{self, News};

/// Migrations that a plan tries at the same time.
const TRIED_AT_ONCE: usize = 4;
/// A migration that is tried without copying ends within this.
const TRY_MAX: Duration = Duration::from_secs(120);

/// What a drain would do. Each guest that the agent moves by itself is tried: a QEMU at the destination is started that
/// waits, and links are opened.
pub(crate) async fn plan(agent: &Arc<Agent>, request: DrainRequest) -> Answer<DrainDetail> {
    let mut ready = look(agent, &request).await?;
    for member in &mut ready.members {
        if member.guest.domain && agent.moves.has(&member.guest.key) {
            member.decided = Some(busy());
        }
    }
    place(&mut ready, &request);
    let in_doubt = |name: &str| agent.open_session_of_name(name).is_some_and(|session| session.in_doubt);
    ready.members.extend(not_now(&ready.unsettled, &ready.arriving, in_doubt));
    let agent = agent.clone();
    let planned = tokio::task::spawn_blocking(move || {
        let chosen = ready.members.iter().filter_map(|one| one.to).collect();
        hosts::reach(&agent, &mut ready.destinations, &chosen);
        try_all(&agent, &request, &mut ready);
        plan_detail(&agent, &request, &ready)
    });
    planned.await.map_err(|error| ErrorBody::new("internal", format!("a defect in the agent: {error}")))
}

/// Guests that cannot move now. A drain waits for them; how they leave cannot be tried.
fn not_now(
    unsettled: &BTreeSet<String>,
    arriving: &BTreeSet<String>,
    in_doubt: impl Fn(&str) -> bool,
) -> Vec<Member> {
    let decided = |name: &String| match (in_doubt(name), arriving.contains(name)) {
        (true, _) => Decided {
            state: DrainGuestState::InDoubt,
            reason: Some("its last migration is in doubt: it is not known where it is to run".into()),
            hint: "see `linerate migration list` and `linerate resolve` on both hosts".into(),
        },
        (false, true) => Decided { reason: Some("it is just arriving here".into()), ..busy() },
        (false, false) => busy(),
    };
    let names: BTreeSet<&String> = unsettled.union(arriving).collect();
    let member =
        |name: &String| Member { decided: Some(decided(name)), ..Member::new(Leaving::unknown(name)) };
    names.into_iter().map(member).collect()
}

fn busy() -> Decided {
    Decided {
        state: DrainGuestState::Failed,
        reason: Some("it is being migrated, or recovery finds out where it is".into()),
        hint: "try again when that has ended: see `linerate migration list`".into(),
    }
}

fn try_all(agent: &Arc<Agent>, request: &DrainRequest, ready: &mut Ready) {
    let destinations = &ready.destinations;
    let mut left: Vec<&mut Member> = ready
        .members
        .iter_mut()
        .filter(|member| member.to.is_some() && member.decided.is_none() && !member.guest.domain)
        .collect();
    while !left.is_empty() {
        let some = left.split_off(left.len().saturating_sub(TRIED_AT_ONCE));
        std::thread::scope(|scope| {
            for member in some {
                scope.spawn(move || {
                    let to = member.to.and_then(|host| destinations.get(hosts::index(host)));
                    let Some(to) = to else { return };
                    let asked = sessions::request(&member.guest, &to.at, request);
                    if let Err(error) =
                        try_one(agent, linerate_api::MigrateRequest { dry_run: true, ..asked })
                    {
                        let reason = Some(error.message);
                        member.decided =
                            Some(Decided { state: DrainGuestState::Failed, reason, hint: error.hint });
                    }
                });
            }
        });
    }
}

/// A dry run of one migration.
fn try_one(agent: &Arc<Agent>, request: linerate_api::MigrateRequest) -> Answer<()> {
    let (over, ended) = channel();
    let observer: outgoing::Observer = Box::new(move |news| {
        if let News::Ended(_) = news {
            let _ = over.send(());
        }
    });
    let guest = request.guest.clone();
    let begun = agent
        .begin_outgoing(&guest, || outgoing::start_observed(&agent.outgoing, request, observer))
        .map_err(|fault| convert::error(&fault, None))?;
    if ended.recv_timeout(TRY_MAX).is_err() {
        begun.cancel();
        return Err(refused("the dry run of its migration did not end in time", "see the agents' logs"));
    }
    match begun.event_log.finished() {
        Some(linerate_api::EventKind::Finished { outcome: MigrationOutcome::Checked, .. }) => Ok(()),
        Some(linerate_api::EventKind::Finished { error: Some(error), .. }) => Err(*error),
        _ => Err(refused("the dry run of its migration was cancelled from elsewhere", "try again")),
    }
}

fn plan_detail(agent: &Agent, request: &DrainRequest, ready: &Ready) -> DrainDetail {
    let source: f64 = hosts::port_rates(&ready.source, &ready.destinations).iter().sum();
    let Known { ledger, .. } = hosts::ledger(&ready.source, &ready.destinations, &[], &Rules::default());
    let links = |host: HostId| hosts::takes(&ledger, &ready.destinations, host);
    let work: Vec<Work> = ready
        .members
        .iter()
        .filter(|member| member.decided.is_none())
        .filter_map(|member| {
            let host = member.to?;
            let copy_bytes = member.guest.copy_bytes;
            Some(Work { copy_bytes, write_bytes_per_s: 0.0, bytes_per_s: links(host).min(source), host })
        })
        .collect();
    let bound = Bound::of(&work, source, links);
    let ms = |seconds: f64| (seconds * 1e3).min(1e15) as u64;
    let guests = ready.members.iter().map(|member| {
        let mut shown = member.show(None, &ready.destinations);
        if member.decided.is_none() {
            shown.state = DrainGuestState::Waiting;
        }
        if request.keep.contains(&member.guest.name) {
            (shown.state, shown.to) = (DrainGuestState::Kept, None);
            (shown.reason, shown.hint) = (None, String::new());
        } else if let Some(why) = member.nowhere.clone() {
            (shown.state, shown.reason) = (DrainGuestState::Failed, Some(why));
            shown.hint = "free memory there, or name more hosts with --to".into();
        }
        shown
    });
    DrainDetail {
        host: agent.config.name.clone(),
        state: DrainState::Planned,
        begun_unix_ms: unix_ms(),
        guests: sorted(guests.collect()),
        links_bytes_per_s: source as u64,
        left_ms: Some(ms(bound.source_s.max(bound.destination_s).max(bound.guest_s))),
        bound: DrainBound {
            source_ms: ms(bound.source_s),
            destination_ms: ms(bound.destination_s),
            guest_ms: ms(bound.guest_s),
        },
        unseen: ready.unseen.texts(),
        warnings: ready.warnings.clone(),
        ..nothing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_that_are_elsewhere_in_a_migration_are_in_the_plan_and_cannot_move_now() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let found = not_now(&names(&["doubt", "moving"]), &names(&["arrives"]), |name| name == "doubt");
        let shown: Vec<_> = found.iter().map(|member| member.show(None, &[])).collect();
        let states: Vec<_> = shown.iter().map(|guest| (guest.guest.as_str(), guest.state)).collect();
        let (failed, in_doubt) = (DrainGuestState::Failed, DrainGuestState::InDoubt);
        assert_eq!(states, [("arrives", failed), ("doubt", in_doubt), ("moving", failed)]);
        assert!(shown.iter().all(|guest| guest.reason.is_some() && !guest.hint.is_empty()));
    }
}
