//! Domains of two real libvirts go from RAM to RAM while libvirt's own migration waits, over two links. The guest
//! checks its memory. As root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "libvirt/names.rs"]
mod names;
#[path = "libvirt/saves.rs"]
mod saves;
#[path = "libvirt/secured.rs"]
mod secured;
#[path = "libvirt/stage.rs"]
#[allow(dead_code, reason = "shared with real_libvirt.rs")]
mod stage;

use std::time::{Duration, Instant};

use linerate_lab::guest::{kvm_is_missing, not_run};
use linerate_lab::libvirt::IMAGES;
use linerate_lab::sshd::Sshd;
use linerate_lab::{Console, DiskMode, GuestParameters, GuestSpec, LibvirtVersion};
use rustix::process::Signal;
use serde_json::Value;
use stage::{LONG, Moving, Stage, quick};

/// Slower than the guest writes, so that it takes long.
const SLOW: [&str; 4] = ["--mode", "direct", "--bandwidth", "40M"];
/// The first pass takes about ten seconds, and what a steady guest writes meanwhile fits into the blackout.
const UNHURRIED: [&str; 6] = ["--mode", "direct", "--bandwidth", "40M", "--max-blackout", "5s"];
/// For those who lose all links. Shorter loses them to a busy machine.
const IMPATIENT: [&str; 6] = ["--mode", "direct", "--bandwidth", "40M", "--link-timeout", "10s"];

/// The capability with which a domain is saved without its RAM.
fn ignores_shared(stage: &Stage, host: usize) -> bool {
    let ask = "{\"execute\":\"query-migrate-capabilities\"}";
    let answer = stage.libvirts[host].virsh(&["qemu-monitor-command", "g", ask]).unwrap();
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let all = answer["return"].as_array().unwrap();
    all.iter().find(|one| one["capability"] == "x-ignore-shared").unwrap()["state"].as_bool().unwrap()
}

