//! Domains of libvirt ([`linerate_core::ModeTag::Handover`]). libvirt has started the hypervisor at the destination.
//! Its stream waits in the source's agent until RAM is sealed, and goes by both agents. libvirt alone decides who runs
//! the guest. The agents make it wait, set its hypervisors, and put them back.

use std::time::Duration;

use linerate_core::source::Event;
use linerate_core::{Code, Fault, GuestState, ModeTag, Side, Step, Time, destination};

use crate::check::{Mutation, Property};
use crate::guest::{DEVICE, Guest, Sending};
use crate::hosts::DomainRecord;
use crate::source_driver::SourceWork;
use crate::wire::index;
use crate::world::{SimEvent, World};

/// How far its migration is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StreamState {
    #[default]
    No,
    /// Its stream waits, or is held.
    Held,
    Released,
    /// It came to its end: the guest runs at the destination.
    Arrived,
    /// libvirt gave it up: the guest is at the source.
    Returned,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct LibvirtModel {
    stream: StreamState,
    /// Its stream was released once, whatever came of it.
    released: bool,
    /// What was set in its hypervisor is off again, as the agents know, by side.
    restored: [bool; 2],
}

impl World {
    /// Its hypervisor waits at the destination, and its stream at the source. False if the journal does not take it.
    pub fn owner_begins(&mut self) -> bool {
        if self.scenario.mode != ModeTag::Handover {
            return true;
        }
        if !self.records_domain() {
            self.source.machine = None;
            self.source.decided = Some(self.state_at_source());
            return false;
        }
        self.libvirt = LibvirtModel { stream: StreamState::Held, ..LibvirtModel::default() };
        let (pid, host) = (self.new_pid(), self.at(Side::Destination));
        let habits = self.scenario.habits.clone();
        self.destination.guest = Some(Guest::waiting(&self.scenario.shape, habits, pid, host));
        self.set_hypervisor(Side::Source);
        true
    }

    /// An agent has libvirt's hypervisor leave RAM out of its stream.
    pub fn set_hypervisor(&mut self, side: Side) {
        if let Some(guest) = self.hypervisor_of(side) {
            guest.leaves_ram_out = true;
        }
    }

    /// And puts it back.
    pub fn put_back(&mut self, side: Side) {
        let kept = match side {
            Side::Source => Mutation::SourceKeepsSetting,
            Side::Destination => Mutation::DestinationKeepsSetting,
        };
        self.libvirt.restored[index(side)] = true;
        if self.options.mutation != Some(kept)
            && let Some(guest) = self.hypervisor_of(side)
        {
            guest.leaves_ram_out = false;
        }
    }

    /// The process of a side, whose hypervisor is libvirt's.
    fn hypervisor_of(&mut self, side: Side) -> Option<&mut Guest> {
        match side {
            _ if self.scenario.mode != ModeTag::Handover => None,
            Side::Source => Some(&mut self.guest),
            Side::Destination => self.destination.guest.as_mut(),
        }
    }

    /// A restarted agent puts it back, unless its hypervisor migrates and refuses. Whether it is off, or its process
    /// has ended.
    pub fn put_back_by_recovery(&mut self, pid: u64) -> bool {
        let there = self.destination.guest.as_ref().map(|guest| guest.pid);
        let migrates = !self.libvirt_is_settled() && (pid == self.guest.pid || Some(pid) == there);
        let Some(guest) = self.find_mut(pid) else { return true };
        guest.leaves_ram_out &= migrates;
        !migrates
    }

    /// Whether libvirt has a migration of the domain away from the host.
    pub fn moves_away_from(&self, host: usize) -> bool {
        !self.libvirt_is_settled() && host == self.at(Side::Source)
    }

    /// What a side writes of the capability with its phases.
    pub fn setting_record(&self, side: Side) -> Option<DomainRecord> {
        let over = self.libvirt.restored[index(side)];
        (self.scenario.mode == ModeTag::Handover).then_some(DomainRecord::Setting { over })
    }

    /// It is decided where the guest is. Until then nothing can be set in its hypervisors.
    pub fn libvirt_is_settled(&self) -> bool {
        !matches!(self.libvirt.stream, StreamState::Held | StreamState::Released)
    }

    /// What the destination finds of libvirt.
    pub fn find_waiting(&self) -> destination::Event {
        match self.destination.guest.as_ref().is_some_and(|guest| !guest.loaded) {
            true => destination::Event::Admitted(Vec::new()),
            false => {
                let detail = "no hypervisor waits";
                destination::Event::Failed(Fault::new(
                    Code::ResourceMissing,
                    Step::Admit,
                    Side::Destination,
                    detail,
                ))
            }
        }
    }

