//! What a journal as a whole says, and both recoveries step by step.

use super::destination::{RUN_AGAIN_AFTER, RUN_FOR};
use super::*;
use crate::journal::Decided;
use crate::journal::DestinationPhase as To;
use crate::journal::SourcePhase as From;
use crate::{GuestState, Outcome, Time};

const FROM: [From; 5] =
    [From::Started, From::CommitSent, From::ResumingHere, From::Finished, From::RolledBack];
const TO: [To; 7] =
    [To::Started, To::Loaded, To::Committed, To::Running, To::Finished, To::Aborted, To::Returned];

fn process(pid: i32) -> Process {
    Process { boot: "today".into(), pid, start_ticks: 7 }
}

fn entry(order: u64, phase: Phase, process: Option<Process>) -> Entry {
    Entry { session: SessionId([order as u8; 16]), order, phase, process }
}

fn source(order: u64, phase: From, pid: i32) -> Entry {
    entry(order, Phase::Source(phase), Some(process(pid)))
}

fn destination(order: u64, phase: To, pid: i32) -> Entry {
    entry(order, Phase::Destination(phase), Some(process(pid)))
}

fn every_phase() -> Vec<Phase> {
    FROM.map(Phase::Source).into_iter().chain(TO.map(Phase::Destination)).collect()
}

/// What is done to a process or written about it.
fn acts(plan: Plan) -> bool {
    !matches!(plan, Plan::Nothing | Plan::RecordLoss | Plan::RecordEnd(_))
}

/// `Driver`: one of the two recoveries, at a time of its own.
macro_rules! driver {
    ($recovery:ty, $action:ty, $event:ty) => {
        struct Driver {
            recovery: $recovery,
            now: Time,
        }

        impl Driver {
            fn new(recovery: $recovery) -> Driver {
                Driver { recovery, now: Time::ZERO }
            }

            fn action(&mut self) -> Option<$action> {
                let action = self.recovery.poll_action(self.now);
                assert_eq!(self.recovery.poll_action(self.now), None, "one at a time");
                action
            }

            fn handle(&mut self, event: $event) -> Option<$action> {
                self.recovery.handle(self.now, event);
                self.action()
            }

            /// Nothing before it is due, then this.
            #[track_caller]
            fn again(&mut self, wanted: $action) {
                assert_eq!(self.action(), None, "it spins");
                self.now = self.recovery.timeout().expect("it waits for ever");
                assert_eq!(self.action(), Some(wanted));
            }
        }
    };
}

mod journals;

mod at_the_source;

mod at_the_destination;
