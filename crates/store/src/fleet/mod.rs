//! The records of a fleet, and the operations that keep their rules.
//!
//! | key | value | written by |
//! |---|---|---|
//! | `host/NAME` | [`HostRecord`] | the host's agent |
//! | `alive/NAME` | instance of the agent; leased | the host's agent |
//! | `cordon/NAME` | [`Cordon`] | an operator, or a drain |
//! | `drain/ID` | [`DrainRecord`] | its owner |
//! | `owner/ID` | [`OwnerRecord`]; leased | the agent that takes the drain |
//! | `open/NAME` | identity of the host's open drain | the owner |
//! | `elsewhere/NAME` | guests that an undrain has not brought back | the host's agent |
//! | `reserved/GUEST` | [`Reservation`] | the owner |
//! | `load/NAME` | sum of the host's reservations | owners |
//!
//! Rules (tests hold them over both stores):
//! * a host has at most one open drain, and a drain at most one owner;
//! * whoever has lost a drain writes nothing of it: each write has the revision of its `owner/ID` as a condition;
//! * an agent begins and takes drains, and cordons hosts, only while it is registered: of two agents with one name one
//!   does;
//! * a guest has at most one reservation;
//! * guests and reservations of a host together never exceed its memory less its reserve, as its agent describes them.

mod drains;
mod forgotten;
pub mod records;
mod reservations;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::{Condition, Entry, Lease, Outcome, Store, StoreError, Transaction, Write};
use records::{AliveRecord, Cordon, DrainRecord, HostRecord, LoadRecord, OwnerRecord, Reservation};

pub use drains::Ownership;

/// Tries of an operation whose entries others change meanwhile.
const TRIES: u32 = 20;
/// Longest name of a host, guest or drain, in bytes.
const NAME_MAX: usize = 253;

/// Why an operation did not happen. Nothing was changed, unless the store itself does not know.
#[derive(Clone, Debug, Error)]
#[allow(missing_docs, reason = "the message says what its fields are")]
pub enum FleetError {
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Others changed the same entries all the time.
    #[error("other agents changed the same entries {TRIES} times meanwhile: try again")]
    Contended,
    /// A record cannot be read.
    #[error("the store's entry {key} cannot be read: {why}")]
    Damaged { key: String, why: String },
    /// A name that no key can have.
    #[error("{0:?} is no name: 1 to {NAME_MAX} bytes without / and control characters")]
    Name(String),
    /// Another agent of this name is running, or was until its lease ends.
    #[error(
        "another agent is host {0} in the store: one that runs, as names of hosts must differ in a fleet, or this host's \
         earlier one, whose lease has not ended yet"
    )]
    NameTaken(String),
    /// This agent has not registered its host, or its lease has ended.
    #[error("host {0} is not registered in the store at present")]
    NotRegistered(String),
    /// There is no such host.
    #[error("the fleet has no host {0}")]
    NoHost(String),
    /// There is no such drain.
    #[error("the fleet has no drain {0}")]
    NoDrain(String),
    /// The host is cordoned.
    #[error("host {host} is cordoned by {}", cordon.by)]
    Cordoned { host: String, cordon: Cordon },
    /// A drain of the host is open.
    #[error("host {host} is being drained: drain {drain}")]
    Draining { host: String, drain: String },
    /// Another agent owns the drain.
    #[error("drain {drain} is owned by the agent of host {owner}")]
    Owned { drain: String, owner: String },
    /// The agent does not own the drain any more.
    #[error("this agent does not own drain {0} any more")]
    NotOwner(String),
    /// The drain has ended.
    #[error("drain {0} has ended")]
    HasEnded(String),
    /// The destination's agent does not run.
    #[error("the agent of host {0} does not answer the fleet's store")]
    Lost(String),
    /// The agent of a host that is to be forgotten runs.
    #[error("the agent of host {0} runs, or its lease has not ended yet")]
    Runs(String),
    /// The host has less memory free for guests than is to be reserved.
    #[error("host {host} has {free_bytes} bytes free for guests, and {bytes} are needed")]
    NoRoom { host: String, bytes: u64, free_bytes: u64 },
    /// The guest is at the destination, or the host does not list it there yet.
    #[error("guest {guest} is {} host {host}", if *is_there { "already at" } else { "not yet listed at" })]
    Place { guest: String, host: String, is_there: bool },
    /// A guest that must be on another host is there, or has a reservation there.
    #[error("{other} is on host {host} or on its way there, and must be apart")]
    Apart { host: String, other: String },
    /// Another drain, or this one elsewhere, has a reservation for the guest.
    #[error("guest {guest} has a reservation at host {} by drain {}", by.host, by.drain)]
    Reserved { guest: String, by: Reservation },
}

