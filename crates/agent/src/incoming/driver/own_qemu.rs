//! The incoming QEMU that this agent starts, from its reservation until the guest runs in it or nothing of it is left.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use linerate_core::destination::{AfterTry, Event, TakeOver, Try};
use linerate_core::{Code, Fault, LastLook, Outcome, RegionInfo, Side, Step};
use linerate_guest::description::GuestDescription;
use linerate_guest::migrate::{DestinationQemu, TakeOverResult};
use linerate_guest::process::{self, Launch, StopMethod};
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_guest::run_state::RunState;
use linerate_guest::vcpu_time::VcpuTime;
use linerate_guest::{images, leftovers, read};
use linerate_memory::Mapping;

use super::{Done, QMP_WAIT, here, internal};
use crate::clock::Clock;
use crate::disks;
use crate::faults::chain;
use crate::incoming::admit::{Admitted, admit};
use crate::incoming::context::Context;
use crate::incoming::storage;

pub(super) const START_WAIT: Duration = Duration::from_secs(60);
/// A QEMU loads its state.
pub(super) const LOAD_WAIT: Duration = Duration::from_secs(60);
/// The source's report waits for the last look.
const LOOK_WAIT: Duration = Duration::from_millis(500);
/// Between two tries to end a QEMU.
const END_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(super) struct OwnQemu {
    pub context: Context,
    pub admitted: Admitted,
    /// From its start until the guest runs in it.
    process: Option<(GuestRecord, DestinationQemu)>,
}

/// A QEMU that was started and waits.
pub(super) struct Started {
    pub pid: i32,
    pub found: GuestDescription,
}

impl OwnQemu {
    /// Reserves for a QEMU, and makes RAM for these regions. On `Err` nothing of it is left.
    pub fn admit(
        context: Context,
        description: GuestDescription,
        regions: &[RegionInfo],
    ) -> Result<(OwnQemu, Vec<Mapping>), Fault> {
        context.shared.memory_bytes.store(description.memory_bytes, Ordering::Relaxed);
        let (admitted, ram) = admit(&context.sessions, &context.shared.opener, description, regions)?;
        context
            .shared
            .ram_folder
            .set(admitted.incoming_qemu.ram_files.first().map(|file| file.path.as_path()));
        Ok((OwnQemu { context, admitted, process: None }, ram))
    }

    /// Where it is to listen for its state.
    pub fn state_socket(&self) -> PathBuf {
        self.admitted.incoming_qemu.qmp.with_file_name("state.sock")
    }

    /// What was admitted, and the monitor of the QEMU that was started for it.
    pub fn parts(&mut self) -> Result<(&Admitted, &mut DestinationQemu), Fault> {
        let (_, monitor) = self.process.as_mut().ok_or_else(no_hypervisor)?;
        Ok((&self.admitted, monitor))
    }

    pub fn monitor(&mut self) -> Result<&mut DestinationQemu, Fault> {
        Ok(self.parts()?.1)
    }

