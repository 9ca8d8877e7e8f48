//! What the kernel says over netlink. Each file turns bytes or messages into the model; `ask` does the talking.

pub mod arp;
pub mod ask;
pub mod attributes;
pub mod bitset;
pub mod dcb;
pub mod dcb_write;
pub mod devlink;
pub mod ethtool;
pub mod generic;
pub mod links;
pub mod nftables;
pub mod routes;
