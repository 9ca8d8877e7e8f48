//! What a migration asks of the guest at the source. How it is done depends on how the guest moves: each mode is a
//! driver, and a new mode is one more. All have [`State`], where what they share is written once.

use std::sync::mpsc::Receiver;

use linerate_core::source::Event;
use linerate_core::{Code, Extent, Fault, ModeTag, Side, Step, StreamSettings};

use super::worker::{State, Task};

pub(super) type Done = Result<(), Fault>;

/// The core's actions that deal with the guest, in the order of the ten steps. They answer by events.
pub(super) trait Driver: Send {
    fn state(&mut self) -> &mut State;

    /// The next task. What is to be done meanwhile is done here.
    fn next(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        self.state().next_task(tasks)
    }

    /// Before the migration starts: whoever drives the hypervisor has begun.
    fn await_stream(&mut self) -> Done {
        not_this_way("await a stream")
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
    fn let_through(&mut self) -> Done {
        not_this_way("let through")
    }

    /// Whether the guest that has left stands here as it was left.
    fn check_stands(&mut self) -> Done {
        self.state().check_stands()
    }

    fn roll_back(&mut self) -> Done {
        self.state().roll_back()
    }

    fn clean_up(&mut self) -> Done {
        self.state().clean_up()
    }
}

/// The driver of the guest that the worker holds.
pub(super) fn of(state: State) -> Box<dyn Driver> {
    match state.shared.choice.mode {
        ModeTag::Direct => Box::new(Direct(state)),
        ModeTag::Streams => Box::new(Streams(state)),
        ModeTag::Handover => Box::new(Handover(state)),
    }
}

fn not_this_way(what: &str) -> Done {
    let detail = format!("a defect in the agent: a guest that moves this way does not {what}");
    Err(Fault::new(Code::Internal, Step::Copy, Side::Source, detail))
}

/// Linerate copies RAM, QEMU sends its device state only.
struct Direct(State);

impl Driver for Direct {
    fn state(&mut self) -> &mut State {
        &mut self.0
    }

    fn attach(&mut self) -> Done {
        self.0.attach()?;
        self.0.prepare_qemu()?;
        self.0.shared.tell(Event::Attached);
        Ok(())
    }

    fn protect(&mut self) -> Done {
        self.0.protect()
    }

    fn scan(&mut self, last: bool, also: &[Extent]) -> Done {
        self.0.scan(last, also)
    }

    fn throttle(&mut self, percent: u8) -> Done {
        self.0.throttle_percent = percent;
        Ok(())
    }

    fn switch_over(&mut self) -> Done {
        self.0.switch_over()
    }

    fn digest(&mut self) -> Done {
        self.0.digest()
    }

    fn write_device_state(&mut self) -> Done {
        self.0.write_device_state()
    }
}

/// QEMU copies RAM, and disks that are copied, by its own streams.
struct Streams(State);

impl Driver for Streams {
    fn state(&mut self) -> &mut State {
        &mut self.0
    }

    fn begin_streams(&mut self, settings: StreamSettings) -> Done {
        self.0.begin_streams(settings)
    }

    fn write_device_state(&mut self) -> Done {
        self.0.write_device_state()
    }
}

/// Linerate copies RAM, and libvirt hands the guest over.
struct Handover(State);

impl Driver for Handover {
    fn state(&mut self) -> &mut State {
        &mut self.0
    }

    fn next(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        self.0.next_of_domain(tasks).or_else(|| tasks.recv().ok())
    }

    fn await_stream(&mut self) -> Done {
        self.0.await_stream()
    }

    fn attach(&mut self) -> Done {
        self.0.attach()?;
        self.0.shared.tell(Event::Attached);
        Ok(())
    }

    fn protect(&mut self) -> Done {
        self.0.protect()
    }

    fn scan(&mut self, last: bool, also: &[Extent]) -> Done {
        self.0.check_domain(if last { Step::Blackout } else { Step::Copy })?;
        self.0.scan(last, also)
    }

    fn switch_over(&mut self) -> Done {
        self.0.stop_domain()
    }

    fn digest(&mut self) -> Done {
        self.0.digest()
    }

    fn let_through(&mut self) -> Done {
        self.0.let_through()
    }

    fn roll_back(&mut self) -> Done {
        self.0.roll_back_domain()
    }

    fn clean_up(&mut self) -> Done {
        self.0.forget_domain()
    }
}
