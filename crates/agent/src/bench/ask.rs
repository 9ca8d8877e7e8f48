//! The asking side: finds the links, opens the connections, has both sides play.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use linerate_api::{
    BenchCpu, BenchDirection, BenchEvent, BenchLink, BenchReport, BenchRequest, BenchTest, BenchTransport,
};
use linerate_core::{LinkId, SessionId, Token};
use linerate_net::bench::document_channel::DocumentChannel;
use linerate_net::bench::group::{self, TestThread};
use linerate_net::bench::role::{TestResult, TestRole};
use linerate_net::bench::{TestConnection, TestError};
use linerate_net::interfaces;
use linerate_net::links::{Link, channels_for, pair, parse_networks, queue_pairs_for};
use linerate_net::rdma::{self, options::RdmaOptions};
use linerate_net::tcp::Stream;
use linerate_net::tcp::connect::{Route, connect};
use linerate_wire::frame::{Hello, Role};
use linerate_wire::{VERSION_MAX, VERSION_MIN};

use super::cpu::Cpus;
use super::documents::{
    ANSWER_WAIT, ChannelPart, LIMIT_MS_MAX, PeerPart, PeerReply, PeerRequest, check_connections,
    check_message, check_time, endpoints, receive, send,
};
use super::error::BenchError;
use super::host::{Claim, Host};
use super::stop::{Reason, Stop};
use super::{PeerKind, bandwidth, pingpong, ports};
use crate::clock::unix_ms;

/// Most sizes of a ping-pong.
const SIZES_MAX: usize = 64;
/// How long the peer's own reason for a connection that it closed is waited for.
const REASON_WAIT: Duration = Duration::from_secs(2);
/// Each step of connecting has so long. There is nothing to fall back to, so a busy host gets more time than for a
/// migration.
const RDMA_WAIT: Duration = Duration::from_secs(10);

/// Reports how far it is.
pub type ReportProgress<'a> = &'a mut dyn FnMut(BenchEvent);

/// A connection that is measured.
pub struct Channel {
    /// Its number on both sides.
    pub number: u32,
    connection: Box<dyn TestConnection>,
    cpu: Option<usize>,
}

/// A link with its connections.
pub struct OpenLink {
    /// What is known of it.
    pub facts: BenchLink,
    /// From here to there, or for ping-pongs.
    pub forward: Vec<Channel>,
    /// From there to here.
    pub backward: Vec<Channel>,
}

impl OpenLink {
    pub fn name(&self) -> String {
        name(&self.facts)
    }
}

pub fn name(link: &BenchLink) -> String {
    format!("{} → {}", link.source.interface, link.destination.address)
}

/// What both sides did.
pub struct BothResults {
    /// The connections, in their order.
    pub channels: Vec<Channel>,
    pub ours: Vec<TestResult>,
    pub theirs: Vec<TestResult>,
    pub our_cpu: Duration,
    pub their_cpu: Duration,
}

/// The other host during a measurement.
pub struct Peer<'a> {
    talk: DocumentChannel,
    name: String,
    stop: &'a Stop,
    cpu: BenchCpu,
    notes: BTreeSet<String>,
    claim: Claim,
}

