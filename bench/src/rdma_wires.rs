//! `linerate bench` over RDMA against perftest, on the same soft-RoCE devices, in the same machine, in the same
//! minutes. Both take turns, and begin in turns. The machine is emulated: its speeds mean nothing, ratios within a pair
//! do.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use linerate_lab::console::value;
use linerate_lab::{Machine, MachineKernel};
use serde::Serialize;
use serde_json::Value;

use crate::output::{replace, replace_json};
use crate::statistics::{Spread, spread};
use crate::{Common, interrupt};

/// Of a message whose latency is measured.
const SHORT_BYTES: u32 = 4;
/// Of a message whose bandwidth is measured.
const LONG_BYTES: u32 = 4 << 20;
/// perftest's repetitions: of a short message as many as Linerate's; of a long one what takes about as long as
/// Linerate's stream.
const SHORT_REPETITIONS: u32 = 3000;
const LONG_REPETITIONS: u32 = 50;
/// Boot, and one pair on a machine that shares its CPUs with others.
const BOOT: Duration = Duration::from_secs(120);
const PAIR: Duration = Duration::from_secs(240);

#[derive(Debug, Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// How often each of the two measures
    #[arg(long, default_value_t = 7)]
    rounds: u32,
}

/// What both measured in one turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Round {
    /// Half a round trip of 4 bytes, µs: Linerate's ping-pong, and ib_write_lat's average.
    linerate_latency_us: f64,
    perftest_latency_us: f64,
    /// A stream one way, MB/s: `bench bandwidth`, and ib_write_bw's average.
    linerate_stream_mb_s: f64,
    perftest_stream_mb_s: f64,
    /// Linerate's ping-pong of 4 MiB, MB/s: one message at a time.
    linerate_pingpong_mb_s: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    kernel: &'static str,
    rounds: Vec<Round>,
}

/// True if latency and bandwidth are within the targets, by the median of the pairs.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    ensure!(flags.rounds > 0, "--rounds must be at least 1");
    let binary = flags.common.binary()?;
    let folder = binary.parent().context("the binary is in no folder")?;
    let kernel = MachineKernel::Backports;
    let script = script(&binary.display().to_string(), flags.rounds);
    let machine = Machine::new(kernel, ["bash", "-c", &script]).links(1).share(folder);
    let output = machine.deadline(BOOT + PAIR * flags.rounds).run()?;
    interrupt::check()?;
    ensure!(output.code == 0, "the machine's command failed ({}): {}", output.code, output.stderr);
    let rounds = parse(&output.stdout)?;
    ensure!(rounds.len() == flags.rounds as usize, "rounds are missing: {}", output.stdout);
    let results = Results { kernel: kernel.series(), rounds };
    let (table, good) = table(&results)?;
    replace(&flags.common.out.join("rdma-wires.md"), &table)?;
    replace_json(&flags.common.out.join("rdma-wires.json"), &results)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        println!("{table}");
    }
    Ok(good)
}

/// Lines that [`parse`] reads. The kernel resolves a neighbour for rdma_cm only slowly if it was not asked for it
/// before.
fn script(linerate: &str, rounds: u32) -> String {
    let bench = format!("'{linerate}' bench");
    let over = "--local 10.9.0.2 --transport rdma --json";
    let repetitions = format!("--repetitions {SHORT_REPETITIONS}");
    format!(
        "set -eu
        ping -c 1 -W 5 10.9.0.2 >/dev/null
        one_line() {{ tr -d '\\n'; echo; }}
        ours() {{
            {bench} pingpong --sizes {SHORT_BYTES},{LONG_BYTES} {repetitions} {over} | one_line
            {bench} bandwidth --channels 1 --time 3s {over} | one_line
        }}
        theirs() {{
            rdma-perf lat rx0a rx0b 10.9.0.2 {SHORT_BYTES} {SHORT_REPETITIONS}
            rdma-perf bw rx0a rx0b 10.9.0.2 {LONG_BYTES} {LONG_REPETITIONS}
        }}
        for round in $(seq {rounds}); do
            echo ROUND
            if [ $((round % 2)) = 1 ]; then ours; theirs; else theirs; ours; fi
        done"
    )
}

/// Both sides' figures of every round, in whichever order they came.
fn parse(text: &str) -> anyhow::Result<Vec<Round>> {
    let mut rounds: Vec<Round> = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if line == "ROUND" {
            rounds.push(Round::default());
            continue;
        }
        let round = rounds.last_mut().context("figures before the first round")?;
        round.take(line).with_context(|| format!("output of the machine: {line}"))?;
    }
    ensure!(rounds.iter().all(Round::is_whole), "a figure is missing: {rounds:?}");
    Ok(rounds)
}

