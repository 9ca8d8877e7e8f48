//! Idle states that take long to leave.

use crate::model::{Finding, IdleState, Inventory, Place, Room, Severity};

use super::Check;

/// As long as a good network's round trip.
const LATENCY_MIN_US: u32 = 100;

const WHY: &str = "A processor that sleeps deeply wakes after the packet has waited. Round trips become longer and uneven, most of all in the blackout, \
     where little is under way and each step waits for the one before.";

pub(super) struct CpuIdleStates;

impl Check for CpuIdleStates {
    fn id(&self) -> &'static str {
        "cpu-idle-states"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.hosts.iter().filter_map(|host| self.host(host)).collect()
    }
}

impl CpuIdleStates {
    fn host(&self, host: &Inventory) -> Option<Finding> {
        let deep = |state: &&IdleState| state.enabled && state.latency_us >= LATENCY_MIN_US;
        let deepest = host.cpu.idle_states.iter().filter(deep).max_by_key(|state| state.latency_us)?;
        let place = Place::host(&host.host);
        let title = format!("idle state {} takes {} µs to leave", deepest.name, deepest.latency_us);
        let mut finding = Finding::new(self.id(), Severity::Hint, title).at(place.clone()).why(WHY);
        for state in &host.cpu.idle_states {
            let may = if state.enabled { "" } else { ", not used" };
            finding = finding.seen(
                place.clone(),
                &format!("idle state {}", state.name),
                format!("{} µs{may}", state.latency_us),
            );
        }
        let command = format!("cpupower idle-set -D {}", LATENCY_MIN_US - 1);
        Some(finding.command(place, "leave out the deep ones (package linux-cpupower)", command))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::IdleState;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn the_deepest_is_named_unless_it_is_not_used() {
        let mut room = healthy_room();
        let deep = IdleState { name: "C6".into(), latency_us: 133, enabled: true };
        host_mut(&mut room, "beta").cpu.idle_states.push(deep);
        let finding = only(&room, "cpu-idle-states");
        assert_eq!(finding.title, "idle state C6 takes 133 µs to leave");
        assert_eq!(finding.places[0].to_string(), "beta");
        host_mut(&mut room, "beta").cpu.idle_states[2].enabled = false;
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
