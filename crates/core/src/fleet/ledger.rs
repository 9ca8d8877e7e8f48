//! The ledger: hosts, guests and reservations.
//!
//! A reservation takes memory at a destination before the guest is prepared there. It ends when the guest has arrived
//! or is given up. Invariants (checked by [`Ledger::overfilled`] and the property tests):
//! * the guests on a host and the reservations of all drains together never exceed its memory less its reserve;
//! * a guest has at most one reservation, at a host where it is not.

use std::collections::{BTreeMap, BTreeSet};

use thiserror::Error;

use super::index::Index;
use super::overlay::Overlay;
use super::{DrainId, GroupId, GuestId, HostId, Needs, Obstacle, Offer};

/// A host as it is added.
#[derive(Clone, Debug)]
pub struct Host {
    /// What it offers.
    pub offer: Offer,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Bytes that stay free of guests: for the host itself, and what its operator holds back.
    pub reserve_bytes: u64,
}

/// A guest as it is added.
#[derive(Clone, Debug, Default)]
pub struct Guest {
    /// What it needs of a host.
    pub needs: Needs,
    /// Bytes that it takes from its host: RAM and what QEMU adds.
    pub memory_bytes: u64,
    /// The only hosts that it may be on, if it is limited to some.
    pub allowed: Option<BTreeSet<HostId>>,
    /// Hosts that it must not be on.
    pub forbidden: BTreeSet<HostId>,
    /// No other guest of these groups may be on its host.
    pub apart: Vec<GroupId>,
    /// All guests of this group are on one host.
    pub together: Option<GroupId>,
}

#[derive(Clone, Debug)]
pub(super) struct HostState {
    pub offer: usize,
    pub cap_bytes: u64,
    pub used_bytes: u64,
    /// Bytes of reservations, a part of `used_bytes`.
    pub reserved_bytes: u64,
    pub cordoned: bool,
    pub lost: bool,
    pub guests: BTreeSet<GuestId>,
}

impl HostState {
    pub fn free(&self) -> u64 {
        self.cap_bytes.saturating_sub(self.used_bytes)
    }

    fn takes_arrivals(&self) -> bool {
        !self.cordoned && !self.lost
    }
}

#[derive(Clone, Debug)]
pub(super) struct GuestState {
    pub needs: usize,
    pub rules: Rules,
    pub memory_bytes: u64,
    /// `None`: it has ended.
    pub host: Option<HostId>,
    pub reserved: Option<(DrainId, HostId)>,
}

/// The rules of a guest that has any.
pub(super) type Rules = Option<Box<RuleSet>>;

#[derive(Clone, Debug)]
pub(super) struct RuleSet {
    pub allowed: Option<BTreeSet<HostId>>,
    pub forbidden: BTreeSet<HostId>,
    pub apart: Vec<GroupId>,
    pub together: Option<GroupId>,
}

/// Why a reservation was not made. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Refusal {
    /// The host cannot take the guest.
    #[error("the host cannot take the guest: {0}")]
    Obstacle(Obstacle),
    /// Another drain has a reservation for the guest.
    #[error("drain {} has a reservation for the guest", .0.0)]
    OfOther(DrainId),
    /// There is no such guest or host.
    #[error("no such guest or host")]
    Unknown,
}

