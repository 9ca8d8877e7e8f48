//! The guests that a drain has moved come back: those of the last drain, and of those before it since this host was
//! cordoned.
//!
//! Each host that got some is asked for them, one after another; all hosts at the same time. A host that is silent is
//! given up with all of them. What has come back is not asked for again, so an undrain that was cut off is begun once
//! more.
//!
//! The store has the guests that come back until they are here (`LeftOver`). So the undrain of a later drain, also by a
//! later process of this agent, tries the others again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linerate_api::{
    DrainGuest, DrainGuestState, ErrorBody, GuestState, ModeChoice, UndrainDetail, UndrainGuest,
    UndrainGuestState as State, code,
};
use linerate_core::drain::{ComingBack, SILENT_MAX};
use linerate_fabric::probe::{Answer as PeerAnswer, Question, SentBack};
use linerate_guest::registry::Registry;
use linerate_guest::run_state::RunState;
use linerate_lock::Mutex;
use linerate_store::fleet::records::{DrainRecord, DrainState as Stored};
use linerate_store::fleet::{Fleet, FleetError};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use super::hosts::{self, Destination};
use super::{Answer, Drains, Kept, is_of_cordon, leaving, of_fleet, order, refused};
use crate::agent::Agent;
use crate::clock::Clock;
use crate::doctor::sides::{FindError, find};
use crate::faults::chain;
use crate::journal::{Journal, Role};
use crate::libvirt::domains;
use crate::send_back;

/// Only for the answer: the other host goes on by itself.
const ASK_WAIT: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_millis(300);
/// A host where something else has the guest is asked again after this.
const BUSY_AGAIN: Duration = Duration::from_secs(2);
/// What an operator does about a record that cannot be read.
const UNREADABLE: &str =
    "start the release of the agent that wrote it; or move the guests by hand, and `linerate uncordon`";

/// Guests that an undrain has not brought back, and the hosts that it asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct LeftOver {
    pub guests: Vec<DrainGuest>,
    pub to: Vec<String>,
    /// Guests that an operator has dismissed, each as it left: their hosts will never come back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    dismissed: Vec<DrainGuest>,
}

impl LeftOver {
    pub fn read(fleet: &Fleet) -> Answer<LeftOver> {
        let Some(value) = fleet.elsewhere().map_err(|error| of_left_over(&error.to_string()))? else {
            return Ok(LeftOver::default());
        };
        serde_json::from_value(value).map_err(|error| of_left_over(&chain(&error)))
    }

    pub fn write(&self, fleet: &Fleet) -> Result<(), FleetError> {
        let value = serde_json::to_value(self).unwrap_or_default();
        let is_needed = !self.guests.is_empty() || !self.dismissed.is_empty();
        fleet.set_elsewhere(is_needed.then_some(&value))
    }

    /// No undrain brings the guest back any more, unless it leaves again.
    pub fn dismiss(&mut self, guest: &DrainGuest) {
        self.guests.retain(|one| !left_with(one, guest));
        self.dismissed.push(guest.clone());
    }
}

fn of_left_over(why: &str) -> ErrorBody {
    let text =
        format!("it cannot be read what the last undrain has not brought back: {why}; nothing was begun");
    ErrorBody::new("journal_failed", text).with_hint(UNREADABLE)
}