impl Round {
    fn take(&mut self, line: &str) -> anyhow::Result<()> {
        if let Some(figure) = value(line, "lat_us_average") {
            self.perftest_latency_us = figure.parse()?;
        } else if let Some(figure) = value(line, "bw_mb_s") {
            self.perftest_stream_mb_s = figure.parse()?;
        } else {
            self.take_report(&serde_json::from_str(line)?)?;
        }
        Ok(())
    }

    fn take_report(&mut self, report: &Value) -> anyhow::Result<()> {
        let figure = |path: &str| report.pointer(path).and_then(Value::as_f64);
        if let Some(latency) = figure("/pingpong/0/rows/0/latency_us") {
            self.linerate_latency_us = latency;
            self.linerate_pingpong_mb_s = figure("/pingpong/0/rows/1/mbps").context("one size only")? / 8.0;
        } else if let Some(mbps) = figure("/bandwidth/0/sum/out_mbps") {
            self.linerate_stream_mb_s = mbps / 8.0;
        } else {
            bail!("a report without figures");
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        let figures = [
            self.linerate_latency_us,
            self.perftest_latency_us,
            self.linerate_stream_mb_s,
            self.perftest_stream_mb_s,
            self.linerate_pingpong_mb_s,
        ];
        figures.iter().all(|figure| *figure > 0.0)
    }
}

fn table(results: &Results) -> anyhow::Result<(String, bool)> {
    let mut text = format!(
        "Median (least to most) of {} rounds, and the median of the pairs' ratios. One link of soft-RoCE in an emulated \
         machine, kernel {}.\n\n| | linerate | perftest | linerate / perftest |\n|---|---|---|---|\n",
        results.rounds.len(),
        results.kernel
    );
    let mut row = |what: &str, ours: fn(&Round) -> f64, theirs: fn(&Round) -> f64| {
        let of =
            |figure: &dyn Fn(&Round) -> f64| spread(results.rounds.iter().map(figure)).context("no rounds");
        let ratio = of(&|round| ours(round) / theirs(round))?;
        text.push_str(&format!(
            "| {what} | {} | {} | {} |\n",
            cell(of(&ours)?, 1),
            cell(of(&theirs)?, 1),
            cell(ratio, 3)
        ));
        anyhow::Ok(ratio.median)
    };
    let latency =
        row("latency, 4 B, µs", |round| round.linerate_latency_us, |round| round.perftest_latency_us)?;
    let stream =
        row("stream one way, MB/s", |round| round.linerate_stream_mb_s, |round| round.perftest_stream_mb_s)?;
    let by_message = |round: &Round| round.linerate_pingpong_mb_s;
    row("ping-pong, 4 MiB, MB/s, against the stream", by_message, |round| round.perftest_stream_mb_s)?;
    Ok((text, latency <= 1.1 && stream >= 0.95))
}

fn cell(spread: Spread, digits: usize) -> String {
    let Spread { min, median, max, .. } = spread;
    format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERFTEST: &str = "lat_us_min=1 lat_us_typical=2 lat_us_average=100.0\nbw_mb_s=40.0\n";

    fn ours(latency: f64, gbit: f64) -> String {
        format!(
            "{{\"pingpong\":[{{\"rows\":[{{\"latency_us\":{latency}}},{{\"mbps\":288.0}}]}}],\"bandwidth\":[]}}\n\
             {{\"pingpong\":[],\"bandwidth\":[{{\"sum\":{{\"out_mbps\":{}}}}}]}}\n",
            gbit * 1000.0
        )
    }

    #[test]
    fn rounds_are_read_in_either_order_and_judged_by_their_pairs() {
        let text = format!("ROUND\n{}{PERFTEST}ROUND\n{PERFTEST}{0}", ours(105.0, 0.32));
        let results = Results { kernel: "6.12", rounds: parse(&text).unwrap() };
        assert_eq!(results.rounds.len(), 2);
        assert_eq!(results.rounds[0], results.rounds[1]);
        let (table, good) = table(&results).unwrap();
        assert!(
            good && table.contains("| 105.0 (105.0 to 105.0) | 100.0 (100.0 to 100.0) | 1.050"),
            "{table}"
        );
        assert!(table.contains("| 40.0 (40.0 to 40.0) | 40.0 (40.0 to 40.0) | 1.000"), "{table}");
    }

    #[test]
    fn what_is_slower_than_the_target_is_not_good() {
        for (latency, gbit) in [(111.0, 0.32), (100.0, 0.30)] {
            let rounds = parse(&format!("ROUND\n{}{PERFTEST}", ours(latency, gbit))).unwrap();
            assert!(!table(&Results { kernel: "6.12", rounds }).unwrap().1, "{latency} µs, {gbit} Gb/s");
        }
    }

    #[test]
    fn figures_that_are_missing_are_an_error() {
        for text in [PERFTEST.to_owned(), format!("ROUND\n{PERFTEST}"), "ROUND\nnonsense\n".to_owned()] {
            assert!(parse(&text).is_err(), "{text}");
        }
    }
}
