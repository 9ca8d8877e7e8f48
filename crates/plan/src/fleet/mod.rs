//! Drains of many hosts: the controller and the placement of `linerate-core` on a flow-level model of links.
//!
//! * [`flows`]: links, uplinks of racks, and the rates that copies get on them.
//! * [`world::World`]: hosts, guests and drains in virtual time; hosts that die; a store that goes away.
//! * [`fixed::Fixed`]: what others do: so many at a time.
//! * [`mixes`]: one host with a mix of guests, against the lower bound.
//! * [`scale`]: rolling drains of a large fleet.
//! * [`check`]: what must hold, and defects that must be noticed.
//!
//! One migration is a few numbers here: bytes, a write rate, a working set. The state machines of a migration are not
//! run; the other simulator does that.

pub mod check;
pub mod fixed;
pub mod flows;
pub mod mixes;
mod orders;
pub mod scale;
mod sessions;
pub mod world;

pub use check::{Defect, Rule, Violation};
