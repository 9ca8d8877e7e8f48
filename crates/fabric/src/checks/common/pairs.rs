//! Links as probes saw them: two ends, and what was measured in both directions.

use std::collections::BTreeMap;

use crate::model::{End, Finding, Place, Probe, Room};

/// A link between two ends.
#[derive(Clone, Copy, Debug)]
pub(in crate::checks) struct Pair<'a> {
    /// The ends; the first one sends in `there`.
    pub ends: [&'a End; 2],
    /// From the first end to the second.
    pub there: Option<&'a Probe>,
    /// The other way.
    pub back: Option<&'a Probe>,
}

impl<'a> Pair<'a> {
    /// Both directions: who sends, who receives, the probe of it, the probe the other way.
    pub fn ways(&self) -> [Way<'a>; 2] {
        let [one, other] = self.ends;
        [
            Way { from: one, to: other, probe: self.there, reverse: self.back },
            Way { from: other, to: one, probe: self.back, reverse: self.there },
        ]
    }

    /// The probes there are.
    pub fn probes(&self) -> impl Iterator<Item = &'a Probe> {
        self.there.into_iter().chain(self.back)
    }

    /// Names of both hosts, the lesser first.
    pub fn hosts(&self) -> (&'a str, &'a str) {
        let [one, other] = self.ends.map(|end| end.host.as_str());
        if one <= other { (one, other) } else { (other, one) }
    }
}

/// One direction of a link.
#[derive(Clone, Copy, Debug)]
pub(in crate::checks) struct Way<'a> {
    pub from: &'a End,
    pub to: &'a End,
    pub probe: Option<&'a Probe>,
    pub reverse: Option<&'a Probe>,
}

/// All links that were probed, in the order of their first probes.
pub(in crate::checks) fn pairs(room: &Room) -> Vec<Pair<'_>> {
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    let mut known: BTreeMap<(&End, &End), usize> = BTreeMap::new();
    for probe in &room.matrix.probes {
        let back = known.get(&(&probe.to, &probe.from)).and_then(|at| pairs.get_mut(*at));
        if let Some(pair) = back.filter(|pair| pair.back.is_none()) {
            pair.back = Some(probe);
            continue;
        }
        known.insert((&probe.from, &probe.to), pairs.len());
        pairs.push(Pair { ends: [&probe.from, &probe.to], there: Some(probe), back: None });
    }
    pairs
}

/// An end as a place.
pub(in crate::checks) fn place(end: &End) -> Place {
    Place::port(&end.host, &end.port)
}

/// One fault makes several links bad: where they share one port, that port is the place. Findings without a shared port stay as
/// they are.
pub(in crate::checks) fn by_shared_port(findings: Vec<Finding>) -> Vec<Finding> {
    let mut count: BTreeMap<Place, usize> = BTreeMap::new();
    findings.iter().flat_map(|finding| &finding.places).for_each(|place| {
        *count.entry(place.clone()).or_default() += 1;
    });
    let most = |finding: &Finding| -> Option<Place> {
        let mut places: Vec<(&Place, usize)> =
            finding.places.iter().filter_map(|place| Some((place, *count.get(place)?))).collect();
        places.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        match places.as_slice() {
            [(place, most), (_, next), ..] if most > next => Some((*place).clone()),
            _ => None,
        }
    };
    let shared: Vec<Option<Place>> = findings.iter().map(most).collect();
    let mut merged: Vec<(Option<Place>, Finding)> = Vec::new();
    for (finding, shared) in findings.into_iter().zip(shared) {
        match merged.iter_mut().find(|(known, _)| shared.is_some() && *known == shared) {
            Some((_, one)) => {
                one.severity = one.severity.max(finding.severity);
                one.seen.extend(finding.seen);
            }
            None => merged.push((shared, finding)),
        }
    }
    let named = |(shared, finding): (Option<Place>, Finding)| match shared {
        Some(place) => Finding { places: vec![place], ..finding },
        None => finding,
    };
    merged.into_iter().map(named).collect()
}
