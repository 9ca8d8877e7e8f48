//! Windows: pieces of a region that the source may write into by RDMA, and the keys to them.

use crate::codec::{Reader, Writer};
use crate::error::DecodeError;
use crate::message::Run;

/// The number of memory that probes write into, which belongs to no region.
pub const SCRATCH_REGION: u16 = u16::MAX - 1;

/// Asks for a window. Answered by a GRANT of exactly this run, or by REFUSE and the end of the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The region, or [`SCRATCH_REGION`].
    pub region: u16,
    /// The window. As in WRITE, not checked against the region here.
    pub window: Run,
}

/// The key to a window. It is good on this channel for as long as the channel is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The region, or [`SCRATCH_REGION`].
    pub region: u16,
    /// The key that every write must show.
    pub key: u32,
    /// The range of the region that may be written.
    pub window: Run,
    /// What the destination's adapter calls the window's first byte.
    pub address: u64,
}

impl Claim {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Claim, DecodeError> {
        let region = reader.u16("CLAIM region")?;
        reader.reserved::<6>("CLAIM reserved")?;
        Ok(Claim { region, window: read_window(reader)? })
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
        writer.u16(self.region);
        writer.reserved::<6>();
        write_window(self.window, writer)
    }
}

impl Grant {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Grant, DecodeError> {
        let region = reader.u16("GRANT region")?;
        reader.reserved::<2>("GRANT reserved")?;
        let key = reader.u32("GRANT key")?;
        let window = read_window(reader)?;
        let address = reader.u64("GRANT address")?;
        check_address(address, window)?;
        Ok(Grant { region, key, window, address })
    }

    pub(super) fn write(&self, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
        check_address(self.address, self.window)?;
        writer.u16(self.region);
        writer.reserved::<2>();
        writer.u32(self.key);
        write_window(self.window, writer)?;
        writer.u64(self.address);
        Ok(())
    }
}

fn read_window(reader: &mut Reader<'_>) -> Result<Run, DecodeError> {
    let window = Run { offset: reader.u64("window offset")?, length: reader.u64("window length")? };
    super::write::check_run(window)?;
    Ok(window)
}

fn write_window(window: Run, writer: &mut Writer<'_>) -> Result<(), DecodeError> {
    super::write::check_run(window)?;
    writer.u64(window.offset);
    writer.u64(window.length);
    Ok(())
}

/// The source adds to the address: it must not run over.
fn check_address(address: u64, window: Run) -> Result<(), DecodeError> {
    match address.checked_add(window.length) {
        Some(_) => Ok(()),
        None => Err(DecodeError::RunOverflow { offset: address, length: window.length }),
    }
}
