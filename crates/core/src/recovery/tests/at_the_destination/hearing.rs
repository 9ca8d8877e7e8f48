//! What the source says of its own copy, right after the start of an agent and of a guest that is held; and what
//! another program does to a guest that waits.

use super::*;

/// Its agent has just started, and finds that it never ran here.
fn hearing() -> Driver {
    let mut driver = Driver::new(DestinationRecovery::inspect_after_start(Time::ZERO));
    assert_eq!(driver.action(), Some(Do::Inspect));
    assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), None, "its source is not heard yet");
    assert!(driver.recovery.hears_source() && !driver.recovery.is_in_doubt());
    driver
}

/// Its source's operator may have had the guest resumed there while no agent was here.
#[test]
fn a_committed_guest_is_run_after_a_start_when_its_source_is_heard() {
    for (word, follows) in [
        (Did::CommitAgain { copy: true }, Do::Run),
        (Did::CommitAgain { copy: false }, Do::Run),
        (Did::RolledBackAtSource, Do::Write(To::Returned)),
    ] {
        let mut driver = hearing();
        driver.now = driver.now + RETRY_AFTER;
        assert_eq!(driver.handle(word), Some(Do::Inspect), "{word:?}");
        assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), Some(follows), "{word:?}");
        // It is heard before the guest is looked at.
        let mut driver = Driver::new(DestinationRecovery::inspect_after_start(Time::ZERO));
        assert_eq!(driver.handle(word), Some(Do::Inspect), "{word:?}");
        assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), Some(follows), "{word:?}");
    }
}

/// It may not exist any more.
#[test]
fn a_committed_guest_is_run_after_a_start_when_its_source_is_silent() {
    let mut driver = hearing();
    let next = loop {
        driver.now = driver.recovery.timeout().expect("it waits for ever");
        assert_eq!(driver.action(), Some(Do::Inspect), "another program may have let it run");
        if let Some(next) = driver.handle(Did::Inspected(Inspection::NeverRan)) {
            break next;
        }
    };
    assert_eq!((next, driver.now), (Do::Run, Time::ZERO + HEARD_WITHIN));
    let mut driver = hearing();
    driver.again(Do::Inspect);
    assert_eq!(driver.handle(Did::Inspected(Inspection::Runs)), Some(Do::Write(To::Running)));
}

/// The agent was not listening yet, or was stopped: what its source has sent is about to arrive.
#[test]
fn time_in_which_no_source_can_be_heard_does_not_count() {
    let mut driver = hearing();
    driver.now = driver.now + HEARD_WITHIN * 2;
    driver.recovery.was_deaf(driver.now);
    assert_eq!(driver.action(), Some(Do::Inspect));
    assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), None, "its source is not heard yet");
    driver.now = driver.now + HEARD_WITHIN;
    assert_eq!(driver.action(), Some(Do::Inspect));
    assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), Some(Do::Run));
    let mut driver = waiting();
    assert_eq!(driver.handle(Did::Resolve(true)), None);
    driver.now = driver.now + HEARD_WITHIN * 2;
    driver.recovery.was_deaf(driver.now);
    assert_eq!(driver.action(), None);
    driver.now = driver.now + HEARD_WITHIN;
    assert_eq!(driver.action(), Some(Do::Write(To::Committed)));
}

#[test]
fn a_committed_guest_is_not_run_after_a_start_while_its_source_says_that_it_has_its_own() {
    let mut driver = hearing();
    for _ in 0..30 {
        assert_eq!(driver.handle(Did::SourceResumes), None);
        assert_eq!(driver.recovery.outcome_for_resuming(), Some(Outcome::Pending));
        driver.again(Do::Inspect);
        assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), None);
    }
    assert_eq!(driver.handle(Did::CommitAgain { copy: true }), None, "an earlier question arrives late");
    // It has the answer that the guest is committed here, and waits for that.
    let mut waits = Driver { recovery: driver.recovery.clone(), now: driver.now };
    assert_eq!(waits.handle(Did::SourceWaits), Some(Do::Inspect));
    assert_eq!(waits.handle(Did::Inspected(Inspection::NeverRan)), Some(Do::Run));
    // It is lost.
    driver.now = driver.now + Duration::from_secs(21);
    assert_eq!(driver.action(), Some(Do::Inspect));
    assert_eq!(driver.handle(Did::Inspected(Inspection::NeverRan)), Some(Do::Run));
}

