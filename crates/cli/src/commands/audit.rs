//! `linerate audit`

use std::time::{SystemTime, UNIX_EPOCH};

use linerate_api::AuditAnswer;

use super::progress::look;
use crate::context::Context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::AuditFlags;
use crate::render::audit;

/// Shows lines of the audit log, oldest first.
pub async fn run(flags: &AuditFlags, context: &Context) -> Result<Exit, Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let request = flags.request(u64::try_from(now).unwrap_or(u64::MAX));
    let answer = look(context, context.client.audit(&request)).await?;
    let entries = &answer.entries;
    context.answer(entries, || audit::table(entries, flags.limit, context.out.paint))?;
    whole(&answer)
}

/// A log of which something cannot be read may not have said all.
fn whole(AuditAnswer { unreadable, .. }: &AuditAnswer) -> Result<Exit, Failure> {
    if unreadable.is_empty() {
        return Ok(Exit::Ok);
    }
    let text = format!("the audit log may have more lines that match: {}", unreadable.join("; "));
    let hint = "see them in these files, on the agent's host, as root: another release wrote them, a crash cut them \
                off, or the file is damaged; with `--since`, only what may be newer is named";
    Err(Failure::new(Exit::Failed, text, hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_with_lines_that_cannot_be_read_is_no_success() {
        let mut answer = AuditAnswer::default();
        assert_eq!(whole(&answer).map_err(|failure| failure.exit), Ok(Exit::Ok));
        answer.unreadable = vec!["/var/lib/linerate/audit.jsonl: line 7 cannot be read".into()];
        let failure = whole(&answer).unwrap_err();
        assert_eq!(failure.exit, Exit::Failed);
        assert!(failure.message().contains("audit.jsonl: line 7"), "{}", failure.message());
    }
}
