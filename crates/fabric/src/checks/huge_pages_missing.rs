//! Huge pages that guests use on one host and that another does not have.

use std::collections::BTreeMap;

use crate::model::{Finding, HugePages, Inventory, Place, Room, Severity};

use super::Check;

const WHY: &str = "A guest whose memory is made of huge pages needs as many of them at the destination, free, before it is started there. Without them the \
     migration ends before it began.";

pub(super) struct HugePagesMissing;

impl Check for HugePagesMissing {
    fn id(&self) -> &'static str {
        "huge-pages-missing"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        for pool in room.hosts.iter().flat_map(|host| &host.memory.huge_pages) {
            let most = used.entry(pool.size_bytes).or_default();
            *most = (*most).max(in_use(pool));
        }
        used.retain(|_, pages| *pages > 0);
        used.into_keys().filter_map(|size| self.size(room, size)).collect()
    }
}

fn in_use(pool: &HugePages) -> u64 {
    pool.total.saturating_sub(pool.free)
}

impl HugePagesMissing {
    /// Hosts that have no page of this size, while others use it.
    fn size(&self, room: &Room, size_bytes: u64) -> Option<Finding> {
        let size_kib = size_bytes / 1024;
        let pool = |host: &Inventory| {
            host.memory.huge_pages.iter().find(|pool| pool.size_bytes == size_bytes).copied()
        };
        // A host of which nothing about memory is known says nothing.
        let known: Vec<&Inventory> =
            room.hosts.iter().filter(|host| host.memory.total_bytes.is_some()).collect();
        let total = |host: &Inventory| pool(host).map_or(0, |pool| pool.total);
        let without: Vec<&&Inventory> = known.iter().filter(|host| total(host) == 0).collect();
        if without.is_empty() {
            return None;
        }
        let mut finding = Finding::new(
            self.id(),
            Severity::Warning,
            format!("no huge pages of {size_kib} KiB, which guests of other hosts use"),
        );
        for host in &without {
            finding = finding.at(Place::host(&host.host));
        }
        let mut most = 0;
        for host in &known {
            let pool = pool(host).unwrap_or_default();
            most = most.max(in_use(&pool));
            finding = finding.seen(
                Place::host(&host.host),
                &format!("pages of {size_kib} KiB"),
                format!("{} of {} free", pool.free, pool.total),
            );
        }
        for host in &without {
            let command =
                format!("echo {most} > /sys/kernel/mm/hugepages/hugepages-{size_kib}kB/nr_hugepages");
            finding =
                finding.command(Place::host(&host.host), "reserve them, best at boot (hugepages=)", command);
        }
        Some(finding.why(WHY))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::HugePages;
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn size_and_hosts_are_named() {
        let mut room = healthy_room();
        for host in ["alpha", "gamma"] {
            host_mut(&mut room, host).memory.huge_pages =
                vec![HugePages { size_bytes: 2 << 20, total: 4096, free: 0 }];
        }
        let finding = only(&room, "huge-pages-missing");
        assert_eq!(finding.title, "no huge pages of 2048 KiB, which guests of other hosts use");
        assert_eq!(finding.places.len(), 1);
        assert_eq!(finding.places[0].to_string(), "beta");
    }

    #[test]
    fn pools_that_nobody_uses_are_no_matter() {
        let mut room = healthy_room();
        host_mut(&mut room, "alpha").memory.huge_pages =
            vec![HugePages { size_bytes: 2 << 20, total: 64, free: 64 }];
        assert_eq!(crate::checks::run_all(&room), Vec::new());
    }
}
