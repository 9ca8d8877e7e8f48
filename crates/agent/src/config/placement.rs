//! The table `[placement]` of agent.toml.

use std::collections::BTreeSet;

use serde::Deserialize;

/// Which guests must be on different hosts, and which on one. A guest is named as it is on its host; `db-*` stands for
/// all names that begin with `db-`. Drains of this host and `linerate place` keep to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Placement {
    /// Lists of guests of which no two may be on one host.
    pub apart: Vec<Vec<String>>,
    /// Lists of guests that a drain sends to one host, or leaves where they are.
    pub together: Vec<Vec<String>>,
}

impl Placement {
    /// What is wrong with it.
    pub fn problem(&self) -> Option<String> {
        let all = [("apart", &self.apart), ("together", &self.together)];
        let mut lists = all.iter().flat_map(|(key, lists)| lists.iter().map(move |list| (key, list)));
        lists.find_map(|(key, list)| Some(format!("{key} = {list:?}: {}", problem_of(list)?)))
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
    fn a_list_that_says_nothing_of_two_guests_is_refused() {
        let problem = |list: &[&str]| {
            let list: Vec<Vec<String>> = vec![list.iter().map(|name| (*name).to_owned()).collect()];
            let together = Placement { together: list.clone(), ..Placement::default() }.problem();
            let apart = Placement { apart: list, ..Placement::default() }.problem();
            let both = together.map(|text| text.replacen("together", "apart", 1));
            assert_eq!(both, apart, "the same is refused");
            apart
        };
        for good in [&["a", "b"] as &[_], &["db-*"], &["a", "db-*", "b"]] {
            assert_eq!(problem(good), None, "{good:?}");
        }
        for bad in [&[] as &[_], &["a"], &["a", "a"], &["a", ""], &["*"], &["d*b", "a"], &["a", "db**"]] {
            assert!(problem(bad).is_some_and(|text| text.starts_with("apart = ")), "{bad:?}");
        }
    }
}
