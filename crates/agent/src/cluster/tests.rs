//! Hosts that join, and what stands between them.
