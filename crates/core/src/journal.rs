//! What each side writes to disk before it acts, and what another host is answered from it.
//!
//! The source is the coordinator of a two-phase commit, the destination its one participant:
//! * the destination writes [`DestinationPhase::Loaded`] before it says that the guest is loaded. Until then it may
//!   give the guest up by itself; from then on only the source's or an operator's decision lets it;
//! * the source writes [`SourcePhase::CommitSent`] before it sends commit, and never resumes by itself once that is
//!   sent. Before it may, when [`SourcePhase::ResumingHere`] is on disk;
//! * the destination writes [`DestinationPhase::Committed`] before it has its hypervisor run the guest;
//! * it writes [`DestinationPhase::Running`] once the guest runs, or [`DestinationPhase::Returned`] if the hypervisor
//!   could not run it and never did.
//!
//! A phase that ends a session is written until the disk takes it. [`crate::recovery`] has what follows after a crash.

use crate::Outcome;

/// Phase of a session at the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourcePhase {
    /// In progress; the guest is the source's.
    Started,
    /// Commit may have reached the destination.
    CommitSent,
    /// Commit was written, and the guest runs here all the same. An operator has decided so, the destination has given
    /// it up, or commit was not sent yet. Written before anything is done about it: from here on commit is not
    /// repeated. The destination is only asked whether it runs the guest.
    ResumingHere,
    /// The guest is the destination's and the source has ended its own copy.
    Finished,
    /// The guest stayed, and does again what it did before.
    RolledBack,
}

/// Phase of a session at the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DestinationPhase {
    /// Reserved, or waiting for RAM and device state: may be given up at any time.
    Started,
    /// The guest is complete here, and the source may have committed.
    Loaded,
    /// The hypervisor may have got the command to run the guest.
    Committed,
    /// The hypervisor has confirmed that it has taken the guest over.
    Running,
    /// The source has ended its copy, or was waited for long enough. What becomes of the guest is no business of this
    /// session any more.
    Finished,
    /// Given up before commit; the guest will never run from this session.
    Aborted,
    /// Committed, could not be run and never ran; the guest will never run from this session.
    Returned,
}

/// What became of the process that a destination's record names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessFate {
    /// The process is there, with the identity of the record.
    Alive,
    /// It ended, and a newer record says that its guest moved on to another host.
    MovedOn,
    /// It ended, and no record says why.
    Ended,
}

/// What a destination without a live session answers to a source that asks.
pub fn outcome(phase: Option<DestinationPhase>, fate: ProcessFate) -> Outcome {
    match (phase, fate) {
        (None, _) => Outcome::Unknown,
        (Some(DestinationPhase::Started | DestinationPhase::Loaded), _) => Outcome::Pending,
        (Some(DestinationPhase::Aborted), _) => Outcome::Aborted,
        (Some(DestinationPhase::Returned), _) => Outcome::Returned,
        (Some(_), ProcessFate::MovedOn) => Outcome::Committed,
        (Some(_), ProcessFate::Ended) => Outcome::Gone,
        (Some(DestinationPhase::Committed), ProcessFate::Alive) => Outcome::Pending,
        (Some(DestinationPhase::Running | DestinationPhase::Finished), ProcessFate::Alive) => {
            Outcome::Committed
        }
    }
}

/// What became of an operator's decision over a session in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decided {
    /// It is not carried out yet.
    Waiting,
    /// It is carried out: the hypervisor has confirmed that the guest runs here, or nothing is left of it here.
    Taken,
    /// It is not followed, and an operator may decide again. At a source: the destination holds the guest. At a
    /// destination: the hypervisor refused to run the guest, which may have run here, or its answer was lost.
    Void,
    /// The opposite was carried out. The other host knows better, another operator has decided so since, or the guest's
    /// process has ended.
    Overruled,
    /// At a destination: the guest runs here, and its source has rolled back, so it may run there too.
    AlsoAtSource,
}

/// What a source that asked does with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The guest runs at the destination: end the copy here.
    EndSource,
    /// The destination never ran it and never will: resume.
    Resume,
    /// Not decided, or not known: keep the guest paused and ask again.
    QueryAgain,
}

/// The only rule by which a source resumes or gives up a guest after it sent commit.
pub fn verdict(outcome: Outcome) -> Verdict {
    match outcome {
        Outcome::Committed => Verdict::EndSource,
        Outcome::Aborted | Outcome::Returned => Verdict::Resume,
        // The last is no answer to the question that is a commit.
        Outcome::Pending | Outcome::Unknown | Outcome::Gone | Outcome::NotCommitted => Verdict::QueryAgain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FATES: [ProcessFate; 3] = [ProcessFate::Alive, ProcessFate::MovedOn, ProcessFate::Ended];

    #[test]
    fn only_a_guest_that_never_runs_elsewhere_lets_the_source_resume_after_commit() {
        for outcome in [Outcome::Committed, Outcome::Pending, Outcome::Unknown, Outcome::Gone] {
            assert_ne!(verdict(outcome), Verdict::Resume, "{outcome:?}");
        }
        assert_eq!(verdict(Outcome::Aborted), Verdict::Resume);
        assert_eq!(verdict(Outcome::Returned), Verdict::Resume);
    }

    #[test]
    fn only_a_guest_that_was_taken_over_lets_the_source_give_up_its_copy() {
        for phase in [DestinationPhase::Running, DestinationPhase::Finished] {
            assert_eq!(outcome(Some(phase), ProcessFate::Alive), Outcome::Committed);
            assert_eq!(outcome(Some(phase), ProcessFate::MovedOn), Outcome::Committed);
            assert_eq!(outcome(Some(phase), ProcessFate::Ended), Outcome::Gone);
        }
        assert_eq!(outcome(Some(DestinationPhase::Committed), ProcessFate::Alive), Outcome::Pending);
        assert_eq!(outcome(Some(DestinationPhase::Committed), ProcessFate::Ended), Outcome::Gone);
    }

    #[test]
    fn a_missing_record_is_not_an_abort() {
        for fate in FATES {
            assert_eq!(outcome(None, fate), Outcome::Unknown);
        }
    }

    #[test]
    fn what_may_still_be_committed_is_pending_whatever_became_of_the_process() {
        for fate in FATES {
            assert_eq!(outcome(Some(DestinationPhase::Loaded), fate), Outcome::Pending);
        }
    }
}
