//! Sessions that have not ended: found in the journal when the agent starts, or passed on by a live session that could
//! not end itself. `linerate-core` decides (`recovery`); here its actions are executed, each session in a thread of its
//! own, while the agent already listens.
//!
//! | file | what it has |
//! |---|---|
//! | here | the journal is read; what all threads of recovery share |
//! | `source`, `destination` | execute the actions of the two recoveries |
//! | `sessions` | all of them, and what recovery needs of this host |
//! | `domain` | a setting in the QEMU of a domain of libvirt is put back |

mod audited;
mod destination;
mod domain;
mod sessions;
mod source;
#[cfg(test)]
pub(crate) mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use linerate_api::{Direction, MigrationId, MigrationState, MigrationSummary, Step};
use linerate_core::journal::{Decided, DestinationPhase, SourcePhase};
use linerate_core::recovery::{
    DestinationEvent, DestinationRecovery, Entry, Phase, Plan, Process, RESUME_MAX, SourceEvent,
    SourceRecovery, plan,
};
use linerate_core::{GuestState, ModeTag, Outcome, SessionId, Time, Token};
use linerate_guest::leftovers::clear_unfinished;
use linerate_guest::procfs::{ProcessIdentity, boot_id, is_other_boot};
use linerate_guest::registry::{QEMU_FOLDER, RegistryError};
use linerate_lock::Mutex;

use crate::both_hosts;
use crate::clock::Clock;
use crate::decision::{NotDecided, check_decision, check_resumable};
use crate::faults::chain;
use crate::journal::{IncomingRecord, JournalError, Record, Role, parse_token, process};
use crate::ran_here::RanHere;
use crate::security::PeerName;
use crate::session::identity::Identity;
use crate::session::roll_back_notice;

pub use sessions::Sessions;
pub(crate) use source::{Doubt, notice_steps};

/// A hypervisor answers a command within this.
const QMP_WAIT: Duration = RESUME_MAX;

/// A thread that goes on so much too late was stopped, and with it those that take what sources send.
pub(crate) const STOPPED_FOR: Duration = Duration::from_secs(5);

/// What a thread of recovery receives.
enum Signal {
    /// Something was decided meanwhile.
    Wake,
    CommitAgain {
        copy: bool,
    },
    RolledBackAtSource,
}

enum Machine {
    Source(SourceRecovery),
    Destination(DestinationRecovery),
}

/// A session that recovery is ending.
pub struct Unfinished {
    /// Names it on both hosts.
    pub session: SessionId,
    pub guest: String,
    /// Its process here, if there was one.
    pub process: Option<Process>,
    record: Mutex<Record>,
    machine: Mutex<Machine>,
    signals: Mutex<Sender<Signal>>,
    /// At a source: the notice of its roll-back is being sent.
    notifies: AtomicBool,
    /// Why the last try failed.
    trouble: Mutex<Option<String>>,
    /// The destination has not answered the last question.
    is_silent: AtomicBool,
    clock: Clock,
}

/// Looks at every session of the journal. Returns before anything is carried out that may take long: by then each
/// unfinished session is known to the agent, so that nothing else touches its guest.
pub fn recover(sessions: &Arc<Sessions>) -> Result<(), JournalError> {
    match clear_unfinished(&sessions.registry) {
        Ok(cleared) if cleared.is_empty() => {}
        Ok(cleared) => {
            tracing::warn!(guests = ?cleared, "were being started when the agent ended; nothing of them is left")
        }
        Err(error) => {
            tracing::error!(error = chain(&error), "a start that was not finished could not be cleared away")
        }
    }
    let mut found = sessions.journal.all()?;
    found.sort_by_key(|(_, record)| record.order);
    found.iter().for_each(|(_, record)| hand_files_of_ended_over(sessions, record));
    sessions.registry.free_ram_of_dead(|_| false);
    sessions.registry.release_files_of_absent();
    found.iter_mut().for_each(|(session, record)| name_process(sessions, *session, record));
    let entries: Vec<Entry> = found.iter().filter_map(|(session, record)| record.entry(*session)).collect();
    destination::clear_marks_of_running(sessions, &found, &entries);
    for (session, record) in found {
        let mode = record.mode().map(ModeTag::name);
        tracing::debug!(%session, guest = record.guest, mode, "found in the journal");
        match record.entry(session) {
            Some(entry) => begin(sessions, session, record, plan(&entry, &entries, is_alive)),
            None => domain::put_back(sessions, session, record),
        }
    }
    match sessions.journal.prune() {
        Ok(pruned) => tracing::debug!(pruned, "old sessions forgotten"),
        // What is open does not wait for that: a guest may be resumed without any write.
        Err(error) => tracing::warn!(error = chain(&error), "old sessions stay in the journal"),
    }
    Ok(())
}

