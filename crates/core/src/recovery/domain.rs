//! Where a domain of libvirt is after the agent ended during its migration. libvirt decides that, without the agent:
//! both libvirts are asked until their answers say it, and nothing is changed.
//!
//! ```mermaid
//! stateDiagram-v2
//!     [*] --> AskSource
//!     AskSource --> AskSource: silent, or its migration goes on
//!     AskSource --> AskDestination: says where the domain is
//!     AskDestination --> AskSource: both answers say nothing certain yet
//!     AskDestination --> [*]: arrived, stayed or gone
//! ```

use std::time::Duration;

use crate::{GuestState, Time};

/// From an answer that decides nothing to the next question.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// A domain that is at the source waits no longer for the answer of a destination.
const DESTINATION_SILENT_MAX: Duration = Duration::from_secs(60);

/// What a libvirt says of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainState {
    /// It does not know the domain, or has only its definition.
    Absent,
    /// Its virtual CPUs run.
    Running,
    /// Its virtual CPUs are paused.
    Paused,
    /// It has a process, in another state.
    Other,
}

impl DomainState {
    fn is_here(self) -> bool {
        self != DomainState::Absent
    }
}

/// What the source's libvirt says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceAnswer {
    /// Nothing, or not whether it knows the domain.
    Silent,
    /// It still has a migration of the domain.
    Migrating,
    /// It has no migration of the domain.
    At(DomainState),
}

/// What the agent is to do; each is answered by the event of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainAction {
    /// Ask this host's libvirt.
    AskSource,
    /// Ask the destination's libvirt.
    AskDestination,
}

/// The answer to one of the questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainEvent {
    /// [`DomainAction::AskSource`] came to its end.
    Source(SourceAnswer),
    /// [`DomainAction::AskDestination`] came to its end; none without an answer.
    Destination(Option<DomainState>),
}

/// Where the domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainEnd {
    /// At the destination, in the state that it had.
    Arrived,
    /// At the source, as before or in another state.
    Stayed {
        /// What it does there. Unknown if it may run at the destination.
        guest: GuestState,
        /// The destination's libvirt did not answer.
        destination_silent: bool,
    },
    /// Neither libvirt has it running or paused.
    Gone,
}

/// Why it is not known yet where the domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DomainDoubt {
    /// This host's libvirt does not answer.
    SourceSilent,
    /// This host's libvirt still has a migration of it.
    SourceMigrating,
    /// The destination's libvirt does not answer.
    DestinationSilent,
    /// It is at the destination alone, in another state than it had: an operator has to look.
    OtherStateThere,
    /// It is at both: an operator has to end one.
    AtBoth,
}

/// The recovery of one domain: questions to both libvirts, until their answers say where it is.
#[derive(Clone, Debug)]
pub struct DomainRecovery {
    /// It was paused when the migration began.
    was_paused: bool,
    /// What the source's libvirt said; none before it is asked, and while it is asked.
    source: Option<DomainState>,
    /// Since when each question to the destination's libvirt had no answer.
    silent_since: Option<Time>,
    /// The next question is due then; none while one is in flight, and at the end.
    due: Option<Time>,
    doubt: Option<DomainDoubt>,
    end: Option<DomainEnd>,
}

impl DomainRecovery {
    /// Begins now. `was_paused`: the domain's state when its migration began.
    pub fn new(now: Time, was_paused: bool) -> DomainRecovery {
        let due = Some(now);
        DomainRecovery { was_paused, source: None, silent_since: None, due, doubt: None, end: None }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Time) -> Option<DomainAction> {
        self.due.take_if(|due| *due <= now)?;
        Some(if self.source.is_none() { DomainAction::AskSource } else { DomainAction::AskDestination })
    }

    /// Takes an answer. One to a question that is not in flight changes nothing.
    pub fn handle(&mut self, now: Time, event: DomainEvent) {
        match (event, self.source) {
            _ if self.end.is_some() => {}
            (DomainEvent::Source(SourceAnswer::At(state)), None) => {
                (self.source, self.due) = (Some(state), Some(now));
            }
            (DomainEvent::Source(SourceAnswer::Silent), None) => {
                self.ask_again(now, DomainDoubt::SourceSilent)
            }
            (DomainEvent::Source(SourceAnswer::Migrating), None) => {
                self.ask_again(now, DomainDoubt::SourceMigrating);
            }
            (DomainEvent::Destination(there), Some(here)) => {
                self.silent_since = there.is_none().then(|| self.silent_since.unwrap_or(now));
                match self.judge(now, here, there) {
                    Ok(end) => self.end = Some(end),
                    Err(doubt) => self.ask_again(now, doubt),
                }
            }
            // Of no question in flight.
            _ => {}
        }
    }

