//! Links of a tunnel, as [`crate::session::links`] opens them.

use std::io;
use std::sync::Arc;

use linerate_api::TunnelEvent;
use linerate_core::{ChannelId, LinkId, PathId};
use linerate_net::channel_thread::{ChannelEnds, ChannelHandle};
use linerate_net::control::ControlPath;
use linerate_net::links::Link;

use super::{Input, Tunnel};
use crate::session::links::{ChannelStatus, Dialler, Losses, NotOpened, Session, describe};
use crate::session::probe::OpenError;
use crate::session::stream_transport::StreamTransport;

impl Session for Tunnel {
    fn dialler(&self) -> &Dialler {
        &self.dialler
    }

    fn losses(&self) -> &Losses {
        &self.losses
    }

    fn streams(&self) -> Option<Arc<StreamTransport>> {
        Some(self.stream_transport.clone())
    }

    fn attach_path(&self, mut connection: ControlPath, link: Option<LinkId>) -> io::Result<PathId> {
        let path = self.door.listen(&mut connection)?;
        self.send(Input::Path(path, link, connection));
        Ok(path)
    }

    fn pump(
        self: &Arc<Self>,
        channel: ChannelId,
        link: LinkId,
        ends: ChannelEnds,
    ) -> Result<ChannelHandle, OpenError> {
        self.stream_transport.pump(channel, link, ends, None)
    }

    fn is_ending(&self) -> bool {
        self.is_over()
    }

    fn warn(&self, text: String) {
        self.publish(TunnelEvent::Warning { text });
    }

    fn fell_back(&self, link: &Link, reason: &str) {
        self.warn(format!("{}: RDMA failed, TCP is used instead: {reason}", describe(link)));
    }

    fn opened(&self, link: &Link, _channels: Vec<ChannelStatus>, _rdma: bool) {
        self.publish(TunnelEvent::LinkUp { link: describe(link) });
    }

    fn not_opened(&self, failure: &NotOpened<'_>) {
        if failure.is_news {
            self.warn(format!("{}: {}", describe(failure.link), failure.reason));
        }
    }

    fn closed(&self, link: LinkId, channels: &[ChannelId]) {
        for &channel in channels {
            if self.stream_transport.streams.channel_gone(channel) {
                self.send(Input::Fence(channel));
            }
        }
        self.send(Input::LinkLost(link));
    }

    fn lost(&self, link: &Link, reason: &str) {
        self.publish(TunnelEvent::LinkLost { link: describe(link), reason: reason.to_owned() });
    }
}