/// A host, as the fleet sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostView {
    /// What its agent said last.
    pub record: HostRecord,
    /// Its agent runs and reaches the store.
    pub alive: bool,
    /// It takes no arrivals.
    pub cordon: Option<Cordon>,
    /// Identity of the drain that empties it.
    pub drain: Option<String>,
    /// Bytes that drains have reserved there for guests on their way.
    pub reserved_bytes: u64,
    /// Bytes of guests that are there or on their way, each once.
    pub taken_bytes: u64,
}

impl HostView {
    /// Bytes that are free for guests.
    pub fn free_bytes(&self) -> u64 {
        let kept = self.record.reserve_bytes.saturating_add(self.taken_bytes);
        self.record.memory_bytes.saturating_sub(kept)
    }
}

/// A drain, as the fleet sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct DrainView {
    /// What its owner said last.
    pub record: DrainRecord,
    /// Its owner; none: nobody carries it on.
    pub owner: Option<OwnerRecord>,
}

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// Every host that was ever described, by its name.
    pub hosts: BTreeMap<String, HostView>,
    /// Open drains, and those that ended and were not forgotten, by identity.
    pub drains: BTreeMap<String, DrainView>,
    /// By the guest's UUID.
    pub reservations: BTreeMap<String, Reservation>,
}

/// The fleet, as one agent sees and changes it.
#[derive(Clone)]
pub struct Fleet {
    store: Arc<dyn Store>,
    /// Host of this agent.
    host: String,
    /// Another one for each start of an agent.
    instance: String,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet")
            .field("host", &self.host)
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

impl Fleet {
    /// For the agent of `host`. `instance` is another one for each start of an agent, and never used twice.
    ///
    /// # Errors
    /// [`FleetError::Name`] for a host name that no key can have.
    pub fn new(store: Arc<dyn Store>, host: &str, instance: &str) -> Result<Fleet, FleetError> {
        check_name(host)?;
        Ok(Fleet { store, host: host.to_owned(), instance: instance.to_owned() })
    }

    /// The lease of this agent. After another one was given, what was written with the lease is to be written again:
    /// [`Fleet::register`], and the ownership of drains is lost.
    pub fn lease(&self) -> Option<Lease> {
        self.store.lease()
    }

    /// Describes this host, and says that its agent runs.
    ///
    /// # Errors
    /// [`FleetError::NameTaken`] while another agent of this name has a lease; those of the store.
    pub fn register(&self, record: &HostRecord) -> Result<(), FleetError> {
        check_name(&record.name)?;
        let key = format!("alive/{}", record.name);
        let mine = AliveRecord { instance: self.instance.clone() };
        self.change(|| {
            let (entry, alive) = self.read::<AliveRecord>(&key)?;
            if alive.is_some_and(|alive| alive != mine) {
                return Err(FleetError::NameTaken(record.name.clone()));
            }
            let writes = vec![put(&format!("host/{}", record.name), record, false)?, put(&key, &mine, true)?];
            Ok(Some(Transaction { conditions: vec![Condition::as_read(&key, entry.as_ref())], writes }))
        })
    }

    /// A host that this agent registered does not answer: nothing is reserved there until it is registered again.
    ///
    /// # Errors
    /// Those of the store; [`FleetError::Damaged`].
    pub fn withdraw(&self, host: &str) -> Result<(), FleetError> {
        check_name(host)?;
        let key = format!("alive/{host}");
        self.change(|| {
            let (entry, alive) = self.read::<AliveRecord>(&key)?;
            let own = alive.is_some_and(|alive| alive.instance == self.instance);
            let Some(entry) = entry.filter(|_| own) else { return Ok(None) };
            let conditions = vec![Condition::as_read(&key, Some(&entry))];
            Ok(Some(Transaction { conditions, writes: vec![Write::Delete(key.clone())] }))
        })
    }

