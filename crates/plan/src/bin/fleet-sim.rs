//! `fleet-sim`: drains of many hosts. First mixes of guests against the lower bound, then a large fleet host by host.

use std::process::ExitCode;

use linerate_plan::fleet::mixes::{self, Ratios};
use linerate_plan::fleet::scale::{self, Fleet};

const USAGE: &str = "usage: fleet-sim [--mixes COUNT] [--hosts COUNT] [--at-once DRAINS] [--seed SEED]
  --mixes COUNT     mixes of guests on one host (1000); 0: none
  --hosts COUNT     hosts of the large fleet, 20 at least, each with 20 guests (10000); 0: none
  --at-once DRAINS  hosts that are drained at the same time (a hundredth of all)
  --seed SEED       the first seed (0)";

/// A fleet of fewer hosts is not simulated.
const HOSTS_MIN: u32 = 20;

struct Arguments {
    mixes: u64,
    hosts: u32,
    at_once: Option<usize>,
    seed: u64,
}

fn parse(mut words: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut arguments = Arguments { mixes: 1000, hosts: 10_000, at_once: None, seed: 0 };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--mixes" => arguments.mixes = words.next()?.parse().ok()?,
            "--hosts" => arguments.hosts = words.next()?.parse().ok()?,
            "--at-once" => arguments.at_once = Some(words.next()?.parse().ok()?),
            "--seed" => arguments.seed = words.next()?.parse().ok()?,
            _ => return None,
        }
    }
    // What is not simulated breaks no rule.
    let is_whole = |arguments: &Arguments| {
        (arguments.hosts == 0 || arguments.hosts >= HOSTS_MIN)
            && (arguments.mixes > 0 || arguments.hosts > 0)
            && arguments.seed.checked_add(arguments.mixes).is_some()
    };
    Some(arguments).filter(is_whole)
}

fn line(name: &str, ratios: &Ratios) {
    println!(
        "{name:<28} mean {:6.3}  median {:6.3}  95 % {:6.3}  worst {:7.3}  within 5 %: {:5.1} %",
        ratios.mean(),
        ratios.percentile(50),
        ratios.percentile(95),
        ratios.percentile(100),
        ratios.within(1.05),
    );
}

/// Prints how the controller and fixed numbers compare. False if a rule was broken.
fn compare(arguments: &Arguments) -> bool {
    const FIXED: [usize; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
    /// Preparing the first guests is a large part of a drain that takes seconds.
    const LONG_S: [f64; 2] = [20.0, 60.0];
    let (mut controller, mut with_ends) = (Ratios::default(), Ratios::default());
    let mut long = vec![Ratios::default(); LONG_S.len()];
    let mut fixed = vec![Ratios::default(); FIXED.len()];
    let (mut all, mut best) = (Ratios::default(), Ratios::default());
    let mut sound = true;
    for seed in arguments.seed..arguments.seed + arguments.mixes {
        let run = mixes::drain(seed, None);
        for violation in &run.violations {
            eprintln!("seed {seed}: {violation}");
            sound = false;
        }
        let bound = run.bound.time().as_secs_f64();
        controller.add(run.ratio());
        with_ends.add(run.ratio_with_ends());
        for (ratios, _) in long.iter_mut().zip(LONG_S).filter(|(_, least)| bound >= *least) {
            ratios.add(run.ratio_with_ends());
        }
        let ratio = |at_once| mixes::drain(seed, Some(at_once)).seconds / bound;
        let of: Vec<f64> = FIXED.iter().map(|at_once| ratio(*at_once)).collect();
        fixed.iter_mut().zip(&of).for_each(|(ratios, ratio)| ratios.add(*ratio));
        all.add(ratio(run.guests.max(1)));
        best.add(of.iter().copied().fold(f64::INFINITY, f64::min));
    }
    println!("{} mixes; time against the lower bound (1 is the bound itself)", arguments.mixes);
    line("controller", &controller);
    line("controller, bound with ends", &with_ends);
    for (least, ratios) in LONG_S.iter().zip(&long) {
        line(&format!("the same, bound over {least} s"), ratios);
    }
    line("all at once", &all);
    for (at_once, ratios) in FIXED.iter().zip(&fixed) {
        line(&if *at_once == 1 { "one after another".into() } else { format!("{at_once} at once") }, ratios);
    }
    line("best number for each mix", &best);
    sound
}

/// Seconds of CPU that this process has used. The kernel counts a hundred a second on all that Linerate runs on.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Most memory that this process had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default().to_string();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn roll(arguments: &Arguments, hosts: u32) -> bool {
    let at_once = arguments.at_once.unwrap_or((hosts / 100).max(2) as usize);
    let (deaths, seed) = ((hosts / 500).max(1), arguments.seed);
    let begun = cpu_s();
    let report = scale::roll(&Fleet { hosts, guests_per_host: 20, at_once, deaths, seed, defect: None });
    println!(
        "{hosts} hosts, {at_once} drained at once, {deaths} die: {} drains in {:.0} s of virtual time; {:?}, {} tries repeated; \
         {} rules broken, {} hosts overfilled, {} guests left without a reason; {} events, {:.1} s of CPU, {} MiB at most",
        report.drains,
        report.virtual_s,
        report.outcomes,
        report.retries,
        report.violations.len(),
        report.overfilled,
        report.left_behind,
        report.events,
        cpu_s() - begun,
        peak_mib(),
    );
    report.violations.iter().take(10).for_each(|violation| eprintln!("{violation}"));
    report.violations.is_empty() && report.overfilled == 0 && report.left_behind == 0
}

fn main() -> ExitCode {
    let Some(arguments) = parse(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut sound = arguments.mixes == 0 || compare(&arguments);
    for part in [10, 4, 2, 1] {
        if arguments.hosts >= HOSTS_MIN * part {
            sound &= roll(&arguments, arguments.hosts / part);
        }
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_not_be_simulated_is_refused() {
        let is_taken = |line: &str| parse(line.split_whitespace().map(str::to_owned)).is_some();
        for line in ["", "--hosts 20 --mixes 0", "--hosts 0 --mixes 1"] {
            assert!(is_taken(line), "{line}");
        }
        let last = format!("--seed {} --mixes 2 --hosts 0", u64::MAX);
        for line in ["--hosts 0 --mixes 0", "--hosts 19", "--hosts 19 --mixes 5", &last] {
            assert!(!is_taken(line), "{line}");
        }
    }
}
