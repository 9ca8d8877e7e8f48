//! Links between two hosts, and the transports that move placed writes over them.
//!
//! * [`interfaces`], [`monitor`], [`links`]: which ports there are, when one dies, and how two hosts' ports pair.
//! * [`channel`]: what a transport gives to both sides; [`tcp`] and [`memory`] are transports.
//! * [`fence`], [`table`]: how a destination makes sure that nothing more is written.
//! * [`channel_thread`]: the source's data path; [`pacer`]: the bandwidth limit over all of it.
//! * [`round_trip`]: limits that are longer where a link is far.
//! * [`control`]: control connections.
//! * [`tls`]: TLS 1.3 under the TCP transport.
//! * [`stream`]: sockets in at one host and out at the other, over placed writes.
//! * [`mod@bench`]: connections that are measured instead of used.
//! * [`region`]: what a transport needs of the memory that it moves.

#![allow(missing_docs, reason = "a name that says everything has no comment")]

pub mod bench;
pub mod channel;
pub mod channel_thread;
pub mod control;
pub mod fence;
pub mod interfaces;
pub mod links;
pub mod memory;
pub mod monitor;
pub mod netlink;
pub mod network;
pub mod pacer;
pub mod rdma;
mod receipts;
pub mod region;
pub mod round_trip;
mod socket;
pub mod stats;
pub mod stream;
pub mod table;
pub mod tcp;
pub mod tls;
