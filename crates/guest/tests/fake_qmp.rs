//! QMP against a server that misbehaves.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests, too, say what they expect

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use linerate_guest::migrate::{MigrateError, SourceQemu};
use linerate_guest::qmp::{EVENTS_BYTES_MAX, EVENTS_MAX, LINE_BYTES_MAX, Qmp, QmpError};
use serde_json::{Value, json};

const GREETING: &str =
    r#"{"QMP":{"version":{"qemu":{"micro":2,"minor":0,"major":10},"package":""},"capabilities":[]}}"#;

struct Peer {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Peer {
    fn send(&mut self, text: &str) {
        // The client may have given up already: that is its test's matter.
        let _ = self.stream.write_all(text.as_bytes());
    }

    fn id(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).map_or(Value::Null, |value| value["id"].clone())
    }

    fn greet(&mut self) {
        self.send(&format!("{GREETING}\r\n"));
        let id = self.id();
        self.send(&format!("{}\r\n", json!({ "return": {}, "id": id })));
    }
}

fn serve(script: impl FnOnce(&mut Peer) + Send + 'static) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("q");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        script(&mut Peer { stream, lines });
    });
    (dir, path)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn shortly() -> Instant {
    Instant::now() + Duration::from_millis(200)
}

#[test]
fn events_between_command_and_answer_are_kept_in_order() {
    let (_dir, path) = serve(|peer| {
        peer.greet();
        let id = peer.id();
        let event = |name: &str| {
            format!(
                "{}\n",
                json!({"event": name, "data": {"status": "x"}, "timestamp": {"seconds": 2, "microseconds": 5}})
            )
        };
        peer.send(&event("STOP"));
        peer.send(&event("MIGRATION"));
        peer.send(&format!("{}\n", json!({ "return": 7, "id": id })));
        peer.send(&event("RESUME"));
        peer.id();
    });
    let mut qmp = Qmp::connect(&path, soon()).unwrap();
    assert_eq!(qmp.version().to_string(), "10.0.2");
    assert_eq!(qmp.peer_pid().unwrap(), std::process::id() as i32);
    assert_eq!(qmp.execute("x", json!({}), soon()).unwrap(), 7);
    let event = qmp.wait_event(|e| e.is_migration("x"), soon()).unwrap();
    assert_eq!(event.emitted, Duration::from_micros(2_000_005));
    assert_eq!(qmp.wait_event(|e| e.name == "RESUME", soon()).unwrap().name, "RESUME");
    assert_eq!(qmp.try_event().unwrap().unwrap().name, "STOP");
    assert!(qmp.try_event().unwrap().is_none());
}

#[test]
fn a_late_answer_is_not_taken_for_the_next() {
    let (_dir, path) = serve(|peer| {
        peer.greet();
        let first = peer.id();
        let second = peer.id();
        peer.send(&format!(
            "{}\n{}\n",
            json!({"return": "late", "id": first}),
            json!({"return": "right", "id": second})
        ));
        peer.id();
    });
    let mut qmp = Qmp::connect(&path, soon()).unwrap();
    assert!(matches!(qmp.execute("a", json!({}), shortly()), Err(QmpError::TimedOut { .. })));
    assert_eq!(qmp.execute("b", json!({}), soon()).unwrap(), "right");
}

