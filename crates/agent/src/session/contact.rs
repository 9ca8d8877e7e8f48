//! Connections to the other host's agent that belong to no link: the first connection, joining, questions on a
//! connection of their own.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use linerate_core::recovery::ANSWER_COUNTS_FOR;
use linerate_core::{Code, Fault, Outcome, Side, Step};
use linerate_net::control::{ControlOptions, ControlPath};
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::{ConnectError, Route, connect, query};
use linerate_net::tcp::options::TcpOptions;
use linerate_trust::roles::Permission;
use linerate_wire::frame::Role;

use super::identity::Identity;
use crate::faults::{chain, fault};
use crate::security::Security;

/// Connection and handshake must be done within this, and a probe too. A far link has longer.
pub(crate) const OPEN_WITHIN: Duration = Duration::from_secs(2);

pub(crate) fn tcp_options(identity: &Identity) -> TcpOptions {
    TcpOptions { connect_wait: OPEN_WITHIN, tls: identity.tls().cloned(), ..TcpOptions::default() }
}

fn route(remote: SocketAddr) -> Route {
    Route { local: None, device: None, remote }
}

/// Reaches the destination's agent at one of its addresses and opens the session.
pub(crate) fn open_session(
    peers: &[SocketAddr],
    role: Role,
    identity: &Identity,
) -> Result<(ControlPath, SocketAddr), Fault> {
    let mut last = None;
    for &remote in peers {
        match connect(&route(remote), &identity.hello(role, 0, 0), &tcp_options(identity)) {
            Ok((stream, _)) => {
                // The other end of a tunnel opens no streams, so that it reaches nothing here.
                let needs = (role == Role::ControlNew).then_some(Permission::Receive);
                identity.pin(stream.peer_certificates(), needs)?;
                identity.note_cipher(stream.cipher());
                let control = keep(stream)
                    .map_err(|error| fault(Code::Internal, Step::Authorise, Side::Source, &error))?;
                return Ok((control, remote));
            }
            Err(ConnectError::Refused { fault, .. }) => return Err(fault),
            Err(error) => last = Some(fault(Code::NoLink, Step::Authorise, Side::Source, &error)),
        }
    }
    Err(last.unwrap_or_else(|| {
        Fault::new(Code::NoLink, Step::Authorise, Side::Source, "the host has no address")
    }))
}

/// Asks a host whether it takes guests at present, at the first of its addresses that answers.
///
/// # Errors
/// [`Code::Cordoned`]; whatever else the host refuses it with. [`Code::NoLink`] if it does not answer at any address,
/// and if something answers that does not know the question: it has not said that it takes guests.
pub(crate) fn may_arrive(peers: &[SocketAddr], security: &Arc<Security>) -> Result<(), Fault> {
    let identity = Identity::random(security)?;
    let mut last = None;
    for &remote in peers {
        match connect(&route(remote), &identity.hello(Role::Arrival, 0, 0), &tcp_options(&identity)) {
            Ok(_) => return Ok(()),
            Err(ConnectError::Refused { fault, .. }) => return Err(fault),
            Err(error) => last = Some(format!("{remote}: {}", chain(&error))),
        }
    }
    let why = last.unwrap_or_else(|| "it has no address".into());
    let detail = format!("no answer from the destination on whether it takes guests: {why}");
    Err(Fault::new(Code::NoLink, Step::Connect, Side::Source, detail))
}

