//! `linerate migration list | show | attach | cancel`

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use linerate_api::{
    ClientError, Direction, GuestSummary, MigrationDetail, MigrationOutcome, MigrationState,
    MigrationSummary, code,
};

use super::progress::{look, with_progress};
use crate::context::Context;
use crate::display::view::View;
use crate::display::{Ended, Start, watch};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::MigrationCommand;
use crate::interrupts::Interrupts;
use crate::render::lists;
use crate::render::report::report;

/// Between two looks at a session that is to end.
const LOOK: Duration = Duration::from_millis(100);

/// Sees, watches or cancels.
pub async fn run(command: MigrationCommand, context: &Context) -> Result<Exit, Failure> {
    match command {
        MigrationCommand::List => list(context).await,
        MigrationCommand::Show(flags) => show(&flags.id, context).await,
        MigrationCommand::Attach(flags) => attach(&flags.id, context).await,
        MigrationCommand::Cancel(flags) => cancel(&flags.id, context).await,
    }
}

async fn list(context: &Context) -> Result<Exit, Failure> {
    let migrations = look(context, context.client.migrations()).await?;
    context.answer(&migrations, || lists::migrations(&migrations, now_unix_ms(), context.out.paint))?;
    Ok(Exit::Ok)
}

async fn show(id: &str, context: &Context) -> Result<Exit, Failure> {
    let id = find(id, context).await?.id;
    let detail = look(context, context.client.migration(&id)).await?;
    context.answer(&detail, || picture(&detail, context))?;
    Ok(Exit::Ok)
}

fn picture(detail: &MigrationDetail, context: &Context) -> String {
    let (width, paint) = (context.out.width, context.out.paint);
    let mut text = lists::migrations(std::slice::from_ref(&detail.summary), now_unix_ms(), paint);
    text.extend(detail.report.iter().map(|figures| report(figures, width, paint)));
    if let Some(error) = &detail.error {
        text.push('\n');
        text.push_str(&Failure::of_body(Exit::Failed, error).render(width, paint));
    }
    text
}

async fn attach(id: &str, context: &Context) -> Result<Exit, Failure> {
    let found = find_begun(id, context).await?;
    if found.direction == Direction::Incoming {
        return Err(Failure::new(
            Exit::Refused,
            format!("{} comes to this host, and is watched at its source", found.guest),
            format!("see `linerate migration show {}` here, or attach at {}", found.id, found.peer),
        ));
    }
    follow(found, false, context).await?.exit
}

async fn follow(found: MigrationSummary, cancel: bool, context: &Context) -> Result<Ended, Failure> {
    let MigrationSummary { id, guest, peer, .. } = found;
    let (view, interrupts) = (View::new(&guest, &peer, None), Interrupts::listen()?);
    watch(context, Start { id, view, quiet: false, cancel, interrupts }).await
}

/// Cancelled is what was asked for here, so it ends well.
async fn cancel(id: &str, context: &Context) -> Result<Exit, Failure> {
    let found = find_begun(id, context).await?;
    if found.direction == Direction::Incoming {
        return cancel_here(found, context).await;
    }
    let guest = found.guest.clone();
    let ended = follow(found, true, context).await?;
    if ended.outcome == MigrationOutcome::Checked && matches!(ended.exit, Ok(Exit::Ok)) {
        let text = || format!("the dry run of {guest} was over already: the guest stays where it is\n");
        context.people(text)?;
    }
    of_cancel(ended)
}

/// A guest that its operator had paused before is paused here again, which is no failure.
fn of_cancel(Ended { outcome, exit, is_written, not_cancelled }: Ended) -> Result<Exit, Failure> {
    let code = exit.as_ref().map_or_else(|failure| failure.exit, |exit| *exit);
    match (outcome, code) {
        (MigrationOutcome::Cancelled, Exit::GuestGone | Exit::InDoubt) => exit,
        (MigrationOutcome::Cancelled, _) if is_written => Ok(Exit::Ok),
        (MigrationOutcome::Cancelled, _) => {
            let text =
                "the migration was cancelled, as was asked, and only the output of this command is missing";
            Err(Failure::new(Exit::Failed, text, ""))
        }
        // The wish to stop it was refused, or it was faster.
        (MigrationOutcome::Completed, Exit::Ok) => Err(not_cancelled.unwrap_or_else(too_late)),
        _ => exit,
    }
}

