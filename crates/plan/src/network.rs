//! The agents' ends of the wires: connecting, sending, arriving, and noticing that a wire is dead.

use std::time::Duration;

use linerate_core::control::Outgoing;
use linerate_core::{Side, destination, source};

use crate::wire::{Connection, Packet, Purpose, index, other};
use crate::world::{SimEvent, World};

impl World {
    /// Sends from a side; a packet to a dead end is lost.
    pub fn send(&mut self, id: u32, from: Side, packet: Packet) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let link = &mut self.links[connection.link];
        if let Some(at) = connection.send(self.now, link, from, packet) {
            self.at_time(at, SimEvent::Arrives(id, index(from)));
        }
    }

    /// Connections of a purpose that a side holds open.
    pub fn open(&self, side: Side, purpose: Purpose) -> Vec<u32> {
        let open = |connection: &&Connection| connection.purpose == purpose && connection.open[index(side)];
        self.connections.values().filter(open).map(|connection| connection.id).collect()
    }

    /// Will try to connect, after a while.
    pub fn will_connect(&mut self, link: usize, purpose: Purpose, span: Duration) {
        let incarnation = self.source.incarnation;
        self.after(span, SimEvent::Connects { incarnation, link, purpose });
    }

    /// The source's attempt to connect comes to its end.
    pub fn connects(&mut self, incarnation: u64, link: usize, purpose: Purpose) {
        let wanted = self.source.machine.as_ref().is_some_and(|machine| !machine.is_ended());
        if incarnation != self.source.incarnation || !wanted {
            return;
        }
        if !self.links[link].connects() || !self.destination_accepts() {
            self.forgotten(link);
            // Before the links are known, the operator's address may be on any of them.
            let link = if self.source.links_open { link } else { (link + 1) % self.links.len() };
            let span = self.micros(40_000, 200_000);
            return self.will_connect(link, purpose, span);
        }
        let id = self.next_connection;
        self.next_connection += 1;
        self.connections.insert(id, Connection::new(self.now, id, purpose, link));
        self.note(|| format!("connected: {purpose:?} {id} on link {link}"));
        self.source.greeted = true;
        self.send(id, Side::Source, Packet::Hello);
        let event = match purpose {
            Purpose::Path => source::Event::PathUp(id),
            Purpose::Channel => source::Event::ChannelUp { channel: id, link: link as u16 },
        };
        self.handle_source(event);
    }

    /// A side learns that its connection is lost.
    pub fn connection_lost(&mut self, id: u32, side: Side) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if !std::mem::replace(&mut connection.open[index(side)], false) {
            return;
        }
        let (link, purpose) = (connection.link, connection.purpose);
        let audible = self.links[link].alive[index(side)] && !connection.pipes[index(side)].cut;
        let peer_open = connection.open[index(other(side))];
        if audible && peer_open {
            let latency = self.links[link].latency;
            self.after(latency, SimEvent::Lost(id, other(side)));
        }
        self.note(|| format!("{side} lost {purpose:?} {id}"));
        match (side, purpose) {
            (Side::Source, _) => self.source_lost(id, link, purpose),
            (Side::Destination, Purpose::Path) => self.handle_destination(destination::Event::PathLost(id)),
            (Side::Destination, Purpose::Channel) => {}
        }
    }

    fn source_lost(&mut self, id: u32, link: usize, purpose: Purpose) {
        let span = self.micros(500, 60_000);
        self.will_connect(link, purpose, span);
        match purpose {
            Purpose::Path => self.handle_source(source::Event::PathLost(id)),
            Purpose::Channel => {
                let now = self.now;
                if let Some(machine) = self.source.machine.as_mut() {
                    machine.channel_lost(now, id);
                }
                self.settle_source();
            }
        }
    }

    /// Delivers what has arrived.
    pub fn arrives(&mut self, id: u32, direction: usize) {
        let now = self.now;
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            let Some(packet) = connection.arrived(now, direction) else { return };
            let receiver = if direction == 0 { Side::Destination } else { Side::Source };
            if connection.open[index(receiver)] {
                connection.last_received_at[index(receiver)] = now;
                match receiver {
                    Side::Source => self.source_receives(id, packet),
                    Side::Destination => self.destination_receives(id, packet),
                }
            }
        }
    }

    fn source_receives(&mut self, id: u32, packet: Packet) {
        match packet {
            Packet::Control(Outgoing::Message { sequence, message }) => {
                self.handle_source(source::Event::Received { path: id, sequence, message });
            }
            Packet::Control(Outgoing::Acknowledgement { through }) => {
                self.handle_source(source::Event::ControlAcknowledged { path: id, through });
            }
            Packet::Heartbeat => self.handle_source(source::Event::PathAlive(id)),
            Packet::Acknowledgement { through, damaged } => {
                let now = self.now;
                if let Some(machine) = self.source.machine.as_mut() {
                    machine.acknowledged(now, id, through, &damaged);
                }
                self.settle_source();
            }
            Packet::Hello | Packet::Write(_) | Packet::Partial(_) | Packet::Ping(_) => {}
        }
    }

    fn destination_receives(&mut self, id: u32, packet: Packet) {
        match packet {
            Packet::Hello => self.greeted(id),
            Packet::Control(Outgoing::Message { sequence, message }) => {
                self.handle_destination(destination::Event::Received { path: id, sequence, message });
            }
            Packet::Control(Outgoing::Acknowledgement { through }) => {
                self.handle_destination(destination::Event::ControlAcknowledged { path: id, through });
            }
            Packet::Heartbeat => self.handle_destination(destination::Event::PathAlive(id)),
            Packet::Write(write) => self.apply(id, write, false),
            Packet::Partial(write) => self.apply(id, write, true),
            Packet::Ping(sequence) => self.acknowledge(id, sequence, Vec::new()),
            Packet::Acknowledgement { .. } => {}
        }
    }

    fn greeted(&mut self, id: u32) {
        let purpose = self.connections.get(&id).map(|connection| connection.purpose);
        if purpose == Some(Purpose::Path) {
            self.handle_destination(destination::Event::PathUp(id));
        }
    }

    /// Both sides say on every path that they live.
    pub fn heartbeats(&mut self) {
        for side in [Side::Source, Side::Destination] {
            for id in self.open(side, Purpose::Path) {
                self.send(id, side, Packet::Heartbeat);
            }
        }
    }

    /// Connections that nothing comes over any more, and whose loss need not be reported.
    pub fn forget_dead(&mut self) {
        self.connections.retain(|_, connection| match connection.purpose {
            Purpose::Path => connection.open != [false; 2],
            Purpose::Channel => connection.open[0] || !connection.pipes[0].queue.is_empty(),
        });
    }

    /// What was silent for too long is given up. The destination keeps channels: only a fence ends them.
    pub fn find_silent(&mut self) {
        let (now, limit) = (self.now, self.scenario.silence);
        let silent = |world: &World, id: &u32, end: usize| {
            world.connections.get(id).is_some_and(|connection| now - connection.last_received_at[end] > limit)
        };
        let sides = [
            (Side::Source, Purpose::Path),
            (Side::Source, Purpose::Channel),
            (Side::Destination, Purpose::Path),
        ];
        for (side, purpose) in sides {
            let mut ids = self.open(side, purpose);
            ids.retain(|id| silent(self, id, index(side)));
            ids.into_iter().for_each(|id| self.connection_lost(id, side));
        }
    }
}
