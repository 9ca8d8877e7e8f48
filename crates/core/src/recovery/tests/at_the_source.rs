//! The recovery of a source, step by step.

use super::*;

driver!(SourceRecovery, SourceAction, SourceEvent);

fn resuming() -> Driver {
    Driver::new(SourceRecovery::resume_here(Time::ZERO))
}

/// The guest is paused here, and the destination does not have it.
const NOT_COMMITTED: SourceEvent = SourceEvent::Looked(Look::Paused(Some(Outcome::NotCommitted)));

fn querying() -> Driver {
    Driver::new(SourceRecovery::query(Time::ZERO))
}

#[test]
fn resuming_and_writing_the_end_are_repeated_until_they_succeed() {
    let mut driver = resuming();
    assert!(driver.recovery.resumes_here());
    assert_eq!(driver.action(), Some(SourceAction::Look));
    assert_eq!(driver.handle(NOT_COMMITTED), Some(SourceAction::ResumeHere));
    for _ in 0..1000 {
        assert_eq!(driver.handle(SourceEvent::ResumedHere(None)), None, "nothing is written for a failure");
        driver.again(SourceAction::Look);
        assert_eq!(driver.handle(NOT_COMMITTED), Some(SourceAction::ResumeHere));
    }
    let writes = SourceAction::Write(From::RolledBack);
    assert_eq!(driver.handle(SourceEvent::ResumedHere(Some(GuestState::RunsAtSource))), Some(writes));
    for _ in 0..1000 {
        assert_eq!(driver.handle(SourceEvent::Written(false)), None);
        assert_eq!(driver.recovery.is_over(), None);
        driver.again(writes);
    }
    assert_eq!(driver.handle(SourceEvent::Written(true)), None);
    assert_eq!(driver.recovery.is_over(), Some(GuestState::RunsAtSource));
    assert_eq!(driver.recovery.timeout(), None);
}

/// A notice has the destination give its copy up. Its operator may have let that one run since it last answered.
#[test]
fn a_destination_that_may_have_the_disks_is_notified_once_for_each_answer_that_it_has_not_committed() {
    let mut driver = resuming();
    driver.action();
    assert_eq!(driver.handle(NOT_COMMITTED), Some(SourceAction::ResumeHere));
    for _ in 0..10 {
        assert_eq!(driver.handle(SourceEvent::DisksAreHeld), Some(SourceAction::ReleaseDisks));
        assert!(driver.recovery.resumes_here());
        assert_eq!(driver.handle(SourceEvent::DisksReleased), None, "nothing is written");
        driver.again(SourceAction::Look);
        assert_eq!(driver.handle(NOT_COMMITTED), Some(SourceAction::ResumeHere));
    }
    // It is silent by now, has given the guest up, or was not asked.
    let silent = SourceEvent::Looked(Look::Paused(None));
    let given_up = SourceEvent::Looked(Look::Paused(Some(Outcome::Aborted)));
    for look in [silent, given_up, SourceEvent::Looked(Look::NotPaused)] {
        assert_eq!(driver.handle(SourceEvent::ResumedHere(None)), None);
        driver.again(SourceAction::Look);
        driver.now = driver.now + Duration::from_secs(60);
        assert_eq!(driver.handle(look), Some(SourceAction::ResumeHere), "{look:?}");
        assert_eq!(driver.handle(SourceEvent::DisksAreHeld), None, "{look:?}");
        driver.again(SourceAction::Look);
        assert_eq!(driver.handle(NOT_COMMITTED), Some(SourceAction::ResumeHere));
    }
}

#[test]
fn a_guest_is_given_up_until_it_is_gone_and_only_then_is_it_written() {
    let mut driver = querying();
    assert_eq!(driver.action(), Some(SourceAction::Query { gives_up: false }));
    let gives_up = driver.handle(SourceEvent::Answered(Some(Outcome::Committed)));
    assert_eq!(gives_up, Some(SourceAction::EndSource));
    assert_eq!(driver.handle(SourceEvent::SourceEnded(false)), None);
    driver.again(SourceAction::EndSource);
    assert_eq!(driver.handle(SourceEvent::SourceEnded(true)), Some(SourceAction::Write(From::Finished)));
    driver.handle(SourceEvent::Written(true));
    assert_eq!(driver.recovery.is_over(), Some(GuestState::RunsAtDestination));
}

