//! Faults on purpose: links cut at random instants, and everything that can break at each step on each side.

mod book;
mod case;
mod cuts;
mod histories;
mod inject;
mod series;
mod stage;
mod tables;

use std::path::PathBuf;

use clap::Args;

use crate::output::replace;
use crate::{Common, interrupt, random};

use book::{Book, Document, Outcome, earlier};
use case::Case;

#[derive(Debug, Clone, Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// Migrations during which one of two links is cut at a random instant
    #[arg(long, default_value_t = 50)]
    cuts: usize,
    /// How the guests of these move: in stream mode their RAM cannot be compared as a whole, and they check it
    /// themselves
    #[arg(long, default_value = "direct", value_parser = ["direct", "stream"])]
    cuts_by: String,
    /// Histories of faults after faults at random, besides each record of each side once before, once after it and once
    /// with a full disk
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Repeats the random instants of an earlier run
    #[arg(long)]
    seed: Option<u64>,
    /// Only cases whose name contains one of these, such as cut/7, agent-kill/copy or /destination
    #[arg(long, value_name = "PART,…", value_delimiter = ',')]
    only: Vec<String>,
    /// List the names of the cases and end
    #[arg(long)]
    list: bool,
    /// Go on where an interrupted run in the same folder ended: cases that passed are not run again
    #[arg(long)]
    resume: bool,
    /// Results of other runs (faults.json) that are taken over in the same way
    #[arg(long, value_name = "FILE,…", value_delimiter = ',')]
    earlier: Vec<PathBuf>,
    /// Also write the table as a page of the documentation
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
}

/// Runs it; false if anything went wrong.
pub fn run(flags: Flags, json: bool) -> anyhow::Result<bool> {
    let known = earlier(&flags)?;
    let seed = flags.seed.or(known.seed).unwrap_or_else(random::fresh_seed);
    let wanted = |name: &str| flags.only.is_empty() || flags.only.iter().any(|part| matches(name, part));
    let open = |name: &str| !known.passed(name);
    let mut cuts: Vec<String> =
        (1..=flags.cuts).map(|number| format!("cut/{number}")).filter(|name| wanted(name)).collect();
    let mut cases: Vec<Case> = Case::all().into_iter().filter(|case| wanted(&case.name())).collect();
    let mut again = histories::names(flags.rounds);
    again.retain(|name| wanted(name));
    anyhow::ensure!(
        cuts.len() + cases.len() + again.len() > 0,
        "no case has such a name; --list without --only shows them"
    );
    cuts.retain(|name| open(name));
    cases.retain(|case| open(&case.name()));
    again.retain(|name| open(name));
    if flags.list {
        cuts.iter()
            .chain(&again)
            .cloned()
            .chain(cases.iter().map(Case::name))
            .for_each(|name| println!("{name}"));
        return Ok(true);
    }
    eprintln!(
        "seed {seed}; {} cases to run, {} have passed before",
        cuts.len() + again.len() + cases.len(),
        known.outcomes.iter().filter(|one| one.wrong.is_empty()).count()
    );
    let mut book = Book::new(&flags, seed, known.outcomes, cuts.len() + again.len() + cases.len());
    let ran = cuts::run(&mut book, &cuts)
        .and_then(|()| histories::run(&mut book, &again))
        .and_then(|()| stage::run(&mut book, &cases));
    if let Some(page) = &flags.markdown {
        replace(page, &tables::page(seed, &book.outcomes))?;
    }
    if json {
        println!("{}", serde_json::to_string(&Document { seed, outcomes: book.outcomes.clone() })?);
    } else {
        println!("{}", tables::table(seed, &book.outcomes));
    }
    ran?;
    Ok(book.outcomes.iter().all(|one| one.wrong.is_empty()) && !interrupt::asked())
}

/// A number at the end of what is wanted is a whole number: cut/1 is not cut/17.
fn matches(name: &str, part: &str) -> bool {
    let number = part.ends_with(|letter: char| letter.is_ascii_digit());
    if number { name == part } else { name.contains(part) }
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
