//! Every message and event in every state; what a fault and a cancellation do in each; and that nothing but the
//! destination's word or the operator's leads back once commit was sent.

mod blackout;
mod handed_over;

use super::*;
use crate::Extent;
use crate::control::Outgoing;
use crate::scheduler::Next;
use crate::{GuestState, Outcome, RegionInfo};

const PATH: PathId = 0;
const CHANNEL: ChannelId = 0;
const PAGE: u64 = crate::PAGE_BYTES;

fn ms(n: u64) -> Time {
    Time(n * 1_000_000)
}

/// The states in the order in which a migration passes them, then that of an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Idle,
    Offered,
    Preparing,
    Protecting,
    Copying,
    Scanning,
    Switching,
    Writing,
    LastScan,
    LastCopy,
    Digesting,
    Sealing,
    Loading,
    Journaling,
    Committing,
    CleaningUp,
    Parting,
    Ended,
    RollingBack,
}

use At::*;

const BEFORE_COMMIT: [At; 14] = [
    Idle, Offered, Preparing, Protecting, Copying, Scanning, Switching, Writing, LastScan, LastCopy,
    Digesting, Sealing, Loading, Journaling,
];
const AFTER: [At; 4] = [Committing, CleaningUp, Parting, Ended];

fn all() -> Vec<At> {
    BEFORE_COMMIT.into_iter().chain(AFTER).chain([RollingBack]).collect()
}

fn regions() -> Vec<RegionInfo> {
    vec![RegionInfo { id: 0, name: "ram".into(), size: 64 * PAGE }]
}

struct Driver {
    brain: Source,
    sequence: u64,
    now: Time,
}

impl Driver {
    fn new() -> Driver {
        let config = Config { verify: true, ..Config::new("g", "{}".into(), regions()) };
        let mut brain = Source::new(config);
        brain.handle(ms(0), Event::PathUp(PATH));
        Driver { brain, sequence: 0, now: ms(1) }
    }

    fn tell(&mut self, event: Event) -> Vec<Action> {
        self.brain.handle(self.now, event);
        self.actions()
    }

    fn receive(&mut self, message: Message) -> Vec<Action> {
        self.sequence += 1;
        self.tell(Event::Received { path: PATH, sequence: self.sequence, message })
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.brain.poll_action(self.now)).collect()
    }

    /// Carries all there is; gives what follows.
    fn carry(&mut self) -> Vec<Action> {
        while let Next::Work(work) = self.brain.next_work(self.now, CHANNEL) {
            self.now = self.now + Duration::from_millis(1);
            self.brain.acknowledged(self.now, CHANNEL, work.sequence, &[]);
        }
        self.actions()
    }

    fn prepare(&mut self) {
        self.receive(prepared(vec![]));
        self.tell(Event::Attached);
        self.tell(Event::ChannelUp { channel: CHANNEL, link: 0 });
    }

    fn step(&mut self, reached: At) {
        match reached {
            Idle | RollingBack => {}
            Offered => drop(self.tell(Event::Start)),
            Preparing => drop(self.receive(Message::Admitted { endpoints: vec![] })),
            Protecting => self.prepare(),
            Copying => drop(self.tell(Event::Protected { populated: page(0), paused: Duration::ZERO })),
            Scanning => drop(self.carry()),
            Switching => drop(self.tell(scanned(vec![]))),
            Writing => drop(self.tell(holding(true))),
            // No device state goes through the session: it scans already.
            LastScan if self.brain.config.handed_over => {}
            LastScan => drop(self.tell(Event::DeviceStateDone)),
            LastCopy => drop(self.tell(scanned(page(1)))),
            Digesting => drop(self.carry()),
            Sealing => drop(self.tell(Event::Digested(5))),
            Loading => drop(self.receive(Message::RamSealed)),
            Journaling => drop(self.receive(Message::Loaded)),
            Committing => drop(self.tell(Event::Journaled(SourcePhase::CommitSent))),
            CleaningUp => drop(self.receive(Message::Running { resume_us: 1, cpu_us: 0 })),
            Parting => drop(self.tell(Event::CleanedUp)),
            Ended => drop(self.tell(Event::ControlAcknowledged { path: PATH, through: u64::MAX })),
        }
    }

    /// A source in the state.
    fn at(state: At) -> Driver {
        let mut driver = Driver::new();
        let last = if state == RollingBack { Copying } else { state };
        for reached in all().into_iter().take_while(|reached| *reached <= last) {
            driver.step(reached);
        }
        if state == RollingBack {
            driver.tell(Event::Cancel);
        }
        let name = driver.brain.state.name().replace(' ', "");
        assert_eq!(name, format!("{state:?}").to_lowercase());
        driver
    }

    fn fault(&self) -> Option<&Fault> {
        if let State::RollingBack(roll_back) = &self.brain.state { Some(roll_back.fault()) } else { None }
    }
}

