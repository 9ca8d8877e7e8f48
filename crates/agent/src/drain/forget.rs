//! Guests and hosts that will never come back, as an operator says. What still answers is not forgotten, nor a guest
//! that is known to be somewhere.

use std::sync::Arc;
use std::time::Duration;

use linerate_api::{
    DrainGuest, ErrorBody, ForgetGuest, ForgetHost, GuestForgotten, HostForgotten, ModeChoice,
};
use linerate_store::fleet::records::HostRecord;
use linerate_store::fleet::{Fleet, FleetError, View};
use tokio::runtime::Handle;

use super::hosts::{self, Destination};
use super::undrain::{Here, LeftOver, goes_on, to_come};
use super::{Answer, Drains, leaving, of_fleet, refused};
use crate::agent::Agent;
use crate::fleet::shown_cordon;
use crate::libvirt::domains;

/// How long a host is waited for, at each of its addresses.
const ASK_WAIT: Duration = Duration::from_secs(10);

// ---- guests ----

/// No undrain of this host brings the guest back any more.
pub(crate) fn guest(
    agent: &Arc<Agent>,
    drains: &Drains,
    runtime: Handle,
    request: &ForgetGuest,
) -> Answer<GuestForgotten> {
    let own = &agent.config.name;
    if let Some(other) = request.host.as_ref().filter(|host| *host != own) {
        let text =
            format!("this is host {own}: its agent does not undrain host {other}; nothing was changed");
        return Err(refused(text, format!("run the command on {other}")));
    }
    nothing_comes_back(drains)?;
    let fleet = agent.fleet.fleet_to_change().map_err(|error| of_fleet(&error, agent))?;
    let (_, coming) = to_come(agent, &fleet)?;
    let guest = named(&coming.guests, &request.guest)?;
    is_not_here(&Here { agent: agent.clone(), runtime }, guest)?;
    let view = fleet.view().map_err(|error| of_fleet(&error, agent))?;
    is_nowhere(agent, &view, guest, &coming.to)?;
    if !request.dry_run {
        dismiss(agent, drains, (&fleet, &view), guest)?;
    }
    Ok(GuestForgotten {
        guest: guest.guest.clone(),
        uuid: guest.uuid.clone(),
        from: guest.to.clone().unwrap_or_default(),
        dry_run: request.dry_run,
    })
}

/// At its end an undrain writes anew which guests it has not brought back.
fn nothing_comes_back(drains: &Drains) -> Answer<()> {
    match goes_on(drains) {
        Some(_) => Err(refused(
            "guests are coming back to this host; nothing was changed",
            "`linerate undrain` watches them; give the command again when that has ended",
        )),
        None => Ok(()),
    }
}

/// The guest of this name or UUID.
fn named<'a>(coming: &'a [DrainGuest], name: &str) -> Answer<&'a DrainGuest> {
    let found: Vec<&DrainGuest> =
        coming.iter().filter(|guest| guest.guest == name || guest.uuid == name).collect();
    match found[..] {
        [only] => Ok(only),
        [] => {
            let text = format!("no guest {name} is to come back to this host; nothing was changed");
            Err(ErrorBody::new("guest_unknown", text).with_hint("`linerate undrain` names those that are"))
        }
        _ => {
            let text = format!("{} guests are called {name}; nothing was changed", found.len());
            // The name of one without a UUID is that of the others too.
            let (uuids, without): (Vec<_>, Vec<_>) =
                found.iter().map(|guest| guest.uuid.as_str()).partition(|uuid| *uuid != name);
            let last = if without.is_empty() {
                ""
            } else {
                "; the one without a UUID when the others are forgotten"
            };
            Err(refused(text, format!("name one by its UUID: {}{last}", uuids.join(", "))))
        }
    }
}

