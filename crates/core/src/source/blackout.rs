//! Steps 8 to 10: the guest stops, RAM is completed, device state goes over, commit, clean up.

use std::time::Duration;

use super::{Action, Source, State};
use crate::extent::{normalise, total_bytes};
use crate::journal::SourcePhase;
use crate::{Code, Extent, Fault, GuestState, LastLook, Message, Side, Step, Time};

/// Refused extents are sent again at most this often while the guest is stopped and nothing can tear them.
const REPEATS_MAX: u32 = 8;
/// Bytes of device state in one message.
const DEVICE_STATE_PIECE: usize = 256 << 10;
/// With verification, digests over all RAM are computed while the guest is stopped, on one host after the other: the
/// time-out grows by this, and by so many times what other work on all RAM may take (1 s for each GiB).
const VERIFY_ALLOWANCE: Duration = Duration::from_secs(120);
const VERIFY_TIMES: u32 = 8;
/// libvirt is given this long to decide where the guest runs. Its keepalive gives up a dead peer after 30 s
/// (`keepalive_interval` 5 s, `keepalive_count` 5).
pub(super) const DECIDES_WITHIN: Duration = Duration::from_secs(300);
/// Commit's answer is waited for this long before the destination's journal is asked, and between two questions.
pub(super) const ASK_AFTER: Duration = Duration::from_secs(1);
/// The last acknowledgement, and the destination's last look at the guest, are waited for this long.
const CLOSING: Duration = Duration::from_secs(1);

impl Source {
    /// The last round's extents go out while QEMU sets up; the guest still runs.
    pub(super) fn switch_over(&mut self, now: Time, extents: Vec<Extent>) {
        self.statistics.blackout.asked = Some(now);
        self.scheduler.add_work(extents);
        self.last_progress = now;
        self.step_deadline = Some(now + self.config.step_timeout);
        self.state = State::Switching { pre_switchover: false };
        self.actions.push_back(Action::SwitchOver);
    }

    pub(super) fn guest_stopped(&mut self, now: Time) {
        self.statistics.end(now, Step::Copy);
        self.statistics.blackout.stopped.get_or_insert(now);
        let verify = match self.config.verify {
            true => VERIFY_ALLOWANCE + VERIFY_TIMES * self.ram_allowance(),
            false => Duration::ZERO,
        };
        let allowed = self.config.limits.max_blackout + self.config.blackout_timeout + verify;
        self.enter_step(now, Step::Blackout, allowed);
    }

    /// The hypervisor writes its device state first, while the last round is still in flight: its main loop runs until
    /// then, and input to a console may go to guest RAM. The last scan comes behind it, and finds all.
    pub(super) fn pre_switchover(&mut self, now: Time, was_running: bool, disks: String) {
        self.guest_stopped(now);
        self.statistics.blackout.pre_switchover = Some(now);
        self.was_running = was_running;
        if !self.mode().commits() {
            return self.scan_last();
        }
        self.control.send(now, Message::Stopped { was_running, disks });
        self.state = State::WritingDevices;
        self.actions.push_back(Action::WriteDeviceState);
    }

    /// The guest is stopped, so the scan can run while the last round is still in flight.
    fn scan_last(&mut self) {
        self.state = State::LastScan { dirty: None };
        self.actions.push_back(Action::Scan { last: true, also: Vec::new() });
    }

    pub(super) fn last_scanned(&mut self, now: Time, found: Vec<Extent>) {
        self.statistics.blackout.scanned = Some(now);
        self.state = State::LastScan { dirty: Some(found) };
        self.last_copy_when_ready(now);
    }

    /// The last copy begins when the scan is done and nothing is in flight any more (rule 3).
    pub(super) fn last_copy_when_ready(&mut self, now: Time) {
        if !self.scheduler.is_drained() {
            return;
        }
        let State::LastScan { dirty } = &mut self.state else { return };
        let Some(mut extents) = dirty.take() else { return };
        extents.extend(self.scheduler.take_damaged());
        let extents = normalise(extents);
        self.statistics.blackout.last_copy_bytes = total_bytes(&extents);
        self.state = State::LastCopy { repeats: 0 };
        self.scheduler.add_work(extents);
        self.last_copy_drained(now);
    }

    pub(super) fn last_copy_drained(&mut self, now: Time) {
        let State::LastCopy { repeats } = &mut self.state else { return };
        if !self.scheduler.is_drained() {
            return;
        }
        if self.scheduler.has_damaged() {
            *repeats += 1;
            if *repeats > REPEATS_MAX {
                let detail =
                    format!("a write arrived damaged {REPEATS_MAX} times although the guest is stopped");
                return self.fail(
                    now,
                    Fault::new(Code::ChecksumMismatch, Step::Blackout, Side::Destination, detail),
                );
            }
            let again = normalise(self.scheduler.take_damaged());
            return self.scheduler.add_work(again);
        }
        self.statistics.blackout.copied = Some(now);
        if self.config.verify {
            self.state = State::Digesting;
            self.actions.push_back(Action::Digest);
        } else {
            self.seal(now, None);
        }
    }

    /// Rule 5: nothing is written after this. The destination loads device state after it, and libvirt's stream is
    /// released only when the destination has confirmed it.
    pub(super) fn seal(&mut self, now: Time, digest: Option<u64>) {
        self.statistics.blackout.digested = Some(now);
        self.scheduler.stop();
        self.may_be_loaded = true;
        self.state = State::Sealing;
        self.control.send(now, Message::RamComplete { digest });
    }

