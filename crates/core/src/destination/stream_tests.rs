//! The way of a guest whose RAM comes in the hypervisor's own streams.

use super::*;
use crate::control::Outgoing;
use crate::{RegionInfo, StreamNote, StreamSettings};

const PATH: PathId = 0;

struct Driver {
    machine: Destination,
    sequence: u64,
}

impl Driver {
    fn offered(mode: Mode) -> Driver {
        let mut machine = Destination::new(Time::ZERO, Config::default());
        machine.handle(Time::ZERO, Event::PathUp(PATH));
        let mut driver = Driver { machine, sequence: 0 };
        driver.receive(Message::Offer { guest: "g".into(), description: "{}".into(), mode: Ok(mode) });
        driver.handle(Event::Admitted(Vec::new()));
        driver
    }

    fn streaming() -> Driver {
        let mut driver = Driver::offered(Mode::Streams { channels: 3 });
        assert!(driver.receive(Message::Prepare).contains(&Action::Prepare));
        assert!(sends(
            &driver.handle(Event::StreamsPrepared(settings())),
            &Message::StreamsPrepared(settings())
        ));
        driver
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.machine.handle(Time::ZERO, event);
        std::iter::from_fn(|| self.machine.poll_action(Time::ZERO)).collect()
    }

    fn receive(&mut self, message: Message) -> Vec<Action> {
        self.sequence += 1;
        self.handle(Event::Received { path: PATH, sequence: self.sequence, message })
    }

    /// The source's guest has stopped, its disks are the same, and everything was taken.
    fn load(&mut self) {
        let checks = self.receive(Message::Stopped { was_running: true, disks: "[]".into() });
        assert!(checks.contains(&Action::CheckDisks("[]".into())), "{checks:?}");
        self.handle(Event::DisksChecked);
        let notes = self.handle(Event::DeviceStateLoaded);
        assert!(notes.contains(&Action::Journal(DestinationPhase::Loaded)), "{notes:?}");
        assert!(!sends(&notes, &Message::Loaded), "not before it is on disk");
        assert!(sends(&self.handle(Event::Journaled(DestinationPhase::Loaded)), &Message::Loaded));
    }

    fn fault(&self) -> Option<Code> {
        if let State::Discarding { fault } = &self.machine.state { Some(fault.code) } else { None }
    }
}

fn settings() -> StreamSettings {
    StreamSettings { channels: 2, return_path: true, zero_pages_in_channels: true }
}

fn sends(actions: &[Action], wanted: &Message) -> bool {
    actions.iter().any(
        |action| matches!(action, Action::Transmit(_, Outgoing::Message { message, .. }) if message == wanted),
    )
}

#[test]
fn a_guest_that_took_its_streams_runs_only_after_commit_is_in_the_journal() {
    let mut driver = Driver::streaming();
    let early = driver.receive(Message::Commit);
    assert!(!early.contains(&Action::Journal(DestinationPhase::Committed)));
    assert_eq!(driver.fault(), Some(Code::ProtocolViolation), "nothing is loaded yet");

    let mut driver = Driver::streaming();
    driver.load();
    let commits = driver.receive(Message::Commit);
    assert!(commits.contains(&Action::Journal(DestinationPhase::Committed)), "{commits:?}");
    let run = Action::Run { was_running: true };
    assert!(!commits.contains(&run), "{commits:?}");
    assert!(driver.handle(Event::Journaled(DestinationPhase::Committed)).contains(&run));
}

#[test]
fn modes_are_not_mixed() {
    let regions = vec![RegionInfo { id: 0, name: "ram".into(), size: 1 << 20 }];
    let by_writes = Event::Prepared { regions: regions.clone(), touched: Vec::new() };
    let by_streams = Event::StreamsPrepared(settings());
    for (mode, event) in [
        (Mode::Direct { regions: regions.clone() }, by_streams.clone()),
        (Mode::Handover { regions }, by_streams),
        (Mode::Streams { channels: 1 }, by_writes),
    ] {
        let mut driver = Driver::offered(mode.clone());
        driver.receive(Message::Prepare);
        driver.handle(event);
        assert_eq!(driver.fault(), Some(Code::Internal), "{mode:?}");
    }
    for message in [Message::RamComplete { digest: None }, Message::DeviceState { bytes: vec![1] }] {
        let mut driver = Driver::streaming();
        driver.receive(message.clone());
        assert_eq!(driver.fault(), Some(Code::ProtocolViolation), "{message:?}");
    }
}

#[test]
fn stream_messages_pass_in_both_directions() {
    let note = Message::Stream { stream: 2, note: StreamNote::Stop };
    let fenced = Message::Fenced { channel: 5, applied: 0, damaged: Vec::new() };
    let mut driver = Driver::streaming();
    for message in [note.clone(), fenced] {
        assert!(driver.receive(message.clone()).contains(&Action::DeliverStreamMessage(message)));
    }
    let fence = Message::Fence { channel: 5 };
    for message in [note, fence] {
        assert!(sends(&driver.handle(Event::SendStreamMessage(message.clone())), &message));
    }
}

#[test]
fn a_fault_during_streams_ends_the_incoming_qemu() {
    let mut driver = Driver::streaming();
    let fault = Fault::new(Code::HypervisorFailed, Step::Copy, Side::Destination, "injected");
    let actions = driver.handle(Event::Failed(fault.clone()));
    assert_eq!(actions, [Action::Journal(DestinationPhase::Aborted), Action::Discard]);
    assert!(sends(&driver.handle(Event::Discarded), &Message::Abort(fault)));
}

#[test]
fn a_peer_that_breaks_the_rules_of_streams_makes_nothing_run_twice() {
    let violation = || Fault::new(Code::ProtocolViolation, Step::Commit, Side::Source, "a note out of place");
    let mut driver = Driver::streaming();
    driver.handle(Event::ReceivingFailed(violation()));
    assert_eq!(driver.fault(), Some(Code::ProtocolViolation));

    let mut driver = Driver::streaming();
    driver.load();
    driver.receive(Message::Commit);
    let run = Action::Run { was_running: true };
    assert!(driver.handle(Event::Journaled(DestinationPhase::Committed)).contains(&run));
    let mut later = driver.handle(Event::ReceivingFailed(violation()));
    driver.machine.handle(Time::ZERO + Duration::from_secs(2), Event::Tick);
    later.extend(std::iter::from_fn(|| driver.machine.poll_action(Time::ZERO)));
    assert!(!later.contains(&run), "the guest is being started already: {later:?}");
    assert!(!later.contains(&Action::Discard), "{later:?}");
}
