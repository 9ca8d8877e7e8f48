//! What goes over the socket, to the letter: other people's programs read it.

use linerate_api::{AdoptGuest, Event, EventKind, MigrateRequest, Step, StopGuest};
use serde_json::json;

#[test]
fn an_event_is_one_flat_object() {
    let event = Event { at_us: 12, kind: EventKind::step_done(Step::CleanUp, 34) };
    let expected = json!({"at_us": 12, "kind": "step", "number": 10, "name": "clean_up", "state": "done", "duration_us": 34});
    assert_eq!(serde_json::to_value(&event).unwrap(), expected);
    assert_eq!(serde_json::from_value::<Event>(expected).unwrap(), event);
}

#[test]
fn kinds_and_fields_of_a_newer_agent_are_passed_over() {
    let event: Event = serde_json::from_value(json!({"at_us": 1, "kind": "eclipse", "moon": "new"})).unwrap();
    assert_eq!(event.kind, EventKind::Unknown);
    let event: Event =
        serde_json::from_value(json!({"at_us": 1, "kind": "link_back", "link": 3, "moon": 1})).unwrap();
    assert_eq!(event.kind, EventKind::LinkRestored { link: 3 });
}

#[test]
fn requests_have_defaults_and_refuse_what_they_do_not_know() {
    let request: MigrateRequest = serde_json::from_value(json!({"guest": "web", "to": "beta"})).unwrap();
    assert_eq!(request, MigrateRequest::new("web", "beta"));
    assert_eq!((request.blackout_budget_ms(), request.link_timeout_s), (300, 30));
    let misspelt = json!({"guest": "web", "to": "beta", "max_blackout": 5});
    assert!(serde_json::from_value::<MigrateRequest>(misspelt).is_err());
    assert!(serde_json::from_value::<AdoptGuest>(json!({"pdi": 5})).is_err());
    assert!(serde_json::from_value::<StopGuest>(json!({"forced": true})).is_err());
}
