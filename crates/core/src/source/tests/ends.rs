//! Who decides after commit, who is notified of a roll-back, and clean-ups that fail.

use super::*;

#[test]
fn a_destination_that_has_forgotten_the_session_rolls_it_back_before_commit() {
    for state in all() {
        let mut driver = Driver::at(state);
        let actions = driver.handle(Event::Forgotten);
        let heeded = BEFORE_COMMIT.contains(&state);
        assert_eq!(actions.contains(&Action::RollBack), heeded, "{state:?}: {actions:?}");
        if heeded {
            let fault = driver.fault().expect("rolls back");
            assert_eq!((fault.code, fault.side), (Code::AgentRestarted, Side::Destination), "{state:?}");
            driver.handle(Event::PathLost(PATH));
            let ends = driver.handle(rolled_back(true));
            // Its journal knows of a guest that may be complete there, and its new agent keeps it.
            let held = (state >= Sealing).then_some(true);
            assert_eq!(withdraws(&ends), held, "{state:?}");
        }
    }
}

#[test]
fn only_a_roll_back_that_no_abort_could_report_sends_a_notice() {
    for state in BEFORE_COMMIT {
        for is_notice_due in [false, true] {
            let mut driver = Driver::at(state);
            driver.handle(Event::Failed(fault(Code::HypervisorFailed)));
            if is_notice_due {
                driver.receive(Message::Aborted);
            } else {
                driver.handle(Event::PathLost(PATH));
            }
            let actions = driver.handle(rolled_back(true));
            assert!(actions.iter().any(|action| matches!(action, Action::End(_))), "{state:?}: {actions:?}");
            // Once RAM is sealed the guest may become complete over there.
            let held = state >= Sealing;
            assert_eq!(withdraws(&actions), (!is_notice_due).then_some(held), "{state:?}: {actions:?}");
        }
    }
}

/// On disk with the record of the roll-back: the agent may end before anybody answers.
#[test]
fn the_roll_back_notice_is_due_until_the_destination_has_answered() {
    for state in BEFORE_COMMIT {
        let mut driver = Driver::at(state);
        driver.handle(Event::Failed(fault(Code::HypervisorFailed)));
        let actions = driver.handle(rolled_back(true));
        let at = |wanted: Action| actions.iter().position(|action| *action == wanted);
        let record = at(Action::Journal(SourcePhase::RolledBack)).expect("it is written");
        let due = at(Action::NoticeDue(true));
        assert_eq!(due.map(|at| at + 1 == record), (state >= Sealing).then_some(true), "{state:?}");
        let is_notice_due = driver.receive(Message::Aborted).contains(&Action::NoticeDue(false));
        assert_eq!(is_notice_due, state >= Sealing, "{state:?}");
        // One that answered first, and one that may have the only copy, need no word.
        for (answered, guest) in [(true, rolled_back(true)), (false, rolled_back(false))] {
            let mut driver = Driver::at(state);
            driver.handle(Event::Failed(fault(Code::HypervisorFailed)));
            if answered {
                driver.receive(Message::Aborted);
            }
            assert!(!driver.handle(guest).contains(&Action::NoticeDue(true)), "{state:?}");
        }
    }
}

/// The abort gets no answer any more.
#[test]
fn a_destination_that_forgets_the_session_during_the_roll_back_is_notified_on_a_connection_of_its_own() {
    for state in BEFORE_COMMIT {
        let mut driver = Driver::at(state);
        driver.handle(Event::Failed(fault(Code::HypervisorFailed)));
        let mut actions = driver.handle(Event::Forgotten);
        actions.extend(driver.handle(Event::PathLost(PATH)));
        actions.extend(driver.handle(rolled_back(true)));
        assert_eq!(withdraws(&actions), (state >= Sealing).then_some(true), "{state:?}: {actions:?}");
    }
}

