//! Whether a guest can be moved in direct mode or by QEMU's own streams, and if not, why, in words that say what to do.

use std::fmt;

use crate::bytes::bytes;
use crate::description::{Backend, DescriptionError, GuestDescription, REGIONS_MAX};
use crate::host::{self, Problem};
use crate::incoming_qemu::{IncomingError, IncomingOptions, attempt};
use crate::run_state::RunState;

/// First kernel with PAGEMAP_SCAN and asynchronous write protection.
pub const KERNEL_NEEDED: (u32, u32) = (6, 7);

/// Whether a guest can move in direct mode, and if not every reason against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Direct mode can be used.
    pub direct: bool,
    /// Why not; empty if it can.
    pub reasons: Vec<Reason>,
}

/// One reason against direct mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// RAM in anonymous memory.
    #[error(
        "RAM block {block} is anonymous memory: start the guest with -object memory-backend-file,id=ram,size=…,mem-path=/dev/shm/NAME.ram,share=on,discard-data=off and -machine …,memory-backend=ram"
    )]
    RamAnonymous { block: String },
    /// RAM in a file that is mapped privately.
    #[error("RAM block {block} is a private mapping: give its memory-backend the option share=on")]
    RamNotShared { block: String },
    /// RAM in a memfd under a QEMU that ignores named files only.
    #[error(
        "RAM block {block} is a memfd and QEMU {version} leaves only named files out of its stream: use memory-backend-file with a mem-path on a tmpfs or hugetlbfs"
    )]
    RamMemfd { block: String, version: String },
    /// No descriptor of the memory found.
    #[error(
        "the file behind RAM block {block} cannot be found among the process's open files: give each guest one memory back end"
    )]
    RamNotFound { block: String },
    /// RAM that ends inside of a huge page: the file is longer than the block, and no other host can make it so.
    #[error(
        "RAM block {block} has {}, which are not whole huge pages of {}: give the guest a multiple of them",
        bytes(*size), bytes(*page_bytes)
    )]
    RamNotWholePages {
        block: String,
        size: u64,
        /// Bytes of its pages.
        page_bytes: u64,
    },
    /// No RAM block would be moved.
    #[error("no RAM block is shared memory")]
    NoRegion,
    /// More RAM blocks than an offer to the destination can name.
    #[error(
        "the guest has {count} RAM blocks in files, and direct mode moves at most {REGIONS_MAX}: use stream mode, or give it fewer and larger memory back ends"
    )]
    TooManyRegions {
        /// Blocks that would be moved.
        count: usize,
    },
    /// Another process maps the RAM.
    #[error(
        "{device} is a vhost-user device, whose process writes RAM unseen: use kernel vhost or a device within QEMU"
    )]
    VhostUser { device: String },
    /// A device writes RAM by DMA.
    #[error("{device} is a passed-through device, which writes RAM unseen: unplug it before the migration")]
    Vfio { device: String },
    /// The CPU writes pages of a nested guest's control structures by their physical address.
    #[error(
        "the guest has run virtual machines of its own, whose CPU state is written to RAM unseen: use stream mode, or restart the guest without nested virtualisation"
    )]
    Nested,
    /// Memory that is not the guest's alone.
    #[error("{device} is memory shared with others or kept on a medium: unplug it before the migration")]
    ForeignMemory { device: String },
    #[error("this QEMU lacks the migration capability {capability}: QEMU 4.0 or later is needed")]
    CapabilityMissing { capability: &'static str },
    /// QEMU itself refuses to migrate.
    #[error("QEMU refuses to migrate this guest: {why}")]
    Blocked { why: String },
    #[error("another migration of this guest is in progress (status {status}): wait for it or cancel it")]
    Migrating { status: String },
    /// It is still on its way here.
    #[error("the guest has not arrived in this process yet (run state inmigrate)")]
    NotArrived,
    /// It has been migrated away.
    #[error(
        "the guest has left this process (run state postmigrate): look whether it runs on another host; only if it runs nowhere, let it run here (QMP: `cont`)"
    )]
    Left,
    /// It was migrated while it was paused, and the migration was given up.
    #[error(
        "QEMU holds the guest in the state postmigrate since an earlier migration was given up, and migrates it again only when it has run: let it run (QMP: `cont`), and pause it again if it is to stay paused"
    )]
    NotRunSince,
    /// No host would take it over.
    #[error("{why}")]
    NotTakenOver {
        /// The sentence with which a destination would refuse it.
        why: String,
    },
    /// An image of the guest that no host would open for it.
    #[error("{problem}")]
    Image {
        /// What a destination would say of it.
        problem: Problem,
    },
    /// The disks in use are not those of the command line, or are being changed.
    #[error("{why}")]
    Disks {
        /// The sentence with which a migration would be refused.
        why: String,
    },
    /// The kernel's scans miss written pages, or could not be tried out.
    #[error("{why}")]
    KernelUnfit {
        /// What the probe found, with the kernel's release and what to do.
        why: String,
    },
    /// The kernel is too old.
    #[error("the kernel is {}.{}, direct mode needs {}.{} (PAGEMAP_SCAN): use stream mode or a newer kernel", found.0, found.1, KERNEL_NEEDED.0, KERNEL_NEEDED.1)]
    KernelOld {
        /// Major and minor version of the QEMU found.
        found: (u32, u32),
    },
}

