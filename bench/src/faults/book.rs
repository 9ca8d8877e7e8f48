//! Outcomes: collected, kept on disk after each case, and taken over from earlier runs.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::case::Case;
use super::{Flags, tables};
use crate::output::{Progress, replace, replace_json};

/// What became of a case.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Outcome {
    pub name: String,
    pub fault: String,
    pub step: String,
    pub side: String,
    pub seed: u64,
    /// When the fault began, after the request.
    pub at_ms: f64,
    /// The last step that the client knew of when the fault began.
    pub at_step: String,
    /// How the migration ended, in its client's words.
    pub migration: String,
    /// The client's exit code, and how long after the fault began it had its answer.
    pub exit: Option<i32>,
    pub answered_s: Option<f64>,
    /// How long after the client's answer no session was in progress on either host any more.
    pub settled_s: Option<f64>,
    /// What the guest did then.
    pub guest: String,
    /// How the next migration went.
    pub retry: String,
    pub blackout_ms: Option<f64>,
    /// What is not as it must be; empty if all is well.
    pub wrong: Vec<String>,
    /// Ends of both agents' logs, of a case that went wrong.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub logs: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Document {
    pub seed: u64,
    pub outcomes: Vec<Outcome>,
}

/// What earlier runs have shown.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// Of the run that is resumed.
    pub seed: Option<u64>,
    pub outcomes: Vec<Outcome>,
}

impl Earlier {
    /// Whether the case need not be run again.
    pub fn passed(&self, name: &str) -> bool {
        self.outcomes.iter().any(|one| one.name == name && one.wrong.is_empty())
    }
}

/// Reads what `--resume` and `--earlier` name.
pub(super) fn earlier(flags: &Flags) -> anyhow::Result<Earlier> {
    let mut earlier = Earlier::default();
    let own = flags.common.out.join("faults.json");
    if flags.resume && own.exists() {
        let document = read(&own)?;
        earlier.seed = Some(document.seed);
        document.outcomes.into_iter().for_each(|outcome| keep(&mut earlier.outcomes, outcome));
    }
    for file in &flags.earlier {
        read(file)?.outcomes.into_iter().for_each(|outcome| keep(&mut earlier.outcomes, outcome));
    }
    Ok(earlier)
}

fn read(file: &Path) -> anyhow::Result<Document> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no result of faults", file.display()))
}

/// A later outcome of a case takes the place of an earlier one; the order is that of the cases.
fn keep(outcomes: &mut Vec<Outcome>, outcome: Outcome) {
    outcomes.retain(|one| one.name != outcome.name);
    outcomes.push(outcome);
    let names: Vec<String> = Case::all().iter().map(Case::name).collect();
    let place = |one: &Outcome| names.iter().position(|name| *name == one.name);
    outcomes.sort_by_key(place);
}

/// Collects outcomes and keeps them on disk.
pub(super) struct Book<'a> {
    pub flags: &'a Flags,
    pub seed: u64,
    pub progress: Progress,
    pub outcomes: Vec<Outcome>,
}

impl Book<'_> {
    /// A book with what is known already; `total` cases follow.
    pub fn new(flags: &Flags, seed: u64, outcomes: Vec<Outcome>, total: usize) -> Book<'_> {
        Book { flags, seed, progress: Progress::of_the_rest(total), outcomes }
    }

    pub fn add(&mut self, outcome: Outcome) -> anyhow::Result<()> {
        let verdict =
            if outcome.wrong.is_empty() { "ok".to_owned() } else { format!("WRONG {:?}", outcome.wrong) };
        self.progress.done(&format!(
            "{} at {:.0} ms ({}): {}; {}; retry {}: {verdict}",
            outcome.name, outcome.at_ms, outcome.at_step, outcome.migration, outcome.guest, outcome.retry
        ));
        if !outcome.wrong.is_empty() {
            self.progress.print(&outcome.logs);
            self.progress.print(&format!("again: {}", self.again(&outcome.name)));
        }
        keep(&mut self.outcomes, outcome);
        let out = &self.flags.common.out;
        let document = Document { seed: self.seed, outcomes: self.outcomes.clone() };
        replace_json(&out.join("faults.json"), &document)?;
        replace(&out.join("faults.md"), &tables::table(self.seed, &self.outcomes))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(name: &str, wrong: &[&str]) -> Outcome {
        let wrong = wrong.iter().map(|&text| text.to_owned()).collect();
        Outcome { name: name.to_owned(), wrong, ..Outcome::default() }
    }

    #[test]
    fn only_what_passed_last_is_not_run_again() {
        let mut earlier = Earlier::default();
        let copy = "agent-kill/copy/source";
        let admit = "agent-kill/admit/source";
        for one in
            [outcome(copy, &["lost"]), outcome(admit, &[]), outcome(copy, &[]), outcome(admit, &["lost"])]
        {
            keep(&mut earlier.outcomes, one);
        }
        assert!(earlier.passed(copy) && !earlier.passed(admit));
        let names: Vec<&str> = earlier.outcomes.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, [admit, copy], "each once, in the order of the steps");
    }
}