fn prepared(touched: Vec<Extent>) -> Message {
    Message::Prepared { regions: regions(), touched }
}

fn page(nth: u64) -> Vec<Extent> {
    vec![Extent::new(0, nth * PAGE, PAGE)]
}

fn scanned(dirty: Vec<Extent>) -> Event {
    Event::Scanned { dirty, took: Duration::ZERO, paused: Duration::ZERO }
}

fn holding(ran: bool) -> Event {
    Event::Holding { ran, disks: "[]".into() }
}

fn rolled_back(complete: bool) -> Event {
    Event::RolledBack { guest: GuestState::RunsAtSource, complete }
}

/// Whether a withdrawal is asked for, and of a guest that may be held.
fn withdraws(actions: &[Action]) -> Option<bool> {
    actions.iter().find_map(|action| match action {
        Action::Withdraw { held } => Some(*held),
        _ => None,
    })
}

fn fault(code: Code) -> Fault {
    Fault::new(code, Step::Copy, Side::Destination, "a reason")
}

fn says(actions: &[Action], wanted: impl Fn(&Message) -> bool) -> bool {
    actions.iter().any(
        |action| matches!(action, Action::Transmit(_, Outgoing::Message { message, .. }) if wanted(message)),
    )
}

/// Each message and the states in which it is expected.
fn messages() -> Vec<(Message, Vec<At>)> {
    vec![
        (Message::Admitted { endpoints: vec![] }, vec![Offered]),
        (prepared(vec![]), vec![Preparing]),
        (Message::Fenced { channel: 9, applied: 0, refused: vec![] }, all()),
        (Message::RamSealed, vec![Sealing]),
        (Message::Loaded, vec![Loading]),
        (Message::Running { resume_us: 0, cpu_us: 0 }, vec![Committing, CleaningUp, Parting]),
        (Message::Aborted, vec![]),
        (Message::Prepare, vec![]),
        (Message::PrepareStreams { channels: 1 }, vec![]),
        (Message::StreamsPrepared(StreamSettings::default()), vec![]),
        (Message::Stream { stream: 0, note: crate::StreamNote::Stop }, vec![]),
        (Message::RoundMark { round: 0, bytes: 0 }, vec![]),
        (Message::Fence { channel: 0 }, vec![]),
        (Message::RamComplete { digest: None }, vec![]),
        (Message::DeviceState { bytes: vec![] }, vec![]),
        (Message::DeviceStateEnd { total: 0 }, vec![]),
        (Message::Commit, vec![]),
        (Message::Stopped { ran: true, disks: String::new() }, vec![]),
        (Message::Finished, vec![]),
    ]
}

/// Each event of the body and the states in which it is expected.
fn events() -> Vec<(Event, Vec<At>)> {
    let state_of_devices = vec![Switching, Writing];
    vec![
        (Event::Attached, vec![Preparing]),
        (Event::Protected { populated: vec![], paused: Duration::ZERO }, vec![Protecting]),
        (scanned(vec![]), vec![Scanning, LastScan]),
        (Event::GuestStopped, vec![Switching]),
        (holding(true), vec![Switching]),
        (Event::Digested(1), vec![Digesting]),
        (Event::DeviceState(vec![1]), state_of_devices),
        (Event::DeviceStateDone, vec![Writing, Loading]),
        (Event::Journaled(SourcePhase::Started), all()),
        (Event::CleanedUp, vec![CleaningUp]),
        (rolled_back(true), all()),
        (Event::Answered(Outcome::Aborted), all()),
        (Event::Start, all()),
        (Event::Tick, all()),
    ]
}

