//! Probes that move bytes between two agents, and what agents ask each other for it.
//!
//! ```text
//! coordinator            receiving host                 sending host
//!   Echo        ──────▶  answers datagrams for a while
//!   Probe       ───────────────────────────────────────▶  datagrams: reachable, path MTU, latency, loss, clock
//!                        ◀── Sink (TCP, agent's port) ──  load: throughput, loss and latency under load
//! ```
//!
//! * [`ask`]: questions and answers, one of each on a connection. * [`echo`]: the receiving side of datagrams.
//! * [`datagram`]: their bytes. * [`sender`]: the sending side. * [`mtu`]: which sizes to try. * [`loss`]: which
//!   packets are lost. * [`load`]: TCP, both sides.
//! * [`run`]: all of it for one pair of ports, and which port the kernel would choose.

pub mod ask;
pub mod datagram;
pub mod echo;
pub mod load;
pub mod loss;
pub mod mtu;
pub mod run;
pub mod sender;

pub use ask::{Answer, AskError, Change, Changed, Depth, Echoing, Question, SentBack, Target};
