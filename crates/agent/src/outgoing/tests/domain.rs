//! When a domain whose stream was admitted counts as stopped for good, with a hypervisor that answers what the test
//! sets.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use linerate_api::DomainMigration;
use linerate_core::journal::SourcePhase;
use linerate_core::source::Event;
use linerate_core::{Code, Fault, ModeTag};
use linerate_guest::migrate::SourceQemu;
use linerate_guest::qmp::Qmp;
use linerate_guest::registry::{GuestRecord, Origin};
use linerate_lock::{Condvar, Mutex};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::driver::{self, GuestRam, ModeParts, OutgoingDomain};
use super::super::guest::Guest;
use super::super::session_loop::SessionLoop;
use super::super::worker::Worker;
use super::super::{Input, Outgoing};
use super::{LONG, outgoing_of};
use crate::journal::{Record, Role};
use crate::stream_gate::{StreamGate, StreamGates};

/// What it answers, and how often it was asked for the run state.
#[derive(Default)]
struct Answers {
    run_state: &'static str,
    migration: &'static str,
    asked: u32,
    /// The guest was let run.
    is_resumed: bool,
    /// How often a virtual CPU has entered a guest of the guest.
    nested_runs: u64,
}

/// A hypervisor whose answers the test sets.
#[derive(Clone, Default)]
pub(in crate::outgoing) struct Fake(Arc<(Mutex<Answers>, Condvar)>);

impl Fake {
    pub fn set(&self, run_state: &'static str, migration: &'static str) {
        *self.0.0.lock() = Answers { run_state, migration, ..Answers::default() };
    }

    /// The same of a guest that has run a guest of its own.
    pub fn set_nested(&self, run_state: &'static str, migration: &'static str) {
        *self.0.0.lock() = Answers { run_state, migration, nested_runs: 7, ..Answers::default() };
    }

    /// Whether the guest was let run since the answers were set.
    pub fn is_resumed(&self) -> bool {
        self.0.0.lock().is_resumed
    }

    /// Waits until this answer has been evaluated as a whole: the third question comes after all that followed from the
    /// first.
    fn wait_seen(&self) {
        self.wait_asked(3);
    }

    /// Waits until it was asked for the run state so often since the answers were set.
    pub fn wait_asked(&self, times: u32) {
        let answers = self.0.0.lock();
        let (answers, late) = self.0.1.wait_timeout_while(answers, LONG, |answers| answers.asked < times);
        assert!(!late, "asked {} times", answers.asked);
    }

    pub fn serve(&self, path: &Path) {
        let (fake, listener) = (self.clone(), UnixListener::bind(path).unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let version = json!({"qemu": {"major": 10, "minor": 0, "micro": 2}, "package": ""});
            let mut send = |value: Value| writeln!(stream, "{value}");
            let _ = send(json!({"QMP": {"version": version, "capabilities": []}}));
            let lines = BufReader::new(UnixStream::try_clone(&stream).unwrap()).lines();
            for line in lines.map_while(Result::ok) {
                let question: Value = serde_json::from_str(&line).unwrap();
                let answer = fake.answer(&question["execute"]);
                if writeln!(stream, "{}", json!({"return": answer, "id": question["id"]})).is_err() {
                    return;
                }
            }
        });
    }

    fn answer(&self, question: &Value) -> Value {
        let mut answers = self.0.0.lock();
        match question.as_str() {
            Some("query-status") => {
                answers.asked += 1;
                self.0.1.notify_all();
                json!({"status": answers.run_state})
            }
            Some("query-migrate") => json!({"status": answers.migration}),
            Some("query-stats") => {
                json!([{"stats": [{"name": "nested_run", "value": answers.nested_runs}]}])
            }
            Some("cont") => {
                answers.is_resumed = true;
                json!({})
            }
            _ => json!({}),
        }
    }
}

/// A guest of this hypervisor whose process is this one. `is_domain`: it is libvirt's.
pub(in crate::outgoing) fn guest_of(
    fake: &Fake,
    dir: &Path,
    outgoing: &Arc<Outgoing>,
    is_domain: bool,
) -> Guest {
    let monitor = dir.join("qmp.sock");
    fake.serve(&monitor);
    let qmp = Qmp::connect(&monitor, Instant::now() + LONG).unwrap();
    let pid = i32::try_from(std::process::id()).unwrap();
    let description = json!({
        "schema": 1, "name": "g", "uuid": null, "machine": "pc", "cpu": "qemu64", "accelerator": "tcg", "memory_bytes": 0,
        "vcpus": 1, "qemu": {"major": 10, "minor": 0, "micro": 2}, "arguments": [], "ram": [], "disks": [], "nics": [],
        "traits": {
            "vhost_user": [], "vfio": [], "foreign_memory": [], "may_discard": false, "tpm": false, "hot_plugged": [],
            "capabilities": [], "blocked": [], "migration": null
        },
        "run_state": "running", "process": {"pid": pid, "vcpu_threads": [], "executable": "qemu"}, "domain": is_domain
    });
    Guest::new(
        outgoing.clone(),
        serde_json::from_value(description).unwrap(),
        GuestRecord::new("g", Origin::Adopted, pid, monitor, Vec::new()).unwrap(),
        SourceQemu::recovered(qmp, true, None, false),
    )
}

