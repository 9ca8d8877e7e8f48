//! Bit sets of ethtool netlink, in the form that names each bit.

use super::attributes::Attributes;

const BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;
/// Far more than there are link modes or features.
const BITS_MAX: usize = 4096;

/// Names of the bits that are listed, and whether each is set. In a set without a mask every listed bit is set.
pub fn named(set: Attributes<'_>) -> Vec<(String, bool)> {
    const NO_MASK: u16 = 1;
    let all_set = set.get(NO_MASK).is_some();
    let bits = set.nested(BITS).into_iter().flat_map(Attributes::iter);
    let bits = bits.filter(|(kind, _)| *kind == BIT).take(BITS_MAX).map(|(_, bit)| Attributes::new(bit));
    bits.filter_map(|bit| Some((bit.text(BIT_NAME)?, all_set || bit.get(BIT_VALUE).is_some()))).collect()
}

/// Names of the bits that are set.
pub fn set(bits: Attributes<'_>) -> Vec<String> {
    named(bits).into_iter().filter(|(_, set)| *set).map(|(name, _)| name).collect()
}