#[test]
fn it_asks_until_the_answer_decides() {
    let mut driver = querying();
    driver.action();
    let in_doubt = [None, Some(Outcome::Pending), Some(Outcome::Unknown), Some(Outcome::Gone), None];
    for answer in in_doubt {
        assert_eq!(driver.handle(SourceEvent::Answered(answer)), None, "{answer:?}");
        assert!(driver.recovery.is_in_doubt());
        driver.again(SourceAction::Query { gives_up: false });
    }
    assert_eq!(driver.recovery.answer(), Some(Outcome::Gone), "the last that there was");
    for (answer, follows) in [
        (Outcome::Committed, SourceAction::EndSource),
        (Outcome::Aborted, SourceAction::Write(From::ResumingHere)),
        (Outcome::Returned, SourceAction::Write(From::ResumingHere)),
    ] {
        let mut driver = querying();
        driver.action();
        assert_eq!(driver.handle(SourceEvent::Answered(Some(answer))), Some(follows), "{answer:?}");
    }
}

/// A later agent that asks would see the guest run, and take that for another program's doing. A full disk does not
/// keep the guest from running.
#[test]
fn that_the_destination_has_given_the_guest_up_is_written_once_before_it_is_resumed() {
    for (answer, is_written) in [(Outcome::Aborted, true), (Outcome::Returned, false)] {
        let mut driver = querying();
        driver.action();
        let writes = driver.handle(SourceEvent::Answered(Some(answer)));
        assert_eq!(writes, Some(SourceAction::Write(From::ResumingHere)));
        assert!(driver.recovery.resumes_here() && !driver.recovery.is_in_doubt());
        assert_eq!(driver.handle(SourceEvent::Written(is_written)), Some(SourceAction::ResumeHere));
    }
}

#[test]
fn the_operator_decides_after_one_more_question_or_the_one_in_progress() {
    let decided = SourceAction::Write(From::ResumingHere);
    for (resume, follows) in [(true, decided), (false, SourceAction::EndSource)] {
        let mut driver = querying();
        driver.action();
        assert_eq!(driver.handle(SourceEvent::Resolve(resume)), None, "one action at a time");
        let mut next = driver.handle(SourceEvent::Answered(None));
        if !resume {
            // The destination may still return the guest to the copy that is to be ended.
            assert_eq!(next, Some(SourceAction::Query { gives_up: true }));
            next = driver.handle(SourceEvent::Answered(None));
        }
        assert_eq!(next, Some(follows));
        let mut driver = querying();
        driver.action();
        driver.handle(SourceEvent::Answered(None));
        let asks = SourceAction::Query { gives_up: !resume };
        assert_eq!(driver.handle(SourceEvent::Resolve(resume)), Some(asks));
        assert_eq!(driver.handle(SourceEvent::Answered(None)), Some(follows));
    }
}

/// Without the destination's word nobody knows that it runs there.
#[test]
fn what_the_operator_gave_up_is_not_reported_as_moved() {
    for (answer, guest) in
        [(None, GuestState::Unknown), (Some(Outcome::Committed), GuestState::RunsAtDestination)]
    {
        let mut driver = querying();
        driver.handle(SourceEvent::Resolve(false));
        driver.action();
        assert_eq!(driver.handle(SourceEvent::Answered(answer)), Some(SourceAction::EndSource));
        driver.handle(SourceEvent::SourceEnded(true));
        driver.handle(SourceEvent::Written(true));
        assert_eq!(driver.recovery.is_over(), Some(guest));
    }
}

/// It takes the question for a commit.
#[test]
fn a_decision_to_resume_is_void_if_the_query_in_progress_finds_the_guest_over_there() {
    let mut driver = querying();
    driver.action();
    driver.handle(SourceEvent::Resolve(true));
    assert_eq!(driver.recovery.decided(), Some(Decided::Waiting));
    assert_eq!(driver.handle(SourceEvent::Answered(Some(Outcome::Pending))), None);
    assert_eq!(driver.recovery.decided(), Some(Decided::Void), "it is not dropped without a word");
    driver.again(SourceAction::Query { gives_up: false });
    assert_eq!(driver.handle(SourceEvent::Answered(Some(Outcome::Committed))), Some(SourceAction::EndSource));
}