/// Hosts, guests and reservations.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    pub(super) hosts: Vec<HostState>,
    pub(super) guests: Vec<GuestState>,
    pub(super) groups: BTreeMap<GroupId, Vec<GuestId>>,
    pub(super) index: Index,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Adds a host without guests.
    pub fn add_host(&mut self, host: Host) -> HostId {
        let id = HostId(self.hosts.len() as u32);
        let offer = self.index.offer(host.offer);
        let cap_bytes = host.memory_bytes.saturating_sub(host.reserve_bytes);
        self.index.insert(offer, cap_bytes, id);
        self.hosts.push(HostState {
            offer,
            cap_bytes,
            used_bytes: 0,
            reserved_bytes: 0,
            cordoned: false,
            lost: false,
            guests: BTreeSet::new(),
        });
        id
    }

    /// Adds a guest that runs on `host`. It is counted also where it does not fit: it runs.
    pub fn add_guest(&mut self, guest: Guest, host: HostId) -> GuestId {
        let id = GuestId(self.guests.len() as u32);
        let needs = self.index.need(guest.needs);
        for group in guest.apart.iter().chain(&guest.together) {
            self.groups.entry(*group).or_default().push(id);
        }
        let Guest { memory_bytes, allowed, forbidden, apart, together, .. } = guest;
        let ruled = allowed.is_some() || !forbidden.is_empty() || !apart.is_empty() || together.is_some();
        let rules = ruled.then(|| Box::new(RuleSet { allowed, forbidden, apart, together }));
        self.guests.push(GuestState { needs, rules, memory_bytes, host: Some(host), reserved: None });
        self.change(host, |state| {
            state.used_bytes += memory_bytes;
            state.guests.insert(id);
        });
        id
    }

    /// The host takes no arrivals from now on, or takes them again. Reservations stay.
    pub fn cordon(&mut self, host: HostId, cordoned: bool) {
        self.change(host, |state| state.cordoned = cordoned);
    }

    /// The host does not answer from now on, or answers again. Its guests and reservations stay.
    pub fn lose(&mut self, host: HostId, lost: bool) {
        self.change(host, |state| state.lost = lost);
    }

    /// Reserves memory for `guest` at `host`.
    ///
    /// Another reservation of the same drain is given up for it. On `Err` nothing has changed.
    pub fn reserve(&mut self, drain: DrainId, guest: GuestId, host: HostId) -> Result<(), Refusal> {
        let state = self.guests.get(guest.0 as usize).ok_or(Refusal::Unknown)?;
        if host.0 as usize >= self.hosts.len() || state.host.is_none() {
            return Err(Refusal::Unknown);
        }
        let before = state.reserved;
        if let Some((other, _)) = before.filter(|(owner, _)| *owner != drain) {
            return Err(Refusal::OfOther(other));
        }
        self.release(guest);
        if let Some(obstacle) = self.obstacles(guest, host, &Overlay::default()).into_iter().next() {
            if let Some((owner, host)) = before {
                self.put_reservation(owner, guest, host);
            }
            return Err(Refusal::Obstacle(obstacle));
        }
        self.put_reservation(drain, guest, host);
        Ok(())
    }

    fn put_reservation(&mut self, drain: DrainId, guest: GuestId, host: HostId) {
        let Some(state) = self.guests.get_mut(guest.0 as usize) else { return };
        state.reserved = Some((drain, host));
        let bytes = state.memory_bytes;
        self.change(host, |state| {
            state.used_bytes += bytes;
            state.reserved_bytes += bytes;
        });
    }

    /// Gives a reservation up. Without one nothing happens.
    pub fn release(&mut self, guest: GuestId) {
        let Some(state) = self.guests.get_mut(guest.0 as usize) else { return };
        let Some((_, host)) = state.reserved.take() else { return };
        let bytes = state.memory_bytes;
        self.change(host, |state| {
            state.used_bytes -= bytes;
            state.reserved_bytes -= bytes;
        });
    }

    /// The guest runs where its reservation is: the reservation becomes use, and its old host has the memory back.
    pub fn arrived(&mut self, guest: GuestId) {
        let Some(state) = self.guests.get_mut(guest.0 as usize) else { return };
        let Some((_, host)) = state.reserved.take() else { return };
        let bytes = state.memory_bytes;
        let old = state.host.replace(host);
        self.change(host, |state| {
            state.reserved_bytes -= bytes;
            state.guests.insert(guest);
        });
        if let Some(old) = old {
            self.leave(old, guest, bytes);
        }
    }

    /// The guest has ended. Its memory and its reservation are free.
    pub fn ended(&mut self, guest: GuestId) {
        self.release(guest);
        let Some(state) = self.guests.get_mut(guest.0 as usize) else { return };
        let bytes = state.memory_bytes;
        if let Some(host) = state.host.take() {
            self.leave(host, guest, bytes);
        }
    }

    fn leave(&mut self, host: HostId, guest: GuestId, bytes: u64) {
        self.change(host, |state| {
            state.used_bytes -= bytes;
            state.guests.remove(&guest);
        });
    }

    /// Where the guest runs. `None`: it has ended or is not known.
    pub fn host_of(&self, guest: GuestId) -> Option<HostId> {
        self.guests.get(guest.0 as usize)?.host
    }

    /// Where memory is reserved for the guest.
    pub fn reserved_at(&self, guest: GuestId) -> Option<HostId> {
        Some(self.guests.get(guest.0 as usize)?.reserved?.1)
    }

    /// The drain that has a reservation for the guest.
    pub fn reserved_by(&self, guest: GuestId) -> Option<DrainId> {
        Some(self.guests.get(guest.0 as usize)?.reserved?.0)
    }

    /// The group that the guest must be together with.
    pub fn together_of(&self, guest: GuestId) -> Option<GroupId> {
        self.guests.get(guest.0 as usize)?.rules.as_ref()?.together
    }

    /// Guests on a host, in the order of their numbers.
    pub fn guests_on(&self, host: HostId) -> impl Iterator<Item = GuestId> + '_ {
        self.hosts.get(host.0 as usize).into_iter().flat_map(|state| state.guests.iter().copied())
    }

    /// Bytes that the guest takes from its host.
    pub fn memory_of(&self, guest: GuestId) -> u64 {
        self.guests.get(guest.0 as usize).map_or(0, |state| state.memory_bytes)
    }

    /// Bytes that are free for guests.
    pub fn free_bytes(&self, host: HostId) -> u64 {
        self.hosts.get(host.0 as usize).map_or(0, HostState::free)
    }

    /// What a host offers.
    pub fn offer(&self, host: HostId) -> Option<&Offer> {
        self.hosts.get(host.0 as usize).map(|state| self.index.offers(state.offer))
    }

    /// Links from one host to another: a bit for each port of the first, and bytes per second of all.
    pub fn links(&self, from: HostId, to: HostId) -> (u64, f64) {
        match (self.offer(from), self.offer(to)) {
            (Some(from), Some(to)) => from.links_to(to),
            _ => (0, 0.0),
        }
    }

    /// Hosts, from 0.
    pub fn hosts_count(&self) -> u32 {
        self.hosts.len() as u32
    }

    /// Hosts whose guests and reservations exceed what they have, counted from the guests. Always empty, unless guests
    /// were added to a host that they do not fit on.
    pub fn overfilled(&self) -> Vec<HostId> {
        let mut used = vec![0u64; self.hosts.len()];
        for state in &self.guests {
            let places = state.host.into_iter().chain(state.reserved.map(|(_, host)| host));
            places.for_each(|host| used[host.0 as usize] += state.memory_bytes);
        }
        let hosts = (0..).zip(&self.hosts).zip(used);
        hosts.filter(|((_, host), used)| *used > host.cap_bytes).map(|((n, _), _)| HostId(n)).collect()
    }

    /// Changes a host and keeps the index true.
    fn change(&mut self, host: HostId, how: impl FnOnce(&mut HostState)) {
        let Some(state) = self.hosts.get_mut(host.0 as usize) else { return };
        if state.takes_arrivals() {
            self.index.remove(state.offer, state.free(), host);
        }
        how(state);
        if state.takes_arrivals() {
            self.index.insert(state.offer, state.free(), host);
        }
    }
}
