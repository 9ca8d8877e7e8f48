//! All tunnels, and what they need of this host.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};

use linerate_core::{Code, Fault, SessionId, Side, Step};
use linerate_lock::Mutex;
use linerate_wire::frame::Hello;

use super::{Tunnel, start};
use crate::config::Config;
use crate::security::{PeerName, Security};
use crate::session::offer::RdmaPorts;
use crate::stream_gate::{ArrivalCount, StreamGates};

/// Tunnels at a time: each has threads and connections.
const TUNNELS_MAX: usize = 64;
/// Of them from one host, where hosts prove who they are.
const TUNNELS_OF_ONE_HOST: usize = 16;

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
        if let Err(why) = check_room(live.values().map(|tunnel| &tunnel.opener), &opener) {
            return refuse(Code::GuestBusy, &why.to_string());
        }
        if live.contains_key(&hello.session) {
            return refuse(Code::ProtocolViolation, "this session exists already");
        }
        let tunnel = start::accept(self, hello, peer, opener)?;
        live.insert(hello.session, tunnel.clone());
        Ok(tunnel)
    }
}

/// Why no further tunnel may be opened.
#[derive(Debug, thiserror::Error)]
enum NoRoom {
    #[error(
        "this host has reached its limit of tunnels from other hosts; try again when one of them has ended"
    )]
    OfAllHosts,
    #[error(
        "this host has reached its limit of tunnels from a single host; try again when one of them has ended"
    )]
    OfOneHost,
}

/// Whether one more tunnel may be opened from there. `openers` has that of each tunnel; none of those from here.
fn check_room<'a>(
    openers: impl Iterator<Item = &'a PeerName> + Clone,
    opener: &PeerName,
) -> Result<(), NoRoom> {
    if openers.clone().count() >= TUNNELS_MAX {
        return Err(NoRoom::OfAllHosts);
    }
    let of_host = openers.filter(|one| opener.is_some() && *one == opener).count();
    if of_host >= TUNNELS_OF_ONE_HOST {
        return Err(NoRoom::OfOneHost);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_does_not_take_the_tunnels_of_others() {
        let named = |name: &str| -> PeerName { Some(name.parse().unwrap()) };
        let mut openers = vec![named("b"); TUNNELS_OF_ONE_HOST];
        let room = |openers: &[PeerName], opener: &PeerName| check_room(openers.iter(), opener).is_ok();
        assert!(!room(&openers, &named("b")));
        assert!(room(&openers[1..], &named("b")) && room(&openers, &named("c")));
        // In plain text no host is known.
        openers = vec![None; TUNNELS_MAX - 1];
        assert!(room(&openers, &None));
        openers.push(None);
        assert!(!room(&openers, &None));
    }
}