/// Two operators: each is told what became of their own decision.
#[test]
fn a_decision_that_waits_is_not_replaced_by_another() {
    for first in [true, false] {
        let mut driver = querying();
        driver.action();
        driver.handle(SourceEvent::Resolve(first));
        assert!(driver.recovery.takes(first) && !driver.recovery.takes(!first), "{first}");
        driver.handle(SourceEvent::Resolve(!first));
        let mut next = driver.handle(SourceEvent::Answered(None));
        if !first {
            assert_eq!(next, Some(SourceAction::Query { gives_up: true }));
            next = driver.handle(SourceEvent::Answered(None));
        }
        let writes = SourceAction::Write(From::ResumingHere);
        assert_eq!(next, Some(if first { writes } else { SourceAction::EndSource }), "{first}");
    }
}

#[test]
fn a_decision_that_is_void_is_not_taken_for_the_one_that_follows() {
    let mut driver = querying();
    driver.action();
    driver.handle(SourceEvent::Resolve(true));
    driver.handle(SourceEvent::Answered(Some(Outcome::Pending)));
    assert_eq!(driver.handle(SourceEvent::Resolve(false)), Some(SourceAction::Query { gives_up: true }));
    let decided = |driver: &Driver| [true, false].map(|resume| driver.recovery.decided_for(resume));
    assert_eq!(decided(&driver), [Decided::Void, Decided::Waiting]);
    let mut next = driver.handle(SourceEvent::Answered(None));
    // The destination has just answered that it has the guest: it may return it.
    let mut seconds = 0;
    while next != Some(SourceAction::EndSource) {
        seconds += 1;
        assert!(seconds < 30, "it waits for ever");
        driver.again(SourceAction::Query { gives_up: true });
        next = driver.handle(SourceEvent::Answered(None));
    }
    assert!(seconds > 5, "{seconds} s");
    assert_eq!(decided(&driver), [Decided::Void, Decided::Waiting]);
    driver.handle(SourceEvent::SourceEnded(true));
    assert_eq!(decided(&driver), [Decided::Void, Decided::Taken]);
}

/// It may return the guest or give it up, and then this is the only copy.
#[test]
fn the_copy_of_a_guest_that_the_destination_has_is_not_given_up() {
    let mut driver = querying();
    driver.action();
    driver.handle(SourceEvent::Answered(None));
    driver.handle(SourceEvent::Resolve(false));
    let mut seconds = 0;
    loop {
        assert_eq!(driver.handle(SourceEvent::Answered(Some(Outcome::Pending))), None);
        if driver.recovery.decided_for(false) != Decided::Waiting {
            break;
        }
        seconds += 1;
        assert!(seconds < 30, "the decision waits for ever");
        driver.again(SourceAction::Query { gives_up: true });
    }
    assert_eq!(driver.recovery.decided_for(false), Decided::Void);
    assert!(driver.recovery.is_in_doubt());
}

/// The operator of a live session gave it up, and its QEMU did not end in time.
#[test]
fn a_copy_that_was_given_up_and_has_not_ended_is_asked_about_once_more() {
    let mut driver = Driver::new(SourceRecovery::give_up(Time::ZERO));
    assert_eq!(driver.action(), Some(SourceAction::Query { gives_up: true }));
    assert_eq!(driver.handle(SourceEvent::Answered(None)), Some(SourceAction::EndSource));
}

