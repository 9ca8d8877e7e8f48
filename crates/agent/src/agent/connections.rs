//! How many connections of sessions, and questions, other hosts have here at a time.

use std::net::SocketAddr;
use std::sync::Arc;

use linerate_core::{Code, Fault, Side, Step};
use linerate_net::rdma::listen::Accepted as RdmaAccepted;
use linerate_net::tcp::listen::Accepted;
use linerate_wire::frame::{Hello, Role as Purpose, Welcome};
use linerate_wire::negotiate;

use crate::not_taken::{NotTaken, refuse};
use crate::outgoing;
use crate::seats::{Seat, Seats};
use crate::security::PeerName;

/// Of one host: 16 domains that come over eight links of 100 Gb/s, each with a copy and a tunnel, need 3400. Each has a
/// thread or two and, with TLS, up to 97 KiB of buffers for what it receives.
const OF_ONE_HOST: usize = 4096;
/// The stacks of two threads for each are half of the mappings that a process may have by default, 65530.
const OF_ALL_HOSTS: usize = 8192;

/// One domain that comes over eight links of 100 Gb/s needs 210: a host that has none can have it come, whatever two
/// others do.
const FEW: usize = 256;

/// Questions of one host about the cluster at a time, and of all: each has a thread.
const MEMBERSHIP: (usize, usize) = (8, 64);

const TOO_MANY: &str =
    "this host has reached its limit of connections of sessions; it takes one more when another is closed";

/// Connections of sessions that other hosts have opened here.
pub(super) struct Connections(Seats);

impl Connections {
    pub fn new() -> Connections {
        Connections(Seats::new(OF_ONE_HOST, OF_ALL_HOSTS).last_quarter_for(FEW))
    }

    /// Counts a connection of a session as long as it is open. Refused if there are too many. Others are short, or are
    /// counted by what they are for.
    pub fn count(&self, accepted: &mut Accepted, name: &PeerName) -> Result<(), Fault> {
        let is_of_session = match accepted.hello.role {
            Purpose::ControlNew | Purpose::ControlJoin | Purpose::TunnelNew => true,
            Purpose::Data | Purpose::ReverseData => true,
            Purpose::Query
            | Purpose::CommitAgain
            | Purpose::RolledBack
            | Purpose::Resumes
            | Purpose::Waits
            | Purpose::Arrival => false,
            Purpose::Bench | Purpose::BenchData | Purpose::Doctor | Purpose::Membership => false,
        };
        if !is_of_session {
            return Ok(());
        }
        accepted.count_by(Arc::new(self.seat(name, accepted.peer)?));
        Ok(())
    }

    /// The same for a queue pair, which shows no certificate: `opener` is the host that opened its session.
    pub fn count_queue_pair(&self, accepted: &mut RdmaAccepted, opener: &PeerName) -> Result<(), Fault> {
        accepted.count_by(Arc::new(self.seat(opener, accepted.peer)?));
        Ok(())
    }

    fn seat(&self, name: &PeerName, peer: SocketAddr) -> Result<Seat, Fault> {
        let too_many = || Fault::new(Code::GuestBusy, Step::Authorise, Side::Destination, TOO_MANY);
        self.0.take(name, peer).ok_or_else(too_many)
    }
}

/// A guest does not move to the host that it is on. Whatever address was named, an agent knows its own session.
pub(super) fn check_opener(hello: &Hello, leaving: &outgoing::Sessions, own: &str) -> Result<(), Fault> {
    if hello.role != Purpose::ControlNew || !leaving.opens(hello.session) {
        return Ok(());
    }
    let detail = format!(
        "the address that was named leads back to {own}, the very host that the guest is on; nothing was touched"
    );
    Err(Fault::new(Code::NotMigratable, Step::Authorise, Side::Destination, detail))
}

/// Seats for questions about the cluster.
pub(super) fn members() -> Seats {
    Seats::new(MEMBERSHIP.0, MEMBERSHIP.1)
}

