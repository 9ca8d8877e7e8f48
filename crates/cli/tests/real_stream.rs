//! Real agents move real guests by QEMU's own streams, over real links in namespaces. As root, with what lab/install.sh
//! installs. One at a time, as in `real_migration.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "real/stage.rs"]
#[allow(dead_code, reason = "shared with real_migration.rs")]
mod stage;

use std::time::{Duration, Instant};

use linerate_lab::guest::{kvm_is_missing, not_run};
use linerate_lab::{DiskMode, GuestParameters, GuestSpec, QemuVersion, Qmp};
use serde_json::Value;
use stage::{Stage, ended, lost};

/// Long enough for a slow machine; only a hang reaches it.
const LONG: Duration = Duration::from_secs(120);
/// Slow enough that a migration takes some seconds.
const SLOW: [u64; 2] = [300, 300];

fn busy() -> GuestParameters {
    GuestParameters {
        mem_mb: 160,
        dirty_mbps: 10,
        dirty_ws_mb: Some(8),
        verify_mbps: 40,
        ..GuestParameters::default()
    }
}

fn emulated(version: QemuVersion) -> GuestSpec {
    GuestSpec::new("g", busy()).qemu(version)
}

/// Under KVM: QEMU 7.2 harms emulated guests that it moves, also by itself (docs/stream-mode.md). None where there is
/// no KVM.
fn under_kvm(version: QemuVersion) -> Option<GuestSpec> {
    let missing = kvm_is_missing().map(|error| not_run(&format!("no /dev/kvm ({error})")));
    missing.is_none().then(|| user_mode(version))
}

fn user_mode(version: QemuVersion) -> GuestSpec {
    GuestSpec::user_mode("g", GuestParameters { dirty_mbps: 0, ..busy() }).qemu(version)
}

/// Under KVM if there is one. QEMU 10.0 loses writes of emulated guests too, if rarely (docs/stream-mode.md).
fn guest() -> GuestSpec {
    let make = if kvm_is_missing().is_none() { user_mode } else { emulated };
    make(QemuVersion::Ten)
}

fn plain() -> Stage {
    Stage::plain(&SLOW, guest(), None)
}

/// Carried by the streams, by both links.
fn by_streams(report: &Value) {
    assert_eq!(report["mode"], "stream");
    let links = report["links"].as_array().unwrap();
    assert!(links.iter().all(|link| link["sent_bytes"].as_u64().unwrap() > 1 << 20), "{links:#?}");
    assert!(!report["rounds"].as_array().unwrap().is_empty(), "QEMU's own rounds are in the report");
}

/// After whatever went wrong: the same migration succeeds.
fn retry(stage: &mut Stage) {
    let report = ended(&stage.migrate(&[]).finish()).completed();
    assert_eq!(report["mode"], "stream");
    stage.arrived();
    stage.guest_goes_on();
}

fn warned_of_emulation(events: &[Value]) -> bool {
    events.iter().any(|event| event["kind"] == "warning" && event["text"].as_str().unwrap().contains("tcg"))
}

/// There and back, one link cut on the way there; the guest checks its memory, and its disk if it has one.
fn there_and_back(guest: GuestSpec, disk: Option<DiskMode>) {
    let version = guest.qemu;
    let mut stage = Stage::plain(&SLOW, guest, disk);
    let mut migration = stage.migrate_slowly(&[]);
    stage.lab.cut(1).unwrap();
    migration.wait(LONG, |event| lost(event) && event["link"] == 1);
    stage.speed_up();
    let events = migration.finish();
    assert!(!warned_of_emulation(&events));
    let report = ended(&events).completed();
    by_streams(&report);
    let parallel = report["stream_channels"].as_u64().unwrap() > 0;
    assert_eq!(parallel, version == QemuVersion::Ten, "parallel channels are for versions that can");
    assert!(report["links"][1]["lost_count"].as_u64().unwrap() >= 1);
    let reason = report["mode_reason"].as_str().unwrap();
    assert!(reason.contains("direct: no, because"), "{reason}");
    stage.arrived();
    stage.guest_goes_on();
    let report = ended(&stage.migrate_over_all_links(&["--mode", "stream"])).completed();
    by_streams(&report);
    assert_eq!(report["mode_reason"], Value::Null, "it was asked for");
    stage.arrived();
    stage.guest_goes_on();
}

#[test]
fn qemu_7_with_private_ram_and_a_direct_disk_under_kvm() {
    let Some(guest) = under_kvm(QemuVersion::System) else { return };
    there_and_back(guest, Some(DiskMode::Direct));
}

#[test]
fn qemu_10_with_private_ram_and_a_buffered_disk_under_kvm() {
    let Some(guest) = under_kvm(QemuVersion::Ten) else { return };
    there_and_back(guest, Some(DiskMode::Buffered));
}