/// Begins, unless it goes on already. Returns what is to come.
pub(crate) fn begin(
    agent: &Arc<Agent>,
    drains: &Arc<Drains>,
    runtime: Handle,
    host: Option<&str>,
) -> Answer<UndrainDetail> {
    let own = &agent.config.name;
    if let Some(other) = host.filter(|host| host != own) {
        let text = format!("this is host {own}: its agent does not undrain host {other}; nothing was begun");
        return Err(refused(text, format!("run the command on {other}")));
    }
    // Whoever watches does not wait for another order.
    if let Some(going) = goes_on(drains) {
        return Ok(going);
    }
    let _changing = drains.changing.lock();
    if let Some(going) = goes_on(drains) {
        return Ok(going);
    }
    let fleet = agent.fleet.fleet_to_change().map_err(|error| of_fleet(&error, agent))?;
    let (drain, coming) = to_come(agent, &fleet)?;
    // Before the first comes back: this agent may end on the way.
    coming.write(&fleet).map_err(|error| of_fleet(&error, agent))?;
    // It refuses while a drain is open.
    agent.fleet.lift_cordon().map_err(|error| of_fleet(&error, agent))?;
    let shown = |guest: &DrainGuest| UndrainGuest {
        guest: guest.guest.clone(),
        from: guest.to.clone().unwrap_or_default(),
        state: State::Waiting,
        paused: false,
        reason: None,
        hint: String::new(),
    };
    let detail = UndrainDetail {
        drain,
        host: own.clone(),
        guests: coming.guests.iter().map(shown).collect(),
        over: false,
    };
    tracing::info!(drain = detail.drain, guests = detail.guests.len(), "guests are brought back");
    *drains.undrain.lock() = Some(detail.clone());
    let (agent, running) = (agent.clone(), drains.clone());
    let run = move || all(&Here { agent, runtime }, &running, coming);
    let started = std::thread::Builder::new().name("undrain".into()).spawn(run);
    if let Err(error) = started {
        *drains.undrain.lock() = None;
        return Err(ErrorBody::new("internal", format!("a thread cannot be started: {error}")));
    }
    Ok(detail)
}

/// The undrain that has not ended.
pub(super) fn goes_on(drains: &Drains) -> Option<UndrainDetail> {
    drains.undrain.lock().clone().filter(|one| !one.over)
}

/// The last drain of this host, which has ended, and the guests that come back after it.
pub(super) fn to_come(agent: &Agent, fleet: &Fleet) -> Answer<(String, LeftOver)> {
    let own = &agent.config.name;
    let view = fleet.view().map_err(|error| of_fleet(&error, agent))?;
    let mut known: Vec<&DrainRecord> = view.drains.values().map(|drain| &drain.record).collect();
    known.retain(|drain| drain.host == *own);
    known.sort_by_key(|drain| Reverse(order(drain)));
    let Some(last) = known.first().copied() else {
        let text = "no drain of this host is known; nothing was begun";
        return Err(ErrorBody::new(code::DRAIN_UNKNOWN, text).with_hint("see `linerate fleet drains`"));
    };
    if last.state != Stored::Ended {
        let text = format!("drain {} is not over; nothing was begun", last.id);
        return Err(refused(text, "`linerate drain abort` ends it"));
    }
    // A host that was drained in several attempts was cordoned all the time. It is not any more, if this is begun
    // again.
    let cordoned = view.hosts.get(own).and_then(|host| host.cordon.as_ref()).map(|cordon| cordon.since_ms);
    let since = kept(last)?.cordoned_ms.or(cordoned).unwrap_or(last.begun_ms);
    known.retain(|one| one.id == last.id || is_of_cordon(one, since));
    let coming = coming(&known, LeftOver::read(fleet)?, agent.fleet.shared().is_some())?;
    Ok((last.id.clone(), coming))
}

/// The guests that come back after these drains, and the hosts that are asked.
fn coming(drains: &[&DrainRecord], left_over: LeftOver, is_shared: bool) -> Answer<LeftOver> {
    let mut to: BTreeSet<String> = left_over.to.into_iter().collect();
    for drain in drains {
        to.extend(kept(drain)?.request.to.into_iter().filter(|_| !is_shared));
    }
    let is_dismissed = |guest: &DrainGuest| left_over.dismissed.iter().any(|one| left_with(one, guest));
    // Those of earlier drains need not be kept any more.
    let (dismissed, guests): (Vec<_>, Vec<_>) =
        moved_by(drains, left_over.guests)?.into_iter().partition(is_dismissed);
    if is_shared {
        to.extend(guests.iter().filter_map(|guest| guest.to.clone()));
    }
    Ok(LeftOver { guests, to: to.into_iter().collect(), dismissed })
}

