//! The connection manager: event channels and identifiers, each released by its drop.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use socket2::SockAddr as Address;

use super::abi::{self, CmId, Context, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_PS_TCP};
use super::error::{RdmaError, check, last_errno};
use super::library::Library;

/// Where the connection manager reports events.
pub(super) struct EventChannel {
    library: &'static Library,
    channel: NonNull<abi::EventChannel>,
}

// SAFETY: a descriptor in a structure that never changes; the library reads it from any thread.
unsafe impl Send for EventChannel {}
// SAFETY: as above.
unsafe impl Sync for EventChannel {}

/// What happened; copied, so that the library has its memory back already.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) kind: u32,
    pub(super) status: i32,
    /// What the peer put into its request, answer or rejection.
    pub(super) data: Vec<u8>,
    /// A request's new identifier.
    pub(super) request: Option<Identifier>,
    /// The identifier that gets the event, for [`Identifier::is`]: of a request, the one that listens.
    pub(super) target_id: usize,
}

impl EventChannel {
    pub(super) fn new(library: &'static Library) -> Result<EventChannel, RdmaError> {
        // SAFETY: takes nothing; opens a descriptor and the list of devices.
        let channel = unsafe { (library.cm.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(|| RdmaError::NoDevice(last_errno()))?;
        let channel = EventChannel { library, channel };
        rustix::io::ioctl_fionbio(channel.descriptor(), true)
            .map_err(|source| RdmaError::Call { what: "opening the connection manager", source })?;
        Ok(channel)
    }

    /// Readable when there is an event.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is alive until the drop and holds the descriptor open.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// The next event, if there is one.
    pub(super) fn next(&self) -> Result<Option<Event>, RdmaError> {
        let mut event = std::ptr::null_mut();
        // SAFETY: the channel is alive and does not block; the place is ours.
        if unsafe { (self.library.cm.rdma_get_cm_event)(self.channel.as_ptr(), &mut event) } != 0 {
            return match last_errno() {
                Errno::AGAIN | Errno::INTR => Ok(None),
                source => Err(RdmaError::Call { what: "reading the connection manager's events", source }),
            };
        }
        // SAFETY: the library filled the place with an event that is ours until it is acknowledged below.
        let taken = unsafe { &*event };
        let length = usize::from(taken.conn.private_data_len);
        let data = match taken.conn.private_data.is_null() {
            true => Vec::new(),
            false => {
                // SAFETY: the library keeps so many bytes there as long as the event is not acknowledged.
                unsafe { std::slice::from_raw_parts(taken.conn.private_data.cast::<u8>(), length) }.to_vec()
            }
        };
        let request = (taken.event == RDMA_CM_EVENT_CONNECT_REQUEST)
            .then(|| NonNull::new(taken.id))
            .flatten()
            .map(|id| Identifier { library: self.library, id });
        let target_id = if request.is_some() { taken.listen_id } else { taken.id };
        let copied =
            Event { kind: taken.event, status: taken.status, data, request, target_id: target_id.addr() };
        // SAFETY: acknowledged once, and not used after.
        unsafe { (self.library.cm.rdma_ack_cm_event)(event) };
        Ok(Some(copied))
    }

    /// The next event before the deadline.
    pub(super) fn wait(&self, what: &'static str, deadline: Instant) -> Result<Event, RdmaError> {
        let begun = Instant::now();
        loop {
            if let Some(event) = self.next()? {
                return Ok(event);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let milliseconds = begun.elapsed().as_millis() as u64;
                return Err(RdmaError::TimedOut { what, milliseconds });
            }
            let mut fds = [PollFd::from_borrowed_fd(self.descriptor(), PollFlags::IN)];
            poll(&mut fds, left)?;
        }
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: made by `new`, released once; identifiers on it are dropped before (see the fields' order of those
        // who own both), and every event was acknowledged when it was taken.
        unsafe { (self.library.cm.rdma_destroy_event_channel)(self.channel.as_ptr()) };
    }
}

/// Waits for one of the descriptors.
pub(super) fn poll(fds: &mut [PollFd<'_>], wait: std::time::Duration) -> Result<(), RdmaError> {
    let timeout = rustix::event::Timespec {
        tv_sec: wait.as_secs().min(86_400) as i64,
        tv_nsec: wait.subsec_nanos().into(),
    };
    match rustix::event::poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(source) => Err(RdmaError::Call { what: "waiting", source }),
    }
}

/// One end of a connection, or what listens for them. Its queue pair, if it has one, is destroyed before it.
#[derive(Debug)]
pub(super) struct Identifier {
    library: &'static Library,
    id: NonNull<CmId>,
}

// SAFETY: the library locks what its calls change; the fields that are read here change only in calls that this process
// makes one after the other (resolving, then connecting).
unsafe impl Send for Identifier {}
// SAFETY: as above.
unsafe impl Sync for Identifier {}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Library")
    }
}

impl Identifier {
    pub(super) fn new(library: &'static Library, channel: &EventChannel) -> Result<Identifier, RdmaError> {
        let mut id = std::ptr::null_mut();
        // SAFETY: the channel is alive and outlives the identifier; the place is ours.
        let answer = unsafe {
            let context = std::ptr::null_mut();
            (library.cm.rdma_create_id)(channel.channel.as_ptr(), &mut id, context, RDMA_PS_TCP)
        };
        check("making a connection identifier", answer)?;
        let id = NonNull::new(id).ok_or(RdmaError::NoDevice(Errno::NODEV))?;
        Ok(Identifier { library, id })
    }

