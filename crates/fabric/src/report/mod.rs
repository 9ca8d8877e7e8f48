//! What the doctor found, as a verdict and as a page: pure functions of a survey and its findings. Text for terminals
//! is the client's.

mod html;

use serde::Serialize;

use crate::model::{Finding, Severity, Survey};

pub use html::html;

/// What it comes to; exit codes are made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing, or hints only.
    Clean,
    /// Migrations will be slow.
    Warnings,
    /// A migration would fail, hang, or go the wrong way.
    Errors,
}

/// The worst finding decides; hints are no reason to stop a script.
pub fn verdict(findings: &[Finding]) -> Verdict {
    match findings.iter().map(|finding| finding.severity).max() {
        Some(Severity::Error) => Verdict::Errors,
        Some(Severity::Warning) => Verdict::Warnings,
        Some(Severity::Hint) | None => Verdict::Clean,
    }
}

/// Where, what, and which finding it is. Long lists of locations are cut: the details have them all.
fn headline(finding: &Finding) -> String {
    let mut locations: Vec<String> = finding.locations.iter().take(3).map(ToString::to_string).collect();
    if finding.locations.len() > 3 {
        locations.push(format!("{} more", finding.locations.len() - 3));
    }
    let locations = if locations.is_empty() { String::new() } else { format!("{}: ", locations.join(", ")) };
    format!("{locations}{} [{}]", finding.title, finding.id)
}

/// Without characters that steer a terminal: names come from other hosts and from files.
fn clean(text: &str) -> String {
    text.chars().map(|one| if one.is_control() { '\u{fffd}' } else { one }).collect()
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Hint => "hint",
    }
}

/// `2 hosts: errors 1, warnings 0, hints 3`.
fn summary(survey: &Survey, findings: &[Finding]) -> String {
    let hosts = survey.hosts.len();
    let plural = if hosts == 1 { "host" } else { "hosts" };
    if findings.is_empty() {
        return format!("{hosts} {plural}: nothing found");
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let [errors, warnings, hints] = [Severity::Error, Severity::Warning, Severity::Hint].map(count);
    format!("{hosts} {plural}: errors {errors}, warnings {warnings}, hints {hints}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_finding_decides() {
        let finding = |severity| Finding::new("x", severity, "");
        assert_eq!(verdict(&[]), Verdict::Clean);
        assert_eq!(verdict(&[finding(Severity::Hint)]), Verdict::Clean);
        assert_eq!(verdict(&[finding(Severity::Hint), finding(Severity::Warning)]), Verdict::Warnings);
        assert_eq!(verdict(&[finding(Severity::Error), finding(Severity::Warning)]), Verdict::Errors);
    }
}
