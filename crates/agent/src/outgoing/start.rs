//! Steps 1 and 2: the guest is read and judged, the destination's agent is reached, and the loop is started.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use linerate_api::{EventKind, MigrateRequest};
use linerate_core::journal::SourcePhase;
use linerate_core::policy::Limits;
use linerate_core::source::{self, Event, Source};
use linerate_core::{Code, Fault, Mode, ModeTag, RegionInfo, SessionId, Side, Step, Token};
use linerate_guest::description::GuestDescription;
use linerate_guest::migrate::{MigrateError, PauseMark, SourceQemu};
use linerate_guest::qmp::Qmp;
use linerate_guest::registry::{GuestRecord, Registry};
use linerate_guest::shared::Marks;
use linerate_guest::{process, read};
use linerate_memory::{Mapping, RamBlock};
use linerate_net::control::{ControlEvent, ControlPath};
use linerate_net::interfaces;
use linerate_net::links::{parse_networks, speed_of_all};
use linerate_wire::frame::Role as Purpose;

use super::body::Body;
use super::domain::{self, Leaving};
use super::mode::{self, Choice};
use super::worker::{Guest, Job, Worker};
use super::{Board, Input, Outgoing, links, storage, streams};
use crate::agent::Agent;
use crate::clock::{Clock, unix_ms};
use crate::config::DEFAULT_PORT;
use crate::disks;
use crate::faults::fault;
use crate::hub::Hub;
use crate::journal::{Record, Role};
use crate::kernel;
use crate::ram::Ram;
use crate::tunnel::Kept;

const QMP_WAIT: Duration = Duration::from_secs(10);

/// What a reading of the guest gives.
struct Found {
    record: GuestRecord,
    description: GuestDescription,
    qemu: SourceQemu,
    choice: Choice,
    blocks: Vec<RamBlock>,
    ram: Vec<Arc<Ram>>,
    marks: Marks,
}

/// The destination's agent, as it was reached first, and what names the session there.
struct Contact {
    session: SessionId,
    token: Token,
    /// The address that answered comes first.
    peers: Vec<SocketAddr>,
    control: ControlPath,
    /// Of a domain: what the next life of this agent withdraws.
    kept: Option<Kept>,
}

/// Begins a migration. Returns when the destination's agent has answered; all else happens in threads of its own.
/// On `Err` the guest was not touched.
pub fn start(agent: &Arc<Agent>, request: MigrateRequest) -> Result<Arc<Outgoing>, Fault> {
    let began = Instant::now();
    check_request(&request)?;
    let mut found = find(agent, &request)?;
    let mut contact = reach(agent, &request)?;
    let session = contact.session;
    if request.domain.is_none() {
        let folder = folder(&agent.registry, &found.record)?;
        found.qemu.mark_pauses(PauseMark::new(&folder, &session.to_string()));
    }
    let role = role(&found, &contact);
    let record = Record::new(&request.guest, agent.journal.next_order(), role);
    let (inbox, receiver) = channel();
    let (control, control_events) = channel();
    let senders = (inbox, control);
    let shared = Arc::new(outgoing(agent, request, &mut found, &mut contact, began.elapsed(), senders)?);
    warn_of(&shared, &found.description);
    if shared.domain.is_some() {
        domain::note(agent, session, &record)?;
    }
    forward(&shared, control_events)?;
    run(agent, &shared, found, contact.control, record, receiver)?;
    let mode = shared.choice.mode;
    tracing::info!(%session, guest = shared.request.guest, to = shared.request.to, %mode, "migration begins");
    Ok(shared)
}

fn reach(agent: &Arc<Agent>, request: &MigrateRequest) -> Result<Contact, Fault> {
    let session = SessionId(random()?);
    let token = Token(random()?);
    let peers = resolve(&request.to)?;
    let kept = match &request.domain {
        Some(_) => Some(domain::keep(agent, session, token, &peers)?),
        None => None,
    };
    let (control, peer) = links::first_contact(&peers, Purpose::ControlNew, session, token)?;
    Ok(Contact { session, token, peers: first(peer, peers), control, kept })
}

