//! When a tunnel ends by itself. Its streams are [`crate::stream`]'s, its messages [`crate::control`]'s.

use std::time::Duration;

use crate::Time;
use crate::control::Control;

/// The connection that opened the session is put to use within this.
const FIRST_PATH: Duration = Duration::from_secs(10);
/// The peer is notified of the end within this.
const CLOSING: Duration = Duration::from_secs(2);

/// Why a tunnel ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The connection that opened it was closed before it was used.
    NeverConnected,
    /// All links were gone for too long.
    NoLink,
    /// The peer was notified of the reason, or could not be.
    Closed,
}

/// Decides when a tunnel ends by itself.
#[derive(Clone, Debug)]
pub struct Lifetime {
    link_timeout: Duration,
    first_path_until: Option<Time>,
    closing_until: Option<Time>,
}

impl Lifetime {
    /// Begins now. All links may be gone for `link_timeout`.
    pub fn new(now: Time, link_timeout: Duration) -> Lifetime {
        Lifetime { link_timeout, first_path_until: Some(now + FIRST_PATH), closing_until: None }
    }

    /// A control connection is up.
    pub fn path_up(&mut self) {
        self.first_path_until = None;
    }

    /// The tunnel ends: the peer is being sent the reason.
    pub fn close(&mut self, now: Time) {
        self.closing_until.get_or_insert(now + CLOSING);
    }

    /// Whether the peer is being sent the reason of the end.
    pub fn is_closing(&self) -> bool {
        self.closing_until.is_some()
    }

    /// Whether it ends now.
    pub fn end(&self, now: Time, control: &Control) -> Option<End> {
        let over = |until: Option<Time>| until.is_some_and(|until| now >= until);
        let delivered = control.unacknowledged() == 0 || control.paths() == 0;
        if self.is_closing() && (delivered || over(self.closing_until)) {
            Some(End::Closed)
        } else if over(self.first_path_until) {
            Some(End::NeverConnected)
        } else if over(self.link_until(control)) {
            Some(End::NoLink)
        } else {
            None
        }
    }

    /// When to look again, at the latest; `None` if only events lead on.
    pub fn timeout(&self, control: &Control) -> Option<Time> {
        let timers = [self.closing_until, self.first_path_until, self.link_until(control), control.timeout()];
        timers.into_iter().flatten().min()
    }

    fn link_until(&self, control: &Control) -> Option<Time> {
        control.unreachable_since().map(|since| since + self.link_timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, Fault, Message, Side, Step};

    const LINK_TIMEOUT: Duration = Duration::from_secs(30);

    fn s(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    /// It ends at that moment, names that moment, and not before.
    fn ends_at(lifetime: &Lifetime, control: &Control, at: Time, why: End) {
        assert_eq!(lifetime.timeout(control), Some(at));
        assert_eq!(lifetime.end(Time(at.0 - 1), control), None);
        assert_eq!(lifetime.end(at, control), Some(why));
    }

    #[test]
    fn tunnel_without_a_first_connection_ends() {
        ends_at(&Lifetime::new(s(5), LINK_TIMEOUT), &Control::default(), s(15), End::NeverConnected);
    }

    #[test]
    fn links_may_be_away_for_their_limit() {
        let (mut lifetime, mut control) = (Lifetime::new(s(0), LINK_TIMEOUT), Control::default());
        lifetime.path_up();
        control.path_up(s(1), 0);
        assert_eq!((lifetime.end(s(1000), &control), lifetime.timeout(&control)), (None, None));
        control.path_lost(s(20), 0);
        ends_at(&lifetime, &control, s(50), End::NoLink);
        control.path_up(s(40), 1);
        assert_eq!(lifetime.end(s(1000), &control), None);
    }

    #[test]
    fn the_peer_is_notified_of_the_end_for_a_limited_time() {
        let (mut lifetime, mut control) = (Lifetime::new(s(0), LINK_TIMEOUT), Control::default());
        lifetime.path_up();
        control.path_up(s(1), 0);
        control.send(s(1), Message::Abort(Fault::new(Code::Cancelled, Step::Copy, Side::Source, "")));
        lifetime.close(s(1));
        lifetime.close(s(2));
        assert_eq!(lifetime.end(Time(s(3).0 - 1), &control), None, "the peer has not confirmed it");
        assert_eq!(lifetime.end(s(3), &control), Some(End::Closed));
        let mut confirmed = control;
        confirmed.acknowledged(s(2), 0, 1);
        assert_eq!(lifetime.end(s(2), &confirmed), Some(End::Closed));
    }
}