    /// Starts it. `ram_is_made`: in files that are there.
    pub fn start(&mut self, ram_is_made: bool, deadline: Instant) -> Result<Started, Fault> {
        let failed =
            |error: &(dyn std::error::Error + 'static)| here(Code::HypervisorFailed, Step::Prepare, error);
        let incoming_qemu = &self.admitted.incoming_qemu;
        let launch = Launch {
            name: &incoming_qemu.name,
            qemu: &self.admitted.qemu,
            arguments: &incoming_qemu.arguments,
            folder: &self.admitted.folder,
            qmp: &incoming_qemu.qmp,
            pid_file: &incoming_qemu.pid_file,
            ram_files: incoming_qemu.ram_files.iter().map(|file| file.path.clone()).collect(),
            ram_is_made,
            user: self.admitted.user.as_ref(),
            origin: Origin::Arrived,
            session: Some(self.context.shared.session.to_string()),
        };
        let started = process::start(&self.context.sessions.registry, &launch, deadline);
        let (record, mut qmp) = started.map_err(|error| failed(&error))?;
        let pid = record.process.pid;
        self.context.record().qemu = Some(record.clone());
        let _ = self.context.shared.qemu.set(record.process);
        drop(self.admitted.claim.take());
        let found = read::read(&mut qmp, pid, deadline);
        self.process = Some((record, DestinationQemu::new(qmp)));
        let found = found.map_err(|error| failed(&error))?;
        self.context.record().vcpu_time = VcpuTime::of(&found.process.vcpu_threads);
        let copied = self.admitted.images.exports.iter().map(|one| one.path.clone());
        self.context.record().copied = copied.collect();
        check_processor(&self.admitted.description, &found)?;
        self.check_graph(deadline)?;
        storage::recheck(&self.admitted.proved, pid, Step::Prepare)?;
        Ok(Started { pid, found })
    }

    /// QEMU must have opened the disks that the guest uses at the source. It limits their I/O as there.
    fn check_graph(&mut self, deadline: Instant) -> Done {
        let (_, monitor) = self.process.as_mut().ok_or_else(no_hypervisor)?;
        let (description, paths) = (&self.admitted.description, &self.context.sessions.config.paths);
        let Some(source) = &description.graph else { return Ok(()) };
        disks::check_same(monitor.qmp(), description, source, paths, Step::Prepare, deadline)?;
        disks::set_limits(monitor.qmp(), source, deadline)
    }

    /// What the next start of this agent must know to end it, or to put its settings back.
    pub fn write_journal(&self) -> Done {
        self.context.record().settings = self.process.as_ref().and_then(|(_, qemu)| qemu.found().cloned());
        self.context.write_journal()
    }

    /// The disks that the source's guest uses against those that this QEMU has opened.
    pub fn check_disks(&mut self, reported: &str) -> Done {
        let (record, monitor) = self.process.as_mut().ok_or_else(no_hypervisor)?;
        let (description, paths) = (&self.admitted.description, &self.context.sessions.config.paths);
        disks::check_reported(monitor.qmp(), description, reported, paths, Instant::now() + QMP_WAIT)?;
        storage::recheck(&self.admitted.proved, record.process.pid, Step::Blackout)?;
        self.context.shared.send(Event::DisksChecked);
        Ok(())
    }

    /// The journal has committed the guest to this host. One of four events reports the result.
    pub fn run(&mut self, ran: bool) {
        // Its images are its own before it can write to them: from here on they are never removed.
        images::keep(&self.admitted.folder);
        self.context.sessions.registry.own_files(&self.admitted.incoming_qemu.name);
        let began = Instant::now();
        match self.take_over(ran) {
            Ok(()) => {
                let (took, cpu) = (began.elapsed(), self.context.cpu_used());
                self.context.shared.send(Event::GuestRuns { took, cpu });
                self.keep_running();
            }
            Err(event) => {
                if matches!(event, Event::MayHaveRun(_)) {
                    // QEMU serves one QMP client at a time, and recovery is the next.
                    self.process = None;
                }
                self.context.shared.send(event);
            }
        }
    }

    fn take_over(&mut self, ran: bool) -> Result<(), Event> {
        let vcpu_time = self.context.record().vcpu_time.clone();
        match &mut self.process {
            Some((record, qemu)) => {
                let shared = &self.context.shared;
                let rolled_back = || shared.is_rolled_back_at_source();
                take_over(record, qemu, &vcpu_time, ran, &rolled_back, &|trouble| {
                    shared.note_trouble(trouble)
                })
            }
            None => Err(Event::CannotRun(internal("no hypervisor holds the guest"))),
        }
    }

    /// QEMU serves one QMP client at a time, and a session whose source died waits a minute for its last message.
    /// Another client that wants to see or move the guest must not wait for that.
    fn keep_running(&mut self) {
        if let Some((_, mut qemu)) = self.process.take() {
            qemu.settle(Instant::now() + QMP_WAIT);
        }
        self.admitted.images.are_the_guests();
        let _ = std::fs::remove_file(self.state_socket());
    }

    /// The connection was given back when the guest ran: if another client has it, nothing is seen.
    pub fn look(&self) {
        let Context { sessions, shared, .. } = &self.context;
        let qemu = self.context.record().qemu.clone();
        let has_moved_on = || !matches!(sessions.outcome(shared.session), Outcome::Gone | Outcome::Pending);
        let seen = match qemu.as_ref().map_or(LastLook::NothingWrong, last_look) {
            LastLook::Ended if has_moved_on() => LastLook::NothingWrong,
            seen => seen,
        };
        shared.send(Event::Looked(seen));
    }

    /// Kills the process, before it is discarded.
    pub fn kill(&self) {
        if let Some((record, _)) = &self.process
            && let Err(error) = record.kill()
        {
            // The rest is tried all the same.
            tracing::warn!(error = chain(&error), guest = record.name, "the incoming QEMU was not killed");
        }
    }

    /// Ends it and removes everything of it. Nothing but this session's own is touched.
    pub fn discard(self) {
        let registry = &self.context.sessions.registry;
        match self.process {
            Some((record, mut qemu)) => {
                let end =
                    |qmp| process::stop(registry, &record, qmp, StopMethod::Quit, Instant::now() + QMP_WAIT);
                let mut ended = end(Some(qemu.qmp()));
                // It must not be reported as gone while it may be there, so this does not end before it is.
                while let Err(error) = ended {
                    let (error, guest) = (chain(&error), &record.name);
                    tracing::error!(error, guest, "the incoming QEMU could not be ended yet");
                    std::thread::sleep(END_AGAIN_AFTER);
                    ended = end(None);
                }
            }
            None => {
                if let Err(error) = leftovers::remove_reserved(registry, &self.admitted.incoming_qemu.name) {
                    tracing::error!(
                        error = chain(&error),
                        "what was made for the guest could not be removed"
                    );
                }
            }
        }
        // By what was admitted, as the list in the guest's folder goes with a QEMU that did not start; the claim is
        // released after it.
        self.admitted.images.discard();
    }
}

/// Tries until the guest runs, or its QEMU has ended, or that has refused for long enough. `vcpu_time`: of the guest
/// when it was committed. `rolled_back`: whether the source has rolled back. `failed` gets the reason why a try failed.
fn take_over(
    record: &GuestRecord,
    qemu: &mut DestinationQemu,
    vcpu_time: &VcpuTime,
    ran: bool,
    rolled_back: &dyn Fn() -> bool,
    failed: &dyn Fn(&str),
) -> Result<(), Event> {
    let clock = Clock::start();
    let mut take_over = TakeOver::new(clock.now());
    loop {
        if let Some(instead) = take_over.instead(rolled_back()) {
            let fault = Fault::new(Code::Cancelled, Step::Commit, Side::Source, "the source has rolled back");
            let never_ran = instead == AfterTry::CannotRun;
            return Err(if never_ran { Event::CannotRun(fault) } else { Event::MayHaveRun(fault) });
        }
        let (result, error) = match qemu.take_over(ran, Instant::now() + QMP_WAIT) {
            TakeOverResult::Done => return Ok(()),
            TakeOverResult::Refused(error) => (Try::Refused, error),
            TakeOverResult::Unknown(error) if !record.is_alive() => (Try::Ended, error),
            TakeOverResult::Unknown(error) if error.is_late() => (Try::Late, error),
            TakeOverResult::Unknown(error) => (connect_again(record, qemu, vcpu_time), error),
        };
        let fault = |code| here(code, Step::Commit, &error);
        let again = match take_over.tried(clock.now(), result) {
            AfterTry::Runs => return Ok(()),
            AfterTry::TryAt(at) => at,
            AfterTry::CannotRun => return Err(Event::CannotRun(fault(Code::HypervisorFailed))),
            AfterTry::MayHaveRun => return Err(Event::MayHaveRun(fault(Code::HypervisorFailed))),
            AfterTry::Ended => return Err(Event::GuestEnded(fault(Code::GuestGone))),
        };
        let trouble = chain(&error);
        tracing::error!(error = trouble, "the guest is committed to this host and cannot be run yet");
        failed(&trouble);
        std::thread::sleep(again.since(clock.now()));
    }
}

/// What a guest does that was let run.
fn last_look(qemu: &GuestRecord) -> LastLook {
    let deadline = Instant::now() + LOOK_WAIT;
    let asked = process::connect(qemu, deadline).ok();
    match asked.and_then(|mut qmp| RunState::ask(&mut qmp, deadline).ok()) {
        Some(state) if state.stopped_by_itself() && !state.is_live() => {
            LastLook::Stopped { run_state: state.to_string() }
        }
        None if qemu.cannot_run() => LastLook::Ended,
        Some(_) | None => LastLook::NothingWrong,
    }
}

/// Connects again to a QEMU whose answer was lost with its connection. Without a connection, the next try ends here
/// too.
fn connect_again(record: &GuestRecord, qemu: &mut DestinationQemu, vcpu_time: &VcpuTime) -> Try {
    qemu.qmp().hang_up();
    let Ok(qmp) = process::connect(record, Instant::now() + QMP_WAIT) else { return Try::Late };
    let ran = vcpu_time.has_run(record.process.pid);
    qemu.reconnect(qmp, ran == Some(true));
    Try::Lost { ran }
}

/// All that the guest's processor can must be there here too. Nothing is compared where a QEMU does not tell.
pub(super) fn check_processor(offered: &GuestDescription, found: &GuestDescription) -> Done {
    let (Some(source), Some(here)) = (&offered.processor, &found.processor) else { return Ok(()) };
    let lacking = source.lacking_in(here);
    if lacking.is_empty() {
        return Ok(());
    }
    let detail = format!(
        "the processor that QEMU gives the guest here (CPU model {}) lacks what the guest has at the source: {}. \
         Start the guest with a CPU model that both hosts can",
        offered.cpu,
        lacking.join(", ")
    );
    Err(Fault::new(Code::ResourceMissing, Step::Prepare, Side::Destination, detail))
}

fn no_hypervisor() -> Fault {
    internal("no hypervisor waits")
}

#[cfg(test)]
mod tests {
    use linerate_guest::qmp::Qmp;
    use serde_json::json;

