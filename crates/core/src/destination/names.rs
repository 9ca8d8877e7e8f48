//! Names of events and states, for the detail of a fault: what came while the destination did what.

use super::{Event, State};

impl Event {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Event::PathUp(_) => "PathUp",
            Event::PathLost(_) => "PathLost",
            Event::PathAlive(_) => "PathAlive",
            Event::Received { .. } => "Received",
            Event::ControlAcknowledged { .. } => "ControlAcknowledged",
            Event::Admitted(_) => "Admitted",
            Event::Prepared { .. } => "Prepared",
            Event::StreamsPrepared(_) => "StreamsPrepared",
            Event::SendStreamMessage(_) => "SendStreamMessage",
            Event::Fenced { .. } => "Fenced",
            Event::Sealed(_) => "Sealed",
            Event::DeviceStateLoaded => "DeviceStateLoaded",
            Event::DisksChecked => "DisksChecked",
            Event::Journaled(_) => "Journaled",
            Event::HypervisorRestored => "HypervisorRestored",
            Event::GuestRuns { .. } => "GuestRuns",
            Event::CannotRun(_) => "CannotRun",
            Event::MayHaveRun(_) => "MayHaveRun",
            Event::GuestEnded(_) => "GuestEnded",
            Event::Failed(_) => "Failed",
            Event::ReceivingFailed(_) => "ReceivingFailed",
            Event::Looked(_) => "Looked",
            Event::Discarded => "Discarded",
            Event::Cancel => "Cancel",
            Event::RolledBackAtSource => "RolledBackAtSource",
            Event::CommitAgain { .. } => "CommitAgain",
            Event::SourceResumes => "SourceResumes",
            Event::Resolve(_) => "Resolve",
            Event::Tick => "Tick",
        }
    }
}

impl State {
    pub(super) fn name(&self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Admitting => "admitting",
            State::Admitted => "admitted",
            State::Preparing => "preparing",
            State::Receiving => "receiving",
            State::Streaming => "streaming",
            State::Sealing { .. } => "sealing",
            State::Loading => "loading",
            State::JournalingLoaded => "journaling loaded",
            State::Loaded => "loaded",
            State::RestoringHypervisor => "restoring the hypervisor",
            State::Journaling { .. } => "journaling",
            State::Resuming { .. } => "resuming",
            State::Running { .. } => "running",
            State::Discarding { .. } => "discarding",
            State::Closing { .. } => "closing",
            State::Ended => "ended",
        }
    }
}
