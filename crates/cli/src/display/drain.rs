//! Follows a drain to its end: a picture on a terminal, lines elsewhere, or JSON.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use linerate_api::{DrainDetail, DrainGuest, DrainGuestState};

use super::canvas::Canvas;
use super::patience::Patience;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::interrupts::Interrupts;
use crate::render::drain;
use crate::render::format::{bit_rate, clean, clock_us};

/// How often the agent is asked.
const LOOK: Duration = Duration::from_millis(250);
/// How far apart lines of figures stand, and documents in which nothing but figures changed.
const FIGURES: Duration = Duration::from_secs(2);
/// Wider than this, lines are hard to follow with the eye.
const WIDTH_MAX: usize = 110;
const LOOK_AGAIN: &str = "remove the cause and begin the drain again";
/// What to do about guests that could not be moved.
const SEE_FAILED: &str = "remove the reason of each and begin the drain again";
/// What to do about guests that ended while they were moved.
const SEE_ENDED: &str =
    "see that none of them runs before you start it again; `linerate drain status` has the reasons";
/// What to do about guests that arrived with a fault.
const SEE_EACH: &str = "see that each runs there; `linerate drain status` has the reasons";

enum Display {
    Live(Canvas),
    Plain(Lines),
    Json(Option<Box<DrainDetail>>, Instant),
    Quiet,
}

/// What has been said of each guest.
#[derive(Default)]
struct Lines {
    said: BTreeMap<Key, (DrainGuestState, usize)>,
    /// Each is said once.
    warned: BTreeSet<String>,
    figures: Option<Instant>,
}

/// A guest's UUID, and its place among the guests that have it: one that was gone and is here again is shown twice.
type Key = (String, usize);

/// How a command ends for a drain that has ended. `reasons`: nothing else prints why guests stay.
type Ending = fn(&DrainDetail, bool) -> Result<Exit, Failure>;

/// Follows a drain to its end. Ctrl-C stops watching only.
pub async fn watch(
    id: &str,
    quiet: bool,
    interrupts: &mut Interrupts,
    context: &Context,
) -> Result<Exit, Failure> {
    follow(id, quiet, interrupts, context, ending).await
}

/// The same for the command that aborts it.
pub async fn watch_abort(id: &str, interrupts: &mut Interrupts, context: &Context) -> Result<Exit, Failure> {
    follow(id, false, interrupts, context, ending_of_abort).await
}

async fn follow(
    id: &str,
    quiet: bool,
    interrupts: &mut Interrupts,
    context: &Context,
    ending: Ending,
) -> Result<Exit, Failure> {
    let mut display = match (context.json, quiet, context.err.live) {
        (true, _, _) => Display::Json(None, Instant::now()),
        (false, true, _) => Display::Quiet,
        (false, false, true) => Display::Live(Canvas::new()),
        (false, false, false) => Display::Plain(Lines::default()),
    };
    let stopped = || {
        let again = format!("the agent goes on by itself: watch it with `linerate drain attach {id}`");
        Failure::new(Exit::NotWatched, "no longer watching", again)
    };
    let mut patience = Patience::default();
    loop {
        let asked = interrupts.unless(context.client.drain_detail(id)).await;
        let detail = match asked.ok_or_else(stopped)? {
            Ok(detail) => detail,
            Err(error) if patience.goes_on(&error) => {
                interrupts.unless(tokio::time::sleep(LOOK)).await.ok_or_else(stopped)?;
                continue;
            }
            Err(error) => {
                let text = format!("no longer watching: {error}");
                let hint = "the agent takes the drain up when it runs again: `linerate drain attach`";
                return Err(Failure::new(Exit::NotWatched, text, hint));
            }
        };
        patience.answered();
        let shown = display.show(&detail, context);
        if detail.is_over() {
            return display.end(&detail, shown, context, ending);
        }
        let again = || format!("the drain goes on: {}", context.command(&format!("drain attach {id}")));
        shown.map_err(|failure| failure.while_watching(again()))?;
        interrupts.unless(tokio::time::sleep(LOOK)).await.ok_or_else(stopped)?;
    }
}

