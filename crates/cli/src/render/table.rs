//! Aligned columns.

use console::measure_text_width;

/// Which edge a column's cells stand at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// For columns of words.
    Left,
    /// For columns of numbers.
    Right,
}

/// Rows of cells, as wide as their widest cell.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &[Align]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; cells beyond the columns are left out.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().take(self.columns.len()).collect());
    }

    /// The lines, each behind `indent` spaces, two spaces between columns, none at the end.
    pub fn lines(&self, indent: usize) -> Vec<String> {
        let widths: Vec<usize> = (0..self.columns.len()).map(|column| self.width(column)).collect();
        self.rows.iter().map(|row| self.line(row, &widths, indent)).collect()
    }

    fn width(&self, column: usize) -> usize {
        self.rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| measure_text_width(cell))
            .max()
            .unwrap_or(0)
    }

    fn line(&self, row: &[String], widths: &[usize], indent: usize) -> String {
        let mut line = " ".repeat(indent);
        for (position, ((cell, width), align)) in row.iter().zip(widths).zip(&self.columns).enumerate() {
            if *width == 0 {
                continue;
            }
            if position > 0 {
                line.push_str("  ");
            }
            let space = " ".repeat(width.saturating_sub(measure_text_width(cell)));
            match align {
                Align::Left => line.extend([cell.as_str(), space.as_str()]),
                Align::Right => line.extend([space.as_str(), cell.as_str()]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// Words in lines of at most `width` columns.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && measure_text_width(&line) + 1 + measure_text_width(word) > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_take_no_room() {
        let mut table = Table::new(&[Align::Left, Align::Right, Align::Left]);
        table.row(["a", "1", "x"].map(String::from));
        table.row(["\x1b[31mbbb\x1b[0m", "100", ""].map(String::from));
        assert_eq!(table.lines(1), [" a      1  x", " \x1b[31mbbb\x1b[0m  100"]);
    }

    #[test]
    fn words_are_not_broken() {
        assert_eq!(wrap("one two three", 7), ["one two", "three"]);
        assert_eq!(wrap("", 7), [""]);
    }
}
