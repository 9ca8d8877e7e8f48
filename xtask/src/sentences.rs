//! Sentences of the project's pages and comments that are too long to be understood at first reading.

use std::path::PathBuf;

use anyhow::Result;

/// Pages and comments follow it; `xtask check` holds them to it.
pub const WORDS_MAX: usize = 25;
/// The same for the columns of a line; `rustfmt` leaves comments alone.
pub const COLUMNS_MAX: usize = 120;

/// A sentence that is too long.
#[derive(Debug, PartialEq, Eq)]
pub struct Long {
    /// The page or source file that it is in.
    pub page: PathBuf,
    /// Its words, one space between them.
    pub text: String,
}

/// All of them, page by page.
pub fn long_ones(files: &[PathBuf]) -> Result<Vec<Long>> {
    let mut found = Vec::new();
    for page in files {
        let text = match page.extension().and_then(|ending| ending.to_str()) {
            Some("md") => std::fs::read_to_string(page)?,
            Some("rs") => comments(&std::fs::read_to_string(page)?),
            _ => continue,
        };
        let long = sentences(&text).into_iter().filter(|words| words.len() > WORDS_MAX);
        found.extend(long.map(|words| Long { page: page.clone(), text: words.join(" ") }));
    }
    Ok(found)
}

/// Numbers of the lines of a page, or of the comments of a source file, that are too long. Tables, images and drawings
/// may be wider.
pub fn wide_lines(text: &str, is_page: bool) -> Vec<usize> {
    let mut found = Vec::new();
    let mut in_drawing = false;
    for (line, number) in text.lines().zip(1..) {
        let Some(content) = (if is_page { Some(line) } else { line.trim_start().strip_prefix("//") }) else {
            in_drawing = false;
            continue;
        };
        let content = content.trim_start_matches(['/', ' ']).trim_start_matches("! ");
        in_drawing ^= content.starts_with("```");
        let may_be_wide = in_drawing || content.starts_with('|') || content.starts_with("![");
        if line.chars().count() > COLUMNS_MAX && !may_be_wide {
            found.push(number);
        }
    }
    found
}

/// The comments of a source file as a page, with a blank line where another begins.
fn comments(source: &str) -> String {
    let mut page = String::new();
    let mut before = "";
    for line in source.lines().map(str::trim_start) {
        let mark = ["//!", "///", "//"].into_iter().find(|mark| line.starts_with(mark)).unwrap_or_default();
        if mark != before {
            page.push('\n');
        }
        if !mark.is_empty() {
            page.push_str(&line[mark.len()..]);
            page.push('\n');
        }
        before = mark;
    }
    page
}

/// Every sentence of a Markdown page, as words. Code blocks have none; a cell of a table, an item of a list and a
/// heading end a sentence.
fn sentences(page: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut paragraph = String::new();
    let mut in_code = false;
    for line in page.lines() {
        let line = line.trim();
        if line.starts_with("```") {
            in_code = !in_code;
        }
        if in_code || line.starts_with("```") {
            split(&std::mem::take(&mut paragraph), &mut found);
            continue;
        }
        let begins =
            ["- ", "* ", "#", "|", "> "].iter().any(|mark| line.starts_with(mark)) || is_numbered(line);
        if line.is_empty() || begins {
            split(&std::mem::take(&mut paragraph), &mut found);
        }
        if line.starts_with('|') {
            line.split('|').for_each(|cell| split(cell, &mut found));
        } else if line.starts_with('#') {
            split(line, &mut found);
        } else {
            paragraph.push_str(line);
            paragraph.push(' ');
        }
    }
    split(&paragraph, &mut found);
    found
}

fn is_numbered(line: &str) -> bool {
    line.split_once(". ")
        .is_some_and(|(number, _)| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A word ends a sentence with a full stop, a question or exclamation mark, a colon or a semicolon.
fn split(text: &str, found: &mut Vec<Vec<String>>) {
    let mut sentence = Vec::new();
    for word in one_word_each(text).split_whitespace() {
        if word.chars().any(char::is_alphanumeric) {
            sentence.push(word.to_owned());
        }
        let bare = word.trim_end_matches(['*', '_', ')', '"', '\'']);
        if bare.ends_with(['.', '!', '?', ':', ';']) {
            found.extend((!sentence.is_empty()).then(|| std::mem::take(&mut sentence)));
        }
    }
    found.extend((!sentence.is_empty()).then_some(sentence));
}

/// Code in backticks is one word, and so is the address of a link.
fn one_word_each(text: &str) -> String {
    let mut words = String::new();
    for (number, part) in text.split('`').enumerate() {
        match number % 2 {
            0 => words.push_str(part),
            _ => words.extend(
                part.chars().map(|one| if one.is_whitespace() || ".:;?!".contains(one) { '_' } else { one }),
            ),
        }
    }
    let mut rest = words.as_str();
    let mut plain = String::new();
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(page: &str) -> Vec<usize> {
        sentences(page).iter().map(Vec::len).collect()
    }

    #[test]
    fn sentences_end_at_marks_items_cells_and_blank_lines() {
        assert_eq!(
            lengths("# A heading\nOne two three. Four\nfive: six\n\n- seven\n- eight nine\n"),
            [2, 3, 2, 1, 1, 2]
        );
        assert_eq!(lengths("| a | b c |\n|---|---|\n| d e. f | g |\n"), [1, 2, 2, 1, 1]);
    }

    #[test]
    fn code_and_links_are_one_word() {
        assert_eq!(lengths("Run `make test. Then: go` now.\n```\nnot a sentence\n```\n"), [3]);
        assert_eq!(lengths("See [the page](docs/a.md) first."), [4]);
    }

    #[test]
    fn comments_end_where_another_kind_or_code_begins() {
        let source = "//! A file.\n\n/// One two\n/// three\nfn x() {} // not this\n    // Four five\n    y();\n// six\n";
        assert_eq!(lengths(&comments(source)), [2, 3, 2, 1]);
    }

    #[test]
    fn only_comments_and_pages_are_too_wide() {
        let wide = "x".repeat(COLUMNS_MAX);
        let source = format!("// short\n// {wide}\nlet text = \"{wide}\";\n    /// {wide}\n//! | {wide} |\n");
        assert_eq!(wide_lines(&source, false), [2, 4]);
        let drawing = format!("/// ```text\n/// {wide}\n/// ```\n/// {wide}\n");
        assert_eq!(wide_lines(&drawing, false), [4]);
        assert_eq!(wide_lines(&format!("short\n{wide}x\n| {wide} |\n"), true), [2]);
    }
}
