//! What is known of several hosts and of the network between them.
//!
//! Every type here has a JSON form, described in `docs/inventory.md`. A host that does not know something leaves it
//! out: `None` is "not known", never "no". Unknown fields are ignored, so that a newer minor version can be read by
//! an older doctor; [`Schema`] says which major version a file has.

mod finding;
mod host;
mod inventory;
mod matrix;
mod port;
mod rdma;
mod survey;
mod switch;

pub use finding::{AutoFix, Effect, Finding, Fix, Location, Observation, Severity};
pub use host::{
    Agent, Cpu, Feature, Firewall, FirewallChain, Gateway, Governor, HugePages, Hypervisor, IdleState, Limit,
    Memory, NumaNode, Qemu, RamFolder, Resolved, Route, System, Time,
};
pub use inventory::{INVENTORY_BYTES_MAX, Inventory, InventoryError, Note, SCHEMA, Schema};
pub use matrix::{End, FailedLoad, Incast, Latency, Loss, Matrix, PathMtu, Probe};
pub use port::{
    Address, Application, Bond, Counters, CountersChange, Dcb, Dcbx, Duplex, Ets, Fec, Irq, LinkSettings,
    Pause, Pcie, PcieLink, Pfc, Port, PortKind, Queues, Rings, Selector, Taken,
};
pub use rdma::{Gid, GidKind, LinkLayer, RdmaDevice, RdmaPort};
pub use survey::{Network, PortRef, Segment, Survey};
pub use switch::{Aggregation, Neighbour, Switch, SwitchPort};