#[test]
fn refusals_carry_class_and_sentence() {
    let (_dir, path) = serve(|peer| {
        peer.greet();
        let id = peer.id();
        peer.send(&format!(
            "{}\n",
            json!({"error": {"class": "CommandNotFound", "desc": "no such"}, "id": id})
        ));
        peer.id();
    });
    let mut qmp = Qmp::connect(&path, soon()).unwrap();
    match qmp.execute("nonsense", json!({}), soon()) {
        Err(QmpError::Refused { command, class, description }) => {
            assert_eq!(
                (command.as_str(), class.as_str(), description.as_str()),
                ("nonsense", "CommandNotFound", "no such")
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn garbage_is_malformed_and_the_connection_is_given_up() {
    for garbage in ["no json\n", "[1]\n", "{\"what\":1}\n", "\u{0}\n", "\n"] {
        let (_dir, path) = serve(move |peer| {
            peer.greet();
            peer.id();
            peer.send(garbage);
            peer.id();
        });
        let mut qmp = Qmp::connect(&path, soon()).unwrap();
        assert!(
            matches!(qmp.execute("x", json!({}), soon()), Err(QmpError::Malformed { .. })),
            "{garbage:?}"
        );
        assert!(matches!(qmp.execute("x", json!({}), soon()), Err(QmpError::Broken)));
    }
    for greeting in
        ["{}\n", "hello\n", "{\"QMP\":{\"version\":{\"qemu\":{\"major\":-1,\"minor\":0,\"micro\":0}}}}\n"]
    {
        let (_dir, path) = serve(move |peer| peer.send(greeting));
        assert!(matches!(Qmp::connect(&path, soon()), Err(QmpError::Malformed { .. })), "{greeting:?}");
    }
}

#[test]
fn an_endless_line_is_cut_off() {
    let (_dir, path) = serve(|peer| {
        peer.greet();
        peer.id();
        let block = "x".repeat(1 << 20);
        for _ in 0..(LINE_BYTES_MAX >> 20) + 2 {
            peer.send(&block);
        }
        peer.id();
    });
    let mut qmp = Qmp::connect(&path, soon()).unwrap();
    assert!(matches!(qmp.execute("x", json!({}), soon()), Err(QmpError::LineTooLong)));
}

#[test]
fn silence_and_a_closed_connection_are_different_errors() {
    let (_dir, path) = serve(|peer| {
        peer.id();
    });
    assert!(matches!(Qmp::connect(&path, shortly()), Err(QmpError::Busy { .. })));
    let (_dir, path) = serve(|_| {});
    assert!(matches!(Qmp::connect(&path, soon()), Err(QmpError::Closed { .. })));
    let (_dir, path) = serve(|peer| {
        peer.greet();
        peer.id();
    });
    let mut qmp = Qmp::connect(&path, soon()).unwrap();
    assert!(matches!(qmp.execute("quit", json!({}), soon()), Err(QmpError::Closed { .. })));
    assert!(matches!(Qmp::connect("/nonexistent/q".as_ref(), soon()), Err(QmpError::Connect { .. })));
    let long = PathBuf::from(format!("/{}", "x".repeat(200)));
    assert!(matches!(Qmp::connect(&long, soon()), Err(QmpError::Connect { .. })));
}

#[test]
fn a_flood_of_events_is_bounded() {
    let (_dir, path) = serve(|peer| {
        peer.greet();
        let id = peer.id();
        for number in 0..EVENTS_MAX + 10 {
            peer.send(&format!("{}\n", json!({"event": "E", "data": {"number": number}})));
        }
        peer.send(&format!("{}\n", json!({ "return": {}, "id": id })));
        peer.id();
    });
    let mut qmp = Qmp::connect(&path, soon()).unwrap();
    qmp.execute("x", json!({}), soon()).unwrap();
    assert_eq!(qmp.events_dropped(), 10);
    assert_eq!(qmp.try_event().unwrap().unwrap().data["number"], 10);
}

#[test]
fn long_events_are_bounded_and_push_out_nothing_that_says_what_the_guest_does() {
    const LONG: usize = 4;
    let (_dir, path) = serve(|peer| {
        peer.greet();
        let id = peer.id();
        let padding = "x".repeat(EVENTS_BYTES_MAX / LONG);
        for name in ["RESUME", "STOP"] {
            peer.send(&format!("{}\n", json!({ "event": name })));
        }
        for number in 0..2 * LONG {
            peer.send(&format!(
                "{}\n",
                json!({"event": "E", "data": {"number": number, "padding": padding}})
            ));
        }
        peer.send(&format!("{}\n", json!({ "event": "MIGRATION" })));
        peer.send(&format!("{}\n", json!({"event": "F", "data": "x".repeat(2 * EVENTS_BYTES_MAX)})));
        peer.send(&format!("{}\n", json!({ "return": {}, "id": id })));
        peer.id();
    });
    let mut qmp = Qmp::connect(&path, soon()).unwrap();
    qmp.execute("x", json!({}), soon()).unwrap();
    // The longest one goes itself, as all others together are shorter.
    assert_eq!(qmp.events_dropped(), 2 * LONG as u64 + 1);
    let names = std::iter::from_fn(|| qmp.try_event().unwrap()).map(|event| event.name);
    assert_eq!(names.collect::<Vec<_>>(), ["RESUME", "STOP", "MIGRATION"]);
}

#[test]
fn a_qemu_that_sends_events_without_end_is_not_listened_to_without_end() {
    let (_dir, path) = serve(|peer| {
        peer.greet();
        while peer.stream.write_all(b"{\"event\": \"RESET\"}\n").is_ok() {}
    });
    let mut qmp = Qmp::connect(&path, soon()).unwrap();
    let begun = Instant::now();
    // A pause of the other thread looks like an end.
    assert!(matches!(qmp.clear_events(), Ok(()) | Err(QmpError::TimedOut { .. })));
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// QEMU answers what it is asked while it stops the guest: the answer may come before anybody has looked at the events.
#[test]
fn a_guest_whose_stop_comes_just_before_an_answer_ran_until_then() {
    let (dir, path) = serve(|peer| {
        peer.greet();
        let mut begun = false;
        loop {
            let mut line = String::new();
            if peer.lines.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let command: Value = serde_json::from_str(&line).unwrap();
            let answer = match command["execute"].as_str().unwrap() {
                "query-status" => json!({ "status": "running", "running": true }),
                "query-migrate" => json!({ "status": if begun { "pre-switchover" } else { "none" } }),
                _ => json!({}),
            };
            let event = |name: &str, data: Value| json!({ "event": name, "data": data, "timestamp": { "seconds": 2, "microseconds": 5 } });
            let mut text = String::new();
            begun |= command["execute"] == "migrate";
            if begun && command["execute"] == "query-migrate" {
                let held = event("MIGRATION", json!({ "status": "pre-switchover" }));
                text = format!("{}\n{held}\n", event("STOP", json!({})));
            }
            peer.send(&format!("{text}{}\n", json!({ "return": answer, "id": command["id"] })));
        }
    });
    let mut qemu = SourceQemu::recovered(Qmp::connect(&path, soon()).unwrap(), true, None, false);
    qemu.begin(&dir.path().join("m"), soon()).unwrap();
    let held = qemu.wait_pre_switchover(soon(), &|| false).unwrap();
    assert!(held.ran && held.stopped.is_some(), "{held:?}");
}

/// What a newer QEMU may say is shown as it is, and the guest gets no command.
#[test]
fn an_unknown_run_state_is_named_and_nothing_is_done_to_the_guest() {
    let (_dir, path) = serve(|peer| {
        peer.greet();
        let answers = [json!({ "status": "frozen", "running": false }), json!({ "running": false })];
        for answer in answers {
            let id = peer.id();
            peer.send(&format!("{}\n", json!({ "return": answer, "id": id })));
        }
    });
    let mut qemu = SourceQemu::recovered(Qmp::connect(&path, soon()).unwrap(), true, None, false);
    let error = qemu.resume(soon()).unwrap_err();
    assert_eq!(error.to_string(), "the guest is frozen, paused was expected");
    let unnamed = qemu.status(soon()).unwrap_err();
    assert!(matches!(unnamed, MigrateError::Qmp(QmpError::Malformed { .. })), "{unnamed:?}");
}
