//! `linerate-bench`: Linerate against QEMU's own migration on the same links in the same minutes; hundreds of moves
//! back and forth that must not harm a guest; and every fault at every step.
//!
//! | module | contents |
//! |---|---|
//! | [`run`] | the comparison: cases, methods, figures, targets, tables, charts |
//! | [`soak`] | back and forth, both QEMU versions, three cache modes |
//! | [`alone`] | back and forth by QEMU's own migration: what harm is QEMU's |
//! | [`faults`] | links cut at random instants; faults at each step on each side |
//! | [`libvirt`] | libvirt's domains back and forth, a link lost each time |
//! | [`disks`] | guests with disks that are not shared back and forth, a link lost each time |
//! | [`shuttle`] | what these two share |
//! | [`storage_share`] | how memory and disks share the links |
//! | [`tunnel`] | a tunnel against socat and plain TCP |
//! | [`doctor`] | how long the doctor takes; migrations over a path that passes less than its ends |
//! | [`drains`] | a host that is emptied, against fixed numbers of migrations at once |
//! | [`far`] | migrations beside a link that is far away or loses packets |
//! | [`wires`], [`rdma_wires`] | the ping-pong against one in plain C; RDMA against perftest |
//! | [`adapter`] | a first look at an RDMA adapter between two real hosts |
//! | [`site`], [`pair`], [`moving`], [`transcript`] | two hosts with agents; one guest between them; one migration; a guest's console over all its moves |
//! | [`cpu`], [`statistics`], [`random`], [`output`], [`interrupt`] | small tools |
//!
//! All of it needs root and what `lab/install.sh` installs. docs/benchmarking.md says how to run it, docs/benchmarks.md
//! has results.

#![forbid(unsafe_code)]

mod adapter;
mod alone;
mod cpu;
mod disks;
mod doctor;
mod drains;
mod far;
mod faults;
mod interrupt;
mod libvirt;
mod moving;
mod output;
mod pair;
mod random;
mod rdma_wires;
mod run;
mod shuttle;
mod site;
mod soak;
mod statistics;
mod storage_share;
mod transcript;
mod tunnel;
mod wires;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(name = "linerate-bench", version, about = "Compares, soaks and harms Linerate on the lab's hosts")]
struct Arguments {
    /// Print all results as one JSON document on standard output
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare with QEMU's own migration, interleaved
    Run(run::Flags),
    /// Move guests back and forth and look for damage
    Soak(soak::Flags),
    /// Move guests by QEMU's own migration, without Linerate, and count those it harms
    Alone(alone::Flags),
    /// Cut links and kill everything at every step
    Faults(faults::Flags),
    /// Move libvirt's domains back and forth, a link lost at a random instant of each move
    Libvirt(shuttle::Flags),
    /// Move a guest with a disk that is not shared back and forth, a link lost at a random instant of each move
    Disks(disks::Flags),
    /// Hold what links carry of memory and of a disk against the share that was asked for
    StorageShare(storage_share::Flags),
    /// Compare a tunnel with socat and plain TCP, interleaved
    Tunnel(tunnel::Flags),
    /// Time the doctor, and migrations without and with its advice
    Doctor(doctor::Flags),
    /// Empty a host: `linerate drain` against fixed numbers of migrations at once, interleaved
    Drains(drains::Flags),
    /// Move a guest beside a link that is far away or loses packets, and over the good link alone
    Far(far::Flags),
    /// Hold `linerate bench pingpong` against a plain C ping-pong
    Wires(wires::Flags),
    /// Hold `linerate bench` over RDMA against perftest, in the RDMA lab's machine
    RdmaWires(rdma_wires::Flags),
    /// Look at an RDMA adapter: TCP and more and more queue pairs to another host, in turns
    Adapter(adapter::Flags),
}

/// What every kind of run is given.
#[derive(Debug, Clone, Args)]
struct Common {
    /// The linerate binary under test
    #[arg(long, value_name = "BIN")]
    linerate: PathBuf,
    /// Folder for results; made if it is not there
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ran = interrupt::listen().and_then(|()| match arguments.command {
        Command::Run(flags) => run::run(flags, arguments.json),
        Command::Soak(flags) => soak::run(flags, arguments.json),
        Command::Alone(flags) => alone::run(flags, arguments.json),
        Command::Faults(flags) => faults::run(flags, arguments.json),
        Command::Libvirt(flags) => shuttle::run(&flags, "libvirt", libvirt::Domains::new, arguments.json),
        Command::Disks(flags) => disks::run(&flags, arguments.json),
        Command::StorageShare(flags) => storage_share::run(&flags, arguments.json),
        Command::Tunnel(flags) => tunnel::run(flags, arguments.json),
        Command::Drains(flags) => drains::run(&flags, arguments.json),
        Command::Far(flags) => far::run(&flags, arguments.json),
        Command::Doctor(flags) => doctor::run(flags, arguments.json),
        Command::Wires(flags) => wires::run(flags, arguments.json),
        Command::RdmaWires(flags) => rdma_wires::run(flags, arguments.json),
        Command::Adapter(flags) => adapter::run(flags, arguments.json),
    });
    match ran {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(_) if interrupt::asked() => ExitCode::from(130),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

impl Common {
    /// An absolute path of a binary that is there: agents are started from elsewhere.
    fn binary(&self) -> anyhow::Result<PathBuf> {
        use anyhow::Context;
        self.linerate
            .canonicalize()
            .with_context(|| format!("{} is not there; `make build` builds it", self.linerate.display()))
    }
}
