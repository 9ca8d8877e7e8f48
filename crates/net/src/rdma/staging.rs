//! A ring of registered memory that payloads are copied to when the adapter cannot read them where they lie.

use std::sync::Arc;

use super::error::RdmaError;
use super::memory::Buffer;
use super::options::BYTES_MAX;
use super::verbs::{Access, ProtectionDomain};

/// All that may be in flight, and as much again as the end of the ring can waste: the longest payload.
const RING_BYTES: u64 = BYTES_MAX + linerate_wire::frame::PAYLOAD_BYTES_MAX as u64;

/// See the module. Pieces are released in the order in which they were put.
pub(super) struct Staging {
    buffer: Buffer,
    /// Where the next piece begins.
    head: u64,
    used: u64,
}

impl Staging {
    pub(super) fn new(protection: &Arc<ProtectionDomain>) -> Result<Staging, RdmaError> {
        let buffer = Buffer::new(protection, RING_BYTES as usize, Access::Send)?;
        Ok(Staging { buffer, head: 0, used: 0 })
    }

    pub(super) fn local_key(&self) -> u32 {
        self.buffer.local_key()
    }

    /// Frees `bytes` that [`Staging::put`] handed out.
    pub(super) fn release(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Copies a piece in; its address, and what is to be released for it. `None` while there is no room.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Option<(u64, u64)> {
        let length = bytes.len() as u64;
        // A piece is never cut: what is left at the end of the ring is passed over, and released with it.
        let fits = self.head + length <= RING_BYTES;
        let (skipped, start) = if fits { (0, self.head) } else { (RING_BYTES - self.head, 0) };
        if self.used + skipped + length > RING_BYTES || !self.buffer.put(start as usize, bytes) {
            return None;
        }
        self.used += skipped + length;
        self.head = start + length;
        Some((self.buffer.address() + start, skipped + length))
    }
}