#[test]
fn qemu_10_with_private_ram_and_a_buffered_disk() {
    there_and_back(emulated(QemuVersion::Ten), Some(DiskMode::Buffered));
}

#[test]
fn qemu_10_with_private_ram_and_a_direct_disk() {
    there_and_back(emulated(QemuVersion::Ten), Some(DiskMode::Direct));
}

/// How whole it arrives is its QEMU's affair, so nothing is asked of the guest but that it runs.
#[test]
fn an_emulated_guest_of_qemu_7_arrives_and_a_warning_was_given() {
    let mut stage = Stage::plain(&[1000, 1000], emulated(QemuVersion::System), None);
    let events = stage.migrate_over_all_links(&[]);
    assert!(warned_of_emulation(&events), "{events:?}");
    let report = ended(&events).completed();
    by_streams(&report);
    assert_eq!(report["stream_channels"], 0);
    stage.arrived();
    assert_eq!(stage.shown()["summary"]["state"], "running");
}

#[test]
fn a_guest_that_direct_mode_could_move_goes_by_streams_where_that_is_asked_for() {
    let mut stage = Stage::with_guest(&[1000, 1000], guest());
    let report = ended(&stage.migrate_over_all_links(&["--mode", "stream"])).completed();
    by_streams(&report);
    stage.arrived();
    stage.guest_goes_on();
    // And directly from there: what streams set in its QEMU has been put back.
    let report = ended(&stage.migrate(&["--mode", "direct", "--verify"]).finish()).completed();
    assert_eq!((&report["mode"], &report["verified"]), (&"direct".into(), &true.into()));
    stage.arrived();
    stage.guest_goes_on();
}

#[test]
fn all_links_gone_for_a_while_is_waited_for() {
    let mut stage = plain();
    // Only the destination has a limit below, of 60 s without its source.
    let mut migration = stage.migrate_slowly(&["--link-timeout", "600s"]);
    (0..2).for_each(|link| stage.lab.cut(link).unwrap());
    for link in 0..2_u64 {
        migration.wait(LONG, |event| lost(event) && event["link"] == link);
    }
    stage.guest_runs();
    stage.speed_up();
    by_streams(&ended(&migration.finish()).completed());
    stage.arrived();
    stage.guest_goes_on();
}

#[test]
fn all_links_gone_for_too_long_fails_cleanly_and_the_retry_succeeds() {
    let Some(guest) = under_kvm(QemuVersion::System) else { return };
    all_links_gone_for_too_long(guest);
}

#[test]
fn all_links_gone_for_too_long_fails_cleanly_with_parallel_channels() {
    all_links_gone_for_too_long(guest());
}

fn all_links_gone_for_too_long(guest: GuestSpec) {
    let mut stage = Stage::plain(&SLOW, guest, None);
    let migration = stage.migrate_slowly(&["--link-timeout", "5s"]);
    (0..2).for_each(|link| stage.lab.drop_silently(link).unwrap());
    let failure = ended(&migration.finish()).failed(1);
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    stage.guest_goes_on();
    stage.speed_up();
    retry(&mut stage);
}

#[test]
fn the_sources_agent_is_killed_in_the_middle() {
    let mut stage = plain();
    let _migration = stage.migrate_slowly(&[]);
    stage.source_agent().kill().unwrap();
    stage.speed_up();
    stage.guest_runs();
    stage.source_agent().restart().unwrap();
    stage.guest_goes_on();
    stage.wait_told_at_destination();
    retry(&mut stage);
}

#[test]
fn the_destinations_agent_is_killed_in_the_middle() {
    let mut stage = plain();
    let migration = stage.migrate_slowly(&["--link-timeout", "5s"]);
    stage.destination_agent().kill().unwrap();
    stage.speed_up();
    let failure = ended(&migration.finish()).failed(1);
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    stage.guest_goes_on();
    stage.destination_agent().restart().unwrap();
    stage.wait_guests_at_destination(0, LONG);
    retry(&mut stage);
}

/// A process of the destination, by its number.
fn signal(pid: u64, signal: &str) {
    let done = std::process::Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
    assert!(done.success());
}

fn the_waiting_qemu_dies(guest: GuestSpec) {
    let mut stage = Stage::plain(&SLOW, guest, None);
    let before = stage.descriptors();
    let migration = stage.migrate_slowly(&[]);
    signal(stage.qemu_pid(true), "-KILL");
    let failure = ended(&migration.finish()).failed(1);
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    // The source waits a second for what the destination knows. A busy one may be late, and then the source names its
    // own QEMU's broken connection. Two unit tests show the side of each:
    // `crates/core/src/source/stream_tests.rs::a_destination_that_closed_the_connection_sends_the_cause` and
    // `crates/core/src/source/stream_tests.rs::a_destination_that_sends_no_cause_gets_an_abort`.
    assert_eq!(failure["code"], "hypervisor_failed", "{failure}");
    assert!(matches!(failure["side"].as_str(), Some("destination" | "source")), "{failure}");
    stage.speed_up();
    stage.guest_goes_on();
    stage.wait_freed_at_destination();
    nothing_is_left_open(&stage, before);
    retry(&mut stage);
}

