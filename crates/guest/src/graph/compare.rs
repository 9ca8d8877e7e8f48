//! Compares the source's graph with the destination's, or with itself at another time.

use std::collections::BTreeMap;

use super::{DiskGraph, Drive, Node};
use crate::bytes::exact_bytes;
use crate::description::CopiedDisk;
use crate::incoming_qemu::mapped;

/// Drivers that open a file or device; which of them depends on what the path leads to.
const OPENERS: &[&str] = &["file", "host_device", "host_cdrom"];
/// No chain of images is as long.
const DEPTH_MAX: usize = 512;

/// What may differ between two hosts.
#[derive(Clone, Copy, Debug)]
pub struct Mapping<'a> {
    /// Source path to local path, of a file or of a folder.
    pub paths: &'a BTreeMap<String, String>,
    /// Disks whose copy is a whole image at the destination, without backing files.
    pub copied: &'a [CopiedDisk],
}

/// Where two graphs differ. The first is the source's, or the earlier one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    #[error(
        "the job {id} ({kind}) works on the guest's disks: wait for its end, or cancel it (block-job-cancel)"
    )]
    Job {
        id: String,
        /// `mirror`, `commit`, …
        kind: String,
    },
    /// A drive is only in one of them.
    #[error("the guest's disk {0} is missing in one of the two")]
    Missing(String),
    /// Another image, or none.
    #[error("the disk {disk} was {first}, and is {second}")]
    Image { disk: String, first: String, second: String },
    /// Another size or part.
    #[error("the disk {disk} ({path}): {what} was {}, and is {}", exact_bytes(*first), exact_bytes(*second))]
    Size { disk: String, path: String, what: &'static str, first: u64, second: u64 },
    /// Open for writing in one of them only.
    #[error("the disk {disk} ({path}) can be written in one of the two only")]
    Access { disk: String, path: String },
}

impl DiskGraph {
    /// Where the destination's graph is not the same as this one of the source.
    pub fn difference(&self, destination: &DiskGraph, mapping: Mapping<'_>) -> Option<Difference> {
        let comparison = Comparison { first: self, second: destination, mapping };
        comparison.jobs().or_else(|| comparison.drives()).or_else(|| comparison.unused())
    }

    /// Where a later reading of the same QEMU is not the same as this one.
    pub fn change(&self, later: &DiskGraph) -> Option<Difference> {
        self.difference(later, Mapping { paths: &BTreeMap::new(), copied: &[] })
    }
}

struct Comparison<'a> {
    first: &'a DiskGraph,
    second: &'a DiskGraph,
    mapping: Mapping<'a>,
}