    /// When to look again; none while a question is in flight, and at the end.
    pub fn timeout(&self) -> Option<Time> {
        self.due
    }

    /// Where the domain is, once that is known.
    pub fn end(&self) -> Option<DomainEnd> {
        self.end
    }

    /// Why it is not known yet; none before the first answer.
    pub fn doubt(&self) -> Option<DomainDoubt> {
        self.doubt
    }

    fn ask_again(&mut self, now: Time, doubt: DomainDoubt) {
        (self.source, self.doubt, self.due) = (None, Some(doubt), Some(now + LOOK_AGAIN_AFTER));
    }

    /// What follows from what both say.
    fn judge(
        &self,
        now: Time,
        here: DomainState,
        there: Option<DomainState>,
    ) -> Result<DomainEnd, DomainDoubt> {
        let as_before = if self.was_paused { DomainState::Paused } else { DomainState::Running };
        let silent_for = now.since(self.silent_since.unwrap_or(now));
        match (here.is_here(), there) {
            (true, Some(DomainState::Absent)) => Ok(stayed(here, false)),
            // What waits there for its stream goes with its tunnel. This host does not know about a guest that runs
            // there.
            (true, Some(_)) => Err(DomainDoubt::AtBoth),
            (true, None) if silent_for > DESTINATION_SILENT_MAX => Ok(stayed(here, true)),
            (false, Some(DomainState::Absent)) => Ok(DomainEnd::Gone),
            (false, Some(state)) if state == as_before => Ok(DomainEnd::Arrived),
            (false, Some(_)) => Err(DomainDoubt::OtherStateThere),
            (_, None) => Err(DomainDoubt::DestinationSilent),
        }
    }
}

fn stayed(here: DomainState, destination_silent: bool) -> DomainEnd {
    let guest = match here {
        DomainState::Running => GuestState::RunsAtSource,
        // libvirt leaves a domain paused here if the confirmation from the destination was lost.
        DomainState::Paused if !destination_silent => GuestState::PausedAtSource,
        _ => GuestState::Unknown,
    };
    DomainEnd::Stayed { guest, destination_silent }
}

#[cfg(test)]
mod tests {
    use DomainState::{Absent, Other, Paused, Running};

    use super::*;

    /// One round of questions and answers, at the time that is due.
    fn round(machine: &mut DomainRecovery, here: DomainState, there: Option<DomainState>) -> Time {
        let now = machine.timeout().expect("it asks");
        assert_eq!(machine.poll_action(now), Some(DomainAction::AskSource));
        machine.handle(now, DomainEvent::Source(SourceAnswer::At(here)));
        assert_eq!(machine.poll_action(now), Some(DomainAction::AskDestination));
        machine.handle(now, DomainEvent::Destination(there));
        now
    }

    const fn stays(guest: GuestState) -> Result<DomainEnd, DomainDoubt> {
        Ok(DomainEnd::Stayed { guest, destination_silent: false })
    }

    #[test]
    fn the_end_is_known_only_where_one_of_both_has_the_domain() {
        use DomainDoubt::{AtBoth, DestinationSilent, OtherStateThere};
        use GuestState::{PausedAtSource, RunsAtSource, Unknown};
        for (here, there, known) in [
            (Running, Some(Absent), stays(RunsAtSource)),
            (Paused, Some(Absent), stays(PausedAtSource)),
            (Other, Some(Absent), stays(Unknown)),
            (Absent, Some(Running), Ok(DomainEnd::Arrived)),
            (Absent, Some(Absent), Ok(DomainEnd::Gone)),
            // A copy that waits there, or a success whose confirmation was lost.
            (Running, Some(Paused), Err(AtBoth)),
            (Paused, Some(Running), Err(AtBoth)),
            (Running, Some(Running), Err(AtBoth)),
            (Paused, Some(Other), Err(AtBoth)),
            (Absent, Some(Paused), Err(OtherStateThere)),
            (Absent, Some(Other), Err(OtherStateThere)),
            (Absent, None, Err(DestinationSilent)),
            (Running, None, Err(DestinationSilent)),
            (Paused, None, Err(DestinationSilent)),
        ] {
            let mut machine = DomainRecovery::new(Time::ZERO, false);
            round(&mut machine, here, there);
            let found = machine.end().ok_or(machine.doubt());
            assert_eq!(found, known.map_err(Some), "{here:?} {there:?}");
        }
        for (there, known) in [(Paused, Ok(DomainEnd::Arrived)), (Running, Err(OtherStateThere))] {
            let mut machine = DomainRecovery::new(Time::ZERO, true);
            round(&mut machine, Absent, Some(there));
            assert_eq!(machine.end().ok_or(machine.doubt()), known.map_err(Some), "was paused, {there:?}");
        }
    }

