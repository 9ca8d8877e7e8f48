//! Machine types that not every host's QEMU has.

use std::collections::BTreeSet;

use crate::model::{Finding, Inventory, Place, Room, Severity};

use super::Check;
use super::common::join;

const WHY: &str = "A guest keeps the machine type that it was started with. A host whose QEMU does not know it cannot take the guest; older types run on \
     newer QEMUs, not the other way round.";

pub(super) struct QemuMachineTypes;

impl Check for QemuMachineTypes {
    fn id(&self) -> &'static str {
        "qemu-machine-types"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let all: Vec<(&Inventory, BTreeSet<&str>)> = room
            .hosts
            .iter()
            .map(|host| (host, machines(host)))
            .filter(|(_, machines)| !machines.is_empty())
            .collect();
        self.compare(&all).into_iter().collect()
    }
}

/// What all QEMUs of a host know.
fn machines(host: &Inventory) -> BTreeSet<&str> {
    host.hypervisor.qemu.iter().flat_map(|qemu| &qemu.machines).map(String::as_str).collect()
}

impl QemuMachineTypes {
    fn compare(&self, all: &[(&Inventory, BTreeSet<&str>)]) -> Option<Finding> {
        let every: BTreeSet<&str> = all.iter().flat_map(|(_, machines)| machines.iter().copied()).collect();
        let common: Vec<&str> =
            every.iter().copied().filter(|one| all.iter().all(|(_, has)| has.contains(one))).collect();
        if common.len() == every.len() {
            return None;
        }
        let lacks = |has: &BTreeSet<&str>| -> Vec<&str> {
            every.iter().copied().filter(|one| !has.contains(one)).collect()
        };
        let (severity, title) = match common.is_empty() {
            true => (Severity::Error, "no machine type is known to the QEMUs of all hosts".to_owned()),
            false => {
                let partly = every.iter().copied().filter(|one| !common.contains(one));
                (Severity::Warning, format!("QEMU does not know {} on all hosts", join(partly, ", ")))
            }
        };
        let mut finding = Finding::new(self.id(), severity, title).why(WHY);
        for (host, has) in all.iter().filter(|(_, has)| !lacks(has).is_empty()) {
            let place = Place::host(&host.host);
            finding = finding.at(place.clone()).seen(place, "does not know", join(lacks(has), ", "));
        }
        for (host, _) in all {
            let versions = host.hypervisor.qemu.iter().filter_map(|qemu| qemu.version.as_deref());
            finding = finding.seen(Place::host(&host.host), "QEMU", join(versions, ", "));
        }
        let step = match common.is_empty() {
            true => "install the same QEMU on all hosts".to_owned(),
            false => format!(
                "start guests with a type that all know ({}), or install the same QEMU on all hosts",
                join(common, ", ")
            ),
        };
        Some(finding.step(None, step))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Severity;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn an_older_qemu() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").hypervisor.qemu[0].machines = vec!["pc-q35-9.2".into()];
        let finding = only(&room, "qemu-machine-types");
        assert_eq!(finding.title, "QEMU does not know pc-q35-10.0 on all hosts");
        assert_eq!((finding.places.len(), finding.places[0].to_string().as_str()), (1, "beta"));
        host_mut(&mut room, "beta").hypervisor.qemu[0].machines = vec!["pc-q35-7.2".into()];
        assert_eq!(only(&room, "qemu-machine-types").severity, Severity::Error);
    }
}
