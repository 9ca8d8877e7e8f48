//! The binary against an agent that plays recorded migrations.

#![allow(clippy::unwrap_used, reason = "tests say what they expect, their helpers too")]

#[path = "support/page.rs"]
mod page;
mod support;

use std::process::{Output, Stdio};
use std::time::Duration;

use page::Page;
use serde_json::Value;
use support::{ID, Seen};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// Nothing here takes this long; it only keeps a hang from lasting for ever.
const DEADLINE: Duration = Duration::from_secs(60);

struct Lab {
    folder: tempfile::TempDir,
    serving: JoinHandle<std::io::Result<()>>,
    seen: Seen,
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Lab {
    fn new(pace: f64) -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let (serving, seen) = support::serve(&folder.path().join("agent.sock"), pace).unwrap();
        Lab { folder, serving: tokio::spawn(serving), seen }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_linerate"));
        command
            .args(line.split_whitespace())
            .env("LINERATE_SOCKET", self.folder.path().join("agent.sock"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, line: &str) -> Run {
        Run::of(tokio::time::timeout(DEADLINE, self.command(line).output()).await.unwrap().unwrap())
    }

    /// Runs it again while standard error does not fit. The time that it waits for an answer is fixed, and a busy host
    /// may exceed it.
    async fn run_until(&self, line: &str, fits: impl Fn(&str) -> bool) -> Run {
        let end = std::time::Instant::now() + DEADLINE;
        loop {
            let run = self.run(line).await;
            if fits(&run.err) || std::time::Instant::now() >= end {
                return run;
            }
        }
    }
}

#[derive(Debug)]
struct Run {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Run {
    fn of(output: Output) -> Run {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Run { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    fn json_lines(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[tokio::test]
async fn a_lost_link_is_in_the_plain_lines_and_in_the_report() {
    let run = Lab::new(0.0).run("migrate web --to beta").await;
    assert_eq!(run.code, Some(0), "{run:?}");
    for words in
        ["step 7 copy", "link eth2 LOST: no carrier at eth2", "link eth2 is back", "round 1", "completed"]
    {
        assert!(run.err.contains(words), "{words} is missing:\n{}", run.err);
    }
    assert!(
        run.out.contains("web moved from alpha to beta") && run.out.contains("Where the time went"),
        "{}",
        run.out
    );
    assert!(!run.err.contains('\x1b') && !run.out.contains('\x1b'), "control codes in a pipe");
}

#[tokio::test]
async fn warnings_come_before_the_migration_and_do_not_delay_it() {
    let lab = Lab::new(0.0);
    let half = "alpha ens1f1: half duplex";
    let probed = |err: &str| err.contains(half) && !err.contains("not probed");
    let run = lab.run_until("migrate web --to beta", probed).await;
    assert!(run.err.contains(half) && run.err.contains("linerate doctor beta --details"), "{}", run.err);
    assert!(!run.err.contains("not probed"), "{}", run.err);
    // The probes never end, and the migration does.
    let run = lab.run_until("migrate web --to lossy", |err| err.contains(half)).await;
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.err.contains("the links to lossy were not probed within 1 s"), "{}", run.err);
    assert!(run.err.contains(half), "what needs no probe is lost with them:\n{}", run.err);
    // It is said what was not looked at, and what was seen all the same.
    for (to, words) in [("broken", "the way to broken was not looked at"), ("mute", "no route to it")] {
        let fits = |err: &str| err.contains(words) && err.contains(half);
        let run = lab.run_until(&format!("migrate web --to {to}"), fits).await;
        assert!(run.code == Some(0) && run.err.contains(words) && run.err.contains(half), "{run:?}");
    }
    for without in ["--no-check", "--quiet", "--json"] {
        let run = lab.run(&format!("migrate web --to beta {without}")).await;
        assert!(run.code == Some(0) && !run.err.contains(half), "{without}: {run:?}");
    }
}

#[tokio::test]
async fn json_is_the_name_and_then_every_event() {
    let run = Lab::new(0.0).run("migrate web --to beta --json").await;
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    let lines = run.json_lines();
    assert_eq!(lines[0]["id"], format!("{ID}-web"));
    assert_eq!((&lines[1]["kind"], &lines[1]["name"]), (&"step".into(), &"resolve".into()));
    let last = lines.last().unwrap();
    assert_eq!((&last["kind"], &last["outcome"]), (&"finished".into(), &"completed".into()));
    assert_eq!(last["report"]["links"][1]["lost_count"], 1);
    assert_eq!(lines.len(), support::script::of("web").len() + 1);
}

#[tokio::test]
async fn flags_reach_the_agent_as_the_request() {
    let lab = Lab::new(0.0);
    let run = lab.run("migrate web --to beta:1 --bandwidth 1G --links 10.0.1.0/24 --verify --quiet").await;
    assert_eq!((run.code, run.out.as_str(), run.err.as_str()), (Some(0), "", ""));
    let asked = lab.seen.asked.borrow().clone().unwrap();
    assert_eq!((asked.to.as_str(), asked.bandwidth_bytes_per_s), ("beta:1", Some(125_000_000)));
    assert_eq!((asked.links, asked.verify, asked.throttle), (vec!["10.0.1.0/24".to_owned()], true, false));
}

#[tokio::test]
async fn a_tunnel_whose_agent_ends_has_failed() {
    let run = Lab::new(0.0).run("tunnel --to beta unix:/run/a.sock=unix:/run/b.sock").await;
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.err.contains("the agent has ended, and the tunnel with it"), "{}", run.err);
}

#[tokio::test]
async fn each_ending_has_its_exit_code_and_advice() {
    let lab = Lab::new(0.0);
    for (guest, code, words) in [
        ("full", 4, "where: the destination, step 3 (admit)"),
        ("full", 4, "guest: the guest runs at the source as before"),
        ("pinned", 4, "do:    take the device out"),
        ("stuck", 6, "linerate resolve"),
        ("cut", 8, "linerate migration attach"),
    ] {
        let run = lab.run(&format!("migrate {guest} --to beta")).await;
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(run.err.contains(words), "{guest}: {words} is missing:\n{}", run.err);
    }
}

/// What was carried before says nothing any more.
#[tokio::test]
async fn a_migration_in_doubt_shows_what_it_waits_for_and_no_rates() {
    let run = Lab::new(1.0).run("migrate doubt --to beta --no-check").await;
    assert_eq!(run.code, Some(6), "{run:?}");
    for words in ["in doubt: beta does not answer\n", "in doubt: beta has the guest\n"] {
        assert_eq!(run.err.matches(words).count(), 1, "{words}: {}", run.err);
    }
    assert!(!run.err.contains("b/s"), "{}", run.err);
}

#[tokio::test]
async fn a_lost_agent_ends_the_json_output_with_an_error() {
    let lab = Lab::new(0.0);
    let run = lab.run("migrate cut --to beta --json").await;
    assert_eq!(run.code, Some(8), "{run:?}");
    let last = run.json_lines().pop().unwrap();
    assert_eq!((last["kind"].as_str(), last["exit_code"].as_u64()), (Some("error"), Some(8)), "{last}");
    assert!(last["error"]["hint"].as_str().unwrap().contains("linerate migration attach"), "{last}");
    assert!(run.err.contains("linerate migration attach"), "{}", run.err);
}

#[tokio::test]
async fn a_failed_migration_has_its_error_in_the_last_line() {
    let run = Lab::new(0.0).run("migrate full --to beta --json").await;
    let last = run.json_lines().pop().unwrap();
    assert_eq!((last["kind"].as_str(), last["exit_code"].as_u64()), (Some("error"), Some(4)), "{run:?}");
}

/// Of a pipe that is closed before the end.
#[tokio::test]
async fn the_end_is_the_true_one_without_an_output() {
    let lab = Lab::new(0.0);
    for (guest, code) in [("web", 10), ("full", 4), ("stuck", 6)] {
        let mut child = lab.command(&format!("migrate {guest} --to beta --no-check")).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(end(&mut child).await, Some(code), "{guest}");
    }
    let mut child = lab.command("migrate web --to beta --no-check --detach").spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(end(&mut child).await, Some(8), "it goes on");
}

#[tokio::test]
async fn what_was_done_without_an_output_is_said_to_be_done() {
    let lab = Lab::new(0.0);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let child = lab.command(&format!("resolve {ID}-web --resume-here")).stdout(full).spawn().unwrap();
    let run = Run::of(tokio::time::timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap());
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.err.contains("only its output is missing"), "{}", run.err);
}

#[tokio::test]
async fn text_that_does_not_reach_its_output_is_no_success() {
    let lab = Lab::new(0.0);
    for line in
        ["--help", "--version", "migrate --help", "completions bash", "man", "vm list", "status --json"]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let child = lab.command(line).stdout(full).spawn().unwrap();
        let run = Run::of(tokio::time::timeout(DEADLINE, child.wait_with_output()).await.unwrap().unwrap());
        assert_eq!(run.code, Some(1), "{line}: {run:?}");
        assert!(run.err.contains("the output cannot be written"), "{line}: {}", run.err);
    }
}

/// It takes the request, and ends before it answers.
#[tokio::test]
async fn an_order_whose_answer_is_lost_may_have_been_done() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let dying = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut [0; 4096]).await;
        }
    });
    let lab = Lab::new(0.0);
    let orders = [
        ("vm stop web", "vm list"),
        ("link set eth0 --mtu 9000", "link show eth0"),
        ("link confirm eth0", "link show eth0"),
        ("cordon", "linerate status"),
    ];
    for (order, look) in orders {
        let mut command = lab.command(order);
        let asked = tokio::time::timeout(DEADLINE, command.env("LINERATE_SOCKET", &socket).output());
        let run = Run::of(asked.await.unwrap().unwrap());
        assert_eq!(run.code, Some(8), "{order}: {run:?}");
        // The text is broken into lines.
        let text = run.err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(look), "{order}: {text}");
    }
    dying.abort();
}

