//! Where a migration is, as the source sees it.

use super::ending::RollBack;
use crate::{Extent, Time};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    Idle,
    Offered,
    /// `ready`: the guest's memory is held, or the hypervisor that takes its streams waits.
    Preparing {
        ready: bool,
    },
    /// All is prepared, and the copy is held.
    Ready,
    Protecting,
    Copying {
        began: Time,
    },
    Scanning,
    /// The hypervisor copies RAM in its own streams.
    Streaming {
        round_began: Time,
    },
    Switching {
        pre_switchover: bool,
    },
    /// QEMU holds, and writes its device state. The destination keeps it until RAM is sealed.
    WritingDevices,
    LastScan {
        dirty: Option<Vec<Extent>>,
    },
    LastCopy {
        repeats: u32,
    },
    Digesting,
    Sealing,
    Loading {
        written: bool,
        loaded: bool,
    },
    AwaitingOwner,
    Journaling,
    Committing {
        ask_at: Time,
        in_doubt: bool,
    },
    /// `retry_at`: it failed and is tried again then.
    CleaningUp {
        retry_at: Option<Time>,
    },
    Closing {
        until: Time,
    },
    RollingBack(RollBack),
    Ended,
}

impl State {
    pub(super) fn name(&self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Offered => "offered",
            State::Preparing { .. } => "preparing",
            State::Ready => "ready",
            State::Protecting => "protecting",
            State::Copying { .. } => "copying",
            State::Scanning => "scanning",
            State::Streaming { .. } => "streaming",
            State::Switching { .. } => "switching",
            State::LastScan { .. } => "last scan",
            State::LastCopy { .. } => "last copy",
            State::WritingDevices => "writing device state",
            State::Digesting => "digesting",
            State::Sealing => "sealing",
            State::Loading { .. } => "loading",
            State::AwaitingOwner => "waiting for libvirt",
            State::Journaling => "journaling",
            State::Committing { .. } => "committing",
            State::CleaningUp { .. } => "cleaning up",
            State::Closing { .. } => "closing",
            State::RollingBack(_) => "rolling back",
            State::Ended => "ended",
        }
    }
}
