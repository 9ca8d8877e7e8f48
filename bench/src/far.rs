//! What a bad link beside a good one does to a migration: one that is far away, and one that loses packets, against the
//! good link alone. Judges that the guest arrives, and the medians of the other states against the good link alone.

use std::time::Duration;

use linerate_api::BlackoutSplit;
use linerate_lab::{Forwarder, Lab, LinkSpec, Way};
use serde::Serialize;

use crate::moving::Ending;
use crate::output::{Progress, replace_json};
use crate::pair::Pair;
use crate::statistics::{Spread, spread};
use crate::{Common, interrupt};

const GUEST_MIB: u64 = 256;
/// Only a hang meets it.
const LONG: Duration = Duration::from_secs(180);
/// A bad link beside a good one makes the blackout at most so much longer.
const BLACKOUT_MORE_MS: f64 = 10.0;
/// The medians of equal runs differ by so much.
const SECONDS_MORE: f64 = 1.05;
/// The link that is bad.
const BAD: usize = 1;

#[derive(Debug, clap::Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// How often each is done
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// Rate of each link, Mb/s
    #[arg(long, default_value_t = 1000)]
    mbps: u64,
    /// Only the first so many of the four states
    #[arg(long, default_value_t = STATES.len())]
    states: usize,
}

/// What the second link is like.
struct State {
    what: &'static str,
    /// Whether the migration may use it.
    used: bool,
    delay: Duration,
    /// One packet of so many is lost each way; 0: none.
    loses_one_of: u32,
}

const STATES: [State; 4] = [
    State { what: "the good link alone", used: false, delay: Duration::ZERO, loses_one_of: 0 },
    State { what: "two good links", used: true, delay: Duration::ZERO, loses_one_of: 0 },
    State {
        what: "the second with a round trip of 50 ms",
        used: true,
        delay: Duration::from_millis(25),
        loses_one_of: 0,
    },
    State { what: "the second loses 1 % each way", used: true, delay: Duration::ZERO, loses_one_of: 100 },
];

/// Migrations in one state.
#[derive(Debug, Serialize)]
struct Row {
    what: &'static str,
    completed: usize,
    /// From the guest's stop to its running, ms.
    blackout_ms: Option<Spread>,
    /// From the request to the answer.
    seconds: Option<Spread>,
    /// Share of the second link in what was sent, percent.
    second_link_percent: Option<Spread>,
    /// Segments that the source sent again over the second link.
    retransmits: Option<Spread>,
    /// The parts of each blackout.
    blackouts: Vec<BlackoutSplit>,
}

/// All states in turn. False if a guest did not arrive, or a bad link cost more than it may.
pub fn run(flags: &Flags, json: bool) -> anyhow::Result<bool> {
    let binary = flags.common.binary()?;
    // The third host only makes that there are switches, which the forwarder replaces.
    let lab = Lab::builder().hosts(3).links([LinkSpec::shaped(flags.mbps); 2]).build()?;
    let mut pair = Pair::new(lab, &binary, "", GUEST_MIB)?;
    let mut progress = Progress::new(flags.rounds * flags.states.min(STATES.len()))?;
    let mut endings: [Vec<Ending>; STATES.len()] = Default::default();
    for _ in 0..flags.rounds {
        for (state, endings) in STATES.iter().zip(&mut endings).take(flags.states) {
            interrupt::check()?;
            progress.doing(state.what);
            let _forwarder = prepare(&pair.lab, state)?;
            let good = pair.network(0)?;
            let only = ["--no-check", "--links", &good];
            let ending = pair.migrate(if state.used { &only[..1] } else { &only }, LONG)?;
            progress.done(&format!("{}: {}", state.what, ending.text()));
            endings.push(ending);
        }
    }
    let rows: Vec<Row> =
        STATES.iter().zip(&endings).take(flags.states).map(|(state, endings)| row(state, endings)).collect();
    replace_json(&flags.common.out.join("far.json"), &rows)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        print!("{}", table(&rows));
    }
    let over = over(&rows);
    over.iter().for_each(|text| progress.print(text));
    Ok(over.is_empty() && rows.iter().all(|row| row.completed == flags.rounds))
}

