//! Drains: all guests of a host leave it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ModeChoice;

/// Asks the agent of a host to move all guests away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// Name of the host; the agent's own if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The only destinations: `HOST`, `HOST:PORT`, or names in a fleet that shares a store. Without any, all other
    /// hosts of that fleet.
    #[serde(default)]
    pub to: Vec<String>,
    /// Names of guests that stay.
    #[serde(default)]
    pub keep: Vec<String>,
    /// Lists of guests of which no two may be on one host, beside those of agent.toml. `db-*` stands for all names that
    /// begin with `db-`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<Vec<String>>,
    /// Lists of guests that go to one host or stay, beside those of agent.toml. Names as in `apart`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub together: Vec<Vec<String>>,
    /// How guest RAM is moved.
    #[serde(default)]
    pub mode: ModeChoice,
    /// Longest downtime of each guest; the default of migrations if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_blackout_ms: Option<u32>,
    /// Slow the CPUs of guests that write faster than the links carry.
    #[serde(default)]
    pub throttle: bool,
}

/// A drain has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainStarted {
    /// Its name from now on.
    pub id: String,
}

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainState {
    /// Not begun: this is what would be done.
    Planned,
    /// Guests are prepared, copied and moved.
    Running,
    /// Nothing new starts; what runs goes on.
    Paused,
    /// What runs is being cancelled.
    Aborting,
    /// Its result is known.
    Ended,
}

/// What a guest of a drain does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainGuestState {
    /// It waits for a destination, or for its turn.
    Waiting,
    /// Its incoming QEMU is being started.
    Preparing,
    /// It waits for its turn to copy.
    Prepared,
    /// It is copied.
    Copying,
    /// Its migration is being ended.
    Cancelling,
    /// Another migration has it, or recovery is finding out where it is.
    Recovering,
    /// It is at its destination.
    Moved,
    /// The operator keeps it here.
    Kept,
    /// The drain was aborted before it was moved. It is here.
    Aborted,
    /// It was stopped here, has ended by itself, or left this host in another way.
    Gone,
    /// It could not be moved. It is here.
    Failed,
    /// Nobody knows yet where it is to run.
    InDoubt,
}

impl DrainGuestState {
    /// Whether nothing more happens to it.
    pub fn is_over(self) -> bool {
        use DrainGuestState as S;
        matches!(self, S::Moved | S::Kept | S::Aborted | S::Gone | S::Failed | S::InDoubt)
    }

    /// Its name in JSON.
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// A guest of a drain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainGuest {
    /// Its name on the host that is drained.
    pub guest: String,
    /// Its UUID, or its name if it has none.
    pub uuid: String,
    /// It is a domain of libvirt.
    #[serde(default)]
    pub domain: bool,
    /// What it does.
    pub state: DrainGuestState,
    /// Its destination.
    pub to: Option<String>,
    /// Memory that it takes from its host, in bytes.
    pub memory_bytes: u64,
    /// Memory that it uses, in bytes: what is copied at first.
    pub copy_bytes: u64,
    /// Bytes of the present migration that have arrived.
    pub copied_bytes: u64,
    /// Bytes per second at which it is copied now.
    pub rate_bytes_per_s: u64,
    /// Bytes per second that it writes, as far as known.
    pub write_rate_bytes_per_s: u64,
    /// Time that its copy takes by what is known of the links, in milliseconds; `null` without a destination.
    pub predicted_ms: Option<u64>,
    /// Time that its copy took, in milliseconds; `null` unless it was moved.
    pub took_ms: Option<u64>,
    /// Downtime of the guest, in microseconds; `null` unless it was moved.
    pub blackout_us: Option<u64>,
    /// The present or last migration of it, as in `linerate migration list`.
    pub migration: Option<String>,
    /// Why it stays, why the last try failed, what failed although it was moved, or why it ended meanwhile; `null` if
    /// all is well.
    pub reason: Option<String>,
    /// What would help.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
    /// Tries that did not succeed, oldest first.
    pub tries: Vec<DrainTry>,
}

/// A try of a guest that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainTry {
    /// When it ended, milliseconds since the drain began, or was taken up again.
    pub at_ms: u64,
    /// The destination, if there was one.
    pub to: Option<String>,
    /// Why.
    pub reason: String,
}