fn role(found: &Found, contact: &Contact) -> Role {
    let qemu = found.record.clone();
    let mode = found.choice.mode;
    if mode == ModeTag::Handover {
        return Role::Handover { qemu, over: false };
    }
    Role::Source {
        mode,
        phase: SourcePhase::Started,
        qemu,
        peers: contact.peers.clone(),
        ran: found.qemu.ran(),
        stood: found.qemu.stands().map(str::to_owned),
        token: hex(&contact.token.0),
        settings: found.qemu.found().cloned(),
        copied: found.description.copied.iter().map(|disk| disk.path.clone().into()).collect(),
        untold: false,
    }
}

/// What all threads of the migration share.
fn outgoing(
    agent: &Agent,
    request: MigrateRequest,
    found: &mut Found,
    contact: &mut Contact,
    before_brain: Duration,
    (inbox, control): (Sender<Input>, Sender<ControlEvent>),
) -> Result<Outgoing, Fault> {
    let carriage = found.choice.mode.carries_streams().then(|| {
        let percent = request.storage_share_percent.unwrap_or(MigrateRequest::DEFAULT_STORAGE_SHARE_PERCENT);
        Arc::new(streams::carriage(inbox.clone(), percent))
    });
    let kept = contact.kept.take();
    Ok(Outgoing {
        session: contact.session,
        token: contact.token,
        from: agent.config.name.clone(),
        started_unix_ms: unix_ms(),
        before_brain,
        ram_bytes: match found.choice.mode {
            ModeTag::Direct | ModeTag::Handover => found.ram.iter().map(|ram| ram.mapping().size()).sum(),
            ModeTag::Streams => found.description.memory_bytes,
        },
        choice: found.choice.clone(),
        carriage: Mutex::new(carriage),
        clock: Clock::start(),
        brain: Mutex::new(Source::new(source_config(&request, found)?)),
        work: Condvar::new(),
        inbox,
        control: Mutex::new(Some(control)),
        pacer: links::pacer(request.bandwidth_bytes_per_s),
        hub: Hub::default(),
        ram: Mutex::new(found.ram.clone()),
        board: Board::default(),
        cancelling: AtomicBool::new(false),
        next_path: AtomicU32::new(0),
        next_channel: AtomicU32::new(0),
        rdma_domains: Default::default(),
        rdma_type_of_service: agent.config.rdma_type_of_service,
        may_discard: found.description.traits.may_discard,
        disks: u32::try_from(found.description.copied.len()).unwrap_or(u32::MAX),
        disk_bytes: Arc::default(),
        marks: Mutex::new(std::mem::take(&mut found.marks)),
        domain: request.domain.as_ref().map(|domain| Leaving::new(domain, agent.gates.clone(), kept)),
        request,
    })
}

/// Warns of what the migration leaves behind or takes on the operator's word.
fn warn_of(shared: &Outgoing, guest: &GuestDescription) {
    let cautions = [storage::caution(&shared.request), mode::caution(&shared.choice, guest)];
    for text in cautions.into_iter().flatten().chain(disks::cautions(guest)) {
        shared.hub.publish(EventKind::Warning { text });
    }
}

/// What comes over the control connections goes into the loop's inbox.
fn forward(shared: &Arc<Outgoing>, control_events: Receiver<ControlEvent>) -> Result<(), Fault> {
    let inbox = shared.inbox.clone();
    let forward = move || {
        for event in control_events {
            let _ = inbox.send(Input::Event(links::control_event(event)));
        }
    };
    let thread = std::thread::Builder::new().name("control-events".into()).spawn(forward);
    thread.map(drop).map_err(|error| fault(Code::Internal, Step::Authorise, Side::Source, &error))
}

