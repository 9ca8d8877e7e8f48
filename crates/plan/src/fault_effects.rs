//! The script at work: when an entry is due, and what it does to the world.

use std::time::Duration;

use linerate_core::{ModeTag, Side, destination, source};

use crate::faults::{FaultKind, Trigger};
use crate::guest::Sending;
use crate::wire::{Purpose, index};
use crate::world::{SimEvent, World};

impl World {
    /// Entries with a time are put into the queue.
    pub fn schedule_faults(&mut self) {
        for entry in 0..self.scenario.faults.len() {
            if let Trigger::At(span) = self.scenario.faults[entry].trigger {
                self.after(span, SimEvent::Fault(entry));
            }
        }
    }

    /// A side begins its n-th action.
    pub fn action_faults(&mut self, side: Side, nth: u64) {
        self.trigger(|trigger| match trigger {
            Trigger::Action(at, n, span) if *at == side && *n == nth => Some(*span),
            _ => None,
        });
    }

    /// The hypervisor was asked to switch over.
    pub fn blackout_faults(&mut self) {
        self.trigger(|trigger| if let Trigger::Blackout(span) = trigger { Some(*span) } else { None });
    }

    /// The journal says, or should say, that commit is sent.
    pub fn commit_faults(&mut self) {
        self.trigger(|trigger| if let Trigger::Commit(span) = trigger { Some(*span) } else { None });
    }

    /// The destination journals, or should, that the guest is committed.
    pub fn committed_faults(&mut self) {
        self.trigger(|trigger| if let Trigger::Committed(span) = trigger { Some(*span) } else { None });
    }

    /// Recovery begins its n-th action.
    pub fn case_faults(&mut self) {
        self.case_actions += 1;
        let nth = self.case_actions;
        self.trigger(|trigger| match trigger {
            Trigger::Recovery(n, span) if *n == nth => Some(*span),
            _ => None,
        });
    }

    /// A snapshot is taken or a medium changed: another image is on top of the guest's disk.
    fn disk_changes(&mut self) {
        if self.scenario.mode == ModeTag::Handover
            || self.guest.gone
            || self.guest.sending == Sending::Holding
            || !self.guest.disks
        {
            return;
        }
        self.image += 1;
        self.guest.image = self.image;
    }

    /// A link has carried something.
    pub fn carried_faults(&mut self) {
        let carried: Vec<u64> = self.links.iter().map(|link| link.carried).collect();
        self.trigger(|trigger| match trigger {
            Trigger::Carried(link, bytes) if carried[*link] >= *bytes => Some(Duration::from_nanos(1)),
            _ => None,
        });
    }

    fn trigger(&mut self, due: impl Fn(&Trigger) -> Option<Duration>) {
        for entry in 0..self.scenario.faults.len() {
            if self.fired[entry] {
                continue;
            }
            match due(&self.scenario.faults[entry].trigger) {
                Some(Duration::ZERO) => self.inject_fault(entry),
                Some(span) => {
                    self.fired[entry] = true;
                    self.after(span, SimEvent::Fault(entry));
                }
                None => {}
            }
        }
    }

