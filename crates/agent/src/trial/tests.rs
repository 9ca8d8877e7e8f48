//! Trials on ports of this machine that refuse: the loopback has no DCB, and one is not there.

use linerate_fabric::qos::DcbSettings;
use linerate_guest::registry::Registry;
use linerate_wire::frame::{Hello, Role};
use linerate_wire::message::{SessionId, Token};
use linerate_wire::{VERSION_MAX, VERSION_MIN};
use tempfile::TempDir;

use super::store::file;
use super::*;
use crate::agent::Agent;
use crate::audit::Audit;
use crate::config::Config;
use crate::journal::Journal;
use crate::security::{Caller, Security};

/// An agent with a state folder of its own.
pub(crate) fn agent() -> (TempDir, Arc<Agent>) {
    let folder = tempfile::tempdir().unwrap();
    let agent = again(&folder);
    (folder, agent)
}

/// The next process of an agent.
fn again(folder: &TempDir) -> Arc<Agent> {
    let path = folder.path();
    let config = path.join("agent.toml");
    let text = format!("name = \"here\"\nstate_dir = {path:?}\nrun_dir = {path:?}\n");
    std::fs::write(&config, text).unwrap();
    let config = Config::read(&config).unwrap();
    Arc::new(Agent::new(
        config,
        Journal::open(path).unwrap(),
        Registry::open(path).unwrap(),
        Security::insecure(),
        Audit::open(path).unwrap(),
    ))
}

/// A trial that nothing has to put back.
pub(crate) fn begin_nothing(trials: &Trials, port: &str) -> Begun {
    begin(trials, port, &Settings::default()).unwrap()
}

/// The same, done, with much time to confirm it.
fn nothing_waits_long(trials: &Arc<Trials>, port: &str) {
    start(trials, vec![begin_nothing(trials, port)], WITHIN_S_MAX).unwrap();
}

pub(crate) fn on_trial(trials: &Trials, port: &str) -> bool {
    trials.lock().contains_key(port)
}

/// What the loopback cannot have: neither before nor after.
fn refused() -> Settings {
    let dcb = DcbSettings { lossless: Some(vec![3]), ..DcbSettings::default() };
    Settings { dcb: Some(dcb), ..Settings::default() }
}

fn loopback() -> Port {
    linked("lo").unwrap()
}

fn tried(trials: &Trials, plan: &Plan, left: &str) -> String {
    let read = || Ok((loopback(), left.to_owned()));
    change(trials, &loopback(), plan, &read).unwrap_err().message
}

#[test]
fn it_is_reported_whether_it_was_put_back() {
    let (_folder, agent) = agent();
    let plan = Plan { settings: refused(), ..Plan::default() };
    let message = tried(&agent.trials, &plan, "");
    assert!(message.starts_with("lo has no DCB") && message.ends_with("; lo was put back"), "{message}");
    let plan = Plan { undo: refused(), ..plan };
    let message = tried(&agent.trials, &plan, "");
    assert!(
        message.contains("; lo could NOT be put back: the lossless priorities of lo could not be set"),
        "{message}"
    );
    assert!(message.contains("`linerate link confirm lo`"), "{message}");
}

/// It also takes as long as a link may take.
#[test]
fn what_the_adapter_passed_over_is_put_back() {
    let (_folder, agent) = agent();
    let message = tried(&agent.trials, &Plan::default(), "pause is receive on, not receive off");
    assert_eq!(
        message,
        "lo: the adapter did not take it: pause is receive on, not receive off; lo was put back"
    );
    assert!(!file(&agent.trials).exists());
}

#[test]
fn what_could_not_be_put_back_is_kept_until_it_is_confirmed() {
    let (folder, first) = agent();
    let undo = Settings { mtu: Some(1500), ..refused() };
    let gone = begin(&first.trials, "no-such-port", &undo).unwrap();
    assert!(matches!(end(&first.trials, &gone), Ended::Stuck(why) if why.contains("no port no-such-port")));
    begin(&first.trials, "lo", &refused()).unwrap();
    drop(first);

    // The next process tries again, and keeps what it cannot do either.
    let second = again(&folder);
    recover(&second.trials);
    for port in ["no-such-port", "lo"] {
        let kept = second.trials.lock().get(port).cloned().expect(port);
        assert!(kept.stuck.is_some() && file(&second.trials).exists(), "{kept:?}");
    }
    assert_eq!(second.trials.lock().get("no-such-port").unwrap().undo, undo);

    // A confirmation now gets the answer that it is neither the new nor the old.
    let error = confirm(&second.trials, "no-such-port").unwrap_err();
    assert!(error.message.contains("could NOT be put back: there is no port no-such-port"), "{error:?}");
    assert!(!on_trial(&second.trials, "no-such-port"));
    // A new change gives it another end.
    nothing_waits_long(&second.trials, "lo");
    confirm(&second.trials, "lo").unwrap();
    assert!(!file(&second.trials).exists());
}

