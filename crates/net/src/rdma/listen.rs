//! Taking connections at the destination.
//!
//! One thread accepts the requests for all addresses. A request has the HELLO in it, so a silent client costs
//! nothing; the kernel bounds how many wait.

use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_core::Fault;
use linerate_wire::frame::{Frame, Hello, Welcome};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::abi::{RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_DEVICE_REMOVAL};
use super::cm::{EventChannel, Identifier, poll};
use super::connection::Connection;
use super::domain::Domains;
use super::error::{RdmaError, check};
use super::library::Library;
use super::options::RdmaOptions;
use crate::round_trip::RoundTrip;
use linerate_lock::Mutex;

/// Requests that wait in the kernel, per address.
const BACKLOG: i32 = 128;
/// Most bytes that a rejection can carry over InfiniBand and RoCE.
const REJECTION_BYTES: usize = 148;

/// A request with a HELLO that has no answer yet. Dropped without one, it is rejected.
#[derive(Debug)]
pub struct Accepted {
    pub hello: Hello,
    pub peer: SocketAddr,
    identifier: Identifier,
    counted: Option<Arc<dyn Any + Send + Sync>>,
}

impl Accepted {
    /// Keeps this as long as the connection lives.
    pub fn count_by(&mut self, counted: Arc<dyn Any + Send + Sync>) {
        self.counted = Some(counted);
    }

    /// Takes the connection; its windows are those of the session that the domains belong to. The round trip is that of
    /// the link.
    pub fn welcome(
        self,
        welcome: Welcome,
        domains: &Domains,
        round_trip: RoundTrip,
    ) -> Result<Arc<Connection>, RdmaError> {
        let mut answer = Vec::new();
        Frame::Welcome(welcome)
            .encode(0, 0, 0, &mut answer)
            .map_err(|_| RdmaError::Rules("a welcome could not be made"))?;
        let events = EventChannel::new(self.identifier.library())?;
        self.identifier.migrate(&events)?;
        let mut connection = Connection::prepare(self.identifier, events, domains)?;
        connection.count_by(self.counted);
        let mut parameters = Connection::parameters(&answer)?;
        let identifier = connection.identifier();
        // The adapter of this end sends acknowledgements and grants, which can be lost as well. The connection
        // manager's own time-out is longer than what a channel that is silent is given.
        RdmaOptions { round_trip, ..RdmaOptions::default() }.apply_time_out(identifier);
        connection.check_port()?;
        // SAFETY: the identifier is that of a request, its queue pair is made and has its receives ready; the
        // parameters and the answer that they point to are read during the call.
        check("accepting a connection", unsafe {
            (identifier.library().cm.rdma_accept)(identifier.pointer(), &mut parameters)
        })?;
        Ok(Arc::new(connection))
    }

    /// Address of this end.
    pub fn own_address(&self) -> Option<SocketAddr> {
        self.identifier.own()
    }

    /// Does not take it and says why, as far as there is room.
    pub fn refuse(self, mut fault: Fault) -> Result<(), RdmaError> {
        let mut answer = Vec::new();
        loop {
            Frame::Refuse(fault.clone())
                .encode(0, 0, 0, &mut answer)
                .map_err(|_| RdmaError::Rules("a refusal could not be made"))?;
            if answer.len() <= REJECTION_BYTES || fault.detail.pop().is_none() {
                return self.identifier.reject(&answer);
            }
        }
    }
}

/// An address that belongs to a device.
struct BoundAddress {
    address: IpAddr,
    port: u16,
    identifier: Identifier,
}

/// What the listener and its thread share.
struct Shared {
    library: &'static Library,
    wanted: Vec<SocketAddr>,
    // Before the channel that their events come over.
    bound: Mutex<Vec<BoundAddress>>,
    events: EventChannel,
}

impl Shared {
    fn bound(&self) -> MutexGuard<'_, Vec<BoundAddress>> {
        self.bound.lock()
    }

    /// Listens at those of the addresses at which it does not yet. Returns why the last of them cannot be used.
    fn listen(&self) -> Option<RdmaError> {
        let mut bound = self.bound();
        let mut last = None;
        for &address in &self.wanted {
            if bound.iter().any(|place| place.address == address.ip()) {
                continue;
            }
            match listen(self.library, &self.events, address) {
                Ok((identifier, port)) => {
                    bound.push(BoundAddress { address: address.ip(), port, identifier })
                }
                Err(error) => {
                    tracing::trace!(%address, %error, "no RDMA at this address");
                    last = Some(error);
                }
            }
        }
        last
    }

    /// A device can be taken away only when nothing uses it.
    fn leave(&self, target_id: usize) {
        self.bound().retain(|place| !place.identifier.is(target_id));
    }
}

