//! The table of control messages.

use std::fmt;

use super::Message;

macro_rules! messages {
    ($($(#[$doc:meta])* $tag:ident = $number:literal, $name:literal;)*) => {
        /// Says what a control message is. 0 is none.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum MessageTag { $($(#[$doc])* $tag = $number,)* }

        impl MessageTag {
            /// All tags, for tables and tests.
            pub const ALL: &'static [MessageTag] = &[$(MessageTag::$tag,)*];

            /// The tag with this number.
            pub fn from_number(number: u16) -> Option<MessageTag> {
                match number { $($number => Some(MessageTag::$tag),)* _ => None }
            }

            /// The name used in the documentation and in errors.
            pub fn name(self) -> &'static str {
                match self { $(MessageTag::$tag => $name,)* }
            }
        }

        impl Message {
            /// Its number in the table.
            pub fn tag(&self) -> MessageTag {
                match self { $(Message::$tag { .. } => MessageTag::$tag,)* }
            }

            /// The name that [`MessageTag::name`] gives it.
            pub fn name(&self) -> &'static str {
                self.tag().name()
            }
        }
    };
}

// A number once given is never given again: the line of a removed message stays, as a comment that says so.
messages! {
    /// Which guest, and what it needs.
    Offer = 0x01, "Offer";
    /// Reserved; where connections are taken.
    Admitted = 0x02, "Admitted";
    /// Start the incoming QEMU.
    Prepare = 0x03, "Prepare";
    /// The incoming QEMU is ready.
    Prepared = 0x04, "Prepared";
    /// A round of copying begins.
    RoundMark = 0x05, "RoundMark";
    /// Apply nothing more from this channel.
    Fence = 0x06, "Fence";
    /// Nothing more will be applied from it.
    Fenced = 0x07, "Fenced";
    /// All RAM has been acknowledged.
    RamComplete = 0x08, "RamComplete";
    /// No write will be applied any more.
    RamSealed = 0x09, "RamSealed";
    /// A piece of the device-state stream.
    DeviceState = 0x0a, "DeviceState";
    /// The device state is complete.
    DeviceStateEnd = 0x0b, "DeviceStateEnd";
    /// The guest could run.
    Loaded = 0x0c, "Loaded";
    /// Run the guest: it is the destination's now.
    Commit = 0x0d, "Commit";
    /// The guest runs at the destination.
    TakenOver = 0x0e, "TakenOver";
    /// The session can be forgotten.
    Finished = 0x0f, "Finished";
    /// The session is given up, with a fault.
    Abort = 0x10, "Abort";
    /// It is over on this side too.
    Aborted = 0x11, "Aborted";
    /// What a byte stream needs besides its bytes.
    Stream = 0x12, "Stream";
    // 0x13 was PrepareStreams of version 1.
    /// The incoming QEMU is ready; how both hypervisors are set.
    StreamsPrepared = 0x14, "StreamsPrepared";
    /// The guest has stopped; whether it ran, and its disks.
    Stopped = 0x15, "Stopped";
    /// Whether the guest that was taken over has stopped by itself.
    LastLook = 0x16, "LastLook";
}

impl fmt::Display for MessageTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
