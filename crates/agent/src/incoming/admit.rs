//! Step 3: may the guest run here? Its description was received from another host. So the incoming QEMU's command line
//! is made from this host's configuration and an allow-list (`linerate-guest`). The host is checked for all that the
//! guest needs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use linerate_core::{Code, Fault, Mode, RegionInfo, Side, Step};
use linerate_guest::access::{Wanted, needs};
use linerate_guest::description::GuestDescription;
use linerate_guest::host::{
    HostFacts, Problem, QemuFacts, check_host, folder_available, huge_available, memory_available,
};
use linerate_guest::images::{self, Prepared};
use linerate_guest::incoming_qemu::{IncomingOptions, IncomingQemu, QemuBinary, attempt};
use linerate_guest::leftovers;
use linerate_guest::qemu_user::QemuUser;
use linerate_guest::registry::{QEMU_FOLDER, Registry, RegistryError, make_qemu_folder};
use linerate_guest::shared::Proved;
use linerate_memory::Mapping;

use super::context::Context;
use super::{Sessions, granted, storage};
use crate::faults::fault;
use crate::name_claims::NameClaim;
use crate::security::PeerName;

const QEMU_ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// An orphaned session ends its guest and frees its place within this.
const ROOM_WAIT: Duration = Duration::from_secs(30);
/// Between two checks whether it has.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What is reserved for an admitted guest.
pub(super) struct Admitted {
    /// Until its QEMU has a record, which has the name from then on.
    pub claim: Option<NameClaim>,
    pub qemu: QemuBinary,
    /// The user that it is to run as; root if none.
    pub user: Option<QemuUser>,
    pub incoming_qemu: IncomingQemu,
    pub folder: PathBuf,
    /// The guest at the source.
    pub description: GuestDescription,
    /// Images that its disks are copied into, and the claim to them.
    pub images: Prepared,
    /// Its other disks, which both hosts share.
    pub proved: Vec<Proved>,
}

/// What may be started here, before it is reserved.
struct Checked {
    incoming_qemu: IncomingQemu,
    images: Prepared,
    proved: Vec<Proved>,
    /// Folders whose files its QEMU may open: the agent's, narrowed by what its host is granted.
    roots: Vec<PathBuf>,
}

fn refuse(code: Code, detail: impl Into<String>) -> Fault {
    Fault::new(code, Step::Admit, Side::Destination, detail)
}

