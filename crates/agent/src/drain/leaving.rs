//! The guests that a drain is about: those of this host's agent, and running domains of its libvirt.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use linerate_api::{GuestRunState, ModeChoice};
use linerate_core::fleet::Needs;
use linerate_guest::description::GuestDescription;
use linerate_guest::procfs::ProcessIdentity;
use linerate_guest::registry::{GuestRecord, RegistryError, Unreadable};
use linerate_guest::run_state::RunState;
use linerate_memory::{Mapping, RamBlock};
use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::cpu;
use crate::faults::chain;
use crate::guests;
use crate::host_record::short;
use crate::libvirt::Move;
use crate::libvirt::domains::{self, Domain};
use crate::outgoing::Outgoing;

/// Domains are listed within this.
const LIBVIRT_WAIT: Duration = Duration::from_secs(30);

/// A guest of this host, for a drain.
#[derive(Clone, Debug, Default)]
pub(super) struct Leaving {
    pub name: String,
    /// Its UUID, or its name if it has none: what names it in the store.
    pub key: String,
    pub domain: bool,
    pub memory_bytes: u64,
    /// Memory that it uses.
    pub copy_bytes: u64,
    pub needs: Needs,
    /// Why it cannot move at all, and what would help.
    pub cannot: Option<(String, String)>,
    /// It was looked at: otherwise only its name and key are known.
    pub looked: bool,
    /// As its QEMU says; none if it does not. Nobody asks for those of domains.
    pub run_state: Option<RunState>,
    /// The QEMU that was looked at. A guest that is stopped and started again is another one. libvirt knows those of
    /// domains.
    pub process: Option<ProcessIdentity>,
}

impl Leaving {
    /// A guest that could not be looked at.
    pub fn unknown(name: &str) -> Leaving {
        Leaving { name: name.to_owned(), key: name.to_owned(), ..Leaving::default() }
    }
}

/// Why there may be guests that were not found, or are not what they seem.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Unseen {
    pub guests: Option<String>,
    pub domains: Option<String>,
    /// Of migrations that recovery does not know.
    #[serde(default)]
    pub migrations: Option<String>,
}

impl Unseen {
    pub fn texts(&self) -> Vec<String> {
        self.guests.iter().chain(&self.domains).chain(&self.migrations).cloned().collect()
    }
}

/// What this host has.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub guests: Vec<Leaving>,
    /// Guests of which nothing can be said yet: they are being migrated, or wait for recovery or an operator.
    pub unsettled: BTreeSet<String>,
    /// Guests that are arriving: they are waited for, and then they are guests of this host.
    pub arriving: BTreeSet<String>,
    /// Why it is not known whether these are all.
    pub unseen: Unseen,
}

