//! A simulator of migrations: the state machines of `linerate-core` on virtual hosts, links, disks and time.
//!
//! One seed decides everything, so a run that breaks a promise can be replayed. What is modelled, what is not, and how
//! to add a fault: docs/simulator.md.
//!
//! * [`world::World`]: what is going to happen, in order of virtual time.
//! * [`scenario::Scenario`] and [`faults`]: what a seed decides, and the script of what goes wrong.
//! * [`guest`], [`wire`]: RAM and tracker; links and the connections on them.
//! * [`source_driver`], [`destination_driver`], [`recovery`]: the drivers of the two agents, and their restarts.
//! * `libvirt_model`: libvirt, which owns the guest and decides where it runs.
//! * [`fleet`]: another simulation: drains of many hosts, with the drain controller and placement of the core.
//! * [`check`]: the promises. [`summary::simulate`] runs a seed and says how it went.

#![allow(missing_docs, reason = "a name that says everything has no comment")]

mod apply;
mod carry;
mod cases;
pub mod check;
mod decisions;
pub mod destination_driver;
mod domain_cases;
mod ends;
mod fault_effects;
pub mod faults;
pub mod fleet;
pub mod guest;
mod history;
pub mod hosts;
mod hypervisor;
mod libvirt_model;
mod network;
mod operator;
pub mod random;
mod recovery;
mod roll_back_notice;
mod running;
pub mod scenario;
pub mod source_driver;
mod streams;
pub mod summary;
pub mod wire;
pub mod world;

pub use check::{Mutation, Options, Property, Violation};
pub use faults::Focus;
pub use summary::{Report, Summary, simulate};
