//! A guest that is libvirt's, after an agent has ended: its hypervisor's setting is put back, and both libvirts are
//! asked where it is. As the agent does it (`recovery/domain.rs`, `libvirt/recover.rs`); nothing here decides who runs
//! the guest.

use linerate_core::recovery::{
    DomainAction, DomainEnd, DomainEvent, DomainRecovery, DomainState, SettingAction, SettingRecovery,
    SourceAnswer,
};
use linerate_core::{GuestState, Side};

use crate::check::{Mutation, Property};
use crate::hosts::{DomainRecord, Known, Machine, move_of};
use crate::world::World;

impl World {
    /// Both records are on disk before anything is set, and the notice beside them; false if the disk refuses one.
    pub fn records_domain(&mut self) -> bool {
        let (now, at, session) = (self.now, self.at(Side::Source), self.session);
        let started = linerate_core::recovery::Phase::Source(linerate_core::journal::SourcePhase::Started);
        let known =
            |domain| Known { process: Some(self.guest.pid), domain: Some(domain), ..Known::default() };
        let [moves, sets] =
            [DomainRecord::Move { over: false }, DomainRecord::Setting { over: false }].map(known);
        let host = &mut self.hosts[at];
        if !host.write(now, move_of(session), started, moves) {
            return false;
        }
        if !host.write(now, session, started, sets) {
            host.close_domain(now, move_of(session));
            return false;
        }
        host.pending_notices.insert(session);
        true
    }

    /// The source knows where the guest is, and its agent has not ended.
    pub fn domain_ended(&mut self) {
        let (now, host, session) = (self.now, self.at(Side::Source), self.session);
        self.hosts[host].pending_notices.remove(&session);
        self.hosts[host].close_domain(now, move_of(session));
    }

    /// An agent has started: what its journal says of domains, and its notices.
    pub fn read_domains(&mut self, host: usize) {
        let now = self.now;
        let mut searched = false;
        for (session, record) in self.hosts[host].open_domains() {
            self.note(|| format!("host {host}, session {session:#x}: {record:?} is open"));
            match record {
                DomainRecord::Setting { .. } => {
                    self.add_case(host, session, Machine::Setting(SettingRecovery::new(now)));
                }
                // A newer migration of the domain began, so the end of this one was known.
                DomainRecord::Move { .. } if searched => self.hosts[host].close_domain(now, session),
                DomainRecord::Move { .. } => {
                    searched = true;
                    self.add_case(host, session, Machine::Domain(DomainRecovery::new(now, false)));
                }
            }
        }
        for session in self.hosts[host].pending_notices.clone() {
            self.begin_roll_back_notice(host, session, false);
        }
        self.poll_cases(host);
    }

    /// Something was done about a hypervisor that was set.
    pub fn setting_recovers(&mut self, host: usize, session: u64, action: SettingAction) {
        let now = self.now;
        match action {
            SettingAction::PutBack => {
                let pid = self.hosts[host].record(session).and_then(|record| record.process);
                if self.options.mutation == Some(Mutation::RunsAnothersGuest) && pid == Some(self.guest.pid) {
                    self.guest.gone = false;
                    self.resume_source_guest();
                }
                let is_off = pid.is_none_or(|pid| self.put_back_by_recovery(pid));
                let is_off = is_off || self.options.mutation == Some(Mutation::SettingClosedAnyway);
                if let Some(case) = self.hosts[host].cases.get_mut(&session)
                    && let Machine::Setting(machine) = &mut case.machine
                {
                    machine.tried(now, is_off);
                }
            }
            SettingAction::Close => {
                self.hosts[host].close_domain(now, session);
                self.hosts[host].cases.remove(&session);
            }
        }
        self.poll_cases(host);
    }

    /// A libvirt was asked.
    pub fn domain_recovers(&mut self, host: usize, key: u64, action: DomainAction) {
        let now = self.now;
        let event = match action {
            DomainAction::AskSource if self.moves_away_from(host) => {
                DomainEvent::Source(SourceAnswer::Migrating)
            }
            DomainAction::AskSource => DomainEvent::Source(SourceAnswer::At(self.domain_at(host))),
            DomainAction::AskDestination => {
                let other = 1 - host;
                let reaches = self.hosts[other].up && self.links.iter().any(|link| link.connects());
                let unasked = self.options.mutation == Some(Mutation::DestinationNotAsked);
                let found = reaches.then(|| self.domain_at(other));
                DomainEvent::Destination(if unasked { Some(DomainState::Absent) } else { found })
            }
        };
        self.note(|| format!("host {host}: {event:?}"));
        if let Some(case) = self.hosts[host].cases.get_mut(&key)
            && let Machine::Domain(machine) = &mut case.machine
        {
            machine.handle(now, event);
        }
        self.poll_cases(host);
    }

