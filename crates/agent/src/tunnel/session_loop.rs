//! The loop of a session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use linerate_api::TunnelEvent;
use linerate_core::control::Control;
use linerate_core::tunnel::{End, Lifetime};
use linerate_core::{Code, Endpoint, Fault, Message, PathId, Side, Step};

use super::{Input, Sessions, Tunnel, connect};
use crate::convert;
use crate::faults::chain;
use crate::session::links::Links;
use crate::session::paths::{PathEvent, Paths};
use crate::session::pending_notice::PendingNotice;
use crate::session::roll_back_notice;

/// Where only events are waited for; any length would do.
const LONG: Duration = Duration::from_secs(3600);

pub(super) enum Opening {
    /// The host that asked waits for the other's addresses.
    Ask,
    /// The other names them.
    Offer(Vec<Endpoint>),
}

/// Everything that the loop has of its own.
pub(super) struct SessionLoop {
    sessions: Arc<Sessions>,
    tunnel: Arc<Tunnel>,
    side: Side,
    control: Control,
    connector: Sender<connect::Asked>,
    paths: Paths,
    /// Filters of links, at the host that asked.
    filter: Vec<String>,
    /// At the host that asked: the file from which the next start of this agent sends the roll-back notice.
    notice: Option<PendingNotice>,
    links: Option<Links<Tunnel>>,
    lifetime: Lifetime,
    /// What is being sent to the peer as the end.
    closing: Option<Fault>,
    over: Option<Fault>,
}

impl SessionLoop {
    pub fn new(
        sessions: Arc<Sessions>,
        tunnel: Arc<Tunnel>,
        connector: Sender<connect::Asked>,
        opening: Opening,
        (filter, notice): (Vec<String>, Option<PendingNotice>),
    ) -> SessionLoop {
        let mut control = Control::default();
        let side = match opening {
            Opening::Ask => Side::Source,
            Opening::Offer(endpoints) => {
                control.send(tunnel.clock.now(), Message::Admitted { endpoints });
                Side::Destination
            }
        };
        let lifetime = Lifetime::new(tunnel.clock.now(), tunnel.link_timeout);
        SessionLoop {
            sessions,
            tunnel,
            side,
            control,
            connector,
            paths: Paths::default(),
            filter,
            notice,
            links: None,
            lifetime,
            closing: None,
            over: None,
        }
    }

    /// Runs until the session's end, and cleans up behind it.
    pub fn run(mut self, inbox: &Receiver<Input>) {
        let fault = loop {
            self.turn(inbox);
            if let Some(fault) = self.over.take() {
                break fault;
            }
            if let Some(end) = self.lifetime.end(self.tunnel.clock.now(), &self.control) {
                break self.end_fault(end);
            }
        };
        tracing::info!(session = %self.tunnel.session, %fault, "a tunnel ends");
        self.tunnel.over.store(true, Ordering::SeqCst);
        self.notify_peer();
        self.tunnel.close_gates(&self.sessions, &fault.to_string());
        // First the links' threads, which would open again what is closed below.
        self.links = None;
        self.tunnel.stream_transport.end(self.tunnel.session);
        self.paths.clear();
        self.tunnel.door.close();
        self.sessions.forget(self.tunnel.session);
        self.tunnel.publish(TunnelEvent::Ended { error: convert::error(&fault, None) });
        *self.tunnel.events.lock() = None;
    }

    fn end_fault(&mut self, end: End) -> Fault {
        let lost = |step, detail: &str| Fault::new(Code::PeerLost, step, self.side, detail);
        let seconds = self.tunnel.link_timeout.as_secs();
        match (end, self.closing.take()) {
            (End::Closed, Some(fault)) => fault,
            (End::NeverConnected, _) => lost(Step::Connect, "its first connection failed"),
            (End::NoLink | End::Closed, _) => lost(Step::Copy, &format!("no link for {seconds} s")),
        }
    }

    /// The host that asked has ended it. If no link could carry that, the other is notified as soon as one works again.
    /// Otherwise it would hold sockets, and whatever is behind them, until its own limit.
    fn notify_peer(&mut self) {
        let notice = self.notice.take();
        if self.side != Side::Source || self.control.unreachable_since().is_none() {
            return;
        }
        let mut peers = vec![self.tunnel.peer];
        let remotes = self.tunnel.losses.remotes();
        peers.extend(remotes.into_iter().filter(|remote| *remote != self.tunnel.peer));
        roll_back_notice::send(peers, self.tunnel.dialler.identity.clone(), false, move || drop(notice));
    }

