//! How trials end: put back on request, by their time, or by the agent's next process.

use std::collections::BTreeMap;

use linerate_api::ErrorBody;
use linerate_fabric::collect::kernel::ethtool;
use linerate_fabric::link::Settings;
use linerate_fabric::link::apply::{self, ApplyError};

use super::store::{Trial, Trials, file, save};
use super::{Begun, linked};
use crate::faults::chain;

/// Puts back what an earlier agent process left on trial.
pub fn recover(state: &Trials) {
    let Ok(bytes) = std::fs::read(file(state)) else { return };
    let Ok(left) = serde_json::from_slice::<BTreeMap<String, Trial>>(&bytes) else {
        tracing::error!(file = %file(state).display(), "what was on trial cannot be read; check the ports by hand");
        return;
    };
    let mut trials = state.lock();
    *trials = left;
    for (port, trial) in trials.iter_mut() {
        tracing::warn!(port, "a change was not confirmed before the agent ended: it is put back");
        trial.stuck.get_or_insert_default();
    }
    put_back_stuck(&mut trials);
    for (port, trial) in trials.iter() {
        let why = trial.stuck.clone().unwrap_or_default();
        tracing::error!("{}", Ended::Stuck(why).describe(port));
    }
    if let Err(error) = save(state, &trials) {
        tracing::error!(error = error.message, "the list of trials");
    }
}

/// How a trial ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    PutBack,
    /// Not as before, and why.
    Stuck(String),
    Confirmed,
}

impl Ended {
    /// What the operator has to know of the port.
    pub(super) fn describe(&self, port: &str) -> String {
        match self {
            Ended::PutBack => format!("{port} was put back"),
            Ended::Stuck(why) => format!(
                "{port} could NOT be put back: {why}; set that by hand, or restart the agent to try again; \
                 `linerate link confirm {port}` makes the agent forget it"
            ),
            Ended::Confirmed => format!("{port} was confirmed meanwhile and stays"),
        }
    }
}

/// Puts back all of them: the error, and then what became of each port.
pub(crate) fn give_up(state: &Trials, begun: &[Begun], error: ErrorBody) -> ErrorBody {
    let ended = end_all(state, begun);
    let texts = begun.iter().zip(ended).map(|(one, ended)| ended.describe(&one.port));
    let message = std::iter::once(error.message).chain(texts).collect::<Vec<_>>().join("; ");
    ErrorBody { message, ..error }
}

/// Puts back all of them that are still on trial, the last one first.
pub(super) fn end_all(state: &Trials, begun: &[Begun]) -> Vec<Ended> {
    let mut ended: Vec<Ended> = begun.iter().rev().map(|one| end(state, one)).collect();
    ended.reverse();
    // What blocked one may have been put back after it.
    let trials = state.lock();
    for (one, ended) in begun.iter().zip(&mut ended) {
        if matches!(ended, Ended::Stuck(_)) && !trials.contains_key(&one.port) {
            *ended = Ended::PutBack;
        }
    }
    ended
}

/// Puts it back, if it is still this trial.
pub(super) fn end(state: &Trials, begun: &Begun) -> Ended {
    let Begun { port, number } = begun;
    let mut trials = state.lock();
    let Some(trial) = trials.get_mut(port).filter(|trial| trial.number == *number) else {
        return Ended::Confirmed;
    };
    let ended = match put_back(port, &trial.undo) {
        Ok(()) => Ended::PutBack,
        Err(error) => Ended::Stuck(error.to_string()),
    };
    let text = ended.describe(port);
    match &ended {
        Ended::Stuck(why) => {
            trial.stuck = Some(why.clone());
            tracing::error!("new settings were not confirmed or do not work: {text}");
        }
        _ => {
            trials.remove(port);
            tracing::warn!("new settings were not confirmed or do not work: {text}");
            put_back_stuck(&mut trials);
        }
    }
    state.notify_ended();
    if let Err(error) = save(state, &trials) {
        tracing::error!(error = error.message, "the list of trials");
    }
    ended
}

/// Tries once more what could not be put back, until nothing more can be. A port's MTU cannot be larger than that of
/// the port below, and that port may have been put back only now.
fn put_back_stuck(trials: &mut BTreeMap<String, Trial>) {
    loop {
        let before = trials.len();
        trials.retain(|port, trial| {
            if trial.stuck.is_none() {
                return true;
            }
            let Err(error) = put_back(port, &trial.undo) else {
                tracing::warn!("{}", Ended::PutBack.describe(port));
                return false;
            };
            trial.stuck = Some(error.to_string());
            true
        });
        if trials.len() == before {
            return;
        }
    }
}

/// What was not put back.
#[derive(Debug, thiserror::Error)]
enum PutBackError {
    /// The port is not there, or the kernel does not answer.
    #[error("{}", .0.message)]
    Port(ErrorBody),
    #[error("{}", together(.0))]
    Refused(Vec<ApplyError>),
}

fn together(errors: &[ApplyError]) -> String {
    errors.iter().map(|error| chain(error)).collect::<Vec<_>>().join("; ")
}

/// The rest is put back whatever is refused.
fn put_back(name: &str, undo: &Settings) -> Result<(), PutBackError> {
    let mut port = linked(name).map_err(PutBackError::Port)?;
    // What ethtool cannot read now is put back without a comparison.
    let _ = ethtool::read(std::slice::from_mut(&mut port), &mut Vec::new());
    let errors = apply::put_back(&port, undo);
    match errors.is_empty() {
        true => Ok(()),
        false => Err(PutBackError::Refused(errors)),
    }
}
