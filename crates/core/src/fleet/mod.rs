//! Many hosts: what they offer, which guests they have, what is reserved on them, and where a guest can go.
//!
//! * [`facts`]: what hosts offer and guests need, and why the two do not fit.
//! * [`ledger::Ledger`]: hosts, guests and reservations. No host is ever filled above its memory.
//! * [`placement`]: destinations for the guests of one drain: best fit over an index, then a local search.
//!
//! Nothing here knows a store. The agent loads a ledger from its store and writes each reservation back as one
//! transaction (docs/drain.md).

pub mod facts;
mod index;
pub mod ledger;
mod overlay;
pub mod placement;
mod search;

#[cfg(test)]
mod tests;

pub use facts::{Needs, Obstacle, Offer, Port};
pub use ledger::{Guest, Host, Ledger, Refusal};
pub use placement::{Placement, Request};

/// Number of a host in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// Number of a guest in a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestId(pub u32);

/// Number of a group of guests that belong together or must be apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// Number of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DrainId(pub u32);
