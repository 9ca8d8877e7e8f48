//! What each side writes to disk before it acts, and what it does with that after a crash.
//!
//! The source is the coordinator of a two-phase commit, the destination its one participant:
//! * the source writes [`SourcePhase::CommitSent`] before it sends commit; from then on it never resumes by itself;
//! * the destination writes [`DestinationPhase::Committed`] before it runs the guest, and [`DestinationPhase::Aborted`]
//!   before it says that it gave up; the first of the two to be written decides for ever.

use crate::Outcome;

/// Phase of a session at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourcePhase {
    /// Under way; the guest is the source's.
    Started,
    /// Commit may have reached the destination.
    CommitSent,
    /// The guest is the destination's and the source has cleaned up.
    Finished,
    /// The guest stayed.
    RolledBack,
}

/// Phase of a session at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DestinationPhase {
    /// Reserved or waiting for RAM; may be given up at any time.
    Started,
    /// The guest is the destination's.
    Committed,
    /// Given up; the guest will never run from this session.
    Aborted,
    /// The guest was the destination's and ran, and the source has cleaned up or was waited for long enough. From now on
    /// what becomes of the guest is no business of this session: a restart must not touch it.
    Finished,
}

/// What a source does about a session that it finds in its journal when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceRecovery {
    /// Commit was not sent: cancel what QEMU was told, remove what was left, let the guest run as before, and withdraw it from
    /// the destination ([`crate::withdrawal`]).
    RollBack,
    /// Ask the destination until the outcome is known; leave the guest paused.
    Ask,
    /// Nothing.
    Nothing,
}

/// What a destination does about a session that it finds in its journal when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationRecovery {
    /// End the waiting guest of this session, if there is one; write that it was given up.
    Discard,
    /// The guest is ours: see that it runs, go on answering the source.
    Keep,
    /// Nothing.
    Nothing,
}

/// Recovery of a source.
pub fn recover_source(phase: SourcePhase) -> SourceRecovery {
    match phase {
        SourcePhase::Started => SourceRecovery::RollBack,
        SourcePhase::CommitSent => SourceRecovery::Ask,
        SourcePhase::Finished | SourcePhase::RolledBack => SourceRecovery::Nothing,
    }
}

/// Recovery of a destination.
pub fn recover_destination(phase: DestinationPhase) -> DestinationRecovery {
    match phase {
        // Aborted is written before the waiting guest is ended, so it may still be there.
        DestinationPhase::Started | DestinationPhase::Aborted => DestinationRecovery::Discard,
        DestinationPhase::Committed => DestinationRecovery::Keep,
        DestinationPhase::Finished => DestinationRecovery::Nothing,
    }
}

/// What a destination answers to a source that asks, from its journal alone.
pub fn outcome(phase: Option<DestinationPhase>) -> Outcome {
    match phase {
        None => Outcome::Unknown,
        Some(DestinationPhase::Started) => Outcome::Pending,
        Some(DestinationPhase::Aborted) => Outcome::Aborted,
        Some(DestinationPhase::Committed | DestinationPhase::Finished) => Outcome::Committed,
    }
}

/// What a source that asked does with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The guest is the destination's: clean up.
    GiveUpGuest,
    /// The destination will never run it: resume.
    Resume,
    /// Not decided: ask again.
    AskAgain,
}

/// The only rule by which a source resumes after it sent commit: the destination said that it never will run the guest.
pub fn verdict(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Committed => Verdict::GiveUpGuest,
        Outcome::Aborted => Verdict::Resume,
        Outcome::Pending | Outcome::Unknown => Verdict::AskAgain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_abort_lets_the_source_resume_after_commit() {
        for outcome in [Outcome::Committed, Outcome::Pending, Outcome::Unknown] {
            assert_ne!(verdict(outcome), Verdict::Resume, "{outcome:?}");
        }
        assert_eq!(verdict(Outcome::Aborted), Verdict::Resume);
    }

    #[test]
    fn a_crash_between_the_abort_and_the_end_of_the_waiting_guest_leaves_none() {
        assert_eq!(recover_destination(DestinationPhase::Aborted), DestinationRecovery::Discard);
    }

    #[test]
    fn a_missing_record_is_not_an_abort() {
        assert_eq!(outcome(None), Outcome::Unknown);
    }
}
