//! What goes into which round and into the last copy, and a guest that is prepared while the first pass is in progress.

use super::*;
use crate::policy::Limits;

#[test]
fn what_arrived_damaged_is_sent_again_before_ram_is_sealed() {
    let mut driver = Driver::at(LastCopy);
    let Next::Work(work) = driver.machine.next_work(driver.now, CHANNEL) else { panic!("no work") };
    driver.machine.acknowledged(driver.now, CHANNEL, work.sequence, &[work.sequence]);
    assert!(!driver.actions().contains(&Action::Digest));
    let Next::Work(again) = driver.machine.next_work(driver.now, CHANNEL) else { panic!("not sent again") };
    assert_eq!(again.runs, work.runs);
    driver.machine.acknowledged(driver.now, CHANNEL, again.sequence, &[]);
    assert!(driver.actions().contains(&Action::Digest));
}

#[test]
fn ram_is_not_sealed_while_a_lost_channel_is_not_fenced() {
    let mut driver = Driver::at(LastCopy);
    let Next::Work(work) = driver.machine.next_work(driver.now, CHANNEL) else { panic!("no work") };
    driver.machine.channel_lost(driver.now, CHANNEL);
    driver.handle(Event::ChannelUp { channel: 1, link: 0 });
    assert_eq!(driver.machine.next_work(driver.now, 1), Next::Wait, "it is in flight on the lost channel");
    driver.receive(Message::Fenced { channel: CHANNEL, applied: 0, damaged: vec![] });
    let Next::Work(again) = driver.machine.next_work(driver.now, 1) else { panic!("not sent again") };
    assert_eq!(again.runs, work.runs);
}

/// Carries the one write that there is; the destination refuses it.
fn refuse(driver: &mut Driver) -> Vec<crate::Run> {
    let Next::Work(work) = driver.machine.next_work(driver.now, CHANNEL) else { panic!("no work") };
    driver.machine.acknowledged(driver.now, CHANNEL, work.sequence, &[work.sequence]);
    work.runs
}

#[test]
fn what_arrived_damaged_in_a_round_goes_into_the_next() {
    let mut driver = Driver::at(Copying);
    let damaged = refuse(&mut driver);
    driver.actions();
    driver.handle(scanned(vec![]));
    let Next::Work(again) = driver.machine.next_work(driver.now, CHANNEL) else { panic!("not sent again") };
    assert_eq!(again.runs, damaged);
}

#[test]
fn what_arrived_damaged_in_the_last_round_goes_into_the_last_copy() {
    let mut driver = Driver::at(Scanning);
    driver.handle(scanned(page(2)));
    let damaged = refuse(&mut driver);
    driver.handle(pre_switchover(true));
    driver.handle(Event::DeviceStateDone);
    driver.handle(scanned(vec![]));
    let Next::Work(again) = driver.machine.next_work(driver.now, CHANNEL) else { panic!("not sent again") };
    assert_eq!(again.runs, damaged);
}

#[test]
fn the_last_copy_waits_until_nothing_is_in_flight() {
    let mut driver = Driver::at(Scanning);
    driver.handle(scanned(page(2)));
    let Next::Work(last_round) = driver.machine.next_work(driver.now, CHANNEL) else { panic!("no work") };
    driver.handle(pre_switchover(true));
    driver.handle(Event::DeviceStateDone);
    driver.handle(scanned(page(2)));
    assert_eq!(driver.machine.next_work(driver.now, CHANNEL), Next::Wait, "the page is in flight");
    driver.machine.acknowledged(driver.now, CHANNEL, last_round.sequence, &[]);
    assert!(matches!(driver.machine.next_work(driver.now, CHANNEL), Next::Work(_)));
}

