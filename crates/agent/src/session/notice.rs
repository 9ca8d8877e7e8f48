//! What the streams of a session tell its loop.

use std::sync::mpsc::Sender;

use linerate_core::ChannelId;
use linerate_core::stream::StreamId;
use linerate_net::channel::ChannelError;
use linerate_net::lock::Mutex;
use linerate_net::stream::StreamEvents;

/// Something that the loop has to do for the streams.
pub(crate) enum Notice {
    /// They have notes for the other side's.
    Speak,
    /// The peer wants a stream to this service.
    Asked(StreamId, String),
    /// The peer did not take a stream, for this reason.
    Refused(StreamId, String),
    /// A channel that this side writes to is of no more use.
    ChannelLost(ChannelId, ChannelError),
}

/// The streams' owner: everything goes to the loop, whose inbox takes inputs of type `I`.
pub(crate) struct ToLoop<I>(Mutex<Sender<I>>);

impl<I: From<Notice>> ToLoop<I> {
    pub fn new(inbox: Sender<I>) -> ToLoop<I> {
        ToLoop(Mutex::new(inbox))
    }

    fn tell(&self, notice: Notice) {
        // After the end nobody reads it.
        let _ = self.0.lock().send(notice.into());
    }
}

impl<I: From<Notice> + Send> StreamEvents for ToLoop<I> {
    fn attention(&self) {
        self.tell(Notice::Speak);
    }

    fn asked(&self, stream: StreamId, service: String) {
        self.tell(Notice::Asked(stream, service));
    }

    fn refused(&self, stream: StreamId, reason: String) {
        self.tell(Notice::Refused(stream, reason));
    }

    fn channel_lost(&self, channel: ChannelId, error: ChannelError) {
        self.tell(Notice::ChannelLost(channel, error));
    }
}
