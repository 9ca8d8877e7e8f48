//! Reads the graph from QEMU, in four commands that take about a millisecond each.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use super::{Bitmap, Child, DiskGraph, Drive, Job, Limits, NODES_MAX, Node};
use crate::qmp::{Qmp, QmpError};

/// What the names of Linerate's own nodes and jobs begin with.
const OURS: &str = "linerate-";
/// Filters that block jobs put above a node while they run.
const OF_JOBS: &[&str] = &["mirror_top", "commit_top"];
/// Jobs in these states do nothing any more.
const OVER: &[&str] = &["concluded", "null"];
/// Drivers that open a file or device of this host.
const FILES: &[&str] = &["file", "host_device", "host_cdrom"];

/// Why the graph cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    #[error("the guest's QEMU could not be asked for its block nodes")]
    Qmp(#[from] QmpError),
    #[error("the guest has {0} block nodes, at most {NODES_MAX} can be compared")]
    TooMany(usize),
    /// The nodes changed between two questions.
    #[error(
        "the guest's disks were being changed while its QEMU was asked for them: wait until that is over and try again"
    )]
    Changing,
    /// A file was replaced.
    #[error(
        "the guest's disk {node} is not the file that is now called {path}: that one was renamed, replaced or deleted since the guest opened it. Put the guest's image back under this name, or restart the guest"
    )]
    Replaced { node: String, path: String },
}

/// The disks of a guest, as they are now.
pub fn read(qmp: &mut Qmp, deadline: Instant) -> Result<DiskGraph, GraphError> {
    let questions = [
        ("query-named-block-nodes", json!({ "flat": true })),
        ("x-debug-query-block-graph", json!({})),
        ("query-block", json!({})),
        ("query-jobs", json!({})),
    ];
    let [nodes, edges, drives, jobs] = qmp.execute_all(questions, deadline)?;
    let mut builder = Builder::new(members(&nodes), &edges)?;
    for drive in members(&drives) {
        builder.add_drive(drive)?;
    }
    builder.add_unused()?;
    builder.graph.jobs = members(&jobs).filter_map(job).collect();
    Ok(builder.graph)
}

struct Builder<'a> {
    /// What QEMU says of the nodes.
    known: HashMap<&'a str, &'a Value>,
    /// By a node's name: role and name of the nodes below.
    below: HashMap<&'a str, Vec<(&'a str, &'a str)>>,
    /// Places of the nodes that are in the graph.
    places: HashMap<&'a str, usize>,
    graph: DiskGraph,
}

impl<'a> Builder<'a> {
    fn new(nodes: impl Iterator<Item = &'a Value>, edges: &'a Value) -> Result<Builder<'a>, GraphError> {
        let known: HashMap<&str, &Value> =
            nodes.filter_map(|node| Some((text(node, "node-name")?, node))).collect();
        if known.len() > NODES_MAX {
            return Err(GraphError::TooMany(known.len()));
        }
        let listed = |key: &str| edges.get(key).and_then(Value::as_array).into_iter().flatten();
        let number = |value: &Value, key: &str| value.get(key).and_then(Value::as_u64);
        let drivers = listed("nodes").filter(|node| text(node, "type") == Some("block-driver"));
        let names: HashMap<u64, &str> =
            drivers.filter_map(|node| Some((number(node, "id")?, text(node, "name")?))).collect();
        let mut below: HashMap<&str, Vec<(&str, &str)>> = HashMap::new();
        for edge in listed("edges") {
            let name = |key: &str| names.get(&number(edge, key)?).copied();
            if let (Some(parent), Some(child), Some(role)) =
                (name("parent"), name("child"), text(edge, "name"))
            {
                below.entry(parent).or_default().push((role, child));
            }
        }
        Ok(Builder { known, below, places: HashMap::new(), graph: DiskGraph::default() })
    }

    fn add_drive(&mut self, drive: &'a Value) -> Result<(), GraphError> {
        let medium = drive.get("inserted");
        let node = medium.and_then(|medium| text(medium, "node-name"));
        let node = node.map(|name| self.add(name)).transpose()?;
        let name = text(drive, "device").unwrap_or_default().to_owned();
        let device = text(drive, "qdev").map(str::to_owned);
        self.graph.drives.push(Drive { name, device, node, limits: medium.and_then(Limits::of) });
        Ok(())
    }

    /// The place of a node, which is added behind those below it.
    fn add(&mut self, name: &'a str) -> Result<usize, GraphError> {
        if let Some(place) = self.places.get(name) {
            return Ok(*place);
        }
        let entry = *self.known.get(name).ok_or(GraphError::Changing)?;
        let mut children = Vec::new();
        for (role, below) in self.below.get(name).cloned().unwrap_or_default() {
            let node = self.add(self.past_jobs(below))?;
            children.push(Child { role: role.to_owned(), node });
        }
        children.sort_by(|one, other| one.role.cmp(&other.role));
        let place = self.graph.nodes.len();
        self.graph.nodes.push(node(name, entry, children));
        self.places.insert(name, place);
        Ok(place)
    }

    /// The node below a job's filter.
    fn past_jobs(&self, mut name: &'a str) -> &'a str {
        while self.is_of_job(name) {
            let Some((_, below)) = self.below.get(name).and_then(|below| below.first()) else { break };
            name = below;
        }
        name
    }

    fn is_of_job(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(|node| text(node, "drv").is_some_and(|drv| OF_JOBS.contains(&drv)))
    }

    /// Writable nodes that neither a device nor another node uses.
    fn add_unused(&mut self) -> Result<(), GraphError> {
        // A job that copies a node puts its filter above it.
        let parents = self.below.iter().filter(|(parent, _)| !self.is_of_job(parent));
        let under: HashSet<&str> = parents.flat_map(|(_, below)| below).map(|(_, name)| *name).collect();
        let is_free = |(name, entry): &(&&'a str, &&Value)| {
            let writable = !flag(entry, "ro");
            writable && !name.starts_with(OURS) && !under.contains(**name) && !self.is_of_job(name)
        };
        let free = self.known.iter().filter(is_free).map(|(name, _)| *name);
        let mut free: Vec<&'a str> = free.filter(|name| !self.places.contains_key(name)).collect();
        free.sort_unstable();
        for name in free {
            let place = self.add(name)?;
            self.graph.unused.push(place);
        }
        Ok(())
    }
}