    pub(super) fn sealed(&mut self, now: Time) {
        self.statistics.blackout.sealed = Some(now);
        if !self.mode().commits() {
            self.statistics.end(now, Step::Blackout);
            self.enter_step(now, Step::Commit, DECIDES_WITHIN);
            self.state = State::AwaitingOwner;
            return self.actions.push_back(Action::ReleaseStream);
        }
        self.state = State::Loading { written: true, loaded: false };
    }

    /// libvirt has run it at the destination and ended it here.
    pub(super) fn guest_left(&mut self, now: Time) {
        self.statistics.blackout.loaded = Some(now);
        self.statistics.blackout.journaled = Some(now);
        self.running(now);
    }

    pub(super) fn device_state(&mut self, now: Time, bytes: Vec<u8>) {
        self.statistics.blackout.device_state_bytes += bytes.len() as u64;
        for piece in bytes.chunks(DEVICE_STATE_PIECE) {
            self.control.send(now, Message::DeviceState { bytes: piece.to_vec() });
        }
    }

    pub(super) fn device_state_done(&mut self, now: Time) {
        self.statistics.blackout.state_written = Some(now);
        if self.state == State::WritingDevices {
            let total = self.statistics.blackout.device_state_bytes;
            self.control.send(now, Message::DeviceStateEnd { total });
            return self.scan_last();
        }
        if let State::Loading { written, .. } = &mut self.state {
            *written = true;
        }
        self.journal_when_loaded(now);
    }

    pub(super) fn loaded(&mut self, now: Time) {
        self.statistics.blackout.loaded = Some(now);
        if let State::Loading { loaded, .. } = &mut self.state {
            *loaded = true;
        }
        self.journal_when_loaded(now);
    }

    pub(super) fn journal_when_loaded(&mut self, now: Time) {
        if self.state != (State::Loading { written: true, loaded: true }) {
            return;
        }
        self.statistics.end(now, Step::Blackout);
        self.enter_step(now, Step::Commit, self.config.step_timeout);
        self.state = State::Journaling;
        self.actions.push_back(Action::Journal(SourcePhase::CommitSent));
    }

    /// Commit is to be written down, and nothing has come in between.
    pub fn is_to_commit(&self) -> bool {
        self.state == State::Journaling
    }

    /// The point of no return: the journal has it, so it may be said.
    pub(super) fn commit(&mut self, now: Time) {
        self.statistics.blackout.journaled = Some(now);
        // From here on a roll-back follows the destination's answer, which its journal has.
        self.commit_written = false;
        self.step_deadline = None;
        self.state = State::Committing { ask_at: now + ASK_AFTER, in_doubt: false };
        self.control.send(now, Message::Commit);
    }

    pub(super) fn running(&mut self, now: Time) {
        // An operator's decision to resume here that is not on disk yet is void: a later agent would carry it out.
        self.actions.retain(|action| *action != Action::Journal(SourcePhase::ResumingHere));
        self.resuming = false;
        // One to give the copy up counts when that has ended.
        self.operator_decision.rule_out(true);
        self.statistics.blackout.running.get_or_insert(now);
        self.statistics.end(now, Step::Commit);
        self.enter_step(now, Step::CleanUp, self.config.step_timeout + self.ram_allowance());
        self.state = State::CleaningUp { retry_at: None };
        self.actions.push_back(Action::CleanUp);
    }

    pub(super) fn cleaned_up(&mut self, now: Time) {
        self.statistics.end(now, Step::CleanUp);
        // What follows is the report's.
        self.statistics.ended = Some(now);
        self.operator_decision.settle(false);
        self.actions.push_back(Action::Journal(SourcePhase::Finished));
        // To a destination that has not committed it says that its copy is the only one, and to be run. One that is
        // older than the guest's disks waits for an operator.
        if !(self.given_up && self.ran_here) {
            self.control.send(now, Message::Finished);
        }
        self.step_deadline = None;
        self.state = State::Closing { until: now + CLOSING };
        self.close_when_acknowledged(now);
    }

    pub(super) fn close_when_acknowledged(&mut self, now: Time) {
        let State::Closing { until } = self.state else { return };
        let is_done = self.control.unacknowledged() == 0 && !self.awaits_look;
        if is_done || now >= until || self.control.paths() == 0 {
            let (fault, guest) = self.moved();
            self.end(now, fault, guest);
        }
    }

    /// What is reported when the copy here has ended.
    fn moved(&self) -> (Option<Fault>, GuestState) {
        let fault = |code, text: &str| Some(Fault::new(code, Step::Commit, Side::Destination, text));
        let stopped = |text: &str| (fault(Code::GuestStopped, text), GuestState::StoppedAtDestination);
        match &self.last_look {
            // Only the destination's confirmation shows that the guest runs there.
            _ if self.given_up => {
                let text = "the operator ended the copy at the source, and the destination has not confirmed that the guest runs there";
                (fault(Code::PeerLost, text), self.left_to())
            }
            Some(LastLook::Stopped { run_state }) => {
                stopped(&format!("its QEMU there has stopped it with {run_state}"))
            }
            Some(LastLook::Ended) => (
                fault(Code::GuestGone, "its QEMU at the destination has ended since it ran"),
                GuestState::Gone,
            ),
            Some(LastLook::NothingWrong) | None => (None, self.left_to()),
        }
    }
}
