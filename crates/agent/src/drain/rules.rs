//! Which guests must be on different hosts, and which on one: by their names, as agent.toml and the operator have them.

use std::collections::BTreeSet;

use linerate_api::{ErrorBody, code};
use linerate_core::fleet::GroupId;

use crate::config::Placement;

/// The rules of a drain: lists of names.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules(Placement);

impl Rules {
    /// Those of agent.toml and those of the operator count alike.
    ///
    /// # Errors
    /// A list of the operator's cannot be used.
    pub fn new(
        of_host: &Placement,
        apart: &[Vec<String>],
        together: &[Vec<String>],
    ) -> Result<Rules, ErrorBody> {
        let asked = Placement { apart: apart.to_vec(), together: together.to_vec() };
        if let Some(problem) = asked.problem() {
            return Err(ErrorBody::new(code::USAGE, format!("{problem}; nothing was begun")));
        }
        Ok(Rules(Placement {
            apart: [&of_host.apart, apart].concat(),
            together: [&of_host.together, together].concat(),
        }))
    }

    /// Whether two guests must be on different hosts.
    pub fn keep_apart(&self, one: &str, other: &str) -> bool {
        self.0.apart.iter().any(|list| has(list, one) && has(list, other))
    }

    /// The groups of a guest for placement, which keeps all guests of a group on different hosts. One for each list.
    pub fn groups(&self, guest: &str) -> Vec<GroupId> {
        (0..).map(GroupId).zip(&self.0.apart).filter(|(_, list)| has(list, guest)).map(|(id, _)| id).collect()
    }

    /// The group of each of these guests for placement, which sends all guests of a group to one host. Lists with a
    /// guest in common are one group.
    pub fn together(&self, guests: &[String]) -> Vec<Option<GroupId>> {
        let lists = &self.0.together;
        let of = |guest: &String| (0..lists.len()).filter(|n| has(&lists[*n], guest)).collect::<Vec<usize>>();
        let lists_of: Vec<Vec<usize>> = guests.iter().map(of).collect();
        // The numbers up to here are those of lists that keep guests apart.
        let mut groups: Vec<usize> = (self.0.apart.len()..).take(lists.len()).collect();
        for all in &lists_of {
            let Some(first) = all.first() else { continue };
            let one = groups[*first];
            for other in all.iter().map(|list| groups[*list]).collect::<Vec<usize>>() {
                groups.iter_mut().filter(|group| **group == other).for_each(|group| *group = one);
            }
        }
        let group = |all: &Vec<usize>| Some(GroupId(u32::try_from(groups[*all.first()?]).ok()?));
        lists_of.iter().map(group).collect()
    }

    /// Two of these guests that must be apart and together.
    pub fn contradiction<'a>(&self, guests: &'a [String]) -> Option<(&'a str, &'a str)> {
        let groups = self.together(guests);
        let mut pairs = (0..guests.len()).flat_map(|one| (0..one).map(move |other| (other, one)));
        let is_one = |(one, other): &(usize, usize)| {
            groups[*one].is_some()
                && groups[*one] == groups[*other]
                && self.keep_apart(&guests[*one], &guests[*other])
        };
        pairs.find(is_one).map(|(one, other)| (guests[one].as_str(), guests[other].as_str()))
    }
}

/// Whether a list names the guest.
fn has(list: &[String], guest: &str) -> bool {
    list.iter().any(|name| match name.strip_suffix('*') {
        Some(begins) => guest.starts_with(begins),
        None => name == guest,
    })
}

/// Names of lists that no guest has. A name that is spelled wrong would keep nobody apart, or together.
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
        let host = Placement { apart: lists(&[&["db-*"]]), ..Placement::default() };
        let rules = Rules::new(&host, &lists(&[&["db-1", "web"]]), &[]).unwrap();
        assert!(rules.keep_apart("db-1", "db-2") && rules.keep_apart("web", "db-1"));
        assert!(!rules.keep_apart("web", "db-2") && !rules.keep_apart("web", "cache"));
        assert_eq!(rules.groups("db-1"), [GroupId(0), GroupId(1)]);
        assert_eq!((rules.groups("db-7"), rules.groups("web")), (vec![GroupId(0)], vec![GroupId(1)]));
        assert_eq!(rules.groups("cache"), []);
        for (apart, together) in [(lists(&[&["alone"]]), Vec::new()), (Vec::new(), lists(&[&["alone"]]))] {
            assert_eq!(Rules::new(&host, &apart, &together).unwrap_err().code, code::USAGE);
        }
    }

    #[test]
    fn lists_with_a_guest_in_common_are_one_group() {
        let host =
            Placement { apart: lists(&[&["web", "log"]]), together: lists(&[&["web", "db"], &["a-*"]]) };
        let rules = Rules::new(&host, &[], &lists(&[&["cache", "db"], &["x", "y"]])).unwrap();
        let names = ["web", "a-1", "db", "other", "cache", "a-2", "x"].map(str::to_owned);
        let groups = rules.together(&names);
        assert!(groups[0].is_some() && groups[0] == groups[2] && groups[0] == groups[4], "{groups:?}");
        assert!(groups[1].is_some() && groups[1] == groups[5] && groups[1] != groups[0], "{groups:?}");
        assert!(groups[3].is_none() && groups[6].is_some() && groups[6] != groups[0], "{groups:?}");
        assert!(groups.iter().flatten().all(|group| !rules.groups("web").contains(group)), "{groups:?}");
        assert_eq!(rules.contradiction(&names), None);
        let rules = Rules::new(&host, &lists(&[&["cache", "web"]]), &lists(&[&["cache", "db"]])).unwrap();
        assert_eq!(rules.contradiction(&names), Some(("web", "cache")));
    }

    #[test]
    fn a_name_that_no_guest_has_is_found() {
        let known = BTreeSet::from(["db-1", "web"]);
        assert_eq!(unknown(&lists(&[&["db-*", "dbb"], &["web", "cache-*"]]), &known), ["cache-*", "dbb"]);
    }
}
