//! Which guests must be on different hosts: by their names, as agent.toml and the operator have them.

use std::collections::BTreeSet;

use linerate_api::{ErrorBody, code};
use linerate_core::fleet::GroupId;

use crate::config::Placement;

/// The rules of a drain: lists of names.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules(Vec<Vec<String>>);

impl Rules {
    /// Those of agent.toml and those of the operator count alike.
    ///
    /// # Errors
    /// A list of the operator's cannot be used.
    pub fn new(of_host: &Placement, apart: &[Vec<String>]) -> Result<Rules, ErrorBody> {
        if let Some(problem) = (Placement { apart: apart.to_vec() }).problem() {
            return Err(ErrorBody::new(code::USAGE, format!("{problem}; nothing was begun")));
        }
        Ok(Rules([&of_host.apart, apart].concat()))
    }

    /// Whether two guests must be on different hosts.
    pub fn keep_apart(&self, one: &str, other: &str) -> bool {
        self.0.iter().any(|list| has(list, one) && has(list, other))
    }

    /// The groups of a guest for placement, which keeps all guests of a group on different hosts. One for each list.
    pub fn groups(&self, guest: &str) -> Vec<GroupId> {
        (0..).map(GroupId).zip(&self.0).filter(|(_, list)| has(list, guest)).map(|(id, _)| id).collect()
    }
}

/// Whether a list names the guest.
fn has(list: &[String], guest: &str) -> bool {
    list.iter().any(|name| match name.strip_suffix('*') {
        Some(begins) => guest.starts_with(begins),
        None => name == guest,
    })
}

/// Names of lists that no guest has. A name that is spelled wrong would keep nobody apart.
pub(super) fn unknown(lists: &[Vec<String>], known: &BTreeSet<&str>) -> Vec<String> {
    let names: BTreeSet<&String> = lists.iter().flatten().collect();
    let is_unknown = |name: &&String| !known.iter().any(|guest| has(std::slice::from_ref(*name), guest));
    names.into_iter().filter(is_unknown).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(lists: &[&[&str]]) -> Vec<Vec<String>> {
        lists.iter().map(|list| list.iter().map(|name| (*name).to_owned()).collect()).collect()
    }

    #[test]
    fn lists_of_the_host_and_of_the_operator_count_alike() {
        let host = Placement { apart: lists(&[&["db-*"]]) };
        let rules = Rules::new(&host, &lists(&[&["db-1", "web"]])).unwrap();
        assert!(rules.keep_apart("db-1", "db-2") && rules.keep_apart("web", "db-1"));
        assert!(!rules.keep_apart("web", "db-2") && !rules.keep_apart("web", "cache"));
        assert_eq!(rules.groups("db-1"), [GroupId(0), GroupId(1)]);
        assert_eq!((rules.groups("db-7"), rules.groups("web")), (vec![GroupId(0)], vec![GroupId(1)]));
        assert_eq!(rules.groups("cache"), []);
        let refused = Rules::new(&host, &lists(&[&["alone"]])).unwrap_err();
        assert_eq!(refused.code, code::USAGE);
    }

    #[test]
    fn a_name_that_no_guest_has_is_found() {
        let known = BTreeSet::from(["db-1", "web"]);
        assert_eq!(unknown(&lists(&[&["db-*", "dbb"], &["web", "cache-*"]]), &known), ["cache-*", "dbb"]);
    }
}