fn is_abort(message: &Message) -> bool {
    matches!(message, Message::Abort(_))
}

/// What a source does about something unexpected.
fn check_unexpected(driver: &mut Driver, state: At, actions: &[Action], code: Code, what: &str) {
    if BEFORE_COMMIT.contains(&state) {
        assert_eq!(driver.fault().map(|fault| fault.code), Some(code), "{what} in {state:?}");
        assert_eq!(actions.first(), Some(&Action::RollBack), "{what} in {state:?}: {actions:?}");
        let mut actions = actions.to_vec();
        if state >= Sealing {
            assert!(!says(&actions, is_abort), "{what} in {state:?}: before the guest is back");
            actions.extend(driver.tell(rolled_back(true)));
        }
        assert!(says(&actions, is_abort), "{what} in {state:?}");
    } else {
        assert!(!actions.contains(&Action::RollBack), "{what} in {state:?}: {actions:?}");
    }
}

#[test]
fn every_message_in_every_state() {
    for state in all() {
        for (message, expected) in messages() {
            let what = format!("{message:?}");
            let mut driver = Driver::at(state);
            let actions = driver.receive(message);
            if expected.contains(&state) {
                assert!(!actions.contains(&Action::RollBack), "{what} in {state:?}: {actions:?}");
            } else {
                check_unexpected(&mut driver, state, &actions, Code::ProtocolViolation, &what);
            }
        }
    }
}

#[test]
fn every_event_in_every_state() {
    for state in all() {
        for (event, expected) in events() {
            let what = format!("{event:?}");
            let mut driver = Driver::at(state);
            let decides = state == Committing && matches!(event, Event::Answered(_));
            let actions = driver.tell(event);
            if expected.contains(&state) {
                assert_eq!(actions.contains(&Action::RollBack), decides, "{what} in {state:?}: {actions:?}");
            } else {
                check_unexpected(&mut driver, state, &actions, Code::Internal, &what);
            }
        }
    }
}

#[test]
fn a_failure_in_each_state_before_commit_rolls_back_and_names_step_and_side() {
    for state in BEFORE_COMMIT {
        let mut driver = Driver::at(state);
        let wanted = Fault::new(Code::HypervisorFailed, driver.brain.step(), Side::Source, "injected");
        let actions = driver.tell(Event::Failed(wanted.clone()));
        assert_eq!(actions.first(), Some(&Action::RollBack), "{state:?}: {actions:?}");
        let abort = |message: &Message| *message == Message::Abort(wanted.clone());
        assert!(driver.brain.can_resume());
        let actions = if state >= Sealing {
            assert!(!says(&actions, is_abort), "{state:?}: {actions:?}");
            let mut actions = driver.tell(rolled_back(true));
            assert!(says(&actions, abort), "{state:?}: {actions:?}");
            actions.extend(driver.receive(Message::Aborted));
            actions
        } else {
            assert!(says(&actions, abort), "{state:?}: {actions:?}");
            let mut actions = driver.receive(Message::Aborted);
            assert!(!driver.brain.is_ended(), "{state:?}: not before the guest is back");
            actions.extend(driver.tell(rolled_back(true)));
            actions
        };
        let guest = GuestState::RunsAtSource;
        let end = Action::End(Ending { fault: Some(wanted), guest, unfinished: false });
        assert!(actions.contains(&Action::Journal(SourcePhase::RolledBack)), "{state:?}: {actions:?}");
        assert!(actions.contains(&end), "{state:?}: {actions:?}");
    }
}

#[test]
fn a_cancellation_in_each_state() {
    for state in all() {
        let mut driver = Driver::at(state);
        let step = driver.brain.step();
        let actions = driver.tell(Event::Cancel);
        let heeded = BEFORE_COMMIT.contains(&state) && state != Journaling;
        assert_eq!(actions.contains(&Action::RollBack), heeded, "{state:?}: {actions:?}");
        if heeded {
            let fault = driver.fault().expect("rolls back");
            assert_eq!(
                (fault.code, fault.step, fault.side),
                (Code::Cancelled, step, Side::Source),
                "{state:?}"
            );
        }
    }
}