    /// An entry of the script happens.
    pub fn inject_fault(&mut self, entry: usize) {
        let Some(fault) = self.scenario.faults.get(entry).cloned() else { return };
        self.fired[entry] = true;
        self.happened[fault.kind.kind()] += 1;
        self.note(|| format!("!! {:?}", fault.kind));
        match fault.kind {
            FaultKind::LinkReset(link) => self.link_down(link, [true; 2], true),
            FaultKind::LinkSilent(link) => self.link_down(link, [true; 2], false),
            FaultKind::LinkOneWay(link, from) => {
                let mut directions = [false; 2];
                directions[index(from)] = true;
                self.link_down(link, directions, false);
            }
            FaultKind::AllSilent => {
                for link in 0..self.links.len() {
                    self.link_down(link, [true; 2], false);
                    self.link_returns(link, &fault);
                }
            }
            FaultKind::LinkStalls(link, span) => self.stall(link, span),
            FaultKind::AllStall(span) => (0..self.links.len()).for_each(|link| self.stall(link, span)),
            FaultKind::LinkSlows(link, percent) => self.links[link].rate *= percent as f64 / 100.0,
            FaultKind::PathBreaks => self.breaks(Purpose::Path),
            FaultKind::ChannelBreaks => self.breaks(Purpose::Channel),
            FaultKind::AgentCrashes(side) => self.crash(side, false, fault.back_after),
            FaultKind::HostCrashes(side) => self.crash(side, true, fault.back_after),
            FaultKind::JournalFails(side, count) => self.hosts[self.at(side)].journal_fails = count,
            FaultKind::JournalFull(side, span) => {
                self.hosts[self.at(side)].journal_full_until = self.now + span
            }
            // The agents do not change libvirt's hypervisors.
            FaultKind::DisksAway(..) | FaultKind::HypervisorsAway(..)
                if self.scenario.mode == ModeTag::Handover => {}
            FaultKind::DisksAway(side, span) => self.hosts[self.at(side)].disks_away_until = self.now + span,
            FaultKind::HypervisorsAway(side, span) => {
                self.hosts[self.at(side)].hypervisors_away_until = self.now + span;
            }
            FaultKind::HypervisorDies(side) => self.hypervisor_dies(side),
            FaultKind::DiskChanges => self.disk_changes(),
            FaultKind::ClockSteps(side, seconds) => self.hosts[self.at(side)].clock_off += seconds,
            FaultKind::Paused => {
                self.paused_since = true;
                self.operator_pauses();
            }
            FaultKind::ActionFails(Side::Source) => self.source.fails_next = true,
            FaultKind::ActionFails(Side::Destination) => self.destination.fails_next = true,
            FaultKind::Cancelled(side) => self.cancelled(side),
        }
        match fault.kind {
            FaultKind::LinkReset(link)
            | FaultKind::LinkSilent(link)
            | FaultKind::LinkOneWay(link, _)
            | FaultKind::LinkSlows(link, _) => self.link_returns(link, &fault),
            _ => {}
        }
    }

    /// Delivered between two events, as an operator's request is; never in the middle of an action.
    fn cancelled(&mut self, side: Side) {
        match side {
            Side::Source => {
                let (operations, work) = (
                    self.source.operations,
                    crate::source_driver::SourceWork::Deliver(source::Event::Cancel),
                );
                self.after(Duration::ZERO, SimEvent::Source { operations, work });
            }
            Side::Destination => {
                let work = crate::destination_driver::DestinationWork::Deliver(destination::Event::Cancel);
                let operations = self.destination.operations;
                self.after(Duration::ZERO, SimEvent::Destination { operations, work });
            }
        }
    }

    fn link_returns(&mut self, link: usize, fault: &crate::faults::Fault) {
        if fault.comes_back {
            self.after(fault.back_after, SimEvent::LinkRestored(link));
        }
    }

    /// A link works again. Connections that it cut stay cut.
    pub fn link_restored(&mut self, link: usize) {
        self.links[link].alive = [true; 2];
        self.links[link].rate = self.scenario.links[link].rate;
    }

    fn link_down(&mut self, link: usize, directions: [bool; 2], is_noticed: bool) {
        for (direction, down) in directions.into_iter().enumerate() {
            self.links[link].alive[direction] &= !down;
        }
        let on_it = |connection: &&crate::wire::Connection| connection.link == link;
        let ids: Vec<u32> = self.connections.values().filter(on_it).map(|connection| connection.id).collect();
        for id in ids {
            self.cut(id, directions, is_noticed);
        }
    }

    fn breaks(&mut self, purpose: Purpose) {
        let open = self.open(Side::Source, purpose);
        let nth = self.random.below(open.len() as u64) as usize;
        if let Some(&id) = open.get(nth) {
            self.cut(id, [true; 2], true);
        }
    }

    /// What is in flight may still come; if the ends are notified, the destination perhaps after that.
    fn cut(&mut self, id: u32, directions: [bool; 2], is_noticed: bool) {
        let late_max = self.scenario.late_max;
        for (direction, _) in directions.into_iter().enumerate().filter(|(_, cut)| *cut) {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let times = connection.cut(self.now, direction, &mut self.random, late_max);
            times.into_iter().for_each(|at| self.at_time(at, SimEvent::Arrives(id, direction)));
        }
        if is_noticed {
            let soon = self.micros(0, 2_000);
            self.after(soon, SimEvent::Lost(id, Side::Source));
            let late = self.micros(0, late_max.as_micros() as u64 * 2);
            self.after(late, SimEvent::Lost(id, Side::Destination));
        }
    }

    fn stall(&mut self, link: usize, span: Duration) {
        self.links[link].stall(self.now, span);
        let mut times = Vec::new();
        for connection in self.connections.values_mut().filter(|connection| connection.link == link) {
            for direction in 0..2 {
                let later = connection.delay(direction, span);
                times.extend(later.into_iter().map(|at| (at, connection.id, direction)));
            }
        }
        times.into_iter().for_each(|(at, id, direction)| self.at_time(at, SimEvent::Arrives(id, direction)));
    }
}
