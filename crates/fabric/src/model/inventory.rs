//! The inventory of one host, and how its JSON form is read.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{
    Agent, Cpu, Firewall, Gateway, Hypervisor, Memory, Port, RdmaDevice, Resolved, Route, System, Time,
};

/// The version that this doctor writes.
pub const SCHEMA: Schema = Schema { major: 1, minor: 3 };

/// A host with some hundred ports needs less than a megabyte.
pub const INVENTORY_BYTES_MAX: usize = 16 << 20;

/// Version of the JSON form. Another major version cannot be read; another minor version can, either way round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schema {
    /// Changes when a field is removed or means something else.
    pub major: u16,
    /// Changes when a field is added.
    #[serde(default)]
    pub minor: u16,
}

/// Something that could not be read, and why. It is reported and is never a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Note {
    /// What was read, such as `ethtool ens1f0: rings`.
    pub about: String,
    /// A sentence: what could not be read, and why.
    pub what: String,
}

impl Note {
    /// `about` of the ports themselves.
    pub const PORTS: &str = "rtnetlink";
    /// `about` of the adapters' firmware.
    pub const FIRMWARE: &str = "devlink";
    /// `about` of the firewall's rules.
    pub const FIREWALL: &str = "nftables";
    /// `about` of counters that were to be read a second time.
    pub const COUNTERS: &str = "counters";
    /// First word of `about` of a name that was to be resolved.
    pub const NAME: &str = "resolve";

    /// The part that it is about, such as `ethtool`.
    pub fn part(&self) -> &str {
        self.about.split([' ', ':']).next().unwrap_or_default()
    }
}

/// All that one host says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inventory {
    /// Version of this form.
    pub schema: Schema,
    /// Name of the host; how findings call it.
    pub host: String,
    /// What it calls itself, where another host of the survey has that name too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_name: Option<String>,
    /// When it was collected, milliseconds since 1970.
    pub collected_unix_ms: Option<u64>,
    /// What collected it, such as `linerate 0.1.0`.
    pub collector: Option<String>,
    /// Operating system and firmware.
    pub system: System,
    /// Processors and their power saving.
    pub cpu: Cpu,
    /// Memory and its limits.
    pub memory: Memory,
    /// KVM and the QEMU binaries.
    pub hypervisor: Hypervisor,
    /// Whether the host's clock is right.
    pub time: Time,
    /// What names resolve to here.
    pub names: Vec<Resolved>,
    /// Network ports, in the kernel's order.
    pub ports: Vec<Port>,
    /// Routes of the main table.
    pub routes: Vec<Route>,
    /// Routers of the default routes, and whether they answer.
    pub gateways: Vec<Gateway>,
    /// RDMA devices; `None` if it is not known whether there are any.
    pub rdma: Option<Vec<RdmaDevice>>,
    /// What filters incoming packets; `None` if that could not be asked.
    pub firewall: Option<Firewall>,
    /// The Linerate agent of the host, if one runs.
    pub agent: Option<Agent>,
    /// What could not be read.
    pub notes: Vec<Note>,
}

/// Why bytes are not an inventory that this doctor can read.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum InventoryError {
    #[error("an inventory of {bytes} bytes is larger than the {INVENTORY_BYTES_MAX} that are read")]
    TooLarge { bytes: usize },
    /// No JSON, or a field has another type.
    #[error("not an inventory: {0}; docs/inventory.md describes the form")]
    Form(#[source] serde_json::Error),
    /// Written for another major version, or without a version.
    #[error(
        "an inventory of schema {major}.{minor} cannot be read by this doctor, which reads {}.x; collect it again with this version",
        SCHEMA.major
    )]
    Version {
        /// Major version found; 0 if it says none.
        major: u16,
        minor: u16,
    },
    /// Every inventory needs the name of its host.
    #[error("an inventory without a host's name; fill in \"host\"")]
    Nameless,
}

impl Inventory {
    /// An inventory of this version in which nothing is known yet.
    pub fn new(host: impl Into<String>) -> Inventory {
        Inventory { schema: SCHEMA, host: host.into(), ..Inventory::default() }
    }

