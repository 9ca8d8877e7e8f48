//! One question of another agent, and its answer.
//!
//! In plain text any program that reaches the agent's port may ask. So no answer may harm others: probes go only to
//! addresses on a network that this host shares by one of its listening addresses. An echo never answers with more than
//! it got, and only to a peer that knows its token. Loads and their number are capped.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use linerate_api::{AuditAction, AuditResult};
use linerate_core::{Code, Fault, Side, Step};
use linerate_fabric::model::Network;
use linerate_fabric::probe::ask::{AskError, QUESTION_BYTES_MAX, QUESTION_WAIT, receive_at_most, send};
use linerate_fabric::probe::{Answer, Change, Changed, Depth, Question, SentBack, Target, load, run};
use linerate_net::tcp::Stream;
use linerate_net::tcp::exchange::ExchangeError;
use linerate_net::tcp::listen::Accepted;
use linerate_trust::roles::Permission;
use linerate_wire::frame::Welcome;
use linerate_wire::negotiate;

use super::{Doctor, inventory_here, rdma};
use crate::audit::Asked;
use crate::faults::chain;
use crate::not_taken::no_common_version;
use crate::permission;
use crate::seats::{NO_SEAT, Seat};
use crate::security::PeerName;

/// Targets of one question.
const TARGETS_MAX: usize = 1024;
/// Links that are probed at the same time, without load.
const AT_ONCE: usize = 16;
/// Loads that are taken at a time.
const SINKS_MAX: usize = 64;
/// Why no more are taken.
pub(super) const SINKS_FULL: &str = "loads are taken already";
/// How long an inventory waits for others. Who asks waits no longer than a minute for both.
const INVENTORY_TURN: Duration = Duration::from_secs(30);
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// One host asks for probes at a time.
pub(super) const BUSY: &str = "this host probes for another host; try again in some seconds";

/// What others want that is not the doctor's to do.
pub struct Doing<C, S> {
    /// Does what the other host wants changed here.
    pub change: C,
    /// Moves a guest back: its session, its UUID if it is a domain of libvirt, and the port of the other host's agent.
    pub send_back: S,
}

/// Why a connection with a question was not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    /// The peer gets no answer.
    #[error("{}", no_common_version())]
    Version,
    /// Questions at a time are capped, for each host and in total. The peer has this answer.
    #[error("{NO_SEAT}")]
    Questions,
    /// The answer to HELLO could not be sent.
    #[error(transparent)]
    Welcome(#[from] ExchangeError),
    /// The question did not come, or was not understood.
    #[error(transparent)]
    Question(#[from] AskError),
}

/// Why a load was not received.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error("{SINKS_MAX} {SINKS_FULL}")]
    Loads,
    #[error(transparent)]
    Cut(AskError),
}

/// Takes the connection, answers its one question. What was asked.
pub fn serve<C, S>(
    doctor: &Doctor,
    accepted: Accepted,
    asker: &PeerName,
    doing: Doing<C, S>,
) -> Result<Asked, NotTaken>
where
    C: FnOnce(Change) -> Changed,
    S: FnOnce(&str, Option<&str>, u16) -> SentBack,
{
    let hello = &accepted.hello;
    let Some(version) = negotiate(hello.version_min, hello.version_max) else {
        return Err(NotTaken::Version);
    };
    let peer = accepted.peer;
    let Some(seat) = doctor.questions.take(asker, peer) else {
        let why = NotTaken::Questions;
        accepted.refuse(Fault::new(Code::GuestBusy, Step::Authorise, Side::Destination, why.to_string()))?;
        return Err(why);
    };
    let stream = accepted.welcome(Welcome { version, control_received: 0 })?;
    let question: Question =
        receive_at_most(QUESTION_BYTES_MAX, &stream, peer, Instant::now() + QUESTION_WAIT)?;
    let needed = permission::of_question(&question, doctor.is_migrating());
    // A guest that goes back has a line of its own, as a migration.
    let only_looks = needed == Permission::Look || matches!(question, Question::SendBack { .. });
    let change = match &question {
        Question::Change { change } => serde_json::to_string(change).ok(),
        _ => None,
    };
    let permitted = doctor.security.permit(asker, needed);
    let (result, why) = serve_question(doctor, (&stream, peer, asker), seat, (question, permitted), doing);
    let action = if change.is_some() { AuditAction::Ports } else { AuditAction::Doctor };
    let reason = match (why, change) {
        (Some(why), Some(change)) => Some(format!("{why}: {change}")),
        (why, change) => why.or(change),
    };
    Ok(Asked { action, result, only_looks, reason })
}

