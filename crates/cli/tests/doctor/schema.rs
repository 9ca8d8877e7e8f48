//! Documents of `--json` are as docs/json.md says.

use serde_json::Value;

use crate::{INTENT, Room, SETTABLE, judged::nobody};

/// Names of objects whose members are named by what they hold.
const BY_NAME: [&str; 2] = ["offloads", "paths"];

/// Where each value of a document is, and what it is: `room.hosts[].memory.total_bytes number`.
fn shape(value: &Value, at: &str, found: &mut std::collections::BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            let by_name = BY_NAME.iter().any(|name| at.rsplit('.').next() == Some(name));
            for (name, field) in fields {
                let name = if by_name { "*" } else { name };
                let below = if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") };
                shape(field, &below, found);
            }
        }
        Value::Array(members) => members.iter().for_each(|one| shape(one, &format!("{at}[]"), found)),
        Value::Null => {}
        Value::Bool(_) => drop(found.insert(at.to_owned(), "yes or no".into())),
        Value::Number(_) => drop(found.insert(at.to_owned(), "number".into())),
        Value::String(_) => drop(found.insert(at.to_owned(), "text".into())),
    }
}

/// What other machines have more of: docs/inventory.md says what it is.
const OF_HARDWARE: [&str; 7] =
    ["cpu.", "notes[]", "rdma[]", "system.", "time.", "memory.huge_pages[]", "hypervisor.cpu_models[]"];

fn of_hardware(at: &str) -> bool {
    let at = at.strip_prefix("room.hosts[].").unwrap_or(at);
    OF_HARDWARE.iter().any(|prefix| at.starts_with(prefix))
}

/// What docs/json.md says of a command.
fn documented(page: &str, command: &str) -> std::collections::BTreeMap<String, String> {
    let section = page.split_once(&format!("\n## {command}\n")).map_or("", |(_, rest)| rest);
    let block = section.split("```").nth(1).unwrap_or_default();
    let line =
        |line: &str| line.split_once("  ").map(|(path, kind)| (path.to_owned(), kind.trim().to_owned()));
    block.lines().skip(1).filter_map(line).collect()
}

/// `UPDATE_GOLDEN=1` adds what is missing in docs/json.md.
#[test]
fn every_document_is_as_its_schema_says() {
    let room = Room::with(2, &[1000, 1000], SETTABLE);
    room.on(1, &["ip", "link", "set", "dev", "l1", "mtu", "1500"]);
    room.on(1, &["ip", "route", "add", "default", "via", &nobody(&room), "dev", "l0"]);
    let other = room.agents[1].address(0).to_string();
    let file = room.lab.directory().join("qos.toml");
    std::fs::write(&file, INTENT).unwrap();
    let intent = file.to_str().unwrap();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md");
    let mut page = std::fs::read_to_string(path).unwrap();
    let mut wrong = Vec::new();
    for (command, arguments) in [
        ("linerate bench", vec!["bench", "bandwidth", "--to", &other, "--time", "500ms"]),
        ("linerate doctor", vec!["doctor", &other]),
        ("linerate doctor --fix", vec!["doctor", &other, "--quick", "--fix", "--dry-run"]),
        ("linerate doctor --inventory", vec!["doctor", "--inventory"]),
        ("linerate link set", vec!["link", "set", "l0", "--mtu", "4000"]),
        ("linerate link confirm", vec!["link", "confirm", "l0"]),
        ("linerate link show", vec!["link", "show"]),
        ("linerate migration list", vec!["migration", "list"]),
        ("linerate qos check", vec!["qos", "check", intent, &other]),
        ("linerate status", vec!["status"]),
        ("linerate vm list", vec!["vm", "list"]),
    ] {
        let (exit, text) = room.linerate(&[&arguments[..], &["--json"]].concat());
        let Ok(document) = serde_json::from_str::<Value>(&text) else { panic!("{command}: {exit}: {text}") };
        let mut found = std::collections::BTreeMap::new();
        shape(&document, "", &mut found);
        let mut known = documented(&page, command);
        let missing = found.iter().filter(|(at, kind)| !of_hardware(at) && known.get(*at) != Some(kind));
        let missing: Vec<_> = missing.collect();
        wrong.extend(missing.iter().map(|(at, kind)| format!("{command}: {at}  {kind}")));
        known.extend(found.clone());
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            let lines: String = known.iter().map(|(at, kind)| format!("{at}  {kind}\n")).collect();
            let head = format!("\n## {command}\n");
            let (before, after) = page.split_once(&head).unwrap_or_else(|| panic!("no section {command}"));
            let mut parts = after.splitn(3, "```");
            let (intro, _, rest) = (parts.next().unwrap(), parts.next(), parts.next().unwrap());
            page = format!("{before}{head}{intro}```text\n{lines}```{rest}");
        }
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        return std::fs::write(path, page).unwrap();
    }
    assert!(wrong.is_empty(), "docs/json.md does not say (UPDATE_GOLDEN=1 adds it):\n{}", wrong.join("\n"));
}
