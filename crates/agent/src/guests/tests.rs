//! Adoption with real QEMUs that run nothing.

use std::sync::Arc;
use std::thread::JoinHandle;

use linerate_core::journal::SourcePhase;
use linerate_core::{Code, Fault, SessionId, Side, Step};
use linerate_guest::incoming_qemu::QemuBinary;

use super::*;
use crate::testing::TestQemu;

#[test]
fn a_qemu_is_adopted_under_any_free_name_and_under_one_only() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let adopted = |hand: &TestQemu, name: Option<&str>| {
        adopt(&agent, &AdoptGuest { pid: Some(hand.pid()), qmp: None, name: name.map(str::to_owned) })
    };
    let nameless = TestQemu::start(&dir.path().join("a.qmp"), &[]);
    let bad = adopted(&nameless, Some("../x")).unwrap_err();
    assert!(bad.hint.contains("--name"), "{bad:?}");
    let guest = adopted(&nameless, Some("shop")).unwrap();
    assert_eq!(guest.name, "shop");
    let again = adopted(&nameless, Some("shop2")).unwrap_err();
    assert!(again.code == "guest_exists" && again.message.contains("the guest shop already"), "{again:?}");
    // QEMU does not mind two of one name.
    let other = TestQemu::start(&dir.path().join("b.qmp"), &["-name", "shop"]);
    let taken = adopted(&other, None).unwrap_err();
    assert!(taken.code == "guest_exists" && taken.hint.contains("--name"), "{taken:?}");
    assert_eq!(adopted(&other, Some("shop-b")).unwrap().name, "shop-b");
    let odd = TestQemu::start(&dir.path().join("c.qmp"), &["-name", "my old guest"]);
    assert!(adopted(&odd, None).unwrap_err().hint.contains("--name"));
    adopted(&odd, Some("odd")).unwrap();
    let shown = show(&agent, "odd").unwrap();
    assert_eq!(shown.description["name"], "odd", "it goes to the destination under this name");
    assert!(shown.summary.stream.possible, "{:?}", shown.summary.stream);
    let names: Vec<String> = list(&agent).unwrap().into_iter().map(|guest| guest.name).collect();
    assert_eq!(names, ["odd", "shop", "shop-b"]);
}

/// Both were given, and one of them is a mistake: another guest would be taken over.
#[test]
fn a_socket_of_another_process_than_the_one_named_is_not_adopted() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let socket = dir.path().join("a.qmp");
    let hand = TestQemu::start(&socket, &["-name", "web"]);
    let adopted = |pid| {
        adopt(&agent, &AdoptGuest { pid: Some(pid), qmp: Some(socket.display().to_string()), name: None })
    };
    let refused = adopted(std::process::id()).unwrap_err();
    assert_eq!(refused.code, code::BAD_REQUEST, "{refused:?}");
    assert!(refused.message.contains(&format!("process {}", hand.pid())), "{refused:?}");
    assert!(list(&agent).unwrap().is_empty());
    assert_eq!(adopted(hand.pid()).unwrap().name, "web");
}

#[test]
fn keys_of_a_guest_are_not_shown() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let key = "secret,id=key0,data=letmein";
    let hand = TestQemu::start(&dir.path().join("a.qmp"), &["-name", "web", "-object", key]);
    adopt(&agent, &AdoptGuest { pid: Some(hand.pid()), qmp: None, name: None }).unwrap();
    let shown = serde_json::to_string(&show(&agent, "web").unwrap()).unwrap();
    assert!(shown.contains("key0") && !shown.contains("letmein"), "{shown}");
}

#[test]
fn a_guest_that_does_not_shut_down_runs_on_until_it_is_ended_by_force() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    // Its virtual CPU is stopped, so that it cannot notice its power button.
    let socket = dir.path().join("a.qmp");
    let hand = TestQemu::start(&socket, &["-name", "web"]);
    adopt(&agent, &AdoptGuest { pid: Some(hand.pid()), qmp: None, name: None }).unwrap();
    let asked = |wait| stop_within(&agent, "web", StopGuest::default(), wait).unwrap_err();
    // On a busy machine the first second may go by before QEMU is asked.
    let waits = [1, 4, 16, 60].map(Duration::from_secs);
    let deaf = waits.into_iter().map(asked).find(|deaf| deaf.message.contains("and still runs"));
    let deaf = deaf.expect("it is asked");
    assert_eq!(deaf.code, "hypervisor_failed", "{deaf:?}");
    assert!(deaf.hint.contains("vm stop web --force"), "{deaf:?}");
    assert!(agent.registry.get("web").unwrap().is_alive());
    assert!(agent.names.claim("web").is_some(), "its name is free again");
    // Nobody asks it while another program has its monitor.
    let holder = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let record = agent.registry.get("web").unwrap();
    let soon = Instant::now() + Duration::from_secs(1);
    let busy = process::stop(&agent.registry, &record, None, StopMethod::PowerDown, soon).unwrap_err();
    assert!(matches!(busy, GuestError::NotAsked(_)) && record.is_alive(), "{busy:?}");
    drop(holder);
    // The test's own child is a zombie until it is waited for, which counts as ended.
    stop(&agent, "web", StopGuest { force: true }).unwrap();
    assert!(!record.is_alive() && agent.registry.get("web").is_err());
}

