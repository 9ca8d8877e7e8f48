//! A QEMU that is older than what Linerate is made for.

use crate::model::{Finding, Place, Room, Severity};

use super::Check;

/// Major and minor version of the oldest QEMU that migrations were tried with.
const OLDEST: (u32, u32) = (7, 2);

const WHY: &str = "Migrations were never tried with a QEMU of that age: it may lack commands that they need, and guests of newer QEMUs cannot go to it.";

pub(super) struct QemuTooOld;

impl Check for QemuTooOld {
    fn id(&self) -> &'static str {
        "qemu-too-old"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        for host in &room.hosts {
            let place = Place::host(&host.host);
            let versions: Vec<(u32, u32)> =
                host.hypervisor.qemu.iter().filter_map(|qemu| number(qemu.version.as_deref()?)).collect();
            // One that is new enough takes the guests.
            let Some(newest) = versions.iter().max().filter(|newest| **newest < OLDEST) else { continue };
            let (oldest_major, oldest_minor) = OLDEST;
            let title = format!("QEMU {}.{} is older than {oldest_major}.{oldest_minor}", newest.0, newest.1);
            let mut finding = Finding::new(self.id(), Severity::Error, title).at(place.clone()).why(WHY);
            for qemu in &host.hypervisor.qemu {
                finding =
                    finding.seen(place.clone(), &qemu.path, qemu.version.as_deref().unwrap_or("unknown"));
            }
            findings.push(finding.step(
                Some(place),
                "install a newer QEMU, and name it in `qemu` of the agent's configuration",
            ));
        }
        findings
    }
}

fn number(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.trim().parse().ok()?, parts.next().and_then(|part| part.parse().ok()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn host_and_version_are_named() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").hypervisor.qemu[0].version = Some("6.2.0".into());
        let finding = only(&room, "qemu-too-old");
        assert_eq!(finding.title, "QEMU 6.2 is older than 7.2");
        assert_eq!(finding.places[0].to_string(), "beta");
        host_mut(&mut room, "beta").hypervisor.qemu[0].version = Some("7.2.15".into());
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
