//! What is seen while a migration runs.
//!
//! `GET /v1/migrations/{id}/events` answers one JSON document a line, from the beginning of the migration, whenever one
//! attaches: finished steps and what happened to links first, then what happens now. The last is
//! [`EventKind::Finished`]; a stream that ends without it was cut, and the migration continues.

use serde::{Deserialize, Serialize};

use crate::{DomainEvent, ErrorBody, MigrationOutcome, RdmaPortTotals, Report, Step, TunnelEvent};

/// One event of a migration, in the order of `sequence`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in microseconds since the migration began.
    pub at_us: u64,
    /// The event itself; its fields are beside this object's own.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kinds of events; `kind` names the one of this event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// A step began or ended.
    Step {
        /// Number of the step, from 1 to 10.
        number: u8,
        /// Name of the step.
        name: Step,
        /// Whether the step began or ended.
        state: StepState,
        /// How long it took; only once it ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        duration_us: Option<u64>,
    },
    /// How far it is; several times a second while bytes move.
    Progress(Box<Progress>),
    /// A link carries nothing any more. What it had not delivered goes over the others.
    LinkLost {
        /// Number of the link.
        link: u16,
        /// A sentence: what caused it.
        reason: String,
    },
    /// A lost link carries again.
    LinkRestored {
        /// Number of the link.
        link: u16,
    },
    /// Something that the operator should know and that does not stop the migration.
    Warning {
        /// What is wrong, for the operator to read.
        text: String,
    },
    /// Of a domain of libvirt.
    Domain(DomainEvent),
    /// Of the tunnel that carries libvirt's own connections.
    Tunnel(TunnelEvent),
    /// It is over. Always the last event.
    Finished {
        /// Where the guest is, and in which state.
        outcome: MigrationOutcome,
        /// Why not, if not completed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Box<ErrorBody>>,
        /// All figures, as far as it came.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        report: Option<Box<Report>>,
    },
    /// A kind that this client is too old to know. Never sent.
    #[serde(other)]
    Unknown,
}

impl EventKind {
    /// The event that `step` begins.
    pub fn step_started(step: Step) -> EventKind {
        EventKind::Step { number: step.number(), name: step, state: StepState::Started, duration_us: None }
    }

    /// A step ended well.
    pub fn step_done(step: Step, duration_us: u64) -> EventKind {
        EventKind::Step {
            number: step.number(),
            name: step,
            state: StepState::Done,
            duration_us: Some(duration_us),
        }
    }
}

/// Whether a step began or ended; a failed step has no end of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepState {
    /// The step begins now.
    Started,
    /// The step ended without an error.
    Done,
}

/// How far a migration is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// The step in progress.
    pub step: Step,
    /// 0 is the first pass.
    pub round: u32,
    /// Guest RAM that is in use and thus has to be moved at least once.
    pub populated_bytes: u64,
    /// What this round has to move.
    pub round_bytes_total: u64,
    /// What this round has moved.
    pub round_bytes_done: u64,
    /// What is known to be left: the rest of this round, and what was written meanwhile as far as it was scanned.
    pub remaining_bytes: u64,
    /// Bytes of guest RAM sent so far, over all rounds and links.
    pub sent_bytes: u64,
    /// Bytes that were zero and cost nothing on the wire.
    pub zero_bytes: u64,
    /// Over all links, the average of the last moments.
    pub rate_bytes_per_s: u64,
    /// How fast the guest writes to pages that were clean; unknown before it was counted for the first time.
    pub dirty_rate_bytes_per_s: Option<u64>,
    /// Expected downtime if the guest were stopped now.
    pub predicted_blackout_us: Option<u64>,
    /// How long until the destination runs it.
    pub predicted_left_us: Option<u64>,
    /// Copied disks; absent if there are none. They are copied first, and beside RAM from then on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disks: Option<DiskProgress>,
    /// Every link that was ever used.
    pub links: Vec<LinkProgress>,
}

/// How far copied disks are, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskProgress {
    /// What has to be looked at: what they hold, and what the guest wrote meanwhile.
    pub total_bytes: u64,
    /// What is the same at the destination.
    pub done_bytes: u64,
    /// Passes over what the guest wrote to them meanwhile; 0 is the first one over all of them.
    #[serde(default)]
    pub pass: u32,
    /// How fast the guest writes to what was the same already; unknown in the first second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub write_rate_bytes_per_s: Option<u64>,
}

/// One link of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkProgress {
    /// Number of the link in this migration.
    pub id: u16,
    /// Name of the source's interface.
    pub name: String,
    /// Address at the source.
    pub local: String,
    /// Address at the destination.
    pub remote: String,
    /// Whether the link carries data now.
    pub state: LinkState,
    /// The average of the last moments.
    pub rate_bytes_per_s: u64,
    /// Since the migration began.
    pub sent_bytes: u64,
    /// Speed of the slower of the two ports; 0 if neither says.
    pub speed_mbps: u32,
    /// Connections in use on it.
    pub channels: u32,
    /// Segments that TCP sent again, or packets that an RDMA adapter did, where it counts them.
    pub retransmits: u64,
    /// It carries over RDMA now.
    #[serde(default)]
    pub rdma: bool,
    /// What its RDMA port has counted since the migration began, if the link ever carried over RDMA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_port: Option<RdmaPortTotals>,
}

/// Whether a link carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// Its channels carry data of this migration.
    Up,
    /// All its connections were lost; other links carry its work.
    Lost,
    /// It is being tried.
    Probing,
}