#[test]
fn one_thing_at_a_time_is_done_with_a_name() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let hand = TestQemu::start(&dir.path().join("a.qmp"), &["-name", "web"]);
    let claim = agent.names.claim("web").unwrap();
    let spec_toml = Some("name = 'web'\nmemory = '64M'\naccel = 'tcg'\n".to_owned());
    let started = start(&agent, &StartGuest { spec_toml, ..StartGuest::default() }).unwrap_err();
    assert!(started.code == "guest_busy" && started.message.contains("just being started"), "{started:?}");
    assert!(!agent.registry.folder("web").unwrap().exists(), "nothing of the other's is removed");
    let adopted = || adopt(&agent, &AdoptGuest { pid: Some(hand.pid()), qmp: None, name: None });
    assert_eq!(adopted().unwrap_err().code, "guest_busy");
    let moved = agent.begin_outgoing("web", || panic!("it is not free"));
    assert_eq!(moved.map(drop).unwrap_err().code, linerate_core::Code::GuestBusy);
    drop(claim);
    adopted().unwrap();
}

#[test]
fn a_guest_whose_migration_is_not_over_is_not_started_though_its_qemu_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    // Its destination may have taken it over, and the source may not have heard of that yet.
    let (outgoing, _inputs) = crate::outgoing::tests::outgoing_of(linerate_core::ModeTag::Direct);
    agent.outgoing.add(outgoing.clone());
    let spec_toml = Some("name = 'g'\nmemory = '64M'\naccel = 'tcg'\n".to_owned());
    let started = start(&agent, &StartGuest { spec_toml, ..StartGuest::default() }).unwrap_err();
    assert_eq!(started.code, "guest_busy", "{started:?}");
    assert!(started.message.contains(&outgoing.session.to_string()), "{started:?}");
    assert!(!agent.registry.folder("g").unwrap().exists());
}

