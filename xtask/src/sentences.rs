//! Sentences of the project's pages that are too long to be understood at first reading.

use std::path::PathBuf;

use anyhow::Result;

/// docs follow it; `xtask check` holds them to it.
pub const WORDS_MAX: usize = 25;

/// A sentence that is too long.
#[derive(Debug, PartialEq, Eq)]
pub struct Long {
    /// The page that it is on.
    pub page: PathBuf,
    /// Its words, one space between them.
    pub text: String,
}

/// All of them, page by page.
pub fn long_ones(files: &[PathBuf]) -> Result<Vec<Long>> {
    let mut found = Vec::new();
    for page in files.iter().filter(|path| path.extension().is_some_and(|ending| ending == "md")) {
        let text = std::fs::read_to_string(page)?;
        let long = sentences(&text).into_iter().filter(|words| words.len() > WORDS_MAX);
        found.extend(long.map(|words| Long { page: page.clone(), text: words.join(" ") }));
    }
    Ok(found)
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
}
