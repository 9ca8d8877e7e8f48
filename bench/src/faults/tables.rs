//! Outcomes as a table, and as a page of the documentation.

use std::collections::BTreeMap;

use super::book::Outcome;
use super::case::Case;

/// Every column there is.
pub(super) fn table(seed: u64, outcomes: &[Outcome]) -> String {
    let wrong = outcomes.iter().filter(|one| !one.wrong.is_empty()).count();
    let mut text = format!(
        "{} cases, {wrong} wrong, seed {seed}\n\n| fault | step | side | began in | migration | guest | retry | verdict |\n|---|---|---|---|---|---|---|---|\n",
        outcomes.len()
    );
    for one in outcomes {
        let verdict = verdict(one);
        row(
            &mut text,
            &[
                &one.fault,
                &one.step,
                &one.side,
                &one.at_step,
                &one.migration,
                &one.guest,
                &one.retry,
                &verdict,
            ],
        );
    }
    text
}

fn row(text: &mut String, cells: &[&str]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "/").replace('\n', " ")).collect();
    text.push_str(&format!("| {} |\n", cells.join(" | ")));
}

fn verdict(one: &Outcome) -> String {
    if one.wrong.is_empty() { "ok".to_owned() } else { one.wrong.join("; ") }
}

const HEAD: &str = "\
# Faults at each step

Written by `linerate-bench faults --markdown`; do not edit. What each fault is, what is checked after it, and how to run
a case again: [benchmarking.md](benchmarking.md#faults). A row is one migration over two links of a guest that writes memory
all the time. The fault comes at a random instant of the step. Then it is taken away, and the guest moves again with
`--verify`.

- **step**: the one that the fault was meant for. *met* is the one that the client knew of, if it is another: steps
  overlap, and some take milliseconds.
- **guest**: where it ran after the fault. Its memory was as it wrote it, without write protection, and no QEMU of it
  was left elsewhere.
- **client**: exit code of `linerate migrate` ([user-guide.md](user-guide.md#exit-codes)), the error's code, and the
  time from the fault's beginning to that answer. Faults of 2 s and 10 s last that long whatever was answered meanwhile.
- **settled**: from the answer, or the fault's end if that is later, until neither host had anything of the migration in
  progress.
- **retry**: the next migration, there or back.
";

pub(super) fn page(seed: u64, outcomes: &[Outcome]) -> String {
    let steps: Vec<&Outcome> = outcomes
        .iter()
        .filter(|one| !one.name.starts_with("cut/") && !one.name.starts_with("again/"))
        .collect();
    let wrong = steps.iter().filter(|one| !one.wrong.is_empty()).count();
    let all = Case::all().len();
    let mut text = format!(
        "{HEAD}\n{} of {all} cases run, {} as they must be, {wrong} not; seed {seed}.\n",
        steps.len(),
        steps.len() - wrong
    );
    text.push_str("\n| fault | cases | guest went on at the source | at the destination | ended with its QEMU |\n|---|---|---|---|---|\n");
    for (fault, counts) in counts(&steps) {
        let [source, destination, gone] = counts.map(|count| count.to_string());
        let all = counts.iter().sum::<usize>().to_string();
        row(&mut text, &[fault, &all, &source, &destination, &gone]);
    }
    text.push_str("\n| fault | step | side | guest | client | settled | retry | verdict |\n|---|---|---|---|---|---|---|---|\n");
    for one in &steps {
        let settled = one.settled_s.map_or("–".to_owned(), |time| format!("{time:.1} s"));
        row(
            &mut text,
            &[
                &one.fault,
                &step(one),
                &one.side,
                &one.guest,
                &client(one),
                &settled,
                &one.retry,
                &verdict(one),
            ],
        );
    }
    text
}

/// The step that the case is for, and the one that it met where a step was over sooner than thought.
fn step(one: &Outcome) -> String {
    let met = one.at_step.split(';').next().unwrap_or_default();
    let same = met.is_empty() || met.replace(' ', "-") == one.step;
    if same { one.step.clone() } else { format!("{} (met: {met})", one.step) }
}

fn client(one: &Outcome) -> String {
    let exit = one.exit.map_or("killed".to_owned(), |code| code.to_string());
    let code = one.migration.split([':', ' ']).find(|word| word.contains('_') || *word == "completed");
    let code = code.map_or(String::new(), |code| format!(", {}", code.trim_start_matches('(')));
    let time = one.answered_s.map_or(String::new(), |time| format!(", {time:.1} s"));
    format!("{exit}{code}{time}")
}

fn counts<'a>(steps: &[&'a Outcome]) -> BTreeMap<&'a str, [usize; 3]> {
    let mut counts: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for one in steps {
        let place = match one.guest.as_str() {
            "runs at the source" => 0,
            "runs at the destination" => 1,
            _ => 2,
        };
        if let Some(count) = counts.entry(&one.fault).or_default().get_mut(place) {
            *count += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_lists_the_clients_messages_with_their_times() {
        let one = Outcome {
            name: "agent-kill/copy/destination".into(),
            fault: "agent-kill".into(),
            exit: Some(1),
            answered_s: Some(1.62),
            migration: "failed (agent_restarted: the agent was restarted during the migration)".into(),
            guest: "runs at the source".into(),
            ..Outcome::default()
        };
        assert_eq!(client(&one), "1, agent_restarted, 1.6 s");
        let late = Outcome {
            step: "copy".into(),
            at_step: "clean up; there was no QEMU".into(),
            ..Outcome::default()
        };
        assert_eq!(step(&late), "copy (met: clean up)");
        let met = Outcome { step: "clean-up".into(), at_step: "clean up".into(), ..Outcome::default() };
        assert_eq!(step(&met), "clean-up");
        let page = page(7, &[one]);
        assert!(page.contains("| agent-kill | 1 | 1 | 0 | 0 |"), "{page}");
        assert!(page.contains("1 as they must be, 0 not; seed 7"), "{page}");
    }
}
