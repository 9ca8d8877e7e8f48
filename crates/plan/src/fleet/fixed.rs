//! What others do: a fixed number of guests at a time, each prepared and copied in its turn.

use std::collections::BTreeMap;

use linerate_core::Time;
use linerate_core::drain::{Event, Order, Start};
use linerate_core::fleet::GuestId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Placed(linerate_core::fleet::HostId, u64),
    Moving(linerate_core::fleet::HostId, u64),
    Over(bool),
}

/// A drain with so many at a time.
#[derive(Clone, Debug)]
pub struct Fixed {
    at_once: usize,
    guests: BTreeMap<GuestId, State>,
    asked: bool,
}

impl Fixed {
    pub fn new(at_once: usize, guests: &[Start]) -> Fixed {
        let guests = guests.iter().map(|start| (start.guest, State::Waiting)).collect();
        Fixed { at_once, guests, asked: false }
    }

    pub fn handle(&mut self, _now: Time, event: &Event) -> Vec<Order> {
        let mut orders = Vec::new();
        match event {
            Event::Placed { guest, host, ports, .. } => {
                self.guests.insert(*guest, State::Placed(*host, *ports));
            }
            Event::NoPlace { guest, .. } => drop(self.guests.insert(*guest, State::Over(false))),
            Event::Prepared { guest } | Event::Busy { guest } => {
                if let Some(State::Moving(host, ports)) = self.guests.get(guest) {
                    orders.push(Order::Copy { guest: *guest, host: *host, ports: *ports });
                }
            }
            Event::Moved { guest } => drop(self.guests.insert(*guest, State::Over(true))),
            // The guest does not converge at its share: tried again in its turn.
            Event::Failed { guest, .. } => {
                if let Some(State::Moving(host, ports)) = self.guests.get(guest).copied() {
                    self.guests.insert(*guest, State::Placed(host, ports));
                }
            }
            _ => {}
        }
        if !std::mem::replace(&mut self.asked, true) {
            orders.push(Order::Place(self.guests.keys().map(|guest| (*guest, Vec::new())).collect()));
        }
        let moving = self.guests.values().filter(|state| matches!(state, State::Moving(..))).count();
        for (guest, state) in &mut self.guests {
            let State::Placed(host, ports) = *state else { continue };
            if moving + orders.iter().filter(|order| matches!(order, Order::Prepare { .. })).count()
                < self.at_once
            {
                *state = State::Moving(host, ports);
                orders.push(Order::Prepare { guest: *guest, host });
            }
        }
        orders
    }

    pub fn is_over(&self) -> bool {
        self.guests.values().all(|state| matches!(state, State::Over(_)))
    }
}
