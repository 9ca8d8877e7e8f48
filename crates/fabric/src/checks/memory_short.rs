//! A host whose memory is all but used up.

use crate::model::{Finding, Inventory, Place, Room, Severity};

use super::Check;

/// What an agent keeps free for the host by default (`memory_reserve_mib`): with less, no guest is admitted.
const AVAILABLE_MIN: u64 = 512 << 20;
/// And so many times less than all of it.
const PART_MIN: u64 = 100;

const WHY: &str = "No guest can go to this host: it is refused for want of memory. Agent and QEMU may be killed by the kernel when the rest is gone.";

pub(super) struct MemoryShort;

impl Check for MemoryShort {
    fn id(&self) -> &'static str {
        "memory-short"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        room.hosts.iter().filter_map(|host| self.host(host)).collect()
    }
}

/// Hardly anything is left.
pub(super) fn is_short(host: &Inventory) -> bool {
    let least = AVAILABLE_MIN.max(host.memory.total_bytes.unwrap_or(0) / PART_MIN);
    host.memory.available_bytes.is_some_and(|available| available < least)
}

impl MemoryShort {
    fn host(&self, host: &Inventory) -> Option<Finding> {
        let available = host.memory.available_bytes.filter(|_| is_short(host))?;
        let place = Place::host(&host.host);
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        let total = host.memory.total_bytes.map_or_else(|| "unknown".into(), mib);
        let title = format!("{} of memory are available", mib(available));
        let finding = Finding::new(self.id(), Severity::Warning, title)
            .at(place.clone())
            .seen(place.clone(), "available", mib(available))
            .seen(place.clone(), "in all", total)
            .why(WHY)
            .step(Some(place.clone()), "move guests away, or stop what does not belong here; huge pages that are set aside and not used count as used")
            .command(place, "see what has it", "ps -eo rss,comm --sort -rss | head; grep -i huge /proc/meminfo; df -h -t tmpfs");
        Some(finding)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn host_and_rest_are_named() {
        let mut room = healthy_room();
        let memory = &mut host_mut(&mut room, "beta").memory;
        (memory.total_bytes, memory.available_bytes) = (Some(8 << 30), Some(200 << 20));
        let finding = only(&room, "memory-short");
        assert_eq!(finding.title, "200 MiB of memory are available");
        assert_eq!(finding.places[0].to_string(), "beta");
        host_mut(&mut room, "beta").memory.available_bytes = Some(900 << 20);
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
