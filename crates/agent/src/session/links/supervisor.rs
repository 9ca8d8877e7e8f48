//! The thread of one link.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use linerate_api::Transport;
use linerate_core::link::Reopening;
use linerate_core::{ChannelId, PathId};
use linerate_net::channel_thread::ChannelHandle;
use linerate_net::interfaces;
use linerate_net::links::Link;
use linerate_net::round_trip::RoundTrip;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::Route;
use linerate_wire::frame::Role;

use super::losses::{LinkLoss, LinkSignal};
use super::opener::{Opened, Opener, rdma_port};
use super::session::{NotOpened, Session};
use super::view::describe;
use crate::faults::chain;
use crate::session::contact::keep;
use crate::session::probe::OpenError;
use crate::session::stream_transport::ReverseChannels;

/// Looks this often whether it shall end, and whether RDMA works again.
const LOOK: Duration = Duration::from_secs(1);

/// An open link, or the part of it that is open.
struct Open {
    channels: Vec<ChannelId>,
    pumps: Vec<ChannelHandle>,
    back: ReverseChannels,
    path: Option<PathId>,
}

pub(super) struct Supervisor<S: Session> {
    session: Arc<S>,
    stop: Arc<AtomicBool>,
    signals: Receiver<LinkSignal>,
    opener: Opener,
    link: Link,
    reopening: Reopening,
}

impl<S: Session> Supervisor<S> {
    pub fn new(session: Arc<S>, stop: Arc<AtomicBool>, link: Link) -> Supervisor<S> {
        let signals = session.losses().add(&link);
        let rdma = if session.dialler().transport == Transport::Tcp { None } else { rdma_port(&link) };
        let opener = Opener::new(link.clone(), rdma.is_some());
        session.added(&link, rdma);
        Supervisor { session, stop, signals, opener, link, reopening: Reopening::default() }
    }

    pub fn run(mut self) {
        let mut last_reason = String::new();
        let mut was_up = false;
        while !self.stop.load(Ordering::SeqCst) {
            // Signals about the last opening do not count any more.
            while self.signals.try_recv().is_ok() {}
            match self.open() {
                Ok(open) => {
                    last_reason.clear();
                    was_up = true;
                    let loss = self.hold(open.path);
                    self.close(open, loss);
                }
                Err(error) => {
                    self.not_opened(&error, was_up, &mut last_reason);
                    let _ = self.signals.recv_timeout(self.reopening.pause());
                }
            }
        }
    }

    /// Reports each reason once.
    fn not_opened(&self, error: &OpenError, was_up: bool, last_reason: &mut String) {
        let reason = chain(error);
        let is_news = reason != *last_reason;
        if is_news {
            tracing::warn!(link = describe(&self.link), reason, "a link cannot be used");
        }
        let is_forgotten = error.is_forgotten();
        self.session.not_opened(&NotOpened {
            link: &self.link,
            reason: &reason,
            is_forgotten,
            is_news,
            was_up,
        });
        *last_reason = reason;
    }

    /// All of the link, or nothing of it.
    fn open(&mut self) -> Result<Open, OpenError> {
        let (session, link) = (self.session.clone(), self.link.id);
        let back = ReverseChannels::new(move |reason| session.losses().link_lost(link, reason));
        let mut open = Open { channels: Vec::new(), pumps: Vec::new(), back, path: None };
        match self.fill(&mut open) {
            Ok(()) => Ok(open),
            Err(error) => {
                self.close_channels(open);
                Err(error)
            }
        }
    }

