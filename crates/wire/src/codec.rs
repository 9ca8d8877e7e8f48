//! Reading and writing of explicit little-endian fields. Nothing is read beyond the end and nothing is allocated on a
//! length that the remaining bytes do not hold.

use crate::error::DecodeError;

/// Takes fields from the front of a body.
pub(crate) struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { left: bytes }
    }

    /// Refuses anything behind the last field.
    pub(crate) fn finish(self, what: &'static str) -> Result<(), DecodeError> {
        match self.left.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing { what, left }),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], DecodeError> {
        let (field, rest) = self.left.split_first_chunk::<N>().ok_or(DecodeError::Truncated {
            what,
            needed: N,
            left: self.left.len(),
        })?;
        self.left = rest;
        Ok(*field)
    }

    fn slice(&mut self, what: &'static str, length: usize) -> Result<&'a [u8], DecodeError> {
        let (field, rest) = self.left.split_at_checked(length).ok_or(DecodeError::Truncated {
            what,
            needed: length,
            left: self.left.len(),
        })?;
        self.left = rest;
        Ok(field)
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        self.array(what).map(u8::from_le_bytes)
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, DecodeError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(crate) fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        self.array(what).map(i32::from_le_bytes)
    }

    /// A byte that is 0 or 1.
    pub(crate) fn flag(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        match self.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            number => Err(DecodeError::UnknownNumber { what, number: number.into() }),
        }
    }

    /// `N` bytes that must be zero.
    pub(crate) fn reserved<const N: usize>(&mut self, what: &'static str) -> Result<(), DecodeError> {
        let bytes: [u8; N] = self.array(what)?;
        let value = bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        if value == 0 { Ok(()) } else { Err(DecodeError::Reserved { what, value }) }
    }

    /// The u16 in front of a list: at most `max`, and no more items of at least `item_bytes` than bytes are left. Safe
    /// to allocate for.
    pub(crate) fn count(
        &mut self,
        what: &'static str,
        max: usize,
        item_bytes: usize,
    ) -> Result<usize, DecodeError> {
        let count = usize::from(self.u16(what)?);
        if count > max {
            return Err(DecodeError::TooMany { what, count, max });
        }
        self.check_left(what, count * item_bytes)?;
        Ok(count)
    }

    /// Whether `needed` bytes are left; asked before memory is taken for their content.
    pub(crate) fn check_left(&self, what: &'static str, needed: usize) -> Result<(), DecodeError> {
        match self.left.len() {
            left if left < needed => Err(DecodeError::Truncated { what, needed, left }),
            _ => Ok(()),
        }
    }

    /// A text behind a u16 with its bytes.
    pub(crate) fn short_text(&mut self, what: &'static str, max: usize) -> Result<String, DecodeError> {
        let length = usize::from(self.u16(what)?);
        self.text(what, length, max)
    }

    /// A text behind a u32 with its bytes.
    pub(crate) fn long_text(&mut self, what: &'static str, max: usize) -> Result<String, DecodeError> {
        let length = self.long_length(what)?;
        self.text(what, length, max)
    }

    /// Bytes behind a u32 with their count.
    pub(crate) fn long_bytes(&mut self, what: &'static str, max: usize) -> Result<Vec<u8>, DecodeError> {
        let length = self.long_length(what)?;
        at_most(what, length, max)?;
        self.slice(what, length).map(<[u8]>::to_vec)
    }

    fn long_length(&mut self, what: &'static str) -> Result<usize, DecodeError> {
        // Where usize is narrower than u32, saturating is over every cap all the same.
        self.u32(what).map(|length| usize::try_from(length).unwrap_or(usize::MAX))
    }

    fn text(&mut self, what: &'static str, length: usize, max: usize) -> Result<String, DecodeError> {
        at_most(what, length, max)?;
        let bytes = self.slice(what, length)?;
        let text = std::str::from_utf8(bytes).map_err(|source| DecodeError::NotUtf8 { what, source })?;
        Ok(text.to_owned())
    }
}

/// Puts fields behind one another.
pub(crate) struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>) -> Writer<'a> {
        Writer { out }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.bytes(&value.to_le_bytes());
    }

    pub(crate) fn reserved<const N: usize>(&mut self) {
        self.bytes(&[0; N]);
    }

    /// The u16 in front of a list.
    pub(crate) fn count(&mut self, what: &'static str, count: usize, max: usize) -> Result<(), DecodeError> {
        let too_many = DecodeError::TooMany { what, count, max };
        if count > max {
            return Err(too_many);
        }
        self.u16(u16::try_from(count).map_err(|_| too_many)?);
        Ok(())
    }

    /// A text behind a u16 with its bytes.
    pub(crate) fn short_text(
        &mut self,
        what: &'static str,
        text: &str,
        max: usize,
    ) -> Result<(), DecodeError> {
        at_most(what, text.len(), max)?;
        let length = text.len();
        self.u16(u16::try_from(length).map_err(|_| DecodeError::TooLong { what, length, max })?);
        self.bytes(text.as_bytes());
        Ok(())
    }

    /// Bytes, or a text's bytes, behind a u32 with their count.
    pub(crate) fn long_bytes(
        &mut self,
        what: &'static str,
        bytes: &[u8],
        max: usize,
    ) -> Result<(), DecodeError> {
        at_most(what, bytes.len(), max)?;
        let length = bytes.len();
        self.u32(u32::try_from(length).map_err(|_| DecodeError::TooLong { what, length, max })?);
        self.bytes(bytes);
        Ok(())
    }
}

fn at_most(what: &'static str, length: usize, max: usize) -> Result<(), DecodeError> {
    if length > max { Err(DecodeError::TooLong { what, length, max }) } else { Ok(()) }
}
