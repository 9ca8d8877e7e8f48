//! The table `[placement]` of agent.toml.

use std::collections::BTreeSet;

use serde::Deserialize;

/// Which guests must be on different hosts. A guest is named as it is on its host; `db-*` stands for all names that
/// begin with `db-`. Drains of this host and `linerate place` keep to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Placement {
    /// Lists of guests of which no two may be on one host.
    pub apart: Vec<Vec<String>>,
}

impl Placement {
    /// What is wrong with it.
    pub fn problem(&self) -> Option<String> {
        self.apart.iter().find_map(|list| Some(format!("apart = {list:?}: {}", problem_of(list)?)))
    }
}

fn problem_of(list: &[String]) -> Option<&'static str> {
    if list.iter().any(|name| name.trim_end_matches('*').contains('*') || name.ends_with("**")) {
        return Some("a * is allowed at the end of a name only");
    }
    if list.iter().any(|name| name.is_empty() || name == "*") {
        return Some("write names of guests, or how they begin: db-*");
    }
    let names: BTreeSet<&String> = list.iter().collect();
    let alone = names.len() < 2 && !list.iter().any(|name| name.ends_with('*'));
    alone.then_some("name two guests at least, or how their names begin: db-*")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_keeps_nobody_apart_is_refused() {
        let problem = |list: &[&str]| {
            let list = vec![list.iter().map(|name| (*name).to_owned()).collect()];
            Placement { apart: list }.problem()
        };
        for good in [&["a", "b"] as &[_], &["db-*"], &["a", "db-*", "b"]] {
            assert_eq!(problem(good), None, "{good:?}");
        }
        for bad in [&[] as &[_], &["a"], &["a", "a"], &["a", ""], &["*"], &["d*b", "a"], &["a", "db**"]] {
            assert!(problem(bad).is_some_and(|text| text.starts_with("apart = ")), "{bad:?}");
        }
    }
}
