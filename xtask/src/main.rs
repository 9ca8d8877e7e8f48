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
    let result = match std::env::args().nth(1).as_deref() {
        Some("check") => check().map(|()| true),
        Some("measure") => tracked_files().and_then(|files| measure::run(&files)).map(|()| true),
        Some("licences") => licences::run().map(|()| true),
        Some("test") => suite::run(std::env::args().nth(2).as_deref()),
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

/// Files of the repository that `folder` is in, as git lists them there. Without a list nothing would be checked.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard"])
        .current_dir(folder)
        .output()
        .context("git ls-files")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr));
    }
    let list = String::from_utf8(output.stdout).context("file names")?;
    Ok(list.lines().map(PathBuf::from).filter(|path| folder.join(path).is_file()).collect())
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
    use super::*;

    #[test]
    fn a_folder_without_a_repository_is_not_taken_for_one_in_order() {
        let error = files_in(Path::new("/proc")).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains("git ls-files")), "{error:?}");
    }
}
