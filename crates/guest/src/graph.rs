//! The live disk graph: which images a guest uses now, as its QEMU says. Snapshots, mirrors and changed media make it
//! differ from the command line, from which the destination's QEMU is built. *The disk that ran is the disk that
//! runs*: before a guest is committed, the graph of the destination's QEMU must be the same as the source's.
//!
//! Nodes that Linerate makes for copied disks are left out, and so are the filters that block jobs put above a node.

mod bitmaps;
mod compare;
mod follow;
mod limits;
mod named;
mod read;

use serde::{Deserialize, Serialize};

use crate::description::JSON_BYTES_MAX;

pub use compare::{Difference, Mapping};
pub use limits::Limits;
pub use named::{NotNamed, named_files};
pub use read::{GraphError, check_files, read};

/// Most nodes in a graph.
const NODES_MAX: usize = 4096;
/// Formats and filters above a file are never as many.
const FILTERS_MAX: usize = 32;

/// The disks of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskGraph {
    /// Drives, with and without a medium, in QEMU's order.
    pub drives: Vec<Drive>,
    /// Writable nodes that no device uses, by their place in `nodes`.
    pub unused: Vec<usize>,
    /// All nodes. A node comes behind its children.
    pub nodes: Vec<Node>,
    /// Running jobs, without Linerate's own.
    pub jobs: Vec<Job>,
}

/// A drive of the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// The drive's id; empty where the device uses a block node.
    pub name: String,
    /// Id or path of the guest's device.
    pub device: Option<String>,
    /// Its uppermost node; none without a medium.
    pub node: Option<usize>,
    /// Limits of its I/O; none without any, or without a medium.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Name, also an automatic one (`#block123`).
    pub name: String,
    pub driver: String,
    /// File name of the image.
    pub path: String,
    /// Opened for reading only.
    pub read_only: bool,
    /// Virtual size, in bytes.
    pub size: u64,
    /// Where a raw node begins in its file, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Size that a raw node is limited to, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub encrypted: bool,
    /// Dirty bitmaps with a name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bitmaps: Vec<Bitmap>,
    /// Snapshots within the image; never sent to a peer.
    #[serde(skip)]
    pub snapshots: Vec<String>,
    /// QEMU never flushes it (`cache=unsafe`); never sent to a peer.
    #[serde(skip)]
    pub no_flush: bool,
    pub children: Vec<Child>,
}

/// A node below another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Child {
    /// `file`, `backing`, `data-file`.
    pub role: String,
    /// Its place in [`DiskGraph::nodes`].
    pub node: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bitmap {
    pub name: String,
    /// Kept in the image.
    pub persistent: bool,
}

/// A job of QEMU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub id: String,
    /// `mirror`, `commit`, `backup`, …
    pub kind: String,
}

/// Why a graph that came from elsewhere is not taken.
#[derive(Debug, thiserror::Error)]
pub enum FormError {
    #[error(
        "the disk graph has {0} bytes or too many nodes: at most {JSON_BYTES_MAX} bytes and {NODES_MAX} nodes are taken"
    )]
    TooLong(usize),
    /// Not JSON, or not of this form.
    #[error("the disk graph cannot be read: the two agents may be of different versions")]
    Form(#[source] serde_json::Error),
    /// A node that is not there, or one that is below itself.
    #[error("the disk graph names nodes that it does not have")]
    Nodes,
}

impl DiskGraph {
    /// The graph as JSON.
    pub fn to_json(&self) -> Result<String, FormError> {
        let text = serde_json::to_string(self).map_err(FormError::Form)?;
        if text.len() > JSON_BYTES_MAX { Err(FormError::TooLong(text.len())) } else { Ok(text) }
    }

    /// Reads a graph that another host wrote.
    pub fn from_json(text: &str) -> Result<DiskGraph, FormError> {
        if text.len() > JSON_BYTES_MAX {
            return Err(FormError::TooLong(text.len()));
        }
        let graph: DiskGraph = serde_json::from_str(text).map_err(FormError::Form)?;
        graph.check().map(|()| graph)
    }

    /// Whether all places are those of nodes, and no node is below itself.
    pub fn check(&self) -> Result<(), FormError> {
        if self.nodes.len() > NODES_MAX {
            return Err(FormError::TooLong(self.nodes.len()));
        }
        let below = |(place, node): (usize, &Node)| node.children.iter().all(|child| child.node < place);
        let mut tops = self.drives.iter().filter_map(|drive| drive.node).chain(self.unused.iter().copied());
        let known = tops.all(|place| place < self.nodes.len());
        if known && self.nodes.iter().enumerate().all(below) { Ok(()) } else { Err(FormError::Nodes) }
    }