/// A domain of this hypervisor before its switch-over.
fn leaving(dir: &TempDir, fake: &Fake) -> (Arc<Outgoing>, Receiver<Input>, Worker) {
    let sessions = crate::testing::agent(dir, &[]).outgoing.clone();
    let dir = dir.path();
    let stream = dir.join("mig.sock");
    let gates = Arc::new(StreamGates::default());
    let asked = DomainMigration { stream: stream.clone(), job: dir.join("job.sock"), uuid: String::new() };
    gates.add(Arc::new(StreamGate::new(&stream, Box::new(|_| Ok(()))).unwrap()));
    let (outgoing, inputs) = outgoing_of(ModeTag::Handover);
    let guest = guest_of(fake, dir, &outgoing, true);
    let domain = OutgoingDomain::new(&asked, gates);
    let mode = ModeParts::Handover { ram: GuestRam::default(), domain };
    let worker = Worker::start(driver::of(&sessions, guest, mode).unwrap()).unwrap();
    (outgoing, inputs, worker)
}

fn is_held(inputs: &Receiver<Input>) -> bool {
    inputs.try_iter().any(|input| matches!(input, Input::Event(Event::PreSwitchover { .. })))
}

#[test]
fn a_domain_that_an_operator_suspended_does_not_count_as_stopped_for_the_switch_over() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.set("paused", "setup");
    let (_outgoing, inputs, worker) = leaving(&dir, &fake);
    worker.submit("switch over", |guest| guest.switch_over());
    for (run_state, migration) in
        [("paused", "setup"), ("paused", "active"), ("running", "active"), ("finish-migrate", "active")]
    {
        fake.set(run_state, migration);
        fake.wait_seen();
        assert!(!is_held(&inputs), "{run_state}, {migration}: it may run again, and write its RAM");
    }
    fake.set("finish-migrate", "device");
    while !matches!(
        inputs.recv_timeout(LONG).expect("it is stopped for the switch-over"),
        Input::Event(Event::PreSwitchover { .. })
    ) {}
    worker.finish();
}

#[test]
fn ram_of_a_domain_is_not_scanned_for_the_last_time_before_its_device_state_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.set("finish-migrate", "pre-switchover");
    let (_outgoing, inputs, worker) = leaving(&dir, &fake);
    worker.submit("switch over", |guest| guest.switch_over());
    fake.wait_seen();
    assert!(!is_held(&inputs), "input of a console may still go to its RAM");
    fake.set("finish-migrate", "device");
    worker.finish();
    assert!(is_held(&inputs));
}

#[test]
fn a_domain_that_has_begun_to_run_guests_of_its_own_is_not_released() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.set_nested("finish-migrate", "device");
    let (_outgoing, inputs, worker) = leaving(&dir, &fake);
    worker.submit("switch over", |guest| guest.switch_over());
    worker.finish();
    let all: Vec<Input> = inputs.try_iter().collect();
    let is_untracked = |fault: &Fault| fault.code == Code::TrackingFailed;
    assert!(
        all.iter().any(|input| matches!(input, Input::Event(Event::Failed(fault)) if is_untracked(fault)))
    );
    assert!(!all.iter().any(|input| matches!(input, Input::Event(Event::PreSwitchover { .. }))));
}

#[test]
fn what_is_held_of_a_domain_that_libvirt_resumes_is_not_released() {
    for (run_state, migration) in [("running", "completed"), ("paused", "failed")] {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.set(run_state, migration);
        let (_outgoing, inputs, worker) = leaving(&dir, &fake);
        worker.submit("release stream", |guest| guest.release_stream());
        let input = inputs.recv_timeout(LONG).expect("it is given up");
        let Input::Event(Event::Failed(fault)) = input else { panic!("{run_state}, {migration}") };
        assert!(
            fault.detail.contains("does not hold the guest any more"),
            "{run_state}, {migration}: {fault}"
        );
        worker.finish();
    }
}

#[test]
fn each_state_of_qemu_during_the_switch_over_is_known() {
    for (run_state, migration) in [("finish-migrate", "device"), ("postmigrate", "completed")] {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        fake.set(run_state, migration);
        let (_outgoing, inputs, worker) = leaving(&dir, &fake);
        worker.submit("switch over", |guest| guest.switch_over());
        worker.finish();
        assert!(is_held(&inputs), "{run_state}, {migration}");
    }
}

#[test]
fn a_capability_that_is_off_is_so_in_the_record_that_ends_the_session() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::default();
    fake.set("running", "failed");
    let (outgoing, inputs, worker) = leaving(&dir, &fake);
    let state = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&state, &[]);
    let pid = i32::try_from(std::process::id()).unwrap();
    let qemu = GuestRecord::new("g", Origin::Adopted, pid, dir.path().join("qmp.sock"), Vec::new()).unwrap();
    let record = Record::new("g", 1, Role::Handover { qemu, over: false });
    let mut session_loop = SessionLoop::new(outgoing.clone(), worker, agent.outgoing.clone(), record);
    session_loop.roll_back();
    loop {
        let input = inputs.recv_timeout(LONG).expect("it is rolled back");
        let is_last = matches!(input, Input::Event(Event::RolledBack { .. }));
        session_loop.take(input);
        if is_last {
            break;
        }
    }
    session_loop.write_journal(SourcePhase::RolledBack);
    let record = agent.outgoing.journal.get(outgoing.session).unwrap().unwrap();
    assert!(matches!(record.role, Role::Handover { over: true, .. }), "{:?}", record.role);
}
