//! Signals to the threads of a session's links: what of a link is lost, and when a port is up again.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::MutexGuard;
use std::sync::mpsc::{Receiver, Sender, channel};

use linerate_core::{ChannelId, LinkId, PathId};
use linerate_lock::Mutex;
use linerate_net::channel::ChannelError;
use linerate_net::links::Link;

use crate::faults::chain;
use crate::security::REVOKED;

/// Something of a link is lost, so that all of it is opened again.
#[derive(Clone, Debug)]
pub(super) struct LinkLoss {
    /// The control connection that is lost; `None` if it is something else.
    path: Option<PathId>,
    pub reason: String,
    /// A channel ended that its peer did not close: if the link works, its transport failed.
    pub of_transport: bool,
    /// The port of this host lost its carrier.
    pub of_port: bool,
}

impl LinkLoss {
    /// Of the link as a whole.
    pub fn of_link(reason: impl Into<String>) -> LinkLoss {
        LinkLoss { path: None, reason: reason.into(), of_transport: false, of_port: false }
    }

    /// Whether it is of the opening with this control connection. The loss of an earlier opening may be signalled late.
    pub fn concerns(&self, path: Option<PathId>) -> bool {
        self.path.is_none() || self.path == path
    }
}

/// What the thread of a link receives.
#[derive(Clone, Debug)]
pub(super) enum LinkSignal {
    Lost(LinkLoss),
    /// The port of this host has a carrier again.
    PortIsUp,
}

struct Entry {
    link: Link,
    signals: Sender<LinkSignal>,
    /// Those that this side writes to, since the link was opened last.
    channels: HashSet<ChannelId>,
}

/// All links of a session, for those that find a loss.
#[derive(Default)]
pub(crate) struct Losses(Mutex<Vec<Entry>>);

impl Losses {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock()
    }

    /// A link is going to be used: its thread receives its losses.
    pub(super) fn add(&self, link: &Link) -> Receiver<LinkSignal> {
        let (signals, receiver) = channel();
        self.lock().push(Entry { link: link.clone(), signals, channels: HashSet::new() });
        receiver
    }

    /// A channel is about to carry data.
    pub(super) fn carries(&self, link: LinkId, channel: ChannelId) {
        for entry in self.lock().iter_mut().filter(|entry| entry.link.id == link) {
            entry.channels.insert(channel);
        }
    }

    /// The link's channels are closed: their losses do not count any more.
    pub(super) fn closed(&self, link: LinkId) {
        for entry in self.lock().iter_mut().filter(|entry| entry.link.id == link) {
            entry.channels.clear();
        }
    }

    fn notify(&self, signal: &LinkSignal, of: impl Fn(&Entry) -> bool) {
        for entry in self.lock().iter().filter(|entry| of(entry)) {
            let _ = entry.signals.send(signal.clone());
        }
    }

    fn lose(&self, loss: LinkLoss, of: impl Fn(&Entry) -> bool) {
        self.notify(&LinkSignal::Lost(loss), of);
    }

    /// The link as a whole cannot be used any more.
    pub(super) fn link_lost(&self, link: LinkId, reason: String) {
        self.lose(LinkLoss::of_link(reason), |entry| entry.link.id == link);
    }

    /// A control connection of a link is lost, so all of the link is, unless it has been opened again.
    pub fn path_lost(&self, link: LinkId, path: PathId, reason: &str) {
        let loss = LinkLoss { path: Some(path), ..LinkLoss::of_link(reason) };
        self.lose(loss, |entry| entry.link.id == link);
    }

    /// A channel is lost, so all of its link is.
    pub fn channel_lost(&self, channel: ChannelId, error: &ChannelError) {
        let loss =
            LinkLoss { of_transport: error.may_be_the_transports(), ..LinkLoss::of_link(chain(error)) };
        self.lose(loss, |entry| entry.channels.contains(&channel));
    }

    /// An interface of this host lost its carrier, and takes its links with it.
    pub(super) fn interface_down(&self, name: &str) {
        let loss = LinkLoss { of_port: true, ..LinkLoss::of_link(format!("{name} has no carrier")) };
        self.lose(loss, |entry| entry.link.device.as_deref() == Some(name));
    }

    /// An interface of this host has a carrier again: its links are worth a try at once.
    pub(super) fn interface_up(&self, name: &str) {
        self.notify(&LinkSignal::PortIsUp, |entry| entry.link.device.as_deref() == Some(name));
    }

    /// The other host was revoked: no link can be used any more.
    pub fn peer_revoked(&self) {
        self.lose(LinkLoss::of_link(REVOKED), |_| true);
    }

    /// The session is over.
    pub(super) fn end(&self) {
        self.lose(LinkLoss::of_link("the session is over"), |_| true);
    }

    /// Those of one link, which nobody opens.
    #[cfg(test)]
    pub fn of_link_to(remote: SocketAddr) -> Losses {
        let losses = Losses::default();
        drop(losses.add(&Link { remote, ..tests::link() }));
        losses
    }

    /// Where the other host can be reached.
    pub fn remotes(&self) -> Vec<SocketAddr> {
        self.lock().iter().map(|entry| entry.link.remote).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn link() -> Link {
        Link {
            id: 1,
            local: None,
            device: None,
            remote_interface: "eth0".into(),
            remote: "192.0.2.1:7979".parse().unwrap(),
            speed_mbps: 0,
            mtu: 1500,
            numa: -1,
            rdma: None,
            mtu_differs: false,
        }
    }

    #[test]
    fn control_connection_of_earlier_opening_closes_nothing() {
        let of = |path| LinkLoss { path: Some(path), ..LinkLoss::of_link("") };
        assert!(of(7).concerns(Some(7)) && LinkLoss::of_link("eth1 is down").concerns(Some(7)));
        assert!(!of(6).concerns(Some(7)));
    }

    #[test]
    fn channel_of_earlier_opening_closes_nothing() {
        let losses = Losses::default();
        let receiver = losses.add(&link());
        losses.carries(1, 4);
        losses.channel_lost(4, &ChannelError::Closed);
        let LinkSignal::Lost(loss) = receiver.try_recv().unwrap() else { panic!("no loss") };
        assert!(!loss.of_transport, "its peer closed it");
        losses.closed(1);
        losses.carries(1, 5);
        losses.channel_lost(4, &ChannelError::Closed);
        assert!(receiver.try_recv().is_err());
    }

    #[test]
    fn all_links_to_a_revoked_host_are_lost_and_rdma_is_not_to_blame() {
        let losses = Losses::default();
        let links = [1, 2].map(|id| losses.add(&Link { id, ..link() }));
        losses.peer_revoked();
        for signals in links {
            let LinkSignal::Lost(loss) = signals.try_recv().unwrap() else { panic!("no loss") };
            assert!(loss.concerns(Some(7)) && !loss.of_transport && !loss.of_port);
            assert_eq!(loss.reason, "the other host was revoked");
        }
    }

    #[test]
    fn links_of_a_port_that_is_up_again_are_notified() {
        let losses = Losses::default();
        let of = |id, device: &str| losses.add(&Link { id, device: Some(device.into()), ..link() });
        let (first, second) = (of(1, "eth1"), of(2, "eth2"));
        losses.interface_up("eth1");
        assert!(matches!(first.try_recv(), Ok(LinkSignal::PortIsUp)));
        assert!(second.try_recv().is_err());
    }
}
