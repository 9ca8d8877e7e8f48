//! Lines that are drawn over themselves.
//!
//! The cursor rests at the beginning of the line below the picture: what a terminal echoes there (`^C`) is wiped by the
//! next drawing and moves nothing. Each drawing is one write, so that it is never seen by halves.

use console::Term;

/// A picture on standard error.
pub struct Canvas {
    term: Term,
    /// Lines of the picture on the terminal.
    drawn: usize,
}

impl Canvas {
    /// Nothing has been drawn yet.
    pub fn new() -> Canvas {
        Canvas { term: Term::stderr(), drawn: 0 }
    }

    pub fn width(&self) -> usize {
        usize::from(self.term.size().1)
    }

    /// Replaces the picture on the terminal, as many lines as the terminal has room for.
    pub fn draw(&mut self, lines: &[String]) {
        let room = usize::from(self.term.size().0).saturating_sub(1);
        let (text, drawn) = picture(lines, room, self.drawn);
        self.write(&text);
        self.drawn = drawn;
    }

    /// Takes the picture away.
    pub fn clear(&mut self) {
        self.draw(&[]);
    }

    /// A line that stays, above the next picture.
    pub fn print_line(&mut self, text: &str) {
        self.clear();
        self.write(&format!("{text}\n"));
    }

    /// If standard error is closed, the text is dropped.
    fn write(&self, text: &str) {
        let _ = self.term.write_str(text);
    }
}

/// What to write, and how many lines it draws.
fn picture(lines: &[String], room: usize, drawn_before: usize) -> (String, usize) {
    let up = if drawn_before > 0 { format!("\x1b[{drawn_before}A") } else { String::new() };
    let shown: Vec<String> = lines.iter().take(room).map(|line| format!("{line}\x1b[K\n")).collect();
    (format!("{up}\r{}\x1b[J", shown.concat()), shown.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_replaces_the_one_before_and_fits_the_terminal() {
        let lines = ["a", "b", "c"].map(String::from);
        assert_eq!(picture(&lines, 2, 0), ("\ra\x1b[K\nb\x1b[K\n\x1b[J".into(), 2));
        assert_eq!(picture(&lines[..1], 9, 2), ("\x1b[2A\ra\x1b[K\n\x1b[J".into(), 1));
        assert_eq!(picture(&[], 9, 1), ("\x1b[1A\r\x1b[J".into(), 0));
    }
}
