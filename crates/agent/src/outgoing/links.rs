//! Links of a migration: one thread each, which opens the control path and the channels, moves a few bytes for a proof,
//! and does so again whenever the link is lost. A link is one thing: if its path or one of its channels dies, all of it is
//! closed and opened anew.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use linerate_api::EventKind;
use linerate_core::source::Event;
use linerate_core::{Code, Endpoint, Fault, LinkId, SessionId, Side, Step, Token};
use linerate_net::control::{ControlEvent, ControlOptions, ControlPath};
use linerate_net::interfaces;
use linerate_net::links::{Link, pair, parse_networks};
use linerate_net::pacer::Pacer;
use linerate_net::pump::{PumpHandle, PumpOptions};
use linerate_net::region::Region;
use linerate_net::round_trip::RoundTrip;
use linerate_net::table::RegionTable;
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::{ConnectError, Route, connect, query as ask};
use linerate_net::tcp::options::TcpOptions;
use linerate_wire::frame::{Hello, Role};
use linerate_wire::{VERSION_MAX, VERSION_MIN};

use super::board::Loss;
use super::channels::{OpenError, Opened, Opener, rdma_port};
use super::{Input, Outgoing};
use crate::carriage::Back;
use crate::carriers::Carriers;
use crate::faults::{chain, fault};
use crate::journal::{Journal, Record, Role as JournalRole};

/// A lost link is tried again this often.
const RETRY: Duration = Duration::from_millis(250);
/// Connection and handshake must be done within this, and a probe too. A far link has longer.
pub(super) const OPEN_WITHIN: Duration = Duration::from_secs(2);

pub(crate) fn hello(session: SessionId, token: Token, role: Role, link: LinkId, channel: u32) -> Hello {
    Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, session, role, link, channel, token }
}

pub(crate) fn tcp_options() -> TcpOptions {
    TcpOptions { connect_wait: OPEN_WITHIN, ..TcpOptions::default() }
}

/// Reaches the destination's agent at one of its addresses and opens the session.
pub(crate) fn first_contact(
    peers: &[SocketAddr],
    role: Role,
    session: SessionId,
    token: Token,
) -> Result<(ControlPath, SocketAddr), Fault> {
    let mut last = None;
    for &remote in peers {
        let route = Route { local: None, device: None, remote };
        match connect(&route, &hello(session, token, role, 0, 0), &tcp_options()) {
            Ok((stream, _)) => {
                let control = keep(stream)
                    .map_err(|error| fault(Code::Internal, Step::Authorise, Side::Source, &error))?;
                return Ok((control, remote));
            }
            Err(ConnectError::Refused { fault, .. }) => return Err(fault),
            Err(error) => last = Some(fault(Code::NoLink, Step::Authorise, Side::Source, &error)),
        }
    }
    Err(last.unwrap_or_else(|| {
        Fault::new(Code::NoLink, Step::Authorise, Side::Source, "the host has no address")
    }))
}

/// Joins the session again at the first of the addresses that takes it; otherwise what the last one said.
pub(super) fn join_any(
    peers: &[SocketAddr],
    session: SessionId,
    token: Token,
) -> Result<Stream, Option<ConnectError>> {
    let mut last = None;
    for &remote in peers {
        let route = Route { local: None, device: None, remote };
        match connect(&route, &hello(session, token, Role::ControlJoin, 0, 0), &tcp_options()) {
            Ok((stream, _)) => return Ok(stream),
            Err(error) => last = Some(error),
        }
    }
    Err(last)
}

/// Asks the destination how the session stands, in a thread of its own; the answer goes to the brain if there is one. The
/// question says commit once more, for the message may not have come, and whether this host still has its copy.
pub(super) fn query(shared: &Arc<Outgoing>, record: &Record) {
    let (asked, peers) = (shared.clone(), peers(shared, record));
    let has_copy = matches!(&record.role, JournalRole::Source { qemu, .. } if qemu.is_alive());
    let asking = move || {
        let ask = if has_copy { ask_any } else { commit_any };
        let answer = ask(&peers, asked.session, asked.token);
        asked.tell(answer.map_or(Event::Unanswered, Event::Answered));
    };
    if let Err(error) = std::thread::Builder::new().name("query".into()).spawn(asking) {
        tracing::error!(%error, "no thread to ask the destination");
        shared.tell(Event::Unanswered);
    }
}

