//! Changes of ports on trial: everything is put back unless it is confirmed in time. What puts it back is on disk
//! before anything changes, so that an agent that dies meanwhile puts it back at its next start.

mod end;
mod store;

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_api::{ErrorBody, LinkAnswer, LinkRequest, LinkStep, code};
use linerate_fabric::collect::kernel::{ethtool, links};
use linerate_fabric::link::apply;
use linerate_fabric::link::plan::plan;
use linerate_fabric::link::{Plan, RequestedSettings, Settings, Speed};
use linerate_fabric::model::Port;

use crate::faults::chain;
pub(crate) use end::give_up;
pub use end::recover;
use end::{Ended, end, end_all};
pub use store::Trials;
use store::{Trial, save};

/// A port that had a link must have it again within this, or all is put back at once.
const LINK_WAIT: Duration = Duration::from_secs(8);
const LINK_POLL_INTERVAL: Duration = Duration::from_millis(200);
const WITHIN_S_MAX: u32 = 3600;
/// As many ports as an intent may name.
const TRIALS_MAX: usize = 256;

/// Makes the requested change, on trial.
pub fn set(state: &Arc<Trials>, request: &LinkRequest) -> Result<LinkAnswer, ErrorBody> {
    check_time_limit(request.confirm_within_s)?;
    let port = find(state, &request.port)?;
    let requested = requested(request);
    let plan = plan(&port, &requested).map_err(|error| refuse(error.to_string()))?;
    let mut answer = LinkAnswer {
        port: port.name.clone(),
        steps: plan.steps.iter().map(step).collect(),
        warnings: plan.warnings.clone(),
        applied: false,
        confirm_within_s: None,
    };
    if !request.dry_run && !plan.steps.is_empty() {
        let read = || {
            let now = find(state, &port.name)?;
            let left =
                self::plan(&now, &requested).map_or_else(|error| error.to_string(), |plan| describe(&plan));
            Ok((now, left))
        };
        let begun = change(state, &port, &plan, &read)?;
        start(state, vec![begun], request.confirm_within_s)?;
        answer.applied = true;
        answer.confirm_within_s = Some(request.confirm_within_s);
    }
    Ok(answer)
}

/// A trial has an end.
pub(crate) fn check_time_limit(seconds: u32) -> Result<(), ErrorBody> {
    match seconds {
        1..=WITHIN_S_MAX => Ok(()),
        _ => Err(refuse(format!("the time to confirm must be 1 to {WITHIN_S_MAX} s"))),
    }
}

/// What is on trial stays. What could not be put back stays too, and the agent forgets it.
pub fn confirm(state: &Trials, port: &str) -> Result<(), ErrorBody> {
    let mut trials = state.lock();
    let trial = trials.get(port).cloned().ok_or_else(|| nothing_waits(port))?;
    done(port, &trial)?;
    let mut left = trials.clone();
    left.remove(port);
    // Written first: if that fails, the trial is as it was, and is put back in time.
    save(state, &left)
        .map_err(|error| error.with_hint("the settings are still on trial, and are put back at its end: free space in `state_dir`, then confirm again"))?;
    *trials = left;
    state.notify_ended();
    let Some(why) = trial.stuck else { return Ok(()) };
    let message = format!("{port} was not confirmed in time and could NOT be put back: {why}");
    let hint = "it stays as it is now and the agent forgets it: check it, and set by hand what is not as it should be";
    Err(ErrorBody::new(code::TOO_LATE, message).with_hint(hint))
}

/// A change that is just being made cannot be ended yet: it would continue after it was put back.
fn done(port: &str, trial: &Trial) -> Result<(), ErrorBody> {
    if trial.waits || trial.stuck.is_some() {
        return Ok(());
    }
    let message = format!("the change of {port} is not done yet");
    Err(busy(message).with_hint("ask again in some seconds"))
}

fn busy(message: String) -> ErrorBody {
    ErrorBody { retry_can_help: true, ..ErrorBody::new(code::LINK_BUSY, message) }
}

fn nothing_waits(port: &str) -> ErrorBody {
    let message = format!("{port} has no change that waits; it was put back, or confirmed before");
    let hint = "`linerate link show` shows its settings; set it again, with a longer --within if the time was too short";
    ErrorBody::new(code::TOO_LATE, message).with_hint(hint)
}

/// What is on trial is put back before its time.
pub fn put_back_now(state: &Trials, port: &str) -> Result<(), ErrorBody> {
    let trial = state.lock().get(port).cloned().ok_or_else(|| nothing_waits(port))?;
    done(port, &trial)?;
    let begun = Begun { port: port.to_owned(), number: trial.number };
    match end(state, &begun) {
        Ended::PutBack => Ok(()),
        Ended::Confirmed => Err(nothing_waits(port)),
        stuck @ Ended::Stuck(_) => Err(failed(stuck.describe(port))),
    }
}

/// Reads a port: its state, and a text of what is still not as requested.
pub(crate) type Read<'a> = &'a dyn Fn() -> Result<(Port, String), ErrorBody>;

/// A trial in progress.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) port: String,
    number: u64,
}

