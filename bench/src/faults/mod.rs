//! Faults on purpose: links cut at random instants, and everything that can break at each step on each side.

mod case;
mod cuts;
mod inject;
mod stage;

use clap::Args;
use serde::Serialize;

use crate::output::{Progress, replace, replace_json};
use crate::{Common, interrupt, random};

use case::Case;

/// `linerate-bench faults`
#[derive(Debug, Clone, Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// Migrations during which one of two links is cut at a random instant
    #[arg(long, default_value_t = 50)]
    cuts: usize,
    /// Repeats the random instants of an earlier run
    #[arg(long)]
    seed: Option<u64>,
    /// Only cases whose name contains one of these, such as cut/7, agent-kill/copy or /destination
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    only: Vec<String>,
    /// List the names of all cases and end
    #[arg(long)]
    list: bool,
}

/// What became of a case.
#[derive(Debug, Clone, Default, Serialize)]
struct Outcome {
    name: String,
    fault: String,
    step: String,
    side: String,
    seed: u64,
    /// When the fault began, after the request.
    at_ms: f64,
    /// The last step that the client knew of when the fault began.
    at_step: String,
    /// How the migration ended, in its client's words.
    migration: String,
    /// What the guest did then.
    guest: String,
    /// How the next migration went.
    retry: String,
    blackout_ms: Option<f64>,
    /// What is not as it must be; empty if all is well.
    wrong: Vec<String>,
    /// Ends of both agents' logs, of a case that went wrong.
    #[serde(skip_serializing_if = "String::is_empty")]
    logs: String,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    seed: u64,
    outcomes: &'a [Outcome],
}

/// Collects outcomes and keeps them on disk.
struct Book<'a> {
    flags: &'a Flags,
    seed: u64,
    progress: Progress,
    outcomes: Vec<Outcome>,
}

/// Runs it; false if anything went wrong.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    let seed = flags.seed.unwrap_or_else(random::fresh_seed);
    let wanted = |name: &str| flags.only.is_empty() || flags.only.iter().any(|part| matches(name, part));
    let cuts: Vec<String> =
        (1..=flags.cuts).map(|number| format!("cut/{number}")).filter(|name| wanted(name)).collect();
    let cases: Vec<Case> = Case::all().into_iter().filter(|case| wanted(&case.name())).collect();
    if flags.list {
        cuts.iter().cloned().chain(cases.iter().map(Case::name)).for_each(|name| println!("{name}"));
        return Ok(true);
    }
    eprintln!("seed {seed}");
    let progress = Progress::new(cuts.len() + cases.len());
    let mut book = Book { flags: &flags, seed, progress, outcomes: Vec::new() };
    let ran = cuts::run(&mut book, &cuts).and_then(|()| stage::run(&mut book, &cases));
    let table = table(seed, &book.outcomes);
    if json {
        println!("{}", serde_json::to_string(&Document { seed, outcomes: &book.outcomes })?);
    } else {
        println!("{table}");
    }
    ran?;
    Ok(book.outcomes.iter().all(|one| one.wrong.is_empty()) && !interrupt::asked())
}

/// A number at the end of what is wanted is a whole number: cut/1 is not cut/17.
fn matches(name: &str, part: &str) -> bool {
    let number = part.ends_with(|letter: char| letter.is_ascii_digit());
    if number { name == part } else { name.contains(part) }
}

impl Book<'_> {
    fn add(&mut self, outcome: Outcome) -> anyhow::Result<()> {
        let verdict =
            if outcome.wrong.is_empty() { "ok".to_owned() } else { format!("WRONG {:?}", outcome.wrong) };
        self.progress.done(&format!(
            "{} at {:.0} ms ({}): {}; {}; retry {}: {verdict}",
            outcome.name, outcome.at_ms, outcome.at_step, outcome.migration, outcome.guest, outcome.retry
        ));
        if !outcome.wrong.is_empty() {
            self.progress.say(&outcome.logs);
            self.progress.say(&format!("again: {}", self.again(&outcome.name)));
        }
        self.outcomes.push(outcome);
        let out = &self.flags.common.out;
        replace_json(&out.join("faults.json"), &Document { seed: self.seed, outcomes: &self.outcomes })?;
        replace(&out.join("faults.md"), &table(self.seed, &self.outcomes))
    }

    fn again(&self, name: &str) -> String {
        format!(
            "linerate-bench faults --linerate {} --out {} --seed {} --only {name}",
            self.flags.common.linerate.display(),
            self.flags.common.out.display(),
            self.seed
        )
    }
}

fn table(seed: u64, outcomes: &[Outcome]) -> String {
    let wrong = outcomes.iter().filter(|one| !one.wrong.is_empty()).count();
    let mut text = format!(
        "{} cases, {wrong} wrong, seed {seed}\n\n| fault | step | side | began in | migration | guest | retry | verdict |\n|---|---|---|---|---|---|---|---|\n",
        outcomes.len()
    );
    for one in outcomes {
        let verdict = if one.wrong.is_empty() { "ok".to_owned() } else { one.wrong.join("; ") };
        let cells = [
            &one.fault,
            &one.step,
            &one.side,
            &one.at_step,
            &one.migration,
            &one.guest,
            &one.retry,
            &verdict,
        ];
        let cells = cells.map(|cell| cell.replace('|', "/").replace('\n', " "));
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_chosen() {
        assert!(matches("agent-kill/copy/source", "agent-kill/copy"));
        assert!(matches("cut/17", "cut/17") && matches("cut/17", "cut/") && !matches("cut/17", "cut/1"));
    }

    #[test]
    fn every_fault_meets_every_step() {
        let names: std::collections::BTreeSet<String> = Case::all().iter().map(Case::name).collect();
        assert_eq!(names.len(), Case::all().len(), "names are unique");
        for step in ["admit", "prepare", "connect", "track", "copy", "blackout", "commit", "clean-up"] {
            for fault in ["agent-kill", "qemu-kill", "freeze-short", "freeze-long", "journal-full", "one-way"]
            {
                for side in ["source", "destination"] {
                    assert!(names.contains(&format!("{fault}/{step}/{side}")));
                }
            }
        }
    }
}
