//! Clocks that do not agree.

use crate::model::{Finding, Place, Probe, Room, Severity};

use super::Check;

/// Far more than a steered clock is off, and enough to be seen in a guest.
const AHEAD_MIN_US: u64 = 100_000;

const WHY: &str = "Logs of both hosts cannot be put side by side, certificates may be refused, and a guest that reads its time from the host sees it jump \
     when it has moved.";

pub(super) struct ClockSkew;

impl Check for ClockSkew {
    fn id(&self) -> &'static str {
        "clock-skew"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut wrong: Vec<(&str, &str, i64)> = Vec::new();
        for Probe { from, to, clock_ahead_us, .. } in &room.matrix.probes {
            let Some(ahead) = clock_ahead_us.filter(|ahead| ahead.unsigned_abs() >= AHEAD_MIN_US) else {
                continue;
            };
            let known = |(a, b, _): &(&str, &str, i64)| {
                (*a == from.host && *b == to.host) || (*a == to.host && *b == from.host)
            };
            if !wrong.iter().any(known) {
                wrong.push((&from.host, &to.host, ahead));
            }
        }
        self.finding(&wrong).into_iter().collect()
    }
}

impl ClockSkew {
    fn finding(&self, wrong: &[(&str, &str, i64)]) -> Option<Finding> {
        let count = |host: &str| wrong.iter().filter(|(a, b, _)| *a == host || *b == host).count();
        let most = wrong.iter().map(|(_, _, ahead)| ahead.unsigned_abs()).max()?;
        let mut hosts: Vec<&str> = wrong.iter().flat_map(|(a, b, _)| [*a, *b]).collect();
        hosts.sort_unstable();
        hosts.dedup();
        // The clock that disagrees with most others is the wrong one.
        let top = hosts.iter().map(|host| count(host)).max()?;
        let title = format!("clocks are up to {} ms apart", most / 1000);
        let mut finding = Finding::new(self.id(), Severity::Warning, title).why(WHY);
        for host in hosts.iter().filter(|host| count(host) == top) {
            finding = finding.at(Place::host(host));
        }
        for (from, to, ahead) in wrong {
            finding = finding.seen(
                Place::host(to),
                &format!("clock against {from}"),
                format!("{:+} ms", ahead / 1000),
            );
        }
        for host in hosts.iter().filter(|host| count(host) == top) {
            finding =
                finding.command(Place::host(host), "steer the clock (or chrony)", "timedatectl set-ntp true");
        }
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use super::super::common::testing::probe;
    use crate::testing::{healthy_room, only};

    #[test]
    fn the_clock_that_disagrees_with_all_is_named() {
        let mut room = healthy_room();
        let mut near = probe();
        near.clock_ahead_us = Some(2_500_000);
        let mut far = near.clone();
        far.from.host = "gamma".into();
        room.matrix.probes = vec![near, far];
        let finding = only(&room, "clock-skew");
        assert_eq!(finding.title, "clocks are up to 2500 ms apart");
        assert_eq!(finding.places.len(), 1);
        assert_eq!(finding.places[0].to_string(), "beta");
    }
}
