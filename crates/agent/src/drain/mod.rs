//! Drains: all guests of this host leave it. docs/drain.md has the reasons.
//!
//! `linerate-core` decides which guest copies, which are prepared and which wait ([`linerate_core::drain`]), and where
//! they can go ([`linerate_core::fleet`]). Here its orders are carried out.
//!
//! | file | what it has |
//! |---|---|
//! | here | drains are taken up after a restart, shown, steered |
//! | `begin` | a drain is begun |
//! | `plan` | what a drain would do, with a dry run of each migration |
//! | `owner` | one thread for a drain: events in, orders out, the store, what is shown |
//! | `undrain` | the guests that drains have moved come back |
//! | `lost` | drains of hosts that are lost are ended |
//! | `forget` | guests and hosts that will never come back |
//! | `status` | the fleet, for people |
//! | `sessions` | the migration of each guest, as the controller orders it |
//! | `member` | a guest of a drain, as it is shown and kept |
//! | `stored` | what the store keeps of a drain |
//! | `leaving` | the guests of this host |
//! | `hosts` | the destinations, and the ledger of both |
//! | `rules` | which guests must be on different hosts, and which on one |

mod begin;
pub(crate) mod forget;
mod hosts;
mod leaving;
pub(crate) mod lost;
mod member;
mod owner;
mod plan;
mod rules;
mod sessions;
pub(crate) mod status;
mod stored;
pub(crate) mod undrain;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use linerate_api::{
    DrainBound, DrainDetail, DrainGuest, DrainGuestState, DrainOrder, DrainRequest, DrainState, ErrorBody,
    PlaceAnswer, PlaceHost, PlaceRequest, UndrainDetail, code,
};
use linerate_core::drain::{Judging, Whereabouts};
use linerate_core::fleet::{GuestId, HostId, Request};
use linerate_lock::Mutex;
use linerate_store::StoreError;
use linerate_store::fleet::records::{DrainRecord, DrainState as Stored, HostRecord};
use linerate_store::fleet::{Fleet, FleetError, View};

use crate::agent::Agent;
use crate::clock::unix_ms;
use crate::faults;
use crate::libvirt::Move;
use crate::outgoing::Outgoing;

pub(crate) use begin::begin;
use hosts::{Destination, Place, SOURCE};
use leaving::Found;
use member::{Decided, Member};
use owner::{Begin, Owner, PlaceResult};
pub(crate) use plan::plan;
use rules::Rules;
use stored::{Kept, is_of_cordon, of_record, order};

/// An order to a drain is taken within this: its thread waits for the store at most.
const STEER_MAX: Duration = Duration::from_secs(20);
/// A drain that cannot be taken up is tried again after this.
const RESUME_AGAIN: Duration = Duration::from_secs(1);
/// Drains that are shown, the open one included.
const SHOWN: usize = 50;

/// What the owner of a drain receives.
enum Input {
    /// What the operator wants; answered when it is written.
    Steer(DrainOrder, Sender<()>),
    Begun(GuestId, u64, Arc<Outgoing>),
    DomainBegun(GuestId, u64, Arc<Move>),
    /// Of the session with this number.
    Session(GuestId, u64, sessions::Report),
    /// To the question with this number.
    Placed(u64, Vec<Destination>, Vec<(GuestId, PlaceResult)>),
    /// A guest has arrived, and its reservation is given up or stays for now; the destinations, if they were asked.
    Arrived(GuestId, Option<Vec<Destination>>),
    /// The destinations as they are now; none if that could not be found out.
    Hosts(Option<Vec<Destination>>),
    /// A migration failed, and its destination was asked, as after the session with this number.
    Judged(GuestId, u64, Judging, Box<Destination>),
    /// The store failed before destinations were found for these, as the question with this number asked.
    NotPlaced(u64, Vec<(GuestId, Vec<HostId>)>, String),
    Found(GuestId, Whereabouts),
}

/// A drain that this agent owns.
struct Drain {
    inbox: Sender<Input>,
    detail: Mutex<DrainDetail>,
}

