//! Steps 4 to 8 where RAM goes in the hypervisor's own streams. It tracks, copies and decides when it can stop the
//! guest. From the guest's stop on everything is as in direct mode: commit, recovery and clean-up exist once.

use std::time::Duration;

use super::{Action, Preparation, Source, State};
use crate::policy::{RoundEnd, left_for_ram};
use crate::statistics::{Disks, Round, Streamed};
use crate::{Message, Step, StreamSettings, Time};

impl Source {
    /// Whether RAM goes in the hypervisor's streams.
    pub(super) fn carries_streams(&self) -> bool {
        self.mode().carries_streams()
    }

    /// Whether the destination may answer so: it uses no more channels than it was offered.
    pub(super) fn may_be_set(&self, settings: StreamSettings) -> bool {
        self.config.mode.allows_channels(settings.channels)
            && matches!(self.preparation, Preparation::InProgress { .. })
    }

    pub(super) fn streams_prepared(&mut self, now: Time, settings: StreamSettings) {
        self.statistics.end(now, Step::Prepare);
        self.preparation = Preparation::Done { touched: Vec::new() };
        self.streams = Some(settings);
        self.state = State::Preparing { ready: true };
        self.copy_when_ready(now);
    }

    pub(super) fn begin_streams(&mut self, now: Time, settings: StreamSettings) {
        self.enter_step(now, Step::Copy, self.config.step_timeout);
        self.step_deadline = None; // As in direct mode: no progress, no link, too many rounds.
        self.last_progress = now;
        self.state = State::Streaming { round_began: now };
        self.actions.push_back(Action::BeginStreams(settings));
    }

    /// What the hypervisor says of its copying.
    pub(super) fn streamed(&mut self, now: Time, streamed: Streamed) {
        let State::Streaming { round_began } = &mut self.state else { return };
        if streamed.carried_bytes != self.statistics.streamed.carried_bytes {
            self.last_progress = now;
        }
        if self.statistics.rounds.is_empty() {
            (self.disk_pass, self.statistics.disk_pass) = (None, 0);
        }
        let new = self.statistics.rounds.is_empty() || streamed.round != self.round;
        if new {
            let took = now - *round_began;
            *round_began = now;
            if let Some(round) = self.statistics.rounds.last_mut() {
                round.took = Some(took);
                round.dirty_bytes_after = Some(streamed.remaining_bytes);
            }
            let bytes = streamed.remaining_bytes;
            self.statistics.rounds.push(Round { number: streamed.round, bytes, ..Round::default() });
        }
        // While disks keep it from its end, the hypervisor goes through what little is left of RAM again and again.
        if self.disks_block_switch_over(streamed) {
            self.rounds_held += streamed.round.saturating_sub(self.round);
        }
        self.round = streamed.round;
        self.statistics.populated_bytes = streamed.total_bytes;
        self.statistics.dirty_bytes_per_s = streamed.dirty_bytes_per_s;
        let predicted = streamed.expected_downtime.zip(self.disks_blackout());
        self.statistics.predicted_blackout = predicted.map(|(ram, disks)| ram + disks);
        self.statistics.streamed = streamed;
        if streamed.round.saturating_sub(self.rounds_held) > self.policy.limits().rounds_max {
            let end = RoundEnd {
                round: streamed.round,
                dirty_bytes: streamed.remaining_bytes,
                bytes_per_s: streamed.bytes_per_s,
                fixed: Duration::ZERO,
                unavoidable: Duration::ZERO,
            };
            self.give_up(now, end);
        }
    }

    /// The hypervisor has stopped the guest. What is left of RAM goes with the device state, in its streams.
    pub(super) fn streams_pre_switchover(&mut self, now: Time, was_running: bool, disks: String) {
        let State::Streaming { round_began } = self.state else { return };
        self.guest_stopped(now);
        self.control.send(now, Message::Stopped { was_running, disks });
        (self.was_running, self.may_be_loaded) = (was_running, true);
        if let Some(round) = self.statistics.rounds.last_mut() {
            round.took = Some(now - round_began);
        }
        let blackout = &mut self.statistics.blackout;
        blackout.last_copy_bytes = self.statistics.streamed.remaining_bytes;
        // There is no last scan and no last copy of ours: those parts have no length.
        let moments = [&mut blackout.pre_switchover, &mut blackout.scanned, &mut blackout.copied];
        moments.into_iter().for_each(|moment| *moment = Some(now));
        blackout.digested = Some(now);
        self.state = State::Loading { written: false, loaded: false };
        self.actions.push_back(Action::WriteDeviceState);
    }

    /// How long the rest of RAM may take in the blackout beside these disks, for the hypervisor to keep to. `None`: it
    /// must not stop the guest now.
    pub fn ram_blackout(&self, disks: Disks, streamed: Streamed) -> Option<Duration> {
        let max_blackout = self.policy.limits().max_blackout;
        left_for_ram(max_blackout, disks.left_bytes(), streamed.remaining_bytes, streamed.bytes_per_s)
    }

    /// What the streams say to the other side's.
    pub(super) fn send_stream_message(&mut self, now: Time, message: Message) {
        if !matches!(self.state, State::RollingBack(_) | State::Ended) {
            self.control.send(now, message);
        }
    }
}
