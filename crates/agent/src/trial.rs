//! Changes of ports on trial: everything is put back unless it is confirmed in time. What puts it back is on disk before anything
//! changes, so that an agent that dies meanwhile puts it back when it begins again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use linerate_api::{ErrorBody, LinkAnswer, LinkRequest, LinkStep, code};
use linerate_fabric::collect::kernel::{ethtool, links};
use linerate_fabric::link::apply::apply;
use linerate_fabric::link::plan::plan;
use linerate_fabric::link::{Plan, Settings, Speed, Wish};
use linerate_fabric::model::Port;
use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::faults::chain;

/// A port that had a link must have it again within this, or all is put back at once.
const LINK_WAIT: Duration = Duration::from_secs(8);
const LINK_LOOK: Duration = Duration::from_millis(200);
const WITHIN_S_MAX: u32 = 3600;

/// A change that waits for its confirmation.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Trial {
    /// Tells a later trial of the same port from this one.
    number: u64,
    undo: Settings,
}

/// Trials under way, by port.
#[derive(Default)]
pub struct Trials(Mutex<BTreeMap<String, Trial>>);

impl Trials {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Trial>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does what was asked, on trial.
pub fn set(agent: &Arc<Agent>, request: &LinkRequest) -> Result<LinkAnswer, ErrorBody> {
    within(request.confirm_within_s)?;
    let port = find(agent, &request.port)?;
    let wish = wish(request);
    let plan = plan(&port, &wish).map_err(|error| refuse(error.to_string()))?;
    let mut answer = LinkAnswer {
        port: port.name.clone(),
        steps: plan.steps.iter().map(step).collect(),
        warnings: plan.warnings.clone(),
        applied: false,
        confirm_within_s: None,
    };
    if !request.dry_run && !plan.steps.is_empty() {
        let look = || {
            let now = find(agent, &port.name)?;
            let left = self::plan(&now, &wish).map_or_else(|error| error.to_string(), |plan| words(&plan));
            Ok((now, left))
        };
        try_it(agent, &port, &plan, request.confirm_within_s, &look)?;
        answer.applied = true;
        answer.confirm_within_s = Some(request.confirm_within_s);
    }
    Ok(answer)
}

/// A trial has an end.
pub(crate) fn within(seconds: u32) -> Result<(), ErrorBody> {
    match seconds {
        1..=WITHIN_S_MAX => Ok(()),
        _ => Err(refuse(format!("confirm_within_s must be 1 to {WITHIN_S_MAX}"))),
    }
}

/// What is on trial stays.
pub fn confirm(agent: &Agent, port: &str) -> Result<(), ErrorBody> {
    let mut trials = agent.trials.lock();
    if trials.remove(port).is_none() {
        let message = format!("{port} has no change that waits; it was put back, or confirmed before");
        return Err(ErrorBody::new(code::TOO_LATE, message));
    }
    save(agent, &trials)
}

/// Puts back what an earlier life of the agent left on trial.
pub fn recover(agent: &Agent) {
    let Ok(bytes) = std::fs::read(file(agent)) else { return };
    let Ok(left) = serde_json::from_slice::<BTreeMap<String, Trial>>(&bytes) else {
        tracing::error!(file = %file(agent).display(), "what was on trial cannot be read; look at the ports by hand");
        return;
    };
    for (port, trial) in left {
        tracing::warn!(port, "a change was not confirmed before the agent ended: it is put back");
        put_back(agent, &port, &trial.undo);
    }
    let _ = std::fs::remove_file(file(agent));
}

/// Looks at a port: as it is now, and in words what is still not as wished.
pub(crate) type Look<'a> = &'a dyn Fn() -> Result<(Port, String), ErrorBody>;

/// Does it, looks whether it was done, and waits for the confirmation. Gives back the number of the trial.
pub(crate) fn try_it(
    agent: &Arc<Agent>,
    port: &Port,
    plan: &Plan,
    within_s: u32,
    look: Look<'_>,
) -> Result<u64, ErrorBody> {
    let number = begin(agent, &port.name, &plan.undo)?;
    let index = port.index.unwrap_or(0);
    let done = apply(&port.name, index, &plan.settings).map_err(|error| failed(chain(&error)));
    if let Err(error) = done.and_then(|()| look_again(port, look)) {
        end(agent, &port.name, number);
        return Err(error);
    }
    let (agent, name) = (agent.clone(), port.name.clone());
    let deadline = Duration::from_secs(within_s.into());
    let wait = move || {
        std::thread::sleep(deadline);
        end(&agent, &name, number);
    };
    match std::thread::Builder::new().name("trial".into()).spawn(wait) {
        Ok(_) => Ok(number),
        Err(error) => Err(failed(format!(
            "no thread to put it back: {error}; confirm it, or restart the agent to put it back"
        ))),
    }
}

/// Writes down what puts it back. One trial for a port at a time.
fn begin(agent: &Agent, port: &str, undo: &Settings) -> Result<u64, ErrorBody> {
    let mut trials = agent.trials.lock();
    if trials.contains_key(port) {
        let message = format!("{port} is on trial already");
        return Err(ErrorBody::new(code::TOO_LATE, message)
            .with_hint(format!("`linerate link confirm {port}`, or wait")));
    }
    let number = crate::clock::unix_ms();
    trials.insert(port.to_owned(), Trial { number, undo: undo.clone() });
    save(agent, &trials).inspect_err(|_| {
        trials.remove(port);
    })?;
    Ok(number)
}

/// Puts it back, if it is still this trial.
pub(crate) fn end(agent: &Agent, port: &str, number: u64) {
    let mut trials = agent.trials.lock();
    if trials.get(port).is_none_or(|trial| trial.number != number) {
        return;
    }
    if let Some(trial) = trials.remove(port) {
        tracing::warn!(port, "its new settings were not confirmed or do not work: put back");
        put_back(agent, port, &trial.undo);
    }
    if let Err(error) = save(agent, &trials) {
        tracing::error!(error = error.message, "the list of trials");
    }
}

fn put_back(agent: &Agent, name: &str, undo: &Settings) {
    let done = find(agent, name)
        .map_err(|error| error.message)
        .and_then(|port| apply(name, port.index.unwrap_or(0), undo).map_err(|error| chain(&error)));
    if let Err(error) = done {
        tracing::error!(port = name, error, "could not be put back: set it by hand");
    }
}

/// The settings must be as wished, and a link that was there must come back.
fn look_again(before: &Port, look: Look<'_>) -> Result<(), ErrorBody> {
    let deadline = Instant::now() + LINK_WAIT;
    loop {
        let (now, left) = look()?;
        let linked = now.carrier == Some(true) || before.carrier != Some(true);
        if left.is_empty() && linked {
            return Ok(());
        }
        if Instant::now() > deadline {
            let why = if left.is_empty() {
                "the link did not come back".to_owned()
            } else {
                format!("the adapter did not take it: {left}")
            };
            return Err(failed(format!("{}: {why}; it was put back", before.name)));
        }
        std::thread::sleep(LINK_LOOK);
    }
}

/// What a plan still has to change.
pub(crate) fn words(plan: &Plan) -> String {
    let words: Vec<String> =
        plan.steps.iter().map(|step| format!("{} is {}, not {}", step.what, step.from, step.to)).collect();
    words.join(", ")
}

/// The port as it is now.
fn find(agent: &Agent, name: &str) -> Result<Port, ErrorBody> {
    let all = links::read().map_err(|error| failed(chain(&error)))?;
    let mut ports: Vec<Port> =
        all.into_iter().map(|link| link.port).filter(|port| port.name == name).collect();
    // What ethtool does not say, the plan says is missing.
    ethtool::read(&mut ports, &mut Vec::new()).map_err(|error| failed(chain(&error)))?;
    let mut port = ports.pop().ok_or_else(|| {
        ErrorBody::new(code::NOT_FOUND, format!("there is no port {name} on this host"))
            .with_hint("`linerate link show` lists the ports")
    })?;
    port.neighbours = agent.doctor.heard(name);
    Ok(port)
}

fn wish(request: &LinkRequest) -> Wish {
    Wish {
        mtu: request.mtu,
        speed: request.speed_mbps.map(|mbps| if mbps == 0 { Speed::Auto } else { Speed::Forced(mbps) }),
        fec: request.fec.clone(),
        pause: request.pause,
        queues: request.queues,
    }
}

/// A step as the API says it.
pub(crate) fn step(step: &linerate_fabric::link::Step) -> LinkStep {
    LinkStep { what: step.what.clone(), from: step.from.clone(), to: step.to.clone() }
}

fn file(agent: &Agent) -> PathBuf {
    agent.config.state_dir.join("link-trials.json")
}

/// To a new file that takes the old one's place, on disk before anything changes.
fn save(agent: &Agent, trials: &BTreeMap<String, Trial>) -> Result<(), ErrorBody> {
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

pub(crate) fn refuse(message: String) -> ErrorBody {
    ErrorBody::new(code::BAD_REQUEST, message)
}

fn failed(message: String) -> ErrorBody {
    ErrorBody::new("link_failed", message)
}
