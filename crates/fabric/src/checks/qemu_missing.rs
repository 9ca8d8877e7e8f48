//! A host whose agent has no QEMU that runs.

use crate::model::{Finding, Inventory, Place, Room, Severity};

use super::Check;

const WHY: &str = "No guest can run on this host, and none can go to it.";

pub(super) struct QemuMissing;

impl Check for QemuMissing {
    fn id(&self) -> &'static str {
        "qemu-missing"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        // Without an agent nobody asked for them.
        let with_agent = room.hosts.iter().filter(|host| host.agent.is_some());
        with_agent.filter_map(|host| self.host(host)).collect()
    }
}

impl QemuMissing {
    fn host(&self, host: &Inventory) -> Option<Finding> {
        let all = &host.hypervisor.qemu;
        let usable = all.iter().filter(|qemu| qemu.version.is_some()).count();
        if usable > 0 && usable == all.len() {
            return None;
        }
        let place = Place::host(&host.host);
        let missing: Vec<&str> =
            all.iter().filter(|qemu| qemu.version.is_none()).map(|qemu| qemu.path.as_str()).collect();
        let (severity, title) = match (all.is_empty(), usable) {
            (true, _) => (Severity::Error, "no QEMU is configured".to_owned()),
            (false, 0) => (Severity::Error, format!("no QEMU that runs: {}", missing.join(", "))),
            (false, _) => {
                (Severity::Hint, format!("of the configured QEMUs these do not run: {}", missing.join(", ")))
            }
        };
        let mut finding = Finding::new(self.id(), severity, title).at(place.clone()).why(WHY);
        for qemu in all {
            finding =
                finding.seen(place.clone(), &qemu.path, qemu.version.as_deref().unwrap_or("does not answer"));
        }
        if all.is_empty() {
            finding = finding.seen(place.clone(), "QEMU", "none");
        }
        let finding = finding.step(
            Some(place.clone()),
            "install QEMU (Debian: qemu-system-x86), or correct `qemu` in the agent's configuration",
        );
        let command = missing.first().map(|path| format!("{path} --version"));
        Some(match command {
            Some(command) => finding.command(place, "try it by hand", command),
            None => finding,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Severity;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn host_and_program_are_named() {
        let mut room = healthy_room();
        let qemu = &mut host_mut(&mut room, "beta").hypervisor.qemu;
        (qemu[0].version, qemu[0].machines) = (None, Vec::new());
        let finding = only(&room, "qemu-missing");
        assert_eq!(finding.title, "no QEMU that runs: /usr/bin/qemu-system-x86_64");
        assert_eq!((finding.places[0].to_string().as_str(), finding.severity), ("beta", Severity::Error));
        host_mut(&mut room, "beta").hypervisor.qemu.clear();
        assert_eq!(only(&room, "qemu-missing").title, "no QEMU is configured");
    }
}