    pub(super) fn library(&self) -> &'static Library {
        self.library
    }

    pub(super) fn pointer(&self) -> *mut CmId {
        self.id.as_ptr()
    }

    /// Whether an event names it in [`Event::target_id`].
    pub(super) fn is(&self, target_id: usize) -> bool {
        self.id.addr().get() == target_id
    }

    /// The device, once an address has decided which.
    pub(super) fn context(&self) -> Option<NonNull<Context>> {
        // SAFETY: alive until the drop; set by the library before it says that the address is resolved.
        NonNull::new(unsafe { self.id.as_ref().verbs })
    }

    /// The other end's address.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: as above; plain bytes.
        socket_address(unsafe { &(*self.id.as_ptr()).dst_storage })
    }

    pub(super) fn own(&self) -> Option<SocketAddr> {
        // SAFETY: as above; plain bytes.
        socket_address(unsafe { &(*self.id.as_ptr()).src_storage })
    }

    pub(super) fn bind(&self, address: SocketAddr) -> Result<(), RdmaError> {
        let address = Address::from(address);
        // SAFETY: identifier and address are alive during the call, which does not keep the address.
        check("binding to the address", unsafe {
            (self.library.cm.rdma_bind_addr)(self.pointer(), address.as_ptr().cast_mut().cast())
        })
    }

    pub(super) fn listen(&self, backlog: i32) -> Result<u16, RdmaError> {
        // SAFETY: the identifier is alive and bound.
        check("listening", unsafe { (self.library.cm.rdma_listen)(self.pointer(), backlog) })?;
        // SAFETY: as above; gives the port in network order.
        Ok(u16::from_be(unsafe { (self.library.cm.rdma_get_src_port)(self.pointer()) }))
    }

    pub(super) fn resolve_address(
        &self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        milliseconds: i32,
    ) -> Result<(), RdmaError> {
        let (local, remote) = (local.map(Address::from), Address::from(remote));
        let from = local.as_ref().map_or(std::ptr::null_mut(), |local| local.as_ptr().cast_mut().cast());
        // SAFETY: identifier and addresses are alive during the call, which does not keep them.
        check("resolving the address", unsafe {
            let to = remote.as_ptr().cast_mut().cast();
            (self.library.cm.rdma_resolve_addr)(self.pointer(), from, to, milliseconds)
        })
    }

    pub(super) fn resolve_route(&self, milliseconds: i32) -> Result<(), RdmaError> {
        // SAFETY: the identifier is alive and its address resolved.
        check("resolving the route", unsafe {
            (self.library.cm.rdma_resolve_route)(self.pointer(), milliseconds)
        })
    }

    /// An option of one byte.
    pub(super) fn set(&self, option: i32, mut value: u8) -> Result<(), RdmaError> {
        // SAFETY: the value is alive during the call and as long as said.
        check("setting an option of the connection", unsafe {
            let place = (&raw mut value).cast();
            (self.library.cm.rdma_set_option)(self.pointer(), abi::RDMA_OPTION_ID, option, place, 1)
        })
    }

    /// Its events come over this channel from now on.
    pub(super) fn migrate(&self, channel: &EventChannel) -> Result<(), RdmaError> {
        // SAFETY: both are alive, and the owner of both drops the channel later.
        check("moving a connection to its own events", unsafe {
            (self.library.cm.rdma_migrate_id)(self.pointer(), channel.channel.as_ptr())
        })
    }

    pub(super) fn reject(&self, data: &[u8]) -> Result<(), RdmaError> {
        let length = u8::try_from(data.len()).map_err(|_| RdmaError::Rules("a rejection is too long"))?;
        // SAFETY: the data is alive during the call and as long as said.
        check("rejecting a connection", unsafe {
            (self.library.cm.rdma_reject)(self.pointer(), data.as_ptr().cast(), length)
        })
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: made by the library, destroyed once, after its queue pair.
        unsafe { (self.library.cm.rdma_destroy_id)(self.id.as_ptr()) };
    }
}

/// `struct sockaddr_in` or `sockaddr_in6` in a `sockaddr_storage`.
fn socket_address(storage: &[u8; 128]) -> Option<SocketAddr> {
    const AF_INET: u16 = 2;
    const AF_INET6: u16 = 10;
    let family = u16::from_ne_bytes(*storage.first_chunk()?);
    let port = u16::from_be_bytes(*storage.get(2..)?.first_chunk()?);
    let ip: IpAddr = match family {
        AF_INET => Ipv4Addr::from(*storage.get(4..)?.first_chunk::<4>()?).into(),
        AF_INET6 => Ipv6Addr::from(*storage.get(8..)?.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_are_read() {
        for text in ["192.0.2.7:7979", "[2001:db8::1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = Address::from(address);
            let mut storage = [0u8; 128];
            for (offset, byte) in storage.iter_mut().enumerate().take(raw.len() as usize) {
                // SAFETY: below the length that the address itself names.
                *byte = unsafe { raw.as_ptr().cast::<u8>().add(offset).read() };
            }
            assert_eq!(socket_address(&storage), Some(address));
        }
        assert_eq!(socket_address(&[0; 128]), None);
    }
}
