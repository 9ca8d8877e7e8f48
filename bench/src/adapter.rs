//! A first look at an RDMA adapter: `linerate bench` against another host's agent, over TCP and over RDMA with more and
//! more queue pairs, in turns. docs/rdma-hardware.md says what to read out of it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use clap::Args;
use linerate_api::{BenchDirection, BenchReport, BenchTransport};
use serde::Serialize;

use crate::output::{Progress, replace, replace_json};
use crate::statistics::spread;
use crate::{Common, interrupt};

/// Queue pairs for each link. A migration takes three for each 100 Gb/s.
const QUEUE_PAIRS: [u16; 6] = [1, 2, 3, 4, 6, 8];

#[derive(Debug, Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// The other host's agent
    #[arg(long, value_name = "HOST[:PORT]")]
    to: String,
    /// The link to measure, such as 10.0.1.0/24 [default: all that the hosts share]
    #[arg(long, value_name = "CIDR")]
    link: Option<String>,
    /// Socket of this host's agent
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How often each is measured
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// How long each direction takes
    #[arg(long, default_value = "3s")]
    time: String,
}

/// What is measured in turns: a transport with so many connections for each link, 0 for as many as a migration opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Way {
    transport: BenchTransport,
    channels: u16,
}

/// One measurement: its report, or why there is none.
#[derive(Debug, Clone, Serialize)]
struct Turn {
    way: Way,
    report: Result<BenchReport, String>,
}

fn ways() -> Vec<Way> {
    let rdma = |channels| Way { transport: BenchTransport::Rdma, channels };
    let tcp = |channels| Way { transport: BenchTransport::Tcp, channels };
    [tcp(0), tcp(1)].into_iter().chain([rdma(0)]).chain(QUEUE_PAIRS.map(rdma)).collect()
}

/// True if every measurement came to its end.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    ensure!(flags.rounds > 0, "--rounds must be at least 1");
    let binary = flags.common.binary()?;
    let ways = ways();
    let mut progress = Progress::new(ways.len() * flags.rounds as usize)?;
    let mut turns: Vec<Turn> = Vec::new();
    for round in 0..flags.rounds as usize {
        // Each begins a round once, so that none is always behind the same other.
        for place in 0..ways.len() {
            interrupt::check()?;
            let Some(&way) = ways.get((place + round) % ways.len()) else { continue };
            progress.doing(&way.name());
            let report = measure(&binary, &flags, way).map_err(|error| format!("{error:#}"));
            let error_text = report.as_ref().err().map_or_else(String::new, |error| format!(": {error}"));
            progress.done(&format!("{}{error_text}", way.name()));
            turns.push(Turn { way, report });
        }
    }
    let table = table(&ways, &turns);
    replace(&flags.common.out.join("adapter.md"), &table)?;
    replace_json(&flags.common.out.join("adapter.json"), &turns)?;
    match json {
        true => println!("{}", serde_json::to_string_pretty(&turns)?),
        false => println!("{table}"),
    }
    Ok(turns.iter().all(|turn| turn.report.is_ok()))
}

impl Way {
    fn name(self) -> String {
        let channels = match self.channels {
            0 => "as a migration".to_owned(),
            count => format!("{count} a link"),
        };
        format!("{}, {channels}", self.transport.text())
    }
}

fn measure(binary: &std::path::Path, flags: &Flags, way: Way) -> anyhow::Result<BenchReport> {
    let mut command = Command::new(binary);
    command.args(["bench", "bandwidth", "--json", "--quiet", "--to", &flags.to, "--time", &flags.time]);
    command.args(["--transport", &way.transport.text().to_lowercase()]);
    if way.channels > 0 {
        command.args(["--channels", &way.channels.to_string()]);
    }
    if let Some(link) = &flags.link {
        command.args(["--links", link]);
    }
    if let Some(socket) = &flags.socket {
        command.arg("--socket").arg(socket);
    }
    let output = command.output().with_context(|| format!("cannot run {}", binary.display()))?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("what was printed is no report")
}

/// A row for each way: medians, with the least and the most.
fn table(ways: &[Way], turns: &[Turn]) -> String {
    let mut text = String::from(
        "| transport, connections | out, Gb/s | in, Gb/s | both, Gb/s each way | CPU s/s per Gb/s, out | failed |\n|---|---|---|---|---|---|\n",
    );
    for way in ways {
        let mine = || turns.iter().filter(|turn| turn.way == *way);
        let reports: Vec<&BenchReport> = mine().filter_map(|turn| turn.report.as_ref().ok()).collect();
        let of = |direction: BenchDirection, figure: fn(&linerate_api::Bandwidth) -> f64| {
            let all = reports.iter().flat_map(|report| &report.bandwidth);
            cell(all.filter(|one| one.direction == direction).map(figure))
        };
        let out = of(BenchDirection::Out, |one| one.sum.out_mbps / 1e3);
        let back = of(BenchDirection::In, |one| one.sum.in_mbps / 1e3);
        let both = of(BenchDirection::Both, |one| f64::midpoint(one.sum.out_mbps, one.sum.in_mbps) / 1e3);
        let cpu = of(BenchDirection::Out, |one| one.cpu_s_per_gbit);
        let failed = mine().count() - reports.len();
        text += &format!("| {} | {out} | {back} | {both} | {cpu} | {failed} |\n", way.name());
    }
    text
}

fn cell(figures: impl Iterator<Item = f64>) -> String {
    spread(figures).map_or_else(
        || "-".to_owned(),
        |spread| format!("{:.3} ({:.3} to {:.3})", spread.median, spread.min, spread.max),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_row_and_what_failed_is_counted() {
        let ways = ways();
        let turns = [Turn { way: ways[2], report: Err("no link".into()) }];
        let table = table(&ways, &turns);
        assert_eq!(table.lines().count(), 2 + ways.len());
        assert!(table.contains("| RDMA, as a migration | - | - | - | - | 1 |"), "{table}");
        assert!(table.contains("| TCP, 1 a link | - | - | - | - | 0 |"), "{table}");
    }
}
