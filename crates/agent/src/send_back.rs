//! Guests that another host wants back: they came from it, and a drain of it is undone.
//!
//! The other host names the session in which a guest came. The journal has the host that opened that session, and the
//! process that arrived: no other host gets a guest, and no guest that has become another one. The asker's address is
//! its own word, so the host that answers there must be the asker: a third host may refuse guests of the asker's, and
//! take those of this one.
//!
//! A domain of libvirt need not have come in a session of the journal's. The other host gets it if it may reach this
//! host's libvirt through a tunnel: it could fetch the domain by itself then.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use linerate_api::{ErrorBody, EventKind, MigrateRequest, MigrationOutcome, code};
use linerate_core::drain::Settings;
use linerate_core::journal::DestinationPhase as Phase;
use linerate_core::{Fault, SessionId};
use linerate_fabric::probe::SentBack;
use linerate_guest::registry::Registry;
use linerate_lock::Mutex;

use crate::convert;
use crate::faults::chain;
use crate::journal::{Journal, JournalError, Role, process};
use crate::libvirt::Move;
use crate::outgoing::Outgoing;
use crate::security::PeerName;

/// How often a domain on its way is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Ended ones that are remembered: whoever asked may not have heard the end yet.
const KEPT: usize = 1024;

/// One that is on its way back.
enum Going {
    /// The asker's host is being reached, or libvirt is being asked.
    Beginning,
    Guest(Arc<Outgoing>),
    Domain(Arc<Move>),
    /// It did not begin.
    Refused(Box<ErrorBody>),
}

impl Going {
    fn finished(&self) -> Option<EventKind> {
        match self {
            Going::Beginning => None,
            Going::Guest(one) => one.event_log.finished(),
            Going::Domain(one) => one.event_log.finished(),
            Going::Refused(error) => Some(EventKind::Finished {
                outcome: MigrationOutcome::Failed,
                error: Some(error.clone()),
                report: None,
            }),
        }
    }
}

/// Guests on their way back, by the session in which they came.
#[derive(Default)]
pub(crate) struct SentGuests {
    known: Mutex<BTreeMap<SessionId, Going>>,
}

impl SentGuests {
    /// Begins to move a guest to `to`, the asker's host, or says how far that is.
    pub fn answer(
        &self,
        (journal, registry): (&Journal, &Registry),
        asker: &PeerName,
        (session, to): (SessionId, SocketAddr),
        begin: impl FnOnce(MigrateRequest) -> Result<Arc<Outgoing>, Fault>,
    ) -> SentBack {
        // Reaching the other host may take longer than the asker waits: it asks again meanwhile.
        if let Some(state) = self.begins(session) {
            return state;
        }
        let guest = arrived(journal, registry, session, asker);
        let begun = guest.map_err(|why| refused(&chain(&why))).and_then(|guest| {
            // Where hosts prove who they are, whoever else answers at the asker's address is refused.
            let only_host = asker.as_ref().map(ToString::to_string);
            begin(MigrateRequest { only_host, ..MigrateRequest::new(&guest, to.to_string()) })
                .map_err(|fault| SentBack::Failed(Box::new(convert::error(&fault, None))))
        });
        match begun {
            Ok(outgoing) => {
                self.keep(session, Going::Guest(outgoing));
                SentBack::Moving
            }
            Err(failed) => {
                self.known.lock().remove(&session);
                failed
            }
        }
    }

    fn state(&self, session: SessionId) -> Option<SentBack> {
        let mut known = self.known.lock();
        let finished = known.get(&session)?.finished();
        let is_endless =
            matches!(known.get(&session), Some(Going::Domain(one)) if one.has_copied(copied_max()));
        Some(match finished {
            None => SentBack::Moving,
            Some(EventKind::Finished { outcome: MigrationOutcome::Completed, .. }) => SentBack::Moved,
            Some(other) => {
                known.remove(&session);
                if let EventKind::Finished { outcome: MigrationOutcome::Cancelled, .. } = &other
                    && is_endless
                {
                    return Some(SentBack::Failed(Box::new(endless())));
                }
                let EventKind::Finished { error: Some(error), .. } = other else {
                    return Some(refused("its migration was ended"));
                };
                SentBack::Failed(error)
            }
        })
    }

    /// A domain. How far it is; none if the caller shall begin, and say how that went.
    pub fn answer_domain(&self, session: SessionId) -> Option<SentBack> {
        self.begins(session)
    }

