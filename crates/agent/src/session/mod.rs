//! What every session between two agents has, whatever it carries: `outgoing`, `incoming` and `tunnel` are built on it.
//!
//! | file | what it has |
//! |---|---|
//! | `identity` | number and token of a session, and what a connection of it says first |
//! | `address`, `offer` | addresses of a host name; addresses that this host offers |
//! | `contact` | first contact, join, questions on a connection of their own |
//! | `withdraw` | the roll-back notice: sent to the other host on a connection of its own |
//! | `kept` | sessions for which a restarted agent sends the notice |
//! | `paths` | control connections: numbers, what comes over them, what is sent on them |
//! | `carriage`, `fences` | streams over the channels of a session; channels of the peer and their fences |
//! | `notice` | what streams report to the loop of their session |
//! | `probe` | bytes that prove a channel; why a link could not be opened |
//! | `links` | links: opened, kept, closed and opened again, over RDMA or TCP |

pub(crate) mod address;
pub(crate) mod contact;
pub(crate) mod fences;
pub(crate) mod identity;
pub(crate) mod kept;
pub(crate) mod links;
pub(crate) mod notice;
pub(crate) mod offer;
pub(crate) mod paths;
pub(crate) mod probe;
pub(crate) mod stream_transport;
pub(crate) mod withdraw;
