//! Two agents in one process, one of which does what it should not.

use std::sync::mpsc::Receiver;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use linerate_api::{TunnelPair, TunnelRequest};
use linerate_net::tcp::listen::{Accepted, ListenOptions, Listener};
use linerate_wire::VERSION_MAX;
use linerate_wire::frame::{Role, Welcome};
use tempfile::TempDir;

use super::*;
use crate::agent::Agent;
use crate::testing::agent;

/// Only a hang reaches it.
const LONG: Duration = Duration::from_secs(60);

/// A tunnel from one agent to the other, whose connections the test forwards.
struct Stage {
    begun: Begun,
    other: Arc<Agent>,
    /// Roles of what was connected, in order.
    connected: Receiver<Role>,
    _listener: Listener,
    _dirs: [TempDir; 2],
}

impl Stage {
    /// `takes` does with a connection what the other agent would do, or something else.
    fn new(takes: impl Fn(&Arc<Agent>, Accepted) + Send + Sync + 'static) -> Stage {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let place = Arc::new(OnceLock::<Arc<Agent>>::new());
        let (roles, connected) = std::sync::mpsc::channel();
        let roles = Mutex::new(roles);
        let taking = place.clone();
        let handler = move |accepted: Accepted| {
            let _ = roles.lock().send(accepted.hello.role);
            takes(taking.get().unwrap(), accepted);
        };
        let listener =
            Listener::start(&[([127, 0, 0, 1], 0).into()], ListenOptions::default(), handler).unwrap();
        let other = agent(&dirs[1], listener.addresses());
        place.set(other.clone()).ok().unwrap();
        let request = TunnelRequest {
            to: listener.addresses()[0].to_string(),
            pairs: vec![TunnelPair {
                listen: "tcp:127.0.0.1:0".parse().unwrap(),
                connect: "tcp:127.0.0.1:9".parse().unwrap(),
                waits: false,
                drives: false,
            }],
            links: vec!["127.0.0.0/8".into()],
            link_timeout_s: 60,
        };
        let begun = begin(&agent(&dirs[0], &[]).tunnels, &request).unwrap();
        Stage { begun, other, connected, _listener: listener, _dirs: dirs }
    }

    /// Waits for so many connections of a kind.
    fn wait_connected(&self, role: Role, times: usize) {
        let end = Instant::now() + LONG;
        let mut seen = 0;
        while seen < times {
            let left = end.saturating_duration_since(Instant::now());
            let next = self.connected.recv_timeout(left);
            seen += usize::from(next.unwrap_or_else(|_| panic!("{seen} of {times} {role:?}")) == role);
        }
    }

    /// The tunnel at the other host.
    fn theirs(&self) -> Arc<Tunnel> {
        self.other.tunnels.get(self.begun.tunnel.session).unwrap()
    }

    fn wait_event(&mut self, wanted: impl Fn(&TunnelEvent) -> bool) -> TunnelEvent {
        let end = Instant::now() + LONG;
        loop {
            match self.begun.events.try_recv() {
                Ok(event) if wanted(&event) => return event,
                Ok(_) => {}
                Err(_) => std::thread::sleep(Duration::from_millis(2)),
            }
            assert!(Instant::now() < end, "waited in vain");
        }
    }
}

fn takes(agent: &Arc<Agent>, accepted: Accepted) {
    agent.accept(accepted);
}

#[test]
fn a_link_whose_reverse_channel_has_ended_is_opened_again() {
    let closed = AtomicBool::new(false);
    let mut stage = Stage::new(move |agent, accepted| {
        if accepted.hello.role == Role::ReverseData && !closed.swap(true, Ordering::SeqCst) {
            // Taken, and of no use from then on.
            drop(accepted.welcome(Welcome { version: VERSION_MAX, control_received: 0 }).unwrap());
        } else {
            takes(agent, accepted);
        }
    });
    stage.wait_event(|event| matches!(event, TunnelEvent::LinkLost { .. }));
    stage.wait_connected(Role::ReverseData, 2);
    stage.wait_event(|event| matches!(event, TunnelEvent::LinkUp { .. }));
}

#[test]
fn the_other_end_of_a_tunnel_reaches_nothing_at_the_host_that_asked_for_it() {
    let mut stage = Stage::new(takes);
    stage.wait_event(|event| matches!(event, TunnelEvent::LinkUp { .. }));
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let theirs = stage.theirs();
    theirs
        .stream_transport
        .streams
        .open("tcp:127.0.0.1:9", linerate_net::stream::endpoint::Socket::new(socket).unwrap())
        .unwrap();
    let ended = stage.wait_event(|event| matches!(event, TunnelEvent::Ended { .. }));
    let TunnelEvent::Ended { error } = ended else { unreachable!() };
    assert_eq!(error.code, "protocol_violation", "{error:?}");
}

#[test]
fn a_peer_that_wants_a_fence_of_a_channel_never_opened_breaks_the_protocol() {
    let mut stage = Stage::new(takes);
    stage.wait_event(|event| matches!(event, TunnelEvent::LinkUp { .. }));
    stage.theirs().send(Input::Fence(1_000_000));
    let ended = stage.wait_event(|event| matches!(event, TunnelEvent::Ended { .. }));
    let TunnelEvent::Ended { error } = ended else { unreachable!() };
    assert_eq!(error.code, "protocol_violation", "{error:?}");
}
