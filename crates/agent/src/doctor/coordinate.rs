//! A request of the local API: inventories of all hosts at the same time, then probes between every two of them. One
//! pair follows the other, so that they do not measure each other.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use linerate_api::{AnsweredHost, DoctorAnswer, DoctorRequest, ErrorBody, Probes, UnreachableHost};
use linerate_fabric::checks::unequal;
use linerate_fabric::model::{End, FailedLoad, Incast, Inventory, Matrix, Probe, Survey};
use linerate_fabric::probe::ask::AskError;
use linerate_fabric::probe::{Answer, Depth, Echoing, Question, Target};

use super::pairs::targets;
use super::serve::{BUSY, SINKS_FULL};
use super::sides::{NotAnswered, Side, find};
use super::{Doctor, WATCH_MAX};
use crate::faults::chain;

/// Hosts of one request.
const HOSTS_MAX: usize = 64;
/// How long an inventory may take besides the watching: on a host whose QEMUs do not answer, some times as long as for
/// one of them.
const INVENTORY_WAIT: Duration = Duration::from_secs(60);
/// How long the probes of one question may take: every link dead, far or with black holes included.
const PROBES_WAIT: Duration = Duration::from_secs(120);

/// A host that probes for another one is asked so often, and so long apart.
const BUSY_TRIES: u32 = 5;
const BUSY_PAUSE: Duration = Duration::from_secs(3);
/// Targets of one question, without load.
const AT_A_TIME: usize = 128;

/// A host that answered.
struct Host {
    side: Side,
    inventory: Inventory,
}

/// Does what was asked.
pub fn examine(doctor: &Arc<Doctor>, request: &DoctorRequest) -> Result<DoctorAnswer, ErrorBody> {
    if request.hosts.len() >= HOSTS_MAX {
        let message = format!("{} hosts are more than {HOSTS_MAX} at a time", request.hosts.len() + 1);
        let hint = "collect inventories with `linerate doctor --inventory` and compare them with --from";
        return Err(ErrorBody::new(linerate_api::code::BAD_REQUEST, message).with_hint(hint));
    }
    let Inventories { hosts, answered, repeated, unreachable } = inventories(doctor, request);
    let probes = match request.probes {
        Probes::None => Vec::new(),
        Probes::Short => probe_at_once(&hosts),
        Probes::Full => probe_in_turn(&hosts),
    };
    let inventories = hosts.iter().map(|host| host.inventory.clone()).collect();
    let here = hosts.first().map(|host| host.inventory.host.clone());
    let matrix = Matrix { probed: request.probes != Probes::None, probes, incasts: Vec::new() };
    let mut survey = Survey { hosts: inventories, here, matrix, switches: Vec::new() };
    if request.probes == Probes::Full {
        again(&hosts, &mut survey);
        survey.matrix.incasts = incasts(&hosts, &survey.matrix.probes);
    }
    let survey = serde_json::to_value(&survey)
        .map_err(|error| ErrorBody::new("internal", format!("a defect in the agent: {error}")))?;
    Ok(DoctorAnswer { survey, answered, repeated, unreachable })
}

/// A host with its name, or why it could not be asked.
type Found = Result<(Side, Answer), UnreachableHost>;

/// What became of the names of a request.
struct Inventories {
    /// Hosts that answered, this one first.
    hosts: Vec<Host>,
    /// The others of them, by the names that the operator gave.
    answered: Vec<AnsweredHost>,
    /// Names that led to one of these hosts once more.
    repeated: Vec<AnsweredHost>,
    unreachable: Vec<UnreachableHost>,
}

fn inventories(doctor: &Arc<Doctor>, request: &DoctorRequest) -> Inventories {
    let question = Question::Inventory {
        watch_ms: request.watch_ms,
        names: request.hosts.iter().map(|host| host_part(host)).collect(),
    };
    let wait = inventory_wait(request.watch_ms);
    let found: Vec<Found> = thread::scope(|scope| {
        let here =
            scope.spawn(|| Ok((Side::Here(doctor.clone()), super::serve::answer(doctor, question.clone()))));
        let ask = |name: &String| {
            find(name, &question, wait, &doctor.security)
                .map_err(|error| UnreachableHost { host: name.clone(), why: chain(&error) })
        };
        let asking: Vec<_> = request.hosts.iter().map(|name| scope.spawn(move || ask(name))).collect();
        let all = std::iter::once(here).chain(asking);
        all.map(|one| one.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause))).collect()
    });
    sorted(found, &request.hosts)
}

