//! docs/json.md has every field of every document: its tables are made of the types' sources and compared.
//! `UPDATE_GOLDEN=1` writes them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests say what they expect, their helpers too")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Where types of documents stand. A name means the first of them, if its own file's folder has none.
const SOURCES: [&str; 3] = ["crates/api/src", "crates/fabric/src", "crates/cli/src"];
/// What follows on the page is made.
const MARK: &str = "\n## Types\n";

fn project(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)
}

/// A type that is written as JSON.
#[derive(Debug, Default)]
struct Type {
    folder: usize,
    about: String,
    /// The key that distinguishes variants, if there is one.
    tag: Option<String>,
    is_enum: bool,
    /// Written as one text, whatever its fields.
    is_text: bool,
    entries: Vec<Entry>,
}

/// A field, or a variant.
#[derive(Debug, Default)]
struct Entry {
    /// Of an enum's entry: which.
    variant: Option<String>,
    /// Its key; none if its type's fields stand in its place.
    key: Option<String>,
    /// Its Rust type; empty for a variant without fields.
    rust: String,
    serde: String,
    about: String,
}

fn sources(folder: &Path, found: &mut Vec<String>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(std::fs::read_to_string(path).unwrap());
        }
    }
}

/// All types that derive `Serialize`. rustfmt puts each field, variant and attribute on its line.
fn types() -> BTreeMap<(usize, String), Type> {
    let mut found = BTreeMap::new();
    for (number, folder) in SOURCES.iter().enumerate() {
        let mut files = Vec::new();
        sources(&project(folder), &mut files);
        for text in files {
            let lines: Vec<&str> = text.lines().collect();
            for (at, line) in lines.iter().enumerate() {
                read(number, &lines, at, line, &mut found);
            }
        }
    }
    found
}

/// The type whose head is at a line, if one is.
fn read(folder: usize, lines: &[&str], at: usize, line: &str, found: &mut BTreeMap<(usize, String), Type>) {
    let words: Vec<&str> = line.split_whitespace().filter(|word| !word.starts_with("pub")).collect();
    let numbered =
        line.starts_with("    ") && at > 0 && lines[..at].iter().rev().any(|l| *l == "numbered! {");
    let (name, is_enum) = match words[..] {
        ["struct", name, "{"] => (name, false),
        ["enum", name, "{"] => (name, true),
        [name, "{"] if numbered && lines[at - 1].trim().starts_with("///") => (name, true),
        _ => return,
    };
    let (about, attributes) = above(lines, at);
    if !numbered && !attributes.contains("Serialize") {
        return;
    }
    let rename = attributes.contains("rename_all");
    let tag = attributes.split_once("tag = \"").map(|(_, rest)| rest.split('"').next().unwrap().to_owned());
    let mut one = Type {
        folder,
        about,
        tag,
        is_enum,
        is_text: attributes.contains("into = \"String\""),
        entries: Vec::new(),
    };
    let end = if numbered { "    }" } else { "}" };
    let mut variant: Option<(String, String)> = None;
    for (place, line) in lines.iter().enumerate().skip(at + 1).take_while(|(_, line)| **line != end) {
        let (about, serde) = above(lines, place);
        let text = line.trim();
        if text.starts_with('#') || text.starts_with("//") || text.is_empty() || serde.contains("(other)") {
            continue;
        }
        let named = |name: &str| if rename || numbered { snake_case(name) } else { name.to_owned() };
        let new = |variant: Option<String>, key: Option<String>, rust: &str| Entry {
            variant,
            key,
            rust: rust.trim_end_matches(',').to_owned(),
            serde: serde.clone(),
            about: about.clone(),
        };
        if text == "}," {
            variant = None;
        } else if let (true, Some(name)) = (is_enum && variant.is_none(), text.strip_suffix(" {")) {
            variant = Some((named(name), about.clone()));
            one.entries.push(new(Some(named(name)), None, ""));
        } else if is_enum && variant.is_none() {
            let (name, rust) = text.split_once('(').unwrap_or((text, ""));
            let name = name.split([' ', ',', ';']).next().unwrap();
            one.entries.push(new(Some(named(name)), None, rust.trim_end_matches("),")));
        } else if let Some((key, rust)) = text.split_once(": ").filter(|_| !serde.contains("(skip)")) {
            let key = key.rsplit(' ').next().unwrap().to_owned();
            let renamed = serde.split_once("rename = \"").map(|(_, rest)| rest.split('"').next().unwrap());
            let key = renamed.map_or(key, str::to_owned);
            let key = (!serde.contains("flatten")).then_some(key);
            one.entries.push(new(variant.clone().map(|(name, _)| name), key, rust));
        }
    }
    found.insert((folder, name.split('<').next().unwrap().to_owned()), one);
}

/// Comment and attributes above a line.
fn above(lines: &[&str], at: usize) -> (String, String) {
    let (mut about, mut attributes) = (Vec::new(), String::new());
    for line in lines[..at].iter().rev().map(|line| line.trim()) {
        if let Some(text) = line.strip_prefix("/// ") {
            about.insert(0, text);
        } else if line.starts_with("#[") {
            attributes.push_str(line);
        } else if line != "///" {
            break;
        }
    }
    (plain(&about.join(" ")), attributes)
}

