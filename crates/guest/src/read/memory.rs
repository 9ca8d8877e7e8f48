//! RAM blocks: sizes from `x-query-ramblock`, back ends from the object tree, descriptors from /proc.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Asker, Names, ReadError, text};
use crate::description::{Backend, RamBlock};
use crate::qmp::QemuVersion;

/// From this version on, `x-ignore-shared` leaves out named files only; before, any shared memory.
const NAMED_FILES_ONLY: QemuVersion = QemuVersion { major: 8, minor: 1, micro: 0 };

struct MemoryObject {
    path: String,
    backend: Backend,
    share: bool,
    size: u64,
    file: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Listed {
    name: String,
    page_bytes: u64,
    used: u64,
}

pub(super) fn read(
    asker: &mut Asker<'_>,
    files: &[(i32, PathBuf)],
    names: &Names,
) -> Result<Vec<RamBlock>, ReadError> {
    let command = "x-query-ramblock";
    let answer = asker.ask(command, json!({}))?;
    let table = text(&answer, "human-readable-text").unwrap_or_default();
    let listed = parse_table(&table);
    if listed.is_empty() {
        return Err(ReadError::Answer { command, what: "no block in the table" });
    }
    let objects = memory_objects(asker, names)?;
    let version = asker.qmp.version();
    let block = |of: &Listed| match object_of(&objects, of, &listed) {
        None => internal(of),
        Some((object, is_certain)) => {
            let descriptor = is_certain.then(|| descriptor_of(object, files)).flatten();
            RamBlock { descriptor, ..backed(of, object, version) }
        }
    };
    Ok(listed.iter().map(block).collect())
}

fn internal(listed: &Listed) -> RamBlock {
    RamBlock {
        id: listed.name.clone(),
        size: listed.used,
        page_bytes: listed.page_bytes,
        backend: Backend::Internal,
        share: false,
        path: None,
        descriptor: None,
        ignored_when_shared: false,
    }
}

fn backed(listed: &Listed, object: &MemoryObject, version: QemuVersion) -> RamBlock {
    let named = object.backend == Backend::File;
    let memfd = object.backend == Backend::Memfd && version < NAMED_FILES_ONLY;
    RamBlock {
        descriptor: None,
        id: listed.name.clone(),
        size: listed.used,
        page_bytes: listed.page_bytes,
        backend: object.backend,
        share: object.share,
        path: object.file.clone(),
        ignored_when_shared: object.share && (named || memfd),
    }
}

fn memory_objects(asker: &mut Asker<'_>, names: &Names) -> Result<Vec<MemoryObject>, ReadError> {
    let listed = asker.ask("qom-list", json!({ "path": "/objects" }))?;
    let mut objects = Vec::new();
    for member in listed.as_array().into_iter().flatten() {
        let (Some(name), Some(kind)) = (text(member, "name"), text(member, "type")) else { continue };
        let backend = match kind.as_str() {
            "child<memory-backend-file>" => Backend::File,
            "child<memory-backend-memfd>" => Backend::Memfd,
            "child<memory-backend-ram>" => Backend::Anonymous,
            _ => continue,
        };
        let path = format!("/objects/{name}");
        let share = asker.property(&path, "share")?.and_then(|v| v.as_bool()).unwrap_or(false);
        let size = asker.property(&path, "size")?.and_then(|v| v.as_u64()).unwrap_or(0);
        let file = asker.property(&path, "mem-path")?.and_then(|v| Value::as_str(&v).map(str::to_owned));
        let file = file.map(|file| names.whole(&file).unwrap_or(file));
        objects.push(MemoryObject { path, backend, share, size, file });
    }
    Ok(objects)
}

impl MemoryObject {
    fn name(&self) -> &str {
        self.path.strip_prefix("/objects/").unwrap_or(&self.path)
    }

    /// A block has the object's name, or its path in the tree under x-use-canonical-path-for-ramblock-id.
    fn is(&self, block: &str) -> bool {
        block == self.path || block == self.name()
    }

    /// A device on a bus (`virtio-mem-pci`) has its address in front: `0000:00:02.0/NAME`.
    fn is_at_a_device(&self, block: &str) -> bool {
        let device = block.strip_suffix(self.name()).and_then(|front| front.strip_suffix('/'));
        device.is_some_and(|device| !device.is_empty()) && !self.is(block)
    }
}

/// The object behind a block, and whether it is behind no other. QEMU's own memory of a device may have its name.
fn object_of<'a>(
    objects: &'a [MemoryObject],
    block: &Listed,
    all: &[Listed],
) -> Option<(&'a MemoryObject, bool)> {
    if let Some(object) = objects.iter().find(|object| object.is(&block.name)) {
        return Some((object, true));
    }
    let is_free = |object: &MemoryObject| !all.iter().any(|other| object.is(&other.name));
    let object = objects.iter().find(|object| object.is_at_a_device(&block.name) && is_free(object))?;
    let count = all.iter().filter(|other| object.is_at_a_device(&other.name)).count();
    Some((object, count == 1))
}

