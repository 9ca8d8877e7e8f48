//! `linerate agent`

use crate::context::Context;
use crate::documents::ConfigChecked;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::AgentFlags;

/// Runs the agent until it is stopped, or checks its configuration.
pub fn run(flags: &AgentFlags, context: &Context) -> Result<Exit, Failure> {
    linerate_agent::run(&flags.config, flags.check)
        .map_err(|error| Failure::new(Exit::Failed, format!("{error:#}"), ""))?;
    if flags.check {
        let config = flags.config.display().to_string();
        context.answer(&ConfigChecked { config: &config, good: true }, || format!("{config} is good\n"))?;
    }
    Ok(Exit::Ok)
}
