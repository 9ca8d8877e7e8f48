//! Copied disks where RAM goes in the hypervisor's own streams: the hypervisor copies them before RAM, and keeps them
//! the same from then on.
//!
//! It does so without rounds: what the guest writes is copied in its turn, until nothing is left at some moment.
//! Whether that comes nearer is judged by passes all the same: a pass is over when as many bytes were done as were left
//! when it began. What is left then, the guest has written meanwhile.

use std::time::Duration;

use super::{Source, State};
use crate::policy::{left_for_ram, predict};
use crate::statistics::{Disks, Streamed};
use crate::{Code, Fault, Side, Step, Time};

/// A pass takes at least so long: what little is left of a guest that converges is done within moments, again and
/// again.
const PASS_MIN: Duration = Duration::from_secs(1);

/// So long a hypervisor may look for what of a disk is in use. Each 32 MiB of a qcow2 image take a read of 4 KiB, which
/// makes 9 minutes for 2 TiB at 8 ms.
const SEARCH_MAX: Duration = Duration::from_secs(600);

/// A pass over what was left of the disks.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskPass {
    began: Time,
    /// What was to be looked at in all when it began: it is over when so much is done.
    total_bytes: u64,
    /// At some moment of it the disks did not keep the guest from being stopped.
    fitted_budget: bool,
}

impl DiskPass {
    fn begin(now: Time, disks: Disks) -> DiskPass {
        DiskPass { began: now, total_bytes: disks.total_bytes, fitted_budget: false }
    }
}

impl Source {
    /// What the hypervisor says of copied disks. Until RAM is begun they are all that moves.
    pub(super) fn disks_copied(&mut self, now: Time, disks: Disks) {
        let done = self.statistics.disks.map_or(0, |before| before.done_bytes);
        let moved = disks.carried_bytes != self.statistics.streamed.carried_bytes || disks.done_bytes > done;
        let since = *self.disks_searched_since.get_or_insert(now);
        if moved || !disks.scanning_allocation {
            self.disks_searched_since = None;
        }
        if moved || disks.scanning_allocation && now - since < SEARCH_MAX {
            self.last_progress = now;
        }
        self.statistics.disks = Some(disks);
        self.statistics.streamed.carried_bytes = disks.carried_bytes;
        let State::Streaming { round_began } = &mut self.state else { return };
        if self.statistics.rounds.is_empty() {
            self.statistics.disks_only_phase += now - *round_began;
            *round_began = now;
        }
        self.judge_disks(now, disks);
    }

    /// Whether the hypervisor is kept from stopping the guest, because so much of the disks is left.
    pub(super) fn disks_block_switch_over(&self, streamed: Streamed) -> bool {
        let max_blackout = self.policy.limits().max_blackout;
        self.statistics.disks.is_some_and(|disks| {
            left_for_ram(max_blackout, disks.left_bytes(), streamed.remaining_bytes, disks.bytes_per_s)
                .is_none()
        })
    }

    /// How long the rest of the disks would take if the guest were stopped now.
    pub(super) fn disks_blackout(&self) -> Option<Duration> {
        let disks = self.statistics.disks.unwrap_or_default();
        predict(disks.left_bytes(), disks.bytes_per_s, Duration::ZERO)
    }

    /// Gives disks up that the guest writes faster than the links carry: before RAM is begun, or while they keep it
    /// from its end.
    fn judge_disks(&mut self, now: Time, disks: Disks) {
        // At first the hypervisor looks for what is in use.
        if disks.total_bytes == 0 || disks.scanning_allocation {
            return;
        }
        let fits =
            !self.statistics.rounds.is_empty() && !self.disks_block_switch_over(self.statistics.streamed);
        let pass = self.disk_pass.get_or_insert(DiskPass::begin(now, disks));
        pass.fitted_budget |= fits;
        let pass = *pass;
        let took = now - pass.began;
        if took < PASS_MIN {
            return;
        }
        let written = disks.total_bytes.saturating_sub(pass.total_bytes);
        self.statistics.disk_write_bytes_per_s = Some(written as f64 / took.as_secs_f64());
        if disks.done_bytes < pass.total_bytes {
            return;
        }
        self.disk_pass = Some(DiskPass::begin(now, disks));
        self.statistics.disk_pass = if pass.fitted_budget { 0 } else { self.statistics.disk_pass + 1 };
        if self.statistics.disk_pass > self.policy.limits().rounds_max {
            self.give_disks_up(now, disks);
        }
    }

    fn give_disks_up(&mut self, now: Time, disks: Disks) {
        let mib = |bytes: f64| bytes / f64::from(1 << 20);
        let detail = format!(
            "after {} passes over its disks {} MiB of them are left: the guest writes {:.0} MiB/s to them, and the links carry \
             {:.0} MiB/s. Let its writes wait for the links (--throttle), add a link, or try again when it writes less",
            self.statistics.disk_pass,
            disks.left_bytes() >> 20,
            mib(self.statistics.disk_write_bytes_per_s.unwrap_or_default()),
            mib(disks.bytes_per_s),
        );
        self.fail(now, Fault::new(Code::NotConverging, Step::Copy, Side::Source, detail));
    }
}