/// The drain of this host, if one is open.
#[derive(Default)]
pub(crate) struct Drains {
    open: Mutex<Option<Arc<Drain>>>,
    /// The last undrain of this process, which may go on. Whoever watches it takes this lock: it is not held while the
    /// store is asked.
    undrain: Mutex<Option<UndrainDetail>>,
    /// Held while a drain or an undrain begins, or a guest is dismissed: at most one of them changes what comes back to
    /// this host. Taken before the other locks.
    changing: Mutex<()>,
    /// Migrations of domains that left, and that undrains of this process have brought back: once each.
    back: Mutex<BTreeSet<String>>,
    /// Held while a drain gets its thread: no drain gets two.
    taking: Mutex<()>,
    /// Why the drain that was open when the agent ended is not taken up yet.
    not_taken_up: Mutex<Option<String>>,
    /// An undrain waits so long for a host that does not answer at first; none: as long as for any that is silent.
    /// Tests do not.
    silent_max: Option<Duration>,
}

type Answer<T> = Result<T, ErrorBody>;

fn refused(text: impl Into<String>, hint: impl Into<String>) -> ErrorBody {
    ErrorBody::new(code::REFUSED, text).with_hint(hint)
}

fn sorted(mut guests: Vec<DrainGuest>) -> Vec<DrainGuest> {
    guests.sort_by(|a, b| (&a.guest, &a.uuid).cmp(&(&b.guest, &b.uuid)));
    guests
}

/// An error of the store, for the operator whose order it kept from being carried out.
pub(crate) fn of_fleet(error: &FleetError, agent: &Agent) -> ErrorBody {
    match error {
        FleetError::Draining { .. } => refused(
            format!("{error}; nothing was changed"),
            "`linerate drain status` shows it, `linerate drain abort` ends it",
        ),
        FleetError::Store(StoreError::Unknown(_)) => {
            ErrorBody::new("journal_failed", format!("the store fails: {error}; it may have been changed"))
                .with_hint(agent.fleet.hint())
        }
        FleetError::Store(_) | FleetError::Damaged { .. } => {
            let hint = match (error, agent.fleet.shared().is_some()) {
                (FleetError::Damaged { .. }, true) => {
                    "start the release of the agent that wrote the entry, or remove the entry with etcdctl"
                }
                (FleetError::Damaged { .. }, false) => {
                    "start the release of the agent that wrote it; or stop the agent and move fleet.redb under \
                     state_dir away, which has the cordon and the drains of this host"
                }
                _ => agent.fleet.hint(),
            };
            ErrorBody::new("journal_failed", format!("the store fails: {error}; nothing was changed"))
                .with_hint(hint)
        }
        FleetError::NameTaken(_) | FleetError::NotRegistered(_) => refused(
            format!("{error}; nothing was changed"),
            "`linerate fleet status` shows when this host takes part in its fleet; try again then",
        ),
        _ => refused(error.to_string(), ""),
    }
}

// ---- look ----

/// What a drain would begin with.
struct Ready {
    source: HostRecord,
    members: Vec<Member>,
    destinations: Vec<Destination>,
    rules: Rules,
    /// Guests that are being migrated, or wait for recovery or an operator.
    unsettled: BTreeSet<String>,
    arriving: BTreeSet<String>,
    unseen: leaving::Unseen,
    warnings: Vec<String>,
}