/// A driver that polls only on request must get one: otherwise the blackout waits for the next tick.
#[test]
fn what_a_channel_sets_off_wants_attention() {
    let mut source = Source::new(Config::new("guest", String::new(), Mode::Direct { regions: regions() }));
    assert!(!source.wants_attention());
    source.handle(Time::ZERO, Event::PathUp(0));
    while source.poll_action(Time::ZERO).is_some() {}
    assert!(!source.wants_attention());
    source.handle(Time::ZERO, Event::ChannelUp { channel: 3, link: 0 });
    source.channel_lost(Time::ZERO, 3);
    assert!(source.wants_attention(), "a fence has to be asked for");
}

/// A source that copies while the incoming QEMU still starts.
fn copying_early() -> Driver {
    let mut driver = Driver::at(Preparing);
    driver.handle(Event::Attached);
    driver.handle(Event::ChannelUp { channel: CHANNEL, link: 0 });
    driver.handle(Event::Protected { populated: page(0), paused: Duration::ZERO });
    driver
}

#[test]
fn the_first_pass_starts_before_the_incoming_qemu_is_ready_and_rounds_wait() {
    let mut driver = copying_early();
    assert!(driver.carry().iter().all(|action| !matches!(action, Action::Scan { .. })));
    assert!(driver.machine.timeout().is_some_and(|at| at > driver.now), "the driver would spin");
    assert!(driver.receive(prepared(vec![])).contains(&Action::Scan { last: false, also: vec![] }));
}

#[test]
fn an_incoming_qemu_that_is_ready_in_the_middle_of_the_first_pass_interrupts_nothing() {
    let mut driver = copying_early();
    assert!(!driver.receive(prepared(vec![])).contains(&Action::Scan { last: false, also: vec![] }));
    assert!(driver.carry().contains(&Action::Scan { last: false, also: vec![] }));
}

