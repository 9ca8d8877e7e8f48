//! A clock that nothing steers.

use crate::model::{Finding, Place, Room, Severity};

use super::Check;

const WHY: &str = "It will be wrong sooner or later: logs of two hosts cannot be compared, and guests see their time jump when they move.";

pub(super) struct ClockNotSteered;

impl Check for ClockNotSteered {
    fn id(&self) -> &'static str {
        "clock-not-steered"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let finding = |host: &crate::model::Inventory| {
            let place = Place::host(&host.host);
            Finding::new(self.id(), Severity::Hint, "nothing steers the clock")
                .at(place.clone())
                .seen(place.clone(), "synchronised", "no")
                .why(WHY)
                .command(place, "steer it (or chrony)", "timedatectl set-ntp true")
        };
        room.hosts.iter().filter(|host| host.time.synchronised == Some(false)).map(finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn the_host_is_named() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").time.synchronised = Some(false);
        assert_eq!(only(&room, "clock-not-steered").places[0].to_string(), "beta");
    }
}
