//! `xtask measure`: the house in numbers. What a stranger stumbles over: long functions and files, circles between
//! files, doc comments that say nothing, long sentences.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::imports::{self, Imports};
use crate::{is_rust, sentences};

/// A function longer than this is counted, lines from its name to its closing brace.
const LONG_FUNCTION: usize = 70;
/// A one-line doc comment of at most so many words is counted.
const THIN_WORDS: usize = 3;
/// So many of the longest files are shown.
const LONGEST: usize = 10;

#[derive(Debug, Default)]
struct Crate {
    files: usize,
    code: usize,
    tests: usize,
    comments: usize,
}

/// Everything that is counted.
#[derive(Debug, Default)]
struct House {
    crates: BTreeMap<String, Crate>,
    long_functions: Vec<(usize, String)>,
    files: Vec<(usize, PathBuf)>,
    one_line_docs: usize,
    thin_docs: usize,
}

/// Prints the counts of all files, as Markdown.
pub fn run(files: &[PathBuf]) -> Result<()> {
    let mut house = House::default();
    for path in files.iter().filter(|path| is_rust(path)) {
        house.add(path)?;
    }
    house.print(files)
}

/// `crates/core/src/lib.rs` is of `crates/core`, `lab/src/lib.rs` of `lab`.
fn crate_of(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    match parts.as_slice() {
        [first, second, ..] if first == "crates" => format!("crates/{second}"),
        [first, ..] => first.to_string(),
        [] => String::new(),
    }
}

impl House {
    fn add(&mut self, path: &Path) -> Result<()> {
        let text = std::fs::read_to_string(path)?;
        let file = syn::parse_file(&text).with_context(|| path.display().to_string())?;
        let mut look = Look { tests: is_test(path), ..Look::default() };
        look.visit_file(&file);
        look.docs(&text);
        let counts = self.crates.entry(crate_of(path)).or_default();
        counts.files += 1;
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.starts_with("//") {
                counts.comments += 1;
            } else if !line.is_empty() && (look.tests || look.is_test_line(number)) {
                counts.tests += 1;
            } else if !line.is_empty() {
                counts.code += 1;
            }
        }
        self.files.push((text.lines().count(), path.to_owned()));
        let named = |(lines, name)| (lines, format!("{}: {name}", path.display()));
        self.long_functions.extend(look.long_functions.into_iter().map(named));
        self.one_line_docs += look.one_line_docs;
        self.thin_docs += look.thin_docs;
        Ok(())
    }

    fn print(mut self, files: &[PathBuf]) -> Result<()> {
        println!("| crate | files | code | tests | comments | files in circles |\n|---|---|---|---|---|---|");
        let mut total = Crate::default();
        let mut all_circles = 0;
        for (name, one) in &self.crates {
            let circles = Imports::of(name, files)?.circles();
            let in_circles: usize = circles.iter().map(BTreeSet::len).sum();
            let Crate { files, code, tests, comments } = one;
            println!("| {name} | {files} | {code} | {tests} | {comments} | {in_circles} |");
            total.files += files;
            total.code += code;
            total.tests += tests;
            total.comments += comments;
            all_circles += in_circles;
        }
        let Crate { files: count, code, tests, comments } = total;
        println!("| all | {count} | {code} | {tests} | {comments} | {all_circles} |\n");
        println!("functions over {LONG_FUNCTION} lines: {}", self.long_functions.len());
        self.long_functions.sort_unstable_by(|a, b| b.cmp(a));
        self.long_functions.iter().for_each(|(lines, name)| println!("  {lines} {name}"));
        self.files.sort_unstable_by(|a, b| b.cmp(a));
        println!("longest files:");
        self.files.iter().take(LONGEST).for_each(|(lines, path)| println!("  {lines} {}", path.display()));
        println!(
            "one-line doc comments of at most {THIN_WORDS} words: {} of {}",
            self.thin_docs, self.one_line_docs
        );
        let long = sentences::long_ones(files)?;
        println!("sentences of over {} words in pages: {}", sentences::WORDS_MAX, long.len());
        for (name, tangle) in imports::tangles(files, self.crates.keys())? {
            println!("folders of {name} in a circle: {}", tangle.into_iter().collect::<Vec<_>>().join(", "));
        }
        Ok(())
    }
}

fn is_test(path: &Path) -> bool {
    path.iter().any(|part| part == "tests")
        || path.file_stem().is_some_and(|stem| {
            let stem = stem.to_string_lossy();
            stem == "tests" || stem.ends_with("_tests") || stem == "testing"
        })
}

/// What is found in one file.
#[derive(Debug, Default)]
struct Look {
    tests: bool,
    test_lines: Vec<(usize, usize)>,
    long_functions: Vec<(usize, String)>,
    one_line_docs: usize,
    thin_docs: usize,
}

impl Look {
    fn is_test_line(&self, line: usize) -> bool {
        self.test_lines.iter().any(|(from, to)| (*from..=*to).contains(&line))
    }

    fn function(&mut self, name: &syn::Ident, whole: &impl Spanned) {
        let lines = whole.span().end().line + 1 - name.span().start().line;
        if lines > LONG_FUNCTION {
            self.long_functions.push((lines, name.to_string()));
        }
    }

    /// A doc comment of one line has another line above and below.
    fn docs(&mut self, text: &str) {
        let lines: Vec<Option<&str>> = text.lines().map(|line| line.trim().strip_prefix("///")).collect();
        for (at, line) in lines.iter().enumerate() {
            let Some(line) = line else { continue };
            let beside = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
            if beside.filter_map(|at| lines.get(at)).all(Option::is_none) {
                self.one_line_docs += 1;
                self.thin_docs += usize::from(line.split_whitespace().count() <= THIN_WORDS);
            }
        }
    }
}

impl<'ast> Visit<'ast> for Look {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        let of_tests = |attribute: &syn::Attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
        };
        if module.content.is_some() && module.attrs.iter().any(of_tests) {
            self.test_lines.push((module.span().start().line, module.span().end().line));
        }
        visit::visit_item_mod(self, module);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig.ident, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.function(&function.sig.ident, &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(text: &str) -> Look {
        let mut look = Look::default();
        look.visit_file(&syn::parse_file(text).unwrap());
        look.docs(text);
        look
    }

    #[test]
    fn a_function_is_measured_from_its_name_to_its_brace() {
        let body = "    work();\n".repeat(LONG_FUNCTION - 1);
        assert_eq!(
            look(&format!("/// Works.\nfn long() {{\n{body}}}\n")).long_functions,
            [(71, "long".into())]
        );
        let shorter = "    work();\n".repeat(LONG_FUNCTION - 2);
        assert!(look(&format!("#[inline]\nfn fits() {{\n{shorter}}}\n")).long_functions.is_empty());
    }

    #[test]
    fn thin_doc_comments_are_single_lines() {
        let found = look(
            "/// Its name.\nstruct A;\n/// Two\n/// lines.\nstruct B;\n/// Bytes that were sent so far.\nstruct C;\n",
        );
        assert_eq!((found.one_line_docs, found.thin_docs), (2, 1));
    }

    #[test]
    fn lines_of_a_module_for_tests_are_no_code() {
        let found = look("fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() {}\n}\n");
        assert!(!found.is_test_line(1) && found.is_test_line(4));
    }
}
