//! Every message and event in every state; what a fault, a cancellation and a restart do in each.

mod decisions;
mod handover;
mod prepared;

use super::*;
use crate::control::Outgoing;
use crate::source_copy::HEARD_WITHIN;
use crate::{LastLook, RegionInfo, StreamSettings};

const PATH: PathId = 0;

fn ms(n: u64) -> Time {
    Time(n * 1_000_000)
}

fn commits(actions: &[Action]) -> bool {
    actions.contains(&Action::Journal(DestinationPhase::Committed))
}

fn aborts(actions: &[Action]) -> bool {
    actions.contains(&Action::Journal(DestinationPhase::Aborted)) && actions.contains(&Action::Discard)
}

/// The states in the order in which a migration passes them, then those of an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum At {
    Waiting,
    Admitting,
    Admitted,
    Preparing,
    Receiving,
    Sealing,
    Loading,
    JournalingLoaded,
    Loaded,
    Journaling,
    Resuming,
    Running,
    Discarding,
    Closing,
    Ended,
}

use At::*;

const BEFORE_COMMIT: [At; 10] = [
    Waiting,
    Admitting,
    Admitted,
    Preparing,
    Receiving,
    Sealing,
    Loading,
    JournalingLoaded,
    Loaded,
    Journaling,
];
const ALL: [At; 15] = [
    Waiting,
    Admitting,
    Admitted,
    Preparing,
    Receiving,
    Sealing,
    Loading,
    JournalingLoaded,
    Loaded,
    Journaling,
    Resuming,
    Running,
    Discarding,
    Closing,
    Ended,
];

/// What brings a destination from one state to the next.
type Onward = fn(&mut Driver) -> Vec<Action>;

struct Driver {
    machine: Destination,
    sequence: u64,
    now: Time,
}

impl Driver {
    fn new() -> Driver {
        let mut machine = Destination::new(ms(0), Config::default());
        machine.handle(ms(0), Event::PathUp(PATH));
        Driver { machine, sequence: 0, now: ms(1) }
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.machine.handle(self.now, event);
        self.actions()
    }

    fn receive(&mut self, message: Message) -> Vec<Action> {
        self.sequence += 1;
        self.handle(Event::Received { path: PATH, sequence: self.sequence, message })
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.machine.poll_action(self.now)).collect()
    }

    /// A destination in the state.
    fn at(state: At) -> Driver {
        let mut driver = Driver::new();
        let path: [(At, Onward); 11] = [
            (Admitting, |d| d.receive(offer())),
            (Admitted, |d| d.handle(Event::Admitted(vec![]))),
            (Preparing, |d| d.receive(Message::Prepare)),
            (Receiving, |d| d.handle(Event::Prepared { regions: vec![], touched: vec![] })),
            (Sealing, |d| {
                d.receive(stopped());
                d.handle(Event::DisksChecked);
                d.receive(Message::RamComplete { digest: None })
            }),
            (Loading, |d| d.handle(Event::Sealed(None))),
            (JournalingLoaded, |d| d.load()),
            (Loaded, |d| d.handle(Event::Journaled(DestinationPhase::Loaded))),
            (Journaling, |d| d.receive(Message::Commit)),
            (Resuming, |d| d.handle(Event::Journaled(DestinationPhase::Committed))),
            (Running, |d| d.handle(Event::GuestRuns { took: Duration::ZERO, cpu: Duration::ZERO })),
        ];
        if matches!(state, Discarding | Closing | Ended) {
            driver.handle(Event::Cancel);
            if state != Discarding {
                driver.handle(Event::Discarded);
            }
            if state == Ended {
                driver.receive(Message::Aborted);
            }
        } else if state != Waiting {
            for (reached, step) in path {
                step(&mut driver);
                if reached == state {
                    break;
                }
            }
        }
        assert_eq!(driver.machine.state.name().replace(' ', ""), format!("{state:?}").to_lowercase());
        driver
    }

    /// An operator lets a loaded guest run, and its source is not heard meanwhile.
    fn let_run(&mut self) -> Vec<Action> {
        assert!(!commits(&self.handle(Event::Resolve(true))), "its source is heard first");
        self.now = self.now + HEARD_WITHIN;
        self.handle(Event::Tick)
    }

    /// All device state comes and is loaded.
    fn load(&mut self) -> Vec<Action> {
        self.receive(Message::DeviceStateEnd { total: 0 });
        self.handle(Event::DeviceStateLoaded)
    }

    fn fault(&self) -> Option<&Fault> {
        match &self.machine.state {
            State::Discarding { fault } | State::Closing { fault, .. } => Some(fault),
            _ => None,
        }
    }
}