/// The answer is that there is one.
pub(super) fn welcome_once(accepted: Accepted) -> Result<(), NotTaken> {
    let Hello { version_min, version_max, .. } = accepted.hello;
    let Some(version) = negotiate(version_min, version_max) else {
        let fault =
            Fault::new(Code::VersionMismatch, Step::Authorise, Side::Destination, "update the older agent");
        return Err(refuse(fault, |fault| accepted.refuse(fault)));
    };
    let welcome = Welcome { version, control_received: 0 };
    accepted.welcome(welcome)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use linerate_api::{AuditAction, AuditCaller, AuditRequest, AuditResult};
    use linerate_fabric::probe::ask::{hello, send};
    use linerate_net::tcp::connect::{ConnectError, Route, connect};
    use linerate_net::tcp::options::TcpOptions;
    use linerate_wire::VERSION_MAX;

    use super::*;
    use crate::agent::Agent;
    use crate::security::Security;
    use crate::security::tests::member;
    use crate::session::contact::{open_session, tcp_options};
    use crate::session::identity::Identity;
    use crate::testing::{authority, listen, listening, wait};

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn connections_of_a_hosts_sessions_are_bounded_as_long_as_they_are_open() {
        let connections = Connections(Seats::new(2, 8));
        let (sender, welcomed) = channel();
        let takes = move |mut accepted: Accepted| match connections.count(&mut accepted, &None) {
            Ok(()) => {
                let stream = accepted.welcome(Welcome { version: VERSION_MAX, control_received: 0 });
                sender.send(stream.unwrap()).unwrap();
            }
            Err(fault) => accepted.refuse(fault).unwrap(),
        };
        let listener = listen(&Security::insecure(), takes);
        let identity = Identity::random(&Security::insecure()).unwrap();
        let route = Route { local: None, device: None, remote: listener.addresses()[0] };
        let ask = |role| connect(&route, &identity.hello(role, 0, 0), &tcp_options(&identity));
        let refused = |role| match ask(role) {
            Err(ConnectError::Refused { fault, .. }) => assert_eq!(fault.code, Code::GuestBusy),
            other => panic!("{other:?}"),
        };
        let _open = (ask(Purpose::ControlNew).unwrap(), ask(Purpose::Data).unwrap());
        let (one, _other) = (welcomed.recv_timeout(LONG).unwrap(), welcomed.recv_timeout(LONG).unwrap());
        refused(Purpose::ReverseData);
        refused(Purpose::TunnelNew);
        ask(Purpose::Query).unwrap();
        let clone = one.clone();
        drop(one);
        refused(Purpose::ControlJoin);
        drop(clone);
        ask(Purpose::ControlJoin).unwrap();
    }

    impl Agent {
        /// Takes the seats for connections that a host has, but for so many.
        pub(crate) fn occupy(&self, host: &PeerName, peer: SocketAddr, left: usize) -> Vec<Seat> {
            (left..OF_ONE_HOST).map_while(|_| self.connections.0.take(host, peer)).collect()
        }
    }

    /// Its host has all places but one already.
    #[test]
    fn the_agent_takes_one_more_connection_of_a_host_when_another_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let accepting = agent.clone();
        let takes = move |accepted| accepting.accept(accepted);
        let listener = listen(&Security::insecure(), takes);
        let here = listener.addresses()[0];
        let _others = agent.occupy(&None, here, 1);
        let open = || {
            let identity = Identity::random(&Security::insecure()).unwrap();
            open_session(&[here], Purpose::ControlNew, &identity)
        };
        let (first, _) = open().unwrap();
        let refused = open().map(drop).unwrap_err();
        assert_eq!((refused.code, refused.detail.as_str()), (Code::GuestBusy, TOO_MANY));
        drop(first);
        let end = Instant::now() + LONG;
        while let Err(fault) = open() {
            assert!(fault.detail == TOO_MANY && Instant::now() < end, "{fault}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Under which name or address it reached itself does not matter.
    #[test]
    fn the_agent_does_not_take_a_guest_from_itself() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let accepting = agent.clone();
        let listener = listen(&Security::insecure(), move |accepted| accepting.accept(accepted));
        let here = listener.addresses()[0];
        let identity = Identity::random(&Security::insecure()).unwrap();
        let opening = agent.outgoing.open(identity.session);
        let refused = open_session(&[here], Purpose::ControlNew, &identity).map(drop).unwrap_err();
        assert_eq!((refused.code, refused.step), (Code::NotMigratable, Step::Authorise), "{refused}");
        assert!(refused.detail.contains(&agent.config.name), "{refused}");
        assert!(agent.incoming_live().is_empty());
        let told = crate::convert::error(&refused, None);
        assert!(told.hint.contains("name another host") && !told.retry_can_help, "{told:?}");
        drop(opening);
        open_session(&[here], Purpose::ControlNew, &identity).map(drop).unwrap();
    }

    /// Whoever has taken a host's key keeps its name by that.
    #[test]
    fn a_member_that_asks_for_a_certificate_is_in_the_audit_log() {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, "");
        let (here, asker) = (made("here"), made("asker"));
        let (agent, listener) = listening(&dir, here, |agent, accepted| agent.accept(accepted));
        let remote = listener.addresses()[0];
        let route = Route { local: None, device: None, remote };
        let tcp = TcpOptions { connect_wait: LONG, tls: asker.tls().cloned(), ..TcpOptions::default() };
        let (stream, _) = connect(&route, &hello(Purpose::Membership), &tcp).unwrap();
        let question = serde_json::json!({ "ask": "renew", "request": "none" });
        send(&stream, &question, remote, Instant::now() + LONG).unwrap();
        let all = AuditRequest { limit: 10, ..AuditRequest::default() };
        wait("no line", || !agent.audit.read(&all).unwrap().entries.is_empty());
        let [line] = <[_; 1]>::try_from(agent.audit.read(&all).unwrap().entries).unwrap();
        assert_eq!((line.action, line.result), (AuditAction::Renew, AuditResult::Failed), "{line:?}");
        assert!(
            matches!(&line.caller, AuditCaller::Host { name: Some(name), .. } if name == "asker"),
            "{line:?}"
        );
    }
}
