//! A roll-back that the destination could not be told of by an abort is told on a connection of its own, in a thread of
//! its own. Nothing waits for it, and a destination that is away costs a connection attempt now and then for a minute.
//! When to try is `linerate-core`'s (`notice`).

use std::net::SocketAddr;

use linerate_core::Outcome;
use linerate_core::roll_back_notice::{Next, RollBackNotice};

use super::contact::withdraw_any;
use super::identity::Identity;
use crate::clock::Clock;

/// Begins to tell the destination. `held`: it may have the guest complete, and keeps it until it is told. `told` is
/// called when there is nothing more to tell: it knows, or has given up by itself.
pub(crate) fn withdraw(
    peers: Vec<SocketAddr>,
    identity: Identity,
    held: bool,
    told: impl FnOnce() + Send + 'static,
) {
    let session = identity.session;
    let telling = move || tell(&peers, &identity, held, told);
    if let Err(error) = std::thread::Builder::new().name("withdraw".into()).spawn(telling) {
        tracing::warn!(%session, %error, "no thread to tell the destination of the roll-back; it gives up by itself");
    }
}

fn tell(peers: &[SocketAddr], identity: &Identity, held: bool, told: impl FnOnce()) {
    let session = identity.session;
    let clock = Clock::start();
    let mut notice = RollBackNotice::new(clock.now(), held);
    loop {
        let outcome = withdraw_any(peers, identity);
        let now = clock.now();
        match notice.answered(now, outcome) {
            Next::RetryAt(at) => std::thread::sleep(at.since(now)),
            Next::GivenUp => {
                told();
                return tracing::info!(%session, "the destination knows of the roll-back and holds nothing any more");
            }
            Next::Committed if outcome == Some(Outcome::Gone) => {
                told();
                return tracing::warn!(%session, "rolled back here; the destination had taken the guest over, and its QEMU there has ended");
            }
            Next::Committed => {
                told();
                return tracing::error!(%session, "rolled back here, and the destination says that it has committed: see that the guest does not run twice");
            }
            Next::Acknowledged => {
                told();
                return tracing::info!(%session, "the destination has heard of the roll-back, and was still ending its waiting guest when it last answered");
            }
            Next::NoAnswer => {
                told();
                return tracing::warn!(%session, "the destination could not be told of the roll-back; by now it has given up by itself");
            }
        }
    }
}
