//! A queue pair as a wire that is measured: a message is written into the peer's memory by RDMA WRITE, and a message of one byte
//! behind it says that it is there, as payloads and frames of a migration do.
//!
//! Both sides begin by telling where they can be written to. A stream's receiver gives credit: its adapter takes messages only
//! while there are slots for them, and it is the receiving thread that makes them ready again, whatever the adapter has confirmed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::abi::Wc;
use super::connection::{Connection, Place};
use super::error::RdmaError;
use super::memory::Buffer;
use super::options::MESSAGES;
use super::verbs::{Access, CompletionQueue, POLL_BATCH};
use crate::channel::Closer;
use crate::wires::{BLOCK_BYTES, MESSAGE_BYTES_MAX, Wire, WireError};

/// Memory that a wire takes for messages, as many bytes to send from as to receive into, registered as long as it is there.
pub const MEMORY_BYTES: usize = 2 * MESSAGE_BYTES_MAX;

/// Blocks of a stream that may be under way: what a migration lets be under way on a channel, twice over.
const BLOCKS_MAX: usize = MESSAGE_BYTES_MAX / BLOCK_BYTES;
/// The receiver of a stream says each time that so many more blocks were taken, and once more behind the last.
const CREDIT_BLOCKS: usize = 16;
/// Blocks that may be sent without such a word.
pub(super) const UNCREDITED_MAX: usize = 48;
// There is a slot for each of them at the receiver, and for the place that it was told first. A sender that a slot is missing
// for tries again after most of a second, within the time that is measured.
const _: () = assert!(UNCREDITED_MAX < MESSAGES && CREDIT_BLOCKS <= UNCREDITED_MAX);
/// Content of the byte behind a message or a block that others follow.
const MORE: u8 = 1;
/// Behind the last block.
const LAST: u8 = 2;
/// From the receiver of a stream.
const CREDIT: u8 = 3;

/// See the module.
pub struct RdmaWire {
    // The drop ends the queue pair first, so that no adapter uses them; they go before the identifier, which keeps the device
    // open.
    outgoing: Buffer,
    _incoming: Buffer,
    connection: Arc<Connection>,
    /// Where the peer can be written to, and the key for it.
    address: u64,
    key: u32,
    silence: Duration,
    slots: Vec<usize>,
    /// Messages that came and were not asked for yet.
    came: VecDeque<Wc>,
    /// Which part of the buffers the next block goes through.
    turn: usize,
    /// Blocks without credit: sent, or, if this is the receiving end, taken. None of them between two streams.
    uncredited: usize,
}

impl RdmaWire {
    /// Takes a connection on which nothing was sent yet; the peer must do the same. `silence` is how long nothing may move.
    pub fn new(connection: Arc<Connection>, silence: Duration) -> Result<RdmaWire, WireError> {
        let protection = &connection.domain.protection;
        let outgoing = Buffer::new(protection, MESSAGE_BYTES_MAX, Access::Send)?;
        let incoming = Buffer::new(protection, MESSAGE_BYTES_MAX, Access::RemoteWrite)?;
        let place = [&incoming.address().to_le_bytes()[..], &incoming.remote_key().to_le_bytes()].concat();
        let mut wire = RdmaWire {
            outgoing,
            _incoming: incoming,
            connection,
            address: 0,
            key: 0,
            silence,
            slots: (0..MESSAGES).collect(),
            came: VecDeque::new(),
            turn: 0,
            uncredited: 0,
        };
        wire.post(&[], &place)?;
        let told = wire.message()?;
        let (address, key) = told.split_first_chunk::<8>().ok_or(RdmaError::Rules("a place is cut short"))?;
        let key = key.first_chunk::<4>().ok_or(RdmaError::Rules("a place is cut short"))?;
        (wire.address, wire.key) = (u64::from_le_bytes(*address), u32::from_le_bytes(*key));
        Ok(wire)
    }

    /// Takes completions of one queue until there is one.
    fn wait(&self, queue: &CompletionQueue) -> Result<Vec<Wc>, WireError> {
        let mut done = [Wc::EMPTY; POLL_BATCH];
        let began = Instant::now();
        match self.connection.completions(queue, &mut done, self.silence)? {
            0 => Err(WireError::Silent { waited: began.elapsed() }),
            found => Ok(done.into_iter().take(found).collect()),
        }
    }

