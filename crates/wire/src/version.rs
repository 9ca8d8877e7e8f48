//! Protocol versions and the choice of one.
//!
//! A version says how every frame but the opening ones is laid out. The header, HELLO, WELCOME, REFUSE and OUTCOME keep
//! their layout in all versions. So two agents of any version can report to each other that they do not agree. An agent
//! that was replaced in the middle can still ask how a session ended.

/// Oldest version that this crate speaks.
pub const VERSION_MIN: u16 = 2;
/// Newest version that this crate speaks.
pub const VERSION_MAX: u16 = 2;

/// The newest version that both speak, given the range that the peer's HELLO names; `None` if there is none.
pub fn negotiate(min: u16, max: u16) -> Option<u16> {
    let newest = max.min(VERSION_MAX);
    (newest >= min.max(VERSION_MIN)).then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_newest_common_version() {
        assert_eq!(negotiate(2, 2), Some(2));
        assert_eq!(negotiate(1, 9), Some(VERSION_MAX));
        assert_eq!(negotiate(0, 2), Some(2));
    }

    #[test]
    fn no_common_version_is_none() {
        assert_eq!(negotiate(VERSION_MAX + 1, 9), None);
        assert_eq!(negotiate(0, VERSION_MIN - 1), None);
        assert_eq!(negotiate(9, 2), None, "a range upside down is empty");
    }
}
