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
    let parameters = GuestParameters { mem_mb: 32, dirty_ws_mb: Some(1), ..GuestParameters::default() };
    let spec = GuestSpec::bare("g", parameters);
    let (a, b) = (&lab.hosts()[0], &lab.hosts()[1]);
    let file = spec.write_toml(a).unwrap();
    let output = agents[0].client().args(["vm", "start"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    Console::new([spec.serial(a)]).wait_passes(3, LONG).unwrap();
    Stage { console: Console::new([spec.arrived_serial(b)]), agents, lab }
}

/// Moves the guest, cuts a link when a part has arrived, and returns exit code, events and what was said besides.
fn migrate(stage: &Stage) -> (Option<i32>, Vec<Value>, String) {
    let to = stage.agents[1].address(0).to_string();
    let mut command = stage.agents[0].client();
    // Starting the destination's QEMU keeps a machine that is emulated busy for longer than real hosts may be silent.
    command.args(["migrate", "g", "--to", &to, "--verify", "--json", "--link-timeout", "300s"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut events = Vec::new();
    let mut cut = false;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if !cut && event["sent_bytes"].as_u64().is_some_and(|bytes| bytes > 4 << 20) {
            stage.lab.cut(1).unwrap();
            cut = true;
        }
        events.push(event);
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), events, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
#[ignore = "runs inside of the machine, started by the test next door"]
fn a_guest_moves_over_tcp() {
    let stage = stage();
    let (code, events, said) = migrate(&stage);
    let log = || std::fs::read_to_string(stage.agents[0].log()).unwrap_or_default();
    assert_eq!(code, Some(0), "{said}\n{events:#?}\n{}", log());
    let finished = events.iter().find(|event| event["kind"] == "finished").unwrap();
    assert_eq!(finished["report"]["verified"], true, "{finished:#}");
    // A machine this slow may lose a link more than once: its threads are late for the deadlines of real hosts.
    assert!(finished["report"]["links"][1]["lost_count"].as_u64().unwrap() >= 1, "{finished:#}");
    stage.console.wait_passes(3, LONG).unwrap();
    assert_eq!(stage.console.bad_lines(), Vec::<String>::new());
}

#[test]
#[ignore = "runs inside of the machine, started by the test next door"]
fn direct_mode_is_refused() {
    let stage = stage();
    let (code, events, said) = migrate(&stage);
    let all = format!("{said}{}", Value::from(events));
    assert_ne!(code, Some(0), "{all}");
    assert!(all.to_lowercase().contains("pagemap_scan"), "{all}");
    let host = &stage.lab.hosts()[0];
    let console = Console::new([host.run_directory().join("g.serial")]);
    console.wait_passes(2, LONG).unwrap();
}
