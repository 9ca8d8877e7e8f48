//! The picture of [`frame`](crate::render::frame), redrawn in place.

use std::time::Instant;

use linerate_api::Event;

use super::canvas::Canvas;
use super::view::View;
use crate::render::frame::frame;
use crate::render::paint::Paint;

/// Wider than this, lines are hard to follow with the eye.
const WIDTH_MAX: usize = 110;

/// A migration on a terminal.
pub struct Live {
    view: View,
    canvas: Canvas,
    updated: Instant,
    paint: Paint,
}

impl Live {
    /// Begins to draw on standard error.
    pub fn new(view: View, paint: Paint) -> Live {
        Live { view, canvas: Canvas::new(), updated: Instant::now(), paint }
    }

    /// Takes an event in. Drawn with the next tick: a history of many events is drawn once.
    pub fn event(&mut self, event: &Event) {
        self.view.apply(event);
        self.updated = Instant::now();
    }

    pub fn draw(&mut self) {
        let since = u64::try_from(self.updated.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.paint_at(self.view.at_us.saturating_add(since));
    }

    fn paint_at(&mut self, now_us: u64) {
        let width = self.canvas.width().saturating_sub(1).min(WIDTH_MAX);
        self.canvas.draw(&frame(&self.view, now_us, width, self.paint));
    }

    /// The operator asked to stop the migration.
    pub fn cancelling(&mut self) {
        self.view.cancelling = true;
        self.draw();
    }

    /// A line above the picture.
    pub fn print_line(&mut self, text: &str) {
        self.canvas.print_line(text);
        self.draw();
    }

    /// The last picture goes away or stays.
    pub fn close(mut self, clear: bool) {
        self.view.cancelling = false;
        if clear {
            self.canvas.clear();
        } else {
            self.paint_at(self.view.at_us);
        }
    }
}
