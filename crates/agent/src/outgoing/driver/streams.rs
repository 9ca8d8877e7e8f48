//! QEMU copies RAM and device state in its own streams, and disks that are copied by its mirrors: disks first, then RAM
//! while they are kept up to date.

use std::path::PathBuf;

use linerate_api::MigrateRequest;
use linerate_core::source::Event;
use linerate_core::{Code, Step, StreamSettings};
use linerate_guest::migrate::{MigrateError, StreamLimits, StreamOptions, StreamProgress, Writes};

use super::own_qemu::OwnQemu;
use super::{Done, Driver, here};
use crate::outgoing::ChannelSource;
use crate::outgoing::guest::{Guest, qemu_fault};
use crate::outgoing::streams::{Accepting, MigrationStreams, Service};

pub(super) struct Streams {
    own: OwnQemu,
    /// What QEMU's connections become.
    streams: MigrationStreams,
    /// Where QEMU connects to the destination's images.
    disks_socket: PathBuf,
    accepting: Vec<Accepting>,
}

impl Streams {
    /// The channels carry streams from now on.
    pub fn new(own: OwnQemu) -> Streams {
        let (shared, copied) = (&own.guest.shared, own.guest.description.copied.len());
        let percent = shared.request.storage_share_percent;
        let percent = percent.unwrap_or(MigrateRequest::DEFAULT_STORAGE_SHARE_PERCENT);
        let streams = MigrationStreams::new(shared.inbox.clone(), percent, copied);
        shared.set_channel_source(ChannelSource::Streams(streams.clone()));
        let disks_socket = own.state_socket.with_file_name("disks.sock");
        Streams { own, streams, disks_socket, accepting: Vec::new() }
    }

    /// Until the destination's images are the same but for what the guest is just writing. RAM is begun then, so that
    /// it is not copied again and again meanwhile.
    fn copy_disks(&mut self) -> Done {
        let copied = &self.own.guest.description.copied;
        if copied.is_empty() {
            return Ok(());
        }
        self.accept(Service::Disks, copied.len())?;
        let failed = |error: MigrateError| qemu_fault(Step::Copy, &error);
        let is_abandoned = self.own.guest.abandon_check();
        let Guest { shared, description, qemu, .. } = &mut self.own.guest;
        let writes = if shared.request.throttle { Writes::WriteBlocking } else { Writes::Background };
        qemu.begin_mirrors(&description.copied, &self.disks_socket, writes, Guest::deadline())
            .map_err(failed)?;
        let mut report = |progress| shared.send(Event::Disks(self.streams.mirrored(progress)));
        qemu.wait_mirrors_ready(&is_abandoned, &mut report).map_err(failed)
    }

    /// Takes at most `most` connections of QEMU's from now on.
    fn accept(&mut self, service: Service, most: usize) -> Done {
        let socket = match service {
            Service::Migration => &self.own.state_socket,
            Service::Disks => &self.disks_socket,
        };
        let qemu = self.own.guest.record.process.pid;
        let accepting = Accepting::start(socket, qemu, self.streams.clone(), service, most)
            .map_err(|error| here(Code::HypervisorFailed, Step::Copy, &error))?;
        self.accepting.push(accepting);
        Ok(())
    }

    /// The mirrors end first: then the disks are the same on both hosts.
    fn write_state(&mut self) -> Result<(), MigrateError> {
        let guest = &mut self.own.guest;
        let is_abandoned = guest.abandon_check();
        let deadline = guest.state_deadline();
        let completed = guest.qemu.complete_mirrors(deadline, &is_abandoned)?;
        if let Some(disks) = completed {
            guest.send(Event::Disks(self.streams.mirrored(disks)));
        }
        self.own.write_state()
    }

    fn stop_accepting(&mut self) {
        self.accepting.clear();
        for socket in [&self.own.state_socket, &self.disks_socket] {
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl Driver for Streams {
    fn guest(&self) -> &Guest {
        &self.own.guest
    }

    fn begin_streams(&mut self, settings: StreamSettings) -> Done {
        self.copy_disks()?;
        self.accept(Service::Migration, usize::from(settings.channels) + 1)?;
        let failed = |error: MigrateError| qemu_fault(Step::Copy, &error);
        let is_abandoned = self.own.guest.abandon_check();
        let Guest { shared, qemu, .. } = &mut self.own.guest;
        let limits = shared.machine().limits().clone();
        let limits = StreamLimits { downtime: limits.max_blackout, throttle: limits.throttle };
        let options = StreamOptions {
            channels: settings.channels,
            return_path: settings.return_path,
            zero_pages_in_channels: settings.zero_pages_in_channels,
        };
        qemu.prepare_streams(options, limits, Guest::deadline()).map_err(failed)?;
        qemu.begin(&self.own.state_socket, Guest::deadline()).map_err(failed)?;
        let mut report = |progress: StreamProgress| {
            let disks = progress.disks.map(|disks| self.streams.mirrored(disks));
            disks.into_iter().for_each(|disks| shared.send(Event::Disks(disks)));
            let streamed = self.streams.streamed(progress);
            shared.send(Event::Streamed(streamed));
            shared.machine().ram_blackout(disks.unwrap_or_default(), streamed)
        };
        let held = qemu.wait_streams_held(&is_abandoned, &mut report).map_err(failed)?;
        self.own.held(&held)
    }

    /// The comparison with the beginning is done while the destination loads.
    fn write_device_state(&mut self) -> Done {
        self.write_state().map_err(|error| self.own.explain(&error))?;
        self.own.guest.send(Event::DeviceStateDone);
        self.own.check_unchanged()
    }

    fn check_source_unchanged(&mut self) -> Done {
        self.own.check_source_unchanged()
    }

    fn check_source_intact(&mut self) -> Done {
        self.own.check_source_intact()
    }

    fn roll_back(&mut self) -> Done {
        let rolled_back = self.own.resume_at_source();
        self.stop_accepting();
        self.own.guest.send(rolled_back);
        Ok(())
    }

    fn clean_up(&mut self) -> Done {
        self.stop_accepting();
        self.own.clean_up()
    }

    fn qemu_downtime_ms(&self) -> Option<u64> {
        self.own.downtime_ms()
    }
}
