//! A copy that waits until it is told to begin.

use super::*;

fn held(mode: Mode) -> Driver {
    let config = Config { hold: true, ..Config::new("g", "{}".into(), mode) };
    let mut machine = Source::new(config);
    machine.handle(ms(0), Event::PathUp(PATH));
    let mut driver = Driver { machine, sequence: 0, now: ms(1) };
    driver.handle(Event::Start);
    driver.receive(Message::Admitted { endpoints: vec![] });
    driver
}

fn direct() -> Driver {
    held(Mode::Direct { regions: regions() })
}

/// What is to be done, but for the control stream.
fn deeds(actions: Vec<Action>) -> Vec<Action> {
    actions.into_iter().filter(|action| !matches!(action, Action::Transmit(..))).collect()
}

type Deed = fn(&mut Driver) -> Vec<Action>;

/// What must have happened, in any order.
const DEEDS: [Deed; 3] = [
    |driver| driver.receive(prepared(vec![])),
    |driver| driver.handle(Event::Attached),
    |driver| driver.handle(Event::ChannelUp { channel: CHANNEL, link: 0 }),
];

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

#[test]
fn nothing_is_protected_before_it_is_told_to_and_all_is_prepared() {
    for order in ORDERS {
        let mut driver = direct();
        for (count, deed) in order.into_iter().enumerate() {
            let actions = DEEDS[deed](&mut driver);
            assert!(!actions.contains(&Action::Protect), "{order:?}");
            assert_eq!(actions.contains(&Action::Ready), count == 2, "{order:?} {count}");
        }
        assert_eq!(driver.machine.state, State::Ready);
        // A day later.
        driver.now = driver.now + Duration::from_secs(86_400);
        driver.machine.handle(driver.now, Event::PathAlive(PATH));
        assert_eq!(deeds(driver.handle(Event::Tick)), []);
        assert_eq!(driver.machine.step_deadline, None);
        assert_eq!(deeds(driver.handle(Event::Go)), [Action::Protect], "{order:?}");
        assert_eq!(deeds(driver.handle(Event::Go)), [], "it has begun");
        assert_eq!(driver.machine.step(), Step::Track);
    }
}

#[test]
fn told_before_all_is_prepared_it_waits_for_nothing_else() {
    for order in ORDERS {
        for early in 0..3 {
            let mut driver = direct();
            let mut actions = Vec::new();
            for (count, deed) in order.into_iter().enumerate() {
                if count == early {
                    actions.extend(driver.handle(Event::Go));
                }
                actions.extend(DEEDS[deed](&mut driver));
            }
            assert_eq!(
                actions.iter().filter(|action| **action == Action::Protect).count(),
                1,
                "{order:?} {early}"
            );
            assert!(!actions.contains(&Action::Ready), "{order:?} {early}");
        }
    }
}

#[test]
fn streams_are_held_too() {
    let mut driver = held(Mode::Streams { channels: 1 });
    driver.handle(Event::ChannelUp { channel: CHANNEL, link: 0 });
    let settings = StreamSettings { channels: 1, return_path: true, zero_pages_in_channels: false };
    assert_eq!(deeds(driver.receive(Message::StreamsPrepared(settings))), [Action::Ready]);
    assert_eq!(deeds(driver.handle(Event::Go)), [Action::BeginStreams(settings)]);
}

#[test]
fn links_that_go_while_it_waits_are_waited_for_and_no_longer_than_at_other_times() {
    let ready = || {
        let mut driver = direct();
        DEEDS.iter().for_each(|deed| drop(deed(&mut driver)));
        driver.machine.channel_lost(driver.now, CHANNEL);
        driver.actions();
        driver
    };
    let mut driver = ready();
    assert_eq!(deeds(driver.handle(Event::Go)), []);
    assert_eq!(deeds(driver.handle(Event::ChannelUp { channel: CHANNEL + 1, link: 0 })), [Action::Protect]);

    let mut driver = ready();
    driver.now = driver.now + driver.machine.config.link_timeout;
    let actions = driver.handle(Event::PathAlive(PATH));
    assert!(actions.contains(&Action::RollBack), "{actions:?}");
}

#[test]
fn cancelled_while_it_waits_the_guest_was_never_touched() {
    let mut driver = direct();
    DEEDS.iter().for_each(|deed| drop(deed(&mut driver)));
    assert!(driver.handle(Event::Cancel).contains(&Action::RollBack));
    assert!(!driver.handle(Event::Go).contains(&Action::Protect));
}
