//! Watching a migration: on a terminal, in plain lines, or as JSON.

pub mod bench;
mod canvas;
mod domain;
pub mod drain;
mod live;
mod patience;
mod plain;
pub mod undrain;
pub mod view;
mod watch;

use linerate_api::{DomainEvent, Event, EventKind, Mode};

use crate::context::Context;
use crate::failure::Failure;
use domain::Line;
use live::Live;
use plain::Plain;
use view::View;

pub use domain::tunnel_text;
pub use watch::{Ended, Start, watch};

/// How events are shown.
enum Display {
    /// Redrawn in place on standard error.
    Live(Box<Live>),
    /// Lines on standard error.
    Plain(Box<Plain>),
    /// libvirt's own migration of a domain: one line on standard error.
    Domain(Line),
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
        if let Display::Json = self {
            return context.print_json_line(event);
        }
        match &event.kind {
            EventKind::Domain(event) => self.domain(event, context),
            EventKind::Tunnel(event) => {
                tunnel_text(event).into_iter().for_each(|text| self.print_line(&text, context));
            }
            _ => self.migration(event, context),
        }
        Ok(())
    }

    fn domain(&mut self, event: &DomainEvent, context: &Context) {
        let is_shown = matches!(self, Display::Live(_) | Display::Plain(_));
        if matches!(event, DomainEvent::Mode { mode: Mode::Stream, .. }) && is_shown {
            // libvirt has other figures, and no steps.
            std::mem::replace(self, Display::Domain(Line::default())).close(true, context);
        }
        domain::text(event).into_iter().for_each(|text| self.print_line(&text, context));
        if let (Display::Domain(line), DomainEvent::Progress { job }) = (self, event) {
            line.job(job, context);
        }
    }

    fn migration(&mut self, event: &Event, context: &Context) {
        match self {
            Display::Live(live) => live.event(event),
            Display::Plain(plain) => plain.event(event).iter().for_each(|line| context.print_line(line)),
            Display::Domain(_) | Display::Json | Display::Quiet => {}
        }
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
            Display::Plain(_) | Display::Domain(_) => {
                self.print_line("cancelling; Ctrl-C again stops watching", context);
            }
            Display::Json | Display::Quiet => {}
        }
    }

    /// A line for people beside what is shown.
    fn print_line(&mut self, text: &str, context: &Context) {
        match self {
            Display::Live(live) => live.print_line(text),
            Display::Domain(line) => line.print_line(text, context),
            Display::Plain(_) => context.print_line(text),
            Display::Json | Display::Quiet => {}
        }
    }

    /// The same of what failed. Where nothing is shown to people, it is an error all the same.
    fn print_error(&mut self, text: &str, context: &Context) {
        match self {
            Display::Json | Display::Quiet => context.print_line(text),
            Display::Live(_) | Display::Domain(_) | Display::Plain(_) => self.print_line(text, context),
        }
    }

    /// Ends the display. What was redrawn in place goes away if a report takes its place, and stays otherwise.
    fn close(self, report_follows: bool, context: &Context) {
        match self {
            Display::Live(live) => live.close(report_follows),
            Display::Domain(mut line) => line.clear(context),
            Display::Plain(_) | Display::Json | Display::Quiet => {}
        }
    }
}