/// Joins the session again at the first of the addresses that takes it; otherwise the error of the last one.
pub(crate) fn join_any(peers: &[SocketAddr], identity: &Identity) -> Result<Stream, Option<ConnectError>> {
    let mut last = None;
    for &remote in peers {
        match connect(&route(remote), &identity.hello(Role::ControlJoin, 0, 0), &tcp_options(identity)) {
            Ok((stream, _)) => {
                identity.note_peer(stream.peer_certificates());
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last)
}

/// A welcomed control connection. The destination does not take it for dead until it is put to use.
pub(crate) fn keep(stream: Stream) -> io::Result<ControlPath> {
    ControlPath::keep(stream, ControlOptions::default()).map_err(io::Error::other)
}

/// How the session ended: the first answer from any of a host's addresses.
pub(crate) fn ask_any(peers: &[SocketAddr], identity: &Identity) -> Result<Outcome, NoAnswer> {
    ask_in_turn(Role::Query, peers, identity)
}

/// Sends commit again; the answer is the session's outcome there.
pub(crate) fn commit_any(peers: &[SocketAddr], identity: &Identity) -> Result<Outcome, NoAnswer> {
    ask_in_turn(Role::CommitAgain, peers, identity)
}

/// Asks whether the guest runs there, before it is resumed here. That commits nothing.
pub(crate) fn ask_before_resuming(peers: &[SocketAddr], identity: &Identity) -> Result<Outcome, NoAnswer> {
    while_it_counts(ANSWER_COUNTS_FOR, || ask_all(Role::Resumes, peers, identity, proves_itself(identity)))
}

/// Asks again if the answer comes so late that the destination may have let the guest run since: this process was
/// stopped meanwhile, or its host.
fn while_it_counts(
    counts_for: Duration,
    mut ask: impl FnMut() -> Result<Outcome, NoAnswer>,
) -> Result<Outcome, NoAnswer> {
    loop {
        let asked_at = Instant::now();
        let answer = ask();
        if !matches!(answer, Ok(Outcome::NotCommitted)) || asked_at.elapsed() <= counts_for {
            return answer;
        }
    }
}

/// The same when it is known that the guest is committed there: the one here stays paused without an answer.
pub(crate) fn ask_while_waiting(peers: &[SocketAddr], identity: &Identity) -> Result<Outcome, NoAnswer> {
    ask_all(Role::Waits, peers, identity, proves_itself(identity))
}

/// Notifies any of a host's addresses that the session is rolled back; the answer is the session's outcome there.
/// `held`: the host may have the guest complete. If not, nothing is lost if another host answers.
pub(crate) fn notify_rolled_back(peers: &[SocketAddr], identity: &Identity, held: bool) -> Option<Outcome> {
    ask_all(Role::RolledBack, peers, identity, !held || proves_itself(identity)).ok()
}

/// No host answered a question.
#[derive(Default)]
pub(crate) struct NoAnswer {
    /// Why a host that could be reached was not asked, as an operator reads it: it is not the right one, or does not
    /// speak what this host speaks.
    pub not_asked: Option<String>,
}

/// Only the host that the session was opened at can answer. In plain text another host may have one of its addresses by
/// now.
fn proves_itself(identity: &Identity) -> bool {
    identity.peer().is_some()
}

/// One address after another, until one has an answer that counts.
fn ask_in_turn(role: Role, peers: &[SocketAddr], identity: &Identity) -> Result<Outcome, NoAnswer> {
    let answers = peers.iter().map(|&remote| ask(role, remote, identity));
    answer_of(answers, peers.len(), proves_itself(identity))
}

/// All addresses at once, as one that does not answer takes its time: a guest is paused meanwhile, or an operator's
/// decision at the destination waits only so long for the notice.
fn ask_all(
    role: Role,
    peers: &[SocketAddr],
    identity: &Identity,
    one_is_enough: bool,
) -> Result<Outcome, NoAnswer> {
    let (sender, answers) = channel();
    for &remote in peers {
        let (sender, identity) = (sender.clone(), identity.clone());
        let asks = move || drop(sender.send(ask(role, remote, &identity)));
        if let Err(error) = std::thread::Builder::new().name("question".into()).spawn(asks) {
            tracing::error!(%error, "cannot start a thread to ask the destination");
        }
    }
    drop(sender);
    answer_of(answers.into_iter(), peers.len(), one_is_enough)
}

/// What the answers from a host's addresses say together. *Unknown* counts if each of them says so, or if
/// `one_is_enough`: another host has no record of the session, and the right one may have the guest.
fn answer_of(
    answers: impl Iterator<Item = Result<Outcome, NoAnswer>>,
    addresses: usize,
    one_is_enough: bool,
) -> Result<Outcome, NoAnswer> {
    let (mut none, mut unknown) = (NoAnswer::default(), 0);
    for answer in answers {
        match answer {
            Ok(Outcome::Unknown) => unknown += 1,
            Ok(outcome) => return Ok(outcome),
            Err(why) => none.not_asked = none.not_asked.or(why.not_asked),
        }
    }
    if unknown > 0 && (one_is_enough || unknown == addresses) { Ok(Outcome::Unknown) } else { Err(none) }
}

fn ask(role: Role, remote: SocketAddr, identity: &Identity) -> Result<Outcome, NoAnswer> {
    query(&route(remote), &identity.hello(role, 0, 0), &tcp_options(identity)).map_err(|error| {
        tracing::debug!(%remote, error = chain(&error), "no answer");
        let is_other = matches!(error, ConnectError::Tls { .. });
        NoAnswer { not_asked: is_other.then(|| error.to_string()) }
    })
}

#[cfg(test)]
mod tests {
    use linerate_core::{SessionId, Token};
    use linerate_net::tcp::listen::{Accepted, Listener};
    use linerate_wire::VERSION_MAX;
    use linerate_wire::frame::Welcome;

    use super::*;
    use crate::security::tests::member;
    use crate::testing::{authority, closed_port, listen};

    /// An agent that welcomes everybody who passes its TLS.
    fn host(security: &Security) -> Listener {
        listen(security, |accepted: Accepted| {
            let _ = accepted.welcome(Welcome { version: VERSION_MAX, control_received: 0 });
        })
    }

    #[test]
    fn further_connections_go_to_the_host_that_the_first_one_reached() {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, "");
        let (own, one, other) = (made("own"), made("one"), made("other"));
        let (one, other) = (host(&one), host(&other));
        let identity = Identity::random(&own).unwrap();
        // Before that, any host of the cluster.
        join_any(other.addresses(), &identity).map_err(|error| error.unwrap().to_string()).unwrap();
        open_session(one.addresses(), Role::ControlNew, &identity).map_err(|fault| fault.detail).unwrap();
        join_any(one.addresses(), &identity).map_err(|error| error.unwrap().to_string()).unwrap();
        let refused = join_any(other.addresses(), &identity).err().unwrap().unwrap().to_string();
        assert!(refused.contains("other answered instead of one"), "{refused}");
    }

    #[test]
    fn a_guest_is_not_offered_to_a_host_that_may_not_receive_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let own = "[hosts.one]\ndeny = [\"receive\"]\n";
        let own = member(&mut authority, &dir.path().join("own"), "own", own);
        let one = host(&member(&mut authority, &dir.path().join("one"), "one", ""));
        let identity = Identity::random(&own).unwrap();
        let refused = open_session(one.addresses(), Role::ControlNew, &identity).err().unwrap();
        assert_eq!((refused.code, refused.side), (Code::NotAuthorised, Side::Source));
        open_session(one.addresses(), Role::TunnelNew, &identity).map_err(|fault| fault.detail).unwrap();
    }

    /// A host that has this outcome for every session.
    fn answers(security: &Security, outcome: Outcome, after: Duration) -> Listener {
        listen(security, move |accepted: Accepted| {
            std::thread::sleep(after);
            let _ = accepted.outcome(outcome);
        })
    }

    /// It would count as the end of the session, and the right host would never be notified.
    #[test]
    fn an_address_that_leads_to_another_host_does_not_answer_for_the_right_one() {
        let security = Security::insecure();
        let other = answers(&security, Outcome::Unknown, Duration::ZERO);
        let right = answers(&security, Outcome::Pending, Duration::from_millis(300));
        let (_held, silent) = closed_port();
        let identity = Identity::random(&security).unwrap();
        let both = [other.addresses()[0], right.addresses()[0]];
        assert_eq!(notify_rolled_back(&both, &identity, true), Some(Outcome::Pending));
        assert_eq!(ask_before_resuming(&both, &identity).ok(), Some(Outcome::Pending));
        assert_eq!(ask_any(&both, &identity).ok(), Some(Outcome::Pending));
        // The right host is out of reach.
        let both = [other.addresses()[0], silent];
        assert_eq!(notify_rolled_back(&both, &identity, true), None);
        assert_eq!(ask_before_resuming(&both, &identity).ok(), None);
        assert_eq!(ask_any(&both, &identity).ok(), None);
        assert_eq!(notify_rolled_back(&both, &identity, false), Some(Outcome::Unknown), "it holds no guest");
    }

    /// It has lost its journal: nothing waits for it any longer.
    #[test]
    fn a_destination_that_says_at_each_address_or_proves_that_it_has_no_record_is_believed() {
        let security = Security::insecure();
        let hosts = [(); 2].map(|()| answers(&security, Outcome::Unknown, Duration::ZERO));
        let both = [hosts[0].addresses()[0], hosts[1].addresses()[0]];
        let identity = Identity::random(&security).unwrap();
        assert_eq!(notify_rolled_back(&both, &identity, true), Some(Outcome::Unknown));
        assert_eq!(ask_any(&both, &identity).ok(), Some(Outcome::Unknown));

        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, "");
        let (own, one) = (made("own"), made("one"));
        let one = answers(&one, Outcome::Unknown, Duration::ZERO);
        let identity =
            Identity::with_peer(SessionId([1; 16]), Token([2; 32]), &own, &Some("one".parse().unwrap()))
                .unwrap();
        let (_held, silent) = closed_port();
        let both = [silent, one.addresses()[0]];
        assert_eq!(notify_rolled_back(&both, &identity, true), Some(Outcome::Unknown));
        assert_eq!(ask_any(&both, &identity).ok(), Some(Outcome::Unknown));
    }

    /// Its operator may have let the guest run there since.
    #[test]
    fn an_answer_that_comes_to_a_source_that_was_stopped_does_not_count() {
        let (counts_for, stopped_for) = (Duration::from_secs(60), Duration::from_millis(20));
        let mut answers = vec![Outcome::Committed, Outcome::NotCommitted];
        let answer = while_it_counts(stopped_for / 2, || {
            std::thread::sleep(stopped_for);
            Ok(answers.pop().unwrap())
        });
        assert_eq!(answer.ok(), Some(Outcome::Committed));
        for outcome in [Outcome::NotCommitted, Outcome::Aborted, Outcome::Unknown] {
            let mut asked = 0;
            let answer = while_it_counts(counts_for, || {
                asked += 1;
                Ok(outcome)
            });
            assert_eq!((answer.ok(), asked), (Some(outcome), 1));
        }
        let silent = while_it_counts(Duration::ZERO, || Err(NoAnswer::default()));
        assert!(silent.is_err(), "a destination that is silent is not waited for");
    }

    #[test]
    fn a_domain_goes_to_no_host_that_does_not_say_that_it_takes_guests() {
        let security = Security::insecure();
        assert_eq!(may_arrive(&[], &security).unwrap_err().code, Code::NoLink);
        // It takes connections, and closes them without a word.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let closing = std::thread::spawn(move || drop(silent.accept().unwrap()));
        let fault = may_arrive(&[address], &security).unwrap_err();
        assert_eq!((fault.code, fault.side), (Code::NoLink, Side::Source), "{fault}");
        assert!(fault.to_string().contains(&address.to_string()), "{fault}");
        closing.join().unwrap();
    }
}
