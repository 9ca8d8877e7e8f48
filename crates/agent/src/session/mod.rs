//! What every session between two agents has, whatever it carries: `outgoing`, `incoming` and `tunnel` are built on it.
//!
//! | file | what it has |
//! |---|---|
//! | `identity` | number and token of a session, and the first message of each of its connections |
//! | `address`, `offer` | addresses of a host name; addresses that this host offers |
//! | `contact` | the first connection, joining, questions on a connection of their own |
//! | `roll_back_notice` | sends the roll-back notice to the other host, on a connection of its own |
//! | `pending_notice` | sessions for which a restarted agent sends the notice |
//! | `paths` | control connections: numbers, what they receive, what is sent on them |
//! | `stream_transport`, `fences` | streams over the channels of a session; channels of the peer and their fences |
//! | `notice` | what streams report to the loop of their session |
//! | `probe` | bytes that prove a channel; why a link could not be opened |
//! | `links` | links: opened, kept, closed and opened again, over RDMA or TCP |

pub(crate) mod address;
pub(crate) mod contact;
pub(crate) mod fences;
pub(crate) mod identity;
pub(crate) mod links;
pub(crate) mod notice;
pub(crate) mod offer;
pub(crate) mod paths;
pub(crate) mod pending_notice;
pub(crate) mod probe;
pub(crate) mod roll_back_notice;
pub(crate) mod stream_transport;
