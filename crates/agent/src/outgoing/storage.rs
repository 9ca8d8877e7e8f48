//! The guest's disks at the source: which are copied, and which are shared.

use std::time::{Duration, Instant};

use linerate_api::MigrateRequest;
use linerate_core::{Code, Fault, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::drives::{self, DiskSelection};
use linerate_guest::qmp::Qmp;
use linerate_guest::registry::GuestRecord;
use linerate_guest::shared::{self, Marks};

use crate::faults::fault;

/// A process ends after it has closed its files.
const END_WAIT: Duration = Duration::from_millis(100);

/// Puts into the description which disks are copied and what the others are stored on. The marks stay until they are
/// dropped.
pub(super) fn read(
    request: &MigrateRequest,
    qmp: &mut Qmp,
    guest: &mut GuestDescription,
    deadline: Instant,
) -> Result<Marks, Fault> {
    let here = |error: &(dyn std::error::Error + 'static)| {
        fault(Code::NotMigratable, Step::Resolve, Side::Source, error)
    };
    if request.copies_disks() {
        let choice = match request.copy_disks.as_slice() {
            [] => DiskSelection::All,
            named => DiskSelection::Named(named),
        };
        guest.copied = drives::writable(qmp, guest, choice, deadline).map_err(|error| here(&error))?;
    }
    let both = guest.copied.iter().find(|disk| request.shared_storage.contains(&disk.id));
    if let Some(disk) = both {
        let detail = format!("the disk {} is either copied or shared (--shared-storage), not both", disk.id);
        return Err(Fault::new(Code::NotMigratable, Step::Resolve, Side::Source, detail));
    }
    let (facts, marks) = shared::describe(guest, &request.shared_storage).map_err(|error| here(&error))?;
    guest.storage = Some(facts);
    Ok(marks)
}

/// A warning where the operator asserts that disks are shared.
pub(super) fn caution(request: &MigrateRequest) -> Option<String> {
    let named = request.shared_storage.join(", ");
    (!named.is_empty()).then(|| {
        format!(
            "that both hosts share {named} is your assertion (--shared-storage). If it is wrong, the guest loses what is \
             on it"
        )
    })
}

/// The fault, or that the guest's QEMU has ended if that is the cause. A process that was killed has closed its
/// connections a moment before it counts as ended.
pub(super) fn unless_gone(fault: Fault, record: &GuestRecord) -> Fault {
    let suspected = matches!(fault.code, Code::HypervisorFailed | Code::TrackingFailed | Code::MemoryFailed);
    if !suspected || !has_ended(record) {
        return fault;
    }
    let detail =
        format!("the QEMU of {} (process {}) has ended: {}", record.name, record.process.pid, fault.detail);
    Fault { code: Code::GuestGone, detail, ..fault }
}

/// One that was killed cannot run any more long before it has ended, on a busy machine. It is not asked: its QMP socket
/// may be in use.
fn has_ended(record: &GuestRecord) -> bool {
    let end = Instant::now() + END_WAIT;
    while !record.cannot_run() {
        if Instant::now() >= end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