/// Whether it is one guest, which left once.
fn left_with(one: &DrainGuest, other: &DrainGuest) -> bool {
    is_one(one, other) && one.migration == other.migration && one.to == other.to
}

/// The guests that have left in these drains, the newest drain first: each as it left last. And those that have left
/// before and did not come back in the undrain between.
fn moved_by(drains: &[&DrainRecord], left_over: Vec<DrainGuest>) -> Answer<Vec<DrainGuest>> {
    let mut moved: Vec<DrainGuest> = Vec::new();
    let mut add = |guest: DrainGuest| {
        if !moved.iter().any(|known| is_one(known, &guest)) {
            moved.push(guest);
        }
    };
    for drain in drains {
        for value in drain.guests.values() {
            let guest: DrainGuest =
                serde_json::from_value(value.clone()).map_err(|error| damaged(drain, &error))?;
            // One that was left in doubt may have arrived since.
            if matches!(guest.state, DrainGuestState::Moved | DrainGuestState::InDoubt) {
                add(guest);
            }
        }
    }
    left_over.into_iter().for_each(add);
    moved.sort_by(|a, b| (&a.guest, a.domain, &a.uuid).cmp(&(&b.guest, b.domain, &b.uuid)));
    Ok(moved)
}

/// Whether it is one guest. A guest and a domain, or two of either, may have had one name: a guest is started here, for
/// example, under the name of one that has left. Of a guest that the drain could never look at only the name is known.
fn is_one(one: &DrainGuest, other: &DrainGuest) -> bool {
    let is_unknown = |guest: &DrainGuest| !guest.domain && guest.uuid == guest.guest;
    (&one.guest, one.domain) == (&other.guest, other.domain)
        && (one.uuid == other.uuid || is_unknown(one) || is_unknown(other))
}

fn kept(drain: &DrainRecord) -> Answer<Kept> {
    Kept::read(drain).map_err(|error| damaged(drain, &error))
}

fn damaged(drain: &DrainRecord, error: &serde_json::Error) -> ErrorBody {
    let text = format!("drain {} cannot be read: {}; nothing was begun", drain.id, chain(error));
    ErrorBody::new("journal_failed", text).with_hint(UNREADABLE)
}

/// The last one since the agent was started.
pub(crate) fn show(drains: &Drains) -> Answer<UndrainDetail> {
    drains.undrain.lock().clone().ok_or_else(|| {
        ErrorBody::new(code::DRAIN_UNKNOWN, "nothing was undrained since the agent was started")
            .with_hint("`linerate undrain` begins: guests that are here already are left as they are")
    })
}

/// The agent of this host, and the runtime of its tasks.
pub(super) struct Here {
    pub agent: Arc<Agent>,
    pub runtime: Handle,
}

fn all(here: &Here, drains: &Drains, coming: LeftOver) {
    let LeftOver { guests: moved, to, dismissed } = coming;
    let found = hosts::named(&here.agent, &to, None).map_err(|error| {
        let text = format!("the fleet's hosts cannot be looked up: {}", chain(&error));
        tracing::warn!("{text}");
        unreached(text, "see `linerate fleet status`; `linerate undrain` again when the store answers")
    });
    let (hosts, unknown) = (found.as_deref().unwrap_or_default(), found.as_ref().err());
    let mut of_host: BTreeMap<&str, Vec<(usize, &DrainGuest)>> = BTreeMap::new();
    for (at, guest) in moved.iter().enumerate() {
        of_host.entry(guest.to.as_deref().unwrap_or_default()).or_default().push((at, guest));
    }
    let later = Mutex::new(BTreeSet::new());
    let left = Mutex::new(LeftOver { guests: moved.clone(), to: to.clone(), dismissed: dismissed.clone() });
    // One that did not answer is known by no other name than its operator gave it.
    let is_unsure = hosts.iter().any(|host| host.record.is_none());
    std::thread::scope(|scope| {
        for (name, guests) in of_host {
            let host = hosts.iter().find(|host| host.name() == name);
            let (later, left, to, silent) = (&later, &left, &to[..], unknown.cloned());
            let unsure = is_unsure.then(|| (name, to, drains.silent_max.unwrap_or(SILENT_MAX)));
            scope.spawn(move || {
                let asked = Asked { silent, unsure, left: Some(left), ..Asked::new(host) };
                later.lock().extend(here.of_host(drains, guests, asked));
            });
        }
    });
    let guests = later.lock().iter().filter_map(|at| moved.get(*at).cloned()).collect();
    let left_over = LeftOver { guests, to, dismissed };
    // Before it is over, and another one may begin.
    if let Err(error) = here.agent.fleet.fleet_to_change().and_then(|fleet| left_over.write(&fleet)) {
        tracing::warn!(%error, "the undrain of the next drain looks for all guests of this one again");
    }
    if let Some(detail) = drains.undrain.lock().as_mut() {
        detail.over = true;
        tracing::info!(drain = detail.drain, back = detail.count(State::Back), "undrain ends");
    }
}