/// Drivers of disks whose controller writes RAM by DMA, for as long as the disk is open: no drain helps.
const DISKS_WITH_DMA: &[&str] =
    &["nvme", "nvme-io_uring", "virtio-blk-vfio-pci", "virtio-blk-vhost-vdpa", "virtio-blk-vhost-user"];

/// Migration statuses in which nothing is in progress.
const AT_REST: &[&str] = &["none", "completed", "failed", "cancelled"];

/// Judges a guest on a host with that kernel.
pub fn judge(guest: &GuestDescription, kernel: (u32, u32)) -> Verdict {
    let traits = &guest.traits;
    let mut reasons = Vec::new();
    if kernel < KERNEL_NEEDED {
        reasons.push(Reason::KernelOld { found: kernel });
    }
    reasons.extend(memory_reasons(guest));
    reasons.extend(traits.vhost_user.iter().map(|device| Reason::VhostUser { device: device.clone() }));
    reasons.extend(traits.vfio.iter().map(|device| Reason::Vfio { device: device.clone() }));
    let dma = guest.disks.iter().filter(|disk| DISKS_WITH_DMA.contains(&disk.protocol.as_str()));
    reasons.extend(dma.map(|disk| Reason::Vfio { device: format!("{} (disk {})", disk.protocol, disk.id) }));
    reasons
        .extend(traits.foreign_memory.iter().map(|device| Reason::ForeignMemory { device: device.clone() }));
    reasons.extend(traits.nested.then_some(Reason::Nested));
    reasons.extend(not_taken_over(guest, true));
    reasons.extend(lacking(guest, &["x-ignore-shared", "pause-before-switchover", "events"]));
    reasons.extend(traits.blocked.iter().map(|why| Reason::Blocked { why: why.clone() }));
    reasons.extend(state_reasons(guest));
    Verdict { direct: reasons.is_empty(), reasons }
}

impl Verdict {
    /// The same with one more reason against direct mode.
    pub fn and(mut self, reason: Reason) -> Verdict {
        self.direct = false;
        self.reasons.push(reason);
        self
    }
}

/// Reasons against moving a guest by QEMU's own streams; nothing, if it is empty.
pub fn judge_streams(guest: &GuestDescription) -> Vec<Reason> {
    let mut reasons = lacking(guest, &["pause-before-switchover", "events"]);
    reasons.extend(not_taken_over(guest, false));
    // QEMU could, but no incoming QEMU is made of it: the socket of its back end is not taken over from another host.
    reasons.extend(guest.traits.vhost_user.iter().map(|device| Reason::VhostUser { device: device.clone() }));
    reasons.extend(guest.traits.blocked.iter().map(|why| Reason::Blocked { why: why.clone() }));
    reasons.extend(state_reasons(guest));
    reasons
}