#[test]
fn the_peers_abort_rolls_back_in_each_state_until_the_guest_is_given_up() {
    for state in all() {
        let mut driver = Driver::at(state);
        let actions = driver.receive(Message::Abort(fault(Code::MemoryShort)));
        let heeded = BEFORE_COMMIT.contains(&state) || state == Committing;
        assert_eq!(actions.contains(&Action::RollBack), heeded, "{state:?}: {actions:?}");
        if heeded {
            assert_eq!(driver.fault(), Some(&fault(Code::MemoryShort)), "the peer's own words");
        }
    }
}

#[test]
fn a_destination_that_has_forgotten_the_session_rolls_it_back_before_commit() {
    for state in all() {
        let mut driver = Driver::at(state);
        let actions = driver.tell(Event::Forgotten);
        let heeded = BEFORE_COMMIT.contains(&state);
        assert_eq!(actions.contains(&Action::RollBack), heeded, "{state:?}: {actions:?}");
        if heeded {
            let fault = driver.fault().expect("rolls back");
            assert_eq!((fault.code, fault.side), (Code::AgentRestarted, Side::Destination), "{state:?}");
            let ends = driver.tell(rolled_back(true));
            assert!(withdraws(&ends).is_none(), "{state:?}: there is nothing to withdraw");
        }
    }
}

#[test]
fn a_roll_back_that_nobody_could_be_told_of_is_withdrawn_and_no_other() {
    for state in BEFORE_COMMIT {
        for told in [false, true] {
            let mut driver = Driver::at(state);
            driver.tell(Event::Failed(fault(Code::HypervisorFailed)));
            if told {
                driver.receive(Message::Aborted);
            } else {
                driver.tell(Event::PathLost(PATH));
            }
            let actions = driver.tell(rolled_back(true));
            assert!(actions.iter().any(|action| matches!(action, Action::End(_))), "{state:?}: {actions:?}");
            // Once RAM is sealed the guest may become complete over there.
            let held = state >= Sealing;
            assert_eq!(withdraws(&actions), (!told).then_some(held), "{state:?}: {actions:?}");
        }
    }
}