pub fn measure(
    host: &Arc<Host>,
    request: &BenchRequest,
    peer_kind: &PeerKind,
    migrating: bool,
    stop: &Arc<Stop>,
    directions: &[BenchDirection],
    report: ReportProgress<'_>,
) -> Result<BenchReport, BenchError> {
    let begun = host.begun();
    check(request)?;
    let started_unix_ms = unix_ms();
    let names = (SessionId(random()?), Token(random()?));
    let claim = host.claim(names, stop, false)?;
    claim.measurement.allow(request.force);
    if (migrating || host.begun() != begun) && !request.force {
        return Err(BenchError::Migration { host: "this host".into() });
    }
    let stream = contact(host, &request.to, names)?;
    host.security.end_with_peer(stream.peer_certificates(), stop.clone());
    let talk = DocumentChannel::new(stream);
    stop.add(talk.closer());
    send(&talk, &PeerRequest::Open { force: request.force })?;
    let answer: PeerReply = receive(&talk, ANSWER_WAIT).map_err(|error| stopped(stop).unwrap_or(error))?;
    let PeerReply::Ready { name, ports } = answer.into_result(&request.to)? else {
        return Err(BenchError::Unexpected { asked: "open", got: "another document" });
    };
    let ports = endpoints(ports);
    let mut peer = Peer { talk, name, stop, cpu: request.cpu, notes: BTreeSet::new(), claim };
    let links = found(request, peer_kind, &ports)?;
    let links = peer.open(request, &links, &ports, names)?;
    let facts: Vec<BenchLink> = links.iter().map(|link| link.facts.clone()).collect();
    let measured = match &request.test {
        BenchTest::Pingpong { sizes, repetitions, time_per_size_ms } => {
            let time = Duration::from_millis((*time_per_size_ms).into());
            pingpong::measure(&mut peer, links, sizes, *repetitions, time, report)
                .map(|one| (one, Vec::new()))
        }
        BenchTest::Bandwidth { time_ms } => {
            bandwidth::measure(&mut peer, links, directions, *time_ms, report).map(|one| (Vec::new(), one))
        }
    };
    let mtus = || facts.iter().find_map(mtus_differ);
    let (pingpong, bandwidth) = measured.map_err(|error| error.of_links_with(mtus()))?;
    peer.note_links(&facts);
    Ok(BenchReport {
        from: host.name.clone(),
        to: peer.name,
        transport: request.transport,
        cpu: request.cpu,
        started_unix_ms,
        notes: peer.notes.into_iter().collect(),
        links: facts,
        pingpong,
        bandwidth,
    })
}

fn check(request: &BenchRequest) -> Result<(), BenchError> {
    parse_networks(&request.links.join(","))?;
    match &request.test {
        BenchTest::Pingpong { sizes, repetitions, time_per_size_ms } => {
            check_time(*time_per_size_ms)?;
            if sizes.len() > SIZES_MAX {
                return Err(BenchError::Size { bytes: sizes.iter().map(|size| u64::from(*size)).sum() });
            }
            let asked = sizes.iter().chain(&[0]).map(|size| check_message(*size, *repetitions));
            asked.collect()
        }
        BenchTest::Bandwidth { time_ms } => check_time(*time_ms),
    }
}

fn hello((session, token): (SessionId, Token), role: Role, link: LinkId, channel: u32) -> Hello {
    Hello { version_min: VERSION_MIN, version_max: VERSION_MAX, session, role, link, channel, token }
}

