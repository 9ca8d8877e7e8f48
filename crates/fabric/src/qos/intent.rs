//! The intent: one small TOML file, and one sentence for each thing that can be wrong with it.

use serde::Deserialize;
use thiserror::Error;

/// An intent has some twenty lines.
pub const INTENT_BYTES_MAX: usize = 64 << 10;
/// Of ports, in one list.
const NAMES_MAX: usize = 256;
const PRIORITY_MAX: i64 = 7;
const DSCP_MAX: i64 = 63;

/// What shall be on every host and switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    /// Ports of Linux hosts.
    pub ports: Vec<String>,
    /// Ports of switches that lead to the hosts.
    pub switch_ports: Vec<String>,
    /// Adapters of Windows hosts.
    pub windows_adapters: Vec<String>,
    /// RoCE, if there is some.
    pub roce: Roce,
    /// The class of Linerate's traffic.
    pub migration: Class,
    /// Storage, if it has a class of its own.
    pub storage: Option<Class>,
    /// Share of everything else, percent.
    pub other_percent: u8,
}

impl Intent {
    /// The classes but the one of everything else: migrations, then storage.
    pub fn classes(&self) -> impl Iterator<Item = &Class> {
        std::iter::once(&self.migration).chain(&self.storage)
    }

    /// Priorities that are lossless, sorted.
    pub fn lossless(&self) -> Vec<u8> {
        let mut all: Vec<u8> =
            self.classes().filter(|class| class.lossless).map(|class| class.priority).collect();
        all.sort_unstable();
        all
    }
}

/// A version of RoCE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Roce {
    /// No RDMA: migrations go over TCP.
    #[default]
    None,
    /// An Ethernet type of its own; does not pass routers.
    V1,
    /// RoCE v2, over UDP.
    V2,
}

/// A class of traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Table of the file: `migration` or `storage`.
    pub name: &'static str,
    /// Priority, 1 to 7; 0 is that of everything else.
    pub priority: u8,
    /// Share of the port where all send at once, percent.
    pub share_percent: u8,
    /// No packet of it is dropped: who cannot take more says stop (PFC).
    pub lossless: bool,
    /// DSCP of its packets, 1 to 63; without it RoCE is classified by its protocol, and switches look at the VLAN tag.
    pub dscp: Option<u8>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    ports: Vec<String>,
    #[serde(default)]
    switch_ports: Vec<String>,
    #[serde(default)]
    windows_adapters: Vec<String>,
    #[serde(default)]
    roce: Roce,
    #[serde(default = "one")]
    lossless_classes: i64,
    migration: ClassFile,
    storage: Option<ClassFile>,
    other: Option<OtherFile>,
}

