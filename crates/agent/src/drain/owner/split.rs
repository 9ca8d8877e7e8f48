//! Guests that must be together: which they are; and as a drain ends, some of a group may have left, and the rest not.

use std::collections::{BTreeMap, BTreeSet};

use linerate_api::{DrainGuest, DrainGuestState as Shown};
use linerate_core::drain::{Event, Outcome, State};
use linerate_core::fleet::{GroupId, GuestId};

use super::Owner;
use crate::drain::rules::Rules;

/// A guest of a group.
#[derive(Clone, Debug, PartialEq)]
struct Spot {
    name: String,
    /// Where it is; none if nobody knows.
    host: Option<String>,
    /// Its number and state, if it is a guest of the drain.
    of_drain: Option<(GuestId, Shown)>,
}

impl Owner {
    /// Tells the controller which guests must be together. A guest that came may make one group of two lists.
    pub(super) fn tell_groups(&mut self) {
        let names: Vec<String> = self.members.iter().map(|member| member.guest.name.clone()).collect();
        let groups = (0..).map(GuestId).zip(self.rules.together(&names));
        self.controller.keep_together(groups.filter_map(|(id, group)| Some((id, group?))).collect());
    }

    /// Guests that stay although others of their group have left are tried once more, those of a group together. One
    /// that cannot leave at all would keep the others, so they are not tried then.
    pub(super) fn try_split_again(&mut self) {
        if self.is_aborting() {
            return;
        }
        let may_leave: BTreeSet<GuestId> = self
            .controller
            .guests()
            .filter(|(id, state, _)| !self.tried_again.contains(id) && may_succeed(state))
            .map(|(id, ..)| id)
            .collect();
        let mut again = Vec::new();
        for group in self.split() {
            let of_drain: Vec<(GuestId, Shown)> = group.into_iter().filter_map(|one| one.of_drain).collect();
            let has_left = of_drain.iter().any(|(_, state)| *state == Shown::Moved);
            let is_here = |state: Shown| !matches!(state, Shown::Moved | Shown::InDoubt);
            let here: Vec<GuestId> =
                of_drain.iter().filter(|(_, state)| is_here(*state)).map(|(id, _)| *id).collect();
            if has_left && here.iter().all(|id| may_leave.contains(id)) {
                again.extend(here);
            }
        }
        if again.is_empty() {
            return;
        }
        tracing::info!(
            drain = self.record.id,
            guests = again.len(),
            "others of their group have left: once more"
        );
        self.tried_again.extend(&again);
        self.handle(Event::Again(again));
    }

    /// The groups that are on different hosts: of each guest the host, or none if nobody knows.
    pub(super) fn split_groups(&self) -> Vec<BTreeMap<String, Option<String>>> {
        let shown = |group: Vec<Spot>| group.into_iter().map(|one| (one.name, one.host)).collect();
        self.split().into_iter().map(shown).collect()
    }

    fn split(&self) -> Vec<Vec<Spot>> {
        let records = self.destinations.iter().filter_map(|one| one.record.as_ref());
        let there = records.flat_map(|record| {
            let guests = record.guests.iter().map(|(key, guest)| (key, &guest.name));
            let spot = |(key, name): (&String, &String)| {
                let host = Some(record.name.clone());
                (key.clone(), Spot { name: name.clone(), host, of_drain: None })
            };
            guests.chain(&record.domains).map(spot).collect::<Vec<_>>()
        });
        split(&self.rules, &self.record.host, &self.guests(), there.collect())
    }
}

fn may_succeed(state: &State) -> bool {
    match state {
        State::Ended(Outcome::Failed { reason, in_doubt: false }) => reason.may_pass(),
        _ => false,
    }
}

