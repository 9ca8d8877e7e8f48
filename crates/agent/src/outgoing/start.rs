//! The parts of steps 1 and 2: the guest is read and judged, the destination's agent is reached, and the loop is
//! started.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use linerate_api::{EventKind, MigrateRequest};
use linerate_core::journal::SourcePhase;
use linerate_core::policy::Limits;
use linerate_core::source::{self, Event, Source};
use linerate_core::{Code, Fault, Mode, ModeTag, RegionInfo, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::migrate::{MigrateError, PauseMark, SourceQemu};
use linerate_guest::qmp::Qmp;
use linerate_guest::registry::{GuestRecord, Registry};
use linerate_guest::shared::Marks;
use linerate_guest::{process, read};
use linerate_memory::{Mapping, RamBlock};
use linerate_net::control::ControlPath;
use linerate_net::interfaces;
use linerate_net::links::{parse_networks, speed_of_all};
use linerate_net::rdma::options::RdmaOptions;
use linerate_wire::frame::Role as Purpose;

use super::domain::{self, OutgoingDomain};
use super::mode::{self, Choice};
use super::session_loop::SessionLoop;
use super::worker::{Guest, Worker};
use super::{Input, LinkTable, Outgoing, Sessions, links, storage, streams};
use crate::clock::{Clock, unix_ms};
use crate::disks;
use crate::event_log::EventLog;
use crate::faults::fault;
use crate::journal::{Record, Role};
use crate::kernel;
use crate::ram::Ram;
use crate::session::address;
use crate::session::contact::first_contact;
use crate::session::identity::{Identity, token_text};
use crate::session::kept::PendingNotice;
use crate::session::links::{Dialler, Losses, Session};
use crate::session::paths::Door;

const QMP_WAIT: Duration = Duration::from_secs(10);

/// What a reading of the guest gives.
pub(super) struct Found {
    record: GuestRecord,
    pub description: GuestDescription,
    qemu: SourceQemu,
    choice: Choice,
    blocks: Vec<RamBlock>,
    ram: Vec<Arc<Ram>>,
    marks: Marks,
}

/// The destination's agent, as it was reached first, and what names the session there.
pub(super) struct Contact {
    identity: Identity,
    /// The address that answered comes first.
    peers: Vec<SocketAddr>,
    pub control: ControlPath,
    /// Of a domain: the file from which the next start of this agent sends the roll-back notice.
    kept: Option<PendingNotice>,
}

/// Reaches the destination's agent, and marks the guest's pauses as this session's.
pub(super) fn authorise(
    sessions: &Arc<Sessions>,
    request: &MigrateRequest,
    found: &mut Found,
) -> Result<Contact, Fault> {
    let identity = Identity::random()?;
    let peers = address::resolve(&request.to)?;
    let kept = match &request.domain {
        Some(_) => Some(domain::keep(sessions, &identity, &peers)?),
        None => None,
    };
    let (control, peer) = first_contact(&peers, Purpose::ControlNew, &identity)?;
    if request.domain.is_none() {
        let folder = folder(&sessions.registry, &found.record)?;
        found.qemu.mark_pauses(PauseMark::new(&folder, &identity.session.to_string()));
    }
    Ok(Contact { identity, peers: first(peer, peers), control, kept })
}

/// The session's record.
pub(super) fn record(
    sessions: &Sessions,
    request: &MigrateRequest,
    found: &Found,
    contact: &Contact,
) -> Record {
    Record::new(&request.guest, sessions.journal.next_order(), role(found, contact))
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
        stood: found.qemu.stands().cloned(),
        token: token_text(&contact.identity.token),
        settings: found.qemu.found().cloned(),
        copied: found.description.copied.iter().map(|disk| disk.path.clone().into()).collect(),
        untold: false,
    }
}

/// What all threads of the migration share.
pub(super) fn outgoing(
    sessions: &Sessions,
    request: MigrateRequest,
    found: &mut Found,
    contact: &mut Contact,
    before_machine: Duration,
    (inbox, door): (std::sync::mpsc::Sender<Input>, Door),
) -> Result<Outgoing, Fault> {
    let carriage = found.choice.mode.carries_streams().then(|| {
        let percent = request.storage_share_percent.unwrap_or(MigrateRequest::DEFAULT_STORAGE_SHARE_PERCENT);
        Arc::new(streams::carriage(inbox.clone(), percent))
    });
    let kept = contact.kept.take();
    Ok(Outgoing {
        session: contact.identity.session,
        dialler: dialler(sessions, &request, found, contact.identity),
        from: sessions.config.name.clone(),
        started_unix_ms: unix_ms(),
        before_machine,
        ram_bytes: match found.choice.mode {
            ModeTag::Direct | ModeTag::Handover => found.ram.iter().map(|ram| ram.mapping().size()).sum(),
            ModeTag::Streams => found.description.memory_bytes,
        },
        choice: found.choice.clone(),
        carriage: Mutex::new(carriage),
        clock: Clock::start(),
        machine: Mutex::new(Source::new(source_config(&request, found)?)),
        work: Condvar::new(),
        inbox,
        door,
        losses: Losses::default(),
        pacer: links::pacer(request.bandwidth_bytes_per_s),
        hub: EventLog::default(),
        ram: Mutex::new(found.ram.clone()),
        board: LinkTable::default(),
        cancelling: AtomicBool::new(false),
        disks: u32::try_from(found.description.copied.len()).unwrap_or(u32::MAX),
        disk_bytes: Arc::default(),
        marks: Mutex::new(std::mem::take(&mut found.marks)),
        domain: request
            .domain
            .as_ref()
            .map(|domain| OutgoingDomain::new(domain, sessions.gates.clone(), kept)),
        request,
    })
}

