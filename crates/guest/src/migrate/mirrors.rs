//! Disks that the hosts do not share, as QEMU copies them: the incoming QEMU offers an image for each over NBD. The
//! source's mirrors the guest's disk into it until the guest is stopped and both are the same.
//!
//! The incoming QEMU opens each image once more beside the guest's own, and only that second node is written and
//! locked. So the guest's disks stay untouched until it runs, exactly as with an image that another process had
//! written; and what is copied may be punched into holes whether or not the guest may do so.
//!
//! Jobs and block nodes are known by their names, so that resuming a guest at the source needs no stored state.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{DestinationQemu, MigrateError, SourceQemu, command_deadline, next_slice};
use crate::description::{CopiedDisk, ImageFormat};
use crate::qmp::{Qmp, QmpError};

/// What the names of all jobs, nodes and exports made here begin with.
const PREFIX: &str = "linerate-disk-";
/// Between two looks at the jobs while the guest runs.
const LOOK: Duration = Duration::from_millis(100);
/// The same while it is paused.
const SHORT_LOOK: Duration = Duration::from_millis(1);
/// What QEMU says where another process has the image open for writing: a raw one, and a qcow2 one.
const LOCKED: [&str; 2] = ["\" lock", "read-only"];

fn name(index: usize) -> String {
    format!("{PREFIX}{index}")
}

/// An image of the destination that a disk goes into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    pub path: PathBuf,
    pub format: ImageFormat,
    /// It is a block device.
    pub is_device: bool,
    /// Past the page cache.
    pub direct: bool,
}

/// When what the guest writes to a copied disk is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// In its turn. The guest does not notice; if it writes faster than the links carry, that has no end.
    Background,
    /// Before the write is done for the guest: it cannot write faster than the links carry, and waits while there is
    /// none.
    WriteBlocking,
}

impl Writes {
    /// QEMU's name for it.
    fn copy_mode(self) -> &'static str {
        match self {
            Writes::Background => "background",
            Writes::WriteBlocking => "write-blocking",
        }
    }
}

/// How far the disks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MirrorProgress {
    /// Bytes to look at, with what the guest wrote meanwhile.
    pub total_bytes: u64,
    /// Bytes that are the same over there, or were when they were looked at.
    pub done_bytes: u64,
    /// Of some disk QEMU still looks for what is in use: nothing moves, and nothing is counted.
    pub searching: bool,
}

/// A mirror as QEMU lists it.
struct Job {
    id: String,
    status: String,
    progress: MirrorProgress,
    error: Option<String>,
}

impl Job {
    fn read(listed: &Value) -> Option<Job> {
        let text = |key: &str| listed.get(key).and_then(Value::as_str).map(str::to_owned);
        let number = |key: &str| listed.get(key).and_then(Value::as_u64).unwrap_or(0);
        let (total_bytes, status) = (number("total-progress"), text("status")?);
        let searching = total_bytes == 0 && matches!(status.as_str(), "created" | "running");
        let progress = MirrorProgress { total_bytes, done_bytes: number("current-progress"), searching };
        let id = text("id").filter(|id| id.starts_with(PREFIX))?;
        Some(Job { id, status, progress, error: text("error") })
    }

    fn is_over(&self) -> bool {
        self.status == "concluded"
    }
}

fn jobs(qmp: &mut Qmp) -> Result<Vec<Job>, MigrateError> {
    let listed = qmp.execute("query-jobs", json!({}), command_deadline())?;
    Ok(listed.as_array().into_iter().flatten().filter_map(Job::read).collect())
}

fn sum(jobs: &[Job]) -> MirrorProgress {
    jobs.iter().fold(MirrorProgress::default(), |sum, job| MirrorProgress {
        total_bytes: sum.total_bytes.saturating_add(job.progress.total_bytes),
        done_bytes: sum.done_bytes.saturating_add(job.progress.done_bytes),
        searching: sum.searching || job.progress.searching,
    })
}

