//! Cisco NX-OS, Nexus 9000: class maps, then three policies (which queue, which share, what is lossless), then ports.
//!
//! The group of a priority is its own number. So queue `c-out-8q-qN` and network class `c-8q-nqN`, which the system has
//! by itself, are those of priority N.

use super::super::intent::Intent;
use super::{head, share};

/// What the largest packets need, and the only value that all of the system's lossless classes take.
const MTU: u16 = 9216;

pub(super) fn write(intent: &Intent) -> String {
    let notes = [
        "Lossless classes, shares and the packet size of their classes hold for the whole switch, marks for the ports named.",
    ];
    let parts = [
        head("!", "Cisco NX-OS (Nexus 9000)", &notes),
        classification(intent),
        shares(intent),
        lossless(intent),
        whole(),
        ports(intent),
    ];
    parts.join("!\n")
}

fn classification(intent: &Intent) -> String {
    let mut text = String::new();
    for class in intent.classes() {
        let matched = match class.dscp {
            Some(dscp) => format!("dscp {dscp}"),
            None => format!("cos {}", class.priority),
        };
        text += &format!("class-map type qos match-any linerate-{}\n  match {matched}\n", class.name);
    }
    text += "policy-map type qos linerate-in\n";
    for class in intent.classes() {
        text += &format!("  class linerate-{}\n    set qos-group {}\n", class.name, class.priority);
    }
    text + "  class class-default\n    set qos-group 0\n"
}

/// All eight queues: one that is left out would keep what it has.
fn shares(intent: &Intent) -> String {
    let queue = |number: u8| {
        let name = if number == 0 { "-default".to_owned() } else { number.to_string() };
        format!(
            "  class type queuing c-out-8q-q{name}\n    bandwidth remaining percent {}\n",
            share(intent, number)
        )
    };
    let queues: String = (0..8).rev().map(queue).collect();
    format!("policy-map type queuing linerate-out\n{queues}")
}

fn lossless(intent: &Intent) -> String {
    let class = |priority: u8| {
        format!("  class type network-qos c-8q-nq{priority}\n    mtu {MTU}\n    pause pfc-cos {priority}\n")
    };
    let classes: String = intent.lossless().into_iter().map(class).collect();
    format!(
        "policy-map type network-qos linerate-network\n{classes}  class type network-qos c-8q-nq-default\n    mtu {MTU}\n"
    )
}

fn whole() -> String {
    "system qos\n  service-policy type queuing output linerate-out\n  service-policy type network-qos linerate-network\n".into()
}

fn ports(intent: &Intent) -> String {
    // Without a lossless class the port has nothing to stop for.
    let mode = if intent.lossless().is_empty() { "off" } else { "on" };
    let port = |name: &String| {
        format!(
            "interface {name}\n  priority-flow-control mode {mode}\n  service-policy type qos input linerate-in\n"
        )
    };
    intent.switch_ports.iter().map(port).collect()
}
