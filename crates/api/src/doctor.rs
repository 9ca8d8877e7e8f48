//! The doctor: what an agent is asked to look at.

use serde::{Deserialize, Serialize};

/// How much probes between hosts move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probes {
    /// No probes: inventories only.
    #[default]
    None,
    /// Datagrams: reachable, path MTU, latency, clock.
    Short,
    /// Datagrams and TCP load: half a second for each pair of ports and direction.
    Full,
}

/// What to look at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DoctorRequest {
    /// Other hosts, `HOST` or `HOST:PORT`; this one is always looked at.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Probes between all of them.
    #[serde(default)]
    pub probes: Probes,
    /// How long counters are watched, milliseconds; at most 10 000.
    #[serde(default)]
    pub watch_ms: u64,
}

/// A host that could not be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreachableHost {
    /// As it was named in the request.
    pub host: String,
    /// A sentence: what kept the agent from answering.
    pub why: String,
}

/// A host that was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnsweredHost {
    /// As it was named in the request.
    pub named: String,
    /// What it calls itself in its inventory.
    pub host: String,
}

/// The doctor's result: what was collected, and the findings in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorAnswer {
    /// Inventories and measurements, in the form of docs/inventory.md.
    pub survey: serde_json::Value,
    /// Other hosts that answered.
    #[serde(default)]
    pub answered: Vec<AnsweredHost>,
    /// Names that led to a host that was looked at already: to this one, or to one of another name.
    #[serde(default)]
    pub repeated: Vec<AnsweredHost>,
    /// Hosts that could not be asked.
    pub unreachable: Vec<UnreachableHost>,
}