/// How long a host's inventory is waited for. No host watches its counters longer than [`WATCH_MAX`].
fn inventory_wait(watch_ms: u64) -> Duration {
    INVENTORY_WAIT + Duration::from_millis(watch_ms).min(WATCH_MAX)
}

/// This host's answer comes first, then those of the named ones. None of them is left out.
fn sorted(found: Vec<Found>, named: &[String]) -> Inventories {
    let (mut hosts, mut names_given, mut unreachable) = (Vec::<Host>::new(), Vec::new(), Vec::new());
    let mut again: Vec<(String, usize)> = Vec::new();
    let names = std::iter::once(None).chain(named.iter().map(Some));
    for (one, named) in found.into_iter().zip(names) {
        match one {
            Ok((side, Answer::Inventory(inventory))) => {
                match hosts.iter().position(|known| same(&known.inventory, &inventory)) {
                    // A host that was named twice, or this one.
                    Some(known) => again.extend(named.map(|name| (name.clone(), known))),
                    None => {
                        names_given.push(named.cloned());
                        hosts.push(Host { side, inventory: *inventory });
                    }
                }
            }
            Ok(_) => {
                let why = chain(&NotAnswered::Unexpected);
                unreachable.extend(named.map(|name| UnreachableHost { host: name.clone(), why }));
            }
            Err(one) => unreachable.push(one),
        }
    }
    make_names_unique(&mut hosts);
    let called = |named: String, host: &Host| AnsweredHost { named, host: host.inventory.host.clone() };
    let known = hosts.iter().zip(names_given);
    let answered = known.filter_map(|(host, named)| Some(called(named?, host))).collect();
    let repeated = again.into_iter().filter_map(|(named, at)| Some(called(named, hosts.get(at)?))).collect();
    Inventories { hosts, answered, repeated, unreachable }
}

