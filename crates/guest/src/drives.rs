//! Which disks of a guest are copied where the hosts do not share them: every drive that the guest may write. Drives
//! for reading only (CD images, backing files) must be at the destination already, as for `virsh migrate
//! --copy-storage-all`.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::bytes::exact_bytes;
use crate::description::{COPIED_MAX, CopiedDisk, DescriptionError, GuestDescription, ImageFormat};
use crate::graph::{DiskGraph, Node};
use crate::identity;
use crate::qmp::{Qmp, QmpError};
use crate::read::Names;
use crate::read::disks::node_file;
use crate::shared::open_files::path_in;
use crate::shared::{DescribeError, check_names};

/// Why the disks cannot be copied. Nothing was touched.
#[derive(Debug, thiserror::Error)]
pub enum DrivesError {
    #[error("the guest's QEMU could not be asked for its drives")]
    Qmp(#[from] QmpError),
    #[error(transparent)]
    TooMany(#[from] DescriptionError),
    /// One was named that the guest does not have, or may not write.
    #[error(transparent)]
    Unknown(#[from] DescribeError),
    /// A format that no image is made of at the destination.
    #[error("the disk {id} is {found}: raw and qcow2 images can be copied")]
    Format { id: String, found: String },
    /// The image is a part of its file.
    #[error(
        "the disk {id} is a part of {path} ({} from byte {offset} on, by offset= or size=): the rest of the file would not be copied. Move the guest on shared storage, or give the disk a file of its own",
        exact_bytes(*size)
    )]
    Part {
        id: String,
        path: String,
        /// First byte in the file.
        offset: u64,
        /// Bytes of the disk.
        size: u64,
    },
    /// The image is two files.
    #[error(
        "the disk {id} ({path}) has its data in another file, {data} (data_file), and a copy is one file: move the \
         guest on shared storage, or convert the disk (qemu-img convert -O qcow2)"
    )]
    DataFile {
        id: String,
        path: String,
        /// The file with the data.
        data: String,
    },
    /// QEMU does not say what the image is.
    #[error("QEMU does not report which image is behind the drive {0}")]
    Nameless(String),
    /// The image is not locked.
    #[error(
        "a disk is opened with locking=off: only the lock of its image would keep it from being copied onto itself"
    )]
    Unlocked,
    /// Others may write to the image beside the guest.
    #[error(
        "a disk is opened with share-rw: others may write to it, so that its lock does not keep it from being copied onto itself"
    )]
    Shared,
    /// The backing files stand on the command line.
    #[error(
        "the command line names a disk's backing files itself: a copy holds all of a disk and may have none below it"
    )]
    Chain,
}

/// Which disks are to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskSelection<'a> {
    /// Every one that the guest may write.
    All,
    Named(&'a [String]),
}

/// The disks to copy, as they are now.
pub fn writable(
    qmp: &mut Qmp,
    guest: &GuestDescription,
    choice: DiskSelection<'_>,
    deadline: Instant,
) -> Result<Vec<CopiedDisk>, DrivesError> {
    check_arguments(&guest.arguments)?;
    let drives = qmp.execute("query-block", json!({}), deadline)?;
    let mut chosen = choose(drives.as_array().map_or(&[], Vec::as_slice), guest.graph.as_ref(), choice)?;
    let names = Names::of(guest.process.pid, &guest.arguments);
    for disk in &mut chosen {
        if let Some(path) = names.whole(&disk.path) {
            disk.path = path;
        }
        disk.identity = identity_in(guest.process.pid, &disk.path);
    }
    let Some(graph) = &guest.graph else { return Ok(chosen) };
    let apart = chosen.iter().find_map(|disk| Some((disk, graph.data_file(&disk.id)?)));
    if let Some((CopiedDisk { id, path, .. }, data)) = apart {
        return Err(DrivesError::DataFile { id: id.clone(), path: path.clone(), data: data.to_owned() });
    }
    match chosen.iter().find_map(|disk| Some((disk, graph.part_of_file(&disk.id)?))) {
        Some((disk, (offset, size))) => {
            Err(DrivesError::Part { id: disk.id.clone(), path: disk.path.clone(), offset, size })
        }
        None => Ok(chosen),
    }
}

/// What the image is for its QEMU, which may have file systems of its own: there a name may be another file's, or none.
fn identity_in(pid: i32, path: &str) -> Option<String> {
    identity::of(&path_in(pid, Path::new(path)))
}