fn one() -> i64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassFile {
    priority: i64,
    share: i64,
    #[serde(default)]
    lossless: bool,
    dscp: Option<i64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OtherFile {
    share: i64,
}

/// Reads an intent (TOML) and checks every value and their sum.
pub fn parse(text: &str) -> Result<Intent, IntentError> {
    if text.len() > INTENT_BYTES_MAX {
        return Err(IntentError::TooLarge);
    }
    let file: File = toml::from_str(text).map_err(|error| IntentError::Form(Box::new(error)))?;
    if file.ports.is_empty() {
        return Err(IntentError::NoPorts);
    }
    let intent = Intent {
        ports: names("ports", file.ports)?,
        switch_ports: names("switch_ports", file.switch_ports)?,
        windows_adapters: names("windows_adapters", file.windows_adapters)?,
        roce: file.roce,
        migration: class("migration", &file.migration)?,
        storage: file.storage.as_ref().map(|file| class("storage", file)).transpose()?,
        other_percent: 0,
    };
    let other_percent = rest(&intent, file.other.as_ref())?;
    lossless(&intent, file.lossless_classes)?;
    marks(&intent)?;
    Ok(Intent { other_percent, ..intent })
}

/// Names go into configuration texts: what could end a line, a string or a command is no name.
fn names(list: &'static str, names: Vec<String>) -> Result<Vec<String>, IntentError> {
    if names.len() > NAMES_MAX {
        return Err(IntentError::ManyPorts { list });
    }
    let taken = if list == "windows_adapters" { "-_.:/#() " } else { "-_.:/" };
    let plain = |c: char| c.is_ascii_alphanumeric() || taken.contains(c);
    for (at, name) in names.iter().enumerate() {
        let edges = name.trim() != name || name.starts_with(['-', '#']);
        if name.is_empty() || name.len() > 128 || edges || !name.chars().all(plain) {
            return Err(IntentError::PortName { list, name: name.chars().take(128).collect(), taken });
        }
        if names.iter().take(at).any(|earlier| earlier == name) {
            return Err(IntentError::PortTwice { list, name: name.clone() });
        }
    }
    Ok(names)
}

fn class(name: &'static str, file: &ClassFile) -> Result<Class, IntentError> {
    let within = |number: i64, most: i64| u8::try_from(number).ok().filter(|_| (1..=most).contains(&number));
    let priority = within(file.priority, PRIORITY_MAX);
    let share = within(file.share, 99);
    let dscp = file.dscp.map(|dscp| within(dscp, DSCP_MAX).ok_or(IntentError::Dscp { class: name, dscp }));
    Ok(Class {
        name,
        priority: priority.ok_or(IntentError::Priority { class: name, priority: file.priority })?,
        share_percent: share.ok_or(IntentError::Share { class: name, share: file.share })?,
        lossless: file.lossless,
        dscp: dscp.transpose()?,
    })
}

/// What is left for everything else.
fn rest(intent: &Intent, other: Option<&OtherFile>) -> Result<u8, IntentError> {
    let sum: i64 = intent.classes().map(|class| i64::from(class.share_percent)).sum();
    let left = 100 - sum;
    match other {
        _ if left < 1 => Err(IntentError::Shares { sum }),
        Some(other) if other.share != left => Err(IntentError::Other { given: other.share, left }),
        _ => u8::try_from(left).map_err(|_| IntentError::Shares { sum }),
    }
}

fn lossless(intent: &Intent, classes: i64) -> Result<(), IntentError> {
    match (classes, intent.lossless().len()) {
        (1, 2..) => Err(IntentError::TwoLossless),
        (1 | 2, _) => Ok(()),
        (given, _) => Err(IntentError::LosslessClasses { given }),
    }
}

/// Each class must differ from the others in priority and in mark.
fn marks(intent: &Intent) -> Result<(), IntentError> {
    let migration = &intent.migration;
    if let Some(storage) = &intent.storage {
        if storage.priority == migration.priority {
            return Err(IntentError::SamePriority { priority: storage.priority });
        }
        if let Some(dscp) = storage.dscp.filter(|_| storage.dscp == migration.dscp) {
            return Err(IntentError::SameDscp { dscp });
        }
    }
    if intent.roce == Roce::V1 && migration.dscp.is_some() {
        return Err(IntentError::DscpWithoutIp);
    }
    let is_marked =
        |class: &Class| class.dscp.is_some() || class.name == "migration" && intent.roce != Roce::None;
    match intent.classes().find(|class| !is_marked(class)) {
        Some(class) => Err(IntentError::NoMark { class: class.name }),
        None => Ok(()),
    }
}

/// What is wrong with an intent.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages show what the fields are")]
pub enum IntentError {
    /// More than any intent needs.
    #[error("the intent is larger than {INTENT_BYTES_MAX} bytes: is it the right file?")]
    TooLarge,
    /// No TOML, or keys that do not exist.
    #[error("the intent cannot be read: {0}")]
    Form(#[source] Box<toml::de::Error>),
    #[error("`ports` is empty: name the ports that carry migrations, such as [\"ens1f0\", \"ens1f1\"]")]
    NoPorts,
    /// Too many of them.
    #[error("`{list}` has more than {NAMES_MAX} names")]
    ManyPorts { list: &'static str },
    /// What cannot be a name, or would be something else in a configuration text.
    #[error("`{list}`: {name:?} is no name of a port; letters, digits and these are taken: {taken}")]
    PortName {
        list: &'static str,
        name: String,
        /// What a name may have beside letters and digits.
        taken: &'static str,
    },
    #[error("`{list}` has {name} twice")]
    PortTwice { list: &'static str, name: String },
    #[error(
        "priority {priority} of [{class}]: priorities are 1 to {PRIORITY_MAX}, 0 is that of everything else"
    )]
    Priority { class: &'static str, priority: i64 },
    /// Two classes, one priority.
    #[error("[migration] and [storage] both have priority {priority}: a switch could not distinguish them")]
    SamePriority { priority: u8 },
    #[error("share {share} of [{class}]: a share is 1 to 99 percent")]
    Share { class: &'static str, share: i64 },
    /// Nothing is left for the rest.
    #[error(
        "the shares of migration and storage are {sum} percent together: at most 99, so that something is left for everything else"
    )]
    Shares { sum: i64 },
    /// Not what is left.
    #[error(
        "[other] has {given} percent, but migration and storage leave {left}: leave [other] away, or make the sum 100"
    )]
    Other {
        given: i64,
        /// What the others leave.
        left: i64,
    },
    #[error(
        "[migration] and [storage] are both lossless: each lossless class takes buffers from all others, and many adapters \
         and switches have room for one; make one of them lossy, or set `lossless_classes = 2`"
    )]
    TwoLossless,
    /// Not a number of classes.
    #[error("lossless_classes = {given}: it is 1 or 2")]
    LosslessClasses { given: i64 },
    #[error("dscp {dscp} of [{class}]: it is 1 to {DSCP_MAX}, 0 is what everything else has")]
    Dscp { class: &'static str, dscp: i64 },
    /// Two classes, one mark.
    #[error("[migration] and [storage] both have dscp {dscp}: nothing could distinguish them")]
    SameDscp { dscp: u8 },
    /// RoCE v1 is no IP.
    #[error("RoCE v1 has no IP header, so no dscp: leave `dscp` of [migration] away, or take roce = \"v2\"")]
    DscpWithoutIp,
    /// Nothing says which packets these are.
    #[error("nothing distinguishes packets of [{class}] from others: give it a dscp, such as 26")]
    NoMark { class: &'static str },
}

#[cfg(test)]
pub(crate) mod tests;