    /// Reads the JSON form.
    pub fn from_json(bytes: &[u8]) -> Result<Inventory, InventoryError> {
        if bytes.len() > INVENTORY_BYTES_MAX {
            return Err(InventoryError::TooLarge { bytes: bytes.len() });
        }
        // PowerShell 5 writes a byte order mark.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let inventory: Inventory = serde_json::from_slice(bytes).map_err(InventoryError::Form)?;
        let Schema { major, minor } = inventory.schema;
        if major != SCHEMA.major {
            return Err(InventoryError::Version { major, minor });
        }
        if inventory.host.is_empty() {
            return Err(InventoryError::Nameless);
        }
        Ok(inventory)
    }

    /// What it calls itself: the same as how findings call it, unless two hosts have one name.
    pub fn calls_itself(&self) -> &str {
        self.own_name.as_deref().unwrap_or(&self.host)
    }

    /// The port of that name.
    pub fn port(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|port| port.name == name)
    }

    /// Notes what could not be collected: `about` is the part, `what` the error.
    pub fn note(&mut self, about: impl Into<String>, what: impl ToString) {
        self.notes.push(Note { about: about.into(), what: what.to_string() });
    }
}

impl Inventory {
    /// The JSON form, without what is not known.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        let mut value = serde_json::to_value(self)?;
        drop_unknown(&mut value);
        serde_json::to_string_pretty(&value)
    }
}

/// Takes `null` and empty lists and objects out: they say the same as a field that is not there. Members of lists stay,
/// and so does an empty list that means "asked, and there are none".
fn drop_unknown(value: &mut serde_json::Value) {
    use serde_json::Value;
    match value {
        Value::Object(fields) => {
            for (name, field) in fields.iter_mut() {
                if name != "rdma" && name != "firewall" {
                    drop_unknown(field);
                }
            }
            fields.retain(|name, field| match field {
                Value::Null => false,
                Value::Object(inner) => !inner.is_empty() || name == "firewall",
                Value::Array(inner) => !inner.is_empty() || name == "rdma",
                _ => true,
            });
        }
        Value::Array(members) => members.iter_mut().for_each(drop_unknown),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::healthy_survey;

    #[test]
    fn the_json_form_gives_back_what_was_written() {
        for host in healthy_survey().hosts {
            let text = host.to_json().unwrap();
            assert_eq!(Inventory::from_json(text.as_bytes()).unwrap(), host);
        }
    }

    #[test]
    fn unknown_is_left_out_and_none_is_written() {
        let mut host = Inventory::new("alpha");
        assert!(!host.to_json().unwrap().contains("rdma"));
        host.rdma = Some(Vec::new());
        let text = host.to_json().unwrap();
        assert!(text.contains("\"rdma\": []"), "{text}");
        assert!(!text.contains("null"), "{text}");
        assert_eq!(Inventory::from_json(text.as_bytes()).unwrap(), host);
    }

    #[test]
    fn a_newer_minor_version_is_read_and_a_newer_major_is_not() {
        let newer = br#"{"schema":{"major":1,"minor":7},"host":"alpha","colour":"red",
            "ports":[{"name":"ens1","kind":"wormhole","mtu":9000,"spin":3}]}"#;
        let host = Inventory::from_json(newer).unwrap();
        assert_eq!(host.ports[0].mtu, Some(9000));
        assert_eq!(host.ports[0].kind, crate::model::PortKind::Other);
        let major = Inventory::from_json(br#"{"schema":{"major":2},"host":"alpha"}"#);
        assert!(matches!(major, Err(InventoryError::Version { major: 2, minor: 0 })), "{major:?}");
        assert!(matches!(Inventory::from_json(b"{}"), Err(InventoryError::Version { major: 0, .. })));
    }

    #[test]
    fn a_byte_order_mark_is_no_hindrance_and_a_name_is_needed() {
        let marked = b"\xef\xbb\xbf{\"schema\":{\"major\":1},\"host\":\"win1\"}";
        assert_eq!(Inventory::from_json(marked).unwrap().host, "win1");
        let nameless = Inventory::from_json(br#"{"schema":{"major":1}}"#);
        assert!(matches!(nameless, Err(InventoryError::Nameless)), "{nameless:?}");
    }

    #[test]
    fn what_is_no_inventory_is_refused() {
        assert!(matches!(Inventory::from_json(b"[1]"), Err(InventoryError::Form(_))));
        let large = vec![b' '; INVENTORY_BYTES_MAX + 1];
        assert!(matches!(Inventory::from_json(&large), Err(InventoryError::TooLarge { .. })));
    }
}