#[test]
fn a_confirmation_that_cannot_be_written_leaves_the_trial_as_it_is() {
    let (_folder, agent) = agent();
    nothing_waits_long(&agent.trials, "lo");
    let path = file(&agent.trials);
    let written = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let error = confirm(&agent.trials, "lo").unwrap_err();
    assert!(
        error.message.contains("cannot be written") && error.hint.contains("still on trial"),
        "{error:?}"
    );
    assert!(on_trial(&agent.trials, "lo"), "it would stay, without an end");
    std::fs::remove_dir(&path).unwrap();
    std::fs::write(&path, written).unwrap();
    confirm(&agent.trials, "lo").unwrap();
    assert!(!on_trial(&agent.trials, "lo") && !path.exists());
}

#[test]
fn a_port_is_on_trial_once() {
    let (_folder, agent) = agent();
    let begun = begin_nothing(&agent.trials, "lo");
    assert!(
        begin(&agent.trials, "lo", &Settings::default()).unwrap_err().message.contains("on trial already")
    );
    assert_eq!(end(&agent.trials, &begun), Ended::PutBack);
    assert_eq!(end(&agent.trials, &begun), Ended::Confirmed, "another trial has replaced it");
    let late = confirm(&agent.trials, "lo").unwrap_err();
    assert!(late.message.contains("no change that waits") && late.hint.contains("--within"), "{late:?}");
}

#[test]
fn a_change_in_progress_is_neither_confirmed_nor_put_back_by_others() {
    let (_folder, agent) = agent();
    let begun = begin_nothing(&agent.trials, "lo");
    for refused in [confirm(&agent.trials, "lo"), put_back_now(&agent.trials, "lo")] {
        let error = refused.unwrap_err();
        assert!(error.code == code::LINK_BUSY && error.message.contains("not done yet"), "{error:?}");
    }
    assert!(on_trial(&agent.trials, "lo"));
    start(&agent.trials, vec![begun], WITHIN_S_MAX).unwrap();
    put_back_now(&agent.trials, "lo").unwrap();
    assert!(!on_trial(&agent.trials, "lo"));
}

#[test]
fn no_thread_waits_for_a_trial_that_ended() {
    let (_folder, agent) = agent();
    nothing_waits_long(&agent.trials, "lo");
    nothing_waits_long(&agent.trials, "other");
    assert_eq!(Arc::strong_count(&agent.trials), 3, "a waiting thread holds the trials");
    // Both wait by now.
    std::thread::sleep(Duration::from_millis(300));
    confirm(&agent.trials, "lo").unwrap();
    put_back_now(&agent.trials, "other").unwrap_err();
    let deadline = Instant::now() + Duration::from_secs(60);
    while Arc::strong_count(&agent.trials) > 1 {
        assert!(Instant::now() < deadline, "it waits still");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn trials_have_a_limit() {
    let (_folder, agent) = agent();
    for number in 0..TRIALS_MAX {
        agent.trials.lock().insert(format!("p{number}"), Trial::default());
    }
    let error = begin(&agent.trials, "lo", &Settings::default()).unwrap_err();
    assert!(error.message.contains("256 ports of here are on trial already"), "{error:?}");
    // Each of them may still end.
    agent.trials.lock().remove("p0");
    begin_nothing(&agent.trials, "lo");
}

#[test]
fn while_a_guest_moves_nothing_is_set_and_all_may_be_put_back() {
    let (_folder, agent) = agent();
    nothing_waits_long(&agent.trials, "lo");
    let hello = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        session: SessionId([1; 16]),
        role: Role::ControlNew,
        link: 0,
        channel: 0,
        token: Token([0; 32]),
    };
    agent.incoming.session_for(&hello, ([127, 0, 0, 1], 7979).into(), Caller::Tcp(None)).unwrap();
    let error = begin(&agent.trials, "other", &Settings::default()).unwrap_err();
    assert!(
        error.code == code::MIGRATION_IN_PROGRESS && error.message.contains("from or to here"),
        "{error:?}"
    );
    assert!(!on_trial(&agent.trials, "other"));
    put_back_now(&agent.trials, "lo").unwrap();
    assert!(!on_trial(&agent.trials, "lo"));
}
