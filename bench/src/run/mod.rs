//! The comparison: the same guest, the same links, the methods one after the other, round after round.

mod cases;
mod charts;
mod credentials;
mod figures;
mod qemu;
mod stage;
mod tables;
mod targets;
mod wire;

use clap::Args;
use linerate_lab::QemuVersion;
use serde::Serialize;

use crate::output::{Progress, replace, replace_json};
use crate::{Common, interrupt};

use cases::{Case, Channels, Method};
use figures::Figures;

#[derive(Debug, Clone, Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// Rounds of the interleaving for each case and QEMU
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Only cases whose names begin with one of these, such as idle or hot95
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    cases: Vec<String>,
    /// How Linerate moves its guest; stream mode has three more cases, two over one link
    #[arg(long, default_value = "direct", value_parser = ["direct", "stream"])]
    mode: String,
    /// Versions of QEMU
    #[arg(long, value_name = "7.2,10.0", value_delimiter = ',', default_value = "7.2,10.0", value_parser = ["7.2", "10.0"])]
    qemu: Vec<String>,
    /// Only these methods, in this order: linerate alone compares two builds, each by its own benchmark, in turns
    #[arg(long, value_enum, value_name = "NAME,…", value_delimiter = ',', default_values_t = Method::USUAL)]
    methods: Vec<Method>,
    /// A small guest, channels not chosen by trying: shows that it works, figures mean little
    #[arg(long)]
    quick: bool,
    /// Working set of the hot guest, MiB
    #[arg(long, default_value_t = 128)]
    hot_mb: u64,
    /// Its writing rates, percent of what both links carry
    #[arg(long, value_delimiter = ',', default_value = "60,95")]
    hot_percent: Vec<u32>,
}

/// Everything that was found, and on what.
#[derive(Debug, Clone, Serialize)]
pub struct Results {
    /// What it ran on.
    pub machine: Machine,
    /// How Linerate moves its guest: `direct` or `stream`.
    pub mode: String,
    /// Small guests: figures mean little.
    pub quick: bool,
    /// It ran to its end.
    pub complete: bool,
    /// Which channels were chosen, with all that were tried.
    pub calibrations: Vec<Calibration>,
    pub runs: Vec<Figures>,
    /// What went wrong with the measuring itself.
    pub errors: Vec<String>,
    /// Promises, and whether they hold here.
    pub targets: Vec<targets::Target>,
}

/// What it ran on.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    kernel: String,
    cpus: usize,
    memory_gib: f64,
}

/// A choice of channels.
#[derive(Debug, Clone, Serialize)]
pub struct Calibration {
    pub case: String,
    pub qemu: &'static str,
    /// Number of channels that the run chose.
    pub channels: Channels,
    /// Seconds with each number of channels that completed.
    pub tried: Vec<(Method, u32, f64)>,
}

/// What versions are called here.
pub fn version_name(version: QemuVersion) -> &'static str {
    match version {
        QemuVersion::System => "7.2",
        QemuVersion::Ten => "10.0",
    }
}

/// Runs it; false if anything could not be measured, or if Linerate damaged a guest. Missed targets are results, not
/// failures.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    let wanted =
        |case: &Case| flags.cases.is_empty() || flags.cases.iter().any(|name| case.name.starts_with(name));
    let cases: Vec<Case> = Case::all(&flags).into_iter().filter(wanted).collect();
    anyhow::ensure!(!cases.is_empty(), "no case has such a name; there are {:?}", names(&flags));
    let versions = QemuVersion::ALL
        .into_iter()
        .filter(|version| flags.qemu.iter().any(|name| name == version_name(*version)));
    let versions: Vec<QemuVersion> = versions.collect();
    let mut book = Book {
        progress: Progress::new(cases.len() * versions.len() * flags.pairs * flags.methods.len())?,
        results: Results {
            machine: Machine::here(),
            mode: flags.mode.clone(),
            quick: flags.quick,
            complete: false,
            calibrations: Vec::new(),
            runs: Vec::new(),
            errors: Vec::new(),
            targets: Vec::new(),
        },
        flags,
    };
    for case in &cases {
        for version in &versions {
            interrupt::check()?;
            if let Err(error) = stage::run(&mut book, case, *version) {
                interrupt::check()?;
                let text = format!("{} QEMU {}: {error:#}", case.name, version_name(*version));
                book.progress.print(&text);
                book.results.errors.push(text);
                book.save()?;
            }
        }
    }
    book.results.complete = true;
    book.save()?;
    if json {
        println!("{}", serde_json::to_string(&book.results)?);
    } else {
        println!("{}", tables::render(&book.results));
    }
    let harmed = harmed(&book.results.runs);
    harmed.iter().for_each(|text| book.progress.print(text));
    Ok(book.results.errors.is_empty() && harmed.is_empty())
}

/// Guests that did not come through a migration by Linerate.
fn harmed(runs: &[Figures]) -> Vec<String> {
    let harmed = runs.iter().filter(|run| run.damaged && run.method.is_linerate());
    harmed.map(|run| format!("a guest was damaged: {} {}", run.text(), run.note)).collect()
}

fn names(flags: &Flags) -> Vec<String> {
    Case::all(flags).into_iter().map(|case| case.name).collect()
}

/// Collects results and keeps them on disk.
struct Book {
    flags: Flags,
    progress: Progress,
    results: Results,
}

impl Book {
    fn save(&mut self) -> anyhow::Result<()> {
        self.results.targets = targets::judge(&self.results.runs);
        let out = &self.flags.common.out;
        replace_json(&out.join("results.json"), &self.results)?;
        for (name, chart) in charts::draw(&self.results.runs) {
            replace(&out.join(name), &chart)?;
        }
        replace(&out.join("results.md"), &tables::render(&self.results))
    }
}

impl Machine {
    fn here() -> Machine {
        let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = memory
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<f64>().ok());
        Machine {
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: kib.unwrap_or(0.0) / f64::from(1 << 20),
        }
    }

    pub fn text(&self) -> String {
        format!("Linux {}, {} CPUs, {:.0} GiB", self.kernel, self.cpus, self.memory_gib)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_linerate_damaged_is_a_failure() {
        let run = |method, damaged| Figures { damaged, ..targets::tests::run("idle", method, 1, 1.0) };
        assert!(harmed(&[run(Method::Linerate, false), run(Method::Multifd, true)]).is_empty());
        assert_eq!(harmed(&[run(Method::Linerate, true)]).len(), 1);
    }
}