/// A later agent asks again, which is a commit.
#[test]
fn a_decision_to_resume_waits_until_the_guest_is_back() {
    let mut driver = querying();
    driver.action();
    driver.handle(SourceEvent::Resolve(true));
    driver.handle(SourceEvent::Answered(None));
    driver.handle(SourceEvent::Written(false));
    assert!(driver.recovery.is_in_doubt() && !driver.recovery.resumes_here());
    assert_eq!(driver.recovery.decided_for(true), Decided::Waiting);
    assert!(!driver.recovery.takes(false));
    driver.again(SourceAction::Query { gives_up: false });
    let writes = SourceAction::Write(From::ResumingHere);
    assert_eq!(driver.handle(SourceEvent::Answered(None)), Some(writes), "it is tried again");
    assert_eq!(driver.handle(SourceEvent::Written(true)), Some(SourceAction::Look));
    assert!(driver.recovery.resumes_here() && !driver.recovery.is_in_doubt());
    for _ in 0..100 {
        assert_eq!(driver.handle(SourceEvent::Looked(Look::Paused(None))), Some(SourceAction::ResumeHere));
        assert_eq!(driver.recovery.decided_for(true), Decided::Waiting, "it is not back yet");
        assert_eq!(driver.handle(SourceEvent::ResumedHere(None)), None);
        driver.again(SourceAction::Look);
    }
    driver.handle(SourceEvent::Looked(Look::NotPaused));
    driver.handle(SourceEvent::ResumedHere(Some(GuestState::RunsAtSource)));
    assert_eq!(driver.recovery.decided_for(true), Decided::Taken);
}

/// Its operator has let the guest run there, since the disk was full here.
#[test]
fn a_decision_to_resume_that_the_disk_refused_is_not_followed_if_the_guest_runs_at_the_destination() {
    let mut driver = querying();
    driver.action();
    driver.handle(SourceEvent::Resolve(true));
    driver.handle(SourceEvent::Answered(None));
    driver.handle(SourceEvent::Written(false));
    driver.again(SourceAction::Query { gives_up: false });
    assert_eq!(driver.handle(SourceEvent::Answered(Some(Outcome::Committed))), Some(SourceAction::EndSource));
    assert_eq!(driver.recovery.decided_for(true), Decided::Overruled);
}

/// It may still hold the guest, and run it by a question that arrived.
#[test]
fn a_guest_that_the_destination_has_is_resumed_only_after_a_silence() {
    let mut driver = querying();
    driver.action();
    driver.handle(SourceEvent::Answered(Some(Outcome::Pending)));
    let mut next = driver.handle(SourceEvent::Resolve(true));
    let mut seconds = 0;
    loop {
        assert_eq!(next, Some(SourceAction::Query { gives_up: false }));
        assert_eq!(driver.recovery.decided_for(true), Decided::Waiting);
        if driver.handle(SourceEvent::Answered(None)).is_some() {
            break;
        }
        seconds += 1;
        assert!(seconds < 30, "it waits for ever");
        driver.again(SourceAction::Query { gives_up: false });
        next = Some(SourceAction::Query { gives_up: false });
    }
    assert!(seconds > 5, "{seconds} s");
}

#[test]
fn the_operators_decision_is_on_disk_before_the_guest_runs_without_further_questions() {
    let mut driver = querying();
    driver.action();
    driver.handle(SourceEvent::Answered(None));
    let writes = SourceAction::Write(From::ResumingHere);
    assert_eq!(driver.handle(SourceEvent::Resolve(true)), Some(SourceAction::Query { gives_up: false }));
    assert_eq!(driver.handle(SourceEvent::Answered(None)), Some(writes));
    for _ in 0..100 {
        assert_eq!(driver.handle(SourceEvent::Written(false)), None);
        driver.again(SourceAction::Query { gives_up: false });
        assert_eq!(driver.handle(SourceEvent::Answered(None)), Some(writes));
    }
    assert_eq!(driver.handle(SourceEvent::Written(true)), Some(SourceAction::Look));
}

