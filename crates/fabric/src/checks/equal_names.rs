//! Several hosts that call themselves the same.

use std::collections::BTreeMap;

use crate::model::{Finding, Inventory, Place, Room, Severity};

use super::Check;

const WHY: &str = "Reports, journals and commands name hosts: of two with one name nobody can tell which is meant, and a guest may be looked for on the wrong \
     one. Cloned virtual machines often have one name.";

pub(super) struct EqualNames;

impl Check for EqualNames {
    fn id(&self) -> &'static str {
        "equal-names"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut by_name: BTreeMap<&str, Vec<&Inventory>> = BTreeMap::new();
        for host in &room.hosts {
            by_name.entry(host.calls_itself()).or_default().push(host);
        }
        by_name
            .into_iter()
            .filter(|(_, hosts)| hosts.len() > 1)
            .map(|(name, hosts)| self.finding(name, &hosts))
            .collect()
    }
}

impl EqualNames {
    fn finding(&self, name: &str, hosts: &[&Inventory]) -> Finding {
        let title = format!("{} hosts call themselves {name}", hosts.len());
        let mut finding = Finding::new(self.id(), Severity::Warning, title).why(WHY);
        for host in hosts {
            let place = Place::host(&host.host);
            let addresses =
                host.ports.iter().flat_map(|port| &port.addresses).filter(|address| address.shared());
            let addresses: Vec<String> = addresses.map(|address| address.ip.to_string()).collect();
            finding = finding.at(place.clone()).seen(place, "addresses", addresses.join(", "));
        }
        let first = hosts.first().map(|host| Place::host(&host.host));
        finding.step(first, "give one of them another name: `hostnamectl hostname NAME`, or `name` in the agent's configuration, and start its agent again")
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Room;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn both_are_there_and_named() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").host = "alpha".into();
        let finding = only(&room, "equal-names");
        assert_eq!(finding.title, "2 hosts call themselves alpha");
        assert_eq!(
            finding.places.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["alpha", "alpha (2)"]
        );
    }

    #[test]
    fn what_the_second_one_has_is_found_at_the_second_one() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").ports[1].carrier = Some(false);
        host_mut(&mut room, "beta").host = "alpha".into();
        let findings = crate::checks::run_all(&Room::of(room.hosts));
        assert_eq!(
            findings.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(),
            ["link-down", "equal-names"]
        );
        assert_eq!(findings[0].places[0].to_string(), "alpha (2) ens1f0");
    }
}
