//! What the worker does where RAM goes in QEMU's own streams: copied disks first, then RAM beside them.

use std::sync::atomic::Ordering;

use linerate_core::source::Event;
use linerate_core::{Code, Fault, Side, Step, StreamSettings, Time};
use linerate_guest::migrate::{MigrateError, StreamLimits, StreamOptions, StreamProgress, Writes};

use super::{Guest, State, qemu_fault};
use crate::faults::fault;
use crate::outgoing::Input;
use crate::outgoing::streams::{Accepting, Service};

impl State {
    /// QEMU copies disks and then RAM in its own streams until little enough is left, and stops the guest; all of that is one task.
    pub(in crate::outgoing) fn begin_streams(&mut self, settings: StreamSettings) -> Result<(), Fault> {
        self.copy_disks()?;
        self.accept(Service::Migration, usize::from(settings.channels) + 1)?;
        let failed = |error: MigrateError| qemu_fault(Step::Copy, &error);
        let Guest { qemu, state_socket, .. } = &mut self.guest;
        let limits = self.shared.machine().limits().clone();
        let limits = StreamLimits { downtime: limits.max_blackout, throttle: limits.throttle };
        let options = StreamOptions {
            channels: settings.channels,
            return_path: settings.return_path,
            zero_pages_in_channels: settings.zero_pages_in_channels,
        };
        qemu.prepare_streams(options, limits, Self::deadline()).map_err(failed)?;
        qemu.begin(state_socket, Self::deadline()).map_err(failed)?;
        let (shared, abandon) = (&self.shared, &self.abandon);
        let mut tell = |progress: StreamProgress| {
            let disks = progress.disks.map(|disks| shared.mirrored(disks));
            disks.into_iter().for_each(|disks| shared.tell(Event::Disks(disks)));
            let streamed = shared.streamed(progress);
            shared.tell(Event::Streamed(streamed));
            shared.machine().ram_blackout(disks.unwrap_or_default(), streamed)
        };
        let held = qemu.wait_streams_held(&|| abandon.load(Ordering::SeqCst), &mut tell).map_err(failed)?;
        let stopped_at: Time = self.shared.clock.at(held.stopped_at);
        let _ = self.shared.inbox.send(Input::EventAt(stopped_at, Event::GuestStopped));
        self.holds(held.ran)
    }

    /// Until they are the same over there but for what the guest is just writing. RAM is begun then, so that it is not copied again and
    /// again meanwhile.
    fn copy_disks(&mut self) -> Result<(), Fault> {
        if self.guest.description.copied.is_empty() {
            return Ok(());
        }
        self.accept(Service::Disks, self.guest.description.copied.len())?;
        let failed = |error: MigrateError| qemu_fault(Step::Copy, &error);
        let Guest { qemu, description, disks_socket, .. } = &mut self.guest;
        let writes = if self.shared.request.throttle { Writes::WriteBlocking } else { Writes::Background };
        qemu.begin_mirrors(&description.copied, disks_socket, writes, Self::deadline()).map_err(failed)?;
        let (shared, abandon) = (&self.shared, &self.abandon);
        let mut tell = |progress| shared.tell(Event::Disks(shared.mirrored(progress)));
        qemu.wait_mirrors_ready(&|| abandon.load(Ordering::SeqCst), &mut tell).map_err(failed)
    }

    /// Takes so many connections of QEMU's from now on.
    fn accept(&mut self, service: Service, most: usize) -> Result<(), Fault> {
        let socket = match service {
            Service::Migration => &self.guest.state_socket,
            Service::Disks => &self.guest.disks_socket,
        };
        let accepting = Accepting::start(socket, self.shared.clone(), service, most)
            .map_err(|error| fault(Code::HypervisorFailed, Step::Copy, Side::Source, &error))?;
        self.accepting.push(accepting);
        Ok(())
    }
}
