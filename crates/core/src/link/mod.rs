//! One link of a session, at the host that opens it: when it is opened again, how long a try may take, and whether it
//! may use RDMA after RDMA has failed.

mod patience;
mod rdma_health;
mod reopening;

pub use patience::Patience;
pub use rdma_health::RdmaHealth;
pub use reopening::Reopening;
