//! What the source has said of its own copy. A guest that cannot run at the destination may return only to a copy that
//! is there.

use std::time::Duration;

use crate::Time;

/// A source's message that it has its copy counts for so long: while it waits it asks every second.
pub(crate) const COPY_COUNTS_FOR: Duration = Duration::from_secs(5);
/// A source that is about to let its copy run counts as doing so for so long. One try of that takes up to 10 s, and the
/// question before the next one some seconds.
pub(crate) const RESUMES_FOR: Duration = Duration::from_secs(20);
/// An operator's decision to let a guest run at the destination waits for so long: a source that is there says
/// meanwhile that it has its guest, or is about to let it run. A try of that may have begun without the question before
/// it, as no link worked.
pub(crate) const HEARD_WITHIN: Duration = RESUMES_FOR;
/// A source that has said that it has no copy is not believed the opposite for so long: an earlier question may arrive
/// late. After that a restarted agent may ask, whose operator's decision came to nothing.
pub(crate) const NO_COPY_COUNTS_FOR: Duration = Duration::from_secs(60);

/// As the destination knows it, by the questions that the source asks on connections of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceCopy {
    there: Option<Time>,
    gone: Option<Time>,
    resumes: Option<Time>,
}

impl SourceCopy {
    /// A question came in. `copy`: the source can have the guest back.
    pub fn note(&mut self, now: Time, copy: bool) {
        if !copy {
            (self.there, self.gone) = (None, Some(now));
        } else if self.gone.is_none_or(|at| now - at > NO_COPY_COUNTS_FOR) {
            self.there = Some(now);
        }
    }

    /// The source is about to let its own copy run.
    pub fn note_resumes(&mut self, now: Time) {
        self.note(now, true);
        self.resumes = Some(now);
    }

    /// It knows that the destination has committed the guest, and keeps its own copy paused.
    pub fn note_waits(&mut self, now: Time) {
        self.note(now, true);
        self.resumes = None;
    }

    /// Whether the source has just said that it is about to let its own copy run: it repeats that before each try.
    pub fn is_resumed(&self, now: Time) -> bool {
        self.resumes.is_some_and(|at| now - at <= RESUMES_FOR)
    }

    /// Whether it has said so, and not since that it keeps its copy paused.
    pub fn has_resumed(&self) -> bool {
        self.resumes.is_some()
    }

    /// Whether the guest can return. A connection alone says that the agent over there runs, and nothing of its
    /// hypervisor.
    pub fn is_there(&self, now: Time) -> bool {
        self.there.is_some_and(|at| now - at <= COPY_COUNTS_FOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::{ANSWER_COUNTS_FOR, RESUME_MAX, RETRY_AFTER};

    #[test]
    fn a_source_that_resumes_is_believed_for_longer_than_a_try_takes() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let mut copy = SourceCopy::default();
        assert!(!copy.is_resumed(at(0)));
        copy.note_resumes(at(1));
        let next = RESUME_MAX + RETRY_AFTER + Duration::from_secs(5);
        assert!(copy.is_resumed(at(1) + next) && !copy.is_resumed(at(1) + RESUMES_FOR * 2));
        // A try that began without a question has ended by then, and the first notice of it has come.
        assert!(next < HEARD_WITHIN);
        // So has one that began when the answer still counted.
        assert!(ANSWER_COUNTS_FOR + RESUME_MAX <= RESUMES_FOR);
    }

    #[test]
    fn a_question_that_comes_late_does_not_bring_a_copy_back() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let mut copy = SourceCopy::default();
        assert!(!copy.is_there(at(0)));
        copy.note(at(1), true);
        assert!(copy.is_there(at(6)) && !copy.is_there(at(7)));
        copy.note(at(8), false);
        copy.note(at(9), true);
        assert!(!copy.is_there(at(9)));
        copy.note(at(70), true);
        assert!(copy.is_there(at(70)));
    }
}
