//! A guest of a drain, as it is shown and kept in the store.

use std::time::Duration;

use linerate_api::{DrainGuest, DrainGuestState as Shown, DrainTry};
use linerate_core::drain::{Attempt, Outcome, Reason, Sample, State, Then};
use linerate_core::fleet::HostId;
use linerate_core::{Fault, Time};

use super::hosts::{Destination, index};
use super::leaving::Leaving;
use crate::convert;

/// A guest of a drain.
#[derive(Clone, Debug, Default)]
pub(super) struct Member {
    pub guest: Leaving,
    /// Its part is over without the controller: it cannot move, or was moved by an earlier process of this agent.
    pub decided: Option<Decided>,
    /// Where it goes, or has gone.
    pub to: Option<HostId>,
    /// The name of that host by an earlier process of this agent, while the host does not answer.
    pub was_to: Option<String>,
    /// Why no host can take it, by host.
    pub nowhere: Option<String>,
    pub migration: Option<String>,
    /// A copy of it began, and how that ended is not known.
    pub began: bool,
    pub sample: Option<Sample>,
    pub copy_began: Option<Time>,
    pub predicted_ms: Option<u64>,
    pub took_ms: Option<u64>,
    pub blackout_us: Option<u64>,
    /// What failed although it was moved, or why it ended meanwhile.
    pub fault: Option<Fault>,
    /// Tries in earlier processes of this agent.
    pub earlier: Vec<DrainTry>,
}

/// How a guest's part ended without the controller.
#[derive(Clone, Debug)]
pub(super) struct Decided {
    pub state: Shown,
    pub reason: Option<String>,
    pub hint: String,
}

impl Member {
    pub fn new(guest: Leaving) -> Member {
        let decided = guest.cannot.clone().map(|(reason, hint)| Decided {
            state: Shown::Failed,
            reason: Some(reason),
            hint,
        });
        Member { guest, decided, ..Member::default() }
    }

    /// Notes that the copy begins at `now`.
    pub fn begins(&mut self, now: Time) {
        (self.sample, self.copy_began) = (None, Some(now));
    }

    /// As the operator sees it. `state`: what the controller says.
    pub fn show(&self, state: Option<(&State, &[Attempt])>, destinations: &[Destination]) -> DrainGuest {
        let name = |host: HostId| name(host, destinations);
        let attempts = state.map(|(_, attempts)| attempts).unwrap_or_default();
        let tries = self.tries(attempts, destinations);
        let (shown, why) = match (&self.decided, state) {
            (Some(decided), _) => (decided.state, None),
            (None, Some((state, _))) => shown(state),
            (None, None) => (Shown::Recovering, None),
        };
        let has_left = matches!(shown, Shown::Moved | Shown::Gone);
        let last = why.or(attempts.last().map(|one| &one.reason)).filter(|_| !has_left);
        let fault = self.fault.as_ref().filter(|_| has_left);
        let (reason, hint) = match (&self.decided, fault) {
            (Some(decided), _) => (decided.reason.clone(), decided.hint.clone()),
            (None, Some(fault)) => (Some(fault.to_string()), convert::error(fault, None).hint),
            (None, None) => {
                (last.map(|reason| self.text(reason, destinations)), last.map(hint).unwrap_or_default())
            }
        };
        let copying = matches!(shown, Shown::Copying | Shown::Cancelling);
        let sample = self.sample.filter(|_| copying).unwrap_or_default();
        DrainGuest {
            guest: self.guest.name.clone(),
            uuid: self.guest.key.clone(),
            domain: self.guest.domain,
            state: shown,
            to: self.to.map(name).or_else(|| self.was_to.clone()),
            memory_bytes: self.guest.memory_bytes,
            copy_bytes: self.guest.copy_bytes,
            copied_bytes: sample.copied_bytes,
            rate_bytes_per_s: sample.bytes_per_s as u64,
            write_rate_bytes_per_s: self
                .sample
                .and_then(|sample| sample.write_bytes_per_s)
                .unwrap_or_default() as u64,
            predicted_ms: self.predicted_ms,
            took_ms: self.took_ms,
            blackout_us: self.blackout_us,
            migration: self.migration.clone(),
            reason,
            hint,
            tries,
        }
    }

    /// All tries that did not succeed.
    pub fn tries(&self, attempts: &[Attempt], destinations: &[Destination]) -> Vec<DrainTry> {
        let attempts = attempts.iter().map(|one| DrainTry {
            at_ms: ms(one.at - Time::ZERO),
            to: one.host.map(|host| name(host, destinations)),
            reason: self.text(&one.reason, destinations),
        });
        self.earlier.iter().cloned().chain(attempts).collect()
    }

    /// A reason with the names of hosts.
    fn text(&self, reason: &Reason, destinations: &[Destination]) -> String {
        match reason {
            Reason::Nowhere(why) => self.nowhere.clone().unwrap_or_else(|| why.to_string()),
            Reason::HostLost(host) => {
                format!("the destination, {}, does not answer", name(*host, destinations))
            }
            Reason::HostDrained(host) => {
                format!("the destination, {}, is being drained itself", name(*host, destinations))
            }
            Reason::Busy(host) => {
                format!("the destination, {}, had no time for the copy", name(*host, destinations))
            }
            Reason::Fault(_) | Reason::NoAnswer(_) | Reason::Stalled | Reason::WritesTooFast { .. } => {
                reason.to_string()
            }
        }
    }
}

pub(super) fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn name(host: HostId, destinations: &[Destination]) -> String {
    destinations.get(index(host)).map_or_else(|| format!("host {}", host.0), |one| one.name().to_owned())
}

fn hint(reason: &Reason) -> String {
    match reason {
        Reason::Nowhere(_) => "`linerate place GUEST --to HOST --explain` shows what each host lacks".into(),
        Reason::Fault(fault) => convert::error(fault, None).hint,
        Reason::WritesTooFast { .. } => {
            "allow a longer blackout (--max-blackout), or let the guest be slowed down (--throttle)".into()
        }
        Reason::HostLost(_) | Reason::Stalled | Reason::NoAnswer(_) => {
            "`linerate doctor HOST` shows what is wrong with the links".into()
        }
        Reason::HostDrained(_) | Reason::Busy(_) => "name more hosts with --to".into(),
    }
}

fn shown(state: &State) -> (Shown, Option<&Reason>) {
    match state {
        State::Unplaced { .. } | State::Placing | State::Placed => (Shown::Waiting, None),
        State::Preparing => (Shown::Preparing, None),
        State::Prepared => (Shown::Prepared, None),
        State::Copying => (Shown::Copying, None),
        State::Cancelling(then) => (
            Shown::Cancelling,
            match then {
                Then::Retry(reason) | Then::Elsewhere(reason) => Some(reason),
                Then::Abort => None,
            },
        ),
        State::Ended(outcome) => match outcome {
            Outcome::Moved(_) => (Shown::Moved, None),
            Outcome::Kept => (Shown::Kept, None),
            Outcome::Aborted => (Shown::Aborted, None),
            Outcome::Gone => (Shown::Gone, None),
            Outcome::Failed { reason, in_doubt: true } => (Shown::InDoubt, Some(reason)),
            Outcome::Failed { reason, in_doubt: false } => (Shown::Failed, Some(reason)),
        },
    }
}
