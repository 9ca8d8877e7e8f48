//! `xtask licences`: the libraries that are linked into `linerate`, with their licences and notices. Whoever passes the
//! program on passes these texts on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The package whose program is distributed, and the platform of its Debian package.
const PROGRAM: &str = "linerate";
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
/// How the names of files with licences and notices begin, in lower case.
const NAMES: &[&str] = &["license", "licence", "copying", "copyright", "notice", "unlicense"];

/// Prints the text. An error if a library names no licence.
pub fn run() -> Result<()> {
    let output = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--locked", "--filter-platform", PLATFORM])
        .output()
        .context("cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata's JSON")?;
    print!("{}", text(&metadata)?);
    Ok(())
}

fn text(metadata: &Value) -> Result<String> {
    let linked = linked(metadata)?;
    let mut list = String::new();
    // Many libraries have the same text, word by word.
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in members(&metadata["packages"]) {
        // Those without a source are of this project.
        if !linked.contains(word(&package["id"])) || package["source"].is_null() {
            continue;
        }
        let name = format!("{} {}", word(&package["name"]), word(&package["version"]));
        let licence = package["license"].as_str().or(package["license_file"].as_str());
        let licence = licence.with_context(|| format!("{name} names no licence"))?;
        list += &format!("  {name}: {licence}\n");
        for file in notices(Path::new(word(&package["manifest_path"])))? {
            let bytes = std::fs::read(&file).with_context(|| file.display().to_string())?;
            let notice = String::from_utf8_lossy(&bytes).replace('\r', "").trim().to_owned();
            let users = texts.entry(notice).or_default();
            if !users.contains(&name) {
                users.push(name.clone());
            }
        }
    }
    let mut text = format!("Libraries that are linked into linerate, and their licences\n\n{list}");
    for (notice, users) in texts {
        text += &format!("\n{}\nText of {}\n\n{notice}\n", "=".repeat(80), users.join(", "));
    }
    Ok(text)
}

/// Identities of all packages that the program is linked with: not those of tests, nor those that only build.
fn linked(metadata: &Value) -> Result<BTreeSet<&str>> {
    let nodes = members(&metadata["resolve"]["nodes"]).map(|node| (word(&node["id"]), node));
    let nodes: BTreeMap<&str, &Value> = nodes.collect();
    let root = members(&metadata["packages"]).find(|package| package["name"] == PROGRAM);
    let mut waiting = vec![word(&root.context("the program's package is missing")?["id"])];
    let mut found = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !found.insert(id) {
            continue;
        }
        let node = nodes.get(id).with_context(|| format!("{id} is not resolved"))?;
        let normal = members(&node["deps"])
            .filter(|needed| members(&needed["dep_kinds"]).any(|kind| kind["kind"].is_null()));
        waiting.extend(normal.map(|needed| word(&needed["pkg"])));
    }
    Ok(found)
}

/// Files with licences and notices beside a package's manifest, by name.
fn notices(manifest: &Path) -> Result<Vec<PathBuf>> {
    let folder = manifest.parent().context("a manifest without a folder")?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        if path.is_file() && NAMES.iter().any(|start| name.starts_with(start)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn members(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_linked_is_listed_and_what_only_tests_need_is_not() {
        let package = |name: &str, source: Option<&str>| {
            json!({ "id": name, "name": name, "version": "1.0.0", "source": source, "license": "MIT",
                "manifest_path": concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml") })
        };
        let dependency =
            |name: &str, kind: Option<&str>| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        let registry = Some("registry");
        let metadata = json!({
            "packages": [
                package("linerate", None), package("used", registry), package("deep", registry),
                package("tested", registry), package("building", registry),
            ],
            "resolve": { "nodes": [
                { "id": "linerate", "deps": [
                    dependency("used", None), dependency("tested", Some("dev")), dependency("building", Some("build")),
                ] },
                { "id": "used", "deps": [dependency("deep", None)] },
                { "id": "deep", "deps": [] },
            ] },
        });
        let text = text(&metadata).unwrap();
        assert!(text.contains("  used 1.0.0: MIT\n  deep 1.0.0: MIT\n"), "{text}");
        for name in ["tested", "building", "linerate 1"] {
            assert!(!text.contains(name), "{text}");
        }
    }
}
