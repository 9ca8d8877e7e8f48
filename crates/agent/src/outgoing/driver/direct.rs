//! Linerate copies RAM. QEMU sends its device state only, which the session carries.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use linerate_core::source::Event;
use linerate_core::{Code, Extent, Step};

use super::own_qemu::OwnQemu;
use super::tracked_ram::{GuestRam, TrackedRam};
use super::{Done, Driver, here};
use crate::device_state::Reader;
use crate::faults::chain;
use crate::local::listen_for;
use crate::outgoing::guest::{Guest, HOLD_WAIT, qemu_fault};
use crate::outgoing::worker::Task;

/// A throttled guest is stopped for a part of each of these: short enough for its clocks and network, long enough that
/// stopping and resuming do not count.
const THROTTLE_PERIOD: Duration = Duration::from_millis(100);
/// Between two checks whether the destination has taken what QEMU wrote while the guest runs.
const LIVE_PAUSE: Duration = Duration::from_millis(1);

pub(super) struct Direct {
    own: OwnQemu,
    ram: TrackedRam,
    /// Reads QEMU's device state, from the switch-over until QEMU has written it.
    reader: Option<Reader>,
    state_is_written: bool,
    /// Part of the time, in percent, that the guest is stopped to slow it down.
    throttle_percent: u8,
}

impl Direct {
    pub fn new(own: OwnQemu, ram: GuestRam) -> Direct {
        let ram = TrackedRam::new(&own.guest, ram);
        Direct { own, ram, reader: None, state_is_written: false, throttle_percent: 0 }
    }

    /// Stops the guest for its part of a period, unless there is a task. Returns that task.
    fn slow_down(&mut self, tasks: &Receiver<Task>) -> Result<Task, RecvTimeoutError> {
        let stopped = THROTTLE_PERIOD * u32::from(self.throttle_percent) / 100;
        match tasks.recv_timeout(THROTTLE_PERIOD.saturating_sub(stopped)) {
            Err(RecvTimeoutError::Timeout) => {}
            other => return other,
        }
        let qemu = &mut self.own.guest.qemu;
        let paused = qemu.pause(Guest::deadline());
        let task = tasks.recv_timeout(stopped);
        let resumed = match paused {
            Ok(false) => Ok(()),
            // What could not be stopped may be stopped all the same.
            paused => {
                let resumed = qemu.resume(Guest::deadline());
                paused.and(resumed)
            }
        };
        if let Err(error) = resumed {
            self.throttle_percent = 0;
            tracing::warn!(error = chain(&error), "the guest can no longer be slowed down");
        }
        task
    }

    /// Reads the device state as QEMU writes it. While the guest runs, only as fast as the destination takes it.
    fn start_reader(&mut self) -> Done {
        let failed = |error: std::io::Error| here(Code::HypervisorFailed, Step::Blackout, &error);
        let _ = std::fs::remove_file(&self.own.state_socket);
        let listener =
            listen_for(&self.own.state_socket, self.own.guest.record.process.pid).map_err(failed)?;
        let guest = &self.own.guest;
        let (shared, is_abandoned) = (guest.shared.clone(), guest.abandon_check());
        let reader = Reader::start(listener, move |bytes| {
            shared.send(Event::DeviceState(bytes));
            while shared.machine().pauses_stream() && !is_abandoned() {
                std::thread::sleep(LIVE_PAUSE);
            }
        });
        self.reader = Some(reader.map_err(failed)?);
        Ok(())
    }

    fn drop_reader(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.abandon();
        }
        let _ = std::fs::remove_file(&self.own.state_socket);
    }
}

impl Driver for Direct {
    fn guest(&self) -> &Guest {
        &self.own.guest
    }

    /// While there is no task, a guest that is to be slowed down is stopped for a part of each period.
    fn next(&mut self, tasks: &Receiver<Task>) -> Option<Task> {
        while self.throttle_percent > 0 {
            match self.slow_down(tasks) {
                Err(RecvTimeoutError::Timeout) => {}
                other => return other.ok(),
            }
        }
        tasks.recv().ok()
    }

    fn attach(&mut self) -> Done {
        self.ram.attach(&self.own.guest)?;
        let qemu = &mut self.own.guest.qemu;
        qemu.prepare(Guest::deadline()).map_err(|error| qemu_fault(Step::Track, &error))?;
        self.own.guest.send(Event::Attached);
        Ok(())
    }

    fn protect(&mut self) -> Done {
        self.ram.protect(&mut self.own.guest)
    }

    fn count(&mut self) -> Done {
        self.ram.count(&mut self.own.guest)
    }

    fn scan(&mut self, last: bool, also: &[Extent]) -> Done {
        self.ram.scan(&mut self.own.guest, last, also)?;
        // While the last bytes go over, and the destination loads.
        if self.state_is_written { self.own.check_unchanged() } else { Ok(()) }
    }

    fn throttle(&mut self, percent: u8) -> Done {
        self.throttle_percent = percent;
        Ok(())
    }

    /// QEMU's set-up happens while the guest runs; the listener must be there before.
    fn switch_over(&mut self) -> Done {
        self.throttle_percent = 0;
        self.start_reader()?;
        let is_abandoned = self.own.guest.abandon_check();
        let qemu = &mut self.own.guest.qemu;
        qemu.begin(&self.own.state_socket, Guest::deadline())
            .map_err(|error| qemu_fault(Step::Blackout, &error))?;
        let held = qemu
            .wait_pre_switchover(Instant::now() + HOLD_WAIT, &is_abandoned)
            .map_err(|error| qemu_fault(Step::Blackout, &error))?;
        self.own.held(&held)
    }

    fn digest(&mut self) -> Done {
        self.ram.digest(&self.own.guest)
    }

    /// The last scan follows, and then the comparison with the beginning.
    fn write_device_state(&mut self) -> Done {
        self.own.write_state().map_err(|error| self.own.explain(&error))?;
        if let Some(reader) = self.reader.take() {
            reader.finish().map_err(|error| here(Code::HypervisorFailed, Step::Blackout, &error))?;
        }
        self.own.guest.send(Event::DeviceStateDone);
        self.state_is_written = true;
        Ok(())
    }

    fn check_source_unchanged(&mut self) -> Done {
        self.own.check_source_unchanged()
    }

    fn check_source_intact(&mut self) -> Done {
        self.own.check_source_intact()
    }

    fn roll_back(&mut self) -> Done {
        self.throttle_percent = 0;
        self.ram.detach();
        let rolled_back = self.own.resume_at_source();
        self.drop_reader();
        self.own.guest.send(rolled_back);
        Ok(())
    }

    fn clean_up(&mut self) -> Done {
        self.ram.detach();
        self.drop_reader();
        self.own.clean_up()
    }

    fn qemu_downtime_ms(&self) -> Option<u64> {
        self.own.downtime_ms()
    }
}
