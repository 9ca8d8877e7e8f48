//! Watching a migration: on a terminal, in plain lines, or as JSON.

pub mod bench;
mod canvas;
mod live;
mod plain;
pub mod view;
mod watch;

use linerate_api::Event;

use crate::context::Context;
use crate::failure::Failure;
use live::Live;
use plain::Plain;
use view::View;

pub use watch::{Start, watch};

/// How events are shown.
enum Display {
    /// Redrawn in place on standard error.
    Live(Box<Live>),
    /// Lines on standard error.
    Plain(Box<Plain>),
    /// Each event as a line of JSON on standard output.
    Json,
    Quiet,
}

impl Display {
    fn new(context: &Context, view: View, quiet: bool) -> Display {
        match (context.json, quiet, context.err.live) {
            (true, _, _) => Display::Json,
            (false, true, _) => Display::Quiet,
            (false, false, true) => Display::Live(Box::new(Live::new(view, context.err.paint))),
            (false, false, false) => Display::Plain(Box::new(Plain::new(view))),
        }
    }

    fn event(&mut self, event: &Event, context: &Context) -> Result<(), Failure> {
        match self {
            Display::Live(live) => live.event(event),
            Display::Plain(plain) => plain.event(event).iter().for_each(|line| context.say(line)),
            Display::Json => context.print_json_line(event)?,
            Display::Quiet => {}
        }
        Ok(())
    }

    fn tick(&mut self) {
        if let Display::Live(live) = self {
            live.draw();
        }
    }

    /// The operator asked to stop the migration.
    fn cancelling(&mut self, context: &Context) {
        match self {
            Display::Live(live) => live.cancelling(),
            Display::Plain(_) => context.say("cancelling; Ctrl-C again stops watching"),
            Display::Json | Display::Quiet => {}
        }
    }

    /// A line for people beside what is shown.
    fn say(&mut self, text: &str, context: &Context) {
        match self {
            Display::Live(live) => live.say(text),
            Display::Plain(_) => context.say(text),
            Display::Json | Display::Quiet => {}
        }
    }

    /// Ends the display. What was redrawn in place goes away if a report takes its place, and stays otherwise.
    fn close(self, report_follows: bool) {
        if let Display::Live(live) = self {
            live.close(report_follows);
        }
    }
}