/// Everything that may go wrong at once, and an hour without an answer.
fn torment(driver: &mut Driver) -> Vec<Action> {
    let mut actions = driver.handle(Event::Cancel);
    actions.extend(driver.handle(Event::Forgotten));
    actions.extend(driver.handle(Event::Failed(fault(Code::HypervisorFailed))));
    for (message, _) in messages() {
        if !matches!(message, Message::TakenOver { .. }) {
            actions.extend(driver.receive(message));
        }
    }
    actions.extend(driver.handle(Event::Answered(Outcome::Pending)));
    driver.machine.channel_lost(driver.now, CHANNEL);
    actions.extend(driver.handle(Event::PathLost(PATH)));
    for _ in 0..3600 {
        driver.now = driver.now + Duration::from_secs(1);
        let ticked = driver.handle(Event::Tick);
        if ticked.contains(&Action::Query { gives_up: false }) {
            driver.handle(Event::Unanswered);
        }
        actions.extend(ticked);
    }
    actions
}

#[test]
fn after_commit_it_never_resumes_by_itself() {
    let mut driver = Driver::at(Committing);
    let actions = torment(&mut driver);
    assert!(!actions.contains(&Action::RollBack), "{actions:?}");
    assert!(withdraws(&actions).is_none(), "{actions:?}");
    assert!(
        actions.iter().filter(|action| **action == Action::Query { gives_up: false }).count() > 3000,
        "it keeps asking"
    );
    assert!(driver.machine.is_in_doubt() && !driver.machine.can_resume());
}

#[test]
fn after_commit_only_the_destination_or_the_operator_decides() {
    let back: [fn(&mut Driver) -> Vec<Action>; 4] = [
        |d| d.handle(Event::Answered(Outcome::Aborted)),
        |d| d.handle(Event::Answered(Outcome::Returned)),
        |d| d.receive(Message::Abort(fault(Code::Cancelled))),
        |d| {
            d.handle(Event::Resolve(true));
            d.handle(Event::Unanswered);
            d.handle(Event::Journaled(SourcePhase::ResumingHere))
        },
    ];
    for word in back {
        assert!(word(&mut Driver::at(Committing)).contains(&Action::RollBack));
    }
    let away: [fn(&mut Driver) -> Vec<Action>; 3] = [
        |d| d.handle(Event::Answered(Outcome::Committed)),
        |d| d.receive(Message::TakenOver { resume_us: 1, cpu_us: 0 }),
        |d| {
            d.handle(Event::Resolve(false));
            d.handle(Event::Unanswered)
        },
    ];
    for word in away {
        assert!(word(&mut Driver::at(Committing)).contains(&Action::CleanUp));
    }
}

#[test]
fn a_destination_with_a_complete_guest_gets_no_notice_if_the_source_lost_its_own() {
    let lost = (GuestState::Gone, true);
    let not_yet = (GuestState::PausedAtSource, false);
    for (state, (guest, complete)) in
        [Sealing, Loading, Journaling].into_iter().flat_map(|state| [(state, lost), (state, not_yet)])
    {
        let mut driver = Driver::at(state);
        driver.handle(Event::Failed(fault(Code::JournalFailed)));
        let actions = driver.handle(Event::RolledBack { guest, complete });
        assert!(!sends(&actions, is_abort), "{state:?}, {guest:?}: {actions:?}");
        assert!(withdraws(&actions).is_none(), "{state:?}, {guest:?}: {actions:?}");
        assert!(driver.machine.is_ended(), "{state:?}, {guest:?}: {actions:?}");
    }
}

#[test]
fn a_destination_that_gives_up_by_itself_meanwhile_is_answered() {
    let mut driver = Driver::at(Journaling);
    driver.handle(Event::Failed(fault(Code::JournalFailed)));
    let actions = driver.receive(Message::Abort(fault(Code::Cancelled)));
    assert!(sends(&actions, |message| *message == Message::Aborted), "{actions:?}");
    let actions = driver.handle(rolled_back(true));
    assert!(!sends(&actions, is_abort), "{actions:?}");
    assert_eq!(driver.fault(), None, "it has ended");
    assert!(actions.iter().any(|action| matches!(action, Action::End(ending)
        if ending.fault.as_ref().is_some_and(|fault| fault.code == Code::JournalFailed))));
}