    /// The next message.
    fn message(&mut self) -> Result<Vec<u8>, WireError> {
        if self.came.is_empty() {
            let came = self.wait(&self.connection.received)?;
            self.came.extend(came);
        }
        let mut bytes = Vec::new();
        if let Some(done) = self.came.pop_front() {
            self.connection.judge("receiving", &done)?;
            self.connection.message(&done, &mut bytes)?;
            self.connection.ready(usize::try_from(done.wr_id).unwrap_or(usize::MAX))?;
        }
        Ok(bytes)
    }

    fn mark(&mut self) -> Result<u8, WireError> {
        match self.message()?.as_slice() {
            [mark @ (MORE | LAST)] => Ok(*mark),
            other => Err(WireError::Mark { mark: other.first().copied().unwrap_or(0) }),
        }
    }

    /// Waits until at most so many blocks are without credit.
    fn credited(&mut self, most: usize) -> Result<(), WireError> {
        while self.uncredited > most {
            match self.message()?.as_slice() {
                [CREDIT] => self.uncredited = self.uncredited.saturating_sub(CREDIT_BLOCKS),
                other => return Err(WireError::Credit { mark: other.first().copied().unwrap_or(0) }),
            }
        }
        Ok(())
    }

    /// Sends a message behind what is written, once there is a slot for it.
    fn post(&mut self, places: &[Place], message: &[u8]) -> Result<(), WireError> {
        while self.slots.is_empty() {
            self.reap()?;
        }
        let Some(slot) = self.slots.pop() else { return Ok(()) };
        Ok(self.connection.post(places, slot, message, slot as u64)?)
    }

    /// Waits until one more message is out.
    fn reap(&mut self) -> Result<(), WireError> {
        for done in self.wait(&self.connection.sent)? {
            self.connection.judge("writing into the peer's memory", &done)?;
            self.slots.extend(usize::try_from(done.wr_id));
        }
        Ok(())
    }

    /// Keeps at most so many under way.
    fn under_way(&mut self, most: usize) -> Result<(), WireError> {
        while MESSAGES - self.slots.len() > most {
            self.reap()?;
        }
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: usize, mark: u8) -> Result<(), WireError> {
        let length = u32::try_from(bytes).map_err(|_| WireError::TooLarge { bytes })?;
        let place = Place {
            from: self.outgoing.address() + at as u64,
            length,
            local_key: self.outgoing.local_key(),
            to: self.address + at as u64,
            remote_key: self.key,
        };
        let places = if bytes == 0 { &[][..] } else { std::slice::from_ref(&place) };
        self.post(places, &[mark])
    }
}

impl Wire for RdmaWire {
    fn send(&mut self, bytes: usize) -> Result<(), WireError> {
        if bytes > MESSAGE_BYTES_MAX {
            return Err(WireError::TooLarge { bytes });
        }
        // The one before is out long ago: its answer has come.
        self.under_way(0)?;
        self.write(0, bytes, MORE)
    }

    fn receive(&mut self, bytes: usize) -> Result<(), WireError> {
        if bytes > MESSAGE_BYTES_MAX {
            return Err(WireError::TooLarge { bytes });
        }
        self.mark().map(drop)
    }

    fn send_block(&mut self, last: bool) -> Result<(), WireError> {
        self.under_way(BLOCKS_MAX - 1)?;
        self.credited(UNCREDITED_MAX - 1)?;
        let at = self.turn * BLOCK_BYTES;
        self.turn = (self.turn + 1) % BLOCKS_MAX;
        self.write(at, BLOCK_BYTES, if last { LAST } else { MORE })?;
        self.uncredited += 1;
        // Nothing of a stream is left to come when something else is played.
        if last { self.credited(0) } else { Ok(()) }
    }

    fn receive_block(&mut self) -> Result<bool, WireError> {
        let last = self.mark()? == LAST;
        self.uncredited += 1;
        if last || self.uncredited == CREDIT_BLOCKS {
            self.uncredited = 0;
            self.post(&[], &[CREDIT])?;
        }
        Ok(last)
    }

    fn carried_bytes(&self, bytes: usize) -> usize {
        // The byte behind it.
        bytes + 1
    }

    fn closer(&self) -> Closer {
        super::receive::closer(&self.connection)
    }
}

impl Drop for RdmaWire {
    fn drop(&mut self) {
        self.connection.end();
    }
}

impl From<RdmaError> for WireError {
    fn from(error: RdmaError) -> WireError {
        match error {
            RdmaError::PeerClosed | RdmaError::ClosedHere => WireError::Closed,
            other => WireError::Rdma(other),
        }
    }
}
