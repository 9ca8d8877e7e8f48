//! The way of a guest whose RAM goes in the hypervisor's own streams: its states, what ends it, and that from the
//! guest's stop on it is the way of every guest.

use super::ending::PEER_EXPLAINS_WITHIN;
use super::*;
use crate::control::Outgoing;
use crate::policy::Limits;
use crate::statistics::Streamed;
use crate::{GuestState, Mode};

const PATH: PathId = 0;
const OFFERED: u16 = 4;

pub(super) fn ms(n: u64) -> Time {
    Time(n * 1_000_000)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum At {
    Offered,
    Preparing,
    Streaming,
    Loading,
    Journaling,
    Committing,
    CleaningUp,
}

use At::*;

pub(super) const ALL: [At; 7] = [Offered, Preparing, Streaming, Loading, Journaling, Committing, CleaningUp];

pub(super) struct Driver {
    pub(super) machine: Source,
    sequence: u64,
    pub(super) now: Time,
}

impl Driver {
    pub(super) fn new(limits: Limits) -> Driver {
        let config = Config { limits, ..Config::new("g", "{}".into(), Mode::Streams { channels: OFFERED }) };
        let mut machine = Source::new(config);
        machine.handle(ms(0), Event::PathUp(PATH));
        Driver { machine, sequence: 0, now: ms(1) }
    }

    pub(super) fn handle(&mut self, event: Event) -> Vec<Action> {
        self.machine.handle(self.now, event);
        std::iter::from_fn(|| self.machine.poll_action(self.now)).collect()
    }

    fn receive(&mut self, message: Message) -> Vec<Action> {
        self.sequence += 1;
        self.handle(Event::Received { path: PATH, sequence: self.sequence, message })
    }

    pub(super) fn wait(&mut self, time: Duration) -> Vec<Action> {
        self.now = self.now + time;
        self.handle(Event::PathAlive(PATH))
    }

    pub(super) fn step(&mut self, reached: At) -> Vec<Action> {
        match reached {
            Offered => self.handle(Event::Start),
            Preparing => self.receive(Message::Admitted { endpoints: Vec::new() }),
            Streaming => {
                let mut actions = self.receive(Message::StreamsPrepared(settings(2)));
                actions.extend(self.handle(Event::ChannelUp { channel: 0, link: 0 }));
                actions
            }
            Loading => {
                let mut actions = self.handle(Event::GuestStopped);
                actions.extend(self.handle(Event::PreSwitchover { was_running: true, disks: "[]".into() }));
                actions
            }
            Journaling => {
                let mut actions = self.handle(Event::DeviceStateDone);
                actions.extend(self.receive(Message::Loaded));
                actions
            }
            Committing => self.handle(Event::Journaled(SourcePhase::CommitSent)),
            CleaningUp => self.receive(Message::TakenOver { resume_us: 1, cpu_us: 0 }),
        }
    }

    pub(super) fn at(state: At) -> Driver {
        let mut driver = Driver::new(Limits::default());
        for reached in ALL.into_iter().take_while(|reached| *reached <= state) {
            driver.step(reached);
        }
        let name = driver.machine.state.name().replace(' ', "");
        assert_eq!(name, format!("{state:?}").to_lowercase());
        driver
    }

    pub(super) fn fault(&self) -> Option<&Fault> {
        if let State::RollingBack(roll_back) = &self.machine.state { Some(roll_back.fault()) } else { None }
    }
}

fn settings(channels: u16) -> StreamSettings {
    StreamSettings { channels, return_path: true, zero_pages_in_channels: false }
}

fn streamed(round: u32, carried_bytes: u64) -> Event {
    Event::Streamed(Streamed { round, carried_bytes, remaining_bytes: 1 << 20, ..Streamed::default() })
}

fn sends(actions: &[Action], wanted: impl Fn(&Message) -> bool) -> bool {
    actions.iter().any(
        |action| matches!(action, Action::Transmit(_, Outgoing::Message { message, .. }) if wanted(message)),
    )
}

#[test]
fn each_state_asks_for_what_leads_to_the_next() {
    let mut driver = Driver::new(Limits::default());
    let offered = driver.step(Offered);
    assert!(sends(&offered, |message| matches!(
        message,
        Message::Offer { mode: Ok(Mode::Streams { channels: OFFERED }), .. }
    )));
    let admitted = driver.step(Preparing);
    assert!(sends(&admitted, |message| *message == Message::Prepare));
    assert!(!admitted.contains(&Action::Attach), "nothing is done to the guest's memory");
    assert!(driver.step(Streaming).contains(&Action::BeginStreams(settings(2))));
    assert!(driver.step(Loading).contains(&Action::WriteDeviceState));
    let written = driver.step(Journaling);
    assert!(!sends(&written, |message| matches!(message, Message::DeviceStateEnd { .. })), "{written:?}");
    assert!(written.contains(&Action::Journal(SourcePhase::CommitSent)));
    assert!(sends(&driver.step(Committing), |message| *message == Message::Commit));
    assert!(driver.step(CleaningUp).contains(&Action::CleanUp));
}

#[test]
fn streams_begin_only_with_a_channel_and_a_ready_incoming_qemu() {
    let begins = |actions: &[Action]| actions.contains(&Action::BeginStreams(settings(2)));
    let mut driver = Driver::at(Preparing);
    assert!(!begins(&driver.receive(Message::StreamsPrepared(settings(2)))));
    assert!(begins(&driver.handle(Event::ChannelUp { channel: 0, link: 0 })));
    let mut driver = Driver::at(Preparing);
    assert!(!begins(&driver.handle(Event::ChannelUp { channel: 0, link: 0 })));
    assert!(begins(&driver.receive(Message::StreamsPrepared(settings(2)))));
}

#[test]
fn commit_needs_the_confirmations_of_both_sides_in_whatever_order() {
    let commits = |actions: &[Action]| actions.contains(&Action::Journal(SourcePhase::CommitSent));
    let mut driver = Driver::at(Loading);
    assert!(!commits(&driver.handle(Event::DeviceStateDone)), "the destination has not loaded it");
    assert!(commits(&driver.receive(Message::Loaded)));
    let mut driver = Driver::at(Loading);
    assert!(!commits(&driver.receive(Message::Loaded)), "the hypervisor here may still take the guest back");
    assert!(commits(&driver.handle(Event::DeviceStateDone)));
}

#[test]
fn stream_messages_pass_in_every_state_and_in_order() {
    let note = |stream| Message::Stream { stream, note: crate::StreamNote::Stop };
    for state in ALL {
        let mut driver = Driver::at(state);
        let fence = Message::Fence { channel: 7 };
        for message in [note(2), fence] {
            assert!(
                driver.receive(message.clone()).contains(&Action::DeliverStreamMessage(message)),
                "{state:?}"
            );
        }
        let fenced = Message::Fenced { channel: 7, applied: 1, damaged: Vec::new() };
        assert!(driver.receive(fenced.clone()).contains(&Action::DeliverStreamMessage(fenced)), "{state:?}");
        assert!(
            sends(&driver.handle(Event::SendStreamMessage(note(4))), |message| *message == note(4)),
            "{state:?}"
        );
    }
    let mut driver = Driver::at(Streaming);
    driver.handle(Event::Cancel);
    assert!(
        !sends(&driver.handle(Event::SendStreamMessage(note(4))), |message| *message == note(4)),
        "it is over"
    );
}

#[test]
fn a_lost_channel_is_fenced() {
    let mut driver = Driver::at(Streaming);
    driver.machine.channel_lost(driver.now, 0);
    assert!(sends(&driver.handle(Event::Tick), |message| *message == Message::Fence { channel: 0 }));
}

#[test]
fn answers_out_of_place_or_beyond_what_was_offered_break_the_protocol() {
    let wrong = [
        (Offered, Message::StreamsPrepared(settings(1))),
        (Preparing, Message::StreamsPrepared(settings(OFFERED + 1))),
        (Preparing, Message::Prepared { regions: Vec::new(), touched: Vec::new() }),
        (Streaming, Message::StreamsPrepared(settings(1))),
        (Streaming, Message::Loaded),
        (Streaming, Message::RamSealed),
    ];
    for (state, message) in wrong {
        let mut driver = Driver::at(state);
        driver.receive(message.clone());
        let code = driver.fault().map(|fault| fault.code);
        assert_eq!(code, Some(Code::ProtocolViolation), "{message:?} in {state:?}");
    }
}

#[test]
fn every_failure_before_commit_rolls_back_and_none_after_it() {
    for state in ALL {
        for event in [
            Event::Failed(Fault::new(Code::HypervisorFailed, Step::Copy, Side::Source, "injected")),
            Event::Cancel,
            Event::Forgotten,
        ] {
            let cancels = matches!(event, Event::Cancel);
            let mut driver = Driver::at(state);
            let rolls_back = driver.handle(event).contains(&Action::RollBack);
            let before = state <= Journaling && !(cancels && state == Journaling);
            assert_eq!(rolls_back, before, "{state:?}");
            assert_eq!(driver.machine.can_resume(), state <= Journaling, "{state:?}");
        }
    }
}

#[test]
fn streams_without_progress_fail_after_the_limit_and_not_before() {
    let limit = Config::new("g", "{}".into(), Mode::Streams { channels: 0 }).link_timeout;
    let mut driver = Driver::at(Streaming);
    driver.handle(streamed(0, 1));
    for nth in 0..100 {
        // It moves slowly, for much longer than the limit.
        driver.now = driver.now + limit / 2;
        driver.handle(streamed(0, 2 + nth));
        driver.handle(Event::PathAlive(PATH));
    }
    assert_eq!(driver.fault(), None);
    driver.now = driver.now + limit / 2;
    driver.handle(Event::PathAlive(PATH));
    driver.handle(streamed(0, 101));
    assert_eq!(driver.fault(), None);
    driver.now = driver.now + limit / 2;
    driver.handle(Event::PathAlive(PATH));
    driver.handle(streamed(0, 101));
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::PeerLost), "it makes no progress");
}

