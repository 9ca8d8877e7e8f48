//! Placement: a destination for each guest that leaves a host.
//!
//! What is wanted, in this order: as many guests as possible have a destination; and no destination needs longer for
//! its part than the source needs for all of them. Guests that must stay together are placed as one.
//!
//! Best fit: the largest first, each to one of the fullest hosts that can take it; of those, to the one that receives
//! least. Large holes stay for large guests. The local search (`search`) then makes room for what is left, and
//! relieves destinations that would be waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::ledger::Ledger;
use super::overlay::Overlay;
use super::{GroupId, GuestId, HostId, Obstacle};

/// Among so many of the fullest hosts that can take a guest, the one that receives least gets it.
const TIGHTEST: usize = 8;
/// Hosts that are looked at for one guest before it is left to the local search. Rules of a guest can exclude many.
const LOOKED_AT: usize = 4096;

/// Which guests need a destination.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The guests. All are on one host.
    pub guests: Vec<GuestId>,
    /// The only destinations allowed, if the operator named some.
    pub only: Option<BTreeSet<HostId>>,
    /// Hosts where a try of a guest failed.
    pub avoid: BTreeMap<GuestId, BTreeSet<HostId>>,
}

/// What keeps a guest where it is: for each obstacle the number of hosts that have it. Each host counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nowhere(pub Vec<(&'static str, u32)>);

impl fmt::Display for Nowhere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("there is no other host");
        }
        let parts: Vec<String> = self.0.iter().map(|(what, hosts)| format!("{what} ({hosts})")).collect();
        write!(f, "no host can take it, with the number of hosts: {}", parts.join(", "))
    }
}

/// A destination for each guest, or why there is none.
pub type Placement = Vec<(GuestId, Result<HostId, Nowhere>)>;

/// Guests that go to one host: one, or those that must stay together.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub guests: Vec<GuestId>,
    pub bytes: u64,
    pub host: Option<HostId>,
    /// The numbers of what its guests need.
    pub needs: Vec<usize>,
}

impl Ledger {
    /// Finds destinations. Nothing is reserved.
    pub fn place(&self, request: &Request) -> Placement {
        let Some(source) = request.guests.iter().find_map(|guest| self.host_of(*guest)) else {
            return request.guests.iter().map(|guest| (*guest, Err(Nowhere::default()))).collect();
        };
        let mut plan = Plan {
            ledger: self,
            request,
            source,
            overlay: Overlay::default(),
            items: self.items(request, source),
        };
        plan.best_fit();
        plan.make_room();
        plan.other_orders();
        plan.relieve();
        plan.result()
    }

    /// For each host why the guest cannot go there; an empty list where it can. `leave`: the guests that leave with it,
    /// of which some may have to be together with it.
    pub fn explain(&self, guest: GuestId, leave: &[GuestId]) -> Vec<(HostId, Vec<Obstacle>)> {
        let mut others = self.group_of(guest);
        others.retain(|other| *other != guest && leave.contains(other));
        let request = Request { guests: leave.to_vec(), ..Request::default() };
        let hosts = (0..self.hosts_count()).map(HostId);
        hosts.map(|host| (host, self.obstacles_together(guest, &others, host, &request))).collect()
    }

    /// The guests that must be together with this one and are on its host, itself included.
    pub fn group_of(&self, guest: GuestId) -> Vec<GuestId> {
        let state = self.guests.get(guest.0 as usize);
        let Some(group) = state.and_then(|state| state.rules.as_ref()?.together) else { return vec![guest] };
        let (here, all) = (self.host_of(guest), self.groups.get(&group));
        all.into_iter().flatten().copied().filter(|other| self.host_of(*other) == here).collect()
    }

    fn obstacles_together(
        &self,
        guest: GuestId,
        others: &[GuestId],
        host: HostId,
        request: &Request,
    ) -> Vec<Obstacle> {
        let plan = Overlay::default();
        let is_memory = |one: &Obstacle| matches!(one, Obstacle::Memory { .. });
        let mut found = self.all_obstacles(guest, host, &plan, request);
        let has_room = !found.iter().any(is_memory);
        for other in others {
            let of_other = self.all_obstacles(*other, host, &plan, request).into_iter();
            // What keeps all of them from the host is named once.
            let more: Vec<Obstacle> =
                of_other.filter(|one| !is_memory(one) && !found.contains(one)).collect();
            found.extend(more.into_iter().map(|one| Obstacle::OfOther(*other, Box::new(one))));
        }
        let needs = others.iter().fold(self.memory_of(guest), |sum, other| sum + self.memory_of(*other));
        let free = self.free_bytes(host);
        if has_room && !others.is_empty() && free < needs {
            found.push(Obstacle::MemoryTogether { needs, free });
        }
        found
    }

    pub(super) fn all_obstacles(
        &self,
        guest: GuestId,
        host: HostId,
        plan: &Overlay,
        request: &Request,
    ) -> Vec<Obstacle> {
        let mut found = self.obstacles(guest, host, plan);
        if request.only.as_ref().is_some_and(|only| !only.contains(&host)) {
            found.push(Obstacle::NotAllowed);
        }
        if request.avoid.get(&guest).is_some_and(|avoid| avoid.contains(&host)) {
            found.push(Obstacle::Forbidden);
        }
        if let Some(stays) = self.stays_behind(guest, &request.guests) {
            found.push(Obstacle::TogetherOn(stays));
        }
        found
    }