/// Everything that may go wrong at once, and an hour without an answer.
fn torment(driver: &mut Driver) -> Vec<Action> {
    let mut actions = driver.tell(Event::Cancel);
    actions.extend(driver.tell(Event::Forgotten));
    actions.extend(driver.tell(Event::Failed(fault(Code::HypervisorFailed))));
    for (message, _) in messages() {
        if !matches!(message, Message::Running { .. }) {
            actions.extend(driver.receive(message));
        }
    }
    actions.extend(driver.tell(Event::Answered(Outcome::Pending)));
    driver.brain.channel_lost(driver.now, CHANNEL);
    actions.extend(driver.tell(Event::PathLost(PATH)));
    for _ in 0..3600 {
        driver.now = driver.now + Duration::from_secs(1);
        let ticked = driver.tell(Event::Tick);
        if ticked.contains(&Action::Query) {
            driver.tell(Event::Unanswered);
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
    assert!(actions.iter().filter(|action| **action == Action::Query).count() > 3000, "it keeps asking");
    assert!(driver.brain.is_undecided() && !driver.brain.can_resume());
}

#[test]
fn after_commit_only_the_destination_or_the_operator_decides() {
    let back: [fn(&mut Driver) -> Vec<Action>; 4] = [
        |d| d.tell(Event::Answered(Outcome::Aborted)),
        |d| d.tell(Event::Answered(Outcome::Returned)),
        |d| d.receive(Message::Abort(fault(Code::Cancelled))),
        |d| {
            d.tell(Event::Resolve(true));
            d.tell(Event::Journaled(SourcePhase::TakingBack))
        },
    ];
    for word in back {
        assert!(word(&mut Driver::at(Committing)).contains(&Action::RollBack));
    }
    let away: [fn(&mut Driver) -> Vec<Action>; 3] = [
        |d| d.tell(Event::Answered(Outcome::Committed)),
        |d| d.receive(Message::Running { resume_us: 1, cpu_us: 0 }),
        |d| d.tell(Event::Resolve(false)),
    ];
    for word in away {
        assert!(word(&mut Driver::at(Committing)).contains(&Action::CleanUp));
    }
}

#[test]
fn a_destination_that_may_have_the_guest_complete_is_not_told_if_the_guest_does_not_come_back_here() {
    let lost = (GuestState::Gone, true);
    let not_yet = (GuestState::PausedAtSource, false);
    for (state, (guest, complete)) in
        [Sealing, Loading, Journaling].into_iter().flat_map(|state| [(state, lost), (state, not_yet)])
    {
        let mut driver = Driver::at(state);
        driver.tell(Event::Failed(fault(Code::JournalFailed)));
        let actions = driver.tell(Event::RolledBack { guest, complete });
        assert!(!says(&actions, is_abort), "{state:?}, {guest:?}: {actions:?}");
        assert!(withdraws(&actions).is_none(), "{state:?}, {guest:?}: {actions:?}");
        assert!(driver.brain.is_ended(), "{state:?}, {guest:?}: {actions:?}");
    }
}

#[test]
fn a_destination_that_gives_up_by_itself_meanwhile_is_answered() {
    let mut driver = Driver::at(Journaling);
    driver.tell(Event::Failed(fault(Code::JournalFailed)));
    let actions = driver.receive(Message::Abort(fault(Code::Cancelled)));
    assert!(says(&actions, |message| *message == Message::Aborted), "{actions:?}");
    let actions = driver.tell(rolled_back(true));
    assert!(!says(&actions, is_abort), "{actions:?}");
    assert_eq!(driver.fault(), None, "it has ended");
    assert!(actions.iter().any(|action| matches!(action, Action::End(ending)
        if ending.fault.as_ref().is_some_and(|fault| fault.code == Code::JournalFailed))));
}

/// A question is a commit, and so is the message that a link which comes back would carry.
#[test]
fn an_operators_word_waits_for_the_question_under_way_and_takes_the_commit_back() {
    let undecided = || {
        let mut driver = Driver::at(Committing);
        driver.tell(Event::PathLost(PATH));
        driver.now = driver.now + Duration::from_secs(1);
        assert!(driver.tell(Event::Tick).contains(&Action::Query));
        assert!(!driver.tell(Event::Resolve(true)).contains(&Action::Journal(SourcePhase::TakingBack)));
        driver
    };
    let mut driver = undecided();
    assert!(driver.tell(Event::Answered(Outcome::Committed)).contains(&Action::CleanUp), "it knows better");
    let mut driver = undecided();
    let actions = driver.tell(Event::Answered(Outcome::Pending));
    assert!(
        !actions.contains(&Action::Journal(SourcePhase::TakingBack)),
        "it has committed now: {actions:?}"
    );
    let mut driver = undecided();
    let actions = driver.tell(Event::Unanswered);
    assert!(actions.contains(&Action::Journal(SourcePhase::TakingBack)), "{actions:?}");
    let actions = driver.tell(Event::PathUp(PATH));
    assert!(!says(&actions, |message| *message == Message::Commit), "{actions:?}");
    driver.tell(Event::Journaled(SourcePhase::TakingBack));
    let actions = driver.tell(rolled_back(true));
    assert!(says(&actions, is_abort), "{actions:?}");
}

#[test]
fn commit_is_said_only_when_the_journal_has_it() {
    let mut driver = Driver::at(Loading);
    let before = driver.receive(Message::Loaded);
    assert!(before.contains(&Action::Journal(SourcePhase::CommitSent)));
    assert!(!says(&before, |message| *message == Message::Commit), "{before:?}");
    let after = driver.tell(Event::Journaled(SourcePhase::CommitSent));
    assert!(says(&after, |message| *message == Message::Commit), "{after:?}");
}

#[test]
fn a_commit_not_yet_with_the_journal_is_not_written_if_the_peer_gave_up() {
    let mut driver = Driver::at(Loading);
    for message in [Message::Loaded, Message::Abort(fault(Code::Cancelled))] {
        driver.sequence += 1;
        let received = Event::Received { path: PATH, sequence: driver.sequence, message };
        driver.brain.handle(driver.now, received);
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
        let mut actions = driver.tell(Event::Failed(fault(Code::HypervisorFailed)));
        driver.now = driver.now + Duration::from_secs(1);
        actions.extend(driver.tell(Event::Tick));
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

#[test]
fn what_the_destination_refused_is_sent_again_before_ram_is_sealed() {
    let mut driver = Driver::at(LastCopy);
    let Next::Work(work) = driver.brain.next_work(driver.now, CHANNEL) else { panic!("no work") };
    driver.brain.acknowledged(driver.now, CHANNEL, work.sequence, &[work.sequence]);
    assert!(!driver.actions().contains(&Action::Digest));
    let Next::Work(again) = driver.brain.next_work(driver.now, CHANNEL) else { panic!("not sent again") };
    assert_eq!(again.runs, work.runs);
    driver.brain.acknowledged(driver.now, CHANNEL, again.sequence, &[]);
    assert!(driver.actions().contains(&Action::Digest));
}

#[test]
fn ram_is_not_sealed_while_a_lost_channel_is_not_fenced() {
    let mut driver = Driver::at(LastCopy);
    let Next::Work(work) = driver.brain.next_work(driver.now, CHANNEL) else { panic!("no work") };
    driver.brain.channel_lost(driver.now, CHANNEL);
    driver.tell(Event::ChannelUp { channel: 1, link: 0 });
    assert_eq!(driver.brain.next_work(driver.now, 1), Next::Wait, "it is in flight on the lost channel");
    driver.receive(Message::Fenced { channel: CHANNEL, applied: 0, refused: vec![] });
    let Next::Work(again) = driver.brain.next_work(driver.now, 1) else { panic!("not sent again") };
    assert_eq!(again.runs, work.runs);
}

/// Carries the one write that there is; the destination refuses it.
fn refuse(driver: &mut Driver) -> Vec<crate::Run> {
    let Next::Work(work) = driver.brain.next_work(driver.now, CHANNEL) else { panic!("no work") };
    driver.brain.acknowledged(driver.now, CHANNEL, work.sequence, &[work.sequence]);
    work.runs
}

#[test]
fn what_was_refused_in_a_round_goes_into_the_next() {
    let mut driver = Driver::at(Copying);
    let refused = refuse(&mut driver);
    driver.actions();
    driver.tell(scanned(vec![]));
    let Next::Work(again) = driver.brain.next_work(driver.now, CHANNEL) else { panic!("not sent again") };
    assert_eq!(again.runs, refused);
}

#[test]
fn what_was_refused_in_the_last_round_goes_into_the_last_copy() {
    let mut driver = Driver::at(Scanning);
    driver.tell(scanned(page(2)));
    let refused = refuse(&mut driver);
    driver.tell(holding(true));
    driver.tell(Event::DeviceStateDone);
    driver.tell(scanned(vec![]));
    let Next::Work(again) = driver.brain.next_work(driver.now, CHANNEL) else { panic!("not sent again") };
    assert_eq!(again.runs, refused);
}

#[test]
fn the_last_copy_waits_until_nothing_is_in_flight() {
    let mut driver = Driver::at(Scanning);
    driver.tell(scanned(page(2)));
    let Next::Work(last_round) = driver.brain.next_work(driver.now, CHANNEL) else { panic!("no work") };
    driver.tell(holding(true));
    driver.tell(Event::DeviceStateDone);
    driver.tell(scanned(page(2)));
    assert_eq!(driver.brain.next_work(driver.now, CHANNEL), Next::Wait, "the page is in flight");
    driver.brain.acknowledged(driver.now, CHANNEL, last_round.sequence, &[]);
    assert!(matches!(driver.brain.next_work(driver.now, CHANNEL), Next::Work(_)));
}

/// A body that polls only when it is told to must be told: otherwise the blackout waits for the next tick.
#[test]
fn what_a_channel_sets_off_wants_attention() {
    let mut source = Source::new(Config::new("guest", String::new(), regions()));
    assert!(!source.wants_attention());
    source.handle(Time::ZERO, Event::PathUp(0));
    while source.poll_action(Time::ZERO).is_some() {}
    assert!(!source.wants_attention());
    source.handle(Time::ZERO, Event::ChannelUp { channel: 3, link: 0 });
    source.channel_lost(Time::ZERO, 3);
    assert!(source.wants_attention(), "a fence has to be asked for");
}

/// A source that copies while the waiting guest still starts.
fn copying_early() -> Driver {
    let mut driver = Driver::at(Preparing);
    driver.tell(Event::Attached);
    driver.tell(Event::ChannelUp { channel: CHANNEL, link: 0 });
    driver.tell(Event::Protected { populated: page(0), paused: Duration::ZERO });
    driver
}

#[test]
fn the_first_pass_does_not_wait_for_the_waiting_guest_but_rounds_do() {
    let mut driver = copying_early();
    assert!(driver.carry().iter().all(|action| !matches!(action, Action::Scan { .. })));
    assert!(driver.brain.timeout(driver.now).is_some_and(|at| at > driver.now), "the body would spin");
    assert!(driver.receive(prepared(vec![])).contains(&Action::Scan { last: false, also: vec![] }));
}

#[test]
fn a_waiting_guest_that_stands_in_the_middle_of_the_first_pass_interrupts_nothing() {
    let mut driver = copying_early();
    assert!(!driver.receive(prepared(vec![])).contains(&Action::Scan { last: false, also: vec![] }));
    assert!(driver.carry().contains(&Action::Scan { last: false, also: vec![] }));
}

#[test]
fn what_was_touched_while_the_waiting_guest_started_is_copied_again() {
    let mut driver = copying_early();
    driver.carry();
    let touched = [page(0), page(7)].concat();
    let scan = driver.receive(prepared(touched.clone()));
    // What of them is given back meanwhile is a hole that only the last scan finds, if it knows of them.
    assert!(scan.contains(&Action::Scan { last: false, also: touched }), "{scan:?}");
    driver.tell(scanned(page(3)));
    let Next::Work(again) = driver.brain.next_work(driver.now, CHANNEL) else { panic!("not copied again") };
    let offsets: Vec<u64> = again.runs.iter().map(|run| run.offset / PAGE).collect();
    assert_eq!(offsets, [0, 3, 7]);
}

#[test]
fn touched_memory_that_the_guest_does_not_have_is_refused() {
    for wrong in [Extent::new(0, 63 * PAGE, 2 * PAGE), Extent::new(1, 0, PAGE), Extent::new(0, 8, PAGE)] {
        let mut driver = copying_early();
        driver.receive(prepared(vec![wrong]));
        assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::ProtocolViolation), "{wrong:?}");
    }
}

#[test]
fn a_waiting_guest_that_never_stands_ends_the_migration() {
    let mut driver = copying_early();
    driver.now = driver.now + driver.brain.config.step_timeout;
    driver.tell(Event::Heard(PATH));
    let fault = driver.fault().map(|fault| (fault.code, fault.step, fault.side));
    assert_eq!(fault, Some((Code::TimedOut, Step::Prepare, Side::Destination)));
}

#[test]
fn a_second_word_that_the_guest_stands_is_refused() {
    let mut driver = copying_early();
    driver.receive(prepared(vec![]));
    driver.receive(prepared(vec![]));
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::ProtocolViolation));
}

#[test]
fn the_hypervisors_stream_waits_for_the_destination_only_while_the_guest_runs() {
    let mut driver = Driver::at(Switching);
    while !driver.brain.holds_stream_back() {
        driver.tell(Event::DeviceState(vec![1]));
        assert!(driver.brain.control.unacknowledged() < 100, "it is never held back");
    }
    let through = driver.brain.control.unacknowledged() as u64 + driver.sequence;
    driver.tell(Event::ControlAcknowledged { path: PATH, through: through + 100 });
    assert!(!driver.brain.holds_stream_back(), "the destination has it");
    for _ in 0..100 {
        driver.tell(Event::DeviceState(vec![1]));
    }
    assert!(driver.brain.holds_stream_back());
    driver.tell(holding(true));
    assert!(!driver.brain.holds_stream_back(), "the guest stands: QEMU must not wait for anybody");
}