/// Looks at this host and asks the destinations. Nothing is changed.
async fn look(agent: &Arc<Agent>, request: &DrainRequest) -> Answer<Ready> {
    let own = agent.config.name.clone();
    if let Some(other) = request.host.as_ref().filter(|host| **host != own) {
        let text = format!("this is host {own}: its agent does not drain host {other}; nothing was begun");
        return Err(refused(text, format!("run the command on {other}")));
    }
    if request.to.is_empty() && agent.fleet.shared().is_none() {
        let text = "no destination is named, and this host shares no store with others";
        return Err(ErrorBody::new(code::USAGE, text)
            .with_hint("name them: --to HOST,HOST; or configure [fleet] in agent.toml"));
    }
    let rules = Rules::new(&agent.config.placement, &request.apart, &request.together)?;
    let Found { guests, unsettled, arriving, unseen } = leaving::look_with_domains(agent, request.mode).await;
    let mut warnings = Vec::new();
    let unknown: Vec<&str> = request
        .keep
        .iter()
        .filter(|name| !unsettled.contains(*name) && !arriving.contains(*name))
        .filter(|name| guests.iter().all(|guest| guest.name != **name))
        .map(String::as_str)
        .collect();
    if !unknown.is_empty() {
        let text =
            format!("--keep names guests that are not here: {}; nothing was begun", unknown.join(", "));
        return Err(ErrorBody::new(code::USAGE, text).with_hint("`linerate vm list` shows those that are"));
    }
    let (asking, to) = (agent.clone(), request.to.clone());
    let leave: Vec<_> = guests.iter().map(|guest| (guest.clone(), Place::Source)).collect();
    let asked = tokio::task::spawn_blocking(move || {
        let mut destinations = hosts::named(&asking, &to, None)?;
        let is_shared = asking.fleet.shared().is_some();
        hosts::look_at_namesakes(is_shared, &asking.security, &mut destinations, &leave);
        Ok((asking.describer.describe(), destinations, measured_before(&asking)))
    });
    let asked: Result<_, FleetError> =
        asked.await.map_err(|error| ErrorBody::new("internal", format!("a defect in the agent: {error}")))?;
    let (source, destinations, known) = asked.map_err(|error| of_fleet(&error, agent))?;
    if destinations.is_empty() {
        let text = "the fleet has no other host, and nothing was begun";
        return Err(refused(text, "`linerate fleet hosts` shows those that are known"));
    }
    let mut destinations = distinct(destinations, &own, &mut warnings)?;
    destinations.iter_mut().for_each(|one| one.measured = known.get(one.name()).copied());
    let here: Vec<String> =
        guests.iter().map(|guest| &guest.name).chain(&unsettled).chain(&arriving).cloned().collect();
    names_are_right(request, &rules, &here, &destinations)?;
    let members = guests.into_iter().map(Member::new).collect();
    Ok(Ready { source, members, destinations, rules, unsettled, arriving, unseen, warnings })
}

/// Each name of the operator's lists is that of a guest, and no two guests of this host must be apart and together.
fn names_are_right(
    request: &DrainRequest,
    rules: &Rules,
    here: &[String],
    destinations: &[Destination],
) -> Answer<()> {
    let there: Vec<&HostRecord> = destinations.iter().filter_map(|one| one.record.as_ref()).collect();
    let all = here.iter().chain(there.iter().flat_map(|one| one.guests.values()).map(|guest| &guest.name));
    let all = all.chain(there.iter().flat_map(|one| one.domains.values()));
    let known: BTreeSet<&str> = all.map(String::as_str).collect();
    for (flag, lists) in [("--apart", &request.apart), ("--together", &request.together)] {
        let unknown = rules::unknown(lists, &known);
        if !unknown.is_empty() {
            let text = format!(
                "{flag} names guests that neither this host nor a destination has: {}; nothing was begun",
                unknown.join(", ")
            );
            let hint = "`linerate vm list` shows those of a host";
            return Err(ErrorBody::new(code::USAGE, text).with_hint(hint));
        }
    }
    let Some((one, other)) = rules.contradiction(here) else { return Ok(()) };
    let text = format!("{one} and {other} must be apart and together; nothing was begun");
    Err(ErrorBody::new(code::USAGE, text).with_hint("change the lists: --apart, --together, agent.toml"))
}

/// What earlier drains of this host have measured of each destination; nothing where the store cannot be read.
fn measured_before(agent: &Agent) -> BTreeMap<String, u64> {
    let view = agent.fleet.fleet().and_then(|fleet| fleet.view()).unwrap_or_default();
    let mut drains: Vec<DrainRecord> = view.drains.into_values().map(|drain| drain.record).collect();
    drains.retain(|drain| drain.host == agent.config.name);
    drains.sort_by_key(order);
    let kept = drains.iter().filter_map(|drain| Kept::read(drain).ok());
    kept.flat_map(|kept| kept.takes).collect()
}

