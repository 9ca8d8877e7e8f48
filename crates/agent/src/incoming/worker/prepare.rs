//! What is made for a guest that comes: its room, its QEMU, and the streams into it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate_core::destination::Event;
use linerate_core::{Code, Endpoint, Fault, Mode, Side, Step, StreamSettings};
use linerate_guest::description::GuestDescription;
use linerate_guest::migrate::{DestinationQemu, MigrateError};
use linerate_guest::process::{self, Launch};
use linerate_guest::read;
use linerate_guest::registry::Origin;
use linerate_net::region::Region;
use linerate_net::table::RegionTable;

use super::{QMP_WAIT, ROOM_WAIT, START_WAIT, Started, State, code_of, here, internal};
use crate::device_state::Writer;
use crate::incoming::admit::{admit, check_offer};
use crate::incoming::storage;
use crate::incoming::streams::{self, Services};
use crate::ram::Ram;
use crate::session::offer::offered;

impl State {
    pub(super) fn admit(&mut self, guest: &str, description: &str, mode: Mode) -> Result<(), Fault> {
        self.make_room(guest)?;
        let described = check_offer(description, guest, &mode)?;
        self.waiting().mode = Some(mode.tag());
        match &mode {
            Mode::Direct { .. } | Mode::Streams { .. } => self.admit_twin(guest, described, &mode)?,
            Mode::Handover { regions } => self.admit_domain(&described, regions)?,
        }
        self.mode = Some(mode);
        self.shared.tell(Event::Admitted(self.endpoints()?));
        Ok(())
    }

    /// Reserves for a QEMU that this agent will start.
    fn admit_twin(&mut self, guest: &str, described: GuestDescription, mode: &Mode) -> Result<(), Fault> {
        let mut admitted = admit(&self.sessions, guest, described, mode.regions().to_vec())?;
        self.ram = admitted.ram.drain(..).map(|mapping| Arc::new(Ram::new(mapping))).collect();
        let regions = admitted.regions.iter().zip(&self.ram);
        let regions = regions.map(|(info, ram)| (info.id, ram.clone() as Arc<dyn Region>));
        let _ = match mode.tag().carries_streams() {
            false => self.shared.regions.set(Arc::new(RegionTable::new(regions))).map_err(drop),
            true => self.shared.carriage.set(streams::carriage(&self.shared)).map_err(drop),
        };
        self.shared.ram_folder.set(admitted.twin.ram_files.first().map(|file| file.path.as_path()));
        self.admitted = Some(admitted);
        Ok(())
    }

    fn endpoints(&self) -> Result<Vec<Endpoint>, Fault> {
        offered(&self.sessions.config.listen, &self.sessions.bench.rdma)
    }

