//! A host by its agent: this one is asked directly, others over the network.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linerate_core::Fault;
use linerate_fabric::probe::ask::{AskError, ask};
use linerate_fabric::probe::{Answer, Question};
use linerate_net::tcp::connect::Route;
use thiserror::Error;

use super::Doctor;
use crate::security::Security;
use crate::session::address::resolve as resolve_host;

/// A host that does not answer within this is not there.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// How long another host is waited for.
#[derive(Clone, Copy)]
struct Waits {
    /// For the connection, at each of its addresses.
    connect: Duration,
    answer: Duration,
}

impl Waits {
    fn with_answer(answer: Duration) -> Waits {
        Waits { connect: CONNECT_WAIT, answer }
    }
}

/// How a host is asked.
pub enum Side {
    Here(Arc<Doctor>),
    /// Another, at an address that answered.
    There(SocketAddr, Arc<Security>),
}

impl Side {
    /// Asks, and waits at most `wait` for the answer.
    pub fn ask(&self, question: Question, wait: Duration) -> Result<Answer, NotAnswered> {
        match self {
            Side::Here(doctor) => match super::serve::answer(doctor, question) {
                Answer::Refused { why } => Err(NotAnswered::Refused { why }),
                answer => Ok(answer),
            },
            Side::There(address, security) => {
                Ok(over(*address, &question, Waits::with_answer(wait), security)?)
            }
        }
    }
}

/// Why a host did not answer a question.
#[derive(Debug, Error)]
pub enum NotAnswered {
    /// This host does not do it.
    #[error("{why}")]
    Refused {
        /// The text of its answer.
        why: String,
    },
    /// Another host did not answer, or refused.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The answer is one of another kind.
    #[error("an answer to another question")]
    Unexpected,
}

/// Why no agent of a name answered.
#[derive(Debug, Error)]
pub enum FindError {
    /// The name leads nowhere.
    #[error("{0}")]
    Name(Fault),
    /// It leads to no address.
    #[error("the name has no address")]
    NoAddress,
    /// An agent did not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
}

impl FindError {
    /// No agent took the question: nothing was done about it.
    pub fn nothing_done(&self) -> bool {
        match self {
            FindError::Name(_) | FindError::NoAddress => true,
            FindError::Ask(error) => matches!(error, AskError::Connect(_) | AskError::Refused { .. }),
        }
    }
}

/// Finds a host by the name that the operator gave: the first of its addresses that answers the question.
pub fn find(
    name: &str,
    question: &Question,
    wait: Duration,
    security: &Arc<Security>,
) -> Result<(Side, Answer), FindError> {
    let addresses = resolve_host(name).map_err(FindError::Name)?;
    first(&addresses, question, Waits::with_answer(wait), security)
}

fn first(
    addresses: &[SocketAddr],
    question: &Question,
    waits: Waits,
    security: &Arc<Security>,
) -> Result<(Side, Answer), FindError> {
    // What changes something is not asked twice: the host that was connected to may have done it.
    let once = matches!(question, Question::Change { .. });
    let mut last = FindError::NoAddress;
    for address in addresses {
        match over(*address, question, waits, security) {
            Ok(answer) => return Ok((Side::There(*address, security.clone()), answer)),
            Err(error) if once && !matches!(error, AskError::Connect(_)) => return Err(error.into()),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

fn over(
    address: SocketAddr,
    question: &Question,
    waits: Waits,
    security: &Security,
) -> Result<Answer, AskError> {
    let route = Route { local: None, device: None, remote: address };
    ask(&route, question, waits.connect, waits.answer, security.tls())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use linerate_api::LinkConfirm;
    use linerate_fabric::probe::Change;
    use linerate_fabric::probe::ask::receive;
    use linerate_net::tcp::listen::{ListenOptions, Listener};
    use linerate_wire::VERSION_MAX;
    use linerate_wire::frame::Welcome;

    use super::*;

    /// Only a hang reaches it.
    const LONG: Duration = Duration::from_secs(60);

    /// An agent that takes questions and dies over them; how many it took.
    fn dying() -> (Listener, Arc<AtomicUsize>) {
        let taken = Arc::new(AtomicUsize::new(0));
        let counted = taken.clone();
        let options = ListenOptions { handshake_wait: LONG, ..ListenOptions::default() };
        let listener = Listener::start(&["127.0.0.1:0".parse().unwrap()], options, move |one| {
            let peer = one.peer;
            let stream = one.welcome(Welcome { version: VERSION_MAX, control_received: 0 }).unwrap();
            receive::<Question>(&stream, peer, Instant::now() + LONG).unwrap();
            counted.fetch_add(1, Ordering::SeqCst);
        });
        (listener.unwrap(), taken)
    }

    #[test]
    fn a_change_is_asked_for_once_and_an_inventory_at_every_address() {
        let (_socket, closed) = crate::testing::closed_port();
        let ((one, first_took), (other, other_took)) = (dying(), dying());
        let addresses = [closed, one.addresses()[0], other.addresses()[0]];
        let (waits, security) = (Waits { connect: LONG, answer: LONG }, Security::insecure());
        let change = Change::Confirm(LinkConfirm { port: "l0".into(), host: None });
        let asked = first(&addresses, &Question::Change { change: Box::new(change) }, waits, &security);
        let error = asked.err().expect("an answer");
        assert!(!error.nothing_done(), "{error}");
        let took = || (first_took.load(Ordering::SeqCst), other_took.load(Ordering::SeqCst));
        assert_eq!(took(), (1, 0), "not connected: the next one; asked: no other");
        assert!(first(&addresses, &Question::Echo { for_ms: 1 }, waits, &security).is_err());
        assert_eq!(took(), (2, 1));
        assert!(
            first(&[closed], &Question::Echo { for_ms: 1 }, waits, &security)
                .err()
                .expect("an answer")
                .nothing_done()
        );
    }
}