/// A list of one drain, as an agent answers it.
fn drains() -> String {
    let drains = serde_json::json!([{
        "id": "d1", "host": "a", "by": "root", "state": "running", "begun_unix_ms": 0, "ended_unix_ms": null,
        "guests": [], "rate_bytes_per_s": 0, "links_bytes_per_s": 0, "left_ms": null,
        "bound": { "source_ms": 0, "destination_ms": 0, "guest_ms": 0 }, "warnings": [],
    }]);
    drains.to_string()
}

/// Its store is away: it knows its own drain alone.
#[tokio::test]
async fn a_drain_is_found_by_its_name_while_the_store_does_not_answer() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let away = linerate_api::ErrorBody::new("journal_failed", "the store fails: etcd does not answer");
    let away = serde_json::to_string(&away).unwrap();
    let answering = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap_or(0);
            let of_fleet = request[..read].starts_with(b"GET /v1/fleet/drains ");
            let (status, body) = if of_fleet { ("500 No", away.clone()) } else { ("200 OK", drains()) };
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes()).await;
        }
    });
    let lab = Lab::new(0.0);
    for (line, code) in [("drain status d1", 0), ("drain status d2", 4), ("fleet drains", 1)] {
        let mut command = lab.command(line);
        let asked = tokio::time::timeout(DEADLINE, command.env("LINERATE_SOCKET", &socket).output());
        let run = Run::of(asked.await.unwrap().unwrap());
        assert_eq!(run.code, Some(code), "{line}: {run:?}");
    }
    answering.abort();
}