/// What became of the question, and why it was refused or failed.
type Became = (AuditResult, Option<String>);

fn serve_question<C, S>(
    doctor: &Doctor,
    (stream, peer, asker): (&Stream, SocketAddr, &PeerName),
    seat: Seat,
    (question, permitted): (Question, Result<(), Fault>),
    doing: Doing<C, S>,
) -> Became
where
    C: FnOnce(Change) -> Changed,
    S: FnOnce(&str, Option<&str>, u16) -> SentBack,
{
    let is_denied = permitted.is_err();
    let answer = match (question, permitted) {
        // It looks at the permission itself, and answers in the form of changes.
        (Question::Change { change: wanted }, _) => {
            Answer::Changed { changed: Box::new((doing.change)(*wanted)) }
        }
        (_, Err(denied)) => Answer::Refused { why: denied.detail },
        (Question::Sink, Ok(())) => {
            // Loads are counted by themselves.
            drop(seat);
            return match take_load(doctor, stream, peer) {
                Ok(()) => (AuditResult::Done, None),
                Err(error) => (AuditResult::Failed, Some(chain(&error))),
            };
        }
        (Question::SendBack { session, domain, port }, Ok(())) => {
            Answer::SendBack { state: (doing.send_back)(&session, domain.as_deref(), port) }
        }
        (question @ Question::Inventory { .. }, Ok(())) => {
            match doctor.inventories.wait(asker, peer, INVENTORY_TURN) {
                Some(_turn) => answer(doctor, question),
                None => Answer::Refused {
                    why: "this host makes inventories for other questions; try again in some seconds".into(),
                },
            }
        }
        (question, Ok(())) => answer(doctor, question),
    };
    let became = became(&answer, is_denied);
    if let Err(error) = send(stream, &answer, peer, Instant::now() + ANSWER_WAIT) {
        tracing::warn!(%peer, error = chain(&error), "an answer was not sent");
        // What was changed stays changed.
        if became.0 == AuditResult::Done && !matches!(answer, Answer::Changed { .. }) {
            return (AuditResult::Failed, Some(chain(&error)));
        }
    }
    became
}

fn became(answer: &Answer, is_denied: bool) -> Became {
    let (is_denied, why) = match answer {
        Answer::Refused { why } => (is_denied, why),
        Answer::Changed { changed } => match &**changed {
            Changed::Failed(error) => (error.code == "not_authorised", &error.message),
            _ => return (AuditResult::Done, None),
        },
        Answer::SendBack { state: SentBack::Failed(error) } => (false, &error.message),
        _ => return (AuditResult::Done, None),
    };
    let result = if is_denied { AuditResult::Refused } else { AuditResult::Failed };
    (result, Some(why.clone()))
}

/// The answer to any question but a load or a change.
pub(super) fn answer(doctor: &Doctor, question: Question) -> Answer {
    match question {
        Question::Inventory { watch_ms, names } => {
            Answer::Inventory(Box::new(inventory_here(doctor, Duration::from_millis(watch_ms), names)))
        }
        Question::Echo { for_ms } => {
            match doctor.echo(&doctor.config.listen, Duration::from_millis(for_ms)) {
                Ok(echoing) => Answer::Echo(echoing),
                Err(error) => Answer::Refused { why: chain(&error) },
            }
        }
        Question::Probe { targets, depth } => probe(doctor, &targets, depth),
        Question::Host => (doctor.describe)(),
        Question::Change { .. } => Answer::Refused { why: "a change needs a connection of its own".into() },
        Question::Sink => Answer::Refused { why: "a load needs a connection of its own".into() },
        Question::SendBack { .. } => Answer::Refused { why: "this host asks others for its guests".into() },
    }
}

