//! A simulator of migrations: the brain of `linerate-core` on virtual hosts, links, disks and time.
//!
//! One seed decides everything, so a run that breaks a promise can be replayed. What is modelled, what is not, and how to
//! add a fault: docs/simulator.md.
//!
//! * [`world::World`]: what is going to happen, in order of virtual time.
//! * [`scenario::Scenario`] and [`faults`]: what a seed decides, and the script of what goes wrong.
//! * [`guest`], [`wire`]: RAM and tracker; links and the connections on them.
//! * [`source_body`], [`destination_body`], [`recovery`]: the bodies of the two agents, and their restarts.
//! * `owner`: somebody else, whose guest it is, and who decides where it runs.
//! * [`check`]: the promises. [`summary::simulate`] runs a seed and says how it went.

mod apply;
mod carry;
mod cases;
pub mod check;
pub mod destination_body;
mod ends;
pub mod faults;
pub mod guest;
mod history;
pub mod hosts;
mod hypervisor;
mod mishaps;
mod network;
mod operator;
mod owner;
pub mod random;
mod recovery;
mod running;
pub mod scenario;
pub mod source_body;
mod streams;
pub mod summary;
pub mod wire;
mod withdrawal;
pub mod world;

pub use check::{Mutation, Options, Property, Violation};
pub use faults::Focus;
pub use summary::{Report, Summary, simulate};