/// It shows a drain, and ends before it answers an order to it.
#[tokio::test]
async fn an_abort_whose_answer_is_lost_may_have_been_taken() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let drains = drains();
    let dying = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap_or(0);
            if request[..read].starts_with(b"GET ") {
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", drains.len());
                let _ = stream.write_all((head + &drains).as_bytes()).await;
            }
        }
    });
    let lab = Lab::new(0.0);
    let mut command = lab.command("drain abort");
    let asked = tokio::time::timeout(DEADLINE, command.env("LINERATE_SOCKET", &socket).output());
    let run = Run::of(asked.await.unwrap().unwrap());
    assert_eq!(run.code, Some(8), "{run:?}");
    assert!(run.err.contains("drain status"), "{}", run.err);
    dying.abort();
}

#[tokio::test]
async fn without_an_agent_the_error_shows_how_to_start_one() {
    let lab = Lab::new(0.0);
    let run = lab.run("status --socket /nonexistent/agent.sock").await;
    assert_eq!(run.code, Some(3));
    assert!(
        run.err.contains("no socket at /nonexistent/agent.sock") && run.err.contains("linerate agent"),
        "{}",
        run.err
    );
    let run = lab.run("status --json --socket /nonexistent/agent.sock").await;
    assert_eq!((run.code, run.json_lines()[0]["exit_code"].as_u64()), (Some(3), Some(3)));
    let run = lab.run("status --json --nonsense").await;
    let last = run.json_lines().pop().unwrap();
    assert_eq!((run.code, &last["error"]["code"]), (Some(2), &"usage".into()), "{run:?}");
    assert!(last["error"]["message"].as_str().unwrap().contains("--nonsense"), "{last}");
}

