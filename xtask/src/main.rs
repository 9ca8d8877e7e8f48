//! Project chores that are too long for make. `cargo run -p xtask -- check` runs the checks that clippy cannot. In
//! code: dependency direction between crates, the pure crates' dependency lists, where `unsafe` is allowed, circles
//! between folders of a crate. In documents: links, and the length of sentences. `cargo run -p xtask -- test` runs all
//! tests, two programs of them at a time; `measure` prints the project's numbers, and `licences` what the Debian
//! package says of the libraries in the program.

mod imports;
mod licences;
mod measure;
mod sentences;
mod suite;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

/// Layer of every crate: a crate may depend only on crates of lower layers. docs/architecture.md draws it.
const LAYERS: &[(&str, u8)] = &[
    ("linerate-wire", 1),
    ("linerate-api", 1),
    ("linerate-chart", 1),
    ("linerate-folder", 1),
    ("linerate-lock", 1),
    ("linerate-core", 2),
    ("linerate-trust", 2),
    ("linerate-store", 2),
    ("linerate-net", 3),
    ("linerate-memory", 3),
    ("linerate-guest", 4),
    ("linerate-fabric", 4),
    ("linerate-plan", 4),
    ("linerate-agent", 5),
    ("linerate", 6),
    ("linerate-lab", 7),
    ("linerate-bench", 8),
    ("xtask", 9),
];

/// All that the core and the wire format may be made of: nothing that touches the system.
const PURE: &[(&str, &[&str])] = &[
    ("linerate-wire", &["crc-fast", "thiserror"]),
    ("linerate-core", &["linerate-wire", "thiserror"]),
    ("linerate-chart", &[]),
    ("linerate-lock", &[]),
    ("linerate-plan", &["linerate-core", "linerate-wire"]),
];

/// Crates whose folders use each other in no circle: docs/agent-modules.md has their layers.
const LAYERED: &[&str] = &[
    "crates/agent",
    "crates/api",
    "crates/chart",
    "crates/core",
    "crates/store",
    "crates/trust",
    "bench",
    "xtask",
];

/// Written from findings of a test, whose lists of values may be long.
const PAGES_OF_LISTS: &[&str] = &["docs/findings.md"];

/// Folders whose Rust may contain `unsafe`.
const UNSAFE_ALLOWED: &[&str] = &["crates/memory/", "crates/net/src/rdma/"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["check"] => check().map(|()| true),
        ["measure"] => tracked_files().and_then(|files| measure::run(&files)).map(|()| true),
        ["licences"] => licences::run().map(|()| true),
        ["test"] => suite::run(None),
        ["test", at_a_time] => suite::run(Some(at_a_time)),
        _ => Err(anyhow::anyhow!("usage: xtask check | licences | measure | test [AT A TIME]")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<()> {
    let mut problems = Vec::new();
    let dependencies = dependencies()?;
    check_crate_layers(&dependencies, &mut problems);
    check_pure(&dependencies, &mut problems);
    let files = tracked_files()?;
    check_unsafe(&files, &mut problems)?;
    check_links(&files, &mut problems)?;
    check_layers(&files, &mut problems)?;
    check_sentences(&files, &mut problems)?;
    check_columns(&files, &mut problems)?;
    if problems.is_empty() {
        println!("xtask check: {} crates, {} files: in order", dependencies.len(), files.len());
        return Ok(());
    }
    bail!("{} problems\n  {}", problems.len(), problems.join("\n  "))
}

/// Normal dependencies (not those of tests) of every crate of the workspace, by `cargo metadata`.
fn dependencies() -> Result<BTreeMap<String, Vec<String>>> {
    let output = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked"])
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cargo metadata's JSON")?;
    let packages = metadata["packages"].as_array().context("no packages")?;
    let name = |value: &serde_json::Value| value["name"].as_str().unwrap_or_default().to_owned();
    let normal = |package: &serde_json::Value| {
        let all = package["dependencies"].as_array().cloned().unwrap_or_default();
        all.iter().filter(|dependency| dependency["kind"].is_null()).map(name).collect()
    };
    Ok(packages.iter().map(|package| (name(package), normal(package))).collect())
}

fn check_crate_layers(dependencies: &BTreeMap<String, Vec<String>>, problems: &mut Vec<String>) {
    let layers: BTreeMap<&str, u8> = LAYERS.iter().copied().collect();
    for (package, needs) in dependencies {
        let Some(&layer) = layers.get(package.as_str()) else {
            problems.push(format!("{package} has no layer: add it to xtask and to docs/architecture.md"));
            continue;
        };
        for need in needs {
            if layers.get(need.as_str()).is_some_and(|&below| below >= layer) {
                problems.push(format!("{package} (layer {layer}) depends on {need}, which is not below it"));
            }
        }
    }
}

fn check_pure(dependencies: &BTreeMap<String, Vec<String>>, problems: &mut Vec<String>) {
    for (package, allowed) in PURE {
        for need in dependencies.get(*package).into_iter().flatten() {
            if !allowed.contains(&need.as_str()) {
                problems.push(format!("{package} may depend on {allowed:?} only, not on {need}"));
            }
        }
    }
}

fn tracked_files() -> Result<Vec<PathBuf>> {
    files_in(Path::new("."))
}

/// Files of the repository whose top `folder` is, as git lists them. Without a list nothing would be checked, and of a
/// part nobody could say that all is in order.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    // Without -z git puts names in quotes that are not ASCII.
    let list = git(folder, &["ls-files", "-coz", "--exclude-standard"])?;
    let below = git(folder, &["rev-parse", "--show-prefix"])?;
    if !below.trim().is_empty() {
        bail!("{} is a part of the repository: run it at the top", below.trim());
    }
    Ok(list.split('\0').map(PathBuf::from).filter(|path| folder.join(path).is_file()).collect())
}

fn git(folder: &Path, words: &[&str]) -> Result<String> {
    let name = || format!("git {}", words.first().unwrap_or(&""));
    let output = Command::new("git").args(words).current_dir(folder).output().with_context(name)?;
    if !output.status.success() {
        bail!("{}: {}", name(), String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).context("file names")
}

/// Whether it is a Rust source file.
fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "rs")
}

