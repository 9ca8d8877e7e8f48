//! `linerate-lab rdma`: the RDMA lab by hand.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use linerate_lab::{Cache, LabError, Machine, MachineKernel, Side};

#[derive(Subcommand)]
pub enum Rdma {
    /// Run a command of this host in a virtual machine with soft-RoCE, and end with its exit code.
    Run(Run),
    /// Fetch the kernels and build the image.
    Image,
}

#[derive(Args)]
pub struct Run {
    /// Which Debian kernel: 6.1, or 6.12 of the backports.
    #[arg(long, default_value = "6.12", value_parser = kernel)]
    kernel: MachineKernel,
    /// Boot Debian with systemd (lab/install.sh system-root system-image) in place of the RDMA lab's image.
    #[arg(long)]
    debian: bool,
    /// Memory, MiB.
    #[arg(long, default_value_t = 1024)]
    memory: u64,
    /// Emulated CPUs.
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Links to make first, with soft-RoCE on both ends: lNa 10.9.N.1 rxNa, lNb 10.9.N.2 rxNb.
    #[arg(long, default_value_t = 2)]
    links: u32,
    /// Join two machines: links end in sockets in this folder, which both are given. Device lN has rxN; --side sets the
    /// address.
    #[arg(long, requires = "side")]
    wires: Option<PathBuf>,
    /// The end of the links that this machine has: a (10.9.N.1) or b (10.9.N.2).
    #[arg(long, requires = "wires", value_parser = side)]
    side: Option<Side>,
    /// Largest packet on the links, bytes: 9000 gives RoCE its 4096, 1500 gives 1024.
    #[arg(long, default_value_t = 9000)]
    mtu: u32,
    /// A folder that the machine sees read-only under the same path, such as target; /usr is always there.
    #[arg(long)]
    share: Vec<PathBuf>,
    /// A folder that the machine may write, under the same path.
    #[arg(long)]
    results: Option<PathBuf>,
    /// A variable for the command: NAME=VALUE.
    #[arg(long)]
    env: Vec<String>,
    /// Seconds for boot and command together.
    #[arg(long, default_value_t = 600)]
    deadline: u64,
    /// Program and its arguments, after `--`.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn kernel(series: &str) -> Result<MachineKernel, LabError> {
    let unknown = || LabError::Unknown { kind: "kernel (6.1 or 6.12)", name: series.to_owned() };
    MachineKernel::from_series(series).ok_or_else(unknown)
}

fn side(name: &str) -> Result<Side, LabError> {
    let unknown = || LabError::Unknown { kind: "side (a or b)", name: name.to_owned() };
    [Side::A, Side::B].into_iter().find(|side| side.name() == name).ok_or_else(unknown)
}

pub fn run(command: &Rdma) -> Result<ExitCode> {
    match command {
        Rdma::Image => {
            Cache::locate().install(&["rdma-kernel", "rdma-image"])?;
            Ok(ExitCode::SUCCESS)
        }
        Rdma::Run(options) => in_machine(options),
    }
}

fn in_machine(options: &Run) -> Result<ExitCode> {
    let mut machine = Machine::new(options.kernel, &options.command)
        .memory_mb(options.memory)
        .cpus(options.cpus)
        .links(options.links)
        .mtu(options.mtu)
        .deadline(Duration::from_secs(options.deadline));
    if options.debian {
        machine = machine.debian();
    }
    if let (Some(folder), Some(side)) = (&options.wires, options.side) {
        machine = machine.wires(&absolute(folder)?, side);
    }
    for folder in &options.share {
        machine = machine.share(&absolute(folder)?);
    }
    if let Some(folder) = &options.results {
        machine = machine.results(&absolute(folder)?);
    }
    for variable in &options.env {
        let (name, value) = variable.split_once('=').context("--env wants NAME=VALUE")?;
        machine = machine.env(name, value);
    }
    let code = machine.stream(&mut std::io::stdout(), &mut std::io::stderr())?;
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn absolute(folder: &Path) -> Result<PathBuf> {
    folder.canonicalize().with_context(|| format!("cannot share {}", folder.display()))
}
