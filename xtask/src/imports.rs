//! Which file of a crate uses which: by the paths in its code, as the compiler resolves them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use syn::visit::{self, Visit};

use crate::is_rust;

/// Path of a module: `["outgoing", "links"]`.
type Module = Vec<String>;

/// The files of a crate's library or binary, tests left out, and what each uses.
#[derive(Debug, Default)]
pub struct Imports {
    uses: BTreeMap<Module, BTreeSet<Module>>,
}

impl Imports {
    /// Of the crate in this folder.
    pub fn of(folder: &str, files: &[PathBuf]) -> Result<Imports> {
        let source = Path::new(folder).join("src");
        let mut parsed = BTreeMap::new();
        for path in files.iter().filter(|path| is_rust(path)) {
            let Ok(inside) = path.strip_prefix(&source) else { continue };
            let text = std::fs::read_to_string(path)?;
            let file = syn::parse_file(&text).with_context(|| path.display().to_string())?;
            parsed.insert(module(inside), file);
        }
        parsed.retain(|module, _| !module.iter().any(|name| name == "tests" || name.ends_with("_tests")));
        let known: BTreeSet<Module> = parsed.keys().cloned().collect();
        let uses = parsed.iter().map(|(here, file)| {
            let mut found = Paths { known: &known, at: here.clone(), file: here, uses: BTreeSet::new() };
            found.visit_file(file);
            (here.clone(), found.uses)
        });
        Ok(Imports { uses: uses.collect() })
    }

    /// Groups of files that use each other, each by way of the others.
    pub fn circles(&self) -> Vec<BTreeSet<Module>> {
        circles(&self.uses)
    }

    /// The same between the top folders (or files) of the crate.
    pub fn folders(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (from, uses) in &self.uses {
            let Some(from) = from.first() else { continue };
            let others = uses.iter().filter_map(|to| to.first()).filter(|to| *to != from);
            folders.entry(from.clone()).or_default().extend(others.cloned());
        }
        folders
    }
}

/// Crates whose top folders use each other in a circle, with the folders.
pub fn tangles<'a>(
    files: &[PathBuf],
    crates: impl Iterator<Item = &'a String>,
) -> Result<Vec<(String, BTreeSet<String>)>> {
    let mut found = Vec::new();
    for name in crates {
        let folders = Imports::of(name, files)?.folders();
        found.extend(circles(&folders).into_iter().map(|circle| (name.clone(), circle)));
    }
    Ok(found)
}

/// `outgoing/mod.rs` and `outgoing.rs` are `["outgoing"]`, `lib.rs` is `[]`.
fn module(inside: &Path) -> Module {
    let mut parts: Module = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let last = parts.pop().unwrap_or_default();
    match last.trim_end_matches(".rs") {
        "mod" | "lib" | "main" => {}
        name => parts.push(name.to_owned()),
    }
    parts
}

/// Everything that can be reached from each, and back: groups of two or more.
fn circles<T: Ord + Clone>(uses: &BTreeMap<T, BTreeSet<T>>) -> Vec<BTreeSet<T>> {
    let reach = |from: &T| {
        let mut reached = BTreeSet::new();
        let mut next = vec![from.clone()];
        while let Some(one) = next.pop() {
            for to in uses.get(&one).into_iter().flatten() {
                if reached.insert(to.clone()) {
                    next.push(to.clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&T, BTreeSet<T>> = uses.keys().map(|one| (one, reach(one))).collect();
    let mut found: Vec<BTreeSet<T>> = Vec::new();
    for (one, there) in &reached {
        let back = |other: &&T| reached.get(other).is_some_and(|reached| reached.contains(*one));
        let group: BTreeSet<T> = there.iter().filter(back).cloned().collect();
        if group.len() > 1 && !found.contains(&group) {
            found.push(group);
        }
    }
    found
}

/// The paths of one file.
struct Paths<'a> {
    known: &'a BTreeSet<Module>,
    /// The module that is looked at: the file's, or one inside of it.
    at: Module,
    file: &'a Module,
    uses: BTreeSet<Module>,
}

impl Paths<'_> {
    /// A path's first names say which file it leads to.
    fn path(&mut self, names: &[String]) {
        let mut place = match names.first().map(String::as_str) {
            Some("crate") => Module::new(),
            Some("self" | "super") => self.at.clone(),
            Some(name) if self.has_child(name) => self.at.clone(),
            _ => return,
        };
        let mut rest = names;
        while let [first, after @ ..] = rest {
            match first.as_str() {
                "crate" | "self" => {}
                "super" => drop(place.pop()),
                name => {
                    place.push(name.to_owned());
                    if !self.known.contains(&place) {
                        place.pop();
                        break;
                    }
                }
            }
            rest = after;
        }
        if place != *self.file && self.known.contains(&place) {
            self.uses.insert(place);
        }
    }

    fn has_child(&self, name: &str) -> bool {
        let mut child = self.at.clone();
        child.push(name.to_owned());
        self.known.contains(&child)
    }

    fn tree(&mut self, before: &mut Vec<String>, tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(before, &path.tree);
                before.pop();
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(before, item)),
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                before.push(ident.to_string());
                self.path(before);
                before.pop();
            }
            syn::UseTree::Glob(_) => self.path(before),
        }
    }
}

fn is_of_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        // What is passed on is used by those who take it from here.
        if !is_of_tests(&item.attrs) && matches!(item.vis, syn::Visibility::Inherited) {
            self.tree(&mut Vec::new(), &item.tree);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.content.is_none() || is_of_tests(&module.attrs) {
            return;
        }
        self.at.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.at.pop();
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if names.len() > 1 {
            self.path(&names);
        }
        visit::visit_path(self, path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses(known: &[&str], file: &str, text: &str) -> Vec<String> {
        let module =
            |name: &&str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let known: BTreeSet<Module> = known.iter().map(module).collect();
        let here: Module = module(&file);
        let mut found = Paths { known: &known, at: here.clone(), file: &here, uses: BTreeSet::new() };
        found.visit_file(&syn::parse_file(text).unwrap());
        found.uses.iter().map(|module| module.join("::")).collect()
    }

    #[test]
    fn paths_lead_to_the_file_that_holds_the_name() {
        let known = ["", "a", "a::b", "c"];
        assert_eq!(uses(&known, "a::b", "use crate::c::{X, Y}; use super::Z;"), ["a", "c"]);
        assert_eq!(
            uses(&known, "a", "mod b; fn f() { b::g(); crate::c::h(); std::mem::drop(1); }"),
            ["a::b", "c"]
        );
        assert!(uses(&known, "a", "#[cfg(test)] mod tests { use crate::c::X; }").is_empty());
    }

    #[test]
    fn a_circle_is_found_and_a_line_is_none() {
        let uses = |pairs: &[(&'static str, &'static str)]| {
            let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
            for (from, to) in pairs {
                uses.entry(from).or_default().insert(to);
                uses.entry(to).or_default();
            }
            circles(&uses)
        };
        assert!(uses(&[("a", "b"), ("b", "c")]).is_empty());
        assert_eq!(
            uses(&[("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]),
            [BTreeSet::from(["a", "b", "c"])]
        );
    }
}
