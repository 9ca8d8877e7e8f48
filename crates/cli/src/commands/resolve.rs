//! `linerate resolve`

use linerate_api::{Decision, MigrationState};

use super::progress::change;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::ResolveFlags;
use crate::render::format::clean;

/// Hands the operator's decision to the agent. The whole name of the session is asked for: it must not be mistaken.
pub async fn run(flags: &ResolveFlags, context: &Context) -> Result<Exit, Failure> {
    let decision = if flags.resume_here { Decision::ResumeHere } else { Decision::GiveUp };
    let unknown = format!(
        "see {}: it shows whether the agent has taken the decision",
        context.command("migration list")
    );
    let (id, what) = (flags.id(), "waiting for the other host, up to 20 s");
    let summary = change(what, unknown, context, context.client.resolve(&id, decision)).await?;
    let guest = clean(&summary.guest);
    if summary.state == MigrationState::InDoubt {
        context.programs(&summary)?;
        let note = summary.note.as_deref().unwrap_or_default();
        let text = format!("the decision about {guest} does not count yet: {}", clean(note));
        let hint = "the agent goes on by itself: see `linerate migration list`";
        return Err(Failure::new(Exit::NotWatched, text, hint));
    }
    context.done(&summary, || match decision {
        Decision::ResumeHere => {
            format!("{guest} is here, and does what it did before it was stopped\n")
        }
        Decision::GiveUp => {
            format!("the copy of {guest} on this host has ended\n")
        }
    })?;
    Ok(Exit::Ok)
}
