//! `linerate audit`

use std::time::{SystemTime, UNIX_EPOCH};

use super::progress::look;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::AuditFlags;
use crate::render::audit;

/// Shows lines of the audit log, oldest first.
pub async fn run(flags: &AuditFlags, context: &Context) -> Result<Exit, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let request = flags.request(u64::try_from(now).unwrap_or(u64::MAX));
    let entries = look(context, context.client.audit(&request)).await?;
    context.answer(&entries, || audit::table(&entries, flags.limit, context.out.paint))?;
    Ok(Exit::Ok)
}
