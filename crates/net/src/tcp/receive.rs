//! The destination's side of a channel: header, body, payload straight into the region, checksum over what landed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_wire::PayloadChecksum;
use linerate_wire::frame::{HEADER_BYTES, Header, Tag, Write};
use rustix::io::Errno;

use super::Stream;
use crate::channel::{ChannelEnd, ChannelError, Receiver, total};
use crate::fence::Fence;
use crate::receipts::{Receipts, SILENCE_MAX};
use crate::region::Region;
use crate::socket::is_transient;
use crate::stats::ChannelStats;
use crate::table::RegionTable;

/// A source that takes no acknowledgement for this long is dead.
const ACK_WAIT: Duration = Duration::from_secs(5);
/// Payload of a probe is read in pieces of this size and forgotten.
const SCRATCH_BYTES: usize = 64 << 10;

/// Receives placed writes from a stream socket.
#[derive(Debug)]
pub struct StreamReceiver {
    stream: Stream,
    damaged_max: usize,
    stats: Arc<ChannelStats>,
}

impl StreamReceiver {
    /// Receives on this connection.
    pub fn new(stream: Stream) -> StreamReceiver {
        StreamReceiver { stream, damaged_max: usize::MAX, stats: Arc::default() }
    }

    /// Ends the channel when more frames than these arrived damaged. For memory that only the channels write, where
    /// each is damage on the way, and where nothing that has landed may be sent again. A fence can name
    /// [`DAMAGED_MAX`](linerate_wire::frame::DAMAGED_MAX) of them.
    pub fn damaged_max(self, damaged_max: usize) -> StreamReceiver {
        StreamReceiver { damaged_max, ..self }
    }

    /// Counters of what was applied.
    pub fn stats(&self) -> Arc<ChannelStats> {
        Arc::clone(&self.stats)
    }
}

impl Receiver for StreamReceiver {
    fn serve(self, regions: &RegionTable, fence: &Fence) -> ChannelEnd {
        let Some(serving) = fence.enter() else { return ChannelEnd::Fenced };
        let mut server = Server {
            stream: &self.stream,
            stats: &self.stats,
            regions,
            fence,
            receipts: Receipts::new(serving, &self.stats).damaged_at_most(self.damaged_max),
            write: Write::default(),
            body: Vec::new(),
            answer: Vec::new(),
        };
        let end = server.run();
        // Also for the source, which would wait for acknowledgements otherwise.
        self.stream.shut();
        match end {
            _ if fence.is_closing() => ChannelEnd::Fenced,
            ChannelError::Closed => ChannelEnd::Closed,
            error => ChannelEnd::Failed(error),
        }
    }
}

struct Server<'a> {
    stream: &'a Stream,
    stats: &'a ChannelStats,
    regions: &'a RegionTable,
    fence: &'a Fence,
    receipts: Receipts<'a>,
    // Kept from frame to frame for their memory.
    write: Write,
    body: Vec<u8>,
    answer: Vec<u8>,
}

