//! What the project's own files promise about the product. Needs the built `linerate`.

#![allow(clippy::unwrap_used, clippy::panic)] // Tests say what they expect.

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
fn operations_has_every_error_code() {
    let (protocol, page) = (text("docs/protocol.md"), text("docs/operations.md"));
    let codes = protocol.split_once("### Codes").unwrap().1.split_once("\n## ").unwrap().0;
    let names: Vec<String> =
        codes.lines().filter_map(|line| line.split('|').nth(2)).map(|name| snake_case(name.trim())).collect();
    let names: Vec<&String> = names.iter().filter(|name| *name != "code" && !name.starts_with('-')).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("\n| `{name}` |")), "{name} is not explained in docs/operations.md");
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