/// Each host once, and not this one. Hosts that do not answer stay, as long as one does.
fn distinct(all: Vec<Destination>, own: &str, warnings: &mut Vec<String>) -> Answer<Vec<Destination>> {
    let mut kept: Vec<Destination> = Vec::new();
    for one in all {
        if one.record.is_some() && one.name() == own {
            let text = format!("{} is this host itself; nothing was begun", one.at);
            return Err(ErrorBody::new(code::USAGE, text).with_hint("name other hosts with --to"));
        }
        if let Some(lost) = &one.lost {
            warnings.push(format!("{} does not answer: {lost}", one.name()));
        }
        if !kept.iter().any(|other| other.name() == one.name()) {
            kept.push(one);
        }
    }
    if kept.iter().all(|one| one.record.is_none()) {
        return Err(refused(
            format!("no destination answers, and nothing was begun: {}", warnings.join("; ")),
            "`linerate doctor HOST` shows what is wrong with the links",
        ));
    }
    Ok(kept)
}

/// Starts the thread that owns the drain.
fn own(
    agent: &Arc<Agent>,
    drains: &Drains,
    runtime: tokio::runtime::Handle,
    members: Vec<Member>,
    begin: impl FnOnce(Arc<Drain>) -> Begin,
) -> Answer<()> {
    let (inbox, receiver) = channel();
    let drain = Arc::new(Drain { inbox: inbox.clone(), detail: Mutex::new(nothing()) });
    let begin = begin(drain.clone());
    *drain.detail.lock() = of_record(&begin.record);
    *drains.open.lock() = Some(drain);
    let owning = agent.clone();
    let run = move || Owner::new(owning, runtime, inbox, begin).run(members, &receiver);
    let started = std::thread::Builder::new().name("drain".into()).spawn(run);
    started.map(drop).map_err(|error| {
        // The next start of the agent takes it up.
        ErrorBody::new("internal", format!("the drain was begun, and its thread cannot be started: {error}"))
            .with_hint("restart the agent: it takes the drain up")
    })
}

/// Finds a destination for each member, and returns how many have one. Nothing is reserved.
fn place(ready: &mut Ready, request: &DrainRequest) -> usize {
    let kept = |member: &Member| request.keep.contains(&member.guest.name);
    let guests: Vec<_> = ready.members.iter().map(|member| (member.guest.clone(), Place::Source)).collect();
    let known = hosts::ledger(&ready.source, &ready.destinations, &guests, &ready.rules);
    let ledger = &known.ledger;
    let leave = ready.members.iter().zip(0..).filter(|(member, _)| member.decided.is_none() && !kept(member));
    let request = Request { guests: leave.map(|(_, n)| GuestId(n)).collect(), ..Request::default() };
    let mut placed = 0;
    for (id, found) in ledger.place(&request) {
        let Some(member) = ready.members.get_mut(id.0 as usize) else { continue };
        match found {
            Ok(host) => {
                placed += 1;
                let rate = hosts::takes(ledger, &ready.destinations, host);
                member.to = Some(host);
                member.predicted_ms = Some((member.guest.copy_bytes as f64 / rate * 1e3) as u64);
            }
            Err(_) => {
                member.nowhere =
                    Some(owner::why_nowhere(&known, id, &ready.destinations, None, &request.guests))
            }
        }
    }
    placed
}

fn drain_id() -> String {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        // A host begins at most one drain in a millisecond.
        Err(_) => format!("{:x}", unix_ms()),
    }
}

fn nothing() -> DrainDetail {
    DrainDetail {
        id: String::new(),
        host: String::new(),
        by: String::new(),
        state: DrainState::Running,
        begun_unix_ms: 0,
        ended_unix_ms: None,
        guests: Vec::new(),
        rate_bytes_per_s: 0,
        links_bytes_per_s: 0,
        left_ms: None,
        bound: DrainBound::default(),
        unseen: Vec::new(),
        split: Vec::new(),
        warnings: Vec::new(),
    }
}

// ---- after a restart ----

/// Takes up the drain of this host that was open when the agent ended. It waits for a store that does not answer. It
/// also waits until the lease ends with which an earlier process of this agent owned the drain.
pub(crate) fn resume(agent: &Arc<Agent>, drains: &Arc<Drains>, runtime: tokio::runtime::Handle) {
    let (agent, drains) = (agent.clone(), drains.clone());
    let run = move || {
        let mut reported = String::new();
        while let Err(error) = resume_now(&agent, &drains, runtime.clone()) {
            if reported != error.message {
                tracing::error!(error = error.message, "an open drain of this host is not taken up yet");
                reported = error.message;
                *drains.not_taken_up.lock() = Some(reported.clone());
            }
            std::thread::sleep(RESUME_AGAIN);
        }
        *drains.not_taken_up.lock() = None;
    };
    let _ = std::thread::Builder::new().name("drain-resume".into()).spawn(run);
}