impl Display {
    fn show(&mut self, detail: &DrainDetail, context: &Context) -> Result<(), Failure> {
        match self {
            Display::Live(canvas) => {
                let width = canvas.width().saturating_sub(1).min(WIDTH_MAX);
                canvas.draw(&drain::frame(detail, width, context.err.paint));
            }
            Display::Plain(lines) => {
                lines.lines(detail).iter().for_each(|line| context.print_line(line));
            }
            Display::Json(before, written) => {
                let news = before.as_ref().is_none_or(|before| says_more(before, detail));
                if news || written.elapsed() >= FIGURES {
                    context.print_json_line(detail)?;
                    (*before, *written) = (Some(Box::new(detail.clone())), Instant::now());
                }
            }
            Display::Quiet => {}
        }
        Ok(())
    }

    fn end(
        self,
        detail: &DrainDetail,
        mut output: Result<(), Failure>,
        context: &Context,
        ending: Ending,
    ) -> Result<Exit, Failure> {
        let is_quiet = matches!(self, Display::Quiet);
        if let Display::Live(mut canvas) = self {
            canvas.clear();
        }
        if !context.json && !is_quiet {
            output = context.print(&drain::detail(detail, context.out.width, context.out.paint));
        }
        Failure::of_ended(ending(detail, is_quiet), output, Exit::MovedWithFault, context)
    }
}

/// Names of guests, with the reason of each if nothing else prints it.
fn named<'a>(guests: impl Iterator<Item = &'a DrainGuest>, reasons: bool) -> String {
    let name = |guest: &DrainGuest| match guest.reason.as_deref().filter(|_| reasons) {
        Some(reason) => format!("{} ({})", clean(&guest.guest), clean(reason)),
        None => clean(&guest.guest),
    };
    guests.map(name).collect::<Vec<_>>().join(", ")
}

/// Guests that arrived with a fault, in words.
fn faulty(detail: &DrainDetail, reasons: bool) -> Option<String> {
    let arrived = |guest: &&DrainGuest| guest.state == DrainGuestState::Moved && guest.reason.is_some();
    let names = named(detail.guests.iter().filter(arrived), reasons);
    (!names.is_empty()).then(|| format!("moved, and something failed after that: {names}"))
}

/// Guests that ended while they were moved, in words. One that was stopped before has no reason.
fn ended(detail: &DrainDetail, reasons: bool) -> Option<String> {
    let ended = |guest: &&DrainGuest| guest.state == DrainGuestState::Gone && guest.reason.is_some();
    let names = named(detail.guests.iter().filter(ended), reasons);
    (!names.is_empty()).then(|| format!("ended while they were moved: {names}"))
}

/// How the command ends for a drain that has ended like this. The worst decides the exit code, and nothing is left out.
fn ending(detail: &DrainDetail, reasons: bool) -> Result<Exit, Failure> {
    use DrainGuestState as S;
    let named = |state| named(detail.guests.iter().filter(|guest| guest.state == state), reasons);
    let are = |state, text: &str| (detail.count(state) > 0).then(|| format!("{text}: {}", named(state)));
    let doubtful = are(S::InDoubt, "in doubt");
    let aborted = are(S::Aborted, "the drain was aborted; here as before");
    let failed = are(S::Failed, "not all guests could be moved; here as before");
    let split = (!detail.split.is_empty()).then(|| clean(&detail.split_texts().join("; ")));
    let lost = ended(detail, reasons);
    let all = [&aborted, &failed, &lost, &unseen_text(detail), &split, &faulty(detail, reasons)];
    let all: Vec<String> = all.into_iter().flatten().cloned().collect();
    let fail = |exit, text: Option<String>, hint: &str| {
        let others = all.iter().filter(|other| Some(*other) != text.as_ref());
        let texts: Vec<String> = text.iter().chain(others).cloned().collect();
        Err(Failure::new(exit, texts.join("; "), hint))
    };
    if doubtful.is_some() {
        let hint = "see `linerate migration list` and `linerate resolve` on both hosts";
        return fail(Exit::InDoubt, doubtful, hint);
    }
    if lost.is_some() {
        return fail(Exit::GuestGone, lost, SEE_ENDED);
    }
    if aborted.is_some() {
        return fail(Exit::Cancelled, aborted, "the host takes no guests until `linerate uncordon`");
    }
    if failed.is_some() {
        return fail(Exit::Failed, failed, SEE_FAILED);
    }
    if !detail.unseen.is_empty() {
        return fail(Exit::Failed, None, LOOK_AGAIN);
    }
    if !detail.split.is_empty() {
        let hint = "move the others by hand, or bring back with `linerate undrain` those that have left";
        return fail(Exit::Failed, Some("all guests have left that were to leave".into()), hint);
    }
    if faulty(detail, reasons).is_some() {
        return fail(Exit::MovedWithFault, None, SEE_EACH);
    }
    Ok(Exit::Ok)
}

