//! `linerate status`

use super::progress::look;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::render::lists;

/// Says how the agent is.
pub async fn run(context: &Context) -> Result<Exit, Failure> {
    let status = look(context, context.client.status()).await?;
    context.answer(&status, || lists::status(&status, context.out.paint))?;
    Ok(Exit::Ok)
}