    /// Control path, channels, probe. The session gets the channels only once bytes have moved.
    fn fill(&mut self, open: &mut Open) -> Result<(), OpenError> {
        let (session, link) = (self.session.clone(), self.link.id);
        let route = Route::from(&self.link);
        let control = self.join(&route).inspect_err(|_| self.opener.unreachable())?;
        let round_trip = RoundTrip::of(&control);
        let control = keep(control)?;
        let fell_back = |reason: &str| session.fell_back(&self.link, reason);
        let opened = self.opener.open(session.dialler(), round_trip, fell_back)?;
        self.open_back(&mut open.back, &route, opened.len())?;
        open.path = Some(session.attach_path(control, Some(link))?);
        let (views, all_ends): (Vec<_>, Vec<_>) =
            opened.into_iter().map(|Opened { view, ends }| ((view.id, view), ends)).unzip();
        let (ids, views): (Vec<ChannelId>, Vec<_>) = views.into_iter().unzip();
        session.opened(&self.link, views, self.opener.carries_rdma());
        for (channel, ends) in ids.into_iter().zip(all_ends) {
            session.losses().carries(link, channel);
            open.channels.push(channel);
            open.pumps.push(session.pump(channel, link, ends)?);
        }
        Ok(())
    }

    /// The control connection. Without a carrier none is begun: it would wait for its second SYN, a second later (RFC
    /// 6298), when the port has long been up again.
    fn join(&mut self, route: &Route) -> Result<Stream, OpenError> {
        self.check_carrier()?;
        let tries_rdma = self.opener.tries_rdma(self.session.dialler());
        if let Some(wait) = self.reopening.port_is_up(tries_rdma) {
            std::thread::sleep(wait);
            self.check_carrier()?;
        }
        Ok(self.session.dialler().join(route, self.link.id)?)
    }

    fn check_carrier(&mut self) -> Result<(), OpenError> {
        let Some(device) = self.link.device.as_deref().filter(|device| has_no_carrier(device)) else {
            return Ok(());
        };
        self.reopening.port_is_down();
        Err(OpenError::NoCarrier(device.to_owned()))
    }

    /// As many channels for what the other side answers, if there are streams.
    fn open_back(&self, back: &mut ReverseChannels, route: &Route, count: usize) -> Result<(), OpenError> {
        let Some(stream_transport) = self.session.streams() else { return Ok(()) };
        for _ in 0..count {
            let (channel, stream) = self.session.dialler().connect(route, Role::ReverseData, self.link.id)?;
            back.serve(&stream_transport, channel, stream)?;
        }
        Ok(())
    }

    /// Keeps the link until something of it is lost. `None`: nothing is, and RDMA can be used again.
    fn hold(&mut self, path: Option<PathId>) -> Option<LinkLoss> {
        loop {
            match self.signals.recv_timeout(LOOK) {
                Ok(LinkSignal::Lost(loss)) if loss.concerns(path) => return Some(loss),
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) if !self.stop.load(Ordering::SeqCst) => {}
                Err(_) => return Some(LinkLoss::of_link("the session is over")),
            }
            if self.opener.can_go_back_to_rdma(self.session.dialler()) {
                return None;
            }
        }
    }

    fn close(&mut self, open: Open, loss: Option<LinkLoss>) {
        if let Some(loss) = &loss {
            self.reopening.lost(loss.of_port);
            self.opener.lost(loss);
        }
        self.session.closing(self.link.id);
        self.close_channels(open);
        let Some(LinkLoss { reason, .. }) = loss else { return };
        // When all is done the destination closes first; that is no loss.
        if !self.stop.load(Ordering::SeqCst) && !self.session.is_ending() {
            tracing::warn!(link = describe(&self.link), reason, "a link is lost");
            self.session.lost(&self.link, &reason);
        }
    }

    fn close_channels(&self, open: Open) {
        // A thread that waits for work must return before it can end.
        for pump in &open.pumps {
            pump.stop();
        }
        self.session.losses().closed(self.link.id);
        self.session.closed(self.link.id, &open.channels);
        drop(open.pumps);
        drop(open.back);
    }
}

/// Whether a port of this host is known to have no carrier.
fn has_no_carrier(device: &str) -> bool {
    let known = interfaces::list().unwrap_or_default();
    known.iter().any(|one| one.name == device && !one.usable())
}
