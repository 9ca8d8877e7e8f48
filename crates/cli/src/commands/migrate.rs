//! `linerate migrate`

use linerate_api::MigrationId;
use serde_json::json;

use crate::context::Context;
use crate::display::view::View;
use crate::display::{Start, watch};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::MigrateFlags;

/// Begins a migration and watches it.
pub async fn run(flags: &MigrateFlags, context: &Context) -> Result<Exit, Failure> {
    let request = flags.request();
    let id = context.client.migrate(&request).await?;
    name(&id, flags.detach, context)?;
    if flags.detach {
        return Ok(Exit::Ok);
    }
    let view = View::new(&request.guest, &request.to, Some(request.blackout_budget_ms()));
    watch(context, Start { id, view, quiet: flags.quiet, cancel: false }).await
}

/// Programs learn the name in the first line; people who detach, by how to come back.
fn name(id: &MigrationId, detach: bool, context: &Context) -> Result<(), Failure> {
    match (context.json, detach) {
        (true, _) => context.print_json_line(&json!({"id": id})),
        (false, true) => context.print(&format!("{id}\nwatch it with `linerate migration attach {id}`\n")),
        (false, false) => Ok(()),
    }
}
