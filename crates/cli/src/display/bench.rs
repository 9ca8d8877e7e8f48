//! How far a measurement is: a bar on a terminal, a line for each part without one.

use std::time::{Duration, Instant};

use super::canvas::Canvas;
use crate::context::Context;
use crate::render::bar::bar;
use crate::render::format::clean;
use crate::render::paint::Paint;

const BAR: usize = 30;

pub enum BenchDisplay {
    /// Redrawn in place on standard error.
    Live(Box<Live>),
    /// Lines on standard error.
    Plain,
    Quiet,
}

/// A bar that moves on by itself while something of a known length is measured.
pub struct Live {
    canvas: Canvas,
    paint: Paint,
    fraction: f64,
    until: f64,
    expected: Duration,
    updated: Instant,
    doing: String,
}

impl BenchDisplay {
    /// As the terminal allows.
    pub fn new(context: &Context, quiet: bool) -> BenchDisplay {
        let paint = context.err.paint;
        match (context.json || quiet, context.err.live) {
            (true, _) => BenchDisplay::Quiet,
            (false, false) => BenchDisplay::Plain,
            (false, true) => BenchDisplay::Live(Box::new(Live {
                canvas: Canvas::new(),
                paint,
                fraction: 0.0,
                until: 0.0,
                expected: Duration::ZERO,
                updated: Instant::now(),
                doing: "finding the links".into(),
            })),
        }
    }

    /// Something begins to be measured.
    pub fn progress(&mut self, fraction: f64, until: f64, expected_ms: u32, doing: String) {
        match self {
            BenchDisplay::Live(live) => {
                let expected = Duration::from_millis(expected_ms.into());
                (live.fraction, live.until, live.expected) = (fraction, until, expected);
                (live.updated, live.doing) = (Instant::now(), doing);
            }
            BenchDisplay::Plain => {
                eprintln_quietly(&format!("{:>3.0} %  {}", fraction * 100.0, clean(&doing)))
            }
            BenchDisplay::Quiet => {}
        }
    }

    /// Draws again, as time has passed.
    pub fn tick(&mut self) {
        if let BenchDisplay::Live(live) = self {
            live.draw();
        }
    }

    /// Takes the bar away.
    pub fn close(self) {
        if let BenchDisplay::Live(mut live) = self {
            live.canvas.clear();
        }
    }
}

impl Live {
    fn draw(&mut self) {
        let fraction = moved(self.fraction, self.until, self.updated.elapsed(), self.expected);
        let width = self.canvas.width().saturating_sub(1);
        let line = line(fraction, &self.doing, width, self.paint);
        self.canvas.draw(&[line]);
    }
}

/// Where the bar is after so long of what was expected.
fn moved(fraction: f64, until: f64, spent: Duration, expected: Duration) -> f64 {
    if expected.is_zero() {
        return fraction;
    }
    fraction + (until - fraction) * (spent.as_secs_f64() / expected.as_secs_f64()).min(1.0)
}

fn line(fraction: f64, doing: &str, width: usize, paint: Paint) -> String {
    let room = width.saturating_sub(BAR + 9);
    let doing: String = clean(doing).chars().take(room).collect();
    format!("{}  {:>3.0} %  {doing}", bar(fraction, BAR, paint), fraction * 100.0)
}

/// If standard error is closed, the text is dropped.
fn eprintln_quietly(line: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_moves_on_and_never_beyond() {
        let after = |ms| moved(0.0, 0.5, Duration::from_millis(ms), Duration::from_millis(1000));
        assert_eq!([after(0), after(500), after(5000)], [0.0, 0.25, 0.5]);
        assert_eq!(moved(0.3, 0.9, Duration::from_secs(9), Duration::ZERO), 0.3);
        let drawn = line(0.5, "eth1 → 10.0.1.2, 65536 bytes", 50, Paint::PLAIN);
        assert_eq!(drawn, "━━━━━━━━━━━━━━━───────────────   50 %  eth1 → 10.0");
        assert_eq!(drawn.chars().count(), 50);
    }
}