/// Stops `web` in another thread.
fn begins_to_stop(agent: &Arc<Agent>) -> JoinHandle<Answer<GuestSummary>> {
    let agent = agent.clone();
    std::thread::spawn(move || {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let stopped = stop_within(&agent, "web", StopGuest::default(), Duration::from_secs(600));
            // A look of the test may have had the name just then.
            let is_busy = stopped.as_ref().is_err_and(|error| error.code == "guest_busy");
            if !is_busy || Instant::now() >= end {
                return stopped;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

#[test]
fn a_guest_that_is_just_being_stopped_is_neither_moved_nor_started() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    // It does not notice its power button, so that it is waited for.
    let hand = TestQemu::start(&dir.path().join("a.qmp"), &["-name", "web"]);
    adopt(&agent, &AdoptGuest { pid: Some(hand.pid()), qmp: None, name: None }).unwrap();
    let stopping = begins_to_stop(&agent);
    let moved = || {
        let free = Fault::new(Code::Internal, Step::Resolve, Side::Source, "it is free");
        agent.begin_outgoing("web", || Err(free)).map(drop).unwrap_err().code
    };
    while moved() != Code::GuestBusy {
        assert!(!stopping.is_finished(), "it is moved while it is being stopped");
        std::thread::sleep(Duration::from_millis(5));
    }
    let spec_toml = Some("name = 'web'\nmemory = '64M'\naccel = 'tcg'\n".to_owned());
    let started = start(&agent, &StartGuest { spec_toml, ..StartGuest::default() }).unwrap_err();
    assert!(started.code == "guest_busy" && started.message.contains("stopped"), "{started:?}");
    assert!(!stopping.is_finished(), "it was not being stopped any more");
    drop(hand);
    stopping.join().unwrap().unwrap();
    assert_eq!(moved(), Code::Internal);
}

#[test]
fn a_forced_stop_does_not_wait_for_one_that_waits() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let hand = TestQemu::start(&dir.path().join("a.qmp"), &["-name", "web"]);
    adopt(&agent, &AdoptGuest { pid: Some(hand.pid()), qmp: None, name: None }).unwrap();
    let stopping = begins_to_stop(&agent);
    while agent.names.claim("web").is_some() {
        assert!(!stopping.is_finished(), "the stop has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    stop(&agent, "web", StopGuest { force: true }).unwrap();
    stopping.join().unwrap().unwrap();
    assert!(agent.names.claim("web").is_some());
}

#[test]
fn a_guest_whose_migration_is_not_over_is_not_called_stopped_though_its_qemu_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let record = crate::testing::arrived(&agent, i32::try_from(child.id()).unwrap());
    agent.registry.put(&record).unwrap();
    let (outgoing, _inputs) = crate::outgoing::tests::outgoing_of(linerate_core::ModeTag::Direct);
    agent.outgoing.add(outgoing.clone());
    child.kill().unwrap();
    child.wait().unwrap();
    let refused = stop(&agent, "g", StopGuest { force: true }).unwrap_err();
    assert_eq!(refused.code, "guest_busy", "{refused:?}");
    assert!(refused.message.contains(&outgoing.session.to_string()), "{refused:?}");
    assert!(agent.registry.get("g").is_ok(), "its record is for recovery");
}

/// A guest whose commit was sent, its process, and what its QEMU was let in to.
fn commit_sent(agent: &Agent, files: &str) -> (std::process::Child, PathBuf) {
    let child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let record = crate::testing::arrived(agent, i32::try_from(child.id()).unwrap());
    agent.registry.put(&record).unwrap();
    let role = crate::recovery::tests::leaves(&record, SourcePhase::CommitSent);
    let record = crate::journal::Record::new("g", agent.journal.next_order(), role);
    agent.journal.put(SessionId([7; 16]), &record).unwrap();
    let folder = agent.config.state_dir.join("access");
    std::fs::create_dir_all(&folder).unwrap();
    let written = folder.join("g.json");
    std::fs::write(&written, format!(r#"{{ "guest": "g", "uid": 65534, "files": [{files}] }}"#)).unwrap();
    (child, written)
}

#[test]
fn what_a_guest_was_let_in_to_stays_open_if_its_qemu_ends_in_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::with_access(&dir);
    let (mut child, written) = commit_sent(&agent, "");
    crate::recovery::recover(&agent.recovery).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    list(&agent).unwrap();
    assert!(written.exists(), "it is closed, and the guest may run at the other host");
}

#[test]
fn what_hosts_share_goes_with_a_guest_whose_qemu_ended_behind_commit_while_no_agent_ran() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::with_access(&dir);
    // Of a file system that is not mounted now: it would be closed later, which is remembered.
    let disk = r#"{ "path": "/not-here/disk", "device": 1, "inode": 2, "writable": true, "owned": true }"#;
    let (mut child, written) = commit_sent(&agent, disk);
    child.kill().unwrap();
    child.wait().unwrap();
    crate::recovery::recover(&agent.recovery).unwrap();
    assert!(!written.exists(), "it is to be closed, and the guest may run at the other host");
}

#[test]
fn a_start_that_fails_ends_its_own_qemu_only() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let folder = agent.registry.reserve("web").unwrap();
    let (pid_file, qmp) = (folder.join("pid"), folder.join("q"));
    // One that another start has made, by its command line.
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "while :; do sleep 1; done", "qemu", "-pidfile"]).arg(&pid_file);
    let mut other = command.spawn().unwrap();
    let qemu = QemuBinary { path: "/bin/false".into(), data_dirs: Vec::new() };
    let launch = Launch {
        name: "web",
        qemu: &qemu,
        arguments: &[],
        folder: &folder,
        qmp: &qmp,
        pid_file: &pid_file,
        ram_files: Vec::new(),
        ram_is_made: false,
        user: None,
        origin: Origin::Started,
        session: None,
    };
    let soon = Instant::now() + Duration::from_secs(10);
    process::start(&agent.registry, &launch, soon).unwrap_err();
    assert!(!folder.exists() && other.try_wait().unwrap().is_none(), "another's is ended");
    other.kill().unwrap();
    other.wait().unwrap();
}

