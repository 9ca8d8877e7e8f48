//! A host by its agent: this one is asked directly, others over the network.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linerate_fabric::probe::ask::{AskError, ask};
use linerate_fabric::probe::{Answer, Question};
use linerate_net::tcp::connect::Route;

use crate::agent::Agent;
use crate::faults::chain;
use crate::outgoing::resolve_host;

/// A host that does not answer within this is not there.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// How a host is asked.
pub enum Side {
    /// This host.
    Here(Arc<Agent>),
    /// Another, at an address that answered.
    There(SocketAddr),
}

impl Side {
    /// Asks, and waits at most `wait` for the answer. Errors in words, for the operator.
    pub fn ask(&self, question: Question, wait: Duration) -> Result<Answer, String> {
        match self {
            Side::Here(agent) => match super::serve::answer(agent, question) {
                Answer::Refused { why } => Err(why),
                answer => Ok(answer),
            },
            Side::There(address) => over(*address, &question, wait).map_err(|error| chain(&error)),
        }
    }
}

/// Finds a host by the name that the operator gave: the first of its addresses that answers the question.
pub fn find(name: &str, question: &Question, wait: Duration) -> Result<(Side, Answer), String> {
    let mut last = "the name has no address".to_owned();
    for address in resolve_host(name).map_err(|fault| fault.to_string())? {
        match over(address, question, wait) {
            Ok(answer) => return Ok((Side::There(address), answer)),
            Err(error) => last = chain(&error),
        }
    }
    Err(last)
}

fn over(address: SocketAddr, question: &Question, wait: Duration) -> Result<Answer, AskError> {
    ask(&Route { local: None, device: None, remote: address }, question, CONNECT_WAIT, wait)
}
