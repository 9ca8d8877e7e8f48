//! The source's two halves of a channel.

use std::sync::Arc;
use std::time::Duration;

use linerate_core::Run;
use linerate_wire::frame::{
    Frame, HEADER_BYTES, PAYLOAD_BYTES_MAX, SCRATCH_REGION, encode_write, encode_write_without_checksum,
};
use linerate_wire::payload_checksum;

use super::connection::{Connection, RdmaWrite};
use super::error::RdmaError;
use super::options::{BYTES_MAX, CLAIM_AHEAD, FRAMES_MAX, RdmaOptions};
use super::source::{Inbox, SourceEnd};
use super::staging::Staging;
use super::verbs::{Access, Registration};
use crate::channel::{AckReader, Acknowledged, ChannelError, Closer, Sender, WriteOrder, total};
use crate::region::Region;
use crate::region::pinned::{WINDOW_BYTES, pieces, window_of};
use crate::round_trip::RoundTrip;
use crate::stats::ChannelStats;

/// Nothing moves for this long: the channel has failed. Who watches acknowledgements finds it far earlier.
const SEND_WAIT: Duration = Duration::from_secs(30);
/// A window is registered and its key comes back within this.
const GRANT_WAIT: Duration = Duration::from_secs(5);
// Streams are written by RDMA too, and have a region's number of their own.
const _: () = assert!(SCRATCH_REGION != linerate_core::stream::REGION);
const SCRATCH: Run = Run { offset: 0, length: PAYLOAD_BYTES_MAX as u64 };

/// Sends placed writes over a queue pair.
pub struct RdmaSender {
    source: Arc<SourceEnd>,
    options: RdmaOptions,
    stats: Arc<ChannelStats>,
    staging: Option<Staging>,
    frame: Vec<u8>,
    writes: Vec<RdmaWrite>,
}

/// Receives acknowledgements over a queue pair.
pub struct RdmaAcks {
    source: Arc<SourceEnd>,
    round_trip: RoundTrip,
}

/// Both halves of a connection, and what ends them.
pub fn halves(connection: Arc<Connection>, options: RdmaOptions) -> (RdmaSender, RdmaAcks, Closer) {
    let closer = super::receive::closer(&connection);
    let source = Arc::new(SourceEnd::new(connection));
    let acks = RdmaAcks { source: Arc::clone(&source), round_trip: options.round_trip };
    let sender = RdmaSender {
        source,
        options,
        stats: Arc::default(),
        staging: None,
        frame: Vec::new(),
        writes: Vec::new(),
    };
    (sender, acks, closer)
}

/// Where a payload lies, with what keeps it there until it was sent.
#[derive(Default)]
struct Payload {
    /// Windows of the region itself.
    windows: Vec<Arc<Registration>>,
    /// Bytes of the staging memory that are in use.
    staged: u64,
    checksum: u32,
}

impl RdmaSender {
    /// Waits until another frame of `bytes` may be sent.
    fn wait_for_room(&self, bytes: u64) -> Result<(), ChannelError> {
        let room = |inbox: &mut Inbox| {
            let (frames, in_flight) = inbox.in_flight();
            Ok(frames < FRAMES_MAX && (frames == 0 || in_flight + bytes <= BYTES_MAX))
        };
        self.source.wait_until("an acknowledgement", SEND_WAIT, room)
    }

    /// Waits until the keys of all windows are there that the runs lie in; claims those that are not, and some ahead.
    fn wait_for_windows(&self, order: &WriteOrder<'_>) -> Result<(), ChannelError> {
        let mut wanted: Vec<Run> = Vec::new();
        for piece in order.data.iter().flat_map(|run| pieces(*run)) {
            let gone = ChannelError::SourceGone { region: order.region_id };
            let window = order.region.window(piece.offset).ok_or(gone)?;
            if wanted.last() != Some(&window) {
                wanted.push(window);
            }
        }
        let Some(last) = wanted.last().copied() else { return Ok(()) };
        let id = order.region_id;
        let source = &self.source;
        source.wait_until("the key of a window", GRANT_WAIT, |inbox| {
            let mut all = true;
            for window in &wanted {
                if inbox.key(id, *window).is_none() {
                    all = false;
                    source.claim(inbox, id, *window)?;
                }
            }
            Ok(all)
        })?;
        self.claim_ahead(order, last)
    }

