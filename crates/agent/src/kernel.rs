//! Whether guests of this host can be moved in direct mode, as far as the kernel is concerned.

use linerate_api::KernelFeature;
use linerate_guest::description::GuestDescription;
use linerate_guest::procfs::kernel_release;
use linerate_guest::verdict::{self, KERNEL_NEEDED, Reason, Verdict};
use linerate_memory::scan_support;

use crate::faults::chain;

/// Judges a guest on this host.
pub(crate) fn judge(guest: &GuestDescription) -> Verdict {
    let release = kernel_release().unwrap_or((0, 0));
    let verdict = verdict::judge(guest, release);
    match unfit() {
        Some(why) if release >= KERNEL_NEEDED => verdict.and(Reason::KernelUnfit { why }),
        _ => verdict,
    }
}

/// Probes the kernel and logs what is wrong with it.
pub(crate) fn probe() {
    if let Some(why) = unfit() {
        tracing::warn!("guests cannot be moved in direct mode: {why}");
    }
}

/// What `linerate status` shows of the kernel.
pub(crate) fn features() -> Vec<KernelFeature> {
    let needed_for = || "direct mode, at the source".to_owned();
    let new = kernel_release().is_some_and(|release| release >= KERNEL_NEEDED);
    let mut features = vec![KernelFeature {
        name: "PAGEMAP_SCAN and asynchronous write protection (Linux 6.7)".into(),
        present: new,
        needed_for: needed_for(),
    }];
    if new {
        let missed = unfit();
        features.push(KernelFeature {
            name: "every written page is found (probed)".into(),
            present: missed.is_none(),
            needed_for: missed.map_or_else(needed_for, |why| format!("{}: {why}", needed_for())),
        });
    }
    features
}

fn unfit() -> Option<String> {
    scan_support().err().map(|error| chain(&error))
}
