//! Hypervisors: QMP, reading a running QEMU, judging whether it can be moved in direct mode.
//! This crate also builds its incoming QEMU, starts and ends guests, and has the operations of a migration as QEMU sees
//! it.
//!
//! - [`socket_file`] finds a socket in a folder of others. [`qmp`]: the control protocol; [`run_state`] is what QEMU
//!   says of the guest. [`discover`] finds the socket, [`read`] makes a [`description::GuestDescription`] of what it
//!   says, [`verdict`] judges it.
//! - [`incoming_qemu`] makes the destination's command line from a description that came from another host; [`host`]
//!   checks that the host has what the incoming QEMU needs.
//! - [`drives`] finds the disks to copy where hosts do not share them. [`images`] makes what they go into, and
//!   [`identity`] keeps a disk from being copied onto itself. `roots` says which files guests may open, [`own_folders`]
//!   which they never open.
//! - [`graph`] is the live disk graph: the images in use, against the command line and the destination's QEMU.
//! - [`shared`] proves that a disk which is not copied is on shared storage; [`stale`] marks images that a copy left
//!   behind. [`in_use`] finds who else uses an image.
//! - [`qemu_user`] is the user that QEMU runs as, [`access`] what that user is let in to.
//! - [`vcpu_time`] tells whether a stopped guest has executed anything since.
//! - [`leftover_ram`] gives back the memory in files that an adopted guest leaves behind. [`virtio_mem`] names memory
//!   that a starting QEMU empties.
//! - [`spec`] makes a command line from an operator's file; [`process`] starts and ends QEMU; [`registry`] remembers
//!   guests.
//! - [`domain`] is for guests that libvirt drives and whose RAM Linerate copies; [`domain_folder`] judges the folder of
//!   their sockets.
//! - [`migrate`] holds the operations of a migration on both sides, each of them small: who calls them in which order
//!   is decided elsewhere.

#![allow(missing_docs, reason = "a name that says everything has no comment")]

pub mod access;
pub mod argv;
pub mod bytes;
pub mod description;
pub mod discover;
pub mod domain;
pub mod domain_folder;
pub mod drives;
pub mod graph;
pub mod host;
pub mod identity;
pub mod images;
pub mod in_use;
pub mod incoming_qemu;
pub mod leftover_ram;
pub mod leftovers;
pub mod migrate;
pub mod options;
pub mod own_folders;
mod plain_file;
pub mod process;
pub mod processor;
pub mod procfs;
pub mod qcow2;
pub mod qemu_user;
pub mod qmp;
pub mod read;
pub mod registry;
mod roots;
pub mod run_state;
pub mod shared;
pub mod socket_file;
pub mod spec;
pub mod stale;
pub mod vcpu_time;
pub mod verdict;
pub mod virtio_mem;