/// Tells the destination of a roll-back beside the session. `held`: it may have the guest complete.
pub(super) fn withdraw(shared: &Outgoing, journal: &Arc<Journal>, record: &Record, held: bool) {
    let (journal, session) = (journal.clone(), shared.session);
    super::withdraw(peers(shared, record), session, shared.token, held, move || {
        super::is_told(&journal, session);
    });
}

/// Every address at which the destination may be reached.
pub(super) fn peers(shared: &Outgoing, record: &Record) -> Vec<SocketAddr> {
    let JournalRole::Source { peers, .. } = &record.role else { return Vec::new() };
    let mut peers = peers.clone();
    for remote in shared.board.remotes() {
        if !peers.contains(&remote) {
            peers.push(remote);
        }
    }
    peers
}

/// How the session ended: the first answer from any of a host's addresses.
pub(crate) fn ask_any(
    peers: &[SocketAddr],
    session: SessionId,
    token: Token,
) -> Option<linerate_core::Outcome> {
    ask_as(Role::Query, peers, session, token)
}

/// Says commit again; the answer is how it stands there.
pub(crate) fn commit_any(
    peers: &[SocketAddr],
    session: SessionId,
    token: Token,
) -> Option<linerate_core::Outcome> {
    ask_as(Role::CommitAgain, peers, session, token)
}

/// Tells any of a host's addresses that the session is rolled back; the answer is how it stands there.
pub(super) fn withdraw_any(
    peers: &[SocketAddr],
    session: SessionId,
    token: Token,
) -> Option<linerate_core::Outcome> {
    ask_as(Role::Withdraw, peers, session, token)
}

fn ask_as(
    role: Role,
    peers: &[SocketAddr],
    session: SessionId,
    token: Token,
) -> Option<linerate_core::Outcome> {
    for &remote in peers {
        let route = Route { local: None, device: None, remote };
        match ask(&route, &hello(session, token, role, 0, 0), &tcp_options()) {
            Ok(outcome) => return Some(outcome),
            Err(error) => tracing::debug!(%remote, error = chain(&error), "no answer"),
        }
    }
    None
}

/// A welcomed control connection, which the destination shall not take for dead until it is put to use.
pub(crate) fn keep(stream: Stream) -> io::Result<ControlPath> {
    ControlPath::keep(stream, ControlOptions::default()).map_err(io::Error::other)
}

/// Puts a welcomed control connection to use. The path is given to the loop, which owns it from then on.
pub(super) fn attach_path(
    shared: &Arc<Outgoing>,
    mut control: ControlPath,
    link: Option<LinkId>,
) -> io::Result<()> {
    let number = shared.next_path.fetch_add(1, Ordering::Relaxed);
    let path = u16::try_from(number).map_err(io::Error::other)?;
    let events = shared.control.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    let events = events.ok_or_else(|| io::Error::other("the migration is over"))?;
    control.listen(path, events).map_err(io::Error::other)?;
    let _ = shared.inbox.send(Input::Path(number, link, control));
    Ok(())
}

/// What came over a control path, for the brain.
pub(super) fn control_event(event: ControlEvent) -> Event {
    match event {
        ControlEvent::Message { path, sequence, message } => {
            Event::Received { path: path.into(), sequence, message }
        }
        ControlEvent::Acknowledged { path, through } => {
            Event::ControlAcknowledged { path: path.into(), through }
        }
        ControlEvent::Keepalive { path } => Event::Heard(path.into()),
        ControlEvent::Lost { path, error } => {
            tracing::debug!(path, error = chain(&error), "a control connection is gone");
            Event::PathLost(path.into())
        }
    }
}

/// All links of a migration. Dropping it closes them.
pub(super) struct Links {
    stop: Arc<AtomicBool>,
    wake: Vec<Sender<Loss>>,
    threads: Vec<JoinHandle<()>>,
    carriers: Option<Carriers>,
}

impl Links {
    /// Pairs the destination's endpoints with this host's ports, and opens what pairs.
    pub fn open(shared: &Arc<Outgoing>, endpoints: &[Endpoint]) -> Links {
        let mut links = Links { stop: Arc::default(), wake: Vec::new(), threads: Vec::new(), carriers: None };
        match paired(shared, endpoints) {
            Ok(paired) if paired.is_empty() => shared.tell(Event::Failed(no_link(endpoints))),
            Ok(paired) => {
                for link in paired {
                    links.start(shared, link);
                }
                let board = shared.clone();
                links.carriers = Some(Carriers::watch(move |name| board.board.interface_down(name)));
            }
            Err(fault) => shared.tell(Event::Failed(fault)),
        }
        links
    }

