//! One question of another agent, and its answer.
//!
//! In plain text any program that reaches the agent's port may ask. So no answer may harm others: probes go only to addresses on a network that this host shares by one of its listening addresses. An
//! echo never answers with more than it got, and only to a peer that knows its token. Loads and their number are
//! capped.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use linerate_fabric::model::Network;
use linerate_fabric::probe::ask::{AskError, QUESTION_WAIT, receive, send};
use linerate_fabric::probe::{Answer, Change, Changed, Depth, Question, SentBack, Target, load, run};
use linerate_net::tcp::Stream;
use linerate_net::tcp::listen::Accepted;
use linerate_wire::frame::Welcome;
use linerate_wire::{VERSION_MAX, VERSION_MIN, negotiate};

use super::{Doctor, inventory_here, rdma};
use crate::faults::chain;
use crate::permission;
use crate::security::PeerName;

/// Targets of one question.
const TARGETS_MAX: usize = 1024;
/// Links that are probed at the same time, without load.
const AT_ONCE: usize = 16;
/// Loads that are taken at a time.
const SINKS_MAX: usize = 64;
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What others want that is not the doctor's to do.
pub struct Doing<C, S> {
    /// Does what the other host wants changed here.
    pub change: C,
    /// Moves a guest back: its session, its UUID if it is a domain of libvirt, and the port of the other host's agent.
    pub send_back: S,
}

/// Takes the connection, answers its one question. The error is a sentence for the log.
pub fn serve<C, S>(
    doctor: &Doctor,
    accepted: Accepted,
    asker: &PeerName,
    doing: Doing<C, S>,
) -> Result<(), String>
where
    C: FnOnce(Change) -> Changed,
    S: FnOnce(&str, Option<&str>, u16) -> SentBack,
{
    let hello = &accepted.hello;
    let Some(version) = negotiate(hello.version_min, hello.version_max) else {
        return Err(format!("no common version in {VERSION_MIN} to {VERSION_MAX}"));
    };
    let peer = accepted.peer;
    let stream = accepted.welcome(Welcome { version, control_received: 0 }).map_err(|error| chain(&error))?;
    serve_question(doctor, &stream, (peer, asker), doing).map_err(|error| chain(&error))
}

fn serve_question<C, S>(
    doctor: &Doctor,
    stream: &Stream,
    (peer, asker): (std::net::SocketAddr, &PeerName),
    doing: Doing<C, S>,
) -> Result<(), AskError>
where
    C: FnOnce(Change) -> Changed,
    S: FnOnce(&str, Option<&str>, u16) -> SentBack,
{
    let question = receive(stream, peer, Instant::now() + QUESTION_WAIT)?;
    let needed = permission::of_question(&question, doctor.is_migrating());
    let permitted = doctor.security.permit(asker, needed);
    let answer = match (question, permitted) {
        // It looks at the permission itself, and answers in the form of changes.
        (Question::Change { change: wanted }, _) => {
            Answer::Changed { changed: Box::new((doing.change)(*wanted)) }
        }
        (_, Err(denied)) => Answer::Refused { why: denied.detail },
        (Question::Sink, Ok(())) => return take_load(doctor, stream, peer),
        (Question::SendBack { session, domain, port }, Ok(())) => {
            Answer::SendBack { state: (doing.send_back)(&session, domain.as_deref(), port) }
        }
        (question, Ok(())) => answer(doctor, question),
    };
    send(stream, &answer, peer, Instant::now() + ANSWER_WAIT)
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
        Question::Host => doctor.describer.answer(),
        Question::Change { .. } => Answer::Refused { why: "a change needs a connection of its own".into() },
        Question::Sink => Answer::Refused { why: "a load needs a connection of its own".into() },
        Question::SendBack { .. } => Answer::Refused { why: "this host asks others for its guests".into() },
    }
}

fn probe(doctor: &Doctor, targets: &[Target], depth: Depth) -> Answer {
    let Some(_one_at_a_time) = doctor.probing.try_lock() else {
        return Answer::Refused {
            why: "this host probes for another host; try again in some seconds".into(),
        };
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

fn take_load(doctor: &Doctor, stream: &Stream, peer: std::net::SocketAddr) -> Result<(), AskError> {
    let taken = doctor.sinks.fetch_add(1, Ordering::Relaxed);
    let result = if taken < SINKS_MAX {
        load::sink(stream, peer)
    } else {
        let why = format!("{SINKS_MAX} loads are taken already");
        send(stream, &Answer::Refused { why }, peer, Instant::now() + ANSWER_WAIT)
    };
    doctor.sinks.fetch_sub(1, Ordering::Relaxed);
    result
}
