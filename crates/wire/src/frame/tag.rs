//! The table of frame tags. It is the wire page: number, name, lengths and sequence of each frame stand here, and
//! `docs/protocol.md` is checked against it.

use std::fmt;

/// Most runs in one WRITE, data and zero together.
pub const RUNS_MAX: usize = 512;
/// Most bytes of payload behind one frame.
pub const PAYLOAD_BYTES_MAX: u32 = 4 << 20;
/// Most bytes of one encoded control message.
pub const CONTROL_BODY_MAX: u32 = 2 << 20;

const HELLO_BYTES: u32 = 64;
const WELCOME_BYTES: u32 = 16;
const OUTCOME_BYTES: u32 = 4;
const LISTS_BYTES_MIN: u32 = 2;
const LISTS_BYTES_MAX: u32 = LISTS_BYTES_MIN + 40 * super::LISTS_MAX as u32;
const FAULT_BYTES_MIN: u32 = 6;
const FAULT_BYTES_MAX: u32 = FAULT_BYTES_MIN + crate::fault::Fault::DETAIL_BYTES_MAX as u32;
const WRITE_BYTES_MIN: u32 = 8 + 16;
const WRITE_BYTES_MAX: u32 = 8 + 16 * RUNS_MAX as u32;
const ACK_BYTES_MIN: u32 = 8;
const ACK_BYTES_MAX: u32 = ACK_BYTES_MIN + 8 * super::DAMAGED_MAX as u32;
const CLAIM_BYTES: u32 = 24;
const GRANT_BYTES: u32 = 32;
const CONTROL_BYTES_MIN: u32 = 4;

/// What a tag's header may have as its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceRule {
    /// Frames of this tag are not numbered: it is 0.
    Zero,
    /// They are numbered from 1.
    FromOne,
    /// It is the number of another frame, 0 if there was none yet.
    Any,
}

impl SequenceRule {
    /// Whether the sequence is one that the rule allows.
    pub fn allows(self, sequence: u64) -> bool {
        match self {
            SequenceRule::Zero => sequence == 0,
            SequenceRule::FromOne => sequence > 0,
            SequenceRule::Any => true,
        }
    }
}

macro_rules! tags {
    ($($(#[$doc:meta])* $tag:ident = $number:literal, $name:literal, body $min:expr, $max:expr;
        payload $payload:expr; sequence $rule:ident;)*) => {
        /// Says what a frame is. 0 is none.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Tag { $($(#[$doc])* $tag = $number,)* }

        impl Tag {
            /// All tags, for tables and tests.
            pub const ALL: &'static [Tag] = &[$(Tag::$tag,)*];

            /// The tag with this number.
            pub fn from_number(number: u16) -> Option<Tag> {
                match number { $($number => Some(Tag::$tag),)* _ => None }
            }

            /// The name used in the documentation and in errors.
            pub fn name(self) -> &'static str {
                match self { $(Tag::$tag => $name,)* }
            }

            /// Least bytes of a body.
            pub fn body_length_min(self) -> u32 {
                match self { $(Tag::$tag => $min,)* }
            }

            /// Most bytes of a body.
            pub fn body_length_max(self) -> u32 {
                match self { $(Tag::$tag => $max,)* }
            }

            /// Most bytes of a payload.
            pub fn payload_length_max(self) -> u32 {
                match self { $(Tag::$tag => $payload,)* }
            }

            /// What the header's sequence may be.
            pub fn sequence_rule(self) -> SequenceRule {
                match self { $(Tag::$tag => SequenceRule::$rule,)* }
            }
        }
    };
}

// A number once given is never given again: the line of a removed tag stays, as a comment that says so.
tags! {
    /// The first frame of every connection.
    Hello = 0x01, "HELLO", body HELLO_BYTES, HELLO_BYTES; payload 0; sequence Zero;
    /// The connection is taken.
    Welcome = 0x02, "WELCOME", body WELCOME_BYTES, WELCOME_BYTES; payload 0; sequence Zero;
    /// The connection is not taken, with the fault.
    Refuse = 0x03, "REFUSE", body FAULT_BYTES_MIN, FAULT_BYTES_MAX; payload 0; sequence Zero;
    /// How a session ended.
    Outcome = 0x04, "OUTCOME", body OUTCOME_BYTES, OUTCOME_BYTES; payload 0; sequence Zero;
    /// Which revocation lists the destination has; before its answer, only over TLS.
    Lists = 0x05, "LISTS", body LISTS_BYTES_MIN, LISTS_BYTES_MAX; payload 0; sequence Zero;
    /// A placed write: runs and their bytes.
    Write = 0x10, "WRITE", body WRITE_BYTES_MIN, WRITE_BYTES_MAX; payload PAYLOAD_BYTES_MAX; sequence FromOne;
    /// A payload to be thrown away.
    Probe = 0x11, "PROBE", body 0, 0; payload PAYLOAD_BYTES_MAX; sequence FromOne;
    /// Asks for the key to a window of a region, on RDMA channels.
    Claim = 0x12, "CLAIM", body CLAIM_BYTES, CLAIM_BYTES; payload 0; sequence Zero;
    /// What was applied of a channel.
    Ack = 0x20, "ACK", body ACK_BYTES_MIN, ACK_BYTES_MAX; payload 0; sequence Any;
    /// The key to a window, on RDMA channels.
    Grant = 0x21, "GRANT", body GRANT_BYTES, GRANT_BYTES; payload 0; sequence Zero;
    /// A numbered control message.
    Control = 0x30, "CONTROL", body CONTROL_BYTES_MIN, CONTROL_BODY_MAX; payload 0; sequence FromOne;
    /// Control messages that have come.
    ControlAck = 0x31, "CONTROL_ACK", body 0, 0; payload 0; sequence Any;
    /// The connection is alive.
    Keepalive = 0x32, "KEEPALIVE", body 0, 0; payload 0; sequence Zero;
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
