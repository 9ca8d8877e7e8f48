//! Follows a migration to its end, and what Ctrl-C does meanwhile.

use std::time::{Duration, Instant};

use linerate_agent::libvirt::left_alone;
use linerate_api::{
    Client, ClientError, DomainEvent, ErrorBody, Event, EventKind, EventStream, MigrationId,
    MigrationOutcome, MigrationState, MigrationSummary, Mode, Report, code,
};
use tokio::task::JoinHandle;
use tokio::time::{Interval, interval};

use super::Display;
use super::domain::Arrived;
use super::plain::is_carried;
use super::view::View;
use crate::context::Context;
use crate::exit::{self, Exit};
use crate::failure::Failure;
use crate::interrupts::Interrupts;
use crate::render::format::clean;
use crate::render::report::report;

const REDRAW: Duration = Duration::from_millis(100);
/// How often it is seen whether the migration is in doubt.
const DOUBT_LOOK: Duration = Duration::from_secs(5);
/// The same once nothing is carried any more.
const DOUBT_LOOK_NEAR: Duration = Duration::from_secs(1);
/// The agent answers this question at once.
const DOUBT_ANSWER: Duration = Duration::from_secs(1);
/// A command does not wait longer for a migration that is in doubt. The agent goes on asking.
const DOUBT_MAX: Duration = Duration::from_secs(60);
/// A command that ends waits so long until the agent has the request to cancel, and its answer.
const CANCEL_MAX: Duration = Duration::from_secs(2);

/// A migration to watch, and how.
pub struct Start {
    pub id: MigrationId,
    /// What is known of it.
    pub view: View,
    /// Show nothing but errors.
    pub quiet: bool,
    /// Ask it to stop at once.
    pub cancel: bool,
    /// One that was noted already cancels it.
    pub interrupts: Interrupts,
}

struct End {
    outcome: MigrationOutcome,
    error: Option<Box<ErrorBody>>,
    report: Option<Box<Report>>,
    /// Whether the last event was written.
    output: Result<(), Failure>,
}

/// A migration that was watched to its end.
pub struct Ended {
    pub outcome: MigrationOutcome,
    /// How the command ends that moves the guest.
    pub exit: Result<Exit, Failure>,
    /// All of the output was written. If not, standard error says so, or `exit` does.
    pub is_written: bool,
    /// Why the agent did not take the request to cancel, unless it came too late.
    pub not_cancelled: Option<Failure>,
}

/// A domain of libvirt.
struct Domain {
    uuid: String,
    direct: bool,
    /// Shown at the very end.
    arrived: Option<(Event, Arrived)>,
}

/// What may happen next.
enum Next {
    Event(Result<Option<Event>, ClientError>),
    Interrupt,
    CancelAnswered(Option<ClientError>),
    Tick,
}

/// The answer of the agent that was asked to cancel.
type Cancelling = JoinHandle<Result<MigrationSummary, ClientError>>;

/// A migration being watched.
struct Watch<'a> {
    context: &'a Context,
    id: MigrationId,
    display: Display,
    /// If it is one of libvirt.
    domain: Option<Domain>,
    events: EventStream,
    interrupts: Interrupts,
    ticks: Interval,
    cancel: Option<Cancelling>,
    cancelled: bool,
    not_cancelled: Option<Failure>,
    doubt: Doubt,
}

/// What is known of a migration that is in doubt.
struct Doubt {
    looked: Instant,
    since: Option<Instant>,
    /// The line that was printed last.
    shown: Option<String>,
    /// The guest is to be committed, or was.
    is_near: bool,
}

impl Doubt {
    fn new() -> Doubt {
        Doubt { looked: Instant::now(), since: None, shown: None, is_near: false }
    }

    /// Whether the agent is to be asked now.
    fn is_due(&self) -> bool {
        self.looked.elapsed() >= if self.is_near { DOUBT_LOOK_NEAR } else { DOUBT_LOOK }
    }
}

/// Follows a migration to its end and shows it. The first Ctrl-C cancels the migration, the second stops watching.
pub async fn watch(context: &Context, start: Start) -> Result<Ended, Failure> {
    let quiet = start.quiet;
    let mut watch = Watch::new(context, start).await?;
    match watch.run().await {
        Ok(Some(end)) => {
            let (outcome, not_cancelled) = (end.outcome, watch.not_cancelled);
            let (exit, is_written) = match watch.domain {
                Some(domain) => finish_domain(context, watch.display, domain, quiet, end),
                None => finish(context, watch.display, quiet, end),
            };
            Ok(Ended { outcome, exit, is_written, not_cancelled })
        }
        Ok(None) => {
            watch.display.close(false, context);
            let hint = format!("attach again with `linerate migration attach {}`", watch.id);
            Err(Failure::new(Exit::NotWatched, "no longer watching; the agent goes on by itself", hint))
        }
        Err(failure) => {
            let lost = matches!(failure.exit, Exit::NotWatched | Exit::Unreachable);
            let alone = if lost { watch.left_alone(failure.message()).await } else { None };
            hand_over(&mut watch.cancel).await;
            watch.display.close(false, context);
            Err(alone.unwrap_or(failure))
        }
    }
}

