//! The migrations of a drain: each is prepared, copied or ended as the controller orders, and reports to the owner.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use linerate_api::{
    AuditAction, AuditCaller, AuditEntry, AuditResult, ErrorBody, EventKind, GuestState as ApiState,
    LibvirtRequest, MigrateRequest, MigrationOutcome, Side as ApiSide,
};
use linerate_core::drain::Sample;
use linerate_core::fleet::GuestId;
use linerate_core::source::Ending;
use linerate_core::{Code, Fault, GuestState, Side, Step};
use linerate_guest::procfs::ProcessIdentity;
use linerate_guest::registry::GuestRecord;

use super::Input;
use super::leaving::Leaving;
use crate::agent::Agent;
use crate::audit;
use crate::libvirt::{self, Move, domains};
use crate::outgoing::{self, News, Outgoing};

/// How often the copy of a domain is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// How a migration ended.
#[derive(Debug)]
pub(super) enum End {
    Moved,
    /// It is at the destination, and something failed after that, or it is paused there and was not.
    MovedWithFault(Fault),
    /// The guest is at the source.
    Stays(Fault),
    /// The guest has ended or left: while its session was open if there is a fault, otherwise before.
    Gone(Option<Fault>),
    /// Recovery, or libvirt, has not found out yet where the guest is.
    Unknown(Fault),
}

/// What a migration of a drain reports.
pub(super) enum Report {
    /// It has this name.
    Named(String),
    /// Its incoming QEMU waits, and links carry.
    Ready,
    Sample(Sample),
    /// The guest has left, and its migration uses no link any more.
    Left,
    /// The session has ended, and how.
    Ended(End),
}

enum Kind {
    /// The destination is just being reached.
    Starting,
    Own(Arc<Outgoing>),
    /// libvirt prepares and copies in one: nothing is begun before the copy.
    DomainWaits,
    DomainStarting,
    Domain(Arc<Move>),
}

/// A migration of a drain, until it has reported its end.
pub(super) struct Session {
    /// Another one for each of a drain: late reports of an earlier one are known by it.
    pub number: u64,
    kind: Kind,
    /// It is to end as soon as it can be told.
    cancelled: bool,
    /// It is to copy as soon as it can be told.
    copies: bool,
    request: MigrateRequest,
}

/// What a session needs to report.
#[derive(Clone)]
pub(super) struct Line {
    pub to: Sender<Input>,
    pub guest: GuestId,
    pub number: u64,
}

impl Line {
    fn report(&self, report: Report) {
        // The drain may be over.
        let _ = self.to.send(Input::Session(self.guest, self.number, report));
    }
}

impl Session {
    /// Reaches the destination and prepares; answered by [`Report::Ready`] or [`Report::Ended`]. `process`: the QEMU of
    /// the guest as the drain knows it.
    pub fn prepare(
        agent: &Arc<Agent>,
        line: Line,
        request: MigrateRequest,
        process: Option<ProcessIdentity>,
    ) -> Session {
        let number = line.number;
        if request.libvirt.is_some() {
            line.report(Report::Ready);
            return Session { number, kind: Kind::DomainWaits, cancelled: false, copies: false, request };
        }
        let (agent, asked) = (agent.clone(), request.clone());
        std::thread::spawn(move || begin(&agent, &line, asked, process));
        Session { number, kind: Kind::Starting, cancelled: false, copies: false, request }
    }

    /// The destination was reached.
    pub fn begun(&mut self, outgoing: Arc<Outgoing>) {
        if self.cancelled {
            outgoing.cancel();
        } else if self.copies {
            outgoing.go();
        }
        self.kind = Kind::Own(outgoing);
    }

    /// libvirt was asked to move the domain: if the guest was cancelled meanwhile, so is the move.
    pub fn domain_begun(&mut self, moving: Arc<Move>) {
        if self.cancelled {
            let _ = moving.cancel();
        }
        self.kind = Kind::Domain(moving);
    }

