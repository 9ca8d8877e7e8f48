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
mod rolling;
mod status;
mod tunnel;
mod vm;

use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::{Command, QosCommand};
use crate::remote::Remote;

pub use progress::with_progress;

/// Does what was asked, of this host's agent or of the one that `connect` names.
pub fn run(command: Command, connect: Option<&str>, context: &Context) -> Result<Exit, Failure> {
    if connect.is_some() && is_local(&command) {
        let text =
            "--connect is for commands that ask an agent, and this one works on this host; nothing was done";
        return Err(Failure::new(Exit::Usage, text, "run it on the other host: `ssh HOST linerate …`"));
    }
    if connect.is_some() && matches!(&command, Command::Drain(flags) if !flags.each.is_empty()) {
        let text = "--each connects to each of its hosts: --connect does not go with it; nothing was done";
        return Err(Failure::new(Exit::Usage, text, "leave --connect out"));
    }
    match command {
        Command::Agent(flags) => agent::run(&flags, context),
        Command::Completions { shell } => completions::run(shell, context),
        Command::Man { dir } => man::run(dir.as_deref(), context),
        Command::Doctor(flags) if flags.from.is_some() => doctor::saved(&flags, context),
        Command::Qos(QosCommand::Switch(flags)) => qos::switch(&flags, context),
        Command::Qos(QosCommand::Windows { file }) => qos::windows(&file, context),
        command => runtime()?.block_on(async {
            let Some(target) = connect else { return ask(command, context).await };
            let remote = Remote::open(target, context).await?;
            ask(command, &remote.context(context)).await.map_err(|failure| failure.of_agent_at(target))
        }),
    }
}

/// Whether the command reads or writes files of this host, and asks an agent for nothing else.
fn is_local(command: &Command) -> bool {
    match command {
        Command::Doctor(flags) => flags.from.is_some(),
        Command::Qos(command) => matches!(command, QosCommand::Switch(_) | QosCommand::Windows { .. }),
        Command::Agent(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::Cluster(_)
        | Command::Token(_)
        | Command::Join(_)
        | Command::Host(_)
        | Command::Certificate(_) => true,
        _ => false,
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
