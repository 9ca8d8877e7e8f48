//! SONiC: tables of its configuration database, in a shell script that loads them.
//!
//! Traffic class, queue and priority group N are those of priority N. Buffers of lossless groups are left to the
//! system: with the dynamic buffer model the profile `NULL` asks for one that fits speed and cable.

use serde_json::{Map, Value, json};

use super::super::intent::Intent;
use super::{SwitchError, class_of_mark, class_of_tag, head, marked, queues};

const NAME: &str = "LINERATE";

pub(super) fn write(intent: &Intent) -> Result<String, SwitchError> {
    let notes = [
        "A shell script for the switch, SONiC 202111 or later with the dynamic buffer model; `config save` keeps what it does.",
        "With the traditional buffer model give the lossless groups in BUFFER_PG a profile of your own.",
    ];
    let tables = serde_json::to_string_pretty(&tables(intent))?;
    let head = head("#", "SONiC", &notes);
    Ok(format!(
        "{head}cat > /tmp/linerate-qos.json <<'END'\n{tables}\nEND\nconfig load -y /tmp/linerate-qos.json\n"
    ))
}

fn tables(intent: &Intent) -> Value {
    let by_dscp = marked(intent).next().is_some();
    let (table, by) = match by_dscp {
        true => ("DSCP_TO_TC_MAP", "dscp_to_tc_map"),
        false => ("DOT1P_TO_TC_MAP", "dot1p_to_tc_map"),
    };
    let lossless = intent.lossless();
    let group = |class: u8| if lossless.contains(&class) { class } else { 0 };
    let mut tables = Map::new();
    tables.insert(table.into(), named(if by_dscp { by_mark(intent) } else { by_tag(intent) }));
    tables.insert("TC_TO_QUEUE_MAP".into(), named(eight(|class| class)));
    tables.insert("TC_TO_PRIORITY_GROUP_MAP".into(), named(eight(group)));
    tables.insert("MAP_PFC_PRIORITY_TO_QUEUE".into(), named(eight(|class| class)));
    tables.insert("SCHEDULER".into(), schedulers(intent));
    let (mut ports, mut port_queues, mut groups) = (Map::new(), Map::new(), Map::new());
    for port in &intent.switch_ports {
        let mut maps = Map::new();
        for map in [by, "tc_to_queue_map", "tc_to_pg_map", "pfc_to_queue_map"] {
            maps.insert(map.into(), NAME.into());
        }
        // Also where it is empty: what is loaded is laid over what is there.
        let list: Vec<String> = lossless.iter().map(u8::to_string).collect();
        maps.insert("pfc_enable".into(), list.join(",").into());
        ports.insert(port.clone(), Value::Object(maps));
        for (queue, name, _) in queues(intent) {
            port_queues.insert(format!("{port}|{queue}"), json!({"scheduler": scheduler(name)}));
        }
        for priority in &lossless {
            groups.insert(format!("{port}|{priority}"), json!({"profile": "NULL"}));
        }
    }
    tables.insert("PORT_QOS_MAP".into(), Value::Object(ports));
    tables.insert("QUEUE".into(), Value::Object(port_queues));
    if !groups.is_empty() {
        tables.insert("BUFFER_PG".into(), Value::Object(groups));
    }
    Value::Object(tables)
}

fn named(map: Map<String, Value>) -> Value {
    json!({ NAME: map })
}

fn scheduler(class: &str) -> String {
    format!("linerate.{class}")
}

fn eight(to: impl Fn(u8) -> u8) -> Map<String, Value> {
    (0..8).map(|from| (from.to_string(), to(from).to_string().into())).collect()
}

/// All 64 marks: one that is left out would keep what it has.
fn by_mark(intent: &Intent) -> Map<String, Value> {
    (0..64).map(|dscp| (dscp.to_string(), class_of_mark(intent, dscp).to_string().into())).collect()
}

fn by_tag(intent: &Intent) -> Map<String, Value> {
    eight(|tag| class_of_tag(intent, tag))
}

fn schedulers(intent: &Intent) -> Value {
    let one = |(_, name, share): (u8, &str, u8)| {
        (scheduler(name), json!({"type": "DWRR", "weight": share.to_string()}))
    };
    Value::Object(queues(intent).into_iter().map(one).collect())
}
