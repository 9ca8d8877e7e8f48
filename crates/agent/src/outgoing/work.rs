//! What the channels ask the machine: the pump's work source.

use std::time::Duration;

use linerate_core::scheduler;
use linerate_core::source::Event;
use linerate_core::{ChannelId, Code, Fault, Side};
use linerate_net::channel::ChannelError;
use linerate_net::channel_thread::{Next, WorkSource};

use super::{Input, Outgoing};
use crate::faults::chain;

/// A channel without work checks again after this long, also without a call: pings are due then.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

impl WorkSource for Outgoing {
    fn next(&self, channel: ChannelId) -> Next {
        let mut machine = self.machine();
        loop {
            match machine.next_work(self.clock.now(), channel) {
                scheduler::Next::Work(work) => {
                    return Next::Work { sequence: work.sequence, region: work.region, runs: work.runs };
                }
                scheduler::Next::Ping { sequence } => return Next::Ping { sequence },
                scheduler::Next::Stop => return Next::Stop,
                scheduler::Next::Wait => {
                    machine = self.work.wait_timeout(machine, LOOK_AGAIN);
                }
            }
        }
    }

    fn sent(&self, channel: ChannelId, sequence: u64, _data_bytes: u64, _zero_bytes: u64, wire_bytes: u64) {
        self.machine().work_sent(channel, sequence, wire_bytes);
    }

    fn acknowledged(&self, channel: ChannelId, through: u64, damaged: &[u64]) {
        let mut machine = self.machine();
        machine.acknowledged(self.clock.now(), channel, through, damaged);
        let attention = machine.wants_attention();
        drop(machine);
        self.work.notify_all();
        if attention {
            let _ = self.inbox.send(Input::Wake);
        }
    }

    fn lost(&self, channel: ChannelId, error: ChannelError) {
        let complete = {
            let mut machine = self.machine();
            machine.channel_lost(self.clock.now(), channel);
            machine.statistics().blackout.copied.is_some()
        };
        if complete {
            // All RAM is over, and the destination's seal ends queue pairs: the link and its control path are sound.
            tracing::debug!(channel, %error, "a channel ended after the last copy");
            let _ = self.inbox.send(Input::Wake);
            return;
        }
        if matches!(error, ChannelError::Memory { .. }) {
            // No other channel could read it, and a link that is opened again and again would hide it.
            let step = self.machine().step();
            self.send(Event::Failed(Fault::new(Code::MemoryFailed, step, Side::Source, chain(&error))));
        }
        self.losses.channel_lost(channel, &error);
        let _ = self.inbox.send(Input::Wake);
    }
}
