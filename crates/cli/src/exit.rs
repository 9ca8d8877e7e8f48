//! How the command ends: one table for the program, `--help`, the man page and the user guide.

use std::process::ExitCode;

use linerate_api::{ClientError, ErrorBody, GuestState, MigrationOutcome};

macro_rules! exits {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $code:literal, $meaning:literal;)*) => {
        /// How the command ends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Exit { $($(#[$doc])* $name = $number,)* }

        impl Exit {
            /// For programs, where no agent has given a code of its own.
            pub fn code(self) -> &'static str {
                match self { $(Exit::$name => $code,)* }
            }
        }

        /// Number and meaning of each exit code.
        pub const TABLE: &[(u8, &str)] = &[$(($number, $meaning),)*];
    };
}

exits! {
    Ok = 0, "ok", "done; for a migration: the guest runs at the destination, or is there in the state in which it was, if it did not run; with `--dry-run`: it can move; with `--detach`: it has begun";
    Failed = 1, "failed", "failed; a guest that was to be moved runs at the source as before";
    /// What clap ends with as well.
    Usage = 2, "usage", "the command line is wrong; nothing was done";
    Unreachable = 3, "unreachable", "the agent cannot be reached; nothing was done";
    /// A no, not a failure.
    Refused = 4, "refused", "refused, and the error says what must change first; a guest that was to be moved runs at the source as before";
    Cancelled = 5, "cancelled", "cancelled; the guest runs at the source as before";
    /// The worst case of a lost connection.
    InDoubt = 6, "in_doubt", "in doubt: the guest is paused at the source until the destination or an operator decides, see `linerate resolve`; or it may run on both hosts, see `linerate migration list`; of a domain: see `virsh domstate` on both hosts before anything is resumed";
    GuestGone = 7, "guest_gone", "the guest ended by itself, or with its host";
    /// The command ended before the migration, which continues.
    NotWatched = 8, "not_watched", "the command stopped watching or lost the agent before the end; the agent decides what follows";
    /// Failed between stop and commit, and resuming failed too.
    PausedAtSource = 9, "paused_at_source", "failed; the guest is paused at the source and can be resumed there";
    MovedWithFault = 10, "moved_with_fault", "the guest runs at the destination, but something failed after that; or it has stopped there by itself since, as the error says; or the output could not be written";
    /// The doctor found something.
    DoctorWarnings = 11, "doctor_warnings", "the doctor found what makes migrations slow, and nothing worse";
    /// The doctor found something bad.
    DoctorErrors = 12, "doctor_errors", "the doctor found what makes migrations fail, or could not ask a host";
    /// What `qos check` is for.
    Differs = 13, "differs", "`linerate qos check`: something is not as the intent says, or cannot be, or a host could not be asked";
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// Codes of the agent that are a no.
const REFUSALS: &[&str] = &[
    "bad_request",
    "refused",
    "version_mismatch",
    "not_authorised",
    "guest_unknown",
    "session_unknown",
    "migration_unknown",
    "drain_unknown",
    "guest_exists",
    "guest_busy",
    "not_migratable",
    "memory_short",
    "resource_missing",
    "guest_differs",
    "cordoned",
    "too_late",
    "bench_busy",
    "link_busy",
    "migration_in_progress",
];

/// How to end when the agent said this. Where the guest is counts more than why.
pub fn of_body(body: &ErrorBody) -> Exit {
    match body.guest_state {
        Some(GuestState::Gone) => Exit::GuestGone,
        Some(GuestState::InDoubt | GuestState::Unknown) => Exit::InDoubt,
        Some(GuestState::PausedAtSource) => Exit::PausedAtSource,
        Some(
            GuestState::RunsAtDestination
            | GuestState::PausedAtDestination
            | GuestState::StoppedAtDestination,
        ) => Exit::MovedWithFault,
        Some(GuestState::RunsAtSource) | None => match body.code.as_str() {
            "guest_gone" => Exit::GuestGone,
            "cancelled" => Exit::Cancelled,
            "usage" => Exit::Usage,
            code if REFUSALS.contains(&code) => Exit::Refused,
            _ => Exit::Failed,
        },
    }
}

/// How to end when a request had no good answer.
pub fn of_client(error: &ClientError) -> Exit {
    match error {
        ClientError::Agent { body, .. } => of_body(body),
        ClientError::Cut { .. } => Exit::NotWatched,
        error if error.is_unreachable() => Exit::Unreachable,
        _ => Exit::Failed,
    }
}

/// How to end when a migration ended like this. An error beside a good end is never passed over.
pub fn of_outcome(outcome: MigrationOutcome, error: Option<&ErrorBody>) -> Exit {
    match outcome {
        MigrationOutcome::Completed => error.map_or(Exit::Ok, |_| Exit::MovedWithFault),
        MigrationOutcome::Checked => error.map_or(Exit::Ok, of_body),
        MigrationOutcome::Cancelled => error.map_or(Exit::Cancelled, of_body),
        MigrationOutcome::InDoubt => Exit::InDoubt,
        MigrationOutcome::Failed => error.map_or(Exit::Failed, of_body),
    }
}

/// The table for `--help`.
pub fn help() -> String {
    let lines: Vec<String> =
        TABLE.iter().map(|(number, meaning)| format!("  {number:>2}  {meaning}")).collect();
    format!("Exit codes:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_guide_lists_every_exit_code_with_its_meaning() {
        let guide = include_str!("../../../docs/user-guide.md");
        for (number, meaning) in TABLE {
            let row = format!("| {number} | {meaning} |");
            assert!(guide.contains(&row), "the user guide lacks the row: {row}");
        }
    }

    #[test]
    fn codes_for_programs_are_in_the_user_guide() {
        let guide = include_str!("../../../docs/user-guide.md");
        for exit in [Exit::Usage, Exit::NotWatched, Exit::PausedAtSource, Exit::MovedWithFault, Exit::Differs]
        {
            assert!(guide.contains(&format!("`{}`", exit.code())), "{exit:?}");
        }
        assert_eq!(Exit::InDoubt.code(), "in_doubt");
    }

    #[test]
    fn the_exit_code_depends_on_the_guests_state_before_the_error() {
        let mut body = ErrorBody::new("not_authorised", "no");
        assert_eq!(of_body(&body), Exit::Refused);
        body.guest_state = Some(GuestState::PausedAtSource);
        assert_eq!(of_body(&body), Exit::PausedAtSource);
        body.guest_state = Some(GuestState::InDoubt);
        assert_eq!(of_outcome(MigrationOutcome::Failed, Some(&body)), Exit::InDoubt);
        body.guest_state = Some(GuestState::StoppedAtDestination);
        assert_eq!(of_outcome(MigrationOutcome::Failed, Some(&body)), Exit::MovedWithFault);
        assert_eq!(of_outcome(MigrationOutcome::Completed, None), Exit::Ok);
        assert_eq!(of_outcome(MigrationOutcome::Completed, Some(&body)), Exit::MovedWithFault);
        assert_eq!(of_outcome(MigrationOutcome::Cancelled, None), Exit::Cancelled);
        assert_eq!(of_outcome(MigrationOutcome::Failed, None), Exit::Failed);
    }
}