    #[test]
    fn a_domain_that_is_here_waits_a_minute_for_a_silent_destination() {
        for (here, guest) in [(Running, GuestState::RunsAtSource), (Paused, GuestState::Unknown)] {
            let mut machine = DomainRecovery::new(Time::ZERO, here == Paused);
            let mut now = Time::ZERO;
            while machine.end().is_none() {
                now = round(&mut machine, here, None);
                assert!(now <= Time::ZERO + DESTINATION_SILENT_MAX + LOOK_AGAIN_AFTER, "it waits for ever");
            }
            assert!(now > Time::ZERO + DESTINATION_SILENT_MAX, "{now:?} is too early");
            assert_eq!(machine.end(), Some(DomainEnd::Stayed { guest, destination_silent: true }));
        }
    }

    #[test]
    fn only_a_silence_without_a_break_counts() {
        let mut machine = DomainRecovery::new(Time::ZERO, false);
        // The source's libvirt is away for long: the destination's was not asked meanwhile.
        let mut now = Time::ZERO;
        while now <= Time::ZERO + DESTINATION_SILENT_MAX * 2 {
            now = machine.timeout().unwrap();
            assert_eq!(machine.poll_action(now), Some(DomainAction::AskSource));
            machine.handle(now, DomainEvent::Source(SourceAnswer::Silent));
            assert_eq!(machine.doubt(), Some(DomainDoubt::SourceSilent));
        }
        let first = round(&mut machine, Running, None);
        assert_eq!(machine.end(), None, "the first question is not a minute old");
        while machine.timeout().is_some_and(|at| at <= first + DESTINATION_SILENT_MAX) {
            round(&mut machine, Running, None);
        }
        round(&mut machine, Running, Some(Paused));
        round(&mut machine, Running, None);
        assert_eq!(machine.end(), None, "it has answered since");
    }

    #[test]
    fn a_domain_that_is_not_here_is_asked_for_without_an_end() {
        let mut machine = DomainRecovery::new(Time::ZERO, false);
        let (mut now, day) = (Time::ZERO, Time::ZERO + Duration::from_secs(86_400));
        while now < day {
            now = round(&mut machine, Absent, None);
            assert_eq!((machine.end(), machine.doubt()), (None, Some(DomainDoubt::DestinationSilent)));
        }
        round(&mut machine, Absent, Some(Running));
        assert_eq!((machine.end(), machine.timeout()), (Some(DomainEnd::Arrived), None));
        assert_eq!(machine.poll_action(day + LOOK_AGAIN_AFTER), None);
    }

    #[test]
    fn the_destination_is_not_asked_while_the_source_has_a_migration() {
        let mut machine = DomainRecovery::new(Time::ZERO, false);
        assert_eq!(machine.poll_action(Time::ZERO), Some(DomainAction::AskSource));
        // An answer without a question.
        machine.handle(Time::ZERO, DomainEvent::Destination(Some(Running)));
        machine.handle(Time::ZERO, DomainEvent::Source(SourceAnswer::Migrating));
        assert_eq!((machine.end(), machine.doubt()), (None, Some(DomainDoubt::SourceMigrating)));
        assert_eq!(machine.poll_action(Time::ZERO), None);
        let now = Time::ZERO + LOOK_AGAIN_AFTER;
        assert_eq!(machine.poll_action(now), Some(DomainAction::AskSource), "what it said before is old");
    }
}