/// This host was restarted after commit, or its QEMU has ended since: the guest may run at the destination, whose QEMU
/// may have the same user. So what both hosts share stays open to it.
fn hand_files_of_ended_over(sessions: &Sessions, record: &Record) {
    let Role::Source { phase: SourcePhase::CommitSent, qemu, copied, .. } = &record.role else { return };
    let has_ended = match sessions.registry.get(&qemu.name) {
        // A later guest of the name has files of its own.
        Ok(now) => now.is_same_process(qemu) && !now.is_alive(),
        Err(error) => matches!(error, RegistryError::Unknown(_)),
    };
    if has_ended {
        sessions.registry.hand_files_over(&qemu.name, copied);
    }
}

/// A QEMU that was started in the moment in which the agent ended is in no record of the journal yet: the guest's own
/// record names the session that started it.
fn name_process(sessions: &Sessions, session: SessionId, record: &mut Record) {
    let Role::Destination { incoming, .. } = &mut record.role else { return };
    if incoming.qemu.is_none() {
        let found = sessions.registry.get(&record.guest).ok();
        incoming.qemu = found.filter(|found| found.session == Some(session.to_string()));
    }
}

/// Whether a process of this boot is alive, as far as is known: one that cannot be looked at has not ended.
pub(crate) fn is_alive(process: &Process) -> bool {
    !is_other_boot(&process.boot) && identity(process).is_alive()
}

/// Whether it is certain that it is alive, and is not ending.
pub(crate) fn can_run(process: &Process) -> bool {
    boot_id().is_ok_and(|boot| boot == process.boot) && identity(process).can_run()
}

fn identity(process: &Process) -> ProcessIdentity {
    ProcessIdentity { pid: process.pid, start_ticks: process.start_ticks }
}

fn begin(sessions: &Arc<Sessions>, session: SessionId, mut record: Record, plan: Plan) {
    let guest = record.guest.clone();
    let now = Clock::start().now();
    let machine = match plan {
        Plan::RollBack => {
            tracing::warn!(%session, guest, "the agent ended during this migration: rolling back");
            Machine::Source(SourceRecovery::resume_here(now))
        }
        Plan::Query => {
            tracing::warn!(%session, guest, "commit was sent before the agent ended: asking the destination");
            Machine::Source(SourceRecovery::query(now))
        }
        Plan::Discard => {
            let Phase::Destination(phase) = phase_of(&record, session) else { return };
            if is_gone_already(sessions, &record, phase) {
                return;
            }
            Machine::Destination(DestinationRecovery::discard(now, phase))
        }
        Plan::Wait => {
            tracing::warn!(%session, guest, "the guest is complete here and its source may have committed: waiting for its decision");
            // By that it is seen whether it runs while another client has its monitor.
            if let Role::Destination { incoming, .. } = &mut record.role
                && let Some(qemu) = &incoming.qemu
            {
                incoming.vcpu_time.count(qemu.process.pid);
            }
            Machine::Destination(DestinationRecovery::wait_after_start(now))
        }
        Plan::Inspect => {
            tracing::warn!(%session, guest, "the guest was committed to this host: seeing that it runs");
            Machine::Destination(inspection(&record, now))
        }
        Plan::RecordEnd(phase) => {
            record.set_phase(phase);
            tracing::info!(%session, guest, ?phase, "closed: its process ended, or a later migration decides about it");
            if phase == Phase::Source(SourcePhase::RolledBack) {
                set_notice_due(&mut record, true);
            }
            let _ = sessions.journal.put_end(session, &record);
            audited::closed(sessions, session, &guest, phase);
            return notify_destination(sessions, session, record);
        }
        Plan::RecordLoss => {
            tracing::error!(
                %session,
                guest,
                "its QEMU ended in this migration; if the destination holds it complete, its operator decides about it there"
            );
            // The other copy may be the only one, whatever an earlier recovery meant to send. If QEMU has said that the
            // guest ran here after commit, that copy is older than its disks.
            let is_older = record.ran_here() == RanHere::Yes;
            set_notice_due(&mut record, is_older);
            let phase = Phase::Source(SourcePhase::RolledBack);
            record.set_phase(phase);
            let _ = sessions.journal.put_end(session, &record);
            audited::closed(sessions, session, &guest, phase);
            return notify_destination(sessions, session, record);
        }
        Plan::Nothing => {
            audited::arrival(sessions, session, &mut record);
            return notify_destination(sessions, session, record);
        }
    };
    if matches!(plan, Plan::RollBack) {
        // The notice is sent when the guest is resumed: until then the destination's copy may be the only one.
        set_notice_due(&mut record, true);
    }
    start(sessions, session, record, machine);
}

