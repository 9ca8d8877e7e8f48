//! A queue pair as a test connection: a message is one RDMA WRITE into the peer's memory, which notifies the peer that
//! it is there (WRITE with immediate). iWARP does not have that. There a message of one byte follows the WRITE, as a
//! frame follows the payloads of a migration.
//!
//! Both sides begin by telling where they can be written to. A stream's receiver gives credit: its adapter takes
//! messages only while there are slots for them. It is the receiving thread that makes them ready again, whatever the
//! adapter has confirmed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::abi::Wc;
use super::connection::{Connection, RdmaWrite};
use super::error::RdmaError;
use super::memory::Buffer;
use super::options::MESSAGES;
use super::verbs::{Access, CompletionQueue, POLL_BATCH};
use crate::bench::{BLOCK_BYTES, MESSAGE_BYTES_MAX, TestConnection, TestError};
use crate::channel::Closer;

/// Memory that a wire takes for messages, as many bytes to send from as to receive into, registered as long as it is
/// there.
pub const MEMORY_BYTES: usize = 2 * MESSAGE_BYTES_MAX;

/// Blocks of a stream that may be in flight: twice what a migration allows on a channel.
const BLOCKS_MAX: usize = MESSAGE_BYTES_MAX / BLOCK_BYTES;
/// Longest that an end of a ping-pong looks for the answer before it sleeps. What is measured is the wire, and not how
/// soon this host wakes a thread, as perftest and MPI libraries have it. A stream waits as a migration does.
const LOOK: Duration = Duration::from_millis(2);
/// One block of so many wakes the thread that sends them. They divide [`BLOCKS_MAX`], and are fewer.
const BLOCKS_SIGNALED: usize = 4;
const _: () = assert!(BLOCKS_MAX.is_multiple_of(BLOCKS_SIGNALED) && BLOCKS_SIGNALED < BLOCKS_MAX);
/// The receiver of a stream says each time that so many more blocks were taken, and once more behind the last.
const CREDIT_BLOCKS: usize = 16;
/// Blocks that may be sent without such a credit.
pub(super) const UNCREDITED_MAX: usize = 48;
// There is a slot for each of them at the receiver, for the address that it received first, and for what came last. A
// sender that a slot is missing for tries again after most of a second, within the time that is measured.
const _: () = assert!(UNCREDITED_MAX + 2 <= MESSAGES && CREDIT_BLOCKS <= UNCREDITED_MAX);
/// Immediate of a message, or of a block that others follow.
const MORE: u8 = 1;
/// With the last block.
const LAST: u8 = 2;
/// From the receiver of a stream.
const CREDIT: u8 = 3;

pub struct RdmaTestConnection {
    // The drop ends the queue pair first, so that no adapter uses them; they go before the identifier, which keeps the
    // device open.
    outgoing: Buffer,
    _incoming: Buffer,
    connection: Arc<Connection>,
    /// Where the peer can be written to, and the key for it.
    address: u64,
    key: u32,
    silence: Duration,
    /// Blocks of a stream are what goes over it now.
    streaming: bool,
    /// A WRITE makes a completion at the peer.
    notifies: bool,
    slots: Vec<usize>,
    /// Slots of what is in flight, in the order in which it was begun.
    begun: VecDeque<usize>,
    /// The slot of what came last. It is made ready again when the next is waited for, and not between a question and
    /// its answer.
    spent: Option<usize>,
    /// Messages that came and were not asked for yet.
    incoming_writes: VecDeque<Wc>,
    /// Which part of the buffers the next block goes through.
    turn: usize,
    /// Blocks without credit: sent, or, if this is the receiving end, taken. None of them between two streams.
    uncredited: usize,
}

/// What a completion says that came.
enum Incoming {
    /// A WRITE: its bytes and its immediate.
    Write {
        immediate: u32,
        bytes: usize,
    },
    Message(Vec<u8>),
}