/// Whether a later undrain may bring a guest back that did not come. What its host refuses stays refused: it was moved
/// on, for example, and somebody wants it there.
fn may_come_later(error: &ErrorBody) -> bool {
    error.code != code::REFUSED
}

/// Whether something else has the guest on its host for now: its agent was started again and finds out where the guest
/// is, or somebody moves it on. What becomes of it is known soon.
fn is_busy(error: &ErrorBody) -> bool {
    error.code == "guest_busy"
}

/// The other host was not reached.
fn unreached(text: String, hint: &str) -> ErrorBody {
    ErrorBody::new("no_link", text).with_hint(hint)
}

fn note(drains: &Drains, at: usize, state: State, paused: bool, error: Option<ErrorBody>) {
    if let Some(guest) = drains.undrain.lock().as_mut().and_then(|detail| detail.guests.get_mut(at)) {
        (guest.state, guest.paused) = (state, paused);
        (guest.reason, guest.hint) =
            error.map_or_else(Default::default, |error| (Some(error.message), error.hint));
    }
}

/// How a guest is that is back.
#[derive(Debug, Default, PartialEq, Eq)]
struct IsBack {
    /// Its virtual CPUs do not run.
    paused: bool,
    /// What is wrong with it all the same.
    fault: Option<ErrorBody>,
}

/// A host that is asked for its guests, one after another.
struct Asked<'a> {
    /// None if it was not found.
    host: Option<&'a Destination>,
    silent_max: Duration,
    /// What is said of each guest that is left, as the host is not asked any more.
    silent: Option<ErrorBody>,
    /// It may be one that did not answer at first: its name, the hosts as they were named, and how long to look.
    unsure: Option<(&'a str, &'a [String], Duration)>,
    /// That one, when it has answered.
    found: Option<Destination>,
    /// What the store has of all that come back.
    left: Option<&'a Mutex<LeftOver>>,
}

impl<'a> Asked<'a> {
    fn new(host: Option<&'a Destination>) -> Asked<'a> {
        Asked { host, silent_max: SILENT_MAX, silent: None, unsure: None, found: None, left: None }
    }
}

impl Here {
    /// Brings the guests of one host back, each with its place in what is shown. Returns those that a later undrain may
    /// bring back.
    fn of_host(
        &self,
        drains: &Drains,
        guests: Vec<(usize, &DrainGuest)>,
        mut asked: Asked<'_>,
    ) -> BTreeSet<usize> {
        let mut later = BTreeSet::new();
        for (at, guest) in guests {
            note(drains, at, State::Moving, false, None);
            match self.one(drains, guest, &mut asked) {
                Ok(IsBack { paused, fault }) => {
                    if let Some(error) = &fault {
                        tracing::warn!(guest = guest.guest, error = error.message, "it is back with a fault");
                    }
                    note(drains, at, State::Back, paused, fault);
                    if let Some(left) = asked.left {
                        self.is_back_for_good(guest, &mut left.lock());
                    }
                }
                Err(error) => {
                    tracing::warn!(guest = guest.guest, error = error.message, "it does not come back");
                    if may_come_later(&error) {
                        later.insert(at);
                    }
                    note(drains, at, State::Failed, false, Some(error));
                }
            }
        }
        later
    }

