//! Every message and event in every state; what a fault and a cancellation do in each; and that nothing but the
//! destination's word or the operator's leads back once commit was sent.

mod blackout;
mod ends;
mod handover;
mod hold;
mod rounds;

use super::*;
use crate::Extent;
use crate::control::Outgoing;
use crate::scheduler::Next;
use crate::{GuestState, Mode, Outcome, RegionInfo};

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
    WritingDeviceState,
    LastScan,
    LastCopy,
    Digesting,
    Sealing,
    Loading,
    Journaling,
    Committing,
    CleaningUp,
    Closing,
    Ended,
    RollingBack,
}

use At::*;

const BEFORE_COMMIT: [At; 14] = [
    Idle,
    Offered,
    Preparing,
    Protecting,
    Copying,
    Scanning,
    Switching,
    WritingDeviceState,
    LastScan,
    LastCopy,
    Digesting,
    Sealing,
    Loading,
    Journaling,
];
const AFTER: [At; 4] = [Committing, CleaningUp, Closing, Ended];

fn all() -> Vec<At> {
    BEFORE_COMMIT.into_iter().chain(AFTER).chain([RollingBack]).collect()
}

fn regions() -> Vec<RegionInfo> {
    vec![RegionInfo { id: 0, name: "ram".into(), size: 64 * PAGE }]
}

struct Driver {
    machine: Source,
    sequence: u64,
    now: Time,
}