/// The lower bound: no drain is faster than the longest of the three.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainBound {
    /// All bytes over the links of the source, in milliseconds.
    pub source_ms: u64,
    /// The destination that receives longest, in milliseconds.
    pub destination_ms: u64,
    /// The guest that takes longest alone, with what it writes meanwhile, in milliseconds.
    pub guest_ms: u64,
}

impl DrainBound {
    /// The longest of the three, in milliseconds.
    pub fn longest_ms(self) -> u64 {
        self.source_ms.max(self.destination_ms).max(self.guest_ms)
    }
}

/// All that is known of a drain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrainDetail {
    /// What names it in commands; empty for a plan.
    pub id: String,
    /// The host that is emptied.
    pub host: String,
    /// Who asked for it.
    pub by: String,
    /// How far it is.
    pub state: DrainState,
    /// When it began, milliseconds since 1970.
    pub begun_unix_ms: u64,
    /// When it ended; `null` before.
    pub ended_unix_ms: Option<u64>,
    /// Its guests, in the order of their names.
    pub guests: Vec<DrainGuest>,
    /// Bytes per second of all copies together.
    pub rate_bytes_per_s: u64,
    /// What the links of the source carry together, in bytes per second: as the ports say, or less where that was
    /// measured.
    pub links_bytes_per_s: u64,
    /// Time until all guests have left, in milliseconds, by what is known; `null` if nothing is known.
    pub left_ms: Option<u64>,
    /// The lower bound of those guests that have a destination.
    pub bound: DrainBound,
    /// Why the drain may not have found all guests at its last look: libvirt does not answer, or a record cannot be
    /// read. Then the host is not known to be empty.
    #[serde(default)]
    pub unseen: Vec<String>,
    /// Groups of guests that must be together and were on different hosts when the drain ended. By the name of each
    /// guest its host, `null` if nobody knows.
    #[serde(default)]
    pub split: Vec<BTreeMap<String, Option<String>>>,
    /// What an operator should know: a destination that does not answer, a store that cannot be written.
    pub warnings: Vec<String>,
}

impl DrainDetail {
    /// Whether nothing more happens to it.
    pub fn is_over(&self) -> bool {
        self.state == DrainState::Ended
    }

    /// A sentence for each group that is split: which guests, and where each is.
    pub fn split_texts(&self) -> Vec<String> {
        let place = |(guest, host): (&String, &Option<String>)| match host {
            Some(host) => format!("{guest} is on {host}"),
            None => format!("nobody knows where {guest} is"),
        };
        let text = |group: &BTreeMap<String, Option<String>>| {
            let all: Vec<String> = group.iter().map(place).collect();
            format!("guests that must be together are not: {}", all.join(", "))
        };
        self.split.iter().map(text).collect()
    }

    /// How many guests are in this state.
    pub fn count(&self, state: DrainGuestState) -> usize {
        self.guests.iter().filter(|guest| guest.state == state).count()
    }
}

/// What an operator wants of a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DrainOrder {
    /// Start nothing new; what runs goes on.
    Pause,
    /// Go on.
    Resume,
    /// Cancel what runs, and start nothing any more.
    Abort,
}

/// Asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainSteer {
    /// What is wanted.
    pub order: DrainOrder,
}

/// Asks for the guests that the last drain of this host has moved, and those before it since the host was cordoned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UndrainRequest {
    /// Name of the host; the agent's own if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// Guests that come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndrainDetail {
    /// The last of the drains that are undone.
    pub drain: String,
    /// The host that they come back to.
    pub host: String,
    /// In the order of their names.
    pub guests: Vec<UndrainGuest>,
    /// Whether all of them are back, or have failed.
    pub over: bool,
}

impl UndrainDetail {
    /// How many guests are in this state.
    pub fn count(&self, state: UndrainGuestState) -> usize {
        self.guests.iter().filter(|guest| guest.state == state).count()
    }
}

/// A guest that comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UndrainGuest {
    /// Its name on both hosts.
    pub guest: String,
    /// The host that it was moved to.
    pub from: String,
    /// How far it is.
    pub state: UndrainGuestState,
    /// It is back, and its virtual CPUs do not run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Why it does not come, or what is wrong although it is back; `null` if all is well.
    pub reason: Option<String>,
    /// What the operator can do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