/// It does not wait for this one: its guest ran there after commit, and is paused.
#[test]
fn an_operator_gives_a_guest_back_whose_source_says_that_it_has_its_own() {
    let mut driver = hearing();
    assert_eq!(driver.handle(Did::Resolve(false)), None, "it may be the only copy");
    assert_eq!(driver.handle(Did::SourceResumes), None);
    assert!(driver.recovery.is_in_doubt());
    assert_eq!(driver.handle(Did::Resolve(true)), None, "both copies would run");
    assert_eq!(driver.recovery.waiting_decision(), None);
    assert_eq!(driver.handle(Did::Resolve(false)), Some(Do::Write(To::Returned)));
}

/// The answer lets it resume its own copy.
#[test]
fn a_source_that_waits_is_taken_for_one_that_resumes_if_the_guest_is_not_committed() {
    let mut driver = waiting();
    assert_eq!(driver.handle(Did::SourceWaits), None);
    assert_eq!(driver.recovery.outcome_for_resuming(), Some(Outcome::NotCommitted));
    assert_eq!(driver.handle(Did::Resolve(true)), None);
    assert_eq!(driver.recovery.waiting_decision(), None, "both copies would run");
}

/// Another program has let it run there after commit.
#[test]
fn a_held_guest_is_not_run_while_its_source_says_that_it_has_its_own() {
    let mut driver = held();
    assert_eq!(driver.handle(Did::SourceResumes), None);
    assert_eq!(driver.handle(Did::Resolve(true)), None, "both copies would run");
    assert!(driver.recovery.is_held() && driver.recovery.waiting_decision().is_none());
    assert_eq!(driver.handle(Did::SourceWaits), None, "it keeps its own paused");
    assert_eq!(driver.handle(Did::Resolve(true)), Some(Do::Run));
}

#[test]
fn a_held_guest_is_not_run_by_an_operator_just_after_the_start_of_its_agent() {
    for heard in [true, false] {
        let mut driver = Driver::new(DestinationRecovery::inspect_after_start(Time::ZERO));
        assert_eq!(driver.action(), Some(Do::Inspect));
        assert_eq!(driver.handle(Did::Inspected(Inspection::MayHaveRun)), None);
        assert_eq!(driver.handle(Did::Resolve(true)), None, "its source may have its guest back");
        assert!(driver.recovery.is_held() && driver.recovery.has_just_started(driver.now));
        if heard {
            assert_eq!(driver.handle(Did::CommitAgain { copy: true }), None);
        } else {
            driver.now = driver.now + Duration::from_secs(21);
        }
        assert_eq!(driver.handle(Did::Resolve(true)), Some(Do::Run), "{heard}");
    }
}

/// A source would resume its own copy, which is older than the disks then.
#[test]
fn a_guest_that_another_program_lets_run_while_it_waits_has_run_here() {
    let mut driver = Driver::new(DestinationRecovery::wait_after_start(Time::ZERO));
    for _ in 0..1000 {
        driver.again(Do::Inspect);
        assert_eq!(driver.handle(Did::Inspected(Inspection::MayHaveRun)), None);
        assert!(driver.recovery.is_waiting());
    }
    driver.again(Do::Inspect);
    assert_eq!(driver.handle(Did::Inspected(Inspection::Runs)), Some(Do::Write(To::Running)));
    assert_eq!(driver.recovery.outcome_for_resuming(), Some(Outcome::Committed));
    assert_eq!(driver.handle(Did::ProcessEnded), None, "it did not end before it ran");
    driver.handle(Did::Written(true));
    assert_eq!(driver.recovery.is_over(), Some(To::Running));
}
