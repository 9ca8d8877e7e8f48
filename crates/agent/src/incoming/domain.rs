//! A domain that comes to this host: libvirt has started its QEMU, which waits for a stream that the source holds back.
//! It is found by the domain's name, its RAM is filled, and it is let go: never run and never ended here.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use linerate_core::destination::Event;
use linerate_core::{Code, Fault, RegionInfo, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::domain::{self, DomainError};
use linerate_guest::qmp::Qmp;
use linerate_guest::read;
use linerate_guest::registry::GuestRecord;
use linerate_guest::run_state::RunState;
use linerate_memory::{Mapping, RamBlock};
use linerate_net::region::Region;
use linerate_net::table::RegionTable;

use super::worker::{Job, State, here};
use crate::faults::chain;
use crate::gate::Arriving;
use crate::ram::Ram;

const QMP_WAIT: Duration = Duration::from_secs(10);
/// Between two looks at whether QEMU has taken its stream.
const WATCH: Duration = Duration::from_millis(2);
/// QEMU loads its state, or libvirt ends it.
const PUT_BACK_WAIT: Duration = Duration::from_secs(30);

/// A QEMU of libvirt's that waits.
pub(super) struct Domain {
    record: GuestRecord,
    /// None once it was let go.
    qmp: Option<Qmp>,
    /// Its RAM is: the source lets its stream through.
    pub sealed: bool,
    /// Until the capability is off: libvirt waits.
    pub arriving: Option<Arriving>,
    found: GuestDescription,
}

fn refuse(code: Code, detail: impl Into<String>) -> Fault {
    Fault::new(code, Step::Admit, Side::Destination, detail)
}

impl State {
    /// Finds the waiting QEMU and maps its RAM. Nothing is set yet.
    pub(super) fn admit_domain(
        &mut self,
        offered: &GuestDescription,
        regions: &[RegionInfo],
    ) -> Result<(), Fault> {
        let deadline = Instant::now() + QMP_WAIT;
        let failed = |code, error: &(dyn std::error::Error + 'static)| here(code, Step::Admit, error);
        let opened = domain::open(&self.sessions.config.domain_sockets, &offered.name, deadline);
        let (record, mut qmp) = opened.map_err(|error| match &error {
            DomainError::NoSocket { .. } => failed(Code::ResourceMissing, &error),
            _ => failed(Code::HypervisorFailed, &error),
        })?;
        let found = read::read(&mut qmp, record.process.pid, deadline);
        let found = found.map_err(|error| failed(Code::HypervisorFailed, &error))?;
        check(offered, &found)?;
        for (block, region) in found.regions().zip(regions) {
            let path = PathBuf::from(block.path.clone().unwrap_or_default());
            let block = RamBlock::find(record.process.pid, &block.id, &path);
            let block = block.map_err(|error| failed(Code::MemoryFailed, &error))?;
            let mapping = Mapping::new(&block).map_err(|error| failed(Code::MemoryFailed, &error))?;
            if mapping.size() != region.size {
                let detail = format!("the file of RAM block {} has {} bytes", region.name, mapping.size());
                return Err(refuse(Code::GuestDiffers, detail));
            }
            self.ram.push(Arc::new(Ram::new(mapping)));
        }
        let table = regions.iter().zip(&self.ram);
        let table = table.map(|(info, ram)| (info.id, ram.clone() as Arc<dyn Region>));
        let _ = self.shared.regions.set(Arc::new(RegionTable::new(table)));
        self.domain = Some(Domain { record, qmp: Some(qmp), sealed: false, arriving: None, found });
        Ok(())
    }

    /// Has the waiting QEMU expect a stream without RAM; first the journal.
    pub(super) fn prepare_domain(&mut self) -> Result<(), Fault> {
        let Some(Domain { record, found, .. }) = &self.domain else { return Err(no_domain()) };
        let (pid, found) = (record.process.pid, found.clone());
        self.note_domain(false)?;
        let qmp = self.domain.as_mut().and_then(|domain| domain.qmp.as_mut()).ok_or_else(no_domain)?;
        domain::ignore_shared(qmp, true, Instant::now() + QMP_WAIT)
            .map_err(|error| here(Code::HypervisorFailed, Step::Prepare, &error))?;
        let (regions, touched) = self.look_at_ram(pid, &found)?;
        self.shared.tell(Event::Prepared { regions, touched });
        Ok(())
    }

    /// The next job. While there is none, the capability goes off as soon as QEMU has taken its stream, whatever
    /// becomes of the source: libvirt runs the guest by then, and saves it without its RAM as long as it is on. Not
    /// before RAM is sealed: a QEMU that reads a stream which is held may answer nothing (7.2 does not).
    pub(super) fn next_job(&mut self, inbox: &Receiver<Job>) -> Option<Job> {
        while self.domain.as_ref().is_some_and(|domain| domain.sealed && domain.qmp.is_some()) {
            match inbox.recv_timeout(WATCH) {
                Err(RecvTimeoutError::Timeout) => self.look_after_domain(),
                other => return other.ok(),
            }
        }
        inbox.recv().ok()
    }

    fn look_after_domain(&mut self) {
        if !self.is_set() {
            return;
        }
        let Some(qmp) = self.domain.as_mut().and_then(|domain| domain.qmp.as_mut()) else { return };
        let deadline = Instant::now() + QMP_WAIT;
        let done = match domain::has_arrived(qmp, deadline) {
            Ok(false) => return,
            Ok(true) => domain::ignore_shared(qmp, false, deadline).map_err(|error| chain(&error)),
            Err(error) => Err(chain(&error)),
        };
        let noted = match done {
            Ok(()) => self.note_domain(true).map_err(|fault| chain(&fault)),
            // It is tried again when the session ends.
            Err(error) => Err(error),
        };
        if let Err(error) = noted {
            tracing::debug!(error, "the capability is not off yet");
        }
        if let Some(domain) = &mut self.domain {
            domain.qmp = None;
            domain.arriving = None;
        }
    }

    /// Whether the capability was set, and not put back.
    fn is_set(&self) -> bool {
        matches!(self.waiting.lock().unwrap_or_else(PoisonError::into_inner).domain, Some((_, false)))
    }

    /// What the next start of this agent must know, to put the capability back.
    fn note_domain(&self, over: bool) -> Result<(), Fault> {
        let Some(domain) = &self.domain else { return Err(no_domain()) };
        let noted = Some((domain.record.clone(), over));
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).domain = noted;
        self.note_waiting()
    }

    /// Puts the capability back, if it was set. On `Err` the journal still says so.
    fn let_go(&mut self) -> Result<(), Fault> {
        let is_set = self.is_set();
        let Some(domain) = &mut self.domain else { return Err(no_domain()) };
        // QEMU serves one at a time.
        domain.qmp = None;
        let arriving = domain.arriving.take();
        if !is_set {
            return Ok(());
        }
        domain::put_back(&domain.record, Instant::now() + PUT_BACK_WAIT)
            .map_err(|error| here(Code::HypervisorFailed, Step::CleanUp, &error))?;
        drop(arriving);
        self.note_domain(true)
    }

    /// libvirt runs the guest.
    pub(super) fn release(&mut self) -> Result<(), Fault> {
        self.let_go()?;
        self.shared.tell(Event::HypervisorRestored);
        Ok(())
    }

    /// Nothing came of it: what becomes of the QEMU is libvirt's to say.
    pub(super) fn leave_domain(&mut self) -> Result<(), Fault> {
        self.shared.fences.close_all();
        if let Err(fault) = self.let_go() {
            tracing::error!(
                error = chain(&fault),
                "x-ignore-shared may still be on: do not save this domain; the next start of the agent tries again"
            );
        }
        self.shared.tell(Event::Discarded);
        Ok(())
    }
}

/// Whether the QEMU that was found waits for this very guest.
fn check(offered: &GuestDescription, found: &GuestDescription) -> Result<(), Fault> {
    if found.run_state != RunState::InMigrate {
        let detail = format!("the domain {} is {} here, and does not wait", offered.name, found.run_state);
        return Err(refuse(Code::GuestExists, detail));
    }
    let facts = |guest: &GuestDescription| (guest.name.clone(), guest.uuid.clone(), guest.machine.clone());
    if facts(offered) != facts(found) {
        let detail = format!("the QEMU that waits is {:?}, not {:?}", facts(found), facts(offered));
        return Err(refuse(Code::GuestDiffers, detail));
    }
    let blocks = |guest: &GuestDescription| -> Vec<(String, u64)> {
        guest.regions().map(|block| (block.id.clone(), block.size)).collect()
    };
    if blocks(offered) != blocks(found) {
        let detail = format!(
            "RAM in shared files is {:?} in the QEMU that waits, and {:?} at the source",
            blocks(found),
            blocks(offered)
        );
        return Err(refuse(Code::GuestDiffers, detail));
    }
    Ok(())
}

fn no_domain() -> Fault {
    Fault::new(Code::Internal, Step::Prepare, Side::Destination, "this session brings no domain")
}

#[cfg(test)]
pub(crate) mod tests {
    use linerate_guest::description::{Backend, ProcessFacts, SCHEMA, Traits};

    use super::*;

    pub(crate) fn waits() -> GuestDescription {
        let ram = linerate_guest::description::RamBlock {
            id: "pc.ram".into(),
            size: 256 << 20,
            page_bytes: 4096,
            backend: Backend::File,
            share: true,
            path: Some("/dev/shm/libvirt/web/pc.ram".into()),
            descriptor: Some(9),
            ignored_when_shared: true,
        };
        GuestDescription {
            schema: SCHEMA,
            name: "web".into(),
            uuid: Some("0f0e8c9a-0000-4000-8000-000000000001".into()),
            machine: "pc-q35-7.2".into(),
            cpu: "qemu64".into(),
            accelerator: "tcg".into(),
            memory_bytes: 256 << 20,
            vcpus: 1,
            qemu: linerate_guest::qmp::QemuVersion { major: 7, minor: 2, micro: 22 },
            arguments: Vec::new(),
            ram: vec![ram],
            disks: Vec::new(),
            nics: Vec::new(),
            traits: Traits::default(),
            run_state: RunState::InMigrate,
            process: ProcessFacts { pid: 1, vcpu_threads: Vec::new(), executable: "/usr/bin/qemu".into() },
            copied: Vec::new(),
            storage: None,
            domain: true,
            graph: None,
        }
    }

    #[test]
    fn only_a_qemu_that_waits_for_this_very_guest_is_written_to() {
        let runs = GuestDescription { run_state: RunState::Running, ..waits() };
        check(&runs, &waits()).unwrap();
        type Change = fn(&mut GuestDescription);
        let others: [(Code, Change); 6] = [
            // Its memory is in use.
            (Code::GuestExists, |found| found.run_state = RunState::Running),
            (Code::GuestExists, |found| found.run_state = RunState::Paused),
            (Code::GuestDiffers, |found| found.uuid = None),
            (Code::GuestDiffers, |found| found.machine = "pc-q35-6.2".into()),
            (Code::GuestDiffers, |found| found.ram.iter_mut().for_each(|block| block.size += 4096)),
            (Code::GuestDiffers, |found| {
                found.ram.iter_mut().for_each(|block| block.ignored_when_shared = false)
            }),
        ];
        for (n, (code, other)) in others.into_iter().enumerate() {
            let mut found = waits();
            other(&mut found);
            assert_eq!(check(&runs, &found).map_err(|fault| fault.code), Err(code), "{n}");
        }
    }
}