/// A question is a commit, and so is the message that a link which comes back would carry.
#[test]
fn an_operators_decision_waits_for_the_query_in_progress_and_revokes_the_commit() {
    let in_doubt = || {
        let mut driver = Driver::at(Committing);
        driver.handle(Event::PathLost(PATH));
        driver.now = driver.now + Duration::from_secs(1);
        assert!(driver.handle(Event::Tick).contains(&Action::Query { gives_up: false }));
        assert!(!driver.handle(Event::Resolve(true)).contains(&Action::Journal(SourcePhase::ResumingHere)));
        driver
    };
    let mut driver = in_doubt();
    assert!(driver.handle(Event::Answered(Outcome::Committed)).contains(&Action::CleanUp), "it knows better");
    let mut driver = in_doubt();
    let actions = driver.handle(Event::Answered(Outcome::Pending));
    assert!(
        !actions.contains(&Action::Journal(SourcePhase::ResumingHere)),
        "it has committed now: {actions:?}"
    );
    let mut driver = in_doubt();
    let actions = driver.handle(Event::Unanswered);
    assert!(actions.contains(&Action::Journal(SourcePhase::ResumingHere)), "{actions:?}");
    let actions = driver.handle(Event::PathUp(PATH));
    assert!(!sends(&actions, |message| *message == Message::Commit), "{actions:?}");
    driver.handle(Event::Journaled(SourcePhase::ResumingHere));
    let actions = driver.handle(rolled_back(true));
    assert!(sends(&actions, is_abort), "{actions:?}");
}

/// A disk that is full takes no decision either.
#[test]
fn a_decision_to_resume_counts_when_the_guest_is_back() {
    let mut driver = Driver::at(Committing);
    driver.handle(Event::PathLost(PATH));
    for _ in 0..5 {
        driver.now = driver.now + Duration::from_secs(1);
        driver.handle(Event::Tick);
        driver.handle(Event::Unanswered);
    }
    assert!(driver.machine.is_in_doubt());
    driver.handle(Event::Resolve(true));
    let journals = Action::Journal(SourcePhase::ResumingHere);
    assert!(driver.handle(Event::Unanswered).contains(&journals));
    driver.handle(Event::Failed(fault(Code::JournalFailed)));
    assert!(driver.machine.is_in_doubt(), "nothing is decided");
    assert_eq!(driver.machine.decided_for(true), Decided::Waiting);
    driver.now = driver.now + Duration::from_secs(1);
    let asks = Action::Query { gives_up: false };
    assert!(driver.handle(Event::Tick).contains(&asks), "it may have been let run there meanwhile");
    assert!(driver.handle(Event::Unanswered).contains(&journals), "it is tried again");
    driver.now = driver.now + Duration::from_secs(1);
    assert!(!driver.handle(Event::Tick).contains(&asks), "it is being written");
    assert!(driver.handle(Event::Journaled(SourcePhase::ResumingHere)).contains(&Action::RollBack));
    assert!(!driver.machine.is_in_doubt());
    assert_eq!(driver.machine.decided_for(true), Decided::Waiting, "QEMU may refuse");
    driver.handle(rolled_back(true));
    assert_eq!(driver.machine.decided_for(true), Decided::Taken);
}

/// It may still hold the guest, and run it by a question that arrived.
#[test]
fn a_guest_that_the_destination_has_is_resumed_only_after_a_silence() {
    let mut driver = Driver::at(Committing);
    driver.handle(Event::PathLost(PATH));
    driver.now = driver.now + Duration::from_secs(1);
    driver.handle(Event::Tick);
    driver.handle(Event::Answered(Outcome::Pending));
    driver.handle(Event::Resolve(true));
    let journals = Action::Journal(SourcePhase::ResumingHere);
    let mut seconds = 0;
    while !driver.handle(Event::Unanswered).contains(&journals) {
        seconds += 1;
        assert!(seconds < 30, "it waits for ever");
        assert_eq!(driver.machine.decided_for(true), Decided::Waiting);
        driver.now = driver.now + Duration::from_secs(1);
        assert!(driver.handle(Event::Tick).contains(&Action::Query { gives_up: false }));
    }
    assert!(seconds > 5, "{seconds} s");
}

/// Its operator has let the guest run there, since the disk was full here.
#[test]
fn a_decision_to_resume_that_the_disk_refused_is_not_followed_if_the_guest_runs_at_the_destination() {
    let mut driver = Driver::at(Committing);
    driver.handle(Event::PathLost(PATH));
    driver.handle(Event::Resolve(true));
    driver.handle(Event::Unanswered);
    driver.handle(Event::Failed(fault(Code::JournalFailed)));
    driver.now = driver.now + Duration::from_secs(1);
    driver.handle(Event::Tick);
    assert!(driver.handle(Event::Answered(Outcome::Committed)).contains(&Action::CleanUp));
    assert_eq!(driver.machine.decided_for(true), Decided::Overruled);
}