fn offer() -> Message {
    offer_in(Ok(Mode::Direct { regions: regions() }))
}

fn regions() -> Vec<RegionInfo> {
    vec![RegionInfo { id: 0, name: "ram".into(), size: 1 << 20 }]
}

fn offer_in(mode: Result<Mode, UnknownMode>) -> Message {
    Message::Offer { guest: "g".into(), description: "{}".into(), mode }
}

fn stopped() -> Message {
    Message::Stopped { was_running: true, disks: "[]".into() }
}

fn runs() -> Event {
    Event::GuestRuns { took: Duration::ZERO, cpu: Duration::ZERO }
}

fn sends(actions: &[Action], wanted: impl Fn(&Message) -> bool) -> bool {
    actions.iter().any(
        |action| matches!(action, Action::Transmit(_, Outgoing::Message { message, .. }) if wanted(message)),
    )
}

fn fault(code: Code) -> Fault {
    Fault::new(code, Step::Copy, Side::Source, "a reason")
}

/// Each message and the states in which it is expected.
fn messages() -> Vec<(Message, Vec<At>)> {
    vec![
        (offer(), vec![Waiting]),
        (Message::Prepare, vec![Admitted]),
        (Message::RoundMark { round: 0, bytes: 0 }, ALL.to_vec()),
        (Message::Fence { channel: 3 }, ALL.to_vec()),
        (Message::RamComplete { digest: None }, vec![Receiving]),
        (Message::DeviceState { bytes: vec![1] }, vec![Receiving, Sealing, Loading]),
        (Message::DeviceStateEnd { total: 0 }, vec![Receiving, Sealing, Loading]),
        (stopped(), vec![Receiving]),
        // Later: it was said on a connection of its own before.
        (Message::Commit, vec![Loaded, Journaling, Resuming, Running]),
        // Before: the operator of the source has ended its copy.
        (Message::Finished, vec![Loaded, Journaling, Resuming, Running]),
        (Message::Aborted, vec![]),
        (Message::Admitted { endpoints: vec![] }, vec![]),
        (Message::Prepared { regions: vec![], touched: vec![] }, vec![]),
        (Message::Fenced { channel: 3, applied: 0, damaged: vec![] }, vec![]),
        (Message::RamSealed, vec![]),
        (Message::StreamsPrepared(StreamSettings::default()), vec![]),
        (Message::Stream { stream: 0, note: crate::StreamNote::Stop }, vec![]),
        (Message::Loaded, vec![]),
        (Message::TakenOver { resume_us: 0, cpu_us: 0 }, vec![]),
        (Message::LastLook(LastLook::Ended), vec![]),
    ]
}

/// Each event of the driver and the states in which it is expected.
fn events() -> Vec<(Event, Vec<At>)> {
    vec![
        (Event::Admitted(vec![]), vec![Admitting]),
        (Event::Prepared { regions: vec![], touched: vec![] }, vec![Preparing]),
        (Event::StreamsPrepared(StreamSettings::default()), vec![]),
        (Event::Sealed(None), vec![Sealing]),
        (Event::DeviceStateLoaded, vec![]), // Only once the stream has ended.
        // Once the source has said which they are.
        (
            Event::DisksChecked,
            vec![Sealing, Loading, JournalingLoaded, Loaded, Journaling, Resuming, Running],
        ),
        (runs(), vec![Resuming]),
        (Event::Looked(LastLook::NothingWrong), vec![Running]),
        (Event::Discarded, vec![Discarding]),
        (Event::HypervisorRestored, vec![]),
        (Event::Journaled(DestinationPhase::Started), ALL.to_vec()),
        (Event::Journaled(DestinationPhase::Loaded), ALL.to_vec()),
        (Event::Journaled(DestinationPhase::Committed), ALL.to_vec()),
        (Event::Journaled(DestinationPhase::Running), ALL.to_vec()),
        (Event::Fenced { channel: 3, applied: 0, damaged: vec![] }, ALL.to_vec()),
        (Event::Tick, ALL.to_vec()),
    ]
}

