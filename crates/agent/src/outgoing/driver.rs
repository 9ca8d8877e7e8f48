//! The core's tasks for the guest at the source. How they are done depends on how the guest moves: each mode is a
//! driver. The driver is made when the migration begins, and has the state of its mode.
//!
//! | module | what it has |
//! |---|---|
//! | here | the actions, and the choice |
//! | `direct`, `streams`, `handover` | one driver each |
//! | `own_qemu` | a guest that this agent resumes or ends: of `direct` and `streams` |
//! | `tracked_ram` | RAM that Linerate copies: of `direct` and `handover` |

mod direct;
mod handover;
mod own_qemu;
mod streams;
mod tracked_ram;

use std::sync::mpsc::Receiver;

use linerate_core::source::Event;
use linerate_core::{Code, Extent, Fault, ModeTag, Side, Step, StreamSettings};
use linerate_guest::shared::Marks;

use super::Sessions;
use super::guest::Guest;
use super::worker::Task;
use crate::faults::fault;
use direct::Direct;
use handover::Handover;
use own_qemu::OwnQemu;
use streams::Streams;

pub(super) use handover::OutgoingDomain;
pub(super) use tracked_ram::GuestRam;

pub(super) type Done = Result<(), Fault>;

/// The core's actions that deal with the guest, in the order of the ten steps. They answer by events.
pub(super) trait Driver: Send {
    fn guest(&self) -> &Guest;

    /// The next task. A driver does here what is due while it waits.
    fn next(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        tasks.recv().ok()
    }

    fn begin(&mut self) -> Done {
        self.guest().send(Event::Start);
        Ok(())
    }

    fn attach(&mut self) -> Done {
        not_this_way("attach")
    }

    fn protect(&mut self) -> Done {
        not_this_way("protect")
    }

    fn scan(&mut self, _last: bool, _also: &[Extent]) -> Done {
        not_this_way("scan")
    }

    /// How much was written since the last scan.
    fn count(&mut self) -> Done {
        not_this_way("count")
    }

    fn throttle(&mut self, _percent: u8) -> Done {
        not_this_way("throttle")
    }

    /// QEMU copies by its own streams, and stops the guest when little enough is left.
    fn begin_streams(&mut self, _settings: StreamSettings) -> Done {
        not_this_way("begin streams")
    }

    fn switch_over(&mut self) -> Done {
        not_this_way("switch over")
    }

    fn digest(&mut self) -> Done {
        not_this_way("digest")
    }

    fn write_device_state(&mut self) -> Done {
        not_this_way("write device state")
    }

    /// RAM is complete: the held stream goes to the destination.
    fn release_stream(&mut self) -> Done {
        not_this_way("release a stream")
    }

    /// Whether the guest has the disks and devices of the beginning.
    fn check_source_unchanged(&mut self) -> Done {
        not_this_way("check the disks of the source's guest")
    }

    /// Whether the source's paused guest is as it was when QEMU stopped it.
    fn check_source_intact(&mut self) -> Done {
        not_this_way("check the source's guest")
    }

    /// Rule 2: the guest does what it did before. Each part is tried, also if another has failed.
    fn roll_back(&mut self) -> Done;

    /// Nothing of the guest stays here.
    fn clean_up(&mut self) -> Done;

    /// The downtime that QEMU itself counted, once it is known.
    fn qemu_downtime_ms(&self) -> Option<u64> {
        None
    }
}

/// How the guest moves, with what the mode's driver needs and was found before the migration begins.
pub(super) enum ModeParts {
    Direct {
        ram: GuestRam,
        /// In the images that are not copied.
        marks: Marks,
    },
    Streams {
        marks: Marks,
    },
    Handover {
        ram: GuestRam,
        domain: OutgoingDomain,
    },
}

impl ModeParts {
    pub fn tag(&self) -> ModeTag {
        match self {
            ModeParts::Direct { .. } => ModeTag::Direct,
            ModeParts::Streams { .. } => ModeTag::Streams,
            ModeParts::Handover { .. } => ModeTag::Handover,
        }
    }
}

/// Makes the driver of the guest's mode. The channels can send from now on.
pub(super) fn of(sessions: &Sessions, guest: Guest, mode: ModeParts) -> Result<Box<dyn Driver>, Fault> {
    Ok(match mode {
        ModeParts::Direct { ram, marks } => Box::new(Direct::new(OwnQemu::new(sessions, guest, marks)?, ram)),
        ModeParts::Streams { marks } => Box::new(Streams::new(OwnQemu::new(sessions, guest, marks)?)),
        ModeParts::Handover { ram, domain } => Box::new(Handover::new(guest, ram, domain)),
    })
}

fn not_this_way(what: &str) -> Done {
    let detail = format!("a defect in the agent: a guest in this mode does not {what}");
    Err(Fault::new(Code::Internal, Step::Copy, Side::Source, detail))
}

fn here(code: Code, step: Step, error: &(dyn std::error::Error + 'static)) -> Fault {
    fault(code, step, Side::Source, error)
}
