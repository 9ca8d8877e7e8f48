//! Trials under way, in memory and on disk.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use linerate_api::ErrorBody;
use linerate_fabric::link::Settings;
use serde::{Deserialize, Serialize};

use super::failed;
use crate::agent::Agent;

/// A change that waits for its confirmation, or that could not be put back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Trial {
    /// Tells a later trial of the same port from this one.
    pub(super) number: u64,
    /// What puts it back.
    pub(super) undo: Settings,
    /// Why it could not be put back, wholly or in part. It is kept: the next life of the agent tries again.
    #[serde(default)]
    pub(super) stuck: Option<String>,
}

/// Trials under way, by port.
#[derive(Default)]
pub struct Trials(Mutex<BTreeMap<String, Trial>>);

impl Trials {
    /// Held while something is put back, so that nobody confirms it meanwhile.
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Trial>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where they are kept.
pub(super) fn file(agent: &Agent) -> PathBuf {
    agent.config.state_dir.join("link-trials.json")
}

/// To a new file that takes the old one's place, on disk before anything changes.
pub(super) fn save(agent: &Agent, trials: &BTreeMap<String, Trial>) -> Result<(), ErrorBody> {
    let path = file(agent);
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
