//! Properties of the controller, against a driver that answers anything, late, twice or never.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::tests::start;
use super::*;
use crate::fleet::GroupId;
use crate::{Code, Side, Step};

/// What the driver has been ordered to do, as a second book.
#[derive(Default)]
struct Book {
    reserved: BTreeMap<GuestId, HostId>,
    /// Guests with a session: prepared or not, copied or not.
    sessions: BTreeMap<GuestId, (HostId, bool, bool)>,
    placing: BTreeSet<GuestId>,
    cancelling: BTreeSet<GuestId>,
    kept: BTreeSet<GuestId>,
    /// Nothing new may start.
    quiet: (bool, bool, bool),
}

impl Book {
    fn is_quiet(&self) -> bool {
        self.quiet.0 || self.quiet.1 || self.quiet.2
    }

    /// Checks orders and writes them down.
    fn take(&mut self, orders: Vec<Order>) -> Result<(), TestCaseError> {
        for order in orders {
            match order {
                Order::Place(list) => {
                    prop_assert!(!self.is_quiet(), "a destination is looked for while nothing may start");
                    for (guest, _) in list {
                        prop_assert!(!self.sessions.contains_key(&guest) && !self.kept.contains(&guest));
                        prop_assert!(
                            !self.reserved.contains_key(&guest),
                            "the old reservation is given up first"
                        );
                        prop_assert!(self.placing.insert(guest));
                    }
                }
                Order::Release { guest } => {
                    prop_assert!(!self.sessions.contains_key(&guest), "released under a session");
                    self.reserved.remove(&guest);
                    self.placing.remove(&guest);
                }
                Order::Prepare { guest, host } => {
                    prop_assert!(!self.is_quiet() && !self.kept.contains(&guest));
                    prop_assert_eq!(
                        self.reserved.get(&guest),
                        Some(&host),
                        "prepared where nothing is reserved"
                    );
                    prop_assert!(self.sessions.insert(guest, (host, false, false)).is_none(), "two sessions");
                }
                Order::Copy { guest, host, ports } => {
                    prop_assert!(!self.is_quiet() && ports != 0);
                    prop_assert_eq!(
                        self.sessions.get(&guest),
                        Some(&(host, true, false)),
                        "copied before prepared"
                    );
                    prop_assert_eq!(self.reserved.get(&guest), Some(&host), "copied without a reservation");
                    self.sessions.insert(guest, (host, true, true));
                }
                Order::Cancel { guest } => {
                    prop_assert!(self.sessions.contains_key(&guest), "nothing to cancel");
                    prop_assert!(self.cancelling.insert(guest), "cancelled twice");
                }
            }
        }
        Ok(())
    }

    fn ends(&mut self, guest: GuestId) {
        self.sessions.remove(&guest);
        self.cancelling.remove(&guest);
    }

    /// An event that could happen now, chosen by numbers. Some are late or false answers.
    fn event(&mut self, kind: u8, pick: usize, host: u32, amount: u64) -> Event {
        let guest = GuestId(pick as u32 % 6);
        let host = HostId(host % 4);
        let session = self.sessions.get(&guest).copied();
        match (kind, session) {
            (0..5, None) if self.placing.remove(&guest) => {
                if kind == 4 {
                    return Event::NoPlace { guest, why: Nowhere::default() };
                }
                self.reserved.insert(guest, host);
                Event::Placed {
                    guest,
                    host,
                    ports: 1 + u64::from(kind % 3),
                    bytes_per_s: 1e8 * (1 + amount % 20) as f64,
                }
            }
            (0..5, Some((host, false, _))) => {
                self.sessions.insert(guest, (host, true, false));
                Event::Prepared { guest }
            }
            (0..2, Some((_, _, true))) => Event::Progress {
                guest,
                sample: Sample {
                    round: pick as u32 % 3,
                    copied_bytes: amount << 22,
                    left_bytes: amount << 20,
                    bytes_per_s: amount as f64 * 1e6,
                    write_bytes_per_s: (!amount.is_multiple_of(3)).then_some((amount % 700) as f64 * 1e6),
                },
            },
            (2, Some((_, _, true))) if amount.is_multiple_of(4) => Event::Left { guest },
            (2, Some((_, _, true))) => {
                self.ends(guest);
                self.reserved.remove(&guest);
                Event::Moved { guest }
            }
            (3, Some((host, _, true))) if !self.cancelling.contains(&guest) => {
                self.sessions.insert(guest, (host, true, false));
                if self.is_quiet() && amount.is_multiple_of(2) {
                    return Event::Held { guest };
                }
                Event::Busy { guest }
            }
            (4, Some(_)) | (5, Some(_)) => {
                self.ends(guest);
                let code = [Code::PeerLost, Code::HypervisorFailed, Code::NotMigratable][pick % 3];
                let side = if amount.is_multiple_of(2) { Side::Source } else { Side::Destination };
                Event::Failed { guest, fault: Fault::new(code, Step::Copy, side, "") }
            }
            (6, Some(_)) if self.cancelling.contains(&guest) => {
                self.ends(guest);
                Event::Cancelled { guest }
            }
            (7.., _) => self.unasked(kind, (guest, host), pick, amount),
            _ => Event::Tick,
        }
    }