    /// Everything at one moment.
    ///
    /// # Errors
    /// Those of the store; [`FleetError::Damaged`].
    pub fn view(&self) -> Result<View, FleetError> {
        let mut view = View::default();
        let entries = self.store.list("")?;
        let (hosts, rest): (Vec<_>, Vec<_>) =
            entries.iter().partition(|entry| entry.key.starts_with("host/"));
        for entry in hosts {
            let record: HostRecord = decode(entry)?;
            view.hosts.insert(record.name.clone(), HostView { record, ..HostView::default() });
        }
        for entry in rest {
            let Some((kind, name)) = entry.key.split_once('/') else { continue };
            match (kind, view.hosts.get_mut(name)) {
                ("alive", Some(host)) => host.alive = true,
                ("cordon", Some(host)) => host.cordon = Some(decode(entry)?),
                ("open", Some(host)) => host.drain = Some(decode(entry)?),
                ("load", Some(host)) => host.reserved_bytes = decode::<LoadRecord>(entry)?.bytes,
                ("drain", _) => {
                    view.drains.insert(name.to_owned(), DrainView { record: decode(entry)?, owner: None });
                }
                ("reserved", _) => drop(view.reservations.insert(name.to_owned(), decode(entry)?)),
                // Behind `drain/`, in the order of the keys.
                ("owner", _) => {
                    if let Some(drain) = view.drains.get_mut(name) {
                        drain.owner = Some(decode(entry)?);
                    }
                }
                _ => {}
            }
        }
        for (name, host) in &mut view.hosts {
            let there = view.reservations.iter().filter(|(_, by)| by.host == *name);
            host.taken_bytes =
                host.record.taken_bytes(there.map(|(key, by)| (key.as_str(), &*by.name, by.bytes)));
        }
        Ok(view)
    }

    /// Who cordoned the host; none if it takes arrivals.
    ///
    /// # Errors
    /// Those of the store; [`FleetError::Damaged`].
    pub fn cordon_of(&self, host: &str) -> Result<Option<Cordon>, FleetError> {
        check_name(host)?;
        Ok(self.read(&format!("cordon/{host}"))?.1)
    }

    /// The host takes no arrivals from now on. Returns whether that is new. The first operator's cordon stays; that of
    /// a drain becomes the operator's own.
    ///
    /// # Errors
    /// [`FleetError::NoHost`]; [`FleetError::NameTaken`], [`FleetError::NotRegistered`]; those of the store.
    pub fn cordon(&self, host: &str, by: &str, now_ms: u64) -> Result<bool, FleetError> {
        check_name(host)?;
        let (key, mut is_new) = (format!("cordon/{host}"), false);
        self.change(|| {
            let registered = self.registered()?;
            let (known, _) = self.read::<HostRecord>(&format!("host/{host}"))?;
            if known.is_none() {
                return Err(FleetError::NoHost(host.to_owned()));
            }
            let (entry, cordon) = self.read::<Cordon>(&key)?;
            is_new = cordon.is_none();
            if cordon.as_ref().is_some_and(|cordon| cordon.drain.is_none()) {
                return Ok(None);
            }
            // That of a drain stays now when the drain is undone.
            let since_ms = cordon.map_or(now_ms, |cordon| cordon.since_ms);
            let cordon = Cordon { by: by.to_owned(), since_ms, drain: None };
            let conditions = vec![registered, Condition::as_read(&key, entry.as_ref())];
            Ok(Some(Transaction { conditions, writes: vec![put(&key, &cordon, false)?] }))
        })?;
        Ok(is_new)
    }

    /// The only host of this store that is ever cordoned and drained in it has a new name. Its cordon goes along, its
    /// drains that have ended, and what an undrain has not brought back.
    ///
    /// # Errors
    /// Those of the store; [`FleetError::Damaged`].
    pub fn renamed(&self, host: &str) -> Result<(), FleetError> {
        check_name(host)?;
        self.take_drains_along(host)?;
        self.take_elsewhere_along(host)?;
        let key = format!("cordon/{host}");
        self.change(|| {
            let mut others = self.store.list("cordon/")?.into_iter().filter(|entry| entry.key != key);
            let Some(old) = others.next_back() else { return Ok(None) };
            let (own, cordon) = self.read::<Cordon>(&key)?;
            let (_, earlier) = self.read::<Cordon>(&old.key)?;
            let mut writes = vec![Write::Delete(old.key.clone())];
            if let Some(earlier) = earlier.filter(|_| cordon.is_none()) {
                writes.push(put(&key, &earlier, false)?);
            }
            let conditions =
                vec![Condition::as_read(&old.key, Some(&old)), Condition::as_read(&key, own.as_ref())];
            Ok(Some(Transaction { conditions, writes }))
        })
    }

