//! Flags of `linerate audit`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use linerate_api::{AuditRequest, AuditResult};

use crate::units;

/// Which lines of the audit log are shown.
#[derive(Debug, Args)]
pub struct AuditFlags {
    /// Only lines that are not older than this, such as 30min, 12h, 7d
    #[arg(long, value_name = "TIME", value_parser = units::age_ms)]
    pub since: Option<u64>,
    /// Only lines about this guest
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub guest: Option<String>,
    /// Only lines about this migration or tunnel; the first characters of its id are enough
    #[arg(long, value_name = "ID", value_parser = NonEmptyStringValueParser::new())]
    pub session: Option<String>,
    /// Only lines about what this host did (name or IP address), or this local user (name or number)
    #[arg(long, value_name = "HOST|USER", value_parser = NonEmptyStringValueParser::new())]
    pub by: Option<String>,
    /// Only lines with this result
    #[arg(long, value_name = "RESULT")]
    pub result: Option<ResultFlag>,
    /// At most this many lines, the newest
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

/// How an action ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResultFlag {
    /// It was done
    Done,
    /// The caller may not do it
    Refused,
    /// It could not be done
    Failed,
}

impl AuditFlags {
    /// What to ask of the agent at this time, milliseconds since 1970 (UTC).
    pub fn request(&self, now_unix_ms: u64) -> AuditRequest {
        AuditRequest {
            since_unix_ms: self.since.map(|age| now_unix_ms.saturating_sub(age)),
            guest: self.guest.clone(),
            session: self.session.clone(),
            by: self.by.clone(),
            result: self.result.map(|result| match result {
                ResultFlag::Done => AuditResult::Done,
                ResultFlag::Refused => AuditResult::Refused,
                ResultFlag::Failed => AuditResult::Failed,
            }),
            limit: self.limit,
        }
    }
}
