//! An incoming domain: libvirt has started its QEMU, which waits. It is found by the domain's name.

use std::path::{Path, PathBuf};
use std::time::Instant;

use linerate_core::{Code, Fault, RegionInfo, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::domain::{self, DomainError};
use linerate_guest::qmp::Qmp;
use linerate_guest::read;
use linerate_guest::registry::GuestRecord;
use linerate_guest::run_state::RunState;
use linerate_memory::{Mapping, RamBlock};

use super::driver::here;

/// A QEMU of libvirt's that waits for the guest.
pub(super) struct Found {
    pub record: GuestRecord,
    pub qmp: Qmp,
    pub description: GuestDescription,
    /// RAM of each region.
    pub mappings: Vec<Mapping>,
}

/// Finds it and maps its RAM. Nothing is set.
pub(super) fn find(
    sockets: &Path,
    offered: &GuestDescription,
    regions: &[RegionInfo],
    deadline: Instant,
) -> Result<Found, Fault> {
    let (record, mut qmp) = domain::open(sockets, &offered.name, deadline).map_err(|error| match &error {
        DomainError::NoSocket { .. } | DomainError::Folder(_) | DomainError::Foreign { .. } => {
            failed(Code::ResourceMissing, &error)
        }
        _ => failed(Code::HypervisorFailed, &error),
    })?;
    let pid = record.process.pid;
    let description = read::read(&mut qmp, pid, deadline);
    let description = description.map_err(|error| failed(Code::HypervisorFailed, &error))?;
    check(offered, &description)?;
    let blocks = description.regions().zip(regions);
    let mappings = blocks.map(|(block, region)| {
        let path = PathBuf::from(block.path.clone().unwrap_or_default());
        let block = RamBlock::find(pid, &block.id, &path);
        let block = block.map_err(|error| failed(Code::MemoryFailed, &error))?;
        let mapping = Mapping::new(&block).map_err(|error| failed(Code::MemoryFailed, &error))?;
        if mapping.size() != region.size {
            let detail = format!("the file of RAM block {} has {} bytes", region.name, mapping.size());
            return Err(refuse(Code::GuestDiffers, detail));
        }
        Ok(mapping)
    });
    let mappings = mappings.collect::<Result<_, Fault>>()?;
    Ok(Found { record, qmp, description, mappings })
}

fn failed(code: Code, error: &(dyn std::error::Error + 'static)) -> Fault {
    here(code, Step::Admit, error)
}

fn refuse(code: Code, detail: impl Into<String>) -> Fault {
    Fault::new(code, Step::Admit, Side::Destination, detail)
}

/// Whether the QEMU that was found waits for this very guest.
fn check(offered: &GuestDescription, found: &GuestDescription) -> Result<(), Fault> {
    if found.run_state != RunState::InMigrate {
        let detail = format!(
            "the domain {} is {} at the destination, where `inmigrate` was expected",
            offered.name, found.run_state
        );
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
            processor: None,
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
        let others: [(Code, Change); 8] = [
            // Its memory is in use.
            (Code::GuestExists, |found| found.run_state = RunState::Running),
            (Code::GuestExists, |found| found.run_state = RunState::Paused),
            (Code::GuestDiffers, |found| found.name = "db".into()),
            (Code::GuestDiffers, |found| found.uuid = None),
            (Code::GuestDiffers, |found| found.uuid = Some("0f0e8c9a-0000-4000-8000-000000000002".into())),
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
