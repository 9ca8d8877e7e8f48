//! What is known of a room full of hosts.
//!
//! Every type here has a JSON form, described in `docs/inventory.md`. A host that does not know something leaves it out:
//! `None` is "not known", never "no". Unknown fields are ignored, so that a newer minor version can be read by an older
//! doctor; [`Schema`] says which major version a file has.

mod dcb;
mod finding;
mod hardware;
mod host;
mod inventory;
mod matrix;
mod port;
mod rdma;
mod room;
mod segment;
mod switch;

pub use dcb::{Application, Dcb, Dcbx, Ets, Pfc, Selector};
pub use finding::{Effect, Finding, Fix, Mend, Place, Seen, Severity};
pub use hardware::{Irq, Pcie, PcieLink};
pub use host::{
    Agent, Cpu, Feature, Firewall, FirewallChain, Gateway, Governor, HugePages, Hypervisor, IdleState, Limit,
    Memory, NumaNode, Qemu, RamFolder, Resolved, Route, System, Time,
};
pub use inventory::{INVENTORY_BYTES_MAX, Inventory, InventoryError, Note, SCHEMA, Schema};
pub use matrix::{End, Incast, Latency, Loss, Matrix, PathMtu, Probe};
pub use port::{
    Address, Bond, Counters, CountersChange, Duplex, Fec, LinkSettings, Pause, Port, PortKind, Queues, Rings,
    Taken,
};
pub use rdma::{Gid, GidKind, LinkLayer, RdmaDevice, RdmaPort};
pub use room::{PortRef, Room};
pub use segment::{Network, Segment};
pub use switch::{Aggregation, Neighbour, Switch, SwitchPort};