fn is_not_here(here: &Here, guest: &DrainGuest) -> Answer<()> {
    let (agent, name) = (&here.agent, &guest.guest);
    let is_moved =
        if guest.domain { agent.moves.has(&guest.uuid) } else { !leaving::is_settled(agent, name) };
    if is_moved {
        return Err(refused(
            format!("a migration of {name} has not ended on this host; nothing was changed"),
            "see `linerate migration list`; `linerate resolve` decides one that is in doubt",
        ));
    }
    let is_here = if guest.domain {
        let state = here.runtime.block_on(domains::look_up(&guest.uuid))?;
        state.is_some_and(|state| state != "shut off")
    } else {
        leaving::is_here(agent, name) && !is_another(here, guest)
    };
    if is_here {
        let text = format!("{name} is on this host; nothing was changed");
        return Err(refused(text, "`linerate undrain` leaves guests that are back as they are"));
    }
    Ok(())
}

/// Whether the guest that has its name here is known to be another one. Of one without a UUID only its migration shows
/// that it came back. One whose QEMU does not answer, or whose record cannot be read, may be it.
fn is_another(here: &Here, guest: &DrainGuest) -> bool {
    let found = leaving::look_at(&here.agent, &guest.guest, ModeChoice::Auto);
    found.is_some_and(|found| match has_name_only(guest) {
        true => !here.is_back(guest, false),
        false => found.key != found.name && found.key != guest.uuid,
    })
}

/// Whether nothing but its name is known of a guest: it has no UUID, or the drain could never look at it.
fn has_name_only(guest: &DrainGuest) -> bool {
    guest.uuid == guest.guest
}

/// Refuses if its host answers, or if another host that answers has it. `to`: the hosts of this host's drains, as the
/// operator named them. In a fleet that shares a store the others say there what they have.
fn is_nowhere(agent: &Agent, view: &View, guest: &DrainGuest, to: &[String]) -> Answer<()> {
    let from = guest.to.as_deref().unwrap_or_default();
    let answers = || {
        let hint = "`linerate undrain` asks it for the guest, and says what became of it";
        refused(format!("host {from} answers; nothing was changed"), hint)
    };
    let others = view.hosts.keys().filter(|name| **name != agent.config.name);
    let others = others.filter_map(|name| Destination::of(name, view, None));
    let (last, mut others): (Vec<_>, Vec<_>) = others.partition(|one| one.name() == from);
    if last.iter().any(|one| hosts::is_running(one, &agent.security, ASK_WAIT)) {
        return Err(answers());
    }
    if agent.fleet.shared().is_some() {
        others.extend(last);
    } else {
        others.extend(to.iter().map(|name| Destination::new(name)));
        hosts::ask_within(&mut others, &agent.security, ASK_WAIT);
    }
    for one in others.iter().filter(|one| one.lost.is_none()) {
        if one.name() == from {
            return Err(answers());
        }
        if one.record.as_ref().is_some_and(|record| has(record, guest)) {
            let text = match has_name_only(guest) {
                true => format!("host {} has a guest called {}, which may be it", one.name(), guest.guest),
                false => format!("{} is at host {}", guest.guest, one.name()),
            };
            let hint = "move it by hand from there: `linerate migrate`";
            return Err(refused(format!("{text}; nothing was changed"), hint));
        }
    }
    Ok(())
}

/// Whether a host has the guest, or it is on its way there. One of which only the name is known may have a UUID there.
fn has(record: &HostRecord, guest: &DrainGuest) -> bool {
    let HostRecord { guests, domains, arriving, .. } = record;
    let is_on_way = arriving.contains_key(&guest.uuid) || arriving.contains_key(&guest.guest);
    let is_called_so = || has_name_only(guest) && guests.values().any(|one| one.name == guest.guest);
    guests.contains_key(&guest.uuid) || domains.contains_key(&guest.uuid) || is_on_way || is_called_so()
}