impl SourceQemu {
    /// Connects to the destination's images through a socket that has a listener already, and begins to mirror.
    pub fn begin_mirrors(
        &mut self,
        disks: &[CopiedDisk],
        socket: &Path,
        writes: Writes,
        deadline: Instant,
    ) -> Result<(), MigrateError> {
        self.copied = disks.iter().map(|disk| disk.id.clone()).collect();
        for (index, disk) in disks.iter().enumerate() {
            // Zeros are reported and not sent.
            let target = json!({
                "driver": "nbd", "node-name": name(index), "export": name(index),
                "server": { "type": "unix", "path": path_text(socket)? },
                "discard": "unmap", "detect-zeroes": "unmap",
            });
            self.qmp.execute("blockdev-add", target, deadline)?;
            // A job that is over stays listed until it is dismissed: how it ended cannot be missed.
            let mirror = json!({
                "job-id": name(index), "device": disk.id, "target": name(index), "sync": "full",
                "copy-mode": writes.copy_mode(), "auto-dismiss": false,
            });
            self.qmp.execute("blockdev-mirror", mirror, deadline)?;
        }
        Ok(())
    }

    /// Waits until every disk is the same over there but for what the guest is just writing; from then on it is kept
    /// so.
    pub fn wait_mirrors_ready(
        &mut self,
        give_up: &dyn Fn() -> bool,
        report: &mut dyn FnMut(MirrorProgress),
    ) -> Result<(), MigrateError> {
        loop {
            if give_up() {
                return Err(MigrateError::GivenUp);
            }
            let jobs = self.running_mirrors()?;
            report(sum(&jobs));
            if jobs.iter().all(|job| job.status == "ready") {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// How far the mirrors are; none if no disk is copied.
    pub(super) fn look_at_mirrors(&mut self) -> Result<Option<MirrorProgress>, MigrateError> {
        Ok(if self.copied.is_empty() { None } else { Some(sum(&self.running_mirrors()?)) })
    }

    /// The guest is stopped: has the last of its writes carried over, and closes the destination's images. Then both
    /// are the same.
    pub fn complete_mirrors(
        &mut self,
        deadline: Instant,
        give_up: &dyn Fn() -> bool,
    ) -> Result<Option<MirrorProgress>, MigrateError> {
        if self.copied.is_empty() {
            return Ok(None);
        }
        let running = self.running_mirrors()?;
        for job in &running {
            // Of a mirror that is ready this is no cancel: it ends when nothing is left to copy.
            let end = json!({ "device": job.id, "force": false });
            if let Err(refused) = self.qmp.execute("block-job-cancel", end, command_deadline()) {
                // It may have failed since it was looked at: its own error names the disk.
                self.running_mirrors()?;
                return Err(refused.into());
            }
        }
        loop {
            let jobs = self.sound_mirrors()?;
            if jobs.iter().all(Job::is_over) {
                let progress = sum(&jobs);
                forget(&mut self.qmp, &jobs)?;
                self.copied.clear();
                return Ok(Some(progress));
            }
            next_slice(deadline, give_up)?;
            std::thread::sleep(SHORT_LOOK);
        }
    }

    /// Ends all mirrors, also those of earlier agents, in any state, and closes the destination's images. What they
    /// are connected to must have been closed: QEMU's main thread, and with it the guest, would wait for an image that
    /// is silent.
    pub(super) fn drop_mirrors(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        self.copied.clear();
        for job in jobs(&mut self.qmp)?.iter().filter(|job| !job.is_over()) {
            match self.qmp.execute("block-job-cancel", json!({ "device": job.id, "force": true }), deadline) {
                // It may have ended by itself meanwhile.
                Ok(_) | Err(QmpError::Refused { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        loop {
            let jobs = jobs(&mut self.qmp)?;
            if jobs.iter().all(Job::is_over) {
                return forget(&mut self.qmp, &jobs);
            }
            next_slice(deadline, &|| false)?;
            std::thread::sleep(SHORT_LOOK);
        }
    }

    /// None of them may be over.
    fn running_mirrors(&mut self) -> Result<Vec<Job>, MigrateError> {
        let jobs = self.sound_mirrors()?;
        match jobs.iter().find(|job| job.is_over()) {
            Some(job) => Err(self.failed_mirror(&job.id, "it ended by itself")),
            None => Ok(jobs),
        }
    }

    /// All of them must be there, and none may have failed.
    fn sound_mirrors(&mut self) -> Result<Vec<Job>, MigrateError> {
        let jobs = jobs(&mut self.qmp)?;
        if let Some((job, error)) = jobs.iter().find_map(|job| Some((job, job.error.as_ref()?))) {
            return Err(self.failed_mirror(&job.id, error));
        }
        if jobs.len() != self.copied.len() {
            return Err(self.failed_mirror("", "another program ended its copy"));
        }
        Ok(jobs)
    }

    fn failed_mirror(&self, job: &str, description: &str) -> MigrateError {
        let index = job.strip_prefix(PREFIX).and_then(|index| index.parse::<usize>().ok());
        let disk = index.and_then(|index| self.copied.get(index)).or(self.copied.first());
        MigrateError::Mirror { disk: disk.cloned().unwrap_or_default(), description: description.to_owned() }
    }
}

impl DestinationQemu {
    /// Offers images on a UNIX socket, in the order in which the source names its disks. An image that another process
    /// has open for writing is refused before a byte of it is touched.
    pub fn export_disks(
        &mut self,
        exports: &[Export],
        socket: &Path,
        deadline: Instant,
    ) -> Result<(), MigrateError> {
        let address = json!({ "type": "unix", "data": { "path": path_text(socket)? } });
        self.qmp.execute("nbd-server-start", json!({ "addr": address }), deadline)?;
        for (index, export) in exports.iter().enumerate() {
            let driver = if export.is_device { "host_device" } else { "file" };
            let file = json!({ "driver": driver, "filename": path_text(&export.path)?, "discard": "unmap" });
            let image = json!({
                "driver": export.format.name(), "node-name": name(index), "file": file,
                "discard": "unmap", "cache": { "direct": export.direct },
            });
            let offer = json!({
                "type": "nbd", "id": name(index), "node-name": name(index), "name": name(index),
                "writable": true,
            });
            let offered = self
                .qmp
                .execute("blockdev-add", image, deadline)
                .and_then(|_| self.qmp.execute("block-export-add", offer, deadline));
            offered.map_err(|error| not_offered(error, &export.path))?;
        }
        self.exports = exports.len();
        Ok(())
    }

    /// Takes the offers back and closes the images, so that the guest can open its disks. No client writes them any
    /// more.
    pub(super) fn close_exports(&mut self, deadline: Instant) -> Result<(), MigrateError> {
        if self.exports == 0 {
            return Ok(());
        }
        self.qmp.execute("nbd-server-stop", json!({}), deadline)?;
        for index in 0..std::mem::take(&mut self.exports) {
            self.qmp.execute("blockdev-del", json!({ "node-name": name(index) }), deadline)?;
        }
        Ok(())
    }
}

fn not_offered(error: QmpError, path: &Path) -> MigrateError {
    // The name may hold any words.
    let without_path = |description: &str| description.replace(&*path.to_string_lossy(), "");
    let locked = |description: &str| LOCKED.iter().any(|words| without_path(description).contains(words));
    match &error {
        QmpError::Refused { description, .. } if locked(description) => {
            MigrateError::ImageInUse { path: path.to_owned(), source: error }
        }
        _ => MigrateError::Image { path: path.to_owned(), source: error },
    }
}

/// Dismisses jobs that are over and closes what they wrote to.
fn forget(qmp: &mut Qmp, over: &[Job]) -> Result<(), MigrateError> {
    for job in over {
        qmp.execute("job-dismiss", json!({ "id": job.id }), command_deadline())?;
    }
    // Flat: without each node's backing files once more (QEMU 5.0).
    let nodes = qmp.execute("query-named-block-nodes", json!({ "flat": true }), command_deadline())?;
    let names = nodes.as_array().into_iter().flatten();
    let names = names.filter_map(|node| node.get("node-name").and_then(Value::as_str));
    for node in names.filter(|name| name.starts_with(PREFIX)) {
        qmp.execute("blockdev-del", json!({ "node-name": node }), command_deadline())?;
    }
    Ok(())
}

fn path_text(path: &Path) -> Result<&str, MigrateError> {
    path.to_str().ok_or_else(|| MigrateError::Path(path.display().to_string()))
}
