//! What a session is to its links: where they find what they need, and what it does when one is opened or lost.

use std::sync::Arc;

use linerate_core::{ChannelId, LinkId, PathId};
use linerate_net::channel_thread::{ChannelEnds, ChannelHandle};
use linerate_net::control::ControlPath;
use linerate_net::links::Link;

use super::dialler::Dialler;
use super::losses::Losses;
use super::opener::RdmaPort;
use super::view::ChannelStatus;
use crate::session::probe::OpenError;
use crate::session::stream_transport::StreamTransport;

/// A session as the threads of its links know it.
pub(crate) trait Session: Send + Sync + 'static {
    fn dialler(&self) -> &Dialler;

    fn losses(&self) -> &Losses;

    /// The streams of the session; a link then has channels back, too.
    fn streams(&self) -> Option<Arc<StreamTransport>>;

    /// Puts a welcomed control connection to use, and gives it to the loop.
    fn attach_path(&self, connection: ControlPath, link: Option<LinkId>) -> std::io::Result<PathId>;

    /// Puts a proven channel to work.
    fn pump(
        self: &Arc<Self>,
        channel: ChannelId,
        link: LinkId,
        ends: ChannelEnds,
    ) -> Result<ChannelHandle, OpenError>;

    /// All of it is about to end: what is lost now is not reported.
    fn is_ending(&self) -> bool;

    /// A link is going to be used.
    fn added(&self, _link: &Link, _rdma: Option<RdmaPort>) {}

    fn warn(&self, text: String);

    /// RDMA failed: TCP is used instead.
    fn fell_back(&self, link: &Link, reason: &str);

    /// All channels of a link have moved their probes, and carry from now on.
    fn opened(&self, link: &Link, channels: Vec<ChannelStatus>, rdma: bool);

    fn not_opened(&self, failure: &NotOpened<'_>);

    /// The link's channels are going to be closed.
    fn closing(&self, _link: LinkId) {}

    /// They carry nothing more: their fences are to be asked for.
    fn closed(&self, link: LinkId, channels: &[ChannelId]);

    fn lost(&self, link: &Link, reason: &str);
}

/// A link could not be opened; it is tried again.
pub(crate) struct NotOpened<'a> {
    pub link: &'a Link,
    pub reason: &'a str,
    /// The other host's agent answers and does not know the session.
    pub is_forgotten: bool,
    /// Not the reason of the try before.
    pub is_news: bool,
    pub was_up: bool,
}