/// What a destination does about something unexpected.
fn check_unexpected(mut driver: Driver, state: At, actions: &[Action], code: Code, what: &str) {
    match state {
        Discarding | Closing | Ended | Resuming | Running => {
            assert!(driver.fault().is_none_or(|fault| fault.code == Code::Cancelled), "{what} in {state:?}");
            assert!(!actions.contains(&Action::Discard), "{what} in {state:?}: {actions:?}");
        }
        // The commit is with the driver and may be on disk.
        Journaling => assert_eq!(driver.machine.state, State::Journaling { retry_at: None }, "{what}"),
        _ => {
            assert_eq!(driver.fault().map(|fault| fault.code), Some(code), "{what} in {state:?}");
            let expected = [Action::Journal(DestinationPhase::Aborted), Action::Discard];
            assert!(actions.starts_with(&expected), "{what} in {state:?}: {actions:?}");
            driver.handle(Event::Discarded);
            assert_eq!(driver.machine.outcome(), Outcome::Aborted);
        }
    }
}

#[test]
fn every_message_in_every_state() {
    for state in ALL {
        for (message, expected) in messages() {
            let what = format!("{message:?}");
            let mut driver = Driver::at(state);
            let actions = driver.receive(message);
            if expected.contains(&state) {
                let before = Driver::at(state);
                assert_eq!(driver.fault(), before.fault(), "{what} in {state:?}");
                assert!(!actions.contains(&Action::Discard), "{what} in {state:?}");
            } else {
                check_unexpected(driver, state, &actions, Code::ProtocolViolation, &what);
            }
        }
    }
}

#[test]
fn every_event_in_every_state() {
    for state in ALL {
        for (event, expected) in events() {
            let what = format!("{event:?}");
            let mut driver = Driver::at(state);
            let actions = driver.handle(event);
            if expected.contains(&state) {
                assert!(!actions.contains(&Action::Discard), "{what} in {state:?}: {actions:?}");
            } else {
                check_unexpected(driver, state, &actions, Code::Internal, &what);
            }
        }
    }
}

#[test]
fn a_failure_before_commit_is_reported_after_the_guest_was_discarded() {
    for state in BEFORE_COMMIT {
        let mut driver = Driver::at(state);
        if state == Journaling {
            driver.handle(Event::CommitAgain { copy: true });
        }
        let actions = driver.handle(Event::Failed(fault(Code::JournalFailed)));
        let expected = [Action::Journal(DestinationPhase::Aborted), Action::Discard];
        assert!(actions.starts_with(&expected), "{state:?}: {actions:?}");
        assert_eq!(driver.machine.outcome(), Outcome::Pending, "{state:?}: not before the guest has ended");
        let actions = driver.handle(Event::Discarded);
        let abort = |action: &Action| {
            matches!(action, Action::Transmit(_, Outgoing::Message { message: Message::Abort(f), .. })
                if *f == fault(Code::JournalFailed))
        };
        assert!(actions.iter().any(abort), "{state:?}: {actions:?}");
        assert_eq!(driver.machine.outcome(), Outcome::Aborted, "{state:?}");
    }
}

#[test]
fn a_cancellation_names_the_step_and_the_side() {
    let steps = [
        (Waiting, Step::Admit),
        (Preparing, Step::Prepare),
        (Receiving, Step::Copy),
        (Sealing, Step::Blackout),
        (Loading, Step::Blackout),
    ];
    for (state, step) in steps {
        let mut driver = Driver::at(state);
        driver.handle(Event::Cancel);
        let fault = driver.fault().expect("gives up");
        assert_eq!(
            (fault.code, fault.step, fault.side),
            (Code::Cancelled, step, Side::Destination),
            "{state:?}"
        );
    }
}

