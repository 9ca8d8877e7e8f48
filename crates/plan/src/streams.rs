//! Guests whose RAM goes in the hypervisor's own streams ([`linerate_core::ModeTag::Streams`]). The bytes themselves
//! have a simulation of their own (`linerate-core`, `stream`). Here they are pieces that move while some link does, and
//! what is looked at is the order of what follows: commit, roll-back and recovery.

use linerate_core::source::Event;
use linerate_core::statistics::Streamed;
use linerate_core::{Message, Side, StreamNote, StreamSettings, destination};

use crate::check::Mutation;
use crate::guest::{DEVICE, Sending};
use crate::source_driver::SourceWork;
use crate::wire::Purpose;
use crate::world::{SimEvent, World};

/// Parallel channels that the source offers.
pub const CHANNELS: u16 = 2;
/// How the two hypervisors are set.
const SETTINGS: StreamSettings =
    StreamSettings { channels: 1, return_path: true, zero_pages_in_channels: false };

impl World {
    /// The hypervisor begins to copy; after some pieces it stops the guest.
    pub fn begin_streams(&mut self) {
        self.guest.sending = Sending::SettingUp;
        self.source.switch_overs += 1;
        let pieces = self.random.between(1, 40);
        self.source_will(100, 5_000, SourceWork::Streams { left: pieces, carried: 0 });
    }

    /// The next piece of the copying, if anything moves.
    pub fn stream_piece(&mut self, left: u64, carried: u64) {
        let moves = self.streams_move();
        let (left, carried) = if moves { (left - 1, carried + 1) } else { (left, carried) };
        let round = u32::from(left < 5);
        let streamed =
            Streamed { round, carried_bytes: carried, remaining_bytes: left, ..Streamed::default() };
        self.handle_source(Event::Streamed(streamed));
        self.streams_speak();
        if left == 0 {
            let asked = self.source.switch_overs;
            let span = self.micros(10, 5_000);
            self.after(span, SimEvent::HypervisorStops { asked });
            self.blackout_faults();
        } else {
            self.source_will(500, 15_000, SourceWork::Streams { left, carried });
        }
    }

    /// What is left of RAM, and device state, in some pieces; then the source's hypervisor is done, and the
    /// destination's a moment later or before.
    pub fn rest_of_streams(&mut self, left: u64) {
        if self.guest.gone {
            return;
        }
        if left > 0 {
            let left = if self.streams_move() { left - 1 } else { left };
            return self.source_will(10, 3_000, SourceWork::Writes(left));
        }
        self.guest.sending = Sending::Completed;
        self.guest.disks = false;
        let span = self.micros(0, 10_000);
        let operations = self.destination.operations;
        self.after(span, SimEvent::StreamsTaken { operations });
        self.source_will(0, 10_000, SourceWork::Deliver(Event::DeviceStateDone));
    }

    /// The incoming QEMU waits and listens.
    pub fn prepares_streams(&mut self) {
        if !self.note_waiting() {
            return self.cannot_note();
        }
        self.handle_destination(destination::Event::StreamsPrepared(SETTINGS));
        if self.options.mutation == Some(Mutation::LoadedTooEarly) {
            let (low, high) = (20_000, 200_000);
            let event = destination::Event::DeviceStateLoaded;
            self.destination_will(low, high, crate::destination_driver::DestinationWork::Deliver(event));
        }
    }

    /// The destination's hypervisor has everything, whether or not the agent runs.
    pub fn streams_taken(&mut self, operations: u64) {
        let Some(guest) = self.destination.guest.as_mut() else { return };
        guest.ram.clone_from(&self.guest.ram);
        if let Some(page) = guest.ram.first_mut().and_then(|region| region.first_mut()) {
            *page = DEVICE;
        }
        guest.loaded = true;
        let is_current =
            operations == self.destination.operations && self.hosts[self.at(Side::Destination)].up;
        if is_current && self.options.mutation != Some(Mutation::LoadedTooEarly) {
            self.handle_destination(destination::Event::DeviceStateLoaded);
        }
    }

    fn streams_move(&self) -> bool {
        let active = |id: &u32| {
            let connection = self.connections.get(id);
            connection.is_some_and(|connection| {
                connection.open == [true; 2]
                    && self.links.get(connection.link).is_some_and(|link| link.connects())
            })
        };
        let peer = self.hosts[self.at(Side::Destination)].up && self.destination.guest.is_some();
        peer && self.open(Side::Source, Purpose::Channel).iter().any(active)
    }

    /// Notes and fences go through the state machines in whatever state they are.
    fn streams_speak(&mut self) {
        let note = |stream| Message::Stream { stream, note: StreamNote::Credit { limit: 1 } };
        self.handle_source(Event::SendStreamMessage(note(0)));
        if self.destination.machine.is_some() {
            self.handle_destination(destination::Event::SendStreamMessage(note(2)));
        }
    }
}
