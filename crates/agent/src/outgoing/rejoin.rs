//! The first control connection, before links are known: if it is lost, it is opened again at the addresses by which
//! the destination was reached. Later each link opens its own again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linerate_core::Code;
use linerate_core::source::Event;
use linerate_net::tcp::connect::ConnectError;

use super::{Input, Outgoing};
use crate::session::contact::{join_any, keep};
use crate::session::links::Session;

/// Between two attempts to open it again.
const RETRY: Duration = Duration::from_millis(250);

/// Tries in a thread of its own until it is joined, refused or over; the machine's link time-out bounds it.
pub(super) fn rejoin(shared: &Arc<Outgoing>, peers: Vec<SocketAddr>) {
    let outgoing = shared.clone();
    let trying = move || {
        while !outgoing.machine().is_ended() && outgoing.machine().paths() == 0 {
            if try_once(&outgoing, &peers) {
                return;
            }
            std::thread::sleep(RETRY);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("rejoin".into()).spawn(trying) {
        tracing::error!(%error, "no thread to reach the destination again");
    }
}

/// Whether there is nothing more to try.
fn try_once(shared: &Outgoing, peers: &[SocketAddr]) -> bool {
    match join_any(peers, &shared.dialler.identity) {
        Ok(stream) => keep(stream).and_then(|control| shared.attach_path(control, None)).is_ok(),
        Err(Some(ConnectError::Refused { fault, .. })) if fault.code == Code::SessionUnknown => {
            let _ = shared.inbox.send(Input::Event(Event::Forgotten));
            true
        }
        Err(_) => false,
    }
}
