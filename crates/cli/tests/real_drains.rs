//! Hosts that are emptied: real agents, real guests, two or three hosts. As root, with what lab/install.sh installs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Tests say what they expect.

#[path = "drains/hall.rs"]
mod hall;

use std::time::Duration;

use hall::{Hall, calm, ended_state, writes};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(240);

#[test]
fn all_guests_leave_but_those_that_are_kept() {
    let hall = Hall::new(2, &[400, 400]);
    let guests = [calm("a1"), calm("a2"), writes("busy", 4), calm("stays")];
    hall.start(0, &guests);
    let (exit, plan) = hall.json(0, &["drain", "--to", &hall.address(1), "--keep", "stays", "--dry-run"]);
    assert_eq!(exit, 0, "{plan:#}");
    let states: Vec<(&str, &str)> =
        hall::guests(&plan).map(|one| (hall::text(one, "guest"), hall::text(one, "state"))).collect();
    assert_eq!(states, [("a1", "waiting"), ("a2", "waiting"), ("busy", "waiting"), ("stays", "kept")]);
    assert!(
        hall::guests(&plan).all(|one| one["state"] == "kept" || one["predicted_ms"].as_u64() > Some(0)),
        "{plan:#}"
    );
    assert_eq!(hall.names(0), ["a1", "a2", "busy", "stays"], "nothing was moved");
    assert_eq!(hall.json(0, &["status"]).1["cordon"], Value::Null, "nothing was changed");

    let (exit, lines) = hall.lines(0, &["drain", &hall.name(0), "--to", &hall.address(1), "--keep", "stays"]);
    let last = lines.last().unwrap();
    assert_eq!(exit, 0, "{last:#}");
    assert!(lines[0]["id"].is_string() && ended_state(last), "{lines:#?}");
    for one in hall::guests(last) {
        let wanted = if one["guest"] == "stays" { "kept" } else { "moved" };
        assert_eq!(one["state"], wanted, "{one:#}");
        if wanted == "moved" {
            assert_eq!(one["to"], json!(hall.name(1)), "{one:#}");
            assert!(one["took_ms"].as_u64() > Some(0) && one["blackout_us"].as_u64() > Some(0), "{one:#}");
            assert_eq!((&one["tries"], &one["reason"]), (&json!([]), &Value::Null), "{one:#}");
        }
    }
    assert!(last["bound"]["source_ms"].as_u64() > Some(0), "{last:#}");
    assert_eq!(hall.names(0), ["stays"]);
    assert_eq!(hall.names(1), ["a1", "a2", "busy"]);
    hall.all_go_on();
    // The host stays cordoned, and the store has no reservation left.
    assert!(hall.json(0, &["status"]).1["cordon"]["by"].as_str().unwrap().starts_with("root@"));
    let (_, hosts) = hall.json(0, &["fleet", "hosts"]);
    let hosts = hosts.as_array().unwrap();
    assert_eq!(hosts.len(), 2);
    assert!(hosts.iter().all(|host| host["reserved_bytes"] == 0), "{hosts:#?}");
    let (_, status) = hall.json(0, &["drain", "status"]);
    assert_eq!(hall::guests(&status).count(), 4);
    assert!(ended_state(&status));
    let (exit, text) = hall.run(0, &["drain", "status"]);
    assert!(exit == 0 && text.contains("3 of 4 moved"), "{text}");
    // An empty host is drained at once.
    let (exit, lines) = hall.lines(0, &["drain", "--to", &hall.address(1), "--keep", "stays"]);
    assert_eq!(exit, 0, "{lines:#?}");
    let _ = LONG;
}
