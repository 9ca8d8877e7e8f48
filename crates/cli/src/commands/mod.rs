//! One module for each command.

mod agent;
mod audit;
mod bench;
mod cluster;
mod completions;
mod cordon;
mod doctor;
mod drain;
mod fix;
mod link;
mod man;
mod migrate;
mod migration;
mod progress;
mod qos;
mod resolve;
mod status;
mod tunnel;
mod vm;

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::{Command, QosCommand};

/// Does what was asked.
pub fn run(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::Agent(flags) => agent::run(&flags, context),
        Command::Completions { shell } => completions::run(shell, context),
        Command::Man { dir } => man::run(dir.as_deref(), context),
        Command::Doctor(flags) if flags.from.is_some() => doctor::saved(&flags, context),
        Command::Qos(QosCommand::Switch(flags)) => qos::switch(&flags, context),
        Command::Qos(QosCommand::Windows { file }) => qos::windows(&file, context),
        command => runtime()?.block_on(ask(command, context)),
    }
}

/// The commands that ask an agent, or wait for something else.
async fn ask(command: Command, context: &Context) -> Result<Exit, Failure> {
    match command {
        Command::Migrate(flags) => migrate::run(&flags, context).await,
        Command::Migration(command) => migration::run(command, context).await,
        Command::Bench(command) => bench::run(&command, context).await,
        Command::Vm(command) => vm::run(command, context).await,
        Command::Tunnel(flags) => tunnel::run(&flags, context).await,
        Command::Cordon(flags) => cordon::run(&flags, context).await,
        Command::Uncordon(flags) => cordon::lift(&flags, context).await,
        Command::Drain(flags) => drain::run(&flags, context).await,
        Command::Undrain(flags) => drain::undrain(&flags, context).await,
        Command::Place(flags) => drain::place(&flags, context).await,
        Command::Fleet(command) => drain::fleet(&command, context).await,
        Command::Audit(flags) => audit::run(&flags, context).await,
        Command::Resolve(flags) => resolve::run(&flags, context).await,
        Command::Link(command) => link::run(command, context).await,
        Command::Qos(command) => qos::run(&command, context).await,
        Command::Doctor(flags) => doctor::run(&flags, context).await,
        Command::Cluster(command) => cluster::run(&command, context).await,
        Command::Token(command) => cluster::token(&command, context).await,
        Command::Join(flags) => cluster::join(&flags, context).await,
        Command::Host(command) => cluster::host(&command, context).await,
        Command::Certificate(command) => cluster::certificate(&command, context).await,
        Command::Status | Command::Agent(_) | Command::Completions { .. } | Command::Man { .. } => {
            status::run(context).await
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Failed, format!("the command cannot start: {error}"), ""))
}