    /// Lets the prepared guest copy; a domain is handed to libvirt.
    pub fn copy(&mut self, agent: &Arc<Agent>, runtime: &tokio::runtime::Handle, line: Line) {
        self.copies = true;
        match &self.kind {
            Kind::Own(outgoing) => outgoing.go(),
            Kind::DomainWaits => {
                self.kind = Kind::DomainStarting;
                runtime.spawn(move_domain(agent.clone(), line, self.request.clone()));
            }
            Kind::Starting | Kind::DomainStarting | Kind::Domain(_) => {}
        }
    }

    /// Has it end; answered by [`Report::Ended`].
    pub fn cancel(&mut self, line: &Line) {
        self.cancelled = true;
        match &self.kind {
            Kind::Own(outgoing) => outgoing.cancel(),
            Kind::Domain(moving) => drop(moving.cancel()),
            Kind::DomainWaits => line.report(Report::Ended(End::Stays(cancelled()))),
            Kind::Starting | Kind::DomainStarting => {}
        }
    }

    /// How long the guest was stopped, in microseconds, once its end was reported.
    pub fn downtime_us(&self) -> Option<u64> {
        let report = match &self.kind {
            Kind::Own(outgoing) => outgoing.detail().report,
            Kind::Domain(moving) => moving.detail().report,
            Kind::Starting | Kind::DomainWaits | Kind::DomainStarting => None,
        };
        Some(report?.blackout?.total_us)
    }
}

fn cancelled() -> Fault {
    Fault::new(Code::Cancelled, Step::Prepare, Side::Source, "")
}

/// Whether the guest of this name has another QEMU than that which the drain has looked at.
fn is_another(agent: &Agent, name: &str, process: Option<ProcessIdentity>) -> bool {
    let here = agent.registry.get(name).ok().filter(GuestRecord::is_alive);
    here.zip(process).is_some_and(|(here, known)| here.process != known)
}

fn begin(agent: &Arc<Agent>, line: &Line, request: MigrateRequest, process: Option<ProcessIdentity>) {
    if is_another(agent, &request.guest, process) {
        // The one that was started since is found, and leaves with the memory and the UUID that it has.
        return line.report(Report::Ended(End::Gone(None)));
    }
    let observing = line.clone();
    let observer = move |news: News| {
        observing.report(match news {
            News::Ready => Report::Ready,
            News::Sample(sample) => Report::Sample(sample),
            News::Left => Report::Left,
            News::Ended(ending) => Report::Ended(end(ending)),
        });
    };
    let (guest, to) = (request.guest.clone(), request.to.clone());
    let observer: outgoing::Observer = Box::new(observer);
    let begun = agent.begin_outgoing(&guest, || outgoing::start_observed(&agent.outgoing, request, observer));
    let line_of = |result, session, reason| AuditEntry {
        guest: Some(guest.clone()),
        to: Some(to.clone()),
        session,
        reason,
        ..audit::entry(AuditAction::MigrationBegin, result, AuditCaller::Agent)
    };
    match begun {
        Ok(outgoing) => {
            agent.audit.record(line_of(AuditResult::Done, Some(outgoing.session.to_string()), None));
            let sent = line.to.send(Input::Begun(line.guest, line.number, outgoing.clone()));
            if sent.is_err() {
                // The drain is over: it has no use for the session.
                outgoing.cancel();
            }
        }
        Err(fault) => {
            agent.audit.record(line_of(AuditResult::Failed, None, Some(fault.to_string())));
            let end = match fault.code {
                Code::GuestGone | Code::GuestUnknown if fault.side == Side::Source => End::Gone(None),
                _ => End::Stays(fault),
            };
            line.report(Report::Ended(end));
        }
    }
}

fn end(ending: Ending) -> End {
    let Ending { fault, guest, unfinished } = ending;
    let Some(fault) = fault else { return End::Moved };
    match guest {
        GuestState::RunsAtDestination
        | GuestState::PausedAtDestination
        | GuestState::StoppedAtDestination => End::MovedWithFault(fault),
        GuestState::Gone => End::Gone(Some(fault)),
        _ if unfinished => End::Unknown(fault),
        GuestState::RunsAtSource | GuestState::PausedAtSource => End::Stays(fault),
        GuestState::InDoubt | GuestState::Unknown => End::Unknown(fault),
    }
}

