//! Guests that must be together are placed together, also where they failed one after the other.
//!
//! Placement keeps a guest here as long as another of its group stays here. Two that are tried again at different times
//! would keep each other, until all their tries are used up.

use std::collections::BTreeMap;

use super::State;
use super::controller::Controller;
use crate::Time;
use crate::fleet::{GroupId, GuestId};

impl Controller {
    /// Which guests must be on one host: all that are known, in place of what was said before.
    pub fn keep_together(&mut self, groups: BTreeMap<GuestId, GroupId>) {
        self.groups = groups;
    }

    /// Whether another guest of its group is about to need a destination too: the two are placed together then. Each
    /// such wait of the other has a limit. One that has a destination, or whose part is over, is not waited for.
    pub(super) fn waits_for_group(&self, id: GuestId, now: Time) -> bool {
        let Some(group) = self.groups.get(&id) else { return false };
        let others = self.groups.iter().filter(|(other, of)| **other != id && *of == group);
        let mut others = others.filter_map(|(other, _)| self.guests.get(other));
        others.any(|other| match other.state {
            State::Unplaced { from } => from > now,
            State::Placing | State::Cancelling(_) => true,
            State::Placed | State::Preparing | State::Prepared | State::Copying | State::Ended(_) => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::start;
    use super::super::{Event, Order, Settings};
    use super::*;
    use crate::fleet::HostId;
    use crate::fleet::placement::Nowhere;
    use crate::{Code, Fault, Side, Step};

    fn s(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// Two guests that must be together: the first is copied to host 1, the other is prepared there.
    fn under_way() -> Controller {
        let guests = [start(0, 60), start(1, 50)];
        let mut drain = Controller::new(Settings::default(), vec![1e9, 1e9], &guests, s(0));
        drain.keep_together([0, 1].map(|n| (GuestId(n), GroupId(7))).into());
        drain.handle(s(0), Event::Tick);
        for n in 0..2 {
            let (guest, host) = (GuestId(n), HostId(1));
            drain.handle(s(0), Event::Placed { guest, host, ports: 3, bytes_per_s: 2e9 });
        }
        for n in 0..2 {
            drain.handle(s(1), Event::Prepared { guest: GuestId(n) });
        }
        drain
    }

    fn fails(guest: u32, code: Code) -> Event {
        let fault = Fault::new(code, Step::Copy, Side::Source, "");
        Event::Failed { guest: GuestId(guest), fault }
    }

    fn both(avoid: &[HostId]) -> Order {
        Order::Place([0, 1].map(|n| (GuestId(n), avoid.to_vec())).into())
    }

    #[test]
    fn guests_of_a_group_that_fail_one_after_the_other_are_tried_again_together() {
        let mut drain = under_way();
        drain.handle(s(5), fails(0, Code::PeerLost));
        drain.handle(s(8), fails(1, Code::PeerLost));
        assert_eq!(drain.handle(s(15), Event::Tick), [], "alone it finds no place: the other is here");
        assert_eq!(drain.next_timer(), Some(s(18)));
        assert_eq!(drain.handle(s(18), Event::Tick), [both(&[])]);
        // The answers come one after the other.
        let nowhere = |n: u32| Event::NoPlace { guest: GuestId(n), why: Nowhere::default() };
        drain.handle(s(18), nowhere(0));
        drain.handle(s(19), nowhere(1));
        assert_eq!(drain.handle(s(38), Event::Tick), []);
        assert_eq!(drain.handle(s(39), Event::Tick), [both(&[])]);
    }

    #[test]
    fn guests_of_a_group_whose_destination_is_lost_go_elsewhere_when_both_sessions_have_ended() {
        let mut drain = under_way();
        drain.handle(s(5), Event::HostLost(HostId(1)));
        let [first, second] = [0, 1].map(GuestId);
        let orders = drain.handle(s(6), Event::Cancelled { guest: first });
        assert_eq!(orders, [Order::Release { guest: first }], "the other still has the lost one");
        let orders = drain.handle(s(7), Event::Cancelled { guest: second });
        assert_eq!(orders, [Order::Release { guest: second }, both(&[HostId(1)])]);
    }

    #[test]
    fn one_of_a_group_whose_part_is_over_is_not_waited_for() {
        let mut drain = under_way();
        drain.handle(s(5), fails(0, Code::PeerLost));
        drain.handle(s(8), fails(1, Code::NotMigratable));
        let alone = Order::Place(vec![(GuestId(0), vec![])]);
        assert_eq!(drain.handle(s(15), Event::Tick), [alone]);
    }
}