    /// An earlier session may hold this guest's place. One whose source is gone gives way (it was not committed, and
    /// the guest is being offered again), one that lives does not.
    fn make_room(&self, guest: &str) -> Result<(), Fault> {
        let begun = Instant::now();
        let end = begun + ROOM_WAIT;
        while self.sessions.is_going(guest) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
        }
        while let Some(other) = self.sessions.comes_already(guest, self.shared.session) {
            let orphaned = other.is_orphaned();
            if orphaned {
                tracing::info!(session = %other.session, guest, "its source is gone and the guest is offered again: giving it up");
                other.cancel();
            }
            // One that is complete waits for its source's word, which may be on its way.
            let patience = if orphaned || other.is_held() { end } else { begun + other.orphaned_within() };
            if Instant::now() >= patience {
                let detail = format!("migration {} brings {guest} here already", other.session);
                return Err(Fault::new(Code::GuestBusy, Step::Admit, Side::Destination, detail));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Starts the waiting QEMU.
    fn start_guest(&mut self, ram_is_made: bool, deadline: Instant) -> Result<Started, Fault> {
        let Some(admitted) = &self.admitted else { return Err(internal("nothing was admitted")) };
        let launch = Launch {
            name: &admitted.twin.name,
            qemu: &admitted.qemu,
            arguments: &admitted.twin.arguments,
            folder: &admitted.folder,
            qmp: &admitted.twin.qmp,
            pid_file: &admitted.twin.pid_file,
            ram_files: admitted.twin.ram_files.iter().map(|file| file.path.clone()).collect(),
            ram_is_made,
            origin: Origin::Arrived,
            session: Some(self.shared.session.to_string()),
        };
        let (record, mut qmp) = process::start(&self.sessions.registry, &launch, deadline)
            .map_err(|error| here(Code::HypervisorFailed, Step::Prepare, &error))?;
        self.waiting().qemu = Some(record.clone());
        let pid = record.process.pid;
        let socket = admitted.folder.join("state.sock");
        let found = read::read(&mut qmp, pid, deadline);
        self.guest = Some((record, DestinationQemu::new(qmp)));
        let found = found.map_err(|error| here(Code::HypervisorFailed, Step::Prepare, &error))?;
        self.waiting().cpu_threads.clone_from(&found.process.vcpu_threads);
        if let Some(admitted) = &self.admitted {
            self.waiting().copied = admitted.images.exports.iter().map(|one| one.path.clone()).collect();
        }
        self.check_graph(deadline)?;
        if let Some(admitted) = &self.admitted {
            storage::recheck(&admitted.proved, pid, Step::Prepare)?;
        }
        Ok(Started { pid, found, socket })
    }

    pub(super) fn prepare(&mut self) -> Result<(), Fault> {
        match self.mode {
            Some(Mode::Direct { .. }) => self.prepare_direct(),
            Some(Mode::Streams { channels }) => self.prepare_streams(channels),
            Some(Mode::Handover { .. }) => self.prepare_domain(),
            None => Err(internal("nothing was admitted")),
        }
    }

    fn prepare_direct(&mut self) -> Result<(), Fault> {
        let deadline = Instant::now() + START_WAIT;
        let Started { pid, found, socket } = self.start_guest(true, deadline)?;
        let failed = |error: MigrateError| here(Code::HypervisorFailed, Step::Prepare, &error);
        let runs = self.admitted.as_ref().is_none_or(|admitted| admitted.description.is_running());
        let qemu = self.qemu()?;
        qemu.prepare(runs, deadline).map_err(failed)?;
        qemu.incoming(&socket, deadline).map_err(failed)?;
        let writer =
            Writer::connect(&socket).map_err(|error| here(Code::HypervisorFailed, Step::Prepare, &error))?;
        self.writer = Some(writer);
        let (regions, touched) = self.look_at_ram(pid, &found)?;
        self.note_waiting()?;
        self.shared.tell(Event::Prepared { regions, touched });
        Ok(())
    }

    /// The waiting QEMU takes its own streams, for as long as they come: whoever tears down ends that wait.
    fn prepare_streams(&mut self, channels: u16) -> Result<(), Fault> {
        let deadline = Instant::now() + START_WAIT;
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let channels = channels.min(u16::try_from(cpus).unwrap_or(u16::MAX));
        let Started { socket, .. } = self.start_guest(false, deadline)?;
        let failed = |error: MigrateError| here(code_of(&error), Step::Prepare, &error);
        let (Some(admitted), Some((_, qemu))) = (&self.admitted, &mut self.guest) else {
            return Err(internal("no hypervisor waits"));
        };
        let options = qemu.prepare_streams(channels, &admitted.description, deadline).map_err(failed)?;
        let disks = admitted.folder.join("disks.sock");
        let disks = (!admitted.images.exports.is_empty()).then_some(disks);
        if let Some(disks) = &disks {
            qemu.export_disks(&admitted.images.exports, disks, deadline).map_err(failed)?;
            admitted.images.are_overwritten(&admitted.twin.name, "this host, and not all of it came");
        }
        qemu.incoming(&socket, deadline).map_err(failed)?;
        self.connect_streams(Services { state: socket, disks })?;
        self.note_waiting()?;
        self.shared.tell(Event::StreamsPrepared(StreamSettings {
            channels: options.channels,
            return_path: options.return_path,
            zero_pages_in_channels: options.zero_pages_in_channels,
        }));
        let abandon = self.abandon.clone();
        let taken = self.qemu()?.wait_streams_taken(&|| abandon.load(Ordering::SeqCst));
        taken.map_err(|error| here(Code::HypervisorFailed, Step::Copy, &error))?;
        self.shared.tell(Event::DeviceStateLoaded);
        self.qemu()?.put_back(Instant::now() + QMP_WAIT);
        Ok(())
    }

    /// What the next start of this agent must know to end the incoming QEMU, or to put its settings back.
    pub fn note_waiting(&self) -> Result<(), Fault> {
        let settings = self.guest.as_ref().and_then(|(_, qemu)| qemu.found().cloned());
        self.waiting().settings = settings;
        self.sessions.note_waiting(
            self.shared.session,
            &self.shared.guest(),
            self.shared.order,
            &self.waiting,
        )
    }

    pub(super) fn connect_streams(&self, services: Services) -> Result<(), Fault> {
        let carriage = self.shared.carriage.get().ok_or_else(|| internal("this mode has no streams"))?;
        let connector = streams::connector(carriage.streams.clone(), services)
            .map_err(|error| here(Code::Internal, Step::Prepare, &error))?;
        let _ = self.shared.connector.set(connector);
        Ok(())
    }
}