/// Nothing runs beside its source if a guest that is to stay paused takes its disks over.
fn inspection(record: &Record, now: Time) -> DestinationRecovery {
    match &record.role {
        Role::Destination { incoming, .. } if incoming.ran == Some(false) => {
            DestinationRecovery::inspect(now)
        }
        _ => DestinationRecovery::inspect_after_start(now),
    }
}

/// Most given-up sessions left nothing: their records stay to answer questions.
fn is_gone_already(sessions: &Sessions, record: &Record, phase: DestinationPhase) -> bool {
    let Role::Destination { incoming, .. } = &record.role else { return false };
    let over = matches!(phase, DestinationPhase::Aborted | DestinationPhase::Returned);
    over && incoming.qemu.as_ref().is_none_or(|qemu| !qemu.is_alive() && !is_registered(sessions, qemu))
}

fn phase_of(record: &Record, session: SessionId) -> Phase {
    record.entry(session).map_or(Phase::Destination(DestinationPhase::Started), |entry| entry.phase)
}

/// The destination may hold the guest: sets whether it has to be notified in the background not to run it, also by a
/// later agent.
fn set_notice_due(record: &mut Record, is: bool) {
    if let Role::Source { notice_due, .. } = &mut record.role {
        *notice_due = is;
    }
}

fn notify_destination(sessions: &Arc<Sessions>, session: SessionId, record: Record) {
    if let Role::Source { notice_due: true, peers, token, peer, .. } = &record.role {
        let identity = match Identity::with_peer(session, parse_token(token), &sessions.security, peer) {
            Ok(identity) => identity,
            // The next start notifies it.
            Err(fault) => {
                return tracing::error!(%session, %fault, "the destination is not notified of the roll-back");
            }
        };
        let step = notice_steps(&sessions.journal, session, &record);
        let done = both_hosts::notice_done(&sessions.journal, &sessions.audit, session);
        roll_back_notice::send_by(peers.clone(), identity, true, step, done);
    }
}

/// A live session could not resume its guest here, or could not end its process: recovery continues. `guest`: the
/// guest's state at the session's end; one that is still paused here was being resumed.
pub fn continue_session(sessions: &Arc<Sessions>, session: SessionId, mut record: Record, guest: GuestState) {
    let now = Clock::start().now();
    let machine = match guest {
        GuestState::PausedAtSource | GuestState::RunsAtSource => {
            set_notice_due(&mut record, true);
            SourceRecovery::resume_here(now)
        }
        GuestState::Unknown => SourceRecovery::give_up(now),
        _ => SourceRecovery::query(now),
    };
    start(sessions, session, record, Machine::Source(machine));
}

/// A live session could not find out whether its committed guest, which its QEMU refuses to run, has run here.
/// `rolled_back`: its source lets its own copy run.
pub fn continue_arrival(sessions: &Arc<Sessions>, session: SessionId, record: Record, rolled_back: bool) {
    let now = Clock::start().now();
    let mut machine = DestinationRecovery::inspect(now);
    if rolled_back {
        machine.handle(now, DestinationEvent::RolledBackAtSource);
    }
    start(sessions, session, record, Machine::Destination(machine));
}

