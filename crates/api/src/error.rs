//! Why something was not done.

use serde::{Deserialize, Serialize};

use crate::{GuestState, Side, Step};

/// Codes of the API itself; all others are the names of the wire protocol's codes in snake_case.
pub mod code {
    /// The request could not be understood.
    pub const BAD_REQUEST: &str = "bad_request";
    /// There is no such path.
    pub const NOT_FOUND: &str = "not_found";
    /// No migration of that name.
    pub const MIGRATION_UNKNOWN: &str = "migration_unknown";
    /// No drain of that name.
    pub const DRAIN_UNKNOWN: &str = "drain_unknown";
    /// The migration is over, or beyond commit, and cannot be cancelled any more; or the session is decided already.
    pub const TOO_LATE: &str = "too_late";
    /// A measurement is in progress, here or on the other host; there is one at a time.
    pub const BENCH_BUSY: &str = "bench_busy";
    /// A guest is being migrated from or to one of the hosts, which a measurement would slow down.
    pub const MIGRATION_IN_PROGRESS: &str = "migration_in_progress";
    /// The port is on trial already, its change is not done yet, or too many ports are on trial.
    pub const LINK_BUSY: &str = "link_busy";
    /// Another host's agent was asked and its answer did not come: it may have done what it was asked.
    pub const ANSWER_LOST: &str = "answer_lost";
    /// A measurement failed before its end.
    pub const BENCH_FAILED: &str = "bench_failed";
    /// The caller or an operator asked to stop.
    pub const CANCELLED: &str = "cancelled";
    /// Options that do not belong together.
    pub const USAGE: &str = "usage";
    /// A no for a reason that has no code of its own.
    pub const REFUSED: &str = "refused";
    /// libvirt's migration of a domain failed.
    pub const LIBVIRT_FAILED: &str = "libvirt_failed";
    /// The answer carried no error that could be read.
    pub const UNREADABLE: &str = "unreadable";
}

/// Why something was not done, with all that an operator needs: what, where, the state of the guest, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// For programs; see [`code`].
    pub code: String,
    /// In which step of a migration, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Step>,
    /// On which host, if it was a migration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<Side>,
    /// The same request can succeed later without anything being changed by hand.
    pub retry_can_help: bool,
    /// What the guest does now, for programs; absent if no guest was touched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_state: Option<GuestState>,
    /// What happened, in words.
    pub message: String,
    /// What to do, in words; may be empty.
    #[serde(default)]
    pub hint: String,
}

impl ErrorBody {
    /// An error that touched no guest.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> ErrorBody {
        ErrorBody {
            code: code.into(),
            step: None,
            side: None,
            retry_can_help: false,
            guest_state: None,
            message: message.into(),
            hint: String::new(),
        }
    }

    /// The same with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> ErrorBody {
        self.hint = hint.into();
        self
    }

    /// The HTTP status that it travels with.
    pub fn http_status(&self) -> u16 {
        match self.code.as_str() {
            code::BAD_REQUEST | code::USAGE => 400,
            "not_authorised" => 403,
            code::NOT_FOUND | code::MIGRATION_UNKNOWN | "guest_unknown" | "session_unknown" => 404,
            "guest_exists"
            | "guest_busy"
            | "cancelled"
            | code::TOO_LATE
            | code::BENCH_BUSY
            | code::LINK_BUSY
            | code::MIGRATION_IN_PROGRESS => 409,
            "guest_gone" => 410,
            "not_migratable" | "resource_missing" | "guest_differs" | code::REFUSED | "cordoned" => 422,
            "version_mismatch" | "protocol_violation" | "peer_lost" | "no_link" | code::ANSWER_LOST => 502,
            "memory_short" => 507,
            "timed_out" => 504,
            _ => 500,
        }
    }
}