/// A guest that comes to this host.
async fn cancel_here(found: MigrationSummary, context: &Context) -> Result<Exit, Failure> {
    let asked = context.client.cancel(&found.id).await;
    asked.map_err(|error| not_cancelled(error, context))?;
    let what = format!("waiting for the copy of {} to end here", found.guest);
    let last = with_progress(what, context.err, ended_here(&found, context)).await?;
    match last.state {
        MigrationState::Completed => Err(too_late()),
        MigrationState::Failed | MigrationState::Cancelled => {
            context.done(&last, || format!("cancelled: {} was given up on this host\n", last.guest))?;
            Ok(Exit::Ok)
        }
        MigrationState::Recovering => Err(Failure::new(
            Exit::Refused,
            format!("not cancelled: {} is being brought to its end on this host", last.guest),
            "see `linerate migration list` for what is done and what it waits for",
        )),
        _ => Err(Failure::new(
            Exit::Refused,
            format!(
                "too late to cancel: {} is complete on this host, and its source does not answer",
                last.guest
            ),
            format!("see whether it runs at the source, and decide: `linerate resolve {}`", last.id),
        )),
    }
}

/// The session when nothing more happens to it by itself.
async fn ended_here(begun: &MigrationSummary, context: &Context) -> Result<MigrationSummary, Failure> {
    loop {
        let summary = match context.client.migration(&begun.id).await {
            Ok(detail) => detail.summary,
            // The agent was started again, and nothing is left to do: only a guest that came in it shows its end.
            Err(ClientError::Agent { body, .. }) if body.code == code::MIGRATION_UNKNOWN => {
                let guests = context.client.guests().await;
                let guests = guests.map_err(|error| Failure::of_lost(error, look_again(context)))?;
                return came(&guests, begun);
            }
            Err(error) => return Err(Failure::of_lost(error, look_again(context))),
        };
        if !matches!(summary.state, MigrationState::Running | MigrationState::Cancelling) {
            return Ok(summary);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A guest of that name may be another one, and one that is not here may have come and gone.
fn came(guests: &[GuestSummary], begun: &MigrationSummary) -> Result<MigrationSummary, Failure> {
    if guests.iter().any(|guest| guest.session.as_ref() == Some(&begun.id.0)) {
        return Ok(MigrationSummary { state: MigrationState::Completed, ..begun.clone() });
    }
    let guest = &begun.guest;
    let text =
        format!("the agent was started again meanwhile: it is not known how the migration of {guest} ended");
    let hint = format!("see on both hosts where {guest} runs: `linerate vm list`");
    Err(Failure::new(Exit::NotWatched, text, hint))
}

fn too_late() -> Failure {
    Failure::new(
        Exit::Refused,
        "too late to cancel: the guest runs at the destination",
        "move it back with `linerate migrate` there",
    )
}

/// A no of the agent is one. Without an answer the request may have been taken.
fn not_cancelled(error: ClientError, context: &Context) -> Failure {
    Failure::of_request(error, look_again(context))
}

fn look_again(context: &Context) -> String {
    format!("the agent goes on by itself: see {}", context.command("migration list"))
}

/// The same of one that goes on whatever becomes of the command.
async fn find_begun(prefix: &str, context: &Context) -> Result<MigrationSummary, Failure> {
    let all = look(context, context.client.migrations()).await;
    let all = all.map_err(|error| Failure::of_request(error, look_again(context)))?;
    choose(prefix, all.into_iter().filter(|one| one.id.0.starts_with(prefix)).collect())
}

/// The one migration whose name begins so.
async fn find(prefix: &str, context: &Context) -> Result<MigrationSummary, Failure> {
    let all = look(context, context.client.migrations()).await?;
    choose(prefix, all.into_iter().filter(|one| one.id.0.starts_with(prefix)).collect())
}

fn choose(prefix: &str, mut found: Vec<MigrationSummary>) -> Result<MigrationSummary, Failure> {
    if let Some(exact) = found.iter().position(|one| one.id.0 == prefix) {
        return Ok(found.swap_remove(exact));
    }
    match (found.pop(), found.len()) {
        (Some(only), 0) => Ok(only),
        (None, _) => Err(Failure::new(
            Exit::Refused,
            format!("no migration whose name begins with `{prefix}`"),
            "see `linerate migration list`; how one ended before the agent's last start: `linerate audit --session NAME`",
        )),
        (Some(_), others) => Err(Failure::new(
            Exit::Refused,
            format!("{} migrations have names that begin with `{prefix}`", others + 1),
            "write more of the name; see `linerate migration list`",
        )),
    }
}

fn now_unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|age| u64::try_from(age.as_millis()).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_of_the_same_name_is_no_sign_of_a_migration() {
        let begun: MigrationSummary = serde_json::from_value(serde_json::json!({
            "id": "5f3a", "guest": "web", "direction": "incoming", "peer": "", "state": "running",
            "step": "copy", "started_unix_ms": 0, "sent_bytes": 0, "note": null,
        }))
        .unwrap();
        let verdict = serde_json::json!({ "possible": true, "reasons": [] });
        let guest = |session: Option<&str>| -> GuestSummary {
            serde_json::from_value(serde_json::json!({
                "name": "web", "uuid": null, "state": "running", "memory_bytes": 1, "vcpus": 1,
                "qemu_version": "10.0.2", "pid": 1, "session": session, "direct": verdict, "stream": verdict,
            }))
            .unwrap()
        };
        let end = |guests: &[GuestSummary]| came(guests, &begun).map(|end| end.state).map_err(|end| end.exit);
        assert_eq!(end(&[guest(Some("5f3a"))]), Ok(MigrationState::Completed));
        for others in [&[][..], &[guest(None)], &[guest(Some("77aa"))]] {
            assert_eq!(end(others), Err(Exit::NotWatched));
        }
    }

    #[test]
    fn a_cancel_ends_well_if_the_guest_stays() {
        let end = |outcome, exit| {
            let exit = if exit == Exit::Ok { Ok(exit) } else { Err(Failure::new(exit, "", "")) };
            let ended = Ended { outcome, exit, is_written: true, not_cancelled: None };
            of_cancel(ended).unwrap_or_else(|failure| failure.exit)
        };
        use MigrationOutcome as M;
        assert_eq!(end(M::Cancelled, Exit::Cancelled), Exit::Ok);
        assert_eq!(end(M::Cancelled, Exit::PausedAtSource), Exit::Ok, "it was paused before");
        assert_eq!(end(M::Checked, Exit::Ok), Exit::Ok, "a trial that was faster moves nothing");
        assert_eq!(end(M::Completed, Exit::Ok), Exit::Refused);
        assert_eq!(end(M::Completed, Exit::MovedWithFault), Exit::MovedWithFault);
        assert_eq!(end(M::Cancelled, Exit::GuestGone), Exit::GuestGone);
        assert_eq!(end(M::InDoubt, Exit::InDoubt), Exit::InDoubt);
        assert_eq!(end(M::Failed, Exit::PausedAtSource), Exit::PausedAtSource);
    }

    #[test]
    fn a_cancel_whose_output_is_missing_is_no_success() {
        let exit = Err(Failure::new(Exit::Cancelled, "", ""));
        let ended =
            Ended { outcome: MigrationOutcome::Cancelled, exit, is_written: false, not_cancelled: None };
        assert_eq!(of_cancel(ended).map_err(|failure| failure.exit), Err(Exit::Failed));
    }
}
