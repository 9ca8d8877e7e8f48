//! The first control connection, before links are known: if it is lost, it is opened again at the addresses by which
//! the destination was reached. Later each link opens its own again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linerate_api::EventKind;
use linerate_core::Code;
use linerate_core::source::Event;
use linerate_net::tcp::connect::ConnectError;

use super::{Input, Outgoing};
use crate::faults::chain;
use crate::session::contact::{join_any, keep};
use crate::session::links::Session;

/// Between two attempts to open it again.
const RETRY: Duration = Duration::from_millis(250);

/// Tries in a thread of its own until it is joined, refused or over; the machine's link time-out bounds it.
pub(super) fn rejoin(shared: &Arc<Outgoing>, peers: Vec<SocketAddr>) {
    let outgoing = shared.clone();
    let trying = move || {
        let mut warned = false;
        while !outgoing.machine().is_ended() && outgoing.machine().paths() == 0 {
            match try_once(&outgoing, &peers) {
                Ok(()) => return,
                Err(error) => {
                    let error = chain(&error);
                    tracing::debug!(session = %outgoing.session, error, "the destination is not joined again");
                    if !std::mem::replace(&mut warned, true) {
                        let text = format!(
                            "the control connection is lost and cannot be opened again so far: {error}"
                        );
                        outgoing.event_log.publish(EventKind::Warning { text });
                    }
                }
            }
            std::thread::sleep(RETRY);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("rejoin".into()).spawn(trying) {
        tracing::error!(%error, "cannot start a thread to reach the destination again");
    }
}

/// Why the destination is not joined again.
#[derive(Debug, thiserror::Error)]
enum NotJoined {
    #[error("no address of the destination is known")]
    NoAddress,
    #[error(transparent)]
    Connect(ConnectError),
    /// The connection was welcomed, and this host could not put it to use.
    #[error(transparent)]
    Attach(#[from] io::Error),
}

/// Ok when there is nothing more to try.
fn try_once(shared: &Outgoing, peers: &[SocketAddr]) -> Result<(), NotJoined> {
    match join_any(peers, &shared.dialler.identity) {
        Ok(stream) => {
            keep(stream).and_then(|control| shared.attach_path(control, None))?;
            Ok(())
        }
        Err(Some(ConnectError::Refused { fault, .. })) if fault.code == Code::SessionUnknown => {
            let _ = shared.inbox.send(Input::Event(Event::Forgotten));
            Ok(())
        }
        Err(Some(error)) => Err(NotJoined::Connect(error)),
        Err(None) => Err(NotJoined::NoAddress),
    }
}