/// All guests of this host but those whose names are in `known`, which are not looked at again.
pub(super) fn look(agent: &Agent, mode: ModeChoice, known: &BTreeSet<(String, bool)>) -> Found {
    let mut found = Found::default();
    found.unseen.migrations = agent.journal.unreadable();
    agent.free_ram_of_dead();
    let (records, unreadable) = agent.registry.list_all().unwrap_or_else(|error| {
        found.unseen.guests = Some(format!("the guests of this host cannot be listed: {error}"));
        Default::default()
    });
    if !unreadable.is_empty() {
        let of_one = |guest: &Unreadable| format!("{}: {}", guest.name, chain(&guest.why));
        let all: Vec<String> = unreadable.iter().map(of_one).collect();
        found.unseen.guests = Some(format!("guests that may run cannot be looked at: {}", all.join("; ")));
    }
    let alive = records.iter().filter(|record| record.is_alive());
    for record in alive.filter(|record| !known.contains(&(record.name.clone(), false))) {
        match own(agent, record, mode) {
            Ok(guest) => found.guests.push(guest),
            Err(GuestRunState::Incoming) => drop(found.arriving.insert(record.name.clone())),
            Err(_) => drop(found.unsettled.insert(record.name.clone())),
        }
    }
    found.guests.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The same, with the running domains of libvirt. A host without libvirt has none.
pub(super) async fn look_with_domains(agent: &Arc<Agent>, mode: ModeChoice) -> Found {
    let own = agent.clone();
    let looked = tokio::task::spawn_blocking(move || look(&own, mode, &BTreeSet::new())).await;
    let mut found = looked.unwrap_or_default();
    // One that the agent has adopted is moved by the agent.
    let adopted: BTreeSet<String> = found.guests.iter().map(|guest| guest.key.clone()).collect();
    look_for_domains(&mut found, &adopted).await;
    found
}

/// Adds running domains of libvirt but those with these UUIDs.
pub(super) async fn look_for_domains(found: &mut Found, known: &BTreeSet<String>) {
    match tokio::time::timeout(LIBVIRT_WAIT, domains::running()).await {
        Ok(Ok(all)) => {
            let others = all.into_iter().filter(|domain| !known.contains(&domain.uuid));
            found.guests.extend(others.map(of_domain));
        }
        Ok(Err(error)) => {
            found.unseen.domains = Some(format!("domains of libvirt are not seen: {}", error.message));
        }
        Err(_) => found.unseen.domains = Some("domains of libvirt are not seen: it does not answer".into()),
    }
}

fn of_domain(domain: Domain) -> Leaving {
    // Of other domains libvirt compares the processor itself.
    let cpu_features =
        if domain.has_hosts_cpu { cpu::of_guests(cpu::own_features()) } else { Default::default() };
    Leaving {
        name: domain.name,
        key: domain.uuid,
        domain: true,
        memory_bytes: domain.memory_bytes,
        copy_bytes: domain.memory_bytes,
        needs: Needs { cpu_features, ..Needs::default() },
        cannot: None,
        looked: true,
        run_state: None,
        process: None,
    }
}

/// The guest of this name as it is now, if it is here and nothing else has it.
pub(super) fn look_at(agent: &Agent, name: &str, mode: ModeChoice) -> Option<Leaving> {
    let record = agent.registry.get(name).ok().filter(GuestRecord::is_alive)?;
    own(agent, &record, mode).ok()
}

/// The error is what it does while nothing else can be said of it.
fn own(agent: &Agent, record: &GuestRecord, mode: ModeChoice) -> Result<Leaving, GuestRunState> {
    let (summary, description) = guests::summary(agent, record);
    let Some(description) = description else {
        let unsettled = matches!(
            summary.state,
            GuestRunState::Migrating
                | GuestRunState::Incoming
                | GuestRunState::InDoubt
                | GuestRunState::Recovering
        );
        let why = summary.direct.reasons.join("; ");
        let hint = "see `linerate vm show`, and the log of its QEMU";
        if unsettled {
            return Err(summary.state);
        }
        return Ok(Leaving {
            key: record.uuid().unwrap_or_else(|| record.name.clone()),
            cannot: Some((format!("its QEMU does not answer: {why}"), hint.into())),
            looked: true,
            ..Leaving::unknown(&record.name)
        });
    };
    let verdicts: &[&linerate_api::Verdict] = match mode {
        ModeChoice::Auto => &[&summary.direct, &summary.stream],
        ModeChoice::Direct => &[&summary.direct],
        ModeChoice::Stream => &[&summary.stream],
    };
    let cannot = verdicts.iter().all(|verdict| !verdict.possible).then(|| {
        let reasons: BTreeSet<&str> =
            verdicts.iter().flat_map(|verdict| &verdict.reasons).map(String::as_str).collect();
        let why: Vec<&str> = reasons.into_iter().collect();
        (why.join("; "), format!("see `linerate vm show {}` and docs/guests.md", record.name))
    });
    Ok(Leaving {
        name: record.name.clone(),
        key: description.uuid.clone().unwrap_or_else(|| record.name.clone()),
        domain: false,
        memory_bytes: description.memory_bytes,
        copy_bytes: used(record.process.pid, &description),
        needs: needs(&description),
        cannot,
        looked: true,
        run_state: Some(description.run_state),
        process: Some(record.process),
    })
}

/// What placement compares. Disks, bridges and the exact processor are compared when the guest is admitted: the
/// destination looks at them itself.
fn needs(guest: &GuestDescription) -> Needs {
    let mut needs = Needs { qemu: short(&guest.qemu), machine: guest.machine.clone(), ..Needs::default() };
    // The guest was given all that this host's processor can.
    let model = guest.cpu.split(',').next().unwrap_or_default();
    if guest.accelerator == "kvm" && ["host", "max"].contains(&model) {
        needs.cpu_features = cpu::own_features();
    }
    needs
}

/// Memory that the guest uses, in bytes: what a copy of it carries at first.
fn used(pid: i32, guest: &GuestDescription) -> u64 {
    let block = |block: &linerate_guest::description::RamBlock| {
        let found = RamBlock::find(pid, &block.id, block.path.as_ref()?.as_ref()).ok()?;
        Mapping::new(&found).ok()?.resident_bytes().ok()
    };
    guest.ram.iter().map(|one| block(one).unwrap_or(one.size)).sum()
}

/// Whether a guest of that name is here and can be moved again: nothing else has it.
pub(super) fn is_settled(agent: &Agent, name: &str) -> bool {
    let leaving = agent.outgoing().iter().any(|one| one.request.guest == name && !one.is_over());
    let arriving = agent.incoming_live().iter().any(|one| one.guest() == name && !one.is_arrived());
    !leaving && !arriving && agent.open_session_of_name(name).is_none()
}

/// Whether a migration moves it away that is neither ended nor in doubt.
pub(super) fn is_being_moved(agent: &Agent, guest: &Leaving) -> bool {
    let name = &guest.name;
    if guest.domain {
        let of_it = |one: &Arc<Move>| one.guest() == name && !one.is_over() && !one.is_recovering();
        return agent.moves.has(&guest.key) && agent.moves.all().iter().any(of_it);
    }
    let of_it = |one: &Arc<Outgoing>| one.request.guest == *name && !one.is_over() && !one.is_in_doubt();
    agent.outgoing().iter().any(of_it)
}

/// Whether a guest that was here is not any more, and nothing is known to move it: somebody has stopped it.
pub(super) fn has_stopped(agent: &Agent, name: &str) -> bool {
    let is_gone = match agent.registry.get(name) {
        Ok(record) => !record.is_alive(),
        Err(error) => matches!(error, RegistryError::Unknown(_)),
    };
    is_gone && is_settled(agent, name)
}

/// Whether its QEMU is here, as far as is known: one whose record cannot be read is not called gone.
pub(super) fn is_here(agent: &Agent, name: &str) -> bool {
    match agent.registry.get(name) {
        Ok(record) => record.is_alive(),
        Err(error) => !matches!(error, RegistryError::Unknown(_)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_whose_record_cannot_be_read_keeps_a_drain_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let own = i32::try_from(std::process::id()).unwrap();
        agent.registry.put(&crate::testing::arrived(&agent, own)).unwrap();
        std::fs::write(agent.registry.folder("g").unwrap().join("record.json"), "{").unwrap();
        let unseen = look(&agent, ModeChoice::Auto, &BTreeSet::new()).unseen.texts();
        assert!(matches!(&unseen[..], [why] if why.contains("g: the record")), "{unseen:?}");
        assert!(is_here(&agent, "g") && !is_here(&agent, "h"));
        let listed = guests::list(&agent).unwrap();
        assert_eq!((listed[0].name.as_str(), listed[0].state), ("g", GuestRunState::Unknown));
        assert!(listed[0].direct.reasons[0].contains("is damaged"), "{listed:?}");
        let request = linerate_api::MigrateRequest::new("g", "192.0.2.1:1");
        let begun = agent.begin_outgoing("g", || crate::outgoing::start(&agent.outgoing, request));
        let code = begun.map(|one| one.session).unwrap_err().code;
        assert_eq!(code, linerate_core::Code::Internal, "a drain would take it for gone");
    }

    #[test]
    fn a_guest_that_does_not_answer_is_known_by_its_uuid() {
        const UUID: &str = "0f0e8c9a-0000-4000-8000-000000000001";
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let _guest = crate::testing::SilentGuest::start(&agent, UUID);
        let found = look_at(&agent, "g", ModeChoice::Auto).unwrap();
        assert!(found.cannot.is_some(), "it cannot be asked: {found:?}");
        assert_eq!(
            (found.name.as_str(), found.key.as_str()),
            ("g", UUID),
            "an undrain finds that it is back"
        );
    }

    #[test]
    fn a_journal_that_cannot_be_read_keeps_a_drain_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let unseen = || look(&agent, ModeChoice::Auto, &BTreeSet::new()).unseen.texts();
        assert_eq!(unseen(), [""; 0]);
        agent.journal.write_for_test(&[7; 16], br#"{"guest":"web","role":"of another release"}"#);
        agent.journal.all().unwrap();
        let texts = unseen();
        assert!(
            matches!(&texts[..], [why] if why.contains("of guest web") && why.contains("Start")),
            "{texts:?}"
        );
    }

    #[test]
    fn a_domain_with_all_that_its_hosts_processor_can_needs_that_elsewhere() {
        let needs = |has_hosts_cpu| {
            let domain =
                Domain { name: "web".into(), uuid: "u1".into(), memory_bytes: 1 << 30, has_hosts_cpu };
            of_domain(domain).needs.cpu_features
        };
        assert!(needs(false).is_empty());
        assert!(needs(true) == cpu::of_guests(cpu::own_features()) && !needs(true).is_empty());
    }

    #[test]
    fn a_guest_has_stopped_if_its_process_has_ended_or_nothing_is_known_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        assert!(has_stopped(&agent, "g"));
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let record = crate::testing::arrived(&agent, i32::try_from(child.id()).unwrap());
        agent.registry.put(&record).unwrap();
        assert!(!has_stopped(&agent, "g"));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_stopped(&agent, "g"));
        assert!(!has_stopped(&agent, "no/name"), "of that nothing can be read");
    }
}
