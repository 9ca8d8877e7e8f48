//! What the kernel says over netlink. Each file turns bytes or messages into the model; `netlink` does the talking.

pub mod arp;
pub mod dcb;
pub mod ethtool;
pub mod links;
pub mod netlink;
pub mod nftables;
pub mod routes;
