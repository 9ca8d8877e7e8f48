//! What is read from files of the kernel.

pub mod cpu;
pub mod interrupts;
pub mod memory;
pub mod pci;
pub mod rdma;
pub mod system;