/// Starts a migration that never ends by itself and waits until it is being watched.
async fn watch(lab: &Lab, guest: &str) -> (Child, u32) {
    let mut child = lab.command(&format!("migrate {guest} --to beta --json")).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // The name, then the first event: the signal handler is set before the first event is asked for.
    for _ in 0..2 {
        tokio::time::timeout(DEADLINE, lines.next_line()).await.unwrap().unwrap().unwrap();
    }
    // Someone has to go on reading, or the pipe breaks.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let pid = child.id().unwrap();
    (child, pid)
}

async fn interrupt(pid: u32) {
    let done = Command::new("kill").args(["-INT", &pid.to_string()]).status().await.unwrap();
    assert!(done.success());
}

async fn end(child: &mut Child) -> Option<i32> {
    tokio::time::timeout(DEADLINE, child.wait()).await.unwrap().unwrap().code()
}

#[tokio::test]
async fn ctrl_c_cancels_and_waits_for_the_end() {
    let mut lab = Lab::new(0.05);
    let (mut child, pid) = watch(&lab, "long").await;
    interrupt(pid).await;
    assert_eq!(end(&mut child).await, Some(5));
    assert!(*lab.seen.cancelled.borrow_and_update());
}

#[tokio::test]
async fn a_second_ctrl_c_stops_watching() {
    let mut lab = Lab::new(0.05);
    let (mut child, pid) = watch(&lab, "deaf").await;
    interrupt(pid).await;
    // Signals that come at once are one.
    tokio::time::timeout(DEADLINE, lab.seen.cancelled.wait_for(|cancelled| *cancelled))
        .await
        .unwrap()
        .unwrap();
    interrupt(pid).await;
    assert_eq!(end(&mut child).await, Some(8));
}

/// A command whose migration the agent has been asked for, and has not answered; its first Ctrl-C is noted.
async fn interrupted_before_the_answer(lab: &mut Lab, line: &str) -> (Child, u32) {
    lab.seen.held.send_replace(true);
    let mut child = lab.command(line).spawn().unwrap();
    let asked = lab.seen.asked.wait_for(Option::is_some);
    drop(tokio::time::timeout(DEADLINE, asked).await.unwrap().unwrap());
    let pid = child.id().unwrap();
    interrupt(pid).await;
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let noted = async {
        loop {
            if lines.next_line().await.unwrap().unwrap().contains("has not answered yet") {
                break;
            }
        }
    };
    tokio::time::timeout(DEADLINE, noted).await.unwrap();
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, pid)
}

/// The process used to end there, and the migration went on.
#[tokio::test]
async fn ctrl_c_before_the_agent_answers_cancels_what_has_begun() {
    for more in ["", "--detach", "--json"] {
        let mut lab = Lab::new(0.05);
        let line = format!("migrate long --to beta --no-check {more}");
        let (mut child, _) = interrupted_before_the_answer(&mut lab, &line).await;
        lab.seen.held.send_replace(false);
        assert_eq!(end(&mut child).await, Some(5), "{line}");
        assert!(*lab.seen.cancelled.borrow_and_update(), "{line}");
    }
}

#[tokio::test]
async fn a_second_ctrl_c_ends_the_wait_for_an_answer() {
    let mut lab = Lab::new(0.05);
    let (mut child, pid) = interrupted_before_the_answer(&mut lab, "migrate long --to beta --no-check").await;
    interrupt(pid).await;
    assert_eq!(end(&mut child).await, Some(8));
    assert!(!*lab.seen.cancelled.borrow_and_update());
}

