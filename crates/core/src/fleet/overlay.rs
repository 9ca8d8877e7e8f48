//! A plan in the making, on top of the ledger; and everything that keeps a guest from a host.

use std::collections::BTreeMap;

use super::ledger::{Ledger, RuleSet};
use super::{GuestId, HostId, Obstacle};

/// Where the guests of a plan go, which the ledger does not know yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Overlay {
    /// Bytes that the plan puts on a host.
    bytes: BTreeMap<HostId, u64>,
    at: BTreeMap<GuestId, HostId>,
}

impl Overlay {
    pub fn put(&mut self, guest: GuestId, bytes: u64, host: HostId) {
        self.at.insert(guest, host);
        *self.bytes.entry(host).or_default() += bytes;
    }

    pub fn take(&mut self, guest: GuestId, bytes: u64) {
        if let Some(host) = self.at.remove(&guest) {
            *self.bytes.entry(host).or_default() -= bytes;
        }
    }

    pub fn bytes(&self, host: HostId) -> u64 {
        self.bytes.get(&host).copied().unwrap_or(0)
    }

    /// Hosts of the plan, with the bytes that it puts there.
    pub fn hosts(&self) -> impl Iterator<Item = (HostId, u64)> + '_ {
        self.bytes.iter().filter(|(_, bytes)| **bytes > 0).map(|(&host, &bytes)| (host, bytes))
    }
}

impl Ledger {
    /// Bytes that are free with the plan carried out.
    pub(super) fn free_with(&self, host: HostId, plan: &Overlay) -> u64 {
        self.free_bytes(host).saturating_sub(plan.bytes(host))
    }

    /// Where a guest is or will be: by the plan, its reservation, or where it runs.
    fn will_be(&self, guest: GuestId, plan: &Overlay) -> Option<HostId> {
        plan.at.get(&guest).copied().or(self.reserved_at(guest)).or(self.host_of(guest))
    }

    /// Everything that keeps the guest from the host, with the plan carried out. Memory that the guest has reserved
    /// there itself counts as taken.
    pub(super) fn obstacles(&self, guest: GuestId, host: HostId, plan: &Overlay) -> Vec<Obstacle> {
        let (Some(state), Some(there)) = (self.guests.get(guest.0 as usize), self.hosts.get(host.0 as usize))
        else {
            return vec![Obstacle::Lost];
        };
        let mut found = Vec::new();
        if state.host == Some(host) {
            found.push(Obstacle::IsThere);
        }
        if there.lost {
            found.push(Obstacle::Lost);
        }
        if there.cordoned {
            found.push(Obstacle::Cordoned);
        }
        let free = self.free_with(host, plan);
        if free < state.memory_bytes {
            found.push(Obstacle::Memory { needs: state.memory_bytes, free });
        }
        let from = state.host.and_then(|from| self.hosts.get(from.0 as usize));
        if let Some(from) = from.filter(|from| !self.index.suits(state.needs, from.offer, there.offer)) {
            found.extend(self.index.needs(state.needs).obstacles(self.index.offers(there.offer)));
            if self.index.rate(from.offer, there.offer) <= 0.0 && state.host != Some(host) {
                found.push(Obstacle::NoLink);
            }
        }
        if let Some(rules) = &state.rules {
            self.ruled_out(guest, rules, host, plan, &mut found);
        }
        found
    }

    fn ruled_out(
        &self,
        guest: GuestId,
        rules: &RuleSet,
        host: HostId,
        plan: &Overlay,
        found: &mut Vec<Obstacle>,
    ) {
        if rules.allowed.as_ref().is_some_and(|allowed| !allowed.contains(&host)) {
            found.push(Obstacle::NotAllowed);
        }
        if rules.forbidden.contains(&host) {
            found.push(Obstacle::Forbidden);
        }
        let others = |group| self.groups.get(group).into_iter().flatten().filter(|other| **other != guest);
        // A guest that leaves is still there until it has left.
        let there =
            |other: GuestId| self.host_of(other) == Some(host) || self.will_be(other, plan) == Some(host);
        found.extend(
            rules
                .apart
                .iter()
                .flat_map(others)
                .find(|other| there(**other))
                .map(|other| Obstacle::ApartFrom(*other)),
        );
        let source = self.host_of(guest);
        let settled =
            |other: &GuestId| self.will_be(*other, plan).filter(|at| Some(*at) != source && *at != host);
        found.extend(rules.together.iter().flat_map(others).find_map(settled).map(Obstacle::TogetherOn));
    }
}
