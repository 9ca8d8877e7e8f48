//! Device state as the source sends it, until the driver takes it for the hypervisor.

use super::{Action, Destination, State};
use crate::{Code, ModeTag, Time};

/// Most bytes of device state. A machine with a large display adapter has some tens of MiB.
const BYTES_MAX: u64 = 512 << 20;

/// Memory that a piece takes besides its bytes: many small ones must not be cheaper than few large ones.
const PIECE_OVERHEAD: u64 = 128;

/// About how many bytes of memory a piece of device state takes, for limits.
pub fn piece_weight(bytes: &[u8]) -> u64 {
    PIECE_OVERHEAD + bytes.len() as u64
}

/// Pieces in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct DeviceState {
    /// Those that came before RAM was sealed.
    held: Vec<Vec<u8>>,
    /// Bytes of all pieces that came.
    received: u64,
    /// Weight of the pieces that the driver has not taken.
    waiting: u64,
    /// The source has said that no more pieces come.
    complete: bool,
}

impl DeviceState {
    /// The driver takes this piece.
    pub fn taken(&mut self, bytes: &[u8]) {
        self.waiting = self.waiting.saturating_sub(piece_weight(bytes));
    }

    /// The guest does not come: its pieces are dropped.
    pub fn forget(&mut self) {
        self.held = Vec::new();
        self.waiting = 0;
    }

    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

impl Destination {
    /// Memory that the source's bytes take here: messages ahead of their turn, and device state that the driver has not
    /// taken. A driver bounds it over all sessions.
    pub fn held_bytes(&self) -> u64 {
        self.control.early_bytes() as u64 + self.device_state.waiting
    }

    pub(super) fn takes_device_state(&self) -> bool {
        self.mode.is_some_and(ModeTag::commits) && !self.device_state.complete
    }

    /// Whether the source may end its device state with this number of bytes.
    pub(super) fn has_all_device_state(&self, total: u64) -> bool {
        self.takes_device_state() && self.device_state.received == total
    }

    /// Rule 5: what comes before RAM is sealed (QEMU's set-up and ROMs) is held until it is.
    pub(super) fn receive_device_state(&mut self, now: Time, bytes: Vec<u8>) {
        if bytes.is_empty() {
            // Any number of them would be held.
            return;
        }
        self.device_state.received += bytes.len() as u64;
        if self.device_state.received > BYTES_MAX {
            let detail = format!("more than {} MiB of device state", BYTES_MAX >> 20);
            return self.fail(now, self.fault(Code::ProtocolViolation, &detail));
        }
        self.device_state.waiting += piece_weight(&bytes);
        if self.state == State::Loading {
            self.actions.push_back(Action::LoadDeviceState(bytes));
        } else {
            self.device_state.held.push(bytes);
        }
    }

    /// RAM is sealed: what was held goes to the hypervisor.
    pub(super) fn load_held_device_state(&mut self) {
        let held = std::mem::take(&mut self.device_state.held);
        self.actions.extend(held.into_iter().map(Action::LoadDeviceState));
        self.finish_device_state();
    }

    /// The last piece has come.
    pub(super) fn end_device_state(&mut self) {
        self.device_state.complete = true;
        self.finish_device_state();
    }

    fn finish_device_state(&mut self) {
        if self.device_state.complete && self.state == State::Loading {
            self.actions.push_back(Action::FinishDeviceState);
        }
    }
}