#[test]
fn a_guest_that_writes_too_fast_is_given_up_after_so_many_rounds() {
    let mut driver = Driver::new(Limits { rounds_max: 3, ..Limits::default() });
    ALL.into_iter().take_while(|at| *at <= Streaming).for_each(|at| drop(driver.step(at)));
    for round in 0..=3 {
        driver.handle(streamed(round, u64::from(round) + 1));
        assert_eq!(driver.fault(), None, "round {round}");
    }
    driver.handle(streamed(4, 9));
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::NotConverging));
}

#[test]
fn the_rounds_of_the_report_are_the_hypervisors() {
    let mut driver = Driver::at(Streaming);
    for (round, remaining_bytes) in [(0, 900), (0, 400), (1, 300), (1, 100), (2, 50)] {
        driver.now = driver.now + Duration::from_millis(100);
        driver.handle(Event::Streamed(Streamed { round, remaining_bytes, ..Streamed::default() }));
    }
    driver.handle(Event::PreSwitchover { was_running: true, disks: "[]".into() });
    let rounds: Vec<(u32, u64, Option<u64>)> = driver
        .machine
        .statistics()
        .rounds
        .iter()
        .map(|round| (round.number, round.bytes, round.dirty_bytes_after))
        .collect();
    assert_eq!(rounds, [(0, 900, Some(300)), (1, 300, Some(50)), (2, 50, None)]);
    assert!(driver.machine.statistics().rounds.iter().all(|round| round.took.is_some()));
}

