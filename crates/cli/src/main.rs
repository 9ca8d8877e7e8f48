//! The `linerate` binary: flags, displays, tables, exit codes. It talks to an agent and does nothing by itself; only
//! `linerate agent` is the agent.

mod commands;
mod context;
mod display;
mod documents;
mod exit;
mod failure;
mod flags;
mod interrupts;
mod remote;
mod render;
mod units;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use context::Context;
use exit::Exit;
use failure::Failure;
use flags::Flags;

fn main() -> ExitCode {
    let flags = Flags::try_parse().unwrap_or_else(|error| not_understood(&error));
    let context = Context::from_environment(flags.socket, flags.json);
    match commands::run(flags.command, flags.connect.as_deref(), &context) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            print_failure(&failure, &context);
            failure.exit.into()
        }
    }
}

/// Ends as clap does. A program gets the error as of any other command; help and the version are no error, unless they
/// cannot be printed.
fn not_understood(error: &clap::Error) -> ! {
    if !error.use_stderr() {
        let printed = error.print().and_then(|()| std::io::stdout().flush());
        std::process::exit(printed.map_or_else(|broken| not_printed(&broken), |()| error.exit_code()));
    }
    if std::env::args_os().any(|word| word == "--json") {
        let text = error.to_string();
        let message = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        let failure = Failure::new(Exit::Usage, message, "`--help` shows what the command takes");
        let _ = Context::from_environment(None, true).print(&(failure.json() + "\n"));
    }
    error.exit()
}

/// The exit code of help that was not printed. Who closes a pipe has read enough.
fn not_printed(broken: &std::io::Error) -> i32 {
    let failure = Failure::output(broken);
    if broken.kind() != std::io::ErrorKind::BrokenPipe {
        print_failure(&failure, &Context::from_environment(None, false));
    }
    i32::from(failure.exit as u8)
}

/// To programs on standard output, to people and logs on standard error. If it is not read, the exit code is enough.
fn print_failure(failure: &Failure, context: &Context) {
    if context.json {
        let _ = context.print(&(failure.json() + "\n"));
    }
    context.print_line(failure.render(context.err.width, context.err.paint).trim_end());
}