    /// The undrain of a later drain does not fetch the guest again, from where somebody may have moved it since.
    fn is_back_for_good(&self, guest: &DrainGuest, left: &mut LeftOver) {
        left.guests.retain(|one| !left_with(one, guest));
        // Without a wait: the threads of the other hosts come here too.
        if let Err(error) = self.agent.fleet.fleet().and_then(|fleet| left.write(&fleet)) {
            tracing::warn!(guest = guest.guest, %error, "it is back, and the store does not have that yet");
        }
    }

    /// A host that was named by an address, and did not answer at first.
    fn awaited(&self, name: &str, to: &[String], silent_max: Duration) -> Option<Destination> {
        let end = Instant::now() + silent_max;
        while Instant::now() < end {
            std::thread::sleep(BUSY_AGAIN);
            let Ok(found) = hosts::named(&self.agent, to, None) else { continue };
            if let Some(host) = found.into_iter().find(|host| host.name() == name) {
                return Some(host);
            }
        }
        None
    }

    /// Brings one guest back.
    fn one(&self, drains: &Drains, guest: &DrainGuest, asked: &mut Asked<'_>) -> Answer<IsBack> {
        let by_hand = "move it by hand from where it is: `linerate migrate` there";
        let migration = guest.migration.as_ref().filter(|_| guest.domain);
        if migration.is_some_and(|left| drains.back.lock().contains(left)) {
            return if self.is_back(guest, true) {
                Ok(self.how_it_is(guest, None))
            } else {
                Err(refused("it was back, and has left again", by_hand))
            };
        }
        let fault = self.fetch(guest, asked, by_hand)?;
        drains.back.lock().extend(migration.cloned());
        Ok(self.how_it_is(guest, fault))
    }

    /// Has it sent back, unless it is here. Returns what failed after it was moved.
    fn fetch(&self, guest: &DrainGuest, asked: &mut Asked<'_>, by_hand: &str) -> Answer<Option<ErrorBody>> {
        let name = &guest.guest;
        if self.is_back(guest, false) {
            return Ok(None);
        }
        let Some(session) = guest.migration.clone() else {
            return Err(refused("it is not known in which migration it left", by_hand));
        };
        if let Some(error) = &asked.silent {
            return Err(error.clone());
        }
        if let (None, Some((name, to, silent_max))) = (asked.host, asked.unsure.take()) {
            asked.found = self.awaited(name, to, silent_max);
        }
        let Some(mut host) = asked.host.cloned().or_else(|| asked.found.clone()) else {
            let hint = format!(
                "`linerate undrain` again when it does; `linerate undrain --forget {name}` if it never will"
            );
            let text = format!("{} does not answer", guest.to.as_deref().unwrap_or("its host"));
            return Err(unreached(text, &hint));
        };
        let port = self.agent.cluster.listens_at().first().map_or(0, SocketAddr::port);
        let domain = guest.domain.then(|| guest.uuid.clone());
        let question = Question::SendBack { session, domain, port };
        let clock = Clock::start();
        let mut coming = ComingBack::new(clock.now(), asked.silent_max);
        let fault = loop {
            match find(&host.at, &question, ASK_WAIT, &self.agent.security) {
                Ok((_, PeerAnswer::SendBack { state: SentBack::Moving })) => coming.is_moving(clock.now()),
                Ok((_, PeerAnswer::SendBack { state: SentBack::Moved })) => break None,
                Ok((_, PeerAnswer::SendBack { state: SentBack::Failed(error) })) if is_of_arrived(&error) => {
                    break Some(said(*error, guest));
                }
                // It may have arrived before the other host's agent forgot about it.
                Ok((_, PeerAnswer::SendBack { state: SentBack::Failed(error) })) => {
                    if self.is_back(guest, false) {
                        return Ok(is_of_back(&error, guest.domain).then(|| said(*error, guest)));
                    }
                    if !is_busy(&error) || coming.is_over(clock.now()) {
                        return Err(said(*error, guest));
                    }
                    std::thread::sleep(BUSY_AGAIN);
                }
                Ok((_, PeerAnswer::Refused { why })) => return Err(refused(why, by_hand)),
                Ok(_) => return Err(refused("its host's agent is of another version", "update it")),
                Err(_) if self.is_back(guest, false) => return Ok(None),
                Err(error) if coming.is_over(clock.now()) => {
                    asked.silent = Some(not_asked(&error));
                    return Err(silent(&error));
                }
                // By another of its addresses.
                Err(_) => hosts::ask_one(&mut host, &self.agent.security, ASK_WAIT),
            }
            std::thread::sleep(ASK_AGAIN);
        };
        coming.was_moved(clock.now());
        while !self.is_back(guest, true) {
            if coming.is_over(clock.now()) {
                let list = if guest.domain { "virsh list" } else { "linerate vm list" };
                let text = format!("{name} was moved, and is not here");
                return Err(fault.unwrap_or_else(|| refused(text, format!("see `{list}` here"))));
            }
            std::thread::sleep(ASK_AGAIN);
        }
        Ok(fault)
    }