/// Makes the change and checks it; if that fails it is put back. It has no end until [`start`].
pub(crate) fn change(state: &Trials, port: &Port, plan: &Plan, read: Read<'_>) -> Result<Begun, ErrorBody> {
    let begun = begin(state, &port.name, &plan.undo)?;
    let done = apply::apply(&port.name, port.index.unwrap_or(0), &plan.settings);
    match done.map_err(|error| failed(chain(&error))).and_then(|()| check_again(port, read)) {
        Ok(()) => Ok(begun),
        Err(error) => Err(give_up(state, &[begun], error)),
    }
}

/// The time to confirm begins, for all of them at once.
pub(crate) fn start(state: &Arc<Trials>, begun: Vec<Begun>, within_s: u32) -> Result<(), ErrorBody> {
    if begun.is_empty() {
        return Ok(());
    }
    for one in &begun {
        if let Some(trial) = state.lock().get_mut(&one.port) {
            trial.waits = true;
        }
    }
    let begun = Arc::new(begun);
    let (waiting, all) = (state.clone(), begun.clone());
    let until = Instant::now() + Duration::from_secs(within_s.into());
    let wait = move || {
        if waiting.wait(&all, until) {
            end_all(&waiting, &all);
        }
    };
    match std::thread::Builder::new().name("trial".into()).spawn(wait) {
        Ok(_) => Ok(()),
        Err(error) => {
            let error = failed(format!("cannot start a thread to wait for the confirmation: {error}"));
            Err(give_up(state, &begun, error))
        }
    }
}

/// Writes down what puts it back, unless a guest is being migrated. One trial for a port at a time; one that could not
/// be put back is replaced.
fn begin(state: &Trials, port: &str, undo: &Settings) -> Result<Begun, ErrorBody> {
    if state.doctor.is_migrating() {
        let name = &state.doctor.config.name;
        let message =
            format!("a guest is being migrated from or to {name}, and {port} may be one of its links");
        let body = ErrorBody::new(code::MIGRATION_IN_PROGRESS, message).with_hint("wait for the migration");
        return Err(ErrorBody { retry_can_help: true, ..body });
    }
    let mut trials = state.lock();
    if trials.get(port).is_some_and(|trial| trial.stuck.is_none()) {
        let message = format!("{port} is on trial already");
        return Err(busy(message).with_hint(format!("`linerate link confirm {port}`, or wait")));
    }
    if trials.len() >= TRIALS_MAX {
        let message = format!("{TRIALS_MAX} ports of {} are on trial already", state.doctor.config.name);
        return Err(busy(message).with_hint("confirm them, or wait"));
    }
    let number = crate::clock::unix_ms();
    let stuck = trials.insert(port.to_owned(), Trial { number, undo: undo.clone(), ..Trial::default() });
    if let Err(error) = save(state, &trials) {
        trials.remove(port);
        trials.extend(stuck.map(|stuck| (port.to_owned(), stuck)));
        return Err(error);
    }
    Ok(Begun { port: port.to_owned(), number })
}

/// The settings must be as requested, and a link that was there must work again.
fn check_again(before: &Port, read: Read<'_>) -> Result<(), ErrorBody> {
    let deadline = Instant::now() + LINK_WAIT;
    loop {
        let (now, left) = read()?;
        let linked = now.carrier == Some(true) || before.carrier != Some(true);
        if left.is_empty() && linked {
            return Ok(());
        }
        if Instant::now() > deadline {
            let why = if left.is_empty() {
                "the link is still down".to_owned()
            } else {
                format!("the adapter did not take it: {left}")
            };
            return Err(failed(format!("{}: {why}", before.name)));
        }
        std::thread::sleep(LINK_POLL_INTERVAL);
    }
}

/// What a plan still has to change.
pub(crate) fn describe(plan: &Plan) -> String {
    let texts: Vec<String> =
        plan.steps.iter().map(|step| format!("{} is {}, not {}", step.what, step.from, step.to)).collect();
    texts.join(", ")
}

/// The port as it is now.
fn find(state: &Trials, name: &str) -> Result<Port, ErrorBody> {
    let mut port = linked(name)?;
    // What ethtool does not report is missing in the plan.
    ethtool::read(std::slice::from_mut(&mut port), &mut Vec::new()).map_err(|error| failed(chain(&error)))?;
    port.neighbours = state.doctor.neighbours(name);
    Ok(port)
}

/// The port as rtnetlink has it.
fn linked(name: &str) -> Result<Port, ErrorBody> {
    let all = links::read().map_err(|error| failed(chain(&error)))?;
    all.into_iter().map(|link| link.port).find(|port| port.name == name).ok_or_else(|| {
        ErrorBody::new(code::NOT_FOUND, format!("there is no port {name} on this host"))
            .with_hint("`linerate link show` lists the ports")
    })
}

fn requested(request: &LinkRequest) -> RequestedSettings {
    RequestedSettings {
        mtu: request.mtu,
        speed: request.speed_mbps.map(|mbps| if mbps == 0 { Speed::Auto } else { Speed::Forced(mbps) }),
        fec: request.fec.clone(),
        pause: request.pause,
        queues: request.queues,
    }
}

/// A step in the API's form.
pub(crate) fn step(step: &linerate_fabric::link::PortStep) -> LinkStep {
    LinkStep { what: step.what.clone(), from: step.from.clone(), to: step.to.clone() }
}

pub(crate) fn refuse(message: String) -> ErrorBody {
    ErrorBody::new(code::BAD_REQUEST, message)
}

fn failed(message: String) -> ErrorBody {
    ErrorBody::new("link_failed", message)
}

#[cfg(test)]
pub(crate) mod tests;
