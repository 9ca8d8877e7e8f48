//! Linerate's session protocol: what two agents say to each other.
//!
//! * [`frame`]: the fixed header, the table of tags, the body layouts and the caps.
//! * [`message`]: the control messages of the ten steps, which travel inside control frames.
//! * [`fault`]: error codes, and the sentence, phase, side and guest state that go with them.
//! * [`checksum`] and [`version`]: crc32c over bytes on the wire, and the choice of a protocol version.
//! * [`error`]: why something was refused, when reading or before sending.
//!
//! Nothing here does I/O. Every length that a peer names is checked against a cap before anything is allocated.
//! `docs/protocol.md` is the same table in prose.

pub mod checksum;
mod codec;
pub mod error;
pub mod fault;
pub mod frame;
pub mod message;
pub mod version;

pub use checksum::{PayloadChecksum, payload_checksum};
pub use error::{DecodeError, EncodeError};
pub use version::{VERSION_MAX, VERSION_MIN, negotiate};