    /// An event that answers no order.
    fn unasked(&mut self, kind: u8, (guest, host): (GuestId, HostId), pick: usize, amount: u64) -> Event {
        let has_session = self.sessions.contains_key(&guest);
        match kind {
            7 => Event::HostLost(host),
            8 => Event::HostFound(host),
            9 => Event::HostDrained(host),
            10 if !has_session => Event::Prepared { guest },
            11 if !has_session => Event::Cancelled { guest },
            12 => {
                self.quiet.0 = true;
                Event::Pause
            }
            13 => {
                self.quiet.0 = false;
                Event::Resume
            }
            14 => {
                self.quiet.1 = pick.is_multiple_of(2);
                Event::Store(!self.quiet.1)
            }
            15 if amount.is_multiple_of(16) => {
                self.quiet.2 = true;
                Event::Abort
            }
            16 => Event::Ports(vec![1e9; pick % 3]),
            _ => Event::Tick,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn orders_are_sound_and_every_drain_ends(
        script in prop::collection::vec((0..18u8, 0..100usize, 0..100u32, 0..5000u64, 0..4000u64), 0..250),
        writes in prop::collection::vec(0..900u64, 6),
        together in 0..5u32,
    ) {
        let guests: Vec<Start> = (0..6u32)
            .map(|n| Start {
                write_bytes_per_s: writes[n as usize] as f64 * 1e6,
                keep: n == 5,
                ..start(n, 1 + u64::from(n))
            })
            .collect();
        let mut book = Book { kept: [GuestId(5)].into(), ..Book::default() };
        let mut now = Time::ZERO;
        let mut controller = Controller::new(Settings::default(), vec![1e9, 1e9], &guests, now);
        controller.keep_together((0..together).map(|n| (GuestId(n), GroupId(0))).collect());
        book.take(controller.handle(now, Event::Tick))?;
        for (kind, pick, host, amount, ms) in script {
            now = now + Duration::from_millis(ms);
            let event = book.event(kind, pick, host, amount);
            let orders = controller.handle(now, event);
            book.take(orders)?;
        }
        // From here on the driver says nothing any more. Time alone ends the drain.
        book.quiet = (false, false, book.quiet.2);
        for event in [Event::Resume, Event::Store(true)] {
            let orders = controller.handle(now, event);
            book.take(orders)?;
        }
        let mut turns = 0;
        while !controller.is_over() {
            let timer = controller.next_timer();
            prop_assert!(timer.is_some(), "nothing is waited for: {controller:?}");
            now = timer.unwrap_or(now).max(now);
            let orders = controller.handle(now, Event::Tick);
            book.take(orders)?;
            turns += 1;
            prop_assert!(turns < 2000, "no end: {controller:?}");
        }
        for (guest, state, attempts) in controller.guests() {
            let failed = matches!(state, State::Ended(Outcome::Failed { .. }));
            prop_assert!(!failed || !attempts.is_empty(), "failed without a reason");
            prop_assert_eq!(book.kept.contains(&guest), *state == State::Ended(Outcome::Kept));
            let doubtful = matches!(state, State::Ended(Outcome::Failed { in_doubt: true, .. }));
            prop_assert!(doubtful || !book.sessions.contains_key(&guest), "a session is left");
            prop_assert!(doubtful || !book.reserved.contains_key(&guest), "a reservation is left");
        }
    }
}