/// Two answers of one agent. Older agents are known by name only.
fn same(one: &Inventory, other: &Inventory) -> bool {
    let instance = |host: &Inventory| host.agent.as_ref().and_then(|agent| agent.instance.clone());
    match (instance(one), instance(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one.host == other.host,
    }
}

/// Hosts of one name get names of their own.
fn make_names_unique(hosts: &mut [Host]) {
    let mut survey = Survey::of(hosts.iter().map(|host| host.inventory.clone()).collect());
    survey.make_names_unique();
    for (host, inventory) in hosts.iter_mut().zip(survey.hosts) {
        host.inventory = inventory;
    }
}

/// `beta` of `beta:7979`; addresses have nothing to resolve but do no harm.
fn host_part(name: &str) -> String {
    let colons = name.matches(':').count();
    let host = if colons == 1 { name.split(':').next().unwrap_or(name) } else { name };
    host.trim_matches(['[', ']']).to_owned()
}

/// One link after the other: loads would measure each other.
fn probe_in_turn(hosts: &[Host]) -> Vec<Probe> {
    let mut probes = Vec::new();
    for to in hosts {
        for from in hosts.iter().filter(|from| from.inventory.host != to.inventory.host) {
            // Asked for each host anew: an echo is shorter than a large room takes.
            let echoing = echo(to, hosts.len());
            let (links, lost) = links(from, to, &echoing);
            let links = links.into_iter().flat_map(|link| probe(from, vec![link], Depth::Full));
            let mut own: Vec<Probe> = links.collect();
            if let Ok(echoing) = &echoing {
                mark_received(to, echoing, &mut own);
            }
            probes.extend(own.into_iter().chain(lost));
        }
    }
    probes
}

/// Datagrams only: all hosts send at the same time, each to all others.
fn probe_at_once(hosts: &[Host]) -> Vec<Probe> {
    let echoing: Vec<Result<Echoing, NotAnswered>> = at_once(hosts, |host| echo(host, hosts.len()));
    let mut probes: Vec<Probe> = at_once(hosts, |from| {
        let others = hosts.iter().zip(&echoing).filter(|(to, _)| to.inventory.host != from.inventory.host);
        let (mut all, mut probes): (Vec<Target>, Vec<Probe>) = (Vec::new(), Vec::new());
        for (to, echoing) in others {
            let (links, lost) = links(from, to, echoing);
            all.extend(links);
            probes.extend(lost);
        }
        probes.extend(all.chunks(AT_A_TIME).flat_map(|some| probe(from, some.to_vec(), Depth::Short)));
        probes
    })
    .into_iter()
    .flatten()
    .collect();
    for (to, before) in hosts.iter().zip(&echoing) {
        before.iter().for_each(|before| mark_received(to, before, &mut probes));
    }
    probes
}

/// What is to be probed from one host to another, and what cannot be, as that one answers no datagrams.
fn links(from: &Host, to: &Host, echoing: &Result<Echoing, NotAnswered>) -> (Vec<Target>, Vec<Probe>) {
    let all = |echoing: &Echoing| targets(&from.inventory, &to.inventory, echoing);
    let found = echoing.as_ref().map(all).unwrap_or_default();
    if !found.is_empty() {
        return (found, Vec::new());
    }
    let listen = to.inventory.agent.iter().flat_map(|agent| &agent.listen);
    let addresses = listen.filter_map(|address| address.parse().ok()).collect();
    let why = match echoing {
        Ok(_) => "it answers no datagrams there".to_owned(),
        Err(error) => chain(error),
    };
    let why = format!("{}: {why}", to.inventory.host);
    let wanted = all(&Echoing { token: [0; 16], addresses, sources: Vec::new() });
    (found, wanted.iter().map(|target| not_sent(target, &why)).collect())
}

/// A probe that was not sent, with the reason.
fn not_sent(target: &Target, why: &str) -> Probe {
    let mut probe = Probe::new(target.from.clone(), target.to.clone());
    probe.failure = Some(why.to_owned());
    probe
}

fn at_once<'a, T: Send>(hosts: &'a [Host], ask: impl Fn(&'a Host) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let asking: Vec<_> = hosts.iter().map(|host| scope.spawn(|| ask(host))).collect();
        asking
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause)))
            .collect()
    })
}

/// Marks, of probes to a host that had no reply, whether the requests arrived. That shows which direction is at fault.
fn mark_received(to: &Host, before: &Echoing, probes: &mut [Probe]) {
    let silent = |probe: &&mut Probe| probe.to.host == to.inventory.host && probe.reachable == Some(false);
    if !probes.iter_mut().any(|probe| silent(&probe)) {
        return;
    }
    let Some(now) = echo(to, 1).ok().filter(|now| now.token == before.token) else { return };
    for probe in probes.iter_mut().filter(silent) {
        let count = |echoing: &Echoing| echoing.requests(probe.from.ip, probe.to.ip);
        probe.received = Some(count(&now) > count(before));
    }
}

/// Throughputs that do not fit each other are measured again, in turn with what they are compared with. One time that
/// fits is enough: a machine that does other work measures less now and then, a slow link always.
fn again(hosts: &[Host], survey: &mut Survey) {
    const TIMES: usize = 2;
    for _ in 0..TIMES {
        for (slow, other) in unequal(survey) {
            for number in [slow, other] {
                let Some(known) = survey.matrix.probes.get(number) else { continue };
                let rate = load_again(hosts, known);
                if let Some(probe) = survey.matrix.probes.get_mut(number)
                    && let Some(rate) = rate
                {
                    probe.throughput_mbps = Some(rate);
                }
            }
        }
    }
}

fn load_again(hosts: &[Host], known: &Probe) -> Option<u64> {
    let host = |name: &str| hosts.iter().find(|host| host.inventory.host == name);
    let (from, to) = (host(&known.from.host)?, host(&known.to.host)?);
    let mut targets = targets(&from.inventory, &to.inventory, &echo(to, 1).ok()?);
    targets.retain(|target| target.from == known.from && target.to == known.to);
    probe(from, targets, Depth::Load).into_iter().next()?.throughput_mbps
}

