//! Cases that are played one after the other on one stage, for as long as all is well on it.

use super::{Book, Outcome};
use crate::interrupt;
use crate::random::seed_for;

/// Hosts, agents and a guest on which cases are played.
pub(super) trait Stage: Sized {
    fn new(book: &Book<'_>) -> anyhow::Result<Self>;

    /// Plays the case that the outcome names. What was not as it should be is written into it; an error is that too.
    fn play(&mut self, outcome: &mut Outcome) -> anyhow::Result<()>;

    /// What agents and hypervisors logged.
    fn logs(&self) -> String;
}

/// Plays all of them; after one that went wrong on a stage of its own.
pub(super) fn play_all<S: Stage>(book: &mut Book<'_>, names: &[String]) -> anyhow::Result<()> {
    let mut stage: Option<S> = None;
    for name in names {
        interrupt::check()?;
        book.progress.doing(name);
        let mut outcome =
            Outcome { name: name.clone(), seed: seed_for(book.seed, name), ..Outcome::default() };
        match stage.take().map_or_else(|| S::new(book), Ok) {
            Ok(mut fresh) => {
                if let Err(error) = fresh.play(&mut outcome) {
                    interrupt::check()?;
                    outcome.wrong.push(format!("{error:#}"));
                }
                if outcome.wrong.is_empty() {
                    stage = Some(fresh);
                } else {
                    outcome.logs = fresh.logs();
                }
            }
            Err(error) => outcome.wrong.push(format!("no stage: {error:#}")),
        }
        book.add(outcome)?;
    }
    Ok(())
}
