//! Guests of this host, for the API: started, adopted, listed, shown, stopped.

mod departed;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linerate_api as api;
use linerate_api::{
    AdoptGuest, ErrorBody, GuestDetail, GuestRunState, GuestSummary, StartGuest, StopGuest, code,
};
use linerate_guest::access::{Wanted, needs};
use linerate_guest::description::{GuestDescription, check_name};
use linerate_guest::discover;
use linerate_guest::graph::named_files;
use linerate_guest::options::Options;
use linerate_guest::process::{self, GuestError, Launch, StopMethod};
use linerate_guest::qemu_user::QemuUser;
use linerate_guest::read::{self, ReadError};
use linerate_guest::registry::{GuestRecord, Origin, RegistryError, Unreadable, make_qemu_folder};
use linerate_guest::run_state::RunState;
use linerate_guest::spec::{GuestSpec, SpecFolders, SpecGuest};
use linerate_guest::stale;
use linerate_guest::verdict::{Reason, judge_images, judge_streams, needs};
use linerate_memory::{Mapping, RamBlock};

use crate::agent::{Agent, OpenSession};
use crate::disks;
use crate::faults::chain;
use crate::kernel;
use crate::name_claims::NameClaim;

const QMP_WAIT: Duration = Duration::from_secs(10);
/// After so long it is looked whether something else has the guest.
const QMP_TRY: Duration = Duration::from_secs(2);
const START_WAIT: Duration = Duration::from_secs(60);
/// A guest that was asked to shut down is waited for so long.
const STOP_WAIT: Duration = Duration::from_secs(30);

type Answer<T> = Result<T, ErrorBody>;