fn echo(host: &Host, hosts: usize) -> Result<Echoing, NotAnswered> {
    let for_ms = u64::try_from(PROBES_WAIT.as_millis()).unwrap_or(u64::MAX).saturating_mul(hosts as u64);
    match host.side.ask(Question::Echo { for_ms }, INVENTORY_WAIT) {
        Ok(Answer::Echo(echoing)) => Ok(echoing),
        other => {
            let text = other.as_ref().map_err(|error| chain(error));
            tracing::warn!(host = host.inventory.host, other = ?text, "does not answer datagrams");
            Err(other.err().unwrap_or(NotAnswered::Unexpected))
        }
    }
}

/// Sends probes from a host. If it cannot send them, each has the error. One that is busy is asked again.
fn probe(from: &Host, targets: Vec<Target>, depth: Depth) -> Vec<Probe> {
    if targets.is_empty() {
        return Vec::new();
    }
    let ask = || match from.side.ask(Question::Probe { targets: targets.clone(), depth }, PROBES_WAIT) {
        Ok(Answer::Probes { probes }) => Ok(probes),
        other => Err(other.err().unwrap_or(NotAnswered::Unexpected)),
    };
    let why = match until_not_busy(ask, BUSY_PAUSE) {
        Ok(probes) => return probes,
        Err(error) => chain(&error),
    };
    targets.iter().map(|target| not_sent(target, &why)).collect()
}

fn until_not_busy<T>(ask: impl Fn() -> Result<T, NotAnswered>, pause: Duration) -> Result<T, NotAnswered> {
    let mut answer = ask();
    for _ in 1..BUSY_TRIES {
        if !answer.as_ref().is_err_and(is_busy) {
            break;
        }
        thread::sleep(pause);
        answer = ask();
    }
    answer
}

fn is_busy(error: &NotAnswered) -> bool {
    match error {
        NotAnswered::Refused { why } | NotAnswered::Ask(AskError::Refused { why, .. }) => why.contains(BUSY),
        _ => false,
    }
}

/// All hosts send to one, on each network that at least two others share with it.
fn incasts(hosts: &[Host], probes: &[Probe]) -> Vec<Incast> {
    let mut incasts = Vec::new();
    for to in hosts {
        let ends: Vec<_> = probes.iter().filter(|probe| probe.to.host == to.inventory.host).collect();
        let mut addresses: Vec<_> = ends.iter().map(|probe| &probe.to).collect();
        addresses.sort();
        addresses.dedup();
        for end in addresses {
            let alone: Vec<&&Probe> =
                ends.iter().filter(|probe| probe.to == *end && probe.throughput_mbps.is_some()).collect();
            if alone.len() >= 2 {
                incasts.push(incast(hosts, to, end, &alone));
            }
        }
    }
    incasts.retain(|incast: &Incast| !incast.from.is_empty() || !incast.failed.is_empty());
    incasts
}

fn incast(hosts: &[Host], to: &Host, end: &End, alone: &[&&Probe]) -> Incast {
    let echoing = echo(to, 1).unwrap_or_else(|_| Echoing {
        token: [0; 16],
        addresses: Vec::new(),
        sources: Vec::new(),
    });
    let fastest = alone.iter().filter_map(|probe| probe.throughput_mbps).max();
    let results: Vec<Option<Probe>> = thread::scope(|scope| {
        let load = |probe: &Probe| {
            let from = hosts.iter().find(|host| host.inventory.host == probe.from.host)?;
            let mut targets = targets(&from.inventory, &to.inventory, &echoing);
            targets.retain(|target| target.from == probe.from && target.to == probe.to);
            self::probe(from, targets, Depth::Load).into_iter().next()
        };
        let running: Vec<_> = alone.iter().map(|probe| scope.spawn(move || load(probe))).collect();
        running
            .into_iter()
            .map(|one| one.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause)))
            .collect()
    });
    together(end, fastest, results.into_iter().flatten())
}