    fn start(&mut self, shared: &Arc<Outgoing>, link: Link) {
        if link.mtu_differs {
            let text =
                format!("{}: the two ports have different MTUs; large packets may be lost", describe(&link));
            shared.hub.publish(EventKind::Warning { text });
        }
        let (lost, losses) = channel();
        let rdma = rdma_port(&link);
        let opener = Opener::new(shared, link.clone(), rdma.is_some());
        shared.board.add(link.clone(), rdma, lost.clone());
        self.wake.push(lost.clone());
        let name = format!("link-{}", link.id);
        let supervisor = Supervisor {
            shared: shared.clone(),
            stop: self.stop.clone(),
            lost,
            losses,
            pump: pump_options(shared),
            opener,
            link,
        };
        match std::thread::Builder::new().name(name).spawn(move || supervisor.run()) {
            Ok(thread) => self.threads.push(thread),
            Err(error) => tracing::error!(%error, "no thread for a link"),
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.carriers = None;
        for wake in &self.wake {
            let _ = wake.send(Loss::of_link("the migration is over"));
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn paired(shared: &Outgoing, endpoints: &[Endpoint]) -> Result<Vec<Link>, Fault> {
    let failed =
        |error: &(dyn std::error::Error + 'static)| fault(Code::NoLink, Step::Connect, Side::Source, error);
    let ours = interfaces::list().map_err(|error| failed(&error))?;
    let filter = parse_networks(&shared.request.links.join(",")).map_err(|error| failed(&error))?;
    Ok(pair(&ours, endpoints, &filter))
}

pub(crate) fn no_link(endpoints: &[Endpoint]) -> Fault {
    let offered: Vec<String> =
        endpoints.iter().map(|one| format!("{} ({})", one.address, one.interface)).collect();
    let detail = format!(
        "the destination listens on {}; none of it pairs with a port of this host",
        offered.join(", ")
    );
    Fault::new(Code::NoLink, Step::Connect, Side::Source, detail)
}

fn pump_options(shared: &Arc<Outgoing>) -> PumpOptions {
    let regions = shared.ram().into_iter().enumerate();
    let regions = regions.filter_map(|(id, ram)| Some((u16::try_from(id).ok()?, ram as Arc<dyn Region>)));
    PumpOptions { pacer: shared.pacer.clone(), ..PumpOptions::new(Arc::new(RegionTable::new(regions))) }
}

/// The bandwidth limit that all channels share.
pub(super) fn pacer(bytes_per_s: Option<u64>) -> Option<Arc<Pacer>> {
    std::num::NonZeroU64::new(bytes_per_s?).map(|rate| Arc::new(Pacer::new(rate)))
}

pub(crate) fn describe(link: &Link) -> String {
    let device = link.device.as_deref().unwrap_or("routed");
    format!("{device} to {} ({})", link.remote.ip(), link.remote_interface)
}

struct Supervisor {
    shared: Arc<Outgoing>,
    stop: Arc<AtomicBool>,
    lost: Sender<Loss>,
    losses: Receiver<Loss>,
    pump: PumpOptions,
    opener: Opener,
    link: Link,
}

impl Supervisor {
    fn run(mut self) {
        let mut said = String::new();
        let mut was_up = false;
        while !self.stop.load(Ordering::SeqCst) {
            // What was told of the last opening is of no interest any more.
            while self.losses.try_recv().is_ok() {}
            match self.open() {
                Ok((pumps, back)) => {
                    said.clear();
                    was_up = true;
                    let loss = self.hold();
                    self.close(pumps, back, loss);
                }
                Err(error) => {
                    self.not_opened(&error, was_up, &mut said);
                    let _ = self.losses.recv_timeout(RETRY);
                }
            }
        }
    }

    /// Tells the brain, the report and the operator, each reason once.
    fn not_opened(&self, error: &OpenError, was_up: bool, said: &mut String) {
        // Part of it may have been opened and told.
        self.shared.link_lost(self.link.id);
        if error.is_forgotten() {
            self.shared.tell(Event::Forgotten);
        }
        let error = chain(error);
        // When all is done the destination takes no connections any more.
        if !self.shared.brain().is_leaving() {
            self.shared.board.not_opened(self.link.id, &error);
        }
        if error == *said {
            return;
        }
        let link = describe(&self.link);
        tracing::warn!(link, error, "a link cannot be used");
        // Of a link that was lost the operator has been told already.
        if !was_up {
            self.shared.hub.publish(EventKind::Warning { text: format!("{link}: {error}") });
        }
        *said = error;
    }

    /// Control path, channels, probe. The brain hears of the channels only once bytes have moved.
    fn open(&mut self) -> Result<(Vec<PumpHandle>, Back), OpenError> {
        let route = Route::from(&self.link);
        let join = hello(self.shared.session, self.shared.token, Role::ControlJoin, self.link.id, 0);
        let (control, _) =
            connect(&route, &join, &tcp_options()).inspect_err(|_| self.opener.unreachable())?;
        let round_trip = RoundTrip::of(&control);
        let control = keep(control)?;
        let opened = self.opener.open(&self.shared, round_trip)?;
        let back = self.open_back(&route, opened.len())?;
        attach_path(&self.shared, control, Some(self.link.id))?;
        let mut carriers = Vec::new();
        let mut views = Vec::new();
        for Opened { view, carrier } in opened {
            carriers.push((view.id, carrier));
            views.push(view);
        }
        let again = self.shared.board.up(self.link.id, views, self.opener.carries_rdma());
        if again {
            tracing::info!(link = describe(&self.link), "a lost link carries again");
            self.shared.hub.publish(EventKind::LinkBack { link: self.link.id });
        }
        let mut pumps = Vec::new();
        for (channel, carrier) in carriers {
            self.shared.tell_brain(Event::ChannelUp { channel, link: self.link.id });
            pumps.push(match self.shared.carriage() {
                Some(carriage) => carriage.pump(channel, self.link.id, carrier, self.shared.pacer.clone())?,
                None => PumpHandle::start(channel, carrier, self.shared.clone(), self.pump.clone())?,
            });
        }
        Ok((pumps, back))
    }

    /// As many channels for what the other side's hypervisor answers, if there are streams.
    fn open_back(&self, route: &Route, count: usize) -> Result<Back, OpenError> {
        let lost = self.lost.clone();
        let mut back = Back::new(move |reason| drop(lost.send(Loss::of_link(reason))));
        let Some(carriage) = self.shared.carriage() else { return Ok(back) };
        for _ in 0..count {
            let channel = self.shared.next_channel.fetch_add(1, Ordering::Relaxed);
            let hello = hello(self.shared.session, self.shared.token, Role::DataBack, self.link.id, channel);
            let (stream, _) = connect(route, &hello, &tcp_options())?;
            back.serve(&carriage, channel, stream)?;
        }
        Ok(back)
    }

    /// Keeps the link until something of it is lost. `None`: nothing is, and RDMA can be used again.
    fn hold(&mut self) -> Option<Loss> {
        loop {
            match self.losses.recv_timeout(Duration::from_secs(1)) {
                Ok(loss) => return Some(loss),
                Err(RecvTimeoutError::Timeout) if !self.stop.load(Ordering::SeqCst) => {}
                Err(_) => return Some(Loss::of_link("the migration is over")),
            }
            if self.opener.can_go_back_to_rdma(&self.shared) {
                return None;
            }
        }
    }

    fn close(&mut self, pumps: Vec<PumpHandle>, back: Back, loss: Option<Loss>) {
        if let Some(loss) = &loss {
            self.opener.lost(loss);
        }
        self.shared.board.closes(self.link.id);
        // Whoever waits for work must come back before its thread can end.
        for pump in &pumps {
            pump.stop();
        }
        self.shared.link_lost(self.link.id);
        drop(pumps);
        drop(back);
        let Some(Loss { reason, .. }) = loss else { return };
        // When all is done the destination closes first; that is no loss.
        if !self.stop.load(Ordering::SeqCst) && !self.shared.brain().is_leaving() {
            tracing::warn!(link = describe(&self.link), reason, "a link is lost");
            self.shared.board.down(self.link.id, &reason);
            self.shared.hub.publish(EventKind::LinkLost { link: self.link.id, reason });
        }
    }
}
