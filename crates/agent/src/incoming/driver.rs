//! The core's tasks for the guest at the destination. How they are done depends on how the guest moves: each mode is a
//! driver. The driver is made when the guest is admitted, and has the state of its mode.
//!
//! | module | what it has |
//! |---|---|
//! | here | the actions, and the choice |
//! | `direct`, `streams`, `handover` | one driver each |
//! | `own_qemu` | the incoming QEMU that this agent starts: of `direct` and `streams` |
//! | `placed_ram` | RAM that placed writes fill: of `direct` and `handover` |

mod direct;
mod handover;
mod own_qemu;
mod placed_ram;
mod streams;

use std::sync::mpsc::Receiver;
use std::time::Duration;

use linerate_core::{Code, Fault, Mode, Side, Step};

use super::admit::{check_offer, make_room};
use super::context::Context;
use super::worker::Task;
use crate::faults::fault;
use direct::Direct;
use handover::Handover;
use streams::Streams;

/// A QMP command that does not wait for anything.
const QMP_WAIT: Duration = Duration::from_secs(10);

pub(super) type Done = Result<(), Fault>;

/// The core's actions that deal with the guest, in the order of the ten steps. They answer by events.
pub(super) trait Driver: Send {
    fn context(&self) -> &Context;

    /// The next task. A driver does here what is due while it waits.
    fn next(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        tasks.recv().ok()
    }

    /// Has the incoming QEMU wait for the guest.
    fn prepare(&mut self) -> Done {
        not_this_way("prepare")
    }

    /// Rule 5: when this has returned, no write is applied to RAM any more.
    fn seal(&mut self, _digest: bool) -> Done {
        not_this_way("seal RAM")
    }

    fn load_device_state(&mut self, _bytes: &[u8]) -> Done {
        not_this_way("load device state")
    }

    fn finish_device_state(&mut self) -> Done {
        not_this_way("finish device state")
    }

    /// Whether the disks that the source's guest uses are those that the incoming QEMU has opened.
    fn check_disks(&mut self, _description: &str) -> Done {
        not_this_way("check disks")
    }

    /// The journal has committed the guest to this host. `ran`: it ran at the source until it was stopped.
    fn run(&mut self, _ran: bool) -> Done {
        not_this_way("run")
    }

    /// Whether a guest that was let run has stopped by itself.
    fn look(&mut self) -> Done {
        not_this_way("look at the guest")
    }

    /// libvirt runs the guest: its QEMU is set as it was before.
    fn restore_hypervisor(&mut self) -> Done {
        not_this_way("restore the hypervisor")
    }

    /// Nothing of the guest stays here. Channels are closed before; the event that it is done follows.
    fn discard(self: Box<Self>);
}

/// Step 3: checks what is offered, and reserves for the guest by the driver of its mode. On `Err` nothing is reserved.
pub(super) fn admit(
    context: &Context,
    guest: &str,
    description: &str,
    mode: Mode,
) -> Result<Box<dyn Driver>, Fault> {
    make_room(context, guest)?;
    let description = check_offer(description, guest, &mode)?;
    context.record().mode = Some(mode.tag());
    let context = context.clone();
    Ok(match mode {
        Mode::Direct { regions } => Box::new(Direct::admit(context, description, &regions)?),
        Mode::Streams { channels } => Box::new(Streams::admit(context, description, channels)?),
        Mode::Handover { regions } => Box::new(Handover::admit(context, &description, &regions)?),
    })
}

/// Before a guest is admitted no task is possible.
pub(super) struct NotAdmitted(pub Context);

impl Driver for NotAdmitted {
    fn context(&self) -> &Context {
        &self.0
    }

    fn discard(self: Box<Self>) {}
}

fn not_this_way(what: &str) -> Done {
    Err(internal(&format!("a defect in the agent: a guest in this mode does not {what}")))
}

pub(super) fn here(code: Code, step: Step, error: &(dyn std::error::Error + 'static)) -> Fault {
    fault(code, step, Side::Destination, error)
}

fn internal(detail: &str) -> Fault {
    Fault::new(Code::Internal, Step::Prepare, Side::Destination, detail)
}
