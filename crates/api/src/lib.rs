//! The agent's local API: what is asked, what is answered, and the client that asks.
//!
//! It is HTTP/1.1 with JSON over a UNIX socket. Sizes are in bytes and times carry their unit in the field's name.
//! Requests refuse fields that they do not know, so that a misspelt option is an error and not a surprise. Answers may
//! grow fields, which older clients pass over.
//!
//! | module | contents |
//! |---|---|
//! | [`paths`] | the table of endpoints, used by both sides |
//! | [`GuestSummary`], [`StartGuest`] … | guests |
//! | [`MigrateRequest`], [`MigrationSummary`] … | migrations, and sessions that a crash left in doubt |
//! | [`LibvirtRequest`], [`DomainEvent`] | domains of libvirt |
//! | [`Event`] | what is seen while one runs: one JSON document a line, the last is [`EventKind::Finished`] |
//! | [`BenchRequest`], [`BenchEvent`], [`BenchReport`] | measuring the wires |
//! | [`Report`] | what it was, once it is over |
//! | [`DoctorRequest`], [`DoctorAnswer`] | what hosts and links are like |
//! | [`LinkRequest`], [`LinkAnswer`] | settings of ports |
//! | [`TunnelRequest`], [`TunnelEvent`] | sockets in here and out at another host |
//! | [`QosRequest`], [`QosAnswer`] | priorities, shares and lossless traffic of ports |
//! | [`CordonRequest`], [`CordonAnswer`] | whether a host takes guests from others |
//! | [`DrainRequest`], [`DrainDetail`] … | all guests of a host leave it |
//! | [`ForgetGuest`], [`ForgetHost`] … | guests and hosts that will never come back |
//! | [`AuditRequest`], [`AuditAnswer`] | who did what on a host, or tried to |
//! | [`ErrorBody`] | why not |
//! | [`Client`] | asks an agent |

mod audit;
mod bench;
mod client;
mod cordon;
mod doctor;
mod domain;
mod drain;
mod error;
mod event;
mod forget;
mod guest;
mod libvirt;
mod link;
mod migration;
pub mod paths;
mod qos;
mod report;
mod status;
mod step;
mod tunnel;

pub use audit::{AuditAction, AuditAnswer, AuditCaller, AuditEntry, AuditRequest, AuditResult};
pub use bench::{
    Bandwidth, BenchCpu, BenchDirection, BenchEvent, BenchLink, BenchPort, BenchReport, BenchRequest,
    BenchTest, BenchTransport, LinkBandwidth, PingPong, PingPongRow, Rates,
};
pub use client::{BenchStream, Client, ClientError, EventStream, RESOLVE_MAX, TunnelStream};
pub use cordon::{Cordon, CordonAnswer, CordonRequest};
pub use doctor::{AnsweredHost, DoctorAnswer, DoctorRequest, Probes, UnreachableHost};
pub use domain::{domain_socket, is_domain_socket};
pub use drain::{
    DrainBound, DrainDetail, DrainGuest, DrainGuestState, DrainOrder, DrainRequest, DrainStarted, DrainState,
    DrainSteer, DrainTry, FleetCount, FleetDrain, FleetHost, FleetStatus, PlaceAnswer, PlaceHost,
    PlaceRequest, UndrainDetail, UndrainGuest, UndrainGuestState, UndrainRequest,
};
pub use error::{ErrorBody, code};
pub use event::{DiskProgress, Event, EventKind, LinkProgress, LinkState, Progress, StepState};
pub use forget::{ForgetGuest, ForgetHost, GuestForgotten, HostForgotten};
pub use guest::{
    AdoptGuest, Disk, GuestDetail, GuestRunState, GuestSummary, Nic, RamBlock, StartGuest, StopGuest, Verdict,
};
pub use libvirt::{DomainEvent, Job, LibvirtRequest};
pub use link::{LinkAnswer, LinkConfirm, LinkRequest, LinkStep};
pub use migration::{
    Decision, Direction, DomainMigration, MigrateRequest, MigrationDetail, MigrationId, MigrationOutcome,
    MigrationStarted, MigrationState, MigrationSummary, ModeChoice, ResolveRequest, Transport,
};
pub use qos::{QosAnswer, QosRequest};
pub use report::{
    BlackoutSplit, CpuTime, DiskTotals, LinkTotals, Mode, RamTotals, RdmaPortTotals, Report, RoundTotals,
    StepTime,
};
pub use status::{AgentStatus, HostIdentity, KernelFeature, SecurityState};
pub use step::{GuestState, Side, Step};
pub use tunnel::{TunnelAddress, TunnelAddressError, TunnelEvent, TunnelPair, TunnelRequest};

/// Where an agent listens if nothing else is said.
pub const DEFAULT_SOCKET: &str = "/run/linerate/agent.sock";

/// Media type of the event stream.
pub const NDJSON: &str = "application/x-ndjson";

/// The agent writes an empty line into an event stream after this much silence, in seconds. So a client can distinguish
/// a slow step from a dead agent.
pub const KEEP_ALIVE_S: u64 = 10;

/// Cap of a request's or an answer's body, in bytes.
pub const BODY_BYTES_MAX: usize = 16 << 20;

/// Cap of one line of an event stream, in bytes.
pub const EVENT_BYTES_MAX: usize = 1 << 20;