/// The request for one guest of a drain. A domain is named by its UUID: its name may have become another domain's.
pub(super) fn request(guest: &Leaving, to: &str, asked: &linerate_api::DrainRequest) -> MigrateRequest {
    let name = if guest.domain { &guest.key } else { &guest.name };
    MigrateRequest {
        mode: asked.mode,
        max_blackout_ms: asked.max_blackout_ms,
        throttle: asked.throttle,
        libvirt: guest.domain.then(LibvirtRequest::default),
        ..MigrateRequest::new(name, to)
    }
}

/// Has libvirt move a domain, and follows it.
async fn move_domain(agent: Arc<Agent>, line: Line, request: MigrateRequest) {
    let asked = request.libvirt.clone().unwrap_or_default();
    let uuid = request.guest.clone();
    let begun = libvirt::begin(agent.libvirt(), request, asked).await;
    let moving = match begun {
        Ok(id) => agent.moves.by_id(&id.0),
        // Nothing of it was touched, so nobody else than its operator has stopped it.
        Err(_) if domains::has_stopped(&uuid).await => return line.report(Report::Ended(End::Gone(None))),
        Err(error) => return line.report(Report::Ended(of_error(&error))),
    };
    let Some(moving) = moving else {
        return line.report(Report::Ended(End::Unknown(internal("a migration of a domain was lost"))));
    };
    if line.to.send(Input::DomainBegun(line.guest, line.number, moving.clone())).is_err() {
        let _ = moving.cancel();
    }
    line.report(Report::Named(moving.id().0.clone()));
    let mut before = (Instant::now(), 0u64);
    while !moving.is_over() {
        tokio::time::sleep(LOOK).await;
        let Some(sample) = moving.sample() else { continue };
        let sent = sample.copied_bytes;
        let (then, sent_then) = std::mem::replace(&mut before, (Instant::now(), sent));
        let seconds = then.elapsed().as_secs_f64().max(0.001);
        if sent > sent_then {
            let bytes_per_s = (sent - sent_then) as f64 / seconds;
            line.report(Report::Sample(Sample { bytes_per_s, ..sample }));
        }
    }
    let Some(EventKind::Finished { outcome, error, .. }) = moving.event_log.finished() else { return };
    let end = match (outcome, error) {
        (MigrationOutcome::Completed, _) => End::Moved,
        (MigrationOutcome::Cancelled, _) => End::Stays(cancelled()),
        (_, Some(error)) => of_error(&error),
        (_, None) => End::Unknown(internal("libvirt's migration ended without a reason")),
    };
    line.report(Report::Ended(end));
}

fn internal(text: &str) -> Fault {
    Fault::new(Code::Internal, Step::Copy, Side::Source, text)
}