/// What was asked before may have the destination return the guest, while the copy here is ended.
#[test]
fn a_destination_learns_that_the_copy_is_given_up_before_it_is_ended() {
    let answers = [None, Some(Outcome::Pending), Some(Outcome::Gone), Some(Outcome::Returned)];
    let event = |answer: Option<Outcome>| answer.map_or(Event::Unanswered, Event::Answered);
    for (first, second) in answers[..3].iter().flat_map(|first| answers.map(|second| (*first, second))) {
        let mut driver = Driver::at(Committing);
        driver.handle(Event::PathLost(PATH));
        driver.now = driver.now + Duration::from_secs(1);
        assert!(driver.handle(Event::Tick).contains(&Action::Query { gives_up: false }));
        driver.handle(Event::Resolve(false));
        let asks = driver.handle(event(first));
        assert_eq!(asks, [Action::Query { gives_up: true }], "{first:?}");
        let ends = driver.handle(event(second));
        // It has answered that it has the guest: it may return it, or give it up.
        let has_it = second == Some(Outcome::Pending) || first == Some(Outcome::Pending) && second.is_none();
        let wanted = if second == Some(Outcome::Returned) { Action::RollBack } else { Action::CleanUp };
        assert_eq!(ends.contains(&wanted), !has_it, "{first:?}, {second:?}: {ends:?}");
    }
}

/// What a source decides, second by second, whose operator gives the guest up.
fn gives_up(answers: &[Option<Outcome>]) -> (Driver, Vec<Action>) {
    let mut driver = Driver::at(Committing);
    driver.handle(Event::PathLost(PATH));
    let mut actions = driver.handle(Event::Resolve(false));
    for answer in answers {
        assert!(actions.contains(&Action::Query { gives_up: true }), "{actions:?}");
        assert_eq!(driver.machine.decided_for(false), Decided::Waiting);
        actions = driver.handle(answer.map_or(Event::Unanswered, Event::Answered));
        if driver.machine.decided_for(false) != Decided::Waiting || actions.contains(&Action::CleanUp) {
            return (driver, actions);
        }
        driver.now = driver.now + Duration::from_secs(1);
        actions.extend(driver.handle(Event::Tick));
    }
    (driver, actions)
}

/// A destination that has the guest may return it or give it up a moment later, and then this is the only copy.
#[test]
fn the_copy_of_a_guest_that_the_destination_has_is_not_ended_by_an_operator() {
    let pending = Some(Outcome::Pending);
    for last in [Outcome::Aborted, Outcome::Returned] {
        let (driver, actions) = gives_up(&[pending, pending, None, Some(last)]);
        let mut driver = driver;
        assert!(actions.contains(&Action::RollBack), "{last:?}: {actions:?}");
        assert_eq!(driver.machine.decided_for(false), Decided::Waiting, "it is not back yet");
        driver.handle(rolled_back(true));
        assert_eq!(driver.machine.decided_for(false), Decided::Overruled);
    }
    let (driver, actions) = gives_up(&[pending; 15]);
    assert_eq!(driver.machine.decided_for(false), Decided::Void);
    assert!(!actions.contains(&Action::CleanUp), "{actions:?}");
    // It is lost for good.
    let mut silent = [None; 15];
    silent[0] = pending;
    let (_, actions) = gives_up(&silent);
    assert!(actions.contains(&Action::CleanUp), "{actions:?}");
}

/// An agent that is restarted before asks the destination again, and may get the guest back.
#[test]
fn a_decision_to_give_the_guest_up_counts_when_its_process_has_ended() {
    let (mut driver, actions) = gives_up(&[None]);
    assert!(actions.contains(&Action::CleanUp), "{actions:?}");
    assert_eq!(driver.machine.decided_for(false), Decided::Waiting);
    driver.handle(Event::CleanedUp);
    assert_eq!(driver.machine.decided_for(false), Decided::Taken);
}