impl<'a> Watch<'a> {
    async fn new(context: &'a Context, start: Start) -> Result<Watch<'a>, Failure> {
        let Start { id, view, quiet, cancel, mut interrupts } = start;
        // A Ctrl-C of the time in which the migration was asked for is obeyed first.
        let cancelled = cancel || interrupts.take_noted();
        let mut cancelling = cancelled.then(|| begin_cancel(context, &id));
        let hint = attach_hint(&id);
        let asking =
            async { context.client.events(&id).await.map_err(|error| Failure::of_lost(error, &hint)) };
        let events = match interrupts.answer(asking, &hint, context).await {
            Ok(events) => events,
            Err(failure) => {
                hand_over(&mut cancelling).await;
                return Err(failure);
            }
        };
        let mut watch = Watch {
            context,
            id,
            display: Display::new(context, view, quiet),
            domain: None,
            events,
            interrupts,
            ticks: interval(REDRAW),
            cancel: cancelling,
            cancelled,
            not_cancelled: None,
            doubt: Doubt::new(),
        };
        if cancelled {
            watch.display.cancelling(context);
        }
        Ok(watch)
    }

    /// The end, or none if the operator stopped watching.
    async fn run(&mut self) -> Result<Option<End>, Failure> {
        loop {
            match self.next().await {
                Next::Event(Ok(Some(event))) => {
                    if self.is_held(&event) {
                        continue;
                    }
                    if let EventKind::Progress(progress) = &event.kind {
                        self.doubt.is_near = is_carried(progress.step);
                    }
                    let output = self.display.event(&event, self.context);
                    if let EventKind::Finished { outcome, error, report } = event.kind {
                        self.hear_of_cancel().await;
                        return Ok(Some(End { outcome, error, report, output }));
                    }
                    output.map_err(|failure| failure.while_watching(attach_hint(&self.id)))?;
                }
                Next::Event(Ok(None)) => return Err(ClientError::Cut { id: self.id.clone() }.into()),
                Next::Event(Err(error)) => return Err(Failure::of_lost(error, attach_hint(&self.id))),
                Next::Interrupt if self.cancelled => return Ok(None),
                Next::Interrupt => self.begin_cancel(),
                Next::CancelAnswered(error) => self.cancel_answered(error),
                Next::Tick => {
                    self.display.tick();
                    self.look_for_doubt().await?;
                }
            }
        }
    }

    fn cancel_answered(&mut self, error: Option<ClientError>) {
        let Some(error) = error else { return };
        self.display.print_error(&clean(&format!("it cannot be cancelled: {error}")), self.context);
        if matches!(&error, ClientError::Agent { body, .. } if body.code != code::TOO_LATE) {
            self.not_cancelled = Some(error.into());
        }
    }

    /// A migration may end before the answer to the request to cancel it is here.
    async fn hear_of_cancel(&mut self) {
        if self.cancel.is_some()
            && let Ok(error) = tokio::time::timeout(CANCEL_MAX, answer(&mut self.cancel)).await
        {
            self.cancel_answered(error);
        }
    }

    /// A migration in doubt ends when the destination answers or an operator decides, which may be never: the command
    /// says what is waited for, again when that changes, and ends after [`DOUBT_MAX`].
    async fn look_for_doubt(&mut self) -> Result<(), Failure> {
        if !self.doubt.is_due() {
            return Ok(());
        }
        self.doubt.looked = Instant::now();
        let asked = tokio::time::timeout(DOUBT_ANSWER, self.context.client.migration(&self.id)).await;
        let Ok(Ok(found)) = asked else { return Ok(()) };
        let note = clean(&found.summary.note.unwrap_or_default());
        let line = match found.summary.state {
            MigrationState::InDoubt => Some(format!("in doubt: {note}")),
            MigrationState::Recovering => Some(format!("not done yet: {note}")),
            _ => None,
        };
        if let Some(text) = line.as_ref().filter(|_| line != self.doubt.shown) {
            self.display.print_line(text, self.context);
        }
        self.doubt.shown = line;
        if found.summary.state != MigrationState::InDoubt {
            self.doubt.since = None;
            return Ok(());
        }
        let since = self.doubt.since.get_or_insert_with(Instant::now).elapsed();
        if since < DOUBT_MAX {
            return Ok(());
        }
        let text = format!(
            "the migration is in doubt for {} s, and this command waits no longer: {note}",
            since.as_secs()
        );
        let hint =
            format!("the agent goes on asking; attach again with `linerate migration attach {}`", self.id);
        Err(Failure::new(Exit::InDoubt, text, hint))
    }

    /// Every branch can be dropped while it waits without losing anything.
    async fn next(&mut self) -> Next {
        tokio::select! {
            event = self.events.next() => Next::Event(event),
            () = self.interrupts.next() => Next::Interrupt,
            error = answer(&mut self.cancel) => Next::CancelAnswered(error),
            _ = self.ticks.tick() => Next::Tick,
        }
    }

    /// Looks for what is to be known of a domain. That it arrived is shown after the last event.
    fn is_held(&mut self, event: &Event) -> bool {
        match (&event.kind, &mut self.domain) {
            (EventKind::Domain(DomainEvent::Mode { mode, uuid, .. }), domain) => {
                let direct = *mode == Mode::Direct;
                *domain = Some(Domain { uuid: uuid.clone(), direct, arrived: None });
                false
            }
            (EventKind::Domain(DomainEvent::Completed { domain: name, to, state, job }), Some(domain)) => {
                let (name, to, state) = (name.clone(), to.clone(), state.clone());
                let arrived = Arrived { domain: name, to, state, job: job.clone() };
                domain.arrived = Some((event.clone(), arrived));
                true
            }
            _ => false,
        }
    }

    /// Asks libvirt what became of the domain, as the agent cannot. None if it is no domain, or if the agent is there.
    async fn left_alone(&mut self, lost: &str) -> Option<Failure> {
        // The libvirt of this host knows nothing of it.
        let Domain { uuid, direct, .. } =
            self.domain.as_ref().filter(|_| self.context.connected.is_none())?;
        let goes_on = |state| matches!(state, MigrationState::Running | MigrationState::Cancelling);
        if self.context.client.migration(&self.id).await.is_ok_and(|found| goes_on(found.summary.state)) {
            return None;
        }
        let (display, context) = (&mut self.display, self.context);
        let body = left_alone(uuid, *direct, lost, |text| display.print_line(text, context)).await;
        Some(Failure::of_body(exit::of_body(&body), &body))
    }

    fn begin_cancel(&mut self) {
        self.cancelled = true;
        self.display.cancelling(self.context);
        self.cancel = Some(begin_cancel(self.context, &self.id));
    }
}

fn begin_cancel(context: &Context, id: &MigrationId) -> Cancelling {
    let (client, id): (Client, MigrationId) = (context.client.clone(), id.clone());
    tokio::spawn(async move { client.cancel(&id).await })
}

/// Waits until the agent has the request to cancel, if there is one: it ends with the command.
async fn hand_over(cancel: &mut Option<Cancelling>) {
    if cancel.is_some() {
        let _ = tokio::time::timeout(CANCEL_MAX, answer(cancel)).await;
    }
}

/// The answer to a cancel in progress, once; never, if none is.
async fn answer(cancel: &mut Option<Cancelling>) -> Option<ClientError> {
    let Some(handle) = cancel else { return std::future::pending().await };
    let answered = handle.await;
    *cancel = None;
    answered.ok().and_then(Result::err)
}

/// How the command ends, and whether all of its output was written.
fn finish(context: &Context, display: Display, quiet: bool, end: End) -> (Result<Exit, Failure>, bool) {
    let exit = exit::of_outcome(end.outcome, end.error.as_deref());
    display.close(exit == Exit::Ok && end.report.is_some(), context);
    let output = end.output.and_then(|()| print_report(end.report.as_deref(), quiet, context));
    let failed = || Err(Failure::of_outcome(end.outcome, end.error.as_deref()));
    let ended = if exit == Exit::Ok { Ok(exit) } else { failed() };
    // The guest of a dry run has not moved.
    let moved = end.outcome == MigrationOutcome::Completed;
    let (unsaid, is_written) = (if moved { Exit::MovedWithFault } else { Exit::Failed }, output.is_ok());
    (Failure::of_ended(ended, output, unsaid, context), is_written)
}

fn print_report(figures: Option<&Report>, quiet: bool, context: &Context) -> Result<(), Failure> {
    match figures {
        Some(figures) if !quiet && !context.json => {
            context.print(&report(figures, context.out.width, context.out.paint))
        }
        _ => Ok(()),
    }
}

/// The same for a domain: its state at the destination is said last, and an error always.
fn finish_domain(
    context: &Context,
    display: Display,
    domain: Domain,
    quiet: bool,
    end: End,
) -> (Result<Exit, Failure>, bool) {
    let Some((event, arrived)) = domain.arrived else { return finish(context, display, quiet, end) };
    display.close(end.report.is_some(), context);
    let print = || match (context.json, quiet) {
        (true, _) => context.print_json_line(&event),
        (false, true) => Ok(()),
        (false, false) => {
            print_report(end.report.as_deref(), quiet, context).and_then(|()| arrived.print(context))
        }
    };
    let output = end.output.and_then(|()| print());
    let ended = match (end.outcome, &end.error) {
        (MigrationOutcome::Completed, None) => Ok(Exit::Ok),
        (_, Some(body)) => Err(Failure::of_body(Exit::MovedWithFault, body)),
        (_, None) => Err(Failure::new(
            Exit::MovedWithFault,
            format!(
                "{} is {} at {}, but its migration did not end well",
                arrived.domain, arrived.state, arrived.to
            ),
            "see the agents' logs on both hosts",
        )),
    };
    let is_written = output.is_ok();
    (Failure::of_ended(ended, output, Exit::MovedWithFault, context), is_written)
}

fn attach_hint(id: &MigrationId) -> String {
    format!("the migration goes on; attach with `linerate migration attach {id}`")
}