fn resume_now(agent: &Arc<Agent>, drains: &Drains, runtime: tokio::runtime::Handle) -> Answer<()> {
    let fleet = agent.fleet.fleet().map_err(|error| of_fleet(&error, agent))?;
    let view = fleet.view().map_err(|error| of_fleet(&error, agent))?;
    end_renamed(agent, &fleet, &view).map_err(|error| of_fleet(&error, agent))?;
    let Some(id) = view.hosts.get(&agent.config.name).and_then(|host| host.drain.clone()) else {
        return Ok(());
    };
    take_up(agent, drains, runtime, &id)
}

/// A store of one host has no drains of others. One that is open under another name was begun before the host was
/// renamed: nobody carries it on, and what it has reserved would keep its guests from the next drain.
fn end_renamed(agent: &Agent, fleet: &Fleet, view: &View) -> Result<(), FleetError> {
    if agent.fleet.shared().is_some() {
        return Ok(());
    }
    let own = &agent.config.name;
    for (id, drain) in &view.drains {
        let DrainRecord { host, state, .. } = &drain.record;
        if *state != Stored::Ended && host != own {
            let why = format!("host {host} is called {own} now, and its drain was ended: drain {own}");
            lost::end_open(agent, fleet, id, view, why)?;
        }
    }
    // What has ended is this host's by its present name: an undrain brings its guests back.
    fleet.renamed(own)
}

/// Goes on with an open drain of this host, unless this process does already.
fn take_up(agent: &Arc<Agent>, drains: &Drains, runtime: tokio::runtime::Handle, id: &str) -> Answer<()> {
    let _taking = drains.taking.lock();
    if drains.open.lock().as_ref().is_some_and(|open| open.detail.lock().id == id) {
        return Ok(());
    }
    let fleet = agent.fleet.fleet().map_err(|error| of_fleet(&error, agent))?;
    let (ownership, record) = fleet.take_over(id).map_err(|error| of_fleet(&error, agent))?;
    let kept = Kept::read(&record).map_err(|error| {
        ErrorBody::new("journal_failed", format!("drain {id} cannot be read: {}", faults::chain(&error)))
    })?;
    let rules = Rules::new(&agent.config.placement, &kept.request.apart, &kept.request.together)?;
    let mut destinations =
        hosts::named(agent, &kept.request.to, Some(id)).map_err(|error| of_fleet(&error, agent))?;
    destinations.iter_mut().for_each(|one| one.measured = kept.takes.get(one.name()).copied());
    let began = kept.began.as_ref();
    let members =
        stored::guests(&record).into_iter().map(|shown| again(shown, &destinations, began)).collect();
    tracing::info!(drain = id, "the drain goes on");
    let begin = |drain| Begin {
        drain,
        fleet,
        ownership,
        record,
        kept,
        destinations,
        warnings: Vec::new(),
        rules,
        is_again: true,
    };
    own(agent, drains, runtime, members, begin)
}

/// A guest as an earlier process of this agent has left it. `began`: those of which a copy had begun, if that is known.
/// What is shown does not say it of a guest that was looked for after an earlier restart.
fn again(shown: DrainGuest, destinations: &[Destination], began: Option<&BTreeSet<String>>) -> Member {
    use DrainGuestState as S;
    let at = destinations.iter().zip(1..).find(|(one, _)| Some(one.name()) == shown.to.as_deref());
    let decided = (shown.state.is_over() && shown.state != DrainGuestState::Kept).then(|| Decided {
        state: shown.state,
        reason: shown.reason.clone(),
        hint: shown.hint.clone(),
    });
    let may_have_begun = matches!(shown.state, S::Copying | S::Cancelling | S::Recovering);
    let began = began.map_or(may_have_begun, |began| began.contains(&shown.uuid));
    let guest = leaving::Leaving {
        name: shown.guest,
        key: shown.uuid,
        domain: shown.domain,
        memory_bytes: shown.memory_bytes,
        copy_bytes: shown.copy_bytes,
        ..leaving::Leaving::default()
    };
    Member {
        decided,
        to: at.map(|(_, host)| HostId(host)),
        was_to: shown.to,
        migration: shown.migration,
        began,
        predicted_ms: shown.predicted_ms,
        took_ms: shown.took_ms,
        blackout_us: shown.blackout_us,
        earlier: shown.tries,
        ..Member::new(guest)
    }
}