fn dismiss(agent: &Agent, drains: &Drains, (fleet, view): (&Fleet, &View), guest: &DrainGuest) -> Answer<()> {
    // Held until it is written: no undrain begins meanwhile.
    let _changing = drains.changing.lock();
    nothing_comes_back(drains)?;
    // The drain may have left it in doubt. Then its memory is still reserved. It is given up first: a guest that is
    // dismissed is not found again, and the order can be given again until then.
    let reserved = view.reservations.get(&guest.uuid);
    if reserved.is_some_and(|one| Some(&one.host) == guest.to.as_ref()) {
        match fleet.settle(&guest.uuid) {
            Ok(()) | Err(FleetError::Draining { .. }) => {}
            Err(error) => return Err(of_fleet(&error, agent)),
        }
    }
    let mut left_over = LeftOver::read(fleet)?;
    left_over.dismiss(guest);
    left_over.write(fleet).map_err(|error| of_fleet(&error, agent))?;
    tracing::info!(
        guest = guest.guest,
        from = guest.to.as_deref().unwrap_or_default(),
        "no undrain brings it back any more"
    );
    Ok(())
}

// ---- hosts ----

/// The store knows the host no more.
pub(crate) fn host(agent: &Agent, request: &ForgetHost) -> Answer<HostForgotten> {
    let (own, host) = (&agent.config.name, &request.host);
    if host == own {
        let text = format!("{own} is this host; nothing was changed");
        return Err(refused(text, "an agent of another host of the fleet can forget it"));
    }
    let fleet = agent.fleet.fleet_to_change().map_err(|error| of_fleet(&error, agent))?;
    let view = fleet.view().map_err(|error| of_fleet(&error, agent))?;
    let refuse = |error: FleetError| of_host(&error, agent);
    view.may_forget(host).map_err(refuse)?;
    let (is_shared, known) = (agent.fleet.shared().is_some(), view.hosts.get(host));
    let is_it = Destination::of(host, &view, None);
    // Without etcd a drain has asked it last, and it may have ended since.
    let is_registered = is_shared && known.is_some_and(|known| known.alive);
    if is_registered || is_it.is_some_and(|one| hosts::is_running(&one, &agent.security, ASK_WAIT)) {
        return Err(refuse(FleetError::Runs(host.clone())));
    }
    if !request.dry_run {
        if !is_shared {
            fleet.withdraw(host).map_err(refuse)?;
        }
        fleet.forget_host(host).map_err(refuse)?;
        tracing::info!(host, "the store has forgotten it");
    }
    Ok(forgotten(&view, request))
}

/// What the store had of the host.
fn forgotten(view: &View, ForgetHost { host, dry_run }: &ForgetHost) -> HostForgotten {
    let known = view.hosts.get(host);
    let guests = known.into_iter().flat_map(|known| {
        let guests = known.record.guests.values().map(|guest| &guest.name);
        guests.chain(known.record.domains.values())
    });
    let cordon = known.and_then(|known| known.cordon.clone());
    HostForgotten {
        host: host.clone(),
        guests: guests.cloned().collect(),
        reserved: view.reserved_at(host).cloned().collect(),
        drains: view.ended_drains(host).cloned().collect(),
        cordon: cordon.map(shown_cordon),
        dry_run: *dry_run,
    }
}

fn of_host(error: &FleetError, agent: &Agent) -> ErrorBody {
    let hint = match error {
        FleetError::Draining { .. } => {
            "a drain leaves a host that is lost, and another host ends the drain of a lost one: try again then"
        }
        FleetError::NoHost(_) => "`linerate fleet hosts` shows those that are known",
        FleetError::Runs(_) => {
            "end its agent first; with etcd its lease ends some seconds later (`lease_s`). If its agent has just started again, reservations there of drains that have ended may be given up already: that does no harm"
        }
        _ => return of_fleet(error, agent),
    };
    refused(format!("{error}; the host is still known"), hint)
}

#[cfg(test)]
mod tests {
    use linerate_lock::Mutex;
    use linerate_store::fleet::records::GuestRecord;
    use linerate_store::local::Local;
    use linerate_store::{Entry, Lease, Outcome, Store, StoreError, Transaction};

    use super::*;
    use crate::drain::tests::drained;
    use crate::drain::undrain;
    use crate::testing::{closed_port, wait};