#[test]
fn a_guest_that_was_started_has_to_run_unless_it_is_to_wait() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("start.log"), "qemu: it broke\n").unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let record = GuestRecord::new("g", Origin::Started, own, "/q".into(), vec![]).unwrap();
    let check = |more: &str, state, run_state: Option<RunState>| {
        let spec = format!("name = 'g'\nmemory = '64M'\n{more}");
        let spec = GuestSpec::parse(&spec, Path::new("/")).unwrap();
        must_run(&spec, &bare(&record, state, "why".into()), run_state.as_ref(), dir.path())
    };
    let waits = "extra_args = ['-S']";
    check("", GuestRunState::Running, Some(RunState::Running)).unwrap();
    check("", GuestRunState::Paused, Some(RunState::Suspended)).unwrap();
    check("", GuestRunState::Migrating, None).unwrap();
    check(waits, GuestRunState::Paused, Some(RunState::PreLaunch)).unwrap();
    let ended = check("", GuestRunState::Stopped, None).unwrap_err();
    assert_eq!(ended.code, "hypervisor_failed");
    assert!(ended.message.contains("does not run: why") && ended.message.contains("it broke"), "{ended:?}");
    for (more, run_state) in [
        ("", RunState::GuestPanicked),
        ("", RunState::PreLaunch),
        (waits, RunState::InternalError),
        (waits, RunState::GuestPanicked),
    ] {
        let error = check(more, GuestRunState::Paused, Some(run_state.clone())).unwrap_err();
        assert!(error.message.contains(run_state.name()), "{error:?}");
    }
    check("", GuestRunState::Paused, None).unwrap_err();
}

#[test]
fn what_is_done_to_the_disks_meanwhile_is_in_both_verdicts() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let image = dir.path().join("d.img");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let drive = format!("file={},format=raw,if=virtio", image.display());
    let hand = TestQemu::start(&dir.path().join("a.qmp"), &["-name", "web", "-drive", &drive]);
    let guest = adopt(&agent, &AdoptGuest { pid: Some(hand.pid()), qmp: None, name: None }).unwrap();
    assert!(guest.stream.possible, "{:?}", guest.stream);
    std::fs::rename(&image, dir.path().join("other.img")).unwrap();
    let shown = show(&agent, "web").unwrap();
    for verdict in [&shown.summary.direct, &shown.summary.stream] {
        assert!(
            verdict.reasons.iter().any(|why| why.contains("renamed, replaced or deleted")),
            "{verdict:?}"
        );
    }
    assert!(shown.needs.iter().any(|need| need.contains("d.img")), "{:?}", shown.needs);
}

#[test]
fn no_guest_is_started_with_a_disk_of_the_agents_own() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let folder = agent.config.state_dir.clone();
    let text =
        format!("name = \"g\"\nmemory = \"64M\"\n[[disk]]\npath = {:?}\n", folder.join("journal.redb"));
    let refused = start(&agent, &StartGuest { spec_toml: Some(text), ..StartGuest::default() }).unwrap_err();
    assert!(refused.message.contains("the agent's own files"), "{refused:?}");
    // The same disk by its name in the folder of the specification.
    let spec_toml = Some("name = \"g\"\nmemory = \"64M\"\n[[disk]]\npath = \"journal.redb\"\n".to_owned());
    let spec_path = Some(folder.join("g.toml").to_str().unwrap().to_owned());
    let refused = start(&agent, &StartGuest { spec_toml, spec_path, ..StartGuest::default() }).unwrap_err();
    assert!(refused.message.contains("the agent's own files"), "{refused:?}");
}

/// It is older than the guest, whether it is a disk of its specification or of further arguments.
#[test]
fn no_guest_is_started_with_an_image_that_it_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let agent = crate::testing::agent(&dir, &[]);
    let image = dir.path().join("disk");
    std::fs::write(&image, "x").unwrap();
    stale::mark(&image, "g", "beta").unwrap();
    let drive = format!("file={},format=raw,if=virtio", image.display());
    for disks in [format!("[[disk]]\npath = {image:?}\n"), format!("extra_args = [\"-drive\", {drive:?}]\n")]
    {
        let spec_toml = Some(format!("name = \"g\"\nmemory = \"64M\"\n{disks}"));
        let refused = start(&agent, &StartGuest { spec_toml, ..StartGuest::default() }).unwrap_err();
        assert!(refused.message.contains("copied to beta"), "{disks}: {refused:?}");
        assert!(refused.hint.contains("setfattr -x"), "{refused:?}");
    }
}
