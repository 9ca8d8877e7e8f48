//! This host in the store of its fleet: whether it takes guests from others. docs/drain.md has the rules.
//!
//! The store is a file of this host, or an etcd cluster that hosts share (`[fleet]` in the configuration; see
//! `fleet_member`). One that cannot be opened is tried again each time that it is asked: an agent whose disk is full or
//! whose etcd is away must start, and bring to an end what is open.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_api as api;
use linerate_core::{Code, Fault, Side, Step};
use linerate_lock::Mutex;
use linerate_store::etcd::Etcd;
use linerate_store::fleet::records::{Cordon, HostRecord};
use linerate_store::fleet::{Fleet, FleetError};
use linerate_store::local::Local;
use linerate_store::{Store, StoreError};

use crate::clock::unix_ms;
use crate::config::{Config, FleetSettings};

pub(crate) struct HostInFleet {
    /// This host's own store; with etcd, what is left of it.
    file: PathBuf,
    etcd: Option<FleetSettings>,
    record: HostRecord,
    /// No two starts of an agent have it in common.
    instance: String,
    opened: Mutex<Option<Opened>>,
    /// Why this host cannot take part in its fleet at present.
    trouble: Mutex<Option<String>>,
}

/// An agent that has just been started registers within this, unless something is wrong.
const REGISTERS_WAIT: Duration = Duration::from_secs(5);
const REGISTERS_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone)]
struct Opened {
    fleet: Fleet,
    etcd: Option<Arc<Etcd>>,
}

impl HostInFleet {
    pub fn new(config: &Config) -> HostInFleet {
        let record = HostRecord {
            name: config.name.clone(),
            addresses: config.listen.iter().map(ToString::to_string).collect(),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            ..HostRecord::default()
        };
        HostInFleet {
            file: config.state_dir.join("fleet.redb"),
            etcd: config.fleet.clone(),
            record,
            instance: format!("{}-{}", unix_ms(), std::process::id()),
            opened: Mutex::default(),
            trouble: Mutex::new(config.fleet.as_ref().map(|_| "it has not registered there yet".to_owned())),
        }
    }

    /// What the operator configured of etcd, if hosts share one.
    pub fn shared(&self) -> Option<&FleetSettings> {
        self.etcd.as_ref()
    }

    /// What the store is, for people.
    pub fn place(&self) -> String {
        match &self.etcd {
            Some(etcd) => format!("etcd at {}", etcd.endpoints.join(", ")),
            None => self.file.display().to_string(),
        }
    }

    /// What an operator does if the store fails.
    pub fn hint(&self) -> &'static str {
        match &self.etcd {
            Some(_) => {
                "see [fleet] in agent.toml: does a majority of the etcd cluster run, and can this host reach it?"
            }
            None => "see fleet.redb under state_dir: is its disk full or damaged?",
        }
    }

    /// Whether a guest of another host may come.
    ///
    /// # Errors
    /// [`Code::Cordoned`]; [`Code::JournalFailed`] if that cannot be read: the operator may have forbidden it.
    pub fn admit(&self) -> Result<(), Fault> {
        let host = &self.record.name;
        let refuse = |code, detail| Err(Fault::new(code, Step::Authorise, Side::Destination, detail));
        match self.cordon() {
            Ok(None) => Ok(()),
            Ok(Some(cordon)) => refuse(Code::Cordoned, format!("host {host} was cordoned by {}", cordon.by)),
            Err(error) => refuse(
                Code::JournalFailed,
                format!("host {host} cannot read whether it is cordoned, {}: {error}", self.place()),
            ),
        }
    }

    /// Who cordoned this host.
    pub fn cordon(&self) -> Result<Option<api::Cordon>, FleetError> {
        if let Some(file) = self.earlier_file() {
            let why =
                format!("{} still has this host's cordon or drain, which is not in etcd yet", file.display());
            return Err(StoreError::Away(why).into());
        }
        let found = self.fleet()?.cordon_of(&self.record.name)?;
        Ok(found.map(shown_cordon))
    }

    /// This host takes no guests from now on; those that are arriving go on. An operator who asks again is not noted:
    /// the first one's reason is kept.
    pub fn set_cordon(&self, by: &str) -> Result<api::CordonAnswer, FleetError> {
        let changed = self.fleet_to_change()?.cordon(&self.record.name, by, unix_ms())?;
        self.answer(changed)
    }

    /// This host takes guests again.
    pub fn lift_cordon(&self) -> Result<api::CordonAnswer, FleetError> {
        let changed = self.fleet_to_change()?.uncordon(&self.record.name)?;
        self.answer(changed)
    }

    fn answer(&self, changed: bool) -> Result<api::CordonAnswer, FleetError> {
        Ok(api::CordonAnswer { host: self.record.name.clone(), cordon: self.cordon()?, changed })
    }

    /// The fleet as this agent sees and changes it. The store is opened if it is not.
    pub fn fleet(&self) -> Result<Fleet, FleetError> {
        let mut slot = self.opened.lock();
        if let Some(opened) = &*slot {
            return Ok(opened.fleet.clone());
        }
        let opened = match &self.etcd {
            Some(settings) => self.open_etcd(settings)?,
            None => self.open_file()?,
        };
        Ok(slot.insert(opened).fleet.clone())
    }

    /// The same, for orders of an operator that the store takes from a registered host alone.
    pub fn fleet_to_change(&self) -> Result<Fleet, FleetError> {
        let end = Instant::now() + REGISTERS_WAIT;
        while self.trouble().is_some() && Instant::now() < end {
            std::thread::sleep(REGISTERS_PAUSE);
        }
        self.fleet()
    }

    fn open_file(&self) -> Result<Opened, FleetError> {
        let store = Local::open(&self.file)?;
        let fleet = self.fleet_of(Arc::new(store))?;
        fleet.register(&self.record)?;
        // In this store no other host is cordoned.
        fleet.renamed(&self.record.name)?;
        Ok(Opened { fleet, etcd: None })
    }

    fn open_etcd(&self, settings: &FleetSettings) -> Result<Opened, FleetError> {
        let options = settings.options().map_err(|unread| StoreError::Refused(unread.to_string()))?;
        let etcd = Arc::new(Etcd::open(&options)?);
        let fleet = self.fleet_of(etcd.clone())?;
        Ok(Opened { fleet, etcd: Some(etcd) })
    }

    fn fleet_of(&self, store: Arc<dyn Store>) -> Result<Fleet, FleetError> {
        Fleet::new(store, &self.record.name, &self.instance)
    }

    /// Whether this host takes part in its fleet, and otherwise why not. Told once in the log.
    pub fn note(&self, trouble: Option<String>) {
        let mut slot = self.trouble.lock();
        if *slot != trouble {
            match &trouble {
                Some(error) => tracing::error!(error, "this host cannot take part in its fleet at present"),
                None => tracing::info!("this host takes part in its fleet"),
            }
            *slot = trouble;
        }
    }

    /// Why this host cannot take part in its fleet at present.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().clone()
    }

    /// Where the cordon was before this host had etcd.
    pub fn earlier_file(&self) -> Option<&Path> {
        (self.etcd.is_some() && self.file.exists()).then_some(&self.file)
    }

    /// The agent ends: others know at once that it does not run.
    pub fn leave(&self) {
        if let Some(etcd) = self.opened.lock().as_ref().and_then(|opened| opened.etcd.clone()) {
            etcd.end_lease();
        }
    }
}

