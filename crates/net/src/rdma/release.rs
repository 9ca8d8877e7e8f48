//! Releasing a connection's identifier, at once or when its port is up again.
//!
//! The kernel notifies the peer when an identifier of an open connection is destroyed. All connections of a device are
//! made through queue pair 1. If soft-RoCE cannot route a message, it puts that pair into an error state for good.
//! With kernel 6.12 `rdma resource show qp` said `type GSI state ERR`. There is no route while the port is down. So an
//! identifier whose port is down is kept until the port is up.

use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::abi::RDMA_CM_EVENT_DEVICE_REMOVAL;
use super::cm::{EventChannel, Identifier};
use super::devices;
use linerate_lock::Mutex;

/// How often the ports of kept identifiers are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// Identifiers that are kept at most, some hundred bytes and a descriptor each. Links of many sessions that were cut.
const KEPT_MAX: usize = 256;
const IFF_UP: u32 = 1;

static KEPT: Mutex<Kept> = Mutex::new(Kept { ends: Vec::new(), watched: false });

struct Kept {
    ends: Vec<End>,
    /// A thread looks at them.
    watched: bool,
}

/// An identifier and the channel of its events. Dropping it destroys both, the identifier first.
struct End {
    identifier: Identifier,
    events: EventChannel,
    /// The network interface below it, if it is known.
    interface: Option<String>,
}

impl End {
    fn port_is_up(&self) -> bool {
        self.interface.as_deref().is_none_or(|name| is_up(Path::new("/sys/class/net"), name))
    }

    /// The kernel waits for the last user of a device that is taken away.
    fn device_goes(&self) -> bool {
        let next = std::iter::from_fn(|| self.events.next().ok().flatten());
        next.take(16).any(|event| event.kind == RDMA_CM_EVENT_DEVICE_REMOVAL)
    }
}

/// An identifier in use with the channel of its events. Dropping it is safe while the port is down.
pub(super) struct CmEnd(ManuallyDrop<End>);

impl CmEnd {
    pub(super) fn new(identifier: Identifier, events: EventChannel) -> CmEnd {
        let interface = identifier.own().and_then(|own| interface_of(own.ip()));
        CmEnd(ManuallyDrop::new(End { identifier, events, interface }))
    }

    pub(super) fn identifier(&self) -> &Identifier {
        &self.0.identifier
    }

    pub(super) fn events(&self) -> &EventChannel {
        &self.0.events
    }

    /// Whether a message to the peer has a way out of this host.
    pub(super) fn port_is_up(&self) -> bool {
        self.0.port_is_up()
    }
}

impl Drop for CmEnd {
    fn drop(&mut self) {
        // SAFETY: taken once, here, and not used after.
        let end = unsafe { ManuallyDrop::take(&mut self.0) };
        if !end.port_is_up() {
            keep(end);
        }
    }
}

/// The network interface of the RDMA port that has this address.
fn interface_of(own: IpAddr) -> Option<String> {
    devices::list().iter().find_map(|port| port.gid_of(own)?.interface.clone())
}

/// Whether the interface is switched on. One that is not there any more takes its RDMA device along and needs no care.
fn is_up(root: &Path, interface: &str) -> bool {
    let flags = std::fs::read_to_string(root.join(interface).join("flags")).unwrap_or_default();
    let flags = flags.trim().strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok());
    flags.is_none_or(|flags| flags & IFF_UP != 0)
}

fn keep(end: End) {
    let mut kept = KEPT.lock();
    if kept.ends.len() >= KEPT_MAX {
        kept.ends.remove(0);
    }
    tracing::debug!(interface = end.interface, "the port is down: the RDMA connection is released later");
    kept.ends.push(end);
    if !kept.watched {
        let started = std::thread::Builder::new().name("rdma-release".into()).spawn(watch);
        // Without a thread they stay until the next one is kept.
        kept.watched = started.is_ok();
    }
}

/// Until none is kept.
fn watch() {
    loop {
        std::thread::sleep(LOOK);
        let mut kept = KEPT.lock();
        kept.ends.retain(|end| !end.port_is_up() && !end.device_goes());
        if kept.ends.is_empty() {
            kept.watched = false;
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_down_only_if_its_flags_say_so() {
        let root = tempfile::tempdir().unwrap();
        let set = |flags: &str| {
            let folder = root.path().join("l1");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("flags"), flags).unwrap();
        };
        assert!(is_up(root.path(), "l1"), "it is not there");
        for (flags, up) in [("0x1003\n", true), ("0x1002\n", false), ("none\n", true)] {
            set(flags);
            assert_eq!(is_up(root.path(), "l1"), up, "{flags}");
        }
    }
}
