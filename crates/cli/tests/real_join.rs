//! Real agents that make a cluster and join it while they run, and a guest that then moves over TLS. As root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "real/processes.rs"]
mod processes;
#[path = "real/stage.rs"]
#[allow(dead_code, reason = "other programs use more of it")]
mod stage;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use linerate_lab::{Agent, AgentOptions, Gate, GuestParameters, GuestSpec, Host, Lab, LinkSpec, QemuVersion};
use processes::Processes;
use serde_json::Value;
use stage::{Stage, ended, round_began};

/// Only a hang reaches it.
const LONG: Duration = Duration::from_secs(180);

/// Nothing is said about `security = `: the lab writes nothing of its own.
const DEFAULT: &str = "# no security = here: the default\n";

/// A command at an agent's host, with pipes.
fn command(agent: &Agent, words: &[&str]) -> Command {
    let file = agent.host().directory().join("agent.toml");
    let mut command = agent.client();
    command.args(words).arg("--config").arg(file);
    // A host's clock is that of its commands, too.
    command.envs(agent.environment().iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same, done: exit code, standard output, standard error.
fn linerate(agent: &Agent, words: &[&str], input: &str) -> (i32, String, String) {
    let mut child = command(agent, words).spawn().unwrap();
    // A command that reads nothing may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    said(child.wait_with_output().unwrap())
}

fn said(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    // Messages are broken into lines.
    let err = text(output.stderr).split_whitespace().collect::<Vec<_>>().join(" ");
    (output.status.code().unwrap_or(-1), text(output.stdout), err)
}

/// The standard output of a command that succeeds.
fn done(agent: &Agent, words: &[&str]) -> String {
    let (exit, out, err) = linerate(agent, words, "");
    assert_eq!(exit, 0, "{words:?}: {out}{err}");
    out
}

fn status(agent: &Agent) -> Value {
    let output = agent.client().args(["status", "--json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The words of a token's line behind `linerate`: `join`, an address, the token.
fn line(agent: &Agent, more: &[&str]) -> Vec<String> {
    let words = [&["token", "create"], more].concat();
    let printed = done(agent, &words);
    assert_eq!(printed.lines().count(), 1, "one line, to be copied: {printed}");
    let words: Vec<String> = printed.split_whitespace().map(str::to_owned).collect();
    assert_eq!((words[0].as_str(), words[1].as_str(), words.len()), ("linerate", "join", 4));
    words[1..].to_vec()
}

fn join(agent: &Agent, line: &[String], more: &[&str]) -> (i32, String) {
    let words: Vec<&str> = line.iter().map(String::as_str).chain(more.iter().copied()).collect();
    let (exit, out, err) = linerate(agent, &words, "");
    (exit, out + &err)
}

/// Until the port to join at is closed, which the agent does within a second of the last token's use.
fn wait_closed(agent: &Agent) {
    let end = Instant::now() + LONG;
    while status(agent)["join_listen"] != Value::Array(vec![]) {
        assert!(Instant::now() < end, "{}", status(agent));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn log(agent: &Agent) -> String {
    std::fs::read_to_string(agent.log()).unwrap()
}

/// Hosts that have agents and no guest.
struct Site {
    agents: Vec<Agent>,
    // Behind the agents: dropped after them.
    lab: Lab,
}

fn options(environment: Vec<(String, String)>) -> AgentOptions {
    AgentOptions {
        binary: Some(env!("CARGO_BIN_EXE_linerate").into()),
        configuration: DEFAULT.into(),
        environment: [vec![("LINERATE_LOG".into(), "debug".into())], environment].concat(),
    }
}

fn site(hosts: usize) -> Site {
    let lab = Lab::builder().hosts(hosts).link(LinkSpec::shaped(1000)).build().unwrap();
    let agents = lab.hosts().iter().map(|host| Agent::start(host, options(Vec::new())).unwrap()).collect();
    Site { agents, lab }
}

/// A guest that hardly writes.
fn calm() -> GuestParameters {
    GuestParameters { mem_mb: 96, dirty_mbps: 2, dirty_ws_mb: Some(1), ..GuestParameters::default() }
}

#[test]
fn two_hosts_are_a_cluster_after_three_commands_and_a_guest_moves_over_tls() {
    let parameters =
        GuestParameters { mem_mb: 96, dirty_mbps: 4, dirty_ws_mb: Some(1), ..GuestParameters::default() };
    let mut stage = Stage::configured(&[1000, 1000], parameters, DEFAULT);
    for host in [0, 1] {
        let status = status(stage.agent_of(host));
        assert_eq!((&status["security"], &status["listen"]), (&"no_identity".into(), &Value::Array(vec![])));
        let advice = status["security_advice"].as_str().unwrap();
        assert!(advice.contains("linerate cluster init") && advice.contains("linerate join"), "{advice}");
    }
    let refused = stage.migrate(&["--no-check"]).finish();
    assert_ne!(ended(&refused).exit, Some(0));
    assert!(Value::from(refused.clone()).to_string().contains("no identity"), "{refused:#?}");
    // The three commands.
    done(stage.agent_of(0), &["cluster", "init", "--name", "kvm"]);
    let token = line(stage.agent_of(0), &[]);
    let (exit, said) = join(stage.agent_of(1), &token, &[]);
    assert_eq!(exit, 0, "{said}");
    assert!(said.contains("the agent has taken it up"), "{said}");
    for (host, name) in [(0, "a"), (1, "b")] {
        let status = status(stage.agent_of(host));
        assert_eq!((&status["security"], &status["identity"]["host"]), (&"tls".into(), &name.into()));
        assert_eq!(status["listen"].as_array().unwrap().len(), 2, "{status}");
        wait_closed(stage.agent_of(host));
    }
    ended(&stage.migrate(&["--verify"]).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    // The restarted agents have their identities, too.
    stage.restart_agents_with([DEFAULT, DEFAULT]);
    ended(&stage.migrate(&[]).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    // Nobody has written down what was secret.
    let secret = &token[2][token[2].len() - 30..];
    for host in [0, 1] {
        assert!(!log(stage.agent_of(host)).contains(secret));
    }
}

/// Lines of the private key in a file.
fn key_lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let (_, key) = text.split_once("PRIVATE KEY-----").unwrap();
    let lines = key.lines().take_while(|line| !line.starts_with("-----"));
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Tokens of the sessions in a host's journal, as it keeps them.
fn session_tokens(host: &Host) -> Vec<String> {
    const FIELD: &[u8] = b"\"token\":\"";
    let journal = std::fs::read(host.state_directory().join("journal.redb")).unwrap();
    let places = journal.windows(FIELD.len()).enumerate().filter(|(_, part)| *part == FIELD);
    let digits = places.filter_map(|(at, _)| journal.get(at + FIELD.len()..at + FIELD.len() + 64));
    digits.map(|digits| String::from_utf8(digits.to_vec()).unwrap()).collect()
}

/// The watch sees what it looks for, where it is.
fn sees_arguments_and_environments(processes: &Processes) {
    let mut shell = Command::new("sh");
    shell.args(["-c", "read line", "linerate-test-in-an-argument"]).stdin(Stdio::piped());
    let mut shell = shell.env("LINERATE_TEST", "linerate-test-in-the-environment").spawn().unwrap();
    processes.wait("linerate-test-in-an-argument");
    processes.wait("linerate-test-in-the-environment");
    drop(shell.stdin.take());
    shell.wait().unwrap();
}

#[test]
fn no_secret_is_in_the_command_line_or_environment_of_any_process() {
    let mut stage = Stage::configured(&[1000, 1000], calm(), DEFAULT);
    let processes = Processes::watch();
    sees_arguments_and_environments(&processes);
    done(stage.agent_of(0), &["cluster", "init"]);
    let token = line(stage.agent_of(0), &[]);
    let mut joining = command(stage.agent_of(1), &["join", &token[1], "-"]).spawn().unwrap();
    processes.wait(&format!("join\0{}\0-\0", token[1]));
    // As a person who pastes it: the input does not end.
    let mut typed = joining.stdin.take().unwrap();
    typed.write_all(format!("{}\n", token[2]).as_bytes()).unwrap();
    let (exit, out, err) = said(joining.wait_with_output().unwrap());
    assert_eq!(exit, 0, "{out}{err}");
    drop(typed);
    ended(&stage.migrate(&["--verify"]).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
    processes.wait("\0-incoming\0");

    let [a, b] = [&stage.lab.hosts()[0], &stage.lab.hosts()[1]];
    let sessions = [session_tokens(a), session_tokens(b)].concat();
    assert!(!sessions.is_empty(), "looked for in the wrong place");
    let keys =
        ["authority/authority-key.pem", "identity/host.pem"].map(|file| a.state_directory().join(file));
    let keys: Vec<String> = keys
        .iter()
        .chain([&b.state_directory().join("identity/host.pem")])
        .flat_map(|file| key_lines(file))
        .collect();
    assert!(keys.len() >= 3, "{} lines of keys", keys.len());
    // What is in front of it is the authority's and no secret.
    let secret = token[2][token[2].len() - 30..].to_owned();
    for secret in sessions.iter().chain(&keys).chain([&secret]) {
        assert!(!processes.have(secret), "a process has {secret}");
    }
}

/// A host whose clock is so many seconds ahead of the others'. Time that only passes is as everywhere.
fn clock(host: &Host, seconds: i64) -> Vec<(String, String)> {
    let gate = Gate::new(host).unwrap();
    gate.set_clock_ahead(seconds).unwrap();
    gate.environment()
}

/// Seconds by which two clocks differ that certificates are still good for.
const APART: [i64; 2] = [3600, -3600];

/// When an agent did things, by its own clock: seconds since 1970, of each line of its audit log.
fn its_times(agent: &Agent) -> Vec<i64> {
    let output = agent.client().args(["audit", "--json"]).output().unwrap();
    let lines: Value = serde_json::from_slice(&output.stdout).unwrap();
    lines.as_array().unwrap().iter().map(|line| line["unix_ms"].as_i64().unwrap() / 1000).collect()
}

#[test]
fn hosts_whose_clocks_are_an_hour_apart_are_a_cluster_and_a_guest_moves_both_ways() {
    for seconds in APART {
        let parameters = calm();
        let mut stage = Stage::configured(&[1000, 1000], parameters, DEFAULT);
        let clock = clock(&stage.lab.hosts()[1], seconds);
        stage.restart_agent_in(1, DEFAULT, clock);
        done(stage.agent_of(0), &["cluster", "init"]);
        let (exit, said) = join(stage.agent_of(1), &line(stage.agent_of(0), &[]), &[]);
        assert_eq!(exit, 0, "{seconds}: {said}");
        for _ in 0..2 {
            ended(&stage.migrate(&["--verify"]).finish()).completed();
            stage.arrived();
            stage.guest_goes_on();
        }
        // The clocks were what they should be.
        let now = its_times(stage.agent_of(0)).into_iter().max().unwrap();
        let wanted = now + seconds;
        let times = its_times(stage.agent_of(1));
        assert!(times.iter().any(|time| (time - wanted).abs() < 600), "{seconds}: {now} {times:?}");
    }
}

#[test]
fn a_revocation_counts_whose_list_is_of_an_hour_that_has_not_come() {
    for seconds in APART {
        let mut site = site(3);
        let host = site.lab.hosts()[1].clone();
        site.agents[1].stop().unwrap();
        site.agents[1] = Agent::start(&host, options(clock(&host, seconds))).unwrap();
        let [a, b, c] = site.agents.as_slice() else { panic!("three agents") };
        done(a, &["cluster", "init"]);
        for member in [b, c] {
            assert_eq!(join(member, &line(a, &[]), &[]).0, 0, "{seconds}");
        }
        let look = |from: &Agent, at: &Agent| {
            let address = at.address(0).to_string();
            let output = from.client().args(["doctor", &address, "--quick", "--json"]).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        let refused = "refused this host's certificate";
        assert!(!look(c, b).contains(refused), "{seconds}");
        done(a, &["host", "revoke", "c"]);
        // The list goes with a connection of the authority's host, whatever that is for.
        look(a, b);
        let end = Instant::now() + LONG;
        while !look(c, b).contains(refused) {
            assert!(Instant::now() < end, "{seconds}: {}", look(c, b));
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(!look(b, a).contains(refused), "{seconds}");
    }
}

#[test]
fn tokens_that_do_not_count_and_their_reasons() {
    let site = site(3);
    let [a, b, c] = site.agents.as_slice() else { panic!("three agents") };
    done(a, &["cluster", "init"]);
    let used = line(a, &[]);
    // By standard input, where no list of processes shows it.
    let (exit, out, err) = linerate(b, &["join", &used[1], "-"], &format!("{}\n", used[2]));
    assert_eq!(exit, 0, "{out}{err}");
    // Nobody listens while no token can be used.
    wait_closed(a);
    let (exit, said) = join(c, &used, &[]);
    assert_eq!(exit, 3, "{said}");
    let (open, revoked, for_other) = (line(a, &[]), line(a, &[]), line(a, &["--host", "d"]));
    let listed: Value = serde_json::from_str(&done(a, &["token", "list", "--json"])).unwrap();
    let state = |place: usize| listed[place]["state"].as_str().unwrap().to_owned();
    assert_eq!([state(0), state(1), state(2)], ["used", "open", "open"]);
    done(a, &["token", "revoke", listed[2]["id"].as_str().unwrap()]);
    for (line, why) in [(&used, "was used before"), (&revoked, "was revoked"), (&for_other, "may only be")] {
        let (exit, said) = join(c, line, &[]);
        assert!(exit == 4 && said.contains(why), "{exit} {said}");
    }
    assert!(log(a).contains("no token has its secret (1 so far)"), "{}", log(a));
    let (exit, said) =
        join(c, &open[..2].iter().cloned().chain(["linerate1-abc".into()]).collect::<Vec<_>>(), &[]);
    assert!(exit == 2 && said.contains("copy the whole line"), "{exit} {said}");
    // Two at once.
    let both = std::thread::scope(|scope| {
        let racing = [
            scope.spawn(|| join(b, &open, &["--replace", "--host", "b2"])),
            scope.spawn(|| join(c, &open, &[])),
        ];
        racing.map(|one| one.join().unwrap())
    });
    let exits: Vec<i32> = both.iter().map(|(exit, _)| *exit).collect();
    assert_eq!(exits.iter().filter(|exit| **exit == 0).count(), 1, "{both:?}");
    assert!(exits.iter().all(|exit| [0, 3, 4].contains(exit)), "{both:?}");
}

#[test]
fn a_cluster_of_the_same_name_does_not_get_a_tokens_secret() {
    let site = site(3);
    let [a, b, c] = site.agents.as_slice() else { panic!("three agents") };
    done(a, &["cluster", "init", "--name", "kvm"]);
    done(c, &["cluster", "init", "--name", "kvm"]);
    let (right, his) = (line(a, &[]), line(c, &[]));
    let (exit, said) = join(b, &[right[0].clone(), his[1].clone(), right[2].clone()], &[]);
    assert!(exit == 4 && said.contains("secret was not sent"), "{exit} {said}");
    assert!(!log(c).contains("no token has its secret"), "{}", log(c));
    assert_eq!(join(b, &right, &[]).0, 0, "the token is as good as before");
}

#[test]
fn a_revoked_host_is_refused_at_once_and_by_members_that_ask() {
    let site = site(2);
    let [a, b] = site.agents.as_slice() else { panic!("two agents") };
    done(a, &["cluster", "init"]);
    assert_eq!(join(b, &line(a, &[]), &[]).0, 0);
    let address = a.address(0).to_string();
    let look = || {
        let output = b.client().args(["doctor", &address, "--quick", "--json"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(!look().contains("refused this host's certificate"));
    let hosts: Value = serde_json::from_str(&done(a, &["host", "list", "--json"])).unwrap();
    assert_eq!((&hosts[0]["host"], &hosts[1]["host"]), (&"a".into(), &"b".into()));
    done(a, &["host", "revoke", "b"]);
    assert!(look().contains("refused this host's certificate"), "{}", look());
    // It comes back with a new token, without a restart.
    assert_eq!(join(b, &line(a, &[]), &["--replace"]).0, 0);
    assert!(!look().contains("refused this host's certificate"), "{}", look());
    let early = linerate(b, &["certificate", "renew"], "");
    assert!(early.0 == 4 && early.2.contains("is renewed from"), "{early:?}");
}

#[test]
fn a_host_that_is_revoked_in_the_middle_of_a_copy_gets_no_more_of_it() {
    let parameters = calm();
    let mut stage = Stage::configured(&[100], parameters, DEFAULT);
    done(stage.agent_of(0), &["cluster", "init"]);
    assert_eq!(join(stage.agent_of(1), &line(stage.agent_of(0), &[]), &[]).0, 0);
    let mut migration = stage.migrate(&["--no-check", "--link-timeout", "3s"]);
    migration.wait(LONG, round_began);
    done(stage.agent_of(0), &["host", "revoke", "b"]);
    assert!(log(stage.agent_of(0)).contains("connections of hosts that were revoked are ended"));
    let events = migration.finish();
    assert_eq!(ended(&events).exit, Some(1), "{events:#?}");
    stage.guest_goes_on();
    // Its part of the migration is not over: the other host knows it by this name, and no other is taken.
    let other = join(stage.agent_of(1), &line(stage.agent_of(0), &[]), &["--replace", "--host", "b2"]);
    assert!(other.0 == 4 && other.1.contains("present name"), "{other:?}");
    // With a new certificate it gets the guest.
    assert_eq!(join(stage.agent_of(1), &line(stage.agent_of(0), &[]), &["--replace"]).0, 0);
    ended(&stage.migrate(&[]).finish()).completed();
    stage.arrived();
    stage.guest_goes_on();
}

#[test]
fn guests_move_on_while_the_authority_changes() {
    let parameters = calm();
    let mut stage = Stage::configured(&[1000, 1000], parameters, DEFAULT);
    done(stage.agent_of(0), &["cluster", "init"]);
    assert_eq!(join(stage.agent_of(1), &line(stage.agent_of(0), &[]), &[]).0, 0);
    let moves = |stage: &mut Stage| {
        ended(&stage.migrate(&[]).finish()).completed();
        stage.arrived();
        stage.guest_goes_on();
    };
    for step in ["begun", "switched", "finished"] {
        let rotated = done(stage.agent_of(0), &["cluster", "rotate", "--json"]);
        let rotated: Value = serde_json::from_str(&rotated).unwrap();
        assert_eq!(rotated["step"], step, "{rotated}");
        moves(&mut stage);
        // Its agent may have followed already: it asks when it starts, and each five minutes.
        let (exit, _, err) = linerate(stage.agent_of(1), &["certificate", "renew"], "");
        assert!(exit == 0 || exit == 4 && err.contains("is renewed from"), "{exit} {err}");
        moves(&mut stage);
    }
    for host in [0, 1] {
        let shown = done(stage.agent_of(host), &["certificate", "show", "--json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["authorities"].as_array().unwrap().len(), 1, "{shown}");
        assert_eq!(shown["problem"], Value::Null, "{shown}");
    }
}

/// Commit is in the source's journal when the destination is revoked, and does not get there.
#[test]
fn a_destination_that_is_revoked_at_commit_leaves_one_guest_and_the_command_ends() {
    let parameters = calm();
    let guest = GuestSpec::bare("g", parameters).qemu(QemuVersion::Ten);
    let (mut stage, gates) = Stage::gated_with(&[1000, 1000], guest, DEFAULT);
    done(stage.agent_of(0), &["cluster", "init"]);
    assert_eq!(join(stage.agent_of(1), &line(stage.agent_of(0), &[]), &[]).0, 0);
    let sent = gates[0].hold_after("source.commit_sent").unwrap();
    let migration = stage.migrate(&[]);
    sent.wait(LONG).unwrap();
    std::thread::scope(|scope| {
        // It asks for the agent's status at its end, which waits for the journal.
        let revoking = scope.spawn(|| done(stage.agent_of(0), &["host", "revoke", "b"]));
        let end = Instant::now() + LONG;
        while !log(stage.agent_of(0)).contains("connections of hosts that were revoked are ended") {
            assert!(Instant::now() < end);
            std::thread::sleep(Duration::from_millis(20));
        }
        drop(sent);
        revoking.join().unwrap();
    });
    // The command ends although nobody answers, and says what the guest waits for.
    let events = migration.finish();
    assert_eq!(ended(&events).exit, Some(6), "{events:#?}");
    let here = stage.only(0, "in_doubt");
    let note = here["note"].as_str().unwrap();
    assert!(note.contains("linerate resolve") && note.contains("revoked"), "{note}");
    let there = stage.only(1, "in_doubt");
    // The agents have the monitors of both copies, which are paused.
    assert_eq!([stage.hypervisors(0).len(), stage.hypervisors(1).len()], [1, 1], "each keeps its copy");
    // Nothing runs there, as the operator sees.
    let decide = |host, session: &Value, how| {
        let (exit, text) = stage.linerate_at(host, &["resolve", session["id"].as_str().unwrap(), how]);
        assert_eq!(exit, 0, "{text}");
    };
    decide(1, &there, "--give-up");
    decide(0, &here, "--resume-here");
    stage.settles_at(0);
    stage.guest_goes_on();
    assert_eq!(join(stage.agent_of(1), &line(stage.agent_of(0), &[]), &["--replace"]).0, 0);
    ended(&stage.migrate(&[]).finish()).completed();
    stage.settles_at(1);
}

#[test]
fn an_agent_that_is_killed_between_marking_and_signing_has_spent_the_token() {
    let lab = Lab::builder().hosts(2).link(LinkSpec::shaped(1000)).build().unwrap();
    let gate = Gate::new(&lab.hosts()[0]).unwrap();
    let mut a = Agent::start(&lab.hosts()[0], options(gate.environment())).unwrap();
    let b = Agent::start(&lab.hosts()[1], options(Vec::new())).unwrap();
    done(&a, &["cluster", "init"]);
    let token = line(&a, &[]);
    let held = gate.hold_before("authority.register").unwrap();
    let (exit, said) = std::thread::scope(|scope| {
        let joining = scope.spawn(|| join(&b, &token, &[]));
        held.wait(LONG).unwrap();
        a.kill().unwrap();
        joining.join().unwrap()
    });
    drop(held);
    assert!(exit == 1 && said.contains("the token may be spent"), "{exit} {said}");
    a.restart_if_dead().unwrap();
    let listed: Value = serde_json::from_str(&done(&a, &["token", "list", "--json"])).unwrap();
    assert_eq!(listed[0]["state"], "used");
    // Another can be used, so that the port is open: the first is refused.
    let other = line(&a, &[]);
    let (exit, said) = join(&b, &token, &[]);
    assert!(exit == 4 && said.contains("was used before"), "{exit} {said}");
    assert_eq!(join(&b, &other, &[]).0, 0);
    // Before the lab.
    drop((a, b));
}
