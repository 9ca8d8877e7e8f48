//! Faults: what went wrong, in which step, on which side, what the guest does now and whether a retry can help.
//!
//! A fault is what one agent reports to the other and to the operator. It is a fact, not a text: the sentence is for
//! reading, the [`Code`] is for programs.

mod codec;

use std::fmt;

/// The ten steps of a migration. Numbers are on the wire and in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Step {
    /// Source and destination, guest and mode are looked up.
    Resolve = 1,
    /// Both sides agree on who may do this.
    Authorise = 2,
    /// The destination checks memory, CPU, disks and devices, and reserves.
    Admit = 3,
    /// An identical guest is started at the destination and waits.
    Prepare = 4,
    /// Links are paired and probed, channels opened.
    Connect = 5,
    /// The guest's RAM is write-protected so that writes are seen.
    Track = 6,
    /// First pass, then rounds.
    Copy = 7,
    /// The guest is stopped: last scan, last copy, device state.
    Blackout = 8,
    /// The destination gets the command to run the guest.
    Commit = 9,
    /// The source gives up what it held.
    CleanUp = 10,
}

impl Step {
    /// All steps in order.
    pub const ALL: [Step; 10] = [
        Step::Resolve,
        Step::Authorise,
        Step::Admit,
        Step::Prepare,
        Step::Connect,
        Step::Track,
        Step::Copy,
        Step::Blackout,
        Step::Commit,
        Step::CleanUp,
    ];

    /// The step with this number (1 to 10).
    pub fn from_number(number: u8) -> Option<Step> {
        Self::ALL.into_iter().find(|step| *step as u8 == number)
    }

    /// The name used in displays, events and the journal.
    pub fn name(self) -> &'static str {
        match self {
            Step::Resolve => "resolve",
            Step::Authorise => "authorise",
            Step::Admit => "admit",
            Step::Prepare => "prepare",
            Step::Connect => "connect",
            Step::Track => "track",
            Step::Copy => "copy",
            Step::Blackout => "blackout",
            Step::Commit => "commit",
            Step::CleanUp => "clean up",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which host a fault arose on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Side {
    /// The host that the guest leaves.
    Source = 1,
    /// The host that the guest goes to.
    Destination = 2,
}

impl Side {
    /// The side with this number.
    pub fn from_number(number: u8) -> Option<Side> {
        match number {
            1 => Some(Side::Source),
            2 => Some(Side::Destination),
            _ => None,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Source => "source",
            Side::Destination => "destination",
        })
    }
}

/// What the guest does, as far as the side that speaks knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum GuestState {
    /// It is as it was before the migration began, at the source.
    RunsAtSource = 1,
    /// It is stopped at the source and can be resumed there.
    PausedAtSource = 2,
    /// It runs at the destination.
    RunsAtDestination = 3,
    /// Commit was sent and its outcome is not known yet: the source stays paused and asks.
    InDoubt = 4,
    /// It runs nowhere: its process ended by itself or with its host.
    Gone = 5,
    /// Nobody has confirmed where it runs: libvirt was let decide, or an operator gave the source's copy up.
    Unknown = 6,
    /// It has been taken over by the destination and does not run there, as it did not run at the source.
    PausedAtDestination = 7,
    /// It ran at the destination, and has stopped there by itself.
    StoppedAtDestination = 8,
}

impl GuestState {
    /// The state with this number.
    pub fn from_number(number: u8) -> Option<GuestState> {
        match number {
            1 => Some(GuestState::RunsAtSource),
            2 => Some(GuestState::PausedAtSource),
            3 => Some(GuestState::RunsAtDestination),
            4 => Some(GuestState::InDoubt),
            5 => Some(GuestState::Gone),
            6 => Some(GuestState::Unknown),
            7 => Some(GuestState::PausedAtDestination),
            8 => Some(GuestState::StoppedAtDestination),
            _ => None,
        }
    }

    /// A sentence for the operator.
    pub fn sentence(self) -> &'static str {
        match self {
            GuestState::RunsAtSource => "the guest runs at the source as before",
            GuestState::PausedAtSource => "the guest is paused at the source",
            GuestState::RunsAtDestination => "the guest runs at the destination",
            GuestState::PausedAtDestination => {
                "the guest is at the destination and does not run, as it did not run at the source"
            }
            GuestState::StoppedAtDestination => {
                "the guest is at the destination, and has stopped there by itself"
            }
            GuestState::InDoubt => {
                "the guest is paused at the source, which asks the destination whether it took over"
            }
            GuestState::Gone => "the guest runs nowhere",
            GuestState::Unknown => {
                "it is not known where the guest runs, so look with `linerate vm list`, or `virsh domstate` for a domain, on both hosts before anything is resumed or started"
            }
        }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, retry: $retry:literal, $sentence:literal;)*) => {
        /// Error codes. A number once given is never given again.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Code { $($(#[$doc])* $name = $number,)* }

        impl Code {
            /// All codes, for tables and tests.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];
            /// The code with this number.
            pub fn from_number(number: u16) -> Option<Code> {
                match number { $($number => Some(Code::$name),)* _ => None }
            }
            /// Its name as it is written here: `GuestUnknown`.
            pub fn name(self) -> &'static str {
                match self { $(Code::$name => stringify!($name),)* }
            }
            /// What it means, as the start of a sentence for the operator.
            pub fn sentence(self) -> &'static str {
                match self { $(Code::$name => $sentence,)* }
            }
            /// Whether the same request can succeed later without anything being changed by hand.
            pub fn retry_can_help(self) -> bool {
                match self { $(Code::$name => $retry,)* }
            }
        }
    };
}

