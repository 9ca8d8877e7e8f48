//! A host's name from any text: whatever is read is written as it was.

#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate_trust::name::{NAME_BYTES_MAX, Name};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let Ok(name) = text.parse::<Name>() else { return };
    assert_eq!(name.to_string(), text, "a name has one spelling");
    for part in [name.cluster.as_str(), name.host.as_str()] {
        assert!(!part.is_empty() && part.len() <= NAME_BYTES_MAX);
        assert!(part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-._".contains(&byte)));
    }
});
