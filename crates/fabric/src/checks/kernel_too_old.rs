//! A kernel without what direct mode needs.

use crate::model::{Finding, Place, Room, Severity};

use super::Check;

const WHY: &str = "Guests of this host cannot be moved in direct mode: it must ask the kernel which pages were written, without stopping the guest.";

pub(super) struct KernelTooOld;

impl Check for KernelTooOld {
    fn id(&self) -> &'static str {
        "kernel-too-old"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut findings = Vec::new();
        for host in &room.hosts {
            let place = Place::host(&host.host);
            let kernel = host.system.kernel.as_deref().unwrap_or("unknown");
            // Others, such as encryption in the kernel, are a matter of speed.
            let needed = |feature: &&crate::model::Feature| feature.needed_for.contains("direct mode");
            for feature in host.system.features.iter().filter(needed).filter(|feature| !feature.present) {
                let title =
                    format!("kernel {kernel} has no {}, needed for {}", feature.name, feature.needed_for);
                let finding = Finding::new(self.id(), Severity::Error, title)
                    .at(place.clone())
                    .seen(place.clone(), "kernel", kernel)
                    .why(WHY)
                    .step(Some(place.clone()), "boot Linux 6.7 or newer; Debian 12 has one in its backports (linux-image-amd64/bookworm-backports)");
                findings.push(finding);
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn host_and_kernel_are_named() {
        let mut room = healthy_room();
        super::super::common::testing::kernel(&mut room, "beta", "6.1.0-18-amd64");
        host_mut(&mut room, "beta").system.features[0].present = false;
        let finding = only(&room, "kernel-too-old");
        assert_eq!(finding.title, "kernel 6.1.0-18-amd64 has no pagemap_scan, needed for direct mode");
        assert_eq!(finding.places[0].to_string(), "beta");
    }
}
