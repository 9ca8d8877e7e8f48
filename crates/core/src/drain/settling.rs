//! Guests of which it is not known whether they are here: how long they are looked for, and what is done meanwhile.

use std::time::Duration;

use crate::fleet::HostId;
use crate::{Fault, Time};

/// Recovery settles a guest within this, or it is in doubt.
const SETTLE_MAX: Duration = Duration::from_secs(120);
/// More time between two looks does not count: the driver's process may have been stopped meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A guest that another migration has is looked at again after this.
const TAKEN_PAUSE: Duration = Duration::from_secs(5);

/// Where a guest is that was not known to be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// At the source, and nothing else has it.
    Here,
    /// A migration that is not of the drain moves it, and the drain is aborted.
    Leaving,
    /// It runs there.
    At(HostId),
    /// Neither here nor at a destination, and all of them answered.
    Gone,
    /// Some host did not answer.
    Unknown,
    /// It was looked for long enough.
    Doubt,
}

/// What the driver sees of the guest on its own host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A migration that is not of the drain moves it.
    Moving,
    /// An earlier migration of it has not ended.
    Unsettled,
    /// It is here, and nothing else has it.
    Here,
    /// It is not seen here: only libvirt or the other hosts know.
    Unseen,
}

/// What follows from a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It is looked at again later.
    Wait,
    /// libvirt and the destinations are asked where it is.
    Ask,
    /// It is settled.
    Settled(Whereabouts),
}

/// A domain, by what this host's libvirt answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainHere {
    /// It runs.
    Running,
    /// libvirt does not have it, or it is shut off.
    Off,
    /// Paused, or in another state.
    Paused,
    /// libvirt did not answer.
    Unknown,
}

/// What libvirt and the destinations answer about a guest that is not seen here.
#[derive(Clone, Copy, Debug)]
pub struct Answers {
    /// Of this host's libvirt, if the guest is a domain.
    pub domain: Option<DomainHere>,
    /// A migration of the drain began and its end is not known.
    pub began: bool,
    /// One began at some time.
    pub was_tried: bool,
    /// The agent moves the domain now.
    pub is_held: bool,
    /// A destination that lists the guest, or to which its migration completed.
    pub at: Option<HostId>,
    /// All destinations answered.
    pub all_answered: bool,
}

impl Answers {
    /// Where the guest is by all answers.
    pub fn whereabouts(&self) -> Whereabouts {
        let is_here = self.domain.and_then(|domain| self.is_domain_here(domain));
        match self.at {
            _ if is_here == Some(true) => Whereabouts::Here,
            Some(host) => Whereabouts::At(host),
            None if self.domain.is_some() => {
                if is_here == Some(false) && !self.is_held {
                    Whereabouts::Gone
                } else {
                    Whereabouts::Unknown
                }
            }
            None if self.all_answered => Whereabouts::Gone,
            None => Whereabouts::Unknown,
        }
    }

    /// Whether the domain is here; `None` if nobody knows. libvirt leaves a domain paused here if it got no answer that
    /// it runs at the destination. One that never began to move and does not run any more was stopped.
    fn is_domain_here(&self, domain: DomainHere) -> Option<bool> {
        match domain {
            DomainHere::Running => Some(true),
            DomainHere::Off => (!self.began).then_some(false),
            DomainHere::Paused => (!self.began && !self.was_tried).then_some(true),
            DomainHere::Unknown => None,
        }
    }
}

/// A guest of which it is not known whether it is here.
#[derive(Clone, Debug)]
pub struct Settling {
    /// Time in which it was looked at, and the last look.
    waited: Duration,
    last: Time,
    /// Why its migration failed, if it stays.
    fault: Option<Fault>,
    /// Its destination is being asked.
    asked: bool,
    /// It is not looked at before.
    from: Time,
}

impl Settling {
    /// From now on. `fault`: why its migration failed, if it is here.
    pub fn new(now: Time, fault: Option<Fault>) -> Settling {
        Settling { waited: Duration::ZERO, last: now, fault, asked: false, from: now }
    }

