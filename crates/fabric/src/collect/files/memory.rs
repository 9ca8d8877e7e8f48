//! Memory, huge pages, limits.

use rustix::process::{Resource, getrlimit};

use crate::collect::root::Root;
use crate::model::{HugePages, Limit, Memory};

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
    }
}

fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

fn huge_pages(root: &Root) -> Vec<HugePages> {
    let folder = "sys/kernel/mm/hugepages";
    let pool = |name: String| {
        let size_kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let number = |file: &str| root.number(format!("{folder}/{name}/{file}"));
        Some(HugePages { size_kib, total: number("nr_hugepages")?, free: number("free_hugepages")? })
    };
    let mut pools: Vec<HugePages> = root.names(folder).into_iter().filter_map(pool).collect();
    pools.sort_by_key(|pool| pool.size_kib);
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
        assert_eq!(memory.huge_pages[0], HugePages { size_kib: 2048, total: 512, free: 512 });
        assert_eq!(memory.huge_pages[1], HugePages { size_kib: 1_048_576, total: 2, free: 1 });
        assert_eq!(memory.transparent_huge_pages.as_deref(), Some("madvise"));
        assert_eq!(memory.transparent_huge_pages_shared.as_deref(), Some("never"));
        assert!(memory.memlock.is_some());
    }
}