    /// The host takes arrivals again. Returns whether it took none before.
    ///
    /// # Errors
    /// [`FleetError::Draining`] while a drain of it is open; [`FleetError::NoHost`]; [`FleetError::NameTaken`],
    /// [`FleetError::NotRegistered`]; those of the store.
    pub fn uncordon(&self, host: &str) -> Result<bool, FleetError> {
        check_name(host)?;
        let (key, open, mut was) = (format!("cordon/{host}"), format!("open/{host}"), false);
        self.change(|| {
            let registered = self.registered()?;
            if let (_, Some(drain)) = self.read::<String>(&open)? {
                return Err(FleetError::Draining { host: host.to_owned(), drain });
            }
            let (known, _) = self.read::<HostRecord>(&format!("host/{host}"))?;
            if known.is_none() {
                return Err(FleetError::NoHost(host.to_owned()));
            }
            let (entry, _) = self.read::<Cordon>(&key)?;
            was = entry.is_some();
            let Some(entry) = entry else { return Ok(None) };
            let conditions =
                vec![registered, Condition::Absent(open.clone()), Condition::as_read(&key, Some(&entry))];
            Ok(Some(Transaction { conditions, writes: vec![Write::Delete(key.clone())] }))
        })?;
        Ok(was)
    }

    /// What a write needs that only the registered agent of this host may do.
    fn registered(&self) -> Result<Condition, FleetError> {
        let key = format!("alive/{}", self.host);
        match self.read::<AliveRecord>(&key)? {
            (Some(entry), Some(alive)) if alive.instance == self.instance => {
                Ok(Condition::SameKey(key, entry.made))
            }
            (Some(_), _) => Err(FleetError::NameTaken(self.host.clone())),
            (None, _) => Err(FleetError::NotRegistered(self.host.clone())),
        }
    }

    fn read<T: DeserializeOwned>(&self, key: &str) -> Result<(Option<Entry>, Option<T>), FleetError> {
        let entry = self.store.get(key)?;
        let value = entry.as_ref().map(decode).transpose()?;
        Ok((entry, value))
    }

    /// Carries out what `plan` returns, and plans anew if a condition does not hold or if the store does not know
    /// whether it has written. So a plan must find what itself has written, and return `None` then.
    fn change(
        &self,
        mut plan: impl FnMut() -> Result<Option<Transaction>, FleetError>,
    ) -> Result<(), FleetError> {
        let (mut ended, mut is_unknown) = (FleetError::Contended, false);
        for _ in 0..TRIES {
            let Some(transaction) = plan().map_err(|error| unsure(error, is_unknown))? else {
                return Ok(());
            };
            ended = match self.store.commit(&transaction) {
                Ok(Outcome::Done(_)) => return Ok(()),
                Ok(Outcome::Refused) => FleetError::Contended,
                Err(error @ StoreError::Unknown(_)) => {
                    tracing::debug!(%error, "reading what the store has");
                    is_unknown = true;
                    error.into()
                }
                Err(error) => return Err(unsure(error.into(), is_unknown)),
            };
        }
        Err(ended)
    }
}

/// A store that is away changes nothing. With `is_unknown` an earlier write may have changed it all the same.
fn unsure(error: FleetError, is_unknown: bool) -> FleetError {
    match error {
        FleetError::Store(StoreError::Away(why)) if is_unknown => StoreError::Unknown(why).into(),
        other => other,
    }
}

fn check_name(name: &str) -> Result<(), FleetError> {
    let wrong = name.is_empty() || name.len() > NAME_MAX || name.chars().any(|c| c == '/' || c.is_control());
    if wrong { Err(FleetError::Name(name.to_owned())) } else { Ok(()) }
}

fn decode<T: DeserializeOwned>(entry: &Entry) -> Result<T, FleetError> {
    serde_json::from_slice(&entry.value)
        .map_err(|error| FleetError::Damaged { key: entry.key.clone(), why: error.to_string() })
}

fn put<T: Serialize>(key: &str, value: &T, leased: bool) -> Result<Write, FleetError> {
    let value = serde_json::to_vec(value)
        .map_err(|error| FleetError::Damaged { key: key.to_owned(), why: error.to_string() })?;
    Ok(Write::Put { key: key.to_owned(), value, leased })
}