impl RdmaTestConnection {
    /// Takes a connection on which nothing was sent yet; the peer must do the same. `silence` is how long nothing may
    /// move.
    pub fn new(connection: Arc<Connection>, silence: Duration) -> Result<RdmaTestConnection, TestError> {
        let protection = &connection.domain.protection;
        let outgoing = Buffer::new(protection, MESSAGE_BYTES_MAX, Access::Send)?;
        let incoming = Buffer::new(protection, MESSAGE_BYTES_MAX, Access::RemoteWrite)?;
        let notifies = connection.notifies_of_writes();
        let target = [&incoming.address().to_le_bytes()[..], &incoming.remote_key().to_le_bytes()].concat();
        let mut wire = RdmaTestConnection {
            outgoing,
            _incoming: incoming,
            connection,
            address: 0,
            key: 0,
            silence,
            streaming: false,
            notifies,
            slots: (0..MESSAGES).collect(),
            begun: VecDeque::new(),
            spent: None,
            incoming_writes: VecDeque::new(),
            turn: 0,
            uncredited: 0,
        };
        wire.post(&[], &target)?;
        let place = wire.message()?;
        let (address, key) =
            place.split_first_chunk::<8>().ok_or(RdmaError::Rules("a place is cut short"))?;
        let key = key.first_chunk::<4>().ok_or(RdmaError::Rules("a place is cut short"))?;
        (wire.address, wire.key) = (u64::from_le_bytes(*address), u32::from_le_bytes(*key));
        Ok(wire)
    }

    /// Takes completions of one queue until there is one.
    fn wait(&self, queue: &CompletionQueue) -> Result<impl Iterator<Item = Wc> + use<>, TestError> {
        let mut done = [Wc::EMPTY; POLL_BATCH];
        let found = match self.streaming {
            true => self.connection.completions(queue, &mut done, self.silence)?,
            false => self.connection.completions_looked_for(queue, &mut done, self.silence, LOOK)?,
        };
        match found {
            0 => Err(TestError::Silent { waited: self.silence }),
            found => Ok(done.into_iter().take(found)),
        }
    }

    fn next(&mut self) -> Result<Incoming, TestError> {
        if let Some(slot) = self.spent.take() {
            self.connection.ready(slot)?;
        }
        let done = loop {
            match self.incoming_writes.pop_front() {
                Some(done) => break done,
                None => self.incoming_writes.extend(self.wait(&self.connection.received)?),
            }
        };
        self.connection.judge("receiving", &done)?;
        let incoming = match Connection::immediate_of(&done) {
            Some(immediate) => Incoming::Write { immediate, bytes: done.byte_len as usize },
            None => {
                let mut bytes = Vec::new();
                self.connection.message(&done, &mut bytes)?;
                Incoming::Message(bytes)
            }
        };
        self.spent = usize::try_from(done.wr_id).ok();
        Ok(incoming)
    }

    fn message(&mut self) -> Result<Vec<u8>, TestError> {
        match self.next()? {
            Incoming::Message(bytes) => Ok(bytes),
            Incoming::Write { .. } => Err(RdmaError::Rules("a write where a message was to come").into()),
        }
    }

    /// Waits for a WRITE of `expected` bytes, and returns its immediate.
    fn mark(&mut self, expected: usize) -> Result<u8, TestError> {
        let mark = match self.next()? {
            Incoming::Write { bytes, .. } if bytes != expected => {
                return Err(RdmaError::Rules("a write of another length than was agreed").into());
            }
            Incoming::Write { immediate, .. } => u8::try_from(immediate).unwrap_or(0),
            Incoming::Message(bytes) => bytes.first().copied().filter(|_| bytes.len() == 1).unwrap_or(0),
        };
        match mark {
            MORE | LAST => Ok(mark),
            mark => Err(TestError::Mark { mark }),
        }
    }

    /// Waits until at most so many blocks are without credit.
    fn credited(&mut self, most: usize) -> Result<(), TestError> {
        while self.uncredited > most {
            match self.message()?.as_slice() {
                [CREDIT] => self.uncredited = self.uncredited.saturating_sub(CREDIT_BLOCKS),
                other => return Err(TestError::Credit { mark: other.first().copied().unwrap_or(0) }),
            }
        }
        Ok(())
    }

    /// A slot that nothing is sent from.
    fn slot(&mut self) -> Result<usize, TestError> {
        loop {
            match self.slots.pop() {
                Some(slot) => return Ok(slot),
                None => self.reap()?,
            }
        }
    }

