//! Netlink attributes: read without trust, written.

use netlink_packet_core::{NLA_F_NESTED, NlasIterator};

/// Attributes of a message, or nested ones.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The bytes hold attributes; from the first broken one on they are passed over.
    pub fn new(bytes: &'a [u8]) -> Attributes<'a> {
        Attributes(bytes)
    }

    /// Each with its type.
    pub fn iter(self) -> impl Iterator<Item = (u16, &'a [u8])> {
        NlasIterator::new(self.0).map_while(Result::ok).map(|one| {
            let whole: &'a [u8] = one.into_inner();
            (one.kind(), whole.get(4..usize::from(one.length())).unwrap_or_default())
        })
    }

    /// The first of a type.
    pub fn get(self, kind: u16) -> Option<&'a [u8]> {
        self.iter().find(|(one, _)| *one == kind).map(|(_, value)| value)
    }

    /// Nested attributes.
    pub fn nested(self, kind: u16) -> Option<Attributes<'a>> {
        self.get(kind).map(Attributes)
    }

    /// A number of one byte.
    pub fn u8(self, kind: u16) -> Option<u8> {
        self.get(kind)?.first().copied()
    }

    /// A number of four bytes.
    pub fn u32(self, kind: u16) -> Option<u32> {
        self.get(kind)?.first_chunk().map(|four| u32::from_ne_bytes(*four))
    }

    /// A number of four bytes in network order.
    pub fn u32_network(self, kind: u16) -> Option<u32> {
        self.get(kind)?.first_chunk().map(|four| u32::from_be_bytes(*four))
    }

    /// A text, which the kernel ends with a zero.
    pub fn text(self, kind: u16) -> Option<String> {
        let bytes = self.get(kind)?;
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        Some(String::from_utf8_lossy(bytes.get(..end)?).into_owned())
    }
}

/// Attributes of a request.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// None yet.
    pub fn new() -> Writer {
        Writer::default()
    }

    /// One of bytes.
    pub fn bytes(mut self, kind: u16, value: &[u8]) -> Writer {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value.iter().take(usize::from(length) - 4));
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// A number of one byte.
    pub fn u8(self, kind: u16, value: u8) -> Writer {
        self.bytes(kind, &[value])
    }

    /// A number of four bytes.
    pub fn u32(self, kind: u16, value: u32) -> Writer {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// A text.
    pub fn text(self, kind: u16, value: &str) -> Writer {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.bytes(kind, &bytes)
    }

    /// Nested attributes.
    pub fn nest(self, kind: u16, inner: Writer) -> Writer {
        self.bytes(kind | NLA_F_NESTED, &inner.0)
    }

    /// The bytes.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let inner = Writer::new().u8(1, 9).text(2, "ens1f0");
        let bytes = Writer::new().u32(3, 9000).nest(4, inner).bytes(5, b"\0\0\0\x07").finish();
        let attributes = Attributes::new(&bytes);
        assert_eq!(attributes.u32(3), Some(9000));
        assert_eq!(attributes.u32_network(5), Some(7));
        let nested = attributes.nested(4).unwrap();
        assert_eq!((nested.u8(1), nested.text(2).as_deref()), (Some(9), Some("ens1f0")));
        assert_eq!(nested.u32(1), None);
    }

    #[test]
    fn broken_attributes_are_passed_over() {
        let good = Writer::new().u8(1, 9).finish();
        for broken in [&b"\x03\0\x02\0"[..], b"\xff\xff\x02\0\0", b"\0\0\0\0", b"x"] {
            let bytes = [good.clone(), broken.to_vec()].concat();
            assert_eq!(Attributes::new(&bytes).u8(1), Some(9));
            assert_eq!(Attributes::new(&bytes).get(2), None);
        }
    }
}
