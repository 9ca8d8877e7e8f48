//! Steps, sides and guest states as the API spells them. The numbers are those of the wire protocol; a test holds the
//! two together.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! numbered {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $name:ident = $number:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[repr(u8)]
        pub enum $type { $($(#[$variant_doc])* $name = $number,)* }

        impl $type {
            /// All of them, in order.
            pub const ALL: &'static [$type] = &[$($type::$name,)*];

            /// The one with this number on the wire.
            pub fn from_number(number: u8) -> Option<$type> {
                match number { $($number => Some($type::$name),)* _ => None }
            }

            /// Its number on the wire.
            pub fn number(self) -> u8 {
                self as u8
            }

            /// The name that tables and messages show.
            pub fn text(self) -> &'static str {
                match self { $($type::$name => $text,)* }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.text())
            }
        }
    };
}

numbered! {
    /// The ten steps of a migration.
    Step {
        /// Source and destination, guest and mode are looked up.
        Resolve = 1, "resolve";
        /// Both sides agree on who may do this.
        Authorise = 2, "authorise";
        /// The destination checks memory, CPU, disks and devices, and reserves.
        Admit = 3, "admit";
        /// An identical guest is started at the destination and waits.
        Prepare = 4, "prepare";
        /// Links are paired and probed, channels opened.
        Connect = 5, "connect";
        /// The guest's RAM is write-protected so that writes are seen.
        Track = 6, "track";
        /// First pass, then rounds.
        Copy = 7, "copy";
        /// The guest is stopped: last scan, last copy, device state.
        Blackout = 8, "blackout";
        /// The destination gets the command to run the guest.
        Commit = 9, "commit";
        /// The source gives up what it held.
        CleanUp = 10, "clean up";
    }
}

numbered! {
    /// Which host something happened on.
    Side {
        /// The host that the guest leaves.
        Source = 1, "source";
        /// The host that the guest goes to.
        Destination = 2, "destination";
    }
}

numbered! {
    /// What the guest does, as far as the side that speaks knows.
    GuestState {
        /// It is as it was before the migration began.
        RunsAtSource = 1, "the guest runs at the source as before";
        /// It is stopped at the source and can be resumed there.
        PausedAtSource = 2, "the guest is paused at the source";
        /// It runs at the destination.
        RunsAtDestination = 3, "the guest runs at the destination";
        /// Commit was sent and its outcome is not known yet.
        InDoubt = 4, "the guest is paused at the source, which asks the destination whether it took over";
        /// Its process ended by itself or with its host.
        Gone = 5, "the guest runs nowhere";
        /// Nobody has confirmed where it runs: libvirt was let decide, or an operator gave the source's copy up.
        Unknown = 6, "it is not known where the guest runs, so look with `linerate vm list`, or `virsh domstate` for a domain, on both hosts before anything is resumed or started";
        /// The destination has taken it over and does not run it, as it did not run at the source.
        PausedAtDestination = 7, "the guest is at the destination and does not run, as it did not run at the source";
        /// It ran at the destination, and has stopped there by itself.
        StoppedAtDestination = 8, "the guest is at the destination, and has stopped there by itself";
    }
}
