//! The live graph against the command line, from which the destination's QEMU is built. Files and formats of QEMU's own
//! notation are compared as they are written: what is written in any other way is refused by [`crate::incoming_qemu`]
//! anyway.

use std::collections::HashSet;

use super::{DiskGraph, Node};
use crate::argv::{Argument, split_loose};
use crate::options::Options;

/// What the command line does not say of a guest's disks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotNamed {
    #[error(
        "the job {id} ({kind}) works on the guest's disks: wait for its end or cancel it (QMP block-job-cancel), and try again"
    )]
    Job {
        id: String,
        /// `mirror`, `commit`, …
        kind: String,
    },
    /// An image that the command line does not name.
    #[error(
        "the disk {disk} is {image} now, which the guest's command line does not name: a snapshot, a mirror or another medium has replaced what it was started with{named}. At the destination QEMU would open what the command line names. Undo it (block-commit, blockdev-change-medium), or restart the guest with the image it uses"
    )]
    Image {
        disk: String,
        /// The image in use.
        image: String,
        /// What the command line names for it, as a part of the sentence.
        named: String,
    },
    /// The guest does not use a file of the command line any more.
    #[error(
        "the guest's command line names {path}, which is not open any more: it was ejected, replaced or unplugged. At the destination QEMU would open it again. Insert it again, or restart the guest without it"
    )]
    Closed { path: String },
}

/// An option that opens an image.
struct NamedDisk {
    /// Id of the drive, or name of the node.
    name: Option<String>,
    /// Whether `name` is a drive's: the disk must still be this file.
    is_drive: bool,
    files: Vec<String>,
}

impl DiskGraph {
    /// Whether the guest uses the images of its command line and no others, and nothing is about to change that.
    pub fn check_named(&self, arguments: &[String]) -> Result<(), NotNamed> {
        if let Some(job) = self.jobs.first() {
            return Err(NotNamed::Job { id: job.id.clone(), kind: job.kind.clone() });
        }
        let given: Vec<NamedDisk> = split_loose(arguments).iter().filter_map(given).collect();
        let named: HashSet<&str> = given.iter().flat_map(|one| &one.files).map(String::as_str).collect();
        given.iter().try_for_each(|one| self.check_drive(one))?;
        for (disk, top) in self.tops() {
            if let Some(node) = self.not_named(top, &named) {
                return Err(NotNamed::Image { disk, image: shown(node, top), named: String::new() });
            }
        }
        let open: HashSet<&str> = self.nodes.iter().map(|node| node.path.as_str()).collect();
        match named.iter().find(|path| !open.contains(*path)) {
            Some(path) => Err(NotNamed::Closed { path: (*path).to_owned() }),
            None => Ok(()),
        }
    }

    /// A drive with an id has the file that was given with it.
    fn check_drive(&self, given: &NamedDisk) -> Result<(), NotNamed> {
        let (Some(id), Some(path)) = (given.name.as_ref().filter(|_| given.is_drive), given.files.first())
        else {
            return Ok(());
        };
        let drive = self.drives.iter().find(|drive| drive.name == *id);
        let Some(top) = drive.and_then(|drive| self.node(drive.node?)) else {
            return Err(NotNamed::Closed { path: path.clone() });
        };
        let opener = self.opener(top);
        if opener.path == *path {
            return Ok(());
        }
        let named = format!(" ({path})");
        Err(NotNamed::Image { disk: id.clone(), image: shown(opener, top), named })
    }

    /// A file below this node that neither the command line names nor an image that is opened by its name. What an
    /// image's header names is opened together with the image.
    fn not_named<'a>(&'a self, top: &'a Node, named: &HashSet<&str>) -> Option<&'a Node> {
        let mut next = vec![top];
        while let Some(node) = next.pop() {
            if node.children.is_empty() && !node.path.is_empty() && !named.contains(node.path.as_str()) {
                return Some(node);
            }
            let by_header = |role: &str| role == "backing" || role == "data-file";
            let below = node.children.iter().filter(|child| !by_header(&child.role));
            next.extend(below.filter_map(|child| self.node(child.node)));
        }
        None
    }
}

/// Files that a command line has QEMU open as disks, as they are written there.
pub fn named_files(arguments: &[String]) -> Vec<String> {
    split_loose(arguments).iter().filter_map(given).flat_map(|one| one.files).collect()
}

fn shown(opener: &Node, top: &Node) -> String {
    format!("{} ({})", opener.path, top.driver)
}

fn given(argument: &Argument) -> Option<NamedDisk> {
    let value = argument.value.as_deref()?;
    let is_drive = argument.name == "drive";
    let options = match argument.name.as_str() {
        "drive" => Options::parse(value, None).ok()?,
        "blockdev" => Options::parse(value, Some("driver")).ok()?,
        "cdrom" | "hda" | "hdb" | "hdc" | "hdd" | "pflash" | "fda" | "fdb" | "mtdblock" | "sd" => {
            return Some(NamedDisk { name: None, is_drive: false, files: vec![value.to_owned()] });
        }
        _ => return None,
    };
    let is_file = |key: &str| key.rsplit('.').next() == Some("filename") || (is_drive && key == "file");
    let files = options.pairs().filter(|(key, value)| is_file(key) && !value.is_empty());
    let files = files.map(|(_, value)| value.to_owned()).collect();
    let name = options.get(if is_drive { "id" } else { "node-name" }).map(str::to_owned);
    Some(NamedDisk { name, is_drive, files })
}
