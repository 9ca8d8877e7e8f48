//! This host in the store of its fleet: whether it takes guests from others. docs/drain.md has the rules.
//!
//! A store that cannot be opened is tried again each time that it is asked: an agent whose disk is full must start, and bring to
//! an end what is open.

use std::path::PathBuf;
use std::sync::Arc;

use linerate_api as api;
use linerate_core::{Code, Fault, Side, Step};
use linerate_net::lock::Mutex;
use linerate_store::fleet::records::{Cordon, HostRecord};
use linerate_store::fleet::{Fleet, FleetError};
use linerate_store::local::Local;

use crate::clock::unix_ms;
use crate::config::Config;

pub(crate) struct HostInFleet {
    file: PathBuf,
    record: HostRecord,
    fleet: Mutex<Option<Fleet>>,
}

impl HostInFleet {
    pub fn new(config: &Config) -> HostInFleet {
        let record = HostRecord {
            name: config.name.clone(),
            addresses: config.listen.iter().map(ToString::to_string).collect(),
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            ..HostRecord::default()
        };
        HostInFleet { file: config.state_dir.join("fleet.redb"), record, fleet: Mutex::default() }
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
            Err(error) => {
                let file = self.file.display();
                refuse(
                    Code::JournalFailed,
                    format!("host {host} cannot read whether it is cordoned, {file}: {error}"),
                )
            }
        }
    }

    /// Who cordoned this host.
    pub fn cordon(&self) -> Result<Option<api::Cordon>, FleetError> {
        let found = self.with(|fleet| fleet.cordon_of(&self.record.name))?;
        Ok(found.map(|Cordon { by, since_ms, .. }| api::Cordon { by, since_unix_ms: since_ms }))
    }

    /// This host takes no guests from now on; those that are arriving go on. An operator who asks again is not noted: the
    /// first one's reason stands.
    pub fn set_cordon(&self, by: &str) -> Result<api::CordonAnswer, FleetError> {
        let changed = self.with(|fleet| fleet.cordon(&self.record.name, by, unix_ms()))?;
        self.answer(changed)
    }

    /// This host takes guests again.
    pub fn lift_cordon(&self) -> Result<api::CordonAnswer, FleetError> {
        let changed = self.with(|fleet| fleet.uncordon(&self.record.name))?;
        self.answer(changed)
    }

    fn answer(&self, changed: bool) -> Result<api::CordonAnswer, FleetError> {
        Ok(api::CordonAnswer { host: self.record.name.clone(), cordon: self.cordon()?, changed })
    }

    /// The fleet as this agent sees and changes it. The store is opened if it is not.
    pub fn fleet(&self) -> Result<Fleet, FleetError> {
        self.with(|fleet| Ok(fleet.clone()))
    }

    /// Asks the store, which is opened if it is not.
    fn with<T>(&self, ask: impl FnOnce(&Fleet) -> Result<T, FleetError>) -> Result<T, FleetError> {
        let opened = self.fleet.lock().clone();
        let fleet = match opened {
            Some(fleet) => fleet,
            None => self.open()?,
        };
        ask(&fleet)
    }

    fn open(&self) -> Result<Fleet, FleetError> {
        let mut slot = self.fleet.lock();
        if let Some(opened) = &*slot {
            return Ok(opened.clone());
        }
        let store = Local::open(&self.file)?;
        // No two starts of an agent have both in common.
        let instance = format!("{}-{}", unix_ms(), std::process::id());
        let fleet = Fleet::new(Arc::new(store), &self.record.name, &instance)?;
        fleet.register(&self.record)?;
        // In this store no other host is cordoned.
        fleet.renamed(&self.record.name)?;
        Ok(slot.insert(fleet).clone())
    }
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