impl Driver {
    fn new() -> Driver {
        let mode = Mode::Direct { regions: regions() };
        let config = Config { verify: true, ..Config::new("g", "{}".into(), mode) };
        let mut machine = Source::new(config);
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

    /// Carries all there is; gives what follows.
    fn carry(&mut self) -> Vec<Action> {
        while let Next::Work(work) = self.machine.next_work(self.now, CHANNEL) {
            self.now = self.now + Duration::from_millis(1);
            self.machine.acknowledged(self.now, CHANNEL, work.sequence, &[]);
        }
        self.actions()
    }

    fn prepare(&mut self) {
        self.receive(prepared(vec![]));
        self.handle(Event::Attached);
        self.handle(Event::ChannelUp { channel: CHANNEL, link: 0 });
    }

    fn step(&mut self, reached: At) {
        match reached {
            Idle | RollingBack => {}
            Offered => drop(self.handle(Event::Start)),
            Preparing => drop(self.receive(Message::Admitted { endpoints: vec![] })),
            Protecting => self.prepare(),
            Copying => drop(self.handle(Event::Protected { populated: page(0), paused: Duration::ZERO })),
            Scanning => drop(self.carry()),
            Switching => drop(self.handle(scanned(vec![]))),
            WritingDeviceState => drop(self.handle(pre_switchover(true))),
            // No device state goes through the session: it scans already.
            LastScan if !self.machine.mode().commits() => {}
            LastScan => drop(self.handle(Event::DeviceStateDone)),
            LastCopy => drop(self.handle(scanned(page(1)))),
            Digesting => drop(self.carry()),
            Sealing => drop(self.handle(Event::Digested(5))),
            Loading => drop(self.receive(Message::RamSealed)),
            Journaling => drop(self.receive(Message::Loaded)),
            Committing => drop(self.handle(Event::Journaled(SourcePhase::CommitSent))),
            CleaningUp => drop(self.receive(Message::TakenOver { resume_us: 1, cpu_us: 0 })),
            Closing => drop(self.handle(Event::CleanedUp)),
            Ended => {
                self.receive(Message::LastLook(LastLook::NothingWrong));
                drop(self.handle(Event::ControlAcknowledged { path: PATH, through: u64::MAX }));
            }
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
            driver.handle(Event::Cancel);
        }
        let name = driver.machine.state.name().replace(' ', "");
        assert_eq!(name, format!("{state:?}").to_lowercase());
        driver
    }

    fn fault(&self) -> Option<&Fault> {
        if let State::RollingBack(roll_back) = &self.machine.state { Some(roll_back.fault()) } else { None }
    }
}

fn prepared(touched: Vec<Extent>) -> Message {
    Message::Prepared { regions: regions(), touched }
}

fn page(nth: u64) -> Vec<Extent> {
    vec![Extent::new(0, nth * PAGE, PAGE)]
}

fn scanned(dirty: Vec<Extent>) -> Event {
    Event::Scanned { dirty, took: Duration::ZERO, paused: Duration::ZERO, last_adds: Duration::ZERO }
}

fn pre_switchover(was_running: bool) -> Event {
    Event::PreSwitchover { was_running, disks: "[]".into() }
}

fn rolled_back(complete: bool) -> Event {
    Event::RolledBack { guest: GuestState::RunsAtSource, complete }
}

/// Whether a roll-back notice is requested, and for a guest that may be loaded.
fn withdraws(actions: &[Action]) -> Option<bool> {
    actions.iter().find_map(|action| match action {
        Action::NotifyRollBack { may_be_loaded } => Some(*may_be_loaded),
        _ => None,
    })
}

fn fault(code: Code) -> Fault {
    Fault::new(code, Step::Copy, Side::Destination, "a reason")
}

fn sends(actions: &[Action], wanted: impl Fn(&Message) -> bool) -> bool {
    actions.iter().any(
        |action| matches!(action, Action::Transmit(_, Outgoing::Message { message, .. }) if wanted(message)),
    )
}

/// Each message and the states in which it is expected.
fn messages() -> Vec<(Message, Vec<At>)> {
    vec![
        (Message::Admitted { endpoints: vec![] }, vec![Offered]),
        (prepared(vec![]), vec![Preparing]),
        (Message::Fenced { channel: 9, applied: 0, damaged: vec![] }, all()),
        (Message::RamSealed, vec![Sealing]),
        (Message::Loaded, vec![Loading]),
        (Message::TakenOver { resume_us: 0, cpu_us: 0 }, vec![Committing, CleaningUp, Closing]),
        (Message::LastLook(LastLook::NothingWrong), vec![CleaningUp, Closing]),
        (Message::Aborted, vec![]),
        (Message::Prepare, vec![]),
        (Message::StreamsPrepared(StreamSettings::default()), vec![]),
        (Message::Stream { stream: 0, note: crate::StreamNote::Stop }, vec![]),
        (Message::RoundMark { round: 0, bytes: 0 }, vec![]),
        (Message::Fence { channel: 0 }, vec![]),
        (Message::RamComplete { digest: None }, vec![]),
        (Message::DeviceState { bytes: vec![] }, vec![]),
        (Message::DeviceStateEnd { total: 0 }, vec![]),
        (Message::Commit, vec![]),
        (Message::Stopped { was_running: true, disks: String::new() }, vec![]),
        (Message::Finished, vec![]),
    ]
}

/// Each event of the driver and the states in which it is expected.
fn events() -> Vec<(Event, Vec<At>)> {
    let state_of_devices = vec![Switching, WritingDeviceState];
    vec![
        (Event::Attached, vec![Preparing]),
        (Event::Protected { populated: vec![], paused: Duration::ZERO }, vec![Protecting]),
        (scanned(vec![]), vec![Scanning, LastScan]),
        (Event::Counted { bytes: PAGE, took: Duration::ZERO }, all()),
        (Event::GuestStopped, vec![Switching]),
        (pre_switchover(true), vec![Switching]),
        (Event::Digested(1), vec![Digesting]),
        (Event::DeviceState(vec![1]), state_of_devices),
        (Event::DeviceStateDone, vec![WritingDeviceState, Loading]),
        (Event::Journaled(SourcePhase::Started), all()),
        (Event::CommitWritten, all()),
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
            assert!(!sends(&actions, is_abort), "{what} in {state:?}: before the guest is back");
            actions.extend(driver.handle(rolled_back(true)));
        }
        assert!(sends(&actions, is_abort), "{what} in {state:?}");
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
            let actions = driver.handle(event);
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
        let wanted = Fault::new(Code::HypervisorFailed, driver.machine.step(), Side::Source, "injected");
        let actions = driver.handle(Event::Failed(wanted.clone()));
        assert_eq!(actions.first(), Some(&Action::RollBack), "{state:?}: {actions:?}");
        let abort = |message: &Message| *message == Message::Abort(wanted.clone());
        assert!(driver.machine.can_resume());
        let actions = if state >= Sealing {
            assert!(!sends(&actions, is_abort), "{state:?}: {actions:?}");
            let mut actions = driver.handle(rolled_back(true));
            assert!(sends(&actions, abort), "{state:?}: {actions:?}");
            actions.extend(driver.receive(Message::Aborted));
            actions
        } else {
            assert!(sends(&actions, abort), "{state:?}: {actions:?}");
            let mut actions = driver.receive(Message::Aborted);
            assert!(!driver.machine.is_ended(), "{state:?}: not before the guest is back");
            actions.extend(driver.handle(rolled_back(true)));
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
        let step = driver.machine.step();
        let actions = driver.handle(Event::Cancel);
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