/// That guests stay is what an abort is for. What it did not reach, and what it leaves apart, is not.
fn ending_of_abort(detail: &DrainDetail, reasons: bool) -> Result<Exit, Failure> {
    let failure = match ending(detail, reasons) {
        Ok(_) if detail.count(DrainGuestState::Moved) > 0 => {
            let text = "too late to abort: all guests have left that were to leave";
            return Err(Failure::new(Exit::Refused, text, "`linerate undrain` brings them back"));
        }
        Err(failure) if failure.exit == Exit::Cancelled => failure,
        other => return other,
    };
    if detail.count(DrainGuestState::Failed) > 0 {
        return Err(Failure::new(Exit::Failed, failure.message(), SEE_FAILED));
    }
    if faulty(detail, reasons).is_some() {
        return Err(Failure::new(Exit::MovedWithFault, failure.message(), SEE_EACH));
    }
    if !detail.split.is_empty() {
        let hint = "`linerate undrain` brings back those that have left, or drain again";
        return Err(Failure::new(Exit::Failed, failure.message(), hint));
    }
    Ok(Exit::Ok)
}

/// A host whose guests could not all be looked for is not known to be empty.
pub fn unseen(detail: &DrainDetail) -> Result<Exit, Failure> {
    unseen_text(detail).map_or(Ok(Exit::Ok), |text| Err(Failure::new(Exit::Failed, text, LOOK_AGAIN)))
}

fn unseen_text(detail: &DrainDetail) -> Option<String> {
    let (host, why) = (clean(&detail.host), clean(&detail.unseen.join("; ")));
    (!detail.unseen.is_empty())
        .then(|| format!("host {host} may have other guests, which could not be looked for: {why}"))
}

/// True if more than figures has changed.
fn says_more(before: &DrainDetail, now: &DrainDetail) -> bool {
    let said = |guest: &DrainGuest| (guest.state, guest.to.clone(), guest.tries.len(), guest.reason.clone());
    before.state != now.state
        || before.warnings != now.warnings
        || before.unseen != now.unseen
        || before.guests.iter().map(said).ne(now.guests.iter().map(said))
}

impl Lines {
    fn lines(&mut self, detail: &DrainDetail) -> Vec<String> {
        let mut lines = Vec::new();
        let begun = detail.begun_unix_ms;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).saturating_sub(begun);
        let mut times: BTreeMap<&str, usize> = BTreeMap::new();
        for guest in &detail.guests {
            let time = times.entry(&guest.uuid).or_default();
            *time += 1;
            let before = self.said.insert((guest.uuid.clone(), *time), (guest.state, guest.tries.len()));
            let tries = before.map_or(0, |(_, tries)| tries);
            lines.extend(guest.tries.iter().skip(tries).map(|one| {
                let to = one.to.as_ref().map(|to| format!(" to {}", clean(to))).unwrap_or_default();
                format!("{}{to}: not moved: {}", clean(&guest.guest), clean(&one.reason))
            }));
            if before.map(|(state, _)| state) != Some(guest.state) {
                lines.extend(drain::sentence(guest));
            }
        }
        let warnings = detail.warnings.iter().chain(&detail.unseen);
        let new = warnings.filter(|text| self.warned.insert((*text).clone()));
        lines.extend(new.map(|text| format!("warning: {}", clean(text))));
        let due = self.figures.is_none_or(|last| last.elapsed() >= FIGURES);
        if due && detail.rate_bytes_per_s > 0 && !detail.is_over() {
            self.figures = Some(Instant::now());
            let moved = detail.count(DrainGuestState::Moved);
            let left = detail.left_ms.map(|ms| format!(", {} left", clock_us(ms * 1000))).unwrap_or_default();
            lines.push(format!(
                "{moved} of {} moved, {}{left}",
                detail.guests.len(),
                bit_rate(detail.rate_bytes_per_s)
            ));
        }
        lines.into_iter().map(|text| format!("{:>8}  {text}", clock_us(at_ms * 1000))).collect()
    }
}

#[cfg(test)]
mod tests {
    use linerate_api::DrainBound;

    use super::*;