#[test]
fn once_committed_only_what_its_hypervisor_reports_ends_the_guest() {
    for (state, outcome) in [(Resuming, Outcome::Pending), (Running, Outcome::Committed)] {
        let mut driver = Driver::at(state);
        let mut actions = driver.handle(Event::Cancel);
        actions.extend(driver.handle(Event::RolledBackAtSource));
        actions.extend(driver.handle(Event::Resolve(false)));
        actions.extend(driver.receive(Message::Abort(fault(Code::Cancelled))));
        actions.extend(driver.handle(Event::Failed(fault(Code::HypervisorFailed))));
        driver.handle(Event::PathLost(PATH));
        actions.extend(driver.handle(Event::Resolve(false)));
        driver.now = ms(3_600_000);
        actions.extend(driver.handle(Event::Tick));
        assert!(!actions.contains(&Action::Discard), "{state:?}: {actions:?}");
        assert_eq!(driver.machine.outcome(), outcome, "{state:?}");
    }
}

#[test]
fn without_the_sources_last_message_the_session_is_closed_all_the_same() {
    let mut driver = Driver::at(Running);
    driver.now = driver.now + Config::default().finish_timeout;
    let actions = driver.handle(Event::Tick);
    assert!(actions.contains(&Action::Journal(DestinationPhase::Finished)), "{actions:?}");
    assert_eq!(driver.machine.outcome(), Outcome::Committed);
}

#[test]
fn a_commit_not_yet_in_the_journal_can_be_revoked_and_is_never_written() {
    let mut driver = Driver::at(Loaded);
    driver.sequence += 1;
    let commit = Event::Received { path: PATH, sequence: driver.sequence, message: Message::Commit };
    driver.machine.handle(driver.now, commit);
    let actions = driver.handle(Event::RolledBackAtSource);
    assert!(!actions.contains(&Action::Journal(DestinationPhase::Committed)), "{actions:?}");
    assert!(actions.contains(&Action::Journal(DestinationPhase::Aborted)), "{actions:?}");
}

/// The notice comes once, while the disk or QEMU is slow: the source lets its own copy run.
#[test]
fn a_roll_back_notice_is_remembered_while_commit_is_written_or_the_guest_is_tried() {
    let returned = Action::Journal(DestinationPhase::Returned);
    let mut driver = Driver::at(Journaling);
    driver.handle(Event::RolledBackAtSource);
    let actions = driver.handle(Event::Journaled(DestinationPhase::Committed));
    assert!(actions.contains(&returned) && actions.contains(&Action::Discard), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::Run { .. })), "{actions:?}");

    let mut driver = Driver::at(Resuming);
    driver.handle(Event::PathLost(PATH));
    driver.now = driver.now + Duration::from_secs(3600);
    driver.handle(Event::RolledBackAtSource);
    let actions = driver.handle(Event::CannotRun(fault(Code::HypervisorFailed)));
    assert!(actions.contains(&returned), "{actions:?}");
}

/// It may have run: recovery has to know that its source lets its own copy run.
#[test]
fn a_guest_that_is_left_to_recovery_is_left_with_the_roll_back_notice() {
    for has_notice in [false, true] {
        let mut driver = Driver::at(Resuming);
        if has_notice {
            driver.handle(Event::RolledBackAtSource);
        }
        let actions = driver.handle(Event::MayHaveRun(fault(Code::HypervisorFailed)));
        let left = Action::LeaveToRecovery { fault: fault(Code::HypervisorFailed), rolled_back: has_notice };
        assert!(actions.contains(&left), "{actions:?}");
    }
}

/// The driver has not begun to run it.
#[test]
fn a_roll_back_notice_right_behind_the_write_of_commit_keeps_the_guest_from_running() {
    let mut driver = Driver::at(Journaling);
    driver.machine.handle(driver.now, Event::Journaled(DestinationPhase::Committed));
    let actions = driver.handle(Event::RolledBackAtSource);
    assert!(actions.contains(&Action::Journal(DestinationPhase::Returned)), "{actions:?}");
    assert!(!actions.iter().any(|action| matches!(action, Action::Run { .. })), "{actions:?}");
}