    /// Another migration has it. Of libvirt's only a try shows whether that has ended.
    pub fn taken(now: Time) -> Settling {
        Settling { from: now + TAKEN_PAUSE, ..Settling::new(now, None) }
    }

    /// Whether it may be looked at now.
    pub fn may_look(&self, now: Time) -> bool {
        now >= self.from
    }

    /// Whether another migration than the drain's may have it.
    pub fn may_be_of_another(&self) -> bool {
        self.fault.is_none()
    }

    /// What is done after a look. Another migration of it may take as long as it likes.
    pub fn looked(&mut self, now: Time, seen: Seen, is_aborting: bool) -> Look {
        (self.waited, self.last) = (self.waited_until(now), now);
        match seen {
            Seen::Moving if is_aborting => Look::Settled(Whereabouts::Leaving),
            Seen::Moving => {
                self.waited = Duration::ZERO;
                Look::Wait
            }
            Seen::Here => Look::Settled(Whereabouts::Here),
            Seen::Unsettled | Seen::Unseen if self.is_late(now) => Look::Settled(Whereabouts::Doubt),
            Seen::Unseen if !self.asked => {
                self.asked = true;
                Look::Ask
            }
            Seen::Unsettled | Seen::Unseen => Look::Wait,
        }
    }

    /// It is here, and what it is like cannot be seen now: a later look settles it, as long as there is time.
    pub fn not_readable(&self, now: Time) -> Look {
        if self.is_late(now) { Look::Settled(Whereabouts::Doubt) } else { Look::Wait }
    }

    /// Not all hosts have answered: the next look asks again.
    pub fn not_answered(&mut self) {
        self.asked = false;
    }

    /// Why its migration failed, if it is here.
    pub fn into_fault(self) -> Option<Fault> {
        self.fault
    }

    fn is_late(&self, now: Time) -> bool {
        self.waited_until(now) >= SETTLE_MAX
    }