    /// Only windows without holes: others may never be written to, and registering them fills them at the destination.
    fn claim_ahead(&self, order: &WriteOrder<'_>, last: Run) -> Result<(), ChannelError> {
        let mut after = last.end();
        for _ in 0..CLAIM_AHEAD {
            let Some(window) = order.region.window(after) else { break };
            let (id, source) = (order.region_id, &self.source);
            let known =
                source.with_inbox(|inbox| inbox.key(id, window).is_some() || inbox.is_claimed(id, window));
            if !known && order.region.is_whole(window).unwrap_or(false) {
                source.with_inbox(|inbox| source.claim(inbox, id, window))?;
            }
            after = window.end();
        }
        Ok(())
    }

    /// Where the pieces of the runs are, with the registered windows that they lie in, if the adapter may read them
    /// there.
    fn in_place(&self, order: &WriteOrder<'_>) -> Option<Vec<(u64, Arc<Registration>)>> {
        if !self.options.zero_copy {
            return None;
        }
        let domain = &self.source.connection.domain;
        let found = |piece: Run| {
            let (mapped, at) = order.region.mapped_at(piece)?;
            let window = window_of(at.offset, mapped.length)?;
            // Registering a window fills its holes, and a source's holes are never touched.
            let around = Run { offset: piece.offset - (at.offset - window.offset), length: window.length };
            let whole = order.region.is_whole(around).unwrap_or(false);
            let registered = whole.then(|| domain.register(mapped, window, Access::Send).ok()).flatten()?;
            Some((mapped.base.as_ptr() as u64 + at.offset, registered))
        };
        order.data.iter().flat_map(|run| pieces(*run)).map(found).collect()
    }

    /// Makes the payload ready where it lies, or copies it, and plans the writes.
    fn place(&mut self, order: &WriteOrder<'_>) -> Result<Payload, ChannelError> {
        self.writes.clear();
        if order.data.is_empty() {
            return Ok(Payload::default());
        }
        let memory = |source| ChannelError::Memory { region: order.region_id, source };
        let Some(found) = self.in_place(order) else { return self.stage(order) };
        let checksum = match self.options.checksums {
            true => order.region.checksum(order.data).map_err(memory)?,
            false => 0,
        };
        let mut windows = Vec::new();
        let all = order.data.iter().flat_map(|run| pieces(*run));
        for (piece, (from, window)) in all.zip(found) {
            self.plan(order.region_id, piece, from, window.local_key(), order.region)?;
            windows.push(window);
        }
        Ok(Payload { windows, staged: 0, checksum })
    }

    /// Copies the payload, and sums what was copied: it cannot change any more.
    fn stage(&mut self, order: &WriteOrder<'_>) -> Result<Payload, ChannelError> {
        let length = order.data_bytes() as usize;
        let mut bytes = vec![0; length];
        let mut rest = bytes.as_mut_slice();
        for run in order.data {
            let (piece, behind) = rest.split_at_mut_checked(run.length as usize).unwrap_or_default();
            order
                .region
                .read(*run, piece)
                .map_err(|source| ChannelError::Memory { region: order.region_id, source })?;
            rest = behind;
        }
        let checksum = if self.options.checksums { payload_checksum(&bytes) } else { 0 };
        let (mut from, local_key, staged) = self.put(&bytes)?;
        for piece in order.data.iter().flat_map(|run| pieces(*run)) {
            self.plan(order.region_id, piece, from, local_key, order.region)?;
            from += piece.length;
        }
        Ok(Payload { windows: Vec::new(), staged, checksum })
    }

    /// Puts bytes into staging memory once there is room; where they are, its key, and what is in use by them.
    fn put(&mut self, bytes: &[u8]) -> Result<(u64, u32, u64), ChannelError> {
        let staging = match &mut self.staging {
            Some(staging) => staging,
            none => none.insert(Staging::new(&self.source.connection.domain.protection)?),
        };
        let mut found = None;
        self.source.wait_until("memory to send from", SEND_WAIT, |inbox| {
            staging.release(inbox.take_released());
            found = staging.put(bytes);
            Ok(found.is_some())
        })?;
        let (from, staged) = found.ok_or(RdmaError::Rules("a payload is too long"))?;
        Ok((from, staging.local_key(), staged))
    }

