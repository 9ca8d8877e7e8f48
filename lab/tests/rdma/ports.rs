//! What runs inside of the machine: the doctor over bonds, VLANs and PCIe cards, which the machine of the tests has
//! not.

use std::path::Path;
use std::process::Command;

use linerate_lab::{Agent, AgentOptions, Host, Lab, LinkSpec};
use serde_json::{Value, json};

fn tool(words: &str) {
    let words: Vec<&str> = words.split_whitespace().collect();
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
}

/// `ip` in a host.
fn ip(host: &Host, words: &str) {
    tool(&format!("ip -n {} {words}", host.namespace()));
}

/// l0 carries VLAN `vlan` with the address of l2; l1 and l2 are members of bond0, which has the address of l1.
fn stack(host: &Host, vlan: u16) {
    for port in ["l1", "l2"] {
        ip(host, &format!("addr flush dev {port}"));
        ip(host, &format!("link set {port} down"));
    }
    // No look at the links (miimon), and a hash that puts everything between two hosts on one member.
    ip(host, "link add bond0 type bond mode balance-xor xmit_hash_policy layer2 miimon 0");
    ip(host, "link set bond0 mtu 9000");
    ip(host, "link set l1 master bond0");
    ip(host, "link set l2 master bond0");
    ip(host, &format!("addr add {}/24 dev bond0", host.address(1)));
    ip(host, "link set bond0 up");
    ip(host, &format!("link add link l0 name l0.{vlan} type vlan id {vlan}"));
    ip(host, &format!("addr add {}/24 dev l0.{vlan}", host.address(2)));
    ip(host, &format!("link set l0.{vlan} up"));
}

/// Ports of the PCIe cards, in the order of their addresses.
fn cards() -> Vec<String> {
    let ports = std::fs::read_dir("/sys/class/net").unwrap().map(|entry| entry.unwrap().path());
    let of_card = |path: &std::path::PathBuf| {
        let driver = std::fs::canonicalize(path.join("device/driver")).ok()?;
        let address = std::fs::canonicalize(path.join("device")).ok()?;
        let name = path.file_name()?.to_str()?.to_owned();
        driver.ends_with(Path::new("e1000e")).then_some((address, name))
    };
    let mut found: Vec<_> = ports.filter_map(|path| of_card(&path)).collect();
    found.sort();
    found.into_iter().map(|(_, name)| name).collect()
}

fn doctor(agent: &Agent, words: &[&str]) -> Value {
    let output = agent.client().args(["doctor", "--quick", "--json"]).args(words).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// Titles of a finding with its first place.
fn found(document: &Value, id: &str) -> Vec<(String, String)> {
    let findings = document["findings"].as_array().unwrap().iter().filter(|finding| finding["id"] == id);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let place = |place: &Value| format!("{} {}", text(&place["host"]), text(&place["port"]));
    findings.map(|finding| (place(&finding["locations"][0]), text(&finding["title"]))).collect()
}

fn places(document: &Value, id: &str) -> Vec<String> {
    found(document, id).into_iter().map(|(place, _)| place).collect()
}

fn port<'a>(document: &'a Value, host: usize, name: &str) -> &'a Value {
    let ports = document["survey"]["hosts"][host]["ports"].as_array().unwrap();
    ports.iter().find(|port| port["name"] == name).unwrap_or_else(|| panic!("no {name} in {ports:#?}"))
}

#[test]
#[ignore = "runs inside of the machine, started by the test next door"]
fn bonds_vlans_and_slots() {
    tool("modprobe e1000e");
    let cards = cards();
    assert_eq!(cards.len(), 3, "{cards:?}");
    let lab = Lab::builder().links([LinkSpec::unshaped(); 3]).ram_mb(64).build().unwrap();
    let [a, b] = lab.hosts() else { unreachable!() };
    stack(a, 700);
    stack(b, 701);
    for card in &cards {
        tool(&format!("ip link set {card} netns {}", a.namespace()));
        ip(a, &format!("link set {card} up"));
    }
    ip(b, "link set l2 mtu 1500");
    let agents: Vec<Agent> =
        lab.hosts().iter().map(|host| Agent::start(host, AgentOptions::default()).unwrap()).collect();
    let there = agents[1].address(0).to_string();
    let document = doctor(&agents[0], &[&there]);
    println!("{:#}", document["findings"]);

    // Bonds as the kernel says them.
    let bond = port(&document, 0, "bond0");
    assert_eq!((&bond["kind"], &bond["bond"]["mode"]), (&json!("bond"), &json!("balance-xor")), "{bond:#}");
    assert_eq!(port(&document, 0, "l1")["master"], "bond0");
    assert_eq!(places(&document, "team-without-monitoring"), ["a bond0", "b bond0"]);
    assert_eq!(places(&document, "team-cannot-spread"), ["a bond0", "b bond0"]);
    let mtu = found(&document, "mtu-in-team");
    assert!(mtu.len() == 1 && mtu[0].1 == "MTU 9000 and 1500 in b bond0", "{mtu:?}");

    // VLANs: by their numbers, or because nothing arrives.
    let vlan = port(&document, 1, "l0.701");
    assert_eq!((&vlan["kind"], &vlan["vlan"], &vlan["parent"]), (&json!("vlan"), &json!(701), &json!("l0")));
    let vlans = found(&document, "vlan-between-hosts");
    assert!(vlans.len() == 1 && vlans[0].1.contains("700") && vlans[0].1.contains("701"), "{vlans:?}");

    // Slots: two ports of a gigabit share a lane of 2.5 GT/s; the third has a wider slot than it needs.
    let shared = found(&document, "pcie-below-ports");
    assert_eq!(shared.len(), 1, "{shared:?}");
    assert_eq!(shared[0].0, format!("a {}", cards[0]), "{shared:?}");
    let single = port(&document, 0, &cards[2]);
    assert_eq!(single["driver"], "e1000e");
    assert_eq!(single["pcie"]["slot_able"], json!({"speed_mts": 8000, "width": 4}), "{single:#}");
    assert_eq!(single["pcie"]["running"], json!({"speed_mts": 2500, "width": 1}), "{single:#}");
    assert_eq!(single["link"]["speed_mbps"], 1000, "{single:#}");
    assert_eq!(
        (&single["link"]["duplex"], &single["link"]["autonegotiation"]),
        (&json!("full"), &json!(true))
    );
    let supported = single["link"]["supported"].as_array().unwrap();
    assert!(supported.contains(&json!("1000baseT/Full")), "{single:#}");

    // The member's MTU is fixed; what needs hands stays.
    let allow =
        AgentOptions { configuration: "settings_from_agents = true\n".into(), ..AgentOptions::default() };
    let mut agents = agents;
    agents.truncate(1);
    agents.push(Agent::start(b, allow).unwrap());
    let fixed = doctor(&agents[0], &["--fix", "--yes", "--within", "10m", &there]);
    assert_eq!(fixed["outcome"], "kept", "{fixed:#}");
    assert!(found(&fixed, "mtu-in-team").is_empty(), "{:#}", fixed["findings"]);
    assert_eq!(port(&fixed, 1, "l2")["mtu"], 9000);
    assert_eq!(places(&fixed, "team-without-monitoring"), ["a bond0", "b bond0"]);
}
