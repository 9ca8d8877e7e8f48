//! The API spells steps, sides, guest states and codes as the wire protocol has them.

use linerate_api as api;
use linerate_wire::fault::{self, Code};

#[test]
fn steps_sides_and_states_have_the_numbers_and_words_of_the_wire() {
    assert_eq!(api::Step::ALL.len(), fault::Step::ALL.len());
    for step in fault::Step::ALL {
        assert_eq!(api::Step::from_number(step as u8).unwrap().text(), step.name());
    }
    for number in 0..=u8::MAX {
        let side = fault::Side::from_number(number).map(|side| side.to_string());
        assert_eq!(api::Side::from_number(number).map(|side| side.to_string()), side);
        let state = fault::GuestState::from_number(number).map(fault::GuestState::sentence);
        assert_eq!(api::GuestState::from_number(number).map(api::GuestState::text), state);
    }
}

fn snake(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[test]
fn every_code_that_has_a_status_of_its_own_exists_on_the_wire() {
    let with_status = [
        "not_authorised",
        "guest_unknown",
        "session_unknown",
        "guest_exists",
        "guest_busy",
        "cancelled",
        "guest_gone",
        "not_migratable",
        "resource_missing",
        "guest_differs",
        "cordoned",
        "version_mismatch",
        "protocol_violation",
        "peer_lost",
        "no_link",
        "memory_short",
        "timed_out",
    ];
    let wire: Vec<String> = Code::ALL.iter().map(|code| snake(&format!("{code:?}"))).collect();
    for code in with_status {
        assert!(wire.iter().any(|name| name == code), "{code} is not a code of the wire");
        assert_ne!(api::ErrorBody::new(code, "").http_status(), 500, "{code} has no status");
    }
}
