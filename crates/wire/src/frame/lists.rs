//! The frame in which the destination of a connection says which revocation lists it has. Only over TLS.

use crate::codec::{Reader, Writer};
use crate::error::DecodeError;

/// Most authorities that a host trusts at a time.
pub const LISTS_MAX: usize = 2;

/// The revocation list of one authority that a host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListNumber {
    /// SHA-256 of the authority's public key.
    pub authority: [u8; 32],
    /// Number of the list; 0 without one.
    pub number: u64,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Vec<ListNumber>, DecodeError> {
    let count = reader.count("LISTS count", LISTS_MAX, 40)?;
    let one = |_| {
        let authority = reader.array("LISTS authority")?;
        Ok(ListNumber { authority, number: reader.u64("LISTS number")? })
    };
    (0..count).map(one).collect()
}

pub(super) fn write(lists: &[ListNumber], writer: &mut Writer<'_>) -> Result<(), DecodeError> {
    writer.count("LISTS count", lists.len(), LISTS_MAX)?;
    for list in lists {
        writer.bytes(&list.authority);
        writer.u64(list.number);
    }
    Ok(())
}
