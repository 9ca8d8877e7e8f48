//! What the destination says of the guest when it has run for a moment.

use crate::codec::{Reader, Writer};
use crate::error::DecodeError;

/// Most bytes of the name of a run state.
pub const RUN_STATE_BYTES_MAX: usize = 64;

/// The destination's last look at a guest that it has taken over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastLook {
    /// Nothing shows that it has stopped by itself. Also if it is not to run, or its hypervisor did not answer.
    NothingWrong,
    /// Its hypervisor has stopped it since.
    Stopped {
        /// The hypervisor's name of the state, as `io-error`. At most 64 bytes.
        run_state: String,
    },
    /// Its hypervisor has ended since.
    Ended,
}

impl LastLook {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<LastLook, DecodeError> {
        match reader.u8("last look")? {
            1 => Ok(LastLook::NothingWrong),
            2 => Ok(LastLook::Stopped { run_state: reader.short_text("run state", RUN_STATE_BYTES_MAX)? }),
            3 => Ok(LastLook::Ended),
            number => Err(DecodeError::UnknownNumber { what: "last look", number: number.into() }),
        }
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
        match self {
            LastLook::NothingWrong => writer.u8(1),
            LastLook::Stopped { run_state } => {
                writer.u8(2);
                writer.short_text("run state", run_state, RUN_STATE_BYTES_MAX)?;
            }
            LastLook::Ended => writer.u8(3),
        }
        Ok(())
    }
}
