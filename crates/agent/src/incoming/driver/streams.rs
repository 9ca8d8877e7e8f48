//! QEMU's own streams carry RAM, device state, and disks that are copied.

use std::sync::Arc;
use std::time::Instant;

use linerate_core::destination::Event;
use linerate_core::{Code, Fault, Step, StreamSettings};
use linerate_guest::description::GuestDescription;
use linerate_guest::migrate::MigrateError;
use linerate_net::stream::StreamSession;

use super::own_qemu::{OwnQemu, START_WAIT};
use super::{Done, Driver, QMP_WAIT, here};
use crate::incoming::ChannelTarget;
use crate::incoming::context::Context;
use crate::incoming::streams::{Services, connector, stream_transport};

pub(super) struct Streams {
    qemu: OwnQemu,
    streams: Arc<StreamSession>,
    /// Parallel channels that the source's QEMU would use.
    offered_channels: u16,
}

impl Streams {
    pub fn admit(
        context: Context,
        description: GuestDescription,
        offered_channels: u16,
    ) -> Result<Streams, Fault> {
        let (qemu, _no_ram) = OwnQemu::admit(context, description, &[])?;
        let shared = &qemu.context.shared;
        let transport = stream_transport(shared);
        let streams = transport.streams.clone();
        let _ = shared.target.set(ChannelTarget::Streams(transport));
        Ok(Streams { qemu, streams, offered_channels })
    }

    /// Has the incoming QEMU wait for its streams, and serve the images that disks are copied into.
    fn listen(&mut self) -> Result<StreamSettings, Fault> {
        let deadline = Instant::now() + START_WAIT;
        let pid = self.qemu.start(false, deadline)?.pid;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let channels = self.offered_channels.min(u16::try_from(cpus).unwrap_or(u16::MAX));
        let failed = |error: MigrateError| here(code_of(&error), Step::Prepare, &error);
        let state = self.qemu.state_socket();
        let (admitted, monitor) = self.qemu.parts()?;
        let options = monitor.prepare_streams(channels, &admitted.description, deadline).map_err(failed)?;
        let disks = state.with_file_name("disks.sock");
        let disks = (!admitted.images.exports.is_empty()).then_some(disks);
        if let Some(disks) = &disks {
            monitor.export_disks(&admitted.images.exports, disks, deadline).map_err(failed)?;
            admitted
                .images
                .are_overwritten(&admitted.incoming_qemu.name, "this host, and not all of it arrived");
        }
        monitor.incoming(&state, deadline).map_err(failed)?;
        self.connect(Services { qemu: pid, state, disks })?;
        Ok(StreamSettings {
            channels: options.channels,
            return_path: options.return_path,
            zero_pages_in_channels: options.zero_pages_in_channels,
        })
    }

    /// From now on a stream that the source asks for is connected to the incoming QEMU.
    fn connect(&self, services: Services) -> Done {
        let connector = connector(self.streams.clone(), services)
            .map_err(|error| here(Code::Internal, Step::Prepare, &error))?;
        let _ = self.context().shared.connector.set(connector);
        Ok(())
    }
}

impl Driver for Streams {
    fn context(&self) -> &Context {
        &self.qemu.context
    }

    /// The incoming QEMU takes its own streams, as long as they last. Discarding it ends that wait.
    fn prepare(&mut self) -> Done {
        let settings = self.listen()?;
        self.qemu.write_journal()?;
        let context = self.context().clone();
        context.shared.send(Event::StreamsPrepared(settings));
        let monitor = self.qemu.monitor()?;
        let taken = monitor.wait_streams_taken(&|| context.is_abandoned());
        taken.map_err(|error| here(Code::HypervisorFailed, Step::Copy, &error))?;
        context.shared.send(Event::DeviceStateLoaded);
        monitor.put_back(Instant::now() + QMP_WAIT);
        Ok(())
    }

    fn check_disks(&mut self, reported: &str) -> Done {
        self.qemu.check_disks(reported)
    }

    fn look(&mut self) -> Done {
        self.qemu.look();
        Ok(())
    }

    fn run(&mut self, ran: bool) -> Done {
        self.qemu.run(ran);
        Ok(())
    }

    /// A QEMU whose streams were reset may not answer for long, so it is killed first. It has never run.
    fn discard(self: Box<Self>) {
        self.qemu.kill();
        self.qemu.discard();
    }
}

/// An image that is another's is a matter of this host and not of its QEMU.
fn code_of(error: &MigrateError) -> Code {
    match error {
        MigrateError::ImageInUse { .. } | MigrateError::Image { .. } => Code::ResourceMissing,
        _ => Code::HypervisorFailed,
    }
}
