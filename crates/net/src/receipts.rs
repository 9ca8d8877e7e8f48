//! The frames that the destination's side of a channel has handled, and those not yet acknowledged. The same for every
//! transport.

use std::time::Duration;

use linerate_wire::frame::{DAMAGED_MAX, Header, encode_ack};

use crate::channel::ChannelError;
use crate::fence::Serving;
use crate::stats::ChannelStats;

/// The source pings a channel that has nothing to do, so one that says nothing for this long is dead.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Frames after which an acknowledgement is sent although more are there to be read.
const FRAMES: u32 = 8;
/// Bytes after which it is.
const BYTES: u64 = 2 << 20;

/// See the module. Dropping it says that the channel applies no more.
pub(crate) struct Receipts<'a> {
    serving: Serving<'a>,
    stats: &'a ChannelStats,
    frames: u32,
    bytes: u64,
    damaged: Vec<u64>,
    damaged_left: usize,
}

impl<'a> Receipts<'a> {
    pub(crate) fn new(serving: Serving<'a>, stats: &'a ChannelStats) -> Receipts<'a> {
        Receipts { serving, stats, frames: 0, bytes: 0, damaged: Vec::new(), damaged_left: usize::MAX }
    }

    /// More damaged frames than these end the channel.
    pub(crate) fn damaged_at_most(self, frames: usize) -> Receipts<'a> {
        Receipts { damaged_left: frames, ..self }
    }

    /// An error if a frame with this number may not come now.
    pub(crate) fn check(&self, sequence: u64) -> Result<(), ChannelError> {
        match self.serving.applied() {
            after if sequence <= after => Err(ChannelError::SequenceOrder { sequence, after }),
            _ => Ok(()),
        }
    }

    /// Books a frame that was applied, or damaged. True if an acknowledgement is due.
    pub(crate) fn book(&mut self, header: &Header, intact: bool) -> Result<bool, ChannelError> {
        if intact {
            self.serving.apply(header.sequence);
        } else {
            self.stats.count_damaged(1);
            // One too many counts as not arrived. A fence that cannot name all damaged frames reports none as applied,
            // and the source would send what has landed once more.
            self.damaged_left = self.damaged_left.checked_sub(1).ok_or(ChannelError::Damaged)?;
            self.serving.mark_damaged(header.sequence);
            self.damaged.push(header.sequence);
        }
        self.frames += 1;
        self.bytes += u64::from(header.payload_length);
        Ok(self.frames >= FRAMES || self.bytes >= BYTES || self.damaged.len() >= DAMAGED_MAX)
    }

    /// Writes the acknowledgement of all that was booked since the one before. False if there is none.
    pub(crate) fn write(&mut self, answer: &mut Vec<u8>) -> Result<bool, ChannelError> {
        if self.frames == 0 {
            return Ok(false);
        }
        encode_ack(answer, self.serving.applied(), &self.damaged)?;
        (self.frames, self.bytes) = (0, 0);
        self.damaged.clear();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use linerate_wire::frame::{Frame, HEADER_BYTES, Tag};

    use super::*;
    use crate::channel::Closer;
    use crate::fence::Fence;

    fn header(sequence: u64, payload_length: u32) -> Header {
        let mut bytes = Vec::new();
        Frame::Probe.encode(sequence, payload_length, 0, &mut bytes).unwrap();
        let header = Header::decode(bytes.first_chunk().unwrap()).unwrap();
        assert_eq!(header.tag, Tag::Probe);
        header
    }

    #[test]
    fn a_frame_is_acknowledged_once_and_numbers_only_rise() {
        let (fence, stats) = (Fence::new(Closer::new(|| {})), ChannelStats::default());
        let mut receipts = Receipts::new(fence.enter().unwrap(), &stats);
        let mut answer = Vec::new();
        assert!(!receipts.write(&mut answer).unwrap());
        receipts.book(&header(3, 0), true).unwrap();
        receipts.book(&header(4, 0), false).unwrap();
        assert!(matches!(receipts.check(4), Err(ChannelError::SequenceOrder { sequence: 4, after: 4 })));
        assert!(receipts.check(5).is_ok());
        assert!(receipts.write(&mut answer).unwrap());
        let (head, body) = answer.split_first_chunk::<HEADER_BYTES>().unwrap();
        let head = Header::decode(head).unwrap();
        let Frame::Ack(ack) = Frame::decode(&head, body).unwrap() else { panic!("{head:?}") };
        assert_eq!((head.sequence, ack.damaged, stats.counters().damaged), (4, vec![4], 1));
        assert!(!receipts.write(&mut answer).unwrap());
        drop(receipts);
        assert_eq!(
            fence.close(Duration::ZERO).unwrap().damaged,
            [4],
            "the fence reports what a lost acknowledgement held"
        );
    }

    /// Bytes of a stream that were read already may not be written again.
    #[test]
    fn a_channel_with_too_many_damaged_frames_reports_which_were_applied() {
        let (fence, stats) = (Fence::new(Closer::new(|| {})), ChannelStats::default());
        let mut receipts = Receipts::new(fence.enter().unwrap(), &stats).damaged_at_most(DAMAGED_MAX);
        let most = DAMAGED_MAX as u64;
        for sequence in 1..=most {
            receipts.book(&header(sequence, 0), false).unwrap();
        }
        receipts.book(&header(most + 1, 0), true).unwrap();
        let error = receipts.book(&header(most + 2, 0), false).unwrap_err();
        assert!(matches!(error, ChannelError::Damaged), "{error}");
        drop(receipts);
        let fenced = fence.close(Duration::ZERO).unwrap();
        assert_eq!((fenced.applied, fenced.damaged.len()), (most + 1, DAMAGED_MAX));
    }

    #[test]
    fn an_acknowledgement_is_due_after_enough_frames_or_bytes() {
        let (fence, stats) = (Fence::new(Closer::new(|| {})), ChannelStats::default());
        let mut receipts = Receipts::new(fence.enter().unwrap(), &stats);
        let due: Vec<bool> =
            (1..=8).map(|sequence| receipts.book(&header(sequence, 0), true).unwrap()).collect();
        assert_eq!(due, [false, false, false, false, false, false, false, true]);
        receipts.write(&mut Vec::new()).unwrap();
        assert!(!receipts.book(&header(9, 1 << 20), true).unwrap());
        assert!(receipts.book(&header(10, 1 << 20), true).unwrap());
    }
}