    fn turn(&mut self, inbox: &Receiver<Input>) {
        let now = self.tunnel.clock.now();
        let wait = self.lifetime.timeout(&self.control).map_or(LONG, |at| at.since(now));
        match inbox.recv_timeout(wait) {
            Ok(input) => self.take(input),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        while let Ok(input) = inbox.try_recv() {
            self.take(input);
        }
        self.transmit();
    }

    /// Notes become messages, messages frames on paths.
    fn transmit(&mut self) {
        let now = self.tunnel.clock.now();
        for (stream, note) in self.tunnel.stream_transport.streams.take_notes() {
            self.control.send(now, Message::Stream { stream, note });
        }
        while let Some((path, frame)) = self.control.poll_outgoing(now) {
            if !self.paths.send(path, frame) {
                self.path_lost(path);
            }
        }
    }

    fn take(&mut self, input: Input) {
        let now = self.tunnel.clock.now();
        match input {
            Input::Control(event, _held) => self.control_event(event),
            Input::Path(path, link, connection) => {
                self.lifetime.path_up();
                self.paths.add(path, link, connection);
                self.control.path_up(now, path);
            }
            Input::LinkLost(link) => {
                self.paths.of_link(link).into_iter().for_each(|path| self.path_lost(path));
            }
            Input::Attention => {}
            Input::ChannelLost(channel, error) => {
                if self.tunnel.stream_transport.streams.channel_gone(channel) {
                    tracing::debug!(channel, error = chain(&error), "a channel is lost");
                    self.control.send(now, Message::Fence { channel });
                }
                self.tunnel.stream_transport.remove_pump(channel);
                self.tunnel.losses.channel_lost(channel, &error);
            }
            Input::Fence(channel) => self.control.send(now, Message::Fence { channel }),
            Input::Fenced(channel, fenced) => {
                let (applied, damaged) = (fenced.applied, fenced.damaged);
                self.control.send(now, Message::Fenced { channel, applied, damaged });
            }
            // Its own agent connects clients. Nothing here was promised to the other host.
            Input::Asked(stream, _) if self.side == Side::Source => {
                self.violation(&format!(
                    "it opened stream {stream}; only the host that asked for a tunnel does"
                ));
            }
            Input::Asked(stream, service) => {
                // Its thread ends with this loop.
                let _ = self.connector.send((stream, service));
            }
            Input::Refused(stream, reason) => {
                tracing::warn!(stream, reason, "a connection was not taken at the other host");
                self.tunnel.publish(TunnelEvent::Refused { reason });
            }
            Input::End(fault) => self.close(fault),
        }
    }

    fn path_lost(&mut self, path: PathId) {
        if let Some(link) = self.paths.remove(path) {
            self.tunnel.losses.path_lost(link, path, "its control connection is closed");
        }
        self.control.path_lost(self.tunnel.clock.now(), path);
    }

    fn control_event(&mut self, event: PathEvent) {
        let now = self.tunnel.clock.now();
        match event {
            PathEvent::Alive(path) => self.control.note_activity(now, path),
            PathEvent::Acknowledged { path, through } => self.control.acknowledged(now, path, through),
            PathEvent::Lost(path) => self.path_lost(path),
            PathEvent::Received { path, sequence, message } => {
                if !self.control.received(now, path, sequence, message) {
                    self.violation("its messages run too far ahead");
                }
                while let Some(message) = self.control.poll_delivered() {
                    self.message(message);
                }
            }
        }
    }

    fn message(&mut self, message: Message) {
        match message {
            Message::Abort(fault) => self.over = Some(fault),
            // While closing, nothing else counts.
            _ if self.closing.is_some() => {}
            Message::Stream { .. } | Message::Fenced { .. } => {
                if let Err(violation) = self.tunnel.stream_transport.deliver(message) {
                    self.violation(&violation.to_string());
                }
            }
            Message::Fence { channel }
                if self.side == Side::Source && !self.tunnel.dialler.has_opened(channel) =>
            {
                self.violation(&format!("a fence is asked for of channel {channel}, which was never opened"));
            }
            Message::Fence { channel } => {
                let session = self.tunnel.clone();
                let fenced = move |fenced| session.send(Input::Fenced(channel, fenced));
                self.tunnel.stream_transport.fence(channel, fenced);
            }
            Message::Admitted { endpoints } if self.side == Side::Source && self.links.is_none() => {
                match Links::open(&self.tunnel, &endpoints, &self.filter) {
                    Ok(links) => self.links = Some(links),
                    Err(fault) => self.close(fault),
                }
            }
            other => self.violation(&format!("a {} message has no place in a tunnel", other.tag())),
        }
    }

    fn violation(&mut self, what: &str) {
        self.close(Fault::new(Code::ProtocolViolation, Step::Copy, self.side, what));
    }

    /// Sends the end to the peer, and ends when it knows or does not answer.
    fn close(&mut self, fault: Fault) {
        if self.over.is_none() && self.closing.is_none() {
            let now = self.tunnel.clock.now();
            self.control.send(now, Message::Abort(fault.clone()));
            self.closing = Some(fault);
            self.lifetime.close(now);
        }
    }
}