impl Comparison<'_> {
    fn jobs(&self) -> Option<Difference> {
        let job = self.first.jobs.first().or(self.second.jobs.first())?;
        Some(Difference::Job { id: job.id.clone(), kind: job.kind.clone() })
    }

    fn drives(&self) -> Option<Difference> {
        let (first, second) = (keyed(self.first), keyed(self.second));
        // Versions of QEMU differ in the empty drives that they make by themselves.
        let lone = |(key, drive): (&Key, &&Drive), others: &BTreeMap<Key, &Drive>| {
            let missing = drive.node.is_some() && !others.contains_key(key);
            missing.then(|| Difference::Missing(key.1.clone()))
        };
        let here_only = first.iter().find_map(|entry| lone(entry, &second));
        let there_only = || second.iter().find_map(|entry| lone(entry, &first));
        let both = || first.iter().find_map(|(key, drive)| self.drive(&key.1, drive, second.get(key)?));
        here_only.or_else(there_only).or_else(both)
    }

    fn drive(&self, key: &str, first: &Drive, second: &Drive) -> Option<Difference> {
        let tops =
            (first.node.and_then(|at| self.first.node(at)), second.node.and_then(|at| self.second.node(at)));
        match tops {
            (None, None) => None,
            (Some(one), Some(other)) => self.top(key, &first.name, one, other),
            (one, other) => {
                let shown = |graph: &DiskGraph, node: Option<&Node>| {
                    node.map_or_else(|| "without a medium".to_owned(), |node| image(graph, node))
                };
                let (first, second) = (shown(self.first, one), shown(self.second, other));
                Some(Difference::Image { disk: key.to_owned(), first, second })
            }
        }
    }

    fn unused(&self) -> Option<Difference> {
        self.first.unused_nodes().find_map(|node| {
            let other = self.second.unused_nodes().find(|other| other.name == node.name);
            match other {
                Some(other) => self.top(&node.name, "", node, other),
                None => Some(Difference::Missing(node.name.clone())),
            }
        })
    }

    fn top(&self, disk: &str, drive: &str, first: &Node, second: &Node) -> Option<Difference> {
        if first.read_only != second.read_only {
            return Some(Difference::Access {
                disk: disk.to_owned(),
                path: self.first.opener(first).path.clone(),
            });
        }
        let mut copied = self.mapping.copied.iter().map(|copied| &copied.id);
        let copied = copied.any(|id| *id == first.name || (!drive.is_empty() && id == drive));
        let size = size(disk, self.first, first, "its size", Some(first.size), Some(second.size));
        size.or_else(|| self.nodes(disk, copied, first, second, 0))
    }

    fn nodes(
        &self,
        disk: &str,
        copied: bool,
        first: &Node,
        second: &Node,
        depth: usize,
    ) -> Option<Difference> {
        let differs = || {
            let (first, second) = (image(self.first, first), image(self.second, second));
            Some(Difference::Image { disk: disk.to_owned(), first, second })
        };
        let openers = [first, second].map(|node| OPENERS.contains(&node.driver.as_str()));
        let same_driver = first.driver == second.driver || openers == [true, true];
        let opens = first.children.is_empty();
        if !same_driver || first.encrypted != second.encrypted || (opens && !self.same_path(first, second)) {
            return differs();
        }
        if depth > DEPTH_MAX {
            return Some(Difference::Missing(disk.to_owned()));
        }
        let sized = |what, one, other| size(disk, self.first, first, what, one, other);
        // The file of an image grows, and its size is of no concern: that of what is in it is.
        let whole = if opens { None } else { sized("its size", Some(first.size), Some(second.size)) };
        let part = || sized("its offset in the file", first.offset, second.offset);
        let limit = || sized("its part of the file", first.limit, second.limit);
        if let Some(found) = whole.or_else(part).or_else(limit) {
            return Some(found);
        }
        let counts = |child: &&super::Child| !copied || child.role != "backing";
        let (ours, theirs): (Vec<_>, Vec<_>) =
            (first.children.iter().filter(counts).collect(), second.children.iter().filter(counts).collect());
        if ours.len() != theirs.len() {
            return differs();
        }
        ours.into_iter().zip(theirs).find_map(|(one, other)| {
            match (self.first.node(one.node), self.second.node(other.node)) {
                (Some(below), Some(there)) if one.role == other.role => {
                    self.nodes(disk, copied, below, there, depth + 1)
                }
                _ => differs(),
            }
        })
    }

    /// A backing file's name is in the image above it, and is the same on both hosts.
    fn same_path(&self, first: &Node, second: &Node) -> bool {
        second.path == first.path || second.path == mapped(self.mapping.paths, &first.path)
    }
}

/// What a drive is known by, and its name: a drive and a device may have the same one.
type Key = (&'static str, String);

/// By their ids; drives without one by their order, which is that of the command line.
pub(super) fn keyed(graph: &DiskGraph) -> BTreeMap<Key, &Drive> {
    let mut nameless = 0;
    let key = |drive: &Drive| match (drive.name.as_str(), drive.device_id()) {
        ("", Some(id)) => ("device", id.to_owned()),
        ("", None) => {
            nameless += 1;
            ("number", format!("number {nameless} without an id"))
        }
        (name, _) => ("drive", name.to_owned()),
    };
    let keys: Vec<Key> = graph.drives.iter().map(key).collect();
    keys.into_iter().zip(&graph.drives).collect()
}

fn size(
    disk: &str,
    graph: &DiskGraph,
    node: &Node,
    what: &'static str,
    first: Option<u64>,
    second: Option<u64>,
) -> Option<Difference> {
    let (first, second) = (first.unwrap_or(0), second.unwrap_or(0));
    let path = graph.opener(node).path.clone();
    (first != second).then(|| Difference::Size { disk: disk.to_owned(), path, what, first, second })
}

/// The image as an operator knows it.
fn image(graph: &DiskGraph, node: &Node) -> String {
    let format = if OPENERS.contains(&node.driver.as_str()) { None } else { Some(node.driver.as_str()) };
    let words: Vec<&str> = format.into_iter().chain(node.encrypted.then_some("encrypted")).collect();
    let words = if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) };
    let base = graph.below(node, "backing").map(|base| format!(" on {}", graph.opener(base).path));
    format!("{}{words}{}", graph.opener(node).path, base.unwrap_or_default())
}