#[test]
fn the_blackout_has_its_limit() {
    let mut driver = Driver::at(Loading);
    let config = Config::new("g", "{}".into(), Mode::Streams { channels: 0 });
    let limit = config.limits.max_blackout + config.blackout_timeout;
    driver.wait(limit - Duration::from_millis(1));
    assert_eq!(driver.fault(), None);
    driver.wait(Duration::from_millis(1));
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::TimedOut));
}

fn broken() -> Fault {
    Fault::new(Code::HypervisorFailed, Step::Copy, Side::Source, "broken pipe")
}

fn cause() -> Fault {
    Fault::new(Code::HypervisorFailed, Step::Copy, Side::Destination, "the device differs")
}

fn hung_up() -> [StreamNote; 3] {
    [StreamNote::Stop, StreamNote::Reset, StreamNote::End { total: 0 }]
}

fn is_abort(message: &Message) -> bool {
    matches!(message, Message::Abort(_))
}

/// A driver whose destination let go of a stream, and what it did when the hypervisor here failed then.
fn failed_after(note: StreamNote, fault: Fault) -> (Driver, Vec<Action>) {
    let mut driver = Driver::at(Streaming);
    driver.receive(Message::Stream { stream: 0, note });
    let actions = driver.handle(Event::Failed(fault));
    assert!(actions.contains(&Action::RollBack), "the guest here waits for no explanation");
    (driver, actions)
}

