//! Places of the answering side's connections, by channel. A place is taken before a connection, a thread or memory is
//! spent. So a peer that asks for more than it gets costs nothing.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use linerate_lock::{Condvar, Mutex};
use linerate_net::bench::TestConnection;
use linerate_net::channel::Closer;

use super::documents::{CONNECTIONS_MAX, MEMORY_BYTES_MAX};
use super::host::Measurement;
use super::stop::Ticket;

/// A connection that is measured, at the answering side.
pub struct Attached {
    pub connection: Box<dyn TestConnection>,
    /// Address of this end.
    pub own: Option<SocketAddr>,
}

#[derive(Default)]
pub struct ConnectionSlots {
    /// Until the measurement is over: also while the connection is in use, or not there yet.
    taken: Mutex<BTreeMap<u32, ConnectionSlot>>,
    arrived: Condvar,
}

struct ConnectionSlot {
    /// What the connection takes for messages as long as it is there.
    memory: usize,
    /// It is connected and not in use.
    attached: Option<Attached>,
}

/// Why there is no place.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum SlotRefused {
    #[error("this host is the one that asks")]
    Asking,
    #[error("a number twice")]
    Taken,
    #[error("more than {CONNECTIONS_MAX} connections")]
    Connections,
    #[error("more than {} MiB for messages", MEMORY_BYTES_MAX >> 20)]
    Memory,
    #[error("TCP and RDMA in one measurement")]
    Mixed,
}

impl ConnectionSlots {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, ConnectionSlot>> {
        self.taken.lock()
    }

    fn reserve(&self, channel: u32, memory: usize) -> Result<(), SlotRefused> {
        let mut taken = self.lock();
        if taken.contains_key(&channel) {
            return Err(SlotRefused::Taken);
        }
        if taken.len() >= CONNECTIONS_MAX {
            return Err(SlotRefused::Connections);
        }
        // What is played over TCP has the same cap for itself.
        if taken.values().any(|slot| slot.memory != memory) {
            return Err(SlotRefused::Mixed);
        }
        if memory.saturating_mul(taken.len() + 1) > MEMORY_BYTES_MAX {
            return Err(SlotRefused::Memory);
        }
        taken.insert(channel, ConnectionSlot { memory, attached: None });
        Ok(())
    }

    /// A connection is there, or free again.
    pub fn put(&self, channel: u32, attached: Attached) {
        if let Some(slot) = self.lock().get_mut(&channel) {
            slot.attached = Some(attached);
        }
        self.arrived.notify_all();
    }

    /// A connection, to be used. It may arrive a moment later than the request to use it, which has another connection.
    pub fn take(&self, channel: u32, wait: Duration) -> Option<Attached> {
        let absent = |taken: &mut BTreeMap<u32, ConnectionSlot>| {
            taken.get(&channel).is_none_or(|slot| slot.attached.is_none())
        };
        let (mut taken, _) = self.arrived.wait_timeout_while(self.lock(), wait, absent);
        taken.get_mut(&channel)?.attached.take()
    }
}

/// A place for a connection that is being made. Dropped, it is free again.
pub struct Reserved {
    pub measurement: Arc<Measurement>,
    channel: u32,
    ticket: Option<Ticket>,
    filled: bool,
}

impl Reserved {
    /// Takes a place for a connection that takes so much memory for messages as long as it is there.
    pub fn new(measurement: Arc<Measurement>, channel: u32, memory: usize) -> Result<Reserved, SlotRefused> {
        measurement.places.as_ref().ok_or(SlotRefused::Asking)?.reserve(channel, memory)?;
        Ok(Reserved { measurement, channel, ticket: None, filled: false })
    }

    /// How the connection is closed when the measurement is over, from now on.
    pub fn closes(&mut self, closer: Closer) {
        self.ticket = self.measurement.stop.add(closer);
    }

    /// The connection is there.
    pub fn fill(mut self, attached: Attached) {
        self.filled = true;
        if let Some(places) = &self.measurement.places {
            places.put(self.channel, attached);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.filled {
            return;
        }
        // First, since what closes a connection keeps it.
        if let Some(ticket) = self.ticket.take() {
            self.measurement.stop.forget(ticket);
        }
        if let Some(places) = &self.measurement.places {
            places.lock().remove(&self.channel);
        }
    }
}

#[cfg(test)]
mod tests {
    use linerate_net::rdma::test_connection::MEMORY_BYTES;

    use super::*;

    #[test]
    fn a_slot_is_taken_once_and_only_as_many_are_given_as_there_is_memory_for() {
        let places = ConnectionSlots::default();
        let pairs = (MEMORY_BYTES_MAX / MEMORY_BYTES) as u32;
        assert!((0..pairs).all(|channel| places.reserve(channel, MEMORY_BYTES).is_ok()));
        assert_eq!(places.reserve(0, MEMORY_BYTES), Err(SlotRefused::Taken));
        assert_eq!(places.reserve(pairs, MEMORY_BYTES), Err(SlotRefused::Memory));
        assert_eq!(places.reserve(pairs, 0), Err(SlotRefused::Mixed));
        let places = ConnectionSlots::default();
        assert!((0..CONNECTIONS_MAX as u32).all(|channel| places.reserve(channel, 0).is_ok()));
        assert_eq!(places.reserve(u32::MAX, 0), Err(SlotRefused::Connections));
    }
}