/// The groups that are on different hosts. `own`: the host that is drained. `guests`: those of the drain, in the order
/// of their numbers. `spots`: what the destinations have, by UUID.
fn split(
    rules: &Rules,
    own: &str,
    guests: &[DrainGuest],
    mut spots: BTreeMap<String, Spot>,
) -> Vec<Vec<Spot>> {
    // A guest that has left and is here again stands twice in the drain: the later one counts.
    for (number, guest) in (0..).map(GuestId).zip(guests) {
        let host = match guest.state {
            Shown::Gone => {
                spots.remove(&guest.uuid);
                continue;
            }
            Shown::Moved => guest.to.clone(),
            Shown::InDoubt => None,
            _ => Some(own.to_owned()),
        };
        let spot = Spot { name: guest.guest.clone(), host, of_drain: Some((number, guest.state)) };
        spots.insert(guest.uuid.clone(), spot);
    }
    let spots: Vec<Spot> = spots.into_values().collect();
    let names: Vec<String> = spots.iter().map(|one| one.name.clone()).collect();
    let mut groups: BTreeMap<GroupId, Vec<Spot>> = BTreeMap::new();
    for (group, spot) in rules.together(&names).into_iter().zip(spots) {
        if let Some(group) = group {
            groups.entry(group).or_default().push(spot);
        }
    }
    // What the operator keeps here, and others have elsewhere, is not of the drain.
    let was_to_move = |one: &Spot| one.of_drain.is_some_and(|(_, state)| state != Shown::Kept);
    let is_split = |group: &Vec<Spot>| {
        let hosts: BTreeSet<&String> = group.iter().filter_map(|one| one.host.as_ref()).collect();
        hosts.len() > 1 && group.iter().any(was_to_move)
    };
    groups.into_values().filter(is_split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Placement;

    #[test]
    fn a_group_is_split_if_its_guests_are_known_to_be_on_different_hosts() {
        let lists = [vec!["db-*".to_owned()], vec!["web".to_owned(), "cache".to_owned()]];
        let rules = Rules::new(&Placement::default(), &[], &lists).unwrap();
        let guest = |name: &str, uuid: &str, state: &str, to: Option<&str>| -> DrainGuest {
            serde_json::from_value(crate::drain::tests::guest(name, uuid, state, to)).unwrap()
        };
        let spot =
            |name: &str, host: &str| Spot { name: name.into(), host: Some(host.into()), of_drain: None };
        let hosts = |guests: &[DrainGuest], there: &[(&str, Spot)]| -> Vec<Vec<(String, Option<String>)>> {
            let there = there.iter().map(|(key, spot)| ((*key).to_owned(), spot.clone())).collect();
            let groups = split(&rules, "a", guests, there).into_iter();
            groups.map(|group| group.into_iter().map(|one| (one.name, one.host)).collect()).collect()
        };
        let at = |name: &str, host: &str| (name.to_owned(), Some(host.to_owned()));
        let moved = guest("db-1", "u1", "moved", Some("b"));
        let left = guest("db-2", "u2", "failed", None);
        // The destination lists the one that has arrived, too.
        let listed = [("u1", spot("db-1", "b"))];
        assert_eq!(hosts(&[moved.clone(), left.clone()], &listed), [[at("db-1", "b"), at("db-2", "a")]]);
        assert!(hosts(&[moved.clone(), guest("db-2", "u2", "moved", Some("b"))], &listed).is_empty());
        assert!(hosts(&[moved.clone(), guest("db-2", "u2", "gone", None)], &listed).is_empty());
        assert!(hosts(&[moved.clone(), guest("db-2", "u2", "in_doubt", None)], &listed).is_empty());
        assert!(hosts(&[moved, guest("log", "u2", "failed", None)], &listed).is_empty());
        // It had left before this drain began.
        let before = [("u3", spot("db-3", "c"))];
        assert_eq!(hosts(&[left], &before), [[at("db-2", "a"), at("db-3", "c")]]);
        let elsewhere = [("u5", spot("cache", "c"))];
        assert!(hosts(&[guest("web", "u4", "kept", None)], &elsewhere).is_empty());
        // It came back while the drain went on, and did not leave again.
        let again = [guest("web", "u4", "moved", Some("b")), guest("web", "u4", "failed", None)];
        let with = [&again[..], &[guest("cache", "u5", "failed", None)]].concat();
        assert!(hosts(&with, &[]).is_empty());
    }
}