/// It has ended its own copy before it said so: the one here is the last.
#[test]
fn a_given_up_copy_that_has_not_ended_is_resumed_if_the_destination_gives_the_guest_up() {
    let (mut driver, actions) = gives_up(&[None]);
    assert!(actions.contains(&Action::CleanUp), "{actions:?}");
    driver.handle(Event::PathUp(PATH));
    let actions = driver.receive(Message::Abort(fault(Code::HypervisorFailed)));
    assert!(actions.contains(&Action::RollBack), "{actions:?}");
    driver.now = driver.now + Duration::from_secs(1);
    assert!(!driver.handle(Event::Tick).contains(&Action::CleanUp), "it is ended all the same");
    assert_eq!(driver.machine.decided_for(false), Decided::Waiting, "it is not back yet");
    let actions = driver.handle(rolled_back(true));
    assert_eq!(driver.machine.decided_for(false), Decided::Overruled);
    assert!(!sends(&actions, is_abort), "{actions:?}");
    assert!(driver.machine.is_ended());
}

/// A later agent that asks would see the guest run, and take that for another program's doing.
#[test]
fn that_the_destination_has_given_the_guest_up_is_written_before_it_is_resumed() {
    let words: [fn(&mut Driver) -> Vec<Action>; 3] = [
        |d| d.handle(Event::Answered(Outcome::Aborted)),
        |d| d.handle(Event::Answered(Outcome::Returned)),
        |d| d.receive(Message::Abort(fault(Code::HypervisorFailed))),
    ];
    for (n, word) in words.into_iter().enumerate() {
        let mut driver = Driver::at(Committing);
        let actions = word(&mut driver);
        let place = |wanted: Action| actions.iter().position(|action| *action == wanted);
        let written = place(Action::Journal(SourcePhase::ResumingHere));
        assert!(written.is_some() && written < place(Action::RollBack), "{n}: {actions:?}");
        // A full disk does not keep it from running.
        driver.handle(Event::Failed(fault(Code::JournalFailed)));
        driver.handle(rolled_back(true));
        assert!(driver.machine.is_ended(), "{n}");
    }
}

/// Each is a commit, and the destination's copy is older than what the guest has done here.
#[test]
fn neither_question_nor_message_commits_a_guest_that_ran_here_after_commit() {
    let commits = |actions: &[Action]| {
        actions.iter().any(|action| {
            matches!(action, Action::Transmit(_, Outgoing::Message { message: Message::Commit, .. }))
        })
    };
    for ran_here in [false, true] {
        let mut driver = Driver::at(Committing);
        driver.handle(Event::PathLost(PATH));
        driver.handle(if ran_here { Event::RanHere } else { Event::Unanswered });
        driver.now = driver.now + Duration::from_secs(1);
        let actions = driver.handle(Event::PathUp(PATH + 1));
        assert_eq!(commits(&actions), !ran_here, "{actions:?}");
    }
    let mut driver = Driver::at(Committing);
    driver.handle(Event::Resolve(true));
    assert!(driver.handle(Event::RanHere).contains(&Action::Journal(SourcePhase::ResumingHere)));
}

/// To a destination that has not committed, *Finished* is a commit. A copy there that is older than the guest's disks
/// waits for an operator.
#[test]
fn the_end_of_a_copy_that_ran_here_after_commit_does_not_commit_the_other() {
    let finishes = |actions: &[Action]| {
        actions.iter().any(|action| {
            matches!(action, Action::Transmit(_, Outgoing::Message { message: Message::Finished, .. }))
        })
    };
    for ran_here in [false, true] {
        let mut driver = Driver::at(Committing);
        driver.handle(Event::Resolve(false));
        let mut actions = vec![];
        for _ in 0..2 {
            let answer = if ran_here { Event::RanHere } else { Event::Unanswered };
            actions.extend(driver.handle(answer));
        }
        assert!(actions.contains(&Action::CleanUp), "{ran_here}: {actions:?}");
        let actions = driver.handle(Event::CleanedUp);
        assert_eq!(finishes(&actions), !ran_here, "{actions:?}");
        assert!(actions.contains(&Action::Journal(SourcePhase::Finished)), "{actions:?}");
    }
}