    /// How far it is; none if the caller shall begin: nobody else does from then on.
    fn begins(&self, session: SessionId) -> Option<SentBack> {
        if let Some(state) = self.state(session) {
            return Some(state);
        }
        match self.known.lock().entry(session) {
            Entry::Occupied(_) => Some(SentBack::Moving),
            Entry::Vacant(free) => {
                free.insert(Going::Beginning);
                None
            }
        }
    }

    /// How it went. One that writes faster than it is copied is ended, as in a drain.
    pub fn domain_begun(&self, session: SessionId, begun: Result<Arc<Move>, ErrorBody>) {
        if let Ok(moving) = &begun {
            let moving = moving.clone();
            let watch = std::thread::Builder::new().name("send-back".into());
            let _ = watch.spawn(move || bound(&moving, LOOK));
        }
        let going = begun.map_or_else(|error| Going::Refused(Box::new(error)), Going::Domain);
        self.keep(session, going);
    }

    fn keep(&self, session: SessionId, going: Going) {
        let mut known = self.known.lock();
        if known.len() >= KEPT {
            known.retain(|_, one| one.finished().is_none());
        }
        known.insert(session, going);
    }
}

/// A domain that has copied its memory more often does not converge.
fn copied_max() -> u64 {
    Settings::default().copied_times_max
}

/// Ends a migration that would not end by itself.
fn bound(moving: &Move, pause: Duration) {
    while !moving.is_over() {
        if moving.has_copied(copied_max()) {
            tracing::warn!(id = %moving.id(), guest = moving.guest(), "it does not converge: its migration is ended");
            let _ = moving.cancel();
            return;
        }
        std::thread::sleep(pause);
    }
}

fn endless() -> ErrorBody {
    let text = format!(
        "the domain writes faster than it is copied: its memory was copied more than {} times over. It runs on at this host",
        copied_max()
    );
    ErrorBody::new("not_converging", text)
        .with_hint("undrain again when it writes less, or shut it down and start it at the other host")
}

/// Why a guest does not go back.
#[derive(Debug, thiserror::Error)]
enum NotArrived {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("no guest on this host arrived from that host in this migration")]
    Unknown,
    #[error("{guest} is not here any more: it has ended, or was moved on")]
    Gone { guest: String },
}

/// Name of the guest that came in this session, if it came from the asker and is still here.
fn arrived(
    journal: &Journal,
    registry: &Registry,
    session: SessionId,
    asker: &PeerName,
) -> Result<String, NotArrived> {
    let record = journal.get(session)?.ok_or(NotArrived::Unknown)?;
    let Role::Destination { phase, incoming } = &record.role else { return Err(NotArrived::Unknown) };
    if incoming.peer != *asker || !matches!(phase, Phase::Running | Phase::Finished) {
        return Err(NotArrived::Unknown);
    }
    let here = registry.get(&record.guest).ok().filter(linerate_guest::registry::GuestRecord::is_alive);
    let is_same =
        here.as_ref().zip(incoming.qemu.as_ref()).is_some_and(|(here, came)| process(here) == process(came));
    if !is_same {
        return Err(NotArrived::Gone { guest: record.guest });
    }
    Ok(record.guest)
}

pub(crate) fn parse(text: &str) -> Option<SessionId> {
    let mut bytes = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(SessionId(bytes))
}

/// As libvirt writes it: neither a name nor an ID.
pub(crate) fn is_uuid(text: &str) -> bool {
    const DASHES: [usize; 4] = [8, 13, 18, 23];
    let is =
        |(at, byte): (usize, u8)| if DASHES.contains(&at) { byte == b'-' } else { byte.is_ascii_hexdigit() };
    text.len() == 36 && text.bytes().enumerate().all(is)
}

