//! Lines of the audit log.

use linerate_api::{AuditCaller, AuditEntry, AuditResult};
use time::OffsetDateTime;

use super::format::clean;
use super::paint::Paint;
use super::table::{Align, Table};

/// A table of at most `limit` lines, oldest first; times in UTC.
pub fn table(entries: &[AuditEntry], limit: u32, paint: Paint) -> String {
    if entries.is_empty() {
        return "nothing in the audit log matches\n".into();
    }
    let mut table = Table::new(&[Align::Left; 7]);
    let heads = ["TIME (UTC)", "BY", "ACTION", "GUEST", "HOST", "RESULT", "MIGRATION"];
    table.row(heads.map(|head| paint.dim(head)));
    for entry in entries {
        let session: String = entry.session.as_deref().unwrap_or_default().chars().take(8).collect();
        table.row([
            utc(entry.unix_ms),
            caller(&entry.caller),
            entry.action.name().replace('_', " "),
            clean(entry.guest.as_deref().unwrap_or_default()),
            clean(&host(entry)),
            result(entry.result, paint),
            clean(&session),
        ]);
    }
    let mut lines = table.lines(0).into_iter();
    let mut text = lines.next().unwrap_or_default() + "\n";
    for (line, entry) in lines.zip(entries) {
        text.push_str(&line);
        text.push('\n');
        if let Some(reason) = &entry.reason {
            text.push_str(&paint.dim(&format!("    {}", clean(reason))));
            text.push('\n');
        }
        if entry.left_out > 0 {
            text.push_str(&paint.dim(&format!("    {} lines before it were not written", entry.left_out)));
            text.push('\n');
        }
    }
    if u32::try_from(entries.len()).is_ok_and(|count| count >= limit) {
        text.push_str(&paint.dim(&format!("the newest {limit} lines: --limit shows more")));
        text.push('\n');
    }
    text
}

fn caller(caller: &AuditCaller) -> String {
    match caller {
        AuditCaller::Local { user: Some(user), .. } => clean(user),
        AuditCaller::Local { uid, .. } => format!("user {uid}"),
        AuditCaller::Host { name: Some(name), .. } => clean(name),
        AuditCaller::Host { address, .. } => clean(address),
        AuditCaller::Agent => "agent".into(),
    }
}

/// The other host: the one that was asked for, or where the caller is.
fn host(entry: &AuditEntry) -> String {
    match (&entry.to, &entry.caller) {
        (Some(to), _) => to.clone(),
        (None, AuditCaller::Host { address, .. }) => address.clone(),
        (None, _) => String::new(),
    }
}

fn result(result: AuditResult, paint: Paint) -> String {
    match result {
        AuditResult::Done => paint.green("done"),
        AuditResult::Refused => paint.red("refused"),
        AuditResult::Failed => paint.yellow("failed"),
    }
}

/// Such as `2026-03-01 17:05:09`.
fn utc(unix_ms: u64) -> String {
    let seconds = i64::try_from(unix_ms / 1000).unwrap_or(i64::MAX);
    match OffsetDateTime::from_unix_timestamp(seconds) {
        Ok(time) => {
            let (hour, minute, second) = time.to_hms();
            let (year, month, day) = (time.year(), u8::from(time.month()), time.day());
            format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
        }
        Err(_) => "–".into(),
    }
}

#[cfg(test)]
mod tests {
    use linerate_api::AuditAction;

    use super::*;

    fn entry(action: AuditAction, caller: AuditCaller) -> AuditEntry {
        AuditEntry {
            unix_ms: 1_772_384_709_123,
            action,
            result: AuditResult::Done,
            caller,
            guest: None,
            session: None,
            to: None,
            cipher: None,
            reason: None,
            left_out: 0,
        }
    }

    #[test]
    fn each_line_has_who_what_and_what_became_of_it() {
        let root = AuditCaller::Local { uid: 0, user: Some("root".into()), pid: Some(9) };
        let begun = AuditEntry {
            guest: Some("web".into()),
            session: Some("0123456789abcdef".into()),
            to: Some("beta".into()),
            ..entry(AuditAction::MigrationBegin, root)
        };
        let stranger = AuditCaller::Host { name: None, address: "192.0.2.1:4711".into(), cipher: None };
        let refused = AuditEntry {
            result: AuditResult::Refused,
            reason: Some("the certificate is not of this cluster\u{1b}[2J".into()),
            left_out: 3,
            ..entry(AuditAction::Connection, stranger)
        };
        let entries = [begun, refused];
        let text = table(&entries, 3, Paint::PLAIN);
        let expected = "\
TIME (UTC)           BY              ACTION           GUEST  HOST            RESULT   MIGRATION
2026-03-01 17:05:09  root            migration begin  web    beta            done     01234567
2026-03-01 17:05:09  192.0.2.1:4711  connection              192.0.2.1:4711  refused
    the certificate is not of this cluster [2J
    3 lines before it were not written
";
        assert_eq!(text, expected);
        let text = table(&entries, 2, Paint::PLAIN);
        assert!(
            text.ends_with("\nthe newest 2 lines: --limit shows more\n"),
            "older ones may be left out: {text}"
        );
        assert_eq!(table(&[], 2, Paint::PLAIN), "nothing in the audit log matches\n");
    }
}
