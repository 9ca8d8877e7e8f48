//! Memory, huge pages, limits.

use std::path::Path;

use rustix::process::{Resource, getrlimit};

use crate::collect::root::Root;
use crate::model::{HugePages, Limit, Memory, RamFolder};

/// Reads it. The limit is that of this process.
pub fn read(root: &Root) -> Memory {
    let text = root.text("proc/meminfo").unwrap_or_default();
    Memory {
        total_bytes: meminfo_bytes(&text, "MemTotal"),
        available_bytes: meminfo_bytes(&text, "MemAvailable"),
        huge_pages: huge_pages(root),
        transparent_huge_pages: chosen(root, "sys/kernel/mm/transparent_hugepage/enabled"),
        transparent_huge_pages_shared: chosen(root, "sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        memlock: Some(getrlimit(Resource::Memlock).current.map_or(Limit::Unlimited, Limit::Bytes)),
        ram_folders: Vec::new(),
    }
}

/// Numbers of file systems, as in <linux/magic.h>.
const FILE_SYSTEMS: [(u32, &str); 9] = [
    (0x0102_1994, "tmpfs"),
    (0x9584_58f6, "hugetlbfs"),
    (0x8584_58f6, "ramfs"),
    (0xef53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
    (0x6969, "nfs"),
    (0x794c_7630, "overlayfs"),
];

/// What a folder for the memory of guests is on.
pub fn ram_folder(path: &Path, huge_pages: bool) -> RamFolder {
    let named = RamFolder { path: path.display().to_string(), huge_pages, ..RamFolder::default() };
    let Some(found) = rustix::fs::statfs(path).ok() else { return named };
    // The kernel's numbers have 32 bits, whatever the field has.
    let number = found.f_type as u32;
    let known = FILE_SYSTEMS.iter().find(|(known, _)| *known == number).map(|(_, name)| (*name).to_owned());
    let bytes = |blocks: u64| blocks.saturating_mul(u64::try_from(found.f_bsize).unwrap_or(0));
    RamFolder {
        filesystem: Some(known.unwrap_or_else(|| format!("file system {number:#x}"))),
        size_bytes: Some(bytes(found.f_blocks)).filter(|size| *size > 0),
        available_bytes: Some(bytes(found.f_bavail)).filter(|_| found.f_blocks > 0),
        ..named
    }
}

fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn huge_pages(root: &Root) -> Vec<HugePages> {
    let folder = "sys/kernel/mm/hugepages";
    let pool = |name: String| {
        let size_kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let size_bytes = size_kib.checked_mul(1024)?;
        let number = |file: &str| root.number(format!("{folder}/{name}/{file}"));
        Some(HugePages { size_bytes, total: number("nr_hugepages")?, free: number("free_hugepages")? })
    };
    let mut pools: Vec<HugePages> = root.names(folder).into_iter().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.size_bytes);
    pools
}

/// The word in brackets: `always [madvise] never`.
fn chosen(root: &Root, path: &str) -> Option<String> {
    let text = root.text(path)?;
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::fixture::files;

    #[test]
    fn a_folder_of_memory_is_told_from_one_on_a_disk() {
        let shared = ram_folder(Path::new("/dev/shm"), false);
        assert_eq!(shared.filesystem.as_deref(), Some("tmpfs"));
        assert!(shared.size_bytes > Some(0) && shared.available_bytes <= shared.size_bytes, "{shared:?}");
        let other = ram_folder(Path::new("/proc"), false);
        assert!(other.filesystem.is_some_and(|name| name.starts_with("file system 0x")));
        assert_eq!(ram_folder(Path::new("/no/such/folder"), true).filesystem, None);
    }

    #[test]
    fn memory_of_a_fixture() {
        let (_folder, root) = files(&[
            ("proc/meminfo", "MemTotal:       32768 kB\nMemFree: 7 kB\nMemAvailable:   16384 kB\n"),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "2"),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages", "1"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "512"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "512"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never"),
            (
                "sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size advise [never] deny force",
            ),
        ]);
        let memory = read(&root);
        assert_eq!((memory.total_bytes, memory.available_bytes), (Some(32 << 20), Some(16 << 20)));
        assert_eq!(memory.huge_pages[0], HugePages { size_bytes: 2 << 20, total: 512, free: 512 });
        assert_eq!(memory.huge_pages[1], HugePages { size_bytes: 1 << 30, total: 2, free: 1 });
        assert_eq!(memory.transparent_huge_pages.as_deref(), Some("madvise"));
        assert_eq!(memory.transparent_huge_pages_shared.as_deref(), Some("never"));
        assert!(memory.memlock.is_some());
    }
}
