//! What runs inside of the machine: two hosts in namespaces, two agents, the guest without a kernel.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use linerate_lab::{Agent, AgentOptions, Console, GuestParameters, GuestSpec, Lab, LinkSpec};
use serde_json::Value;

/// The machine is slow and its own deadline ends what hangs.
const LONG: Duration = Duration::from_secs(400);
const LINK_MBPS: u64 = 30;

struct Stage {
    console: Console,
    agents: Vec<Agent>,
    // Behind the agents: dropped after them.
    lab: Lab,
}

fn stage() -> Stage {
    let lab = Lab::builder().links([LinkSpec::shaped(LINK_MBPS).mtu(9000); 2]).build().unwrap();
    let start = |host| Agent::start(host, AgentOptions::default()).unwrap();
    let agents: Vec<Agent> = lab.hosts().iter().map(start).collect();
    let spec = start_guest(&agents[0]);
    Stage { console: Console::new([spec.arrived_serial(&lab.hosts()[1])]), agents, lab }
}

/// Starts the guest; returns when it has checked all of its memory some times.
pub(crate) fn start_guest(agent: &Agent) -> GuestSpec {
    let spec = guest();
    start(agent, &spec);
    spec
}

pub(crate) fn guest() -> GuestSpec {
    let parameters = GuestParameters { mem_mb: 32, dirty_ws_mb: Some(1), ..GuestParameters::default() };
    GuestSpec::bare("g", parameters)
}

/// The same with this guest.
pub(crate) fn start(agent: &Agent, spec: &GuestSpec) {
    let file = spec.write_toml(agent.host()).unwrap();
    let output = agent.client().args(["vm", "start"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Console::new([spec.serial(agent.host())]).wait_passes(3, LONG).unwrap();
}

/// How a migration went: exit code, events, and standard error.
pub(crate) struct Moved {
    pub(crate) code: Option<i32>,
    pub(crate) events: Vec<Value>,
    pub(crate) errors: String,
}

impl Moved {
    /// The report of a guest that arrived, compared byte by byte.
    pub(crate) fn report(&self, agent: &Agent) -> &Value {
        let report = self.arrived(agent);
        assert_eq!(report["verified"], true, "{report:#}");
        report
    }

    /// Its events without progress.
    pub(crate) fn events_without_progress(&self) -> Vec<&Value> {
        self.events.iter().filter(|event| event["kind"] != "progress").collect()
    }

    /// The same, a line for each.
    fn event_lines(&self) -> String {
        self.events_without_progress().iter().map(|event| format!("{event}\n")).collect()
    }

    /// The report of a guest that arrived.
    pub(crate) fn arrived(&self, agent: &Agent) -> &Value {
        assert_eq!(self.code, Some(0), "{}\n{}\n{}", self.errors, self.event_lines(), last_lines(agent));
        let finished = self.events.iter().find(|event| event["kind"] == "finished").unwrap();
        &finished["report"]
    }
}

/// The end of an agent's log. It has thousands after many moves.
fn last_lines(agent: &Agent) -> String {
    let log = std::fs::read_to_string(agent.log()).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

/// A part has arrived, and the link to which something is done has carried some of it: a link that is still being
/// opened cannot be lost.
fn carries(event: &Value) -> bool {
    let more = |of: &Value, bytes: u64| of["sent_bytes"].as_u64().is_some_and(|sent| sent > bytes);
    more(event, 4 << 20) && more(&event["links"][1], 1 << 20)
}

/// Moves the guest in direct mode, compares its memory, and does something when a part has arrived.
pub(crate) fn migrate(agent: &Agent, to: &str, transport: &str, halfway: impl FnOnce()) -> Moved {
    migrate_with(agent, to, transport, &["--verify"], halfway)
}

/// The same with another option than comparing.
pub(crate) fn migrate_with(
    agent: &Agent,
    to: &str,
    transport: &str,
    options: &[&str],
    halfway: impl FnOnce(),
) -> Moved {
    let mut command = agent.client();
    command.args(["migrate", "g", "--to", to, "--transport", transport, "--json"]).args(options);
    if !options.contains(&"--link-timeout") {
        // Starting the destination's QEMU keeps a machine that is emulated busy for longer than real hosts may be
        // silent.
        command.args(["--link-timeout", "300s"]);
    }
    if transport != "tcp" && !options.contains(&"--bandwidth") {
        // Slow enough for work to be left for both links when something is done to one: RDMA's are not shaped.
        command.args(["--bandwidth", "40M"]);
    }
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut events = Vec::new();
    let mut halfway = Some(halfway);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if carries(&event)
            && let Some(halfway) = halfway.take()
        {
            halfway();
        }
        events.push(event);
    }
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Moved { code: output.status.code(), events, errors }
}

/// It goes on where it is, and finds all of its memory as it left it.
pub(crate) fn runs_unharmed(console: &Console) {
    console.wait_passes(3, LONG).unwrap();
    assert_eq!(console.bad_lines(), Vec::<String>::new());
}

#[test]
#[ignore = "runs inside of the machine, started by the test next door"]
fn a_guest_moves_over_tcp() {
    let stage = stage();
    let to = stage.agents[1].address(0).to_string();
    let moved = migrate(&stage.agents[0], &to, "tcp", || stage.lab.cut(1).unwrap());
    let report = moved.report(&stage.agents[0]);
    // A machine this slow may lose a link more than once: its threads are late for the deadlines of real hosts.
    assert!(report["links"][1]["lost_count"].as_u64().unwrap() >= 1, "{report:#}");
    runs_unharmed(&stage.console);
}

#[test]
#[ignore = "runs inside of the machine, started by the test next door"]
fn direct_mode_is_refused() {
    let stage = stage();
    let to = stage.agents[1].address(0).to_string();
    let moved = migrate(&stage.agents[0], &to, "tcp", || {});
    let all = format!("{}{}", moved.errors, Value::from(moved.events));
    assert_ne!(moved.code, Some(0), "{all}");
    assert!(all.to_lowercase().contains("pagemap_scan"), "{all}");
    let host = &stage.lab.hosts()[0];
    let console = Console::new([host.run_directory().join("g.serial")]);
    console.wait_passes(2, LONG).unwrap();
}