    /// Sends a message behind what is written.
    fn post(&mut self, writes: &[RdmaWrite], message: &[u8]) -> Result<(), TestError> {
        let slot = self.slot()?;
        self.begun.push_back(slot);
        Ok(self.connection.post(writes, slot, message, slot as u64)?)
    }

    /// Waits until more is out.
    fn reap(&mut self) -> Result<(), TestError> {
        for done in self.wait(&self.connection.sent)? {
            self.connection.judge("writing into the peer's memory", &done)?;
            // With it all that was begun before it.
            while let Some(slot) = self.begun.pop_front() {
                self.slots.push(slot);
                if slot as u64 == done.wr_id {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Keeps at most so many in flight.
    fn limit_in_flight(&mut self, most: usize) -> Result<(), TestError> {
        while self.begun.len() > most {
            self.reap()?;
        }
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: usize, mark: u8, signaled: bool) -> Result<(), TestError> {
        let length = u32::try_from(bytes).map_err(|_| TestError::TooLarge { bytes })?;
        let write = RdmaWrite {
            from: self.outgoing.address() + at as u64,
            length,
            local_key: self.outgoing.local_key(),
            to: self.address + at as u64,
            remote_key: self.key,
        };
        match bytes {
            // There is nothing to write, and an empty message is one of one byte on every transport.
            0 => self.post(&[], &[mark]),
            _ if self.notifies => {
                let slot = self.slot()?;
                self.begun.push_back(slot);
                Ok(self.connection.post_write_with_immediate(&write, mark.into(), slot as u64, signaled)?)
            }
            _ => self.post(&[write], &[mark]),
        }
    }
}

impl TestConnection for RdmaTestConnection {
    fn send(&mut self, bytes: usize) -> Result<(), TestError> {
        if bytes > MESSAGE_BYTES_MAX {
            return Err(TestError::TooLarge { bytes });
        }
        self.streaming = false;
        // The one before is out long ago: its answer has come.
        self.limit_in_flight(0)?;
        self.write(0, bytes, MORE, true)
    }

    fn receive(&mut self, bytes: usize) -> Result<(), TestError> {
        if bytes > MESSAGE_BYTES_MAX {
            return Err(TestError::TooLarge { bytes });
        }
        self.streaming = false;
        self.mark(bytes).map(drop)
    }

    fn send_block(&mut self, last: bool) -> Result<(), TestError> {
        self.streaming = true;
        self.limit_in_flight(BLOCKS_MAX - 1)?;
        self.credited(UNCREDITED_MAX - 1)?;
        let at = self.turn * BLOCK_BYTES;
        self.turn = (self.turn + 1) % BLOCKS_MAX;
        let signaled = last || self.turn.is_multiple_of(BLOCKS_SIGNALED);
        self.write(at, BLOCK_BYTES, if last { LAST } else { MORE }, signaled)?;
        self.uncredited += 1;
        // Nothing of a stream is left to come when something else is played.
        if last { self.credited(0) } else { Ok(()) }
    }

    fn receive_block(&mut self) -> Result<bool, TestError> {
        self.streaming = true;
        let last = self.mark(BLOCK_BYTES)? == LAST;
        self.uncredited += 1;
        if last || self.uncredited == CREDIT_BLOCKS {
            self.uncredited = 0;
            self.post(&[], &[CREDIT])?;
        }
        Ok(last)
    }

    fn carried_bytes(&self, bytes: usize) -> usize {
        // The byte that an empty message is, and the one behind a WRITE that does not notify the peer.
        if self.notifies { bytes.max(1) } else { bytes + 1 }
    }

    fn closer(&self) -> Closer {
        super::receive::closer(&self.connection)
    }
}

impl Drop for RdmaTestConnection {
    fn drop(&mut self) {
        self.connection.end();
    }
}

impl From<RdmaError> for TestError {
    fn from(error: RdmaError) -> TestError {
        match error {
            RdmaError::PeerClosed | RdmaError::ClosedHere => TestError::Closed,
            other => TestError::Rdma(other),
        }
    }
}