/// Listens until it is dropped. Connections that were taken live on.
pub struct Listener {
    shared: Arc<Shared>,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("rdma::Listener").field(&self.addresses()).finish()
    }
}

impl Listener {
    /// Listens on those of the addresses that belong to RDMA devices; an error if none does. A port that is taken
    /// (iWARP shares them with TCP) is replaced by one of the system's choice. The handler is called in the listener's
    /// thread.
    ///
    /// A device that is taken away is let go, with its address. [`Listener::check_again`] finds those that came.
    pub fn start(
        addresses: &[SocketAddr],
        handler: impl Fn(Accepted) + Send + 'static,
    ) -> Result<Listener, RdmaError> {
        let library = Library::get().map_err(RdmaError::Library)?;
        let events = EventChannel::new(library)?;
        let shared = Shared { library, wanted: addresses.to_vec(), bound: Mutex::default(), events };
        let last = shared.listen();
        if shared.bound().is_empty() {
            return Err(match last {
                Some(RdmaError::Call { source, .. }) => RdmaError::NoDevice(source),
                Some(other) => other,
                None => RdmaError::NoDevice(Errno::NODEV),
            });
        }
        let failed = |source| RdmaError::Call { what: "starting the thread of RDMA connections", source };
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        let shared = Arc::new(shared);
        let accepting = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("accept-rdma".into())
            .spawn(move || accept_all(&accepting, &stopped, &handler))
            .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)))?;
        Ok(Listener { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Listens at addresses that a device has only now.
    pub fn check_again(&self) {
        let _ = self.shared.listen();
    }

    /// Where RDMA connections are taken now.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared.bound().iter().map(|place| SocketAddr::new(place.address, place.port)).collect()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // How it ended changes nothing any more.
            let _ = thread.join();
        }
    }
}

fn listen(
    library: &'static Library,
    events: &EventChannel,
    address: SocketAddr,
) -> Result<(Identifier, u16), RdmaError> {
    let open = |address: SocketAddr| {
        let identifier = Identifier::new(library, events)?;
        identifier.bind(address)?;
        let port = identifier.listen(BACKLOG)?;
        Ok((identifier, port))
    };
    match open(address) {
        Err(RdmaError::Call { source: Errno::ADDRINUSE, .. }) => open(SocketAddr::new(address.ip(), 0)),
        opened => opened,
    }
}

/// Until the other end of the pipe is closed.
fn accept_all(shared: &Shared, stopped: &OwnedFd, handler: &impl Fn(Accepted)) {
    loop {
        match shared.events.next() {
            Ok(Some(event)) => {
                match (event.request, event.kind) {
                    (Some(identifier), _) => begin(identifier, &event.data, handler),
                    (None, RDMA_CM_EVENT_DEVICE_REMOVAL | RDMA_CM_EVENT_ADDR_CHANGE) => {
                        tracing::info!("an RDMA device or its address is taken away; it is let go");
                        shared.leave(event.target_id);
                    }
                    (None, kind) => tracing::trace!(kind, "an event of what listens"),
                }
                continue;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "a request for an RDMA connection could not be read");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        let mut fds = [
            PollFd::from_borrowed_fd(shared.events.descriptor(), PollFlags::IN),
            PollFd::new(stopped, PollFlags::IN),
        ];
        if poll(&mut fds, Duration::from_secs(3600)).is_err() {
            return;
        }
        if fds.get(1).is_some_and(|stopped| !stopped.revents().is_empty()) {
            return;
        }
    }
}

fn begin(identifier: Identifier, data: &[u8], handler: &impl Fn(Accepted)) {
    let Some(peer) = identifier.peer() else { return };
    match Hello::from_request(data) {
        Ok(hello) => handler(Accepted { hello, peer, identifier, counted: None }),
        Err(error) => tracing::debug!(%peer, %error, "a request for an RDMA connection is not one of ours"),
    }
}
