//! Hosts without KVM.

use crate::model::{Finding, Place, Room, Severity};

use super::Check;

const WHY: &str = "A guest that runs with KVM cannot go to a host without it: it is refused. Without KVM guests are emulated, many times slower.";

pub(super) struct KvmMissing;

impl Check for KvmMissing {
    fn id(&self) -> &'static str {
        "kvm-missing"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let without: Vec<_> = room.hosts.iter().filter(|host| host.hypervisor.kvm == Some(false)).collect();
        if without.is_empty() {
            return Vec::new();
        }
        // Where nobody has it, nobody has a guest that needs it.
        let nobody = room.hosts.iter().all(|host| host.hypervisor.kvm == Some(false));
        let (severity, title) = match nobody {
            true => (Severity::Hint, "no KVM: guests are emulated"),
            false => (Severity::Error, "no KVM, which guests of other hosts use"),
        };
        let mut finding = Finding::new(self.id(), severity, title).why(WHY);
        for host in &room.hosts {
            let place = Place::host(&host.host);
            if host.hypervisor.kvm == Some(false) {
                finding = finding.at(place.clone());
            }
            let usable = match host.hypervisor.kvm {
                Some(true) => "usable",
                Some(false) => "missing, or it cannot be opened",
                None => "unknown",
            };
            finding = finding.seen(place, "/dev/kvm", usable);
        }
        let first = without.first().map(|host| Place::host(&host.host));
        let finding = finding.step(None, "switch virtualisation (VT-x, AMD-V) on in the firmware; in a virtual machine, let its host nest guests");
        match first {
            Some(place) => vec![finding.command(
                place,
                "load the module, and see what the kernel says",
                "modprobe kvm_intel || modprobe kvm_amd; dmesg | grep -i kvm",
            )],
            None => vec![finding],
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Severity;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn the_host_without_it_is_named() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").hypervisor.kvm = Some(false);
        let finding = only(&room, "kvm-missing");
        assert_eq!((finding.places.len(), finding.places[0].to_string().as_str()), (1, "beta"));
        assert_eq!(finding.severity, Severity::Error);
        room.hosts.iter_mut().for_each(|host| host.hypervisor.kvm = Some(false));
        let finding = only(&room, "kvm-missing");
        assert_eq!((finding.places.len(), finding.severity), (3, Severity::Hint));
    }
}