#[tokio::test]
async fn cancelling_by_command_ends_well() {
    let lab = Lab::new(0.05);
    let run = lab.run(&format!("migration cancel {ID}-l")).await;
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.err.contains("the guest runs at the source as before"), "{}", run.err);
}

#[tokio::test]
async fn a_cancel_that_is_refused_says_why_to_programs_too() {
    let lab = Lab::new(0.0);
    for more in ["", "--json"] {
        let run = lab.run(&format!("migration cancel {ID}-web {more}")).await;
        assert_eq!(run.code, Some(4), "{run:?}");
        assert!(run.err.contains("it cannot be cancelled: user 1 may not"), "{}", run.err);
        assert!(run.err.contains("error: user 1 may not cancel"), "{}", run.err);
    }
    let run = lab.run(&format!("migration cancel {ID}-web --json")).await;
    let last = run.json_lines().pop().unwrap();
    assert_eq!(
        (&last["kind"], &last["error"]["code"]),
        (&"error".into(), &"not_authorised".into()),
        "{last}"
    );
}

#[tokio::test]
async fn a_name_that_fits_two_migrations_is_not_guessed() {
    let run = Lab::new(0.0).run(&format!("migration attach {ID}")).await;
    assert_eq!(run.code, Some(4));
    assert!(run.err.contains("2 migrations have names"), "{}", run.err);
}

#[tokio::test]
async fn detaching_prints_how_to_come_back() {
    let run = Lab::new(0.0).run("migrate web --to beta --detach").await;
    assert_eq!(run.code, Some(0));
    assert_eq!(run.out, format!("{ID}-web\nwatch it with `linerate migration attach {ID}-web`\n"));
}

#[tokio::test]
async fn lists_and_decisions() {
    let lab = Lab::new(0.0);
    let guests = lab.run("vm list").await;
    assert!(guests.out.contains("no: a VFIO device writes to RAM unseen (and 1 more)"), "{}", guests.out);
    let status = lab.run("status").await;
    assert!(status.out.contains("26 h 03 min"), "{}", status.out);
    assert!(status.out.contains("the journal has records that cannot be read"), "{}", status.out);
    assert!(status.out.contains("trust.pem is damaged"), "{}", status.out);
    let resolved = lab.run(&format!("resolve {ID}-web --resume-here")).await;
    assert_eq!(resolved.out, "web is here, and does what it did before it was stopped\n");
    let listed = lab.run("migration list --json").await;
    assert_eq!(serde_json::from_str::<Value>(&listed.out).unwrap()[0]["state"], "running");
}