fn descriptor_of(object: &MemoryObject, files: &[(i32, PathBuf)]) -> Option<i32> {
    let name = object.path.strip_prefix("/objects/")?;
    let matches = |target: &Path| match (object.backend, &object.file) {
        (Backend::File, Some(file)) => {
            let link = target.to_string_lossy();
            let plain = link.trim_end_matches(" (deleted)");
            // A folder as mem-path: QEMU makes a nameless file in it, called after the block.
            plain == file || plain.starts_with(&format!("{}/qemu_back_mem.", file.trim_end_matches('/')))
        }
        (Backend::Memfd, _) => target.to_string_lossy().starts_with("/memfd:memory-backend-memfd"),
        _ => false,
    };
    let mut found = files.iter().filter(|(_, target)| matches(target)).map(|(number, _)| *number);
    let first = found.next()?;
    // Several memfds have one name: only the mappings show which is whose.
    let ambiguous = object.backend == Backend::Memfd && found.next().is_some();
    if ambiguous {
        tracing::debug!(object = name, bytes = object.size, "several memfds, none is named");
        return None;
    }
    Some(first)
}

// Name, page size with unit, offset, used, total. The name may hold spaces in theory: read from the right.
fn parse_table(table: &str) -> Vec<Listed> {
    table.lines().filter_map(parse_row).collect()
}

fn parse_row(row: &str) -> Option<Listed> {
    let mut words = row.split_whitespace().rev();
    // Newer versions add columns: the host's address, and whether it is read-only.
    let mut numbers = Vec::new();
    let unit = loop {
        let word = words.next()?;
        match hexadecimal(word) {
            Some(number) => numbers.push(number),
            None if word == "rw" || word == "ro" => {}
            None => break word,
        }
    };
    numbers.reverse();
    let scale = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1_u64 << 30,
        _ => return None,
    };
    let page_bytes = words.next()?.parse::<u64>().ok()?.checked_mul(scale)?;
    let mut name: Vec<&str> = words.collect();
    name.reverse();
    let used = *numbers.get(1)?;
    Some(Listed { name: name.join(" "), page_bytes, used }).filter(|row| !row.name.is_empty())
}

fn hexadecimal(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_old_and_new_versions_are_read() {
        let old = "  Block Name    PSize   Offset  Used  Total\n pc.ram    4 KiB  0x0000000000000000 0x0000000004000000 0x0000000004000000\n";
        let new = "  Block Name  PSize Offset Used Total HVA RO\n /objects/ram 2 MiB 0x0 0x4000000 0x4000000 0x00007f0000000000 rw\n";
        let page = |page_bytes, name: &str| Listed { name: name.into(), page_bytes, used: 0x400_0000 };
        assert_eq!(parse_table(old), [page(4096, "pc.ram")]);
        assert_eq!(parse_table(new), [page(2 << 20, "/objects/ram")]);
        assert_eq!(parse_table("nonsense\n 0x1\n KiB 0x1 0x2 0x3\n"), []);
    }

    /// QEMU leaves shared memory out of its stream under any name. What is not known here would arrive empty.
    #[test]
    fn the_memory_of_an_object_is_found_also_behind_a_device_on_a_bus() {
        let objects = ["ram", "more", "vga.vram"].map(|name| MemoryObject {
            path: format!("/objects/{name}"),
            backend: Backend::File,
            share: true,
            size: 0,
            file: None,
        });
        let found = |blocks: &[&str]| {
            let listed = |name: &&str| Listed { name: (*name).into(), page_bytes: 4096, used: 0 };
            let all: Vec<Listed> = blocks.iter().map(listed).collect();
            let last = object_of(&objects, all.last().unwrap(), &all);
            last.map(|(object, is_certain)| (object.name().to_owned(), is_certain))
        };
        let certain = |name: &str| Some((name.to_owned(), true));
        for ram in ["ram", "/objects/ram"] {
            assert_eq!(found(&[ram]), certain("ram"));
        }
        for more in ["0000:00:02.0/more", "0000:00:02.0//objects/more", "/machine/peripheral/x/more"] {
            assert_eq!(found(&["ram", more]), certain("more"), "{more}");
        }
        for other in ["pc.bios", "0000:00:02.0/nomore", "more/pc.rom", "0000:00:02.0/pc.rom"] {
            assert_eq!(found(&["ram", other]), None, "{other}");
        }
        // The object is known to be elsewhere, or which of two blocks is its cannot be told.
        assert_eq!(found(&["vga.vram", "0000:00:01.0/vga.vram"]), None);
        let two = ["0000:00:01.0/vga.vram", "0000:00:02.0/vga.vram"];
        assert_eq!(found(&two), Some(("vga.vram".to_owned(), false)));
    }
}