fn check_unsafe(files: &[PathBuf], problems: &mut Vec<String>) -> Result<()> {
    let rust = files.iter().filter(|path| is_rust(path));
    for path in rust.filter(|path| !UNSAFE_ALLOWED.iter().any(|folder| path.starts_with(folder))) {
        let text = std::fs::read_to_string(path)?;
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        if code
            .into_iter()
            .any(|line| line.contains(concat!("unsafe", " {")) || line.contains(concat!("unsafe", " fn")))
        {
            problems.push(format!(
                "{} contains unsafe code; it may be in {UNSAFE_ALLOWED:?} only",
                path.display()
            ));
        }
    }
    Ok(())
}

/// No folder of a layered crate uses another that uses it, directly or by way of others.
fn check_layers(files: &[PathBuf], problems: &mut Vec<String>) -> Result<()> {
    let crates: Vec<String> = LAYERED.iter().map(|&name| name.to_owned()).collect();
    for (name, circle) in imports::tangles(files, crates.iter())? {
        let circle: Vec<String> = circle.into_iter().collect();
        problems.push(format!("{name}: {} use each other in a circle", circle.join(", ")));
    }
    Ok(())
}

/// Pages and comments can be read in a terminal of 120 columns.
fn check_columns(files: &[PathBuf], problems: &mut Vec<String>) -> Result<()> {
    for path in files {
        let is_page = path.extension().is_some_and(|ending| ending == "md");
        if is_page || is_rust(path) {
            let text = std::fs::read_to_string(path)?;
            problems.extend(
                sentences::wide_lines(&text, is_page).into_iter().map(|line| {
                    format!("{}:{line}: over {} columns", path.display(), sentences::COLUMNS_MAX)
                }),
            );
        }
    }
    Ok(())
}

/// Pages and comments are understood at first reading.
fn check_sentences(files: &[PathBuf], problems: &mut Vec<String>) -> Result<()> {
    let of_lists = |page: &Path| PAGES_OF_LISTS.iter().any(|name| page == Path::new(name));
    for sentences::Long { page, text } in sentences::long_ones(files)? {
        if !of_lists(&page) {
            problems.push(format!("{}: over {} words: {text}", page.display(), sentences::WORDS_MAX));
        }
    }
    Ok(())
}

/// Every relative link in a Markdown file leads to something.
fn check_links(files: &[PathBuf], problems: &mut Vec<String>) -> Result<()> {
    for path in files.iter().filter(|path| path.extension().is_some_and(|ending| ending == "md")) {
        let text = std::fs::read_to_string(path)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = file.is_empty() || file.contains("://") || file.contains(char::is_whitespace);
            if !outside && !folder.join(file).exists() {
                problems.push(format!("{}: link to {target} leads nowhere", path.display()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // Tests say what they expect.

    use super::*;

    #[test]
    fn a_folder_without_a_repository_is_not_taken_for_one_in_order() {
        let error = files_in(Path::new("/proc")).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains("git ls-files")), "{error:?}");
    }

    #[test]
    fn every_name_is_listed_and_a_part_of_a_repository_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "--quiet"]).unwrap();
        std::fs::create_dir(folder.path().join("part")).unwrap();
        for name in ["plain.rs", "grün.rs", "part/two words.rs"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let mut files = files_in(folder.path()).unwrap();
        files.sort();
        assert_eq!(files, ["grün.rs", "part/two words.rs", "plain.rs"].map(PathBuf::from));
        let error = files_in(&folder.path().join("part")).unwrap_err().to_string();
        assert!(error.contains("part/ is a part"), "{error}");
    }
}
