//! What every driver has of the guest that leaves: its QEMU, and the migration.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use linerate_core::source::Event;
use linerate_core::{Code, Fault, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::migrate::{MigrateError, SourceQemu};
use linerate_guest::read;
use linerate_guest::registry::GuestRecord;

use super::{Input, Outgoing};
use crate::faults::fault;

/// A QMP command that does not wait for anything.
const QMP_WAIT: Duration = Duration::from_secs(10);
/// QEMU stops the guest and holds, or writes its device state.
pub(super) const HOLD_WAIT: Duration = Duration::from_secs(30);

/// How long QEMU may take to write what is left when it has stopped the guest. In its own streams that is the rest of
/// RAM and disks too, for as long as the blackout may be.
fn state_wait(max_blackout: Duration) -> Duration {
    HOLD_WAIT + max_blackout
}

/// The guest's QEMU, what was read of it, and the migration that it belongs to.
pub(super) struct Guest {
    pub shared: Arc<Outgoing>,
    pub description: GuestDescription,
    pub record: GuestRecord,
    pub qemu: SourceQemu,
    /// The migration is rolled back: every wait of the driver ends.
    pub abandon: Arc<AtomicBool>,
}

impl Guest {
    /// Nothing is done to it yet.
    pub fn new(
        shared: Arc<Outgoing>,
        description: GuestDescription,
        record: GuestRecord,
        qemu: SourceQemu,
    ) -> Guest {
        Guest { shared, description, record, qemu, abandon: Arc::default() }
    }

    pub fn deadline() -> Instant {
        Instant::now() + QMP_WAIT
    }

    /// QEMU must have written what is left by then.
    pub fn state_deadline(&self) -> Instant {
        Instant::now() + state_wait(self.shared.machine().limits().max_blackout)
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandon.load(Ordering::SeqCst)
    }

    /// The same question, for a wait that borrows the guest or has a thread of its own.
    pub fn abandon_check(&self) -> impl Fn() -> bool + Send + 'static {
        let abandon = self.abandon.clone();
        move || abandon.load(Ordering::SeqCst)
    }

    pub fn send(&self, event: Event) {
        self.shared.send(event);
    }

    /// What the CPU writes for guests of this guest is not tracked. It had run none when its migration began.
    pub fn check_not_nested(&mut self, step: Step) -> Result<(), Fault> {
        let nested = read::has_run_guests(self.qemu.qmp(), Guest::deadline());
        if !nested.map_err(|error| fault(Code::HypervisorFailed, step, Side::Source, &error))? {
            return Ok(());
        }
        let detail = "the guest has begun to run virtual machines of its own, whose CPU state is written to RAM \
                      unseen. Start the migration again (--mode auto or stream)";
        Err(Fault::new(Code::TrackingFailed, step, Side::Source, detail))
    }

    /// Its virtual CPUs have executed nothing since then.
    pub fn send_stopped(&self, at: Instant) {
        let at = self.shared.clock.at(at);
        let _ = self.shared.inbox.send(Input::EventAt(at, Event::GuestStopped));
    }
}

pub(super) fn qemu_fault(step: Step, error: &MigrateError) -> Fault {
    fault(Code::HypervisorFailed, step, Side::Source, error)
}

#[cfg(test)]
mod tests {
    use linerate_core::Mode;
    use linerate_core::source::Config;

    use super::*;

    #[test]
    fn a_qemu_that_writes_the_rest_of_ram_is_waited_for_as_long_as_the_blackout_may_last() {
        let limit = Config::new("g", String::new(), Mode::Streams { channels: 0 }).blackout_timeout;
        for max_blackout in [1, 300, 60_000].map(Duration::from_millis) {
            assert!(state_wait(max_blackout) >= max_blackout + limit, "{max_blackout:?}");
        }
    }
}
