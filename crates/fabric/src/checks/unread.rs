//! What hosts could not read of themselves.

use crate::model::{Finding, Inventory, Location, Note, Severity, Survey};

use super::common::{finding, join};

const NOT_READ_WHY: &str = "Checks pass over what is not known: a fault there is not found, and the links look as \
    good as others.";

/// Parts of an inventory that could not be read, and that checks need.
pub(super) fn not_read(survey: &Survey) -> Vec<Finding> {
    survey.hosts.iter().filter_map(not_read_finding).collect()
}

fn not_read_finding(host: &Inventory) -> Option<Finding> {
    // No check needs what names resolve to.
    let notes: Vec<&Note> = host.notes.iter().filter(|note| note.part() != Note::NAME).collect();
    let severity = |note: &&Note| match note.part() {
        // Without ports there is no probe either.
        Note::PORTS => Severity::Error,
        // Some drivers never answer it, and only a hint needs it. What a firewall drops is found by probes.
        Note::FIRMWARE | Note::FIREWALL => Severity::Hint,
        _ => Severity::Warning,
    };
    let severity = notes.iter().map(severity).max()?;
    let location = Location::host(&host.host);
    let title = format!("not read, so not judged: {}", join(notes.iter().map(|note| note.part()), ", "));
    let mut finding = finding(severity, title).at(location.clone()).why(NOT_READ_WHY);
    for note in notes {
        finding = finding.seen(location.clone(), &note.about, &note.what);
    }
    Some(finding.step(
        Some(location),
        "run the doctor again; if it stays, see whether its kernel has this, and whether its agent runs as root",
    ))
}

#[cfg(test)]
mod tests {
    mod not_read {
        use crate::checks::run_all;
        use crate::model::Severity;
        use crate::testing::{healthy_survey, host_mut, only};

        #[test]
        fn what_a_host_could_not_read_is_no_good_host() {
            let mut survey = healthy_survey();
            let beta = host_mut(&mut survey, "beta");
            beta.note("resolve gamma", "no answer within 2 s");
            assert_eq!(run_all(&survey), Vec::new());
            host_mut(&mut survey, "beta").note("devlink", "Input/output error");
            // As in a container without CAP_NET_ADMIN.
            host_mut(&mut survey, "beta").note("nftables", "Operation not permitted");
            assert_eq!(only(&survey, "not-read").severity, Severity::Hint);
            let beta = host_mut(&mut survey, "beta");
            beta.note("ethtool: FEC", "no answer");
            beta.note("ethtool: pause", "no answer");
            beta.note("dcbnl l0", "Operation not permitted");
            let finding = only(&survey, "not-read");
            assert_eq!(finding.title, "not read, so not judged: devlink, nftables, ethtool, dcbnl");
            assert_eq!(finding.locations[0].to_string(), "beta");
            assert_eq!((finding.severity, finding.seen.len()), (Severity::Warning, 5));
            let verdict = crate::fix::verdict(&[], &[], &[finding]).unwrap_or_default();
            assert!(verdict.contains("the effect is not known"), "{verdict}");
            // All that is known of a host without ports is that it answers.
            host_mut(&mut survey, "beta").note("rtnetlink", "no answer");
            assert_eq!(only(&survey, "not-read").severity, Severity::Error);
        }

        #[test]
        fn a_look_that_watches_no_counters_does_not_miss_them() {
            let mut survey = healthy_survey();
            host_mut(&mut survey, "beta").note("counters", "no answer");
            only(&survey, "not-read");
            assert_eq!(run_all(&survey.at_a_glance()), Vec::new());
        }
    }
}
