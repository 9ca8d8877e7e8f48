//! A guest goes back and forth while one of two links is lost at a random instant of each move: what all runs of this
//! kind share. A guest that was harmed or stayed behind is not moved again.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use linerate_lab::Lab;
use serde::Serialize;

use crate::output::{Progress, replace, replace_json};
use crate::random::{Random, fresh_seed, seed_for};
use crate::statistics::median;
use crate::{Common, interrupt};

/// Only a hang meets it.
pub const LIMIT: Duration = Duration::from_secs(240);
/// Lines of a log that are shown of a move that went wrong.
const TAIL: usize = 30;

/// Of `linerate-bench libvirt` and `linerate-bench disks`
#[derive(Debug, Clone, Args)]
pub struct Flags {
    #[command(flatten)]
    common: Common,
    /// Moves, back and forth
    #[arg(long, default_value_t = 50)]
    moves: usize,
    /// Repeats the random instants of an earlier run
    #[arg(long)]
    seed: Option<u64>,
}

/// One of two links that goes away and comes back.
#[derive(Debug, Clone)]
pub struct Cut {
    instant: Duration,
    away: Duration,
    link: usize,
    silent: bool,
}

impl Cut {
    /// Within so long of the beginning, for 0.1 to 3.1 s.
    pub fn random(random: &mut Random, within: Duration) -> Cut {
        let instant = random.part_of(within);
        let away = Duration::from_millis(100) + random.part_of(Duration::from_secs(3));
        let link = usize::try_from(random.below(2)).unwrap_or(0);
        Cut { instant, away, link, silent: random.below(2) == 1 }
    }

    /// How long after the beginning.
    pub fn instant(&self) -> Duration {
        self.instant
    }

    /// Waits for the instant, and until the link is there again.
    pub fn make(&self, lab: &Lab) -> anyhow::Result<()> {
        interrupt::sleep(self.instant);
        if self.silent {
            lab.drop_silently(self.link)?;
        } else {
            lab.cut(self.link)?;
        }
        interrupt::sleep(self.away);
        Ok(lab.restore(self.link)?)
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.silent { "packets lost" } else { "port down" };
        write!(f, "l{} {kind} for {:.1} s", self.link, self.away.as_secs_f64())
    }
}

/// Two hosts and the guest that goes back and forth between them, once when it is made without a cut.
pub trait Stage {
    /// The host that the guest is on.
    fn at(&self) -> usize;

    /// How long a move takes here without a cut, from the instant that cuts are counted from.
    fn usual(&self) -> Duration;

    /// Moves the guest to the other host.
    fn go(&mut self, cut: &Cut, random: &mut Random) -> anyhow::Result<Moved>;

    /// For a move that went wrong.
    fn logs(&self) -> String;
}

/// What became of a move.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Moved {
    /// An image of an earlier move was there, and was overwritten.
    pub overwritten: bool,
    /// As reported to its client.
    pub links_lost: usize,
    /// From the request to the end of the client.
    pub total_s: f64,
    /// Where it is reported.
    pub blackout_ms: Option<f64>,
    /// Everything that is not as it must be.
    pub wrong: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
struct Move {
    number: usize,
    from: usize,
    /// How long after the beginning of the copy.
    cut_after_s: f64,
    /// What was done to which link, for how long.
    cut: String,
    #[serde(flatten)]
    moved: Moved,
}

#[derive(Debug, Serialize)]
struct Results {
    seed: u64,
    planned: usize,
    /// How many there were, one after another.
    guests: usize,
    moves: Vec<Move>,
}

