//! Transparent huge pages that are forbidden for shared memory.

use crate::model::{Finding, Place, Room, Severity};

use super::Check;

const WHY: &str = "Guests' memory lies in shared memory for direct mode. With 4 KiB pages everywhere, the guest itself is slower, and so are scans for what \
     was written.";

pub(super) struct HugePagesDenied;

impl Check for HugePagesDenied {
    fn id(&self) -> &'static str {
        "huge-pages-denied"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let denied = room
            .hosts
            .iter()
            .filter(|host| host.memory.transparent_huge_pages_shared.as_deref() == Some("deny"));
        let finding = |host: &crate::model::Inventory| {
            let place = Place::host(&host.host);
            Finding::new(self.id(), Severity::Hint, "transparent huge pages are denied for shared memory")
                .at(place.clone())
                .seen(place.clone(), "shmem_enabled", "deny")
                .why(WHY)
                .command(
                    place,
                    "allow them where they are asked for",
                    "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
                )
        };
        denied.map(finding).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{healthy_room, host_mut, only};

    #[test]
    fn the_host_is_named() {
        let mut room = healthy_room();
        host_mut(&mut room, "beta").memory.transparent_huge_pages_shared = Some("deny".into());
        assert_eq!(only(&room, "huge-pages-denied").places[0].to_string(), "beta");
    }
}