fn start(sessions: &Arc<Sessions>, session: SessionId, record: Record, machine: Machine) {
    let (signals, inbox) = channel();
    let unfinished = Arc::new(Unfinished {
        session,
        guest: record.guest.clone(),
        process: record.entry(session).and_then(|entry| entry.process),
        record: Mutex::new(record),
        machine: Mutex::new(machine),
        signals: Mutex::new(signals),
        notifies: AtomicBool::new(false),
        trouble: Mutex::default(),
        is_silent: AtomicBool::new(false),
        clock: Clock::start(),
    });
    sessions.add(unfinished.clone());
    let (running, working) = (sessions.clone(), unfinished.clone());
    let work = move || {
        working.run(&running, &inbox);
        running.forget(session);
    };
    if let Err(error) = std::thread::Builder::new().name("recovery".into()).spawn(work) {
        // It stays in the list, so that its guest is not touched; the next start of the agent continues with it.
        tracing::error!(%session, %error, "cannot start a thread to recover this session");
    }
}

impl Unfinished {
    fn run(&self, sessions: &Arc<Sessions>, inbox: &Receiver<Signal>) {
        loop {
            // What came while an action was executed may change the next one.
            while let Ok(signal) = inbox.try_recv() {
                self.receive(&signal);
            }
            if self.audit_end(sessions) {
                return tracing::info!(session = %self.session, guest = self.guest, "this session has ended");
            }
            let acted =
                if self.is_source() { self.act_source(sessions) } else { self.act_destination(sessions) };
            if acted {
                continue;
            }
            let now = self.clock.now();
            let wait = self.timeout().map_or(Duration::from_secs(3600), |at| at.since(now));
            match inbox.recv_timeout(wait) {
                Ok(signal) => self.receive(&signal),
                Err(RecvTimeoutError::Timeout) => self.note_if_stopped(now + wait),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// `woken_at`: when this thread was to go on. The process was stopped if it does so much later.
    fn note_if_stopped(&self, woken_at: Time) {
        let now = self.clock.now();
        if let Machine::Destination(machine) = &mut *self.machine.lock()
            && now - woken_at > STOPPED_FOR
        {
            machine.was_deaf(now);
        }
    }

    fn is_source(&self) -> bool {
        matches!(&*self.machine.lock(), Machine::Source(_))
    }

    fn timeout(&self) -> Option<Time> {
        match &*self.machine.lock() {
            Machine::Source(machine) => machine.timeout(),
            Machine::Destination(machine) => machine.timeout(),
        }
    }

    fn receive(&self, signal: &Signal) {
        if !matches!(signal, Signal::Wake) {
            self.look_while_it_waits();
        }
        let now = self.clock.now();
        match (&mut *self.machine.lock(), signal) {
            (Machine::Source(_), _) | (_, Signal::Wake) => {}
            (Machine::Destination(machine), Signal::CommitAgain { copy }) => {
                if !self.process_is_alive() {
                    machine.handle(now, DestinationEvent::ProcessEnded);
                }
                machine.handle(now, DestinationEvent::CommitAgain { copy: *copy });
            }
            (Machine::Destination(machine), Signal::RolledBackAtSource) => {
                machine.handle(now, DestinationEvent::RolledBackAtSource)
            }
        }
    }

    /// Whether the guest has a process here.
    pub fn process_is_alive(&self) -> bool {
        self.process.as_ref().is_some_and(is_alive)
    }

    fn signal(&self, signal: Signal) {
        let _ = self.signals.lock().send(signal);
    }

    /// The operator decides: `true` runs the guest here.
    ///
    /// # Errors
    /// Why it is not decided so.
    pub fn resolve(&self, resume_here: bool) -> Result<(), NotDecided> {
        let now = self.clock.now();
        // Before the machine's lock: a summary takes the two in this order.
        let (is_alive, ran_here) = (self.process_is_alive(), self.record.lock().ran_here());
        match &mut *self.machine.lock() {
            Machine::Source(machine) => {
                check_decision(machine.is_in_doubt(), machine.takes(resume_here))?;
                check_resumable(resume_here, is_alive, ran_here)?;
                machine.handle(now, SourceEvent::Resolve(resume_here));
            }
            Machine::Destination(machine) => {
                check_decision(machine.is_in_doubt(), machine.takes(resume_here))?;
                if resume_here && machine.is_held() && machine.is_rolled_back_at_source() {
                    return Err(NotDecided::RolledBack);
                }
                let is_open = machine.is_waiting() || machine.is_held();
                let is_disputed = machine.hears_source() || is_open && machine.source_resumes(now);
                if resume_here && is_disputed {
                    return Err(NotDecided::SourceResumes);
                }
                // It never ran, and cannot run any more: its source gets it back.
                if resume_here && machine.is_waiting() && !is_alive {
                    machine.handle(now, DestinationEvent::ProcessEnded);
                    self.signal(Signal::Wake);
                    return Err(NotDecided::QemuEnded);
                }
                if resume_here && is_open && machine.has_just_started(now) {
                    return Err(NotDecided::JustStarted);
                }
                let is_committed = machine.is_held() || machine.hears_source();
                if !resume_here && is_committed && !machine.may_be_given_up(now) {
                    return Err(NotDecided::MayBeOnlyCopy);
                }
                machine.handle(now, DestinationEvent::Resolve(resume_here));
            }
        }
        self.signal(Signal::Wake);
        Ok(())
    }

    /// At a source: whether the guest ran until it was stopped for the migration.
    pub fn ran_at_source(&self) -> Option<bool> {
        match self.record.lock().role {
            Role::Source { ran, .. } => Some(ran),
            _ => None,
        }
    }

    /// What became of the operator's decision for `resume_here`.
    pub fn decided(&self, resume_here: bool) -> Decided {
        match &*self.machine.lock() {
            Machine::Source(machine) => machine.decided_for(resume_here),
            Machine::Destination(machine) => machine.decided_for(resume_here),
        }
    }

    /// Whether a guest of this name, with this process if it has one here, is this session's business. One that has a
    /// process of its own decides about that one only.
    pub fn decides_about(&self, guest: &str, process: Option<&Process>) -> bool {
        match &self.process {
            None => self.guest == guest,
            ours => ours.as_ref() == process,
        }
    }

    /// The source sends commit on a connection of its own. `copy`: it still has its own copy.
    pub fn commit_again(&self, copy: bool) {
        self.signal(Signal::CommitAgain { copy });
    }

    /// The source has rolled back.
    pub fn rolled_back_at_source(&self) {
        self.signal(Signal::RolledBackAtSource);
    }

    /// At a destination: its source has said that it has its guest back.
    fn is_rolled_back_at_source(&self) -> bool {
        matches!(&*self.machine.lock(), Machine::Destination(machine) if machine.is_rolled_back_at_source())
    }

    /// Whether this is the token of the session.
    pub fn knows(&self, token: &Token) -> bool {
        match &self.record.lock().role {
            Role::Source { token: ours, .. } => parse_token(ours) == *token,
            Role::Destination { incoming, .. } => parse_token(&incoming.token) == *token,
            Role::Handover { .. } | Role::Libvirt { .. } => false,
        }
    }

    /// Whether this host may ask and decide about an incoming guest. Of a session that began in plain text nobody knows
    /// which host opened it.
    pub fn is_of(&self, caller: &PeerName) -> bool {
        match &self.record.lock().role {
            Role::Destination { incoming: IncomingRecord { peer: Some(peer), .. }, .. } => {
                caller.as_ref() == Some(peer)
            }
            _ => true,
        }
    }

    /// The answer to the source of an incoming guest; none if the journal knows it.
    pub fn outcome(&self) -> Option<Outcome> {
        match &*self.machine.lock() {
            Machine::Source(_) => None,
            Machine::Destination(machine) => machine.outcome(),
        }
    }

    /// The source of an incoming guest is about to resume it and asks whether it runs here; none if the journal knows.
    /// `waits`: the source knows that the guest is committed here, and keeps its own paused.
    pub fn source_resumes(&self, waits: bool) -> Option<Outcome> {
        let may_run = self.look_while_it_waits();
        let event = if waits { DestinationEvent::SourceWaits } else { DestinationEvent::SourceResumes };
        let outcome = match &mut *self.machine.lock() {
            Machine::Source(_) => None,
            Machine::Destination(machine) => {
                machine.handle(self.clock.now(), event);
                // The source keeps its copy paused until the monitor here answers.
                if may_run && machine.is_waiting() {
                    Some(Outcome::Pending)
                } else {
                    machine.outcome_for_resuming()
                }
            }
        };
        // What is due now may be something else.
        self.signal(Signal::Wake);
        outcome
    }

    /// An operator may decide, or has decided and that does not count yet.
    pub fn is_in_doubt(&self) -> bool {
        match &*self.machine.lock() {
            Machine::Source(machine) => machine.is_in_doubt(),
            Machine::Destination(machine) => machine.is_in_doubt(),
        }
    }

    /// Nothing of the guest is to stay here.
    pub fn is_going(&self) -> bool {
        matches!(&*self.machine.lock(), Machine::Destination(machine)
            if !machine.is_waiting() && !machine.is_held() && !machine.hears_source()
                && machine.outcome() == Some(Outcome::Pending))
    }

    /// A line about it.
    pub fn summary(&self) -> MigrationSummary {
        let record = self.record.lock();
        let (direction, peer) = match &record.role {
            Role::Source { peers, .. } => {
                (Direction::Outgoing, peers.first().map(ToString::to_string).unwrap_or_default())
            }
            _ => (Direction::Incoming, String::new()),
        };
        MigrationSummary {
            id: MigrationId(self.session.to_string()),
            guest: self.guest.clone(),
            direction,
            peer,
            state: if self.is_in_doubt() { MigrationState::InDoubt } else { MigrationState::Recovering },
            step: Step::Commit,
            started_unix_ms: record.changed_unix_ms,
            sent_bytes: 0,
            note: Some(self.note(&record)),
        }
    }

    /// What is unfinished, what happens next, and what an operator can do.
    fn note(&self, record: &Record) -> String {
        let (is_alive, ran_here) = (self.process_is_alive(), record.ran_here());
        let what = match &*self.machine.lock() {
            Machine::Source(machine) => {
                source::describe(machine, ran_here, is_alive, self.is_silent.load(Ordering::Relaxed))
            }
            Machine::Destination(machine) => {
                destination::describe(machine, destination::is_committed(record), is_alive)
            }
        };
        match &*self.trouble.lock() {
            Some(trouble) => format!("{what} (last try: {trouble})"),
            None => what.to_owned(),
        }
    }

    /// A try failed: logged when the reason is a new one.
    fn failed(&self, trouble: String) {
        let mut last = self.trouble.lock();
        if last.as_ref() != Some(&trouble) {
            tracing::error!(session = %self.session, guest = self.guest, trouble, "not done yet; it is tried until it is");
        }
        *last = Some(trouble);
    }

    fn worked(&self) {
        *self.trouble.lock() = None;
    }

    /// Writes a phase to disk; `true` if it is there.
    fn write(&self, sessions: &Sessions, phase: Phase) -> bool {
        let mut record = self.record.lock().clone();
        record.set_phase(phase);
        match (&mut record.role, phase) {
            (Role::Source { notice_due, .. }, Phase::Source(SourcePhase::ResumingHere)) => *notice_due = true,
            // It was to be resumed here, and the destination has answered that it runs there.
            (Role::Source { notice_due, .. }, Phase::Source(SourcePhase::Finished)) => *notice_due = false,
            (Role::Destination { incoming, .. }, Phase::Destination(DestinationPhase::Committed)) => {
                if let Some(qemu) = &incoming.qemu {
                    incoming.vcpu_time.count(qemu.process.pid);
                }
            }
            _ => {}
        }
        record.changed_unix_ms = crate::clock::unix_ms();
        match sessions.journal.put(self.session, &record) {
            Ok(()) => {
                *self.record.lock() = record;
                self.worked();
                // A command that QEMU had already could not be called back.
                if phase == Phase::Destination(DestinationPhase::Running) && self.is_rolled_back_at_source() {
                    both_hosts::note(&sessions.journal, &sessions.audit, self.session);
                }
                true
            }
            Err(error) => {
                self.failed(format!("the journal was not written: {}", chain(&error)));
                false
            }
        }
    }
}

/// Sockets at which an earlier agent process, or its QEMU, took streams.
fn remove_sockets(sessions: &Sessions, guest: &str) {
    if let Ok(folder) = sessions.registry.folder(guest) {
        // Those of a source are the agent's, those of a destination QEMU's.
        let folders = [folder.join(QEMU_FOLDER), folder];
        let in_each = |name| folders.clone().map(|folder: PathBuf| folder.join(name));
        let paths = ["state.sock", "disks.sock"].map(in_each);
        paths.iter().flatten().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// Whether the guest of that name here is still the process of this session.
fn is_registered(sessions: &Sessions, qemu: &linerate_guest::registry::GuestRecord) -> bool {
    sessions.registry.get(&qemu.name).is_ok_and(|now| process(&now) == process(qemu))
}