/// What every destination refuses of the guest itself: the function that makes its incoming QEMU there is asked, for a
/// host that has and allows everything. A domain is started by libvirt, from its own XML.
fn not_taken_over(guest: &GuestDescription, direct: bool) -> Vec<Reason> {
    if guest.domain {
        return Vec::new();
    }
    let (incoming, refused) = attempt(guest, &IncomingOptions::anywhere());
    let mut errors: Vec<IncomingError> = refused.into_iter().filter(|error| !error.is_of_host()).collect();
    if direct {
        errors.extend(guest.regions().filter_map(|block| incoming.ram_file(&block.id).err()));
    }
    let form = guest.to_json().and_then(|text| GuestDescription::from_json(&text)).err();
    let form = form.filter(|error| !matches!(error, DescriptionError::Name(_)));
    let words = errors.iter().map(ToString::to_string).chain(form.iter().map(chain));
    words.map(|why| Reason::NotTakenOver { why }).collect()
}

/// Images that no destination would open for the guest. Those that are copied are made anew there.
pub fn judge_images(guest: &GuestDescription) -> Vec<Reason> {
    if guest.domain {
        return Vec::new();
    }
    let (incoming, _) = attempt(guest, &IncomingOptions::anywhere());
    host::unfit_images(guest, &incoming).into_iter().map(|problem| Reason::Image { problem }).collect()
}

/// What the destination must have and allow, as far as it is known here: a verdict cannot know it.
pub fn needs(guest: &GuestDescription) -> Vec<String> {
    if guest.domain {
        return Vec::new();
    }
    host::needs(guest, &attempt(guest, &IncomingOptions::anywhere()).0)
}

/// An error with its causes.
fn chain(error: &DescriptionError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(one) = cause {
        text = format!("{text}: {one}");
        cause = one.source();
    }
    text
}

fn lacking(guest: &GuestDescription, needed: &[&'static str]) -> Vec<Reason> {
    let has = |needed: &&&'static str| guest.traits.capabilities.iter().any(|has| has == **needed);
    needed
        .iter()
        .filter(|needed| !has(needed))
        .map(|capability| Reason::CapabilityMissing { capability })
        .collect()
}

fn memory_reasons(guest: &GuestDescription) -> Vec<Reason> {
    let mut reasons: Vec<Reason> = guest
        .ram
        .iter()
        .filter_map(|block| {
            let name = block.id.clone();
            match block.backend {
                Backend::Internal => None,
                Backend::Anonymous => Some(Reason::RamAnonymous { block: name }),
                _ if !block.share => Some(Reason::RamNotShared { block: name }),
                _ if !block.ignored_when_shared => {
                    Some(Reason::RamMemfd { block: name, version: guest.qemu.to_string() })
                }
                _ if block.descriptor.is_none() => Some(Reason::RamNotFound { block: name }),
                _ if block.page_bytes > 0 && !block.size.is_multiple_of(block.page_bytes) => {
                    let (size, page_bytes) = (block.size, block.page_bytes);
                    Some(Reason::RamNotWholePages { block: name, size, page_bytes })
                }
                _ => None,
            }
        })
        .collect();
    let count = guest.regions().count();
    if reasons.is_empty() && count == 0 {
        reasons.push(Reason::NoRegion);
    }
    if count > REGIONS_MAX {
        reasons.push(Reason::TooManyRegions { count });
    }
    reasons
}

fn state_reasons(guest: &GuestDescription) -> Option<Reason> {
    // After a cancelled migration a guest may stand in "postmigrate" too; only after a completed one it may be
    // elsewhere.
    let completed = guest.traits.migration.as_deref() == Some("completed");
    match guest.run_state {
        RunState::PostMigrate if !completed => return Some(Reason::NotRunSince),
        RunState::PostMigrate => return Some(Reason::Left),
        RunState::InMigrate => return Some(Reason::NotArrived),
        _ => {}
    }
    let status = guest.traits.migration.as_deref()?;
    (!AT_REST.contains(&status)).then(|| Reason::Migrating { status: status.to_owned() })
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.direct {
            return f.write_str("direct: yes");
        }
        f.write_str("direct: no, because ")?;
        for (index, reason) in self.reasons.iter().enumerate() {
            let joint = if index == 0 { "" } else { "; " };
            write!(f, "{joint}{reason}")?;
        }
        Ok(())
    }
}
