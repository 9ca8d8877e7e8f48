//! LLDP: what the other end of each cable says of itself.
//!
//! Frames are received on a packet socket of our own, so that nothing needs to be installed. Where systemd-networkd
//! listens already, what it keeps is read too. Switches speak every 30 s, so the agent listens all the time.

pub mod frame;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use linerate_lock::Mutex;
use linerate_net::netlink::NetlinkError;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::sys::socket::{LinkAddr, recvfrom};
use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use crate::collect::kernel::links;
use crate::collect::kernel::netlink::{Asker, Writer};
use crate::collect::root::Root;
use crate::model::{Neighbour, Port, PortKind};

const LLDP: u16 = 0x88cc;
/// The address that the nearest bridge listens at; ports pass its frames up only if they are set to.
const NEAREST_BRIDGE: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];
/// How long the listener takes to notice that it shall end.
const TURN: Duration = Duration::from_millis(200);
/// A flood of frames must not fill the memory.
const NEIGHBOURS_MAX: usize = 4096;

/// LLDP frames cannot be received.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum ListenError {
    /// No packet socket: needs CAP_NET_RAW.
    #[error("no packet socket for LLDP: {0}; what switches send stays unknown")]
    Socket(#[source] io::Error),
    #[error("cannot start a thread for LLDP: {0}; what switches send stays unknown")]
    Thread(#[source] io::Error),
}

struct ReceivedNeighbour {
    neighbour: Neighbour,
    until: Instant,
}

/// Port, chassis and port of the neighbour.
type Key = (u32, String, String);
type Table = Arc<Mutex<BTreeMap<Key, ReceivedNeighbour>>>;

/// Listens until it is dropped.
pub struct Listener {
    table: Table,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    _memberships: Vec<Membership>,
}

impl Listener {
    /// Begins to listen in the network namespace of this thread.
    pub fn start() -> Result<Listener, ListenError> {
        let protocol = Protocol::from(i32::from(LLDP.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).map_err(ListenError::Socket)?;
        socket.set_read_timeout(Some(TURN)).map_err(ListenError::Socket)?;
        let table = Table::default();
        let stop = Arc::new(AtomicBool::new(false));
        let (received, ended) = (table.clone(), stop.clone());
        let listen = move || {
            while !ended.load(Ordering::Relaxed) {
                receive(&socket, &received);
            }
        };
        let thread =
            std::thread::Builder::new().name("lldp".into()).spawn(listen).map_err(ListenError::Thread)?;
        // Without the membership a physical port may still pass the frames; ports that come later are not joined.
        let _memberships = memberships().unwrap_or_default();
        Ok(Listener { table, stop, thread: Some(thread), _memberships })
    }

    /// What was received and still holds, with the name of the port.
    pub fn neighbours(&self) -> Vec<(String, Neighbour)> {
        let names: BTreeMap<u32, String> = links::read()
            .unwrap_or_default()
            .into_iter()
            .filter_map(|link| Some((link.port.index?, link.port.name)))
            .collect();
        let now = Instant::now();
        let mut table = self.table.lock();
        table.retain(|_, received| received.until > now);
        let named = |(key, received): (&Key, &ReceivedNeighbour)| {
            Some((names.get(&key.0)?.clone(), received.neighbour.clone()))
        };
        table.iter().filter_map(named).collect()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn receive(socket: &Socket, table: &Table) {
    let mut frame = [0; 2048];
    match recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut frame) {
        Ok((length, from)) => {
            let port = from.and_then(|from| u32::try_from(from.ifindex()).ok());
            if let Some(port) = port {
                received(port, frame.get(..length).unwrap_or_default(), &mut table.lock());
            }
        }
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EINTR) => {}
        // A port that was removed is reported once; a lasting error must not spin.
        Err(_) => std::thread::sleep(TURN),
    }
}

fn received(port: u32, frame: &[u8], table: &mut BTreeMap<Key, ReceivedNeighbour>) {
    let Some(advertisement) = frame::read(frame) else { return };
    let neighbour = advertisement.neighbour;
    let key =
        (port, neighbour.chassis.clone().unwrap_or_default(), neighbour.port.clone().unwrap_or_default());
    if advertisement.holds_s == 0 {
        table.remove(&key);
    } else if table.len() < NEIGHBOURS_MAX || table.contains_key(&key) {
        let until = Instant::now() + Duration::from_secs(advertisement.holds_s.into());
        table.insert(key, ReceivedNeighbour { neighbour, until });
    }
}

/// A port listens at the bridge's address until this is dropped.
struct Membership {
    port: u32,
}

fn memberships() -> Result<Vec<Membership>, NetlinkError> {
    let physical = links::read()?.into_iter().filter(|link| link.port.kind == PortKind::Physical);
    let join = |port: u32| change(NEW_NEIGHBOUR, CREATE_NEW, port).ok().map(|()| Membership { port });
    Ok(physical.filter_map(|link| link.port.index.and_then(join)).collect())
}

const NEW_NEIGHBOUR: u16 = 28;
const DELETE_NEIGHBOUR: u16 = 29;
/// Fails where another program has joined already: then it is not ours to leave.
const CREATE_NEW: u16 = 0x200 | 0x400;

/// A static entry of the port's own address filter (`bridge fdb add … self`).
fn change(kind: u16, flags: u16, port: u32) -> Result<(), NetlinkError> {
    const BRIDGE: u8 = 7;
    const PERMANENT: u16 = 0x80;
    const OWN: u8 = 2;
    let mut message = vec![BRIDGE, 0, 0, 0];
    message.extend(port.to_ne_bytes());
    message.extend(PERMANENT.to_ne_bytes());
    message.extend([OWN, 0]);
    message.extend(Writer::new().bytes(2, &NEAREST_BRIDGE).finish());
    Asker::open(NETLINK_ROUTE)?.ask(kind, flags, &message).map(drop)
}

impl Drop for Membership {
    fn drop(&mut self) {
        // The port may be gone, and the entry with it.
        let _ = change(DELETE_NEIGHBOUR, 0, self.port);
    }
}

const NETWORKD_FOLDER: &str = "run/systemd/netif/lldp";

/// Neighbours of these ports, with the port's name.
pub fn networkd(root: &Root, ports: &[Port]) -> Vec<(String, Neighbour)> {
    let of = |port: &Port| {
        let bytes =
            port.index.and_then(|index| root.bytes(format!("{NETWORKD_FOLDER}/{index}"))).unwrap_or_default();
        networkd_frames(&bytes)
            .into_iter()
            .map(|neighbour| (port.name.clone(), neighbour))
            .collect::<Vec<_>>()
    };
    ports.iter().flat_map(of).collect()
}

fn networkd_frames(mut bytes: &[u8]) -> Vec<Neighbour> {
    let mut neighbours = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
        let Ok(length) = usize::try_from(u64::from_le_bytes(*length)) else { break };
        let Some((frame, behind)) = rest.split_at_checked(length) else { break };
        neighbours.extend(frame::read(frame).map(|advertisement| advertisement.neighbour));
        bytes = behind;
    }
    neighbours
}

#[cfg(test)]
mod tests {
    mod listen {
        use super::super::*;
        use crate::collect::lldp::frame::tests::switch_frame;

        #[test]
        fn a_neighbour_that_leaves_is_forgotten() {
            let mut table = BTreeMap::new();
            received(3, &switch_frame("leaf1", 9234, 120), &mut table);
            received(3, &switch_frame("leaf1-renamed", 9234, 120), &mut table);
            assert_eq!(table.len(), 1);
            assert_eq!(table.values().next().unwrap().neighbour.system.as_deref(), Some("leaf1-renamed"));
            received(4, &switch_frame("leaf1", 9234, 120), &mut table);
            assert_eq!(table.len(), 2);
            received(3, &switch_frame("leaf1", 9234, 0), &mut table);
            assert_eq!(table.keys().map(|key| key.0).collect::<Vec<_>>(), [4]);
        }
    }

    mod networkd {
        use super::super::*;
        use crate::collect::lldp::frame::tests::switch_frame;

        #[test]
        fn two_frames_in_one_file() {
            let folder = tempfile::tempdir().unwrap();
            let place = folder.path().join(NETWORKD_FOLDER);
            std::fs::create_dir_all(&place).unwrap();
            let mut bytes = Vec::new();
            for system in ["leaf1", "leaf2"] {
                let frame = switch_frame(system, 9234, 120);
                bytes.extend((frame.len() as u64).to_le_bytes());
                bytes.extend(frame);
            }
            bytes.extend(u64::MAX.to_le_bytes());
            std::fs::write(place.join("3"), bytes).unwrap();
            let ports = [Port { name: "ens1f0".into(), index: Some(3), ..Port::default() }];
            let systems: Vec<_> = networkd(&Root::at(folder.path()), &ports)
                .into_iter()
                .map(|(port, one)| (port, one.system))
                .collect();
            let expected = ["leaf1", "leaf2"].map(|system| ("ens1f0".to_owned(), Some(system.to_owned())));
            assert_eq!(systems, expected);
        }
    }
}