#[test]
fn an_answer_that_decides_weighs_more_than_the_operators_decision() {
    let takes_back = SourceAction::Write(From::ResumingHere);
    for (answer, follows) in [
        (Outcome::Committed, SourceAction::EndSource),
        (Outcome::Aborted, takes_back),
        (Outcome::Returned, takes_back),
    ] {
        for resume in [true, false] {
            let mut driver = querying();
            driver.action();
            driver.handle(SourceEvent::Resolve(resume));
            let next = driver.handle(SourceEvent::Answered(Some(answer)));
            assert_eq!(next, Some(follows), "{answer:?}, {resume}: the destination knows");
            if follows == takes_back {
                assert_eq!(driver.recovery.decided(), Some(Decided::Waiting), "it is not back yet");
                driver.handle(SourceEvent::Written(true));
                driver.handle(SourceEvent::ResumedHere(Some(GuestState::RunsAtSource)));
            } else if !resume {
                assert_eq!(driver.recovery.decided(), Some(Decided::Waiting), "it has not ended yet");
                driver.handle(SourceEvent::SourceEnded(true));
            }
            let followed = resume == (follows == takes_back);
            let decided = if followed { Decided::Taken } else { Decided::Overruled };
            assert_eq!(driver.recovery.decided(), Some(decided), "{answer:?}, {resume}");
        }
    }
}

#[test]
fn what_is_decided_is_not_decided_again() {
    let mut driver = resuming();
    driver.action();
    driver.handle(NOT_COMMITTED);
    for event in [
        SourceEvent::Resolve(false),
        SourceEvent::Answered(Some(Outcome::Committed)),
        SourceEvent::SourceEnded(true),
        SourceEvent::Written(true),
        SourceEvent::Tick,
    ] {
        assert_eq!(driver.handle(event), None, "{event:?}");
        assert!(driver.recovery.resumes_here(), "{event:?}");
    }
}

fn looked(answer: Option<Outcome>) -> SourceEvent {
    SourceEvent::Looked(Look::Paused(answer))
}

/// Its operator has let it run there, while the agent here was down or QEMU here did not answer.
#[test]
fn a_guest_that_runs_at_the_destination_is_not_resumed_here() {
    let mut driver = resuming();
    driver.action();
    assert_eq!(driver.handle(looked(Some(Outcome::Committed))), Some(SourceAction::EndSource));
    // Between two tries.
    let mut driver = resuming();
    driver.action();
    driver.handle(NOT_COMMITTED);
    driver.handle(SourceEvent::ResumedHere(None));
    driver.again(SourceAction::Look);
    assert_eq!(driver.handle(looked(Some(Outcome::Committed))), Some(SourceAction::EndSource));
    // By a decision that was to resume it.
    let mut driver = querying();
    driver.action();
    driver.handle(SourceEvent::Answered(None));
    driver.handle(SourceEvent::Resolve(true));
    driver.handle(SourceEvent::Answered(None));
    driver.handle(SourceEvent::Written(true));
    assert_eq!(driver.handle(looked(Some(Outcome::Committed))), Some(SourceAction::EndSource));
    assert_eq!(driver.recovery.decided_for(true), Decided::Overruled);
}

#[test]
fn a_guest_that_runs_here_or_has_ended_is_not_asked_about() {
    let mut driver = resuming();
    driver.action();
    assert_eq!(driver.handle(SourceEvent::Looked(Look::NotPaused)), Some(SourceAction::ResumeHere));
}

#[test]
fn a_destination_that_does_not_have_the_guest_lets_it_be_resumed_at_once() {
    for answer in [Outcome::NotCommitted, Outcome::Aborted, Outcome::Returned, Outcome::Unknown] {
        let mut driver = resuming();
        driver.action();
        assert_eq!(driver.handle(looked(Some(answer))), Some(SourceAction::ResumeHere), "{answer:?}");
    }
}

/// Its agent may be starting.
#[test]
fn a_silent_destination_is_waited_for_before_the_guest_is_resumed() {
    let mut driver = resuming();
    driver.action();
    let mut seconds = 0;
    while driver.handle(looked(None)).is_none() {
        assert!(driver.recovery.resumes_here() && !driver.recovery.is_in_doubt());
        seconds += 1;
        assert!(seconds < 30, "it waits for ever");
        driver.again(SourceAction::Look);
    }
    assert!(seconds > 5, "{seconds} s");
}

/// It may run there at any moment, or have run there: its memory here may be older than its disks.
#[test]
fn a_guest_that_was_committed_at_the_destination_waits_for_the_answer_or_an_operator() {
    for answer in [Outcome::Pending, Outcome::Gone] {
        let mut driver = resuming();
        driver.action();
        for silent in [false, true].into_iter().cycle().take(100) {
            assert_eq!(driver.handle(looked((!silent).then_some(answer))), None);
            assert!(driver.recovery.is_in_doubt() && !driver.recovery.resumes_here());
            driver.again(SourceAction::Look);
        }
        driver.handle(looked(Some(Outcome::Returned)));
        assert!(driver.recovery.resumes_here(), "{answer:?}");
    }
}

