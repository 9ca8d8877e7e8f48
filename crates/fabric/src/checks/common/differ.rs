//! Values that should be the same everywhere.

use crate::model::{Finding, Place, Severity};

/// A place with what was seen there, as an operator writes it.
pub(in crate::checks) type Value = (Place, String);

/// The places that are not like most. `None` if all are alike; all of them if no value is the most frequent.
pub(in crate::checks) fn odd(values: &[Value]) -> Option<Vec<&Value>> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for (_, value) in values {
        match counts.iter_mut().find(|(known, _)| known == value) {
            Some((_, count)) => *count += 1,
            None => counts.push((value, 1)),
        }
    }
    if counts.len() < 2 {
        return None;
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let usual = match counts.as_slice() {
        [(usual, most), (_, next), ..] if most > next => Some(*usual),
        _ => None,
    };
    Some(values.iter().filter(|(_, value)| Some(value.as_str()) != usual).collect())
}

/// A finding with all values side by side, if they are not all alike: `WHAT A and B WHERE`.
pub(in crate::checks) fn differ(
    id: &str,
    severity: Severity,
    what: &str,
    whereabouts: &str,
    values: &[Value],
) -> Option<Finding> {
    let odd = odd(values)?;
    let mut distinct: Vec<&str> = odd.iter().map(|(_, value)| value.as_str()).collect();
    distinct.extend(values.iter().map(|(_, value)| value.as_str()));
    let title = format!("{what} {} {whereabouts}", join(distinct, " and "));
    let mut finding = Finding::new(id, severity, title);
    for (place, _) in odd {
        finding = finding.at(place.clone());
    }
    for (place, value) in values {
        finding = finding.seen(place.clone(), what, value);
    }
    Some(finding)
}

/// Findings of which several are one fault, each once with all that was seen of it.
pub(in crate::checks) fn merged(
    findings: impl IntoIterator<Item = Finding>,
    same: impl Fn(&Finding, &Finding) -> bool,
) -> Vec<Finding> {
    let mut merged: Vec<Finding> = Vec::new();
    for finding in findings {
        match merged.iter_mut().find(|one| same(one, &finding)) {
            Some(one) => {
                one.seen.extend(finding.seen);
                for fix in finding.fixes {
                    if !one.fixes.contains(&fix) {
                        one.fixes.push(fix);
                    }
                }
            }
            None => merged.push(finding),
        }
    }
    merged
}

/// Each word once, in the order in which it came first; at most six of them.
pub(in crate::checks) fn join<'a>(words: impl IntoIterator<Item = &'a str>, between: &str) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for word in words {
        if !unique.contains(&word) {
            unique.push(word);
        }
    }
    let more = unique.len().saturating_sub(6);
    unique.truncate(6);
    let text = unique.join(between);
    if more > 0 { format!("{text} and {more} more") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(all: &[&str]) -> Vec<Value> {
        let place = |number| Place::host(&format!("h{number}"));
        all.iter().enumerate().map(|(number, value)| (place(number), value.to_string())).collect()
    }

    #[test]
    fn the_one_that_is_not_like_the_others_is_named() {
        let all = values(&["9000", "1500", "9000"]);
        let finding = differ("x", Severity::Error, "MTU", "on the network", &all).unwrap();
        assert_eq!(finding.title, "MTU 1500 and 9000 on the network");
        assert_eq!(finding.places, [Place::host("h1")]);
        assert_eq!(finding.seen.len(), 3);
    }

    #[test]
    fn of_two_both_are_named_and_equal_ones_are_no_finding() {
        assert_eq!(odd(&values(&["a", "b"])).unwrap().len(), 2);
        assert_eq!(odd(&values(&["a", "a"])), None);
        assert_eq!(odd(&values(&[])), None);
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(join(["a", "b", "a"], ", "), "a, b");
        assert_eq!(join(["1", "2", "3", "4", "5", "6", "7", "8"], ", "), "1, 2, 3, 4, 5, 6 and 2 more");
    }
}
