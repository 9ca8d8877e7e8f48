//! Queue pairs of sessions, at the soft-RoCE ports of the lab's RDMA machine.

use std::process::Command;

use linerate_net::channel::AckReader;
use linerate_net::rdma::connect::{ConnectError, connect};
use linerate_net::rdma::listen::Listener;
use linerate_net::rdma::options::RdmaOptions;
use linerate_net::tcp::connect::Route;

use super::offers::Hosts;
use super::*;
use crate::agent::Agent;
use crate::session::contact::open_session;

/// The port of an agent, and what sources connect to it with.
struct Port {
    listener: Listener,
    options: RdmaOptions,
    domains: rdma::Domains,
}

impl Port {
    fn of(agent: &Arc<Agent>) -> Port {
        let accepting = agent.clone();
        let accept = move |accepted| accepting.accept_rdma(accepted);
        let listener = Listener::start(&[([10, 9, 0, 2], 0).into()], accept).unwrap();
        // Emulated adapters are slow.
        let options = RdmaOptions { connect_wait: LONG, ack_timeout: 18, ..RdmaOptions::default() };
        Port { listener, options, domains: rdma::Domains::default() }
    }

    fn connect(&self, hello: &Hello) -> Result<Arc<rdma::Connection>, ConnectError> {
        let remote = self.listener.addresses()[0];
        let route = Route { local: Some("10.9.0.1".parse().unwrap()), device: None, remote };
        connect(&route, hello, &self.options, &self.domains).map(|(connection, _)| connection)
    }

    /// Why the agent refuses it.
    fn refusal(&self, hello: &Hello) -> (Code, String) {
        match self.connect(hello) {
            Err(ConnectError::Refused { fault, .. }) => (fault.code, fault.detail),
            other => panic!("{other:?}"),
        }
    }
}

/// Its channels are served from now on.
fn admit(session: &Incoming) {
    session.target.set(ChannelTarget::Ram(Arc::new(RegionTable::new([])))).ok().unwrap();
}

/// What opens a queue pair of a [`Revocable`] host's session.
fn data(channel: ChannelId) -> Hello {
    Hello { channel, ..hello(7, Role::Data) }
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn queue_pairs_of_a_session_end_when_its_source_is_revoked() {
    let mut host = Revocable::new();
    admit(&host.session);
    let port = Port::of(&host.agent);
    let source = port.connect(&data(0)).unwrap();
    let (_sender, mut acks, _closer) = rdma::send::halves(source, port.options.clone());
    host.revoke();
    let error = acks.next(LONG).unwrap_err();
    assert!(matches!(error, ChannelError::Closed), "{error:?}");
}

/// The host has opened all connections but one.
#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn queue_pairs_of_a_session_count_as_connections_of_the_host_that_opened_it() {
    let host = Revocable::new();
    admit(&host.session);
    let port = Port::of(&host.agent);
    let _others = host.agent.occupy(&Some("a".parse().unwrap()), ([10, 9, 0, 1], 1).into(), 1);
    let first = port.connect(&data(0)).unwrap();
    assert_eq!(port.refusal(&data(1)).0, Code::GuestBusy);
    drop(first);
    let end = Instant::now() + LONG;
    for channel in 2.. {
        match port.connect(&data(channel)) {
            Ok(_) => return,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A session that this host opens over TLS, with its control connection. An emulated machine may take longer for its
/// first handshake than agents wait.
fn opened(hosts: &Hosts, by: &Arc<Security>) -> (Identity, ControlPath) {
    let end = Instant::now() + LONG;
    loop {
        let identity = Identity::random(by).unwrap();
        match open_session(hosts.listener.addresses(), Role::ControlNew, &identity) {
            Ok((control, _)) => {
                admit(&hosts.agent.incoming.get(identity.session).unwrap());
                return (identity, control);
            }
            Err(fault) => assert!(Instant::now() < end, "{fault}"),
        }
    }
}

/// Protection domains of the device that the agent's port is on, by the kernel's count: keys are good inside of one.
fn protection_domains() -> u64 {
    let output = Command::new("rdma").args(["resource", "show", "rx0b"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let count = text.split_whitespace().skip_while(|word| *word != "pd").nth(1);
    count.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

/// Another host of the cluster, with a session of its own, and a stranger with none know the number of a session. The
/// token was said over TLS to its source and to nobody else.
#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn a_queue_pair_needs_the_token_of_its_session_and_has_no_keys_of_another() {
    let hosts = Hosts::new();
    let port = Port::of(&hosts.agent);
    let [(source, _control), (other, _others_control)] =
        [&hosts.source, &hosts.other].map(|by| opened(&hosts, by));
    let stranger = Identity::random(&Security::insecure()).unwrap();
    let asks = |of: &Identity, channel| of.hello(Role::Data, 0, channel);
    for token in [stranger.token, other.token] {
        let refused = port.refusal(&Hello { token, ..asks(&source, 0) });
        assert_eq!(refused, (Code::NotAuthorised, "wrong token".to_owned()));
    }
    assert_eq!(port.refusal(&asks(&stranger, 0)).0, Code::SessionUnknown);
    // No agent asks like this: it is rejected without an answer.
    let rejected = port.connect(&Hello { version_min: 0, ..asks(&source, 0) });
    assert!(matches!(rejected, Err(ConnectError::Rejected { .. })), "{rejected:?}");
    let before = protection_domains();
    let _pairs = [0, 1].map(|channel| port.connect(&asks(&source, channel)).unwrap());
    assert_eq!(protection_domains(), before + 1, "queue pairs of one session share its keys");
    let _others_pair = port.connect(&asks(&other, 0)).unwrap();
    assert_eq!(protection_domains(), before + 2, "another session has keys of its own");
}
