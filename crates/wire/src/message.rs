//! Control messages of the ten steps. They travel in control frames, numbered and acknowledged. When a link is lost
//! they are sent again on another (see `linerate-core`'s `control`), so each arrives once and in order.

mod codec;
mod last_look;
mod mode;
mod parts;
mod stream;
mod tag;

pub use codec::{
    DESCRIPTION_BYTES_MAX, DEVICE_STATE_BYTES_MAX, DISKS_BYTES_MAX, GUEST_NAME_BYTES_MAX, STREAM_CHANNELS_MAX,
};
pub use last_look::{LastLook, RUN_STATE_BYTES_MAX};
pub use mode::{MODE_BYTES_MAX, Mode, ModeTag, UnknownMode};
pub use parts::{ENDPOINTS_MAX, INTERFACE_BYTES_MAX, REGION_NAME_BYTES_MAX, REGIONS_MAX, TOUCHED_MAX};
pub use stream::{REASON_BYTES_MAX, SERVICE_BYTES_MAX, StreamNote, StreamNoteTag};
pub use tag::MessageTag;

use crate::fault::Fault;

/// Names one migration on both hosts; random.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub [u8; 16]);

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SessionId({self})")
    }
}

/// Shown by every connection of a session, so that no stranger's joins it; random, chosen by the source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Token(pub [u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// A run of bytes in a region. Page-aligned in guest RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Run {
    /// Bytes from the region's start.
    pub offset: u64,
    /// Length in bytes; never 0.
    pub length: u64,
}

impl Run {
    /// First byte behind the run. Saturates; a decoded run never overflows (the codec checks).
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// A run of bytes in a region of guest RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Number of the region in this session.
    pub region: u16,
    /// The run in it.
    pub run: Run,
}

impl Extent {
    /// An extent of `length` bytes at `offset`.
    pub fn new(region: u16, offset: u64, length: u64) -> Extent {
        Extent { region, run: Run { offset, length } }
    }
}

/// One block of guest RAM that is moved by placed writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// Number of the region in this session.
    pub id: u16,
    /// QEMU's name of the RAM block.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
}

/// An address at which the destination takes connections, and what is known of the port behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Interface name at the destination.
    pub interface: String,
    /// IP address and TCP port to connect to.
    pub address: std::net::SocketAddr,
    /// Length of the address's network prefix, bits.
    pub prefix: u8,
    /// Megabits per second; 0 if the port does not say.
    pub speed_mbps: u32,
    /// Largest packet of the port, bytes.
    pub mtu: u32,
    /// NUMA node of the port; -1 if none is known.
    pub numa: i32,
    /// Carrier present and interface up.
    pub up: bool,
    /// Port of the address at which RDMA connections are taken; 0 if none are.
    pub rdma_port: u16,
}

/// How a commit ended, as the destination's journal has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Outcome {
    /// The guest runs at the destination, or ran there and moved on: the source gives its copy up.
    Committed = 1,
    /// The destination gave up before commit and will never run it: the source may resume.
    Aborted = 2,
    /// Not decided yet, or the destination has not yet confirmed that the guest runs.
    Pending = 3,
    /// The destination has no record of it: only the operator can decide.
    Unknown = 4,
    /// The destination committed and could not run the guest. It never ran there and never will: the source may resume.
    Returned = 5,
    /// The destination committed and its hypervisor has ended. The guest may have run there: only the operator can
    /// decide what the source's copy is still good for.
    Gone = 6,
    /// The destination has not committed. For some seconds neither an operator nor an earlier commit that arrives late
    /// lets the guest run there. Answered only to a source that is about to resume its guest.
    NotCommitted = 7,
}

impl Outcome {
    /// The outcome with this number.
    pub fn from_number(number: u8) -> Option<Outcome> {
        match number {
            1 => Some(Outcome::Committed),
            2 => Some(Outcome::Aborted),
            3 => Some(Outcome::Pending),
            4 => Some(Outcome::Unknown),
            5 => Some(Outcome::Returned),
            6 => Some(Outcome::Gone),
            7 => Some(Outcome::NotCommitted),
            _ => None,
        }
    }
}

/// How two hypervisors talk to each other in streams of their own: what both were found to have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSettings {
    /// Parallel channels beside the main one; 0 for none.
    pub channels: u16,
    /// The destination's hypervisor answers the source's.
    pub return_path: bool,
    /// Pages of zeros are found by the threads of the parallel channels.
    pub zero_pages_in_channels: bool,
}

