//! Limits of a drive's I/O. They can be set while the guest runs, and the destination's QEMU has those of the command
//! line.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::compare::keyed;
use super::{DiskGraph, Drive};

/// Rates that each `block_set_io_throttle` must name; 0 is no limit.
const RATES: [&str; 6] = ["bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"];
/// What it may name besides.
const MORE: [&str; 13] = [
    "bps_max",
    "bps_rd_max",
    "bps_wr_max",
    "iops_max",
    "iops_rd_max",
    "iops_wr_max",
    "bps_max_length",
    "bps_rd_max_length",
    "bps_wr_max_length",
    "iops_max_length",
    "iops_rd_max_length",
    "iops_wr_max_length",
    "iops_size",
];

/// Limits of a drive's I/O.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Drives of one group share their limits.
    pub group: Option<String>,
    /// By QEMU's names, without those that are 0.
    pub values: BTreeMap<String, u64>,
}

impl Limits {
    /// Those of a medium in QEMU's answer to `query-block`; none without any.
    pub(super) fn of(medium: &Value) -> Option<Limits> {
        let value = |key: &&str| {
            let value = medium.get(*key)?.as_u64().filter(|value| *value > 0)?;
            Some(((*key).to_owned(), value))
        };
        let values: BTreeMap<String, u64> = RATES.iter().chain(&MORE).filter_map(value).collect();
        let group = medium.get("group").and_then(Value::as_str).map(str::to_owned);
        RATES.iter().any(|rate| values.contains_key(*rate)).then_some(Limits { group, values })
    }
}

impl DiskGraph {
    /// Arguments of `block_set_io_throttle` for drives of `there`, the destination's QEMU, whose limits are not those
    /// of these drives. One without limits here keeps what it has there: an agent of an earlier version does not send
    /// any.
    pub fn limits_to_set(&self, there: &DiskGraph) -> Vec<Value> {
        let theirs = keyed(there);
        let ours = keyed(self);
        let differs = ours.iter().filter_map(|(key, drive)| {
            let (limits, other) = (drive.limits.as_ref()?, theirs.get(key)?);
            (other.limits.as_ref() != Some(limits)).then(|| command(other, limits))
        });
        differs.collect()
    }
}

fn command(drive: &Drive, limits: &Limits) -> Value {
    let mut arguments: Map<String, Value> = RATES.iter().map(|key| ((*key).to_owned(), json!(0))).collect();
    let is_known = |key: &str| RATES.contains(&key) || MORE.contains(&key);
    let values = limits.values.iter().filter(|(key, _)| is_known(key));
    arguments.extend(values.map(|(key, value)| (key.clone(), json!(value))));
    arguments.extend(limits.group.iter().map(|group| ("group".to_owned(), json!(group))));
    let (key, name) = match (drive.name.as_str(), &drive.device) {
        ("", Some(device)) => ("id", device.as_str()),
        (name, _) => ("device", name),
    };
    arguments.insert(key.to_owned(), json!(name));
    Value::Object(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What QEMU 10 answers of a drive that is limited, without what does not matter here.
    const MEDIUM: &str = r#"{"bps": 0, "bps_rd": 1048576, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0,
        "bps_rd_max": 2097152, "bps_rd_max_length": 1, "group": "d", "node-name": "n"}"#;

    fn graph(name: &str, device: Option<&str>, limits: Option<Limits>) -> DiskGraph {
        let drive = Drive { name: name.into(), device: device.map(str::to_owned), node: None, limits };
        DiskGraph { drives: vec![drive], ..DiskGraph::default() }
    }

    fn limits(medium: &str) -> Option<Limits> {
        Limits::of(&serde_json::from_str(medium).unwrap())
    }

    #[test]
    fn limits_that_were_set_since_the_start_are_set_at_the_destination_too() {
        let limited = limits(MEDIUM);
        let expected = |key: &str, name: &str| {
            let mut arguments = json!({ "bps": 0, "bps_rd": 1_048_576, "bps_wr": 0, "iops": 0, "iops_rd": 0,
                "iops_wr": 0, "bps_rd_max": 2_097_152, "bps_rd_max_length": 1, "group": "d" });
            arguments[key] = json!(name);
            vec![arguments]
        };
        for (name, device, key, called) in
            [("d", Some("vd"), "device", "d"), ("d", None, "device", "d"), ("", Some("vd"), "id", "vd")]
        {
            let source = graph(name, device, limited.clone());
            assert_eq!(source.limits_to_set(&graph(name, device, None)), expected(key, called));
            assert!(source.limits_to_set(&source).is_empty());
            let text = source.to_json().unwrap();
            assert_eq!(DiskGraph::from_json(&text).unwrap(), source);
        }
        let other = limits(&MEDIUM.replace("1048576", "1048577"));
        let (source, there) = (graph("d", None, limited), graph("d", None, other));
        assert_eq!(source.limits_to_set(&there), expected("device", "d"));
    }

    #[test]
    fn a_drive_without_limits_says_nothing_and_keeps_those_of_the_command_line() {
        assert_eq!(limits(&MEDIUM.replace("1048576", "0")), None);
        let (source, there) = (graph("d", None, None), graph("d", None, limits(MEDIUM)));
        assert!(source.limits_to_set(&there).is_empty());
        assert!(!source.to_json().unwrap().contains("limits"), "an agent of an earlier version reads it");
    }

    #[test]
    fn a_peer_sets_nothing_but_limits() {
        let mut limited = limits(MEDIUM).unwrap();
        limited.values.insert("id".into(), 7);
        let [command] = &graph("d", None, Some(limited)).limits_to_set(&graph("d", None, None))[..] else {
            panic!()
        };
        assert_eq!(command.get("id"), None, "{command}");
    }
}
