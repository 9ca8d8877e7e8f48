//! The source's two halves of a channel.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_wire::frame::{Frame, HEADER_BYTES, Header, Tag, encode_write, encode_write_without_checksum};
use linerate_wire::payload_checksum;

use super::Stream;
use super::stats::Progress;
use crate::channel::{AckReader, Acknowledged, ChannelError, Sender, WriteOrder, total};
use crate::round_trip::RoundTrip;
use crate::socket::{Wait, is_transient};
use crate::stats::ChannelStats;

/// A connection that takes nothing for this long has failed. Who watches acknowledgements finds it far earlier; this is
/// the bound for those who do not.
const SEND_WAIT: Duration = Duration::from_secs(30);

/// Sends placed writes over a stream socket.
#[derive(Debug)]
pub struct StreamSender {
    stream: Stream,
    head: Vec<u8>,
    stats: Arc<ChannelStats>,
}

impl StreamSender {
    /// Sends on this connection from here on.
    pub fn new(stream: Stream) -> StreamSender {
        StreamSender { stream, head: Vec::new(), stats: Arc::default() }
    }

    /// Repeats `send(done)` until `length` bytes are gone.
    fn send_through(
        &self,
        length: usize,
        send: impl Fn(usize) -> io::Result<usize>,
    ) -> Result<u64, ChannelError> {
        let mut done = 0;
        while done < length {
            match send(done) {
                Ok(0) => return Err(ChannelError::ClosedInFrame),
                Ok(sent) => done += sent,
                Err(error) if is_transient(&error) => self.wait()?,
                Err(error) => return Err(ChannelError::Socket(error)),
            }
        }
        while !self.stream.is_flushed(Wait::Never).map_err(ChannelError::Socket)? {
            self.wait()?;
        }
        Ok(done as u64)
    }

    fn wait(&self) -> Result<(), ChannelError> {
        match self.stream.wait_writable(SEND_WAIT).map_err(ChannelError::Socket)? {
            true => Ok(()),
            false => Err(ChannelError::Stalled { waited: SEND_WAIT }),
        }
    }
}

impl Sender for StreamSender {
    fn write(&mut self, order: &WriteOrder<'_>) -> Result<u64, ChannelError> {
        // A running guest may write between the checksum and the sending, and then the frame is damaged and its extent
        // sent again. Waiting for room first keeps that time short.
        self.wait()?;
        let memory = |source| ChannelError::Memory { region: order.region_id, source };
        let (sequence, region_id, data, zero) = (order.sequence, order.region_id, order.data, order.zero);
        if self.stream.is_encrypted() && !data.is_empty() {
            // The tag of each record says more, and what is read is what is sent.
            encode_write_without_checksum(&mut self.head, sequence, region_id, data, zero)?;
        } else {
            let checksum = match data {
                [] => 0,
                data => order.region.checksum(data).map_err(memory)?,
            };
            encode_write(&mut self.head, sequence, region_id, data, zero, checksum)?;
        }
        // The codec has checked that it is within the cap of a frame.
        let length = self.head.len() + order.data_bytes() as usize;
        let sent = self.send_through(length, |done| {
            self.stream.send_region(order.region, &self.head, order.data, done)
        })?;
        self.stats.frame(order.data_bytes(), total(order.zero), sent);
        Ok(sent)
    }

    fn probe(&mut self, sequence: u64, bytes: usize) -> Result<u64, ChannelError> {
        // Not all zero, so that nothing on the way can make less of it.
        let payload: Vec<u8> =
            (0..bytes as u32).map(|number| (number.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        Frame::Probe.encode(sequence, length, payload_checksum(&payload), &mut self.head)?;
        self.head.extend_from_slice(&payload);
        let sent = self.send_through(self.head.len(), |done| {
            self.stream.send_now(self.head.get(done..).unwrap_or_default())
        })?;
        self.stats.frame(0, 0, sent);
        Ok(sent)
    }

    fn stats(&self) -> Arc<ChannelStats> {
        Arc::clone(&self.stats)
    }
}

/// Receives acknowledgements from a stream socket.
#[derive(Debug)]
pub struct StreamAcks {
    stream: Stream,
    /// What came of the next frame so far.
    partial: Vec<u8>,
    progress: Option<Progress>,
}

impl StreamAcks {
    /// Receives on this connection from here on.
    pub fn new(stream: Stream) -> StreamAcks {
        let progress = Progress::of(&stream);
        StreamAcks { stream, partial: Vec::new(), progress }
    }

    /// The bytes that the frame needs before more can be said of it.
    fn needed(&self) -> Result<usize, ChannelError> {
        let Some(header) = self.partial.first_chunk::<HEADER_BYTES>() else { return Ok(HEADER_BYTES) };
        let header = Header::decode(header)?;
        match header.tag {
            Tag::Ack => Ok(HEADER_BYTES + header.body_length as usize),
            tag => Err(ChannelError::UnexpectedFrame { tag }),
        }
    }

    fn take_frame(&mut self) -> Result<Option<Acknowledged>, ChannelError> {
        let Some((header, body)) = self.partial.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(header)?;
        let frame = Frame::decode(&header, body)?;
        self.partial.clear();
        match frame {
            Frame::Ack(ack) => Ok(Some(Acknowledged { through: header.sequence, damaged: ack.damaged })),
            other => Err(ChannelError::UnexpectedFrame { tag: other.tag() }),
        }
    }

    /// Receives towards `needed` bytes. False if nothing is there.
    fn fill(&mut self, needed: usize) -> Result<bool, ChannelError> {
        let have = self.partial.len();
        self.partial.resize(needed, 0);
        let place = self.partial.get_mut(have..).unwrap_or_default();
        let received = self.stream.receive_now(place);
        self.partial.truncate(have + received.as_ref().copied().unwrap_or(0));
        match received {
            Ok(0) if have == 0 => Err(ChannelError::Closed),
            Ok(0) => Err(ChannelError::ClosedInFrame),
            Ok(_) => Ok(true),
            Err(error) if is_transient(&error) => Ok(false),
            Err(error) => Err(ChannelError::Socket(error)),
        }
    }
}

impl AckReader for StreamAcks {
    fn next(&mut self, wait: Duration) -> Result<Option<Acknowledged>, ChannelError> {
        let deadline = Instant::now() + wait;
        loop {
            let needed = self.needed()?;
            if self.partial.len() == needed {
                return self.take_frame();
            }
            if self.fill(needed)? {
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.stream.wait_readable(left).map_err(ChannelError::Socket)? {
                return Ok(None);
            }
        }
    }

    fn progress(&mut self) -> u64 {
        self.progress.as_mut().and_then(Progress::read).map_or(0, |info| info.bytes_acknowledged)
    }

    fn round_trip(&self) -> RoundTrip {
        RoundTrip::of(&self.stream)
    }
}