fn probe(doctor: &Doctor, targets: &[Target], depth: Depth) -> Answer {
    let Some(_one_at_a_time) = doctor.probing.try_lock() else {
        return Answer::Refused { why: BUSY.into() };
    };
    if targets.len() > TARGETS_MAX {
        return Answer::Refused { why: format!("more than {TARGETS_MAX} targets") };
    }
    if let Some(stranger) = targets.iter().find(|target| !may_probe(doctor, target)) {
        return Answer::Refused {
            why: format!("{} is on no network that this host listens on", stranger.echo),
        };
    }
    let one = |target: &Target| {
        let mut probe = run::probe(target, depth, doctor.security.tls());
        rdma::probe(doctor, target, depth, &mut probe);
        probe
    };
    // Datagrams over several links do not measure each other; loads would.
    let at_once = if depth == Depth::Short { AT_ONCE } else { 1 };
    let mut probes = Vec::with_capacity(targets.len());
    for some in targets.chunks(at_once) {
        probes.extend(thread::scope(|scope| {
            let running: Vec<_> = some.iter().map(|target| scope.spawn(move || one(target))).collect();
            let joined = running.into_iter();
            let done = joined.map(|one| one.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause)));
            done.collect::<Vec<_>>()
        }));
    }
    Answer::Probes { probes }
}

/// From an address that the agent listens at, to one of the same network.
fn may_probe(doctor: &Doctor, target: &Target) -> bool {
    if !doctor.config.listen.iter().any(|address| address.ip() == target.from.ip) {
        return false;
    }
    let interfaces = linerate_net::interfaces::list().unwrap_or_default();
    let own = interfaces.iter().flat_map(|one| &one.addresses).find(|address| address.ip == target.from.ip);
    let network = own.map(|address| Network::of(address.ip, address.prefix));
    network.is_some_and(|network| {
        [target.echo.ip(), target.agent.ip(), target.to.ip].into_iter().all(|ip| network.contains(ip))
    })
}

fn take_load(doctor: &Doctor, stream: &Stream, peer: SocketAddr) -> Result<(), LoadError> {
    let taken = doctor.sinks.fetch_add(1, Ordering::Relaxed);
    let result = if taken < SINKS_MAX {
        load::sink(stream, peer).map_err(LoadError::Cut)
    } else {
        let why = LoadError::Loads;
        let refused = Answer::Refused { why: why.to_string() };
        let sent = send(stream, &refused, peer, Instant::now() + ANSWER_WAIT);
        Err(sent.err().map_or(why, LoadError::Cut))
    };
    doctor.sinks.fetch_sub(1, Ordering::Relaxed);
    result
}

#[cfg(test)]
mod tests {
    use linerate_api::{AuditEntry, AuditRequest, LinkRequest};
    use linerate_fabric::probe::ask::ask;
    use linerate_net::tcp::connect::Route;
    use linerate_net::tcp::listen::{ListenOptions, Listener};

    use super::*;
    use crate::testing::agent;

    const LONG: Duration = Duration::from_secs(60);

    /// The lines about these questions, in plain text.
    fn lines_about(questions: &[Question]) -> Vec<AuditEntry> {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let accepting = agent.clone();
        let accept = move |accepted| accepting.accept(accepted);
        let listener =
            Listener::start(&[([127, 0, 0, 1], 0).into()], ListenOptions::default(), accept).unwrap();
        let all = AuditRequest { limit: 10, ..AuditRequest::default() };
        for (number, question) in questions.iter().enumerate() {
            let route = Route { local: None, device: None, remote: listener.addresses()[0] };
            let _ = ask(&route, question, LONG, LONG, None);
            let end = Instant::now() + LONG;
            // It is written after the answer.
            while agent.audit.read(&all).unwrap().entries.len() <= number {
                assert!(Instant::now() < end, "no line");
                thread::sleep(Duration::from_millis(5));
            }
        }
        agent.audit.read(&all).unwrap().entries
    }

    #[test]
    fn what_is_refused_or_fails_is_written_so_with_the_port_and_its_values() {
        let link = LinkRequest { port: "eth7".into(), mtu: Some(9000), ..LinkRequest::default() };
        let change = Question::Change { change: Box::new(Change::Link(link)) };
        let load = Question::Probe { targets: Vec::new(), depth: Depth::Short };
        let back = Question::SendBack { session: "no number".into(), domain: None, port: 1 };
        let lines = lines_about(&[change, load, back]);
        let audited: Vec<_> = lines.iter().map(|line| (line.action, line.result)).collect();
        let expected = [
            (AuditAction::Ports, AuditResult::Refused),
            (AuditAction::Doctor, AuditResult::Done),
            (AuditAction::Doctor, AuditResult::Failed),
        ];
        assert_eq!(audited, expected);
        let reason = lines[0].reason.as_deref().unwrap();
        assert!(reason.contains("does not take settings"), "{reason}");
        assert!(reason.contains("eth7") && reason.contains("9000"), "{reason}");
        assert!(lines[2].reason.is_some());
    }
}
