//! `linerate cordon` and `linerate uncordon`

use linerate_api::CordonAnswer;

use super::progress::change;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::CordonFlags;
use crate::render::format::clean;

/// Has the host take no guests from others.
pub async fn run(flags: &CordonFlags, context: &Context) -> Result<Exit, Failure> {
    let request = flags.request();
    let asked = context.client.cordon(&request);
    let answer = change("cordoning the host", unknown(context), context, asked).await?;
    context.done(&answer, || {
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

/// Where it is seen what an agent did whose answer was lost.
fn unknown(context: &Context) -> String {
    format!("{} shows whether the host is cordoned", context.command("status"))
}

/// Has the host take guests again.
pub async fn lift(flags: &CordonFlags, context: &Context) -> Result<Exit, Failure> {
    let request = flags.request();
    let asked = context.client.uncordon(&request);
    let answer = change("releasing the host", unknown(context), context, asked).await?;
    context.done(&answer, || {
        let host = clean(&answer.host);
        match answer.changed {
            true => format!("{host} takes guests from other hosts again\n"),
            false => format!("{host} was not cordoned\n"),
        }
    })?;
    Ok(Exit::Ok)
}