#[test]
fn an_operator_who_knows_that_the_destination_has_lost_the_guest_has_it_resumed() {
    let mut driver = resuming();
    driver.action();
    assert_eq!(driver.handle(looked(Some(Outcome::Gone))), None);
    assert_eq!(driver.handle(SourceEvent::Resolve(true)), Some(SourceAction::Look));
    assert_eq!(driver.handle(looked(Some(Outcome::Gone))), Some(SourceAction::ResumeHere));
    // One who did not know decides again.
    let mut driver = querying();
    driver.action();
    driver.handle(SourceEvent::Answered(None));
    driver.handle(SourceEvent::Resolve(true));
    driver.handle(SourceEvent::Answered(None));
    driver.handle(SourceEvent::Written(true));
    assert_eq!(driver.handle(looked(Some(Outcome::Gone))), None);
    assert_eq!(driver.recovery.decided_for(true), Decided::Void);
    assert_eq!(driver.handle(SourceEvent::Resolve(true)), Some(SourceAction::Look));
    assert_eq!(driver.handle(looked(Some(Outcome::Gone))), Some(SourceAction::ResumeHere));
}

/// Another program ran it here after commit, and the destination runs it too: neither copy is older than the other.
#[test]
fn a_guest_that_runs_at_the_destination_and_ran_here_is_resumed_only_by_an_operator_who_knows_it() {
    let mut driver = querying();
    driver.action();
    driver.handle(SourceEvent::Resolve(true));
    driver.handle(SourceEvent::Answered(None));
    driver.handle(SourceEvent::Written(true));
    assert_eq!(driver.handle(SourceEvent::Looked(Look::OnBothHosts)), None);
    assert_eq!(driver.recovery.decided_for(true), Decided::Void);
    assert!(driver.recovery.is_in_doubt());
    assert_eq!(driver.handle(SourceEvent::Resolve(true)), Some(SourceAction::Look));
    let both = SourceEvent::Looked(Look::OnBothHosts);
    assert_eq!(driver.handle(both), Some(SourceAction::ResumeHere));
}

#[test]
fn a_copy_that_is_given_up_while_the_destination_has_the_guest_is_ended_after_a_question_that_says_so() {
    let mut driver = resuming();
    driver.action();
    driver.handle(looked(Some(Outcome::Pending)));
    let asks = SourceAction::Query { gives_up: true };
    assert_eq!(driver.handle(SourceEvent::Resolve(false)), Some(asks));
    assert_eq!(driver.handle(SourceEvent::Answered(Some(Outcome::Committed))), Some(SourceAction::EndSource));
    // The operator decides while the destination is being asked.
    let mut driver = resuming();
    driver.action();
    driver.handle(looked(Some(Outcome::Gone)));
    driver.again(SourceAction::Look);
    assert_eq!(driver.handle(SourceEvent::Resolve(false)), None);
    assert_eq!(driver.handle(looked(Some(Outcome::Gone))), Some(asks));
}

/// A destination that waits for it runs the guest then.
#[test]
fn a_source_says_whether_it_keeps_its_guest_paused_and_an_operators_decision_needs_another_question() {
    let mut driver = resuming();
    driver.action();
    assert!(!driver.recovery.only_asks(), "a silence would let it resume the guest");
    driver.handle(looked(Some(Outcome::Pending)));
    driver.again(SourceAction::Look);
    assert!(driver.recovery.only_asks());
    // The operator decides while the destination is being asked.
    assert_eq!(driver.handle(SourceEvent::Resolve(true)), None);
    driver.now = driver.now + Duration::from_secs(11);
    assert_eq!(driver.handle(looked(None)), Some(SourceAction::Look));
    assert!(!driver.recovery.only_asks());
    assert_eq!(driver.handle(looked(None)), Some(SourceAction::ResumeHere));
}