    /// The host of a guest that must be together with this one and stays where both are.
    fn stays_behind(&self, guest: GuestId, leave: &[GuestId]) -> Option<HostId> {
        let state = self.guests.get(guest.0 as usize)?;
        let group = state.rules.as_ref()?.together?;
        let here =
            |other: &&GuestId| self.host_of(**other) == state.host && self.reserved_at(**other).is_none();
        let mut others = self.groups.get(&group)?.iter().filter(|other| **other != guest).filter(here);
        others.any(|other| !leave.contains(other)).then_some(state.host)?
    }

    fn items(&self, request: &Request, source: HostId) -> Vec<Item> {
        let mut items: Vec<Item> = Vec::new();
        let mut of_group: BTreeMap<GroupId, usize> = BTreeMap::new();
        for &guest in &request.guests {
            let Some(state) = self.guests.get(guest.0 as usize).filter(|state| state.host == Some(source))
            else {
                continue;
            };
            let group = state.rules.as_ref().and_then(|rules| rules.together);
            let at = group.map_or(items.len(), |group| *of_group.entry(group).or_insert(items.len()));
            if at == items.len() {
                items.push(Item { guests: Vec::new(), bytes: 0, host: None, needs: Vec::new() });
            }
            items[at].guests.push(guest);
            items[at].bytes += state.memory_bytes;
            if !items[at].needs.contains(&state.needs) {
                items[at].needs.push(state.needs);
            }
        }
        items.sort_by_key(|item| (std::cmp::Reverse(item.bytes), item.guests[0]));
        items
    }
}

/// A placement in the making.
pub(super) struct Plan<'a> {
    pub ledger: &'a Ledger,
    pub request: &'a Request,
    pub source: HostId,
    pub overlay: Overlay,
    pub items: Vec<Item>,
}

impl Plan<'_> {
    fn source_offer(&self) -> usize {
        self.ledger.hosts.get(self.source.0 as usize).map_or(0, |state| state.offer)
    }

    pub fn best_fit(&mut self) {
        for number in 0..self.items.len() {
            if let Some(host) = self.best_host(number, None) {
                self.put(number, host);
            }
        }
    }

    pub fn put(&mut self, number: usize, host: HostId) {
        self.items[number].host = Some(host);
        for guest in self.items[number].guests.clone() {
            self.overlay.put(guest, self.ledger.memory_of(guest), host);
        }
    }

    pub fn take(&mut self, number: usize) -> Option<HostId> {
        for guest in self.items[number].guests.clone() {
            self.overlay.take(guest, self.ledger.memory_of(guest));
        }
        self.items[number].host.take()
    }

    /// Whether all guests of the item can be on the host together.
    pub fn fits(&self, number: usize, host: HostId) -> bool {
        let item = &self.items[number];
        if self.ledger.free_with(host, &self.overlay) < item.bytes {
            return false;
        }
        let clear = |guest: &GuestId, plan: &Overlay| {
            self.ledger.all_obstacles(*guest, host, plan, self.request).is_empty()
        };
        if let [guest] = item.guests[..] {
            return clear(&guest, &self.overlay);
        }
        let mut with = self.overlay.clone();
        item.guests.iter().all(|guest| {
            let clear = clear(guest, &with);
            with.put(*guest, self.ledger.memory_of(*guest), host);
            clear
        })
    }

    /// One of the fullest hosts that can take the item: the one that receives least by reservations and this plan.
    pub fn best_host(&self, number: usize, except: Option<HostId>) -> Option<HostId> {
        let item = &self.items[number];
        let tightest = self.ledger.index.tightest(&item.needs, self.source_offer(), item.bytes);
        let hosts = tightest.take(LOOKED_AT).map(|(_, host)| host);
        let able = hosts.filter(|host| Some(*host) != except && self.fits(number, *host)).take(TIGHTEST);
        able.enumerate()
            .min_by(|a, b| self.receives(a.1).total_cmp(&self.receives(b.1)).then(a.0.cmp(&b.0)))
            .map(|at| at.1)
    }

    /// Hosts with the most memory free that suit the item.
    pub fn emptiest(&self, number: usize, count: usize) -> Vec<HostId> {
        let item = &self.items[number];
        let hosts = self.ledger.index.emptiest(&item.needs, self.source_offer(), item.bytes);
        hosts.take(count).map(|(_, host)| host).collect()
    }

    /// Seconds in which a host receives everything that goes there by this plan or is reserved.
    fn receives(&self, host: HostId) -> f64 {
        let reserved = self.ledger.hosts.get(host.0 as usize).map_or(0, |state| state.reserved_bytes);
        let (_, rate) = self.ledger.links(self.source, host);
        (self.overlay.bytes(host) + reserved) as f64 / rate.max(1.0)
    }

    fn result(self) -> Placement {
        let mut at: BTreeMap<GuestId, HostId> = BTreeMap::new();
        for item in &self.items {
            item.host.iter().for_each(|host| at.extend(item.guests.iter().map(|guest| (*guest, *host))));
        }
        let place = |guest: &GuestId| (*guest, at.get(guest).copied().ok_or_else(|| self.nowhere(*guest)));
        self.request.guests.iter().map(place).collect()
    }

    fn nowhere(&self, guest: GuestId) -> Nowhere {
        let mut counts: BTreeMap<&'static str, u32> = BTreeMap::new();
        for host in (0..self.ledger.hosts_count()).map(HostId).filter(|host| *host != self.source) {
            let found = self.ledger.all_obstacles(guest, host, &self.overlay, self.request);
            *counts
                .entry(found.first().map_or("no room for all guests that stay together", Obstacle::name))
                .or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|(name, hosts)| (std::cmp::Reverse(*hosts), *name));
        Nowhere(counts)
    }
}
