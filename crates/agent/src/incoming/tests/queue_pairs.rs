//! Queue pairs of a session, at the soft-RoCE ports of the lab's RDMA machine.

use linerate_net::channel::AckReader;
use linerate_net::rdma::connect::{ConnectError, connect};
use linerate_net::rdma::listen::Listener;
use linerate_net::rdma::options::RdmaOptions;
use linerate_net::tcp::connect::Route;

use super::*;

/// The port of an agent, and what its session's source connects to it with.
struct Port {
    listener: Listener,
    options: RdmaOptions,
    domains: rdma::Domains,
}

impl Port {
    fn of(host: &Revocable) -> Port {
        host.session.target.set(ChannelTarget::Ram(Arc::new(RegionTable::new([])))).ok().unwrap();
        let accepting = host.agent.clone();
        let accept = move |accepted| accepting.accept_rdma(accepted);
        let listener = Listener::start(&[([10, 9, 0, 2], 0).into()], accept).unwrap();
        // Emulated adapters are slow.
        let options = RdmaOptions { connect_wait: LONG, ack_timeout: 18, ..RdmaOptions::default() };
        Port { listener, options, domains: rdma::Domains::default() }
    }

    fn connect(&self, channel: ChannelId) -> Result<Arc<rdma::Connection>, ConnectError> {
        let remote = self.listener.addresses()[0];
        let route = Route { local: Some("10.9.0.1".parse().unwrap()), device: None, remote };
        let hello = Hello { channel, ..hello(7, Role::Data) };
        connect(&route, &hello, &self.options, &self.domains).map(|(connection, _)| connection)
    }
}

#[test]
#[ignore = "needs an RDMA device; the lab runs it in its RDMA machine"]
fn queue_pairs_of_a_session_end_when_its_source_is_revoked() {
    let mut host = Revocable::new();
    let port = Port::of(&host);
    let source = port.connect(0).unwrap();
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
    let port = Port::of(&host);
    let _others = host.agent.occupy(&Some("a".parse().unwrap()), ([10, 9, 0, 1], 1).into(), 1);
    let first = port.connect(0).unwrap();
    match port.connect(1) {
        Err(ConnectError::Refused { fault, .. }) => assert_eq!(fault.code, Code::GuestBusy, "{fault}"),
        other => panic!("{other:?}"),
    }
    drop(first);
    let end = Instant::now() + LONG;
    for channel in 2.. {
        match port.connect(channel) {
            Ok(_) => return,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