    use super::*;
    use crate::testing::TestQemu;

    /// The answer to `cont` is lost with its connection, and another process has the guest's disk since.
    #[test]
    fn a_guest_that_may_have_run_is_not_tried_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let socket = path("g.qmp");
        std::fs::File::create(path("disk")).unwrap().set_len(1 << 20).unwrap();
        let disk = ["-drive".to_owned(), format!("file={},format=raw,if=virtio", path("disk").display())];
        let disk = disk.each_ref().map(String::as_str);
        let hand = TestQemu::start(&socket, &disk);
        let pid = i32::try_from(hand.pid()).unwrap();
        let soon = || Instant::now() + QMP_WAIT;
        let mut qmp = Qmp::connect(&socket, soon()).unwrap();
        // It gives its disk away as at the end of a migration.
        qmp.execute("migrate", json!({ "uri": "exec:cat >/dev/null" }), soon()).unwrap();
        loop {
            let found = qmp.execute("query-migrate", json!({}), soon()).unwrap();
            assert_ne!(found["status"], "failed", "{found}");
            if found["status"] == "completed" {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _other = TestQemu::start(&path("other.qmp"), &disk);
        // It answers when its devices have their disks, with all locks.
        let mut other = Qmp::connect(&path("other.qmp"), soon()).unwrap();
        other.execute("query-status", json!({}), soon()).unwrap();
        let record = GuestRecord::new("g", Origin::Arrived, pid, socket, vec![]).unwrap();
        let mut qemu = DestinationQemu::new(qmp);
        let asked = std::cell::Cell::new(0);
        let rolled_back = || asked.replace(asked.get() + 1) > 0;
        let troubles = std::cell::RefCell::new(Vec::new());
        let failed = |trouble: &str| troubles.borrow_mut().push(trouble.to_owned());
        let tried = |qemu: &mut DestinationQemu, rolled_back: &dyn Fn() -> bool| {
            take_over(&record, qemu, &VcpuTime::default(), true, rolled_back, &failed).unwrap_err()
        };
        let event = tried(&mut qemu, &rolled_back);
        assert!(matches!(&event, Event::CannotRun(fault) if fault.side == Side::Source), "{event:?}");
        assert_eq!(asked.get(), 2, "it is not tried again beside its source");
        // An operator reads in the list why it does not run.
        let why = troubles.borrow().join("; ");
        assert!(why.contains("lock"), "{why}");
        let event = tried(&mut qemu, &|| false);
        assert!(matches!(event, Event::CannotRun(_)), "no answer was lost: {event:?}");
        qemu.qmp().hang_up();
        let event = tried(&mut qemu, &|| false);
        assert!(matches!(event, Event::MayHaveRun(_)), "{event:?}");
    }

    #[test]
    fn a_qemu_that_has_ended_is_seen_and_one_that_another_client_has_shows_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("g.qmp");
        let hand = TestQemu::start(&socket, &[]);
        let pid = i32::try_from(hand.pid()).unwrap();
        let record = GuestRecord::new("g", Origin::Arrived, pid, socket.clone(), vec![]).unwrap();
        assert_eq!(last_look(&record), LastLook::NothingWrong, "somebody keeps it from running");
        let other = Qmp::connect(&socket, Instant::now() + QMP_WAIT).unwrap();
        assert_eq!(last_look(&record), LastLook::NothingWrong);
        drop((hand, other));
        assert_eq!(last_look(&record), LastLook::Ended);
    }
}