/// Control messages. `S>D` means source to destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// S>D steps 1 to 3: which guest, and what it needs.
    Offer {
        /// Name of the guest.
        guest: String,
        /// The guest description, a JSON document (`linerate-guest`'s `GuestDescription`). At most 1 MiB.
        description: String,
        /// How it is to move. An unknown mode is refused with a sentence.
        mode: Result<Mode, UnknownMode>,
    },
    /// D>S: reserved. Where connections are taken.
    Admitted {
        /// Addresses to pair with the source's own.
        endpoints: Vec<Endpoint>,
    },
    /// S>D step 4: start the incoming QEMU, for the mode that was offered.
    Prepare,
    /// D>S: the incoming QEMU is ready, and these are its RAM blocks.
    Prepared {
        /// RAM blocks as the destination's hypervisor reports them.
        regions: Vec<RegionInfo>,
        /// What its hypervisor may have written while it started: to be copied, again if it was copied before.
        touched: Vec<Extent>,
    },
    /// D>S, in place of Prepared for [`Mode::Streams`]: the incoming QEMU is ready and waits for its streams. Both
    /// hypervisors are set alike.
    StreamsPrepared(StreamSettings),
    /// S>D step 7: a round begins. Informs only.
    RoundMark {
        /// 0 is the first pass.
        round: u32,
        /// Bytes that the round will carry.
        bytes: u64,
    },
    /// S>D: apply nothing more from this channel and say up to where it was applied.
    Fence {
        /// The channel to be fenced.
        channel: u32,
    },
    /// D>S: nothing more will be applied from the channel.
    Fenced {
        /// The channel that was fenced.
        channel: u32,
        /// Highest frame number that was applied; all up to it were, except those that arrived damaged.
        applied: u64,
        /// All frame numbers up to `applied` that arrived damaged (checksum), reported by an acknowledgement before or
        /// not: that acknowledgement may have died with the link.
        damaged: Vec<u64>,
    },
    /// S>D step 8: the source's hypervisor has stopped the guest and holds.
    Stopped {
        /// The guest ran until then. One that did not (paused, I/O error) is not run at the destination either.
        was_running: bool,
        /// The disks that the guest has used from the beginning, a JSON document (`linerate-guest`'s `DiskGraph`);
        /// empty if there is nothing to compare. At most 1 MiB.
        disks: String,
    },
    /// S>D step 8: all RAM has been acknowledged; refuse any further write.
    RamComplete {
        /// Digest of all regions in order, if `--verify` asks for a comparison.
        digest: Option<u64>,
    },
    /// D>S: no write will be applied any more. The digest agreed, if there was one.
    RamSealed,
    /// S>D: the next piece of the hypervisor's device-state stream. At most 256 KiB.
    DeviceState {
        /// Bytes of the stream, in order.
        bytes: Vec<u8>,
    },
    /// S>D: the stream ended.
    DeviceStateEnd {
        /// Length of the whole stream, bytes.
        total: u64,
    },
    /// D>S: the device state is loaded, the disks are those of the source, and the journal says so: the guest could
    /// run. From here on the destination gives the guest up only on the source's or an operator's decision.
    Loaded,
    /// S>D step 9: take the guest over. The source will not resume by itself any more.
    Commit,
    /// D>S: the guest runs, or has been taken over in the state in which it stopped, if it did not run at the source.
    TakenOver {
        /// Microseconds from the reading of the commit to the guest's first instruction, as the destination saw it.
        resume_us: u64,
        /// CPU time that the destination's agent spent on the session so far, microseconds.
        cpu_us: u64,
    },
    /// S>D step 10: the source has cleaned up; the session can be forgotten. Before `TakenOver`: an operator has ended
    /// the source's copy.
    Finished,
    /// D>S, after `TakenOver`: what became of the guest in its first moment here. The source's report waits for it.
    LastLook(LastLook),
    /// Either way, before commit: it is over.
    Abort(Fault),
    /// Either way: the abort is done on this side too.
    Aborted,
    /// Either way: what a byte stream needs besides its bytes.
    Stream {
        /// Which stream of the session.
        stream: u16,
        /// What is said of it.
        note: StreamNote,
    },
}

impl Message {
    /// About how many bytes of memory it takes, for limits.
    pub fn weight(&self) -> usize {
        let content = match self {
            Message::Offer { guest, description, mode } => {
                let mode = match mode {
                    Ok(Mode::Direct { regions } | Mode::Handover { regions }) => weight_of(regions),
                    Ok(Mode::Streams { .. }) | Err(_) => 0,
                };
                guest.len() + description.len() + mode
            }
            Message::Admitted { endpoints } => {
                endpoints.iter().map(|one| size_of::<Endpoint>() + one.interface.len()).sum()
            }
            Message::Prepared { regions, touched } => weight_of(regions) + size_of_val(touched.as_slice()),
            Message::Fenced { damaged, .. } => size_of_val(damaged.as_slice()),
            Message::Stopped { disks, .. } => disks.len(),
            Message::DeviceState { bytes } => bytes.len(),
            Message::Abort(fault) => fault.detail.len(),
            Message::LastLook(LastLook::Stopped { run_state }) => run_state.len(),
            _ => 0,
        };
        size_of::<Message>() + content
    }
}

fn weight_of(regions: &[RegionInfo]) -> usize {
    regions.iter().map(|region| size_of::<RegionInfo>() + region.name.len()).sum()
}
