//! Byte streams: the driver of `linerate-core`'s `stream`. docs/streams.md has the design.
//!
//! * [`session::StreamSession`]: all streams of a session; what its channels ask and its control stream says.
//! * [`rings`]: positions folded into rings, and rings as regions of placed writes.
//! * [`endpoint`]: a local socket received into a ring and written out of one, two threads for each stream.

pub mod endpoint;
pub mod rings;
pub mod session;

pub use rings::RingMemory;
pub use session::{StreamEvents, StreamSession};