#[tokio::test]
async fn documents_of_migrations_match_their_schema() {
    let (lab, page) = (Lab::new(0.0), Page::read());
    let mut wrong = Vec::new();
    for (line, first, others) in [
        ("migrate web --to beta", "[MigrationStarted]", "[Event]"),
        ("migrate full --to beta", "[MigrationStarted]", "[Event]"),
        ("migrate web --to beta --detach", "[MigrationStarted]", "none"),
        ("migration attach 5f3a", "[ErrorLine]", "none"),
    ] {
        let run = lab.run(&format!("{line} --json")).await;
        let documents = run.json_lines();
        for (number, document) in documents.iter().enumerate() {
            let is_last = number + 1 == documents.len();
            let kind = match number {
                0 => first,
                _ if is_last && run.code != Some(0) => "[ErrorLine]",
                _ => others,
            };
            wrong.extend(page.wrong(&format!("{line}: {number}"), document, kind));
        }
    }
    for (line, kind) in [
        ("vm list", "list of [GuestSummary]"),
        ("migration list", "list of [MigrationSummary]"),
        ("status", "[AgentStatus]"),
        (&format!("resolve {ID}-web --resume-here"), "[MigrationSummary]"),
    ] {
        let document = serde_json::from_str(&lab.run(&format!("{line} --json")).await.out).unwrap();
        wrong.extend(page.wrong(line, &document, kind));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Names of subcommands, as a command's help lists them.
async fn subcommands(lab: &Lab, command: &str) -> Vec<String> {
    let help = lab.run(&format!("{command} --help")).await.out;
    let list = help.split_once("Commands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap());
    let names = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

#[tokio::test]
async fn the_page_of_documents_names_every_command() {
    let lab = Lab::new(0.0);
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    let names = subcommands(&lab, "").await;
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let below = subcommands(&lab, &name).await;
        let commands = below.iter().map(|below| format!("`linerate {name} {below}`"));
        let commands: Vec<String> = commands.collect();
        if commands.is_empty() {
            assert!(page.contains(&format!("`linerate {name}")), "{name}");
        }
        for command in commands {
            assert!(page.contains(&command), "docs/json.md does not say what {command} prints");
        }
    }
}

#[tokio::test]
async fn completions_man_and_help_need_no_agent() {
    let lab = Lab::new(0.0);
    assert!(lab.run("completions bash").await.out.contains("linerate"));
    assert!(lab.run("man").await.out.contains(".TH linerate"));
    let folder = lab.folder.path().join("man");
    assert_eq!(lab.run(&format!("man --dir {}", folder.display())).await.code, Some(0));
    assert!(folder.join("linerate-migrate.1").exists());
    assert!(lab.run("--help").await.out.contains("Exit codes:"));
}

#[tokio::test]
async fn results_are_shown_although_a_file_of_them_cannot_be_written() {
    let lab = Lab::new(0.0);
    let folder = lab.folder.path().join("survey");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("alpha.json"), SAVED).unwrap();
    let page = folder.join("missing/page.html").display().to_string();
    let run = lab.run(&format!("doctor --json --from {} --html {page}", folder.display())).await;
    assert!(run.code == Some(1) && run.err.contains("cannot be written"), "{run:?}");
    assert!(run.out.contains("\"findings\""), "{}", run.out);
    let saves = folder.join("alpha.json/saves").display().to_string();
    let run = lab.run(&format!("doctor --json --save {saves} --html {page}")).await;
    assert!(run.code == Some(1) && run.out.contains("\"findings\""), "{run:?}");
    assert!(run.err.contains(&saves) && run.err.contains(&page), "each file is named: {}", run.err);
    let run = lab.run(&format!("doctor --fix --yes --save {saves}")).await;
    assert!(run.code == Some(1) && run.out.contains("1 host"), "{run:?}");
    assert!(run.err.split_whitespace().collect::<String>().contains("nothingwasset"), "{run:?}");
    let run = lab.run(&format!("bench bandwidth --local --time 500ms --json --svg {page}")).await;
    assert!(run.code == Some(1) && run.err.contains("cannot be written"), "{run:?}");
    assert!(run.out.contains("\"bandwidth\""), "{}", run.out);
}

/// A name service that is wrong makes no host look examined.
#[tokio::test]
async fn a_name_that_leads_to_another_host_is_reported() {
    let lab = Lab::new(0.0);
    let intent = lab.folder.path().join("intent.toml");
    std::fs::write(&intent, "ports = [\"ens1f1\"]\n[migration]\npriority = 3\nshare = 50\ndscp = 26\n")
        .unwrap();
    for command in ["doctor".to_owned(), format!("qos check {}", intent.display())] {
        let run = lab.run(&format!("{command} misled")).await;
        assert!(run.out.contains("misled leads to alpha, which was looked at already"), "{run:?}");
        let run = lab.run(&format!("{command} misled --json")).await;
        let document: Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!(document["repeated"][0]["named"], "misled", "{document}");
    }
}

#[tokio::test]
async fn a_folder_without_a_host_is_not_taken_for_a_good_one() {
    let lab = Lab::new(0.0);
    let folder = lab.folder.path().join("survey");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("leaf.json"), r#"{"switch":"leaf","ports":[{"name":"1","mtu":1500}]}"#)
        .unwrap();
    let intent = lab.folder.path().join("intent.toml");
    std::fs::write(&intent, "ports = [\"ens1f0\"]\n[migration]\npriority = 3\nshare = 50\ndscp = 26\n")
        .unwrap();
    for (command, code) in [
        ("doctor".to_owned(), 1),
        (format!("qos plan {}", intent.display()), 1),
        (format!("qos check {}", intent.display()), 13),
    ] {
        let run = lab.run(&format!("{command} --from {}", folder.display())).await;
        assert_eq!(run.code, Some(code), "{command}: {run:?}");
        assert!((run.out + &run.err).contains("no host was looked at"), "{command}");
    }
}

/// Half of a saved host: what `linerate qos` needs of it.
const SAVED: &str = r#"{"schema":{"major":1},"host":"alpha","ports":[{"name":"ens1f0","kind":"physical","link":{"speed_mbps":25000},
"dcb":{"dcbx":{"host":true,"ieee":true},"applications":[{"selector":"dscp","protocol":26,"priority":3}],
"pfc":{"lossless_max":8,"lossless":[3]},"ets":{"willing":false,"classes_max":8,"priority_class":[0,0,0,1,0,0,0,0],
"share_percent":[50,50,0,0,0,0,0,0],"selection":["ets","ets","strict","strict","strict","strict","strict","strict"]}}}]}"#;