fn run(
    agent: &Arc<Agent>,
    shared: &Arc<Outgoing>,
    found: Found,
    control: ControlPath,
    record: Record,
    receiver: Receiver<Input>,
) -> Result<(), Fault> {
    let failed = |error: std::io::Error| fault(Code::Internal, Step::Authorise, Side::Source, &error);
    let guest = Guest {
        state_socket: socket(agent, &found.record, "state.sock")?,
        disks_socket: socket(agent, &found.record, "disks.sock")?,
        registry: agent.registry.clone(),
        record: found.record,
        description: found.description,
        qemu: found.qemu,
        blocks: found.blocks,
        ram: found.ram,
    };
    let worker = Worker::start(shared.clone(), guest).map_err(failed)?;
    if shared.domain.is_some() {
        worker.ask(Job::AwaitStream);
    }
    let body = Body::new(shared.clone(), worker, agent.clone(), record);
    links::attach_path(shared, control, None).map_err(failed)?;
    if shared.domain.is_none() {
        shared.tell(Event::Start);
    }
    let name = format!("out-{}", shared.request.guest);
    std::thread::Builder::new().name(name).spawn(move || body.run(&receiver)).map_err(failed)?;
    Ok(())
}

fn check_request(request: &MigrateRequest) -> Result<(), Fault> {
    let wrong = |detail: String| Fault::new(Code::NoLink, Step::Resolve, Side::Source, detail);
    parse_networks(&request.links.join(",")).map_err(|error| wrong(error.to_string()))?;
    let share = request.storage_share_percent;
    if share.is_some_and(|percent| !(1..100).contains(&percent) || !request.copies_disks()) {
        let detail = "disks have a share of the links (--storage-share, 1 to 99 percent) where they are copied along (--copy-storage, --copy-disks)";
        return Err(Fault::new(Code::NotMigratable, Step::Resolve, Side::Source, detail));
    }
    Ok(())
}

