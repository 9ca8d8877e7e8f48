//! What the doctor found, as text, as JSON and as a page: pure functions of a room and its findings.

mod html;
mod picture;
mod text;

use serde::Serialize;

use crate::model::{Finding, Room, Severity};

pub use html::html;
pub use text::text;

/// What it comes to; exit codes are made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing, or hints only.
    Clean,
    /// Migrations will be slow.
    Warnings,
    /// Migrations will fail.
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

#[derive(Serialize)]
struct Document<'a> {
    verdict: Verdict,
    findings: &'a [Finding],
    room: &'a Room,
}

/// Verdict, findings and all that they were made of.
pub fn json(room: &Room, findings: &[Finding]) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&Document { verdict: verdict(findings), findings, room })
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
fn summary(room: &Room, findings: &[Finding]) -> String {
    let hosts = room.hosts.len();
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

    #[test]
    fn the_document_can_be_read_again() {
        let room = crate::testing::healthy_room();
        let text = json(&room, &[Finding::new("x", Severity::Error, "t")]).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (value["verdict"].as_str(), value["findings"][0]["id"].as_str()),
            (Some("errors"), Some("x"))
        );
        let again: Room = serde_json::from_value(value["room"].clone()).unwrap();
        assert_eq!(again, room);
    }
}