/// An operator wanted it to run here.
#[test]
fn a_decision_to_run_a_guest_whose_source_rolls_back_is_not_followed() {
    for notice_first in [true, false] {
        let mut driver = Driver::at(Loaded);
        driver.handle(Event::PathLost(PATH));
        driver.let_run();
        let events = [Event::RolledBackAtSource, Event::Journaled(DestinationPhase::Committed)];
        let order = if notice_first { [0, 1] } else { [1, 0] };
        for at in order {
            driver.machine.handle(driver.now, events[at].clone());
        }
        assert_eq!(driver.machine.decided_for(true), Decided::Overruled, "{notice_first}");
        let actions = driver.handle(Event::Tick);
        assert!(actions.contains(&Action::Journal(DestinationPhase::Returned)), "{actions:?}");
    }
}

#[test]
fn an_orphan_gives_up_unless_the_source_may_have_committed() {
    for state in ALL {
        let mut driver = Driver::at(state);
        driver.handle(Event::PathLost(PATH));
        driver.now = driver.now + Config::default().orphan_timeout;
        let actions = driver.handle(Event::Tick);
        let gives_up =
            BEFORE_COMMIT.contains(&state) && !matches!(state, JournalingLoaded | Loaded | Journaling);
        assert_eq!(actions.contains(&Action::Discard), gives_up, "{state:?}: {actions:?}");
    }
}

#[test]
fn a_roll_back_notice_is_heeded_unless_it_is_committed() {
    for state in ALL {
        let mut driver = Driver::at(state);
        let actions = driver.handle(Event::RolledBackAtSource);
        let gives_up = BEFORE_COMMIT.contains(&state) && state != Journaling;
        assert_eq!(actions.contains(&Action::Discard), gives_up, "{state:?}: {actions:?}");
        if gives_up {
            let fault = driver.fault().expect("gives up");
            assert_eq!((fault.code, fault.side), (Code::Cancelled, Side::Source), "{state:?}");
            driver.handle(Event::Discarded);
            assert_eq!(driver.machine.outcome(), Outcome::Aborted);
        }
    }
}

#[test]
fn the_guests_name_is_known_when_the_journal_is_first_written() {
    let mut driver = Driver::at(Waiting);
    assert_eq!(driver.machine.guest(), "");
    let actions = driver.receive(offer());
    let first = actions.iter().find(|action| !matches!(action, Action::Transmit(..)));
    assert_eq!(first, Some(&Action::Journal(DestinationPhase::Started)), "before anything is made for it");
    assert_eq!(driver.machine.guest(), "g");
}

#[test]
fn digests_that_differ_end_it() {
    let mut driver = Driver::at(Receiving);
    driver.receive(Message::RamComplete { digest: Some(1) });
    driver.handle(Event::Sealed(Some(2)));
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::VerifyMismatch));
}

#[test]
fn device_state_that_comes_early_is_held_until_ram_is_sealed() {
    let mut driver = Driver::at(Receiving);
    let early = driver.receive(Message::DeviceState { bytes: vec![7] });
    assert!(!early.contains(&Action::LoadDeviceState(vec![7])), "{early:?}");
    driver.receive(Message::RamComplete { digest: None });
    assert!(driver.handle(Event::Sealed(None)).contains(&Action::LoadDeviceState(vec![7])));
}

#[test]
fn the_guest_runs_only_when_the_journal_has_it() {
    let mut driver = Driver::at(Loaded);
    let before = driver.receive(Message::Commit);
    assert!(before.contains(&Action::Journal(DestinationPhase::Committed)), "{before:?}");
    assert!(!before.contains(&Action::Run { was_running: true }), "{before:?}");
    let after = driver.handle(Event::Journaled(DestinationPhase::Committed));
    assert!(after.contains(&Action::Run { was_running: true }), "{after:?}");
}