/// It is written already, and only what the destination decides weighs more.
#[test]
fn an_answer_that_decides_nothing_does_not_void_a_decision_that_is_being_written() {
    for answer in [Event::Unanswered, Event::Answered(Outcome::Pending), Event::Answered(Outcome::Gone)] {
        let mut driver = Driver::at(Committing);
        driver.handle(Event::Resolve(true));
        driver.handle(Event::Unanswered);
        driver.handle(answer.clone());
        assert_eq!(driver.machine.decided_for(true), Decided::Waiting, "{answer:?}");
        let rolls_back = driver.handle(Event::Journaled(SourcePhase::ResumingHere));
        assert!(rolls_back.contains(&Action::RollBack), "{answer:?}");
        driver.handle(rolled_back(true));
        assert_eq!(driver.machine.decided_for(true), Decided::Taken, "{answer:?}");
    }
}

#[test]
fn an_operator_is_told_that_the_destination_decided_otherwise() {
    for (resume, event) in [
        (true, Event::Answered(Outcome::Committed)),
        (false, Event::Answered(Outcome::Returned)),
        (false, Event::Answered(Outcome::Aborted)),
    ] {
        let mut driver = Driver::at(Committing);
        driver.handle(Event::Resolve(resume));
        driver.handle(event.clone());
        if !resume {
            assert_eq!(driver.machine.decided_for(false), Decided::Waiting, "{event:?}: it is not back yet");
            driver.handle(rolled_back(true));
        }
        assert_eq!(driver.machine.decided_for(resume), Decided::Overruled, "{event:?}");
    }
    // It was void already, as the destination had the guest.
    let mut driver = Driver::at(Committing);
    driver.handle(Event::Resolve(true));
    driver.handle(Event::Answered(Outcome::Pending));
    driver.handle(Event::Answered(Outcome::Returned));
    assert_eq!(driver.machine.decided_for(true), Decided::Void);
    driver.handle(rolled_back(true));
    assert_eq!(driver.machine.decided_for(true), Decided::Taken);
    // The decision is being written.
    let mut driver = Driver::at(Committing);
    driver.handle(Event::Resolve(true));
    driver.handle(Event::Unanswered);
    driver.handle(Event::Answered(Outcome::Committed));
    assert_eq!(driver.machine.decided_for(true), Decided::Overruled);
}

/// Between two questions too: the last answer may be a second old.
#[test]
fn a_destination_that_answers_decides_and_not_the_operator() {
    for resume in [true, false] {
        let mut driver = Driver::at(Committing);
        let actions = driver.handle(Event::Resolve(resume));
        let asks = Action::Query { gives_up: !resume };
        assert!(actions.contains(&asks) && !actions.contains(&Action::CleanUp), "{actions:?}");
        assert!(driver.handle(Event::Answered(Outcome::Returned)).contains(&Action::RollBack), "{resume}");
    }
    let mut driver = Driver::at(Committing);
    driver.handle(Event::Resolve(true));
    assert_eq!(driver.machine.decided_for(true), Decided::Waiting);
    assert_eq!(driver.handle(Event::Answered(Outcome::Pending)), [], "it holds the guest");
    assert_eq!(driver.machine.decided_for(true), Decided::Void);
    assert!(driver.handle(Event::Answered(Outcome::Committed)).contains(&Action::CleanUp));
    driver.handle(Event::CleanedUp);
    assert_eq!(driver.machine.decided_for(true), Decided::Overruled);
}

/// Two operators: each is told what became of their own decision.
#[test]
fn a_decision_that_waits_is_not_replaced_by_another() {
    for first in [true, false] {
        let mut driver = Driver::at(Committing);
        driver.handle(Event::PathLost(PATH));
        driver.handle(Event::Resolve(first));
        assert!(driver.machine.takes(first) && !driver.machine.takes(!first), "{first}");
        assert_eq!(driver.handle(Event::Resolve(!first)), [], "{first}");
        let journals = Action::Journal(SourcePhase::ResumingHere);
        let wanted = if first { journals } else { Action::CleanUp };
        assert!(driver.handle(Event::Unanswered).contains(&wanted), "{first}");
        assert!(!driver.machine.takes(!first), "{first}");
    }
    let mut driver = Driver::at(Committing);
    driver.handle(Event::Resolve(true));
    driver.handle(Event::Answered(Outcome::Pending));
    driver.handle(Event::Resolve(false));
    assert_eq!(driver.machine.decided_for(true), Decided::Void);
    assert_eq!(driver.machine.decided_for(false), Decided::Waiting);
    driver.now = driver.now + Duration::from_secs(11);
    assert!(driver.handle(Event::Unanswered).contains(&Action::CleanUp));
    assert_eq!(driver.machine.decided_for(false), Decided::Waiting, "it has not ended");
    driver.handle(Event::CleanedUp);
    assert_eq!(driver.machine.decided_for(true), Decided::Void, "the guest is not run here");
    assert_eq!(driver.machine.decided_for(false), Decided::Taken);
}

