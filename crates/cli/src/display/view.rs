//! What is known of a migration from its events so far.

use linerate_api::{Event, EventKind, MigrationOutcome, Progress, Step, StepState};

use crate::render::format::clean;

/// How many notes are kept on the screen.
const NOTES_MAX: usize = 3;

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepView {
    /// It has not begun.
    Pending,
    /// In progress since this point in time, in microseconds since the migration began.
    Running(u64),
    /// Ended after so many microseconds.
    Done(u64),
    /// In progress when the migration ended otherwise.
    Failed,
}

/// A migration on the screen.
#[derive(Clone, Debug)]
pub struct View {
    pub guest: String,
    pub to: String,
    /// The blackout budget, if this command set it.
    pub budget_ms: Option<u32>,
    pub steps: [StepView; 10],
    pub progress: Option<Progress>,
    /// Links lost and back, and warnings: when and what.
    pub notes: Vec<Note>,
    /// The operator asked to stop it.
    pub cancelling: bool,
    /// When the last event was, in microseconds since the migration began.
    pub at_us: u64,
}

/// A line that stays on the screen for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub at_us: u64,
    /// Whether it is good news.
    pub good: bool,
    pub text: String,
}

impl View {
    /// A migration of which nothing has been seen yet.
    pub fn new(guest: &str, to: &str, budget_ms: Option<u32>) -> View {
        View {
            guest: clean(guest),
            to: clean(to),
            budget_ms,
            steps: [StepView::Pending; 10],
            progress: None,
            notes: Vec::new(),
            cancelling: false,
            at_us: 0,
        }
    }

    /// Takes an event in.
    pub fn apply(&mut self, event: &Event) {
        self.at_us = self.at_us.max(event.at_us);
        match &event.kind {
            EventKind::Step { name, state, duration_us, .. } => {
                self.set_step(*name, step_view(*state, *duration_us, event.at_us));
            }
            EventKind::Progress(progress) => self.progress = Some((**progress).clone()),
            EventKind::LinkLost { link, reason } => {
                let text = format!("link {} lost: {reason}; the others carry on", self.link_name(*link));
                self.note(event.at_us, false, &text);
            }
            EventKind::LinkRestored { link } => {
                let text = format!("link {} is back", self.link_name(*link));
                self.note(event.at_us, true, &text);
            }
            EventKind::Warning { text } => self.note(event.at_us, false, text),
            EventKind::Finished { outcome, .. } => self.finish(*outcome),
            EventKind::Domain(_) | EventKind::Tunnel(_) | EventKind::Unknown => {}
        }
    }

    /// The name of a link, or its number as long as no figures have named it.
    pub fn link_name(&self, id: u16) -> String {
        let links = self.progress.iter().flat_map(|progress| &progress.links);
        links
            .filter(|link| link.id == id)
            .map(|link| clean(&link.name))
            .next()
            .unwrap_or_else(|| id.to_string())
    }

    fn set_step(&mut self, step: Step, view: StepView) {
        if let Some(slot) = self.steps.get_mut(usize::from(step.number()).saturating_sub(1)) {
            *slot = view;
        }
    }

    fn note(&mut self, at_us: u64, good: bool, text: &str) {
        self.notes.push(Note { at_us, good, text: clean(text) });
        let surplus = self.notes.len().saturating_sub(NOTES_MAX);
        self.notes.drain(..surplus);
    }

    fn finish(&mut self, outcome: MigrationOutcome) {
        for step in &mut self.steps {
            if matches!(step, StepView::Running(_))
                && !matches!(outcome, MigrationOutcome::Completed | MigrationOutcome::Checked)
            {
                *step = StepView::Failed;
            }
        }
    }
}

fn step_view(state: StepState, duration_us: Option<u64>, at_us: u64) -> StepView {
    match state {
        StepState::Started => StepView::Running(at_us),
        StepState::Done => StepView::Done(duration_us.unwrap_or(0)),
    }
}
