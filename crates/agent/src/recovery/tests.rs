//! What recovery does to real processes.
