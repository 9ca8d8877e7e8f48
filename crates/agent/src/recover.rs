//! What the agent does about sessions that it finds in its journal when it starts. The decisions are `linerate-core`'s
//! (`journal`); here they are carried out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_core::SessionId;
use linerate_core::journal::{
    DestinationPhase, DestinationRecovery, SourcePhase, SourceRecovery, recover_destination, recover_source,
};
use linerate_guest::migrate::{DestinationQemu, Settings, SourceQemu};
use linerate_guest::process::{self, StopHow};
use linerate_guest::procfs::ProcessIdentity;
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_guest::remains::clear_unfinished;
use linerate_guest::{domain, images};

use crate::agent::Agent;
use crate::clock::unix_ms;
use crate::faults::chain;
use crate::journal::{JournalError, Record, Role};
use crate::outgoing::withdraw;
use crate::undecided::{Undecided, parse_token};

const QMP_WAIT: Duration = Duration::from_secs(10);
/// A guest whose QEMU does not answer is tried again this often.
const TRIES: u32 = 30;
const RETRY: Duration = Duration::from_secs(1);
/// libvirt's migration fails and lets the domain's QEMU go.
const DOMAIN_WAIT: Duration = Duration::from_secs(30);

/// Looks at every session and does what follows. Done before other agents and clients are listened to, but for what has
/// to wait for the other side.
pub fn recover(agent: &Arc<Agent>) -> Result<(), JournalError> {
    match clear_unfinished(&agent.registry) {
        Ok(cleared) if cleared.is_empty() => {}
        Ok(cleared) => {
            tracing::warn!(guests = ?cleared, "were being started when the agent ended; nothing is left of them")
        }
        Err(error) => {
            tracing::error!(error = chain(&error), "a start that was not finished could not be cleared away")
        }
    }
    let sessions = agent.journal.all()?;
    // A guest that came here and has been leaving again since: what it does now is decided by the later session alone.
    let leaves = |guest: &str, since: u64| {
        sessions.iter().any(|(_, later)| {
            let under_way = matches!(
                later.role,
                Role::Source { phase: SourcePhase::Started | SourcePhase::CommitSent, .. }
            );
            later.guest == guest && under_way && later.changed_unix_ms >= since
        })
    };
    for (session, record) in sessions.iter().cloned() {
        match &record.role {
            Role::Source { phase, ran, peers, token, settings } => match recover_source(*phase) {
                SourceRecovery::RollBack => {
                    tracing::warn!(%session, guest = record.guest, "the agent ended during this migration; rolling back");
                    // In the background: a destination that is away must not hold this start.
                    withdraw(peers.clone(), session, parse_token(token));
                    let before = Before { ran: *ran, settings: settings.clone() };
                    take_back(agent, &record.guest, &before);
                    put(agent, session, &record, Some(SourcePhase::RolledBack), None);
                }
                SourceRecovery::Ask => {
                    if let Err(error) = Undecided::start(agent, session, record) {
                        tracing::error!(%session, %error, "no thread to ask about an undecided session");
                    }
                }
                SourceRecovery::Nothing => {}
            },
            Role::Destination { phase, process, settings } => match recover_destination(*phase) {
                DestinationRecovery::Discard => {
                    tracing::warn!(%session, guest = record.guest, "the agent ended before this guest was committed; discarding it");
                    if discard(agent, &record.guest, *process) {
                        put(agent, session, &record, None, Some(DestinationPhase::Aborted));
                    }
                }
                DestinationRecovery::Keep if leaves(&record.guest, record.changed_unix_ms) => {}
                DestinationRecovery::Keep => keep(agent, &record.guest, settings.as_ref()),
                DestinationRecovery::Nothing => {}
            },
            Role::Domain { over: true, .. } => {}
            Role::Domain { qemu, over: false } => {
                tracing::warn!(%session, guest = record.guest, "the agent ended while this domain was moved; putting its QEMU's setting back");
                match domain::put_back(qemu, Instant::now() + DOMAIN_WAIT) {
                    Ok(()) => {
                        let role = Role::Domain { qemu: qemu.clone(), over: true };
                        write(agent, session, &Record { role, ..record.clone() });
                    }
                    Err(error) => {
                        tracing::error!(
                            guest = record.guest,
                            error = chain(&error),
                            "x-ignore-shared may still be on: do not save this domain; the next start of the agent tries again"
                        );
                    }
                }
            }
        }
    }
    let pruned = agent.journal.prune()?;
    tracing::debug!(pruned, "old sessions forgotten");
    Ok(())
}