    #[test]
    fn guests_that_arrived_with_a_fault_and_guests_that_are_not_seen_have_their_exit_codes() {
        let mut detail: DrainDetail = serde_json::from_value(serde_json::json!({
            "id": "1", "host": "a", "by": "uid 0", "state": "ended", "begun_unix_ms": 0, "ended_unix_ms": 1,
            "guests": [], "rate_bytes_per_s": 0, "links_bytes_per_s": 0, "left_ms": null,
            "bound": DrainBound::default(), "warnings": ["beta does not answer"],
        }))
        .unwrap();
        assert_eq!(ending(&detail, false).map_err(|failure| failure.exit), Ok(Exit::Ok));
        let moved = |reason: Option<&str>| {
            serde_json::from_value(serde_json::json!({
                "guest": "web", "uuid": "u", "state": "moved", "to": "b", "memory_bytes": 1, "copy_bytes": 1,
                "copied_bytes": 0, "rate_bytes_per_s": 0, "write_rate_bytes_per_s": 0, "reason": reason,
                "tries": []
            }))
            .unwrap()
        };
        detail.guests = vec![moved(None)];
        assert_eq!(ending(&detail, false).map_err(|failure| failure.exit), Ok(Exit::Ok));
        detail.guests.push(moved(Some("it is paused there")));
        assert_eq!(ending(&detail, false).map_err(|failure| failure.exit), Err(Exit::MovedWithFault));
        detail.unseen = vec!["domains of libvirt are not seen: it does not answer".into()];
        let failure = ending(&detail, false).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert!(failure.message().contains("host a") && failure.message().contains("does not answer"));
        // By hand one of a group was moved to another host than the drain has taken the rest to.
        detail.unseen.clear();
        detail.guests.pop();
        let at = |host: &str| Some(host.to_owned());
        detail.split = vec![[("db".to_owned(), at("c")), ("web".to_owned(), at("b"))].into()];
        let failure = ending(&detail, false).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        let text = "guests that must be together are not: db is on c, web is on b";
        assert!(failure.message().contains(text), "{}", failure.message());
        let mut left = detail.guests[0].clone();
        left.state = DrainGuestState::Failed;
        detail.guests.push(left);
        let failure = ending(&detail, false).unwrap_err();
        assert!(failure.message().contains(text) && failure.message().contains("here as before: web"));
    }

    #[test]
    fn a_guest_that_ended_while_it_was_moved_is_no_success_and_one_that_was_stopped_is() {
        let drain = |reason: Option<&str>| -> DrainDetail {
            serde_json::from_value(serde_json::json!({
                "id": "1", "host": "a", "by": "uid 0", "state": "ended", "begun_unix_ms": 0, "ended_unix_ms": 1,
                "rate_bytes_per_s": 0, "links_bytes_per_s": 0, "left_ms": null, "bound": DrainBound::default(),
                "warnings": [], "guests": [{
                    "guest": "web", "uuid": "u", "state": "gone", "to": "b", "memory_bytes": 1, "copy_bytes": 1,
                    "copied_bytes": 0, "rate_bytes_per_s": 0, "write_rate_bytes_per_s": 0, "reason": reason,
                    "tries": []
                }],
            }))
            .unwrap()
        };
        let end = |detail: &DrainDetail| ending(detail, true).map_err(|failure| failure.exit);
        assert_eq!(end(&drain(None)), Ok(Exit::Ok));
        let lost = drain(Some("its QEMU has ended since it ran"));
        assert_eq!(end(&lost), Err(Exit::GuestGone));
        assert_eq!(ending_of_abort(&lost, true).map_err(|failure| failure.exit), Err(Exit::GuestGone));
        let failure = ending(&lost, true).unwrap_err();
        assert!(failure.message().contains("web (its QEMU has ended since it ran)"), "{}", failure.message());
    }

    #[test]
    fn a_guest_that_was_gone_and_is_here_again_is_said_once() {
        let guest = |state: &str| {
            serde_json::json!({
                "guest": "web", "uuid": "u", "state": state, "to": "b", "memory_bytes": 1, "copy_bytes": 1,
                "copied_bytes": 0, "rate_bytes_per_s": 0, "write_rate_bytes_per_s": 0, "tries": []
            })
        };
        let drain = |states: &[&str]| -> DrainDetail {
            serde_json::from_value(serde_json::json!({
                "id": "1", "host": "a", "by": "uid 0", "state": "running", "begun_unix_ms": 0,
                "ended_unix_ms": null, "rate_bytes_per_s": 0, "links_bytes_per_s": 0, "left_ms": null,
                "bound": DrainBound::default(), "warnings": [],
                "guests": states.iter().map(|state| guest(state)).collect::<Vec<_>>(),
            }))
            .unwrap()
        };
        let mut lines = Lines::default();
        assert_eq!(lines.lines(&drain(&["gone"])).len(), 1);
        assert_eq!(lines.lines(&drain(&["gone", "copying"])).len(), 1);
        assert_eq!(lines.lines(&drain(&["gone", "copying"])).len(), 0, "nothing has changed");
        assert_eq!(lines.lines(&drain(&["gone", "moved"])).len(), 1);
    }

