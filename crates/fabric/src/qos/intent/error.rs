//! What is wrong with an intent: one variant for each cause.

use thiserror::Error;

use super::{DSCP_MAX, INTENT_BYTES_MAX, NAMES_MAX, PRIORITY_MAX};

/// What is wrong with an intent.
#[derive(Debug, Error)]
pub enum IntentError {
    /// More than any intent needs.
    #[error("the intent is larger than {INTENT_BYTES_MAX} bytes: is it the right file?")]
    TooLarge,
    /// No TOML, or keys that do not exist.
    #[error("the intent cannot be read: {0}")]
    Form(#[source] Box<toml::de::Error>),
    /// No ports.
    #[error("`ports` is empty: name the ports that carry migrations, such as [\"ens1f0\", \"ens1f1\"]")]
    NoPorts,
    /// Too many of them.
    #[error("`{list}` has more than {NAMES_MAX} names")]
    ManyPorts {
        /// Which list.
        list: &'static str,
    },
    /// What cannot be a name, or would be something else in a configuration text.
    #[error("`{list}`: {name:?} is no name of a port; letters, digits and these are taken: {taken}")]
    PortName {
        /// Which list.
        list: &'static str,
        /// The name.
        name: String,
        /// What a name may have beside letters and digits.
        taken: &'static str,
    },
    /// Twice the same.
    #[error("`{list}` has {name} twice")]
    PortTwice {
        /// Which list.
        list: &'static str,
        /// The name.
        name: String,
    },
    /// Out of range.
    #[error(
        "priority {priority} of [{class}]: priorities are 1 to {PRIORITY_MAX}, 0 is that of everything else"
    )]
    Priority {
        /// Whose.
        class: &'static str,
        /// As said.
        priority: i64,
    },
    /// Two classes, one priority.
    #[error("[migration] and [storage] both have priority {priority}: a switch could not tell them apart")]
    SamePriority {
        /// The priority.
        priority: u8,
    },
    /// Out of range.
    #[error("share {share} of [{class}]: a share is 1 to 99 percent")]
    Share {
        /// Whose.
        class: &'static str,
        /// As said.
        share: i64,
    },
    /// Nothing is left for the rest.
    #[error(
        "the shares of migration and storage are {sum} percent together: at most 99, so that something is left for everything else"
    )]
    Shares {
        /// Their sum.
        sum: i64,
    },
    /// Not what is left.
    #[error(
        "[other] says {said} percent, but migration and storage leave {left}: leave [other] away, or make the sum 100"
    )]
    Other {
        /// As said.
        said: i64,
        /// What the others leave.
        left: i64,
    },
    /// One too many.
    #[error(
        "[migration] and [storage] are both lossless: each lossless class takes buffers from all others, and many adapters \
         and switches have room for one; make one of them lossy, or say `lossless_classes = 2`"
    )]
    TwoLossless,
    /// Not a number of classes.
    #[error("lossless_classes = {said}: it is 1 or 2")]
    LosslessClasses {
        /// As said.
        said: i64,
    },
    /// Out of range.
    #[error("dscp {dscp} of [{class}]: it is 1 to {DSCP_MAX}, 0 is what everything else has")]
    Dscp {
        /// Whose.
        class: &'static str,
        /// As said.
        dscp: i64,
    },
    /// Two classes, one mark.
    #[error("[migration] and [storage] both have dscp {dscp}: nothing could tell them apart")]
    SameDscp {
        /// The mark.
        dscp: u8,
    },
    /// RoCE v1 is no IP.
    #[error("RoCE v1 has no IP header, so no dscp: leave `dscp` of [migration] away, or take roce = \"v2\"")]
    DscpWithoutIp,
    /// Nothing says which packets these are.
    #[error("nothing tells packets of [{class}] from others: give it a dscp, such as 26")]
    NoMark {
        /// Whose.
        class: &'static str,
    },
}