fn contact(host: &Host, to: &str, names: (SessionId, Token)) -> Result<Stream, BenchError> {
    let failed = |source| BenchError::Host { host: to.to_owned(), source };
    let addresses = crate::session::address::addresses(to).map_err(failed)?;
    let mut last = failed(std::io::Error::other("the name has no address"));
    for remote in addresses {
        let route = Route { local: None, device: None, remote };
        match connect(&route, &hello(names, Role::Bench, 0, 0), &host.tcp_options()) {
            Ok((stream, _)) => return Ok(stream),
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}

fn found(
    request: &BenchRequest,
    peer_kind: &PeerKind,
    ports: &[linerate_core::Endpoint],
) -> Result<Vec<Link>, BenchError> {
    let links = match peer_kind {
        PeerKind::Agent => {
            let filter = parse_networks(&request.links.join(","))?;
            pair(&interfaces::list()?, ports, &filter)
        }
        PeerKind::Local => here(ports),
    };
    let offered: Vec<String> =
        ports.iter().map(|one| format!("{} ({})", one.address, one.interface)).collect();
    if links.is_empty() { Err(BenchError::NoLink { offered: offered.join(", ") }) } else { Ok(links) }
}

/// Every address by itself, without a port to bind to: between two addresses of one host the kernel decides the route.
fn here(ports: &[linerate_core::Endpoint]) -> Vec<Link> {
    let link = |(number, port): (usize, &linerate_core::Endpoint)| Link {
        id: number as LinkId,
        local: None,
        device: None,
        remote_interface: port.interface.clone(),
        remote: port.address,
        speed_mbps: port.speed_mbps,
        mtu: port.mtu,
        numa: port.numa,
        mtu_differs: false,
        rdma: (port.rdma_port != 0).then(|| SocketAddr::new(port.address.ip(), port.rdma_port)),
    };
    ports.iter().enumerate().map(link).collect()
}

fn random<const N: usize>() -> Result<[u8; N], BenchError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(BenchError::Random)?;
    Ok(bytes)
}

fn stopped(stop: &Stop) -> Option<BenchError> {
    match stop.reason()? {
        Reason::Cancelled => Some(BenchError::Cancelled),
        Reason::Migration => Some(BenchError::Migration { host: "this host".into() }),
        Reason::Revoked => Some(BenchError::Revoked),
        Reason::Over => None,
    }
}

impl Peer<'_> {
    /// Connections of all links.
    fn open(
        &mut self,
        request: &BenchRequest,
        links: &[Link],
        ports: &[linerate_core::Endpoint],
        names: (SessionId, Token),
    ) -> Result<Vec<OpenLink>, BenchError> {
        let stream = matches!(request.test, BenchTest::Bandwidth { .. });
        let allowed = std::thread::available_parallelism().map_or(1, usize::from);
        let each = connections(request, links, stream, allowed);
        let directions = if stream { 2 } else { 1 };
        let all: usize = each.iter().map(|count| count * directions).sum();
        check_connections(request.transport, all)?;
        let (ours, cpus) = (interfaces::list()?, Cpus::read());
        let mut numbers = 1..;
        let mut opened = Vec::new();
        for (link, count) in links.iter().zip(each) {
            let mut source = None;
            let mut channels = Vec::new();
            for number in numbers.by_ref().take(count * directions) {
                let hello = hello(names, Role::BenchData, link.id, number);
                let (connection, own) = self.connect(request.transport, link, &hello)?;
                let own = own.or(link.local);
                let port = ports::own(&ours, own.unwrap_or_else(|| link.remote.ip()));
                let choice = cpus.choose(self.cpu, port.numa, number as usize - 1)?;
                self.notes.extend(choice.note.map(|note| format!("here {note}")));
                source.get_or_insert(port);
                self.stop.add(connection.closer());
                channels.push(Channel { number, connection, cpu: choice.cpu });
            }
            let destination = ports::other(ports, link.remote);
            let source = source.unwrap_or_else(|| ports::own(&ours, link.remote.ip()));
            let speed_mbps = request.speed_mbps.unwrap_or_else(|| ports::speed(&source, &destination));
            let facts = BenchLink { source, destination, speed_mbps, channels: count as u16 };
            let backward = channels.split_off(count);
            opened.push(OpenLink { facts, forward: channels, backward });
        }
        Ok(opened)
    }

    /// A connection, and this end's address.
    fn connect(
        &self,
        transport: BenchTransport,
        link: &Link,
        hello: &Hello,
    ) -> Result<(Box<dyn TestConnection>, Option<IpAddr>), BenchError> {
        let failed = |error| self.connection_error(&link.remote.to_string(), error);
        match transport {
            BenchTransport::Tcp => {
                let (stream, _) = connect(&Route::from(link), hello, &self.claim.host.tcp_options())?;
                let own = stream.own_address().map(|own| own.ip());
                Ok((super::tcp_test_connection(stream).map_err(failed)?, own))
            }
            BenchTransport::Rdma => {
                let may = self.claim.host.security.allows_rdma();
                let remote = link.rdma.filter(|_| may);
                let remote = remote.ok_or_else(|| BenchError::NoRdma { link: link.remote.to_string() })?;
                let route = Route { remote, ..Route::from(link) };
                let options = RdmaOptions { connect_wait: RDMA_WAIT, ..RdmaOptions::default() };
                let (connection, _) =
                    rdma::connect::connect(&route, hello, &options, &self.claim.measurement.domains)?;
                Ok((super::rdma_test_connection(connection).map_err(failed)?, None))
            }
        }
    }

    fn note_links(&mut self, links: &[BenchLink]) {
        for link in links {
            self.notes.extend(mtus_differ(link));
            if link.speed_mbps == 0 {
                self.notes.insert(format!(
                    "{}: no port has a known speed; give --speed for the percentage",
                    name(link)
                ));
            }
        }
    }

    /// Has both sides play at once. `what` is for errors.
    pub fn play(
        &mut self,
        what: &str,
        jobs: Vec<(Channel, TestRole, PeerPart)>,
        limit: Duration,
    ) -> Result<BothResults, BenchError> {
        let limit = limit.min(Duration::from_millis(LIMIT_MS_MAX.into()));
        let limit_ms = u32::try_from(limit.as_millis()).unwrap_or(LIMIT_MS_MAX);
        let parts =
            jobs.iter().map(|(channel, _, part)| ChannelPart { channel: channel.number, part: *part });
        let ask = PeerRequest::Play { parts: parts.collect(), cpu: self.cpu, limit_ms };
        let answer = send(&self.talk, &ask).and_then(|()| self.receive(&ask, ANSWER_WAIT * 2));
        match answer.map_err(|error| stopped(self.stop).unwrap_or(error))? {
            PeerReply::Playing {} => {}
            other => return Err(BenchError::Unexpected { asked: ask.name(), got: other.name() }),
        }
        let owners: Vec<(u32, Option<usize>)> = jobs.iter().map(|(one, ..)| (one.number, one.cpu)).collect();
        let players =
            jobs.into_iter().map(|(one, part, _)| TestThread { wire: one.connection, part, cpu: one.cpu });
        let (connections, score) =
            group::run(players.collect(), limit).map_err(|error| self.connection_error(what, error))?;
        let answer =
            self.receive(&ask, limit + ANSWER_WAIT).map_err(|error| stopped(self.stop).unwrap_or(error))?;
        let PeerReply::TestResult { channels: theirs, cpu_us, notes } = answer else {
            return Err(BenchError::Unexpected { asked: ask.name(), got: answer.name() });
        };
        if theirs.len() != owners.len() {
            return Err(BenchError::Unexpected { asked: ask.name(), got: "other channels" });
        }
        self.notes.extend(notes.iter().take(4).map(|note| format!("there {}", super::documents::cut(note))));
        let channel = |((number, cpu), connection)| Channel { number, connection, cpu };
        Ok(BothResults {
            channels: owners.into_iter().zip(connections).map(channel).collect(),
            ours: score.played,
            theirs: theirs.iter().map(Into::into).collect(),
            our_cpu: score.cpu,
            their_cpu: Duration::from_micros(cpu_us),
        })
    }

    fn receive(&self, ask: &PeerRequest, wait: Duration) -> Result<PeerReply, BenchError> {
        let answer: PeerReply = receive(&self.talk, wait)?;
        tracing::trace!(asked = ask.name(), got = answer.name(), "the peer answers");
        answer.into_result(&self.name)
    }

    /// Why a connection cannot be used any more: what stopped it here, the peer's reason if it closed, or its own
    /// error.
    fn connection_error(&self, what: &str, source: TestError) -> BenchError {
        if let Some(error) = stopped(self.stop) {
            return error;
        }
        if matches!(source, TestError::Closed)
            && let Ok(Err(error)) =
                receive::<PeerReply>(&self.talk, REASON_WAIT).map(|answer| answer.into_result(&self.name))
        {
            return error;
        }
        BenchError::TestConnection { link: format!("{what}, {}", self.name), source }
    }
}

fn mtus_differ(link: &BenchLink) -> Option<String> {
    let (here, there) = (link.source.mtu, link.destination.mtu);
    let text = || format!("{}: MTU {here} here and {there} there; large packets may be lost", name(link));
    (here != there).then(text)
}

/// Connections for each link in one direction: as many as a migration would open, unless some are asked for.
pub(super) fn connections(request: &BenchRequest, links: &[Link], stream: bool, cpus: usize) -> Vec<usize> {
    let count = |link: &Link| match (request.channels, stream, request.transport) {
        (0, false, _) => 1,
        (0, true, BenchTransport::Tcp) => channels_for(link.speed_mbps, cpus),
        (0, true, BenchTransport::Rdma) => queue_pairs_for(link.speed_mbps, cpus),
        (asked, ..) => usize::from(asked),
    };
    links.iter().map(count).collect()
}

/// Both sides count the same bytes, or something is very wrong.
pub fn same(what: &str, sent: &TestResult, received: &TestResult) -> Result<(), BenchError> {
    if sent.sent_bytes == received.received_bytes {
        return Ok(());
    }
    Err(BenchError::Lost { link: what.to_owned(), sent: sent.sent_bytes, received: received.received_bytes })
}