fn failed(code: &str, error: &(dyn std::error::Error + 'static)) -> ErrorBody {
    ErrorBody::new(code, chain(error))
}

fn registry_error(error: &RegistryError) -> ErrorBody {
    let code = match error {
        RegistryError::Unknown(_) => "guest_unknown",
        RegistryError::Exists(_) => "guest_exists",
        RegistryError::Name(_) => code::BAD_REQUEST,
        _ => "internal",
    };
    failed(code, error)
}

/// Nothing of the agent's is a guest's disk or kernel, nor named by its image, which a QEMU may have written. The
/// serial port's file is no image, and may be a log in `run_dir`.
fn refuse_own(agent: &Agent, spec: &GuestSpec) -> Answer<()> {
    let opened = needs::of_spec(spec, &[]);
    let opened = opened.iter().filter(|wanted| Some(&wanted.path) != spec.serial.as_ref());
    let checked = agent.config.own_folders().check(opened.map(|wanted| wanted.path.as_path()));
    checked.map_err(|error| failed("resource_missing", &error))
}

/// An image that a guest left when its disks were copied elsewhere is older than the guest. Those of further arguments
/// are copied too.
fn refuse_stale(spec: &GuestSpec) -> Answer<()> {
    let further =
        named_files(&spec.extra_args).into_iter().map(PathBuf::from).filter(|path| path.is_absolute());
    let mut all = spec.disk.iter().map(|disk| disk.path.clone()).chain(further);
    let stale = all.find_map(|path| stale::of(&path).map(|left| (path, left)));
    let Some((path, left)) = stale else { return Ok(()) };
    let path = path.display();
    let message = format!(
        "{path} is stale: the guest {} left it here when its disks were copied to {}. Start the guest there, or move it back",
        left.guest, left.to
    );
    let hint = format!("if it is this old disk that you want: `setfattr -x {} {path}`", stale::ATTRIBUTE);
    Err(ErrorBody { hint, ..ErrorBody::new("resource_missing", message) })
}

fn busy(name: &str, why: &str, open: OpenSession) -> ErrorBody {
    let error = ErrorBody::new("guest_busy", format!("{name}: {why}: {open}"));
    if !open.in_doubt {
        return error.with_hint("try again when it has ended");
    }
    let session = open.session;
    let either = format!("`linerate resolve {session} --resume-here` or `--give-up`");
    error.with_hint(format!("start the other host again; or check where the guest is and decide: {either}"))
}

/// Nothing else does anything with a guest of this name as long as that is held.
fn claim(agent: &Agent, name: &str) -> Answer<NameClaim> {
    agent.names.claim(name).ok_or_else(|| claimed(name))
}

fn claimed(name: &str) -> ErrorBody {
    let text = format!("{name}: a guest of this name is just being started, stopped, taken over or moved");
    let hint = "try again in some seconds, or in 30 if it is being stopped; `linerate vm list` shows it";
    ErrorBody::new("guest_busy", text).with_hint(hint)
}

/// A guest that a migration has may run on the other host, with the same disks, though its QEMU here has ended.
fn refuse_during_migration(agent: &Agent, name: &str) -> Answer<()> {
    let Some(session) = agent.session_in_progress(name) else { return Ok(()) };
    let text = format!("{name}: migration {session} of a guest of this name is not over");
    Err(ErrorBody::new("guest_busy", text)
        .with_hint("try again when it has ended: `linerate migration list`; or cancel it"))
}

/// All guests of this host.
pub fn list(agent: &Agent) -> Answer<Vec<GuestSummary>> {
    agent.free_ram_of_dead();
    let (records, unreadable) = agent.registry.list_all().map_err(|error| registry_error(&error))?;
    let readable = records.iter().map(|record| summary(agent, record).0);
    let mut all: Vec<GuestSummary> = readable.chain(unreadable.iter().map(unknown)).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

pub fn show(agent: &Agent, name: &str) -> Answer<GuestDetail> {
    let record = agent.registry.get(name).map_err(|error| registry_error(&error))?;
    let (summary, description) = summary(agent, &record);
    let Some(description) = description else {
        return Ok(GuestDetail {
            summary,
            disks: Vec::new(),
            nics: Vec::new(),
            ram_blocks: Vec::new(),
            needs: Vec::new(),
            description: serde_json::Value::Null,
        });
    };
    Ok(detail(&record, summary, &description))
}

/// What is known of a guest. A guest that is being migrated is not asked: its QMP socket is in use.
pub(crate) fn summary(agent: &Agent, record: &GuestRecord) -> (GuestSummary, Option<GuestDescription>) {
    let end = Instant::now() + QMP_WAIT;
    loop {
        if let Some(engaged) = engaged(agent, record) {
            return (engaged, None);
        }
        let until = end.min(Instant::now() + QMP_TRY);
        match read_now(record, until) {
            Ok((description, disks)) => return (described(record, &description, disks), Some(description)),
            // A migration that has just begun may have its QMP socket.
            Err(_) if (until..end).contains(&Instant::now()) => {}
            Err(error) => {
                let paused = || bare(record, GuestRunState::Paused, chain(&error));
                return (engaged(agent, record).unwrap_or_else(paused), None);
            }
        }
    }
}

/// A guest that may run, of which no more can be said.
fn unknown(guest: &Unreadable) -> GuestSummary {
    bare_of(guest.name.clone(), None, GuestRunState::Unknown, chain(&guest.why))
}

fn bare(record: &GuestRecord, state: GuestRunState, reason: String) -> GuestSummary {
    let pid = u32::try_from(record.process.pid).ok();
    GuestSummary { session: record.session.clone(), ..bare_of(record.name.clone(), pid, state, reason) }
}

fn bare_of(name: String, pid: Option<u32>, state: GuestRunState, reason: String) -> GuestSummary {
    GuestSummary {
        name,
        uuid: None,
        state,
        memory_bytes: 0,
        vcpus: 0,
        qemu_version: String::new(),
        pid,
        session: None,
        direct: api::Verdict { possible: false, reasons: vec![reason.clone()] },
        stream: api::Verdict { possible: false, reasons: vec![reason] },
    }
}

/// A guest that cannot be asked now, because something else has it, or because it has ended.
fn engaged(agent: &Agent, record: &GuestRecord) -> Option<GuestSummary> {
    let bare = |state, reason: String| Some(bare(record, state, reason));
    if let Some(open) = agent.open_session_of(record) {
        let state = if open.in_doubt { GuestRunState::InDoubt } else { GuestRunState::Recovering };
        return bare(state, open.to_string());
    }
    if !record.is_alive() {
        return bare(GuestRunState::Stopped, "its QEMU has ended".into());
    }
    if agent.outgoing().iter().any(|one| one.request.guest == record.name && !one.is_over()) {
        return bare(GuestRunState::Migrating, "it is being migrated".into());
    }
    let incoming = agent.incoming_live().into_iter().find(|one| one.guest() == record.name)?;
    if incoming.outcome() != linerate_core::Outcome::Committed {
        return bare(GuestRunState::Incoming, "it is just arriving".into());
    }
    None
}

/// Why a guest is not described.
#[derive(Debug, thiserror::Error)]
enum DescribeError {
    #[error(transparent)]
    Connect(#[from] GuestError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The guest as a migration would find it, and its warnings about the disks.
fn read_now(
    record: &GuestRecord,
    deadline: Instant,
) -> Result<(GuestDescription, Option<Reason>), DescribeError> {
    let mut qmp = process::connect(record, deadline)?;
    let mut description = read::read(&mut qmp, record.process.pid, deadline)?;
    description.name.clone_from(&record.name);
    let disks = disks::at_start(&mut qmp, &mut description, deadline).err();
    Ok((description, disks.map(|fault| Reason::Disks { why: fault.detail })))
}

/// Both verdicts are those of a migration that starts now.
fn verdicts(guest: &GuestDescription, disks: Option<Reason>) -> (api::Verdict, api::Verdict) {
    let common: Vec<Reason> = disks.into_iter().chain(judge_images(guest)).collect();
    let verdict = |reasons: Vec<Reason>| {
        let reasons: Vec<String> = reasons.iter().chain(&common).map(ToString::to_string).collect();
        api::Verdict { possible: reasons.is_empty(), reasons }
    };
    (verdict(kernel::judge(guest).reasons), verdict(judge_streams(guest)))
}

fn described(record: &GuestRecord, description: &GuestDescription, disks: Option<Reason>) -> GuestSummary {
    let (direct, stream) = verdicts(description, disks);
    let state = match description.run_state {
        RunState::Running => GuestRunState::Running,
        RunState::InMigrate => GuestRunState::Incoming,
        _ => GuestRunState::Paused,
    };
    GuestSummary {
        name: record.name.clone(),
        uuid: description.uuid.clone(),
        state,
        memory_bytes: description.memory_bytes,
        vcpus: description.vcpus,
        qemu_version: description.qemu.to_string(),
        pid: u32::try_from(record.process.pid).ok(),
        session: record.session.clone(),
        direct,
        stream,
    }
}

fn detail(record: &GuestRecord, summary: GuestSummary, description: &GuestDescription) -> GuestDetail {
    let disk = |disk: &linerate_guest::description::Disk| api::Disk {
        device: disk.id.clone(),
        path: disk.path.clone(),
        format: disk.format.clone(),
        direct_io: disk.direct,
        read_only: disk.read_only,
    };
    let nic = |nic: &linerate_guest::description::Nic| api::Nic {
        device: nic.model.clone(),
        mac: nic.mac.clone(),
        backend: nic.tap.clone().or(nic.kind.clone()).unwrap_or_default(),
    };
    let block = |block: &linerate_guest::description::RamBlock| api::RamBlock {
        name: block.id.clone(),
        size_bytes: block.size,
        populated_bytes: populated(record.process.pid, block),
        path: block.path.clone(),
        shared: block.share,
    };
    GuestDetail {
        summary,
        disks: description.disks.iter().map(disk).collect(),
        nics: description.nics.iter().map(nic).collect(),
        ram_blocks: description.ram.iter().map(block).collect(),
        needs: needs(description),
        description: serde_json::to_value(without_secrets(description)).unwrap_or_default(),
    }
}

/// Whoever may look at guests need not know the keys that their QEMUs were started with. They may come from files of
/// options that only root can read.
fn without_secrets(description: &GuestDescription) -> GuestDescription {
    let mut shown = description.clone();
    for argument in &mut shown.arguments {
        let Ok(mut options) = Options::parse(argument, Some("qom-type")) else { continue };
        if options.get("qom-type") == Some("secret") && options.get("data").is_some() {
            options.set("data", "hidden");
            *argument = options.to_string();
        }
    }
    shown
}

fn populated(pid: i32, block: &linerate_guest::description::RamBlock) -> Option<u64> {
    let path = PathBuf::from(block.path.as_ref()?);
    let found = RamBlock::find(pid, &block.id, &path).ok()?;
    Mapping::new(&found).ok()?.resident_bytes().ok()
}

/// The specification that a request has, or names.
fn requested(request: &StartGuest) -> Answer<GuestSpec> {
    let (text, base) = match (&request.spec_toml, &request.spec_path) {
        (Some(text), path) => {
            (text.clone(), path.as_ref().and_then(|path| Path::new(path).parent()).map(Path::to_owned))
        }
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path)
                .map_err(|error| ErrorBody::new(code::BAD_REQUEST, format!("cannot read {path}: {error}")))?;
            (text, Path::new(path).parent().map(Path::to_owned))
        }
        (None, None) => {
            return Err(ErrorBody::new(code::BAD_REQUEST, "neither spec_toml nor spec_path is given"));
        }
    };
    let base = base.unwrap_or_else(|| PathBuf::from("/"));
    GuestSpec::parse(&text, &base).map_err(|error| failed(code::BAD_REQUEST, &error))
}

/// Starts a guest by a specification.
pub fn start(agent: &Agent, request: &StartGuest) -> Answer<GuestSummary> {
    let spec = requested(request)?;
    refuse_own(agent, &spec)?;
    let wanted = spec.qemu.clone();
    let qemu = agent.config.qemu.iter().find(|qemu| wanted.as_ref().is_none_or(|name| *name == qemu.name));
    let qemu = qemu.ok_or_else(|| {
        let known: Vec<&str> = agent.config.qemu.iter().map(|qemu| qemu.name.as_str()).collect();
        ErrorBody::new(code::BAD_REQUEST, format!("no QEMU of that name is configured; there are {known:?}"))
    })?;
    let ram_dir = ram_dir(agent, &spec)?;
    let user = agent.config.qemu_user().map_err(|error| failed("resource_missing", &error))?;
    let _claim = claim(agent, &spec.name)?;
    if let Some(open) = agent.open_session_of_name(&spec.name) {
        return Err(busy(&spec.name, "a guest of this name may run, or be resumed, on either host", open));
    }
    refuse_during_migration(agent, &spec.name)?;
    refuse_stale(&spec)?;
    let departed = departed::refuse(agent, &spec, request.runs_nowhere_else)?;
    let folder = agent.registry.reserve(&spec.name).map_err(|error| registry_error(&error))?;
    let program = qemu.program();
    let made = make_qemu_folder(&folder, user.as_ref()).map_err(|error| registry_error(&error));
    let opened = made.and_then(|own| {
        let places = SpecFolders { folder: own.clone(), ram_dir };
        let guest = spec.launch(&program, &places);
        user.as_ref().map_or(Ok(()), |user| let_in(agent, user, &spec, &guest, own)).map(|()| guest)
    });
    let guest = match opened {
        Ok(guest) => guest,
        Err(error) => {
            let _ = agent.registry.give_up(&spec.name);
            return Err(error);
        }
    };
    let launch = Launch {
        name: &spec.name,
        qemu: &program,
        arguments: &guest.arguments,
        folder: &folder,
        qmp: &guest.qmp,
        pid_file: &guest.pid_file,
        ram_files: vec![guest.ram_file.clone()],
        ram_is_made: false,
        user: user.as_ref(),
        origin: Origin::Started,
        session: None,
    };
    let (record, qmp) = process::start(&agent.registry, &launch, Instant::now() + START_WAIT)
        .map_err(|error| failed("hypervisor_failed", &error))?;
    drop(qmp);
    agent.registry.own_files(&record.name);
    tracing::info!(guest = record.name, pid = record.process.pid, "started");
    let (now, description) = summary(agent, &record);
    must_run(&spec, &now, description.as_ref().map(|guest| &guest.run_state), &folder)?;
    if let Some(session) = departed {
        agent.journal.note_started_again(session);
    }
    Ok(now)
}

/// A guest that was started runs, unless its specification has it wait. Of one that does not, everything is left for a
/// person who looks for the cause.
fn must_run(spec: &GuestSpec, now: &GuestSummary, state: Option<&RunState>, folder: &Path) -> Answer<()> {
    let waits = spec.extra_args.iter().any(|one| ["-S", "--S"].contains(&one.as_str()));
    let runs = match now.state {
        GuestRunState::Stopped | GuestRunState::Unknown => false,
        GuestRunState::Paused => {
            state.is_some_and(|state| state.is_live() || (waits && *state == RunState::PreLaunch))
        }
        // Also if something else has it already.
        _ => true,
    };
    if runs {
        return Ok(());
    }
    let name = &spec.name;
    let why = match state {
        Some(state) => format!("its QEMU reports state {state}"),
        None => now.direct.reasons.join("; "),
    };
    let log = process::start_log(folder);
    if state.is_none() && now.state == GuestRunState::Paused {
        let text =
            format!("{name} was started, and it is not known whether it runs: {why}; what QEMU wrote: {log}");
        return Err(
            ErrorBody::new("hypervisor_failed", text).with_hint(format!("see `linerate vm show {name}`"))
        );
    }
    let text = format!("{name} was started and does not run: {why}; what QEMU wrote: {log}");
    Err(ErrorBody::new("hypervisor_failed", text).with_hint(format!(
        "see `linerate vm show {name}`; then remove it with `linerate vm stop {name} --force`"
    )))
}

/// Lets QEMU's user in to what the guest has, with the file of its serial port.
fn let_in(agent: &Agent, user: &QemuUser, spec: &GuestSpec, guest: &SpecGuest, own: PathBuf) -> Answer<()> {
    if let Some(problem) = needs::spec_problem(user, spec) {
        return Err(ErrorBody::new("resource_missing", problem));
    }
    if let Some(serial) = &spec.serial {
        let made = std::fs::OpenOptions::new().append(true).create(true).open(serial);
        made.map_err(|error| {
            ErrorBody::new("resource_missing", format!("cannot write {}: {error}", serial.display()))
        })?;
    }
    let Some(access) = agent.registry.access() else { return Ok(()) };
    let mut wanted = needs::of_spec(spec, &guest.arguments);
    wanted.push(Wanted::new(own, true));
    let roots = &agent.config.file_roots;
    let granted = access
        .passes(user, guest.ram_file.parent())
        .and_then(|()| access.grant(&spec.name, user, &wanted, roots));
    granted.map_err(|error| failed("resource_missing", &error))
}

/// Where the RAM of a guest goes that is started here.
fn ram_dir(agent: &Agent, spec: &GuestSpec) -> Answer<PathBuf> {
    if !spec.huge_pages {
        return Ok(agent.config.ram_dir.clone());
    }
    agent.config.huge_ram_dir.clone().ok_or_else(|| {
        ErrorBody::new(
            code::BAD_REQUEST,
            "huge_pages is asked for, and this host's agent has no huge_ram_dir",
        )
        .with_hint("mount a hugetlbfs and name it in the agent's configuration (docs/operations.md)")
    })
}

/// One name for each process, and one process for each name: with two names, two migrations could have one guest.
fn refuse_known(agent: &Agent, name: &str, pid: i32) -> Answer<()> {
    let (records, unreadable) = agent.registry.list_all().map_err(|error| registry_error(&error))?;
    // Its record would be replaced, and it may run.
    if let Some(damaged) = unreadable.iter().find(|guest| guest.name == name) {
        return Err(registry_error(&damaged.why));
    }
    let alive = records.into_iter().filter(GuestRecord::is_alive);
    let Some(known) = alive.into_iter().find(|known| known.name == name || known.process.pid == pid) else {
        return Ok(());
    };
    if known.process.pid != pid {
        return Err(registry_error(&RegistryError::Exists(known.name))
            .with_hint("give this one another name (`--name`)"));
    }
    let text = format!("process {pid} is the guest {} already", known.name);
    Err(ErrorBody::new("guest_exists", text).with_hint("`linerate vm list` shows it"))
}

/// Takes a QEMU into the list that another program started.
pub fn adopt(agent: &Agent, request: &AdoptGuest) -> Answer<GuestSummary> {
    let deadline = Instant::now() + QMP_WAIT;
    let found = match (request.pid, &request.qmp) {
        (_, Some(socket)) => discover::by_socket(Path::new(socket), deadline),
        (Some(pid), None) => discover::by_pid(i32::try_from(pid).unwrap_or(-1), deadline),
        (None, None) => return Err(ErrorBody::new(code::BAD_REQUEST, "neither pid nor qmp is given")),
    };
    let mut found = found.map_err(|error| failed("hypervisor_failed", &error))?;
    if let (Some(pid), Some(socket)) = (request.pid, &request.qmp)
        && u32::try_from(found.pid) != Ok(pid)
    {
        let whose = format!("{socket} is the QMP socket of process {}, not of {pid}", found.pid);
        return Err(ErrorBody::new(code::BAD_REQUEST, whose).with_hint("name only one of them"));
    }
    let description = read::read(&mut found.qmp, found.pid, deadline)
        .map_err(|error| failed("hypervisor_failed", &error))?;
    let name = request.name.clone().unwrap_or_else(|| description.name.clone());
    check_name(&name)
        .map_err(|error| failed(code::BAD_REQUEST, &error).with_hint("give it another name (`--name`)"))?;
    let _claim = claim(agent, &name)?;
    refuse_during_migration(agent, &name)?;
    refuse_known(agent, &name, found.pid)?;
    let record = GuestRecord::new(&name, Origin::Adopted, found.pid, found.socket.clone(), Vec::new())
        .map_err(|error| registry_error(&error))?;
    drop(found);
    agent.registry.put(&record).map_err(|error| registry_error(&error))?;
    tracing::info!(guest = name, pid = record.process.pid, "adopted");
    Ok(summary(agent, &record).0)
}

/// Asks a guest to shut down, or ends it by force. One that was asked and does not is not killed. Its name is claimed
/// until then: a guest that a migration took away meanwhile would be reported as stopped, and runs at the other host.
pub fn stop(agent: &Agent, name: &str, request: StopGuest) -> Answer<GuestSummary> {
    let wait = if request.force { QMP_WAIT } else { STOP_WAIT };
    stop_within(agent, name, request, wait)
}

fn stop_within(agent: &Agent, name: &str, request: StopGuest, wait: Duration) -> Answer<GuestSummary> {
    let _claim = agent.names.claim_to_stop(name, request.force).ok_or_else(|| claimed(name))?;
    let record = agent.registry.get(name).map_err(|error| registry_error(&error))?;
    if let Some(open) = agent.open_session_of(&record) {
        return Err(busy(name, "it may be the only copy of the guest", open));
    }
    let (mut before, _) = summary(agent, &record);
    if matches!(before.state, GuestRunState::Migrating | GuestRunState::Incoming) {
        return Err(ErrorBody::new("guest_busy", format!("{name} is being migrated"))
            .with_hint("cancel the migration first (linerate migration cancel)"));
    }
    refuse_during_migration(agent, name)?;
    let how = if request.force { StopMethod::Quit } else { StopMethod::PowerDown };
    process::stop(&agent.registry, &record, None, how, Instant::now() + wait).map_err(|error| {
        let answer = failed("hypervisor_failed", &error);
        match error {
            GuestError::NotAsked(_) | GuestError::StillRuns => answer.with_hint(format!(
                "shut it down from inside, or try again; `linerate vm stop {name} --force` cuts its power"
            )),
            _ => answer,
        }
    })?;
    before.state = GuestRunState::Stopped;
    Ok(before)
}
