//! Channels and links as displays and reports see them.

use std::sync::Arc;

use linerate_core::ChannelId;
use linerate_net::links::Link;
use linerate_net::stats::{ChannelStats, Counters};
use linerate_net::tcp::stats::Progress as TcpProgress;

/// What a channel carries.
pub(crate) struct ChannelStatus {
    pub id: ChannelId,
    pub stats: Arc<ChannelStats>,
    tcp: Option<TcpProgress>,
    /// Segments that TCP sent again, as of the last read: the kernel forgets them when the connection closes.
    resent: u64,
}

impl ChannelStatus {
    pub fn new(id: ChannelId, stats: Arc<ChannelStats>, tcp: Option<TcpProgress>) -> ChannelStatus {
        ChannelStatus { id, stats, tcp, resent: 0 }
    }

    /// What it carried, and the segments that TCP sent again.
    pub fn read(&mut self) -> (Counters, u64) {
        if let Some(info) = self.tcp.as_mut().and_then(TcpProgress::read) {
            self.resent = u64::from(info.retransmits);
        }
        (self.stats.counters(), self.resent)
    }
}

/// A link, for people.
pub(crate) fn describe(link: &Link) -> String {
    let device = link.device.as_deref().unwrap_or("routed");
    format!("{device} to {} ({})", link.remote.ip(), link.remote_interface)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_sent_again_are_remembered_when_their_connection_is_closed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let tcp = TcpProgress::of(&linerate_net::tcp::Stream::new(stream.try_clone().unwrap()).unwrap());
        assert!(tcp.is_some(), "this kernel reports nothing about connections");
        let mut view = ChannelStatus { resent: 7, ..ChannelStatus::new(0, Arc::default(), tcp) };
        assert_eq!(view.read().1, 0, "the kernel's figure for an open connection");
        view.resent = 7;
        drop((listener, stream));
        assert_eq!(view.read().1, 7);
    }
}