/// As the API and the command line show it.
pub(crate) fn shown_cordon(Cordon { by, since_ms, drain }: Cordon) -> api::Cordon {
    api::Cordon { by, since_unix_ms: since_ms, by_hand: drain.is_none() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::agent;

    #[test]
    fn a_cordon_outlives_the_agent_and_names_who_asked_first() {
        let dir = tempfile::tempdir().unwrap();
        let host = || HostInFleet::new(&agent(&dir, &[]).config);
        let first = host();
        first.admit().unwrap();
        let answer = first.set_cordon("anna").unwrap();
        assert!(
            answer.changed
                && answer.cordon.is_some_and(|cordon| cordon.by == "anna" && cordon.since_unix_ms > 0)
        );
        let again = first.set_cordon("ben").unwrap();
        assert!(!again.changed && again.cordon.is_some_and(|cordon| cordon.by == "anna"));
        drop(first);
        let next = host();
        let refused = next.admit().unwrap_err();
        assert_eq!((refused.code, refused.side), (Code::Cordoned, Side::Destination));
        assert!(refused.detail.ends_with("was cordoned by anna"), "{refused}");
        let answer = next.lift_cordon().unwrap();
        assert!(answer.changed && answer.cordon.is_none());
        next.admit().unwrap();
        assert!(!next.lift_cordon().unwrap().changed);
    }

    #[test]
    fn a_cordon_goes_along_when_the_host_is_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let host = HostInFleet::new(&agent.config);
        host.set_cordon("anna").unwrap();
        drop(host);
        let renamed = HostInFleet::new(&Config { name: "another".into(), ..(*agent.config).clone() });
        assert_eq!(renamed.admit().unwrap_err().code, Code::Cordoned);
        assert!(renamed.lift_cordon().unwrap().changed);
        drop(renamed);
        HostInFleet::new(&agent.config).admit().unwrap();
    }

    #[test]
    fn a_cordon_that_is_not_in_etcd_yet_holds() {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        HostInFleet::new(&agent.config).set_cordon("anna").unwrap();
        let nowhere = toml::from_str("endpoints = ['http://127.0.0.1:1']").unwrap();
        let shared = HostInFleet::new(&Config { fleet: Some(nowhere), ..(*agent.config).clone() });
        let refused = shared.admit().unwrap_err();
        assert!(refused.detail.contains("fleet.redb still has this host's cordon or drain"), "{refused}");
    }

    #[test]
    fn a_host_that_cannot_read_whether_it_is_cordoned_takes_no_guest() {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let file = agent.config.state_dir.join("fleet.redb");
        std::fs::write(&file, [7u8; 8192]).unwrap();
        let host = HostInFleet::new(&agent.config);
        let refused = host.admit().unwrap_err();
        assert_eq!(refused.code, Code::JournalFailed);
        assert!(refused.detail.contains("fleet.redb"), "{refused}");
        assert!(host.set_cordon("anna").is_err());
        // It is looked at again each time.
        std::fs::remove_file(&file).unwrap();
        host.admit().unwrap();
    }
}