    fn waited_until(&self, now: Time) -> Duration {
        self.waited.saturating_add((now - self.last).min(PAUSE_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, Side, Step};

    const DOUBT: Look = Look::Settled(Whereabouts::Doubt);

    fn s(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    #[test]
    fn a_guest_that_nobody_finds_is_in_doubt_after_a_time_and_not_before() {
        for seen in [Seen::Unsettled, Seen::Unseen] {
            let mut settling = Settling::new(s(1), None);
            for second in 1..121 {
                assert_ne!(settling.looked(s(second), seen, false), DOUBT, "{seen:?} after {second} s");
                settling.not_answered();
            }
            assert_eq!(settling.looked(s(121), seen, false), DOUBT, "{seen:?}: it waits for ever");
        }
        let mut settling = Settling::new(s(0), None);
        assert_eq!(settling.looked(s(500), Seen::Here, false), Look::Settled(Whereabouts::Here));
    }

    /// A domain about which libvirt answers so, and no destination has it.
    fn of_domain(domain: DomainHere, began: bool, was_tried: bool) -> Answers {
        Answers { domain: Some(domain), began, was_tried, is_held: false, at: None, all_answered: true }
    }

    #[test]
    fn a_paused_domain_whose_migration_has_begun_may_run_elsewhere() {
        for (domain, began, was_tried, at) in [
            (DomainHere::Running, true, true, Whereabouts::Here),
            (DomainHere::Paused, false, false, Whereabouts::Here),
            (DomainHere::Paused, false, true, Whereabouts::Unknown),
            (DomainHere::Paused, true, false, Whereabouts::Unknown),
        ] {
            let answers = of_domain(domain, began, was_tried);
            assert_eq!(answers.whereabouts(), at, "{answers:?}");
        }
    }

    #[test]
    fn a_domain_that_does_not_run_was_stopped_if_no_migration_of_it_is_open() {
        for was_tried in [false, true] {
            let off = of_domain(DomainHere::Off, false, was_tried);
            assert_eq!(off.whereabouts(), Whereabouts::Gone, "{off:?}");
            let held = Answers { is_held: true, ..off };
            assert_eq!(held.whereabouts(), Whereabouts::Unknown, "the agent moves it");
        }
        for domain in [DomainHere::Off, DomainHere::Unknown] {
            let answers = of_domain(domain, true, true);
            assert_eq!(answers.whereabouts(), Whereabouts::Unknown, "{answers:?}");
        }
    }

    #[test]
    fn a_guest_is_where_it_is_listed_unless_libvirt_runs_it_here() {
        let at = Some(HostId(2));
        let there = Answers { at, ..of_domain(DomainHere::Paused, true, true) };
        assert_eq!(there.whereabouts(), Whereabouts::At(HostId(2)));
        let here = Answers { at, ..of_domain(DomainHere::Running, true, true) };
        assert_eq!(here.whereabouts(), Whereabouts::Here);
        let own = Answers { domain: None, all_answered: false, ..there };
        assert_eq!(own.whereabouts(), Whereabouts::At(HostId(2)));
    }

    #[test]
    fn a_guest_that_no_host_lists_is_gone_if_all_have_answered() {
        let own = Answers { domain: None, ..of_domain(DomainHere::Unknown, true, true) };
        assert_eq!(own.whereabouts(), Whereabouts::Gone);
        assert_eq!(Answers { all_answered: false, ..own }.whereabouts(), Whereabouts::Unknown);
    }

    #[test]
    fn the_other_hosts_are_asked_once_until_they_have_answered() {
        let mut settling = Settling::new(s(0), None);
        assert_eq!(settling.looked(s(1), Seen::Unseen, false), Look::Ask);
        assert_eq!(settling.looked(s(2), Seen::Unseen, false), Look::Wait);
        settling.not_answered();
        assert_eq!(settling.looked(s(3), Seen::Unseen, false), Look::Ask);
    }

    #[test]
    fn time_in_which_the_process_was_stopped_does_not_count() {
        for seen in [Seen::Unsettled, Seen::Unseen] {
            let mut settling = Settling::new(s(0), None);
            for second in (0..60).chain(1000..1050) {
                assert_ne!(settling.looked(s(second), seen, false), DOUBT, "{seen:?} after {second} s");
                settling.not_answered();
            }
            let mut looks = 0;
            while settling.looked(s(1050 + looks), seen, false) != DOUBT {
                settling.not_answered();
                looks += 1;
                assert!(looks < 20, "{seen:?}: it waits for ever");
            }
        }
    }

    #[test]
    fn another_migration_may_take_as_long_as_it_likes() {
        let mut settling = Settling::new(s(0), None);
        assert_eq!(settling.looked(s(5000), Seen::Moving, false), Look::Wait);
        for second in 5001..5120 {
            assert_eq!(
                settling.looked(s(second), Seen::Unsettled, false),
                Look::Wait,
                "its time begins anew"
            );
        }
        assert_eq!(settling.looked(s(5120), Seen::Unsettled, false), DOUBT);
        assert_eq!(settling.looked(s(5121), Seen::Moving, true), Look::Settled(Whereabouts::Leaving));
    }

    #[test]
    fn a_guest_that_another_migration_has_is_not_looked_at_at_once() {
        let taken = Settling::taken(s(10));
        assert!(!taken.may_look(s(14)) && taken.may_look(s(15)));
        assert!(Settling::new(s(10), None).may_look(s(10)));
    }

    #[test]
    fn what_cannot_be_read_is_in_doubt_after_the_same_time() {
        let mut settling = Settling::new(s(0), None);
        for second in 0..119 {
            assert_eq!(settling.looked(s(second), Seen::Here, false), Look::Settled(Whereabouts::Here));
        }
        assert_eq!(settling.not_readable(s(119)), Look::Wait);
        assert_eq!(settling.not_readable(s(120)), DOUBT);
    }

    #[test]
    fn a_guest_whose_migration_of_the_drain_has_failed_is_of_no_other() {
        let fault = Fault::new(Code::PeerLost, Step::Copy, Side::Source, "");
        let failed = Settling::new(s(0), Some(fault.clone()));
        assert!(!failed.may_be_of_another() && Settling::new(s(0), None).may_be_of_another());
        assert_eq!(failed.into_fault(), Some(fault));
    }
}
