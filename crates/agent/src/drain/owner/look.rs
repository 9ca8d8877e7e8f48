//! What changes on this host while it is drained, and nobody reports: guests that start or stop, and ports.

use std::collections::BTreeSet;
use std::time::Instant;

use linerate_api::DrainGuestState;
use linerate_core::drain::Event;
use linerate_store::fleet::records::PortRecord;

use super::{Owner, PORTS_MAX, has_left};
use crate::drain::hosts;
use crate::drain::leaving::{self, Found, Leaving};
use crate::drain::member::{Decided, Member};
use crate::libvirt::domains;

impl Owner {
    /// Looks for changes that nobody reports: guests that are started here, ports, guests that recovery has settled.
    pub(super) fn look(&mut self) {
        self.looked = Instant::now();
        self.settle();
        self.look_at_hosts();
        self.look_at_lease();
        let guests = self.guests();
        // One that has left and is here again is another one.
        let known = guests.iter().filter(|guest| !has_left(guest));
        let known = known.map(|guest| (guest.guest.clone(), guest.domain)).collect();
        let found = leaving::look(&self.agent, self.kept.request.mode, &known);
        self.kept.unseen.guests.clone_from(&found.unseen.guests);
        self.kept.unseen.migrations.clone_from(&found.unseen.migrations);
        self.take_up(found);
        let ports = self.agent.describer.ports();
        if self.update_ports(ports) {
            let rates = hosts::port_rates(&self.source, &self.destinations);
            self.handle(Event::Ports(rates));
        }
    }

    /// Guests that were not here before.
    fn take_up(&mut self, found: Found) {
        let Found { guests, unsettled, .. } = found;
        if self.is_aborting() {
            return;
        }
        let unsettled = unsettled.iter().map(|name| Leaving::unknown(name));
        for guest in guests.into_iter().chain(unsettled) {
            tracing::info!(guest = guest.name, "was not here before, and is drained too");
            let start = self.add(Member::new(guest));
            self.tell_groups();
            if let Some(start) = start {
                self.handle(Event::Added(start));
            }
        }
    }

    /// The last look is for libvirt's domains: some may have been started meanwhile.
    pub(super) fn look_for_domains(&mut self) {
        if self.is_aborting() {
            return;
        }
        // One that has left and is here again is another one.
        let known = self.guests().into_iter().filter(|guest| !has_left(guest));
        let known: BTreeSet<String> = known.map(|guest| guest.uuid).collect();
        let mut found = Found::default();
        self.runtime.block_on(leaving::look_for_domains(&mut found, &known));
        self.kept.unseen.domains.clone_from(&found.unseen.domains);
        self.take_up(found);
    }

    /// A guest that could not be moved, and that its operator has stopped since, is not left here.
    pub(super) fn look_for_stopped(&mut self) {
        for (guest, member) in self.guests().into_iter().zip(&mut self.members) {
            if !matches!(guest.state, DrainGuestState::Failed | DrainGuestState::Aborted) {
                continue;
            }
            let has_stopped = if guest.domain {
                self.runtime.block_on(domains::has_stopped(&guest.uuid))
            } else {
                leaving::has_stopped(&self.agent, &guest.guest)
            };
            if has_stopped {
                let gone = Decided { state: DrainGuestState::Gone, reason: None, hint: String::new() };
                member.decided = Some(gone);
            }
        }
    }

    /// Ports keep their numbers: one that is not there any more carries nothing.
    fn update_ports(&mut self, now: Vec<PortRecord>) -> bool {
        let before = self.source.ports.clone();
        for port in &mut self.source.ports {
            let found = now.iter().find(|one| one.network == port.network);
            port.bytes_per_s = found.map_or(0, |one| one.bytes_per_s);
        }
        let new = now.into_iter().filter(|one| before.iter().all(|port| port.network != one.network));
        self.source.ports.extend(new);
        self.source.ports.truncate(PORTS_MAX);
        self.source.ports != before
    }
}
