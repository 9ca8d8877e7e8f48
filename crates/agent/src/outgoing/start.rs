//! The parts of steps 1 and 2: the guest is read and judged, the destination's agent is reached, and the loop is
//! started.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use linerate_api::{DomainMigration, EventKind, MigrateRequest, Transport};
use linerate_core::journal::SourcePhase;
use linerate_core::policy::Limits;
use linerate_core::source::{self, Source};
use linerate_core::{Code, Fault, Mode, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::incoming_qemu::IncomingError;
use linerate_guest::migrate::{MigrateError, PauseMark, SourceQemu};
use linerate_guest::qmp::Qmp;
use linerate_guest::registry::{GuestRecord, RegistryError};
use linerate_guest::vcpu_time::VcpuTime;
use linerate_guest::{process, read};
use linerate_lock::{Condvar, Mutex};
use linerate_net::control::ControlPath;
use linerate_net::interfaces;
use linerate_net::links::{parse_networks, speed_of_all};
use linerate_net::rdma::options::RdmaOptions;
use linerate_trust::name::HostName;
use linerate_wire::frame::Role as Purpose;

use super::driver::{self, GuestRam, ModeParts, OutgoingDomain};
use super::guest::Guest;
use super::mode::{self, RamChoice};
use super::session_loop::SessionLoop;
use super::worker::Worker;
use super::{Input, LinkTable, Observer, Outgoing, Sessions, domain, links, storage};
use crate::clock::{Clock, unix_ms};
use crate::disks;
use crate::event_log::EventLog;
use crate::faults::fault;
use crate::journal::{Record, Role, token_text};
use crate::kernel;
use crate::ran_here::RanHere;
use crate::session::address;
use crate::session::contact::open_session;
use crate::session::identity::Identity;
use crate::session::links::{Dialler, Losses, Session};
use crate::session::paths::Door;
use crate::session::pending_notice::PendingNotice;

const QMP_WAIT: Duration = Duration::from_secs(10);

/// What a reading of the guest gives.
pub(super) struct Found {
    record: GuestRecord,
    pub description: GuestDescription,
    qemu: SourceQemu,
    mode: ModeParts,
    /// Where the mode was not the operator's choice.
    mode_reason: Option<String>,
}

/// The destination's agent, as it was reached first, and what names the session there.
pub(super) struct OpenedSession {
    identity: Identity,
    /// The address that answered comes first.
    peers: Vec<SocketAddr>,
    pub control: ControlPath,
}

/// Reaches the destination's agent. Before that, what stays of the session if this agent dies gets its name.
pub(super) fn authorise(
    sessions: &Sessions,
    request: &MigrateRequest,
    found: &mut Found,
) -> Result<OpenedSession, Fault> {
    let only = request.only_host.as_deref().map(str::parse::<HostName>).transpose();
    let only = only.map_err(|error| here(Code::Internal, &error))?;
    let identity = Identity::random_with(&sessions.security, &only)?;
    let peers = address::resolve(&request.to)?;
    match &mut found.mode {
        ModeParts::Direct { .. } | ModeParts::Streams { .. } => {
            let folder = sessions.registry.folder(&found.record.name);
            let folder = folder.map_err(|error| here(Code::Internal, &error))?;
            found.qemu.mark_pauses(PauseMark::new(&folder, &identity.session.to_string()));
        }
        ModeParts::Handover { domain, .. } => {
            let notice = PendingNotice::new(&sessions.config.state_dir, &identity, &peers);
            domain.keep_notice(notice.map_err(|error| here(Code::JournalFailed, &error))?);
        }
    }
    let opening = sessions.open(identity.session);
    let (control, peer) = open_session(&peers, Purpose::ControlNew, &identity)?;
    drop(opening);
    if let ModeParts::Handover { domain, .. } = &found.mode {
        domain.pin_notice(&identity, &peers).map_err(|error| here(Code::JournalFailed, &error))?;
    }
    Ok(OpenedSession { identity, peers: first(peer, peers), control })
}

/// The source's first record of the session, in phase *started*.
pub(super) fn record(
    sessions: &Sessions,
    request: &MigrateRequest,
    found: &Found,
    opened: &OpenedSession,
) -> Record {
    Record::new(&request.guest, sessions.journal.next_order(), role(found, opened))
}

fn role(found: &Found, opened: &OpenedSession) -> Role {
    let qemu = found.record.clone();
    match &found.mode {
        ModeParts::Direct { .. } | ModeParts::Streams { .. } => Role::Source {
            mode: found.mode.tag(),
            phase: SourcePhase::Started,
            qemu,
            peers: opened.peers.clone(),
            ran: found.qemu.ran(),
            run_state_before: found.qemu.run_state_before().cloned(),
            token: token_text(&opened.identity.token),
            peer: opened.identity.peer(),
            settings: found.qemu.found().cloned(),
            vcpu_time: VcpuTime::of(&found.description.process.vcpu_threads),
            ran_here: RanHere::No,
            copied: found.description.copied.iter().map(|disk| disk.path.clone().into()).collect(),
            notice_due: false,
        },
        ModeParts::Handover { .. } => Role::Handover { qemu, over: false },
    }
}

/// What all threads of the migration share.
pub(super) fn outgoing(
    sessions: &Sessions,
    request: MigrateRequest,
    found: &Found,
    opened: &OpenedSession,
    before_machine: Duration,
    (inbox, door): (std::sync::mpsc::Sender<Input>, Door),
    observer: Option<Observer>,
) -> Result<Outgoing, Fault> {
    let mut config = source_config(&request, found)?;
    config.hold = request.dry_run || observer.is_some();
    Ok(Outgoing {
        session: opened.identity.session,
        dialler: dialler(sessions, &request, found, opened.identity.clone())?,
        from: sessions.config.name.clone(),
        started_unix_ms: unix_ms(),
        before_machine,
        ram_bytes: match &found.mode {
            ModeParts::Direct { ram, .. } | ModeParts::Handover { ram, .. } => ram.bytes(),
            ModeParts::Streams { .. } => found.description.memory_bytes,
        },
        clock: Clock::start(),
        machine: Mutex::new(Source::new(config)),
        work: Condvar::new(),
        inbox,
        door,
        peers: opened.peers.clone(),
        losses: Losses::default(),
        pacer: links::pacer(request.bandwidth_bytes_per_s),
        event_log: EventLog::default(),
        qemu: match &found.mode {
            ModeParts::Direct { .. } | ModeParts::Streams { .. } => Some(found.record.process),
            ModeParts::Handover { .. } => None,
        },
        mode: found.mode.tag(),
        mode_reason: found.mode_reason.clone(),
        channel_source: Mutex::default(),
        link_table: LinkTable::default(),
        cancelling: AtomicBool::new(false),
        was_ready: AtomicBool::new(false),
        observer,
        not_asked: Mutex::default(),
        answer: Mutex::default(),
        trouble: Mutex::default(),
        ran_here: Mutex::default(),
        says_it: AtomicBool::new(false),
        journal_trouble: Default::default(),
        request,
    })
}

/// Warns of what the migration leaves behind, and of what the operator asserts.
pub(super) fn warn_of(shared: &Outgoing, guest: &GuestDescription) {
    let by_mode = shared.mode.carries_streams().then(|| mode::stream_caution(guest)).flatten();
    let cautions = [storage::caution(&shared.request), by_mode];
    for text in cautions.into_iter().flatten().chain(disks::cautions(guest)) {
        shared.event_log.publish(EventKind::Warning { text });
    }
}

fn dialler(
    sessions: &Sessions,
    request: &MigrateRequest,
    found: &Found,
    identity: Identity,
) -> Result<Dialler, Fault> {
    let rdma = RdmaOptions {
        connect_wait: Duration::from_secs(sessions.config.rdma_connect_s),
        type_of_service: sessions.config.rdma_type_of_service,
        checksums: request.rdma_checksums,
        // A guest that gives pages back gets other ones for them, which the adapter would not know of. Rings of streams
        // keep theirs.
        zero_copy: found.mode.tag().carries_streams() || !found.description.traits.may_discard,
        ..RdmaOptions::default()
    };
    Ok(Dialler::new(identity, transport(sessions, request)?, rdma))
}

/// What channels may run over. The agents cannot encrypt RDMA.
fn transport(sessions: &Sessions, request: &MigrateRequest) -> Result<Transport, Fault> {
    match request.transport {
        _ if sessions.security.allows_rdma() => Ok(request.transport),
        Transport::Auto => Ok(Transport::Tcp),
        Transport::Tcp => Ok(Transport::Tcp),
        Transport::Rdma => {
            let detail =
                "RDMA is not encrypted: rdma_network = \"trusted\" in the agent's configuration allows it";
            Err(Fault::new(Code::NotAuthorised, Step::Authorise, Side::Source, detail))
        }
    }
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
    if let Role::Handover { .. } = record.role {
        // Before the capability is set.
        let written = sessions.journal.put(shared.session, &record);
        written.map_err(|error| here(Code::JournalFailed, &error))?;
    }
    let guest = Guest::new(shared.clone(), found.description, found.record, found.qemu);
    let worker = Worker::start(driver::of(sessions, guest, found.mode)?).map_err(failed)?;
    let session_loop = SessionLoop::new(shared.clone(), worker, sessions.clone(), record);
    shared.dialler.identity.end_with_peer(shared.clone());
    shared.attach_path(control, None).map_err(failed)?;
    session_loop.worker.submit("begin", |guest| guest.begin());
    let name = format!("out-{}", shared.request.guest);
    std::thread::Builder::new().name(name).spawn(move || session_loop.run(&receiver)).map_err(failed)?;
    Ok(())
}

pub(super) fn check_request(request: &MigrateRequest) -> Result<(), Fault> {
    let wrong = |detail: String| Fault::new(Code::NoLink, Step::Resolve, Side::Source, detail);
    parse_networks(&request.links.join(",")).map_err(|error| wrong(error.to_string()))?;
    if request.dry_run && request.copies_disks() {
        let detail = "a dry run copies no disk (--dry-run with --copy-storage or --copy-disks): images at the destination would be made, and those that are there overwritten";
        return Err(Fault::new(Code::NotMigratable, Step::Resolve, Side::Source, detail));
    }
    let share = request.storage_share_percent;
    if share.is_some_and(|percent| !(1..100).contains(&percent) || !request.copies_disks()) {
        let detail = "disks have a share of the links (--storage-share, 1 to 99 percent) where they are copied along (--copy-storage, --copy-disks)";
        return Err(Fault::new(Code::NotMigratable, Step::Resolve, Side::Source, detail));
    }
    Ok(())
}

/// Reads the guest and chooses its mode.
pub(super) fn resolve(sessions: &Sessions, request: &MigrateRequest) -> Result<Found, Fault> {
    match &request.domain {
        Some(domain) => resolve_domain(sessions, request, domain),
        None => resolve_own(sessions, request),
    }
}

/// A guest of this host's registry: in mode direct or streams.
fn resolve_own(sessions: &Sessions, request: &MigrateRequest) -> Result<Found, Fault> {
    let deadline = Instant::now() + QMP_WAIT;
    let (record, mut qmp) = connect(sessions, &request.guest, deadline)?;
    // When a migration is rolled back, QEMU opens its disks again.
    sessions.registry.renew_files(&record.name).map_err(|error| here(Code::ResourceMissing, &error))?;
    let mut description = describe(&mut qmp, &record, deadline)?;
    description.name.clone_from(&record.name);
    let changes = disks::at_start(&mut qmp, &mut description, deadline)?.join("; ");
    if !changes.is_empty() {
        tracing::info!(guest = record.name, changes, "the destination gets the images in use");
    }
    let choice = mode::choose(request, &description, &kernel::judge(&description))?;
    let marks = storage::read(request, &mut qmp, &mut description, deadline)?;
    mode::check_images(&description)?;
    let mut qemu = SourceQemu::new(qmp, deadline).map_err(|error| match error {
        MigrateError::Snapshot(_) => here(Code::NotMigratable, &error),
        error => here(Code::HypervisorFailed, &error),
    })?;
    check_devices(&mut qemu, &description, deadline)?;
    let (mode, mode_reason) = match choice {
        RamChoice::Direct => (ModeParts::Direct { ram: GuestRam::find(&description)?, marks }, None),
        RamChoice::Streams { reason } => (ModeParts::Streams { marks }, reason),
    };
    Ok(Found { record, description, qemu, mode, mode_reason })
}

/// A device may have come or gone since the guest was described. From now on [`SourceQemu::check_devices`] notices it.
pub(super) fn check_devices(
    qemu: &mut SourceQemu,
    guest: &GuestDescription,
    deadline: Instant,
) -> Result<(), Fault> {
    let changes = read::hot_plugged(qemu.qmp(), &guest.arguments, deadline);
    let changes = changes.map_err(|error| here(Code::HypervisorFailed, &error))?;
    match changes.is_empty() {
        true => Ok(()),
        false => Err(here(Code::NotMigratable, &IncomingError::HotPlugged(changes.join(", ")))),
    }
}

/// A domain of libvirt, in mode Handover. Its storage and the settings of its QEMU are libvirt's.
fn resolve_domain(
    sessions: &Sessions,
    request: &MigrateRequest,
    domain: &DomainMigration,
) -> Result<Found, Fault> {
    let deadline = Instant::now() + QMP_WAIT;
    let (record, mut qmp) = domain::open(sessions, &request.guest, deadline)?;
    let mut description = describe(&mut qmp, &record, deadline)?;
    description.domain = true;
    domain::check(request, domain, &description)?;
    mode::check_direct(request, &kernel::judge(&description))?;
    mode::check_images(&description)?;
    let qemu = SourceQemu::recovered(qmp, true, None, false);
    let domain = OutgoingDomain::new(domain, sessions.gates.clone());
    let mode = ModeParts::Handover { ram: GuestRam::find(&description)?, domain };
    Ok(Found { record, description, qemu, mode, mode_reason: None })
}

fn here(code: Code, error: &(dyn std::error::Error + 'static)) -> Fault {
    fault(code, Step::Resolve, Side::Source, error)
}

fn describe(qmp: &mut Qmp, record: &GuestRecord, deadline: Instant) -> Result<GuestDescription, Fault> {
    let described = read::read(qmp, record.process.pid, deadline);
    described.map_err(|error| here(Code::HypervisorFailed, &error))
}

/// The monitor of a guest of this host's registry.
fn connect(sessions: &Sessions, name: &str, deadline: Instant) -> Result<(GuestRecord, Qmp), Fault> {
    let record = sessions.registry.get(name).map_err(|error| match error {
        // No guest can have such a name.
        RegistryError::Unknown(_) | RegistryError::Name(_) => here(Code::GuestUnknown, &error),
        // It may run: a drain must not take it for gone.
        _ => here(Code::Internal, &error),
    })?;
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
    Ok(match &found.mode {
        ModeParts::Direct { ram, .. } => Mode::Direct { regions: ram.regions()? },
        ModeParts::Streams { .. } => {
            Mode::Streams { channels: mode::stream_channels(port_speeds(request), cpus()) }
        }
        ModeParts::Handover { ram, .. } => Mode::Handover { regions: ram.regions()? },
    })
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

#[cfg(test)]
#[test]
fn defaults_of_the_api_are_those_of_the_core() {
    let request = MigrateRequest::new("g", "beta");
    let machine = source::Config::new("g", String::new(), Mode::Streams { channels: 0 });
    assert_eq!(Duration::from_millis(request.blackout_budget_ms().into()), machine.limits.max_blackout);
    assert_eq!(Duration::from_secs(request.link_timeout_s.into()), machine.link_timeout);
    assert_eq!(request.throttle, machine.limits.throttle);
    // The only default that the command leaves to the agent.
    let guide = include_str!("../../../../docs/user-guide.md");
    let row = guide.lines().find(|line| line.starts_with("| `--max-rounds "));
    let rounds = format!("| {} |", machine.limits.rounds_max);
    assert!(row.is_some_and(|row| row.ends_with(&rounds)), "{row:?} and not {rounds}");
}