fn put(
    agent: &Agent,
    session: SessionId,
    record: &Record,
    source: Option<SourcePhase>,
    destination: Option<DestinationPhase>,
) {
    let mut record = record.clone();
    match (&mut record.role, source, destination) {
        (Role::Source { phase, .. }, Some(new), _) => *phase = new,
        (Role::Destination { phase, .. }, _, Some(new)) => *phase = new,
        _ => return,
    }
    write(agent, session, &record);
}

fn write(agent: &Agent, session: SessionId, record: &Record) {
    let record = Record { changed_unix_ms: unix_ms(), ..record.clone() };
    if let Err(error) = agent.journal.put(session, &record) {
        tracing::error!(%session, error = chain(&error), "the journal was not written; it will be tried at the next start");
    }
}

/// How a guest was before a migration began.
pub(crate) struct Before {
    pub ran: bool,
    pub settings: Option<Settings>,
}

/// Cancels what QEMU was told, puts its settings back and lets the guest run if it ran.
pub(crate) fn take_back(agent: &Agent, guest: &str, before: &Before) {
    let ran = before.ran;
    let Ok(record) = agent.registry.get(guest) else { return };
    for _ in 0..TRIES {
        if !record.is_alive() {
            tracing::error!(guest, "its QEMU has ended");
            return;
        }
        let deadline = Instant::now() + QMP_WAIT;
        let done = process::connect(&record, deadline).map_err(|error| chain(&error)).and_then(|qmp| {
            let mut qemu = SourceQemu::recovered(qmp, ran, before.settings.clone());
            qemu.take_back(deadline).map_err(|error| chain(&error))
        });
        match done {
            Ok(()) => {
                remove_socket(agent, guest);
                return tracing::info!(guest, ran, "rolled back");
            }
            Err(error) => tracing::error!(guest, error, "cannot be rolled back yet"),
        }
        std::thread::sleep(RETRY);
    }
}

/// Ends a waiting guest that will never run. Only what this very session started: by its process, or, if the crash came
/// before that was noted, a guest that arrived and still waits for its state. Says whether nothing of it is left.
fn discard(agent: &Agent, guest: &str, process: Option<ProcessIdentity>) -> bool {
    let Ok(record) = agent.registry.get(guest) else { return true };
    let ours = match process {
        Some(process) => record.process == process,
        None => record.origin == Origin::Arrived && (!record.is_alive() || waits(&record)),
    };
    if !ours {
        return true;
    }
    let made = agent.registry.folder(guest).map(|folder| images::made(&folder)).unwrap_or_default();
    match process::stop(&agent.registry, &record, None, StopHow::Quit, Instant::now() + QMP_WAIT) {
        Ok(()) => {
            images::discard(&made);
            true
        }
        Err(error) => {
            tracing::error!(guest, error = chain(&error), "the waiting guest could not be ended");
            false
        }
    }
}

fn waits(record: &GuestRecord) -> bool {
    let deadline = Instant::now() + QMP_WAIT;
    let Ok(qmp) = process::connect(record, deadline) else { return false };
    DestinationQemu::new(qmp).status(deadline).is_ok_and(|status| status == "inmigrate")
}

/// Where the earlier life took QEMU's streams, or had them taken.
fn remove_socket(agent: &Agent, guest: &str) {
    if let Ok(folder) = agent.registry.folder(guest) {
        for name in ["state.sock", "disks.sock"] {
            let _ = std::fs::remove_file(folder.join(name));
        }
    }
}

/// A committed guest must run.
fn keep(agent: &Agent, guest: &str, settings: Option<&Settings>) {
    let Ok(record) = agent.registry.get(guest) else {
        tracing::error!(guest, "was committed to this host and is not here any more");
        return;
    };
    // Whatever becomes of it: its images are its own.
    if let Ok(folder) = agent.registry.folder(guest) {
        images::keep(&folder);
    }
    let deadline = Instant::now() + QMP_WAIT;
    let done = process::connect(&record, deadline).map_err(|error| chain(&error)).and_then(|qmp| {
        let mut qemu = DestinationQemu::recovered(qmp, settings.cloned());
        qemu.resume(deadline).map_err(|error| chain(&error))?;
        qemu.settle(deadline);
        remove_socket(agent, guest);
        Ok(())
    });
    match done {
        Ok(()) => tracing::info!(guest, "is ours and runs"),
        Err(error) => tracing::error!(guest, error, "is ours and cannot be made to run"),
    }
}