/// What costs more than it may beside the first state, the good link alone.
fn over(rows: &[Row]) -> Vec<String> {
    let Some((alone, others)) = rows.split_first() else { return Vec::new() };
    let median = |figures: &Option<Spread>| figures.as_ref().map(|one| one.median);
    let mut over = Vec::new();
    for row in others {
        let blackout = median(&row.blackout_ms).zip(median(&alone.blackout_ms));
        if let Some((here, alone)) = blackout.filter(|(here, alone)| *here > alone + BLACKOUT_MORE_MS) {
            over.push(format!(
                "{}: a blackout of {here:.1} ms, and {alone:.1} ms with the good link alone",
                row.what
            ));
        }
        let seconds = median(&row.seconds).zip(median(&alone.seconds));
        if let Some((here, alone)) = seconds.filter(|(here, alone)| *here > alone * SECONDS_MORE) {
            over.push(format!("{}: {here:.2} s, and {alone:.2} s with the good link alone", row.what));
        }
    }
    over
}

fn prepare(lab: &Lab, state: &State) -> anyhow::Result<Forwarder> {
    let way = Way { delay: state.delay, loses_one_of: state.loses_one_of };
    Ok(lab.forward(BAD, [0, 1], [way; 2])?)
}

fn row(state: &State, endings: &[Ending]) -> Row {
    let done = || endings.iter().filter(|ending| ending.completed());
    let reports = || done().filter_map(|ending| ending.report.as_deref());
    let share = |report: &linerate_api::Report| {
        let of = |name: &str| -> u64 {
            report.links.iter().filter(|link| link.name.contains(name)).map(|link| link.sent_bytes).sum()
        };
        let all = of("");
        (all > 0).then(|| of("l1") as f64 * 100.0 / all as f64)
    };
    Row {
        what: state.what,
        completed: done().count(),
        blackout_ms: spread(
            reports().filter_map(|report| Some(report.blackout.as_ref()?.total_us as f64 / 1e3)),
        ),
        seconds: spread(done().map(|ending| ending.total.as_secs_f64())),
        second_link_percent: spread(reports().filter_map(share)),
        retransmits: spread(reports().map(retransmits)),
        blackouts: reports().filter_map(|report| report.blackout).collect(),
    }
}

/// Over the second link.
fn retransmits(report: &linerate_api::Report) -> f64 {
    let second = report.links.iter().filter(|link| link.name.contains("l1"));
    second.map(|link| link.retransmits).sum::<u64>() as f64
}

fn table(rows: &[Row]) -> String {
    let head = "| links | arrived | blackout, ms, median (least to most) | whole, s | over the second link | sent again there |\n|---|---|---|---|---|---|\n";
    let shown = |figures: &Option<Spread>, digits: usize| match figures {
        Some(one) => format!("{:.digits$} ({:.digits$} to {:.digits$})", one.median, one.min, one.max),
        None => "–".to_owned(),
    };
    let mut text = head.to_owned();
    for row in rows {
        let share =
            row.second_link_percent.map_or_else(|| "–".to_owned(), |share| format!("{:.0} %", share.median));
        let (blackout, seconds) = (shown(&row.blackout_ms, 1), shown(&row.seconds, 2));
        text += &format!(
            "| {} | {} | {blackout} | {seconds} | {share} | {} |\n",
            row.what,
            row.completed,
            shown(&row.retransmits, 0)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_bad_link_costs_is_held_against_the_good_one_alone() {
        let row = |blackout_ms, seconds| Row {
            what: "",
            completed: 1,
            blackout_ms: spread([blackout_ms]),
            seconds: spread([seconds]),
            second_link_percent: None,
            retransmits: None,
            blackouts: Vec::new(),
        };
        assert!(over(&[row(16.0, 2.8), row(25.0, 2.0)]).is_empty());
        assert_eq!(over(&[row(16.0, 2.8), row(27.0, 3.0)]).len(), 2);
    }
}
