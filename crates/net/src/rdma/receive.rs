//! The destination's side of a channel: windows are granted, payloads are there before the frame that names them.

use std::sync::Arc;
use std::time::Duration;

use linerate_core::{Code, Fault, Run, Side, Step};
use linerate_wire::frame::{
    Claim, Frame, Grant, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, SCRATCH_REGION, Tag, Write,
};
use linerate_wire::payload_checksum;

use super::abi::Wc;
use super::connection::Connection;
use super::error::RdmaError;
use super::memory::Buffer;
use super::options::MESSAGES;
use super::verbs::{Access, POLL_BATCH};
use crate::channel::{ChannelEnd, ChannelError, Closer, Receiver, total};
use crate::fence::Fence;
use crate::receipts::{Receipts, SILENCE_MAX};
use crate::stats::ChannelStats;
use crate::table::{RegionTable, RemoteWriter};

/// A last word to the source is out within this, or it is lost with the channel.
const REPORT_WAIT: Duration = Duration::from_secs(1);

/// Receives placed writes over a queue pair.
#[derive(Debug)]
pub struct RdmaReceiver {
    connection: Arc<Connection>,
    damaged_max: usize,
    stats: Arc<ChannelStats>,
}

impl RdmaReceiver {
    /// Receives on this connection.
    pub fn new(connection: Arc<Connection>) -> RdmaReceiver {
        RdmaReceiver { connection, damaged_max: usize::MAX, stats: Arc::default() }
    }

    /// Ends the channel when more frames than these arrived damaged, as
    /// [`StreamReceiver::damaged_max`](crate::tcp::receive::StreamReceiver::damaged_max) does.
    pub fn damaged_max(self, damaged_max: usize) -> RdmaReceiver {
        RdmaReceiver { damaged_max, ..self }
    }

    /// Counters of what was applied.
    pub fn stats(&self) -> Arc<ChannelStats> {
        Arc::clone(&self.stats)
    }
}

/// Ends a connection from another thread.
pub fn closer(connection: &Arc<Connection>) -> Closer {
    let connection = Arc::clone(connection);
    Closer::new(move || connection.end())
}

impl Receiver for RdmaReceiver {
    fn serve(self, regions: &RegionTable, fence: &Fence) -> ChannelEnd {
        let Some(serving) = fence.enter() else { return ChannelEnd::Fenced };
        let writer: Arc<dyn RemoteWriter> = Arc::clone(&self.connection) as _;
        let mut server = Server {
            connection: &self.connection,
            stats: &self.stats,
            regions,
            fence,
            receipts: Receipts::new(serving, &self.stats).damaged_at_most(self.damaged_max),
            scratch: None,
            slots: (0..MESSAGES).collect(),
            write: Write::default(),
            message: Vec::new(),
            answer: Vec::new(),
        };
        // The seal ends this queue pair from now on; a table that is sealed already gives no window.
        let end = match regions.attach(&writer, self.connection.domain.registrations()) {
            Ok(()) => server.run(),
            Err(error) => error,
        };
        server.report_end(&end);
        // Rules 3 and 5: nothing can be written over this queue pair any more, and only then does the fence report it.
        self.connection.end();
        drop(server);
        match end {
            _ if fence.is_closing() => ChannelEnd::Fenced,
            // The seal ended it, as it ends every queue pair.
            ChannelError::ClosedHere if regions.is_sealed() => ChannelEnd::Fenced,
            ChannelError::Closed => ChannelEnd::Closed,
            error => ChannelEnd::Failed(error),
        }
    }
}

struct Server<'a> {
    connection: &'a Connection,
    stats: &'a ChannelStats,
    regions: &'a RegionTable,
    fence: &'a Fence,
    receipts: Receipts<'a>,
    /// Where probes are written to.
    scratch: Option<Buffer>,
    /// Slots to send from that are free.
    slots: Vec<usize>,
    // Kept from frame to frame for their memory.
    write: Write,
    message: Vec<u8>,
    answer: Vec<u8>,
}