impl Server<'_> {
    fn run(&mut self) -> ChannelError {
        loop {
            if let Err(error) = self.frame() {
                return error;
            }
        }
    }

    fn frame(&mut self) -> Result<(), ChannelError> {
        let mut bytes = [0; HEADER_BYTES];
        self.fill(&mut bytes, true)?;
        let header = Header::decode(&bytes)?;
        if !matches!(header.tag, Tag::Write | Tag::Probe) {
            return Err(ChannelError::UnexpectedFrame { tag: header.tag });
        }
        self.receipts.check(header.sequence)?;
        let mut body = std::mem::take(&mut self.body);
        body.resize(header.body_length as usize, 0);
        self.fill(&mut body, false)?;
        let intact = match header.tag {
            Tag::Write => self.apply(&header, &body)?,
            _ => self.throw_away(&header)?,
        };
        self.body = body;
        if self.receipts.book(&header, intact)? { self.acknowledge() } else { Ok(()) }
    }

    /// False if the payload was damaged. Its bytes stay in place then: the source sends the extent again.
    fn apply(&mut self, header: &Header, body: &[u8]) -> Result<bool, ChannelError> {
        let mut write = std::mem::take(&mut self.write);
        write.decode_into(header, body)?;
        let region = self.regions.checked(write.region, write.data.iter().chain(&write.zero))?;
        let memory = |source| ChannelError::Memory { region: write.region, source };
        let mut intact = true;
        if !write.data.is_empty() {
            self.land(region, &write, header.payload_length as usize)?;
            intact = self.is_verified(&write)
                || region.checksum(&write.data).map_err(memory)? == header.payload_checksum;
            if intact {
                region.placed(&write.data).map_err(memory)?;
            }
        }
        if intact {
            for run in &write.zero {
                let _permit = self.regions.permit()?;
                region.clear(*run).map_err(memory)?;
            }
        }
        let wire = HEADER_BYTES as u64 + body.len() as u64 + u64::from(header.payload_length);
        self.stats.frame(header.payload_length.into(), total(&write.zero), wire);
        self.write = write;
        Ok(intact)
    }

    /// TLS has verified the payload before it landed, so that its source need not sum it.
    fn is_verified(&self, write: &Write) -> bool {
        write.without_checksum && self.stream.is_encrypted()
    }

    /// Receives the payload into the region. The permit covers single system calls that do not wait. So a source that
    /// stops in the middle does not hold up a seal.
    fn land(&mut self, region: &dyn Region, write: &Write, length: usize) -> Result<(), ChannelError> {
        {
            let _permit = self.permit()?;
            region
                .populate(&write.data)
                .map_err(|source| ChannelError::Memory { region: write.region, source })?;
        }
        let mut done = 0;
        while done < length {
            let permit = self.permit()?;
            let received = self.stream.receive_region(region, &write.data, done);
            drop(permit);
            match received {
                Ok(0) => return Err(ChannelError::ClosedInFrame),
                Ok(bytes) => done += bytes,
                Err(error) if is_transient(&error) => self.wait()?,
                // Not the socket's failure: there is no page for it, as in a tmpfs that is full.
                Err(source) if matches!(Errno::from_io_error(&source), Some(Errno::FAULT | Errno::NOSPC)) => {
                    return Err(ChannelError::Memory { region: write.region, source });
                }
                Err(error) => return Err(ChannelError::Socket(error)),
            }
        }
        Ok(())
    }

    fn permit(&self) -> Result<crate::table::WritePermit<'_>, ChannelError> {
        if self.fence.is_closing() {
            return Err(ChannelError::ClosedHere);
        }
        self.regions.permit()
    }

    fn throw_away(&mut self, header: &Header) -> Result<bool, ChannelError> {
        let mut left = header.payload_length as usize;
        let mut scratch = vec![0; left.min(SCRATCH_BYTES)];
        let mut checksum = PayloadChecksum::new();
        while left > 0 {
            scratch.truncate(left);
            self.fill(&mut scratch, false)?;
            checksum.update(&scratch);
            left -= scratch.len();
        }
        let wire = HEADER_BYTES as u64 + u64::from(header.payload_length);
        self.stats.frame(0, 0, wire);
        Ok(header.payload_length == 0 || checksum.finish() == header.payload_checksum)
    }

    fn acknowledge(&mut self) -> Result<(), ChannelError> {
        match self.receipts.write(&mut self.answer)? {
            true => {
                let deadline = Instant::now() + ACK_WAIT;
                self.stream.send_all(&self.answer, deadline).map_err(ChannelError::Socket)
            }
            false => Ok(()),
        }
    }

    /// Fills the buffer. At a frame's beginning the end of the stream is the end of the channel, elsewhere a break.
    fn fill(&mut self, buffer: &mut [u8], at_beginning: bool) -> Result<(), ChannelError> {
        let mut done = 0;
        while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.stream.receive_now(rest) {
                Ok(0) if at_beginning && done == 0 => return Err(ChannelError::Closed),
                Ok(0) => return Err(ChannelError::ClosedInFrame),
                Ok(bytes) => done += bytes,
                Err(error) if is_transient(&error) => self.wait()?,
                Err(error) => return Err(ChannelError::Socket(error)),
            }
            if self.fence.is_closing() {
                return Err(ChannelError::ClosedHere);
            }
        }
        Ok(())
    }

    /// Acknowledges what has come, then waits for the source.
    fn wait(&mut self) -> Result<(), ChannelError> {
        self.acknowledge()?;
        match self.stream.wait_readable(SILENCE_MAX).map_err(ChannelError::Socket)? {
            true => Ok(()),
            false => Err(ChannelError::Stalled { waited: SILENCE_MAX }),
        }
    }
}
