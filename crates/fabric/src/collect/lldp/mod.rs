//! LLDP: what the other end of each cable says of itself.
//!
//! Frames are received on a packet socket of our own, so that nothing needs to be installed. Where systemd-networkd
//! listens already, what it keeps is read too. Switches speak every 30 s, so the agent listens all the time.

pub mod frame;
pub mod listen;
pub mod networkd;
