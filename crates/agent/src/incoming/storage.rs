//! The guest's disks at the destination that are not copied: each must be proved to be the one that the source uses.

use linerate_core::{Code, Fault, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::in_use;
use linerate_guest::incoming_qemu::IncomingQemu;
use linerate_guest::shared::{self, Proof, Proved};

use crate::faults::fault;

/// Refuses disks that are not shared, or that something else on this host writes.
pub(super) fn check(guest: &GuestDescription, incoming_qemu: &IncomingQemu) -> Result<Vec<Proved>, Fault> {
    let refuse = |detail: String| Fault::new(Code::ResourceMissing, Step::Admit, Side::Destination, detail);
    let proved = shared::check(guest, incoming_qemu).map_err(|refused| {
        let reasons: Vec<String> = refused.iter().map(ToString::to_string).collect();
        refuse(reasons.join("; "))
    })?;
    for one in &proved {
        let (disk, path, by) = (&one.disk, one.path.display(), one.by);
        match by {
            Proof::OperatorAsserted => {
                tracing::warn!(guest = guest.name, disk, %path, "shared storage by the operator's assertion")
            }
            by => tracing::info!(guest = guest.name, disk, %path, ?by, "shared storage"),
        }
    }
    in_use::check_shared(guest, incoming_qemu).map_err(|error| refuse(error.to_string()))?;
    Ok(proved)
}

/// Whether the incoming QEMU has opened what was proved, and it is still so.
pub(super) fn recheck(proved: &[Proved], pid: i32, step: Step) -> Result<(), Fault> {
    shared::recheck(proved, Some(pid))
        .map_err(|error| fault(Code::GuestDiffers, step, Side::Destination, &error))
}