fn node(name: &str, entry: &Value, children: Vec<Child>) -> Node {
    let shown = entry.pointer("/image/filename").or_else(|| entry.get("file")).and_then(Value::as_str);
    let shown = shown.unwrap_or_default();
    let options = shown.strip_prefix("json:").and_then(|json| serde_json::from_str::<Value>(json).ok());
    let driver = text(entry, "drv").unwrap_or_default().to_owned();
    let number = |key: &str| {
        let found = options.as_ref().filter(|_| driver == "raw")?.get(key)?;
        found.as_u64().or_else(|| found.as_str()?.parse().ok())
    };
    let bitmaps = entry.get("dirty-bitmaps").and_then(Value::as_array).into_iter().flatten();
    let snapshots = entry.pointer("/image/snapshots").and_then(Value::as_array).into_iter().flatten();
    Node {
        snapshots: snapshots.filter_map(|one| Some(text(one, "name")?.to_owned())).collect(),
        name: name.to_owned(),
        path: options.as_ref().and_then(file_name).unwrap_or(shown).to_owned(),
        read_only: flag(entry, "ro"),
        no_flush: entry.pointer("/cache/no-flush").and_then(Value::as_bool).unwrap_or(false),
        size: entry.pointer("/image/virtual-size").and_then(Value::as_u64).unwrap_or(0),
        offset: number("offset"),
        limit: number("size"),
        encrypted: flag(entry, "encrypted"),
        bitmaps: bitmaps.filter_map(bitmap).collect(),
        driver,
        children,
    }
}

/// With unusual options QEMU shows an image as json:{…}, with the file's name inside.
fn file_name(options: &Value) -> Option<&str> {
    let mut node = options;
    loop {
        match (node.get("filename"), node.get("file")) {
            (Some(name), _) => return name.as_str(),
            (None, Some(below)) => node = below,
            (None, None) => return None,
        }
    }
}

/// Bitmaps without a name belong to jobs.
fn bitmap(entry: &Value) -> Option<Bitmap> {
    let name = text(entry, "name").filter(|name| !name.is_empty())?.to_owned();
    Some(Bitmap { name, persistent: flag(entry, "persistent") })
}

fn job(entry: &Value) -> Option<Job> {
    let (id, kind) = (text(entry, "id")?, text(entry, "type").unwrap_or_default());
    let over = text(entry, "status").is_some_and(|status| OVER.contains(&status));
    (!over && !id.starts_with(OURS)).then(|| Job { id: id.to_owned(), kind: kind.to_owned() })
}

/// Whether each file is still the one of its name, for the process that has them open: the destination opens it by
/// its name.
pub fn check_files(graph: &DiskGraph, pid: i32) -> Result<(), GraphError> {
    let folder = Path::new("/proc").join(pid.to_string());
    let open = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
    let open: HashSet<(u64, u64)> =
        open.filter_map(|entry| Some(storage(&fs::metadata(entry.path()).ok()?))).collect();
    // Without the right to look there is nothing to compare.
    if open.is_empty() {
        return Ok(());
    }
    let files =
        graph.nodes.iter().filter(|node| FILES.contains(&node.driver.as_str()) && node.path.starts_with('/'));
    for node in files {
        // As the process sees it: it may have a file system of its own.
        let path = folder.join("root").join(node.path.trim_start_matches('/'));
        let found = fs::metadata(&path).or_else(|_| fs::metadata(&node.path)).ok();
        if !found.is_some_and(|facts| open.contains(&storage(&facts))) {
            return Err(GraphError::Replaced { node: node.name.clone(), path: node.path.clone() });
        }
    }
    Ok(())
}

/// What an open file is, whatever it is called.
fn storage(facts: &fs::Metadata) -> (u64, u64) {
    match facts.file_type().is_block_device() {
        true => (0, facts.rdev()),
        false => (facts.dev(), facts.ino()),
    }
}

fn members(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

fn flag(value: &Value, key: &str) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or(false)
}