    /// What the libvirt of a host says of the domain.
    fn domain_at(&self, host: usize) -> DomainState {
        match self.all().find(|guest| guest.host == host) {
            None => DomainState::Absent,
            Some(guest) if guest.running => DomainState::Running,
            Some(_) => DomainState::Paused,
        }
    }

    /// It is known where the domain is: its record is closed.
    pub fn domain_found(&mut self, host: usize, key: u64, end: DomainEnd) {
        let now = self.now;
        let [here, there] = [host, 1 - host].map(|at| self.domain_at(at));
        // It may have died since a libvirt was asked.
        let died = self.check.died.values().any(|at| now - *at < std::time::Duration::from_secs(1));
        let (state, is_so) = match end {
            DomainEnd::Arrived => (GuestState::RunsAtDestination, there == DomainState::Running),
            DomainEnd::Stayed { guest, .. } => (guest, here != DomainState::Absent),
            DomainEnd::Gone => (GuestState::Gone, [here, there] == [DomainState::Absent; 2]),
        };
        self.check.that(is_so || died, Property::Truthful, || {
            format!("host {host} reports {end:?} of a domain that is {here:?} here and {there:?} there")
        });
        self.hosts[host].close_domain(now, key);
        if key == move_of(self.session) {
            self.source_settled(host, self.session, Some(state));
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_core::ModeTag;

    use super::*;
    use crate::check::Options;

    fn world() -> World {
        World::new(1, Options { mode: ModeTag::Handover, ..Options::default() })
    }

    #[test]
    fn a_restarted_source_puts_back_looks_and_has_the_destination_give_up() {
        let mut world = world();
        assert!(world.records_domain());
        world.hosts[0].forget();
        world.restart(0);
        let cases = &world.hosts[0].cases;
        assert!(matches!(cases[&1].machine, Machine::Setting(_)), "{cases:?}");
        assert!(matches!(cases[&move_of(1)].machine, Machine::Domain(_)), "{cases:?}");
        assert!(world.hosts[0].claims(world.guest.pid), "no session begins while it is looked for");
        assert!(world.hosts[0].roll_back_notices.contains_key(&1));
        world.hosts[0].cases.remove(&move_of(1));
        assert!(!world.hosts[0].claims(world.guest.pid), "what is put back keeps none from beginning");
    }

    #[test]
    fn one_search_for_a_domain_whatever_older_records_say() {
        let mut world = world();
        assert!(world.records_domain());
        world.session = 2;
        assert!(world.records_domain());
        world.hosts[0].forget();
        world.restart(0);
        let cases = &world.hosts[0].cases;
        assert!(cases.contains_key(&move_of(2)) && !cases.contains_key(&move_of(1)), "{cases:?}");
        let older = world.hosts[0].record(move_of(1)).and_then(|record| record.domain);
        assert_eq!(older, Some(DomainRecord::Move { over: true }));
    }

    #[test]
    fn no_notice_is_left_once_the_stream_is_released() {
        let mut world = world();
        assert!(world.owner_begins());
        assert!(world.hosts[0].pending_notices.contains(&1));
        world.guest.sending = crate::guest::Sending::Holding;
        world.release_stream();
        assert!(world.hosts[0].pending_notices.is_empty(), "the destination may run the guest");
    }

    #[test]
    fn a_libvirt_that_still_migrates_says_so() {
        let mut world = world();
        assert!(world.owner_begins());
        let now = world.now;
        world.add_case(0, move_of(1), Machine::Domain(DomainRecovery::new(now, false)));
        world.poll_cases(0);
        world.domain_recovers(0, move_of(1), DomainAction::AskSource);
        let doubt = match &world.hosts[0].cases[&move_of(1)].machine {
            Machine::Domain(machine) => machine.doubt(),
            _ => None,
        };
        assert_eq!(doubt, Some(linerate_core::recovery::DomainDoubt::SourceMigrating));
    }

    #[test]
    fn nothing_begins_that_the_journal_does_not_take() {
        for refused in [1, 2] {
            let mut world = world();
            world.hosts[0].journal_fails = refused;
            assert_eq!((world.owner_begins(), world.libvirt_is_settled()), (false, true));
            assert!(world.source.decided.is_some() && world.destination.guest.is_none());
        }
        let mut world = world();
        let now = world.now;
        assert!(world.records_domain());
        world.hosts[0].journal_fails = 1;
        world.hosts[0].close_domain(now, move_of(1));
        assert_eq!(world.hosts[0].open_domains().len(), 1, "the disk has refused it, the agent knows");
        assert_eq!(world.hosts[0].unwritten.len(), 1);
    }
}
