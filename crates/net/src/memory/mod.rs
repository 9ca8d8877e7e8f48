//! The transport inside one process, for tests and for trying things out: the framing of [`crate::tcp`] over a socket
//! pair, so that regions, fences and acknowledgements are the real ones, without addresses or a network.

pub mod connect;
