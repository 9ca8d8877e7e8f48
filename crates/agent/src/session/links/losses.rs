//! The threads of a session's links are told here what is lost of their links, and when a port is up again.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::MutexGuard;
use std::sync::mpsc::{Receiver, Sender, channel};

use linerate_core::{ChannelId, LinkId, PathId};
use linerate_net::channel::ChannelError;
use linerate_net::links::Link;
use linerate_net::lock::Mutex;

use crate::faults::chain;

/// Something of a link is gone, so that all of it is opened anew.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    /// The control connection that is lost; `None` if it is something else.
    path: Option<PathId>,
    pub reason: String,
    /// A channel ended that its peer did not close: if the link works, its carrier failed.
    pub of_carrier: bool,
    /// The port of this host lost its carrier.
    pub of_port: bool,
}

impl Loss {
    /// Of the link as a whole.
    pub fn of_link(reason: impl Into<String>) -> Loss {
        Loss { path: None, reason: reason.into(), of_carrier: false, of_port: false }
    }

    /// Whether it is of the opening with this control connection. That of an earlier opening may be told late.
    pub fn concerns(&self, path: Option<PathId>) -> bool {
        self.path.is_none() || self.path == path
    }
}

/// What the thread of a link is told.
#[derive(Clone, Debug)]
pub(super) enum News {
    Lost(Loss),
    /// The port of this host has a carrier again.
    PortIsUp,
}

struct Entry {
    link: Link,
    news: Sender<News>,
    /// Those that this side writes to, since the link was opened last.
    channels: HashSet<ChannelId>,
}

/// All links of a session, as whoever finds a loss knows them.
#[derive(Default)]
pub(crate) struct Losses(Mutex<Vec<Entry>>);

impl Losses {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock()
    }

    /// A link is going to be used: its thread hears of losses.
    pub(super) fn add(&self, link: &Link) -> Receiver<News> {
        let (news, told) = channel();
        self.lock().push(Entry { link: link.clone(), news, channels: HashSet::new() });
        told
    }

    /// A channel is about to carry.
    pub(super) fn carries(&self, link: LinkId, channel: ChannelId) {
        for entry in self.lock().iter_mut().filter(|entry| entry.link.id == link) {
            entry.channels.insert(channel);
        }
    }

    /// The link's channels are closed: their losses are no news any more.
    pub(super) fn closed(&self, link: LinkId) {
        for entry in self.lock().iter_mut().filter(|entry| entry.link.id == link) {
            entry.channels.clear();
        }
    }

    fn tell(&self, news: &News, of: impl Fn(&Entry) -> bool) {
        for entry in self.lock().iter().filter(|entry| of(entry)) {
            let _ = entry.news.send(news.clone());
        }
    }

    fn lose(&self, loss: Loss, of: impl Fn(&Entry) -> bool) {
        self.tell(&News::Lost(loss), of);
    }

    /// The link as a whole is of no more use.
    pub(super) fn link_lost(&self, link: LinkId, reason: String) {
        self.lose(Loss::of_link(reason), |entry| entry.link.id == link);
    }

    /// A control connection of a link is lost, so all of the link is, unless it has been opened anew.
    pub fn path_lost(&self, link: LinkId, path: PathId, reason: &str) {
        let loss = Loss { path: Some(path), ..Loss::of_link(reason) };
        self.lose(loss, |entry| entry.link.id == link);
    }

    /// A channel is lost, so all of its link is.
    pub fn channel_lost(&self, channel: ChannelId, error: &ChannelError) {
        let loss = Loss { of_carrier: error.may_be_the_carriers(), ..Loss::of_link(chain(error)) };
        self.lose(loss, |entry| entry.channels.contains(&channel));
    }

    /// An interface of this host lost its carrier, and takes its links with it.
    pub(super) fn interface_down(&self, name: &str) {
        let loss = Loss { of_port: true, ..Loss::of_link(format!("{name} has no carrier")) };
        self.lose(loss, |entry| entry.link.device.as_deref() == Some(name));
    }

    /// An interface of this host has a carrier again: its links are worth a try at once.
    pub(super) fn interface_up(&self, name: &str) {
        self.tell(&News::PortIsUp, |entry| entry.link.device.as_deref() == Some(name));
    }

    /// The session is over.
    pub(super) fn end(&self) {
        self.lose(Loss::of_link("the session is over"), |_| true);
    }

    /// Where the other host can be reached.
    pub fn remotes(&self) -> Vec<SocketAddr> {
        self.lock().iter().map(|entry| entry.link.remote).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
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
        let of = |path| Loss { path: Some(path), ..Loss::of_link("") };
        assert!(of(7).concerns(Some(7)) && Loss::of_link("eth1 is down").concerns(Some(7)));
        assert!(!of(6).concerns(Some(7)));
    }

    #[test]
    fn channel_of_earlier_opening_closes_nothing() {
        let losses = Losses::default();
        let told = losses.add(&link());
        losses.carries(1, 4);
        losses.channel_lost(4, &ChannelError::Closed);
        let News::Lost(loss) = told.try_recv().unwrap() else { panic!("no loss") };
        assert!(!loss.of_carrier, "its peer closed it");
        losses.closed(1);
        losses.carries(1, 5);
        losses.channel_lost(4, &ChannelError::Closed);
        assert!(told.try_recv().is_err());
    }

    #[test]
    fn links_of_a_port_that_is_up_again_are_told() {
        let losses = Losses::default();
        let of = |id, device: &str| losses.add(&Link { id, device: Some(device.into()), ..link() });
        let (first, second) = (of(1, "eth1"), of(2, "eth2"));
        losses.interface_up("eth1");
        assert!(matches!(first.try_recv(), Ok(News::PortIsUp)));
        assert!(second.try_recv().is_err());
    }
}