    /// How a guest is that is back. `fault`: what failed after it was moved.
    fn how_it_is(&self, guest: &DrainGuest, fault: Option<ErrorBody>) -> IsBack {
        let found = if guest.domain {
            of_domain(self.runtime.block_on(domains::state_with_reason(&guest.uuid)).as_deref())
        } else {
            let found = leaving::look_at(&self.agent, &guest.guest, ModeChoice::Auto);
            // Whatever has it by now says what becomes of it.
            found.map_or_else(IsBack::default, |found| of_guest(found.run_state.as_ref()))
        };
        IsBack { fault: fault.or(found.fault), ..found }
    }

    /// It is here, and nothing else has it. Another guest may have got its name meanwhile. `moved`: its host says that
    /// it was moved.
    pub fn is_back(&self, guest: &DrainGuest, moved: bool) -> bool {
        if guest.domain {
            let state = self.runtime.block_on(domains::state(&guest.uuid));
            return !self.agent.moves.has(&guest.uuid) && has_arrived(state.as_deref(), moved);
        }
        let agent = &self.agent;
        leaving::is_settled(agent, &guest.guest)
            && leaving::look_at(agent, &guest.guest, ModeChoice::Auto)
                .is_some_and(|found| is_it(&found.key, guest))
            && (guest.uuid != guest.guest || moved || came_back(&agent.journal, &agent.registry, guest))
    }
}

/// Whether the guest of this name came back here after it left. Where hosts prove who they are, it must come from the
/// host to which it went. Without a UUID a name alone shows nothing: another guest may have got it.
fn came_back(journal: &Journal, registry: &Registry, guest: &DrainGuest) -> bool {
    let record_of = |session: &str| journal.get(send_back::parse(session)?).ok()?;
    let left = guest.migration.as_deref().and_then(record_of);
    let here = registry.get(&guest.guest).ok().and_then(|record| record.session);
    let came = here.as_deref().and_then(record_of);
    let (Some(left), Some(came)) = (left, came) else { return false };
    let Role::Destination { incoming, .. } = &came.role else { return false };
    let is_from_there = left.peer().is_none_or(|there| incoming.peer.as_ref() == Some(&there));
    came.order > left.order && is_from_there
}

/// Whether a guest of its name that is here, with this UUID, is the one that left. Of one that the drain could never
/// look at only the name is known, and stands for its UUID.
fn is_it(uuid: &str, left: &DrainGuest) -> bool {
    uuid == left.uuid || left.uuid == left.guest
}

/// Whether its migration has brought the guest here, and failed after that.
fn is_of_arrived(error: &ErrorBody) -> bool {
    use GuestState::{PausedAtDestination, RunsAtDestination, StoppedAtDestination};
    matches!(error.guest_state, Some(RunsAtDestination | PausedAtDestination | StoppedAtDestination))
}

/// Whether a migration that has failed concerns a guest that is here all the same: a copy of it may be at the other
/// host. Of one that did not begin nothing is known. The agents settle which copy of their own guest counts; libvirt
/// does not.
fn is_of_back(error: &ErrorBody, domain: bool) -> bool {
    match error.guest_state {
        None => false,
        Some(GuestState::InDoubt | GuestState::Unknown) => domain,
        Some(_) => true,
    }
}

/// What the host says that a guest comes from. By `here` it means itself: what is to be done there may end a copy.
fn said(error: ErrorBody, guest: &DrainGuest) -> ErrorBody {
    let host = guest.to.as_deref().unwrap_or("its host");
    let message = format!("host {host} says (\"here\" is {host}): {}", error.message);
    let hint = match (error.guest_state, error.hint.as_str()) {
        (None, hint) | (_, hint @ "") => hint.to_owned(),
        (Some(_), hint) => format!("on {host}: {hint}"),
    };
    ErrorBody { message, hint, ..error }
}

/// How a domain is, as libvirt says. One that was paused before it came is paused by its user: libvirt gives no other
/// reason to a domain that it has moved.
fn of_domain(state: Option<&str>) -> IsBack {
    let hint = "`virsh domstate --reason` here; remove the cause, then `virsh resume`";
    match state {
        Some(state) if state.starts_with("running") => IsBack::default(),
        Some("paused (user)") => IsBack { paused: true, fault: None },
        Some(state) => {
            let text = format!("it is back, and does not run: libvirt says {state}");
            IsBack { paused: true, fault: Some(ErrorBody::new(code::LIBVIRT_FAILED, text).with_hint(hint)) }
        }
        None => {
            let text = "it is back, and libvirt does not say whether it runs";
            IsBack { paused: false, fault: Some(ErrorBody::new(code::LIBVIRT_FAILED, text).with_hint(hint)) }
        }
    }
}

/// How a guest of the agent is, as its QEMU says. Its operator may have paused it.
fn of_guest(state: Option<&RunState>) -> IsBack {
    let fault = |text: &str, hint: &str| Some(ErrorBody::new("hypervisor_failed", text).with_hint(hint));
    match state {
        Some(state) if state.is_live() => IsBack::default(),
        Some(state) if state.is_paused() => IsBack { paused: true, fault: None },
        Some(state) => {
            let text = format!("it is back, and does not run: its QEMU says {state}");
            let hint = "see the log of its QEMU here; remove the cause, then `cont` at its monitor";
            IsBack { paused: true, fault: fault(&text, hint) }
        }
        None => {
            let text = "it is back, and its QEMU does not say whether it runs";
            IsBack { paused: false, fault: fault(text, "see `linerate vm show`, and its log") }
        }
    }
}

/// Whether a domain in this state here is back. One that is paused here may be on its way, or run there.
fn has_arrived(state: Option<&str>, moved: bool) -> bool {
    matches!((state, moved), (Some("running"), _) | (Some("paused"), true))
}

const SEE_HOST: &str = "`linerate doctor HOST` shows what is wrong; then `linerate undrain` again, or `linerate undrain \
                        --forget GUEST` if its host will never answer";

fn silent(error: &FindError) -> ErrorBody {
    unreached(format!("its host does not answer, and may have moved it: {}", chain(error)), SEE_HOST)
}

/// Of a guest that was next when its host was given up.
fn not_asked(error: &FindError) -> ErrorBody {
    unreached(format!("its host does not answer, and was not asked for it: {}", chain(error)), SEE_HOST)
}

#[cfg(test)]
mod tests;