impl Server<'_> {
    fn run(&mut self) -> ChannelError {
        loop {
            if let Err(error) = self.step() {
                return error;
            }
        }
    }

    fn step(&mut self) -> Result<(), ChannelError> {
        let mut done = [Wc::EMPTY; POLL_BATCH];
        let mut found = self.connection.received.poll(&mut done)?;
        if found == 0 {
            // Before it waits for the source, it acknowledges what has come.
            self.acknowledge()?;
            found = self.connection.completions(&self.connection.received, &mut done, SILENCE_MAX)?;
        }
        if self.fence.is_closing() {
            return Err(ChannelError::ClosedHere);
        }
        if found == 0 {
            return Err(ChannelError::Stalled { waited: SILENCE_MAX });
        }
        done.iter().take(found).try_for_each(|done| self.take(done))
    }

    fn take(&mut self, done: &Wc) -> Result<(), ChannelError> {
        self.connection.judge("receiving", done)?;
        let mut message = std::mem::take(&mut self.message);
        self.connection.message(done, &mut message)?;
        self.connection.ready(usize::try_from(done.wr_id).unwrap_or(usize::MAX))?;
        let taken = self.frame(&message);
        self.message = message;
        taken
    }

    fn frame(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        let (header, body) = split(message)?;
        if header.tag == Tag::Claim {
            return match Frame::decode(&header, body)? {
                Frame::Claim(claim) => self.grant(claim),
                other => Err(ChannelError::UnexpectedFrame { tag: other.tag() }),
            };
        }
        if !matches!(header.tag, Tag::Write | Tag::Probe) {
            return Err(ChannelError::UnexpectedFrame { tag: header.tag });
        }
        self.receipts.check(header.sequence)?;
        let intact = match header.tag {
            Tag::Write => self.apply(&header, body)?,
            _ => self.probe(&header)?,
        };
        if self.receipts.book(&header, intact)? { self.acknowledge() } else { Ok(()) }
    }

    /// False if the payload is not what was summed. Its bytes stay in place then: the source sends the extent again.
    fn apply(&mut self, header: &Header, body: &[u8]) -> Result<bool, ChannelError> {
        let mut write = std::mem::take(&mut self.write);
        write.decode_into(header, body)?;
        let region = self.regions.checked(write.region, write.data.iter().chain(&write.zero))?;
        let memory = |source| ChannelError::Memory { region: write.region, source };
        let intact = write.data.is_empty()
            || write.without_checksum
            || region.checksum(&write.data).map_err(memory)? == header.payload_checksum;
        if intact {
            region.written_by_adapter(&write.data);
            region.placed(&write.data).map_err(memory)?;
            for run in &write.zero {
                let _permit = self.regions.permit()?;
                region.clear(*run).map_err(memory)?;
            }
        }
        let wire = (HEADER_BYTES + body.len()) as u64 + u64::from(header.payload_length);
        self.stats.frame(header.payload_length.into(), total(&write.zero), wire);
        self.write = write;
        Ok(intact)
    }

    fn probe(&mut self, header: &Header) -> Result<bool, ChannelError> {
        self.stats.frame(0, 0, HEADER_BYTES as u64 + u64::from(header.payload_length));
        if header.payload_length == 0 {
            return Ok(true);
        }
        let mut bytes = vec![0; header.payload_length as usize];
        let there = self.scratch.as_ref().is_some_and(|scratch| scratch.get(0, &mut bytes));
        Ok(there && payload_checksum(&bytes) == header.payload_checksum)
    }

    /// Registers a window and gives out its key.
    fn grant(&mut self, claim: Claim) -> Result<(), ChannelError> {
        let Claim { region, window } = claim;
        let (key, address) = match region {
            SCRATCH_REGION => self.scratch(window)?,
            _ => self.window(region, window)?,
        };
        let mut answer = std::mem::take(&mut self.answer);
        Frame::Grant(Grant { region, key, window, address }).encode(0, 0, 0, &mut answer)?;
        let sent = self.send(&answer);
        self.answer = answer;
        sent
    }

    fn scratch(&mut self, window: Run) -> Result<(u32, u64), ChannelError> {
        let whole = Run { offset: 0, length: PAYLOAD_BYTES_MAX.into() };
        if window != whole {
            return Err(RdmaError::Rules("memory for probes is claimed as a whole").into());
        }
        if self.scratch.is_none() {
            let protection = &self.connection.domain.protection;
            let made = Buffer::new(protection, PAYLOAD_BYTES_MAX as usize, Access::RemoteWrite)?;
            self.scratch = Some(made);
        }
        let scratch = self.scratch.as_ref().map(|scratch| (scratch.remote_key(), scratch.address()));
        scratch.ok_or_else(|| RdmaError::Rules("no memory for probes").into())
    }

    fn window(&self, id: u16, window: Run) -> Result<(u32, u64), ChannelError> {
        let region = self.regions.checked(id, [&window])?;
        if region.window(window.offset) != Some(window) {
            return Err(RdmaError::Rules("what is claimed is no window").into());
        }
        let (mapped, at) = region.mapped_at(window).ok_or(RdmaError::NotMapped { region: id })?;
        {
            let _permit = self.regions.permit()?;
            region.pin(window).map_err(|source| ChannelError::Memory { region: id, source })?;
        }
        let made = self.connection.domain.register(mapped, at, Access::RemoteWrite)?;
        let address = (mapped.base.as_ptr() as u64).wrapping_add(at.offset);
        Ok((made.remote_key(), address))
    }

    fn acknowledge(&mut self) -> Result<(), ChannelError> {
        let mut answer = std::mem::take(&mut self.answer);
        let sent = match self.receipts.write(&mut answer)? {
            true => self.send(&answer),
            false => Ok(()),
        };
        self.answer = answer;
        sent
    }

    /// Sends the reason why this side ends the channel, if the source does not know it.
    fn report_end(&mut self, end: &ChannelError) {
        if matches!(end, ChannelError::Closed | ChannelError::ClosedHere) || self.fence.is_closing() {
            return;
        }
        let fault = Fault::new(Code::MemoryFailed, Step::Copy, Side::Destination, end.to_string());
        let mut answer = Vec::new();
        if Frame::Refuse(fault).encode(0, 0, 0, &mut answer).is_ok() && self.send(&answer).is_ok() {
            // It must be out before the queue pair goes; only the peer's adapter confirms that.
            let mut done = [Wc::EMPTY; POLL_BATCH];
            let _ = self.connection.completions(&self.connection.sent, &mut done, REPORT_WAIT);
        }
    }

    fn send(&mut self, message: &[u8]) -> Result<(), ChannelError> {
        let mut done = [Wc::EMPTY; POLL_BATCH];
        loop {
            let found = self.connection.sent.poll(&mut done)?;
            for done in done.iter().take(found) {
                self.connection.judge("answering", done)?;
                self.slots.extend(usize::try_from(done.wr_id));
            }
            if let Some(slot) = self.slots.pop() {
                return Ok(self.connection.post(&[], slot, message, slot as u64)?);
            }
            if found == 0 {
                return Err(RdmaError::Rules("more is claimed at a time than is allowed").into());
            }
        }
    }
}

/// A message's header and body. A message is one frame, without payload.
pub(super) fn split(message: &[u8]) -> Result<(Header, &[u8]), ChannelError> {
    let (header, body) = message
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or(RdmaError::Rules("a message is shorter than a header"))?;
    Ok((Header::decode(header)?, body))
}