/// The fault of the end if the destination sends this abort, and the actions before.
fn ending_after(driver: &mut Driver, abort: Fault) -> (Fault, Vec<Action>) {
    let actions_before = driver.receive(Message::Abort(abort));
    let actions = driver.handle(Event::RolledBack { guest: GuestState::RunsAtSource, complete: true });
    let ending = actions.into_iter().find_map(|action| match action {
        Action::End(ending) => ending.fault,
        _ => None,
    });
    (ending.expect("it is over"), actions_before)
}

#[test]
fn a_destination_that_closed_the_connection_sends_the_cause() {
    for note in hung_up() {
        let (mut driver, actions) = failed_after(note.clone(), broken());
        assert!(!sends(&actions, is_abort), "{note:?}: it is asked to explain itself, not to stop");
        let (fault, actions_before) = ending_after(&mut driver, cause());
        assert_eq!(fault, cause(), "{note:?}");
        assert!(
            sends(&actions_before, |message| *message == Message::Aborted),
            "{note:?}: it waits for this message"
        );
    }
}

#[test]
fn a_destination_that_sends_no_cause_gets_an_abort() {
    for note in hung_up() {
        let (mut driver, _) = failed_after(note, broken());
        driver.handle(Event::RolledBack { guest: GuestState::RunsAtSource, complete: true });
        assert_eq!(driver.fault(), Some(&broken()), "it may still explain itself");
        let actions = driver.wait(PEER_EXPLAINS_WITHIN);
        assert!(sends(&actions, |message| *message == Message::Abort(broken())));
        let actions = driver.receive(Message::Aborted);
        let ended =
            actions.iter().any(|action| matches!(action, Action::End(end) if end.fault == Some(broken())));
        assert!(ended, "{actions:?}");
    }
}

#[test]
fn a_cause_that_the_source_knows_is_sent_at_once_and_kept() {
    // The destination's streams broke by what happened here.
    let mut driver = Driver::at(Streaming);
    assert!(sends(&driver.handle(Event::Failed(broken())), is_abort));
    assert_eq!(ending_after(&mut driver, cause()).0, broken());
    let (mut driver, actions) = failed_after(StreamNote::Stop, Fault { code: Code::GuestGone, ..broken() });
    assert!(sends(&actions, is_abort));
    assert_eq!(ending_after(&mut driver, cause()).0.code, Code::GuestGone);
    let mut driver = Driver::at(Streaming);
    driver.receive(Message::Stream { stream: 0, note: StreamNote::Stop });
    assert!(sends(&driver.handle(Event::Cancel), is_abort));
    assert_eq!(ending_after(&mut driver, cause()).0.code, Code::Cancelled);
    // Credit is an everyday word.
    let mut driver = Driver::at(Streaming);
    driver.receive(Message::Stream { stream: 0, note: StreamNote::Credit { limit: 9 } });
    assert!(sends(&driver.handle(Event::Failed(broken())), is_abort));
}

#[test]
fn a_peer_that_breaks_the_rules_of_streams_makes_no_action_happen_twice() {
    let violation =
        || Fault::new(Code::ProtocolViolation, Step::Copy, Side::Destination, "a note out of place");
    for state in ALL {
        let mut driver = Driver::at(state);
        let rolls_back = driver.handle(Event::StreamsFailed(violation())).contains(&Action::RollBack);
        assert_eq!(rolls_back, state <= Journaling, "{state:?}");
        let later = driver.wait(Duration::from_secs(2));
        assert!(!later.contains(&Action::CleanUp), "{state:?}: the clean-up has begun already");
    }
}
