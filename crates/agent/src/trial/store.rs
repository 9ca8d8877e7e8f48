//! Trials in progress, in memory and on disk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use linerate_api::ErrorBody;
use linerate_fabric::link::Settings;
use linerate_lock::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use super::{Begun, failed};
use crate::doctor::Doctor;

/// A change in progress, or that waits for its confirmation, or that could not be put back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Trial {
    /// Distinguishes this trial from a later one of the same port.
    pub(super) number: u64,
    /// What puts it back.
    pub(super) undo: Settings,
    /// Why it could not be put back, wholly or in part. It is kept: the next process of the agent tries again.
    #[serde(default)]
    pub(super) stuck: Option<String>,
    /// It is done, and waits for its confirmation.
    #[serde(skip)]
    pub(super) waits: bool,
}

/// Trials in progress, by port.
pub struct Trials {
    /// Knows this host and its ports.
    pub(crate) doctor: Arc<Doctor>,
    all: Mutex<BTreeMap<String, Trial>>,
    ended: Condvar,
}

impl Trials {
    pub fn new(doctor: Arc<Doctor>) -> Trials {
        Trials { doctor, all: Mutex::default(), ended: Condvar::new() }
    }

    /// Held while something is put back, so that it is not confirmed meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Trial>> {
        self.all.lock()
    }

    /// Some of them ended: threads that wait for their time need not wait longer.
    pub(super) fn notify_ended(&self) {
        self.ended.notify_all();
    }

    /// Waits until this time; false if all of these ended before.
    pub(super) fn wait(&self, begun: &[Begun], until: Instant) -> bool {
        let mut all = self.lock();
        let on_trial = |all: &BTreeMap<String, Trial>, one: &Begun| {
            all.get(&one.port).is_some_and(|trial| trial.number == one.number && trial.stuck.is_none())
        };
        while begun.iter().any(|one| on_trial(&all, one)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            all = self.ended.wait_timeout(all, left);
        }
        false
    }
}

/// Where they are kept.
pub(super) fn file(state: &Trials) -> PathBuf {
    state.doctor.config.state_dir.join("link-trials.json")
}

/// To a new file that takes the old one's place, on disk before anything changes.
pub(super) fn save(state: &Trials, trials: &BTreeMap<String, Trial>) -> Result<(), ErrorBody> {
    let path = file(state);
    let write = || -> std::io::Result<()> {
        if trials.is_empty() {
            return match std::fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let new = path.with_extension("new");
        std::fs::write(&new, serde_json::to_vec(trials)?)?;
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, &path)
    };
    write().map_err(|error| failed(format!("{} cannot be written: {error}", path.display())))
}
