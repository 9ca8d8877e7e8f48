//! Documents of `--json` are as docs/json.md says.

use serde_json::Value;

use crate::page::Page;
use crate::{INTENT, SETTABLE, Stage, judged::unused_address};

#[test]
fn every_document_matches_its_schema() {
    let stage = Stage::with(2, &[1000, 1000], SETTABLE);
    stage.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    stage.on(1, &["ip", "route", "add", "default", "via", &unused_address(&stage), "dev", "l0"]);
    let other = stage.agents[1].address(0).to_string();
    let file = stage.lab.directory().join("qos.toml");
    std::fs::write(&file, INTENT).unwrap();
    let intent = file.to_str().unwrap();
    let (page, mut wrong) = (Page::read(), Vec::new());
    for (kind, arguments) in [
        ("[BenchReport]", vec!["bench", "bandwidth", "--to", &other, "--time", "500ms"]),
        ("[BenchReport]", vec!["bench", "pingpong", "--to", &other, "--sizes", "0,4", "--repetitions", "9"]),
        ("[Look]", vec!["doctor", &other]),
        ("[FixDocument]", vec!["doctor", &other, "--quick", "--fix", "--dry-run"]),
        ("[Inventory]", vec!["doctor", "--inventory"]),
        ("[LinkAnswer]", vec!["link", "set", "l0", "--mtu", "4000"]),
        ("[PortConfirmed]", vec!["link", "confirm", "l0"]),
        ("[LinkAnswer]", vec!["link", "set", "l0", "--mtu", "3900"]),
        ("[PortPutBack]", vec!["link", "put-back", "l0"]),
        ("list of [Port]", vec!["link", "show"]),
        ("list of [MigrationSummary]", vec!["migration", "list"]),
        ("[QosDocument]", vec!["qos", "check", intent, &other]),
        ("[QosText]", vec!["qos", "switch", "--system", "nxos", intent]),
        ("[AgentStatus]", vec!["status"]),
        ("list of [GuestSummary]", vec!["vm", "list"]),
        ("[ErrorLine]", vec!["vm", "show", "nobody"]),
    ] {
        let (exit, text) = stage.linerate(&[&arguments[..], &["--json"]].concat());
        let Ok(document) = serde_json::from_str::<Value>(&text) else {
            panic!("{arguments:?}: {exit}: {text}")
        };
        let mut found = page.wrong(&arguments.join(" "), &document, kind);
        // It leaves out what has no value.
        found.retain(|text| kind != "[Inventory]" || !text.ends_with("is not there"));
        wrong.extend(found);
    }
    assert!(wrong.is_empty(), "docs/json.md does not say so:\n{}", wrong.join("\n"));
}