    fn node(&self, place: usize) -> Option<&Node> {
        self.nodes.get(place)
    }

    /// The node below in this role.
    fn below<'a>(&'a self, node: &Node, role: &str) -> Option<&'a Node> {
        let child = node.children.iter().find(|child| child.role == role)?;
        self.node(child.node)
    }

    /// The node that opens the image's file: the last one along `file`.
    pub(crate) fn opener<'a>(&'a self, mut node: &'a Node) -> &'a Node {
        for _ in 0..FILTERS_MAX {
            let Some(below) = self.below(node, "file") else { break };
            node = below;
        }
        node
    }

    /// The node and all below it.
    fn all_below<'a>(&'a self, top: &'a Node) -> Vec<&'a Node> {
        let (mut found, mut next) = (vec![top], 0);
        while let Some(node) = found.get(next).copied() {
            let below = node.children.iter().filter_map(|child| self.node(child.node));
            let new: Vec<&Node> =
                below.filter(|one| !found.iter().any(|known| std::ptr::eq(*known, *one))).collect();
            found.extend(new);
            next += 1;
        }
        found
    }

    /// Uppermost nodes with what an operator calls their disk: of drives, and of writable nodes that no device uses.
    fn tops(&self) -> impl Iterator<Item = (String, &Node)> {
        let drives = self.drives.iter().filter_map(|drive| {
            let node = self.node(drive.node?)?;
            Some((drive.called(node), node))
        });
        drives.chain(self.unused_nodes().map(|node| (node.name.clone(), node)))
    }

    /// Writable nodes that no device uses.
    pub fn unused_nodes(&self) -> impl Iterator<Item = &Node> {
        self.unused.iter().filter_map(|place| self.node(*place))
    }

    /// The uppermost node of the drive or node of this name.
    fn top(&self, name: &str) -> Option<&Node> {
        let of_drive = self.drives.iter().find(|drive| drive.name == name && !name.is_empty());
        let named = || self.tops().map(|(_, node)| node).find(|node| node.name == name);
        of_drive.and_then(|drive| self.node(drive.node?)).or_else(named)
    }

    /// The part of its file that a disk is limited to, if it is: offset and size of its raw node.
    pub fn part_of_file(&self, disk: &str) -> Option<(u64, u64)> {
        let part = |node: &&Node| node.offset.is_some_and(|offset| offset > 0) || node.limit.is_some();
        let found = self.all_below(self.top(disk)?).into_iter().find(part)?;
        Some((found.offset.unwrap_or(0), found.size))
    }

    /// The file that has a disk's data, if that is not its image.
    pub(crate) fn data_file(&self, disk: &str) -> Option<&str> {
        Some(self.below(self.top(disk)?, "data-file")?.path.as_str())
    }

    /// Whether QEMU never flushes this file: what it wrote may be in the page cache of its host alone. Only the node
    /// that opens the file counts, as one above it passes a flush on.
    pub(crate) fn is_never_flushed(&self, path: &str) -> bool {
        self.nodes.iter().any(|node| node.no_flush && node.children.is_empty() && node.path == path)
    }

    /// Virtual size of the disk in an image of this format, where it is known: of the file itself for a raw image.
    pub fn image_size(&self, path: &str, format: &str) -> Option<u64> {
        let opened = |node: &&Node| node.driver == format && self.opener(node).path == path;
        let whole = |node: &Node| if format == "raw" { self.opener(node).size } else { node.size };
        self.nodes.iter().find(opened).map(whole)
    }
}

impl Drive {
    /// What an operator calls it.
    fn called(&self, node: &Node) -> String {
        let named = Some(self.name.clone()).filter(|name| !name.is_empty());
        named.or_else(|| self.device_id().map(str::to_owned)).unwrap_or_else(|| node.name.clone())
    }

    /// The device's id, where it was given one. Paths of others may differ between versions of QEMU.
    fn device_id(&self) -> Option<&str> {
        let device = self.device.as_deref()?;
        let plain = device.strip_prefix("/machine/peripheral/").unwrap_or(device);
        let id = plain.split('/').next().filter(|id| !id.is_empty())?;
        (!id.starts_with("machine")).then_some(id)
    }
}
