//! An address of a host that a machine outside of the room has too.

use crate::model::{Finding, PortRef, Room, Severity, Taken};

use super::Check;
use super::duplicate_address::is_double;

const WHY: &str = "Packets reach now this host, now the other machine: connections break off at random, and bytes of guests go to somebody else.";

pub(super) struct AddressTaken;

impl Check for AddressTaken {
    fn id(&self) -> &'static str {
        "address-taken"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.ports()
            .flat_map(|at| at.port.taken.iter().filter_map(move |taken| self.one(room, at, taken)))
            .collect()
    }
}

impl AddressTaken {
    fn one(&self, room: &Room, at: PortRef<'_>, taken: &Taken) -> Option<Finding> {
        // Two hosts of the room have a finding that names both.
        let ours = room
            .ports()
            .any(|one| one.port.mac.as_ref().is_some_and(|mac| mac.eq_ignore_ascii_case(&taken.mac)));
        if ours || is_double(room, taken.ip) {
            return None;
        }
        let (ip, mac) = (taken.ip, &taken.mac);
        let title = format!("{ip} is answered by another machine too, {mac}");
        let own = at.port.mac.as_deref().unwrap_or("unknown");
        let command = format!("arping -D -c 3 -I {} {ip}", at.port.name);
        let finding = Finding::new(self.id(), Severity::Error, title)
            .at(at.place())
            .seen(at.place(), "own MAC", own)
            .seen(at.place(), &format!("who answers for {ip}"), mac)
            .why(WHY)
            .command(at.place(), "see who answers", command)
            .step(
                None,
                "find the machine by its MAC in the switch's table, and give one of the two another address",
            );
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Taken;
    use crate::testing::{healthy_room, only, port};

    #[test]
    fn host_address_and_stranger_are_named() {
        let mut room = healthy_room();
        let taken = Taken { ip: [10, 1, 0, 2].into(), mac: "02:de:ad:00:00:01".into() };
        port(&mut room, "beta", "ens1f0").taken = vec![taken];
        let finding = only(&room, "address-taken");
        assert_eq!(finding.title, "10.1.0.2 is answered by another machine too, 02:de:ad:00:00:01");
        assert_eq!(finding.places[0].to_string(), "beta ens1f0");
    }

    #[test]
    fn two_hosts_of_the_room_are_named_by_another_check() {
        let mut room = healthy_room();
        let mac = port(&mut room, "alpha", "eno1").mac.clone().unwrap();
        let double = port(&mut room, "beta", "eno1");
        double.addresses[0].ip = [192, 168, 0, 1].into();
        double.taken = vec![Taken { ip: [192, 168, 0, 1].into(), mac }];
        only(&room, "duplicate-address");
    }
}