#[test]
fn a_copy_that_the_operator_gives_up_is_no_guest_that_runs_at_the_destination() {
    let ended = |word: Option<Event>| {
        let mut driver = Driver::at(Committing);
        driver.handle(Event::PathLost(PATH));
        driver.handle(Event::Resolve(false));
        driver.handle(Event::Unanswered);
        let mut actions = word.map(|word| driver.handle(word)).unwrap_or_default();
        actions.extend(driver.handle(Event::CleanedUp));
        let end = actions.into_iter().find_map(|action| match action {
            Action::End(ending) => Some(ending),
            _ => None,
        });
        let end = end.expect("it has ended");
        (end.fault.is_some(), end.guest)
    };
    assert_eq!(ended(None), (true, GuestState::Unknown));
    let comes = Event::Answered(Outcome::Committed);
    assert_eq!(ended(Some(comes)), (false, GuestState::RunsAtDestination));
}

/// The process here does not end in time, and the destination has said nothing.
#[test]
fn a_given_up_copy_whose_clean_up_takes_too_long_is_no_guest_that_runs_at_the_destination() {
    for (word, guest) in [
        (None, GuestState::Unknown),
        (Some(Event::Answered(Outcome::Committed)), GuestState::RunsAtDestination),
    ] {
        let mut driver = Driver::at(Committing);
        driver.handle(Event::PathLost(PATH));
        driver.handle(Event::Resolve(false));
        driver.handle(Event::Unanswered);
        word.map(|word| driver.handle(word));
        driver.now = driver.now + driver.machine.config.step_timeout;
        let actions = driver.handle(Event::Tick);
        let ended = actions.iter().find_map(|action| match action {
            Action::End(ending) => Some((ending.guest, ending.unfinished)),
            _ => None,
        });
        assert_eq!(ended, Some((guest, true)), "{actions:?}");
    }
}

/// Both come before the driver has written anything.
#[test]
fn a_decision_that_is_not_on_disk_is_void_when_the_destination_runs_the_guest() {
    let mut driver = Driver::at(Committing);
    driver.handle(Event::PathLost(PATH));
    driver.handle(Event::Resolve(true));
    driver.machine.handle(driver.now, Event::Unanswered);
    driver.machine.handle(driver.now, Event::PathUp(PATH));
    driver.sequence += 1;
    let message = Message::TakenOver { resume_us: 1, cpu_us: 0 };
    let received = Event::Received { path: PATH, sequence: driver.sequence, message };
    driver.machine.handle(driver.now, received);
    let actions = driver.actions();
    assert!(actions.contains(&Action::CleanUp), "{actions:?}");
    assert!(!actions.contains(&Action::Journal(SourcePhase::ResumingHere)), "{actions:?}");
}

/// A later agent would repeat the commit, and the destination run the guest with older memory than its disks.
/// The destination's journal says that the guest never runs there. What is written here is not waited for.
#[test]
fn a_guest_that_the_destination_returns_is_resumed_whatever_the_disk_does() {
    let mut driver = Driver::at(Journaling);
    driver.handle(Event::CommitWritten);
    let actions = driver.handle(Event::Journaled(SourcePhase::CommitSent));
    assert!(sends(&actions, |message| *message == Message::Commit), "{actions:?}");
    let actions = driver.handle(Event::Answered(Outcome::Aborted));
    assert!(actions.contains(&Action::RollBack), "{actions:?}");
    driver.handle(Event::Failed(fault(Code::JournalFailed)));
    driver.now = driver.now + Duration::from_secs(1);
    let actions = driver.handle(Event::Tick);
    assert!(!actions.contains(&Action::Journal(SourcePhase::ResumingHere)), "{actions:?}");
    assert!(!driver.handle(Event::Journaled(SourcePhase::ResumingHere)).contains(&Action::RollBack));
}

