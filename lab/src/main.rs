//! `linerate-lab`: labs for people, by hand.

#![forbid(unsafe_code)]

mod commands;
mod demo;
mod rdma;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "linerate-lab",
    version,
    about = "Hosts in network namespaces, links that can be shaped and cut, guests that check themselves"
)]
struct Arguments {
    /// Print facts as JSON, one document.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make a lab and keep it until Ctrl-C or `down`.
    Up(Up),
    /// Remove a lab: ends its `up`.
    Down(Which),
    /// List labs.
    List,
    /// Remove what labs of dead processes left behind.
    Sweep,
    /// Run a command in a host.
    Exec(Exec),
    /// Take a link down on all hosts, or silently, or in one direction.
    Cut(Cut),
    /// Take back cut and slow.
    Restore(Link),
    /// Give a link another rate.
    Slow(Slow),
    /// Listen to a guest's heartbeat and say what the network saw of it.
    Observe(Observe),
    /// Write a disk image for the self-checking guest.
    Mkdisk(Mkdisk),
    /// Build the guest's initramfs; fetches the kernel first when it is not there.
    GuestImage,
    /// Move a real guest between two hosts, pull a cable on the way, and show what became of it. About a minute.
    Demo(demo::Options),
    /// The RDMA lab: a virtual machine with soft-RoCE.
    #[command(subcommand)]
    Rdma(rdma::Rdma),
}

/// Which lab a command is about.
#[derive(Args)]
struct Which {
    /// Name of the lab; not needed while there is only one.
    #[arg(long)]
    lab: Option<String>,
}

#[derive(Args)]
struct Up {
    /// Rates in Mb/s: 2x2500, or 2500,1000, or 2500/1000 (there/back), or just a number of unshaped links.
    #[arg(long, default_value = "2x2500")]
    links: String,
    /// Largest packet on the links, bytes.
    #[arg(long, default_value_t = linerate_lab::link::DEFAULT_MTU)]
    mtu: u32,
    /// Number of hosts.
    #[arg(long, default_value_t = 2)]
    hosts: usize,
    /// Upper bound of guest RAM per host, MiB.
    #[arg(long, default_value_t = 8192)]
    ram_mb: u64,
}

#[derive(Args)]
struct Exec {
    #[command(flatten)]
    which: Which,
    /// Host: a, b, … or obs for the observer's namespace.
    host: String,
    /// Program and its arguments, after `--`.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Args)]
struct Link {
    #[command(flatten)]
    which: Which,
    /// Number of the link, from 0.
    link: usize,
}

#[derive(Args)]
struct Cut {
    #[command(flatten)]
    link: Link,
    /// Lose packets without a sign instead of taking ports down.
    #[arg(long)]
    silent: bool,
    /// Lose only what this host sends (a, b, …), without a sign.
    #[arg(long)]
    from: Option<String>,
}

#[derive(Args)]
struct Slow {
    #[command(flatten)]
    link: Link,
    /// New rate, Mb/s.
    mbps: u64,
}

#[derive(Args)]
struct Observe {
    #[command(flatten)]
    which: Which,
    /// UDP port that guests send to.
    #[arg(long, default_value_t = 7000)]
    port: u16,
    /// Number of the guest, from 0.
    #[arg(long, default_value_t = 0)]
    guest: usize,
    /// Stop after so many seconds; Ctrl-C otherwise.
    #[arg(long)]
    seconds: Option<u64>,
    /// Write every packet to this file, one JSON document per line.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Args)]
struct Mkdisk {
    /// The image to write.
    file: PathBuf,
    /// Size, MiB.
    #[arg(long, default_value_t = 256)]
    mb: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match commands::run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("linerate-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