/// Connections of links that ended linger for a moment.
fn nothing_is_left_open(stage: &Stage, before: Vec<String>) {
    let end = Instant::now() + LONG;
    while stage.descriptors().len() > before.len() {
        assert!(Instant::now() < end, "before:\n{before:#?}\nnow:\n{:#?}", stage.descriptors());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_waiting_qemu_7_dies_in_the_middle() {
    let Some(guest) = under_kvm(QemuVersion::System) else { return };
    the_waiting_qemu_dies(guest);
}

#[test]
fn the_waiting_qemu_10_dies_in_the_middle() {
    the_waiting_qemu_dies(guest());
}

#[test]
fn a_waiting_qemu_that_reads_no_more_is_given_up_after_the_limit() {
    let mut stage = plain();
    let migration = stage.migrate_slowly(&["--link-timeout", "5s"]);
    signal(stage.qemu_pid(true), "-STOP");
    let failure = ended(&migration.finish()).failed(1);
    stage.speed_up();
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    assert_eq!(failure["code"], "peer_lost", "{failure}");
    stage.guest_goes_on();
    stage.wait_freed_at_destination();
    retry(&mut stage);
}

#[test]
fn a_cancelled_migration_leaves_the_guest_as_it_was() {
    let mut stage = plain();
    let before = stage.descriptors();
    let migration = stage.migrate_slowly(&[]);
    migration.interrupt();
    let events = migration.finish();
    stage.speed_up();
    assert_eq!(ended(&events).exit, Some(5), "{events:?}");
    stage.guest_goes_on();
    stage.wait_freed_at_destination();
    nothing_is_left_open(&stage, before);
    retry(&mut stage);
}

#[test]
fn a_guest_that_writes_too_fast_is_given_up_and_runs_on() {
    let fast = GuestParameters { dirty_mbps: -1, dirty_ws_mb: None, verify_mbps: 0, ..busy() };
    let stage = Stage::plain(&[200], GuestSpec::new("g", fast).qemu(QemuVersion::Ten), None);
    let failure = ended(&stage.migrate(&["--max-rounds", "2"]).finish()).failed(1);
    assert_eq!(failure["code"], "not_converging", "{failure}");
    assert_eq!(failure["guest_state"], "runs_at_source", "{failure}");
    stage.guest_goes_on();
}

#[test]
fn what_streams_cannot_do_is_refused_and_touches_nothing() {
    let stage = plain();
    let to = stage.destination_address();
    for (arguments, message) in
        [(["--mode", "direct"].as_slice(), "direct: no, because"), (&["--verify"], "in direct mode only")]
    {
        let all = [&["migrate", "g", "--to", &to, "--json"], arguments].concat();
        let (exit, text) = stage.linerate_at_source(&all);
        assert_ne!(exit, 0);
        assert!(text.contains("not_migratable") && text.contains(message), "{text}");
    }
    stage.guest_goes_on();
    // What is refused before anything is begun leaves nothing to wait for.
    assert_eq!(stage.guests_at_destination(), 0);
}

/// How the guest's QEMU is set for migrations, as it says itself: every capability and every parameter.
fn qemu_settings(stage: &Stage) -> [Value; 2] {
    let folder = stage.lab.hosts()[stage.source].run_directory().join("guests/g");
    assert!(!folder.join("qemu/state.sock").exists(), "what its stream was taken by is left");
    let mut qemu = Qmp::of_guest(&stage.lab.hosts()[stage.source], "g").unwrap();
    let mut ask = |command: &str| qemu.execute(command, Value::Null).unwrap();
    [ask("query-migrate-capabilities"), ask("query-migrate-parameters")]
}

#[test]
fn what_was_set_in_qemu_is_put_back_after_a_cancel_by_the_restarted_agent_and_at_the_destination() {
    let mut stage = plain();
    let before = qemu_settings(&stage);
    let migration = stage.migrate_slowly(&[]);
    migration.interrupt();
    assert_eq!(ended(&migration.finish()).exit, Some(5));
    stage.guest_goes_on();
    assert_eq!(qemu_settings(&stage), before, "after a cancel");

    let _migration = stage.migrate_slowly(&[]);
    stage.source_agent().kill().unwrap();
    stage.speed_up();
    stage.source_agent().restart().unwrap();
    stage.guest_goes_on();
    assert_eq!(qemu_settings(&stage), before, "after the agent's restart");
    stage.wait_freed_at_destination();

    retry(&mut stage);
    assert_eq!(qemu_settings(&stage), before, "at the destination, of a QEMU of the same version");
}
