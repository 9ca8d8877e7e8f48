//! Whether guests of this host can be moved in direct mode, as far as the kernel is concerned.

use std::path::Path;

use linerate_api::KernelFeature;
use linerate_guest::description::GuestDescription;
use linerate_guest::procfs::kernel_release;
use linerate_guest::verdict::{self, KERNEL_NEEDED, Reason, Verdict};
use linerate_memory::scan_support;

use crate::faults::chain;

/// Setting of the kernel's module Yama.
const PTRACE_SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";

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
        let missed = missed();
        features.push(KernelFeature {
            name: "every written page is found (probed)".into(),
            present: missed.is_none(),
            needed_for: missed.map_or_else(needed_for, |why| format!("{}: {why}", needed_for())),
        });
    }
    let untraced = untraceable(Path::new(PTRACE_SCOPE));
    features.push(KernelFeature {
        name: "processes may be traced (kernel.yama.ptrace_scope)".into(),
        present: untraced.is_none(),
        needed_for: untraced.map_or_else(needed_for, |why| format!("{}: {why}", needed_for())),
    });
    features
}

fn unfit() -> Option<String> {
    missed().or_else(|| untraceable(Path::new(PTRACE_SCOPE)))
}

fn missed() -> Option<String> {
    scan_support().err().map(|error| chain(&error))
}

/// With this setting nobody traces a process, root neither, until the host is started again. Memory is tracked by a
/// descriptor that QEMU is made to open.
fn untraceable(setting: &Path) -> Option<String> {
    let scope = std::fs::read_to_string(setting).ok()?;
    let why = "this host lets nobody trace a process (kernel.yama.ptrace_scope = 3): use stream mode, or another value, \
               which counts when the host is started again";
    (scope.trim() == "3").then(|| why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_on_which_nobody_traces_has_no_direct_mode() {
        let dir = tempfile::tempdir().unwrap();
        let setting = dir.path().join("ptrace_scope");
        assert_eq!(untraceable(&setting), None, "a kernel without Yama");
        for scope in ["0\n", "1\n", "2\n"] {
            std::fs::write(&setting, scope).unwrap();
            assert_eq!(untraceable(&setting), None, "{scope}");
        }
        std::fs::write(&setting, "3\n").unwrap();
        assert!(untraceable(&setting).is_some_and(|why| why.contains("stream mode")));
    }
}
