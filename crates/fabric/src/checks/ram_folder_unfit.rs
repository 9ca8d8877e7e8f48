//! A folder for guest memory that is no memory, or has no room.

use crate::model::{Finding, Inventory, Place, RamFolder, Room, Severity};

use super::{Check, memory_short};

/// The least guests have less; what an agent keeps free for the host by default is as much.
const ROOM_MIN: u64 = 512 << 20;

const WHY: &str = "The memory of guests that arrive is a file in this folder. On a disk it is as slow as the disk and wears it out; without room the guest is refused.";

pub(super) struct RamFolderUnfit;

impl Check for RamFolderUnfit {
    fn id(&self) -> &'static str {
        "ram-folder-unfit"
    }

    fn run(&self, room: &Room) -> Vec<Finding> {
        let folders =
            room.hosts.iter().flat_map(|host| host.memory.ram_folders.iter().map(move |one| (host, one)));
        folders.filter_map(|(host, folder)| self.folder(host, folder)).collect()
    }
}

/// What is wrong with it.
fn fault(host: &Inventory, folder: &RamFolder) -> Option<(Severity, String)> {
    let kind = folder.filesystem.as_deref();
    let wanted: &[&str] = if folder.huge_pages { &["hugetlbfs"] } else { &["tmpfs", "hugetlbfs", "ramfs"] };
    match kind {
        None => return Some((Severity::Error, format!("{} is not there, or cannot be read", folder.path))),
        Some(kind) if !wanted.contains(&kind) => {
            return Some((
                Severity::Error,
                format!("{} is on {kind}, not on {}", folder.path, wanted.first()?),
            ));
        }
        Some(_) => {}
    }
    // Guests that are there use it up; where memory itself is short, that is the finding. Pools of huge pages have one of their own.
    let available =
        folder.available_bytes.filter(|_| kind == Some("tmpfs") && !memory_short::is_short(host))?;
    let size = folder.size_bytes.unwrap_or(0);
    let short = available < ROOM_MIN;
    short.then(|| {
        (
            Severity::Warning,
            format!("{} has room for {} MiB more (of {} MiB)", folder.path, available >> 20, size >> 20),
        )
    })
}

impl RamFolderUnfit {
    fn folder(&self, host: &Inventory, folder: &RamFolder) -> Option<Finding> {
        let (severity, title) = fault(host, folder)?;
        let place = Place::host(&host.host);
        let mib = |bytes: Option<u64>| {
            bytes.map_or_else(|| "unknown".to_owned(), |bytes| format!("{} MiB", bytes >> 20))
        };
        let key = if folder.huge_pages { "huge_ram_dir" } else { "ram_dir" };
        let finding = Finding::new(self.id(), severity, title)
            .at(place.clone())
            .seen(place.clone(), key, &folder.path)
            .seen(place.clone(), "file system", folder.filesystem.as_deref().unwrap_or("unknown"))
            .seen(place.clone(), "size", mib(folder.size_bytes))
            .seen(place.clone(), "available", mib(folder.available_bytes))
            .seen(place.clone(), "memory available", mib(host.memory.available_bytes))
            .why(WHY);
        let command = match (folder.huge_pages, severity) {
            (true, _) => format!("mount -t hugetlbfs hugetlbfs {}", folder.path),
            (false, Severity::Error) => {
                format!("mkdir -p {0} && mount -t tmpfs -o huge=advise,mode=0711 tmpfs {0}", folder.path)
            }
            (false, _) => format!("mount -o remount,size=80% {}", folder.path),
        };
        Some(finding.command(
            place,
            &format!("mount memory there, and keep it in /etc/fstab; or name another folder as `{key}`"),
            command,
        ))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::{RamFolder, Room, Severity};
    use crate::testing::{healthy_room, host_mut, only};

    fn room(filesystem: Option<&str>, available_mib: u64) -> Room {
        let mut room = healthy_room();
        let filesystem = filesystem.map(str::to_owned);
        host_mut(&mut room, "beta").memory.ram_folders = vec![RamFolder {
            path: "/srv/ram".into(),
            filesystem,
            size_bytes: Some(1 << 40),
            available_bytes: Some(available_mib << 20),
            huge_pages: false,
        }];
        room
    }

    #[test]
    fn a_folder_on_a_disk_and_one_that_is_not_there() {
        let finding = only(&room(Some("ext4"), 9000), "ram-folder-unfit");
        assert_eq!(
            (finding.title.as_str(), finding.severity),
            ("/srv/ram is on ext4, not on tmpfs", Severity::Error)
        );
        assert_eq!(finding.places[0].to_string(), "beta");
        assert_eq!(
            only(&room(None, 0), "ram-folder-unfit").title,
            "/srv/ram is not there, or cannot be read"
        );
    }

    #[test]
    fn a_folder_without_room() {
        let finding = only(&room(Some("tmpfs"), 64), "ram-folder-unfit");
        assert_eq!(finding.title, "/srv/ram has room for 64 MiB more (of 1048576 MiB)");
        assert_eq!(crate::checks::run_all(&room(Some("tmpfs"), 8192)), Vec::new());
        assert_eq!(crate::checks::run_all(&room(Some("hugetlbfs"), 0)), Vec::new());
    }
}
