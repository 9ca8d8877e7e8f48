//! The destination's channels: writes land in RAM, or do not because of a fence or the seal, and are acknowledged.

use linerate_core::{PAGE_BYTES, Side};

use crate::check::{Mutation, Property};
use crate::guest::{HOLE, TORN, content};
use crate::wire::{Packet, Write};
use crate::world::World;

impl World {
    /// A write, or its beginning, came in on a channel.
    pub fn apply(&mut self, channel: u32, write: Write, partial: bool) {
        if self.destination.machine.is_none() || self.destination.guest.is_none() || self.destination.sealed {
            return;
        }
        let obeys = self.options.mutation != Some(Mutation::FenceWithoutStopping);
        if obeys && self.destination.fenced.contains(&channel) {
            return;
        }
        self.land(channel, &write, partial);
        if partial {
            return;
        }
        let received = self.destination.received.entry(channel).or_default();
        received.applied = write.sequence;
        let mut damaged = Vec::new();
        if write.torn {
            received.damaged.push(write.sequence);
            damaged.push(write.sequence);
        }
        received.reported_damaged = received.damaged.len();
        self.acknowledge(channel, write.sequence, damaged);
    }

    /// Bytes land in RAM before anybody can look at their checksum.
    pub fn land(&mut self, channel: u32, write: &Write, partial: bool) {
        let reported = self.check.reported_fenced.contains(&channel) || self.check.reported_sealed;
        self.check.that(!reported, Property::SealedAndFenced, || {
            format!("write {} of channel {channel} is applied after fence or seal", write.sequence)
        });
        let Some(guest) = self.destination.guest.as_mut() else { return };
        let pages = write.runs.iter().flat_map(|run| run.offset / PAGE_BYTES..run.end() / PAGE_BYTES);
        let landed = if partial { write.pages.len() / 2 } else { write.pages.len() };
        for (nth, (page, &value)) in pages.zip(&write.pages).take(landed).enumerate() {
            let page = page as usize;
            let damaged = (partial || write.torn) && nth + 1 == landed;
            let fill = self.options.mutation == Some(Mutation::FillHoles);
            let clear = if fill { 0 } else { HOLE };
            let value = if damaged {
                TORN
            } else if content(value) == 0 {
                clear
            } else {
                value
            };
            guest.ram[write.region][page] = value;
            let read_at = &mut self.destination.read_at[write.region][page];
            self.check.that(*read_at <= write.read_at, Property::NotTwice, || {
                format!("page {page} of region {} is overwritten by an older copy", write.region)
            });
            *read_at = write.read_at;
        }
    }

    /// Acknowledges to the source on the channel.
    pub fn acknowledge(&mut self, channel: u32, through: u64, damaged: Vec<u64>) {
        if self.destination.machine.is_none() {
            return;
        }
        let received = self.destination.received.entry(channel).or_default();
        received.applied = received.applied.max(through);
        self.send(channel, Side::Destination, Packet::Acknowledgement { through, damaged });
    }
}
