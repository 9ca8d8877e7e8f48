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

mod journals;

mod at_the_source;

mod at_the_destination;