/// Writable drives, and writable nodes that no device uses.
fn choose(
    drives: &[Value],
    graph: Option<&DiskGraph>,
    choice: DiskSelection<'_>,
) -> Result<Vec<CopiedDisk>, DrivesError> {
    let writable = || drives.iter().filter(|drive| is_writable(drive));
    let nodes = || graph.into_iter().flat_map(DiskGraph::unused_nodes);
    if let DiskSelection::Named(names) = choice {
        let known = writable().filter_map(name_of).chain(nodes().map(|node| node.name.as_str()));
        check_names("--copy-disks", names, known)?;
    }
    let is_chosen = |name: &str| match choice {
        DiskSelection::All => true,
        DiskSelection::Named(names) => names.iter().any(|named| named == name),
    };
    let drives: Vec<&Value> = writable()
        .filter(|drive| matches!(choice, DiskSelection::All) || name_of(drive).is_some_and(is_chosen))
        .collect();
    let nodes: Vec<&Node> = nodes().filter(|node| is_chosen(&node.name)).collect();
    if drives.len() + nodes.len() > COPIED_MAX {
        return Err(DescriptionError::Copied(drives.len() + nodes.len()).into());
    }
    let mut disks = drives.into_iter().filter_map(disk).collect::<Result<Vec<CopiedDisk>, DrivesError>>()?;
    for node in nodes {
        disks.extend(graph.map(|graph| unused(graph, node)).transpose()?);
    }
    Ok(disks)
}

/// There is a medium in it, and not for reading only.
fn is_writable(drive: &Value) -> bool {
    let medium = drive.get("inserted");
    medium.is_some_and(|medium| !medium.get("ro").and_then(Value::as_bool).unwrap_or(false))
}

/// The name of a drive, or of its block node.
fn name_of(drive: &Value) -> Option<&str> {
    let own = drive.get("device").and_then(Value::as_str).filter(|name| !name.is_empty());
    own.or_else(|| drive.pointer("/inserted/node-name")?.as_str())
}

/// A node that no device uses yet: one that is plugged in later may.
fn unused(graph: &DiskGraph, node: &Node) -> Result<CopiedDisk, DrivesError> {
    let id = node.name.clone();
    let Some(format) = ImageFormat::from_name(&node.driver) else {
        return Err(DrivesError::Format { id, found: node.driver.clone() });
    };
    let path = graph.opener(node).path.clone();
    if path.is_empty() || node.size == 0 {
        return Err(DrivesError::Nameless(id));
    }
    let identity = identity::of(Path::new(&path));
    Ok(CopiedDisk { id, path, format, size: node.size, identity })
}

/// None if there is no medium in it, or one for reading only.
fn disk(drive: &Value) -> Option<Result<CopiedDisk, DrivesError>> {
    let medium = drive.get("inserted")?;
    if medium.get("ro").and_then(Value::as_bool).unwrap_or(false) {
        return None;
    }
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let id = name_of(drive).unwrap_or_default().to_owned();
    let found = text(medium, "drv").unwrap_or_default();
    let Some(format) = ImageFormat::from_name(&found) else {
        return Some(Err(DrivesError::Format { id, found }));
    };
    let size = medium.pointer("/image/virtual-size").and_then(Value::as_u64).filter(|size| *size > 0);
    Some(match (node_file(medium), size) {
        (Some(path), Some(size)) => {
            let identity = identity::of(Path::new(&path));
            Ok(CopiedDisk { id, path, format, size, identity })
        }
        _ => Err(DrivesError::Nameless(id)),
    })
}