/// Reads the guest and judges whether direct mode can move it.
fn find(agent: &Agent, request: &MigrateRequest) -> Result<Found, Fault> {
    let name = &request.guest;
    let here =
        |code, error: &(dyn std::error::Error + 'static)| fault(code, Step::Resolve, Side::Source, error);
    let deadline = Instant::now() + QMP_WAIT;
    let (record, mut qmp) = match &request.domain {
        Some(_) => domain::open(agent, name, deadline)?,
        None => connect(agent, name, deadline)?,
    };
    let mut description = read::read(&mut qmp, record.process.pid, deadline)
        .map_err(|error| here(Code::HypervisorFailed, &error))?;
    if request.domain.is_some() {
        domain::check(request, &mut description)?;
    }
    if request.domain.is_none() {
        description.name.clone_from(&record.name);
        let changes = disks::at_start(&mut qmp, &mut description, deadline)?.join("; ");
        if !changes.is_empty() {
            tracing::info!(guest = record.name, changes, "the destination gets the images in use");
        }
    }
    let choice = mode::choose(request, &description, &kernel::judge(&description))?;
    let marks = match request.domain {
        // Their storage is libvirt's to look after.
        Some(_) => Marks::default(),
        None => storage::look(request, &mut qmp, &mut description, deadline)?,
    };
    mode::check_images(&description)?;
    let qemu = match &request.domain {
        // What libvirt sets is libvirt's to put back.
        Some(_) => SourceQemu::recovered(qmp, true, None, false),
        None => SourceQemu::new(qmp, deadline).map_err(|error| match error {
            MigrateError::Snapshot(_) => here(Code::NotMigratable, &error),
            error => here(Code::HypervisorFailed, &error),
        })?,
    };
    let mut blocks = Vec::new();
    let mut ram = Vec::new();
    for region in description.regions().filter(|_| !choice.mode.carries_streams()) {
        let path = PathBuf::from(region.path.clone().unwrap_or_default());
        let block = RamBlock::find(record.process.pid, &region.id, &path)
            .map_err(|error| here(Code::TrackingFailed, &error))?;
        let mapping = Mapping::new(&block).map_err(|error| here(Code::MemoryFailed, &error))?;
        ram.push(Arc::new(Ram::new(mapping)));
        blocks.push(block);
    }
    Ok(Found { record, description, qemu, choice, blocks, ram, marks })
}

/// The monitor of a guest of this host's registry.
fn connect(agent: &Agent, name: &str, deadline: Instant) -> Result<(GuestRecord, Qmp), Fault> {
    let here =
        |code, error: &(dyn std::error::Error + 'static)| fault(code, Step::Resolve, Side::Source, error);
    let record = agent.registry.get(name).map_err(|error| here(Code::GuestUnknown, &error))?;
    if !record.is_alive() {
        let detail = format!("the QEMU of {name} has ended");
        return Err(Fault::new(Code::GuestGone, Step::Resolve, Side::Source, detail));
    }
    let qmp = process::connect(&record, deadline).map_err(|error| here(Code::HypervisorFailed, &error))?;
    Ok((record, qmp))
}

fn source_config(request: &MigrateRequest, found: &Found) -> Result<source::Config, Fault> {
    let description = found
        .description
        .to_json()
        .map_err(|error| fault(Code::Internal, Step::Resolve, Side::Source, &error))?;
    let mut config = source::Config::new(request.guest.clone(), description, offered_mode(request, found)?);
    config.limits = Limits {
        max_blackout: Duration::from_millis(u64::from(request.blackout_budget_ms())),
        rounds_max: request.max_rounds.unwrap_or(Limits::default().rounds_max),
        throttle: request.throttle,
    };
    config.verify = request.verify;
    config.link_timeout = Duration::from_secs(u64::from(request.link_timeout_s));
    Ok(config)
}

fn offered_mode(request: &MigrateRequest, found: &Found) -> Result<Mode, Fault> {
    Ok(match found.choice.mode {
        ModeTag::Direct => Mode::Direct { regions: regions(&found.blocks)? },
        ModeTag::Streams => Mode::Streams { channels: mode::stream_channels(port_speeds(request), cpus()) },
        ModeTag::Handover => Mode::Handover { regions: regions(&found.blocks)? },
    })
}

fn regions(blocks: &[RamBlock]) -> Result<Vec<RegionInfo>, Fault> {
    let region = |(index, block): (usize, &RamBlock)| {
        let id = u16::try_from(index)
            .map_err(|error| fault(Code::NotMigratable, Step::Resolve, Side::Source, &error))?;
        Ok(RegionInfo { id, name: block.name().to_owned(), size: block.size() })
    };
    blocks.iter().enumerate().map(region).collect()
}

/// What the ports of this host that the migration may use could carry together, in megabits per second.
fn port_speeds(request: &MigrateRequest) -> u64 {
    // A filter that cannot be read was refused before.
    let filter = parse_networks(&request.links.join(",")).unwrap_or_default();
    speed_of_all(&interfaces::list().unwrap_or_default(), &filter)
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// `HOST` or `HOST:PORT`, as addresses.
pub(crate) fn resolve(to: &str) -> Result<Vec<SocketAddr>, Fault> {
    addresses(to).map_err(|error| {
        let detail = format!("cannot find the host {to}: {error}");
        Fault::new(Code::NoLink, Step::Resolve, Side::Source, detail)
    })
}

/// `HOST` or `HOST:PORT`, as addresses; at least one.
pub(crate) fn addresses(to: &str) -> std::io::Result<Vec<SocketAddr>> {
    let found =
        to.to_socket_addrs().or_else(|_| (to.trim_matches(['[', ']']), DEFAULT_PORT).to_socket_addrs());
    let addresses: Vec<SocketAddr> = found?.collect();
    if addresses.is_empty() { Err(std::io::Error::other("the name has no address")) } else { Ok(addresses) }
}

fn first(peer: SocketAddr, others: Vec<SocketAddr>) -> Vec<SocketAddr> {
    std::iter::once(peer).chain(others.into_iter().filter(|other| *other != peer)).collect()
}

fn socket(agent: &Agent, record: &GuestRecord, name: &str) -> Result<PathBuf, Fault> {
    Ok(folder(&agent.registry, record)?.join(name))
}

fn folder(registry: &Registry, record: &GuestRecord) -> Result<PathBuf, Fault> {
    registry.folder(&record.name).map_err(|error| fault(Code::Internal, Step::Resolve, Side::Source, &error))
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| {
        Fault::new(Code::Internal, Step::Authorise, Side::Source, format!("no random numbers: {error}"))
    })?;
    Ok(bytes)
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
