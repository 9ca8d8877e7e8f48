//! The lab: hosts in network namespaces, shaped links that can be cut, guests that check themselves.
//!
//! A [`Lab`] is some [`Host`]s joined by links, one veth pair per link, each direction shaped to a rate. There is also
//! an unshaped guest LAN where an [`Observer`] listens to what guests send. In a host run an [`Agent`], guests started
//! through it ([`GuestSpec`]), or a bare [`Qemu`]. Everything a lab made goes away when it is dropped, and [`sweep()`]
//! removes what a killed run left behind.
//!
//! Needs root, and what `lab/install.sh` puts in place. Set-up goes through `ip`, `tc` and `nft`. So a person can look
//! at each state of a lab and make it by hand.
//!
//! Invariants: every namespace, directory and process of a lab carries the lab's name, which carries the maker's
//! process id; nothing outside of its namespaces is changed. Exceptions are one directory under [`lab::root`] with the
//! mounts in it, and block devices that a test asks for ([`BlockDevice`]).

#![allow(missing_docs, reason = "a name that says everything has no comment")]
#![forbid(unsafe_code)]

pub mod agent;
pub mod cache;
pub mod console;
pub mod device;
pub mod disk;
pub mod error;
pub mod etcd;
mod files;
pub mod forwarder;
pub mod gate;
pub mod guest;
pub mod host;
mod huge;
pub mod lab;
pub mod libvirt;
pub mod link;
pub mod lldpd;
pub mod machine;
pub mod netns;
pub mod observer;
pub mod process;
pub mod qemu;
pub mod qmp;
pub mod sshd;
pub mod sweep;
mod tool;
pub mod trust;
pub mod wait;

pub use agent::{Agent, AgentOptions};
pub use cache::{Cache, QemuVersion};
pub use console::Console;
pub use device::BlockDevice;
pub use disk::make_disk;
pub use error::LabError;
pub use forwarder::{Forwarder, Way};
pub use gate::{Gate, Held, Refusal};
pub use guest::{DiskMode, GuestParameters, GuestProgram, GuestSpec};
pub use host::Host;
pub use lab::{Lab, LabBuilder};
pub use libvirt::{Libvirt, LibvirtVersion};
pub use link::LinkSpec;
pub use lldpd::{Lldpd, Switch};
pub use machine::{Machine, MachineKernel, MachineOutput, Side, Slot};
pub use observer::{Blackout, Observer};
pub use process::Process;
pub use qemu::{Qemu, QemuOptions, Ram};
pub use qmp::Qmp;
pub use sweep::sweep;
