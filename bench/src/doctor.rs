//! How long the doctor takes: two hosts with four links in full and in short form, with two links in short form, 64
//! saved inventories compared. And what its advice is worth where a bridge in the middle passes less than the hosts
//! send ([`jumbo`]), also to QEMU by itself ([`alone`]). Judges only that guests arrive, and no time.

mod alone;
mod jumbo;
mod survey;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};
use linerate_lab::{Agent, AgentOptions, Lab, LinkSpec};
use serde::Serialize;

use crate::output::{Progress, replace_json};
use crate::statistics::{Spread, spread};
use crate::{Common, interrupt};

/// What issue and documentation speak of.
const LINKS: usize = 4;
const FEW_LINKS: usize = 2;
const SAVED: usize = 64;
/// What is timed, and how long it may take.
const TIMED: [(&str, Option<f64>); 4] = [
    ("two hosts, four links, in full", Some(20.0)),
    ("the same, `--quick`", Some(1.0)),
    ("two hosts, two links, `--quick`", Some(1.0)),
    ("64 saved inventories", Some(1.0)),
];

#[derive(Debug, clap::Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// How often each is done
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Rate of each link, Mb/s
    #[arg(long, default_value_t = 2500)]
    mbps: u64,
    /// Leave the migrations out
    #[arg(long)]
    no_migrations: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    target_s: Option<f64>,
    seconds: Option<Spread>,
}

#[derive(Debug, Serialize)]
struct Results {
    doctor: Vec<Row>,
    migrations: Vec<jumbo::Row>,
    /// QEMU's own, over one link.
    alone: Vec<alone::Row>,
}

/// Does all of it, and prints medians. False if a guest did not arrive although a link was good; no time is judged.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    let binary = flags.common.binary()?;
    let steps = TIMED.len() + if flags.no_migrations { 0 } else { jumbo::STATES + alone::COUNT };
    let mut progress = Progress::new(flags.rounds * steps)?;
    let doctor = timings(&flags, &binary, &mut progress)?;
    let migrations = match flags.no_migrations {
        true => Vec::new(),
        false => jumbo::run(&binary, flags.rounds, &mut progress)?,
    };
    let alone = match flags.no_migrations {
        true => Vec::new(),
        false => alone::run(flags.rounds, &mut progress)?,
    };
    let results = Results { doctor, migrations, alone };
    replace_json(&flags.common.out.join("doctor.json"), &results)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        let tables =
            [table(&results.doctor), jumbo::table(&results.migrations), alone::table(&results.alone)];
        print!("{}", tables.join("\n"));
    }
    Ok(jumbo::arrived(&results.migrations))
}

/// Two hosts with agents.
struct Hosts {
    agents: Vec<Agent>,
    // Behind the agents: dropped after them.
    lab: Lab,
}

impl Hosts {
    fn new(flags: &Flags, links: usize, binary: &Path) -> anyhow::Result<Hosts> {
        let lab = Lab::builder().links(vec![LinkSpec::shaped(flags.mbps); links]).build()?;
        let options = AgentOptions { binary: Some(binary.to_owned()), ..AgentOptions::default() };
        let agents = lab.hosts().iter().map(|host| Agent::start(host, options.clone()));
        Ok(Hosts { agents: agents.collect::<Result<_, _>>()?, lab })
    }

    /// `linerate doctor` about both.
    fn doctor(&self) -> anyhow::Result<Command> {
        let (here, there) =
            (self.agents.first().context("no agent")?, self.agents.get(1).context("no second agent")?);
        let mut command = here.client();
        command.args(["doctor", "--json"]).arg(there.address(0).to_string());
        Ok(command)
    }
}

fn timings(flags: &Flags, binary: &Path, progress: &mut Progress) -> anyhow::Result<Vec<Row>> {
    let hosts = Hosts::new(flags, LINKS, binary)?;
    let few_links = Hosts::new(flags, FEW_LINKS, binary)?;
    let saved = hosts.lab.directory().join("saved");
    let many = hosts.lab.directory().join("many");
    timed(hosts.doctor()?.args(["--quick", "--save"]).arg(&saved))?;
    survey::many(&saved, &many, SAVED).context("inventories of many hosts")?;

    let mut figures = vec![Vec::new(); TIMED.len()];
    for _ in 0..flags.rounds {
        for ((place, (what, _)), figures) in TIMED.iter().enumerate().zip(&mut figures) {
            ensure!(!interrupt::asked(), "interrupted");
            progress.doing(what);
            let mut command = match place {
                0 | 1 => hosts.doctor()?,
                2 => few_links.doctor()?,
                _ => Command::new(binary),
            };
            match place {
                0 => &mut command,
                1 | 2 => command.arg("--quick"),
                _ => command.args(["doctor", "--json", "--from"]).arg(&many),
            };
            let (seen, seconds) = timed(&mut command)?;
            ensure!(seen == if place == 3 { SAVED } else { 2 }, "{seen} hosts were looked at");
            progress.done(&format!("{what}: {seconds:.3} s"));
            figures.push(seconds);
        }
    }
    let row = |((what, target_s), figures): ((&'static str, Option<f64>), Vec<f64>)| Row {
        what,
        target_s,
        seconds: spread(figures),
    };
    Ok(TIMED.into_iter().zip(figures).map(row).collect())
}

/// How many hosts were looked at, and how long it took.
fn timed(command: &mut Command) -> anyhow::Result<(usize, f64)> {
    let began = Instant::now();
    let done = command.output().context("cannot start linerate doctor")?;
    let seconds = began.elapsed().as_secs_f64();
    let document: serde_json::Value = serde_json::from_slice(&done.stdout)
        .with_context(|| format!("linerate doctor: {}", String::from_utf8_lossy(&done.stderr)))?;
    let hosts = document.pointer("/survey/hosts").and_then(serde_json::Value::as_array);
    Ok((hosts.map_or(0, Vec::len), seconds))
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from("| | target | seconds, median (least to most) |\n|---|---|---|\n");
    for row in rows {
        let target = row.target_s.map_or_else(|| "–".to_owned(), |target| format!("{target} s"));
        if let Some(time) = row.seconds {
            text += &format!(
                "| {} | {target} | {:.2} ({:.2} to {:.2}) |\n",
                row.what, time.median, time.min, time.max
            );
        }
    }
    text
}
