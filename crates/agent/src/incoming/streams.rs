//! QEMU's own streams at the destination: each connection of the source's QEMU is connected to the incoming one, one
//! after the other in the order in which they were asked for.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use linerate_api::MigrateRequest;
use linerate_core::destination::Event;
use linerate_core::stream::{End, StreamId};
use linerate_core::{Code, Fault, Message, Side};
use linerate_net::stream::StreamSession;
use linerate_net::stream::endpoint::Socket;

use super::{Incoming, Input};
use crate::faults::chain;
use crate::local::{CONNECT_WAIT, connect_qemu};
use crate::session::notice::{LoopSender, Notice};
use crate::session::stream_transport::{DISKS_SERVICE, QEMU_SERVICE, StreamTransport, migration_streams};

/// The streams of an incoming guest's session.
pub(super) fn stream_transport(session: &Incoming) -> StreamTransport {
    let owner = LoopSender::new(session.inbox.clone());
    StreamTransport::new(
        End::Destination,
        migration_streams(MigrateRequest::DEFAULT_STORAGE_SHARE_PERCENT),
        Box::new(owner),
        session.fences.clone(),
    )
}

impl From<Notice> for Input {
    fn from(notice: Notice) -> Input {
        match notice {
            Notice::Speak => Input::StreamsSpeak,
            Notice::Asked(stream, service) => Input::Asked(stream, service),
            Notice::Refused(stream, _reason) => Input::Refused(stream),
            Notice::ChannelLost(channel, error) => Input::ChannelLost(channel, error),
        }
    }
}

/// Where the incoming QEMU takes its streams.
pub(super) struct Services {
    /// Its process, which serves both.
    pub qemu: i32,
    pub state: PathBuf,
    /// The images of copied disks; none if there are none.
    pub disks: Option<PathBuf>,
}

impl Services {
    fn socket(&self, service: &str) -> Option<&Path> {
        match service {
            QEMU_SERVICE => Some(&self.state),
            DISKS_SERVICE => self.disks.as_deref(),
            _ => None,
        }
    }
}

/// Connects streams to the incoming QEMU, in a thread of its own that ends when no stream can be asked for any more.
pub(super) fn connector(
    streams: Arc<StreamSession>,
    services: Services,
) -> io::Result<Sender<(StreamId, String)>> {
    let (ask, asked) = channel::<(StreamId, String)>();
    std::thread::Builder::new().name("qemu-connect".into()).spawn(move || {
        for (stream, service) in asked {
            let connected = match services.socket(&service) {
                Some(socket) => connect_qemu(socket, services.qemu, CONNECT_WAIT)
                    .and_then(Socket::new)
                    .map_err(|error| chain(&error)),
                None => Err(format!("this migration has no service {service}")),
            };
            match connected {
                Ok(socket) => {
                    if let Err(error) = streams.accept(stream, socket) {
                        tracing::error!(stream, error = chain(&error), "a stream cannot be taken");
                    }
                }
                Err(reason) => streams.refuse(stream, &reason),
            }
        }
    })?;
    Ok(ask)
}

impl Incoming {
    /// Takes a message of the source's streams.
    pub(super) fn deliver(&self, message: Message) {
        let Some(stream_transport) = self.stream_transport() else { return };
        if let Err(violation) = stream_transport.deliver(message) {
            let step = self.machine().step();
            let fault = Fault::new(Code::ProtocolViolation, step, Side::Source, violation.to_string());
            self.send(Event::ReceivingFailed(fault));
        }
    }

    /// A stream is asked for.
    pub(super) fn asked(&self, stream: StreamId, service: String) {
        let connector = self.connector.get();
        let asked = connector.is_some_and(|connector| connector.send((stream, service)).is_ok());
        if let Some(stream_transport) = self.stream_transport().filter(|_| !asked) {
            stream_transport.streams.refuse(stream, "no hypervisor waits for it");
        }
    }
}
