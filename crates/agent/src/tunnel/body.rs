//! The loop of a session.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use linerate_api::TunnelEvent;
use linerate_core::control::Control;
use linerate_core::{Code, Endpoint, Fault, LinkId, Message, PathId, Side, Step, Time};
use linerate_net::control::{ControlEvent, ControlPath};

use super::links::Links;
use super::{Input, Kept, Tunnel, connect};
use crate::agent::Agent;
use crate::control;
use crate::convert;
use crate::faults::chain;

/// Looks at the clock at least this often.
const TICK: Duration = Duration::from_millis(200);
/// The peer is told of the end within this.
const PARTING: Duration = Duration::from_secs(2);
/// The connection that opened the session is put to use within this.
const FIRST_PATH: Duration = Duration::from_secs(10);

/// What is said first.
pub(super) enum Opening {
    /// The host that asked waits for the other's addresses.
    Ask,
    /// The other names them.
    Offer(Vec<Endpoint>),
}

/// Everything that the loop has of its own.
pub(super) struct Body {
    agent: Arc<Agent>,
    tunnel: Arc<Tunnel>,
    side: Side,
    control: Control,
    connector: Sender<connect::Asked>,
    paths: HashMap<PathId, (Option<LinkId>, ControlPath)>,
    /// Filters of links, at the host that asked.
    filter: Vec<String>,
    /// At the host that asked: what the next life of this agent would withdraw.
    kept: Option<Kept>,
    links: Option<Links>,
    had_path: bool,
    /// The peer is being told why it ends.
    parting: Option<(Fault, Instant)>,
    over: Option<Fault>,
}

impl Body {
    pub fn new(
        agent: Arc<Agent>,
        tunnel: Arc<Tunnel>,
        connector: Sender<connect::Asked>,
        opening: Opening,
        (filter, kept): (Vec<String>, Option<Kept>),
    ) -> Body {
        let mut control = Control::default();
        let side = match opening {
            Opening::Ask => Side::Source,
            Opening::Offer(endpoints) => {
                control.send(tunnel.clock.now(), Message::Admitted { endpoints });
                Side::Destination
            }
        };
        let paths = HashMap::new();
        Body {
            agent,
            tunnel,
            side,
            control,
            connector,
            paths,
            filter,
            kept,
            links: None,
            had_path: false,
            parting: None,
            over: None,
        }
    }

