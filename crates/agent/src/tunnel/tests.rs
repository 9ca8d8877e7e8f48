//! Two agents in one process, one of which does what it should not.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use linerate_api::{TunnelPair, TunnelRequest};
use linerate_core::Outcome;
use linerate_net::tcp::connect::{ConnectError, Route, connect, query};
use linerate_net::tcp::listen::{Accepted, Listener};
use linerate_net::tcp::options::TcpOptions;
use linerate_wire::VERSION_MAX;
use linerate_wire::frame::{Role, Welcome};
use tempfile::TempDir;

use super::*;
use crate::agent::Agent;
use crate::security::Security;
use crate::security::tests::{member, revoke};
use crate::session::identity::Identity;
use crate::testing::{authority, listening, secured, wait};

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
        Stage::of([Security::insecure(), Security::insecure()], takes)
    }

    /// The same of hosts that are known as this says: the one that asks, and the other.
    fn of(
        [one, other]: [Arc<Security>; 2],
        takes: impl Fn(&Arc<Agent>, Accepted) + Send + Sync + 'static,
    ) -> Stage {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let (roles, connected) = std::sync::mpsc::channel();
        let roles = Mutex::new(roles);
        let (other, listener) = listening(&dirs[1], other, move |agent, accepted| {
            let _ = roles.lock().send(accepted.hello.role);
            takes(agent, accepted);
        });
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
        let begun = begin(&secured(&dirs[0], &[], one).tunnels, &request).unwrap();
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

/// Longer than the test waits is what a tunnel waits for links that are lost.
#[test]
fn a_tunnel_ends_at_the_host_that_learns_that_the_other_is_revoked() {
    for revoked in ["one", "two"] {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let one = member(&mut authority, &dir.path().join("one"), "one", "");
        let may_tunnel = "[hosts.one]\nrole = \"operator\"\n";
        let two = member(&mut authority, &dir.path().join("two"), "two", may_tunnel);
        let mut stage = Stage::of([one.clone(), two.clone()], takes);
        stage.wait_event(|event| matches!(event, TunnelEvent::LinkUp { .. }));
        let theirs = stage.theirs();
        if revoked == "one" {
            revoke(&mut authority, "one", &two);
            wait("it keeps its sockets", || theirs.is_over());
        } else {
            revoke(&mut authority, "two", &one);
            let ended = stage.wait_event(|event| matches!(event, TunnelEvent::Ended { .. }));
            let TunnelEvent::Ended { error } = ended else { unreachable!() };
            assert_eq!(error.code, "peer_lost");
            assert!(error.message.ends_with("the other host was revoked"), "{error:?}");
        }
    }
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

/// The roll-back notice of a session, from a host of the cluster.
fn notice(
    security: &Arc<Security>,
    session: &Identity,
    token: Token,
    to: &Stage,
) -> Result<Outcome, ConnectError> {
    let route = Route { local: None, device: None, remote: to.begun.tunnel.peer };
    let hello = Identity::new(session.session, token, security).hello(Role::RolledBack, 0, 0);
    let tls = security.tls().cloned();
    query(&route, &hello, &TcpOptions { connect_wait: LONG, tls, ..TcpOptions::default() })
}

#[test]
fn a_tunnel_is_ended_by_a_notice_of_the_host_that_asked_for_it_and_of_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let mut authority = authority(&dir.path().join("authority"));
    // All may do the same.
    let policy = "[hosts.one]\nrole = \"operator\"\n[hosts.third]\nrole = \"operator\"\n";
    let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, policy);
    let (one, other, third) = (made("one"), made("other"), made("third"));
    for is_own in [false, true] {
        let mut stage = Stage::of([one.clone(), other.clone()], takes);
        stage.wait_event(|event| matches!(event, TunnelEvent::LinkUp { .. }));
        let (session, theirs) = (stage.begun.tunnel.dialler.identity.clone(), stage.theirs());
        let refused = |by: &Arc<Security>, token: Token| match notice(by, &session, token, &stage) {
            Err(ConnectError::Refused { fault, .. }) => (fault.code, fault.detail),
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&one, Token([0; 32])), (Code::NotAuthorised, "wrong token".into()));
        let (code, detail) = refused(&third, session.token);
        assert_eq!((code, &*detail), (Code::NotAuthorised, "another host asked for this tunnel"));
        if is_own {
            notice(&one, &session, session.token, &stage).unwrap();
        }
        // The first end that comes is the one that the other host reads.
        let last = Fault::new(Code::Cancelled, Step::Copy, Side::Destination, "the test ends it");
        theirs.end(last);
        let ended = stage.wait_event(|event| matches!(event, TunnelEvent::Ended { .. }));
        let TunnelEvent::Ended { error } = ended else { unreachable!() };
        assert_eq!(error.code, if is_own { "peer_lost" } else { "cancelled" }, "{error:?}");
    }
}

/// Number and token are not enough where hosts prove who they are.
#[test]
fn a_tunnel_takes_no_connection_of_a_host_that_did_not_ask_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut authority = authority(&dir.path().join("authority"));
    // Both may do the same.
    let policy = "[hosts.one]\nrole = \"operator\"\n[hosts.third]\nrole = \"operator\"\n";
    let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, policy);
    let (one, other, third) = (made("one"), made("other"), made("third"));
    let mut stage = Stage::of([one, other], takes);
    stage.wait_event(|event| matches!(event, TunnelEvent::LinkUp { .. }));
    let session = stage.begun.tunnel.dialler.identity.clone();
    let route = Route { local: None, device: None, remote: stage.begun.tunnel.peer };
    let tcp = TcpOptions { connect_wait: LONG, tls: third.tls().cloned(), ..TcpOptions::default() };
    for role in [Role::ControlJoin, Role::Data, Role::ReverseData] {
        let hello = Identity::new(session.session, session.token, &third).hello(role, 0, 0);
        match connect(&route, &hello, &tcp) {
            Err(ConnectError::Refused { fault, .. }) => {
                let found = (fault.code, &*fault.detail);
                assert_eq!(found, (Code::NotAuthorised, "another host asked for this tunnel"), "{role:?}");
            }
            found => panic!("{role:?}: {:?}", found.map(drop)),
        }
    }
}