/// A comment without links, for a table's cell.
fn plain(text: &str) -> String {
    let text = text.replace("[`crate::", "[`").replace("[`", "`").replace("`]", "`");
    text.replace("`None`", "`null`").replace('|', "\\|")
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

/// What a Rust type is in JSON, and the types that it names.
fn json(
    rust: &str,
    folder: usize,
    all: &BTreeMap<(usize, String), Type>,
    named: &mut BTreeSet<(usize, String)>,
) -> String {
    let rust = rust.trim_start_matches('&').trim_start_matches("'a ").trim_start_matches("'static ");
    let inside = |head: &str| rust.strip_prefix(head)?.strip_suffix('>');
    if let Some(one) = inside("Box<") {
        return json(one, folder, all, named);
    }
    if let Some(one) = inside("Option<") {
        return json(one, folder, all, named) + " or null";
    }
    if let Some(one) = inside("Vec<").or_else(|| rust.strip_prefix('[')?.strip_suffix(']')) {
        return format!("list of {}", json(one, folder, all, named));
    }
    if let Some((_, one)) = inside("BTreeMap<").and_then(|both| both.split_once(", ")) {
        return format!("map to {}", json(one, folder, all, named));
    }
    let name = rust.rsplit("::").next().unwrap().split('<').next().unwrap();
    match name {
        "String" | "str" | "PathBuf" | "IpAddr" | "MigrationId" | "TunnelAddress" | "Prefix" => "text".into(),
        "bool" => "true or false".into(),
        "f64" => "number".into(),
        "u8" | "u16" | "u32" | "u64" | "usize" | "i32" | "i64" => "integer".into(),
        "Job" => "map to integer".into(),
        "Value" => "object".into(),
        _ => {
            let near = [folder].into_iter().chain(0..SOURCES.len()).map(|folder| (folder, name.to_owned()));
            let key = near.into_iter().find(|key| all.contains_key(key));
            let key = key.unwrap_or_else(|| panic!("{name} is no type of a document"));
            if all[&key].is_text {
                return "text".into();
            }
            named.insert(key);
            format!("[{name}](#{})", name.to_lowercase())
        }
    }
}

/// The section of a type.
fn section(
    name: &str,
    one: &Type,
    all: &BTreeMap<(usize, String), Type>,
    named: &mut BTreeSet<(usize, String)>,
) -> String {
    let mut text = format!("\n### {name}\n\n{}\n\n", one.about);
    match (&one.tag, one.is_enum) {
        (Some(tag), _) => text += &format!("| `{tag}` | field | value | meaning |\n|---|---|---|---|\n"),
        (None, true) => text += "| value | meaning |\n|---|---|\n",
        (None, false) => text += "| field | value | meaning |\n|---|---|---|\n",
    }
    for entry in &one.entries {
        let value = match (entry.rust.as_str(), entry.serde.contains("with = ")) {
            ("", _) => String::new(),
            (_, true) => "number".to_owned(),
            (rust, false) => json(rust, one.folder, all, named),
        };
        let value = match entry.serde.contains("skip_serializing_if") {
            true => format!("{}, may be absent", value.trim_end_matches(" or null")),
            false => value,
        };
        let key = entry.key.as_ref().map(|key| format!("`{key}`"));
        let (field, value) = match (key, value.is_empty()) {
            (Some(key), _) => (key, value),
            (None, false) => (String::new(), format!("fields of {value}")),
            (None, true) => (String::new(), value),
        };
        let variant = entry.variant.as_deref().unwrap_or_default();
        let about = &entry.about;
        assert!(!about.is_empty(), "{name}: {entry:?} says nothing");
        text += &match (&one.tag, one.is_enum) {
            (Some(_), _) => format!("| `{variant}` | {field} | {value} | {about} |\n"),
            (None, true) if value.is_empty() => format!("| `\"{variant}\"` | {about} |\n"),
            (None, true) => {
                format!("| `{{\"{variant}\": …}}`, {} | {about} |\n", value.trim_start_matches("fields of "))
            }
            (None, false) => format!("| {field} | {value} | {about} |\n"),
        };
    }
    text
}

/// Every type that a command of the page prints, with all types within.
fn made(page: &str, all: &BTreeMap<(usize, String), Type>) -> String {
    let table = page.split_once("\n## Commands\n").unwrap().1.split_once(MARK).unwrap().0;
    let roots: BTreeSet<&str> =
        table.split("](#").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(roots.len() > 15, "{roots:?}");
    let is_root = |name: &str| roots.contains(name.to_lowercase().as_str());
    let mut wanted: BTreeSet<(usize, String)> = all
        .keys()
        .filter(|(folder, name)| is_root(name) && !(*folder > 0 && all.contains_key(&(0, name.clone()))))
        .cloned()
        .collect();
    assert_eq!(wanted.len(), roots.len(), "types of the table of commands: {wanted:?}");
    let mut sections: BTreeMap<String, String> = BTreeMap::new();
    let mut done = BTreeSet::new();
    while let Some(key) = wanted.pop_first() {
        if !done.insert(key.clone()) {
            continue;
        }
        let text = section(&key.1, all.get(&key).unwrap(), all, &mut wanted);
        assert!(
            sections.insert(key.1.clone(), text).is_none(),
            "two types of documents are called {}",
            key.1
        );
    }
    sections.into_values().collect()
}

#[test]
fn the_page_of_documents_has_every_field_of_every_type_that_a_command_prints() {
    let path = project("docs/json.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let all = types();
    let made = made(&page, &all);
    let written = page.split_once(MARK).unwrap().1;
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let head = page.split_once(MARK).unwrap().0;
        std::fs::write(path, format!("{head}{MARK}{made}")).unwrap();
        return;
    }
    let missing: Vec<&str> = made.lines().filter(|line| !written.contains(line)).collect();
    assert!(
        written == made,
        "docs/json.md is not as the sources say; UPDATE_GOLDEN=1 writes it. Missing:\n{missing:#?}"
    );
}
