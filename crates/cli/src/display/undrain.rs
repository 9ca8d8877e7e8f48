//! Follows guests that come back after a drain: a picture on a terminal, lines elsewhere, or JSON.

use std::time::Duration;

use linerate_api::{UndrainDetail, UndrainGuest, UndrainGuestState};

use super::canvas::Canvas;
use super::patience::Patience;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::interrupts::Interrupts;
use crate::render::drain;
use crate::render::format::clean;

/// How often the agent is asked.
const LOOK: Duration = Duration::from_millis(250);
/// Wider than this, lines are hard to follow with the eye.
const WIDTH_MAX: usize = 110;

/// Follows it to its end. Ctrl-C stops watching only.
pub async fn watch(
    begun: UndrainDetail,
    quiet: bool,
    interrupts: &mut Interrupts,
    context: &Context,
) -> Result<Exit, Failure> {
    let mut canvas = (!context.json && !quiet && context.err.live).then(Canvas::new);
    let (mut before, mut now): (Option<UndrainDetail>, _) = (None, begun);
    let mut output = loop {
        let is_new = before.as_ref() != Some(&now) && (!quiet || context.json);
        let shown = if is_new { show(before.as_ref(), &now, canvas.as_mut(), context) } else { Ok(()) };
        if now.over {
            break shown;
        }
        shown.map_err(|failure| failure.while_watching("guests go on coming back: `linerate undrain`"))?;
        before = Some(now);
        now = next(interrupts, context).await?;
    };
    if let Some(mut canvas) = canvas {
        canvas.clear();
    }
    if !context.json && !quiet {
        output = context.print(&drain::undrained(&now, context.out.width, context.out.paint));
    }
    Failure::of_ended(ending(&now, quiet && !context.json), output, Exit::MovedWithFault, context)
}

/// How far it is some moments later.
async fn next(interrupts: &mut Interrupts, context: &Context) -> Result<UndrainDetail, Failure> {
    let stopped = || {
        let hint = "guests go on coming back: `linerate undrain` watches again";
        Failure::new(Exit::NotWatched, "no longer watching", hint)
    };
    let mut patience = Patience::default();
    loop {
        interrupts.unless(tokio::time::sleep(LOOK)).await.ok_or_else(stopped)?;
        let asked = interrupts.unless(context.client.undrain_detail()).await;
        match asked.ok_or_else(stopped)? {
            Ok(detail) => return Ok(detail),
            Err(error) if patience.goes_on(&error) => {}
            Err(error) => {
                let hint = "`linerate undrain` again, when the agent runs: what is back is left as it is";
                return Err(Failure::new(Exit::NotWatched, format!("no longer watching: {error}"), hint));
            }
        }
    }
}

/// How the command ends. `reasons`: nothing else prints what is wrong with guests.
fn ending(now: &UndrainDetail, reasons: bool) -> Result<Exit, Failure> {
    let name = |guest: &UndrainGuest| match guest.reason.as_deref().filter(|_| reasons) {
        Some(reason) => format!("{} ({})", clean(&guest.guest), clean(reason)),
        None => clean(&guest.guest),
    };
    let named = |is: fn(&UndrainGuest) -> bool| -> Vec<String> {
        now.guests.iter().filter(|guest| is(guest)).map(name).collect()
    };
    let left = named(|guest| guest.state == UndrainGuestState::Failed);
    let faulty = named(|guest| guest.state == UndrainGuestState::Back && guest.reason.is_some());
    let faulty = (!faulty.is_empty()).then(|| format!("back, and not well: {}", faulty.join(", ")));
    if !left.is_empty() {
        let text = format!("{} of {} guests did not come back", left.len(), now.guests.len());
        let texts: Vec<String> = [format!("{text}: {}", left.join(", "))].into_iter().chain(faulty).collect();
        let hint = "remove the reason of each; `linerate undrain` tries again";
        return Err(Failure::new(Exit::Failed, texts.join("; "), hint));
    }
    match faulty {
        Some(text) => Err(Failure::new(Exit::MovedWithFault, text, "see that each runs here")),
        None => Ok(Exit::Ok),
    }
}

fn show(
    before: Option<&UndrainDetail>,
    now: &UndrainDetail,
    canvas: Option<&mut Canvas>,
    context: &Context,
) -> Result<(), Failure> {
    if context.json {
        return context.print_json_line(now);
    }
    if let Some(canvas) = canvas {
        let width = canvas.width().saturating_sub(1).min(WIDTH_MAX);
        canvas.draw(&drain::undrain_frame(now, width, context.err.paint));
        return Ok(());
    }
    for (at, guest) in now.guests.iter().enumerate() {
        let earlier = before.and_then(|before| before.guests.get(at)).map(|guest| guest.state);
        if guest.state != UndrainGuestState::Waiting && earlier != Some(guest.state) {
            context.print_line(&drain::undrain_line(guest));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_did_not_come_back_is_named_with_its_reason_where_nothing_else_prints_it() {
        let mut now: UndrainDetail = serde_json::from_value(serde_json::json!({
            "drain": "d1", "host": "a", "over": true, "guests": [
                { "guest": "db", "from": "b", "state": "back", "reason": null },
                { "guest": "web", "from": "c", "state": "failed", "reason": "c does not answer" },
            ],
        }))
        .unwrap();
        let failure = ending(&now, true).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert_eq!(failure.message(), "1 of 2 guests did not come back: web (c does not answer)");
        assert_eq!(ending(&now, false).unwrap_err().message(), "1 of 2 guests did not come back: web");
        now.guests.pop();
        assert_eq!(ending(&now, true).map_err(|failure| failure.exit), Ok(Exit::Ok));
    }

    #[test]
    fn a_guest_that_is_back_with_a_fault_is_no_success_and_one_that_was_paused_before_is() {
        let guests = |guests: serde_json::Value| -> UndrainDetail {
            let detail = serde_json::json!({ "drain": "d1", "host": "a", "over": true, "guests": guests });
            serde_json::from_value(detail).unwrap()
        };
        let faulty = serde_json::json!({
            "guest": "web", "from": "c", "state": "back", "paused": true, "reason": "it does not run",
        });
        let failure = ending(&guests(serde_json::json!([faulty])), true).unwrap_err();
        assert_eq!(failure.exit, Exit::MovedWithFault);
        assert_eq!(failure.message(), "back, and not well: web (it does not run)");
        let left = serde_json::json!({ "guest": "db", "from": "b", "state": "failed", "reason": "no" });
        let failure = ending(&guests(serde_json::json!([left, faulty])), false).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert_eq!(failure.message(), "1 of 2 guests did not come back: db; back, and not well: web");
        let paused = serde_json::json!({
            "guest": "web", "from": "c", "state": "back", "paused": true, "reason": null,
        });
        let now = guests(serde_json::json!([paused]));
        assert_eq!(ending(&now, true).map_err(|failure| failure.exit), Ok(Exit::Ok));
        assert_eq!(drain::undrain_line(&now.guests[0]), "web: is back from c, and paused");
        assert!(drain::undrained(&now, 80, crate::render::paint::Paint::PLAIN).contains("back, paused"));
    }
}
