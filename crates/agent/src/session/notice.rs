//! What the streams of a session report to its loop.

use std::sync::mpsc::Sender;

use linerate_core::ChannelId;
use linerate_core::stream::StreamId;
use linerate_lock::Mutex;
use linerate_net::channel::ChannelError;
use linerate_net::stream::StreamEvents;

/// Something that the loop has to do for the streams.
pub(crate) enum Notice {
    /// They have notes for the other side's.
    Speak,
    /// The peer wants a stream to this service.
    Asked(StreamId, String),
    /// The peer refused a stream, for this reason.
    Refused(StreamId, String),
    /// A channel that this side writes to cannot be used any more.
    ChannelLost(ChannelId, ChannelError),
}

/// The streams' owner: everything goes to the loop, whose inbox takes inputs of type `I`.
pub(crate) struct LoopSender<I>(Mutex<Sender<I>>);

impl<I: From<Notice>> LoopSender<I> {
    pub fn new(inbox: Sender<I>) -> LoopSender<I> {
        LoopSender(Mutex::new(inbox))
    }

    fn send(&self, notice: Notice) {
        // After the loop's end the inbox has no reader.
        let _ = self.0.lock().send(notice.into());
    }
}

impl<I: From<Notice> + Send> StreamEvents for LoopSender<I> {
    fn attention(&self) {
        self.send(Notice::Speak);
    }

    fn asked(&self, stream: StreamId, service: String) {
        self.send(Notice::Asked(stream, service));
    }

    fn refused(&self, stream: StreamId, reason: String) {
        self.send(Notice::Refused(stream, reason));
    }

    fn channel_lost(&self, channel: ChannelId, error: ChannelError) {
        self.send(Notice::ChannelLost(channel, error));
    }
}
