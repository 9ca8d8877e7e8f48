//! What a stranger sees first: a real guest moves between two hosts, a cable is pulled on the way, and everybody who
//! could have noticed is asked.
//!
//! The guest is moved by `linerate migrate` itself, with its own display. The demo only plays the part of the world:
//! the machine room that loses a cable, the client on the network that waits for the guest, and the judge at the end.

mod cable;
mod findings;
mod journey;
mod screen;
mod stage;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Args;

use findings::Findings;
use journey::Journey;
use screen::Screen;
use stage::Stage;

/// What may be chosen about the demo.
#[derive(Args)]
pub struct Options {
    /// The linerate binary [default: beside this program, or LINERATE_BIN].
    #[arg(long)]
    linerate: Option<PathBuf>,
    /// Guest memory that is filled with incompressible data, MiB.
    #[arg(long, default_value_t = 1200, value_parser = clap::value_parser!(u64).range(64..=16384))]
    memory_mb: u64,
    /// Rate of each of the two links, Mb/s. The copy should last some seconds, or the cable is pulled too late.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=100_000))]
    rate_mbps: u64,
    /// Leave out the way back.
    #[arg(long)]
    one_way: bool,
}

/// How long the guest is watched after it arrived.
const PASSES_AFTER: u64 = 2;
/// What the network sees of the guest while nothing is done to it, to compare with.
const QUIET: Duration = Duration::from_secs(2);

/// Plays the demo. The exit code is 0 if all that it claims was so.
pub fn run(options: &Options) -> Result<ExitCode> {
    let mut screen = Screen::new();
    let interrupt = stage::Interrupt::watch()?;
    screen.title(
        "Linerate: a running virtual machine moves to another host; a cable is pulled on the way.",
        "Two agents, QEMU, real sockets; the hosts are network namespaces, the cables veth pairs.",
    );
    let outcome = play(options, &mut screen, &interrupt);
    if interrupt.came() {
        screen.note("Stopped on request. Everything was removed.");
        return Ok(ExitCode::from(130));
    }
    let findings = outcome?;
    screen.verdict(&findings);
    Ok(if findings.good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn play(options: &Options, screen: &mut Screen, interrupt: &stage::Interrupt) -> Result<Findings> {
    let mut stage = Stage::set(options, screen, interrupt)?;
    let mut findings = Findings::default();

    screen
        .step("The guest is moved from a to b. A third of the way through, the cable of link l1 is pulled.");
    let there = Journey { from: 0, to: 1, pull_cable: true };
    let seen = there.run(&mut stage, screen)?;
    screen.step("What happened?");
    findings.judge(&stage, screen, seen)?;

    if !options.one_way {
        screen.step("And back to a, this time with both cables left alone.");
        let back = Journey { from: 1, to: 0, pull_cable: false };
        let seen = back.run(&mut stage, screen)?;
        screen.step("And now?");
        findings.judge(&stage, screen, seen)?;
    }
    stage.strike();
    Ok(findings)
}