#[test]
fn a_roll_back_after_commit_was_written_is_on_disk_before_the_guest_is_resumed() {
    let resumes = Action::Journal(SourcePhase::ResumingHere);
    let faults: [fn(&mut Driver) -> Vec<Action>; 4] = [
        |d| d.handle(Event::Forgotten),
        |d| d.handle(Event::Failed(fault(Code::GuestDiffers))),
        |d| d.receive(Message::Abort(fault(Code::Cancelled))),
        |d| {
            d.now = d.now + d.machine.config.step_timeout;
            d.handle(Event::Tick)
        },
    ];
    for fails in faults {
        let mut driver = Driver::at(Journaling);
        driver.handle(Event::CommitWritten);
        let actions = fails(&mut driver);
        assert!(actions.contains(&resumes) && !actions.contains(&Action::RollBack), "{actions:?}");
        for _ in 0..3 {
            assert!(!driver.handle(Event::Failed(fault(Code::JournalFailed))).contains(&resumes));
            driver.now = driver.now + Duration::from_secs(1);
            let actions = driver.handle(Event::Tick);
            assert!(actions.contains(&resumes) && !actions.contains(&Action::RollBack), "{actions:?}");
        }
        let late = driver.handle(Event::Journaled(SourcePhase::CommitSent));
        assert!(!late.contains(&Action::RollBack) && !sends(&late, |message| *message == Message::Commit));
        assert!(driver.handle(Event::Journaled(SourcePhase::ResumingHere)).contains(&Action::RollBack));
        assert!(!driver.handle(Event::Journaled(SourcePhase::ResumingHere)).contains(&Action::RollBack));
        let actions = driver.handle(rolled_back(true));
        assert!(actions.contains(&Action::Journal(SourcePhase::RolledBack)), "{actions:?}");
    }
}

/// A channel's thread may have it roll back while the loop waits for the disk.
#[test]
fn a_roll_back_that_began_while_commit_was_written_is_on_disk_first_too() {
    let mut driver = Driver::at(Journaling);
    driver.machine.handle(driver.now, Event::Forgotten);
    let actions = driver.handle(Event::CommitWritten);
    assert!(!actions.contains(&Action::RollBack), "{actions:?}");
    assert!(actions.contains(&Action::Journal(SourcePhase::ResumingHere)), "{actions:?}");
    assert!(driver.handle(Event::Journaled(SourcePhase::ResumingHere)).contains(&Action::RollBack));
}

#[test]
fn commit_is_sent_only_when_the_journal_has_it() {
    let mut driver = Driver::at(Loading);
    let before = driver.receive(Message::Loaded);
    assert!(before.contains(&Action::Journal(SourcePhase::CommitSent)));
    assert!(!sends(&before, |message| *message == Message::Commit), "{before:?}");
    let after = driver.handle(Event::Journaled(SourcePhase::CommitSent));
    assert!(sends(&after, |message| *message == Message::Commit), "{after:?}");
}

#[test]
fn a_commit_not_yet_with_the_journal_is_not_written_if_the_peer_gave_up() {
    let mut driver = Driver::at(Loading);
    for message in [Message::Loaded, Message::Abort(fault(Code::Cancelled))] {
        driver.sequence += 1;
        let received = Event::Received { path: PATH, sequence: driver.sequence, message };
        driver.machine.handle(driver.now, received);
    }
    let actions = driver.actions();
    assert!(actions.contains(&Action::RollBack));
    assert!(!actions.contains(&Action::Journal(SourcePhase::CommitSent)), "{actions:?}");
}

#[test]
fn a_clean_up_that_fails_is_tried_again_and_in_the_end_reported() {
    let mut driver = Driver::at(CleaningUp);
    let mut tries = 0;
    for _ in 0..200 {
        let mut actions = driver.handle(Event::Failed(fault(Code::HypervisorFailed)));
        driver.now = driver.now + Duration::from_secs(1);
        actions.extend(driver.handle(Event::Tick));
        tries += actions.iter().filter(|action| **action == Action::CleanUp).count();
        let end = actions
            .into_iter()
            .find_map(|action| if let Action::End(end) = action { Some(end) } else { None });
        if let Some(end) = end {
            assert_eq!(end.guest, GuestState::RunsAtDestination);
            assert_eq!(
                end.fault.map(|fault| (fault.code, fault.step)),
                Some((Code::TimedOut, Step::CleanUp))
            );
            assert!(tries > 10);
            return;
        }
    }
    panic!("it never ends");
}