// ---- shown and steered ----

/// Drains that are known, newest first: of this host, or of the whole fleet that shares a store.
pub(crate) fn list(agent: &Agent, drains: &Drains, of_fleet_too: bool) -> Answer<Vec<DrainDetail>> {
    let open = drains.open.lock().as_ref().map(|drain| drain.detail.lock().clone());
    let view = agent.fleet.fleet().and_then(|fleet| fleet.view());
    let mut all: Vec<((u64, u64), DrainDetail)> = match view {
        Ok(view) => view.drains.values().map(|one| (order(&one.record), of_record(&one.record))).collect(),
        // The one that runs is known without the store.
        Err(_) if open.is_some() && !of_fleet_too => Vec::new(),
        Err(error) => return Err(of_fleet(&error, agent)),
    };
    if let Some(why) = drains.not_taken_up.lock().as_ref() {
        let waits = |one: &DrainDetail| one.host == agent.config.name && !one.is_over();
        for (_, one) in all.iter_mut().filter(|(_, one)| waits(one)) {
            one.warnings.push(format!("this agent has not taken the drain up yet: {why}"));
        }
    }
    if let Some(open) = open {
        all.retain(|(_, one)| one.id != open.id);
        all.push(((u64::MAX, u64::MAX), open));
    }
    if of_fleet_too {
        // Each host numbers its own.
        all.sort_by_key(|(_, one)| Reverse((one.ended_unix_ms.is_none(), one.begun_unix_ms)));
    } else {
        all.retain(|(_, one)| one.host == agent.config.name);
        all.sort_by_key(|(order, _)| Reverse(*order));
    }
    all.truncate(SHOWN);
    Ok(all.into_iter().map(|(_, one)| one).collect())
}

fn unknown(id: &str) -> ErrorBody {
    ErrorBody::new(code::DRAIN_UNKNOWN, format!("there is no drain {id} on this host"))
        .with_hint("`linerate drain status` shows the last one")
}

/// The drain `id` with all its guests; an error if no drain has this id.
pub(crate) fn show(agent: &Agent, drains: &Drains, id: &str) -> Answer<DrainDetail> {
    match list(agent, drains, false)?.into_iter().find(|one| one.id == id) {
        Some(found) => Ok(found),
        // Of another host that shares the store.
        None => list(agent, drains, true)?.into_iter().find(|one| one.id == id).ok_or_else(|| unknown(id)),
    }
}

/// Pauses, resumes or aborts a drain. Returns when that is written.
pub(crate) fn steer(agent: &Agent, drains: &Drains, id: &str, order: DrainOrder) -> Answer<DrainDetail> {
    let found = show(agent, drains, id)?;
    let open = drains.open.lock().clone();
    let open = open.filter(|drain| drain.detail.lock().id == id);
    if found.host != agent.config.name {
        let text = format!("drain {id} empties host {}; nothing was changed", found.host);
        return Err(refused(text, format!("run the command on {}", found.host)));
    }
    if found.is_over() {
        return Err(ErrorBody::new(code::TOO_LATE, format!("drain {id} is over")));
    }
    let Some(drain) = open else {
        if order == DrainOrder::Abort && end_unreadable(agent, drains, id)? {
            return show(agent, drains, id);
        }
        let text = format!("drain {id} is not taken up yet by this agent; nothing was changed");
        return Err(refused(text, "`linerate drain status` says what it waits for; try again"));
    };
    let (done, answer) = channel();
    let sent = drain.inbox.send(Input::Steer(order, done));
    if sent.is_err() || answer.recv_timeout(STEER_MAX).is_err() {
        return Err(not_written(agent, id, order, drain.detail.lock().state));
    }
    show(agent, drains, id)
}

