//! `linerate bench pingpong` against a plain C ping-pong on the same link in the same minutes: what Linerate's
//! measuring costs itself. The two alternate, and begin in turns.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use linerate_lab::{Agent, AgentOptions, Lab, LinkSpec};
use serde::Serialize;

use crate::output::{Progress, replace, replace_json};
use crate::statistics::{Spread, spread};
use crate::{Common, interrupt};

/// Latency, the middle, bandwidth.
const SIZES: [u32; 3] = [4, 65_536, 4 << 20];
const PORT: &str = "5201";

#[derive(Debug, Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// How often each of the two measures
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Most repetitions of a size; long messages are repeated less often, by IMB's rule of 40 MiB
    #[arg(long, default_value_t = 10_000)]
    repetitions: u32,
}

/// Half a round trip in microseconds, of each size.
#[derive(Debug, Clone, Serialize)]
struct Round {
    linerate_us: Vec<f64>,
    c_us: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Results {
    sizes: [u32; 3],
    repetitions: Vec<u32>,
    rounds: Vec<Round>,
}

/// True if every size is within 5 % of the C program, by the median of the pairs.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    let binary = flags.common.binary()?;
    std::fs::create_dir_all(&flags.common.out)?;
    let program = compile(&flags.common.out)?;
    let lab = Lab::builder().link(LinkSpec::unshaped()).build()?;
    let options = || AgentOptions { binary: Some(binary.clone()), ..AgentOptions::default() };
    let agents: Vec<Agent> =
        lab.hosts().iter().map(|host| Agent::start(host, options())).collect::<Result<_, _>>()?;
    let mut progress = Progress::new(flags.rounds)?;
    let (_, repetitions) = linerate(&agents, flags.repetitions)?;
    let mut rounds = Vec::new();
    for number in 0..flags.rounds {
        interrupt::check()?;
        progress.doing("linerate and C in turns");
        let ours = || linerate(&agents, flags.repetitions).map(|(us, _)| us);
        let theirs = || c(&lab, &program, &repetitions);
        let round = if number % 2 == 0 {
            let linerate_us = ours()?;
            Round { linerate_us, c_us: theirs()? }
        } else {
            let c_us = theirs()?;
            Round { linerate_us: ours()?, c_us }
        };
        progress.done(&format!("4 B: linerate {:.2} µs, C {:.2} µs", round.linerate_us[0], round.c_us[0]));
        rounds.push(round);
    }
    let results = Results { sizes: SIZES, repetitions, rounds };
    let (table, good) = table(&results)?;
    replace(&flags.common.out.join("wires.md"), &table)?;
    replace_json(&flags.common.out.join("wires.json"), &results)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        println!("{table}");
    }
    Ok(good)
}

fn compile(folder: &Path) -> anyhow::Result<std::path::PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c/pingpong.c");
    let program = folder.canonicalize()?.join("pingpong");
    let done = Command::new("gcc").args(["-O2", "-Wall", "-o"]).arg(&program).arg(source).status();
    ensure!(done.context("gcc cannot be started")?.success(), "gcc failed");
    Ok(program)
}

fn linerate(agents: &[Agent], repetitions: u32) -> anyhow::Result<(Vec<f64>, Vec<u32>)> {
    let [first, second] = agents else { bail!("two agents are needed") };
    let sizes = SIZES.map(|size| size.to_string()).join(",");
    let mut client = first.client();
    client.args(["bench", "pingpong", "--json", "--to", &second.address(0).to_string(), "--sizes", &sizes]);
    let output = client.args(["--repetitions", &repetitions.to_string()]).output()?;
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).context("no JSON")?;
    let rows = report.pointer("/pingpong/0/rows").and_then(serde_json::Value::as_array);
    let rows = rows.with_context(|| format!("linerate bench: {report}"))?;
    let us = rows.iter().filter_map(|row| row["latency_us"].as_f64()).collect::<Vec<f64>>();
    let repetitions = rows.iter().filter_map(|row| u32::try_from(row["repetitions"].as_u64()?).ok());
    let repetitions: Vec<u32> = repetitions.collect();
    ensure!(us.len() == SIZES.len() && repetitions.len() == SIZES.len(), "linerate bench: {report}");
    Ok((us, repetitions))
}

/// A server that does not outlive its handle.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // Errors mean that it has ended already, as intended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn c(lab: &Lab, program: &Path, repetitions: &[u32]) -> anyhow::Result<Vec<f64>> {
    let (source, destination) = (lab.host(0)?, lab.host(1)?);
    let address = destination.address(0).to_string();
    let mut server = destination.command(program);
    server.args(["server", &address, PORT]).stdin(Stdio::null());
    let _server = Server(server.spawn()?);
    let jobs: Vec<String> =
        SIZES.iter().zip(repetitions).map(|(size, count)| format!("{size}:{count}")).collect();
    let end = Instant::now() + Duration::from_secs(10);
    let output = loop {
        let mut client = source.command(program);
        let output = client.args(["client", &address, PORT]).args(&jobs).output()?;
        if output.status.success() || Instant::now() > end {
            break output;
        }
        // The server does not listen yet.
        std::thread::sleep(Duration::from_millis(20));
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let us: Vec<f64> = text.lines().filter_map(|line| line.split(' ').nth(2)?.parse().ok()).collect();
    ensure!(us.len() == SIZES.len(), "the C ping-pong: {text}{}", String::from_utf8_lossy(&output.stderr));
    Ok(us)
}

fn table(results: &Results) -> anyhow::Result<(String, bool)> {
    let mut text = format!(
        "Half a round trip in µs, median (least to most) of {} rounds, and the median of the pairs' ratios.\n\n\
         | bytes | repetitions | linerate | plain C | linerate / C |\n|---|---|---|---|---|\n",
        results.rounds.len()
    );
    let mut good = true;
    for (index, (size, count)) in results.sizes.iter().zip(&results.repetitions).enumerate() {
        let figures = |of: fn(&Round) -> &Vec<f64>| {
            spread(results.rounds.iter().filter_map(|round| of(round).get(index).copied()))
                .context("no rounds")
        };
        let pairs = results
            .rounds
            .iter()
            .filter_map(|round| Some(round.linerate_us.get(index)? / round.c_us.get(index)?));
        let ratio = spread(pairs).context("no rounds")?;
        good &= ratio.median <= 1.05;
        let (ours, theirs) = (figures(|round| &round.linerate_us)?, figures(|round| &round.c_us)?);
        text.push_str(&format!(
            "| {size} | {count} | {} | {} | {} |\n",
            cell(ours, 2),
            cell(theirs, 2),
            cell(ratio, 3)
        ));
    }
    Ok((text, good))
}

fn cell(spread: Spread, digits: usize) -> String {
    let Spread { min, median, max, .. } = spread;
    format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_count_and_a_slow_size_is_not_good() {
        let round =
            |ours: f64| Round { linerate_us: vec![ours, 50.0, 900.0], c_us: vec![10.0, 50.0, 1000.0] };
        let results = |ours: f64| Results {
            sizes: SIZES,
            repetitions: vec![1000, 640, 10],
            rounds: vec![round(ours), round(ours), round(99.0)],
        };
        let (text, good) = table(&results(10.4)).unwrap();
        assert!(
            good && text.contains("| 4 | 1000 | 10.40 (10.40 to 99.00) | 10.00 (10.00 to 10.00) | 1.040"),
            "{text}"
        );
        assert!(!table(&results(10.6)).unwrap().1);
    }
}