/// How far a guest is on its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UndrainGuestState {
    /// It waits for its turn.
    Waiting,
    /// It is being moved.
    Moving,
    /// It is here, and its memory is complete. It runs, unless `paused` says otherwise.
    Back,
    /// It could not be moved back.
    Failed,
}

impl UndrainGuestState {
    /// Its name in JSON.
    pub fn name(self) -> String {
        serde_json::to_value(self).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
    }
}

/// Asks where a guest can go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlaceRequest {
    /// Name of the guest.
    pub guest: String,
    /// The hosts that are looked at, `HOST` or `HOST:PORT`.
    pub to: Vec<String>,
    /// As [`DrainRequest::apart`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<Vec<String>>,
    /// Lists of guests that go to one host, beside those of agent.toml, as in [`DrainRequest::together`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub together: Vec<Vec<String>>,
}

/// Where a guest can go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceAnswer {
    /// Name of the guest.
    pub guest: String,
    /// The host that a drain would take; `null` if there is none.
    pub best: Option<String>,
    /// Names of the other guests here that must be together with it, and go with it.
    #[serde(default)]
    pub together: Vec<String>,
    /// Each host that was asked for.
    pub hosts: Vec<PlaceHost>,
}

/// A host, for one guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceHost {
    /// As it calls itself, or as it was named if it did not answer.
    pub host: String,
    /// Memory that is free for guests, in bytes.
    pub free_bytes: u64,
    /// What its links to the source carry together, in bytes per second.
    pub links_bytes_per_s: u64,
    /// Why the guest cannot go there; empty if it can.
    pub obstacles: Vec<String>,
}

/// A host, as an agent describes it to the others of its fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetHost {
    /// Its name.
    pub host: String,
    /// Where its agent is reached.
    pub addresses: Vec<String>,
    /// Its agent answered when it was asked last.
    pub alive: bool,
    /// It takes no guests; `null` if it does.
    pub cordon: Option<crate::Cordon>,
    /// The drain that empties it.
    pub drain: Option<String>,
    /// Memory for guests and for what stays free, in bytes.
    pub memory_bytes: u64,
    /// Memory that is free for guests, in bytes.
    pub free_bytes: u64,
    /// Memory that is reserved for guests on their way there, in bytes.
    pub reserved_bytes: u64,
    /// How many guests are there.
    pub guests: u32,
    /// What its ports for migrations carry together, in bytes per second.
    pub ports_bytes_per_s: u64,
}

/// The fleet, and this host's part in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetStatus {
    /// This host.
    pub host: String,
    /// What the store is: a file of this host, or an etcd cluster that hosts share.
    pub store: String,
    /// Hosts share the store.
    pub shared: bool,
    /// Why the store, or this host's part in the fleet, fails at present; `null` if all is well.
    pub error: Option<String>,
    /// Hosts that are known, and whether they answer and take guests; `null` if the store does not answer.
    pub hosts: Option<FleetCount>,
    /// Drains that have not ended.
    pub drains: Vec<FleetDrain>,
    /// What an operator should look at.
    pub warnings: Vec<String>,
}

/// Sums over the hosts of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetCount {
    /// How many hosts are known.
    pub known: u32,
    /// How many of them answer.
    pub answer: u32,
    /// How many of them take no guests.
    pub cordoned: u32,
    /// Guests of all hosts.
    pub guests: u64,
    /// Memory of the hosts that answer, in bytes.
    pub memory_bytes: u64,
    /// Memory that is free for guests on hosts that answer and take guests, in bytes.
    pub free_bytes: u64,
    /// Memory that drains have reserved, in bytes.
    pub reserved_bytes: u64,
}

/// A drain that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetDrain {
    /// What names it in commands.
    pub id: String,
    /// The host that is emptied.
    pub host: String,
    /// The host whose agent carries it on; `null` if none does.
    pub owner: Option<String>,
    /// How far it is.
    pub state: DrainState,
    /// Guests of the drain.
    pub guests: u32,
    /// Guests that have moved.
    pub moved: u32,
}
