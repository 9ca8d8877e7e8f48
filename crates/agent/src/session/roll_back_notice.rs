//! The roll-back notice: sent where no abort could reach the destination, on a connection of its own, in a thread of
//! its own. Nothing waits for it. A destination that does not answer costs a connection attempt now and then: for a
//! minute, or until it answers if it may hold the guest complete. `linerate-core` decides when to try
//! (`roll_back_notice`).

use std::net::SocketAddr;

use linerate_core::Outcome;
use linerate_core::recovery::NoticeStep;
use linerate_core::roll_back_notice::{Next, RollBackNotice};

use super::contact::notify_rolled_back;
use super::identity::Identity;
use crate::clock::Clock;

/// Begins to notify the destination. `held`: it may have the guest complete, and keeps it until it is notified. `done`
/// is called when no notice is due any more: the destination knows, or has given up by itself.
pub(crate) fn send(
    peers: Vec<SocketAddr>,
    identity: Identity,
    held: bool,
    done: impl FnOnce() + Send + 'static,
) {
    send_by(peers, identity, held, || NoticeStep::Send, |_| done());
}

/// The same. `step` is asked before each try. `done` is told whether the destination answers that it has run the guest.
pub(crate) fn send_by(
    peers: Vec<SocketAddr>,
    identity: Identity,
    held: bool,
    step: impl FnMut() -> NoticeStep + Send + 'static,
    done: impl FnOnce(bool) + Send + 'static,
) {
    let session = identity.session;
    let sending = move || run(&peers, &identity, held, step, done);
    if let Err(error) = std::thread::Builder::new().name("roll-back-notice".into()).spawn(sending) {
        let then = match held {
            true => {
                "if it holds the guest complete, it keeps it paused until the next start of this agent notifies it"
            }
            false => "it gives up by itself",
        };
        tracing::warn!(%session, %error, then, "cannot start a thread to notify the destination of the roll-back");
    }
}

fn run(
    peers: &[SocketAddr],
    identity: &Identity,
    held: bool,
    mut step: impl FnMut() -> NoticeStep,
    done: impl FnOnce(bool),
) {
    let session = identity.session;
    let clock = Clock::start();
    let mut notice = RollBackNotice::new(clock.now(), held);
    loop {
        let outcome = match step() {
            NoticeStep::Send => notify_rolled_back(peers, identity, held),
            NoticeStep::Wait => None,
            NoticeStep::Withdraw => {
                done(false);
                return tracing::error!(%session, "rolled back here, and the paused guest has ended here since: the destination is not notified, and its operator decides about the copy that it may hold: see `linerate migration list` there");
            }
        };
        let now = clock.now();
        match notice.answered(now, outcome) {
            Next::RetryAt(at) => std::thread::sleep(at.since(now)),
            Next::GivenUp => {
                done(false);
                return tracing::info!(%session, "the destination knows of the roll-back and holds nothing any more");
            }
            Next::Committed if outcome == Some(Outcome::Gone) => {
                done(false);
                return tracing::warn!(%session, "rolled back here; the destination had taken the guest over, and its QEMU there has ended");
            }
            Next::Committed => {
                done(true);
                return tracing::error!(%session, "rolled back here, and the destination answers that it has committed: see that the guest does not run twice");
            }
            Next::Acknowledged => {
                done(false);
                return tracing::info!(%session, "the destination knows of the roll-back, and was still ending its incoming QEMU when it last answered");
            }
            Next::NoAnswer => {
                done(false);
                return tracing::warn!(%session, "the destination could not be notified of the roll-back; by now it has given up by itself");
            }
        }
    }
}
