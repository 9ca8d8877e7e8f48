//! `sim --seeds 1000 [--from N]` runs seeds and prints what happened; `sim --seed N [--trace]` replays one.

use linerate_core::ModeTag;
use std::process::ExitCode;

use linerate_plan::{Mutation, Options, Property, Summary, simulate};

const USAGE: &str = "usage: sim [--seeds COUNT] [--from SEED] | --seed SEED [--trace]
  --faultless          no fault is injected
  --histories          several sessions of one guest, there and back
  --streams            RAM in the hypervisor's own streams
  --handover           libvirt owns the switch-over
  --often FAULT        most faults are of this kind, or at this moment; repeatable
  --mutation DEFECT    a defect in the drivers, to see that it is noticed
  --only PROMISE       look at this promise alone";

struct Arguments {
    from: u64,
    count: u64,
    options: Options,
}

/// The one whose name this is.
fn named<T: Copy + std::fmt::Debug>(all: &[T], name: &str) -> Option<T> {
    all.iter().copied().find(|one| format!("{one:?}") == name)
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments { from: 0, count: 1000, options: Options::default() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seeds" => arguments.count = words.next()?.parse().ok()?,
            "--from" => arguments.from = words.next()?.parse().ok()?,
            "--seed" => (arguments.from, arguments.count) = (words.next()?.parse().ok()?, 1),
            "--trace" => arguments.options.trace = true,
            "--streams" => arguments.options.mode = ModeTag::Streams,
            "--handover" => arguments.options.mode = ModeTag::Handover,
            "--histories" => arguments.options.histories = true,
            "--often" => arguments.options.focus = arguments.options.focus.on(&words.next()?)?,
            "--mutation" => arguments.options.mutation = Some(named(&Mutation::ALL, &words.next()?)?),
            "--only" => arguments.options.only = Some(named(&Property::ALL, &words.next()?)?),
            "--faultless" => arguments.options.faultless = true,
            _ => return None,
        }
    }
    // What is not simulated breaks no promise.
    let is_whole = |one: &Arguments| one.count > 0 && one.from.checked_add(one.count).is_some();
    Some(arguments).filter(is_whole)
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut summary = Summary::default();
    for seed in arguments.from..arguments.from.saturating_add(arguments.count) {
        match simulate(seed, arguments.options) {
            Ok(report) => {
                report.trace.iter().for_each(|line| println!("  {line}"));
                summary.add(&report);
            }
            Err(violation) => {
                eprintln!("{violation}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{summary}");
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_that_would_not_be_simulated_are_refused() {
        let is_taken = |line: &str| parse(line.split_whitespace().map(str::to_owned)).is_some();
        assert!(is_taken("") && is_taken("--seed 7 --trace"));
        let last = format!("--seed {}", u64::MAX);
        assert!(!is_taken("--seeds 0") && !is_taken(&last));
    }
}
