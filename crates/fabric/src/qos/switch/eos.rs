//! Arista EOS: marks to traffic classes, then each port: trust, shares of its queues, lossless priorities.
//!
//! Traffic class N and queue N are those of priority N. All marks are named, so that what the system would do with the
//! others by itself does not matter.

use super::super::intent::Intent;
use super::{class_of_mark, class_of_tag, head, marked, queues};

pub(super) fn write(intent: &Intent) -> String {
    let notes = [
        "Models with separate unicast queues name them uc-tx-queue instead of tx-queue.",
        "Marks hold for the whole switch; queues, trust and lossless priorities for the ports named.",
    ];
    let mut text = head("!", "Arista EOS", &notes);
    let trust = if marked(intent).next().is_some() { "dscp" } else { "cos" };
    text += &map(intent, trust);
    for name in &intent.switch_ports {
        text += &format!("!\ninterface {name}\n   qos trust {trust}\n");
        text += &flow_control(intent);
        for (queue, _, share) in queues(intent) {
            text +=
                &format!("   !\n   tx-queue {queue}\n      no priority\n      bandwidth percent {share}\n");
        }
    }
    text
}

/// Each class with all that belongs to it, so that nothing is left where the system has it by itself.
fn map(intent: &Intent, trust: &str) -> String {
    let class_of = |number: u8| match trust {
        "dscp" => class_of_mark(intent, number),
        _ => class_of_tag(intent, number),
    };
    let numbers = 0..if trust == "dscp" { 64 } else { 8 };
    let line = |(class, ..): (u8, &str, u8)| {
        let own = numbers.clone().filter(|number| class_of(*number) == class);
        let list: Vec<String> = own.map(|number| number.to_string()).collect();
        format!("qos map {trust} {} to traffic-class {class}\n", list.join(" "))
    };
    queues(intent).into_iter().map(line).collect()
}

fn flow_control(intent: &Intent) -> String {
    let lossless = intent.lossless();
    if lossless.is_empty() {
        return "   no priority-flow-control\n".to_owned();
    }
    let priority = |number: u8| format!("   priority-flow-control priority {number} no-drop\n");
    let priorities: String = lossless.into_iter().map(priority).collect();
    format!("   flowcontrol send off\n   flowcontrol receive off\n   priority-flow-control on\n{priorities}")
}
