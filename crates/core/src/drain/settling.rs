//! Guests of which it is not known whether they are here: how long they are looked for, and what is done meanwhile.

use std::time::Duration;

use crate::fleet::HostId;
use crate::{Fault, Time};

/// Recovery settles a guest within this, or it is in doubt.
const SETTLE_MAX: Duration = Duration::from_secs(120);
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

/// A guest of which it is not known whether it is here.
#[derive(Clone, Debug)]
pub struct Settling {
    since: Time,
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
        Settling { since: now, fault, asked: false, from: now }
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
        match seen {
            Seen::Moving if is_aborting => Look::Settled(Whereabouts::Leaving),
            Seen::Moving => {
                self.since = now;
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
        now - self.since >= SETTLE_MAX
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

    #[test]
    fn the_other_hosts_are_asked_once_until_they_have_answered() {
        let mut settling = Settling::new(s(0), None);
        assert_eq!(settling.looked(s(1), Seen::Unseen, false), Look::Ask);
        assert_eq!(settling.looked(s(2), Seen::Unseen, false), Look::Wait);
        settling.not_answered();
        assert_eq!(settling.looked(s(3), Seen::Unseen, false), Look::Ask);
    }

    #[test]
    fn another_migration_may_take_as_long_as_it_likes() {
        let mut settling = Settling::new(s(0), None);
        assert_eq!(settling.looked(s(5000), Seen::Moving, false), Look::Wait);
        assert_eq!(settling.looked(s(5119), Seen::Unsettled, false), Look::Wait, "its time begins anew");
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
        let settling = Settling::new(s(0), None);
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
