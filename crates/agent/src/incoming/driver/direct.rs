//! Linerate copies RAM. The incoming QEMU loads its device state only.

use std::time::Instant;

use linerate_core::destination::Event;
use linerate_core::{Code, Fault, RegionInfo, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::migrate::MigrateError;

use super::own_qemu::{LOAD_WAIT, OwnQemu, START_WAIT, Started};
use super::placed_ram::PlacedRam;
use super::{Done, Driver, QMP_WAIT, here, internal};
use crate::device_state::Writer;
use crate::incoming::context::Context;

pub(super) struct Direct {
    qemu: OwnQemu,
    ram: PlacedRam,
    /// The stream into QEMU, while it waits for its device state.
    writer: Option<Writer>,
}

impl Direct {
    pub fn admit(
        context: Context,
        description: GuestDescription,
        regions: &[RegionInfo],
    ) -> Result<Direct, Fault> {
        let (qemu, mappings) = OwnQemu::admit(context, description, regions)?;
        let ram = PlacedRam::new(&qemu.context.shared, regions, mappings);
        Ok(Direct { qemu, ram, writer: None })
    }
}

impl Driver for Direct {
    fn context(&self) -> &Context {
        &self.qemu.context
    }

    fn prepare(&mut self) -> Done {
        let deadline = Instant::now() + START_WAIT;
        let Started { pid, found } = self.qemu.start(true, deadline)?;
        let failed = |error: MigrateError| here(Code::HypervisorFailed, Step::Prepare, &error);
        let (socket, runs) = (self.qemu.state_socket(), self.qemu.admitted.description.is_running());
        let monitor = self.qemu.monitor()?;
        monitor.prepare(runs, deadline).map_err(failed)?;
        monitor.incoming(&socket, deadline).map_err(failed)?;
        let writer = Writer::connect(&socket, pid);
        self.writer = Some(writer.map_err(|error| here(Code::HypervisorFailed, Step::Prepare, &error))?);
        let (regions, touched) = self.ram.check_blocks(pid, &found)?;
        self.qemu.write_journal()?;
        self.context().shared.send(Event::Prepared { regions, touched });
        Ok(())
    }

    fn seal(&mut self, digest: bool) -> Done {
        let digest = self.ram.seal(digest)?;
        self.context().shared.send(Event::Sealed(digest));
        Ok(())
    }

    fn load_device_state(&mut self, bytes: &[u8]) -> Done {
        let writer = self.writer.as_mut().ok_or_else(no_writer)?;
        writer.write(bytes).map_err(|error| here(Code::HypervisorFailed, Step::Blackout, &error))
    }

    fn finish_device_state(&mut self) -> Done {
        let writer = self.writer.as_ref().ok_or_else(no_writer)?;
        writer.finish().map_err(|error| here(Code::HypervisorFailed, Step::Blackout, &error))?;
        let context = self.context().clone();
        let monitor = self.qemu.monitor()?;
        monitor
            .wait_loaded(Instant::now() + LOAD_WAIT, &|| context.is_abandoned())
            .map_err(|error| here(Code::HypervisorFailed, Step::Blackout, &error))?;
        context.shared.send(Event::DeviceStateLoaded);
        // While the message goes to the source and back.
        monitor.save_ram_again(Instant::now() + QMP_WAIT);
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
        self.writer = None;
        Ok(())
    }

    fn discard(self: Box<Self>) {
        drop(self.writer);
        self.qemu.discard();
    }
}

fn no_writer() -> Fault {
    internal("no hypervisor waits for its state")
}