#[tokio::test]
async fn an_intent_is_compared_with_saved_hosts_and_written_for_switches_without_an_agent() {
    let lab = Lab::new(0.0);
    let folder = lab.folder.path();
    let intent = "ports = [\"ens1f0\"]\nswitch_ports = [\"swp1\"]\nwindows_adapters = [\"Port 1\"]\n\
                  [migration]\npriority = 3\nshare = 50\nlossless = true\ndscp = 26\n";
    std::fs::create_dir(folder.join("survey")).unwrap();
    std::fs::write(folder.join("survey/alpha.json"), SAVED).unwrap();
    std::fs::write(folder.join("qos.toml"), intent).unwrap();
    let (file, survey) = (folder.join("qos.toml"), folder.join("survey"));
    let compared = |command: &str| format!("qos {command} {} --from {}", file.display(), survey.display());

    let run = lab.run(&compared("check")).await;
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.out.contains("alpha ens1f0: as the intent says"), "{}", run.out);
    assert!(run.out.contains("--bandwidth 12500M"), "{}", run.out);

    std::fs::write(folder.join("survey/alpha.json"), SAVED.replace("\"lossless\":[3]", "\"lossless\":[5]"))
        .unwrap();
    let run = lab.run(&compared("check")).await;
    assert_eq!(run.code, Some(13), "{run:?}");
    assert!(run.out.contains("alpha ens1f0: lossless priorities 5 → 3"), "{}", run.out);
    assert_eq!(lab.run(&compared("plan")).await.code, Some(0), "a plan that can be done is no failure");

    for system in ["nxos", "eos", "cumulus", "sonic"] {
        let run = lab.run(&format!("qos switch {} --system {system}", file.display())).await;
        assert_eq!(run.code, Some(0), "{run:?}");
        assert!(run.out.lines().nth(1).unwrap().contains("UNTESTED ON HARDWARE"), "{}", run.out);
    }
    let run = lab.run(&format!("qos windows {} --json", file.display())).await;
    let document: Value = serde_json::from_str(&run.out).unwrap();
    assert!(
        document["text"].as_str().unwrap().contains("Enable-NetQosFlowControl -Priority 3"),
        "{document}"
    );
    assert_eq!(lab.run(&format!("qos switch {} --system toaster", file.display())).await.code, Some(2));
}

#[tokio::test]
async fn what_only_domains_have_is_refused_for_other_guests() {
    let lab = Lab::new(0.0);
    for flag in [
        "--xml there.xml",
        "--persistent-xml there.xml",
        "--copy-storage inc",
        "--connections 2",
        "--libvirt-socket /run/there.sock",
    ] {
        let run = lab.run(&format!("migrate web --to beta {flag}")).await;
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.err.contains("only for domains of libvirt"), "{run:?}");
    }
}

/// It recovers no session and listens for no host: systemd starts it again and again.
#[tokio::test]
async fn an_agent_with_the_socket_of_another_one_begins_nothing() {
    let lab = Lab::new(1.0);
    let at = |name: &str| lab.folder.path().join(name);
    let folders = ["run_dir", "ram_dir", "state_dir", "domain_sockets"];
    let mut text = format!("name = \"second\"\nlisten = []\nsocket = {:?}\n", at("agent.sock"));
    folders.iter().for_each(|key| text += &format!("{key} = {:?}\n", at(key)));
    std::fs::write(at("agent.toml"), text).unwrap();
    let run = lab.run(&format!("agent --config {}", at("agent.toml").display())).await;
    assert_ne!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains("another agent listens on"), "{}", run.err);
    assert!(!at("state_dir").exists(), "nothing was opened there");
}