/// Warns of what the migration leaves behind or takes on the operator's word.
pub(super) fn warn_of(shared: &Outgoing, guest: &GuestDescription) {
    let cautions = [storage::caution(&shared.request), mode::caution(&shared.choice, guest)];
    for text in cautions.into_iter().flatten().chain(disks::cautions(guest)) {
        shared.hub.publish(EventKind::Warning { text });
    }
}

fn dialler(sessions: &Sessions, request: &MigrateRequest, found: &Found, identity: Identity) -> Dialler {
    let rdma = RdmaOptions {
        type_of_service: sessions.config.rdma_type_of_service,
        checksums: request.rdma_checksums,
        // A guest that gives pages back gets other ones for them, which the adapter would not know of. Rings of streams
        // keep theirs.
        zero_copy: found.choice.mode.carries_streams() || !found.description.traits.may_discard,
        ..RdmaOptions::default()
    };
    Dialler::new(identity, request.transport, rdma)
}

pub(super) fn run(
    sessions: &Arc<Sessions>,
    shared: &Arc<Outgoing>,
    found: Found,
    control: ControlPath,
    record: Record,
    receiver: Receiver<Input>,
) -> Result<(), Fault> {
    let failed = |error: std::io::Error| fault(Code::Internal, Step::Authorise, Side::Source, &error);
    if shared.domain.is_some() {
        domain::note(sessions, shared.session, &record)?;
    }
    let guest = Guest {
        state_socket: socket(sessions, &found.record, "state.sock")?,
        disks_socket: socket(sessions, &found.record, "disks.sock")?,
        registry: sessions.registry.clone(),
        record: found.record,
        description: found.description,
        qemu: found.qemu,
        blocks: found.blocks,
        ram: found.ram,
    };
    let worker = Worker::start(shared.clone(), guest).map_err(failed)?;
    if shared.domain.is_some() {
        worker.submit("await stream", |guest| guest.await_stream());
    }
    let session_loop = SessionLoop::new(shared.clone(), worker, sessions.clone(), record);
    shared.attach_path(control, None).map_err(failed)?;
    if shared.domain.is_none() {
        shared.tell(Event::Start);
    }
    let name = format!("out-{}", shared.request.guest);
    std::thread::Builder::new().name(name).spawn(move || session_loop.run(&receiver)).map_err(failed)?;
    Ok(())
}

pub(super) fn check_request(request: &MigrateRequest) -> Result<(), Fault> {
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
pub(super) fn resolve(sessions: &Sessions, request: &MigrateRequest) -> Result<Found, Fault> {
    let name = &request.guest;
    let here =
        |code, error: &(dyn std::error::Error + 'static)| fault(code, Step::Resolve, Side::Source, error);
    let deadline = Instant::now() + QMP_WAIT;
    let (record, mut qmp) = match &request.domain {
        Some(_) => domain::open(sessions, name, deadline)?,
        None => connect(sessions, name, deadline)?,
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
fn connect(sessions: &Sessions, name: &str, deadline: Instant) -> Result<(GuestRecord, Qmp), Fault> {
    let here =
        |code, error: &(dyn std::error::Error + 'static)| fault(code, Step::Resolve, Side::Source, error);
    let record = sessions.registry.get(name).map_err(|error| here(Code::GuestUnknown, &error))?;
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

fn first(peer: SocketAddr, others: Vec<SocketAddr>) -> Vec<SocketAddr> {
    std::iter::once(peer).chain(others.into_iter().filter(|other| *other != peer)).collect()
}

fn socket(sessions: &Sessions, record: &GuestRecord, name: &str) -> Result<PathBuf, Fault> {
    Ok(folder(&sessions.registry, record)?.join(name))
}

fn folder(registry: &Registry, record: &GuestRecord) -> Result<PathBuf, Fault> {
    registry.folder(&record.name).map_err(|error| fault(Code::Internal, Step::Resolve, Side::Source, &error))
}

#[cfg(test)]
#[test]
fn defaults_of_the_api_are_those_of_the_brain() {
    let request = MigrateRequest::new("g", "beta");
    let machine = source::Config::new("g", String::new(), Mode::Streams { channels: 0 });
    assert_eq!(Duration::from_millis(request.blackout_budget_ms().into()), machine.limits.max_blackout);
    assert_eq!(Duration::from_secs(request.link_timeout_s.into()), machine.link_timeout);
    assert_eq!(request.throttle, machine.limits.throttle);
}