    #[test]
    fn a_guest_whose_host_is_gone_is_dismissed_and_no_undrain_names_it() {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), tokio::runtime::Runtime::new().unwrap());
        let (_held, gone) = closed_port();
        let agent = crate::testing::agent(&dir, &[]);
        drained(&agent, 1, &[gone.to_string()], &["db", "web"]);
        let drains = Arc::new(Drains { silent_max: Some(Duration::ZERO), ..Drains::default() });
        let forget = |name: &str, dry_run| {
            let request = ForgetGuest { guest: name.into(), host: None, dry_run };
            guest(&agent, &drains, runtime.handle().clone(), &request)
        };
        let coming = || -> Vec<String> {
            let (_, coming) = to_come(&agent, &agent.fleet.fleet().unwrap()).unwrap();
            coming.guests.into_iter().map(|one| one.guest).collect()
        };
        assert_eq!(forget("mail", false).unwrap_err().code, "guest_unknown");
        let planned = forget("web", true).unwrap();
        assert!(planned.dry_run && planned.from == "b", "{planned:?}");
        assert_eq!(coming(), ["db", "web"]);
        forget("web", false).unwrap();
        assert_eq!(coming(), ["db"]);
        assert_eq!(forget("web", false).unwrap_err().code, "guest_unknown");
        // At its end an undrain writes anew what has not come back.
        undrain::begin(&agent, &drains, runtime.handle().clone(), None).unwrap();
        wait("the undrain does not end", || undrain::show(&drains).unwrap().over);
        let named: Vec<String> =
            undrain::show(&drains).unwrap().guests.into_iter().map(|one| one.guest).collect();
        assert_eq!((named, coming()), (vec!["db".to_owned()], vec!["db".to_owned()]));
    }

    /// A store that does not answer while its gate is held.
    struct Gated {
        store: Local,
        gate: Mutex<()>,
    }

    impl Store for Gated {
        fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
            let _open = self.gate.lock();
            self.store.get(key)
        }

        fn list(&self, prefix: &str) -> Result<Vec<Entry>, StoreError> {
            let _open = self.gate.lock();
            self.store.list(prefix)
        }

        fn commit(&self, transaction: &Transaction) -> Result<Outcome, StoreError> {
            let _open = self.gate.lock();
            self.store.commit(transaction)
        }

        fn lease(&self) -> Option<Lease> {
            self.store.lease()
        }
    }

    #[test]
    fn whoever_watches_an_undrain_does_not_wait_for_the_store_that_forgets_a_guest() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let store = Local::open(&dir.path().join("gated.redb")).unwrap();
        let store = Arc::new(Gated { store, gate: Mutex::default() });
        let fleet = Fleet::new(store.clone(), "a", "1").unwrap();
        fleet.register(&HostRecord { name: "a".into(), ..HostRecord::default() }).unwrap();
        let (view, drains) = (fleet.view().unwrap(), Drains::default());
        let web: DrainGuest =
            serde_json::from_value(crate::drain::tests::guest("web", "u1", "moved", Some("b"))).unwrap();
        std::thread::scope(|scope| {
            let held = store.gate.lock();
            let dismissed = scope.spawn(|| dismiss(&agent, &drains, (&fleet, &view), &web));
            wait("who watches waits too", || {
                drains.changing.try_lock().is_none() && drains.undrain.try_lock().is_some()
            });
            drop(held);
            dismissed.join().unwrap().unwrap();
        });
        assert!(fleet.elsewhere().unwrap().is_some(), "it is dismissed");
    }

    #[test]
    fn a_guest_that_another_host_has_or_that_is_being_moved_is_not_dismissed() {
        let record = |guests: &[&str], domains: &[&str], arriving: &[&str]| HostRecord {
            guests: guests.iter().map(|key| ((*key).to_owned(), Default::default())).collect(),
            domains: domains.iter().map(|key| ((*key).to_owned(), "web".to_owned())).collect(),
            arriving: arriving.iter().map(|key| ((*key).to_owned(), 1)).collect(),
            ..HostRecord::default()
        };
        let web: DrainGuest =
            serde_json::from_value(crate::drain::tests::guest("web", "u1", "moved", Some("b"))).unwrap();
        for record in [
            record(&["u1"], &[], &[]),
            record(&[], &["u1"], &[]),
            record(&[], &[], &["u1"]),
            record(&[], &[], &["web"]),
        ] {
            assert!(has(&record, &web), "{record:?}");
        }
        assert!(!has(&record(&["u2"], &["u3"], &["db"]), &web));
        // The drain could never look at it, and the other host has.
        let unlooked: DrainGuest =
            serde_json::from_value(crate::drain::tests::guest("web", "web", "in_doubt", Some("b"))).unwrap();
        let called = |name: &str| HostRecord {
            guests: [("u1".to_owned(), GuestRecord { name: name.into(), memory_bytes: 1 })].into(),
            ..HostRecord::default()
        };
        assert!(has(&called("web"), &unlooked) && !has(&called("db"), &unlooked));
    }

    #[test]
    fn a_guest_without_a_uuid_may_be_the_one_here_whose_record_cannot_be_read() {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), tokio::runtime::Runtime::new().unwrap());
        let agent = crate::testing::agent(&dir, &[]);
        let mut process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        agent.registry.put(&crate::testing::arrived(&agent, i32::try_from(process.id()).unwrap())).unwrap();
        let left: DrainGuest =
            serde_json::from_value(crate::drain::tests::guest("g", "g", "moved", Some("b"))).unwrap();
        let here = Here { agent: agent.clone(), runtime: runtime.handle().clone() };
        is_not_here(&here, &left).expect("it did not come back from there: it is another one");
        std::fs::write(agent.registry.folder("g").unwrap().join("record.json"), "{").unwrap();
        let refused = is_not_here(&here, &left).unwrap_err();
        process.kill().unwrap();
        process.wait().unwrap();
        assert!(refused.message.contains("g is on this host"), "{refused:?}");
    }

    #[test]
    fn a_guest_and_a_domain_of_one_name_are_told_apart_by_what_can_be_typed() {
        let coming: Vec<DrainGuest> = ["web", "u3"]
            .map(|uuid| crate::drain::tests::guest("web", uuid, "moved", Some("b")))
            .map(|guest| serde_json::from_value(guest).unwrap())
            .into();
        let refused = named(&coming, "web").unwrap_err();
        assert!(refused.hint.starts_with("name one by its UUID: u3; the one without"), "{}", refused.hint);
        assert_eq!(named(&coming, "u3").unwrap().uuid, "u3");
        assert_eq!(named(&coming[..1], "web").unwrap().uuid, "web");
    }

    #[test]
    fn a_host_that_a_drain_asked_is_forgotten_and_this_one_never_is() {
        let dir = tempfile::tempdir().unwrap();
        let (_held, gone) = closed_port();
        let agent = crate::testing::agent(&dir, &[]);
        let fleet = agent.fleet.fleet().unwrap();
        let there = HostRecord {
            name: "b.invalid".into(),
            addresses: vec![gone.to_string()],
            domains: [("u1".to_owned(), "web".to_owned())].into(),
            ..HostRecord::default()
        };
        fleet.register(&there).unwrap();
        let forget = |name: &str, dry_run| host(&agent, &ForgetHost { host: name.into(), dry_run });
        for other in ["c", agent.config.name.as_str()] {
            assert_eq!(forget(other, false).unwrap_err().code, "refused", "{other}");
        }
        let before = fleet.view().unwrap();
        assert_eq!(forget("b.invalid", true).unwrap().guests, ["web"]);
        assert_eq!(fleet.view().unwrap(), before);
        assert!(!forget("b.invalid", false).unwrap().dry_run);
        assert_eq!(
            fleet.view().unwrap().hosts.into_keys().collect::<Vec<_>>(),
            std::slice::from_ref(&agent.config.name)
        );
    }
}
