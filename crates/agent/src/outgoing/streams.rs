//! QEMU's own streams at the source: its connections become streams of the session, one after the other, in the order
//! in which they are made. QEMU distinguishes its connections by that order.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use linerate_core::source::Event;
use linerate_core::statistics::{Disks, Streamed};
use linerate_core::stream::End;
use linerate_core::{Code, Fault, Message, Side, Step};
use linerate_guest::migrate::{MirrorProgress, StreamProgress};
use linerate_net::stream::endpoint::Socket;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::{Input, Outgoing};
use crate::faults::chain;
use crate::local::listen_for;
use crate::session::notice::{LoopSender, Notice};
use crate::session::stream_transport::{
    DISKS_SERVICE, MEMORY, QEMU_SERVICE, STORAGE, StreamTransport, migration_streams,
};

/// The streams of a session that moves a guest, at the source. Clones share everything.
#[derive(Clone)]
pub(super) struct MigrationStreams {
    pub transport: Arc<StreamTransport>,
    /// Disks that are copied.
    pub disks: usize,
    /// What their connections have carried.
    pub disk_bytes: Arc<AtomicU64>,
}

impl MigrationStreams {
    /// QEMU has not connected yet.
    pub fn new(inbox: Sender<Input>, storage_percent: u8, disks: usize) -> MigrationStreams {
        let owner = Box::new(LoopSender::new(inbox));
        let transport =
            StreamTransport::new(End::Source, migration_streams(storage_percent), owner, Arc::default());
        MigrationStreams { transport: Arc::new(transport), disks, disk_bytes: Arc::default() }
    }

    /// What QEMU reports about its copying, and what the links have carried of it.
    pub fn streamed(&self, progress: StreamProgress) -> Streamed {
        let streams = &self.transport.streams;
        Streamed {
            round: progress.round,
            total_bytes: progress.total_bytes,
            remaining_bytes: progress.remaining_bytes,
            zero_bytes: progress.zero_bytes,
            dirty_bytes_per_s: progress.dirty_bytes_per_s as f64,
            expected_downtime: progress.expected_downtime,
            throttle_percent: progress.throttle_percent,
            carried_bytes: streams.acknowledged_bytes(),
            bytes_per_s: streams.bytes_per_s(None),
        }
    }

    /// The same of copied disks.
    pub fn mirrored(&self, progress: MirrorProgress) -> Disks {
        let streams = &self.transport.streams;
        Disks {
            total_bytes: progress.total_bytes,
            done_bytes: progress.done_bytes,
            scanning_allocation: progress.searching,
            carried_bytes: streams.acknowledged_bytes(),
            bytes_per_s: streams.bytes_per_s(None),
        }
    }

    /// A connection that is not taken is closed, and QEMU's migration fails by it.
    fn take(&self, service: Service, connection: OwnedFd) {
        let socket = Socket::new(connection).map_err(|error| chain(&error));
        let opened = socket.and_then(|socket| {
            let (class, name, socket) = match service {
                Service::Migration => (MEMORY, QEMU_SERVICE, socket),
                Service::Disks => (STORAGE, DISKS_SERVICE, socket.counted(self.disk_bytes.clone())),
            };
            self.transport.streams.open_in(class, name, socket).map_err(|error| chain(&error))
        });
        if let Err(reason) = opened {
            tracing::warn!(reason, "a connection of QEMU's was not taken");
        }
    }
}

impl From<Notice> for Input {
    fn from(notice: Notice) -> Input {
        match notice {
            Notice::Speak => Input::StreamsSpeak,
            Notice::Asked(stream, _service) => {
                let detail = format!("it opened stream {stream}; only the source's hypervisor connects");
                failed(Code::ProtocolViolation, detail)
            }
            Notice::Refused(_stream, reason) => {
                let detail = format!("a connection of QEMU's was not taken there: {reason}");
                failed(Code::HypervisorFailed, detail)
            }
            Notice::ChannelLost(channel, error) => Input::ChannelLost(channel, error),
        }
    }
}

fn failed(code: Code, detail: String) -> Input {
    Input::Event(Event::StreamsFailed(Fault::new(code, Step::Copy, Side::Destination, detail)))
}

impl Outgoing {
    /// What the destination's streams sent.
    pub(super) fn deliver_stream_message(self: &Arc<Outgoing>, message: Message) {
        let Some(transport) = self.stream_transport() else { return };
        match message {
            Message::Fence { channel } if !self.dialler.has_opened(channel) => {
                self.violated(format!("it asks for a fence of channel {channel}, which was never opened"));
            }
            Message::Fence { channel } => {
                let session = self.clone();
                transport.fence(channel, move |fenced| {
                    let (applied, damaged) = (fenced.applied, fenced.damaged);
                    session.send(Event::SendStreamMessage(Message::Fenced { channel, applied, damaged }));
                });
            }
            message => {
                if let Err(violation) = transport.deliver(message) {
                    self.violated(violation.to_string());
                }
            }
        }
    }

    fn violated(&self, detail: String) {
        let step = self.machine().step();
        let fault = Fault::new(Code::ProtocolViolation, step, Side::Destination, detail);
        self.send(Event::StreamsFailed(fault));
    }
}

/// What QEMU's connections are to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// The incoming QEMU's migration.
    Migration,
    /// The images that it offers.
    Disks,
}

/// Takes QEMU's connections until it is dropped.
pub(super) struct Accepting {
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Accepting {
    /// Listens for this process; `most` is how many connections QEMU makes, and more are not taken.
    pub fn start(
        socket: &Path,
        qemu: i32,
        streams: MigrationStreams,
        service: Service,
        most: usize,
    ) -> io::Result<Accepting> {
        let _ = std::fs::remove_file(socket);
        let listener = listen_for(socket, qemu)?;
        listener.set_nonblocking(true)?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let accept = move || {
            for nth in 0.. {
                let Some(connection) = next(&listener, &stopped) else { return };
                if nth < most {
                    streams.take(service, connection);
                } else {
                    tracing::warn!(
                        most,
                        ?service,
                        "QEMU makes more connections than it was set to; one is closed"
                    );
                }
            }
        };
        let thread = std::thread::Builder::new().name("qemu-accept".into()).spawn(accept)?;
        Ok(Accepting { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The next connection; none when it is to end.
fn next(listener: &UnixListener, stopped: &OwnedFd) -> Option<OwnedFd> {
    loop {
        let mut fds = [PollFd::new(stopped, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
        let [stop, _] = &fds;
        if !stop.revents().is_empty() {
            return None;
        }
        match listener.accept() {
            Ok((connection, _)) => return Some(connection.into()),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => {
                tracing::warn!(%error, "a connection of QEMU's could not be accepted");
                return None;
            }
        }
    }
}
