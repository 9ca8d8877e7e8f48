//! Whether another program let a guest run at its source after commit was sent. Then the destination's copy is older
//! than the guest's disks. A question to the destination is a commit, so the guest is looked at before each one.

use linerate_guest::registry::GuestRecord;
use linerate_guest::vcpu_time::VcpuTime;
use serde::{Deserialize, Serialize};

/// What an operator reads of a guest that QEMU has said to have run.
const RAN: &str = "the guest ran on this host after commit, as another program resumed it; `linerate vm list` shows whether it runs. So the destination is not asked any more: its copy is older than the guest's disks. Decide here. `linerate resolve ID --resume-here` keeps the guest on this host, and the destination gives its copy up. `--give-up` ends the guest on this host, and the destination may then run its older copy. If the guest's QEMU here has ended (`linerate vm list`), what the destination has is the only copy: decide there, then `--give-up` here";
/// And of one of which that is not known.
const MAY_HAVE_RUN: &str = "the guest may have run on this host after commit: its virtual CPUs have used CPU time, and its QEMU does not answer whether it ran. A QEMU that was stopped by a signal, or is traced, uses such time too. The destination's copy may be older than the guest's disks, so the destination is not asked until QEMU here answers. If the guest has not run, it is asked then. Or decide: `linerate resolve ID --resume-here` keeps the guest on this host, and the destination gives its copy up; `--give-up` ends it here. If the guest's QEMU here has ended (`linerate vm list`), what the destination has may be the only copy: decide there, then `--give-up` here";
/// And of either if a decision does not count yet.
pub(crate) const WAITS: &str = "your decision waits until it is on disk, or until QEMU has ended; the destination is not asked, as the guest ran or may have run on this host after commit";

/// What is known of it. Unless it is `No`, the destination is not asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RanHere {
    /// Nothing has shown it.
    #[default]
    No,
    /// The virtual CPUs have used CPU time, and QEMU has not answered since.
    Maybe,
    /// QEMU has said so. It counts for good, because nothing shows it any more when that QEMU has ended.
    Yes,
}

/// What a look at the guest shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sighting {
    /// QEMU says that the guest is in the state in which the migration left it.
    Stopped,
    /// QEMU says that it is in another one: another program has resumed or reset it, and may have stopped it since.
    Resumed,
    /// QEMU does not answer, and its virtual CPUs have used CPU time. They also do that when a signal stops QEMU.
    Unclear,
    /// QEMU does not answer, and nothing shows that the guest ran; or QEMU has ended.
    Nothing,
}

impl RanHere {
    /// The destination may be asked.
    pub(crate) fn is_no(&self) -> bool {
        *self == RanHere::No
    }

    /// What is known after a look.
    pub(crate) fn after(self, seen: Sighting) -> RanHere {
        match (self, seen) {
            (RanHere::Yes, _) | (_, Sighting::Resumed) => RanHere::Yes,
            (_, Sighting::Stopped) => RanHere::No,
            (_, Sighting::Unclear) => RanHere::Maybe,
            (before, Sighting::Nothing) => before,
        }
    }

    /// What an operator reads of it; none if there is nothing to say.
    pub(crate) fn describe(self) -> Option<&'static str> {
        match self {
            RanHere::No => None,
            RanHere::Maybe => Some(MAY_HAVE_RUN),
            RanHere::Yes => Some(RAN),
        }
    }
}

impl Sighting {
    /// `is_stopped`: QEMU's answer whether the guest is as the migration left it; none if it does not answer.
    pub fn of(is_stopped: Option<bool>, qemu: &GuestRecord, at_commit: &VcpuTime) -> Sighting {
        match is_stopped {
            Some(true) => Sighting::Stopped,
            Some(false) => Sighting::Resumed,
            // In this order: a QEMU that is ending uses CPU time, and may not have been ending a moment ago.
            None if at_commit.has_run(qemu.process.pid) == Some(true) && !qemu.cannot_run() => {
                Sighting::Unclear
            }
            None => Sighting::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Ending, agent, arrived};

    #[test]
    fn what_qemu_says_weighs_more_than_cpu_time_and_that_the_guest_ran_stays() {
        use RanHere::{Maybe, No, Yes};
        let after = |seen| [No, Maybe, Yes].map(|before| before.after(seen));
        assert_eq!(after(Sighting::Stopped), [No, No, Yes]);
        assert_eq!(after(Sighting::Resumed), [Yes, Yes, Yes]);
        assert_eq!(after(Sighting::Unclear), [Maybe, Maybe, Yes]);
        assert_eq!(after(Sighting::Nothing), [No, Maybe, Yes]);
    }

    #[test]
    fn cpu_time_counts_only_of_a_qemu_that_does_not_answer_and_is_not_ending() {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let ending = Ending::start(&dir);
        let own = i32::try_from(std::process::id()).unwrap();
        // Either's first thread has worked since it was started.
        let seen = |pid: i32, is_stopped| {
            let at_start = VcpuTime { threads: vec![pid], run_ns: Some(0) };
            assert_eq!(at_start.has_run(pid), Some(true));
            Sighting::of(is_stopped, &arrived(&agent, pid), &at_start)
        };
        assert_eq!(seen(own, None), Sighting::Unclear);
        assert_eq!(seen(own, Some(true)), Sighting::Stopped);
        assert_eq!(seen(own, Some(false)), Sighting::Resumed);
        assert_eq!(seen(ending.pid(), None), Sighting::Nothing, "its end has taken CPU time");
        let unknown = VcpuTime::default();
        assert_eq!(Sighting::of(None, &arrived(&agent, own), &unknown), Sighting::Nothing);
    }
}