/// Runs it on what `make` makes, with results in files of that name; false if anything went wrong.
pub fn run<S: Stage>(
    flags: &Flags,
    file: &str,
    make: impl Fn(&Common) -> anyhow::Result<S>,
    json: bool,
) -> anyhow::Result<bool> {
    let seed = flags.seed.unwrap_or_else(fresh_seed);
    eprintln!("seed {seed}");
    let out = |extension| flags.common.out.join(format!("{file}.{extension}"));
    let mut progress = Progress::new(flags.moves)?;
    let mut results = Results { seed, planned: flags.moves, guests: 0, moves: Vec::new() };
    let mut stage: Option<S> = None;
    for number in 1..=flags.moves {
        if interrupt::asked() {
            break;
        }
        progress.doing(&format!("move {number}"));
        let mut fresh = match stage.take() {
            Some(stage) => stage,
            None => {
                results.guests += 1;
                make(&flags.common)?
            }
        };
        let mut random = Random::new(seed_for(seed, &format!("move/{number}")));
        let (from, cut) = (fresh.at(), Cut::random(&mut random, fresh.usual()));
        let moved = fresh.go(&cut, &mut random)?;
        let cut_after_s = cut.instant().as_secs_f64();
        let shown = format!("{cut} after {cut_after_s:.1} s");
        progress.done(&format!("move {number}: {:.1} s, {shown} {:?}", moved.total_s, moved.wrong));
        if moved.wrong.is_empty() {
            stage = Some(fresh);
        } else {
            progress.print(&fresh.logs());
        }
        results.moves.push(Move { number, from, cut_after_s, cut: cut.to_string(), moved });
        replace_json(&out("json"), &results)?;
    }
    let text = results.summary();
    replace(&out("md"), &text)?;
    if json {
        println!("{}", serde_json::to_string(&results)?);
    } else {
        println!("{text}");
    }
    Ok(results.moves.len() == results.planned && results.wrong().count() == 0)
}

impl Results {
    fn wrong(&self) -> impl Iterator<Item = &Move> {
        self.moves.iter().filter(|one| !one.moved.wrong.is_empty())
    }

    fn summary(&self) -> String {
        let noticed = self.moves.iter().filter(|one| one.moved.links_lost > 0).count();
        let total = median(self.moves.iter().map(|one| one.moved.total_s)).unwrap_or_default();
        let blackout = median(self.moves.iter().filter_map(|one| one.moved.blackout_ms));
        let mut text = format!(
            "seed {}: {} moves of {} guests, {noticed} of them lost a link while it was in use, {} went wrong; median {total:.1} s{}\n",
            self.seed,
            self.moves.len(),
            self.guests,
            self.wrong().count(),
            blackout.map_or(String::new(), |ms| format!(", blackout {ms:.0} ms")),
        );
        for one in self.wrong() {
            let (number, from, wrong) = (one.number, one.from, one.moved.wrong.join("; "));
            text.push_str(&format!(
                "- move {number} from host {from}, {} after {:.1} s: {wrong}\n",
                one.cut, one.cut_after_s
            ));
        }
        text
    }
}

/// The ends of logs.
pub fn tails<'a>(logs: impl Iterator<Item = &'a Path>) -> String {
    let tail = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines.get(lines.len().saturating_sub(TAIL)..).unwrap_or_default().join("\n")
    };
    logs.map(tail).collect::<Vec<_>>().join("\n---\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_migration_is_reported_with_its_cut() {
        let moved = |wrong: &[&str]| Moved {
            links_lost: 1,
            total_s: 2.0,
            wrong: wrong.iter().map(|&one| one.to_owned()).collect(),
            ..Moved::default()
        };
        let cut = Cut::random(&mut Random::new(1), Duration::from_secs(1));
        let one = |number, wrong: &[&str]| Move {
            number,
            from: 0,
            cut_after_s: cut.instant().as_secs_f64(),
            cut: cut.to_string(),
            moved: moved(wrong),
        };
        let moves = vec![one(1, &[]), one(2, &["a page", "a slot"])];
        let text = Results { seed: 7, planned: 2, guests: 1, moves }.summary();
        assert!(text.contains("2 moves of 1 guests, 2 of them lost a link"), "{text}");
        assert!(text.contains("1 went wrong; median 2.0 s\n- move 2 from host 0, l"), "{text}");
        assert!(text.trim_end().ends_with("a page; a slot"), "{text}");
    }
}