/// What several loads moved. One that a host has no time or no room for says nothing of the network.
fn together(to: &End, alone_mbps: Option<u64>, loads: impl Iterator<Item = Probe>) -> Incast {
    let (from, throughput_mbps, failed) = (Vec::new(), Vec::new(), Vec::new());
    let mut incast = Incast { from, to: to.clone(), throughput_mbps, alone_mbps, failed };
    for Probe { from, throughput_mbps, failure, .. } in loads {
        match (throughput_mbps, failure) {
            (Some(rate), _) => {
                incast.from.push(from);
                incast.throughput_mbps.push(rate);
            }
            (None, Some(why)) if !why.contains(BUSY) && !why.contains(SINKS_FULL) => {
                incast.failed.push(FailedLoad { from, why });
            }
            (None, _) => {}
        }
    }
    incast
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::security::Security;

    #[test]
    fn a_host_that_answers_something_else_is_not_left_out() {
        let side = || Side::There("127.0.0.1:9".parse().unwrap(), Security::insecure());
        let here = Ok((side(), Answer::Inventory(Box::new(Inventory::new("a")))));
        let all = sorted(vec![here, Ok((side(), Answer::Ready))], &["b".to_owned()]);
        assert_eq!((all.hosts.len(), all.unreachable.len()), (1, 1));
        assert_eq!(all.unreachable[0].host, "b");
    }

    /// A name service that is wrong must not make a host look examined.
    #[test]
    fn a_name_that_leads_to_a_host_that_is_known_already_is_reported() {
        let found = |name: &str| -> Found {
            let side = Side::There("127.0.0.1:9".parse().unwrap(), Security::insecure());
            Ok((side, Answer::Inventory(Box::new(Inventory::new(name)))))
        };
        let named = ["b", "c", "b.example"].map(str::to_owned);
        let all = sorted(vec![found("a"), found("b"), found("a"), found("b")], &named);
        let pairs = |all: &[AnsweredHost]| -> Vec<String> {
            all.iter().map(|one| format!("{} {}", one.named, one.host)).collect()
        };
        assert_eq!(all.hosts.len(), 2);
        assert_eq!(pairs(&all.answered), ["b b"]);
        assert_eq!(pairs(&all.repeated), ["c a", "b.example b"]);
    }

    /// A sender that the others push aside must not make the rest look good.
    #[test]
    fn a_load_that_fails_beside_others_is_not_left_out() {
        let end =
            |host: &str, last| End { host: host.into(), port: "l0".into(), ip: [10, 0, 0, last].into() };
        let load = |host: &str, last, rate, why: &str| {
            let mut probe = Probe::new(end(host, last), end("a", 1));
            (probe.throughput_mbps, probe.failure) =
                (rate, Some(why.to_owned()).filter(|why| !why.is_empty()));
            probe
        };
        let full = format!("64 {SINKS_FULL}");
        let loads = vec![
            load("b", 2, Some(9000), ""),
            load("c", 3, None, "no load over l0: it was cut"),
            load("d", 4, None, &full),
            load("e", 5, None, BUSY),
        ];
        let incast = together(&end("a", 1), Some(9400), loads.into_iter());
        assert_eq!((incast.from, incast.throughput_mbps), (vec![end("b", 2)], vec![9000]));
        let why = "no load over l0: it was cut".to_owned();
        assert_eq!(incast.failed, [FailedLoad { from: end("c", 3), why }]);
    }

    #[test]
    fn no_host_is_waited_for_without_a_limit_whatever_is_asked() {
        assert_eq!(inventory_wait(0), INVENTORY_WAIT);
        assert_eq!(inventory_wait(u64::MAX), INVENTORY_WAIT + WATCH_MAX);
    }

    #[test]
    fn a_host_that_probes_for_another_one_is_asked_again() {
        let asked = Cell::new(0);
        let answers = |busy: u32, why: &str| {
            asked.set(0);
            let ask = || {
                asked.set(asked.get() + 1);
                if asked.get() > busy {
                    return Ok(());
                }
                Err(NotAnswered::Refused { why: format!("beta: {why}") })
            };
            until_not_busy(ask, Duration::ZERO).is_ok()
        };
        assert!(answers(2, BUSY) && asked.get() == 3);
        assert!(!answers(u32::MAX, BUSY) && asked.get() == BUSY_TRIES);
        assert!(!answers(1, "not permitted") && asked.get() == 1);
    }
}