/// How a domain's migration ended, by the error.
fn of_error(error: &ErrorBody) -> End {
    let side = if error.side == Some(ApiSide::Destination) { Side::Destination } else { Side::Source };
    let code = match error.code.as_str() {
        "cordoned" => Code::Cordoned,
        "guest_busy" => Code::GuestBusy,
        "no_link" => Code::NoLink,
        "not_converging" => Code::NotConverging,
        _ if error.retry_can_help => Code::HypervisorFailed,
        _ => Code::NotMigratable,
    };
    // What is to be seen before anybody moves it again.
    let is_here = matches!(error.guest_state, Some(ApiState::RunsAtSource | ApiState::PausedAtSource));
    let is_final = is_here && !error.retry_can_help && !error.hint.is_empty();
    let detail = if is_final { format!("{}; {}", error.message, error.hint) } else { error.message.clone() };
    let fault = Fault::new(code, Step::Copy, side, detail);
    match error.guest_state {
        Some(
            ApiState::RunsAtDestination | ApiState::PausedAtDestination | ApiState::StoppedAtDestination,
        ) => End::MovedWithFault(fault),
        Some(ApiState::Gone) => End::Gone(Some(fault)),
        Some(ApiState::InDoubt | ApiState::Unknown) => End::Unknown(fault),
        Some(ApiState::RunsAtSource | ApiState::PausedAtSource) | None => End::Stays(fault),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_moved_by_its_uuid_and_a_guest_by_its_name() {
        let guest = |domain| Leaving { name: "web".into(), key: "u1".into(), domain, ..Leaving::default() };
        let asked = |domain| request(&guest(domain), "b", &linerate_api::DrainRequest::default());
        assert_eq!((asked(true).guest.as_str(), asked(true).libvirt.is_some()), ("u1", true));
        assert_eq!((asked(false).guest.as_str(), asked(false).libvirt.is_some()), ("web", false));
    }

    #[test]
    fn a_guest_that_was_started_again_is_not_the_one_that_waited() {
        let dir = tempfile::tempdir().unwrap();
        let agent = crate::testing::agent(&dir, &[]);
        let record = crate::testing::arrived(&agent, i32::try_from(std::process::id()).unwrap());
        agent.registry.put(&record).unwrap();
        let earlier = ProcessIdentity { start_ticks: 0, ..record.process };
        assert!(!is_another(&agent, "g", Some(record.process)) && !is_another(&agent, "g", None));
        let (to, inbox) = std::sync::mpsc::channel();
        let line = Line { to, guest: GuestId(0), number: 1 };
        begin(&agent, &line, MigrateRequest::new("g", "127.0.0.1:1"), Some(earlier));
        let report = inbox.try_recv().unwrap();
        assert!(matches!(report, Input::Session(GuestId(0), 1, Report::Ended(End::Gone(None)))));
    }

    #[test]
    fn a_domain_that_may_run_at_a_silent_destination_too_is_not_moved_on() {
        let error = ErrorBody {
            side: Some(ApiSide::Source),
            guest_state: Some(ApiState::RunsAtSource),
            ..ErrorBody::new("cancelled", "the destination's libvirt does not answer").with_hint("see there")
        };
        let End::Stays(fault) = of_error(&error) else { panic!("it is here") };
        assert_eq!((fault.side, fault.code.retry_can_help()), (Side::Source, false));
        assert_eq!(fault.detail, "the destination's libvirt does not answer; see there");
    }

    #[test]
    fn a_guest_that_ends_while_it_is_moved_has_a_fault() {
        let fault =
            Fault::new(Code::GuestGone, Step::CleanUp, Side::Destination, "it has ended since it ran");
        let ended = end(Ending { fault: Some(fault), guest: GuestState::Gone, unfinished: false });
        assert!(matches!(ended, End::Gone(Some(_))), "{ended:?}");
        let error = ErrorBody {
            guest_state: Some(ApiState::Gone),
            ..ErrorBody::new("libvirt_failed", "it has ended")
        };
        assert!(matches!(of_error(&error), End::Gone(Some(_))));
    }

    #[test]
    fn a_guest_that_arrives_with_a_fault_is_not_just_moved() {
        let ended = |fault: Option<&str>, guest| {
            let fault = fault.map(|text| Fault::new(Code::TimedOut, Step::CleanUp, Side::Source, text));
            end(Ending { fault, guest, unfinished: false })
        };
        for guest in [GuestState::RunsAtDestination, GuestState::PausedAtDestination] {
            // Its operator had paused it before.
            assert!(matches!(ended(None, guest), End::Moved), "{guest:?}");
            assert!(matches!(ended(Some("late"), guest), End::MovedWithFault(_)), "{guest:?}");
        }
        assert!(matches!(ended(Some("no disk"), GuestState::StoppedAtDestination), End::MovedWithFault(_)));
        for guest in [ApiState::RunsAtDestination, ApiState::PausedAtDestination] {
            let text = "it is paused there, and was running here";
            let error = ErrorBody { guest_state: Some(guest), ..ErrorBody::new("libvirt_failed", text) };
            match of_error(&error) {
                End::MovedWithFault(fault) => assert_eq!(fault.detail, text),
                other => panic!("{other:?}"),
            }
        }
    }
}