/// It is put back soon after the end of whatever set it.
fn wait_put_back(stage: &Stage, host: usize) {
    let deadline = Instant::now() + LONG;
    while ignores_shared(stage, host) {
        assert!(Instant::now() < deadline, "the capability stays on at host {host}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The domain was never touched, as far as can be seen.
fn stayed(stage: &Stage) {
    stage.is_whole_at(0);
    wait_put_back(stage, 0);
    gone_there(stage);
}

fn gone_there(stage: &Stage) {
    // A libvirt that all links were lost to is notified when one is back.
    let deadline = Instant::now() + LONG;
    while stage.state(1).is_some() {
        assert!(Instant::now() < deadline, "it stays at the destination");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Sessions that the second host's agent was asked to give up.
fn rolled_back(stage: &Stage) -> usize {
    std::fs::read_to_string(stage.agents[1].log()).unwrap().matches("rolled back at its source").count()
}

/// The agent that was started again has the other give up the tunnel and the copy, which the other would do by itself
/// much later.
fn wait_rolled_back(stage: &Stage, before: usize) {
    let deadline = Instant::now() + LONG;
    while rolled_back(stage) < before + 2 {
        assert!(Instant::now() < deadline, "the other host is not notified");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn copies(moving: &Moving) {
    moving.wait("the copy", |line| line["kind"] == "progress" && line["sent_bytes"].as_u64() > Some(4 << 20));
}

/// Both links: one that is not open yet is not lost when it is cut.
fn copies_over_both(moving: &Moving) {
    let carries = |link: &Value| link["sent_bytes"].as_u64() > Some(1 << 20);
    moving.wait("the copy over both links", |line| {
        line["links"].as_array().is_some_and(|links| links.len() == 2 && links.iter().all(carries))
    });
}

fn suspends(stage: &Stage, moving: &Moving) {
    copies(moving);
    stage.libvirts[0].virsh(&["suspend", "g"]).unwrap();
    assert_eq!(stage.state(0).as_deref(), Some("paused"));
}

fn finished(lines: &[Value]) -> &Value {
    lines.iter().find(|line| line["kind"] == "finished").expect("its end")
}

/// How its disk is open. Older libvirts cannot be configured with a folder that both hosts share.
fn direct(version: LibvirtVersion) -> Option<DiskMode> {
    (version == LibvirtVersion::Eleven).then_some(DiskMode::Direct)
}

/// There with a link that is lost on the way, saved and restored, and back with all RAM compared.
fn moves_there_and_back(version: LibvirtVersion) {
    let mut stage = Stage::shared_steady(version, direct(version));
    let moving = stage.start_bare(0, &UNHURRIED);
    copies_over_both(&moving);
    stage.lab.cut(0).unwrap();
    let ended = moving.end();
    stage.lab.restore(0).unwrap();
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    assert_eq!((&ended.last()["event"], &ended.last()["state"]), (&"completed".into(), &"running".into()));
    assert!(ended.lines.iter().any(|line| line["kind"] == "link_lost"), "{ended:#?}");
    let report = &finished(&ended.lines)["report"];
    assert_eq!((&report["mode"], &report["outcome"]), (&"direct".into(), &"completed".into()), "{report:#}");
    // Rule 6: with O_DIRECT it is paused while protection is applied.
    let paused = report["pauses_us"].as_u64() > Some(0);
    assert_eq!(paused, direct(version).is_some(), "{report:#}");
    let written = report["rounds"][0]["dirty_bytes_after"].as_u64();
    assert!(written > Some(0), "nothing was written meanwhile: {report:#}");
    wait_put_back(&stage, 1);
    stage.arrived(1);
    stage.is_whole_at(1);
    stage.nothing_is_left();
    assert!(stage.state(0).is_none(), "it is still defined at the source");

    // With the capability left on, a domain is saved without its RAM.
    let saved = format!("{IMAGES}/g.saved");
    stage.libvirts[1].virsh(&["save", "g", &saved]).unwrap();
    stage.libvirts[1].virsh(&["restore", &saved]).unwrap();
    stage.is_whole_at(1);

    let ended = stage.start_bare(1, &["--verify"]).end();
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let mode = ended.lines.iter().find(|line| line["event"] == "mode").unwrap();
    assert_eq!((&mode["mode"], &mode["reason"]), (&"direct".into(), &Value::Null));
    assert_eq!(finished(&ended.lines)["report"]["verified"], true);
    stage.arrived(0);
    stage.is_whole_at(0);
    wait_put_back(&stage, 0);
    stage.nothing_is_left();

    match kvm_is_missing() {
        None => goes_under_kvm(&mut stage, version),
        Some(error) => not_run(&format!("under KVM: no /dev/kvm ({error})")),
    }
}

/// A guest without a kernel, there and back from RAM to RAM; and with the newer libvirt there and back by its own
/// migration.
fn goes_under_kvm(stage: &mut Stage, version: LibvirtVersion) {
    stage.ends();
    let parameters = GuestParameters { mem_mb: 96, dirty_ws_mb: Some(8), ..GuestParameters::default() };
    stage.begin(&GuestSpec::user_mode("g", parameters));
    assert!(stage.libvirts[0].virsh(&["dumpxml", "g"]).unwrap().contains("<domain type='kvm'"));
    let all = [(0, "direct"), (1, "direct"), (0, "stream"), (1, "stream")];
    let count = if version == LibvirtVersion::Eleven { 4 } else { 2 };
    for (from, mode) in all.into_iter().take(count) {
        let ended = stage.start_bare(from, &["--mode", mode]).end();
        assert_eq!(ended.code, Some(0), "{mode}: {ended:#?}");
        stage.arrived(1 - from);
        stage.is_whole_at(1 - from);
        wait_put_back(stage, 1 - from);
    }
}

#[test]
fn a_domain_of_libvirt_11_arrives_whole_and_a_lost_link_is_survived() {
    moves_there_and_back(LibvirtVersion::Eleven);
}

#[test]
fn a_domain_of_debian_12s_libvirt_arrives_whole_and_a_lost_link_is_survived() {
    moves_there_and_back(LibvirtVersion::System);
}

/// Each of them while QEMU's connection waits and RAM is copied.
fn whatever_ends_leaves_it_at_the_source(version: LibvirtVersion) {
    let mut stage = Stage::shared(version, direct(version));
    let moving = stage.start_bare(0, &SLOW);
    copies(&moving);
    assert!(ignores_shared(&stage, 0), "it is looked for in the wrong place");
    moving.signal(Signal::INT);
    let ended = moving.end();
    assert_eq!(ended.code, Some(5), "Ctrl-C: {ended:#?}");
    assert_eq!(finished(&ended.lines)["error"]["guest_state"], "runs_at_source", "{ended:#?}");
    assert!(!ignores_shared(&stage, 0), "the command says that it is over");
    stayed(&stage);
    stage.nothing_is_left();

    // libvirt's own operator.
    let moving = stage.start_bare(0, &SLOW);
    copies(&moving);
    stage.libvirts[0].virsh(&["domjobabort", "g"]).unwrap();
    let ended = moving.end();
    assert_eq!(ended.code, Some(1), "domjobabort: {ended:#?}");
    stayed(&stage);

    // What is our part is the same whatever the version is.
    if version == LibvirtVersion::Eleven {
        any_other_end_leaves_it_at_the_source(&mut stage);
    }

    let hosts: &[usize] = if version == LibvirtVersion::Eleven { &[1, 0] } else { &[0] };
    for &host in hosts {
        let moving = stage.start_bare(0, &IMPATIENT);
        copies(&moving);
        let before = rolled_back(&stage);
        stage.agents[host].kill().unwrap();
        let ended = moving.end();
        assert!(ended.code.is_some_and(|code| code != 0), "the agent of host {host}: {ended:#?}");
        if host == 0 {
            let message = format!("{ended:?}");
            for words in ["the domain is running here", "was put back"] {
                assert!(message.contains(words), "{words}: {ended:#?}");
            }
            assert!(!ignores_shared(&stage, 0), "the command says so");
        } else {
            gone_there(&stage);
        }
        assert!(!stage.sockets(host).is_empty(), "nothing of it is left behind at host {host}");
        stage.agents[host].restart().unwrap();
        assert_eq!(stage.sockets(host), [""; 0], "left behind at host {host} by its agent or QEMU");
        if host == 0 {
            wait_rolled_back(&stage, before);
            assert_eq!(stage.wait_listed(0, "failed")["guest"], "g");
        }
        gone_there(&stage);
        stayed(&stage);
    }

    // After all of that it moves, suspended on the way: libvirt lets it run there.
    let moving = stage.start_bare(0, &["--mode", "direct", "--bandwidth", "80M"]);
    suspends(&stage, &moving);
    let ended = moving.end();
    assert_eq!(ended.code, Some(0), "after all of that: {ended:#?}");
    stage.arrived(1);
    stage.is_whole_at(1);
    wait_put_back(&stage, 1);
}

fn any_other_end_leaves_it_at_the_source(stage: &mut Stage) {
    // Suspended meanwhile: libvirt lets it run again, as it does after a migration of its own that was cancelled.
    let moving = stage.start_bare(0, &SLOW);
    suspends(stage, &moving);
    moving.signal(Signal::INT);
    let ended = moving.end();
    assert_eq!(ended.code, Some(5), "suspended: {ended:#?}");
    stayed(stage);

    // The command is killed: it goes on, until it is cancelled from another shell.
    let moving = stage.start_bare(0, &SLOW);
    copies(&moving);
    moving.signal(Signal::KILL);
    drop(moving.end());
    let listed = stage.listed(0);
    assert_eq!((&listed["guest"], &listed["state"]), (&"g".into(), &"running".into()), "{listed:#}");
    assert_eq!(stage.listed(1)["id"], listed["id"], "the copy has the same name at the other host");
    let id = listed["id"].as_str().unwrap();
    let (code, message) = stage.asks_agent(0, &["migration", "cancel", id]);
    assert_eq!(code, Some(0), "{message:#}");
    assert!(!ignores_shared(stage, 0), "it is reported to be over");
    stayed(stage);

    let moving = stage.start_bare(0, &IMPATIENT);
    copies(&moving);
    for link in [0, 1] {
        stage.lab.drop_silently(link).unwrap();
    }
    let ended = moving.end();
    for link in [0, 1] {
        stage.lab.restore(link).unwrap();
    }
    assert_eq!(ended.code, Some(1), "all links: {ended:#?}");
    stayed(stage);
    stage.nothing_is_left();
}

#[test]
fn whatever_ends_while_libvirt_11_waits_leaves_the_domain_at_the_source() {
    whatever_ends_leaves_it_at_the_source(LibvirtVersion::Eleven);
}

#[test]
fn whatever_ends_while_debian_12s_libvirt_waits_leaves_the_domain_at_the_source() {
    whatever_ends_leaves_it_at_the_source(LibvirtVersion::System);
}

/// libvirt decides within moments, if it can; a connection that is silent counts as lost after 30 s. A state that lasts
/// longer stays.
const UNANSWERED: Duration = Duration::from_secs(45);

/// Where it runs once libvirt has decided. If the answer of the other host was lost, libvirt leaves the domain paused
/// at the source. An operator then looks at both hosts and ends that one.
fn decided(stage: &Stage) -> usize {
    let deadline = Instant::now() + LONG;
    let (mut since, mut before) = (Instant::now(), [None, None]);
    loop {
        let states = [0, 1].map(|host| stage.state(host));
        if states != before {
            (since, before) = (Instant::now(), states.clone());
        }
        match states.each_ref().map(Option::as_deref) {
            [Some("running"), None] => return 0,
            [None, Some("running")] => return 1,
            [Some("paused" | "shut off"), Some("running")]
            | [Some("running"), Some("paused" | "shut off")]
                if since.elapsed() > UNANSWERED =>
            {
                let paused_at = states.iter().position(|state| state.as_deref() != Some("running")).unwrap();
                // What is left of a persistent domain that was ended is its definition.
                let words: &[&str] = match states[paused_at].as_deref() {
                    Some("paused") => &["destroy", "g"],
                    _ => &["undefine", "g"],
                };
                stage.libvirts[paused_at].virsh(words).unwrap();
            }
            _ => {}
        }
        assert!(Instant::now() < deadline, "not decided: {states:?}\n{}", stage.evidence());
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn an_agent_that_dies_after_the_stream_was_released_leaves_no_capability_behind() {
    // With a disk in the page cache, which QEMU writes out here and drops there.
    let mut stage = Stage::shared(LibvirtVersion::Eleven, Some(DiskMode::Buffered));
    let mut at = 0;
    for dies in [0, 1] {
        let moving = stage.start_bare(at, &["--mode", "direct"]);
        let handed_over = |line: &Value| line["name"] == "commit" && line["state"] == "started";
        moving.wait("the hand-over", handed_over);
        stage.agents[dies].kill().unwrap();
        drop(moving.end());
        stage.agents[dies].restart().unwrap();
        let now = decided(&stage);
        if now != at {
            stage.arrived(now);
        }
        at = now;
        stage.is_whole_at(at);
        wait_put_back(&stage, at);
        stage.wait_known(0);
        stage.wait_known(1);
    }
    let ended = stage.start_bare(at, &["--mode", "direct"]).end();
    assert_eq!(ended.code, Some(0), "after all of that: {ended:#?}");
    stage.arrived(1 - at);
    stage.is_whole_at(1 - at);
}

#[test]
fn a_domain_that_direct_mode_refuses_moves_by_libvirts_own_migration() {
    let mut stage = Stage::empty(LibvirtVersion::Eleven);
    let guest = quick(32);
    stage.libvirts[0].start_domain(&guest).unwrap();
    stage.knows(&guest);
    for (flags, code, words) in [
        (&["--mode", "direct"][..], 4, "g.sock"),
        (&["--verify"], 2, "g.sock"),
        (&["--mode", "direct", "--copy-storage", "all"], 2, "--copy-storage"),
    ] {
        let ended = stage.start_bare(0, flags).end();
        assert_eq!(ended.code, Some(code), "{flags:?}: {ended:#?}");
        let message = ended.last()["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{flags:?}: {message}");
    }
    let ended = stage.start_bare(0, &[]).end();
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let mode = ended.lines.iter().find(|line| line["event"] == "mode").unwrap();
    assert_eq!(mode["mode"], "stream");
    assert!(mode["reason"].as_str().unwrap().contains("libvirt-direct.md"), "{mode}");
    stage.arrived(1);
    stage.is_whole_at(1);
}

/// The guests leave, and the hot one says why it does not. The drain is aborted.
fn drained_but_hot(stage: &Stage, to: &str) {
    let (exit, answer) = stage.asks_agent(0, &["drain", "--to", to, "--max-blackout", "300ms", "--detach"]);
    assert_eq!(exit, Some(0), "{answer:#}");
    let deadline = Instant::now() + LONG;
    let drain = loop {
        let (_, drain) = stage.asks_agent(0, &["drain", "status"]);
        let of = |name: &str| {
            let guests = drain["guests"].as_array().expect("guests");
            guests.iter().find(|one| one["guest"] == name).expect("it is of the drain").clone()
        };
        let tried = of("hot")["tries"].as_array().is_some_and(|tries| !tries.is_empty());
        if of("g")["state"] == "moved" && of("calm")["state"] == "moved" && tried {
            assert_eq!(of("g")["domain"], true);
            let reason = of("hot")["tries"][0]["reason"].as_str().unwrap().to_owned();
            assert!(reason.contains("writes memory or disks faster than the links"), "{reason}");
            assert!(of("hot")["hint"].as_str().unwrap().contains("--throttle"), "{drain:#}");
            break drain;
        }
        assert!(drain["state"] != "ended" && Instant::now() < deadline, "{drain:#}\n{}", stage.evidence());
        std::thread::sleep(Duration::from_millis(200));
    };
    let (exit, answer) = stage.asks_agent(0, &["drain", "abort"]);
    assert_eq!(exit, Some(0), "{answer:#}\n{drain:#}");
    let (_, list) = stage.asks_agent(0, &["vm", "list"]);
    let here: Vec<_> = list.as_array().unwrap().iter().map(|one| (&one["name"], &one["state"])).collect();
    assert_eq!(here, [(&Value::from("hot"), &Value::from("running"))], "it was not touched");
}

/// Where libvirt does not answer, it is not known whether the host is empty.
fn unseen_without_libvirt(stage: &Stage, to: &str) {
    let at_first = |script: &str| {
        let status = stage.libvirts[0].host().command("sh").args(["-ec", script]).status().unwrap();
        assert!(status.success(), "{script}");
    };
    let drains = || stage.asks_agent(0, &["drain", "--to", to, "--keep", "hot"]);
    at_first("cd /run/libvirt; mv libvirt-sock aside; touch libvirt-sock");
    let (exit, answer) = drains();
    assert_eq!(exit, Some(1), "{answer:#}");
    let (_, status) = stage.asks_agent(0, &["drain", "status"]);
    assert!(status["unseen"][0].as_str().unwrap().contains("libvirt"), "{status:#}");
    let planned = stage.asks_agent(0, &["drain", "--to", to, "--keep", "hot", "--dry-run"]);
    assert_eq!(planned.0, Some(1), "{:#}", planned.1);
    at_first("cd /run/libvirt; mv aside libvirt-sock");
    let (exit, answer) = drains();
    assert_eq!(exit, Some(0), "{answer:#}");
    assert_eq!(stage.asks_agent(0, &["drain", "status"]).1["unseen"], serde_json::json!([]));
}

/// Both come back. What is here already is left as it is.
fn come_back(stage: &Stage) {
    for _ in 0..2 {
        let (exit, answer) = stage.asks_agent(0, &["undrain"]);
        assert_eq!(exit, Some(0), "{answer:#}\n{}", stage.evidence());
        let of = |one: &Value| (one["guest"].clone(), one["state"].clone());
        let guests: Vec<_> = answer["guests"].as_array().unwrap().iter().map(of).collect();
        assert_eq!(guests, [("calm".into(), "back".into()), ("g".into(), "back".into())]);
    }
}

/// A domain of libvirt, a guest of the agent and one that writes faster than the links carry, in one drain. Those that
/// have left come back.
#[test]
fn a_drain_moves_domains_and_guests_and_says_why_one_does_not_converge() {
    let mut stage = Stage::empty_over(LibvirtVersion::Eleven, 80);
    let writes = |dirty_mbps: i64, working_set: u64| GuestParameters {
        mem_mb: working_set + 24,
        dirty_mbps,
        dirty_ws_mb: Some(working_set),
        ..GuestParameters::default()
    };
    // The links carry 20 MB/s. The last guest writes its 32 MiB under KVM, and wrote 56 MB/s where many processes
    // shared two cores (64 alone). The domain writes the same 1 MiB again and again.
    stage.begin(&GuestSpec::user_mode("g", writes(0, 1)));
    let place = &stage.lab.hosts()[0];
    let calm = GuestSpec::bare("calm", writes(1, 1));
    let hot = GuestSpec::user_mode("hot", writes(0, 32));
    for guest in [&calm, &hot] {
        let file = guest.write_toml(place).unwrap();
        let (exit, answer) = stage.asks_agent(0, &["vm", "start", file.to_str().unwrap()]);
        assert_eq!(exit, Some(0), "{answer:#}");
        Console::new([guest.serial(place)]).wait_passes(1, LONG).unwrap();
    }
    let to = stage.agents[1].address(0).to_string();
    drained_but_hot(&stage, &to);
    unseen_without_libvirt(&stage, &to);
    stage.arrived(1);
    stage.is_whole_at(1);
    come_back(&stage);
    stage.arrived(0);
    stage.is_whole_at(0);
    let (_, list) = stage.asks_agent(0, &["vm", "list"]);
    let here: Vec<_> = list.as_array().unwrap().iter().map(|one| one["name"].as_str()).collect();
    assert_eq!(here, [Some("calm"), Some("hot")]);

    // Somebody wants it there. That agent forgets what it was asked before.
    let (exit, answer) = stage.asks_agent(0, &["migrate", "qemu:///system/g", "--to", &to]);
    assert_eq!(exit, Some(0), "{answer:#}");
    stage.agents[1].kill().unwrap();
    stage.agents[1].restart().unwrap();
    let (exit, answer) = stage.asks_agent(0, &["undrain"]);
    assert_eq!(exit, Some(1), "{answer:#}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("1 of 2 guests did not"), "{answer:#}");
    stage.arrived(1);
    stage.is_whole_at(1);
}

/// A host with a domain and a guest of the agent is emptied by ssh, the command runs, and both come back.
#[test]
fn a_host_with_a_domain_is_emptied_for_a_command_and_filled_again() {
    let mut stage = Stage::empty_over(LibvirtVersion::Eleven, 80);
    let calm = |mem_mb| GuestParameters {
        mem_mb,
        dirty_mbps: 1,
        dirty_ws_mb: Some(1),
        ..GuestParameters::default()
    };
    stage.begin(&GuestSpec::user_mode("g", calm(25)));
    let place = &stage.lab.hosts()[0];
    let guest = GuestSpec::bare("calm", calm(25));
    let file = guest.write_toml(place).unwrap();
    let (exit, answer) = stage.asks_agent(0, &["vm", "start", file.to_str().unwrap()]);
    assert_eq!(exit, Some(0), "{answer:#}");
    Console::new([guest.serial(place)]).wait_passes(1, LONG).unwrap();
    let name = place.name().to_owned();
    let to = stage.agents[1].address(0).to_string();
    let folder = tempfile::tempdir().unwrap();
    let sshd = Sshd::start(stage.lab.hosts(), folder.path()).unwrap();
    let answers = || {
        let mut command = stage.agents[0].client();
        command.env("LINERATE_SSH", sshd.client()).args(["--connect", &name, "status"]);
        command.output().unwrap().status.success()
    };
    let deadline = Instant::now() + LONG;
    while !answers() {
        assert!(Instant::now() < deadline, "sshd does not answer");
        std::thread::sleep(Duration::from_millis(100));
    }

    let (waits, go) = (folder.path().join("waits"), folder.path().join("go"));
    let script = format!("touch {}; until [ -e {} ]; do sleep 0.1; done", waits.display(), go.display());
    let words = ["drain", "--each", &name, "--to", &to, "--then", &script];
    let rolling = stage.start_by_ssh(&sshd.client(), &words);
    rolling.wait("the command's turn", |line| line["kind"] == "rolling" && line["step"] == "command");
    let guests = |stage: &Stage| stage.asks_agent(0, &["vm", "list"]).1.as_array().map(Vec::len);
    assert_eq!(guests(&stage), Some(0), "the host is empty");
    stage.arrived(1);
    stage.is_whole_at(1);
    std::fs::write(&go, "").unwrap();
    let ended = rolling.end();
    assert_eq!(ended.code, Some(0), "{ended:#?}\n{}", stage.evidence());
    stage.arrived(0);
    stage.is_whole_at(0);
    assert_eq!(guests(&stage), Some(1));
    assert_eq!(stage.asks_agent(0, &["status"]).1["cordon"], Value::Null);
}