    /// Runs until the session's end, and cleans up behind it.
    pub fn run(mut self, inbox: &Receiver<Input>) {
        let fault = loop {
            self.turn(inbox);
            if self.over.is_none() && self.has_parted() {
                self.over = self.parting.take().map(|(fault, _)| fault);
            }
            if let Some(fault) = self.over.take() {
                break fault;
            }
            let now = self.tunnel.clock.now();
            if self.paths.is_empty() && !self.had_path && now - Time::ZERO > FIRST_PATH {
                break Fault::new(Code::PeerLost, Step::Connect, self.side, "its first connection broke off");
            }
            if self.control.unreachable_since().is_some_and(|since| now - since > self.tunnel.link_timeout) {
                let detail = format!("no link for {} s", self.tunnel.link_timeout.as_secs());
                break Fault::new(Code::PeerLost, Step::Copy, self.side, detail);
            }
        };
        tracing::info!(session = %self.tunnel.session, %fault, "a tunnel ends");
        self.tunnel.over.store(true, Ordering::SeqCst);
        self.withdraw();
        self.tunnel.shut_gates(&self.agent, &fault.to_string());
        // First the links' threads, which would open again what is closed below.
        self.links = None;
        self.tunnel.carriage.end(self.tunnel.session);
        self.paths.clear();
        *self.tunnel.control.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.agent.forget_tunnel(self.tunnel.session);
        self.tunnel.publish(TunnelEvent::Ended { error: convert::error(&fault, None) });
        *self.tunnel.events.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The host that asked has ended it. If no link could say so, the other is told as soon as one works again.
    /// Otherwise it would hold sockets, and whatever is behind them, until its own limit.
    fn withdraw(&mut self) {
        let kept = self.kept.take();
        if self.side != Side::Source || self.control.unreachable_since().is_none() {
            return;
        }
        let mut peers = vec![self.tunnel.peer];
        peers.extend(self.links.iter().flat_map(Links::remotes).filter(|remote| *remote != self.tunnel.peer));
        let (session, token) = (self.tunnel.session, self.tunnel.token);
        crate::outgoing::withdraw(peers, session, token, false, move || drop(kept));
    }

    fn turn(&mut self, inbox: &Receiver<Input>) {
        let now = self.tunnel.clock.now();
        let wait = self.control.timeout().map_or(TICK, |at| at.since(now).min(TICK));
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
        for (stream, note) in self.tunnel.carriage.streams.take_notes() {
            self.control.send(now, Message::Stream { stream, note });
        }
        while let Some((path, frame)) = self.control.poll_outgoing(now) {
            let sent = self.paths.get(&path).map(|(_, connection)| control::send(connection, frame));
            if let Some(Err(error)) = sent {
                tracing::debug!(path, error = chain(&error), "a control connection takes nothing");
                self.path_lost(path);
            }
        }
    }

    fn take(&mut self, input: Input) {
        let now = self.tunnel.clock.now();
        match input {
            Input::Control(event) => self.heard(event),
            Input::Path(path, link, connection) => {
                self.had_path = true;
                self.paths.insert(path, (link, connection));
                self.control.path_up(now, path);
            }
            Input::LinkLost(link) => {
                let of_link = self.paths.iter().filter(|(_, (of, _))| *of == Some(link));
                let gone: Vec<PathId> = of_link.map(|(path, _)| *path).collect();
                gone.into_iter().for_each(|path| self.path_lost(path));
            }
            Input::Attention => {}
            Input::ChannelLost(channel, reason) => {
                if self.tunnel.carriage.streams.channel_gone(channel) {
                    tracing::debug!(channel, reason, "a channel is lost");
                    self.control.send(now, Message::Fence { channel });
                }
                self.tunnel.carriage.remove_pump(channel);
                if let Some(links) = &self.links {
                    links.channel_lost(channel, &reason);
                }
            }
            Input::Fence(channel) => self.control.send(now, Message::Fence { channel }),
            Input::Fenced(channel, fenced) => {
                let (applied, refused) = (fenced.applied, fenced.refused);
                self.control.send(now, Message::Fenced { channel, applied, refused });
            }
            Input::Asked(stream, service) => {
                // Its thread ends with this loop.
                let _ = self.connector.send((stream, service));
            }
            Input::End(fault) => self.part(fault),
        }
    }

    fn path_lost(&mut self, path: PathId) {
        if let Some((link, connection)) = self.paths.remove(&path) {
            drop(connection);
            if let (Some(links), Some(link)) = (&self.links, link) {
                links.lost(link, path, "its control connection is lost");
            }
        }
        self.control.path_lost(self.tunnel.clock.now(), path);
    }

    fn heard(&mut self, event: ControlEvent) {
        let now = self.tunnel.clock.now();
        match event {
            ControlEvent::Keepalive { path } => self.control.heard(now, path.into()),
            ControlEvent::Acknowledged { path, through } => {
                self.control.acknowledged(now, path.into(), through);
            }
            ControlEvent::Lost { path, error } => {
                tracing::debug!(path, error = chain(&error), "a control connection is gone");
                self.path_lost(path.into());
            }
            ControlEvent::Message { path, sequence, message } => {
                if !self.control.received(now, path.into(), sequence, message) {
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
            // Nothing else counts any more.
            _ if self.parting.is_some() => {}
            Message::Stream { .. } | Message::Fenced { .. } => {
                if let Err(violation) = self.tunnel.carriage.heard(message) {
                    self.violation(&violation.to_string());
                }
            }
            Message::Fence { channel } if self.side == Side::Source && !self.tunnel.has_opened(channel) => {
                self.violation(&format!(
                    "a fence is asked for of channel {channel}, which nobody has opened"
                ));
            }
            Message::Fence { channel } => {
                let session = self.tunnel.clone();
                let told = move |fenced| session.tell(Input::Fenced(channel, fenced));
                self.tunnel.carriage.fence(channel, told);
            }
            Message::Admitted { endpoints } if self.side == Side::Source && self.links.is_none() => {
                match Links::open(&self.tunnel, &endpoints, &self.filter) {
                    Ok(links) => self.links = Some(links),
                    Err(fault) => self.part(fault),
                }
            }
            other => self.violation(&format!("a {} message has no place in a tunnel", other.tag())),
        }
    }

    fn violation(&mut self, what: &str) {
        self.part(Fault::new(Code::ProtocolViolation, Step::Copy, self.side, what));
    }

    /// Tells the peer, and ends when it knows or does not answer.
    fn part(&mut self, fault: Fault) {
        if self.over.is_none() && self.parting.is_none() {
            self.control.send(self.tunnel.clock.now(), Message::Abort(fault.clone()));
            self.parting = Some((fault, Instant::now() + PARTING));
        }
    }

    fn has_parted(&self) -> bool {
        let silent = self.control.unacknowledged() == 0 || self.paths.is_empty();
        self.parting.as_ref().is_some_and(|(_, until)| silent || Instant::now() > *until)
    }
}
