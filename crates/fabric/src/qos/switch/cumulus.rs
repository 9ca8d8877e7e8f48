//! NVIDIA Cumulus Linux 5 by NVUE: profiles of its own for marks, shares and lossless priorities, bound to the ports
//! named.

use super::super::intent::Intent;
use super::{head, marked, queues};

const PROFILE: &str = "linerate";

pub(super) fn write(intent: &Intent) -> String {
    let notes = [
        "Commands for a shell of the switch; look at `nv config diff` before the last one.",
        "Do not mix with `nv set qos roce`, which sets the same things its own way.",
        "DSCPs that are not named keep the priority that the switch gives them, which may be one of these.",
        "Priorities are mapped to queues for the whole switch, the rest holds for the ports named.",
    ];
    let mut text = head("#", "NVIDIA Cumulus Linux 5 (NVUE)", &notes);
    text += &begin();
    text += &classification(intent);
    text += &shares(intent);
    text += &lossless(intent);
    for name in &intent.switch_ports {
        text += &format!("nv set interface {name} qos mapping profile {PROFILE}\n");
        text += &format!("nv set interface {name} qos egress-scheduler profile {PROFILE}\n");
        text += &match intent.lossless().is_empty() {
            true => format!("nv unset interface {name} qos pfc\n"),
            false => format!("nv set interface {name} qos pfc profile {PROFILE}\n"),
        };
    }
    text + "nv config diff\n# nv config apply\n"
}

/// What an earlier text made goes first: what is set is laid over what is there.
fn begin() -> String {
    let unset = |what| format!("nv unset qos {what} {PROFILE}\n");
    ["mapping", "egress-scheduler", "pfc"].map(unset).concat()
}

fn classification(intent: &Intent) -> String {
    let mapping = format!("nv set qos mapping {PROFILE}");
    let dscp: Vec<String> = marked(intent)
        .map(|(class, dscp)| format!("{mapping} dscp {dscp} switch-priority {}\n", class.priority))
        .collect();
    if dscp.is_empty() {
        let tag = |priority: u8| format!("{mapping} pcp {priority} switch-priority {priority}\n");
        let tags: String = (0..8).map(tag).collect();
        return format!("{mapping} trust l2\n{tags}");
    }
    format!("{mapping} trust l3\n{}", dscp.concat())
}

/// The classes have queues of their own; all other priorities share the first.
fn shares(intent: &Intent) -> String {
    let queues = queues(intent);
    let queue_of =
        |priority: u8| queues.iter().find(|(one, ..)| *one == priority).map_or(0, |(one, ..)| *one);
    let map = |priority: u8| {
        let queue = queue_of(priority);
        format!(
            "nv set qos egress-queue-mapping default-global switch-priority {priority} traffic-class {queue}\n"
        )
    };
    let scheduler = |(queue, _, share): &(u8, &str, u8)| {
        let line = format!("nv set qos egress-scheduler {PROFILE} traffic-class {queue}");
        format!("{line} mode dwrr\n{line} bw-percent {share}\n")
    };
    (0..8).map(map).chain(queues.iter().map(scheduler)).collect()
}

fn lossless(intent: &Intent) -> String {
    let priorities: Vec<String> = intent.lossless().iter().map(u8::to_string).collect();
    if priorities.is_empty() {
        return String::new();
    }
    let line = format!("nv set qos pfc {PROFILE}");
    format!("{line} switch-priority {}\n{line} tx enable\n{line} rx enable\n", priorities.join(","))
}
