//! The RDMA transport: payloads are written by the adapters from guest RAM to guest RAM, frames are small messages
//! behind them.
//!
//! * [`options`]: options of connections. * [`connect`]: the source's side of opening, [`listen`] the destination's.
//! * [`send`], [`receive`]: the two halves of a channel. * `source`, `staging`: what the source's threads share, and
//!   where payloads are copied to that cannot be sent from where they lie.
//! * [`devices`], [`counters`]: what this host's adapters are and count. * [`memory`]: memory that adapters work on.
//! * `connection`, `domain`, `verbs`, `cm`: queue pairs and what belongs to them, each released by its drop; `release`:
//!   when the port is down.
//! * [`test_connection`]: a queue pair that is measured instead of used.
//! * [`library`], [`abi`]: the system's libraries, loaded when needed. * [`error`]: what can go wrong.
//!
//! ```text
//! source                                             destination
//! connect with HELLO in the request  -->             accept with WELCOME in the answer
//! CLAIM window  -->                                  hold and register it
//!               <-- GRANT key, address
//! RDMA WRITE payload  ==================>            (the adapter places it; this host is not notified)
//! WRITE frame  -->                                   bounds, checksum over what landed, zero runs
//!               <-- ACK                              (before it would wait, or every 8 frames or 2 MiB)
//! disconnect  -->                                    ChannelEnd::Closed
//! ```
//! A queue pair delivers in order, so a frame is read after its payload is in place. docs/rdma.md has the reasons.

pub mod abi;
mod cm;
pub mod connect;
mod connection;
pub mod counters;
pub mod devices;
mod domain;
pub mod error;
pub mod library;
pub mod listen;
pub mod memory;
pub mod options;
pub mod receive;
mod release;
pub mod send;
mod source;
mod staging;
pub mod test_connection;
#[cfg(test)]
mod tests;
mod verbs;

pub use connection::Connection;
pub use domain::Domains;
