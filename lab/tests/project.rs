//! What the project's own files promise about the product. Needs the built `linerate`.

#![allow(clippy::unwrap_used, clippy::panic)] // Tests say what they expect.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn project(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file)
}

fn text(file: &str) -> String {
    std::fs::read_to_string(project(file)).unwrap()
}

#[test]
fn the_packaged_configuration_is_good() {
    let mut command = Command::new(linerate_lab::agent::binary().unwrap());
    let done =
        command.args(["agent", "--check", "--config"]).arg(project("packaging/agent.toml")).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Names of the public fields of a struct, from its source.
fn fields(source: &str, name: &str) -> Vec<String> {
    let body = source.split_once(&format!("pub struct {name} {{")).unwrap().1;
    let body = body.split_once("\n}").unwrap().0;
    let fields = body.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(':'));
    fields.map(|(field, _)| field.to_owned()).collect()
}

#[test]
fn operations_lists_every_key_of_the_configuration_and_no_other() {
    let (source, page) = (text("crates/agent/src/config.rs"), text("docs/operations.md"));
    let mut keys = fields(&source, "Config");
    keys.extend(fields(&source, "Qemu").iter().map(|key| format!("qemu.{key}")));
    assert!(keys.len() > 10, "{keys:?}");
    let table = page.split_once("## Configuration").unwrap().1.split_once("\n## ").unwrap().0;
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let mut listed: Vec<String> = rows.map(|(key, _)| key.to_owned()).collect();
    listed.sort();
    keys.retain(|key| key != "qemu");
    keys.sort();
    assert_eq!(listed, keys);
}

#[test]
fn every_error_code_is_explained() {
    let (protocol, page) = (text("docs/protocol.md"), text("docs/error-codes.md"));
    let codes = protocol.split_once("### Codes").unwrap().1.split_once("\n## ").unwrap().0;
    let names: Vec<String> =
        codes.lines().filter_map(|line| line.split('|').nth(2)).map(|name| snake_case(name.trim())).collect();
    let names: Vec<&String> = names.iter().filter(|name| *name != "code" && !name.starts_with('-')).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("\n| `{name}` |")), "{name} is not explained in docs/error-codes.md");
    }
}

fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for (place, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && place > 0 {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// `path::name` of every test that the specification cites exists.
#[test]
fn the_specification_cites_tests_that_exist() {
    let specification = text("SPECIFICATION.md");
    let cited: Vec<(&str, &str)> =
        specification.split('`').filter_map(|words| words.split_once(".rs::")).collect();
    assert!(cited.len() > 20, "{cited:?}");
    for (file, name) in cited {
        let source = text(&format!("{file}.rs"));
        assert!(source.contains(&format!("fn {name}(")), "{file}.rs has no test {name}");
    }
}

/// Every Rust file of the project, as a path from its root.
fn rust_files(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.insert(path.strip_prefix(project("")).unwrap().to_str().unwrap().to_owned());
        }
    }
}

fn all_rust_files() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for folder in ["crates", "lab", "bench", "fuzz", "xtask"] {
        rust_files(&project(folder), &mut found);
    }
    found
}

/// A page may leave out the first folders of a path, but not a part of a name.
#[test]
fn pages_name_rust_files_that_exist() {
    let files = all_rust_files();
    let exists = |name: &str| files.iter().any(|file| file == name || file.ends_with(&format!("/{name}")));
    let docs = std::fs::read_dir(project("docs")).unwrap().map(|entry| entry.unwrap().file_name());
    let mut pages: Vec<String> = docs.map(|name| format!("docs/{}", name.to_str().unwrap())).collect();
    pages.retain(|page| page.ends_with(".md"));
    pages.extend(["README.md".to_owned(), "SPECIFICATION.md".to_owned()]);
    let mut named = 0;
    for page in pages {
        for code in text(&page).lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let name = code.split("::").next().unwrap_or(code);
            // `vmm/` is Cloud Hypervisor's source.
            if name.ends_with(".rs") && !name.contains(' ') && !name.starts_with("vmm/") {
                named += 1;
                assert!(exists(name), "{page} names {name}, which does not exist");
            }
        }
    }
    assert!(named > 300, "{named} files are named");
}

/// A row of the table is `file.rs` and, in brackets, what to read in it.
#[test]
fn the_table_of_the_architecture_names_functions_that_exist() {
    let page = text("docs/architecture.md");
    let table = page.split_once("## Where to look").unwrap().1.split_once("\n## ").unwrap().0;
    let mut named = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let mut source = String::new();
        for (code, before) in row.split('`').skip(1).step_by(2).zip(row.split('`').step_by(2)) {
            if code.ends_with(".rs") {
                source = text(&format!("crates/{code}"));
            } else if before.ends_with('(') || before == ", " {
                let name = code.rsplit("::").next().unwrap_or(code);
                let words: Vec<&str> =
                    source.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
                let is_declared = words.windows(2).any(|pair| match pair {
                    [kind, declared] => ["fn", "trait", "struct", "enum"].contains(kind) && *declared == name,
                    _ => false,
                });
                assert!(is_declared, "{code} is not declared where this row names it: {row}");
                named += 1;
            }
        }
    }
    assert!(named > 30, "{named} functions are named");
}

/// cargo runs none of a name that no test has, and ends well.
#[test]
fn the_makefile_names_tests_that_exist() {
    let makefile = text("Makefile");
    let named: Vec<&str> =
        makefile.split("--exact ").skip(1).filter_map(|rest| rest.split_whitespace().next()).collect();
    assert!(named.len() > 2, "{named:?}");
    let tests = text("lab/tests/rdma.rs");
    for name in named {
        assert!(tests.contains(&format!("fn {name}()")), "lab/tests/rdma.rs has no test {name}");
    }
    assert!(makefile.contains("--test real_drains random_instants "));
    assert!(text("crates/cli/tests/real_drains.rs").contains("random_instants()"));
}

/// make runs the last of two recipes of one name, and says so only in passing.
#[test]
fn every_target_of_the_makefile_is_there_once() {
    let makefile = text("Makefile");
    let (_, phony) = makefile.split_once(".PHONY: ").unwrap();
    let named: Vec<&str> = phony.lines().next().unwrap().split(' ').collect();
    assert!(named.len() > 15, "{named:?}");
    for target in named {
        let recipe = format!("{target}:");
        let found = makefile.lines().filter(|line| line.starts_with(&recipe)).count();
        assert_eq!(found, 1, "recipes of {target}");
    }
}
