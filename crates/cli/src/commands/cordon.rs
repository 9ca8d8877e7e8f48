//! `linerate cordon` and `linerate uncordon`

use linerate_api::CordonAnswer;

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::CordonFlags;
use crate::render::format::clean;

/// Has the host take no guests from others.
pub async fn run(flags: &CordonFlags, context: &Context) -> Result<Exit, Failure> {
    let answer = context.client.cordon(&flags.request()).await?;
    context.answer(&answer, || {
        let CordonAnswer { host, cordon, changed } = &answer;
        let (host, by) = (clean(host), cordon.as_ref().map(|cordon| clean(&cordon.by)).unwrap_or_default());
        match changed {
            true => {
                let uncordon = context.command("uncordon");
                format!(
                    "{host} takes no guests from other hosts until {uncordon}; guests that are arriving go on\n"
                )
            }
            false => format!("{host} takes no guests already: {by} cordoned it\n"),
        }
    })?;
    Ok(Exit::Ok)
}

/// Has the host take guests again.
pub async fn lift(flags: &CordonFlags, context: &Context) -> Result<Exit, Failure> {
    let answer = context.client.uncordon(&flags.request()).await?;
    context.answer(&answer, || {
        let host = clean(&answer.host);
        match answer.changed {
            true => format!("{host} takes guests from other hosts again\n"),
            false => format!("{host} was not cordoned\n"),
        }
    })?;
    Ok(Exit::Ok)
}
