//! `linerate resolve`

use std::time::Duration;

use linerate_api::{Decision, MigrationState};

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::ResolveFlags;
use crate::render::format::clean;

/// After this a person is told what the command waits for.
const SAID_AFTER: Duration = Duration::from_secs(1);

/// Hands the operator's decision to the agent. The whole name of the session is asked for: it must not be mistaken.
pub async fn run(flags: &ResolveFlags, context: &Context) -> Result<Exit, Failure> {
    let decision = if flags.resume_here { Decision::ResumeHere } else { Decision::GiveUp };
    let asked = said_if_long(context, context.client.resolve(&flags.id(), decision)).await;
    let unknown = format!(
        "see {}: it shows whether the agent has taken the decision",
        context.command("migration list")
    );
    let summary = asked.map_err(|error| Failure::of_request(error, unknown))?;
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

/// The answer of the agent; what it waits for is said if it takes long.
async fn said_if_long<T>(context: &Context, asked: impl Future<Output = T>) -> T {
    let mut asked = std::pin::pin!(asked);
    if let Ok(answer) = tokio::time::timeout(SAID_AFTER, &mut asked).await {
        return answer;
    }
    if !context.json {
        context.print_line("waiting: the other host is asked or heard first, for up to 20 s; then the agent carries the decision out");
    }
    asked.await
}
