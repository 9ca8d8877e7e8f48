//! `linerate completions`

use clap::CommandFactory;
use clap_complete::Shell;

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::Flags;

pub fn run(shell: Shell, context: &Context) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Flags::command(), "linerate", &mut script);
    context.print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Ok)
}