codes! {
    /// The peer speaks no version that we speak.
    VersionMismatch = 1, retry: false, "the two agents speak no common protocol version";
    /// A frame or message broke the protocol.
    ProtocolViolation = 2, retry: false, "the peer broke the protocol";
    /// The session is not known here.
    SessionUnknown = 3, retry: false, "the peer does not know this session";
    /// Token or identity was wrong.
    NotAuthorised = 4, retry: false, "this is not authorised";
    /// The operator asked for it.
    Cancelled = 5, retry: true, "the migration was cancelled";
    /// No guest of that name.
    GuestUnknown = 6, retry: false, "no such guest";
    /// A guest of that name or UUID is there already.
    GuestExists = 7, retry: false, "a guest of that name or UUID exists at the destination";
    /// Another migration of this guest is in progress.
    GuestBusy = 8, retry: true, "the guest is being migrated already";
    /// Direct mode cannot be used on this guest.
    NotMigratable = 9, retry: false, "this guest cannot be moved, or not in the way that was asked for";
    /// The destination lacks memory.
    MemoryShort = 10, retry: true, "the destination has too little free memory";
    /// A disk, bridge, device or QEMU version is missing at the destination.
    ResourceMissing = 11, retry: false, "the destination lacks something that the guest needs";
    /// The guest at the destination is not the same machine.
    GuestDiffers = 12, retry: false, "the guest at the destination is not identical";
    /// The hypervisor could not be started or refused a command.
    HypervisorFailed = 13, retry: true, "the hypervisor failed";
    /// No link between the hosts could be used.
    NoLink = 14, retry: true, "no link between the two hosts works";
    /// All links were gone for longer than the limit.
    PeerLost = 15, retry: true, "all links to the peer were lost for too long";
    /// Guest RAM could not be attached to or tracked.
    TrackingFailed = 16, retry: true, "the guest's memory could not be tracked";
    /// Reading or writing guest RAM failed.
    MemoryFailed = 17, retry: true, "guest memory could not be read or written";
    /// Bytes did not arrive as they were sent, again and again.
    ChecksumMismatch = 18, retry: true, "data arrived damaged";
    /// `--verify` found a difference.
    VerifyMismatch = 19, retry: true, "guest memory differs between the two sides";
    /// The guest writes faster than the links carry and the blackout budget allows.
    NotConverging = 20, retry: true, "the guest writes memory or disks faster than the links can carry it within the blackout budget";
    /// A step took longer than its limit.
    TimedOut = 21, retry: true, "a step took too long";
    /// The journal could not be written.
    JournalFailed = 22, retry: true, "the journal could not be written";
    /// The agent was restarted in the middle.
    AgentRestarted = 23, retry: true, "the agent was restarted during the migration";
    /// The guest ended by itself.
    GuestGone = 24, retry: false, "the guest ended";
    /// A defect in Linerate.
    Internal = 25, retry: false, "a defect in linerate";
    /// An operator or a drain has cordoned the destination.
    Cordoned = 26, retry: false, "the destination takes no guests at present";
    /// A disk failed there, it panicked, or its hypervisor has ended: in its first moment.
    GuestStopped = 27, retry: false, "the guest moved, and has stopped at the destination";
}

/// A fault, as it is reported to the peer, the journal and the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What went wrong, for programs.
    pub code: Code,
    /// The step that failed.
    pub step: Step,
    /// On which host it arose.
    pub side: Side,
    /// The particular circumstance, in words. At most [`Fault::DETAIL_BYTES_MAX`] bytes on the wire.
    pub detail: String,
}

impl Fault {
    /// Cap of `detail` on the wire, in bytes; longer ones are cut at a character boundary.
    pub const DETAIL_BYTES_MAX: usize = 1024;

    /// A fault with its circumstance in words.
    pub fn new(code: Code, step: Step, side: Side, detail: impl Into<String>) -> Fault {
        Fault { code, step, side, detail: detail.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (step {} {}, {} side)", self.code.sentence(), self.step as u8, self.step, self.side)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
