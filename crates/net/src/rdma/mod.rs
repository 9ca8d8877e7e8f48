//! The RDMA carrier.

pub mod abi;
pub mod library;