    #[test]
    fn each_warning_is_printed_once_when_it_comes() {
        let drain = |warnings: &[&str]| -> DrainDetail {
            serde_json::from_value(serde_json::json!({
                "id": "1", "host": "a", "by": "uid 0", "state": "running", "begun_unix_ms": 0,
                "ended_unix_ms": null, "rate_bytes_per_s": 0, "links_bytes_per_s": 0, "left_ms": null,
                "bound": DrainBound::default(), "warnings": warnings, "guests": [],
            }))
            .unwrap()
        };
        let mut lines = Lines::default();
        let (away, waits) = ("the store does not answer", "waits for web, which is arriving");
        assert!(lines.lines(&drain(&[away]))[0].ends_with("warning: the store does not answer"));
        assert_eq!(lines.lines(&drain(&[away, waits])).len(), 1);
        assert_eq!(lines.lines(&drain(&[waits])).len(), 0, "it was printed");
    }

    #[test]
    fn an_abort_ends_well_only_if_nothing_went_wrong_beside_it() {
        let guest = |name: &str, state: &str, reason: Option<&str>| -> DrainGuest {
            serde_json::from_value(serde_json::json!({
                "guest": name, "uuid": name, "state": state, "to": "b", "memory_bytes": 1, "copy_bytes": 1,
                "copied_bytes": 0, "rate_bytes_per_s": 0, "write_rate_bytes_per_s": 0, "reason": reason,
                "tries": []
            }))
            .unwrap()
        };
        let mut detail: DrainDetail = serde_json::from_value(serde_json::json!({
            "id": "1", "host": "a", "by": "uid 0", "state": "ended", "begun_unix_ms": 0, "ended_unix_ms": 1,
            "guests": [], "rate_bytes_per_s": 0, "links_bytes_per_s": 0, "left_ms": null,
            "bound": DrainBound::default(), "warnings": [],
        }))
        .unwrap();
        let end = |detail: &DrainDetail| ending_of_abort(detail, false).map_err(|failure| failure.exit);
        assert_eq!(end(&detail), Ok(Exit::Ok), "it had no guests");
        detail.guests = vec![guest("web", "moved", None)];
        assert_eq!(end(&detail), Err(Exit::Refused), "all had left before");
        detail.guests.push(guest("db", "aborted", None));
        assert_eq!(end(&detail), Ok(Exit::Ok));
        detail.split =
            vec![[("db".to_owned(), Some("a".into())), ("web".to_owned(), Some("b".into()))].into()];
        assert_eq!(end(&detail), Err(Exit::Failed), "the abort leaves them apart");
        detail.split.clear();
        detail.guests[0] = guest("web", "moved", Some("it is paused there"));
        assert_eq!(end(&detail), Err(Exit::MovedWithFault));
        // What is not the worst is said too, with its reason where nothing else prints it.
        let failure = ending(&detail, true).unwrap_err();
        assert_eq!(failure.exit, Exit::Cancelled);
        assert!(failure.message().contains("web (it is paused there)"), "{}", failure.message());
        detail.guests[0] = guest("web", "failed", Some("no memory"));
        assert_eq!(end(&detail), Err(Exit::Failed), "it could not be moved before");
        let endings: [Ending; 2] = [ending, ending_of_abort];
        for ends in endings {
            let failure = ends(&detail, true).unwrap_err();
            let says = |part: &str| failure.message().contains(part);
            assert!(says("here as before: db") && says("web (no memory)"), "{}", failure.message());
        }
        detail.guests.push(guest("mail", "in_doubt", None));
        let failure = ending(&detail, true).unwrap_err();
        let says = |part: &str| failure.message().contains(part);
        assert!(says("in doubt: mail; ") && says("before: db; ") && says("web (no memory)"));
    }
}