fn refuse_error(code: Code, error: &(dyn std::error::Error + 'static)) -> Fault {
    fault(code, Step::Admit, Side::Destination, error)
}

/// Another session may hold this guest's place. It is given up if its source does not answer: it was not committed, and
/// the same host offers the guest again. One with a source that answers is not. No host ends another's session so.
pub(super) fn make_room(context: &Context, guest: &str) -> Result<(), Fault> {
    let (sessions, session) = (&context.sessions, context.shared.session);
    let begun = Instant::now();
    let end = begun + ROOM_WAIT;
    while sessions.is_going(guest) && Instant::now() < end {
        std::thread::sleep(POLL_INTERVAL);
    }
    while let Some(other) = sessions.incoming_session_of(guest, session) {
        let orphaned = other.is_orphaned() && other.is_of(context.shared.opener());
        if orphaned {
            tracing::info!(session = %other.session, guest, "its source does not answer and the guest is offered again: giving it up");
            other.cancel();
        }
        // One that is complete waits for its source's decision, which may be in flight.
        let patience = if orphaned || other.is_held() { end } else { begun + other.orphaned_within() };
        if Instant::now() >= patience {
            let detail = format!("migration {} is moving {guest} here already", other.session);
            return Err(refuse(Code::GuestBusy, detail));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Checks and reserves, and makes RAM for these regions before the hypervisor that will use it is started. On `Err`
/// nothing of it is left here.
pub(super) fn admit(
    sessions: &Sessions,
    opener: &PeerName,
    description: GuestDescription,
    regions: &[RegionInfo],
) -> Result<(Admitted, Vec<Mapping>), Fault> {
    let user = sessions.config.qemu_user().map_err(|error| refuse_error(Code::ResourceMissing, &error))?;
    let (qemu, facts) = choose_qemu(sessions, &description)?;
    let (claim, folder) = reserve(sessions, &description.name)?;
    let checked = check(sessions, opener, &description, &qemu, facts, folder.clone());
    let open = checked.and_then(|Checked { incoming_qemu, images, proved, roots }| {
        match let_in(sessions, user.as_ref(), &description, &incoming_qemu, &folder, &roots) {
            Ok(()) => Ok((incoming_qemu, images, proved)),
            Err(fault) => Err(undone(images, fault)),
        }
    });
    let made = open.and_then(|(incoming_qemu, images, proved)| {
        match make_ram(&sessions.registry, &folder, regions, &incoming_qemu) {
            Ok(ram) => Ok((ram, incoming_qemu, images, proved)),
            Err(fault) => Err(undone(images, fault)),
        }
    });
    match made {
        Ok((ram, incoming_qemu, images, proved)) => {
            let claim = Some(claim);
            Ok((Admitted { claim, qemu, user, incoming_qemu, folder, description, images, proved }, ram))
        }
        Err(fault) => {
            let _ = leftovers::remove_reserved(&sessions.registry, &description.name);
            Err(fault)
        }
    }
}

/// QEMU's user is let in to what the guest has, and to a folder of its own for sockets and logs. What it cannot open is
/// found now, and not when the guest is stopped.
fn let_in(
    sessions: &Sessions,
    user: Option<&QemuUser>,
    description: &GuestDescription,
    incoming_qemu: &IncomingQemu,
    folder: &Path,
    roots: &[PathBuf],
) -> Result<(), Fault> {
    if let Some(problem) = user.and_then(|user| needs::network_problem(user, &incoming_qemu.networks)) {
        return Err(refuse(Code::ResourceMissing, problem));
    }
    // Again: a QEMU that was taken over may have written into an image meanwhile.
    refuse_own(sessions, incoming_qemu)?;
    let own = make_qemu_folder(folder, user).map_err(|error| refuse_error(Code::ResourceMissing, &error))?;
    let (Some(user), Some(access)) = (user, sessions.registry.access()) else { return Ok(()) };
    let mut wanted = needs::of_incoming(incoming_qemu, description.accelerator == "kvm");
    wanted.push(Wanted::new(own, true));
    let ram = incoming_qemu.ram_files.iter().filter_map(|file| file.path.parent());
    let granted =
        access.passes(user, ram).and_then(|()| access.grant(&incoming_qemu.name, user, &wanted, roots));
    granted.map_err(|error| refuse_error(Code::ResourceMissing, &error))
}

/// RAM is made here and not by the hypervisor, so that copying need not wait for it.
fn make_ram(
    registry: &Registry,
    folder: &Path,
    regions: &[RegionInfo],
    incoming_qemu: &IncomingQemu,
) -> Result<Vec<Mapping>, Fault> {
    let files: Vec<PathBuf> = incoming_qemu.ram_files.iter().map(|file| file.path.clone()).collect();
    let failed = |error: &(dyn std::error::Error + 'static)| refuse_error(Code::MemoryFailed, error);
    // What is announced is removed if the guest does not come.
    registry.check_ram(&incoming_qemu.name, &files).map_err(|error| failed(&error))?;
    leftovers::announce(folder, &incoming_qemu.pid_file, &files).map_err(|error| failed(&error))?;
    // What a crash left behind must not give the new guest old memory.
    for file in files.iter().filter(|file| file.exists()) {
        std::fs::remove_file(file).map_err(|error| failed(&error))?;
    }
    regions.iter().map(|region| make_region(region, incoming_qemu)).collect()
}

fn make_region(region: &RegionInfo, incoming_qemu: &IncomingQemu) -> Result<Mapping, Fault> {
    let file =
        incoming_qemu.ram_file(&region.name).map_err(|error| refuse_error(Code::NotMigratable, &error))?;
    Mapping::make(&file.path, region.size).map_err(|error| refuse_error(Code::MemoryFailed, &error))
}

/// The description in an offer, which must agree with the rest of it.
pub(super) fn check_offer(json: &str, guest: &str, mode: &Mode) -> Result<GuestDescription, Fault> {
    let description =
        GuestDescription::from_json(json).map_err(|error| refuse_error(Code::ProtocolViolation, &error))?;
    let agrees = match mode {
        Mode::Streams { .. } => !description.domain,
        // The disks would not be copied.
        _ if !description.copied.is_empty() => false,
        Mode::Direct { regions } => !description.domain && has_ram(&description, regions),
        Mode::Handover { regions } => description.domain && has_ram(&description, regions),
    };
    if description.name != guest || !agrees {
        return Err(refuse(Code::ProtocolViolation, "the offer and the guest description in it disagree"));
    }
    Ok(description)
}

/// Whether these are the RAM blocks of the guest, numbered from 0.
fn has_ram(description: &GuestDescription, regions: &[RegionInfo]) -> bool {
    let described = description.regions().map(|block| (block.id.as_str(), block.size));
    let offered = regions.iter().map(|region| (region.name.as_str(), region.size));
    let numbered = regions.iter().enumerate().all(|(index, region)| usize::from(region.id) == index);
    !regions.is_empty() && described.eq(offered) && numbered
}

fn reserve(sessions: &Sessions, guest: &str) -> Result<(NameClaim, PathBuf), Fault> {
    let Some(claim) = sessions.names.claim(guest) else {
        // One that runs already is not waited for.
        let code = match sessions.registry.get(guest) {
            Ok(known) if known.is_alive() => Code::GuestExists,
            _ => Code::GuestBusy,
        };
        let what = if code == Code::GuestExists {
            "has"
        } else {
            "is just starting, stopping, taking over, moving or receiving"
        };
        return Err(refuse(code, format!("this host {what} another guest {guest}")));
    };
    sessions.hand_files_over(guest).map_err(|error| refuse_error(Code::JournalFailed, &error))?;
    let folder = sessions.registry.reserve(guest).map_err(|error| match error {
        RegistryError::Exists(_) => refuse(Code::GuestExists, guest),
        other => refuse_error(Code::ResourceMissing, &other),
    })?;
    Ok((claim, folder))
}

/// The first configured QEMU that is not older than the source's and knows the machine; otherwise the first.
fn choose_qemu(
    sessions: &Sessions,
    description: &GuestDescription,
) -> Result<(QemuBinary, QemuFacts), Fault> {
    let mut best: Option<(QemuBinary, QemuFacts)> = None;
    let mut failed = None;
    for configured in &sessions.config.qemu {
        let qemu = configured.program();
        match sessions.qemu_cache.facts(&qemu, Instant::now() + QEMU_ANSWERS_WITHIN) {
            Ok(facts) => {
                let suits =
                    facts.version >= description.qemu && facts.machines.contains(&description.machine);
                // The version that it runs in now beats a later one: less can differ.
                let same = facts.version == description.qemu && suits;
                if same {
                    return Ok((qemu, facts));
                }
                let better = best
                    .as_ref()
                    .is_none_or(|(_, known)| suits && !known.machines.contains(&description.machine));
                if better {
                    best = Some((qemu, facts));
                }
            }
            Err(error) => failed = Some(refuse_error(Code::ResourceMissing, &error)),
        }
    }
    best.ok_or_else(|| failed.unwrap_or_else(|| refuse(Code::ResourceMissing, "no QEMU is configured")))
}

fn check(
    sessions: &Sessions,
    opener: &PeerName,
    description: &GuestDescription,
    qemu: &QemuBinary,
    facts: QemuFacts,
    folder: PathBuf,
) -> Result<Checked, Fault> {
    let options = IncomingOptions {
        runtime_dir: folder.join(QEMU_FOLDER),
        ram_dir: sessions.config.ram_dir.clone(),
        huge_ram_dir: sessions.config.huge_ram_dir.clone(),
        qemu: qemu.clone(),
        file_roots: sessions.config.file_roots.clone(),
        paths: sessions.config.paths.clone(),
        taps: Default::default(),
        allow_user_network: sessions.config.allow_user_network,
        keep_page_cache: sessions.config.keep_page_cache,
    };
    let (made, refused) = attempt(description, &options);
    if !refused.is_empty() {
        let reasons: Vec<String> = refused.iter().map(ToString::to_string).collect();
        return Err(refuse(Code::NotMigratable, reasons.join("; ")));
    }
    refuse_own(sessions, &made)?;
    let roots = granted::check(&sessions.security, opener, &sessions.config.file_roots, &made)
        .map_err(|error| refuse_error(Code::NotAuthorised, &error))?;
    for note in &made.notes {
        tracing::info!(guest = description.name, note, "the incoming QEMU differs");
    }
    // Before the host is checked: what is missing is made, and is checked with the rest.
    leftovers::announce(&folder, &made.pid_file, &[])
        .map_err(|error| refuse_error(Code::ResourceMissing, &error))?;
    let images = images::prepare(description, &made, &roots, &folder, &sessions.image_claims)
        .map_err(|error| refuse_error(Code::ResourceMissing, &error))?;
    // Their memory only: the other host of a session may use their files.
    sessions.registry.free_ram_of_dead(|_| true);
    let reserve = sessions.config.memory_reserve_mib << 20;
    let host = HostFacts {
        qemu: facts,
        memory_available: memory_available().unwrap_or(u64::MAX).saturating_sub(reserve),
        ram_folder_available: folder_available(&sessions.config.ram_dir),
        huge_available: huge_available(),
        guests: sessions.names_here(),
        kvm: std::fs::File::options().read(true).write(true).open("/dev/kvm").is_ok(),
    };
    let problems = check_host(description, &made, qemu, &roots, &host);
    for problem in problems.iter().filter(|problem| !problem.is_fatal()) {
        tracing::warn!(guest = description.name, %problem, "admitted all the same");
    }
    let fatal: Vec<&Problem> = problems.iter().filter(|problem| problem.is_fatal()).collect();
    let Some(first) = fatal.first() else {
        return match storage::check(description, &made) {
            Ok(proved) => Ok(Checked { incoming_qemu: made, images, proved, roots }),
            Err(fault) => Err(undone(images, fault)),
        };
    };
    let code = match first {
        Problem::MemoryShort { .. } | Problem::RamFolderShort { .. } | Problem::HugePagesShort { .. } => {
            Code::MemoryShort
        }
        Problem::MemoryDiffers { .. } | Problem::MemoryUnknown { .. } => Code::NotMigratable,
        Problem::NameTaken { .. } | Problem::UuidTaken { .. } => Code::GuestExists,
        _ => Code::ResourceMissing,
    };
    let reasons: Vec<String> = fatal.iter().map(ToString::to_string).collect();
    Err(undone(images, refuse(code, reasons.join("; "))))
}

/// What is the agent's own is refused before anything is made, whatever is granted.
fn refuse_own(sessions: &Sessions, incoming_qemu: &IncomingQemu) -> Result<(), Fault> {
    granted::check_own(&sessions.config.own_folders(), incoming_qemu)
        .map_err(|error| refuse_error(Code::ResourceMissing, &error))
}

/// Images that were made go before the claim to them does: another guest must not find one that is about to be removed.
fn undone(images: Prepared, fault: Fault) -> Fault {
    images.discard();
    fault
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use linerate_core::SessionId;
    use linerate_core::journal::SourcePhase;
    use linerate_guest::incoming_qemu::RamFile;
    use linerate_guest::registry::{GuestRecord, Origin};

    use super::*;
    use crate::journal::Record;
    use crate::recovery::tests::{ended, leaves};
    use crate::testing::with_access;

    /// It may run at the other host with the same disk, and be offered from there. As root: only root gives entries.
    #[test]
    fn a_disk_of_a_guest_that_left_is_not_closed_when_the_guest_is_offered_again() {
        let dir = tempfile::tempdir().unwrap();
        let set_mode = |path: &Path, mode: u32| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set_mode(dir.path(), 0o755);
        let agent = with_access(&dir);
        let qemu = ended(&agent, &dir);
        agent.registry.put(&qemu).unwrap();
        let disk = dir.path().join("disk");
        std::fs::write(&disk, "x").unwrap();
        set_mode(&disk, 0o600);
        let user = QemuUser { name: "nobody".into(), uid: 65534, gid: 65534, slice: None };
        let access = agent.registry.access().unwrap();
        access.grant("g", &user, &[Wanted::new(&disk, true)], &[]).unwrap();
        let record = Record::new("g", agent.journal.next_order(), leaves(&qemu, SourcePhase::CommitSent));
        agent.journal.put(SessionId([7; 16]), &record).unwrap();
        let _reserved = reserve(&agent.incoming, "g").unwrap();
        assert!(!agent.registry.has("g"), "its old record stays");
        assert!(user.cannot_open(&[(disk, true)]).unwrap().is_empty(), "the QEMU at the other host has it");
    }

    #[test]
    fn ram_of_a_guest_that_runs_is_neither_removed_nor_announced_for_another() {
        let dir = tempfile::tempdir().unwrap();
        let registry = Registry::open(dir.path()).unwrap();
        let ram = dir.path().join("ram");
        std::fs::write(&ram, "x").unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let record = GuestRecord::new("a", Origin::Started, own, "/q".into(), vec![ram.clone()]).unwrap();
        registry.put(&record).unwrap();
        let incoming_qemu = IncomingQemu {
            name: "b".into(),
            arguments: vec![],
            qmp: "/q".into(),
            pid_file: "/p".into(),
            ram_files: vec![RamFile { object: "ram".into(), path: ram.clone() }],
            files: vec![],
            networks: vec![],
            firmware: vec![],
            user_network: false,
            notes: vec![],
        };
        let folder = registry.reserve("b").unwrap();
        let fault = make_ram(&registry, &folder, &[], &incoming_qemu).unwrap_err();
        assert_eq!(fault.code, Code::MemoryFailed);
        leftovers::remove_reserved(&registry, "b").unwrap();
        assert!(ram.exists());
    }
}
