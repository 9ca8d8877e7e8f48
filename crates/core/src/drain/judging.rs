//! A migration failed by something that may pass. Its destination is asked: if it does not answer, it is lost.

use std::time::Duration;

use super::Event;
use crate::fleet::{GuestId, HostId};
use crate::{Fault, Time};

/// A destination whose migration has failed answers within this, or it is lost.
const JUDGE_WAIT: Duration = Duration::from_secs(10);

/// A destination that is being asked since a migration to it has failed.
#[derive(Clone, Debug)]
pub struct Judging {
    guest: GuestId,
    fault: Fault,
    until: Time,
}

impl Judging {
    /// It is asked from now on.
    pub fn new(now: Time, guest: GuestId, fault: Fault) -> Judging {
        Judging { guest, fault, until: now + JUDGE_WAIT }
    }

    /// Why the migration has failed.
    pub fn fault(&self) -> &Fault {
        &self.fault
    }

    /// How long its answer is still waited for.
    pub fn wait(&self, now: Time) -> Duration {
        self.until - now
    }

    /// It was asked. `lost`: the destination, if it does not answer. Its guest goes elsewhere at once, which is no try.
    pub fn over(self, lost: Option<HostId>) -> Vec<Event> {
        let Judging { guest, fault, .. } = self;
        match lost {
            Some(host) => vec![Event::HostLost(host), Event::Cancelled { guest }],
            None => vec![Event::Failed { guest, fault }],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, Side, Step};

    const GUEST: GuestId = GuestId(3);

    fn judging() -> Judging {
        Judging::new(Time::ZERO, GUEST, Fault::new(Code::PeerLost, Step::Copy, Side::Source, "cut"))
    }

    #[test]
    fn a_destination_has_a_time_to_answer_and_no_longer() {
        let s = |seconds: u64| Time(seconds * 1_000_000_000);
        assert_eq!(judging().wait(s(0)), Duration::from_secs(10));
        assert_eq!(judging().wait(s(9)), Duration::from_secs(1));
        assert_eq!(judging().wait(s(11)), Duration::ZERO, "it waits for ever");
    }

    #[test]
    fn a_guest_of_a_lost_destination_goes_elsewhere_and_any_other_has_failed() {
        let lost = judging().over(Some(HostId(2)));
        let [Event::HostLost(HostId(2)), Event::Cancelled { guest: GUEST }] = lost.as_slice() else {
            panic!("{lost:?}");
        };
        let answers = judging().over(None);
        let [Event::Failed { guest: GUEST, fault }] = answers.as_slice() else { panic!("{answers:?}") };
        assert_eq!(fault.code, Code::PeerLost);
    }
}
