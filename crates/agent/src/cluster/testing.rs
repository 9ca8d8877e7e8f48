//! Hosts of a cluster with agents, as far as their trust goes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_fabric::probe::ask::hello;
use linerate_net::tcp::connect::{ConnectError, Route, connect};
use linerate_net::tcp::listen::{ListenOptions, Listener};
use linerate_net::tcp::options::TcpOptions;
use linerate_trust::identity::Identity;
use linerate_wire::VERSION_MAX;
use linerate_wire::frame::{Role, Welcome};
use rustls_pki_types::UnixTime;

use super::spread::Spread;
use super::tests::Site;
use super::{operations, renewal};
use crate::security::Security;

/// Only a hang reaches it.
const LONG: Duration = Duration::from_secs(60);

/// Of connections that a busy machine does not end.
fn options(security: &Security) -> TcpOptions {
    let tls = security.tls().cloned();
    TcpOptions { connect_wait: LONG, user_timeout: LONG, tls, ..TcpOptions::default() }
}

/// A host that takes connections of others.
pub(super) struct Running {
    pub site: Site,
    pub security: Arc<Security>,
    pub listener: Listener,
}

pub(super) fn running(site: Site) -> Running {
    let security = Security::open(&site.config).unwrap();
    Spread::start(&site.config, &security);
    let tcp = options(&security);
    let (of, config) = (security.clone(), site.config.clone());
    let options = ListenOptions { tcp, handshake_wait: LONG, ..ListenOptions::default() };
    let listener = Listener::start(&["127.0.0.1:0".parse().unwrap()], options, move |accepted| {
        if accepted.hello.role == Role::Membership {
            let _ = renewal::serve(&config, of.identity(), accepted, UnixTime::now());
        } else {
            let _ = accepted.welcome(Welcome { version: VERSION_MAX, control_received: 0 });
        }
    });
    Running { site, security, listener: listener.unwrap() }
}

impl Running {
    pub fn identity(&self) -> Identity {
        self.security.identity().unwrap()
    }

    /// The agent's own look at files that a command has changed.
    pub fn look(&self) {
        self.identity().reload().unwrap();
    }

    pub fn connect_to(&self, other: &Running) -> Result<(), ConnectError> {
        let route = Route { local: None, device: None, remote: other.listener.addresses()[0] };
        connect(&route, &hello(Role::Doctor), &options(&self.security)).map(drop)
    }

    /// The other's list is on its disk a moment before its handshakes have it.
    pub fn waits_until_refused_by(&self, other: &Running) {
        let end = Instant::now() + LONG;
        loop {
            let found = self.connect_to(other);
            if matches!(found, Err(ConnectError::Tls { .. })) {
                return;
            }
            assert!(Instant::now() < end, "a revoked host is not refused: {found:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Of the revocation list of the first authority.
    pub fn number(&self) -> u64 {
        operations::show(&self.site.config).unwrap().authorities[0].1
    }

    pub fn waits_for(&self, number: u64) {
        let end = Instant::now() + Duration::from_secs(60);
        while self.number() != number {
            assert!(Instant::now() < end, "it has {}", self.number());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