/// The drain has not said that the store has the order. `now`: what the drain does.
fn not_written(agent: &Agent, id: &str, order: DrainOrder, now: DrainState) -> ErrorBody {
    let followed = match order {
        DrainOrder::Pause => DrainState::Paused,
        DrainOrder::Resume => DrainState::Running,
        DrainOrder::Abort => DrainState::Aborting,
    };
    if now != followed {
        let text = format!("drain {id} has not answered: it may have done what was asked");
        return ErrorBody::new("timed_out", text).with_hint("see `linerate drain status`");
    }
    let text = format!(
        "drain {id} does what was asked, and the store has not taken the order: if the agent ends before that, the \
         drain goes on as if it had not been given"
    );
    ErrorBody::new("timed_out", text).with_hint(agent.fleet.hint())
}

/// Ends a drain of this host that nobody can carry on, as its settings cannot be read. False if they can be.
fn end_unreadable(agent: &Agent, drains: &Drains, id: &str) -> Answer<bool> {
    let _taking = drains.taking.lock();
    let end = || -> Result<bool, FleetError> {
        let fleet = agent.fleet.fleet()?;
        let Some(error) = fleet.drain(id)?.and_then(|record| Kept::read(&record).err()) else {
            return Ok(false);
        };
        let why =
            format!("the drain's settings could not be read, and it was aborted: {}", faults::chain(&error));
        lost::end_open(agent, &fleet, id, &fleet.view()?, why)?;
        Ok(true)
    };
    end().map_err(|error| of_fleet(&error, agent))
}

/// Where a guest can go.
pub(crate) async fn explain(agent: &Arc<Agent>, request: PlaceRequest) -> Answer<PlaceAnswer> {
    let PlaceRequest { guest, to, apart, together } = request;
    let asked = DrainRequest { to, apart, together, ..DrainRequest::default() };
    let Ready { source, members, destinations, rules, .. } = look(agent, &asked).await?;
    let guests: Vec<_> = members.iter().map(|member| (member.guest.clone(), Place::Source)).collect();
    let at = guests.iter().position(|(one, _)| one.name == guest || one.key == guest);
    let Some(at) = at else {
        let text = format!("no guest {} is here, or it is just being migrated", guest);
        return Err(
            ErrorBody::new("guest_unknown", text).with_hint("`linerate vm list` shows those that are")
        );
    };
    let known = hosts::ledger(&source, &destinations, &guests, &rules);
    let ledger = &known.ledger;
    let id = GuestId(u32::try_from(at).unwrap_or(u32::MAX));
    let own = members.get(at).and_then(|member| member.guest.cannot.clone()).map(|(why, _)| why);
    // One that cannot move keeps those here that must be together with it.
    let cannot = |one: &GuestId| members.get(one.0 as usize).is_some_and(|member| member.decided.is_some());
    let group = ledger.group_of(id);
    let leave: Vec<GuestId> = group.iter().filter(|one| !cannot(one)).copied().collect();
    let placed = ledger.place(&Request { guests: leave.clone(), ..Request::default() });
    let placed = placed.into_iter().find(|(one, _)| *one == id).and_then(|(_, found)| found.ok());
    let others = group.into_iter().filter(|one| *one != id);
    let together = others.filter_map(|one| Some(members.get(one.0 as usize)?.guest.name.clone())).collect();
    let name = |host: HostId| destinations.get(hosts::index(host)).map(|one| one.name().to_owned());
    let hosts = destinations.iter().zip(1..).zip(hosts::why(&known, id, &destinations, &leave)).map(
        |((one, n), obstacles)| PlaceHost {
            host: one.name().to_owned(),
            free_bytes: ledger.free_bytes(HostId(n)),
            links_bytes_per_s: ledger.links(SOURCE, HostId(n)).1 as u64,
            obstacles: own.iter().cloned().chain(obstacles).collect(),
        },
    );
    let best = placed.filter(|_| own.is_none()).and_then(name);
    Ok(PlaceAnswer { guest, best, together, hosts: hosts.collect() })
}

#[cfg(test)]
mod tests;