pub(crate) fn refused(why: &str) -> SentBack {
    let hint = "see `linerate vm list` on that host; move the guest by hand from where it is";
    SentBack::Failed(Box::new(ErrorBody::new(code::REFUSED, why).with_hint(hint)))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use linerate_api::{AdoptGuest, AuditCaller};
    use linerate_core::{Code, Side, Step};
    use linerate_net::tcp::listen::Accepted;
    use linerate_wire::VERSION_MAX;
    use linerate_wire::frame::Welcome;

    use super::*;
    use crate::journal::{IncomingRecord, Record};
    use crate::security::tests::member;
    use crate::testing::{TestQemu, agent, arrived as record_of, authority, listen, secured};

    #[test]
    fn a_guest_goes_back_to_the_host_that_sent_it_and_to_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let mut process = Command::new("sleep").arg("600").spawn().unwrap();
        let mut another = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = |child: &std::process::Child| i32::try_from(child.id()).unwrap();
        let guest = record_of(&agent, pid(&process));
        agent.registry.put(&guest).unwrap();
        let sender: PeerName = Some("alpha".parse().unwrap());
        let put = |session: u8, phase, qemu: &linerate_guest::registry::GuestRecord| {
            let incoming = IncomingRecord {
                peer: sender.clone(),
                qemu: Some(qemu.clone()),
                ..IncomingRecord::default()
            };
            let record = Record::new("g", u64::from(session), Role::Destination { phase, incoming });
            agent.journal.put(SessionId([session; 16]), &record).unwrap();
        };
        put(1, Phase::Finished, &guest);
        put(2, Phase::Loaded, &guest);
        put(3, Phase::Returned, &guest);
        put(4, Phase::Finished, &record_of(&agent, pid(&another)));
        put(5, Phase::Running, &guest);
        let sent = SentGuests::default();
        let ask = |session: u8, asker: &PeerName| {
            let mut begun = None;
            let to = "192.0.2.1:7979".parse().unwrap();
            let session = SessionId([session; 16]);
            let answer = sent.answer((&agent.journal, &agent.registry), asker, (session, to), |request| {
                begun = Some((request.guest, request.to));
                Err(Fault::new(Code::NoLink, Step::Authorise, Side::Source, "nobody is there"))
            });
            let SentBack::Failed(error) = answer else { panic!("{answer:?}") };
            (begun, error.message)
        };
        let expected = Some(("g".to_owned(), "192.0.2.1:7979".to_owned()));
        assert_eq!(ask(1, &sender).0, expected);
        assert_eq!(ask(5, &sender).0, expected);
        for other in [None, Some("beta".parse().unwrap())] {
            assert_eq!(ask(1, &other).0, None, "{other:?} did not send it");
        }
        for never_arrived in [2, 3, 9] {
            let (begun, why) = ask(never_arrived, &sender);
            assert!(
                begun.is_none() && why.contains("no guest on this host arrived"),
                "{never_arrived}: {why}"
            );
        }
        let (begun, why) = ask(4, &sender);
        assert!(begun.is_none() && why.contains("not here any more"), "another process: {why}");
        process.kill().unwrap();
        process.wait().unwrap();
        assert_eq!(ask(1, &sender).0, None, "it has ended");
        another.kill().unwrap();
        another.wait().unwrap();
    }

    /// The asker passes what comes to its port on to that host.
    #[test]
    fn a_guest_does_not_go_to_a_third_host_that_answers_at_the_askers_address() {
        let dir = tempfile::tempdir().unwrap();
        let mut authority = authority(&dir.path().join("authority"));
        let mut made = |name: &str| member(&mut authority, &dir.path().join(name), name, "");
        let (own, third) = (made("own"), made("third"));
        let third = listen(&third, |accepted: Accepted| {
            let _ = accepted.welcome(Welcome { version: VERSION_MAX, control_received: 0 });
        });
        let agent = secured(&dir, &[], own);
        let hand = TestQemu::start(&dir.path().join("g.qmp"), &["-name", "g"]);
        let adopted = AdoptGuest { pid: Some(hand.pid()), ..AdoptGuest::default() };
        crate::guests::adopt(&agent, &adopted).unwrap();
        let (asker, session): (PeerName, _) = (Some("alpha".parse().unwrap()), SessionId([1; 16]));
        let qemu = Some(agent.registry.get("g").unwrap());
        let incoming = IncomingRecord { peer: asker.clone(), qemu, ..IncomingRecord::default() };
        let role = Role::Destination { phase: Phase::Finished, incoming };
        agent.journal.put(session, &Record::new("g", 1, role)).unwrap();
        let to = third.addresses()[0];
        let answer = agent.send_back(&session.to_string(), None, to, (&asker, &AuditCaller::Agent));
        let SentBack::Failed(error) = answer else { panic!("{answer:?}") };
        assert!(error.message.contains("third answered instead of alpha"), "{error:?}");
    }

    #[test]
    fn a_repeated_request_during_the_start_answers_that_it_moves() {
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let mut process = Command::new("sleep").arg("600").spawn().unwrap();
        let guest = record_of(&agent, i32::try_from(process.id()).unwrap());
        agent.registry.put(&guest).unwrap();
        let incoming = IncomingRecord { qemu: Some(guest), ..IncomingRecord::default() };
        let role = Role::Destination { phase: Phase::Finished, incoming };
        let session = SessionId([1; 16]);
        agent.journal.put(session, &Record::new("g", 1, role)).unwrap();
        let sent = SentGuests::default();
        let to = "192.0.2.1:7979".parse().unwrap();
        let nowhere = || Err(Fault::new(Code::NoLink, Step::Authorise, Side::Source, "nobody is there"));
        let known: (&Journal, &Registry) = (&agent.journal, &agent.registry);
        let mut meanwhile = None;
        let first = sent.answer(known, &None, (session, to), |_| {
            meanwhile =
                Some(sent.answer(known, &None, (session, to), |_| panic!("two migrations of one guest")));
            nowhere()
        });
        assert_eq!(meanwhile, Some(SentBack::Moving));
        assert!(matches!(first, SentBack::Failed(_)), "{first:?}");
        let mut is_begun = false;
        sent.answer(known, &None, (session, to), |_| {
            is_begun = true;
            nowhere()
        });
        assert!(is_begun, "it is tried again");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    #[test]
    fn a_domain_goes_only_to_a_host_whose_tunnels_reach_libvirt() {
        const UUID: &str = "0f0e8c9a-0000-4000-8000-000000000001";
        let dir = tempfile::tempdir().unwrap();
        let agent = agent(&dir, &[]);
        let to = "192.0.2.1:7979".parse().unwrap();
        let session = SessionId([7; 16]);
        let asks = |uuid: &str| {
            let asker = (&None, &AuditCaller::Agent);
            let answer = agent.send_back(&session.to_string(), Some(uuid), to, asker);
            let SentBack::Failed(error) = answer else { panic!("{answer:?}") };
            error.message
        };
        assert!(asks(UUID).contains("libvirt-sock is not in tunnel_targets"), "{}", asks(UUID));
        assert!(asks("web").contains("no such UUID"), "{}", asks("web"));
        assert!(is_uuid(UUID));
        for name in ["web", "7", &UUID.replace('-', ""), &UUID.replace('a', "g"), &UUID.replace('-', "0")] {
            assert!(!is_uuid(name), "{name}");
        }
    }

    #[test]
    fn a_domain_begins_once_and_its_failure_is_reported_once() {
        let (sent, session) = (SentGuests::default(), SessionId([7; 16]));
        assert_eq!(sent.answer_domain(session), None);
        assert_eq!(sent.answer_domain(session), Some(SentBack::Moving), "libvirt is still being asked");
        let error = ErrorBody::new("guest_busy", "no");
        sent.domain_begun(session, Err(error.clone()));
        assert_eq!(sent.answer_domain(session), Some(SentBack::Failed(Box::new(error))));
        assert_eq!(sent.answer_domain(session), None, "it is tried again");
    }

    #[test]
    fn a_domain_that_never_converges_is_ended_and_reported() {
        let (sent, session) = (SentGuests::default(), SessionId([7; 16]));
        let domain = crate::journal::MovedDomain {
            id: "1".into(),
            uuid: "0f0e8c9a-0000-4000-8000-000000000001".into(),
            paused: false,
            autostart: false,
            to: "beta".into(),
            remote_socket: String::new(),
            links: Vec::new(),
        };
        let moving = Arc::new(Move::new("web", &domain, None));
        let copied = |bytes: u64| {
            moving.set_job(&[("data_processed".to_owned(), bytes), ("memory_total".to_owned(), 100)].into());
        };
        copied(100 * copied_max());
        sent.domain_begun(session, Ok(moving.clone()));
        assert_eq!(sent.answer_domain(session), Some(SentBack::Moving));
        assert!(!moving.is_asked());
        copied(100 * copied_max() + 1);
        bound(&moving, Duration::from_millis(1));
        assert!(moving.is_asked(), "it is cancelled");
        moving.event_log.publish(EventKind::Finished {
            outcome: MigrationOutcome::Cancelled,
            error: Some(Box::new(ErrorBody::new(code::CANCELLED, "cancelled"))),
            report: None,
        });
        let Some(SentBack::Failed(error)) = sent.answer_domain(session) else { panic!("it has failed") };
        assert_eq!(error.code, "not_converging");
    }

    #[test]
    fn a_session_is_read_as_it_is_shown() {
        let session = SessionId([0xa7; 16]);
        assert_eq!(parse(&session.to_string()), Some(session));
        for wrong in ["", "a7", &"g7".repeat(16), &"a7".repeat(17), &"\u{e9}".repeat(16)] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