    fn plan(
        &mut self,
        id: u16,
        piece: Run,
        from: u64,
        local_key: u32,
        region: &dyn Region,
    ) -> Result<(), ChannelError> {
        let window = region.window(piece.offset);
        let key = window.and_then(|window| self.source.with_inbox(|inbox| inbox.key(id, window)));
        let grant = key.ok_or(RdmaError::Rules("a window without a key"))?;
        // Windows begin at multiples of their size in every region, and in every ring that streams are folded into.
        let to = grant.address + piece.offset % WINDOW_BYTES;
        let length = u32::try_from(piece.length).map_err(|_| RdmaError::Rules("a run is too long"))?;
        self.writes.push(RdmaWrite { from, length, local_key, to, remote_key: grant.key });
        Ok(())
    }

    fn post(&mut self, sequence: u64, bytes: u64, payload: Payload) -> Result<u64, ChannelError> {
        let Payload { windows, staged, .. } = payload;
        self.source.post(&self.writes, &self.frame, Some((sequence, bytes)), windows, staged)?;
        Ok(self.frame.len() as u64 + bytes)
    }
}

impl Sender for RdmaSender {
    fn write(&mut self, order: &WriteOrder<'_>) -> Result<u64, ChannelError> {
        let bytes = order.data_bytes();
        // As over TCP: room first, then the sum, so that a running guest has little time to write in between.
        self.wait_for_room(bytes)?;
        self.wait_for_windows(order)?;
        let payload = self.place(order)?;
        let WriteOrder { sequence, region_id, data, zero, .. } = *order;
        match self.options.checksums || data.is_empty() {
            true => encode_write(&mut self.frame, sequence, region_id, data, zero, payload.checksum)?,
            false => encode_write_without_checksum(&mut self.frame, sequence, region_id, data, zero)?,
        }
        let sent = self.post(sequence, bytes, payload)?;
        self.stats.frame(bytes, total(zero), sent);
        Ok(sent)
    }

    fn probe(&mut self, sequence: u64, bytes: usize) -> Result<u64, ChannelError> {
        self.wait_for_room(bytes as u64)?;
        self.writes.clear();
        let mut staged = 0;
        // Not all zero, so that nothing on the way can make less of it.
        let payload: Vec<u8> =
            (0..bytes as u32).map(|number| (number.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        Frame::Probe.encode(sequence, length, payload_checksum(&payload), &mut self.frame)?;
        if bytes > 0 {
            // One probe at a time is written there.
            self.source.wait_until("the probe before", SEND_WAIT, |inbox| Ok(inbox.in_flight().0 == 0))?;
            let source = &self.source;
            source.wait_until("memory for a probe", GRANT_WAIT, |inbox| {
                let known = inbox.key(SCRATCH_REGION, SCRATCH).is_some();
                if !known {
                    source.claim(inbox, SCRATCH_REGION, SCRATCH)?;
                }
                Ok(known)
            })?;
            let grant = source.with_inbox(|inbox| inbox.key(SCRATCH_REGION, SCRATCH));
            let grant = grant.ok_or(RdmaError::Rules("memory for a probe without a key"))?;
            let (from, local_key, used) = self.put(&payload)?;
            staged = used;
            self.writes.push(RdmaWrite { from, length, local_key, to: grant.address, remote_key: grant.key });
        }
        let payload = Payload { staged, ..Payload::default() };
        let sent = self.post(sequence, bytes as u64, payload)?;
        debug_assert_eq!(sent, (HEADER_BYTES + bytes) as u64);
        self.stats.frame(0, 0, sent);
        Ok(sent)
    }

    fn stats(&self) -> Arc<ChannelStats> {
        Arc::clone(&self.stats)
    }
}

impl AckReader for RdmaAcks {
    fn next(&mut self, wait: Duration) -> Result<Option<Acknowledged>, ChannelError> {
        self.source.next_acknowledgement(wait)
    }

    fn progress(&mut self) -> u64 {
        self.source.progress()
    }

    fn round_trip(&self) -> RoundTrip {
        self.round_trip
    }
}