    /// Its stream is let in, and its hypervisor stops the guest; not if libvirt has given up.
    pub fn lets_in(&mut self) -> bool {
        let waits = self.scenario.mode != ModeTag::Handover || self.libvirt.stream == StreamState::Held;
        if !waits {
            self.report_given_up();
        }
        waits
    }

    /// Its hypervisor has stopped the guest, and writes.
    pub fn owner_has_stopped(&mut self) {
        if self.options.mutation == Some(Mutation::GateOpen) {
            self.release_stream();
        }
    }

    /// What was held goes through.
    pub fn release_stream(&mut self) {
        if self.libvirt.stream != StreamState::Held || self.guest.sending != Sending::Holding {
            return self.report_given_up();
        }
        self.libvirt.stream = StreamState::Released;
        self.libvirt.released = true;
        let (host, session) = (self.at(Side::Source), self.session);
        self.hosts[host].pending_notices.remove(&session);
        let span = self.micros(500, 20_000);
        self.after(span, SimEvent::OwnerLoads { since: None });
    }

    fn report_given_up(&mut self) {
        let detail = "libvirt has given up its migration";
        let step = self.source.machine.as_ref().map_or(Step::Commit, |machine| machine.step());
        let fault = Fault::new(Code::HypervisorFailed, step, Side::Source, detail);
        self.source_will(10, 5_000, SourceWork::Deliver(Event::Failed(fault)));
    }

    /// Its stream has come to its end if a link carries it: libvirt runs the guest there and ends it here, both or
    /// none.
    pub fn owner_loads(&mut self, since: Option<Time>) {
        if self.libvirt.stream != StreamState::Released {
            return;
        }
        if !self.links.iter().any(|link| link.connects()) {
            let since = since.unwrap_or(self.now);
            if self.now - since >= self.scenario.link_timeout {
                return self.owner_gives_up();
            }
            return self.after(Duration::from_millis(5), SimEvent::OwnerLoads { since: Some(since) });
        }
        self.check.that(self.check.reported_sealed, Property::SealedAndFenced, || {
            String::from("device state is loaded before RAM is sealed")
        });
        let Some(guest) = self.destination.guest.as_mut() else { return self.owner_gives_up() };
        if let Some(page) = guest.ram.first_mut().and_then(|region| region.first_mut()) {
            *page = DEVICE;
        }
        guest.loaded = true;
        self.run_guest();
        self.libvirt.stream = StreamState::Arrived;
        self.check.taken_over.insert(self.session);
        self.guest.sending = Sending::Completed;
        self.guest.gone = true;
        self.source_will(0, 20_000, SourceWork::Deliver(Event::GuestLeft));
    }

    /// Nothing goes through any more: libvirt notices, sooner or later.
    pub fn shut_gate(&mut self) {
        if !self.libvirt_is_settled() {
            let span = self.micros(0, 30_000);
            self.after(span, SimEvent::OwnerGivesUp);
        }
    }

    /// The guest goes on at the source, and what waited for it ends.
    pub fn owner_gives_up(&mut self) {
        if self.libvirt_is_settled() {
            return;
        }
        let passed = self.libvirt.stream == StreamState::Released;
        self.libvirt.stream = StreamState::Returned;
        self.destination.guest = None;
        self.resume_source_guest();
        if passed {
            self.report_given_up();
        }
    }

    /// The source's part is undone, and libvirt has decided.
    pub fn owner_undone(&mut self) -> GuestState {
        self.put_back(Side::Source);
        if self.options.mutation == Some(Mutation::RunsAnothersGuest) {
            self.guest.gone = false;
            self.resume_source_guest();
        }
        match (self.guest.gone, self.libvirt.released) {
            (true, true) => GuestState::Unknown,
            _ => self.state_at_source(),
        }
    }

    /// A hypervisor that still leaves RAM out is one whose guest cannot be saved. No record says so any more either.
    pub fn check_put_back(&mut self) {
        let left = self.all().find(|guest| guest.leaves_ram_out).map(|guest| (guest.host, guest.pid));
        self.check.that(left.is_none(), Property::PutBack, || format!("left set (host, process): {left:?}"));
        let open = self.hosts.each_ref().map(|host| {
            let mut open = host.open_domains();
            open.retain(|(session, _)| !host.left_open.contains(session));
            open
        });
        self.check.that(open.iter().all(Vec::is_empty), Property::PutBack, || {
            format!("records of domains that nothing closes any more: {open:?}")
        });
    }
}
