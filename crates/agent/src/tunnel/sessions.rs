//! All tunnels, and what they need of this host.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};

use linerate_core::{Code, Fault, SessionId, Side, Step};
use linerate_net::lock::Mutex;
use linerate_wire::frame::Hello;

use super::{Tunnel, start};
use crate::config::Config;
use crate::security::{PeerName, Security};
use crate::session::offer::RdmaPorts;
use crate::stream_gate::{ArrivalCount, StreamGates};

/// Tunnels at a time: each has threads and connections.
const TUNNELS_MAX: usize = 64;

pub struct Sessions {
    pub(super) config: Arc<Config>,
    pub(super) gates: Arc<StreamGates>,
    pub(super) arrivals: Arc<ArrivalCount>,
    pub(super) rdma: RdmaPorts,
    pub(super) security: Arc<Security>,
    live: Mutex<BTreeMap<SessionId, Arc<Tunnel>>>,
}

impl Sessions {
    pub(crate) fn new(
        config: Arc<Config>,
        gates: Arc<StreamGates>,
        arrivals: Arc<ArrivalCount>,
        rdma: RdmaPorts,
        security: Arc<Security>,
    ) -> Sessions {
        Sessions { config, gates, arrivals, rdma, security, live: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SessionId, Arc<Tunnel>>> {
        self.live.lock()
    }

    pub fn get(&self, session: SessionId) -> Option<Arc<Tunnel>> {
        self.lock().get(&session).cloned()
    }

    /// One that was asked for here.
    pub(super) fn add(&self, tunnel: Arc<Tunnel>) {
        self.lock().insert(tunnel.session, tunnel);
    }

    pub(super) fn forget(&self, session: SessionId) {
        self.lock().remove(&session);
    }

    /// Another host wants streams to sockets here. Its connection is not welcomed yet.
    pub fn accept(
        self: &Arc<Sessions>,
        hello: &Hello,
        peer: SocketAddr,
        opener: PeerName,
    ) -> Result<Arc<Tunnel>, Fault> {
        let refuse = |code, detail: &str| Err(Fault::new(code, Step::Authorise, Side::Destination, detail));
        // Held meanwhile: of two that arrive at once, one finds the other.
        let mut live = self.lock();
        if live.len() >= TUNNELS_MAX {
            return refuse(Code::GuestBusy, "there are as many tunnels as there may be");
        }
        if live.contains_key(&hello.session) {
            return refuse(Code::ProtocolViolation, "this session exists already");
        }
        let tunnel = start::accept(self, hello, peer, opener)?;
        live.insert(hello.session, tunnel.clone());
        Ok(tunnel)
    }
}
