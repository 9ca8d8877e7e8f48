//! Processors that do not offer guests the same instructions.

use std::collections::BTreeMap;

use crate::model::{Finding, Inventory, Place, Room, Severity};

use super::Check;
use super::common::{Value, differ, join};

const WHY: &str = "A guest that was started with everything its processor can (CPU model host) has instructions that the other host does not know: QEMU \
     refuses it there, or the guest dies after it has moved.";

pub(super) struct CpuDiffers;

impl Check for CpuDiffers {
    fn id(&self) -> &'static str {
        "cpu-differs"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let arch = |host: &Inventory| Some((Place::host(&host.host), host.system.architecture.clone()?));
        let values: Vec<Value> = room.hosts.iter().filter_map(arch).collect();
        let architectures = differ(self.id(), Severity::Error, "architecture", "in one room", &values);
        match architectures {
            Some(finding) => vec![finding.why(WHY).step(None, "guests of one architecture run there only")],
            None => [flags(self.id(), room), models(self.id(), room)].into_iter().flatten().collect(),
        }
    }
}

/// Hosts by what they lack of what another one has.
fn lacking<'a>(all: &[(&'a Inventory, &'a [String])]) -> Vec<(&'a Inventory, Vec<&'a str>)> {
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, words) in all {
        let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
        words.sort_unstable();
        words.dedup();
        words.into_iter().for_each(|word| *owners.entry(word).or_default() += 1);
    }
    let partly: Vec<&str> =
        owners.iter().filter(|(_, count)| **count < all.len()).map(|(word, _)| *word).collect();
    let missing = |words: &[String]| -> Vec<&'a str> {
        partly.iter().filter(|word| !words.iter().any(|one| one == *word)).copied().collect()
    };
    let lacking = all.iter().map(|(host, words)| (*host, missing(words)));
    lacking.filter(|(_, missing)| !missing.is_empty()).collect()
}

fn flags(id: &str, room: &Room) -> Option<Finding> {
    let hosts = room.hosts.iter().filter(|host| !host.cpu.flags.is_empty());
    let all: Vec<(&Inventory, &[String])> = hosts.map(|host| (host, host.cpu.flags.as_slice())).collect();
    let lacking = lacking(&all);
    let title = format!(
        "processors lack {} that others have",
        join(lacking.iter().flat_map(|(_, words)| words.iter().copied()), ", ")
    );
    let mut finding = Finding::new(id, Severity::Warning, title).why(WHY);
    for (host, words) in &lacking {
        let place = Place::host(&host.host);
        finding = finding.at(place.clone()).seen(place, "lacks", join(words.iter().copied(), ", "));
    }
    for (host, _) in &all {
        finding = finding.seen(
            Place::host(&host.host),
            "processor",
            host.cpu.model.as_deref().unwrap_or("unknown"),
        );
    }
    let finding = finding
        .step(
            None,
            "start guests with a CPU model that all hosts can: linerate vm show says which one a guest has",
        )
        .step(None, "bring BIOS settings and microcode of equal processors to the same state");
    (!lacking.is_empty()).then_some(finding)
}

fn models(id: &str, room: &Room) -> Option<Finding> {
    let hosts = room.hosts.iter().filter(|host| !host.hypervisor.cpu_models.is_empty());
    let all: Vec<(&Inventory, &[String])> =
        hosts.map(|host| (host, host.hypervisor.cpu_models.as_slice())).collect();
    let lacking = lacking(&all);
    let title = format!(
        "CPU models that run on some hosts only: {}",
        join(lacking.iter().flat_map(|(_, words)| words.iter().copied()), ", ")
    );
    let mut finding = Finding::new(id, Severity::Warning, title).why(WHY);
    for (host, words) in &lacking {
        let place = Place::host(&host.host);
        finding = finding.at(place.clone()).seen(place, "cannot run", join(words.iter().copied(), ", "));
    }
    (!lacking.is_empty()).then(|| finding.step(None, "start guests with a CPU model that all hosts can"))
}

#[cfg(test)]
mod tests {
    use crate::model::Severity;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn what_is_lacking_is_named() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").cpu.flags.retain(|flag| flag != "avx2");
        let finding = only(&room, "cpu-differs");
        assert_eq!(finding.title, "processors lack avx2 that others have");
        assert_eq!(finding.places.len(), 1);
        assert_eq!(finding.places[0].to_string(), "beta");
    }

    #[test]
    fn models_by_qemu_and_architectures() {
        let mut room = healthy_room();
        for (host, models) in [("alpha", vec!["Haswell", "Skylake-Server"]), ("beta", vec!["Haswell"])] {
            host_mut(&mut room, host).hypervisor.cpu_models = models.into_iter().map(String::from).collect();
        }
        assert_eq!(
            only(&room, "cpu-differs").title,
            "CPU models that run on some hosts only: Skylake-Server"
        );
        host_mut(&mut room, "beta").system.architecture = Some("aarch64".into());
        assert_eq!(only(&room, "cpu-differs").severity, Severity::Error);
    }
}
