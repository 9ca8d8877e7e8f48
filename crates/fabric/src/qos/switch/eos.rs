//! Arista EOS: marks to traffic classes, then each port: trust, shares of its queues, lossless priorities.
//!
//! Traffic class N and queue N are those of priority N, as the system maps them by itself.

use super::super::intent::Intent;
use super::{head, marked, queues};

pub(super) fn write(intent: &Intent) -> String {
    let notes = [
        "Models with separate unicast queues name them uc-tx-queue instead of tx-queue.",
        "DSCPs that are not named keep the class that the switch gives them, which may be one of these.",
        "Marks hold for the whole switch; queues, trust and lossless priorities for the ports named.",
    ];
    let mut text = head("!", "Arista EOS", &notes);
    for (class, dscp) in marked(intent) {
        text += &format!("qos map dscp {dscp} to traffic-class {}\n", class.priority);
    }
    let trust = if marked(intent).next().is_some() { "dscp" } else { "cos" };
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

fn flow_control(intent: &Intent) -> String {
    let lossless = intent.lossless();
    if lossless.is_empty() {
        return "   no priority-flow-control\n".to_owned();
    }
    let priority = |number: u8| format!("   priority-flow-control priority {number} no-drop\n");
    let priorities: String = lossless.into_iter().map(priority).collect();
    format!("   flowcontrol send off\n   flowcontrol receive off\n   priority-flow-control on\n{priorities}")
}