fn check_arguments(arguments: &[String]) -> Result<(), DrivesError> {
    // In QEMU's own notation and in JSON, which it takes too.
    let names = |argument: &String, key: &str| {
        argument.contains(&format!("{key}=")) || argument.contains(&format!("\"{key}\""))
    };
    let unlocked = |argument: &String| names(argument, "locking") && argument.contains("off");
    // As one option, or as the options of one (`backing.file.filename=`). An empty one says that there is none.
    let is_backing =
        |(key, value): (&str, &str)| key.split('.').any(|part| part == "backing") && !value.is_empty();
    let chained = |argument: &String| {
        argument.contains("\"backing\"")
            || argument.split(',').filter_map(|word| word.split_once('=')).any(is_backing)
    };
    let shared = |argument: &String| names(argument, "share-rw") && !argument.contains("share-rw=off");
    if arguments.iter().any(shared) {
        Err(DrivesError::Shared)
    } else if arguments.iter().any(unlocked) {
        Err(DrivesError::Unlocked)
    } else if arguments.iter().any(chained) {
        Err(DrivesError::Chain)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};

    fn drive(changed: Value) -> Value {
        let mut medium = json!({
            "drv": "qcow2", "ro": false, "node-name": "#block1",
            "image": { "filename": "/srv/a.qcow2", "virtual-size": 1 << 30 }
        });
        medium.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        json!({ "device": "virtio0", "inserted": medium })
    }

    #[test]
    fn drives_that_the_guest_may_write_go_along_and_no_others() {
        let disk_of = |changed| disk(&drive(changed));
        let found = disk_of(json!({})).unwrap().unwrap();
        let wanted = CopiedDisk {
            id: "virtio0".into(),
            path: "/srv/a.qcow2".into(),
            format: ImageFormat::Qcow2,
            size: 1 << 30,
            identity: None,
        };
        assert_eq!(found, wanted);
        assert!(disk_of(json!({ "ro": true })).is_none());
        assert!(disk(&json!({ "device": "ide1-cd0" })).is_none(), "no medium");
        let vmdk = disk_of(json!({ "drv": "vmdk" })).unwrap();
        assert!(matches!(vmdk, Err(DrivesError::Format { .. })), "{vmdk:?}");
        let nameless = disk_of(json!({ "image": {} })).unwrap();
        assert!(matches!(nameless, Err(DrivesError::Nameless(_))), "{nameless:?}");
    }

    #[test]
    fn disks_are_chosen_by_name_and_other_names_are_refused_with_the_list() {
        let named = |name: &str| {
            let mut drive = drive(json!({}));
            drive["device"] = name.into();
            drive
        };
        let mut cd = drive(json!({ "ro": true }));
        cd["device"] = "cd0".into();
        let drives = [named("vda"), named("vdb"), cd, named("")];
        let ids = |choice: DiskSelection<'_>| {
            choose(&drives, None, choice).map(|all| all.into_iter().map(|d| d.id).collect::<Vec<_>>())
        };
        assert_eq!(ids(DiskSelection::All).unwrap(), ["vda", "vdb", "#block1"]);
        assert_eq!(ids(DiskSelection::Named(&["vdb".into(), "#block1".into()])).unwrap(), ["vdb", "#block1"]);
        for wrong in ["vdc", "cd0", ""] {
            let refused = ids(DiskSelection::Named(&["vda".into(), wrong.into()])).unwrap_err().to_string();
            assert!(refused.contains("#block1, vda, vdb"), "{refused}");
        }
        let many: Vec<Value> = (0..=COPIED_MAX).map(|number| named(&format!("d{number}"))).collect();
        let refused = choose(&many, None, DiskSelection::All).unwrap_err().to_string();
        assert!(refused.contains("25 disks") && refused.contains("at most 24"), "{refused}");
        assert_eq!(choose(&many[1..], None, DiskSelection::All).unwrap().len(), COPIED_MAX);
        assert_eq!(choose(&many, None, DiskSelection::Named(&["d3".into()])).unwrap().len(), 1);
    }

    #[test]
    fn without_a_name_of_its_own_a_drive_is_its_block_node() {
        let mut drive = drive(json!({}));
        drive["device"] = "".into();
        assert_eq!(disk(&drive).unwrap().unwrap().id, "#block1");
    }

    /// A device has no mark, so that its identity alone keeps it from being copied onto itself.
    #[test]
    fn a_disk_is_what_its_own_qemu_sees_under_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        std::fs::write(&path, "x").unwrap();
        let script =
            format!("mount -t tmpfs none {0} && touch {0}/d && echo && exec sleep 60", dir.path().display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &script]).stdout(Stdio::piped());
        let mut qemus = command.spawn().unwrap();
        // It says that its file system is there.
        qemus.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let [own, there] = [std::process::id(), qemus.id()]
            .map(|pid| identity_in(i32::try_from(pid).unwrap(), path.to_str().unwrap()).unwrap());
        qemus.kill().unwrap();
        qemus.wait().unwrap();
        assert_eq!(Some(own.clone()), identity::of(&path));
        assert!(there != own && there.starts_with("file system 1021994, file "), "{there} and {own}");
    }

    #[test]
    fn disks_without_locks_or_with_chains_on_the_command_line_stay() {
        let check = |argument: &str| check_arguments(&[argument.to_owned()]);
        assert!(check("if=none,id=d,file=/srv/locking/backing.img").is_ok());
        assert!(check("driver=qcow2,file=f,backing=").is_ok());
        assert!(matches!(check("virtio-blk-pci,drive=d,share-rw=on"), Err(DrivesError::Shared)));
        assert!(check("virtio-blk-pci,drive=d,share-rw=off").is_ok());
        assert!(matches!(check("id=d,file.locking=off,file=/a"), Err(DrivesError::Unlocked)));
        assert!(matches!(check(r#"{"driver":"file","locking":"off"}"#), Err(DrivesError::Unlocked)));
        for chained in
            ["backing=base", "backing.driver=qcow2,backing.file.filename=b", "file.backing.driver=raw"]
        {
            let argument = format!("driver=qcow2,file=f,{chained}");
            assert!(matches!(check(&argument), Err(DrivesError::Chain)), "{chained}");
        }
        assert!(matches!(check(r#"{"driver":"qcow2","backing":"base"}"#), Err(DrivesError::Chain)));
    }
}