#[test]
fn pages_touched_by_the_starting_incoming_qemu_are_copied_again() {
    let mut driver = copying_early();
    driver.carry();
    let touched = [page(0), page(7)].concat();
    let scan = driver.receive(prepared(touched.clone()));
    // What of them is given back meanwhile is a hole that only the last scan finds, if it knows of them.
    assert!(scan.contains(&Action::Scan { last: false, also: touched }), "{scan:?}");
    driver.handle(scanned(page(3)));
    let Next::Work(again) = driver.machine.next_work(driver.now, CHANNEL) else { panic!("not copied again") };
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
fn an_incoming_qemu_that_is_never_ready_ends_the_migration() {
    let mut driver = copying_early();
    driver.now = driver.now + driver.machine.config.step_timeout;
    driver.handle(Event::PathAlive(PATH));
    let fault = driver.fault().map(|fault| (fault.code, fault.step, fault.side));
    assert_eq!(fault, Some((Code::TimedOut, Step::Prepare, Side::Destination)));
}

#[test]
fn a_second_message_that_the_incoming_qemu_is_ready_is_refused() {
    let mut driver = copying_early();
    driver.receive(prepared(vec![]));
    driver.receive(prepared(vec![]));
    assert_eq!(driver.fault().map(|fault| fault.code), Some(Code::ProtocolViolation));
}

#[test]
fn the_hypervisors_stream_waits_for_the_destination_only_while_the_guest_runs() {
    let mut driver = Driver::at(Switching);
    while !driver.machine.pauses_stream() {
        driver.handle(Event::DeviceState(vec![1]));
        assert!(driver.machine.control.unacknowledged() < 100, "it is never held back");
    }
    let through = driver.machine.control.unacknowledged() as u64 + driver.sequence;
    driver.handle(Event::ControlAcknowledged { path: PATH, through: through + 100 });
    assert!(!driver.machine.pauses_stream(), "the destination has it");
    for _ in 0..100 {
        driver.handle(Event::DeviceState(vec![1]));
    }
    assert!(driver.machine.pauses_stream());
    driver.handle(pre_switchover(true));
    assert!(!driver.machine.pauses_stream(), "the guest is stopped: QEMU must not wait");
}

#[test]
fn what_is_written_in_the_first_pass_is_counted_now_and_then() {
    let counts = |actions: &[Action]| actions.iter().filter(|action| **action == Action::Count).count();
    let mut later = Driver::at(Copying);
    later.machine.round = 1;
    later.now = later.now + Duration::from_secs(9);
    assert_eq!(counts(&later.handle(Event::Tick)), 0, "a scan has shown it");
    let mut driver = Driver::at(Copying);
    let after = |driver: &mut Driver, time: u64| {
        driver.now = driver.now + Duration::from_millis(time);
        driver.handle(Event::Tick)
    };
    assert_eq!(counts(&after(&mut driver, 249)), 0);
    assert_eq!(counts(&after(&mut driver, 1)), 1);
    assert_eq!(counts(&after(&mut driver, 500)), 0, "one at a time");
    driver.handle(Event::Counted { bytes: 3 * PAGE, took: Duration::from_millis(40) });
    assert_eq!(driver.machine.statistics().counted_bytes, Some(3 * PAGE));
    assert_eq!(driver.machine.statistics().dirty_bytes_per_s, (3 * PAGE) as f64 / 0.75);
    assert_eq!(driver.machine.written_bytes(driver.now), 3 * PAGE);
    assert_eq!(driver.machine.written_bytes(driver.now + Duration::from_millis(750)), 6 * PAGE);
    // It took 40 ms, and may take a fiftieth of the time.
    assert_eq!(counts(&after(&mut driver, 1999)), 0);
    assert_eq!(counts(&after(&mut driver, 1)), 1);
    // The pass is over: its scan says more, and rounds are short.
    assert_eq!(counts(&driver.carry()), 0);
    assert!(driver.machine.written_bytes(driver.now) >= 3 * PAGE, "the scan has not ended yet");
    driver.handle(Event::Counted { bytes: 9 * PAGE, took: Duration::ZERO });
    driver.handle(scanned(page(2)));
    assert_eq!(driver.machine.statistics().counted_bytes, None);
    assert!(driver.machine.statistics().dirty_bytes_per_s < (2 * PAGE) as f64);
    assert_eq!(driver.machine.written_bytes(driver.now), 0, "it is being stopped");
    driver.machine.state = State::Copying { began: driver.now };
    driver.machine.round = 1;
    let by_rate = (2.0 * driver.machine.statistics().dirty_bytes_per_s) as u64;
    assert_eq!(driver.machine.written_bytes(driver.now + Duration::from_secs(2)), by_rate);
    assert_eq!(counts(&after(&mut driver, 9000)), 0);
}

/// A scan that found nothing, of a guest whose last scan takes so much longer.
fn scanned_before_a_search(last_adds: Duration) -> Event {
    Event::Scanned { dirty: vec![], took: Duration::ZERO, paused: Duration::ZERO, last_adds }
}

#[test]
fn what_the_last_scan_takes_longer_is_in_the_predicted_blackout() {
    let mut quick = Driver::at(Scanning);
    let actions = quick.handle(scanned_before_a_search(Duration::from_millis(200)));
    assert!(actions.contains(&Action::SwitchOver), "{actions:?}");

    let mut slow = Driver::at(Scanning);
    let actions = slow.handle(scanned_before_a_search(Duration::from_millis(1000)));
    assert!(!actions.contains(&Action::SwitchOver), "the guest would be stopped for a second: {actions:?}");
    assert!(slow.machine.statistics().predicted_blackout >= Some(Duration::from_secs(1)));
    for _ in 0..Limits::default().rounds_max {
        slow.handle(scanned_before_a_search(Duration::from_millis(1000)));
    }
    let fault = slow.fault().unwrap();
    assert_eq!(fault.code, Code::NotConverging);
    assert!(fault.detail.contains("--max-blackout") && !fault.detail.contains("add a link"), "{fault}");
}
