//! Disks: one entry for each file or device that a block node has open, so that backing files are seen too.

use serde_json::Value;

use super::{Asker, Names, ReadError, parsed, text};
use crate::argv::Argument;
use crate::description::Disk;
use crate::options::Options;

/// Drivers that sit on top of another node and open nothing themselves.
const FILTERS: &[&str] = &[
    "raw",
    "qcow2",
    "qcow",
    "qed",
    "vdi",
    "vhdx",
    "vmdk",
    "vpc",
    "luks",
    "throttle",
    "copy-on-read",
    "dmg",
    "bochs",
    "cloop",
    "parallels",
    "blkdebug",
    "quorum",
    "preallocate",
    "snapshot-access",
    "copy-before-write",
];

struct Node {
    name: String,
    driver: String,
    file: String,
    read_only: bool,
    direct: bool,
    size: u64,
}

pub(super) fn read(
    asker: &mut Asker<'_>,
    options: &[Argument],
    names: &Names,
) -> Result<Vec<Disk>, ReadError> {
    let nodes: Vec<Node> = asker.array("query-named-block-nodes")?.iter().filter_map(node).collect();
    let drives: Vec<Value> = asker.array("query-block")?;
    let hints = hints(options);
    let (formats, protocols): (Vec<&Node>, Vec<&Node>) =
        nodes.iter().partition(|node| FILTERS.contains(&node.driver.as_str()));
    Ok(protocols.into_iter().map(|node| disk(node, &formats, &drives, &hints, names)).collect())
}

fn disk(node: &Node, formats: &[&Node], drives: &[Value], hints: &[Options], names: &Names) -> Disk {
    let path = names.whole(&node.file).unwrap_or_else(|| node.file.clone());
    let top = formats.iter().find(|format| format.file == node.file);
    let hint = hints.iter().find(|hint| {
        let by_name = hint.get("node-name") == Some(&node.name);
        by_name || file_of(hint).is_some_and(|file| file == path)
    });
    let hinted = |keys: &[&str]| keys.iter().find_map(|key| hint?.get(key)).map(str::to_owned);
    Disk {
        id: drive_of(drives, node).unwrap_or_else(|| node.name.clone()),
        path,
        format: top.map_or_else(|| "raw".to_owned(), |format| format.driver.clone()),
        protocol: node.driver.clone(),
        read_only: node.read_only,
        direct: node.direct,
        aio: hinted(&["aio", "file.aio"]),
        drop_cache: hinted(&["drop-cache", "file.drop-cache"]).is_none_or(|value| value == "on"),
        size: node.size,
        flash: drive(drives, node).is_some_and(is_flash),
    }
}

/// The drive whose medium is this file.
fn drive<'a>(drives: &'a [Value], node: &Node) -> Option<&'a Value> {
    drives.iter().find(|drive| {
        let inserted = drive.get("inserted");
        inserted.and_then(node_file).is_some_and(|file| file == node.file)
    })
}

/// Boards have their flash devices under their own names (`/machine/system.flash0`, `/machine/virt.flash1`).
fn is_flash(drive: &Value) -> bool {
    let device = text(drive, "qdev").unwrap_or_default();
    let name = device.strip_prefix("/machine/").and_then(|name| name.split_once(".flash"));
    name.is_some_and(|(board, number)| !board.contains('/') && number.parse::<u8>().is_ok())
}

fn drive_of(drives: &[Value], node: &Node) -> Option<String> {
    let drive = drive(drives, node)?;
    let name = text(drive, "device").filter(|name| !name.is_empty());
    name.or_else(|| text(drive.get("inserted")?, "node-name"))
}

fn node(value: &Value) -> Option<Node> {
    Some(Node {
        name: text(value, "node-name")?,
        driver: text(value, "drv")?,
        file: node_file(value)?,
        read_only: value.get("ro").and_then(Value::as_bool).unwrap_or(false),
        direct: value.pointer("/cache/direct").and_then(Value::as_bool).unwrap_or(false),
        size: value.pointer("/image/virtual-size").and_then(Value::as_u64).unwrap_or(0),
    })
}

// With unusual options QEMU shows a file as json:{…}: the file's name is inside.
pub(crate) fn node_file(value: &Value) -> Option<String> {
    let shown = value.pointer("/image/filename").and_then(Value::as_str)?;
    let Some(json) = shown.strip_prefix("json:") else { return Some(shown.to_owned()) };
    let inner: Value = serde_json::from_str(json).ok()?;
    let mut node = &inner;
    loop {
        match (node.get("filename"), node.get("file")) {
            (Some(name), _) => return Some(name.as_str().unwrap_or(shown).to_owned()),
            (None, Some(below)) => node = below,
            (None, None) => return Some(shown.to_owned()),
        }
    }
}

fn hints(options: &[Argument]) -> Vec<Options> {
    let block = parsed(options, "blockdev", Some("driver")).filter(|hint| file_of(hint).is_some());
    parsed(options, "drive", None).chain(block).collect()
}

fn file_of(hint: &Options) -> Option<&str> {
    hint.get("filename").or_else(|| hint.get("file.filename")).or_else(|| hint.get("file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_drive_of_the_boards_flash_is_flash() {
        for (device, flash) in [
            ("/machine/system.flash1", true),
            ("/machine/virt.flash0", true),
            ("/machine/peripheral/x.flash0", false),
            ("/machine/peripheral/virtio0/virtio-backend", false),
            ("/machine/system.flashy", false),
        ] {
            assert_eq!(is_flash(&json!({ "qdev": device })), flash, "{device}");
        }
        assert!(!is_flash(&json!({})));
    }
}
